//! Values that have no sandbox yet, clones, providers by name, and what works by key from a fresh process.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Capabilities, CloneOptions, ConnectOptions, Connection, CreateOptions,
    DestroyOutcome, ErrorKind, FindQuery, Key, ListFilter, MemoryRegistry, OnGone, Outcome,
    PROVIDER_VARIABLE, PauseOptions, PauseOutcome, Providers, REASON_BUSY, REASON_UNSTARTED, Result,
    ResultStream, SandboxHandle, SandboxHandleExt as _, SandboxId, SandboxInfo, SandboxProvider, SandboxSpec,
    SandboxState, Sandboxes, StopOutcome,
};

fn host(provider: &FakeProvider) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone()))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn calls(provider: &FakeProvider) -> usize {
    [Verb::Find, Verb::Connect, Verb::Create, Verb::List, Verb::Inside, Verb::Pause, Verb::Destroy]
        .into_iter()
        .map(|verb| provider.counts().of(verb))
        .sum()
}

#[tokio::test]
async fn a_lazy_value_does_nothing_before_its_first_use_and_then_acquires_once_for_all() {
    let provider = FakeProvider::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let hook = options().with_on_start(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let sandbox = host(&provider).lazy("k", hook).unwrap();
    assert_eq!((sandbox.provider_id(), sandbox.id().as_str(), calls(&provider)), (None, "", 0));
    let callers: Vec<_> = (0..8)
        .map(|index| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { sandbox.write_bytes(&format!("/home/user/{index}"), "x").await })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    assert_eq!((provider.counts().created, runs.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(sandbox.provider_id(), Some(&provider.alive()[0].id));
}

#[tokio::test]
async fn a_lazy_value_does_not_remember_a_failure() {
    let provider = FakeProvider::new();
    let sandbox = host(&provider).lazy("k", options()).unwrap();
    provider.script(Verb::Create, Fault::refused());
    assert_eq!(sandbox.read_text("/f").await.unwrap_err().kind(), ErrorKind::Unavailable);
    sandbox.write_bytes("/home/user/f", "x").await.unwrap();
}

#[tokio::test]
async fn info_stop_and_destroy_of_a_lazy_value_never_create() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let sandbox = sandboxes.lazy("k", options()).unwrap();
    let error = sandbox.info().await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidState, Some(REASON_UNSTARTED)));
    assert_eq!(sandbox.pause().await.unwrap_err().reason(), Some(REASON_UNSTARTED));
    assert_eq!(sandbox.set_lease(Duration::ZERO).await.unwrap_err().reason(), Some(REASON_UNSTARTED));
    assert_eq!(sandbox.stop().await.unwrap(), StopOutcome::NoSandbox);
    assert_eq!(sandbox.destroy().await.unwrap(), DestroyOutcome::AlreadyGone);
    assert_eq!(provider.counts().created, 0);
    let error = sandbox.read_text("/f").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.reason(), provider.counts().created),
        (ErrorKind::Gone, Some("destroyed"), 0)
    );
}

#[tokio::test]
async fn info_stop_and_destroy_of_a_lazy_value_reach_the_sandbox_of_its_key() {
    for keeps_registry in [true, false] {
        let provider = FakeProvider::new();
        let registry = Arc::new(MemoryRegistry::new());
        let first = host(&provider).with_registry(registry.clone());
        let id = first.acquire("k", options()).await.unwrap().sandbox.id().clone();
        let fresh = if keeps_registry { host(&provider).with_registry(registry) } else { host(&provider) };
        let sandbox = fresh.lazy("k", options()).unwrap();
        assert_eq!(sandbox.info().await.unwrap().id, id);
        assert_eq!(sandbox.stop().await.unwrap(), StopOutcome::Paused);
        assert_eq!(sandbox.stop().await.unwrap(), StopOutcome::AlreadyPaused);
        assert_eq!(sandbox.info().await.unwrap().state, SandboxState::Paused);
        assert_eq!(fresh.find("k").await.unwrap().unwrap().id, id);
        assert_eq!(sandbox.destroy().await.unwrap(), DestroyOutcome::Destroyed);
        assert_eq!((provider.alive().len(), provider.counts().resumed, provider.counts().created), (0, 0, 1));
        assert!(fresh.find("k").await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_lazy_value_that_was_detached_admits_nothing() {
    let provider = FakeProvider::new();
    let sandbox = host(&provider).lazy("k", options()).unwrap();
    sandbox.detach();
    let error = sandbox.read_text("/f").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidState, Some("detached")));
    assert_eq!(calls(&provider), 0);
}

#[tokio::test(start_paused = true)]
async fn a_destroy_waits_for_the_start_of_its_lazy_value_and_ends_what_it_made() {
    let provider = FakeProvider::new();
    let gate = Gate::new();
    provider.script(Verb::Create, Fault::HoldAfter(gate.clone()));
    let sandbox = host(&provider).lazy("k", options()).unwrap();
    let user = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.read_text("/f").await }
    });
    gate.arrived(1).await;
    let destroy = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.destroy().await }
    });
    tokio::task::yield_now().await;
    gate.open();
    assert_eq!(destroy.await.unwrap().unwrap(), DestroyOutcome::Destroyed);
    user.await.unwrap().unwrap_err();
    assert_eq!((provider.alive().len(), provider.counts().created), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_start_of_its_lazy_value_no_longer_than_the_limit() {
    let provider = FakeProvider::new();
    provider.script(Verb::Create, Fault::HangBefore);
    let sandbox = host(&provider).with_wait_limit(Duration::from_secs(5)).lazy("k", options()).unwrap();
    let user = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.read_text("/f").await }
    });
    tokio::task::yield_now().await;
    let error = sandbox.stop().await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Timeout, Some(REASON_BUSY)));
    user.abort();
}

