//! What every acquisition and every sandbox of one host shares.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use super::flight::{self, Flights};
use super::{
    AcquireOptions, Acquired, DEFAULT_ACQUIRE_DEADLINE, DEFAULT_RECORD_LEASE, REASON_BUSY, REASON_MOVED,
};
use crate::events::{DEFAULT_EVENT_CAPACITY, Event, EventKind, Teller};
use crate::fate::Fates;
use crate::hooks::{DEFAULT_HOOK_DEADLINE, Hooks, PersistHook};
use crate::lifecycle::{self, StopOutcome};
use crate::providers::Providers;
use crate::registry::{Lease, MemoryRegistry, Record, Registry, RegistryScope};
use crate::{
    DestroyOutcome, Error, ErrorKind, Generation, Key, Owner, Result, SandboxId, SandboxInfo,
    SandboxProvider, SandboxSpec,
};

/// Pauses between two looks at a lease that another contender holds: the first, and the longest.
const LEASE_POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// The reason of the error of a key whose sandbox is at another provider.
const OTHER_PROVIDER: &str = "provider";

#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) owner: Owner,
    pub(crate) provider: Arc<dyn SandboxProvider>,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    pub(crate) persist: Option<Arc<dyn PersistHook>>,
    pub(crate) hook_deadline: Duration,
    pub(crate) wait_limit: Duration,
    /// How long a lease on a record is taken for.
    pub(crate) record_lease: Duration,
    pub(super) providers: Option<Providers>,
    pub(super) event_capacity: usize,
    pub(crate) fates: Arc<Fates>,
    pub(super) flights: Arc<Flights>,
    /// Made when somebody listens or something happens.
    teller: Arc<OnceLock<Teller>>,
    /// The same host at other providers, by name.
    elsewhere: Mutex<HashMap<String, Arc<Home>>>,
}

impl Home {
    pub(super) fn new(provider: Arc<dyn SandboxProvider>) -> Self {
        Self {
            owner: Owner::default(),
            provider,
            registry: Arc::new(MemoryRegistry::new()),
            hooks: None,
            persist: None,
            hook_deadline: DEFAULT_HOOK_DEADLINE,
            wait_limit: DEFAULT_ACQUIRE_DEADLINE,
            record_lease: DEFAULT_RECORD_LEASE,
            providers: None,
            event_capacity: DEFAULT_EVENT_CAPACITY,
            fates: Arc::default(),
            flights: Arc::default(),
            teller: Arc::default(),
            elsewhere: Mutex::default(),
        }
    }

    /// A host like this one that shares nothing with it but what it was given.
    pub(super) fn rebuilt(&self) -> Self {
        Self {
            owner: self.owner.clone(),
            registry: Arc::clone(&self.registry),
            hooks: self.hooks.clone(),
            persist: self.persist.clone(),
            hook_deadline: self.hook_deadline,
            wait_limit: self.wait_limit,
            record_lease: self.record_lease,
            providers: self.providers.clone(),
            event_capacity: self.event_capacity,
            ..Self::new(Arc::clone(&self.provider))
        }
    }

    /// The longest that a create call is waited for: it ends before the lease that covers it.
    pub(crate) fn call_limit(&self) -> Duration {
        self.record_lease * 5 / 6
    }

    /// Whether every host that uses this owner's keys meets the others in the registry.
    pub(crate) fn spans_hosts(&self) -> bool {
        self.registry.scope() > RegistryScope::Process
    }

    /// Whether what a create has made is to be compared with what other hosts may have made at the same time.
    pub(crate) fn must_compare(&self) -> bool {
        !self.spans_hosts() && self.provider.capabilities().tags
    }

    pub(super) fn teller(&self) -> &Teller {
        self.teller.get_or_init(|| Teller::new(self.event_capacity))
    }

    /// Tells the hooks and every listener what happened.
    pub(crate) fn tell(
        &self,
        hooks: Option<&Arc<dyn Hooks>>,
        key: &Key,
        id: Option<&SandboxId>,
        kind: EventKind,
    ) {
        let event = Event {
            owner: self.owner.clone(),
            key: key.clone(),
            id: id.cloned(),
            at: SystemTime::now(),
            kind,
        };
        self.teller().tell(hooks, event);
    }

    pub(crate) async fn acquire(self: &Arc<Self>, key: Key, options: AcquireOptions) -> Result<Acquired> {
        flight::acquire(Arc::clone(self), key, options).await
    }

    pub(crate) async fn find(
        self: &Arc<Self>,
        key: &Key,
        wanted: Option<&SandboxId>,
    ) -> Result<Option<SandboxInfo>> {
        self.routed(key, |home| async move { lifecycle::find(&home, key, wanted).await }).await
    }

    pub(crate) async fn stop(
        self: &Arc<Self>,
        key: &Key,
        wanted: Option<&SandboxId>,
        hooks: Option<&Arc<dyn Hooks>>,
    ) -> Result<StopOutcome> {
        flight::refuse_inside(self, key, "stop")?;
        self.routed(key, |home| async move { lifecycle::stop(&home, key, wanted, hooks).await }).await
    }

