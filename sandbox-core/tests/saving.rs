//! Saves by the persist hook: on its interval while a value is there, and on demand.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeProvider, Reply};
use sandhold_core::{
    AcquireOptions, Error, ErrorKind, EventKind, OnGone, PersistHook, ProcessSpec, REASON_UNSTARTED,
    RestoreReason, RestoreReport, Result, Sandbox, SandboxHandleExt as _, Sandboxes,
};
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(60);

/// Counts; asks the sandbox something, as a save does.
#[derive(Debug, Default)]
struct Counting {
    restores: AtomicUsize,
    ticks: AtomicUsize,
    ended: AtomicUsize,
    pauses: AtomicUsize,
    destroys: AtomicUsize,
    never_ends: AtomicBool,
    fails: AtomicBool,
    /// Times [`INTERVAL`] that it has settled; 0 is the one it begins with, and `usize::MAX` none.
    intervals: AtomicUsize,
}

impl Counting {
    fn ticks(&self) -> usize {
        self.ticks.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl PersistHook for Counting {
    async fn restore(&self, _: &Sandbox, _: RestoreReason) -> Result<RestoreReport> {
        self.restores.fetch_add(1, Ordering::SeqCst);
        Ok(RestoreReport::default())
    }

    async fn before_pause(&self, _: &Sandbox) -> Result<()> {
        self.pauses.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn before_destroy(&self, _: &Sandbox) -> Result<()> {
        self.destroys.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn interval(&self) -> Option<Duration> {
        match self.intervals.load(Ordering::SeqCst) {
            usize::MAX => None,
            times => Some(INTERVAL * u32::try_from(times.max(1)).unwrap()),
        }
    }

    async fn tick(&self, sandbox: &Sandbox) -> Result<()> {
        sandbox.exec(ProcessSpec::shell("echo work")).await?;
        self.ticks.fetch_add(1, Ordering::SeqCst);
        if self.never_ends.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::StorageFull, "no room").with_reason("full"));
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn host(provider: &FakeProvider) -> (Sandboxes, Arc<Counting>) {
    provider.on_command(|_| Some(Reply::exit(0)));
    let hook = Arc::new(Counting::default());
    let sandboxes = Sandboxes::new(Arc::new(provider.clone()))
        .with_persist(Arc::clone(&hook) as Arc<dyn PersistHook>)
        .with_hook_deadline(INTERVAL * 100);
    (sandboxes, hook)
}

async fn acquired(sandboxes: &Sandboxes) -> Sandbox {
    sandboxes.acquire("k", AcquireOptions::default()).await.unwrap().sandbox
}

/// So many intervals and a half go by.
async fn pass(intervals: u32) {
    tokio::time::sleep(INTERVAL * intervals + INTERVAL / 2).await;
}

#[tokio::test(start_paused = true)]
async fn work_is_saved_on_the_interval_as_long_as_a_value_is_there() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let sandbox = acquired(&sandboxes).await;
    pass(3).await;
    assert_eq!(hook.ticks(), 3);
    let clone = sandbox.clone();
    drop(sandbox);
    tokio::time::sleep(INTERVAL * 2).await;
    assert_eq!(hook.ticks(), 5, "a clone is the same value");
    drop(clone);
    pass(10).await;
    assert_eq!(hook.ticks(), 5);
    assert_eq!(provider.counts().destroyed, 0);
}

#[tokio::test(start_paused = true)]
async fn an_interval_that_is_settled_anew_holds_after_the_one_that_is_waited_for() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let sandbox = acquired(&sandboxes).await;
    pass(1).await;
    hook.intervals.store(3, Ordering::SeqCst);
    pass(4).await;
    assert_eq!(hook.ticks(), 2, "the second one came three intervals after the first");
    hook.intervals.store(usize::MAX, Ordering::SeqCst);
    pass(30).await;
    assert_eq!(hook.ticks(), 2, "none is wanted");
    hook.intervals.store(1, Ordering::SeqCst);
    pass(10).await;
    assert!(hook.ticks() > 5, "{}", hook.ticks());
    drop((sandbox, sandboxes));
    pass(0).await;
    assert_eq!(Arc::strong_count(&hook), 1);
}

#[tokio::test(start_paused = true)]
async fn a_save_ends_with_the_last_value() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let sandbox = acquired(&sandboxes).await;
    hook.never_ends.store(true, Ordering::SeqCst);
    pass(1).await;
    assert_eq!((hook.ticks(), hook.ended.load(Ordering::SeqCst)), (1, 0), "it goes on");
    drop((sandbox, sandboxes));
    pass(0).await;
    assert_eq!((Arc::strong_count(&hook), hook.ticks()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_is_neither_saved_nor_woken() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let sandbox = acquired(&sandboxes).await;
    pass(1).await;
    sandbox.pause().await.unwrap();
    pass(5).await;
    assert_eq!((hook.ticks(), provider.counts().resumed), (1, 0));
    sandbox.exec(ProcessSpec::shell("echo hello")).await.unwrap();
    pass(1).await;
    assert_eq!((hook.ticks() >= 2, provider.counts().resumed), (true, 1));
    // By its key, and so without this value.
    sandboxes.stop("k").await.unwrap();
    let before = hook.ticks();
    pass(5).await;
    assert_eq!((hook.ticks(), provider.counts().resumed), (before, 1));
}

#[tokio::test(start_paused = true)]
async fn all_values_of_a_sandbox_are_saved_once_an_interval() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let one = acquired(&sandboxes).await;
    tokio::time::sleep(INTERVAL / 3).await;
    let other = acquired(&sandboxes).await;
    pass(10).await;
    assert_eq!(hook.ticks(), 10);
    drop(one);
    pass(9).await;
    assert_eq!(hook.ticks(), 20);
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn a_pause_or_destroy_cuts_a_save_off_and_saves_by_itself() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let sandbox = acquired(&sandboxes).await;
    hook.never_ends.store(true, Ordering::SeqCst);
    pass(1).await;
    let started = Instant::now();
    sandbox.pause().await.unwrap();
    assert_eq!((hook.ticks(), hook.pauses.load(Ordering::SeqCst)), (1, 1));
    sandbox.resume().await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    pass(1).await;
    assert!(hook.ticks() >= 2);
    let started = Instant::now();
    sandbox.destroy().await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!((hook.ended.load(Ordering::SeqCst), hook.destroys.load(Ordering::SeqCst)), (0, 1));
    let ticks = hook.ticks();
    pass(5).await;
    assert_eq!(hook.ticks(), ticks);
}

#[tokio::test(start_paused = true)]
async fn a_save_that_fails_is_told_of_and_tried_again() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let sandbox = acquired(&sandboxes).await;
    let mut events = sandboxes.events();
    hook.fails.store(true, Ordering::SeqCst);
    pass(1).await;
    let told = events.next().await.unwrap().unwrap();
    assert_eq!(told.kind, EventKind::SaveFailed { kind: ErrorKind::StorageFull, reason: Some("full") });
    hook.fails.store(false, Ordering::SeqCst);
    pass(1).await;
    assert!(hook.ended.load(Ordering::SeqCst) > 0);
    drop(sandbox);
}

#[tokio::test(start_paused = true)]
async fn a_save_on_demand_resumes_and_counts_as_that_of_the_interval() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let sandbox = acquired(&sandboxes).await;
    tokio::time::sleep(INTERVAL * 2 / 3).await;
    sandbox.pause().await.unwrap();
    sandbox.save().await.unwrap();
    assert_eq!((hook.ticks(), provider.counts().resumed), (1, 1));
    tokio::time::sleep(INTERVAL * 2 / 3).await;
    assert_eq!(hook.ticks(), 1);
    hook.fails.store(true, Ordering::SeqCst);
    assert_eq!(sandbox.save().await.unwrap_err().reason(), Some("full"));
}

