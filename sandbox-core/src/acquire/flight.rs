//! Single flight: the callers of one key in this process share one acquisition.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::steps::Acquisition;
use super::{AcquireOptions, Acquired, Home, How, OnSpecConflict, ReplaceWhenGone, stages};
use crate::events::EventKind;
use crate::hooks::Hooks;
use crate::{Attempt, Error, ErrorKind, Key, Outcome, Result};

tokio::task_local! {
    /// What the hooks that this task runs inside of are part of: a nested acquire of the same key would wait for itself.
    static INSIDE: Vec<Inside>;
}

/// The hook of one key of one host.
#[derive(Clone, Debug)]
struct Inside {
    host: usize,
    key: Key,
    within: Within,
}

/// What waits for the end of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    /// An acquire.
    Flight,
    /// A pause or resume, until whose end every call waits.
    Transition,
    /// A save, until whose end no pause, destroy or other save begins.
    Save,
}

/// Runs a hook such that a nested acquire of its own key is recognised.
pub(super) async fn inside<T>(home: &Home, key: &Key, hook: impl Future<Output = T>) -> T {
    in_hook(home, key, Within::Flight, hook).await
}

/// Runs the hook of a pause or resume such that whatever waits for its end is recognised.
pub(crate) async fn inside_closed<T>(home: &Home, key: &Key, hook: impl Future<Output = T>) -> T {
    in_hook(home, key, Within::Transition, hook).await
}

/// Runs the hook of a save such that whatever waits for its end is recognised.
pub(crate) async fn inside_save<T>(home: &Home, key: &Key, hook: impl Future<Output = T>) -> T {
    in_hook(home, key, Within::Save, hook).await
}

async fn in_hook<T>(home: &Home, key: &Key, within: Within, hook: impl Future<Output = T>) -> T {
    let mut flights = INSIDE.try_with(Clone::clone).unwrap_or_default();
    flights.push(Inside { host: address(home), key: key.clone(), within });
    INSIDE.scope(flights, hook).await
}

/// The hooks that a task runs inside of, to be carried to whatever works for them: another task, or a thread.
///
/// For bindings, whose hooks run outside of the task that calls them. A call on the hook's own key from there is refused
/// as reentrant only where its scope was carried along; else it waits for itself.
#[derive(Clone, Debug, Default)]
pub struct HookScope(Vec<Inside>);

impl HookScope {
    /// Returns the scope of this task, which is empty outside of hooks.
    #[must_use]
    pub fn current() -> Self {
        Self(INSIDE.try_with(Clone::clone).unwrap_or_default())
    }

    /// Runs a call of a hook.
    pub async fn run<T>(self, call: impl Future<Output = T>) -> T {
        INSIDE.scope(self.0, call).await
    }
}

/// Refuses a call on a key from inside a hook of the flight of that key: it would wait for itself.
pub(crate) fn refuse_inside(home: &Home, key: &Key, operation: &'static str) -> Result<()> {
    refuse(home, key, operation, &[Within::Flight, Within::Transition])
}

/// Refuses a call on a key from inside the hook of a pause or resume of that key, for whose end every call waits.
pub(crate) fn refuse_inside_closed(home: &Home, key: &Key, operation: &'static str) -> Result<()> {
    refuse(home, key, operation, &[Within::Transition])
}

/// Refuses a call that waits for the saves of a key from inside the hook of one.
pub(crate) fn refuse_inside_save(home: &Home, key: &Key, operation: &'static str) -> Result<()> {
    refuse(home, key, operation, &[Within::Save])
}

fn refuse(home: &Home, key: &Key, operation: &'static str, waiting: &[Within]) -> Result<()> {
    let host = address(home);
    let is_own = |hook: &Inside| hook.host == host && hook.key == *key && waiting.contains(&hook.within);
    if INSIDE.try_with(|hooks| hooks.iter().any(is_own)).unwrap_or(false) {
        return Err(Error::new(
            ErrorKind::Conflict,
            "a hook used its own key; use the sandbox that the hook was given",
        )
        .with_reason("reentrant")
        .at("", operation)
        .with_context("key", key));
    }
    Ok(())
}

