use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Returns the text, verbatim.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_newtype! {
    /// The provider's own id of a sandbox. Opaque: stored verbatim and never parsed.
    SandboxId
}
text_newtype! {
    /// The provider's own id of a stored state. Opaque: stored verbatim and never parsed.
    SnapshotId
}
text_newtype! {
    /// The caller's logical id for a sandbox, unique per [`Owner`]; 1 to 256 printable bytes.
    Key
}
text_newtype! {
    /// The namespace of keys, such as a tenant or an app; default `default`.
    Owner
}
text_newtype! {
    /// A random id written at create into the provider's tags and into the record; a handle is bound to it.
    Generation
}
text_newtype! {
    /// The random nonce of one create call; it is also the provider's idempotency key where it has one.
    Attempt
}

impl SandboxId {
    /// Wraps an id as the provider wrote it.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }
}

impl SnapshotId {
    /// Wraps an id as the provider wrote it.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }
}

impl Key {
    /// Checks and wraps a key.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] for an empty key, one above 256 bytes, or one with control characters.
    pub fn new(key: impl Into<String>) -> Result<Self> {
        checked("key", key.into()).map(Self)
    }
}

impl Owner {
    /// Checks and wraps an owner.
    ///
    /// # Errors
    /// As [`Key::new`].
    pub fn new(owner: impl Into<String>) -> Result<Self> {
        checked("owner", owner.into()).map(Self)
    }
}

impl TryFrom<&str> for Key {
    type Error = Error;

    fn try_from(key: &str) -> Result<Self> {
        Self::new(key)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(key: String) -> Result<Self> {
        Self::new(key)
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl Generation {
    /// Draws a new one: 128 random bits as lower-case hex.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unexpected`] when the system has no randomness.
    pub fn random() -> Result<Self> {
        random_hex().map(Self)
    }

    /// Wraps the text of a tag or a record.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl Attempt {
    /// Draws a new one: 128 random bits as lower-case hex.
    ///
    /// # Errors
    /// As [`Generation::random`].
    pub fn random() -> Result<Self> {
        random_hex().map(Self)
    }

    /// Wraps the text of a tag or a record.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

fn checked(what: &'static str, text: String) -> Result<String> {
    let problem = if text.is_empty() {
        "is empty"
    } else if text.len() > 256 {
        "is longer than 256 bytes"
    } else if text.chars().any(char::is_control) {
        "contains a control character"
    } else {
        return Ok(text);
    };
    let shown: String = text.chars().take(64).collect();
    Err(Error::invalid_argument(format!(
        "the {what} {shown:?} {problem}; give 1 to 256 bytes of printable text"
    )))
}

/// 128 random bits from the system, as 32 lower-case hex digits: good for ids that must never collide.
fn random_hex() -> Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(crate::ErrorKind::Unexpected, "the system gave no random bytes")
            .with_source(error.to_string())
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_key_is_named_in_the_error() {
        for bad in ["", "a\nb", &"x".repeat(257)] {
            let error = Key::new(bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
            assert!(error.message().contains("key"), "{error}");
        }
        assert_eq!(Key::new("session-42").unwrap().as_str(), "session-42");
    }

    #[test]
    fn generations_differ() {
        assert_ne!(Generation::random().unwrap(), Generation::random().unwrap());
    }
}