#[tokio::test(start_paused = true)]
async fn a_save_needs_a_hook_and_a_sandbox() {
    let provider = FakeProvider::new();
    let without = Sandboxes::new(Arc::new(provider.clone()));
    let error = acquired(&without).await.save().await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidState, Some("no_persist")));
    let (sandboxes, hook) = host(&provider);
    let lazy = sandboxes.lazy("other", AcquireOptions::default()).unwrap();
    assert_eq!(lazy.save().await.unwrap_err().reason(), Some(REASON_UNSTARTED));
    pass(3).await;
    assert_eq!((hook.ticks(), provider.counts().created), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lazy_value_is_saved_from_its_first_use_on_and_so_is_its_next_sandbox() {
    let provider = FakeProvider::new();
    let (sandboxes, hook) = host(&provider);
    let options = AcquireOptions::default().with_on_gone(OnGone::Reacquire);
    let sandbox = sandboxes.lazy("k", options).unwrap();
    sandbox.exec(ProcessSpec::shell("echo hello")).await.unwrap();
    pass(1).await;
    assert_eq!(hook.ticks(), 1);
    provider.vanish(sandbox.provider_id().unwrap());
    pass(2).await;
    assert_eq!((hook.ticks(), provider.counts().created), (1, 1), "a save makes no sandbox");
    sandbox.exec(ProcessSpec::shell("echo hello")).await.unwrap();
    pass(1).await;
    assert!(hook.ticks() > 1);
    assert_eq!((provider.counts().created, hook.restores.load(Ordering::SeqCst)), (2, 2));
}
