//! Hooks that never end and contenders that never let go: every verb comes back, and says what it did.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeProvider, Fault, Reply, Verb};
use sandhold_core::{
    AcquireOptions, DestroyOutcome, Error, ErrorKind, FreshFile, Hooks, Key, Memory, MemoryRegistry, Outcome,
    Owner, PersistHook, ProcessSpec, REASON_BUSY, REASON_HOOK, Registry as _, RestoreReason, RestoreReport,
    Result, Sandbox, SandboxHandleExt as _, Sandboxes, StopOutcome,
};
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(30);

/// Hooks of both kinds, of which one never ends while `stuck` says so.
#[derive(Debug, Default)]
struct Stuck {
    hook: &'static str,
    times: AtomicUsize,
    runs: AtomicUsize,
}

impl Stuck {
    /// `hook` does not end, so many times.
    fn at(hook: &'static str, times: usize) -> Arc<Self> {
        Arc::new(Self { hook, times: AtomicUsize::new(times), runs: AtomicUsize::new(0) })
    }

    fn always(hook: &'static str) -> Arc<Self> {
        Self::at(hook, usize::MAX)
    }

    async fn run(&self, hook: &'static str) {
        if hook == self.hook {
            self.runs.fetch_add(1, Ordering::SeqCst);
            if self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
            {
                std::future::pending::<()>().await;
            }
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Hooks for Stuck {
    async fn on_resume(&self, _: &Sandbox, _: Memory) -> Result<Vec<FreshFile>> {
        self.run("on_resume").await;
        Ok(vec![FreshFile::new("/tmp/token", "fresh")])
    }

    async fn on_stop(&self, _: &Sandbox) -> Result<()> {
        self.run("on_stop").await;
        Ok(())
    }

    async fn on_destroy(&self, _: &Sandbox) -> Result<()> {
        self.run("on_destroy").await;
        Ok(())
    }
}

#[async_trait]
impl PersistHook for Stuck {
    async fn restore(&self, _: &Sandbox, _: RestoreReason) -> Result<RestoreReport> {
        self.run("restore").await;
        Ok(RestoreReport::default())
    }

    async fn before_pause(&self, _: &Sandbox) -> Result<()> {
        self.run("before_pause").await;
        Ok(())
    }

    async fn before_destroy(&self, _: &Sandbox) -> Result<()> {
        self.run("before_destroy").await;
        Ok(())
    }

    async fn tick(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }
}

fn host(provider: &FakeProvider, stuck: &Arc<Stuck>) -> Sandboxes {
    // The fake has no shell that would make the private place of a fresh file.
    provider.on_command(|spec| spec.args.iter().any(|arg| arg.contains("umask")).then(|| Reply::exit(0)));
    Sandboxes::new(Arc::new(provider.clone()))
        .with_hooks(Arc::clone(stuck) as Arc<dyn Hooks>)
        .with_persist(Arc::clone(stuck) as Arc<dyn PersistHook>)
        .with_hook_deadline(DEADLINE)
}

async fn acquired(sandboxes: &Sandboxes) -> Sandbox {
    sandboxes.acquire("k", AcquireOptions::default()).await.unwrap().sandbox
}

/// Asserts that an error is the overrun of this hook, and what became of the verb.
#[track_caller]
fn assert_overrun(error: &Error, hook: &str, outcome: Outcome) {
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Timeout, Some(REASON_HOOK)), "{error}");
    assert!(error.context().any(|pair| pair == ("hook", hook)), "{error}");
    assert_eq!(error.outcome(), outcome, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_hook_that_never_ends_does_not_keep_the_sandbox_from_stopping() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider, &Stuck::always("on_stop"));
    let sandbox = acquired(&sandboxes).await;
    let started = Instant::now();
    assert_overrun(&sandbox.stop().await.unwrap_err(), "on_stop", Outcome::Done);
    assert_eq!(started.elapsed(), DEADLINE);
    assert_eq!(sandboxes.stop("k").await.unwrap(), StopOutcome::AlreadyPaused, "it did stop");
}

#[tokio::test(start_paused = true)]
async fn a_stop_hook_that_never_ends_is_told_of_beside_a_stop_that_failed() {
    let provider = FakeProvider::new();
    let sandbox = acquired(&host(&provider, &Stuck::always("on_stop"))).await;
    provider.script(Verb::Pause, Fault::refused());
    let error = sandbox.stop().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotStarted));
    let (_, hook) = error.context().find(|(name, _)| *name == "on_stop").unwrap();
    assert!(hook.contains("the hook on_stop did not end within 30s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_destroy_hook_that_never_ends_does_not_keep_the_sandbox() {
    let provider = FakeProvider::new();
    let sandbox = acquired(&host(&provider, &Stuck::always("on_destroy"))).await;
    assert_overrun(&sandbox.destroy().await.unwrap_err(), "on_destroy", Outcome::Done);
    assert_eq!(provider.counts().destroyed, 1);
    assert_eq!(sandbox.destroy().await.unwrap(), DestroyOutcome::AlreadyGone);
}

#[tokio::test(start_paused = true)]
async fn a_destroy_hook_that_never_ends_is_told_of_beside_a_destroy_that_failed() {
    let provider = FakeProvider::new();
    let sandbox = acquired(&host(&provider, &Stuck::always("on_destroy"))).await;
    provider.script(Verb::Destroy, Fault::refused());
    let error = sandbox.destroy().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.context().any(|(name, hook)| name == "on_destroy" && hook.contains("did not end")),
        "{error}"
    );
    assert_overrun(&sandbox.destroy().await.unwrap_err(), "on_destroy", Outcome::Done);
    assert_eq!(provider.counts().destroyed, 1);
}

