//! What users hold: an acquired sandbox, or one that is acquired at its first use.

mod guard;
mod instructions;
mod resume;
mod saving;
mod verbs;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use self::saving::Saver;
pub(crate) use self::saving::Saves;
use crate::acquire::{self, AcquireOptions, Home, OnGone};
use crate::events::EventKind;
use crate::fate::{End, Fate};
use crate::hooks::Hooks;
use crate::lifecycle;
use crate::registry::Record;
use crate::tenure::Tenure;
use crate::{Error, ErrorKind, Generation, Key, Outcome, Owner, Result, SandboxHandle, SandboxId};

/// The reason of the [`ErrorKind::InvalidState`] that a handle answers while its sandbox is paused; nothing was sent.
pub const REASON_PAUSED: &str = "paused";

/// The reason of the [`ErrorKind::InvalidState`] of a call that needs a sandbox, on a value that has none yet and
/// must not make one.
pub const REASON_UNSTARTED: &str = "unstarted";

/// A sandbox of a key: what users hold.
///
/// It is a [`SandboxHandle`] with a guard around every call: a value of [`crate::Sandboxes::lazy`] acquires at the first
/// one, work on a paused sandbox resumes it first, once for all callers, and after *gone* or a destroy every call says so
/// and sends nothing, unless [`OnGone::Reacquire`] was asked for. A value whose sandbox was replaced is
/// [`ErrorKind::Stale`], reason [`crate::REASON_REPLACED`]. Clones are the same value. Dropping it leaves the sandbox
/// alone. While a value of it is there, its work is saved on the interval of the host's persist hook.
#[derive(Clone)]
pub struct Sandbox {
    shared: Arc<Shared>,
    /// Alive in the value that a hook of a pause, resume or save gets, as long as that lasts: its calls do not wait for it.
    transition: Weak<Lasting>,
    /// Set for the value that a hook of a flight gets: it changes the sandbox under the lease of that flight.
    lent: Weak<Tenure>,
    saver: Arc<Saver>,
}

/// What a hook runs in.
type Lasting = dyn Send + Sync;

struct Shared {
    home: Arc<Home>,
    key: Key,
    options: Arc<AcquireOptions>,
    hooks: Option<Arc<dyn Hooks>>,
    names: Names,
    /// The sandbox that this value has, or had.
    fate: RwLock<Option<Arc<Fate>>>,
    /// Held while this value acquires.
    starting: tokio::sync::Mutex<()>,
    /// The end of this value, whatever becomes of the sandbox.
    end: Mutex<Option<End>>,
}

/// Every sandbox that this value has had; the last is the present one. They stay where they are, so that they can be
/// lent out.
#[derive(Default)]
struct Names(OnceLock<Box<Name>>);

struct Name {
    id: SandboxId,
    generation: Generation,
    next: Names,
}

impl Names {
    fn last(&self) -> Option<&Name> {
        let mut last = self.0.get()?;
        while let Some(next) = last.next.0.get() {
            last = next;
        }
        Some(last)
    }

    fn push(&self, fate: &Fate) {
        let mut name = Box::new(Name {
            id: fate.id.clone(),
            generation: fate.generation.clone(),
            next: Self::default(),
        });
        let mut end = self;
        while let Err(back) = end.0.set(name) {
            name = back;
            let Some(next) = end.0.get() else { return };
            end = &next.next;
        }
    }
}

impl Drop for Names {
    /// One by one: a long history must not be a deep recursion.
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some(mut name) = next {
            next = name.next.0.take();
        }
    }
}

/// What differs between a sandbox and a clone of its spec.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CloneOptions {
    /// The key of the clone; default a new random one.
    pub key: Option<Key>,
    /// An existing sandbox that the clone attaches to; default none.
    pub provider_id: Option<SandboxId>,
    /// Variables beside those of the spec; they win.
    pub env: BTreeMap<String, String>,
    /// How long the clone may run without a renewal; default as in the spec.
    pub lease: Option<Duration>,
    /// Where commands of the clone start; default as in the spec.
    pub workdir: Option<String>,
}

