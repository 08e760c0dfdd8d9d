use std::borrow::Borrow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

    /// The generation of a sandbox that was made elsewhere and carries none: its id, which is never given again, is as good.
    pub(crate) fn of_untagged(id: &SandboxId) -> Self {
        Self(format!("untagged-{id}"))
    }

    /// Wraps the text of a tag or a record.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl Attempt {
    /// Draws a new one, as 32 lower-case hex digits: the time in milliseconds (48 bits), a 7, and 76 random bits.
    ///
    /// The time is for providers that do not tell when a sandbox was made; see [`Attempt::drawn_at`].
    ///
    /// # Errors
    /// As [`Generation::random`].
    pub fn random() -> Result<Self> {
        let random = random_hex()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Ok(Self(format!("{:012x}7{}", now & 0xffff_ffff_ffff, &random[13..])))
    }

    /// Returns when it was drawn, by the clock of whoever drew it; `None` for the text of another maker.
    #[must_use]
    pub fn drawn_at(&self) -> Option<SystemTime> {
        let drawn = self.0.len() == 32 && self.0.bytes().all(|byte| byte.is_ascii_hexdigit());
        let time = self.0.get(..12).filter(|_| drawn && self.0.as_bytes().get(12) == Some(&b'7'))?;
        UNIX_EPOCH.checked_add(Duration::from_millis(u64::from_str_radix(time, 16).ok()?))
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
    fn an_attempt_tells_when_it_was_drawn_and_text_of_others_does_not() {
        let before = SystemTime::now() - Duration::from_millis(1);
        let attempt = Attempt::random().unwrap();
        let drawn = attempt.drawn_at().unwrap();
        assert!(before <= drawn && drawn <= SystemTime::now(), "{attempt}");
        assert_eq!(attempt.as_str().len(), 32);
        assert_ne!(attempt, Attempt::random().unwrap());
        for other in ["", "mastra-i1", "0190", &"f".repeat(32), &format!("0{}é", "7".repeat(29))] {
            assert_eq!(Attempt::new(other).drawn_at(), None, "{other}");
        }
    }

    #[test]
    fn generations_differ() {
        assert_ne!(Generation::random().unwrap(), Generation::random().unwrap());
    }
}