#[tokio::test]
async fn a_lazy_value_used_in_its_own_start_hook_is_reentrant() {
    let provider = FakeProvider::new();
    let lazy: Arc<std::sync::OnceLock<sandhold_core::Sandbox>> = Arc::default();
    let inner = Arc::clone(&lazy);
    let hook = options().with_on_start(move |_| {
        let inner = inner.get().unwrap().clone();
        async move {
            let error = inner.read_text("/f").await.unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("reentrant")));
            assert_eq!(inner.destroy().await.unwrap_err().reason(), Some("reentrant"));
            Ok(())
        }
    });
    lazy.set(host(&provider).lazy("k", hook).unwrap()).unwrap();
    lazy.get().unwrap().write_bytes("/home/user/f", "x").await.unwrap();
}

#[tokio::test]
async fn a_clone_has_the_spec_and_nothing_of_the_identity() {
    let provider = FakeProvider::new();
    let spec = SandboxSpec::new("base").with_env("A", "1").with_env("B", "1").with_workdir("/tmp");
    let acquired = host(&provider).acquire("k", AcquireOptions::new(spec)).await.unwrap();
    let before = calls(&provider);
    let shaped = CloneOptions::default().with_env("B", "2").with_workdir("/home/user");
    let clone = acquired.sandbox.clone_with(shaped).unwrap();
    let named = CloneOptions::default().with_key(Key::new("named").unwrap());
    let named = acquired.sandbox.clone_with(named).unwrap();
    assert_eq!((calls(&provider), clone.provider_id(), named.key().as_str()), (before, None, "named"));
    assert!(clone.key() != acquired.sandbox.key() && clone.key() != named.key());
    acquired.sandbox.write_bytes("/home/user/mine", "x").await.unwrap();
    for (value, expected) in [(&clone, "2"), (&named, "1"), (&acquired.sandbox, "1")] {
        let out = value.exec(sandhold_core::ProcessSpec::argv("printenv", ["B"])).await.unwrap();
        assert_eq!(out.stdout.text().trim(), expected);
    }
    assert!(!clone.exists("/home/user/mine").await.unwrap());
    assert_eq!((provider.alive().len(), provider.counts().created), (3, 3));
    let error =
        acquired.sandbox.clone_with(CloneOptions::default().with_key(Key::new("k").unwrap())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_clone_with_a_provider_id_attaches_to_that_sandbox() {
    let provider = FakeProvider::new();
    let id = provider.make_untagged(SandboxSpec::default());
    let sandbox = host(&provider).lazy("k", options()).unwrap();
    let clone = sandbox.clone_with(CloneOptions::default().with_provider_id(id.clone())).unwrap();
    clone.write_bytes("/home/user/f", "x").await.unwrap();
    assert_eq!((clone.provider_id(), provider.alive().len()), (Some(&id), 1));
}

/// A fake under another name.
#[derive(Debug)]
struct Other(FakeProvider);

#[async_trait]
impl SandboxProvider for Other {
    fn name(&self) -> &'static str {
        "other"
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }
    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
        self.0.find(query).await
    }
    async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection> {
        self.0.connect_opts(id, options).await
    }
    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        self.0.create_opts(options).await
    }
    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        self.0.list(filter).await
    }
    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        self.0.pause_opts(id, options).await
    }
    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        self.0.destroy(id).await
    }
}

