//! Hooks that end their sandbox, fail, or ask for what waits for them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a broken rule panics")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeProvider, Reply};
use sandhold_core::{
    AcquireOptions, Error, ErrorKind, EventKind, FreshFile, Hooks, Memory, Outcome, PersistHook, REASON_HOOK,
    RestoreReason, RestoreReport, Result, Sandbox, Sandboxes, Start,
};
use tokio::time::Instant;

/// What a hook does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Does {
    #[default]
    Nothing,
    Stop,
    Destroy,
    Pause,
    PauseAndResume,
    Save,
    Fail,
    Hang,
    Panic,
}

impl Does {
    async fn to(self, sandbox: &Sandbox) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Stop => sandbox.stop().await.map(drop),
            Self::Destroy => sandbox.destroy().await.map(drop),
            Self::Pause => sandbox.pause().await.map(drop),
            Self::PauseAndResume => {
                sandbox.pause().await?;
                sandbox.resume().await
            }
            Self::Save => sandbox.save().await,
            Self::Fail => Err(Error::new(ErrorKind::Unauthenticated, "the vault is sealed")),
            Self::Hang => std::future::pending().await,
            Self::Panic => panic!("a hook of the host is broken"),
        }
    }
}

/// Hooks of every kind; what they ask for and do not get is noted.
#[derive(Debug, Default)]
struct Doing {
    restore: Does,
    secrets: Does,
    start: Does,
    resume: Does,
    before_pause: Does,
    tick: Does,
    files: Vec<FreshFile>,
    starts: AtomicUsize,
    refused: Mutex<Vec<Option<&'static str>>>,
}

impl Doing {
    async fn tried(&self, does: Does, sandbox: &Sandbox) {
        if let Err(error) = does.to(sandbox).await {
            self.refused.lock().unwrap().push(error.reason());
        }
    }

    fn host(self, provider: &FakeProvider) -> (Arc<Self>, Sandboxes) {
        // The fake has no shell of its own to make private files with.
        provider.on_command(|spec| (spec.program == "/bin/sh").then(|| Reply::stdout("")));
        let hooks = Arc::new(self);
        let host = Sandboxes::new(Arc::new(provider.clone()));
        (Arc::clone(&hooks), host.with_hooks(hooks.clone()).with_persist(hooks))
    }
}

#[async_trait]
impl Hooks for Doing {
    async fn secrets(&self, sandbox: &Sandbox) -> Result<Vec<FreshFile>> {
        self.secrets.to(sandbox).await?;
        Ok(self.files.clone())
    }
    async fn on_start(&self, start: Start) -> Result<()> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        self.start.to(&start.sandbox).await
    }
    async fn on_resume(&self, sandbox: &Sandbox, _: Memory) -> Result<Vec<FreshFile>> {
        self.tried(self.resume, sandbox).await;
        Ok(Vec::new())
    }
}

#[async_trait]
impl PersistHook for Doing {
    async fn restore(&self, sandbox: &Sandbox, _: RestoreReason) -> Result<RestoreReport> {
        self.restore.to(sandbox).await.map(|()| RestoreReport::default())
    }
    async fn before_pause(&self, sandbox: &Sandbox) -> Result<()> {
        self.tried(self.before_pause, sandbox).await;
        Ok(())
    }
    async fn before_destroy(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }
    async fn tick(&self, sandbox: &Sandbox) -> Result<()> {
        self.tried(self.tick, sandbox).await;
        Ok(())
    }
}

fn options() -> AcquireOptions {
    AcquireOptions::default().with_deadline(Duration::from_secs(7200))
}

#[tokio::test(start_paused = true)]
async fn no_hook_runs_after_one_that_has_stopped_or_destroyed_the_sandbox() {
    for ends in [Does::Stop, Does::Destroy] {
        let files = || vec![FreshFile::new("/home/user/.token", "secret")];
        for hooks in [
            Doing { restore: ends, files: files(), ..Doing::default() },
            Doing { secrets: ends, files: files(), ..Doing::default() },
            Doing { secrets: ends, ..Doing::default() },
        ] {
            let provider = FakeProvider::new();
            let (hooks, sandboxes) = hooks.host(&provider);
            let error = sandboxes.acquire("k", options()).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.reason()),
                (ErrorKind::Cancelled, Some("ended_by_hook")),
                "{hooks:?}"
            );
            assert_eq!(hooks.starts.load(Ordering::SeqCst), 0, "{hooks:?}");
            assert_eq!(provider.alive().len(), usize::from(ends == Does::Stop));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn secrets_that_fail_hang_or_panic_are_a_setup_that_failed() {
    for (does, kind, reason) in [
        (Does::Fail, ErrorKind::Unauthenticated, None),
        (Does::Hang, ErrorKind::Timeout, Some(REASON_HOOK)),
        (Does::Panic, ErrorKind::Unexpected, Some(REASON_HOOK)),
    ] {
        let provider = FakeProvider::new();
        let (hooks, sandboxes) = Doing { secrets: does, ..Doing::default() }.host(&provider);
        let mut events = sandboxes.events();
        let error = sandboxes.acquire("k", options()).await.unwrap_err();
        assert_eq!((error.kind(), error.reason(), error.outcome()), (kind, reason, Outcome::NotStarted));
        assert_eq!(hooks.starts.load(Ordering::SeqCst), 0);
        assert_eq!(events.next().await.unwrap().unwrap().kind, EventKind::Starting);
        let told = events.next().await.unwrap().unwrap().kind;
        assert_eq!(told, EventKind::SetupFailed { stage: "secrets", kind, reason });
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_within_a_start_hook_that_would_wait_for_its_own_pause_or_resume_is_refused_at_once() {
    let start = Does::PauseAndResume;
    for hooks in [
        Doing { start, resume: Does::Destroy, ..Doing::default() },
        Doing { start, before_pause: Does::Destroy, ..Doing::default() },
    ] {
        let provider = FakeProvider::new();
        let (hooks, sandboxes) = hooks.host(&provider);
        let began = Instant::now();
        sandboxes.acquire("k", options()).await.unwrap();
        assert_eq!(*hooks.refused.lock().unwrap(), [Some("reentrant")]);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_save_that_asks_for_what_waits_for_its_end_is_refused_at_once() {
    for tick in [Does::Pause, Does::Stop, Does::Destroy, Does::Save] {
        let provider = FakeProvider::new();
        let (hooks, sandboxes) = Doing { tick, ..Doing::default() }.host(&provider);
        let sandbox = sandboxes.acquire("k", options()).await.unwrap().sandbox;
        let began = Instant::now();
        sandbox.save().await.unwrap();
        assert_eq!(*hooks.refused.lock().unwrap(), [Some("reentrant")], "{tick:?}");
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        // Afterwards nothing is refused.
        sandbox.stop().await.unwrap();
        sandbox.destroy().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_waits_for_its_own_key_through_another_one_is_reentrant() {
    let provider = FakeProvider::new();
    let sandboxes = Sandboxes::new(Arc::new(provider.clone()));
    let host = sandboxes.clone();
    let outer = options().with_on_start(move |_| {
        let (host, again) = (host.clone(), host.clone());
        let inner = options().with_on_start(move |_| {
            let again = again.clone();
            async move { again.acquire("outer", options()).await.map(drop) }
        });
        async move { host.acquire("inner", inner).await.map(drop) }
    });
    let error = sandboxes.acquire("outer", outer).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("reentrant")), "{error}");
}
