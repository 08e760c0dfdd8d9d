use std::fmt;
use std::str::FromStr;

use sandhold_core::{Error, Result};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

/// The SHA-1 id of a git object in the vault.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectId([u8; 20]);

impl ObjectId {
    pub(crate) const ZERO: Self = Self([0; 20]);

    /// Returns the 20 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }

    pub(crate) const fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }

    /// The id of an object of this kind (`blob`, `tree`, `commit`) and content.
    pub(crate) fn of(kind: &str, content: &[u8]) -> Self {
        let mut hash = Self::hasher(kind, content.len() as u64);
        hash.update(content);
        Self(hash.finalize().into())
    }

    /// A hash that has taken the header of an object, and waits for its content.
    pub(crate) fn hasher(kind: &str, size: u64) -> Sha1 {
        let mut hash = Sha1::new();
        hash.update(format!("{kind} {size}\0").as_bytes());
        hash
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ObjectId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid_argument(format!("{text:?} is not an object id; give 40 hex digits"));
        if text.len() != 40 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 20];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(index * 2..index * 2 + 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for ObjectId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ObjectId> for String {
    fn from(id: ObjectId) -> Self {
        id.to_string()
    }
}

impl From<git2::Oid> for ObjectId {
    fn from(oid: git2::Oid) -> Self {
        let mut bytes = [0; 20];
        // libgit2 is built without SHA-256 here, so that every id has 20 bytes.
        bytes.copy_from_slice(&oid.as_bytes()[..20]);
        Self(bytes)
    }
}

impl From<ObjectId> for git2::Oid {
    fn from(id: ObjectId) -> Self {
        git2::Oid::from_bytes(&id.0).unwrap_or(git2::Oid::ZERO_SHA1)
    }
}
