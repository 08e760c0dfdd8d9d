//! The rules of acquire, over the scriptable fake: what happened is counted at the provider's side.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Attempt, CreateOptions, DestroyOutcome, Error, ErrorKind, Exclusion,
    ExecOptions, FindQuery, Generation, How, Key, Memory, MemoryRegistry, OnSpecConflict, Outcome, Owner,
    ProcessSpec, ReplaceWhenGone, SandboxHandleExt as _, SandboxId, SandboxProvider as _, SandboxSpec,
    Sandboxes, SetupState, StopOutcome, Tags,
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
async fn the_first_acquire_creates_and_the_next_connects_to_the_same_id() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let first = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((first.outcome, &first.facts.how), (AcquireOutcome::Created, &How::Fresh));
    let second = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((second.outcome, &second.facts.how), (AcquireOutcome::Connected, &How::Attached));
    assert_eq!(first.sandbox.provider_id().unwrap(), second.sandbox.provider_id().unwrap());
    assert_eq!(provider.counts().created, 1);
}

#[tokio::test]
async fn acquire_on_a_ready_sandbox_costs_one_find_and_one_connect() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    sandboxes.acquire("k", options()).await.unwrap();
    let before = provider.counts();
    sandboxes.acquire("k", options()).await.unwrap();
    let after = provider.counts();
    let spent = |verb| after.of(verb) - before.of(verb);
    assert_eq!((spent(Verb::Find), spent(Verb::Connect), spent(Verb::Inside)), (1, 1, 0));
    assert_eq!((spent(Verb::Create), spent(Verb::List)), (0, 0));
}

#[tokio::test]
async fn eight_callers_of_one_key_share_one_flight() {
    let provider = FakeProvider::new();
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldBefore(gate.clone()));
    let sandboxes = host(&provider);
    let runs = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (sandboxes, options) = (sandboxes.clone(), counting(&runs));
            tokio::spawn(async move { sandboxes.acquire("k", options).await })
        })
        .collect();
    gate.arrived(1).await;
    gate.open();
    let mut joined = 0;
    for caller in callers {
        let acquired = caller.await.unwrap().unwrap();
        assert_eq!(acquired.outcome, AcquireOutcome::Created);
        joined += usize::from(acquired.facts.joined);
    }
    assert_eq!((joined, provider.counts().created, runs.load(Ordering::SeqCst)), (7, 1, 1));
}

#[tokio::test]
async fn a_joiner_with_another_spec_is_a_conflict() {
    let provider = FakeProvider::new();
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldBefore(gate.clone()));
    let sandboxes = host(&provider);
    let first = tokio::spawn({
        let sandboxes = sandboxes.clone();
        async move { sandboxes.acquire("k", options()).await }
    });
    gate.arrived(1).await;
    let other = AcquireOptions::new(SandboxSpec::new("other"));
    let error = sandboxes.acquire("k", other).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("spec")));
    gate.open();
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_gone_leads_to_a_create() {
    let kinds = ErrorKind::ALL.iter().filter(|kind| **kind != ErrorKind::Gone);
    for kind in kinds {
        for verb in [Verb::Find, Verb::Connect] {
            for retryable in [false, true] {
                let provider = FakeProvider::new();
                let sandboxes = host(&provider);
                sandboxes.acquire("k", options()).await.unwrap();
                let fault = Error::new(*kind, "sandbox not found");
                let fault = if retryable { fault.retryable(None) } else { fault };
                provider.script_always(verb, Fault::Before(fault));
                let error = sandboxes.acquire("k", options()).await.unwrap_err();
                assert_eq!(error.kind(), *kind, "{verb:?}");
                assert_eq!(
                    (provider.counts().created, provider.counts().destroyed),
                    (1, 0),
                    "{kind} at {verb:?}"
                );
                provider.script_clear(verb);
                let again = sandboxes.acquire("k", options()).await.unwrap();
                assert_eq!(again.outcome, AcquireOutcome::Connected, "a failure must not be remembered");
            }
        }
    }
}

