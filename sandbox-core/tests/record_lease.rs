//! What a holder does under the lease of a record ends before another contender can have it.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, Error, ErrorKind, Key, Lease, MemoryRegistry, Outcome, Owner, PersistHook, Phase, Record,
    RecordFilter, Registry, RegistryScope, RestoreReason, RestoreReport, Result, ResultStream, Sandbox,
    SandboxHandle as _, SandboxHandleExt as _, SandboxState, Sandboxes,
};

const LEASE: Duration = Duration::from_secs(6);

/// A registry that one host reaches over a network that fails: renewals do while `down` says so.
#[derive(Clone, Debug)]
struct Reached {
    registry: MemoryRegistry,
    down: Arc<AtomicBool>,
}

#[async_trait]
impl Registry for Reached {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Cluster
    }
    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        self.registry.load(owner, key).await
    }
    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        self.registry.store(record, lease).await
    }
    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        self.registry.remove(record, lease).await
    }
    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        self.registry.try_lease(owner, key, ttl).await
    }
    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the database is down").retryable(None));
        }
        self.registry.renew(owner, key, lease, ttl).await
    }
    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        self.registry.list(filter).await
    }
}

struct Stage {
    provider: FakeProvider,
    registry: MemoryRegistry,
}

impl Stage {
    fn new() -> Self {
        Self { provider: FakeProvider::new(), registry: MemoryRegistry::new() }
    }

    /// A host, as another machine would be one, and what cuts it off from the registry.
    fn host(&self) -> (Sandboxes, Arc<AtomicBool>) {
        let down = Arc::new(AtomicBool::new(false));
        let reached = Reached { registry: self.registry.clone(), down: Arc::clone(&down) };
        let host = Sandboxes::new(Arc::new(self.provider.clone()))
            .with_registry(Arc::new(reached))
            .with_record_lease(LEASE);
        (host, down)
    }

