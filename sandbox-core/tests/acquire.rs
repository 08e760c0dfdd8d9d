//! The rules of acquire, over the scriptable fake: what happened is counted at the provider's side.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Attempt, CreateOptions, DestroyOutcome, Error, ErrorKind, Exclusion,
    ExecOptions, FindQuery, Generation, How, Key, Lease, Memory, MemoryRegistry, OnSetupFailure,
    OnSpecConflict, Outcome, Owner, Phase, ProcessSpec, Record, RecordFilter, Registry, RegistryScope,
    ReplaceWhenGone, Result, ResultStream, SandboxHandle as _, SandboxHandleExt as _, SandboxId,
    SandboxProvider as _, SandboxProviderExt as _, SandboxSpec, Sandboxes, SetupState, StopOutcome, Tags,
};
use tokio::sync::Semaphore;

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
async fn gone_under_other_credentials_is_an_ownership_error() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let id = host_with(&provider, &registry)
        .acquire("k", options())
        .await
        .unwrap()
        .sandbox
        .provider_id()
        .unwrap()
        .clone();
    provider.vanish(&id);
    let moved = provider.clone().with_fingerprint("elsewhere");
    let error = host_with(&moved, &registry).acquire("k", options()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Ownership, Some("fingerprint")));
    assert_eq!(provider.counts().created, 1);
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
async fn a_lost_create_answer_is_settled_into_the_same_sandbox() {
    for idempotent in [false, true] {
        let shape =
            if idempotent { FakeOptions::default().with_idempotent_create() } else { FakeOptions::default() };
        let provider = FakeProvider::with_options(shape);
        provider.script(Verb::Create, Fault::reset_after());
        let acquired = host(&provider).acquire("k", options()).await.unwrap();
        assert_eq!((acquired.outcome, &acquired.facts.how), (AcquireOutcome::Created, &How::Adopted));
        assert_eq!((provider.counts().created, provider.alive().len()), (1, 1));
        acquired.sandbox.shell("true").await.ok();
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_that_commits_late_is_still_one_sandbox() {
    let provider = FakeProvider::new();
    // It takes effect after the call was given up, and before the settle window ends.
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(62)));
    let acquired = host(&provider).acquire("k", options()).await.unwrap();
    assert_eq!(acquired.facts.how, How::Adopted);
    assert_eq!((provider.counts().created, provider.alive().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_proven_absence_is_an_error_that_says_nothing_was_made() {
    let provider = FakeProvider::new();
    provider.script(Verb::Create, Fault::HangBefore);
    let sandboxes = host(&provider);
    let error = sandboxes.acquire("k", options()).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotStarted);
    assert_eq!(provider.counts().created, 0);
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, provider.counts().created), (AcquireOutcome::Created, 1));
}

#[tokio::test(start_paused = true)]
async fn a_create_that_cannot_be_settled_in_time_is_outcome_unknown_and_settled_by_the_next_acquire() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    provider.script(Verb::Create, Fault::reset_after());
    provider.script_always(Verb::Find, Fault::refused());
    let sandboxes = host_with(&provider, &registry);
    // The first look by key is a find too: it must pass.
    provider.script_honest(Verb::Find, 1);
    let error = sandboxes.acquire("k", options()).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown));
    assert!(error.context().any(|(name, _)| name == "attempt"), "{error}");
    provider.script_clear(Verb::Find);
    // As another process would: nothing of the first host is left but the registry.
    let acquired = host_with(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, &acquired.facts.how), (AcquireOutcome::Created, &How::Adopted));
    assert_eq!((provider.counts().created, provider.alive().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_acquire_leaves_its_create_to_end_and_be_recorded() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldAfter(gate.clone()));
    let sandboxes = host_with(&provider, &registry);
    let caller = tokio::spawn({
        let sandboxes = sandboxes.clone();
        async move { sandboxes.acquire("k", options()).await }
    });
    gate.arrived(1).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    gate.open();
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, provider.counts().created), (AcquireOutcome::Created, 1));
    // Whoever comes first settles it: this acquire, or what goes on in the background.
    assert!(matches!(acquired.facts.how, How::Adopted | How::Unfinished));
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
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.context().any(|pair| pair == ("stage", "create")), "{error}");
    gate.open();
    patient.await.unwrap().unwrap();
    assert_eq!(provider.counts().created, 1);
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

