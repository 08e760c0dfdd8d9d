//! The registries of a run, and what their databases themselves saw: triggers note every lease that is given, and every
//! change of a record that comes from somebody who was overtaken.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::{
    Key, Lease, MemoryRegistry, Owner, Record, RecordFilter, Registry, RegistryScope, Result, ResultStream,
};
use sandhold_registry::{PostgresConfig, PostgresRegistry, SqliteRegistry};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

use crate::Outcome;
use crate::clock::since_boot;
use crate::words::{Said, Tell};

/// Where the records of a run are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// In the memory of each host: what hosts know of each other is what the server lists.
    None,
    Sqlite(PathBuf),
    Postgres {
        url: String,
        schema: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Sqlite(_) => "sqlite",
            Self::Postgres { .. } => "postgres",
        })
    }
}

/// One removal of a record, as the database saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Removal {
    pub(crate) generation: String,
    pub(crate) version: u64,
}

/// What a database noted about those who were overtaken.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Records that were written under another lease than the last one that was given.
    pub(crate) stale_writes: u64,
    /// The last lease that had been given when a record was removed.
    pub(crate) removals: HashMap<Removal, u64>,
}

const SQLITE: &str = "
CREATE TABLE chaos_leases (owner TEXT, key TEXT, fence INTEGER);
CREATE INDEX chaos_leases_by_key ON chaos_leases (owner, key, fence);
CREATE TABLE chaos_stale (key TEXT, fence INTEGER, given INTEGER);
CREATE TABLE chaos_removed (generation TEXT, version INTEGER, given INTEGER);
CREATE TRIGGER chaos_lease AFTER INSERT ON leases BEGIN
    INSERT INTO chaos_leases VALUES (NEW.owner, NEW.key, NEW.fence);
END;
CREATE TRIGGER chaos_write AFTER INSERT ON records
WHEN NEW.fence < (SELECT max(fence) FROM chaos_leases WHERE owner = NEW.owner AND key = NEW.key) BEGIN
    INSERT INTO chaos_stale SELECT NEW.key, NEW.fence, max(fence) FROM chaos_leases
    WHERE owner = NEW.owner AND key = NEW.key;
END;
CREATE TRIGGER chaos_remove AFTER DELETE ON records BEGIN
    INSERT INTO chaos_removed SELECT OLD.record ->> '$.generation', OLD.version, max(fence) FROM chaos_leases
    WHERE owner = OLD.owner AND key = OLD.key;
END;
";

const POSTGRES: &str = r"
CREATE TABLE chaos_leases (owner text, key text, fence bigint);
CREATE INDEX ON chaos_leases (owner, key, fence);
CREATE TABLE chaos_stale (key text, fence bigint, given bigint);
CREATE TABLE chaos_removed (generation text, version bigint, given bigint);
CREATE FUNCTION chaos_lease() RETURNS trigger SET search_path FROM CURRENT LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.fence > 0 THEN INSERT INTO chaos_leases VALUES (NEW.owner, NEW.key, NEW.fence); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_lease AFTER INSERT OR UPDATE OF fence ON leases FOR EACH ROW EXECUTE FUNCTION chaos_lease();
CREATE FUNCTION chaos_write() RETURNS trigger SET search_path FROM CURRENT LANGUAGE plpgsql AS $$
DECLARE given bigint := (SELECT max(fence) FROM chaos_leases WHERE owner = NEW.owner AND key = NEW.key);
BEGIN
    IF NEW.fence < given THEN INSERT INTO chaos_stale VALUES (NEW.key, NEW.fence, given); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_write AFTER INSERT OR UPDATE ON records FOR EACH ROW EXECUTE FUNCTION chaos_write();
CREATE FUNCTION chaos_remove() RETURNS trigger SET search_path FROM CURRENT LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO chaos_removed SELECT OLD.record ->> 'generation', OLD.version, max(fence) FROM chaos_leases
    WHERE owner = OLD.owner AND key = OLD.key;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_remove AFTER DELETE ON records FOR EACH ROW EXECUTE FUNCTION chaos_remove();
