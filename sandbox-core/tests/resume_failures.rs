//! What becomes of a sandbox that the provider does not resume: how often it is tried, and what is left of it then.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::testing::{FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, Error, ErrorKind, EventKind, How, Key, MemoryRegistry, OnGone, OnResumeFailure, Outcome,
    Owner, Phase, Registry as _, ReplaceWhenGone, Result, Sandbox, SandboxHandle as _, SandboxHandleExt as _,
    SandboxState, Sandboxes,
};
use tokio::time::Instant;

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn destroying() -> AcquireOptions {
    options().with_on_resume_failure(OnResumeFailure::Destroy)
}

struct Stage {
    provider: FakeProvider,
    registry: MemoryRegistry,
    sandboxes: Sandboxes,
    sandbox: Sandbox,
}

impl Stage {
    /// A sandbox that rests.
    async fn paused(options: AcquireOptions) -> Self {
        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
        let sandboxes = Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry.clone()));
        let sandbox = sandboxes.acquire("k", options).await.unwrap().sandbox;
        sandbox.pause().await.unwrap();
        Self { provider, registry, sandboxes, sandbox }
    }

    /// Resumes it, by a call or by an acquire.
    async fn resume(&self, by_call: bool, options: AcquireOptions) -> Result<()> {
        if by_call {
            self.sandbox.exists("/f").await.map(drop)
        } else {
            self.sandboxes.acquire("k", options).await.map(drop)
        }
    }

    async fn phase(&self) -> Phase {
        self.registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap().unwrap().phase
    }

    fn connects(&self) -> usize {
        self.provider.counts().of(Verb::Connect)
    }
}

fn broken() -> Fault {
    Fault::Before(Error::new(ErrorKind::Unavailable, "no machine is free"))
}

#[tokio::test(start_paused = true)]
async fn a_resume_is_tried_three_times_and_then_the_sandbox_is_kept_and_recorded_as_paused() {
    for by_call in [true, false] {
        let stage = Stage::paused(options()).await;
        stage.provider.script_always(Verb::Connect, broken());
        let (before, began) = (stage.connects(), Instant::now());
        let error = stage.resume(by_call, options()).await.unwrap_err();
        assert_eq!((error.kind(), stage.connects() - before), (ErrorKind::Unavailable, 3), "{error}");
        assert_eq!(began.elapsed().as_millis() / 50 * 50, 750, "{:?}", began.elapsed());
        assert_eq!((stage.phase().await, stage.provider.alive().len()), (Phase::Paused, 1));
        // A failure is not remembered.
        stage.provider.script_clear(Verb::Connect);
        stage.resume(by_call, options()).await.unwrap();
        assert_eq!((stage.phase().await, stage.provider.counts().resumed), (Phase::Ready, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_succeeds_at_its_last_attempt_is_one_resume() {
    for by_call in [true, false] {
        let stage = Stage::paused(options()).await;
        stage.provider.script(Verb::Connect, broken());
        stage.provider.script(Verb::Connect, Fault::reset_after());
        stage.resume(by_call, options()).await.unwrap();
        assert_eq!((stage.phase().await, stage.provider.counts().resumed), (Phase::Ready, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_resume_is_not_tried_again() {
    for by_call in [true, false] {
        let stage = Stage::paused(destroying()).await;
        let refused = Error::new(ErrorKind::PermissionDenied, "not yours");
        stage.provider.script_always(Verb::Connect, Fault::Before(refused));
        let before = stage.connects();
        stage.resume(by_call, destroying()).await.unwrap_err();
        assert_eq!((stage.connects() - before, stage.phase().await), (1, Phase::Paused));
        assert_eq!(stage.provider.alive().len(), 1, "a refusal of the caller destroys nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_waits_as_long_as_the_provider_asks_for() {
    let stage = Stage::paused(options()).await;
    let slow_down = |wait| {
        Fault::Before(
            Error::new(ErrorKind::RateLimited, "slow down").retryable(Some(Duration::from_secs(wait))),
        )
    };
    stage.provider.script(Verb::Connect, slow_down(3600));
    let began = Instant::now();
    let error = stage.sandbox.resume().await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(began.elapsed().as_secs(), 0, "longer than the lease is sure: the caller learns it at once");
    stage.provider.script(Verb::Connect, slow_down(5));
    stage.sandbox.resume().await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_cannot_be_resumed_is_destroyed_where_that_was_asked_for() {
    for by_call in [true, false] {
        let stage = Stage::paused(destroying()).await;
        let mut events = stage.sandboxes.events();
        stage.provider.script_always(Verb::Connect, broken());
        let error = stage.resume(by_call, destroying()).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotStarted));
        assert!(stage.provider.alive().is_empty());
        loop {
            if events.next().await.unwrap().unwrap().kind == EventKind::Destroyed {
                break;
            }
        }
        stage.provider.script_clear(Verb::Connect);
        // It counts as gone, for the value and for the key.
        assert_eq!(stage.sandbox.exists("/f").await.unwrap_err().kind(), ErrorKind::Gone);
        let fail = options().with_replace_when_gone(ReplaceWhenGone::Fail);
        assert_eq!(stage.sandboxes.acquire("k", fail).await.unwrap_err().kind(), ErrorKind::Gone);
        let next = stage.sandboxes.acquire("k", options()).await.unwrap();
        assert_eq!(next.facts.how, How::Replaced { old: stage.sandbox.id().clone() });
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_follows_its_key_goes_on_after_a_sandbox_that_could_not_be_resumed() {
    let stage = Stage::paused(destroying().with_on_gone(OnGone::Reacquire)).await;
    let old = stage.sandbox.id().clone();
    (0..3).for_each(|_| stage.provider.script(Verb::Connect, broken()));
    let first = stage.sandbox.exists("/f").await;
    if first.is_err() {
        stage.sandbox.exists("/f").await.unwrap();
    }
    assert_ne!(*stage.sandbox.id(), old);
    assert_eq!((stage.provider.counts().created, stage.provider.alive().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_resume_whose_answers_are_lost_is_asked_about_and_destroys_nothing_that_runs() {
    for by_call in [true, false] {
        let stage = Stage::paused(destroying()).await;
        stage.provider.script_always(Verb::Connect, Fault::reset_after());
        stage.resume(by_call, destroying()).await.unwrap_err();
        assert_eq!(stage.provider.alive()[0].state, SandboxState::Running);
        stage.provider.script_clear(Verb::Connect);
        stage.sandbox.exists("/f").await.unwrap();
        stage.sandboxes.acquire("k", options()).await.unwrap();
        assert_eq!((stage.phase().await, stage.provider.counts().resumed), (Phase::Ready, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_whose_answers_are_lost_and_that_did_nothing_is_recorded_as_paused() {
    for by_call in [true, false] {
        let stage = Stage::paused(options()).await;
        let reset = Error::new(ErrorKind::Unavailable, "reset").with_outcome(Outcome::Unknown);
        stage.provider.script_always(Verb::Connect, Fault::Before(reset));
        stage.resume(by_call, options()).await.unwrap_err();
        assert_eq!(stage.phase().await, Phase::Paused);
    }
}
