//! Pause, resume, stop and destroy by key and id: the order of record and provider call, under the record's lease.

use std::sync::{Arc, Weak};

use crate::acquire::{Absence, Home, Stage, senior, settle};
use crate::events::EventKind;
use crate::fate::{End, Fate};
use crate::hooks::Hooks;
use crate::registry::{Lease, Phase, Record, Registry};
use crate::tenure::{Held, within};
use crate::{
    ConnectOptions, Connection, DestroyOutcome, Error, ErrorKind, FindQuery, Key, Memory, Outcome,
    PauseOptions, PauseOutcome, Result, SandboxId, SandboxInfo, SandboxProviderExt as _, SandboxSpec,
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

pub(crate) async fn enter(
    home: &Home,
    record: Option<Record>,
    phase: Phase,
    lease: &Lease,
) -> Result<Option<Record>> {
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

/// Record `pausing`, pause, record `paused`; a failed pause leaves it running and recorded as `ready`.
pub(crate) async fn pause(
    home: &Home,
    key: &Key,
    record: Option<Record>,
    id: &SandboxId,
    lease: &Lease,
) -> Result<PauseOutcome> {
    let record = enter(home, record, Phase::Pausing, lease).await?;
    let pause = home.provider.pause_opts(id, PauseOptions::default());
    match within(home, key, lease, "pause", pause).await {
        Ok(outcome) => {
            enter(home, record, Phase::Paused, lease).await?;
            Ok(outcome)
        }
        Err(error) => Err(failed(home, record, Phase::Ready, lease, error).await),
    }
}

/// Record `resuming`, connect; a failed resume is recorded as `paused` and the sandbox is kept. `ready` is recorded once
/// the resume hook has ended well.
pub(crate) async fn resume(
    home: &Home,
    key: &Key,
    fate: &Fate,
    record: Option<Record>,
    options: ConnectOptions,
    lease: &Lease,
) -> Result<(Connection, Option<Record>)> {
    let record = enter(home, record, Phase::Resuming, lease).await?;
    match within(home, key, lease, "resume", home.provider.connect_opts(&fate.id, options)).await {
        Ok(connection) => Ok((connection, record)),
        Err(error) => Err(failed(home, record, Phase::Paused, lease, error).await),
    }
}

/// Says whether a sandbox that runs has been resumed and its resume hook has not ended well, by this phase of its record.
pub(crate) fn owes_a_hook(phase: Phase) -> bool {
    matches!(phase, Phase::Paused | Phase::Resuming)
}

/// What a resume keeps that nobody here has seen.
pub(crate) fn usual_memory(home: &Home) -> Memory {
    if home.provider.capabilities().pause_keeps_memory { Memory::Kept } else { Memory::Lost }
}

/// Writes down what a failed call has left. What is unknown stays as it was begun: whoever comes next asks the provider.
async fn failed(home: &Home, record: Option<Record>, phase: Phase, lease: &Lease, error: Error) -> Error {
    if error.outcome() == Outcome::Unknown {
        return error;
    }
    match enter(home, record, phase, lease).await {
        Ok(_) => error,
        Err(cleanup) => error.with_cleanup(&cleanup),
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
async fn closed(home: &Home, key: &Key, held: &Held, operation: &'static str) -> Result<Option<Record>> {
    match home.load(key).await? {
        Some(record) if record.phase == Phase::Creating => settled(home, record, held, operation).await,
        Some(record) if record.phase == Phase::Destroying => {
            Ok(finish_destroy(home, record, &*held.lease(home, key).await?).await?.1)
        }
        record => Ok(record),
    }
}

/// Brings an open create to its end: its sandbox is recorded, or its attempt is given up once it is proven absent. One
/// that an acquire must compare with those of other hosts stays open, under its id.
async fn settled(
    home: &Home,
    mut record: Record,
    held: &Held,
    operation: &'static str,
) -> Result<Option<Record>> {
    let stage = Stage::default();
    let absence = Absence::of_idempotent(home);
    let look = settle(home, &record, record.begun(), home.call_limit(), absence, &stage);
    let look = held.keep(home, &record.key, look);
    let Ok(found) = tokio::time::timeout(home.wait_limit, look).await else {
        return Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "a create of this key is open and could not be settled in time; nothing was done, try again",
        )
        .at(home.provider.name(), operation)
        .with_context("key", &record.key)
        .with_context("attempt", &record.attempt));
    };
    let found = found?;
    let key = record.key.clone();
    let lease = held.lease(home, &key).await?;
    match found {
        Some(info) => {
            record.id = Some(info.id);
            if home.must_compare() {
                return Ok(Some(record));
            }
            record.enter(Phase::Ready);
            home.registry.store(record, &lease).await.map(Some)
        }
        None => {
            record.abandon();
            forget(&*home.registry, record, &lease).await
        }
    }
}

/// Stops the sandbox of a key from a fresh process.
pub(crate) async fn stop(home: &Home, key: &Key, hooks: Option<&Arc<dyn Hooks>>) -> Result<StopOutcome> {
    let held = Held::take(home, key, &Weak::new(), "stop").await?;
    let record = closed(home, key, &held, "stop").await?;
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
        // This host's values of it wait with their calls.
        let fate = home.fates.of(key);
        let mut closed = match &fate {
            Some(fate) => Some(fate.close().await),
            None => None,
        };
        let lease = held.lease(home, key).await?;
        let paused = pause(home, key, own, &id, &lease).await.inspect_err(|error| {
            home.tell(hooks, key, Some(&id), pause_failed(error));
        })?;
        if let Some(resumes) = &mut closed {
            resumes.hook_due = None;
        }
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
    let held = Held::take(home, key, &Weak::new(), "destroy").await?;
    let record = match home.load(key).await? {
        Some(record) if record.phase == Phase::Creating => settled(home, record, &held, "destroy").await?,
        record => record,
    };
    let lease = held.lease(home, key).await?;
    let record = match record {
        Some(record) if record.is_tombstone() => {
            let left = match record.replaces {
                // What comes next takes the place of nothing.
                Some(_) => forget(&*home.registry, Record { replaces: None, ..record }, &lease).await?,
                None => Some(record),
            };
            return destroy_unrecorded(home, key, left, hooks, &lease).await;
        }
        Some(record) => record,
        None => return destroy_unrecorded(home, key, None, hooks, &lease).await,
    };
    let id = record.id.clone();
    let (outcome, _) = destroy_recorded(home, record, &lease).await?;
    if outcome == DestroyOutcome::Destroyed {
        home.tell(hooks, key, id.as_ref(), EventKind::Destroyed);
    }
    Ok(outcome)
}

/// Where no record names one, what the provider has tagged with the key is destroyed; `over` is what there is of a record.
async fn destroy_unrecorded(
    home: &Home,
    key: &Key,
    mut over: Option<Record>,
    hooks: Option<&Arc<dyn Hooks>>,
    lease: &Lease,
) -> Result<DestroyOutcome> {
    let mut outcome = DestroyOutcome::AlreadyGone;
    for info in tagged(home, key).await? {
        let destroyed;
        (destroyed, over) = destroy_listed(home, key, &info, over.as_ref(), lease).await?;
        if destroyed == DestroyOutcome::Destroyed {
            home.tell(hooks, key, Some(&info.id), EventKind::Destroyed);
            outcome = DestroyOutcome::Destroyed;
        }
    }
    Ok(outcome)
}

/// Destroys a sandbox that no record names, and writes that down first all the same: whoever discovers it meanwhile would
/// take it for the key's.
async fn destroy_listed(
    home: &Home,
    key: &Key,
    info: &SandboxInfo,
    over: Option<&Record>,
    lease: &Lease,
) -> Result<(DestroyOutcome, Option<Record>)> {
    let record = home.record_of(key, info, SandboxSpec::default(), over)?;
    destroy_recorded(home, record, lease).await
}

/// Destroys one sandbox of a key.
pub(crate) async fn destroy_one(home: &Home, key: &Key, fate: &Fate, held: &Held) -> Result<DestroyOutcome> {
    let lease = held.lease(home, key).await?;
    let destroyed = match own_record(home, key, fate).await? {
        Some(record) => destroy_recorded(home, record, &lease).await?.0,
        None => match home.provider.find_id(&fate.id).await? {
            Some(info) => destroy_listed(home, key, &info, home.load(key).await?.as_ref(), &lease).await?.0,
            None => DestroyOutcome::AlreadyGone,
        },
    };
    held.rests(true);
    Ok(destroyed)
}

/// Writes the destroy down before it is sent, so that whoever comes next finishes it; returns what is left of the record.
pub(crate) async fn destroy_recorded(
    home: &Home,
    mut record: Record,
    lease: &Lease,
) -> Result<(DestroyOutcome, Option<Record>)> {
    record.enter(Phase::Destroying);
    record.replaces = None;
    let record = home.registry.store(record, lease).await?;
    finish_destroy(home, record, lease).await
}

/// Finishes a destroy that was written down; returns what is left of the record.
pub(crate) async fn finish_destroy(
    home: &Home,
    record: Record,
    lease: &Lease,
) -> Result<(DestroyOutcome, Option<Record>)> {
    let Some(id) = &record.id else { return Ok((DestroyOutcome::AlreadyGone, Some(record))) };
    let outcome = within(home, &record.key, lease, "destroy", home.provider.destroy(id)).await?;
    Ok((outcome, forget(&*home.registry, record, lease).await?))
}

/// Forgets a sandbox that is gone, but not what must outlive it; returns what is left.
pub(crate) async fn forget(registry: &dyn Registry, record: Record, lease: &Lease) -> Result<Option<Record>> {
    match record.clone().into_tombstone() {
        Some(tombstone) => registry.store(tombstone, lease).await.map(Some),
        None => registry.remove(&record, lease).await.map(|()| None),
    }
}
