//! Pause, resume, stop and destroy by key and id: the order of record and provider call, under the record's lease.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{OwnedMappedMutexGuard, OwnedMutexGuard};

use crate::acquire::Home;
use crate::registry::{Lease, Phase, Record, Registry};
use crate::{
    ConnectOptions, Connection, DestroyOutcome, Error, ErrorKind, FindQuery, Generation, Key, PauseOptions,
    PauseOutcome, Result, SandboxId,
};

/// What a stop did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopOutcome {
    /// It is paused now.
    Paused,
    /// It was paused before.
    AlreadyPaused,
    /// The provider cannot pause; it runs until its lease ends.
    LeftRunning,
    /// The key has no sandbox.
    NoSandbox,
}

/// The lease of a flight, lent to the handle that its hooks get: what they do to the sandbox would else wait for the very
/// flight that waits for them.
#[derive(Debug)]
pub(crate) struct Lent {
    lease: Arc<tokio::sync::Mutex<Option<Lease>>>,
    used: AtomicBool,
    at_rest: AtomicBool,
}

impl Lent {
    pub(crate) fn new(lease: Lease) -> Arc<Self> {
        Arc::new(Self {
            lease: Arc::new(tokio::sync::Mutex::new(Some(lease))),
            used: AtomicBool::new(false),
            at_rest: AtomicBool::new(false),
        })
    }

    /// Renews the lease, once no call uses it; no effect after it was taken back.
    pub(crate) async fn renew(&self, home: &Home, key: &Key, ttl: std::time::Duration) -> Result<()> {
        match &mut *self.lease.lock().await {
            Some(lease) => home.registry.renew(&home.owner, key, lease, ttl).await,
            None => Ok(()),
        }
    }

    /// Ends the loan, after the call that uses it right now.
    pub(crate) async fn take_back(&self) -> Option<Lease> {
        self.lease.lock().await.take()
    }

    /// Says whether a call under the loan may have written the record.
    pub(crate) fn was_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Says whether the sandbox was stopped or destroyed under the loan, and not resumed since.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.at_rest.load(Ordering::Acquire)
    }
}

/// The right to change the record: a lease of one's own, or the one that a flight lent.
enum Held {
    Own(Lease),
    Lent(Arc<Lent>, OwnedMappedMutexGuard<Option<Lease>, Lease>),
}

impl Held {
    async fn take(home: &Home, key: &Key, lent: &Weak<Lent>, operation: &'static str) -> Result<Self> {
        if let Some(lent) = lent.upgrade() {
            let guard = Arc::clone(&lent.lease).lock_owned().await;
            if let Ok(lease) = OwnedMutexGuard::try_map(guard, Option::as_mut) {
                lent.used.store(true, Ordering::Release);
                return Ok(Self::Lent(lent, lease));
            }
        }
        home.lease_in_time(key, operation).await.map(Self::Own)
    }

    /// Notes what a call did, for the flight that lent its lease.
    fn at_rest(&self, at_rest: bool) {
        if let Self::Lent(lent, _) = self {
            lent.at_rest.store(at_rest, Ordering::Release);
        }
    }
}

impl Deref for Held {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::Own(lease) => lease,
            Self::Lent(_, lease) => lease,
        }
    }
}

/// The record of this very sandbox, where there is one.
async fn record_of(home: &Home, key: &Key, id: &SandboxId) -> Result<Option<Record>> {
    Ok(home.load(key).await?.filter(|record| record.id.as_ref() == Some(id)))
}

async fn enter(home: &Home, record: Option<Record>, phase: Phase, lease: &Lease) -> Result<Option<Record>> {
    match record {
        Some(mut record) => {
            record.enter(phase);
            home.registry.store(record, lease).await.map(Some)
        }
        None => Ok(None),
    }
}

/// Record `pausing`, pause, record `paused`; a failed pause leaves it running and recorded as `ready`.
pub(crate) async fn pause(home: &Home, key: &Key, id: &SandboxId, lent: &Weak<Lent>) -> Result<PauseOutcome> {
    if !home.provider.capabilities().pause {
        return Err(Error::unsupported(home.provider.name(), "pause"));
    }
    let lease = Held::take(home, key, lent, "pause").await?;
    let record = enter(home, record_of(home, key, id).await?, Phase::Pausing, &lease).await?;
    match home.provider.pause_opts(id, PauseOptions::default()).await {
        Ok(outcome) => {
            enter(home, record, Phase::Paused, &lease).await?;
            lease.at_rest(true);
            Ok(outcome)
        }
        Err(error) => match enter(home, record, Phase::Ready, &lease).await {
            Ok(_) => Err(error),
            Err(cleanup) => Err(error.with_cleanup(&cleanup)),
        },
    }
}