/// What tells hosts apart: one that goes to another provider for a key stays the same host.
fn address(home: &Home) -> usize {
    Arc::as_ptr(&home.flights) as usize
}

/// Where a flight is, for the error of a caller whose deadline passes.
#[derive(Debug, Default)]
pub(crate) struct Stage(Mutex<(&'static str, Option<Attempt>)>);

impl Stage {
    pub(super) fn enter(&self, stage: &'static str) {
        self.go_to((stage, None));
    }

    /// Enters a stage of an open create, whose end is an unknown outcome and not a mere timeout.
    pub(super) fn of_open_create(&self, stage: &'static str, attempt: &Attempt) {
        self.go_to((stage, Some(attempt.clone())));
    }

    fn go_to(&self, stage: (&'static str, Option<Attempt>)) {
        let left = std::mem::replace(&mut *self.lock(), stage.clone());
        stages::check(left.0, stage.0);
    }

    pub(super) fn name(&self) -> &'static str {
        self.lock().0
    }

    fn lock(&self) -> MutexGuard<'_, (&'static str, Option<Attempt>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says of an error what may have been made when its caller left here.
    fn left(&self, error: Error) -> Error {
        match &self.lock().1 {
            Some(attempt) => error.with_context("attempt", attempt).with_outcome(Outcome::Unknown),
            None => error,
        }
    }

    fn timed_out(&self, key: &Key, deadline: Duration) -> Error {
        let (stage, attempt) = self.lock().clone();
        let stage = if stage.is_empty() { "starting" } else { stage };
        match attempt {
            Some(attempt) => Error::new(
                ErrorKind::OutcomeUnknown,
                format!("a create was open after {deadline:?}, and may have made a sandbox; acquire again to settle it"),
            )
            .with_context("attempt", attempt),
            None => Error::new(ErrorKind::Timeout, format!("the acquire did not end within {deadline:?}")),
        }
        .at("", "acquire")
        .with_context("key", key)
        .with_context("stage", stage)
    }
}

#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Key, Arc<Flight>>>);

#[derive(Debug)]
struct Flight {
    wish: Wish,
    stage: Arc<Stage>,
    result: watch::Sender<Option<Result<Acquired>>>,
    /// Guarded by the map's lock.
    waiters: Mutex<usize>,
    abandoned: Notify,
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, key: &Key, flight: &Arc<Flight>) {
        let mut flights = self.lock();
        if flights.get(key).is_some_and(|known| Arc::ptr_eq(known, flight)) {
            flights.remove(key);
        }
    }
}

/// One caller's wait. The last one to leave ends the flight.
struct Waiter {
    home: Arc<Home>,
    key: Key,
    flight: Arc<Flight>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut flights = self.home.flights.lock();
        let mut waiters = self.flight.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        *waiters -= 1;
        if *waiters == 0 {
            // Off the map at once: whoever comes now begins a flight of its own.
            if flights.get(&self.key).is_some_and(|known| Arc::ptr_eq(known, &self.flight)) {
                flights.remove(&self.key);
            }
            self.flight.abandoned.notify_one();
        }
    }
}

/// Takes the flight off the map when its task ends, however it ends.
struct Landing {
    home: Arc<Home>,
    key: Key,
    flight: Arc<Flight>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.home.flights.forget(&self.key, &self.flight);
        let ended =
            Error::new(ErrorKind::Unexpected, "the acquire's task ended without a result; a hook panicked")
                .at("", "acquire");
        self.flight.result.send_if_modified(|result| {
            let missing = result.is_none();
            if missing {
                *result = Some(Err(ended));
            }
            missing
        });
    }
}