fn both(fake: &FakeProvider, other: &FakeProvider) -> Providers {
    let (fake, other) = (fake.clone(), other.clone());
    Providers::new()
        .with("fake", move || Ok(Arc::new(fake.clone())))
        .with("other", move || Ok(Arc::new(Other(other.clone()))))
}

#[tokio::test]
async fn a_provider_is_chosen_by_name_and_there_is_no_default() {
    let providers = both(&FakeProvider::new(), &FakeProvider::new());
    assert_eq!(providers.from_name("other").unwrap().name(), "other");
    let error = providers.from_name("e2c").unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidArgument, Some("unknown_provider")));
    assert!(error.message().contains("e2c") && error.message().contains("fake, other"), "{error}");
    assert!(std::env::var_os(PROVIDER_VARIABLE).is_none(), "the test's own environment");
    let error = providers.from_env().unwrap_err();
    assert!(
        error.message().contains(PROVIDER_VARIABLE) && error.message().contains("fake, other"),
        "{error}"
    );
    let misnamed = Providers::new().with("fake", || Ok(Arc::new(Other(FakeProvider::new()))));
    assert_eq!(misnamed.from_name("fake").unwrap_err().kind(), ErrorKind::Unexpected);
}

#[tokio::test]
async fn a_later_choice_of_provider_does_not_move_a_key() {
    let (fake, other) = (FakeProvider::new(), FakeProvider::new());
    let providers = both(&fake, &other);
    let registry = Arc::new(MemoryRegistry::new());
    let host_at = |name: &str| {
        let host = Sandboxes::new(providers.from_name(name).unwrap()).with_registry(registry.clone());
        (host.clone(), host.with_providers(providers.clone()))
    };
    let (_, at_other) = host_at("other");
    let id = at_other.acquire("k", options()).await.unwrap().sandbox.id().clone();
    // The same program, started again with another default.
    let (alone, at_fake) = host_at("fake");
    let error = alone.acquire("k", options()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("provider")));
    let nested = at_fake.clone();
    let lazy = at_fake.lazy(
        "k",
        options().with_on_start(move |_| {
            let nested = nested.clone();
            async move {
                assert_eq!(nested.acquire("k", options()).await.unwrap_err().reason(), Some("reentrant"));
                Ok(())
            }
        }),
    );
    let again = at_fake.acquire("k", options()).await.unwrap();
    assert_eq!(
        (again.outcome, again.sandbox.id(), again.sandbox.provider()),
        (AcquireOutcome::Connected, &id, "other")
    );
    lazy.unwrap().write_bytes("/home/user/f", "x").await.unwrap();
    assert_eq!(at_fake.find("k").await.unwrap().unwrap().id, id);
    assert_eq!(at_fake.stop("k").await.unwrap(), StopOutcome::Paused);
    assert_eq!(at_fake.destroy("k").await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!((calls(&fake), other.alive().len()), (0, 0));
    at_fake.acquire("k", options()).await.unwrap();
    assert_eq!(
        (fake.counts().created, other.counts().created),
        (1, 1),
        "a key that has nothing goes by the new choice"
    );
}

