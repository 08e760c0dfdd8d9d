//! Every caller may leave at any moment: each verb is dropped after every number of steps, and what it left is counted at
//! the provider's side.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome,
    FindQuery, Key, Lease, ListFilter, MemoryRegistry, OnGone, Owner, PauseOptions, PauseOutcome, Record,
    RecordFilter, Registry, RegistryScope, Result, ResultStream, Sandbox, SandboxHandle,
    SandboxHandleExt as _, SandboxId, SandboxInfo, SandboxProvider, Sandboxes, StopOutcome,
};
use tokio::task::yield_now;

/// A provider and a registry that come to rest before and after each call: every call is two places to leave at.
#[derive(Clone, Debug)]
struct Stepping<T>(T);

#[async_trait]
impl SandboxProvider for Stepping<FakeProvider> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }
    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
        stepping(self.0.find(query)).await
    }
    async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection> {
        stepping(self.0.connect_opts(id, options)).await
    }
    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        stepping(self.0.create_opts(options)).await
    }
    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        stepping(self.0.list(filter)).await
    }
    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        stepping(self.0.pause_opts(id, options)).await
    }
    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        stepping(self.0.destroy(id)).await
    }
}

#[async_trait]
impl Registry for Stepping<MemoryRegistry> {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Machine
    }
    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        stepping(self.0.load(owner, key)).await
    }
    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        stepping(self.0.store(record, lease)).await
    }
    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        stepping(self.0.remove(record, lease)).await
    }
    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        stepping(self.0.try_lease(owner, key, ttl)).await
    }
    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        stepping(self.0.renew(owner, key, lease, ttl)).await
    }
    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        stepping(self.0.list(filter)).await
    }
}

async fn stepping<T>(call: impl Future<Output = T>) -> T {
    yield_now().await;
    let answer = call.await;
    yield_now().await;
    answer
}

/// One provider and one registry, and hosts over them.
struct Stage {
    provider: FakeProvider,
    registry: MemoryRegistry,
}

impl Stage {
    fn new(options: FakeOptions) -> Self {
        Self { provider: FakeProvider::with_options(options), registry: MemoryRegistry::new() }
    }

    /// A host, as another process would be one.
    fn host(&self) -> Sandboxes {
        Sandboxes::new(Arc::new(Stepping(self.provider.clone())))
            .with_registry(Arc::new(Stepping(self.registry.clone())))
    }

    fn alive(&self) -> Vec<SandboxId> {
        self.provider.alive().into_iter().map(|info| info.id).collect()
    }
}

fn options() -> AcquireOptions {
    AcquireOptions::default().with_on_start(|start| async move {
        start.sandbox.write_bytes("/home/user/ready", "yes").await.map(drop)
    })
}

/// Polls a call so often, with a turn for every task between two polls, and leaves it; what it answered, if it did.
async fn leave_after<T>(polls: usize, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    for _ in 0..polls {
        if let Poll::Ready(answer) = poll_once(call.as_mut()).await {
            return Some(answer);
        }
        yield_now().await;
    }
    None
}

async fn poll_once<T>(mut call: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await
}

/// What was left to end in the background has ended: on a paused clock, time passes only when nothing else can happen.
async fn quiet() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Runs a case with one more poll each time, until its call is done before it is left; returns how many it took.
async fn at_every_poll(case: impl AsyncFn(usize) -> bool) -> usize {
    for polls in 0..500 {
        if case(polls).await {
            assert!(polls > 5, "a call of {polls} polls has nowhere to be left");
            return polls;
        }
    }
    panic!("the call never ended");
}