#[tokio::test(start_paused = true)]
async fn work_that_cannot_be_saved_in_time_is_neither_paused_nor_destroyed() {
    let provider = FakeProvider::new();
    let sandbox = acquired(&host(&provider, &Stuck::always("before_pause"))).await;
    assert_overrun(&sandbox.pause().await.unwrap_err(), "before_pause", Outcome::NotStarted);
    assert_overrun(&sandbox.stop().await.unwrap_err(), "before_pause", Outcome::NotStarted);
    assert_eq!(provider.counts().of(Verb::Pause), 0);

    let provider = FakeProvider::new();
    let sandbox = acquired(&host(&provider, &Stuck::always("before_destroy"))).await;
    assert_overrun(&sandbox.destroy().await.unwrap_err(), "before_destroy", Outcome::NotStarted);
    assert_eq!(provider.counts().of(Verb::Destroy), 0);
    sandbox.exec(ProcessSpec::shell("echo still here")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_hook_that_never_ends_fails_the_resume_and_runs_again_before_the_next_call() {
    let provider = FakeProvider::new();
    let stuck = Stuck::at("on_resume", 2);
    let sandbox = acquired(&host(&provider, &stuck)).await;
    sandbox.pause().await.unwrap();
    assert_overrun(&sandbox.resume().await.unwrap_err(), "on_resume", Outcome::Done);
    // Resumed it is; but nothing is let through before the hook has done its part.
    let error = sandbox.exec(ProcessSpec::shell("echo hello")).await.unwrap_err();
    assert_overrun(&error, "on_resume", Outcome::NotStarted);
    let token = sandbox.read_bytes("/tmp/token").await.unwrap();
    assert_eq!((&*token, stuck.runs()), (&b"fresh"[..], 3));
    sandbox.exec(ProcessSpec::shell("echo hello")).await.unwrap();
    assert_eq!((provider.counts().resumed, stuck.runs()), (1, 3), "one resume, and no hook without need");
}

#[tokio::test(start_paused = true)]
async fn a_resume_hook_that_failed_is_forgotten_with_the_next_pause() {
    let provider = FakeProvider::new();
    let stuck = Stuck::at("on_resume", 1);
    let sandboxes = host(&provider, &stuck);
    let sandbox = acquired(&sandboxes).await;
    sandbox.pause().await.unwrap();
    sandbox.resume().await.unwrap_err();
    // Another host's doing.
    assert_eq!(sandboxes.stop("k").await.unwrap(), StopOutcome::Paused);
    sandbox.exec(ProcessSpec::shell("echo hello")).await.unwrap();
    assert_eq!(
        (provider.counts().resumed, stuck.runs()),
        (2, 2),
        "none in vain on the paused one, and one after the resume"
    );
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_never_ends_fails_the_acquire_by_its_own_name() {
    let provider = FakeProvider::new();
    let stuck = Stuck::at("restore", 1);
    let sandboxes = host(&provider, &stuck);
    let error = sandboxes.acquire("k", AcquireOptions::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Timeout, Some("restore_incomplete")), "{error}");
    assert!(error.context().any(|pair| pair == ("hook", "restore")), "{error}");
    acquired(&sandboxes).await;
    assert_eq!((stuck.runs(), provider.counts().created), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_long_resume_hook_of_an_acquire_keeps_its_lease() {
    let provider = FakeProvider::new();
    let registry = Arc::new(MemoryRegistry::new());
    let first = Sandboxes::new(Arc::new(provider.clone())).with_registry(registry.clone());
    acquired(&first).await;
    first.stop("k").await.unwrap();
    // Longer than a lease lasts, and shorter than its deadline.
    #[derive(Debug)]
    struct Slow;
    #[async_trait]
    impl Hooks for Slow {
        async fn on_resume(&self, _: &Sandbox, _: Memory) -> Result<Vec<FreshFile>> {
            tokio::time::sleep(Duration::from_secs(150)).await;
            Ok(Vec::new())
        }
    }
    let second =
        Sandboxes::new(Arc::new(provider.clone())).with_registry(registry.clone()).with_hooks(Arc::new(Slow));
    let acquire = tokio::spawn(async move { acquired(&second).await });
    tokio::time::sleep(Duration::from_secs(120)).await;
    let taken =
        registry.try_lease(&Owner::default(), &Key::new("k").unwrap(), Duration::from_secs(1)).await.unwrap();
    assert!(taken.is_none(), "the lease ran out under the hook");
    acquire.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_verb_waits_for_another_host_beyond_its_limit_and_none_does_anything_then() {
    let provider = FakeProvider::new();
    let registry = Arc::new(MemoryRegistry::new());
    let limit = Duration::from_secs(20);
    let sandboxes =
        Sandboxes::new(Arc::new(provider.clone())).with_registry(registry.clone()).with_wait_limit(limit);
    let sandbox = acquired(&sandboxes).await;
    let other = registry
        .try_lease(&Owner::default(), &Key::new("k").unwrap(), Duration::from_secs(3600))
        .await
        .unwrap()
        .unwrap();
    let started = Instant::now();
    let refused = [
        sandboxes.stop("k").await.map(|_| ()),
        sandboxes.destroy("k").await.map(|_| ()),
        sandbox.pause().await.map(|_| ()),
        sandbox.stop().await.map(|_| ()),
        sandbox.destroy().await.map(|_| ()),
        sandbox.resume().await,
    ];
    let waited = started.elapsed();
    assert_eq!(waited.as_secs(), 6 * limit.as_secs(), "{waited:?}");
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Timeout, Some(REASON_BUSY)), "{error}");
        assert_eq!((error.outcome(), error.is_retryable()), (Outcome::NotStarted, true));
        assert!(error.context().any(|pair| pair == ("key", "k")), "{error}");
    }
    let counts = provider.counts();
    assert_eq!((counts.of(Verb::Pause), counts.of(Verb::Destroy), counts.destroyed), (0, 0, 0));
    drop(other);
    assert_eq!(sandboxes.stop("k").await.unwrap(), StopOutcome::Paused);
    assert_eq!(sandbox.destroy().await.unwrap(), DestroyOutcome::Destroyed);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_start_in_flight_no_longer_than_its_limit() {
    let provider = FakeProvider::new();
    let sandboxes = Sandboxes::new(Arc::new(provider.clone())).with_wait_limit(Duration::from_secs(10));
    let options = AcquireOptions::default().with_on_start(|_| async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        Ok(())
    });
    let acquire = tokio::spawn({
        let sandboxes = sandboxes.clone();
        async move { sandboxes.acquire("k", options).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let error = sandboxes.stop("k").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Timeout, Some(REASON_BUSY)), "{error}");
    // The next one has time enough to see the start end.
    assert_eq!(sandboxes.stop("k").await.unwrap(), StopOutcome::Paused);
    acquire.await.unwrap().unwrap();
}
