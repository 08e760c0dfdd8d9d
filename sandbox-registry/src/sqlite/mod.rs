//! One SQLite file for the processes of one machine.

mod clock;
mod database;
mod error;
mod holder;
mod lease;
mod schema;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, params, params_from_iter};
use sandhold_core::{
    Error, ErrorKind, Key, Lease, Owner, Record, RecordFilter, Registry, RegistryScope, Result, ResultStream,
};

use self::database::Database;
use self::error::lift;
use crate::json::{self, counter, signed};
use crate::pages::{self, Name, PAGE, Page};

/// Keeps records and leases in one SQLite file, for the processes of one machine.
///
/// What a call has returned is on disk. A lease falls free when its holder dies, however it dies, and otherwise at its end
/// by a clock that counts from the machine's boot: setting the time of day neither shortens nor prolongs one. The file
/// must be on a local file system. Clones share one opening.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> sandhold_core::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("sandhold-doc-{}", std::process::id()));
/// use std::sync::Arc;
/// use sandhold_core::Registry;
/// use sandhold_registry::SqliteRegistry;
///
/// let registry: Arc<dyn Registry> = Arc::new(SqliteRegistry::open(directory.join("registry.sqlite")).await?);
/// # drop(registry);
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteRegistry {
    database: Arc<Database>,
}

impl SqliteRegistry {
    /// Opens the registry in this file, which is made if it is not there, and brings older tables up to date.
    ///
    /// Beside it lie SQLite's own `-wal` and `-shm` files, and a directory `-holders` with one locked file for each
    /// opening. All of it is made readable by this user only.
    ///
    /// # Errors
    /// - [`ErrorKind::Unsupported`] with reason `newer_schema` when a later version of this library has used the file;
    /// - [`ErrorKind::Conflict`] with reason `foreign_database` when it is another program's database;
    /// - [`ErrorKind::Unexpected`] with reason `corrupt` when it is damaged or no database;
    /// - [`ErrorKind::PermissionDenied`], [`ErrorKind::StorageFull`] or [`ErrorKind::Unavailable`] when it cannot be used.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let shown = path.clone();
        let opened = tokio::task::spawn_blocking(move || Database::open(&path)).await.map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the opening of the registry was ended").with_source(error)
        })?;
        let database = opened.map_err(|error| placed(error, "open", &shown))?;
        Ok(Self { database: Arc::new(database) })
    }

    fn placed(&self, error: Error, operation: &'static str) -> Error {
        placed(error, operation, self.database.path())
    }
}

fn placed(error: Error, operation: &'static str, path: &Path) -> Error {
    error.at("sqlite", operation).with_context("registry", path.display())
}

fn load(connection: &Connection, owner: &Owner, key: &Key) -> Result<Option<Record>> {
    let text = connection
        .prepare_cached("SELECT record FROM records WHERE owner = ?1 AND key = ?2")
        .and_then(|mut found| {
            found.query_row([owner.as_str(), key.as_str()], |row| row.get::<_, String>(0)).optional()
        })
        .map_err(|error| lift(&error))?;
    text.map(|text| json::decode(owner.as_str(), key.as_str(), &text)).transpose()
}

/// Sees that no later lease was given and that the stored version is the record's.
fn check(connection: &Connection, record: &Record, fence: u64) -> Result<()> {
    if lease::last_fence(connection, &record.owner, &record.key)? != Some(fence) {
        return Err(Lease::lost(&record.owner, &record.key));
    }
    let stored = connection
        .prepare_cached("SELECT version FROM records WHERE owner = ?1 AND key = ?2")
        .and_then(|mut found| {
            found
                .query_row([record.owner.as_str(), record.key.as_str()], |row| row.get::<_, i64>(0))
                .optional()
        })
        .map_err(|error| lift(&error))?;
    let stored = stored.map(counter).transpose()?;
    if stored.unwrap_or(0) == record.version { Ok(()) } else { Err(record.changed(stored)) }
}

