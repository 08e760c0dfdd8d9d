//! A Postgres database for many machines.

mod config;
mod error;
mod pool;
mod schema;
mod statements;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandhold_core::{
    Attempt, Error, Key, Lease, Owner, Record, RecordFilter, Registry, RegistryScope, Result, ResultStream,
};
use tokio::time::Instant;

pub use config::PostgresConfig;

use self::pool::Pool;
use self::statements::Statements;
use crate::pages;

/// A lease is never taken for longer; what is meant to last is renewed.
const LONGEST_LEASE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Keeps records and leases in a Postgres database, for every machine that reaches it.
///
/// What a call has returned is committed, to the disk of the server and, where it has synchronous standbys, to theirs. A
/// lease ends by the database's clock alone. A change whose answer was lost with its connection is settled by asking the
/// database again; only when that is impossible for
/// [`PostgresConfig::settle_limit`] the error is `outcome_unknown`. Clones share connections.
///
/// # Examples
/// ```no_run
/// # async fn demo() -> sandhold_core::Result<()> {
/// use sandhold_registry::{PostgresConfig, PostgresRegistry};
///
/// let config = PostgresConfig::new("postgres://sandhold@db.internal/sandhold")?;
/// let registry = PostgresRegistry::open(config).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresRegistry {
    pool: Arc<Pool>,
    statements: Arc<Statements>,
}

/// Gives the lease back when it is dropped.
struct Hold {
    registry: PostgresRegistry,
    owner: Owner,
    key: Key,
    fence: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (registry, owner, key, fence) =
            (self.registry.clone(), self.owner.clone(), self.key.clone(), self.fence);
        let statements = Arc::clone(&registry.statements);
        self.registry.pool.runtime.spawn(async move {
            let released = registry.pool.run(move |connection, _| {
                statements::release(Arc::clone(&statements), connection, owner.clone(), key.clone(), fence)
            });
            if let Err(error) = released.await {
                tracing::warn!(%error, "a lease was not given back; it falls free at its end");
            }
        });
    }
}

impl PostgresRegistry {
    /// Connects, makes the tables if they are not there, and brings older ones up to date.
    ///
    /// It is used inside the tokio runtime that it was opened in.
    ///
    /// # Errors
    /// - [`sandhold_core::ErrorKind::Unsupported`] with reason `newer_schema` when a later version of this library has
    ///   used the schema;
    /// - [`sandhold_core::ErrorKind::Conflict`] with reason `foreign_database` when it has another program's tables;
    /// - `invalid_argument`, `unauthenticated`, `permission_denied` or `unavailable` when the database cannot be used.
    pub async fn open(config: PostgresConfig) -> Result<Self> {
        config.check()?;
        let schema: Arc<str> = config.schema.as_str().into();
        let registry = Self { statements: Arc::new(Statements::new(&schema)), pool: Pool::new(config)? };
        let migrated = registry.pool.run(move |mut connection, _| {
            let schema = Arc::clone(&schema);
            async move { schema::migrate(connection.client()?, &schema, schema::MIGRATIONS).await }
        });
        migrated.await.map_err(|error| placed(error, "open"))?;
        Ok(registry)
    }

    fn lease(&self, owner: &Owner, key: &Key, fence: u64, until: Option<Instant>) -> Lease {
        let hold = Hold { registry: self.clone(), owner: owner.clone(), key: key.clone(), fence };
        Lease::new(fence, until, Box::new(hold))
    }
}

fn placed(error: Error, operation: &'static str) -> Error {
    error.at("postgres", operation)
}

#[async_trait]
impl Registry for PostgresRegistry {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Cluster
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        let (statements, owner, key) = (Arc::clone(&self.statements), owner.clone(), key.clone());
        let loaded = self.pool.run(move |connection, _| {
            statements::load(Arc::clone(&statements), connection, owner.clone(), key.clone())
        });
        loaded.await.map_err(|error| placed(error, "load"))
    }

    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        let (statements, fence) = (Arc::clone(&self.statements), lease.fence);
        let stored = self.pool.run(move |connection, again| {
            statements::store(Arc::clone(&statements), connection, record.clone(), fence, again)
        });
        stored.await.map_err(|error| placed(error, "store"))
    }

    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        let (statements, record, fence) = (Arc::clone(&self.statements), record.clone(), lease.fence);
        let removed = self.pool.run(move |connection, again| {
            statements::remove(Arc::clone(&statements), connection, record.clone(), fence, again)
        });
        removed.await.map_err(|error| placed(error, "remove"))
    }

    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        let ttl = ttl.min(LONGEST_LEASE);
        let until = Instant::now().checked_add(ttl);
        let token: Arc<str> = Attempt::random()?.as_str().into();
        let (this, owner, key) = (self.clone(), owner.clone(), key.clone());
        // The lease is made inside, so that it is given back when nobody waits for it any more.
        let taken = self.pool.run(move |connection, _| {
            let (this, owner, key, token) = (this.clone(), owner.clone(), key.clone(), Arc::clone(&token));
            async move {
                let statements = Arc::clone(&this.statements);
                let fence = statements::take(statements, connection, &owner, &key, &token, ttl).await?;
                Ok(fence.map(|fence| this.lease(&owner, &key, fence, until)))
            }
        });
        taken.await.map_err(|error| placed(error, "lease"))
    }

    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        let ttl = ttl.min(LONGEST_LEASE);
        let until = Instant::now().checked_add(ttl);
        let (statements, owner, key, fence) =
            (Arc::clone(&self.statements), owner.clone(), key.clone(), lease.fence);
        let renewed = self.pool.run(move |connection, _| {
            statements::renew(Arc::clone(&statements), connection, owner.clone(), key.clone(), fence, ttl)
        });
        renewed.await.map_err(|error| placed(error, "renew"))?;
        lease.valid_until = until;
        Ok(())
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        let this = self.clone();
        // What is older than this is matched by the filter alone: a database's times have an end.
        let age = filter.min_age.map(|age| age.min(LONGEST_LEASE));
        let latest = age.map(|age| statements::since_epoch(SystemTime::now()) - age.as_secs_f64() + 0.001);
        Ok(pages::stream(move |after| {
            let (this, filter) = (this.clone(), filter.clone());
            async move {
                let statements = Arc::clone(&this.statements);
                let read = this.pool.run(move |connection, _| {
                    let statements = Arc::clone(&statements);
                    statements::page(statements, connection, filter.clone(), latest, after.clone())
                });
                read.await.map_err(|error| placed(error, "list"))
            }
        }))
    }
}
