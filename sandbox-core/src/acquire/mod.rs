//! Acquire: find, connect or create the one sandbox of a key.

mod create;
mod flight;
mod options;
mod setup;
mod steps;

use std::sync::Arc;
use std::time::Duration;

pub use options::{
    AcquireOptions, AcquireOutcome, Acquired, DEFAULT_ACQUIRE_DEADLINE, Exclusion, Facts, How,
    OnSetupFailure, OnSpecConflict, ReplaceWhenGone, SetupState,
};

use self::flight::Flights;
pub(crate) use self::steps::senior;
use crate::hooks::{DEFAULT_HOOK_DEADLINE, Hooks, PersistHook};
use crate::lifecycle::{self, StopOutcome};
use crate::registry::{Lease, MemoryRegistry, Record, Registry};
use crate::{DestroyOutcome, Error, ErrorKind, Key, Owner, Result, SandboxProvider};

/// How long a lease on a record is taken for; longer than one provider call may last.
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(90);

/// The reason of the [`ErrorKind::Timeout`] of a call that waited for another one on the same key; nothing was done.
pub const REASON_BUSY: &str = "busy";

/// Pauses between two looks at a lease that another contender holds: the first, and the longest.
const LEASE_POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

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

/// What every acquisition and every sandbox of one host shares.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) owner: Owner,
    pub(crate) provider: Arc<dyn SandboxProvider>,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    pub(crate) persist: Option<Arc<dyn PersistHook>>,
    pub(crate) hook_deadline: Duration,
    wait_limit: Duration,
    flights: Flights,
}

impl Sandboxes {
    /// Makes a host for the owner `default` whose records live in memory.
    #[must_use]
    pub fn new(provider: Arc<dyn SandboxProvider>) -> Self {
        Self(Arc::new(Home {
            owner: Owner::default(),
            provider,
            registry: Arc::new(MemoryRegistry::new()),
            hooks: None,
            persist: None,
            hook_deadline: DEFAULT_HOOK_DEADLINE,
            wait_limit: DEFAULT_ACQUIRE_DEADLINE,
            flights: Flights::default(),
        }))
    }

    fn rebuilt(self, change: impl FnOnce(&mut Home)) -> Self {
        let mut home = Home {
            owner: self.0.owner.clone(),
            provider: Arc::clone(&self.0.provider),
            registry: Arc::clone(&self.0.registry),
            hooks: self.0.hooks.clone(),
            persist: self.0.persist.clone(),
            hook_deadline: self.0.hook_deadline,
            wait_limit: self.0.wait_limit,
            flights: Flights::default(),
        };
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
    /// [`DEFAULT_HOOK_DEADLINE`], 15 minutes, each time.
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
    /// - [`ErrorKind::Conflict`] when the key's sandbox was asked for with another spec, or from inside its own hook
    ///   (reason `reentrant`);
    /// - [`ErrorKind::Ownership`] when the sandbox found belongs to someone else;
    /// - [`ErrorKind::Gone`] when it is gone and `replace_when_gone` is `Fail`;
    /// - [`ErrorKind::OutcomeUnknown`] when a create's answer was lost and could not be settled in time; a later
    ///   acquire settles it first;
    /// - [`ErrorKind::Timeout`] with context `stage` when the deadline passed;
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
        let key = key.try_into().map_err(Into::into)?;
        flight::acquire(Arc::clone(&self.0), key, options).await
    }

    /// Lets a key's sandbox rest: pauses it where the provider can, without connecting to it.
    ///
    /// # Errors
    /// As [`crate::Sandbox::stop`]; [`ErrorKind::Timeout`] with reason [`REASON_BUSY`], and nothing done, when another
    /// host was at work on this key for as long as [`Sandboxes::with_wait_limit`] allows.
    pub async fn stop(&self, key: impl TryInto<Key, Error = impl Into<Error>>) -> Result<StopOutcome> {
        let key = key.try_into().map_err(Into::into)?;
        flight::refuse_inside(&self.0, &key, "stop")?;
        lifecycle::stop(&self.0, &key).await
    }

    /// Destroys a key's sandbox by its id, without waking it, and forgets its record.
    ///
    /// # Errors
    /// As [`crate::Sandbox::destroy`], and of the wait as [`Sandboxes::stop`].
    pub async fn destroy(&self, key: impl TryInto<Key, Error = impl Into<Error>>) -> Result<DestroyOutcome> {
        let key = key.try_into().map_err(Into::into)?;
        flight::refuse_inside(&self.0, &key, "destroy")?;
        lifecycle::destroy(&self.0, &key).await
    }
}

impl Home {
    /// Takes the lease of a key, waiting while another contender holds it; `look` may end the wait early.
    pub(crate) async fn lease<T, F>(&self, key: &Key, mut look: impl FnMut() -> F) -> Result<Leased<T>>
    where
        F: Future<Output = Result<Option<T>>> + Send,
    {
        let mut pause = LEASE_POLL.0;
        loop {
            if let Some(lease) = self.registry.try_lease(&self.owner, key, LEASE_TTL).await? {
                return Ok(Leased::Lease(lease));
            }
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LEASE_POLL.1);
            if let Some(found) = look().await? {
                return Ok(Leased::Found(found));
            }
        }
    }

    /// Takes the lease of a key, waiting no longer than the host's limit.
    pub(crate) async fn lease_in_time(&self, key: &Key, operation: &'static str) -> Result<Lease> {
        let lease = async {
            loop {
                if let Leased::Lease(lease) = self.lease(key, || async { Ok(None::<()>) }).await? {
                    return Ok(lease);
                }
            }
        };
        let limit = self.wait_limit;
        tokio::time::timeout(limit, lease).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Timeout,
                format!(
                    "another host or call was at work on this key for {limit:?}; nothing was done, try again"
                ),
            )
            .with_reason(REASON_BUSY)
            .at(self.provider.name(), operation)
            .with_context("key", key)
            .retryable(None))
        })
    }

    pub(crate) async fn load(&self, key: &Key) -> Result<Option<Record>> {
        let record = self.registry.load(&self.owner, key).await?;
        match &record {
            Some(record) if record.provider != self.provider.name() => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "the key's sandbox is at the provider {:?}; this host uses {:?}",
                    record.provider,
                    self.provider.name()
                ),
            )
            .with_reason("provider")
            .with_context("key", key)),
            _ => Ok(record),
        }
    }
}

/// The end of a wait for a lease.
pub(crate) enum Leased<T> {
    Lease(Lease),
    Found(T),
}
