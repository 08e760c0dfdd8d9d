//! What becomes of the values of a sandbox: death during the session, replacement, and what listeners are told.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Attempt, CreateOptions, DestroyOutcome, Error, ErrorKind, Event,
    EventKind, Events, Generation, Hooks, How, Key, Lagged, Memory, MemoryRegistry, OnDuplicates, OnGone,
    OnSetupFailure, Outcome, Owner, REASON_HOOK, REASON_REPLACED, Result, Sandbox, SandboxHandle as _,
    SandboxHandleExt as _, SandboxId, SandboxProvider as _, SandboxSpec, Sandboxes, StopOutcome, Tags,
};

fn host(provider: &FakeProvider) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone()))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn following() -> AcquireOptions {
    options().with_on_gone(OnGone::Reacquire)
}

/// The codes of everything told so far.
async fn told(events: &mut Events) -> Vec<&'static str> {
    all(events).await.iter().map(|event| event.kind.as_str()).collect()
}

/// Everything told so far. Nothing is told from elsewhere: what is not there at once does not come.
async fn all(events: &mut Events) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        tokio::select! {
            biased;
            event = events.next() => all.push(event.unwrap().unwrap()),
            () = std::future::ready(()) => return all,
        }
    }
}

async fn make_another(provider: &FakeProvider, key: &str) -> SandboxId {
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new(key).unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    };
    let made = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap();
    made.id().clone()
}

#[tokio::test]
async fn a_lost_sandbox_fails_every_call_by_default_and_none_is_made() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let sandbox = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    let twin = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    let mut events = sandboxes.events();
    provider.vanish(sandbox.id());
    for _ in 0..3 {
        assert_eq!(sandbox.read_text("/f").await.unwrap_err().kind(), ErrorKind::Gone);
    }
    let sent = provider.counts().of(Verb::Inside);
    assert_eq!(twin.read_text("/f").await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(provider.counts().of(Verb::Inside), sent, "what one value learned, the other knows");
    assert_eq!((told(&mut events).await, provider.counts().created), (vec!["gone"], 1));
}

#[tokio::test]
async fn a_value_that_follows_its_key_goes_on_with_the_next_sandbox_and_says_so_once() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let sandbox = sandboxes.acquire("k", following()).await.unwrap().sandbox;
    let twin = sandboxes.acquire("k", following()).await.unwrap().sandbox;
    let old = sandbox.id().clone();
    let mut events = sandboxes.events();
    provider.vanish(&old);
    let callers: Vec<_> = (0..8)
        .map(|index| {
            let sandbox = if index % 2 == 0 { sandbox.clone() } else { twin.clone() };
            tokio::spawn(async move {
                sandbox.write_bytes(&format!("/home/user/{index}"), "here").await.map(drop)
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    let new = sandbox.id().clone();
    assert_ne!(old, new);
    assert_eq!((twin.id(), sandbox.provider_id()), (&new, Some(&new)));
    assert_eq!((provider.counts().created, provider.alive().len()), (2, 1));
    let all = all(&mut events).await;
    let replaced: Vec<_> = all.iter().filter(|event| event.kind.as_str() == "replaced").collect();
    assert_eq!(replaced.len(), 1, "{all:?}");
    assert_eq!(replaced[0].kind, EventKind::Replaced { old, new });
    for index in 0..8 {
        assert_eq!(sandbox.read_text(&format!("/home/user/{index}")).await.unwrap(), "here");
    }
}

#[tokio::test]
async fn a_call_that_may_have_taken_effect_is_not_sent_again_and_the_next_one_goes_on() {
    let provider = FakeProvider::new();
    let sandbox = host(&provider).acquire("k", following()).await.unwrap().sandbox;
    let old = sandbox.id().clone();
    let lost = Error::new(ErrorKind::Gone, "it went away meanwhile").with_outcome(Outcome::Unknown);
    provider.script(Verb::Inside, Fault::LoseAnswer(lost));
    let error = sandbox.write_bytes("/home/user/f", "once").await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Gone, Outcome::Unknown));
    assert_eq!((sandbox.id(), provider.counts().created), (&old, 1));
    provider.vanish(&old);
    sandbox.write_bytes("/home/user/f", "again").await.unwrap();
    assert_ne!(sandbox.id(), &old);
}

#[tokio::test]
async fn a_value_that_follows_its_key_goes_through_setup_again_and_a_failure_is_not_remembered() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let hook = following().with_on_start(|start| async move {
        start.sandbox.write_bytes("/home/user/ready", start.outcome.as_str()).await.map(drop)
    });
    let sandbox = sandboxes.acquire("k", hook).await.unwrap().sandbox;
    provider.vanish(sandbox.id());
    provider.script(Verb::Create, Fault::refused());
    let error = sandbox.read_text("/home/user/ready").await.unwrap_err();
    assert_eq!((error.kind(), provider.counts().created), (ErrorKind::Unavailable, 1));
    assert_eq!(sandbox.read_text("/home/user/ready").await.unwrap(), "created");
}

