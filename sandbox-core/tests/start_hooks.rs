//! The start hook of an acquire: when it runs, what it gets, and what its end means.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeProvider, Reply};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, DestroyOutcome, Error, ErrorKind, FreshFile, Hooks, How, MemoryRegistry,
    OnSetupFailure, PersistHook, RestoreReason, RestoreReport, Result, Sandbox, SandboxHandleExt as _,
    SandboxProviderExt as _, Sandboxes, SetupState, Start,
};

fn host(provider: &FakeProvider) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone()))
}

fn host_with(provider: &FakeProvider, registry: &MemoryRegistry) -> Sandboxes {
    host(provider).with_registry(Arc::new(registry.clone()))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

/// Options whose start hook counts its runs.
fn counting(runs: &Arc<AtomicUsize>) -> AcquireOptions {
    let runs = Arc::clone(runs);
    options().with_on_start(move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    })
}

#[tokio::test]
async fn the_start_hook_runs_once_and_gets_a_working_sandbox() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let hook = options().with_on_start(|start| async move {
        assert_eq!((start.outcome, start.setup), (AcquireOutcome::Created, SetupState::Needed));
        start.sandbox.write_bytes("/home/user/ready", "yes").await.map(drop)
    });
    let acquired = sandboxes.acquire("k", hook.clone()).await.unwrap();
    assert_eq!(acquired.sandbox.read_text("/home/user/ready").await.unwrap(), "yes");
    let again = sandboxes.acquire("k", hook).await.unwrap();
    assert_eq!((again.outcome, again.facts.setup), (AcquireOutcome::Connected, SetupState::Done));
}

#[tokio::test]
async fn a_failed_setup_is_run_again_and_the_outcome_stays_created() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let failing = options().with_on_start(|_| async { Err(Error::new(ErrorKind::NotFound, "no network")) });
    let error = sandboxes.acquire("k", failing).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let runs = Arc::new(AtomicUsize::new(0));
    let acquired = sandboxes.acquire("k", counting(&runs)).await.unwrap();
    assert_eq!((acquired.outcome, acquired.facts.how), (AcquireOutcome::Created, How::Unfinished));
    assert_eq!((runs.load(Ordering::SeqCst), provider.counts().created), (1, 1));
}

#[tokio::test]
async fn a_failed_setup_destroys_the_sandbox_when_told_so() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let failing = options()
        .with_on_start(|_| async { Err(Error::new(ErrorKind::NotFound, "no network")) })
        .with_on_setup_failure(OnSetupFailure::Destroy);
    sandboxes.acquire("k", failing).await.unwrap_err();
    assert!(provider.alive().is_empty());
    assert_eq!(sandboxes.acquire("k", options()).await.unwrap().facts.how, How::Fresh);
}

#[tokio::test]
async fn a_setup_of_a_higher_version_runs_again_and_a_lower_one_does_not() {
    #[derive(Debug)]
    struct Versioned(u64, Arc<AtomicUsize>);
    #[async_trait::async_trait]
    impl sandhold_core::Hooks for Versioned {
        fn setup_version(&self) -> u64 {
            self.0
        }
        async fn on_start(&self, _: sandhold_core::Start) -> sandhold_core::Result<()> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let runs = Arc::new(AtomicUsize::new(0));
    // The last host has no record and reads the mark inside the sandbox.
    let hosts = [&registry, &registry, &registry, &MemoryRegistry::new()];
    for (version, (registry, expected)) in [2, 3, 1, 3].into_iter().zip(hosts.into_iter().zip([1, 2, 2, 2])) {
        let hooks = Arc::new(Versioned(version, Arc::clone(&runs)));
        host_with(&provider, registry).acquire("k", options().with_hooks(hooks)).await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), expected, "version {version}");
    }
}

#[tokio::test]
async fn a_nested_acquire_of_the_same_key_in_its_hook_is_reentrant() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let nested = sandboxes.clone();
    let hook = options().with_on_start(move |_| {
        let nested = nested.clone();
        async move {
            nested.acquire("other", options()).await?;
            let error = nested.acquire("k", options()).await.unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("reentrant")));
            Ok(())
        }
    });
    sandboxes.acquire("k", hook).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_destroys_its_sandbox_ends_the_acquire_at_once() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let hook = options().with_on_start(|start| async move { start.sandbox.destroy().await.map(drop) });
    let before = tokio::time::Instant::now();
    let error = sandboxes.acquire("k", hook).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Cancelled, Some("ended_by_hook")));
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!((provider.counts().created, provider.counts().destroyed), (1, 1));
    let again = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((again.outcome, provider.counts().created), (AcquireOutcome::Created, 2));
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_stops_its_sandbox_ends_the_acquire_and_the_next_one_sets_it_up() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let hook = options().with_on_start(|start| async move { start.sandbox.stop().await.map(drop) });
    let error = sandboxes.acquire("k", hook).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Cancelled, Some("ended_by_hook")));
    let runs = Arc::new(AtomicUsize::new(0));
    let again = sandboxes.acquire("k", counting(&runs)).await.unwrap();
    assert_eq!((again.outcome, again.facts.setup), (AcquireOutcome::Created, SetupState::Needed));
    assert_eq!((runs.load(Ordering::SeqCst), provider.counts().created), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn work_in_a_hook_on_a_paused_sandbox_resumes_it() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let pauses = provider.clone();
    let kept = Arc::new(std::sync::Mutex::new(None));
    let hook = options().with_on_start({
        let kept = Arc::clone(&kept);
        move |start| {
            let (pauses, kept) = (pauses.clone(), Arc::clone(&kept));
            async move {
                pauses.pause(start.sandbox.provider_id().unwrap()).await?;
                start.sandbox.write_bytes("/tmp/x", "x").await?;
                start.sandbox.pause().await?;
                start.sandbox.write_bytes("/tmp/y", "y").await?;
                *kept.lock().unwrap() = Some(start.sandbox);
                Ok(())
            }
        }
    });
    let acquired = sandboxes.acquire("k", hook).await.unwrap();
    assert_eq!(acquired.sandbox.read_text("/tmp/y").await.unwrap(), "y");
    let again = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(again.outcome, AcquireOutcome::Connected);
    // The hook's value is an ordinary one after its flight.
    let kept = kept.lock().unwrap().take().unwrap();
    assert_eq!(kept.destroy().await.unwrap(), DestroyOutcome::Destroyed);
}

