//! The record of each key, kept by compare-and-swap, and the lease that excludes other contenders.

mod filter;
mod memory;

use std::any::Any;
use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use filter::RecordFilter;
pub use memory::MemoryRegistry;

use crate::stream::ResultStream;
use crate::{
    Attempt, BootTime, Error, ErrorKind, Generation, Key, Owner, ReplacedBecause, Result, SandboxId,
    SandboxSpec,
};

/// How far a registry reaches: who can meet in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RegistryScope {
    /// Only callers in this process.
    Process,
    /// Every process on this machine.
    Machine,
    /// Every machine that uses the same store.
    Cluster,
}

/// What a key's sandbox is going through, as far as it was written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// A create was about to be sent; its outcome was not written yet.
    Creating,
    /// It is there and usable.
    Ready,
    /// A pause was about to be sent.
    Pausing,
    /// It is paused.
    Paused,
    /// A resume was about to be sent.
    Resuming,
    /// A destroy was about to be sent; whoever comes next finishes it.
    Destroying,
}

impl Phase {
    /// Returns the stable snake_case code, which records are stored with.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Resuming => "resuming",
            Self::Destroying => "destroying",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A create attempt that was given up; a sandbox that carries it was never handed out and may be destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandoned {
    /// The attempt.
    pub attempt: Attempt,
    /// When it was given up.
    pub at: SystemTime,
}

/// How long abandoned attempts are remembered: 7 days.
pub const KEEP_ABANDONED: Duration = Duration::from_secs(7 * 24 * 3600);

/// What is kept about one key. Secrets are never in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The namespace of the key.
    pub owner: Owner,
    /// The caller's logical id.
    pub key: Key,
    /// Counts the stores; 0 means never stored.
    pub version: u64,
    /// The fencing number of the lease under which it was last stored.
    pub fence: u64,
    /// The provider's name.
    pub provider: String,
    /// The provider's endpoint and credential scope, see [`crate::SandboxProvider::fingerprint`].
    pub fingerprint: String,
    /// The provider's id; none while the first create is open.
    pub id: Option<SandboxId>,
    /// The identity of the sandbox.
    pub generation: Generation,
    /// The create call that made it or is to make it.
    pub attempt: Attempt,
    /// What it is going through.
    pub phase: Phase,
    /// When the phase was entered, by the writer's clock: for people.
    pub phase_since: SystemTime,
    /// When the phase was entered, since the writer's boot: for waits, which no setting of a clock may shorten.
    pub phase_since_boot: Option<BootTime>,
    /// How it was to be made.
    pub spec: SandboxSpec,
    /// The version of the setup hook that completed; `None` until one has, and no acquire has returned it before that.
    pub setup_done: Option<u64>,
    /// Attempts that were given up and not yet forgotten.
    pub abandoned: Vec<Abandoned>,
    /// The sandbox that is gone, and whose place the next one takes; none once a create has succeeded.
    #[serde(default)]
    pub replaces: Option<SandboxId>,
    /// Why it takes that one's place, or has taken it.
    #[serde(default)]
    pub replaced_because: Option<ReplacedBecause>,
}

impl Record {
    /// The intent to create: a record that was never stored.
    ///
    /// # Errors
    /// [`ErrorKind::Unexpected`] when the system has no randomness.
    pub fn intent(
        owner: Owner,
        key: Key,
        provider: &str,
        fingerprint: String,
        spec: SandboxSpec,
    ) -> Result<Self> {
        Ok(Self {
            owner,
            key,
            version: 0,
            fence: 0,
            provider: provider.to_owned(),
            fingerprint,
            id: None,
            generation: Generation::random()?,
            attempt: Attempt::random()?,
            phase: Phase::Creating,
            phase_since: SystemTime::now(),
            phase_since_boot: BootTime::now(),
            spec,
            setup_done: None,
            abandoned: Vec::new(),
            replaces: None,
            replaced_because: None,
        })
    }

