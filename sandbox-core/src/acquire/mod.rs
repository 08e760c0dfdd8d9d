//! Acquire: find, connect or create the one sandbox of a key.

mod contend;
mod create;
mod discover;
mod flight;
mod home;
mod options;
mod replace;
mod settle;
mod setup;
mod stages;
mod steps;

use std::sync::Arc;
use std::time::Duration;

pub use options::{
    AcquireOptions, AcquireOutcome, Acquired, DEFAULT_ACQUIRE_DEADLINE, Exclusion, Facts, How, OnDuplicates,
    OnGone, OnResumeFailure, OnSetupFailure, OnSpecConflict, ReplaceWhenGone, ReplacedBecause, SetupState,
};

pub use self::flight::HookScope;

pub(crate) use self::contend::senior;
pub(crate) use self::flight::{
    Stage, inside_closed, inside_save, refuse_inside, refuse_inside_closed, refuse_inside_save,
};
pub(crate) use self::home::Home;
pub(crate) use self::settle::{Absence, settle};
use crate::events::Events;
use crate::hooks::{Hooks, PersistHook};
use crate::lifecycle::StopOutcome;
use crate::providers::Providers;
use crate::registry::Registry;
use crate::{DestroyOutcome, Error, Key, Owner, Result, Sandbox, SandboxInfo, SandboxProvider};

/// Default of [`Sandboxes::with_record_lease`]: longer than one provider call may last by default.
pub const DEFAULT_RECORD_LEASE: Duration = Duration::from_secs(90);

/// The longest lease on a record: no clock of a registry overflows by it.
const LONGEST_RECORD_LEASE: Duration = Duration::from_secs(24 * 3600);

/// The reason of the [`crate::ErrorKind::Timeout`] of a call that waited for another one on the same key; nothing was done.
pub const REASON_BUSY: &str = "busy";

/// The reason of the [`crate::ErrorKind::Ownership`] of a sandbox that is not found under other credentials, or at another
/// endpoint, than the ones that it was made under; see [`Sandboxes::confirm_move`].
pub const REASON_MOVED: &str = "fingerprint";

/// The sandboxes of one owner at one provider: acquire them by key, let them go, get the same ones back.
///
/// Clones are the same host. Two hosts in one process do not meet but in a registry they share.
///
/// # Examples
/// ```
/// # #[cfg(feature = "testing")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> sandhold_core::Result<()> {
/// use std::sync::Arc;
/// use sandhold_core::{AcquireOptions, AcquireOutcome, Sandboxes, testing::FakeProvider};
///
/// let sandboxes = Sandboxes::new(Arc::new(FakeProvider::new()));
/// let first = sandboxes.acquire("session-42", AcquireOptions::default()).await?;
/// assert_eq!(first.outcome, AcquireOutcome::Created);
/// let again = sandboxes.acquire("session-42", AcquireOptions::default()).await?;
/// assert_eq!(again.outcome, AcquireOutcome::Connected);
/// assert_eq!(first.sandbox.provider_id(), again.sandbox.provider_id());
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "testing"))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct Sandboxes(pub(crate) Arc<Home>);

impl Sandboxes {
    /// Makes a host for the owner `default` whose records live in memory.
    #[must_use]
    pub fn new(provider: Arc<dyn SandboxProvider>) -> Self {
        Self(Arc::new(Home::new(provider)))
    }

    fn rebuilt(self, change: impl FnOnce(&mut Home)) -> Self {
        let mut home = self.0.rebuilt();
        change(&mut home);
        Self(Arc::new(home))
    }

    /// Uses the keys of this owner.
    #[must_use]
    pub fn with_owner(self, owner: Owner) -> Self {
        self.rebuilt(|home| home.owner = owner)
    }

    /// Keeps records in this registry; default in memory, which forgets with the process.
    #[must_use]
    pub fn with_registry(self, registry: Arc<dyn Registry>) -> Self {
        self.rebuilt(|home| home.registry = registry)
    }