impl CloneOptions {
    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Attaches to an existing sandbox.
    #[must_use]
    pub fn with_provider_id(mut self, id: SandboxId) -> Self {
        self.provider_id = Some(id);
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets how long it may run without a renewal.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets where commands start.
    #[must_use]
    pub fn with_workdir(mut self, workdir: impl Into<String>) -> Self {
        self.workdir = Some(workdir.into());
        self
    }
}

impl Sandbox {
    /// A value that has no sandbox yet.
    pub(crate) fn unstarted(
        home: &Arc<Home>,
        key: Key,
        options: Arc<AcquireOptions>,
        hooks: Option<Arc<dyn Hooks>>,
    ) -> Self {
        let shared = Arc::new(Shared {
            home: Arc::clone(home),
            key,
            options,
            hooks,
            names: Names::default(),
            fate: RwLock::new(None),
            starting: tokio::sync::Mutex::default(),
            end: Mutex::new(None),
        });
        Self { shared, transition: Weak::<()>::new(), lent: Weak::new(), saver: Arc::default() }
    }

    /// A value of a connected sandbox, and the id of the one whose place it has taken in this host.
    pub(crate) fn acquired(
        home: &Arc<Home>,
        record: &Record,
        handle: Arc<dyn SandboxHandle>,
        options: &Arc<AcquireOptions>,
        hooks: Option<Arc<dyn Hooks>>,
    ) -> (Self, Option<SandboxId>) {
        let sandbox = Self::unstarted(home, record.key.clone(), Arc::clone(options), hooks);
        let (fate, before) = home.fates.enter(home, &record.key, handle, &record.generation);
        sandbox.begin(fate);
        (sandbox, before)
    }

    /// Another value of the same sandbox, with the options and hooks of the caller that it is for.
    pub(crate) fn value_for(&self, options: &Arc<AcquireOptions>, hooks: Option<Arc<dyn Hooks>>) -> Self {
        let Shared { home, key, .. } = &*self.shared;
        let value = Self::unstarted(home, key.clone(), Arc::clone(options), hooks);
        if let Some(fate) = self.fate() {
            value.begin(fate);
        }
        value
    }

    /// The value for the hooks of a flight, which carries its lease as long as the flight lends it.
    pub(crate) fn within_flight(&self, lent: &Arc<Tenure>) -> Self {
        Self { lent: Arc::downgrade(lent), ..self.clone() }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.shared.key
    }

    /// Returns the owner of the key.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.shared.home.owner
    }

    /// Returns the provider's id: stored by the caller, it reattaches without any registry. `None` before a lazy value
    /// has acquired.
    #[must_use]
    pub fn provider_id(&self) -> Option<&SandboxId> {
        self.shared.names.last().map(|name| &name.id)
    }

    /// Returns a value for another sandbox of the same spec, with the same options and hooks. Does no I/O: it is acquired
    /// at its first use.
    ///
    /// Nothing of this sandbox's identity is in it: neither key nor provider id nor any file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for the key of this sandbox; [`ErrorKind::Unexpected`] when the system has no
    /// randomness for a new one.
    pub fn clone_with(&self, options: CloneOptions) -> Result<Self> {
        let key = match options.key {
            Some(key) if key == self.shared.key => {
                return Err(Error::invalid_argument(format!(
                    "the key {:?} is that of the sandbox itself; give the clone another, or none for a random one",
                    key.as_str()
                ))
                .at("", "clone"));
            }
            Some(key) => key,
            None => Key::new(format!("clone-{}", Generation::random()?))?,
        };
        let mut copied = (*self.shared.options).clone();
        copied.provider_id = options.provider_id;
        copied.spec.env.extend(options.env);
        copied.spec.lease = options.lease.or(copied.spec.lease);
        copied.spec.workdir = options.workdir.or(copied.spec.workdir);
        let hooks = self.shared.hooks.clone();
        Ok(Self::unstarted(&self.shared.home, key, Arc::new(copied), hooks))
    }

    fn fate(&self) -> Option<Arc<Fate>> {
        self.shared.fate.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn begin(&self, fate: Arc<Fate>) {
        self.shared.names.push(&fate);
        *self.shared.fate.write().unwrap_or_else(PoisonError::into_inner) = Some(fate);
    }

    /// The provider's handle, without the guard; `None` before the start.
    pub(crate) fn handle(&self) -> Option<Arc<dyn SandboxHandle>> {
        self.fate().map(|fate| fate.handle())
    }

    /// Whether this value goes on with the key's next sandbox when it has lost its own.
    fn follows(&self) -> bool {
        self.shared.options.on_gone == OnGone::Reacquire
            && !self.is_within_transition()
            && self.lent.strong_count() == 0
    }

    /// The sandbox that this value is to attach to, named by its caller, until it has had one.
    fn wanted_id(&self) -> Option<&SandboxId> {
        self.shared.options.provider_id.as_ref().filter(|_| self.provider_id().is_none())
    }

    /// The guard before a call: the sandbox to send it to, or `None` where one is to be acquired first.
    fn usable(&self) -> Result<Option<Arc<Fate>>> {
        if let Some(end) = *self.shared.end.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(self.refused(end));
        }
        let Some(fate) = self.fate() else { return Ok(None) };
        match fate.end() {
            None => Ok(Some(fate)),
            Some(End::Gone | End::Replaced) if self.follows() => Ok(None),
            Some(end) => Err(self.refused(end)),
        }
    }

