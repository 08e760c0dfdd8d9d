//! The end of a sandbox, through its values: whose hooks run, what is forgotten, and what nobody brings back.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, DestroyOutcome, Error, ErrorKind, Hooks, How, Key, MemoryRegistry, OnGone, Outcome,
    Owner, PersistHook, Phase, REASON_REPLACED, Registry as _, ReplaceWhenGone, RestoreReason, RestoreReport,
    Result, Sandbox, SandboxHandleExt as _, Sandboxes,
};

/// Counts the hooks of an end; the one that saves the work looks at it.
#[derive(Debug, Default)]
struct Ending(AtomicUsize);

impl Ending {
    fn runs(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Hooks for Ending {
    async fn on_stop(&self, _: &Sandbox) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    async fn on_destroy(&self, _: &Sandbox) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[async_trait]
impl PersistHook for Ending {
    async fn restore(&self, _: &Sandbox, _: RestoreReason) -> Result<RestoreReport> {
        Ok(RestoreReport::default())
    }
    async fn before_pause(&self, _: &Sandbox) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    async fn before_destroy(&self, sandbox: &Sandbox) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        sandbox.exists("/home/user/work").await.map(drop)
    }
    async fn tick(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn host(provider: &FakeProvider, registry: &MemoryRegistry, ending: &Arc<Ending>) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone()))
        .with_registry(Arc::new(registry.clone()))
        .with_hooks(ending.clone())
        .with_persist(ending.clone())
}

fn nothing_yet() -> (FakeProvider, MemoryRegistry, Arc<Ending>) {
    Default::default()
}

async fn is_recorded(registry: &MemoryRegistry) -> bool {
    registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap().is_some()
}

#[tokio::test]
async fn no_hook_runs_for_a_sandbox_that_another_host_has_replaced() {
    for verb in ["pause", "stop", "destroy"] {
        let (provider, registry, ending) = nothing_yet();
        let old = host(&provider, &registry, &ending).acquire("k", options()).await.unwrap().sandbox;
        let elsewhere = host(&provider, &registry, &Arc::default());
        elsewhere.destroy("k").await.unwrap();
        let new = elsewhere.acquire("k", options()).await.unwrap().sandbox;
        let error = match verb {
            "pause" => old.pause().await.map(drop),
            "stop" => old.stop().await.map(drop),
            _ => old.destroy().await.map(drop),
        }
        .unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some(REASON_REPLACED)), "{verb}");
        assert_eq!((ending.runs(), provider.alive().len()), (0, 1), "{verb}");
        new.exists("/f").await.unwrap();
    }
}

#[tokio::test]
async fn the_first_call_on_a_sandbox_that_another_host_has_replaced_is_stale() {
    let (provider, registry, ending) = nothing_yet();
    let old = host(&provider, &registry, &ending).acquire("k", options()).await.unwrap().sandbox;
    let elsewhere = host(&provider, &registry, &ending);
    elsewhere.destroy("k").await.unwrap();
    elsewhere.acquire("k", options()).await.unwrap();
    for _ in 0..2 {
        let error = old.exists("/f").await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some(REASON_REPLACED)));
    }
}

#[tokio::test]
async fn a_destroy_of_a_sandbox_that_is_gone_forgets_its_record() {
    for is_known in [true, false] {
        let (provider, registry, ending) = nothing_yet();
        let sandboxes = host(&provider, &registry, &ending);
        let sandbox = sandboxes.acquire("k", options()).await.unwrap().sandbox;
        provider.vanish(sandbox.provider_id().unwrap());
        if is_known {
            sandbox.exists("/f").await.unwrap_err();
        }
        // Else the hook that saves the work learns it, and there is none to save.
        assert_eq!(sandbox.destroy().await.unwrap(), DestroyOutcome::AlreadyGone);
        assert!(!is_recorded(&registry).await);
        let fail = options().with_replace_when_gone(ReplaceWhenGone::Fail);
        assert_eq!(sandboxes.acquire("k", fail).await.unwrap().facts.how, How::Fresh);
    }
}

#[tokio::test]
async fn a_destroy_of_a_sandbox_that_is_gone_leaves_the_next_one_of_the_key_alone() {
    let (provider, registry, ending) = nothing_yet();
    let old = host(&provider, &registry, &ending).acquire("k", options()).await.unwrap().sandbox;
    provider.vanish(old.provider_id().unwrap());
    old.exists("/f").await.unwrap_err();
    let new = host(&provider, &registry, &ending).acquire("k", options()).await.unwrap().sandbox;
    assert_eq!(old.destroy().await.unwrap(), DestroyOutcome::AlreadyGone);
    new.exists("/f").await.unwrap();
    assert!(is_recorded(&registry).await);
}