/// Record `resuming`, connect, record `ready`; a failed resume is recorded as `paused` and the sandbox is kept.
pub(crate) async fn resume(
    home: &Arc<Home>,
    key: &Key,
    id: &SandboxId,
    generation: &Generation,
    lent: &Weak<Lent>,
) -> Result<Connection> {
    let lease = Held::take(home, key, lent, "resume").await?;
    let record = enter(home, record_of(home, key, id).await?, Phase::Resuming, &lease).await?;
    let options = ConnectOptions::default().with_generation(generation.clone());
    match home.provider.connect_opts(id, options).await {
        Ok(connection) => {
            enter(home, record, Phase::Ready, &lease).await?;
            lease.at_rest(false);
            Ok(connection)
        }
        Err(error) => match enter(home, record, Phase::Paused, &lease).await {
            Ok(_) => Err(error),
            Err(cleanup) => Err(error.with_cleanup(&cleanup)),
        },
    }
}

pub(crate) async fn stop(home: &Home, key: &Key) -> Result<StopOutcome> {
    let Some(id) = home.load(key).await?.and_then(|record| record.id) else {
        return Ok(StopOutcome::NoSandbox);
    };
    if !home.provider.capabilities().pause {
        return Ok(StopOutcome::LeftRunning);
    }
    Ok(match pause(home, key, &id, &Weak::new()).await? {
        PauseOutcome::Paused => StopOutcome::Paused,
        PauseOutcome::AlreadyPaused => StopOutcome::AlreadyPaused,
    })
}

/// Destroys the sandbox of a key from a fresh process; an open create is looked for and ended too.
pub(crate) async fn destroy(home: &Home, key: &Key) -> Result<DestroyOutcome> {
    let lease = home.lease_in_time(key, "destroy").await?;
    let record = home.load(key).await?.filter(|record| !record.is_tombstone());
    let Some(record) = record else { return destroy_unrecorded(home, key).await };
    destroy_recorded(home, record, &lease).await
}

/// Without a record, what the provider has tagged with the key is destroyed.
async fn destroy_unrecorded(home: &Home, key: &Key) -> Result<DestroyOutcome> {
    if !home.provider.capabilities().tags {
        return Ok(DestroyOutcome::AlreadyGone);
    }
    let query = FindQuery::Key { owner: home.owner.clone(), key: key.clone(), attempt: None };
    let mut outcome = DestroyOutcome::AlreadyGone;
    for info in home.provider.find(query).await? {
        if home.provider.destroy(&info.id).await? == DestroyOutcome::Destroyed {
            outcome = DestroyOutcome::Destroyed;
        }
    }
    Ok(outcome)
}

/// Destroys one sandbox of a key; a record of another one stays.
pub(crate) async fn destroy_id(
    home: &Home,
    key: &Key,
    id: &SandboxId,
    lent: &Weak<Lent>,
) -> Result<DestroyOutcome> {
    let lease = Held::take(home, key, lent, "destroy").await?;
    let destroyed = match record_of(home, key, id).await? {
        Some(record) => destroy_recorded(home, record, &lease).await?,
        None => home.provider.destroy(id).await?,
    };
    lease.at_rest(true);
    Ok(destroyed)
}

/// Writes the destroy down before it is sent, so that whoever comes next finishes it.
pub(crate) async fn destroy_recorded(
    home: &Home,
    mut record: Record,
    lease: &Lease,
) -> Result<DestroyOutcome> {
    if record.phase == Phase::Creating {
        return Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "a create of this key is open: acquire it first, which settles it, and then destroy",
        )
        .at(home.provider.name(), "destroy")
        .with_context("key", &record.key)
        .with_context("attempt", &record.attempt));
    }
    record.enter(Phase::Destroying);
    let record = home.registry.store(record, lease).await?;
    Ok(finish_destroy(home, record, lease).await?.0)
}

/// Finishes a destroy that was written down; returns what is left of the record.
pub(crate) async fn finish_destroy(
    home: &Home,
    record: Record,
    lease: &Lease,
) -> Result<(DestroyOutcome, Option<Record>)> {
    let outcome = match &record.id {
        Some(id) => home.provider.destroy(id).await?,
        None => DestroyOutcome::AlreadyGone,
    };
    Ok((outcome, forget(&*home.registry, record, lease).await?))
}

/// Forgets a sandbox that is gone, but not the attempts that were given up before it; returns what is left.
pub(crate) async fn forget(registry: &dyn Registry, record: Record, lease: &Lease) -> Result<Option<Record>> {
    if record.is_tombstone() {
        return Ok(Some(record));
    }
    match record.clone().into_tombstone() {
        Some(tombstone) => registry.store(tombstone, lease).await.map(Some),
        None => registry.remove(&record, lease).await.map(|()| None),
    }
}