fn since_epoch_ms(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn write(connection: &Connection, record: &Record) -> Result<()> {
    let text = json::encode(record)?;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO records
             (owner, key, version, fence, provider, provider_id, phase, phase_since_ms, record)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                record.owner.as_str(),
                record.key.as_str(),
                signed(record.version),
                signed(record.fence),
                record.provider,
                record.id.as_ref().map(|id| id.as_str()),
                record.phase.as_str(),
                since_epoch_ms(record.phase_since),
                text,
            ])
        })
        .map(drop)
        .map_err(|error| lift(&error))
}

/// Reads one page. The conditions let through at least what the filter does; the filter itself has the last word.
fn page(connection: &Connection, filter: &RecordFilter, after: Option<Name>) -> Result<Page> {
    let mut values: Vec<Value> = Vec::new();
    let mut put = |value: Value| {
        values.push(value);
        format!("?{}", values.len())
    };
    let mut conditions = vec!["1".to_owned()];
    if let Some(owner) = &filter.owner {
        conditions.push(format!("owner = {}", put(owner.to_string().into())));
    }
    if let Some(provider) = &filter.provider {
        conditions.push(format!("provider = {}", put(provider.clone().into())));
    }
    if !filter.phases.is_empty() {
        let phases: Vec<_> =
            filter.phases.iter().map(|phase| put(phase.as_str().to_owned().into())).collect();
        conditions.push(format!("phase IN ({})", phases.join(", ")));
    }
    if let Some(age) = filter.min_age {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let latest = since_epoch_ms(SystemTime::now()).saturating_sub(age).saturating_add(1);
        conditions.push(format!("phase_since_ms <= {}", put(latest.into())));
    }
    if let Some((owner, key)) = after {
        conditions.push(format!("(owner, key) > ({}, {})", put(owner.into()), put(key.into())));
    }
    let sql = format!(
        "SELECT owner, key, record FROM records WHERE {} ORDER BY owner, key LIMIT {PAGE}",
        conditions.join(" AND ")
    );
    let rows = connection
        .prepare_cached(&sql)
        .and_then(|mut select| {
            select
                .query_map(params_from_iter(values), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(|error| lift(&error))?;
    Page::of(rows, filter)
}

#[async_trait]
impl Registry for SqliteRegistry {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Machine
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        let (owner, key) = (owner.clone(), key.clone());
        let loaded = self.database.read(move |connection, _| load(connection, &owner, &key)).await;
        loaded.map_err(|error| self.placed(error, "load"))
    }

    async fn store(&self, mut record: Record, lease: &Lease) -> Result<Record> {
        let fence = lease.fence;
        let stored = self.database.write(move |transaction, _| {
            check(transaction, &record, fence)?;
            record.version += 1;
            record.fence = fence;
            write(transaction, &record)?;
            Ok(record)
        });
        stored.await.map_err(|error| self.placed(error, "store"))
    }

    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        let (record, fence) = (record.clone(), lease.fence);
        let removed = self.database.write(move |transaction, _| {
            check(transaction, &record, fence)?;
            if record.version == 0 {
                return Err(record.changed(None));
            }
            transaction
                .execute(
                    "DELETE FROM records WHERE owner = ?1 AND key = ?2",
                    [record.owner.as_str(), record.key.as_str()],
                )
                .map(drop)
                .map_err(|error| lift(&error))
        });
        removed.await.map_err(|error| self.placed(error, "remove"))
    }

    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        let taken = lease::take(&self.database, owner.clone(), key.clone(), ttl).await;
        taken.map_err(|error| self.placed(error, "lease"))
    }

    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        let renewed = lease::renew(&self.database, owner.clone(), key.clone(), lease, ttl).await;
        renewed.map_err(|error| self.placed(error, "renew"))
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        let this = self.clone();
        Ok(pages::stream(move |after| {
            let (this, filter) = (this.clone(), filter.clone());
            async move {
                let read = this.database.read(move |connection, _| page(connection, &filter, after)).await;
                read.map_err(|error| this.placed(error, "list"))
            }
        }))
    }
}