#[tokio::test]
async fn only_gone_lets_a_value_follow_its_key() {
    for kind in ErrorKind::ALL.iter().filter(|kind| **kind != ErrorKind::Gone) {
        let provider = FakeProvider::new();
        let sandbox = host(&provider).acquire("k", following()).await.unwrap().sandbox;
        let finds = provider.counts().of(Verb::Find);
        provider.script(Verb::Inside, Fault::Before(Error::new(*kind, "sandbox not found")));
        assert_eq!(sandbox.read_text("/f").await.unwrap_err().kind(), *kind);
        assert_eq!((provider.counts().created, provider.counts().of(Verb::Find)), (1, finds), "{kind}");
    }
}

#[tokio::test]
async fn gone_inside_a_start_hook_is_never_followed() {
    let provider = FakeProvider::new();
    let vanishing = provider.clone();
    let hook = following().with_on_start(move |start| {
        let vanishing = vanishing.clone();
        async move {
            vanishing.vanish(start.sandbox.id());
            start.sandbox.write_bytes("/home/user/f", "x").await.map(drop)
        }
    });
    let error = host(&provider).acquire("k", hook).await.unwrap_err();
    assert_eq!((error.kind(), provider.counts().created), (ErrorKind::Gone, 1));
}

#[tokio::test]
async fn a_value_that_was_destroyed_through_does_not_follow() {
    let provider = FakeProvider::new();
    let sandbox = host(&provider).acquire("k", following()).await.unwrap().sandbox;
    sandbox.destroy().await.unwrap();
    let error = sandbox.read_text("/f").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Gone, Some("destroyed")));
    assert_eq!(
        (sandbox.destroy().await.unwrap(), provider.counts().created),
        (DestroyOutcome::AlreadyGone, 1)
    );
}

#[tokio::test]
async fn a_value_of_a_replaced_sandbox_is_stale_and_sends_nothing() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let old = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    provider.vanish(old.id());
    let new = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(new.facts.how, How::Replaced { old: old.id().clone() });
    let before = provider.counts();
    let refused = [
        old.read_text("/f").await.unwrap_err(),
        old.info().await.unwrap_err(),
        old.pause().await.unwrap_err(),
        old.resume().await.unwrap_err(),
        old.stop().await.unwrap_err(),
        old.set_lease(Duration::from_secs(60)).await.unwrap_err(),
        old.destroy().await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some(REASON_REPLACED)), "{error}");
        assert_eq!(error.outcome(), Outcome::NotStarted);
    }
    assert_eq!(provider.counts(), before);
    assert!(new.sandbox.write_bytes("/home/user/f", "x").await.is_ok());
}

#[tokio::test]
async fn a_verb_on_a_sandbox_that_another_host_has_replaced_is_stale_and_sends_nothing() {
    let provider = FakeProvider::new();
    let registry = Arc::new(MemoryRegistry::new());
    let here = host(&provider).with_registry(registry.clone());
    let elsewhere = host(&provider).with_registry(registry);
    for verb in ["pause", "stop", "resume", "set_lease", "destroy"] {
        let old = here.acquire(verb, options()).await.unwrap().sandbox;
        provider.vanish(old.id());
        elsewhere.acquire(verb, options()).await.unwrap();
        let before = provider.counts();
        let error = match verb {
            "pause" => old.pause().await.map(drop),
            "stop" => old.stop().await.map(drop),
            "resume" => old.resume().await,
            "set_lease" => old.set_lease(Duration::from_secs(60)).await,
            _ => old.destroy().await.map(drop),
        }
        .unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some(REASON_REPLACED)), "{verb}");
        assert_eq!(provider.counts(), before, "{verb}");
    }
}