    /// Whether a value that has lost its sandbox may get the next one of the key.
    fn may_begin_again(&self) -> bool {
        let has_ended = self.shared.end.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.shared.options.on_gone == OnGone::Reacquire && !has_ended
    }

    fn refused(&self, end: End) -> Error {
        let error = end.error().at(self.shared.home.provider.name(), "call");
        match self.provider_id() {
            Some(id) => error.with_context("id", id),
            None => error.with_context("key", &self.shared.key),
        }
    }

    /// The sandbox to send a call to, acquired first where this value has none: once for all its callers.
    async fn live(&self) -> Result<Arc<Fate>> {
        if let Some(fate) = self.usable()? {
            return Ok(fate);
        }
        let Shared { home, key, .. } = &*self.shared;
        acquire::refuse_inside(home, key, "call")?;
        let _starting = self.shared.starting.lock().await;
        if let Some(fate) = self.usable()? {
            return Ok(fate);
        }
        let mut options = (*self.shared.options).clone();
        if self.fate().is_some() {
            // It is gone; what the key has now is found by the key.
            options.provider_id = None;
        }
        let acquired = home.acquire(key.clone(), options).await?;
        let fate = acquired.sandbox.fate().ok_or_else(|| {
            Error::new(ErrorKind::Unexpected, "the acquire returned no sandbox").at("", "acquire")
        })?;
        self.begin(Arc::clone(&fate));
        self.keep_saved();
        // Meanwhile it may have been let go of, or its sandbox may have ended.
        match self.usable()? {
            Some(fate) => Ok(fate),
            None => Err(self.refused(fate.end().unwrap_or(End::Gone))),
        }
    }

    pub(crate) fn mark_stale(&self) {
        self.finish(End::LeaseLost);
    }

    /// Says that it was destroyed under a flight, and tells of it.
    pub(crate) fn mark_destroyed(&self) {
        if let Some(fate) = self.fate()
            && fate.finish(End::Destroyed)
        {
            self.tell(EventKind::Destroyed);
        }
    }

    fn finish(&self, end: End) {
        self.shared.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
    }

    fn tell(&self, kind: EventKind) {
        let Shared { home, key, hooks, .. } = &*self.shared;
        home.tell(hooks.as_ref(), key, self.provider_id(), kind);
    }

    /// The guard after a call: *gone* is remembered, and told of once. Where the key has another sandbox by now, this value
    /// is stale.
    async fn seen<T>(&self, fate: &Fate, result: Result<T>) -> Result<T> {
        let Err(error) = result else { return result };
        if error.kind() == ErrorKind::Gone {
            if fate.end().is_some() {
                return Err(error);
            }
            let own = Box::pin(lifecycle::own_record(&fate.home, &self.shared.key, fate)).await;
            let stale = own.err().filter(is_replaced);
            if fate.finish(if stale.is_some() { End::Replaced } else { End::Gone }) {
                self.tell(EventKind::Gone);
            }
            return Err(match stale {
                Some(stale) => stale.with_outcome(error.outcome()).with_source(error),
                None => error,
            });
        }
        if is_replaced(&error) {
            fate.finish(End::Replaced);
            return Err(error);
        }
        match fate.end() {
            // A call that was cut by our own destroy is no riddle.
            Some(End::Destroyed) if cut_off(&error) => Err(self.refused(End::Destroyed).with_source(error)),
            _ => Err(error),
        }
    }
}

pub(super) fn is_replaced(error: &Error) -> bool {
    error.kind() == ErrorKind::Stale && error.reason() == Some(crate::REASON_REPLACED)
}

fn cut_off(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
}

/// An acquire or a resume may have taken effect; the call that it was for was not sent.
fn not_sent(error: Error) -> Error {
    match error.outcome() {
        Outcome::Done => error.with_outcome(Outcome::NotStarted),
        _ => error,
    }
}

/// What stands for the id of a sandbox that there is not yet.
static NO_ID: LazyLock<SandboxId> = LazyLock::new(|| SandboxId::new(""));

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("key", &self.shared.key)
            .field("id", &self.provider_id())
            .field("end", &self.fate().and_then(|fate| fate.end()))
            .finish_non_exhaustive()
    }
}
