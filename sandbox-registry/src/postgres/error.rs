//! What Postgres's codes mean here.

use sandhold_core::{Error, ErrorKind};
use tokio_postgres::error::{Severity, SqlState};

/// Classifies by SQLSTATE, never by text. Without one the database could not be reached or has gone.
pub(super) fn lift(error: tokio_postgres::Error) -> Error {
    let (kind, message) = match error.code().map(SqlState::code) {
        None => (ErrorKind::Unavailable, "the registry's database cannot be reached"),
        Some("53100") => (ErrorKind::StorageFull, "the disk of the registry's database is full"),
        Some("42501") => (
            ErrorKind::PermissionDenied,
            "the registry's database refuses this user; give it its schema, or create on the database",
        ),
        Some("3D000") => (ErrorKind::InvalidArgument, "the registry's database does not exist; create it"),
        // It was stopped, is starting, has too many connections, is a standby now, or a lock was not to be had.
        Some("25006" | "40001" | "40P01" | "55P03" | "57014") => {
            (ErrorKind::Unavailable, "the registry's database could not do this now")
        }
        Some(code) if code.starts_with("28") => {
            (ErrorKind::Unauthenticated, "the registry's database does not know this user or password")
        }
        Some(code) if ["08", "53", "57"].contains(&&code[..2.min(code.len())]) => {
            (ErrorKind::Unavailable, "the registry's database could not do this now")
        }
        Some(_) => (ErrorKind::Unexpected, "the registry's database refused a statement"),
    };
    let mut lifted = Error::new(kind, message);
    if let Some(code) = error.code() {
        lifted = lifted.with_context("sqlstate", code.code());
    }
    lifted = lifted.with_source(error);
    if kind == ErrorKind::Unavailable { lifted.retryable(None) } else { lifted }
}

/// A transaction that did not come to its end.
pub(super) struct Broken {
    pub(super) error: Error,
    /// The commit was sent and not answered: it may have taken effect.
    pub(super) unknown: bool,
    /// The connection is gone: another one may do.
    pub(super) disconnected: bool,
}

impl Broken {
    /// Before its commit was sent: nothing has happened.
    pub(super) fn early(error: tokio_postgres::Error) -> Self {
        let disconnected = !says_that_it_goes_on(&error);
        Self { error: lift(error), unknown: false, disconnected }
    }

    /// At its commit: only an ordinary error of the server says that it was rolled back.
    pub(super) fn at_commit(error: tokio_postgres::Error) -> Self {
        let disconnected = !says_that_it_goes_on(&error);
        Self { error: lift(error), unknown: disconnected, disconnected }
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self { error, unknown: false, disconnected: false }
    }
}

fn says_that_it_goes_on(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
}