#[tokio::test]
async fn an_error_on_a_later_page_is_no_partial_list() {
    let mut shape = FakeOptions::default();
    shape.page_size = 2;
    let provider = FakeProvider::with_options(shape);
    // Five sandboxes of one key, as a careless program would make them: three pages.
    for _ in 0..5 {
        let tags = Tags {
            owner: Owner::default(),
            key: Key::new("k").unwrap(),
            generation: Generation::random().unwrap(),
            attempt: Attempt::random().unwrap(),
        };
        provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap();
    }
    provider.script(Verb::Find, Fault::ErrorOnPage(3, Error::new(ErrorKind::Unavailable, "page 3")));
    let error = host(&provider).acquire("k", options()).await.unwrap_err();
    assert_eq!((error.kind(), provider.counts().created), (ErrorKind::Unavailable, 5));
    let found = host(&provider).acquire("k", options()).await.unwrap();
    assert_eq!((found.facts.duplicates.len(), provider.counts().created), (4, 5));
}

#[tokio::test]
async fn a_gone_sandbox_is_replaced_and_the_facts_name_the_old() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let old = sandboxes.acquire("k", options()).await.unwrap().sandbox.provider_id().unwrap().clone();
    provider.vanish(&old);
    let fail = options().with_replace_when_gone(ReplaceWhenGone::Fail);
    let error = sandboxes.acquire("k", fail).await.unwrap_err();
    assert_eq!((error.kind(), provider.counts().created), (ErrorKind::Gone, 1));
    let new = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((new.outcome, new.facts.how), (AcquireOutcome::Created, How::Replaced { old }));
}

#[tokio::test]
async fn a_host_without_the_record_finds_the_sandbox_by_its_key() {
    let provider = FakeProvider::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let first = host(&provider).acquire("k", counting(&runs)).await.unwrap();
    let second = host(&provider).acquire("k", counting(&runs)).await.unwrap();
    assert_eq!(second.outcome, AcquireOutcome::Connected);
    assert_eq!(first.sandbox.provider_id().unwrap(), second.sandbox.provider_id().unwrap());
    assert_eq!((runs.load(Ordering::SeqCst), second.facts.setup), (1, SetupState::Done));
}

#[tokio::test]
async fn the_provider_id_alone_is_a_way_back() {
    let provider = FakeProvider::new();
    let first = host(&provider).acquire("k", options()).await.unwrap();
    let id = first.sandbox.provider_id().unwrap().clone();
    let second = host(&provider).acquire("k", options().with_provider_id(id.clone())).await.unwrap();
    assert_eq!((second.outcome, second.sandbox.provider_id().unwrap()), (AcquireOutcome::Connected, &id));
    let error = host(&provider).acquire("other", options().with_provider_id(id)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ownership, "another key's sandbox is not handed out");
}

#[tokio::test]
async fn an_untagged_sandbox_is_attached_only_by_its_explicit_id() {
    let provider = FakeProvider::new();
    let id = provider.make_untagged(SandboxSpec::default());
    let acquired = host(&provider).acquire("k", options().with_provider_id(id.clone())).await.unwrap();
    assert_eq!((acquired.sandbox.provider_id().unwrap(), provider.counts().created), (&id, 1));
}

#[tokio::test]
async fn an_id_that_contradicts_the_record_is_a_conflict() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    sandboxes.acquire("k", options()).await.unwrap();
    let wanted = options().with_provider_id(SandboxId::new("another"));
    let error = sandboxes.acquire("k", wanted).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("provider_id")));
}

#[tokio::test(start_paused = true)]
async fn a_callers_deadline_ends_only_its_own_wait() {
    let provider = FakeProvider::new();
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldBefore(gate.clone()));
    let sandboxes = host(&provider);
    let patient = tokio::spawn({
        let sandboxes = sandboxes.clone();
        async move { sandboxes.acquire("k", options()).await }
    });
    gate.arrived(1).await;
    let hasty = options().with_deadline(Duration::from_secs(1));
    let error = sandboxes.acquire("k", hasty).await.unwrap_err();
    // What the create makes is not known to whoever leaves: it is told which attempt to look for.
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown));
    assert!(error.context().any(|pair| pair == ("stage", "create")), "{error}");
    let attempt = error.context().find_map(|(name, value)| (name == "attempt").then(|| value.to_owned()));
    gate.open();
    patient.await.unwrap().unwrap();
    let alive = provider.alive();
    assert_eq!(alive.len(), 1);
    assert_eq!(alive[0].tags.as_ref().map(|tags| tags.attempt.to_string()), attempt);
}