    /// Runs these hooks for every sandbox; default none.
    #[must_use]
    pub fn with_hooks(self, hooks: Arc<dyn Hooks>) -> Self {
        self.rebuilt(|home| home.hooks = Some(hooks))
    }

    /// Keeps the work of every sandbox by this hook; default none.
    #[must_use]
    pub fn with_persist(self, persist: Arc<dyn PersistHook>) -> Self {
        self.rebuilt(|home| home.persist = Some(persist))
    }

    /// Limits every hook but the start hook, whose limit is [`AcquireOptions::hook_deadline`]; default
    /// [`crate::DEFAULT_HOOK_DEADLINE`], 15 minutes, each time.
    #[must_use]
    pub fn with_hook_deadline(self, deadline: Duration) -> Self {
        self.rebuilt(|home| home.hook_deadline = deadline)
    }

    /// Limits how long stop, destroy, pause and resume wait while another host or call works on the same key; default
    /// [`DEFAULT_ACQUIRE_DEADLINE`], 180 seconds. An acquire waits as long as its own deadline says.
    #[must_use]
    pub fn with_wait_limit(self, limit: Duration) -> Self {
        self.rebuilt(|home| home.wait_limit = limit)
    }

    /// Leaves the sandboxes of records that name another of these providers with that one, whatever this host's own is;
    /// default none, and then such a record is a [`crate::ErrorKind::Conflict`].
    #[must_use]
    pub fn with_providers(self, providers: Providers) -> Self {
        self.rebuilt(|home| home.providers = Some(providers))
    }

    /// Keeps so many events for a slow listener; default [`crate::DEFAULT_EVENT_CAPACITY`], 256.
    #[must_use]
    pub fn with_event_capacity(self, events: usize) -> Self {
        self.rebuilt(|home| home.event_capacity = events)
    }

    /// Listens to what happens to the sandboxes of this host from now on, until it and they are dropped.
    ///
    /// Setters like [`Sandboxes::with_registry`] make another host: listen to the one that is used.
    #[must_use]
    pub fn events(&self) -> Events {
        self.0.teller().subscribe()
    }

    /// Takes the lease on a record for so long, one day at most, and renews it while a hook runs; default
    /// [`DEFAULT_RECORD_LEASE`], 90 seconds. Give all hosts of one registry the same.
    ///
    /// It is how long others wait for a host that died or hangs at work on a key, where the registry does not see its
    /// death (Postgres). It also limits each create call, to five sixths of it: one that takes longer is looked for like
    /// one whose answer was lost.
    #[must_use]
    pub fn with_record_lease(self, lease: Duration) -> Self {
        self.rebuilt(|home| home.record_lease = lease.min(LONGEST_RECORD_LEASE))
    }

    /// Returns the provider.
    #[must_use]
    pub fn provider(&self) -> &Arc<dyn SandboxProvider> {
        &self.0.provider
    }

    /// Finds, connects or creates the one sandbox of a key.
    ///
    /// Callers of one key in this process share one flight. Only the provider's own *gone* leads to a new sandbox;
    /// every other failure is returned and nothing is made.
    ///
    /// # Errors
    /// - [`crate::ErrorKind::Conflict`] when the key's sandbox was asked for with another spec, or from inside its own hook
    ///   (reason `reentrant`);
    /// - [`crate::ErrorKind::Ownership`] when the sandbox found belongs to someone else;
    /// - [`crate::ErrorKind::Gone`] when it is gone and `replace_when_gone` is `Fail`;
    /// - [`crate::ErrorKind::OutcomeUnknown`] when a create's answer was lost and could not be settled in time; a later
    ///   acquire settles it first;
    /// - [`crate::ErrorKind::Timeout`] with context `stage` when the deadline passed;
    /// - what the provider, the registry or the start hook answered.
    ///
    /// # Cancellation
    /// Dropping the future ends this caller's wait. When the last caller leaves, the flight ends; a create that was sent
    /// is seen to its end in the background and recorded.
    pub async fn acquire(
        &self,
        key: impl TryInto<Key, Error = impl Into<Error>>,
        options: AcquireOptions,
    ) -> Result<Acquired> {
        self.0.acquire(key.try_into().map_err(Into::into)?, options).await
    }

