//! What a create makes late is one key's sandbox or nobody's: who may end it, and who may not have it any more.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    Abandoned, AcquireOptions, AcquireOutcome, Attempt, DestroyOutcome, Error, ErrorKind, How, Key, Lease,
    MemoryRegistry, Outcome, Owner, Phase, Record, RecordFilter, Registry, RegistryScope, Result,
    ResultStream, SandboxSpec, Sandboxes,
};

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn key() -> Key {
    Key::new("k").unwrap()
}

async fn record(registry: &MemoryRegistry) -> Option<Record> {
    registry.load(&Owner::default(), &key()).await.unwrap()
}

/// A registry that all hosts share; this host's stores of a sandbox that is ready wait at a gate.
#[derive(Debug)]
struct Shared {
    registry: MemoryRegistry,
    gate: Option<Gate>,
}

#[async_trait]
impl Registry for Shared {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Cluster
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        self.registry.load(owner, key).await
    }

    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        if let Some(gate) = self.gate.as_ref().filter(|_| record.phase == Phase::Ready) {
            gate.pass().await;
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
        self.registry.renew(owner, key, lease, ttl).await
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        self.registry.list(filter).await
    }
}

fn host(provider: &FakeProvider, registry: &MemoryRegistry) -> Sandboxes {
    held(provider, registry, None)
}

fn held(provider: &FakeProvider, registry: &MemoryRegistry, gate: Option<Gate>) -> Sandboxes {
    let registry = Shared { registry: registry.clone(), gate };
    Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry))
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_nothing_about_an_earlier_send_of_the_same_attempt() {
    let provider = FakeProvider::with_options(FakeOptions::default().with_idempotent_create());
    let registry = MemoryRegistry::new();
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(60)));
    let busy = Error::new(ErrorKind::RateLimited, "slow down").retryable(None);
    provider.script(Verb::Create, Fault::Before(busy));
    let impatient = options().with_call_deadline(Duration::from_secs(1));
    let error = host(&provider, &registry).acquire("k", impatient).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::RateLimited, Outcome::Unknown));
    assert_eq!(record(&registry).await.unwrap().phase, Phase::Creating);

    let acquired = host(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!(acquired.outcome, AcquireOutcome::Created);
    // The first send arrives at last.
    tokio::time::sleep(Duration::from_secs(600)).await;
    let alive: Vec<_> = provider.alive().into_iter().map(|info| info.id).collect();
    assert_eq!(alive, [acquired.sandbox.provider_id().unwrap().clone()]);
}

#[tokio::test(start_paused = true)]
async fn a_late_creator_gives_its_attempt_up_before_it_ends_what_it_made() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    let asleep = Gate::new();
    let late = tokio::spawn({
        let sandboxes = held(&provider, &registry, Some(asleep.clone()));
        async move { sandboxes.acquire("k", options()).await }
    });
    asleep.arrived(1).await;
    // Its lease runs out, and the record of its create is lost.
    let lease = loop {
        let ttl = Duration::from_secs(30);
        match registry.try_lease(&Owner::default(), &key(), ttl).await.unwrap() {
            Some(lease) => break lease,
            None => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    };
    registry.remove(&record(&registry).await.unwrap(), &lease).await.unwrap();
    drop(lease);

    let end = Gate::new();
    provider.script(Verb::Destroy, Fault::HoldBefore(end.clone()));
    asleep.open();
    end.arrived(1).await;
    // It is about to be destroyed: nobody takes it for the key's any more.
    let mine = host(&provider, &registry).acquire("k", options()).await.unwrap();
    end.open();
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    let alive: Vec<_> = provider.alive().into_iter().map(|info| info.id).collect();
    assert_eq!(alive, [mine.sandbox.provider_id().unwrap().clone()]);
}

#[tokio::test(start_paused = true)]
async fn a_destroy_of_a_sandbox_without_a_record_is_written_down_before_it_is_sent() {
    for by_key in [true, false] {
        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
        let sandboxes = host(&provider, &registry);
        let sandbox = sandboxes.acquire("k", options()).await.unwrap().sandbox;
        let lease = registry.try_lease(&Owner::default(), &key(), Duration::from_secs(30)).await.unwrap();
        registry.remove(&record(&registry).await.unwrap(), &lease.unwrap()).await.unwrap();

        let gate = Gate::new();
        provider.script(Verb::Destroy, Fault::HoldBefore(gate.clone()));
        let id = sandbox.provider_id().cloned();
        let ending = tokio::spawn(async move {
            match by_key {
                true => sandboxes.destroy("k").await,
                false => sandbox.destroy().await,
            }
        });
        gate.arrived(1).await;
        let open = record(&registry).await.unwrap();
        assert_eq!((open.phase, open.id), (Phase::Destroying, id), "by key: {by_key}");
        gate.open();
        assert_eq!(ending.await.unwrap().unwrap(), DestroyOutcome::Destroyed);
        assert_eq!((record(&registry).await, provider.alive().len()), (None, 0), "by key: {by_key}");
    }
}

#[test]
fn an_attempt_that_a_clock_ahead_has_dated_is_not_forgotten() {
    let spec = SandboxSpec::default();
    let mut record = Record::intent(Owner::default(), key(), "fake", String::new(), spec).unwrap();
    let attempt = Attempt::random().unwrap();
    let at = SystemTime::now() + Duration::from_secs(3600);
    record.abandoned.push(Abandoned { attempt: attempt.clone(), at });
    record.abandon();
    assert!(record.has_abandoned(&attempt));
    assert!(record.into_tombstone().unwrap().has_abandoned(&attempt));
}

#[tokio::test(start_paused = true)]
async fn a_creator_that_slept_leaves_the_next_sandbox_of_its_key_to_its_record() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    let old = host(&provider, &registry).acquire("k", options()).await.unwrap().sandbox;
    provider.vanish(old.provider_id().unwrap());
    let asleep = Gate::new();
    let late = tokio::spawn({
        let sandboxes = held(&provider, &registry, Some(asleep.clone()));
        async move { sandboxes.acquire("k", options()).await }
    });
    asleep.arrived(1).await;
    // Versions of the record begin anew after a destroy, and come by the one that the sleeper knows.
    host(&provider, &registry).destroy("k").await.unwrap();
    let mine = host(&provider, &registry).acquire("k", options()).await.unwrap().sandbox;
    asleep.open();
    late.await.unwrap().unwrap_err();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let next = host(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!(next.sandbox.provider_id(), mine.provider_id());
    assert_eq!((next.outcome, provider.alive().len()), (AcquireOutcome::Connected, 1));
}

#[tokio::test(start_paused = true)]
async fn a_create_that_is_refused_as_another_one_of_its_attempt_has_made_a_sandbox() {
    let visible = Duration::from_secs(10);
    let shape = FakeOptions::default().with_idempotent_create().with_list_visibility(visible);
    let (provider, registry) = (FakeProvider::with_options(shape), MemoryRegistry::new());
    provider.script(Verb::Create, Fault::reset_after());
    let mismatch = Error::new(ErrorKind::Conflict, "the key was used with another body");
    provider.script_always(Verb::Create, Fault::Before(mismatch));
    let acquired = host(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!((acquired.facts.how, provider.alive().len()), (How::Adopted, 1));
}

#[tokio::test]
async fn a_call_deadline_of_zero_is_refused_before_anything_is_written() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    let none = options().with_call_deadline(Duration::ZERO);
    let error = host(&provider, &registry).acquire("k", none).await.unwrap_err();
    assert_eq!((error.kind(), record(&registry).await), (ErrorKind::InvalidArgument, None));
}