#[tokio::test]
async fn an_exec_with_the_longest_timeout_and_grace_there_are_works() {
    let sandbox = host(&FakeProvider::new()).acquire("k", options()).await.unwrap().sandbox;
    let spec = ProcessSpec::argv("echo", ["x"]).with_grace(Duration::MAX);
    let longest = ExecOptions::default().with_timeout(Duration::MAX);
    assert!(sandbox.exec_opts(spec, longest).await.unwrap().exit.success());
}

#[tokio::test]
async fn another_spec_is_a_conflict_by_default_and_can_be_kept_or_replaced() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let old = sandboxes.acquire("k", options()).await.unwrap().sandbox.provider_id().unwrap().clone();
    let other = AcquireOptions::new(SandboxSpec::default().with_network(sandhold_core::Network::Host));
    let error = sandboxes.acquire("k", other.clone()).await.unwrap_err();
    assert!(error.context().any(|pair| pair == ("field", "network")), "{error}");
    let kept =
        sandboxes.acquire("k", other.clone().with_on_spec_conflict(OnSpecConflict::Keep)).await.unwrap();
    assert_eq!(kept.sandbox.provider_id().unwrap(), &old);
    let replaced =
        sandboxes.acquire("k", other.with_on_spec_conflict(OnSpecConflict::Replace)).await.unwrap();
    assert_eq!(replaced.facts.how, How::Replaced { old });
    assert_eq!(provider.alive().len(), 1);
}

#[tokio::test]
async fn work_on_a_paused_sandbox_resumes_it_once_for_all_callers() {
    let provider = FakeProvider::new();
    let sandbox = host(&provider).acquire("k", options()).await.unwrap().sandbox;
    sandbox.write_bytes("/home/user/f", "kept").await.unwrap();
    sandbox.pause().await.unwrap();
    let before = provider.counts().of(Verb::Connect);
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { sandbox.read_text("/home/user/f").await })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap().unwrap(), "kept");
    }
    assert_eq!(provider.counts().of(Verb::Connect) - before, 1);
}

#[tokio::test]
async fn a_write_to_a_paused_sandbox_arrives_whole() {
    let provider = FakeProvider::new();
    let sandbox = host(&provider).acquire("k", options()).await.unwrap().sandbox;
    sandbox.pause().await.unwrap();
    sandbox.write_bytes("/home/user/f", vec![7; 1 << 20]).await.unwrap();
    assert_eq!(sandbox.read_bytes("/home/user/f").await.unwrap(), vec![7; 1 << 20]);
}

#[tokio::test]
async fn acquire_resumes_a_paused_sandbox_and_says_what_was_kept() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let first = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    assert_eq!(sandboxes.stop("k").await.unwrap(), StopOutcome::Paused);
    assert_eq!(sandboxes.stop("k").await.unwrap(), StopOutcome::AlreadyPaused);
    let second = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(
        (second.outcome, second.facts.how),
        (AcquireOutcome::Connected, How::Resumed { memory: Memory::Kept })
    );
    provider.reboot(first.provider_id().unwrap()).unwrap();
    let third = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(
        (third.outcome, third.facts.how),
        (AcquireOutcome::Connected, How::Resumed { memory: Memory::Lost })
    );
}

#[tokio::test]
async fn a_destroyed_sandbox_says_so_on_every_later_call_and_sends_nothing() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let sandbox = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    assert_eq!(sandbox.destroy().await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!(sandbox.destroy().await.unwrap(), DestroyOutcome::AlreadyGone);
    let before = provider.counts().of(Verb::Inside);
    let error = sandbox.read_text("/f").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Gone, Some("destroyed")));
    assert_eq!(provider.counts().of(Verb::Inside), before);
    assert_eq!(sandboxes.acquire("k", options()).await.unwrap().facts.how, How::Fresh);
}

#[tokio::test]
async fn destroy_by_key_works_from_a_fresh_host_with_and_without_the_record() {
    for keeps_registry in [true, false] {
        let provider = FakeProvider::new();
        let registry = MemoryRegistry::new();
        host_with(&provider, &registry).acquire("k", options()).await.unwrap();
        let fresh = if keeps_registry { host_with(&provider, &registry) } else { host(&provider) };
        let resumed = provider.counts().resumed;
        assert_eq!(fresh.destroy("k").await.unwrap(), DestroyOutcome::Destroyed);
        assert_eq!(fresh.destroy("k").await.unwrap(), DestroyOutcome::AlreadyGone);
        assert_eq!((provider.alive().len(), provider.counts().resumed), (0, resumed));
    }
}

