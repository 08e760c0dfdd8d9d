use std::fmt::Display;
use std::io;
use std::path::Path;

use sandhold_core::{Error, ErrorKind};

/// Lifts a failure of the file system; `what` continues "could not".
pub(crate) fn io(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        _ => ErrorKind::Unexpected,
    };
    Error::new(kind, format!("could not {what} {}: {error}", path.display())).with_source(error)
}

/// Lifts a failure of libgit2, which only reads here; `what` continues "could not".
pub(crate) fn git(what: impl Display, error: git2::Error) -> Error {
    let kind = match error.code() {
        git2::ErrorCode::NotFound => ErrorKind::NotFound,
        git2::ErrorCode::Exists => ErrorKind::AlreadyExists,
        git2::ErrorCode::Modified | git2::ErrorCode::Locked => ErrorKind::Conflict,
        _ => ErrorKind::Unexpected,
    };
    Error::new(kind, format!("could not {what}: {}", error.message())).with_source(error)
}
