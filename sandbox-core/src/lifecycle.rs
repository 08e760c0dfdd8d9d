//! Pause, resume, stop and destroy by key and id: the order of record and provider call, under the record's lease.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{OwnedMappedMutexGuard, OwnedMutexGuard};

use crate::acquire::{Absence, Home, Stage, senior, settle};
use crate::events::EventKind;
use crate::fate::{End, Fate};
use crate::hooks::Hooks;
use crate::registry::{Lease, Phase, Record, Registry};
use crate::{
    ConnectOptions, Connection, DestroyOutcome, Error, ErrorKind, FindQuery, Key, PauseOptions, PauseOutcome,
    Result, SandboxId, SandboxInfo, SandboxProviderExt as _,
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

impl From<PauseOutcome> for StopOutcome {
    fn from(paused: PauseOutcome) -> Self {
        match paused {
            PauseOutcome::Paused => Self::Paused,
            PauseOutcome::AlreadyPaused => Self::AlreadyPaused,
        }
    }
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
///
/// # Errors
/// [`ErrorKind::Stale`] with reason `replaced` when the key has another sandbox by now: nothing may be sent.
pub(crate) async fn own_record(home: &Home, key: &Key, fate: &Fate) -> Result<Option<Record>> {
    match home.load(key).await? {
        Some(record) if record.id.as_ref() == Some(&fate.id) && record.generation == fate.generation => {
            Ok(Some(record))
        }
        Some(record) if !record.is_tombstone() => Err(End::Replaced
            .error()
            .at(home.provider.name(), "call")
            .with_context("id", &fate.id)
            .with_context("record_generation", record.generation)),
        _ => Ok(None),
    }
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

/// What is told of a pause that did not happen.
pub(crate) fn pause_failed(error: &Error) -> EventKind {
    EventKind::PauseFailed { kind: error.kind(), reason: error.reason() }
}

pub(crate) async fn pause(home: &Home, key: &Key, fate: &Fate, lent: &Weak<Lent>) -> Result<PauseOutcome> {
    if !home.provider.capabilities().pause {
        return Err(Error::unsupported(home.provider.name(), "pause"));
    }
    let lease = Held::take(home, key, lent, "pause").await?;
    let record = own_record(home, key, fate).await?;
    let paused = pause_recorded(home, record, &fate.id, &lease).await?;
    lease.at_rest(true);
    Ok(paused)
}

/// Record `pausing`, pause, record `paused`; a failed pause leaves it running and recorded as `ready`.
async fn pause_recorded(
    home: &Home,
    record: Option<Record>,
    id: &SandboxId,
    lease: &Lease,
) -> Result<PauseOutcome> {
    let record = enter(home, record, Phase::Pausing, lease).await?;
    match home.provider.pause_opts(id, PauseOptions::default()).await {
        Ok(outcome) => {
            enter(home, record, Phase::Paused, lease).await?;
            Ok(outcome)
        }
        Err(error) => match enter(home, record, Phase::Ready, lease).await {
            Ok(_) => Err(error),
            Err(cleanup) => Err(error.with_cleanup(&cleanup)),
        },
    }
}

/// Record `resuming`, connect, record `ready`; a failed resume is recorded as `paused` and the sandbox is kept.
pub(crate) async fn resume(home: &Home, key: &Key, fate: &Fate, lent: &Weak<Lent>) -> Result<Connection> {
    let lease = Held::take(home, key, lent, "resume").await?;
    let record = enter(home, own_record(home, key, fate).await?, Phase::Resuming, &lease).await?;
    let options = ConnectOptions::default().with_generation(fate.generation.clone());
    match home.provider.connect_opts(&fate.id, options).await {
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

/// What the provider has tagged with a key, the one that is kept first.
async fn tagged(home: &Home, key: &Key) -> Result<Vec<SandboxInfo>> {
    if !home.provider.capabilities().tags {
        return Ok(Vec::new());
    }
    let query = FindQuery::Key { owner: home.owner.clone(), key: key.clone(), attempt: None };
    let mut found = home.provider.find(query).await?;
    found.sort_by(senior);
    Ok(found)
}

/// The sandbox that a key has, as far as it was made for sure; takes no lease.
pub(crate) async fn find(home: &Home, key: &Key) -> Result<Option<SandboxInfo>> {
    let record = home.load(key).await?;
    if let Some(id) = record.as_ref().and_then(|record| record.id.as_ref()) {
        return home.provider.find_id(id).await;
    }
    Ok(tagged(home, key).await?.into_iter().find(|info| !is_abandoned(record.as_ref(), info)))
}

fn is_abandoned(record: Option<&Record>, info: &SandboxInfo) -> bool {
    let tags = info.tags.as_ref();
    record.zip(tags).is_some_and(|(record, tags)| record.has_abandoned(&tags.attempt))
}

/// The record of a key after whatever was left open under an earlier lease has been brought to its end.
async fn closed(home: &Home, key: &Key, lease: &Lease, operation: &'static str) -> Result<Option<Record>> {
    match home.load(key).await? {
        Some(record) if record.phase == Phase::Creating => settled(home, record, lease, operation).await,
        Some(record) if record.phase == Phase::Destroying => Ok(finish_destroy(home, record, lease).await?.1),
        record => Ok(record),
    }
}

/// Brings an open create to its end: its sandbox is recorded, or its attempt is given up once it is proven absent. One
/// that an acquire must compare with those of other hosts stays open, under its id.
async fn settled(
    home: &Home,
    mut record: Record,
    lease: &Lease,
    operation: &'static str,
) -> Result<Option<Record>> {
    let stage = Stage::default();
    let look = settle(home, &record, record.begun(), home.call_limit(), Absence::of_idempotent(home), &stage);
    let Ok(found) = tokio::time::timeout(home.wait_limit, look).await else {
        return Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "a create of this key is open and could not be settled in time; nothing was done, try again",
        )
        .at(home.provider.name(), operation)
        .with_context("key", &record.key)
        .with_context("attempt", &record.attempt));
    };
    match found? {
        Some(info) => {
            record.id = Some(info.id);
            if home.must_compare() {
                return Ok(Some(record));
            }
            record.enter(Phase::Ready);
            home.registry.store(record, lease).await.map(Some)
        }
        None => {
            record.abandon();
            forget(&*home.registry, record, lease).await
        }
    }
}

/// Stops the sandbox of a key from a fresh process.
pub(crate) async fn stop(home: &Home, key: &Key, hooks: Option<&Arc<dyn Hooks>>) -> Result<StopOutcome> {
    let lease = home.lease_in_time(key, "stop").await?;
    let record = closed(home, key, &lease, "stop").await?;
    // Of one that stays open another host may have the elder sibling, which is the key's then.
    let own = record.clone().filter(|record| record.id.is_some() && record.phase != Phase::Creating);
    let id = match own.as_ref().and_then(|own| own.id.clone()) {
        Some(id) => Some(id),
        None => {
            let found = tagged(home, key).await?;
            found.into_iter().find(|info| !is_abandoned(record.as_ref(), info)).map(|info| info.id)
        }
    };
    let Some(id) = id else { return Ok(StopOutcome::NoSandbox) };
    let outcome = if home.provider.capabilities().pause {
        let paused = pause_recorded(home, own, &id, &lease).await.inspect_err(|error| {
            home.tell(hooks, key, Some(&id), pause_failed(error));
        })?;
        home.tell(hooks, key, Some(&id), EventKind::Paused);
        paused.into()
    } else {
        StopOutcome::LeftRunning
    };
    home.tell(hooks, key, Some(&id), EventKind::Stopped { outcome });
    Ok(outcome)
}

/// Destroys the sandbox of a key from a fresh process; an open create is settled and ended too.
pub(crate) async fn destroy(
    home: &Home,
    key: &Key,
    hooks: Option<&Arc<dyn Hooks>>,
) -> Result<DestroyOutcome> {
    let lease = home.lease_in_time(key, "destroy").await?;
    let record = match home.load(key).await? {
        Some(record) if record.phase == Phase::Creating => settled(home, record, &lease, "destroy").await?,
        record => record,
    };
    let Some(record) = record else { return destroy_unrecorded(home, key, hooks).await };
    if record.is_tombstone() {
        if record.replaces.is_some() {
            // What comes next takes the place of nothing.
            forget(&*home.registry, Record { replaces: None, ..record }, &lease).await?;
        }
        return destroy_unrecorded(home, key, hooks).await;
    }
    let id = record.id.clone();
    let outcome = destroy_recorded(home, record, &lease).await?;
    if outcome == DestroyOutcome::Destroyed {
        home.tell(hooks, key, id.as_ref(), EventKind::Destroyed);
    }
    Ok(outcome)
}

/// Without a record, what the provider has tagged with the key is destroyed.
async fn destroy_unrecorded(
    home: &Home,
    key: &Key,
    hooks: Option<&Arc<dyn Hooks>>,
) -> Result<DestroyOutcome> {
    let mut outcome = DestroyOutcome::AlreadyGone;
    for info in tagged(home, key).await? {
        if home.provider.destroy(&info.id).await? == DestroyOutcome::Destroyed {
            home.tell(hooks, key, Some(&info.id), EventKind::Destroyed);
            outcome = DestroyOutcome::Destroyed;
        }
    }
    Ok(outcome)
}

/// Destroys one sandbox of a key.
pub(crate) async fn destroy_one(
    home: &Home,
    key: &Key,
    fate: &Fate,
    lent: &Weak<Lent>,
) -> Result<DestroyOutcome> {
    let lease = Held::take(home, key, lent, "destroy").await?;
    let destroyed = match own_record(home, key, fate).await? {
        Some(record) => destroy_recorded(home, record, &lease).await?,
        None => home.provider.destroy(&fate.id).await?,
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
    record.enter(Phase::Destroying);
    record.replaces = None;
    let record = home.registry.store(record, lease).await?;
    Ok(finish_destroy(home, record, lease).await?.0)
}

/// Finishes a destroy that was written down; returns what is left of the record.
pub(crate) async fn finish_destroy(
    home: &Home,
    record: Record,
    lease: &Lease,
) -> Result<(DestroyOutcome, Option<Record>)> {
    let Some(id) = &record.id else { return Ok((DestroyOutcome::AlreadyGone, Some(record))) };
    let outcome = home.provider.destroy(id).await?;
    Ok((outcome, forget(&*home.registry, record, lease).await?))
}

/// Forgets a sandbox that is gone, but not what must outlive it; returns what is left.
pub(crate) async fn forget(registry: &dyn Registry, record: Record, lease: &Lease) -> Result<Option<Record>> {
    match record.clone().into_tombstone() {
        Some(tombstone) => registry.store(tombstone, lease).await.map(Some),
        None => registry.remove(&record, lease).await.map(|()| None),
    }
}