    async fn record(&self) -> Record {
        self.registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap().unwrap()
    }
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

/// Work of a minute, told by name, second by second.
fn working(name: &'static str, told: &Arc<Mutex<Vec<&'static str>>>) -> AcquireOptions {
    let told = Arc::clone(told);
    options().with_on_start(move |start| {
        let told = Arc::clone(&told);
        async move {
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                start.sandbox.exists("/f").await?;
                told.lock().unwrap().push(name);
            }
            Ok(())
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_start_hook_whose_lease_cannot_be_renewed_ends_before_another_host_runs_it() {
    let stage = Stage::new();
    let ((one, down), (two, _)) = (stage.host(), stage.host());
    let told = Arc::default();
    let (first, second) = (working("one", &told), working("two", &told));
    let first = tokio::spawn(async move { one.acquire("k", first).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    down.store(true, Ordering::SeqCst);
    let second = tokio::spawn(async move { two.acquire("k", second).await });
    let error = first.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some("lease_lost")), "{error}");
    second.await.unwrap().unwrap();
    let told = told.lock().unwrap();
    let turn = told.iter().position(|name| *name == "two").unwrap();
    assert!(told[turn..].iter().all(|name| *name == "two"), "both at once: {told:?}");
    assert_eq!(told.len() - turn, 60, "what the first did was not taken for the whole");
}

#[tokio::test(start_paused = true)]
async fn the_value_of_a_hook_whose_lease_was_lost_sends_nothing() {
    let stage = Stage::new();
    let (host, down) = stage.host();
    let kept = Arc::new(Mutex::new(None));
    let hook = options().with_on_start({
        let kept = Arc::clone(&kept);
        move |start| {
            down.store(true, Ordering::SeqCst);
            *kept.lock().unwrap() = Some(start.sandbox);
            std::future::pending()
        }
    });
    assert_eq!(host.acquire("k", hook).await.unwrap_err().reason(), Some("lease_lost"));
    let kept: Sandbox = kept.lock().unwrap().take().unwrap();
    let sent = stage.provider.counts();
    assert_eq!(kept.exists("/f").await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(stage.provider.counts(), sent);
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_for_a_while_end_no_hook() {
    let stage = Stage::new();
    let (host, down) = stage.host();
    let told = Arc::default();
    let options = working("one", &told);
    let acquire = tokio::spawn(async move { host.acquire("k", options).await });
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        down.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2500)).await;
        down.store(false, Ordering::SeqCst);
    }
    acquire.await.unwrap().unwrap();
    assert_eq!(told.lock().unwrap().len(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_gets_no_answer_ends_with_its_lease_and_freezes_nobody_later() {
    for by_key in [false, true] {
        let stage = Stage::new();
        let ((one, _), (two, _)) = (stage.host(), stage.host());
        let sandbox = one.acquire("k", options()).await.unwrap().sandbox;
        let gate = Gate::new();
        stage.provider.script(Verb::Pause, Fault::HoldBefore(gate.clone()));
        let pause = tokio::spawn(async move {
            if by_key { one.stop("k").await.map(drop) } else { sandbox.pause().await.map(drop) }
        });
        gate.arrived(1).await;
        let next = two.acquire("k", options()).await.unwrap().sandbox;
        gate.open();
        let error = pause.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown), "{error}");
        next.exists("/f").await.unwrap();
        let state = stage.provider.alive()[0].state;
        assert_eq!((state, stage.record().await.phase), (SandboxState::Running, Phase::Ready));
    }
}

#[tokio::test(start_paused = true)]
async fn a_destroy_or_resume_that_gets_no_answer_ends_with_its_lease() {
    for verb in [Verb::Destroy, Verb::Connect] {
        let stage = Stage::new();
        let ((one, _), (two, _)) = (stage.host(), stage.host());
        let sandbox = one.acquire("k", options()).await.unwrap().sandbox;
        sandbox.pause().await.unwrap();
        stage.provider.script(verb, Fault::HangBefore);
        let began = tokio::time::Instant::now();
        let ended = match verb {
            Verb::Destroy => sandbox.destroy().await.map(drop),
            _ => sandbox.resume().await,
        };
        assert_eq!(ended.unwrap_err().outcome(), Outcome::Unknown);
        assert!(began.elapsed() < LEASE, "{:?}", began.elapsed());
        // Whoever comes next goes on from what is written down.
        let next = two.acquire("k", options()).await.unwrap().sandbox;
        assert_eq!(next.id() == sandbox.id(), verb == Verb::Connect);
        assert_eq!((stage.record().await.phase, stage.provider.alive().len()), (Phase::Ready, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_connect_gets_no_answer_ends_with_its_lease() {
    let stage = Stage::new();
    let ((one, _), (two, _)) = (stage.host(), stage.host());
    one.acquire("k", options()).await.unwrap().sandbox.pause().await.unwrap();
    stage.provider.script(Verb::Connect, Fault::HangBefore);
    let began = tokio::time::Instant::now();
    assert_eq!(one.acquire("k", options()).await.unwrap_err().outcome(), Outcome::Unknown);
    assert!(began.elapsed() < LEASE, "{:?}", began.elapsed());
    two.acquire("k", options()).await.unwrap().sandbox.exists("/f").await.unwrap();
    assert_eq!(stage.record().await.phase, Phase::Ready);
}

#[derive(Debug, Default)]
struct Saving(AtomicUsize);

#[async_trait]
impl PersistHook for Saving {
    async fn restore(&self, _: &Sandbox, _: RestoreReason) -> Result<RestoreReport> {
        Ok(RestoreReport::default())
    }
    async fn before_pause(&self, _: &Sandbox) -> Result<()> {
        tokio::time::sleep(LEASE * 4).await;
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    async fn before_destroy(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }
    async fn tick(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_save_before_a_pause_may_take_longer_than_a_lease_and_ends_with_one_that_is_lost() {
    let stage = Stage::new();
    let (host, down) = stage.host();
    let saving = Arc::new(Saving::default());
    let host = host.with_persist(saving.clone());
    let sandbox = host.acquire("k", options()).await.unwrap().sandbox;
    sandbox.pause().await.unwrap();
    sandbox.resume().await.unwrap();
    down.store(true, Ordering::SeqCst);
    assert_eq!(sandbox.pause().await.unwrap_err().reason(), Some("lease_lost"));
    assert_eq!((saving.0.load(Ordering::SeqCst), stage.provider.counts().of(Verb::Pause)), (1, 1));
    assert_eq!(stage.provider.alive()[0].state, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_a_young_sandbox_is_waited_for() {
    let visible = LEASE * 5;
    let by_key = FakeOptions::default().with_list_visibility(visible);
    for (shape, is_recorded) in [(by_key.clone(), false), (by_key.with_hidden_new_ids(), true)] {
        let mut stage = Stage::new();
        stage.provider = FakeProvider::with_options(shape);
        let ((one, _), (two, _)) = (stage.host(), stage.host());
        let maker = match is_recorded {
            true => one.clone(),
            false => Sandboxes::new(Arc::new(stage.provider.clone())),
        };
        let made = maker.acquire("k", options()).await.unwrap().sandbox;
        // Of two that wait for it none takes the key from the other.
        let (one, two) = tokio::join!(one.acquire("k", options()), two.acquire("k", options()));
        for acquired in [one.unwrap(), two.unwrap()] {
            assert_eq!(acquired.sandbox.provider_id(), made.provider_id());
        }
        assert_eq!(stage.provider.counts().created, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_end_is_one_of_a_day() {
    let sandboxes = Sandboxes::new(Arc::new(FakeProvider::new())).with_record_lease(Duration::MAX);
    let sandbox = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    sandbox.pause().await.unwrap();
    sandbox.destroy().await.unwrap();
}