#[tokio::test]
async fn a_destroy_of_a_sandbox_that_is_gone_ends_the_values_that_follow_the_key() {
    let (provider, registry, ending) = nothing_yet();
    let sandboxes = host(&provider, &registry, &ending);
    let following = options().with_on_gone(OnGone::Reacquire);
    let follower = sandboxes.acquire("k", following).await.unwrap().sandbox;
    let other = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    provider.vanish(other.provider_id().unwrap());
    other.exists("/f").await.unwrap_err();
    other.destroy().await.unwrap();
    assert_eq!(follower.exists("/f").await.unwrap_err().reason(), Some("destroyed"));
    assert_eq!((provider.counts().created, provider.alive().len()), (1, 0));
}

#[tokio::test]
async fn a_value_that_is_detached_during_its_start_sends_nothing() {
    let (provider, registry, ending) = nothing_yet();
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldBefore(gate.clone()));
    let lazy = host(&provider, &registry, &ending).lazy("k", options()).unwrap();
    let call = tokio::spawn({
        let lazy = lazy.clone();
        async move { lazy.exists("/f").await }
    });
    gate.arrived(1).await;
    lazy.detach();
    gate.open();
    assert_eq!(call.await.unwrap().unwrap_err().reason(), Some("detached"));
    assert_eq!(provider.counts().of(Verb::Create), 1);
}

#[tokio::test]
async fn a_destroy_that_was_written_down_is_not_undone_by_a_call_of_another_host() {
    for verb in ["pause", "stop", "resume", "call", "set_lease"] {
        let (provider, registry, ending) = nothing_yet();
        let sandbox = host(&provider, &registry, &ending).acquire("k", options()).await.unwrap().sandbox;
        if matches!(verb, "resume" | "call") {
            sandbox.pause().await.unwrap();
        }
        // Another host dies after it has written the destroy down.
        let elsewhere = Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry.clone()));
        provider.script(Verb::Destroy, Fault::refused());
        elsewhere.destroy("k").await.unwrap_err();
        let written = registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap().unwrap();
        assert_eq!(written.phase, Phase::Destroying);
        let refused = match verb {
            "pause" => sandbox.pause().await.map(drop),
            "stop" => sandbox.stop().await.map(drop),
            "resume" => sandbox.resume().await,
            "call" => sandbox.exists("/f").await.map(drop),
            _ => sandbox.set_lease(Duration::from_secs(60)).await,
        };
        let error = refused.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Gone, Some("destroyed")), "{verb}");
        let still = registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap();
        assert_eq!(still, Some(written), "{verb}");
        // Whoever comes for the key finishes it.
        let next = elsewhere.acquire("k", options()).await.unwrap().sandbox;
        assert_ne!(next.provider_id(), sandbox.provider_id(), "{verb}");
        assert_eq!(provider.alive().len(), 1, "{verb}");
    }
}

#[tokio::test]
async fn a_value_that_follows_its_key_ends_no_sandbox_that_another_host_made_after_its_own() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    let host = || Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry.clone()));
    let mine = host().acquire("k", options().with_on_gone(OnGone::Reacquire)).await.unwrap().sandbox;
    provider.vanish(mine.provider_id().unwrap());
    let next = host().acquire("k", options()).await.unwrap().sandbox;
    // It learns of it by a call that may have taken effect.
    let gone = Error::new(ErrorKind::Gone, "gone").with_outcome(Outcome::Unknown);
    provider.script(Verb::Inside, Fault::Before(gone));
    mine.exists("/f").await.unwrap_err();
    for refused in [mine.stop().await.map(drop), mine.pause().await.map(drop), mine.destroy().await.map(drop)]
    {
        let error = refused.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some(REASON_REPLACED)), "{error}");
    }
    next.exists("/f").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_destroy_by_key_that_waited_for_a_start_ends_the_value_that_follows() {
    let provider = FakeProvider::new();
    let sandboxes = Sandboxes::new(Arc::new(provider.clone()));
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldBefore(gate.clone()));
    let start = sandboxes.clone();
    let following = options().with_on_gone(OnGone::Reacquire);
    let start = tokio::spawn(async move { start.acquire("k", following).await });
    gate.arrived(1).await;
    let destroy = tokio::spawn({
        let sandboxes = sandboxes.clone();
        async move { sandboxes.destroy("k").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    gate.open();
    let sandbox = start.await.unwrap().unwrap().sandbox;
    assert_eq!(destroy.await.unwrap().unwrap(), DestroyOutcome::Destroyed);
    let error = sandbox.exists("/f").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Gone, Some("destroyed")));
    assert_eq!(provider.counts().created, 1);
}
