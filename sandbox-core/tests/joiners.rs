//! Callers that join a flight: each has a value of its own, and gets what it asked for.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use sandhold_core::testing::{FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Acquired, Error, ErrorKind, Event, EventKind, Hooks, How, OnGone,
    OnSpecConflict, ReplaceWhenGone, Result, SandboxHandleExt as _, SandboxSpec, Sandboxes, SetupState,
};

fn host(provider: &FakeProvider) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone()))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn with_hook(runs: &Arc<AtomicUsize>) -> AcquireOptions {
    let runs = Arc::clone(runs);
    options().with_on_start(move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    })
}

/// The second joins the flight of the first, which is held at its create.
async fn both(
    sandboxes: &Sandboxes,
    provider: &FakeProvider,
    first: AcquireOptions,
    second: AcquireOptions,
) -> (Result<Acquired>, Result<Acquired>) {
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldAfter(gate.clone()));
    let one = tokio::spawn({
        let sandboxes = sandboxes.clone();
        async move { sandboxes.acquire("k", first).await }
    });
    gate.arrived(1).await;
    let mut two = Box::pin(sandboxes.acquire("k", second));
    tokio::select! {
        biased;
        early = &mut two => panic!("it did not wait for the flight: {early:?}"),
        () = std::future::ready(()) => {}
    }
    gate.open();
    let two = two.await;
    (one.await.unwrap(), two)
}

#[tokio::test]
async fn what_one_caller_does_to_its_value_is_nothing_to_the_others() {
    let provider = FakeProvider::new();
    let (first, second) = both(&host(&provider), &provider, options(), options()).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(second.facts.joined && !first.facts.joined);
    first.sandbox.detach();
    assert_eq!(first.sandbox.exists("/f").await.unwrap_err().reason(), Some("detached"));
    second.sandbox.write_bytes("/home/user/f", "mine").await.unwrap();
}

#[tokio::test]
async fn a_joiner_keeps_its_own_policy_for_the_time_after() {
    let provider = FakeProvider::new();
    let following = options().with_on_gone(OnGone::Reacquire);
    let (first, second) = both(&host(&provider), &provider, options(), following).await;
    let (first, second) = (first.unwrap().sandbox, second.unwrap().sandbox);
    provider.vanish(first.provider_id().unwrap());
    assert_eq!(first.exists("/f").await.unwrap_err().kind(), ErrorKind::Gone);
    second.write_bytes("/home/user/f", "again").await.unwrap();
    assert_eq!(first.exists("/f").await.unwrap_err().kind(), ErrorKind::Gone);
    assert_ne!(first.provider_id(), second.provider_id());
}

#[tokio::test]
async fn a_joiner_that_names_another_sandbox_is_a_conflict_and_gets_none() {
    let provider = FakeProvider::new();
    let other = provider.make_untagged(SandboxSpec::default());
    let (first, second) =
        both(&host(&provider), &provider, options(), options().with_provider_id(other)).await;
    first.unwrap();
    let error = second.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("provider_id")));
}

#[tokio::test]
async fn a_joiner_whose_setup_the_flight_did_not_do_does_it_afterwards() {
    let provider = FakeProvider::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let (first, second) = both(&host(&provider), &provider, options(), with_hook(&runs)).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((runs.load(Ordering::SeqCst), second.facts.setup), (1, SetupState::Needed));
    assert_eq!((second.outcome, &second.facts.how), (AcquireOutcome::Connected, &How::Attached));
    assert_eq!(first.sandbox.provider_id(), second.sandbox.provider_id());
}

#[tokio::test]
async fn a_joiner_that_wants_no_new_sandbox_is_told_that_its_own_is_gone() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let old = sandboxes.acquire("k", options()).await.unwrap().sandbox.provider_id().unwrap().clone();
    provider.vanish(&old);
    let failing = options().with_replace_when_gone(ReplaceWhenGone::Fail);
    let (first, second) = both(&sandboxes, &provider, options(), failing).await;
    assert_eq!(first.unwrap().facts.how, How::Replaced { old: old.clone() });
    let error = second.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.context().any(|pair| pair == ("id", old.as_str())), "{error}");
}

#[tokio::test]
async fn a_joiner_that_replaces_another_spec_does_so_after_the_flight() {
    let provider = FakeProvider::new();
    let other = AcquireOptions::new(SandboxSpec::new("other")).with_on_spec_conflict(OnSpecConflict::Replace);
    let (first, second) = both(&host(&provider), &provider, options(), other).await;
    let old = first.unwrap().sandbox.provider_id().unwrap().clone();
    assert_eq!(second.unwrap().facts.how, How::Replaced { old });
    assert_eq!(provider.alive().len(), 1);
}

#[tokio::test]
async fn joiners_share_a_failure_and_one_with_other_policies_meets_its_own() {
    let provider = FakeProvider::new();
    let refused = Fault::Before(Error::new(ErrorKind::QuotaExceeded, "no more"));
    let sandboxes = host(&provider);
    for (second, creates) in [
        (options().with_deadline(Duration::from_secs(60)), 1),
        (options().with_replace_when_gone(ReplaceWhenGone::Fail), 2),
    ] {
        let before = provider.counts().of(Verb::Create);
        provider.script(Verb::Create, refused.clone());
        let gate = Gate::new();
        provider.script(Verb::Find, Fault::HoldBefore(gate.clone()));
        let flight = tokio::spawn({
            let sandboxes = sandboxes.clone();
            async move { sandboxes.acquire("k", options()).await }
        });
        gate.arrived(1).await;
        let joiner = sandboxes.acquire("k", second);
        let ((), joined) = tokio::join!(async { gate.open() }, joiner);
        assert_eq!(flight.await.unwrap().unwrap_err().kind(), ErrorKind::QuotaExceeded);
        assert_eq!(provider.counts().of(Verb::Create) - before, creates);
        assert_eq!(joined.is_ok(), creates == 2, "{joined:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_zero_makes_nothing_and_says_where_it_ended() {
    let provider = FakeProvider::new();
    let error = host(&provider).acquire("k", options().with_deadline(Duration::ZERO)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.context().any(|pair| pair == ("stage", "starting")), "{error}");
    tokio::task::yield_now().await;
    assert_eq!(provider.counts().of(Verb::Create), 0);
}

/// Leaves an acquire that it has begun, whenever it hears of a conflict.
#[derive(Debug, Default)]
struct Leaving(OnceLock<Sandboxes>, AtomicUsize);

impl Hooks for Leaving {
    fn on_event(&self, event: &Event) {
        if let (EventKind::Conflict { .. }, Some(sandboxes)) = (&event.kind, self.0.get()) {
            let mut acquire = Box::pin(sandboxes.acquire("another", options()));
            assert!(acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn who_hears_of_a_conflict_may_begin_and_leave_an_acquire() {
    let (provider, hooks) = (FakeProvider::new(), Arc::new(Leaving::default()));
    let sandboxes = host(&provider).with_hooks(hooks.clone());
    hooks.0.set(sandboxes.clone()).unwrap();
    let other = AcquireOptions::new(SandboxSpec::new("other"));
    let (first, second) = tokio::join!(sandboxes.acquire("k", options()), sandboxes.acquire("k", other));
    first.unwrap();
    assert_eq!(second.unwrap_err().reason(), Some("spec"));
    assert_eq!(hooks.1.load(Ordering::SeqCst), 1);
}