#[tokio::test]
async fn an_exec_with_the_longest_timeout_and_grace_there_are_works() {
    let sandbox = host(&FakeProvider::new()).acquire("k", options()).await.unwrap().sandbox;
    let spec = ProcessSpec::argv("echo", ["x"]).with_grace(Duration::MAX);
    let longest = ExecOptions::default().with_timeout(Duration::MAX);
    assert!(sandbox.exec_opts(spec, longest).await.unwrap().exit.success());
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

/// A registry of a host that falls asleep at one point.
#[derive(Debug)]
struct Asleep {
    at: Nap,
    registry: MemoryRegistry,
    fell: Semaphore,
    wake: Semaphore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nap {
    /// Right before it writes that its sandbox is ready.
    Ready,
    /// Right after it renewed its lease.
    Renewed,
}

impl Asleep {
    fn new(registry: &MemoryRegistry) -> Self {
        let at = Nap::Ready;
        Self { at, registry: registry.clone(), fell: Semaphore::new(0), wake: Semaphore::new(0) }
    }

    fn over(registry: &MemoryRegistry) -> Arc<Self> {
        Arc::new(Self::new(registry))
    }

    async fn nap(&self) {
        self.fell.add_permits(1);
        self.wake.acquire().await.unwrap().forget();
    }
}

#[async_trait]
impl Registry for Asleep {
    fn scope(&self) -> RegistryScope {
        self.registry.scope()
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        self.registry.load(owner, key).await
    }

    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        if record.phase == Phase::Ready && self.at == Nap::Ready {
            self.nap().await;
        }
        self.registry.store(record, lease).await
    }

    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        self.registry.remove(record, lease).await
    }

    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        self.registry.try_lease(owner, key, ttl).await
    }

    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        self.registry.renew(owner, key, lease, ttl).await?;
        if self.at == Nap::Renewed {
            self.nap().await;
        }
        Ok(())
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        self.registry.list(filter).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_creator_that_was_overtaken_leaves_the_sandbox_to_who_took_it_over() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let asleep = Asleep::over(&registry);
    let late = tokio::spawn({
        let sandboxes = host(&provider).with_registry(asleep.clone());
        async move { sandboxes.acquire("k", options()).await }
    });
    asleep.fell.acquire().await.unwrap().forget();
    // The lease of the sleeper runs out, and another host settles its open create.
    let taken_over = host_with(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!(taken_over.facts.how, How::Adopted);
    asleep.wake.add_permits(1);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    assert!(taken_over.sandbox.exec(ProcessSpec::argv("true", [""; 0])).await.is_ok());
    let counts = provider.counts();
    assert_eq!((counts.created, counts.of(Verb::Destroy), provider.alive().len()), (1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_creator_that_was_given_up_destroys_what_it_made() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let asleep = Asleep::over(&registry);
    let late = tokio::spawn({
        let sandboxes = host(&provider).with_registry(asleep.clone());
        async move { sandboxes.acquire("k", options()).await }
    });
    asleep.fell.acquire().await.unwrap().forget();
    // Whoever takes over settles the create and then destroys the sandbox; the key gets another one.
    let other = host_with(&provider, &registry);
    other.acquire("k", options()).await.unwrap();
    other.destroy("k").await.unwrap();
    let second = other.acquire("k", options()).await.unwrap();
    // For what it stores of what it made, and for what it writes down before it destroys that.
    asleep.wake.add_permits(2);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(
        provider.alive().iter().map(|info| &info.id).collect::<Vec<_>>(),
        [second.sandbox.provider_id().unwrap()]
    );
}

#[tokio::test(start_paused = true)]
async fn a_create_that_was_given_up_is_known_after_a_destroy_and_its_late_sandbox_is_destroyed() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let sandboxes = host_with(&provider, &registry);
    // The provider breaks its bound: the create takes effect long after its absence counted as proven.
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(3600)));
    let error = sandboxes.acquire("k", options().with_deadline(Duration::from_secs(900))).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotStarted, "{error:?}");
    sandboxes.acquire("k", options()).await.unwrap();
    sandboxes.destroy("k").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(provider.alive().len(), 1, "the late one has come");
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, &acquired.facts.how), (AcquireOutcome::Created, &How::Fresh));
    assert_eq!(
        provider.alive().iter().map(|info| &info.id).collect::<Vec<_>>(),
        [acquired.sandbox.provider_id().unwrap()]
    );
}

