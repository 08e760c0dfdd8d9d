//! Whose setup is done is not set up again, and somebody is told of every sandbox that it was created.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::FakeProvider;
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Error, ErrorKind, How, Key, Lease, MemoryRegistry, Owner, Record,
    RecordFilter, Registry, RegistryScope, Result, ResultStream, SandboxSpec, Sandboxes, SetupState,
};

/// A registry that all hosts share, and that refuses one write when it is told so.
#[derive(Clone, Debug, Default)]
struct Refusing {
    registry: MemoryRegistry,
    refuses: Arc<AtomicBool>,
}

#[async_trait]
impl Registry for Refusing {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Cluster
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        self.registry.load(owner, key).await
    }

    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        if self.refuses.swap(false, Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is down").retryable(None));
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

#[tokio::test]
async fn a_setup_whose_record_could_not_be_written_is_told_as_created_and_not_run_again() {
    let (provider, registry, runs) =
        (FakeProvider::new(), Refusing::default(), Arc::new(AtomicUsize::new(0)));
    let sandboxes = Sandboxes::new(Arc::new(provider)).with_registry(Arc::new(registry.clone()));
    let options = AcquireOptions::default().with_on_start({
        let runs = Arc::clone(&runs);
        move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            registry.refuses.store(true, Ordering::SeqCst);
            async { Ok(()) }
        }
    });
    let error = sandboxes.acquire("k", options.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let told = sandboxes.acquire("k", options.clone()).await.unwrap();
    assert_eq!(
        (told.outcome, told.facts.how, told.facts.setup),
        (AcquireOutcome::Created, How::Unfinished, SetupState::Done)
    );
    let next = sandboxes.acquire("k", options).await.unwrap();
    assert_eq!((next.outcome, runs.load(Ordering::SeqCst)), (AcquireOutcome::Connected, 1));
}

#[tokio::test]
async fn a_sandbox_that_was_made_elsewhere_is_set_up_once() {
    let (provider, runs) = (FakeProvider::new(), Arc::new(AtomicUsize::new(0)));
    let id = provider.make_untagged(SandboxSpec::default());
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        let runs = Arc::clone(&runs);
        let options = AcquireOptions::default().with_provider_id(id.clone()).with_on_start(move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        });
        // A host that knows of the sandbox what its caller says, and what is inside.
        let acquired = Sandboxes::new(Arc::new(provider.clone())).acquire("k", options).await.unwrap();
        outcomes.push(acquired.outcome);
    }
    assert_eq!(outcomes, [AcquireOutcome::Created, AcquireOutcome::Connected, AcquireOutcome::Connected]);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
