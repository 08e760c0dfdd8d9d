//! Pause, resume and stop by key and id: the order of record and provider call, under the record's lease.

mod ending;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use self::ending::seen_from_here;
pub(crate) use self::ending::{confirm_move, destroy, destroy_one, destroy_recorded, finish_destroy, forget};
use crate::acquire::{Absence, Home, OnResumeFailure, Stage, senior, settle};
use crate::events::EventKind;
use crate::fate::{End, Fate};
use crate::hooks::Hooks;
use crate::registry::{Lease, Phase, Record};
use crate::tenure::{Held, left, within};
use crate::{
    Error, ErrorKind, FindQuery, Key, Memory, Outcome, PauseOptions, PauseOutcome, ReplacedBecause, Result,
    SandboxId, SandboxInfo, SandboxProviderExt as _, SandboxState,
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

/// As [`own_record`], for a call that needs the sandbox: one that enters another phase would have the destroy forgotten.
///
/// # Errors
/// [`ErrorKind::Gone`] with reason `destroyed`, too, when its destroy was written down and its end has not been: whoever
/// comes for the key finishes it.
pub(crate) async fn living_record(home: &Home, key: &Key, fate: &Fate) -> Result<Option<Record>> {
    match own_record(home, key, fate).await? {
        Some(record) if record.phase == Phase::Destroying => {
            Err(End::Destroyed.error().at(home.provider.name(), "call").with_context("id", &fate.id))
        }
        record => Ok(record),
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

/// Record `pausing`, pause, record `paused`; a failed pause leaves it recorded as it was.
///
/// One that owes a resume hook is not recorded as `pausing`: whatever becomes of the pause, the hook stays owed.
pub(crate) async fn pause(
    home: &Home,
    key: &Key,
    record: Option<Record>,
    id: &SandboxId,
    lease: &Lease,
) -> Result<PauseOutcome> {
    let mut record = match record {
        Some(record) => Some(seen_from_here(home, record, lease, "pause").await?),
        None => None,
    };
    let owes = record.as_ref().is_some_and(|record| owes_a_hook(record.phase));
    if !owes {
        record = enter(home, record, Phase::Pausing, lease).await?;
    }
    let pause = home.provider.pause_opts(id, PauseOptions::default());
    match within(home, key, lease, "pause", pause).await {
        Ok(outcome) => {
            enter(home, record, Phase::Paused, lease).await?;
            Ok(outcome)
        }
        Err(error) if owes => Err(error),
        Err(error) => Err(failed(home, record, Phase::Ready, lease, error).await),
    }
}

/// When a resume is tried, counted from its beginning.
const RESUME_AT: [Duration; 3] = [Duration::ZERO, Duration::from_millis(250), Duration::from_millis(750)];

/// Record `resuming`, connect. After its attempts a failed resume is recorded as `paused` and the sandbox is kept, or it is
/// destroyed where that was asked for. `ready` is recorded once the resume hook has ended well.
pub(crate) async fn resume<T, F>(
    home: &Home,
    key: &Key,
    id: &SandboxId,
    record: Option<Record>,
    lease: &Lease,
    on_failure: OnResumeFailure,
    connect: impl FnMut() -> F,
) -> std::result::Result<(T, Option<Record>), Unresumed>
where
    F: Future<Output = Result<T>>,
{
    let record = enter(home, record, Phase::Resuming, lease).await?;
    let error = match within(home, key, lease, "resume", tried(connect, left(home, lease))).await {
        Ok(connected) => return Ok((connected, record)),
        Err(error) => error,
    };
    let ends = on_failure == OnResumeFailure::Destroy && is_of_the_sandbox(&error);
    // What a lost answer has done is asked before more is said; so it is before anything is destroyed.
    if (ends || error.outcome() == Outcome::Unknown) && !rests(home, key, id, lease).await {
        return Err(error.into());
    }
    let left = match ends {
        true => destroy_unresumable(home, key, id, record, lease).await,
        false => enter(home, record, Phase::Paused, lease).await.map(drop),
    };
    Err(match left {
        Ok(()) => Unresumed { error, destroyed: ends },
        Err(cleanup) => error.with_cleanup(&cleanup).into(),
    })
}

/// A resume that failed, and whether the sandbox was destroyed for it.
pub(crate) struct Unresumed {
    pub(crate) error: Error,
    pub(crate) destroyed: bool,
}

impl From<Error> for Unresumed {
    fn from(error: Error) -> Self {
        Self { error, destroyed: false }
    }
}

/// Whether the provider says of a sandbox that it does not run.
async fn rests(home: &Home, key: &Key, id: &SandboxId, lease: &Lease) -> bool {
    let look = within(home, key, lease, "find", home.provider.find_id(id)).await;
    matches!(look, Ok(Some(info)) if info.state != SandboxState::Running)
}

/// Tries a connect, which is idempotent, until it succeeds, is refused, or the attempts or this time are used up.
async fn tried<T, F: Future<Output = Result<T>>>(
    mut connect: impl FnMut() -> F,
    limit: Duration,
) -> Result<T> {
    let began = Instant::now();
    let mut attempts = 0;
    loop {
        let error = match connect().await {
            Ok(connected) => return Ok(connected),
            Err(error) => error,
        };
        attempts += 1;
        let may_pass = error.is_retryable() || error.kind() == ErrorKind::Unavailable;
        let passed = began.elapsed();
        let asked_for = error.retry_after().map_or(Duration::ZERO, |wait| passed.saturating_add(wait));
        let next = RESUME_AT.get(attempts).map(|at| asked_for.max(*at));
        let Some(next) = next.filter(|next| may_pass && *next < limit) else {
            return Err(error.with_context("attempts", attempts));
        };
        tokio::time::sleep(next.saturating_sub(passed)).await;
    }
}

/// Whether the provider has failed to resume a sandbox, and not refused its caller.
fn is_of_the_sandbox(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidState
            | ErrorKind::OutcomeUnknown
            | ErrorKind::Timeout
            | ErrorKind::Unavailable
            | ErrorKind::Unexpected
    )
}

/// Destroys a sandbox that cannot be resumed. What the key gets next takes its place.
async fn destroy_unresumable(
    home: &Home,
    key: &Key,
    id: &SandboxId,
    record: Option<Record>,
    lease: &Lease,
) -> Result<()> {
    let Some(mut record) = record else {
        return within(home, key, lease, "destroy", home.provider.destroy(id)).await.map(drop);
    };
    record.enter(Phase::Destroying);
    (record.replaces, record.replaced_because) = (Some(id.clone()), Some(ReplacedBecause::Gone));
    let record = home.registry.store(record, lease).await?;
    finish_destroy(home, record, lease).await.map(drop)
}

/// Says whether a sandbox that runs has been resumed and its resume hook has not ended well, by this phase of its record.
pub(crate) fn owes_a_hook(phase: Phase) -> bool {
    matches!(phase, Phase::Paused | Phase::Resuming)
}

/// What a resume keeps that nobody here has seen.
pub(crate) fn usual_memory(home: &Home) -> Memory {
    if home.provider.capabilities().pause_keeps_memory { Memory::Kept } else { Memory::Lost }
}

/// Writes down what a failed pause has left. What is unknown stays as it was begun: whoever comes next asks the provider.
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

/// The sandbox that a caller names by its id, where no record of the key names one: the key's own, or one without tags, as an
/// acquire would take it.
///
/// # Errors
/// [`ErrorKind::Ownership`] for one of another owner or key.
async fn named(home: &Home, key: &Key, id: &SandboxId) -> Result<Option<SandboxInfo>> {
    let found = home.provider.find_id(id).await?;
    let tags = found.as_ref().and_then(|info| info.tags.as_ref());
    if tags.is_none_or(|tags| tags.owner == home.owner && tags.key == *key) {
        return Ok(found);
    }
    Err(Error::new(ErrorKind::Ownership, "the sandbox is not this key's: it belongs to another owner or key")
        .at(home.provider.name(), "find")
        .with_context("key", key)
        .with_context("id", id))
}

/// Refuses a key whose record names another sandbox than its caller does.
fn check_named(home: &Home, record: Option<&Record>, wanted: Option<&SandboxId>) -> Result<()> {
    match (record.and_then(|record| record.id.as_ref()), wanted) {
        (Some(known), Some(wanted)) if known != wanted => Err(Error::new(
            ErrorKind::Conflict,
            "the record of this key names another sandbox than provider_id; leave provider_id out for that one",
        )
        .with_reason("provider_id")
        .at(home.provider.name(), "find")
        .with_context("record_id", known)
        .with_context("provider_id", wanted)),
        _ => Ok(()),
    }
}

/// The sandbox that a key has, or that its caller names, as far as it was made for sure; takes no lease.
pub(crate) async fn find(home: &Home, key: &Key, wanted: Option<&SandboxId>) -> Result<Option<SandboxInfo>> {
    let record = home.load(key).await?;
    check_named(home, record.as_ref(), wanted)?;
    if let Some(id) = record.as_ref().and_then(|record| record.id.as_ref()) {
        let found = home.provider.find_id(id).await?;
        if let (None, Some(record)) = (&found, &record) {
            home.check_absence(record, "find")?;
        }
        return Ok(found);
    }
    if let Some(wanted) = wanted {
        return named(home, key, wanted).await;
    }
    Ok(tagged(home, key).await?.into_iter().find(|info| !is_abandoned(record.as_ref(), info)))
}

pub(crate) fn is_abandoned(record: Option<&Record>, info: &SandboxInfo) -> bool {
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
            record.fingerprint = home.provider.fingerprint();
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
pub(crate) async fn stop(
    home: &Home,
    key: &Key,
    wanted: Option<&SandboxId>,
    hooks: Option<&Arc<dyn Hooks>>,
) -> Result<StopOutcome> {
    let held = Held::take(home, key, &Weak::new(), "stop").await?;
    let record = closed(home, key, &held, "stop").await?;
    check_named(home, record.as_ref(), wanted)?;
    // Of one that stays open another host may have the elder sibling, which is the key's then.
    let own = record.clone().filter(|record| record.id.is_some() && record.phase != Phase::Creating);
    let id = match (own.as_ref().and_then(|own| own.id.clone()), wanted) {
        (Some(id), _) => Some(id),
        (None, Some(wanted)) => named(home, key, wanted).await?.map(|info| info.id),
        (None, None) => {
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