/// What one caller asks for.
#[derive(Clone, Debug)]
struct Wish {
    options: Arc<AcquireOptions>,
    hooks: Option<Arc<dyn Hooks>>,
}

impl Wish {
    /// Says whether what another caller's flight came to is what a flight of this caller's own would come to now. If not,
    /// it flies after it, and mostly attaches.
    fn is_met_by(&self, flown: &Self, result: &Result<Acquired>) -> bool {
        let (mine, its) = (&*self.options, &*flown.options);
        match result {
            Ok(acquired) => {
                // What the record says is known only where the flight has compared it.
                let has_spec = mine.on_spec_conflict == OnSpecConflict::Keep
                    || its.on_spec_conflict != OnSpecConflict::Keep
                        && its.spec.conflicts_with(&mine.spec).is_none();
                let has_id =
                    mine.provider_id.is_none() || mine.provider_id.as_ref() == acquired.sandbox.provider_id();
                has_spec && has_id && mine.spec.lease <= its.spec.lease && self.is_set_up_by(flown)
            }
            // The same policies meet the same failure; what is another's alone is no answer.
            Err(_) => {
                let policies = |of: &AcquireOptions| {
                    (of.replace_when_gone, of.on_spec_conflict, of.exclusion, of.provider_id.clone())
                };
                policies(mine) == policies(its) && its.spec.conflicts_with(&mine.spec).is_none()
            }
        }
    }

    /// Says whether the start hook of a flight did what this caller's would do.
    fn is_set_up_by(&self, flown: &Self) -> bool {
        let version = |of: &Self| of.hooks.as_ref().map_or(0, |hooks| hooks.setup_version());
        match (&self.hooks, &flown.hooks) {
            (None, _) => true,
            (Some(mine), Some(its)) if Arc::ptr_eq(mine, its) => true,
            (Some(mine), _) => !mine.runs_on_every_start() && version(self) <= version(flown),
        }
    }

    /// The error of a caller that wanted no new sandbox in the place of one that is gone, where the flight made one.
    fn refusal(&self, flown: &Self, key: &Key, acquired: &Acquired) -> Option<Error> {
        let replaces = |of: &Self| of.options.replace_when_gone == ReplaceWhenGone::Create;
        match &acquired.facts.how {
            How::Replaced { old } if replaces(flown) && !replaces(self) => Some(
                Error::new(
                    ErrorKind::Gone,
                    "the sandbox of this key is gone, and another caller has replaced it",
                )
                .at("", "acquire")
                .with_context("key", key)
                .with_context("id", old),
            ),
            _ => None,
        }
    }
}

pub(super) async fn acquire(home: Arc<Home>, key: Key, options: AcquireOptions) -> Result<Acquired> {
    refuse_inside(&home, &key, "acquire")?;
    let zero = [("call_deadline", options.call_deadline), ("record_lease", home.record_lease)];
    if let Some((name, _)) = zero.into_iter().find(|(_, time)| time.is_zero()) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("a {name} of zero lets no call happen; leave it out"),
        )
        .at(home.provider.name(), "acquire")
        .with_context("key", &key));
    }
    let deadline = options.deadline;
    let started = Instant::now();
    let hooks = options.hooks.clone().or_else(|| home.hooks.clone());
    let wish = Wish { options: Arc::new(options), hooks };
    loop {
        let (waiter, joined) = board(&home, &key, &wish)?;
        let flight = &waiter.flight;
        let mut result = flight.result.subscribe();
        let landed =
            timeout(deadline.saturating_sub(started.elapsed()), result.wait_for(Option::is_some)).await;
        let result = match landed {
            Ok(Ok(result)) => result.clone(),
            // The sender lives in the flight, which this waiter holds.
            Ok(Err(_)) | Err(_) => None,
        };
        let Some(result) = result else { return Err(flight.stage.timed_out(&key, deadline)) };
        if joined && !wish.is_met_by(&flight.wish, &result) {
            continue;
        }
        let mut acquired = result?;
        if let Some(refusal) = wish.refusal(&flight.wish, &key, &acquired) {
            return Err(refusal);
        }
        // Of its own: what one caller does to its value is nothing to the others.
        acquired.sandbox = acquired.sandbox.value_for(&wish.options, wish.hooks);
        acquired.sandbox.keep_saved();
        acquired.facts.joined = joined;
        return Ok(acquired);
    }
}