#[tokio::test(start_paused = true)]
async fn stop_and_destroy_by_key_settle_an_open_create_first() {
    for stops in [true, false] {
        let provider = FakeProvider::new();
        let registry = Arc::new(MemoryRegistry::new());
        let sandboxes = host(&provider).with_registry(registry.clone());
        // The answer is lost, and the host is killed while it looks for the sandbox.
        provider.script(Verb::Create, Fault::reset_after());
        provider.script_honest(Verb::Find, 1);
        provider.script_always(Verb::Find, Fault::HangBefore);
        let short = options().with_deadline(Duration::from_secs(1));
        assert_eq!(sandboxes.acquire("k", short).await.unwrap_err().outcome(), Outcome::Unknown);
        provider.script_clear(Verb::Find);
        let fresh = host(&provider).with_registry(registry);
        if stops {
            assert_eq!(fresh.stop("k").await.unwrap(), StopOutcome::Paused);
            let again = fresh.acquire("k", options()).await.unwrap();
            assert_eq!((again.outcome, provider.counts().created), (AcquireOutcome::Created, 1));
        } else {
            assert_eq!(fresh.destroy("k").await.unwrap(), DestroyOutcome::Destroyed);
            assert!(provider.alive().is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_destroy_remembers_an_open_create_that_has_not_come() {
    let provider = FakeProvider::new();
    let registry = Arc::new(MemoryRegistry::new());
    let sandboxes = host(&provider).with_registry(registry.clone());
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(3600)));
    let short = options().with_deadline(Duration::from_secs(30));
    sandboxes.acquire("k", short).await.unwrap_err();
    let fresh = host(&provider).with_registry(registry);
    assert_eq!(fresh.destroy("k").await.unwrap(), DestroyOutcome::AlreadyGone);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(provider.alive().len(), 1, "the late one has come");
    let acquired = fresh.acquire("k", options()).await.unwrap();
    assert_eq!(
        provider.alive().into_iter().map(|info| info.id).collect::<Vec<_>>(),
        [acquired.sandbox.id().clone()]
    );
}

#[tokio::test(start_paused = true)]
async fn an_open_create_that_cannot_be_settled_keeps_stop_and_destroy_from_guessing() {
    let provider = FakeProvider::new();
    let registry = Arc::new(MemoryRegistry::new());
    let sandboxes = host(&provider).with_registry(registry.clone()).with_wait_limit(Duration::from_secs(5));
    provider.script(Verb::Create, Fault::reset_after());
    provider.script_honest(Verb::Find, 1);
    provider.script_always(Verb::Find, Fault::refused());
    sandboxes.acquire("k", options().with_deadline(Duration::from_secs(1))).await.unwrap_err();
    let refused = [sandboxes.stop("k").await.unwrap_err(), sandboxes.destroy("k").await.unwrap_err()];
    for error in refused {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown));
        assert!(error.context().any(|(name, _)| name == "attempt"), "{error}");
    }
    assert_eq!(provider.counts().of(Verb::Destroy), 0);
}

#[tokio::test]
async fn a_destroy_by_key_ends_the_values_of_this_host_also_those_that_follow_the_key() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let follows = options().with_on_gone(OnGone::Reacquire);
    let sandbox = sandboxes.acquire("key", follows).await.unwrap().sandbox;
    sandboxes.destroy("key").await.unwrap();
    for _ in 0..2 {
        let error = sandbox.info().await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Gone, Some("destroyed")), "{error}");
    }
    assert_eq!((provider.counts().created, provider.alive().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_in_the_middle_of_a_create_leaves_its_outcome_unknown() {
    let provider = FakeProvider::new();
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(5)));
    let soon = options().with_deadline(Duration::from_secs(1));
    let error = host(&provider).acquire("key", soon).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
}

#[tokio::test]
async fn a_lazy_value_with_a_provider_id_tells_of_that_sandbox_and_ends_it() {
    let provider = FakeProvider::new();
    let id = provider.make_untagged(SandboxSpec::default());
    let lazy = host(&provider).lazy("k", options().with_provider_id(id.clone())).unwrap();
    assert_eq!(lazy.info().await.unwrap().id, id);
    assert_eq!(lazy.stop().await.unwrap(), StopOutcome::Paused);
    assert_eq!(lazy.destroy().await.unwrap(), DestroyOutcome::Destroyed);
    assert!(provider.alive().is_empty());
}

#[tokio::test]
async fn a_lazy_value_with_a_provider_id_touches_no_sandbox_of_another_key() {
    let provider = FakeProvider::new();
    let other = host(&provider).acquire("other", options()).await.unwrap().sandbox;
    let id = other.provider_id().unwrap().clone();
    let registry = MemoryRegistry::new();
    let host = host(&provider).with_registry(Arc::new(registry));
    let lazy = || host.lazy("k", options().with_provider_id(id.clone())).unwrap();
    for kind in [ErrorKind::Ownership, ErrorKind::Conflict] {
        assert_eq!(lazy().info().await.unwrap_err().kind(), kind);
        assert_eq!(lazy().stop().await.unwrap_err().kind(), kind);
        assert_eq!(lazy().destroy().await.unwrap_err().kind(), kind);
        assert_eq!(provider.counts().of(Verb::Pause) + provider.counts().of(Verb::Destroy), 0);
        // From here on the key has a sandbox of its own.
        host.acquire("k", options()).await.unwrap();
    }
}