#[tokio::test]
async fn listeners_are_told_of_a_whole_life_in_order() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let mut events = sandboxes.events();
    let sandbox = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    assert_eq!(told(&mut events).await, ["starting", "started"]);
    sandbox.pause().await.unwrap();
    sandbox.write_bytes("/home/user/f", "x").await.unwrap();
    assert_eq!(told(&mut events).await, ["paused", "resumed"]);
    assert_eq!(sandbox.stop().await.unwrap(), StopOutcome::Paused);
    assert_eq!(told(&mut events).await, ["paused", "stopped"]);
    sandboxes.acquire("k", options()).await.unwrap();
    let woken = all(&mut events).await;
    assert_eq!(woken[1].kind, EventKind::Resumed { memory: Memory::Kept });
    let how = How::Resumed { memory: Memory::Kept };
    assert_eq!(woken[2].kind, EventKind::Started { outcome: AcquireOutcome::Connected, how });
    assert_eq!((woken.len(), woken[2].id.as_ref()), (3, sandbox.provider_id()));
    provider.script(Verb::Pause, Fault::refused());
    sandbox.pause().await.unwrap_err();
    let failed = EventKind::PauseFailed { kind: ErrorKind::Unavailable, reason: None };
    assert_eq!(all(&mut events).await[0].kind, failed);
    sandbox.destroy().await.unwrap();
    sandbox.destroy().await.unwrap();
    assert_eq!(told(&mut events).await, ["destroyed"]);
    drop((sandbox, sandboxes));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn listeners_are_told_of_stops_and_destroys_by_key() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    sandboxes.acquire("k", options()).await.unwrap();
    let mut events = sandboxes.events();
    sandboxes.stop("k").await.unwrap();
    sandboxes.destroy("k").await.unwrap();
    sandboxes.destroy("k").await.unwrap();
    assert_eq!(told(&mut events).await, ["paused", "stopped", "destroyed"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_acquire_is_told_by_stage_and_kind_and_without_text() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let mut events = sandboxes.events();
    let refused = Error::new(ErrorKind::PermissionDenied, "token e2b_secret is not valid");
    provider.script(Verb::Create, Fault::Before(refused));
    sandboxes.acquire("k", options()).await.unwrap_err();
    let failed = all(&mut events).await;
    let expected = EventKind::ProvisionFailed {
        stage: "create",
        kind: ErrorKind::PermissionDenied,
        reason: None,
        cleaned_up: true,
    };
    assert_eq!(failed[1].kind, expected);
    assert!(!format!("{failed:?}").contains("secret"));
    provider.script(Verb::Create, Fault::reset_after());
    provider.script_honest(Verb::Find, 1);
    provider.script(Verb::Find, Fault::Before(Error::new(ErrorKind::PermissionDenied, "no")));
    sandboxes.acquire("k", options()).await.unwrap_err();
    let unknown = all(&mut events).await;
    let EventKind::ProvisionFailed { stage, kind, cleaned_up, .. } = unknown[1].kind else {
        panic!("{unknown:?}")
    };
    assert_eq!((stage, kind, cleaned_up), ("settle", ErrorKind::OutcomeUnknown, false));
    let failing = options()
        .with_on_start(|_| async { Err(Error::new(ErrorKind::NotFound, "no network")) })
        .with_on_setup_failure(OnSetupFailure::Destroy);
    sandboxes.acquire("k", failing).await.unwrap_err();
    let setup = EventKind::SetupFailed { stage: "on_start", kind: ErrorKind::NotFound, reason: None };
    let all = all(&mut events).await;
    assert_eq!(
        all.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(),
        ["starting", "destroyed", "setup_failed"]
    );
    assert_eq!(all[2].kind, setup);
}

#[tokio::test]
async fn conflicts_are_told_of_to_those_who_fly_and_those_who_join() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldBefore(gate.clone()));
    let mut events = sandboxes.events();
    let first = tokio::spawn({
        let sandboxes = sandboxes.clone();
        async move { sandboxes.acquire("k", options()).await }
    });
    gate.arrived(1).await;
    let other = AcquireOptions::new(SandboxSpec::new("other"));
    sandboxes.acquire("k", other.clone()).await.unwrap_err();
    gate.open();
    first.await.unwrap().unwrap();
    sandboxes.acquire("k", other).await.unwrap_err();
    assert_eq!(told(&mut events).await, ["starting", "conflict", "started", "starting", "conflict"]);
}

#[tokio::test]
async fn a_listener_that_is_too_slow_is_told_how_much_it_missed() {
    let sandboxes = host(&FakeProvider::new()).with_event_capacity(2);
    let mut events = sandboxes.events();
    for key in ["a", "b"] {
        sandboxes.acquire(key, options()).await.unwrap();
    }
    assert_eq!(events.next().await, Some(Err(Lagged { missed: 2 })));
    let next = events.next().await.unwrap().unwrap();
    assert_eq!((next.key.as_str(), next.kind), ("b", EventKind::Starting));
}

/// Hooks that note what they are told, and panic where they are told so.
#[derive(Debug, Default)]
struct Noting {
    told: Mutex<Vec<&'static str>>,
    panics_at: &'static str,
}

#[async_trait]
impl Hooks for Noting {
    async fn on_stop(&self, _: &Sandbox) -> Result<()> {
        assert_ne!(self.panics_at, "on_stop");
        Ok(())
    }