    /// Enters a phase now.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.phase_since = SystemTime::now();
        self.phase_since_boot = BootTime::now();
    }

    /// Returns how long the phase has lasted; zero when that is not known for sure.
    #[must_use]
    pub fn phase_age(&self) -> Duration {
        self.phase_since_boot.as_ref().and_then(BootTime::elapsed).unwrap_or_default()
    }

    /// When the phase was entered, by this process's clock; now where that is not known for sure.
    pub(crate) fn begun(&self) -> Instant {
        Instant::now().checked_sub(self.phase_age()).unwrap_or_else(Instant::now)
    }

    /// Gives the present attempt up, and forgets the ones that are old enough.
    pub fn abandon(&mut self) {
        let attempt = self.attempt.clone();
        self.give_up(&attempt);
    }

    /// Gives an attempt up: whoever sees a sandbox of it destroys it.
    pub(crate) fn give_up(&mut self, attempt: &Attempt) {
        self.forget_old_attempts();
        self.abandoned.push(Abandoned { attempt: attempt.clone(), at: SystemTime::now() });
    }

    fn forget_old_attempts(&mut self) {
        let now = SystemTime::now();
        // What another clock dates to the future is kept: it is no older than what is forgotten.
        self.abandoned.retain(|old| now.duration_since(old.at).map_or(true, |age| age < KEEP_ABANDONED));
    }

    /// Turns the record of a key that has no sandbox into what must outlive it: the attempts that were given up, whose
    /// sandboxes may still come, and the one that is to be replaced. `None` when there is nothing of it.
    #[must_use]
    pub fn into_tombstone(mut self) -> Option<Self> {
        self.forget_old_attempts();
        self.id = None;
        self.enter(Phase::Destroying);
        (!self.abandoned.is_empty() || self.replaces.is_some()).then_some(self)
    }

    /// Tells whether this key has no sandbox, and the record is kept for what must outlive it alone.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.phase == Phase::Destroying && self.id.is_none()
    }

    /// Makes the error of a store or remove that found another version than this record's; for registries.
    #[must_use]
    pub fn changed(&self, stored: Option<u64>) -> Error {
        Error::new(ErrorKind::Stale, "the record of this key was changed by another contender")
            .with_reason("record_changed")
            .with_context("owner", &self.owner)
            .with_context("key", &self.key)
            .with_context("expected_version", self.version)
            .with_context("stored_version", stored.unwrap_or(0))
    }

    /// Tells whether this attempt was given up.
    #[must_use]
    pub fn has_abandoned(&self, attempt: &Attempt) -> bool {
        self.abandoned.iter().any(|abandoned| abandoned.attempt == *attempt)
    }
}

/// The reason of the error of a holder that was overtaken.
const REASON_LEASE_LOST: &str = "lease_lost";

/// The right to change one record, held by one contender at a time.
///
/// Dropping it gives the right back, at once where the store can and after its expiry otherwise.
pub struct Lease {
    /// Grows with every holder: a store under an overtaken number is refused.
    pub fence: u64,
    /// When others may take it over, by this process's clock; `None` when it is held for as long as the process lives.
    pub valid_until: Option<Instant>,
    hold: Box<dyn Any + Send + Sync>,
}

impl Lease {
    /// Puts a lease together; for registries. Dropping `hold` gives it back.
    #[must_use]
    pub fn new(fence: u64, valid_until: Option<Instant>, hold: Box<dyn Any + Send + Sync>) -> Self {
        Self { fence, valid_until, hold }
    }

    /// Makes the error of a holder whose lease was given to another contender; for registries.
    #[must_use]
    pub fn lost(owner: &Owner, key: &Key) -> Error {
        Error::new(ErrorKind::Stale, "another contender has taken the lease of this key over")
            .with_reason(REASON_LEASE_LOST)
            .with_context("owner", owner)
            .with_context("key", key)
    }

    /// Says whether an error is the one of such a holder.
    pub(crate) fn is_lost(error: &Error) -> bool {
        error.kind() == ErrorKind::Stale && error.reason() == Some(REASON_LEASE_LOST)
    }

    /// Returns what the registry put in.
    #[must_use]
    pub fn hold(&self) -> &(dyn Any + Send + Sync) {
        &*self.hold
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("fence", &self.fence).field("valid_until", &self.valid_until).finish()
    }
}

/// Where records and leases are kept.
///
/// # Errors
/// Every method: [`ErrorKind::Unavailable`] when the store cannot be reached, and [`ErrorKind::Unexpected`] for a
/// record that cannot be read; never "none" in their place.
#[async_trait]
pub trait Registry: fmt::Debug + Send + Sync + 'static {
    /// Says who can meet in this registry.
    fn scope(&self) -> RegistryScope;

    /// Reads the record of a key.
    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>>;

    /// Stores a record if the stored one still has `record.version` (0: none is stored) and no later lease was given
    /// than `lease`. Durable when it returns. Returns the record as stored, with its new version and fence.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] with reason `record_changed` or `lease_lost`; nothing was stored.
    async fn store(&self, record: Record, lease: &Lease) -> Result<Record>;

    /// Removes a record under the same conditions as [`Registry::store`].
    ///
    /// # Errors
    /// As [`Registry::store`].
    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()>;

    /// Takes the lease of a key for `ttl`, or returns `None` while another contender holds it.
    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>>;

    /// Prolongs a lease to `ttl` from now.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] with reason `lease_lost` when another contender has taken it over.
    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()>;

    /// Streams the matching records, sorted by owner and key, a page at a time where the store is large; a partial list
    /// ends with an error. Each record is as it was when its page was read.
    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>>;
}

/// Shorthands over [`Registry`]; not to be implemented.
pub trait RegistryExt: Registry {
    /// Lists the matching records into memory.
    ///
    /// # Errors
    /// As [`Registry::list`].
    fn list_all(&self, filter: RecordFilter) -> impl Future<Output = Result<Vec<Record>>> + Send {
        async move { self.list(filter).await?.collect().await }
    }
}

impl<R: Registry + ?Sized> RegistryExt for R {}