#[tokio::test(start_paused = true)]
async fn an_open_create_of_another_spec_is_given_up_and_its_late_sandbox_is_destroyed() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let sandboxes = host_with(&provider, &registry);
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(3600)));
    let short = options().with_deadline(Duration::from_secs(30));
    sandboxes.acquire("k", short).await.unwrap_err();
    let other = AcquireOptions::new(SandboxSpec::new("other")).with_on_spec_conflict(OnSpecConflict::Replace);
    sandboxes.acquire("k", other).await.unwrap();
    sandboxes.destroy("k").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(provider.alive().len(), 1, "the late one has come");
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(acquired.facts.how, How::Fresh);
    assert_eq!(
        provider.alive().iter().map(|info| &info.id).collect::<Vec<_>>(),
        [acquired.sandbox.provider_id().unwrap()]
    );
}

#[tokio::test(start_paused = true)]
async fn an_open_create_whose_sandbox_has_ended_meanwhile_leads_to_a_new_one() {
    let provider = FakeProvider::with_options(FakeOptions::default().with_idempotent_create());
    let registry = MemoryRegistry::new();
    provider.script(Verb::Create, Fault::reset_after());
    provider.script_honest(Verb::Find, 1);
    provider.script_always(Verb::Find, Fault::refused());
    let short = options().with_deadline(Duration::from_secs(1));
    host_with(&provider, &registry).acquire("k", short).await.unwrap_err();
    provider.script_clear(Verb::Find);
    let ended = provider.alive()[0].id.clone();
    provider.vanish(&ended);
    let acquired = host_with(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!((acquired.outcome, &acquired.facts.how), (AcquireOutcome::Created, &How::Fresh));
    assert_ne!(acquired.sandbox.id(), &ended);
    assert_eq!((provider.counts().created, provider.alive().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_creator_that_slept_past_its_lease_sends_nothing() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let asleep = Arc::new(Asleep { at: Nap::Renewed, ..Asleep::new(&registry) });
    let late = tokio::spawn({
        let sandboxes = host(&provider).with_registry(asleep.clone());
        async move { sandboxes.acquire("k", options()).await }
    });
    asleep.fell.acquire().await.unwrap().forget();
    // Whoever comes next waits until the lease has ended, proves that nothing was made, and makes one of its own.
    let patient = options().with_deadline(Duration::from_secs(900));
    let next = host_with(&provider, &registry).acquire("k", patient).await.unwrap();
    asleep.wake.add_permits(1);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!((provider.counts().of(Verb::Create), provider.alive().len()), (1, 1));
    assert_eq!(provider.alive()[0].id, *next.sandbox.id());
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

#[tokio::test(start_paused = true)]
async fn a_create_that_would_outlast_the_record_lease_is_given_up_before_it_ends() {
    let provider = FakeProvider::new();
    provider.script(Verb::Create, Fault::HangAfter);
    let begun = tokio::time::Instant::now();
    let sandboxes = host(&provider).with_record_lease(Duration::from_secs(6));
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!((acquired.facts.how, provider.counts().created), (How::Adopted, 1));
    assert!(begun.elapsed() >= Duration::from_secs(5) && begun.elapsed() < Duration::from_secs(6));
}