    async fn on_destroy(&self, _: &Sandbox) -> Result<()> {
        assert_ne!(self.panics_at, "on_destroy");
        Err(Error::new(ErrorKind::NotFound, "nobody to say goodbye to"))
    }

    fn on_event(&self, event: &Event) {
        self.told.lock().unwrap().push(event.kind.as_str());
        assert_ne!(self.panics_at, "on_event");
    }
}

#[tokio::test]
async fn the_hooks_of_an_acquire_are_told_what_listeners_are() {
    let provider = FakeProvider::new();
    let hooks = Arc::new(Noting { panics_at: "on_event", ..Noting::default() });
    let sandboxes = host(&provider);
    let mut events = sandboxes.events();
    let acquired = sandboxes.acquire("k", following().with_hooks(hooks.clone())).await.unwrap();
    provider.vanish(acquired.sandbox.id());
    acquired.sandbox.write_bytes("/home/user/f", "x").await.unwrap();
    let told = told(&mut events).await;
    assert_eq!(told, ["starting", "started", "gone", "starting", "replaced", "started"]);
    assert_eq!(*hooks.told.lock().unwrap(), told, "and what a panicking listener does is its own affair");
}

#[tokio::test]
async fn hooks_that_panic_or_fail_keep_nothing_from_ending_and_no_failure_hides_another() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let panicking = |at| options().with_hooks(Arc::new(Noting { panics_at: at, ..Noting::default() }));
    let sandbox = sandboxes.acquire("k", panicking("on_stop")).await.unwrap().sandbox;
    let error = sandbox.stop().await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some(REASON_HOOK)));
    assert_eq!((error.outcome(), provider.counts().of(Verb::Pause)), (Outcome::Done, 1));
    provider.script(Verb::Destroy, Fault::refused());
    let error = sandbox.destroy().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.context().any(|(name, value)| name == "on_destroy" && value.contains("goodbye")),
        "{error}"
    );
    let error = sandbox.destroy().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::NotFound, Outcome::Done));
    assert!(provider.alive().is_empty());
}

#[tokio::test]
async fn duplicates_are_reported_and_left_alone_unless_they_are_to_be_reaped() {
    let provider = FakeProvider::new();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(make_another(&provider, "k").await);
    }
    let sandboxes = host(&provider);
    let mut events = sandboxes.events();
    let found = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((found.sandbox.id(), &found.facts.duplicates[..]), (&ids[0], &ids[1..]));
    let reported: Vec<_> =
        all(&mut events).await.into_iter().filter(|event| event.kind.as_str() == "duplicate_found").collect();
    assert_eq!(reported.len(), 2);
    assert!(reported.iter().all(|event| event.id.as_ref() == Some(&ids[0])));
    assert_eq!(provider.alive().len(), 3);
    // Another host, which knows nothing of the first.
    let reaping =
        host(&provider).acquire("k", options().with_on_duplicates(OnDuplicates::Reap)).await.unwrap();
    assert_eq!((reaping.sandbox.id(), reaping.facts.duplicates.len()), (&ids[0], 0));
    assert_eq!(provider.alive().into_iter().map(|info| info.id).collect::<Vec<_>>(), ids[..1]);
}

#[tokio::test]
async fn a_reap_that_was_cut_short_is_finished_by_whoever_comes_next() {
    let provider = FakeProvider::new();
    for _ in 0..2 {
        make_another(&provider, "k").await;
    }
    let registry = Arc::new(MemoryRegistry::new());
    let reap = options().with_on_duplicates(OnDuplicates::Reap);
    provider.script(Verb::Destroy, Fault::refused());
    let sandboxes = host(&provider).with_registry(registry.clone());
    sandboxes.acquire("k", reap).await.unwrap_err();
    assert_eq!(provider.alive().len(), 2);
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    provider.vanish(acquired.sandbox.id());
    sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((provider.alive().len(), provider.counts().created), (1, 3), "the reaped one is not taken");
}

#[tokio::test]
async fn discovery_prefers_the_recorded_generation() {
    let provider = FakeProvider::with_options(FakeOptions::default());
    let registry = Arc::new(MemoryRegistry::new());
    let sandboxes = host(&provider).with_registry(registry.clone());
    let elder = make_another(&provider, "k").await;
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(acquired.sandbox.id(), &elder);
    // The same generation under another id, as a provider shows it that restored a sandbox.
    let younger = make_another(&provider, "k").await;
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new("k").unwrap(),
        generation: acquired.sandbox.generation().unwrap().clone(),
        attempt: Attempt::random().unwrap(),
    };
    let restored = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap();
    provider.vanish(&elder);
    let found = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((found.sandbox.id(), &found.facts.duplicates[..]), (restored.id(), &[younger][..]));
}