#[tokio::test(start_paused = true)]
async fn stop_and_destroy_by_key_in_the_hook_of_that_key_are_reentrant() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let nested = sandboxes.clone();
    let hook = options().with_on_start(move |_| {
        let nested = nested.clone();
        async move {
            let refused = [nested.stop("k").await.unwrap_err(), nested.destroy("k").await.unwrap_err()];
            for error in refused {
                assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("reentrant")));
            }
            Ok(())
        }
    });
    sandboxes.acquire("k", hook).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hook_beyond_its_deadline_is_a_timeout_that_names_it() {
    let provider = FakeProvider::new();
    let hook =
        options().with_on_start(|_| std::future::pending()).with_hook_deadline(Duration::from_secs(30));
    let error = host(&provider).acquire("k", hook).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.context().any(|pair| pair == ("stage", "on_start")), "{error}");
}

#[tokio::test]
async fn a_panicking_hook_is_an_error_and_the_next_acquire_works() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let hook = options().with_on_start(|_| async { panic!("the hook's own fault") });
    let error = sandboxes.acquire("k", hook).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, provider.counts().created), (AcquireOutcome::Created, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_stops_or_destroys_its_sandbox_and_then_hangs_ends_the_acquire() {
    for stops in [false, true] {
        let provider = FakeProvider::new();
        let hook =
            options().with_deadline(Duration::from_secs(3600)).with_on_start(move |start| async move {
                match stops {
                    true => start.sandbox.stop().await.map(drop)?,
                    false => start.sandbox.destroy().await.map(drop)?,
                }
                std::future::pending().await
            });
        let began = tokio::time::Instant::now();
        let error = host(&provider).acquire("k", hook).await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Cancelled, Some("ended_by_hook")));
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!(provider.alive().len(), usize::from(stops));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_stops_its_sandbox_and_resumes_it_goes_on() {
    let provider = FakeProvider::new();
    let hook = options().with_on_start(|start| async move {
        // In a task of its own, as the hooks of bindings run.
        let sandbox = start.sandbox;
        let working = tokio::spawn(async move {
            sandbox.stop().await?;
            sandbox.resume().await
        });
        working.await.unwrap()?;
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    let sandbox = host(&provider).acquire("k", hook).await.unwrap().sandbox;
    assert!(!sandbox.exists("/home/user/f").await.unwrap());
}

/// Writes down what is in the sandbox at each step.
#[derive(Debug, Default)]
struct Stepwise {
    seen: Mutex<Vec<String>>,
    has_no_secret: AtomicBool,
}

impl Stepwise {
    async fn step(&self, step: &str, sandbox: &Sandbox) {
        let mut line = step.to_owned();
        for file in ["/home/user/work", "/home/user/.token"] {
            if let Ok(content) = sandbox.read_bytes(file).await {
                line = format!("{line} {}", String::from_utf8_lossy(&content));
            }
        }
        self.seen.lock().unwrap().push(line);
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

#[async_trait]
impl PersistHook for Stepwise {
    async fn restore(&self, sandbox: &Sandbox, _: RestoreReason) -> Result<RestoreReport> {
        self.step("restore", sandbox).await;
        for file in ["/home/user/work", "/home/user/.token"] {
            sandbox.write_bytes(file, "restored").await?;
        }
        Ok(RestoreReport::restored("snapshot-1").with_receipt(serde_json::json!({"promised": ["work"]})))
    }

    async fn before_pause(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }

    async fn before_destroy(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }

    async fn tick(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Hooks for Stepwise {
    async fn secrets(&self, sandbox: &Sandbox) -> Result<Vec<FreshFile>> {
        self.step("secrets", sandbox).await;
        if self.has_no_secret.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unauthenticated, "the vault of secrets is sealed"));
        }
        Ok(vec![FreshFile::new("/home/user/.token", "secret")])
    }

    async fn on_start(&self, start: Start) -> Result<()> {
        self.step("on_start", &start.sandbox).await;
        Ok(())
    }
}

#[tokio::test]
async fn work_is_put_back_then_secrets_come_and_then_the_start_hook_runs() {
    let provider = FakeProvider::new();
    // The fake has no shell of its own to make private files with.
    provider.on_command(|spec| (spec.program == "/bin/sh").then(|| Reply::stdout("")));
    let steps = Arc::new(Stepwise::default());
    let sandboxes = host(&provider).with_hooks(steps.clone()).with_persist(steps.clone());
    steps.has_no_secret.store(true, Ordering::SeqCst);
    let error = sandboxes.acquire("k", options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert_eq!(steps.seen(), ["restore", "secrets restored restored"]);
    steps.has_no_secret.store(false, Ordering::SeqCst);
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(steps.seen()[1..], ["secrets restored restored", "on_start restored secret"]);
    let restored = acquired.facts.restored.unwrap();
    assert_eq!(restored.snapshot.as_deref(), Some("snapshot-1"));
    assert_eq!(restored.receipt, Some(serde_json::json!({"promised": ["work"]})));
    // The everyday way back asks for nothing.
    let again = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((again.facts.restored, steps.seen().len()), (None, 0));
}