#[tokio::test]
async fn a_destroy_that_was_written_down_is_finished_by_whoever_comes_next() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let sandboxes = host_with(&provider, &registry);
    let old = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    provider.script(Verb::Destroy, Fault::refused());
    sandboxes.destroy("k").await.unwrap_err();
    assert_eq!(provider.alive().len(), 1);
    let acquired = host_with(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!(acquired.outcome, AcquireOutcome::Created);
    assert_ne!(acquired.sandbox.provider_id().unwrap(), old.provider_id().unwrap());
    assert_eq!(provider.alive().len(), 1);
}

#[tokio::test]
async fn gone_during_the_session_is_said_once_and_remembered() {
    let provider = FakeProvider::new();
    let sandbox = host(&provider).acquire("k", options()).await.unwrap().sandbox;
    provider.vanish(sandbox.provider_id().unwrap());
    assert_eq!(sandbox.read_text("/f").await.unwrap_err().kind(), ErrorKind::Gone);
    let before = provider.counts().of(Verb::Inside);
    assert_eq!(sandbox.read_text("/f").await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!((provider.counts().of(Verb::Inside), provider.counts().created), (before, 1));
}

#[tokio::test]
async fn unreachable_calls_delete_and_create_nothing() {
    let provider = FakeProvider::new();
    let sandbox = host(&provider).acquire("k", options()).await.unwrap().sandbox;
    sandbox.write_bytes("/home/user/f", "kept").await.unwrap();
    for _ in 0..4 {
        provider.script(Verb::Inside, Fault::Before(Error::new(ErrorKind::Unavailable, "502")));
        assert_eq!(sandbox.read_text("/home/user/f").await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(sandbox.read_text("/home/user/f").await.unwrap(), "kept");
    assert_eq!((provider.counts().created, provider.counts().destroyed), (1, 0));
}

#[tokio::test]
async fn hosts_without_a_shared_registry_end_with_one_sandbox() {
    let provider = FakeProvider::new();
    // Both creates are under way before either is listed.
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldAfter(gate.clone()));
    provider.script(Verb::Create, Fault::HoldAfter(gate.clone()));
    let racers: Vec<_> = (0..2)
        .map(|_| {
            let sandboxes = host(&provider);
            tokio::spawn(async move { sandboxes.acquire("k", options()).await })
        })
        .collect();
    gate.arrived(2).await;
    gate.open();
    let mut ids = Vec::new();
    for racer in racers {
        ids.push(racer.await.unwrap().unwrap().sandbox.provider_id().unwrap().clone());
    }
    assert_eq!(ids[0], ids[1]);
    assert_eq!(provider.alive().len(), 1);
}

#[tokio::test]
async fn a_provider_without_a_listing_bound_needs_consent_where_no_registry_is_shared() {
    let mut shape = FakeOptions::default();
    shape.capabilities.list_visibility = None;
    shape.capabilities.create_settle = None;
    let provider = FakeProvider::with_options(shape);
    let error = host(&provider).acquire("k", options()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("exclusion")));
    host(&provider).acquire("j", options().with_exclusion(Exclusion::BestEffort)).await.unwrap();
    assert_eq!(provider.counts().created, 1);
}

#[tokio::test]
async fn a_bad_key_is_refused_by_name() {
    let error = host(&FakeProvider::new()).acquire("", options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn find_by_key_of_the_fake_shows_what_acquire_made() {
    let provider = FakeProvider::new();
    let acquired = host(&provider).acquire("k", options()).await.unwrap();
    let query = FindQuery::Key { owner: Owner::default(), key: Key::new("k").unwrap(), attempt: None };
    let found = provider.find(query).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, *acquired.sandbox.provider_id().unwrap());
}

#[tokio::test(start_paused = true)]
async fn without_a_common_registry_a_create_whose_answer_was_lost_is_compared_too() {
    let provider = FakeProvider::new();
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(2)));
    let slow = {
        let sandboxes = host(&provider);
        let options = options().with_call_deadline(Duration::from_secs(1));
        tokio::spawn(async move { sandboxes.acquire("k", options).await })
    };
    while provider.counts().of(Verb::Create) == 0 {
        tokio::task::yield_now().await;
    }
    let fast = host(&provider).acquire("k", options()).await.unwrap();
    let slow = slow.await.unwrap().unwrap();
    assert_eq!(slow.sandbox.provider_id(), fast.sandbox.provider_id());
    assert_eq!((provider.counts().created, provider.alive().len()), (2, 1));
}
