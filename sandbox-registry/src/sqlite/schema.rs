//! The tables, and how older ones become them.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use sandhold_core::{Error, ErrorKind, Result};

use super::error::lift;
use crate::migration;

/// One script a version, in order. A version that was released is never changed.
pub(super) const MIGRATIONS: &[&str] = &["
CREATE TABLE records (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    provider TEXT NOT NULL,
    provider_id TEXT,
    phase TEXT NOT NULL,
    phase_since_ms INTEGER NOT NULL, -- since 1970, by the writer's clock: for people
    record TEXT NOT NULL, -- all of it, as JSON
    PRIMARY KEY (owner, key)
) STRICT;
CREATE INDEX records_by_phase ON records (phase, phase_since_ms);
CREATE TABLE leases (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    fence INTEGER NOT NULL,
    holder TEXT NOT NULL, -- names a locked file beside the database
    boot_id TEXT NOT NULL,
    ends_ns INTEGER NOT NULL, -- since that boot
    PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_by_holder ON leases (holder);
CREATE TABLE fences (last INTEGER NOT NULL) STRICT;
INSERT INTO fences (last) VALUES (0);
"];

/// Brings the tables to the version that these migrations lead to.
pub(super) fn migrate(connection: &mut Connection, migrations: &[&str]) -> Result<()> {
    // Most openings find everything done and need no write lock.
    if version(connection)? == i64::try_from(migrations.len()).ok() {
        return Ok(());
    }
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|error| lift(&error))?;
    let found = match version(&transaction)? {
        Some(found) => found,
        None => {
            refuse_foreign(&transaction)?;
            let table = "CREATE TABLE sandhold_migrations (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL) STRICT";
            transaction.execute_batch(table).map_err(|error| lift(&error))?;
            0
        }
    };
    for (version, script) in migration::missing(found, migrations)? {
        transaction.execute_batch(script).map_err(|error| lift(&error))?;
        transaction
            .execute(
                "INSERT INTO sandhold_migrations (version, applied_at) VALUES (?1, datetime('now'))",
                [version],
            )
            .map_err(|error| lift(&error))?;
    }
    transaction.commit().map_err(|error| lift(&error))
}

/// Returns the version of the tables; `None` when they were never made.
fn version(connection: &Connection) -> Result<Option<i64>> {
    let there = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'sandhold_migrations'";
    let there = connection.query_row(there, [], |_| Ok(())).optional().map_err(|error| lift(&error))?;
    if there.is_none() {
        return Ok(None);
    }
    let last = "SELECT coalesce(max(version), 0) FROM sandhold_migrations";
    connection.query_row(last, [], |row| row.get(0)).map(Some).map_err(|error| lift(&error))
}

/// Another program's database is left alone.
fn refuse_foreign(connection: &Connection) -> Result<()> {
    let foreign = connection
        .query_row("SELECT name FROM sqlite_schema LIMIT 1", [], |row| row.get::<_, String>(0))
        .optional()
        .map_err(|error| lift(&error))?;
    match foreign {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::Conflict,
            "the file is the database of another program; give the registry a file of its own",
        )
        .with_reason("foreign_database")
        .with_context("has", name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_store_is_brought_forward_and_keeps_its_rows() {
        let mut connection = Connection::open_in_memory().unwrap();
        let first = "CREATE TABLE t (a INTEGER) STRICT; INSERT INTO t VALUES (7);";
        let second = "ALTER TABLE t ADD COLUMN b INTEGER NOT NULL DEFAULT 8;";
        migrate(&mut connection, &[first]).unwrap();
        migrate(&mut connection, &[first, second]).unwrap();
        migrate(&mut connection, &[first, second]).unwrap();
        let row: (i64, i64) =
            connection.query_row("SELECT a, b FROM t", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(row, (7, 8));
        let error = migrate(&mut connection, &[first]).unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("newer_schema")));
    }

    #[test]
    fn a_migration_that_fails_leaves_the_older_store() {
        let mut connection = Connection::open_in_memory().unwrap();
        let first = "CREATE TABLE t (a INTEGER) STRICT;";
        migrate(&mut connection, &[first]).unwrap();
        migrate(&mut connection, &[first, "DROP TABLE t; SELECT broken"]).unwrap_err();
        assert_eq!(version(&connection).unwrap(), Some(1));
        connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap();
    }
}
