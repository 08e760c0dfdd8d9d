//! What SQLite's codes mean here.

use rusqlite::ErrorCode;
use sandhold_core::{Error, ErrorKind};

/// Classifies by code, never by text.
pub(super) fn lift(error: &rusqlite::Error) -> Error {
    let (kind, message, reason) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            "another process kept the registry's file locked for too long; try again",
            Some("busy"),
        ),
        Some(ErrorCode::DiskFull) => (
            ErrorKind::StorageFull,
            "the disk of the registry is full; free space, what was stored before is whole",
            None,
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
            ErrorKind::PermissionDenied,
            "the registry's file or its directory cannot be written; give this user the right to",
            None,
        ),
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Unavailable,
            "the registry's file cannot be opened; its directory must exist and be this user's",
            None,
        ),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (
            ErrorKind::Unexpected,
            "the registry's file is damaged or no SQLite database; restore it, or move it away: sandboxes are then \
             found by their tags",
            Some("corrupt"),
        ),
        Some(ErrorCode::SystemIoFailure) => {
            (ErrorKind::Unavailable, "the registry's file cannot be read or written", None)
        }
        _ => (ErrorKind::Unexpected, "SQLite refused a statement of the registry", None),
    };
    let lifted = Error::new(kind, message).with_source(error.to_string());
    let lifted = match reason {
        Some(reason) => lifted.with_reason(reason),
        None => lifted,
    };
    if reason == Some("busy") { lifted.retryable(None) } else { lifted }
}