/// After a caller has left, the next one gets a sandbox that is set up, and the provider has no other.
async fn assert_one_key_one_sandbox(stage: &Stage, made: usize) -> Sandbox {
    quiet().await;
    let next = stage.host().acquire("k", options()).await.unwrap().sandbox;
    assert_eq!(next.read_text("/home/user/ready").await.unwrap(), "yes");
    assert_eq!(stage.alive(), [next.id().clone()]);
    assert!(stage.provider.counts().created <= made, "{:?}", stage.provider.counts());
    next
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_left_at_any_poll_leaves_one_sandbox_at_most() {
    for idempotent in [false, true] {
        let polls = at_every_poll(async |polls| {
            let shape = FakeOptions::default();
            let stage = Stage::new(if idempotent { shape.with_idempotent_create() } else { shape });
            let host = stage.host();
            let done = leave_after(polls, host.acquire("k", options())).await.is_some();
            quiet().await;
            assert!(stage.alive().len() <= 1);
            assert_one_key_one_sandbox(&stage, 1).await;
            done
        })
        .await;
        assert!(polls > 15, "{polls}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_left_while_it_settles_leaves_one_sandbox() {
    at_every_poll(async |polls| {
        let stage = Stage::new(FakeOptions::default());
        stage.provider.script(Verb::Create, Fault::reset_after());
        let done = leave_after(polls, stage.host().acquire("k", options())).await.is_some();
        assert_one_key_one_sandbox(&stage, 1).await;
        done
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_left_at_any_poll_leaves_one_sandbox() {
    at_every_poll(async |polls| {
        let stage = Stage::new(FakeOptions::default());
        let old = stage.host().acquire("k", options()).await.unwrap().sandbox;
        stage.provider.vanish(old.id());
        let done = leave_after(polls, stage.host().acquire("k", options())).await.is_some();
        assert_one_key_one_sandbox(&stage, 2).await;
        done
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_resuming_acquire_that_is_left_at_any_poll_keeps_the_sandbox() {
    at_every_poll(async |polls| {
        let stage = Stage::new(FakeOptions::default());
        let old = stage.host().acquire("k", options()).await.unwrap().sandbox;
        old.pause().await.unwrap();
        let done = leave_after(polls, stage.host().acquire("k", options())).await.is_some();
        let next = assert_one_key_one_sandbox(&stage, 1).await;
        assert_eq!(next.id(), old.id());
        done
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_first_use_of_a_lazy_value_that_is_left_at_any_poll_leaves_the_value_usable() {
    at_every_poll(async |polls| {
        let stage = Stage::new(FakeOptions::default());
        let lazy = stage.host().lazy("k", options()).unwrap();
        let done = leave_after(polls, lazy.read_text("/home/user/ready")).await.is_some();
        quiet().await;
        assert_eq!(lazy.read_text("/home/user/ready").await.unwrap(), "yes");
        assert_eq!((stage.alive(), stage.provider.counts().created), (vec![lazy.id().clone()], 1));
        done
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_follows_its_key_and_is_left_at_any_poll_leaves_one_sandbox() {
    at_every_poll(async |polls| {
        let stage = Stage::new(FakeOptions::default());
        let following = options().with_on_gone(OnGone::Reacquire);
        let sandbox = stage.host().acquire("k", following).await.unwrap().sandbox;
        stage.provider.vanish(sandbox.id());
        let done = leave_after(polls, sandbox.read_text("/home/user/ready")).await.is_some();
        quiet().await;
        assert_eq!(sandbox.read_text("/home/user/ready").await.unwrap(), "yes");
        assert_eq!((stage.alive(), stage.provider.counts().created), (vec![sandbox.id().clone()], 2));
        done
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_or_stop_that_is_left_at_any_poll_keeps_the_sandbox_usable() {
    for stops in [false, true] {
        at_every_poll(async |polls| {
            let stage = Stage::new(FakeOptions::default());
            let sandbox = stage.host().acquire("k", options()).await.unwrap().sandbox;
            let done = if stops {
                leave_after(polls, sandbox.stop()).await.is_some()
            } else {
                leave_after(polls, sandbox.pause()).await.is_some()
            };
            assert_eq!(sandbox.read_text("/home/user/ready").await.unwrap(), "yes");
            assert_eq!(assert_one_key_one_sandbox(&stage, 1).await.id(), sandbox.id());
            done
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_is_left_at_any_poll_is_made_up_for_by_the_next_call() {
    at_every_poll(async |polls| {
        let stage = Stage::new(FakeOptions::default());
        let sandbox = stage.host().acquire("k", options()).await.unwrap().sandbox;
        sandbox.pause().await.unwrap();
        let done = leave_after(polls, sandbox.resume()).await.is_some();
        assert_eq!(sandbox.read_text("/home/user/ready").await.unwrap(), "yes");
        assert_eq!(assert_one_key_one_sandbox(&stage, 1).await.id(), sandbox.id());
        done
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_by_key_that_is_left_at_any_poll_keeps_the_sandbox() {
    at_every_poll(async |polls| {
        let stage = Stage::new(FakeOptions::default());
        let sandbox = stage.host().acquire("k", options()).await.unwrap().sandbox;
        let done = leave_after(polls, stage.host().stop("k")).await.is_some();
        assert_ne!(stage.host().stop("k").await.unwrap(), StopOutcome::NoSandbox);
        assert_eq!(assert_one_key_one_sandbox(&stage, 1).await.id(), sandbox.id());
        done
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_destroy_that_is_left_at_any_poll_destroys_or_does_not_and_nothing_is_between() {
    for by_key in [false, true] {
        at_every_poll(async |polls| {
            let stage = Stage::new(FakeOptions::default());
            let sandbox = stage.host().acquire("k", options()).await.unwrap().sandbox;
            let done = if by_key {
                leave_after(polls, stage.host().destroy("k")).await.is_some()
            } else {
                leave_after(polls, sandbox.destroy()).await.is_some()
            };
            quiet().await;
            let written = stage.registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap();
            let decided = written.is_none_or(|record| record.phase == sandhold_core::Phase::Destroying);
            let next = stage.host().acquire("k", options()).await.unwrap();
            let expected = if decided { AcquireOutcome::Created } else { AcquireOutcome::Connected };
            assert_eq!((next.outcome, next.sandbox.id() == sandbox.id()), (expected, !decided));
            assert_eq!(stage.alive(), [next.sandbox.id().clone()]);
            done
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_destroy_of_an_open_create_that_is_left_at_any_poll_leaves_no_sandbox_unknown() {
    at_every_poll(async |polls| {
        let stage = Stage::new(FakeOptions::default());
        stage.provider.script(Verb::Create, Fault::reset_after());
        stage.provider.script_honest(Verb::Find, 1);
        stage.provider.script_always(Verb::Find, Fault::HangBefore);
        let short = options().with_deadline(Duration::from_secs(1));
        stage.host().acquire("k", short).await.unwrap_err();
        stage.provider.script_clear(Verb::Find);
        let done = leave_after(polls, stage.host().destroy("k")).await.is_some();
        quiet().await;
        stage.host().destroy("k").await.unwrap();
        assert!(stage.alive().is_empty());
        assert_one_key_one_sandbox(&stage, 2).await;
        done
    })
    .await;
}
