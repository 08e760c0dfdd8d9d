//! Why a request for a file's content fails, and how it is told.

use std::io;
use std::path::Path;

use http::{Response, StatusCode};
use rustix::io::Errno;

use crate::daemon::files::multipart::Malformed;
use crate::daemon::fs::PathError;
use crate::daemon::http::{self as plain, Body};

/// A refusal: a status, and a message that names the bad value.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    message: String,
}

impl Failure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A failed file operation: 507 when there is no room, 400 for what no file can be named, else 500.
    pub(super) fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        match Errno::from_io_error(error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                format!("not enough disk space available: cannot {what} {path}: {error}"),
            ),
            Some(Errno::NAMETOOLONG) => Self::bad(format!("cannot {what} {path}: {error}")),
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot {what} {path}: {error}")),
        }
    }

    /// The same for something that a 404 says is not there.
    pub(super) fn find(what: &str, path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::missing(path),
            _ => Self::io(what, path, error),
        }
    }

    pub(super) fn missing(path: &Path) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("path '{}' does not exist", path.display()))
    }

    pub(super) fn directory(path: &Path) -> Self {
        Self::bad(format!("path '{}' is a directory", path.display()))
    }

    /// A pipe that is full, or that has no reader.
    pub(super) fn unread(path: &Path, why: &str) -> Self {
        Self::new(StatusCode::CONFLICT, format!("cannot write to the pipe '{}': {why}", path.display()))
    }

    /// A pipe whose reader takes nothing.
    pub(super) fn stalled(path: &Path) -> Self {
        let text = format!("the upload stalled: nobody takes what is in the pipe '{}'", path.display());
        Self::new(StatusCode::REQUEST_TIMEOUT, text)
    }

    pub(super) fn interrupted() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the operation was interrupted: the daemon stops")
    }

    pub(super) fn into_response(self) -> Response<Body> {
        plain::json_error(self.status, &self.message)
    }
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Self::bad(error.to_string())
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        Self::bad(error.to_string())
    }
}
