//! The error of the helper program: small enough to cross a pipe as one line of JSON.

use std::fmt::{self, Display};
use std::io;

use serde::{Deserialize, Serialize};

/// Says what kind of failure it was, by the codes of the contract.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The host cannot do what was asked.
    Unsupported,
    /// A value makes no sense; the message names it.
    InvalidArgument,
    /// The sandbox is not in a state that allows it.
    InvalidState,
    /// Somebody else is doing the same.
    Conflict,
    /// The sandbox is not there.
    NotFound,
    /// This user may not do it.
    PermissionDenied,
    /// The disk is full.
    StorageFull,
    /// Anything else.
    Unexpected,
}

/// A failure of the helper, as it reports it to whoever started it.
#[non_exhaustive]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What happened and what to do about it, in one line.
    pub message: String,
}

impl Failure {
    /// Returns a failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Unsupported, message)
    }

    /// Returns the failure of an operating system call, with what was being done.
    pub(crate) fn os(doing: impl Display, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FailureKind::StorageFull,
            io::ErrorKind::PermissionDenied => FailureKind::PermissionDenied,
            io::ErrorKind::NotFound => FailureKind::NotFound,
            _ => FailureKind::Unexpected,
        };
        Self::new(kind, format!("cannot {doing}: {error}"))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Adds what was being done to an operating system error.
pub(crate) trait Doing<T> {
    /// Turns an error into a [`Failure`] that says "cannot `doing`".
    fn doing(self, doing: impl Display) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, doing: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::os(doing, error))
    }
}
