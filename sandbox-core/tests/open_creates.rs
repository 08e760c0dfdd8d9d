//! A create whose answer is lost, or whose sender is overtaken: there is still one sandbox of its key.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, ErrorKind, How, Key, Lease, MemoryRegistry, OnSpecConflict, Outcome,
    Owner, Phase, ProcessSpec, Record, RecordFilter, Registry, RegistryScope, Result, ResultStream,
    SandboxHandle as _, SandboxHandleExt as _, SandboxSpec, Sandboxes,
};
use tokio::sync::Semaphore;

fn host(provider: &FakeProvider) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone()))
}

fn host_with(provider: &FakeProvider, registry: &MemoryRegistry) -> Sandboxes {
    host(provider).with_registry(Arc::new(registry.clone()))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

#[tokio::test(start_paused = true)]
async fn a_lost_create_answer_is_settled_into_the_same_sandbox() {
    for idempotent in [false, true] {
        let shape =
            if idempotent { FakeOptions::default().with_idempotent_create() } else { FakeOptions::default() };
        let provider = FakeProvider::with_options(shape);
        provider.script(Verb::Create, Fault::reset_after());
        let acquired = host(&provider).acquire("k", options()).await.unwrap();
        assert_eq!((acquired.outcome, &acquired.facts.how), (AcquireOutcome::Created, &How::Adopted));
        assert_eq!((provider.counts().created, provider.alive().len()), (1, 1));
        acquired.sandbox.shell("true").await.ok();
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_that_commits_late_is_still_one_sandbox() {
    let provider = FakeProvider::new();
    // It takes effect after the call was given up, and before the settle window ends.
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(62)));
    let acquired = host(&provider).acquire("k", options()).await.unwrap();
    assert_eq!(acquired.facts.how, How::Adopted);
    assert_eq!((provider.counts().created, provider.alive().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_proven_absence_is_an_error_that_says_nothing_was_made() {
    let provider = FakeProvider::new();
    provider.script(Verb::Create, Fault::HangBefore);
    let sandboxes = host(&provider);
    let error = sandboxes.acquire("k", options()).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotStarted);
    assert_eq!(provider.counts().created, 0);
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, provider.counts().created), (AcquireOutcome::Created, 1));
}

#[tokio::test(start_paused = true)]
async fn a_create_that_cannot_be_settled_in_time_is_outcome_unknown_and_settled_by_the_next_acquire() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    provider.script(Verb::Create, Fault::reset_after());
    provider.script_always(Verb::Find, Fault::refused());
    let sandboxes = host_with(&provider, &registry);
    // The first look by key is a find too: it must pass.
    provider.script_honest(Verb::Find, 1);
    let error = sandboxes.acquire("k", options()).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown));
    assert!(error.context().any(|(name, _)| name == "attempt"), "{error}");
    provider.script_clear(Verb::Find);
    // As another process would: nothing of the first host is left but the registry.
    let acquired = host_with(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, &acquired.facts.how), (AcquireOutcome::Created, &How::Adopted));
    assert_eq!((provider.counts().created, provider.alive().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_acquire_leaves_its_create_to_end_and_be_recorded() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldAfter(gate.clone()));
    let sandboxes = host_with(&provider, &registry);
    let caller = tokio::spawn({
        let sandboxes = sandboxes.clone();
        async move { sandboxes.acquire("k", options()).await }
    });
    gate.arrived(1).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    gate.open();
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, provider.counts().created), (AcquireOutcome::Created, 1));
    // Whoever comes first settles it: this acquire, or what goes on in the background.
    assert!(matches!(acquired.facts.how, How::Adopted | How::Unfinished));
}

/// A registry of a host that falls asleep at one point.
#[derive(Debug)]
struct Asleep {
    at: Nap,
    registry: MemoryRegistry,
    fell: Semaphore,
    wake: Semaphore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nap {
    /// Right before it writes that its sandbox is ready.
    Ready,
    /// Right after it renewed its lease.
    Renewed,
}

impl Asleep {
    fn new(registry: &MemoryRegistry) -> Self {
        let at = Nap::Ready;
        Self { at, registry: registry.clone(), fell: Semaphore::new(0), wake: Semaphore::new(0) }
    }

    fn over(registry: &MemoryRegistry) -> Arc<Self> {
        Arc::new(Self::new(registry))
    }

