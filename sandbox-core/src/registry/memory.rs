use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Lease, Record, RecordFilter, Registry, RegistryScope};
use crate::stream::ResultStream;
use crate::{Key, Owner, Result};

type Name = (Owner, Key);

/// Keeps records in memory: for tests, and for programs that store the provider id themselves.
///
/// Clones share the same records.
#[derive(Clone, Debug)]
pub struct MemoryRegistry {
    inner: Arc<Mutex<Inner>>,
    scope: RegistryScope,
}

impl Default for MemoryRegistry {
    fn default() -> Self {
        Self { inner: Arc::default(), scope: RegistryScope::Process }
    }
}

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<Name, Record>,
    leases: BTreeMap<Name, Held>,
}

#[derive(Debug)]
struct Held {
    fence: u64,
    until: Option<Instant>,
}

/// Gives the lease back when it is dropped, unless it was taken over.
#[derive(Debug)]
struct Hold {
    registry: MemoryRegistry,
    name: Name,
    fence: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(held) = self.registry.inner().leases.get_mut(&self.name)
            && held.fence == self.fence
        {
            held.until = None;
        }
    }
}

impl MemoryRegistry {
    /// Makes an empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A clone that counts as shared by every host: for tests, in which all of them are in one process.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn as_shared(&self) -> Self {
        Self { scope: RegistryScope::Cluster, ..self.clone() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn check(&self, record: &Record, lease: &Lease) -> Result<()> {
        let name = (record.owner.clone(), record.key.clone());
        if self.leases.get(&name).is_none_or(|held| held.fence != lease.fence) {
            return Err(Lease::lost(&record.owner, &record.key));
        }
        let stored = self.records.get(&name).map(|stored| stored.version);
        if stored.unwrap_or(0) != record.version {
            return Err(record.changed(stored));
        }
        Ok(())
    }
}

#[async_trait]
impl Registry for MemoryRegistry {
    fn scope(&self) -> RegistryScope {
        self.scope
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        Ok(self.inner().records.get(&(owner.clone(), key.clone())).cloned())
    }

    async fn store(&self, mut record: Record, lease: &Lease) -> Result<Record> {
        let mut inner = self.inner();
        inner.check(&record, lease)?;
        record.version += 1;
        record.fence = lease.fence;
        inner.records.insert((record.owner.clone(), record.key.clone()), record.clone());
        Ok(record)
    }

    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        let mut inner = self.inner();
        inner.check(record, lease)?;
        inner.records.remove(&(record.owner.clone(), record.key.clone()));
        Ok(())
    }

    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        let name = (owner.clone(), key.clone());
        let now = Instant::now();
        let mut inner = self.inner();
        let held = inner.leases.entry(name.clone()).or_insert(Held { fence: 0, until: None });
        if held.until.is_some_and(|until| until > now) {
            return Ok(None);
        }
        held.fence += 1;
        held.until = Some(now + ttl);
        let (fence, until) = (held.fence, held.until);
        Ok(Some(Lease::new(fence, until, Box::new(Hold { registry: self.clone(), name, fence }))))
    }

    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        let mut inner = self.inner();
        match inner.leases.get_mut(&(owner.clone(), key.clone())) {
            Some(held) if held.fence == lease.fence => {
                held.until = Some(Instant::now() + ttl);
                lease.valid_until = held.until;
                Ok(())
            }
            _ => Err(Lease::lost(owner, key)),
        }
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        let inner = self.inner();
        let records = inner.records.values().filter(|record| filter.matches(record)).cloned().collect();
        Ok(ResultStream::from_items(records))
    }
}