";

impl Place {
    pub(crate) async fn open(&self) -> Result<Arc<dyn Registry>> {
        Ok(match self {
            Self::None => Arc::new(MemoryRegistry::new()),
            Self::Sqlite(path) => Arc::new(SqliteRegistry::open(path).await?),
            Self::Postgres { url, schema } => {
                let config = PostgresConfig::new(url)?
                    .with_schema(schema)
                    .with_connections(2)
                    .with_settle_limit(Duration::from_secs(5));
                Arc::new(PostgresRegistry::open(config).await?)
            }
        })
    }

    /// Makes the tables and has the database watch them.
    pub(crate) async fn prepare(&self) -> Outcome<()> {
        drop(self.open().await?);
        match self {
            Self::None => {}
            Self::Sqlite(path) => rusqlite::Connection::open(path)?.execute_batch(SQLITE)?,
            Self::Postgres { url, schema } => {
                let script = format!("SET search_path = {schema}; {POSTGRES}");
                connect(url).await?.batch_execute(&script).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn noted(&self) -> Outcome<Noted> {
        let mut noted = Noted::default();
        let stale = "SELECT count(*) FROM chaos_stale";
        let removed = "SELECT generation, version, given FROM chaos_removed";
        match self {
            Self::None => {}
            Self::Sqlite(path) => {
                let database = rusqlite::Connection::open(path)?;
                noted.stale_writes =
                    database.query_row(stale, [], |row| row.get(0).map(i64::cast_unsigned))?;
                let mut rows = database.prepare(removed)?;
                let mut rows = rows.query([])?;
                while let Some(row) = rows.next()? {
                    let removal =
                        Removal { generation: row.get(0)?, version: row.get(1).map(i64::cast_unsigned)? };
                    noted.removals.insert(removal, row.get(2).map(i64::cast_unsigned)?);
                }
            }
            Self::Postgres { url, schema } => {
                let database = connect(url).await?;
                database.batch_execute(&format!("SET search_path = {schema}")).await?;
                let number = |row: &tokio_postgres::Row, index| row.try_get(index).map(i64::cast_unsigned);
                noted.stale_writes = number(&database.query_one(stale, &[]).await?, 0)?;
                for row in database.query(removed, &[]).await? {
                    let removal = Removal { generation: row.try_get(0)?, version: number(&row, 1)? };
                    noted.removals.insert(removal, number(&row, 2)?);
                }
            }
        }
        Ok(noted)
    }
}

async fn connect(url: &str) -> Outcome<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The leases that this process was given last: their numbers, and when, in nanoseconds since the boot.
#[derive(Debug, Default)]
pub(crate) struct Fences(Mutex<HashMap<Key, (u64, u64)>>);

impl Fences {
    pub(crate) fn of(&self, key: &Key) -> (u64, u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or_default()
    }

    fn given(&self, key: &Key, fence: u64, at: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), (fence, at));
    }
}

/// Passes everything on, and says what only a registry's user sees: which lease it has.
pub(crate) struct Witness {
    pub(crate) inner: Arc<dyn Registry>,
    pub(crate) fences: Arc<Fences>,
    pub(crate) tell: Tell,
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl Registry for Witness {
    fn scope(&self) -> RegistryScope {
        self.inner.scope()
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        self.inner.load(owner, key).await
    }

    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        self.inner.store(record, lease).await
    }

    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        self.inner.remove(record, lease).await?;
        let generation = record.generation.to_string();
        (self.tell)(Said::Removed { generation, version: record.version, fence: lease.fence });
        Ok(())
    }

    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        let lease = self.inner.try_lease(owner, key, ttl).await?;
        if let Some(lease) = &lease {
            let (fence, at) = (lease.fence, since_boot());
            self.fences.given(key, fence, at);
            (self.tell)(Said::Leased { key: key.to_string(), fence, at });
        }
        Ok(lease)
    }

    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        self.inner.renew(owner, key, lease, ttl).await
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        self.inner.list(filter).await
    }
}