    async fn nap(&self) {
        self.fell.add_permits(1);
        self.wake.acquire().await.unwrap().forget();
    }
}

#[async_trait]
impl Registry for Asleep {
    fn scope(&self) -> RegistryScope {
        self.registry.scope()
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        self.registry.load(owner, key).await
    }

    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        if record.phase == Phase::Ready && self.at == Nap::Ready {
            self.nap().await;
        }
        self.registry.store(record, lease).await
    }

    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        self.registry.remove(record, lease).await
    }

    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        self.registry.try_lease(owner, key, ttl).await
    }

    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        self.registry.renew(owner, key, lease, ttl).await?;
        if self.at == Nap::Renewed {
            self.nap().await;
        }
        Ok(())
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        self.registry.list(filter).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_creator_that_was_overtaken_leaves_the_sandbox_to_who_took_it_over() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let asleep = Asleep::over(&registry);
    let late = tokio::spawn({
        let sandboxes = host(&provider).with_registry(asleep.clone());
        async move { sandboxes.acquire("k", options()).await }
    });
    asleep.fell.acquire().await.unwrap().forget();
    // The lease of the sleeper runs out, and another host settles its open create.
    let taken_over = host_with(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!(taken_over.facts.how, How::Adopted);
    asleep.wake.add_permits(1);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    assert!(taken_over.sandbox.exec(ProcessSpec::argv("true", [""; 0])).await.is_ok());
    let counts = provider.counts();
    assert_eq!((counts.created, counts.of(Verb::Destroy), provider.alive().len()), (1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_creator_that_was_given_up_destroys_what_it_made() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let asleep = Asleep::over(&registry);
    let late = tokio::spawn({
        let sandboxes = host(&provider).with_registry(asleep.clone());
        async move { sandboxes.acquire("k", options()).await }
    });
    asleep.fell.acquire().await.unwrap().forget();
    // Whoever takes over settles the create and then destroys the sandbox; the key gets another one.
    let other = host_with(&provider, &registry);
    other.acquire("k", options()).await.unwrap();
    other.destroy("k").await.unwrap();
    let second = other.acquire("k", options()).await.unwrap();
    // For what it stores of what it made, and for what it writes down before it destroys that.
    asleep.wake.add_permits(2);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(
        provider.alive().iter().map(|info| &info.id).collect::<Vec<_>>(),
        [second.sandbox.provider_id().unwrap()]
    );
}

#[tokio::test(start_paused = true)]
async fn a_create_that_was_given_up_is_known_after_a_destroy_and_its_late_sandbox_is_destroyed() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let sandboxes = host_with(&provider, &registry);
    // The provider breaks its bound: the create takes effect long after its absence counted as proven.
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(3600)));
    let error = sandboxes.acquire("k", options().with_deadline(Duration::from_secs(900))).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotStarted, "{error:?}");
    sandboxes.acquire("k", options()).await.unwrap();
    sandboxes.destroy("k").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(provider.alive().len(), 1, "the late one has come");
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, &acquired.facts.how), (AcquireOutcome::Created, &How::Fresh));
    assert_eq!(
        provider.alive().iter().map(|info| &info.id).collect::<Vec<_>>(),
        [acquired.sandbox.provider_id().unwrap()]
    );
}

#[tokio::test(start_paused = true)]
async fn an_open_create_of_another_spec_is_given_up_and_its_late_sandbox_is_destroyed() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let sandboxes = host_with(&provider, &registry);
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(3600)));
    let short = options().with_deadline(Duration::from_secs(30));
    sandboxes.acquire("k", short).await.unwrap_err();
    let other = AcquireOptions::new(SandboxSpec::new("other")).with_on_spec_conflict(OnSpecConflict::Replace);
    sandboxes.acquire("k", other).await.unwrap();
    sandboxes.destroy("k").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(provider.alive().len(), 1, "the late one has come");
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(acquired.facts.how, How::Fresh);
    assert_eq!(
        provider.alive().iter().map(|info| &info.id).collect::<Vec<_>>(),
        [acquired.sandbox.provider_id().unwrap()]
    );
}

#[tokio::test(start_paused = true)]
async fn an_open_create_whose_sandbox_has_ended_meanwhile_leads_to_a_new_one() {
    let provider = FakeProvider::with_options(FakeOptions::default().with_idempotent_create());
    let registry = MemoryRegistry::new();
    provider.script(Verb::Create, Fault::reset_after());
    provider.script_honest(Verb::Find, 1);
    provider.script_always(Verb::Find, Fault::refused());
    let short = options().with_deadline(Duration::from_secs(1));
    host_with(&provider, &registry).acquire("k", short).await.unwrap_err();
    provider.script_clear(Verb::Find);
    let ended = provider.alive()[0].id.clone();
    provider.vanish(&ended);
    let acquired = host_with(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, &acquired.facts.how), (AcquireOutcome::Created, &How::Fresh));
    assert_ne!(acquired.sandbox.id(), &ended);
    assert_eq!((provider.counts().created, provider.alive().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_creator_that_slept_past_its_lease_sends_nothing() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let asleep = Arc::new(Asleep { at: Nap::Renewed, ..Asleep::new(&registry) });
    let late = tokio::spawn({
        let sandboxes = host(&provider).with_registry(asleep.clone());
        async move { sandboxes.acquire("k", options()).await }
    });
    asleep.fell.acquire().await.unwrap().forget();
    // Whoever comes next waits until the lease has ended, proves that nothing was made, and makes one of its own.
    let patient = options().with_deadline(Duration::from_secs(900));
    let next = host_with(&provider, &registry).acquire("k", patient).await.unwrap();
    asleep.wake.add_permits(1);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!((provider.counts().of(Verb::Create), provider.alive().len()), (1, 1));
    assert_eq!(provider.alive()[0].id, *next.sandbox.id());
}

#[tokio::test(start_paused = true)]
async fn a_create_that_would_outlast_the_record_lease_is_given_up_before_it_ends() {
    let provider = FakeProvider::new();
    provider.script(Verb::Create, Fault::HangAfter);
    let begun = tokio::time::Instant::now();
    let sandboxes = host(&provider).with_record_lease(Duration::from_secs(6));
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.facts.how, provider.counts().created), (How::Adopted, 1));
    assert!(begun.elapsed() >= Duration::from_secs(5) && begun.elapsed() < Duration::from_secs(6));
}