    /// Returns a value of the key's sandbox that is acquired, with these options, by its first use. Does no I/O.
    ///
    /// The first call that needs a sandbox (a process, a file, a watch, a port) acquires it, once for all callers; a
    /// failure is not remembered. `info`, `stop` and `destroy` look for the sandbox that the key has, and never make one.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] for a bad key.
    pub fn lazy(
        &self,
        key: impl TryInto<Key, Error = impl Into<Error>>,
        options: AcquireOptions,
    ) -> Result<Sandbox> {
        let hooks = options.hooks.clone().or_else(|| self.0.hooks.clone());
        Ok(Sandbox::unstarted(&self.0, key.try_into().map_err(Into::into)?, Arc::new(options), hooks))
    }

    /// Looks for the sandbox that a key has, by its record or by its tags, without waking or making one.
    ///
    /// # Errors
    /// What the provider or the registry answered.
    pub async fn find(
        &self,
        key: impl TryInto<Key, Error = impl Into<Error>>,
    ) -> Result<Option<SandboxInfo>> {
        self.0.find(&key.try_into().map_err(Into::into)?, None).await
    }

    /// Says that the credentials or the endpoint of this host were changed on purpose, for the sandbox of one key: the ones of
    /// now count as those that it was made under. Returns whether they differed.
    ///
    /// Needed only where a key fails with [`crate::ErrorKind::Ownership`], reason [`REASON_MOVED`]: its sandbox is not found
    /// under the present credentials, and may still exist under those that made it. Afterwards it counts as gone, and the
    /// next acquire creates another one; nothing ends the old one. A sandbox that *is* found under new credentials needs no
    /// such call.
    ///
    /// # Errors
    /// What the registry answered, and of the wait as [`Sandboxes::stop`].
    pub async fn confirm_move(&self, key: impl TryInto<Key, Error = impl Into<Error>>) -> Result<bool> {
        Home::confirm_move(&self.0, &key.try_into().map_err(Into::into)?).await
    }

    /// Lets a key's sandbox rest: pauses it where the provider can, without connecting to it and so without the hooks
    /// that need it running.
    ///
    /// A create whose outcome is open is settled first.
    ///
    /// # Errors
    /// As [`crate::Sandbox::pause`]; [`crate::ErrorKind::Timeout`] with reason [`REASON_BUSY`], and
    /// nothing done, when another host was at work on this key for as long as [`Sandboxes::with_wait_limit`] allows;
    /// [`crate::ErrorKind::OutcomeUnknown`] when an open create could not be settled in that
    /// time.
    pub async fn stop(&self, key: impl TryInto<Key, Error = impl Into<Error>>) -> Result<StopOutcome> {
        Home::stop(&self.0, &key.try_into().map_err(Into::into)?, None, self.0.hooks.as_ref()).await
    }

    /// Destroys a key's sandbox by its id, without waking it and so without the hooks that need it running, and forgets
    /// its record.
    ///
    /// A create whose outcome is open is settled first; one that is proven absent is remembered, so that a sandbox of it
    /// that comes late is destroyed when it is seen. Where the record names a sandbox, others that carry the key's tags are
    /// left, as an acquire leaves them: the next destroy of the key ends them, as no record names one then.
    ///
    /// # Errors
    /// What the provider or the registry answered, and of the wait as [`Sandboxes::stop`].
    pub async fn destroy(&self, key: impl TryInto<Key, Error = impl Into<Error>>) -> Result<DestroyOutcome> {
        Home::destroy(&self.0, &key.try_into().map_err(Into::into)?, None, self.0.hooks.as_ref()).await
    }
}