    pub(crate) async fn destroy(
        self: &Arc<Self>,
        key: &Key,
        wanted: Option<&SandboxId>,
        hooks: Option<&Arc<dyn Hooks>>,
    ) -> Result<DestroyOutcome> {
        flight::refuse_inside(self, key, "destroy")?;
        self.routed(key, |home| async move { lifecycle::destroy(&home, key, wanted, hooks).await }).await
    }

    pub(crate) async fn confirm_move(self: &Arc<Self>, key: &Key) -> Result<bool> {
        self.routed(key, |home| async move { lifecycle::confirm_move(&home, key).await }).await
    }

    /// Runs a call on a key at the provider that its record names, which is nearly always this host's own.
    pub(super) async fn routed<T, F>(self: &Arc<Self>, key: &Key, call: impl Fn(Arc<Self>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match call(Arc::clone(self)).await {
            Err(error) if error.reason() == Some(OTHER_PROVIDER) && self.providers.is_some() => {
                call(self.elsewhere(key, error).await?).await
            }
            answer => answer,
        }
    }

    /// This host at the provider of a key's record.
    async fn elsewhere(&self, key: &Key, error: Error) -> Result<Arc<Self>> {
        let Some(providers) = &self.providers else { return Err(error) };
        let Some(record) = self.registry.load(&self.owner, key).await? else { return Err(error) };
        let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = elsewhere.get(&record.provider) {
            return Ok(Arc::clone(home));
        }
        let provider = providers.from_name(&record.provider).map_err(|cause| error.with_source(cause))?;
        let home = Arc::new(Self {
            provider,
            providers: None,
            fates: Arc::clone(&self.fates),
            flights: Arc::clone(&self.flights),
            teller: Arc::clone(&self.teller),
            ..self.rebuilt()
        });
        elsewhere.insert(record.provider, Arc::clone(&home));
        Ok(home)
    }

    /// Takes the lease of a key, waiting while another contender holds it; `look` may end the wait early.
    pub(super) async fn lease<T, F>(&self, key: &Key, mut look: impl FnMut() -> F) -> Result<Leased<T>>
    where
        F: Future<Output = Result<Option<T>>> + Send,
    {
        let mut pause = LEASE_POLL.0;
        loop {
            if let Some(lease) = self.registry.try_lease(&self.owner, key, self.record_lease).await? {
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
        tokio::time::timeout(self.wait_limit, lease).await.unwrap_or_else(|_| Err(self.busy(key, operation)))
    }

    /// The error of a wait for others that has reached the host's limit.
    pub(crate) fn busy(&self, key: &Key, operation: &'static str) -> Error {
        let limit = self.wait_limit;
        Error::new(
            ErrorKind::Timeout,
            format!(
                "another host or call was at work on this key for {limit:?}; nothing was done, try again"
            ),
        )
        .with_reason(REASON_BUSY)
        .at(self.provider.name(), operation)
        .with_context("key", key)
        .retryable(None)
    }

    /// A record, still to be stored, for a sandbox that has none here: another registry's, or one made elsewhere.
    /// `over` is the one that it takes the place of.
    pub(crate) fn record_of(
        &self,
        key: &Key,
        info: &SandboxInfo,
        spec: SandboxSpec,
        over: Option<&Record>,
    ) -> Result<Record> {
        let (provider, fingerprint) = (self.provider.name(), self.provider.fingerprint());
        let mut record = Record::intent(self.owner.clone(), key.clone(), provider, fingerprint, spec)?;
        record.id = Some(info.id.clone());
        match &info.tags {
            Some(tags) => {
                record.generation = tags.generation.clone();
                record.attempt = tags.attempt.clone();
                // All that it says of how it was made; one of another maker has templates of its own.
                record.spec.template.clone_from(&info.template);
            }
            None => record.generation = Generation::of_untagged(&info.id),
        }
        if let Some(over) = over {
            record.version = over.version;
            record.abandoned.clone_from(&over.abandoned);
        }
        Ok(record)
    }

    /// Takes what the provider does not know for absent, but only where it was made under the credentials and at the endpoint
    /// that this host asks under.
    ///
    /// # Errors
    /// [`ErrorKind::Ownership`] with reason [`REASON_MOVED`].
    pub(crate) fn check_absence(&self, record: &Record, operation: &'static str) -> Result<()> {
        let here = self.provider.fingerprint();
        if record.fingerprint == here {
            return Ok(());
        }
        let mut error = Error::new(
            ErrorKind::Ownership,
            "the sandbox was made under other credentials or at another endpoint, where it may still exist; go back to those, or \
             confirm the move",
        )
        .with_reason(REASON_MOVED)
        .at(self.provider.name(), operation)
        .with_context("key", &record.key)
        .with_context("made_under", &record.fingerprint)
        .with_context("asked_under", here);
        if let Some(id) = &record.id {
            error = error.with_context("id", id);
        }
        Err(error)
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
            .with_reason(OTHER_PROVIDER)
            .with_context("key", key)),
            _ => Ok(record),
        }
    }
}

/// The end of a wait for a lease.
pub(super) enum Leased<T> {
    Lease(Lease),
    Found(T),
}