/// Joins the flight of this key or begins one.
fn board(home: &Arc<Home>, key: &Key, wish: &Wish) -> Result<(Waiter, bool)> {
    let mut flights = home.flights.lock();
    let (flight, joined) = match flights.get(key) {
        Some(flight) => {
            let refuses = |of: &Wish| of.options.on_spec_conflict == OnSpecConflict::Error;
            if let Some(field) = flight.wish.options.spec.conflicts_with(&wish.options.spec)
                && refuses(wish)
                && refuses(&flight.wish)
            {
                let error = spec_conflict(key, field);
                // What hears of it may come back to the map.
                drop(flights);
                home.tell(wish.hooks.as_ref(), key, None, EventKind::Conflict { reason: error.reason() });
                return Err(error);
            }
            (Arc::clone(flight), true)
        }
        None => {
            let flight = Arc::new(Flight {
                wish: wish.clone(),
                stage: Arc::default(),
                result: watch::Sender::new(None),
                waiters: Mutex::new(0),
                abandoned: Notify::new(),
            });
            flights.insert(key.clone(), Arc::clone(&flight));
            // The hooks that it is begun in wait for it, and so for what its own hooks wait for.
            let flown = fly(Arc::clone(home), key.clone(), Arc::clone(&flight));
            tokio::spawn(HookScope::current().run(flown));
            (flight, false)
        }
    };
    *flight.waiters.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    Ok((Waiter { home: Arc::clone(home), key: key.clone(), flight }, joined))
}

async fn fly(home: Arc<Home>, key: Key, flight: Arc<Flight>) {
    let landing = Landing { home: Arc::clone(&home), key: key.clone(), flight: Arc::clone(&flight) };
    let Wish { options, hooks } = flight.wish.clone();
    let acquisition = Acquisition {
        home: Arc::clone(&home),
        key: key.clone(),
        options,
        stage: Arc::clone(&flight.stage),
        hooks: hooks.clone(),
        resumed: Arc::default(),
    };
    home.tell(hooks.as_ref(), &key, None, EventKind::Starting);
    let result = tokio::select! {
        biased;
        () = flight.abandoned.notified() => Err(left_by_all(&flight.stage)),
        result = acquisition.run() => result,
    };
    match &result {
        Ok(Acquired { sandbox, outcome, facts }) => {
            let started = EventKind::Started { outcome: *outcome, how: facts.how.clone() };
            home.tell(hooks.as_ref(), &key, sandbox.provider_id(), started);
        }
        Err(error) => {
            home.tell(hooks.as_ref(), &key, None, EventKind::failed(flight.stage.name(), error));
        }
    }
    // Off the map before the result is seen: a caller that acquires again right after gets a new look.
    landing.home.flights.forget(&landing.key, &flight);
    flight.result.send_replace(Some(result));
    drop(landing);
}

/// The error of a flight that nobody waits for any more; a create that was sent goes on without it.
fn left_by_all(stage: &Stage) -> Error {
    stage.left(
        Error::new(ErrorKind::Cancelled, "every caller left before the acquire ended").at("", "acquire"),
    )
}

pub(super) fn spec_conflict(key: &Key, field: &'static str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("the key's sandbox was made with another {field}; use another key, or say what shall happen by on_spec_conflict"),
    )
    .with_reason("spec")
    .at("", "acquire")
    .with_context("key", key)
    .with_context("field", field)
}
