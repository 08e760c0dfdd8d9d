//! What a new sandbox takes the place of: remembered until there is one, and ended with its work saved.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Attempt, Capabilities, CreateOptions, Error, ErrorKind, EventKind,
    Exclusion, Generation, Hooks, How, Key, MemoryRegistry, Mount, OnSpecConflict, Outcome, Owner,
    PersistHook, Phase, Registry as _, ReplaceWhenGone, ReplacedBecause, RestoreReason, RestoreReport,
    Result, Sandbox, SandboxHandleExt as _, SandboxProvider as _, SandboxSpec, Sandboxes, Tags,
};

fn host(provider: &FakeProvider) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone()))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn of(template: &str) -> AcquireOptions {
    AcquireOptions::new(SandboxSpec::new(template))
}

fn replacing(template: &str) -> AcquireOptions {
    of(template).with_on_spec_conflict(OnSpecConflict::Replace)
}

fn slow_down() -> Fault {
    Fault::Before(Error::new(ErrorKind::RateLimited, "slow down").retryable(None))
}

#[tokio::test(start_paused = true)]
async fn what_is_to_be_replaced_is_remembered_until_a_create_has_succeeded() {
    // However the creates before it failed: refused, lost, or absent.
    for faults in [vec![slow_down()], vec![slow_down(), slow_down()], vec![Fault::HangBefore]] {
        let provider = FakeProvider::new();
        let sandboxes = host(&provider);
        let old = sandboxes.acquire("k", options()).await.unwrap().sandbox.provider_id().unwrap().clone();
        provider.vanish(&old);
        let failures = faults.len();
        faults.into_iter().for_each(|fault| provider.script(Verb::Create, fault));
        for _ in 0..failures {
            sandboxes.acquire("k", options().with_deadline(Duration::from_secs(400))).await.unwrap_err();
        }
        let fail = options().with_replace_when_gone(ReplaceWhenGone::Fail);
        let error = sandboxes.acquire("k", fail).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone);
        assert!(error.context().any(|pair| pair == ("id", old.as_str())), "{error}");
        assert!(provider.alive().is_empty());
        let new = sandboxes.acquire("k", options()).await.unwrap();
        assert_eq!(new.facts.how, How::Replaced { old });
        assert_eq!(new.facts.replaced_because, Some(ReplacedBecause::Gone));
        // And no longer.
        provider.vanish(new.sandbox.provider_id().unwrap());
        let next = sandboxes.acquire("k", options()).await.unwrap();
        assert_eq!(next.facts.how, How::Replaced { old: new.sandbox.provider_id().unwrap().clone() });
    }
}

#[tokio::test]
async fn after_a_destroy_by_key_or_by_its_value_nothing_is_replaced() {
    for by_key in [true, false] {
        let provider = FakeProvider::new();
        let sandboxes = host(&provider);
        let old = sandboxes.acquire("k", options()).await.unwrap().sandbox;
        provider.vanish(old.provider_id().unwrap());
        provider.script(Verb::Create, slow_down());
        sandboxes.acquire("k", options()).await.unwrap_err();
        match by_key {
            true => sandboxes.destroy("k").await.unwrap(),
            false => old.destroy().await.unwrap(),
        };
        let fail = options().with_replace_when_gone(ReplaceWhenGone::Fail);
        assert_eq!(sandboxes.acquire("k", fail).await.unwrap().facts.how, How::Fresh);
    }
}

#[tokio::test]
async fn a_sandbox_of_another_template_that_no_record_names_is_a_conflict_too() {
    let provider = FakeProvider::new();
    let made = host(&provider).acquire("k", of("python")).await.unwrap();
    let id = made.sandbox.provider_id().unwrap().clone();
    for wanted in [of("node"), of("node").with_provider_id(id.clone())] {
        let error = host(&provider).acquire("k", wanted.clone()).await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("spec")));
        let kept =
            host(&provider).acquire("k", wanted.with_on_spec_conflict(OnSpecConflict::Keep)).await.unwrap();
        assert_eq!((kept.outcome, kept.sandbox.provider_id()), (AcquireOutcome::Connected, Some(&id)));
    }
    // Why is remembered with what is replaced, also where the create is refused first.
    provider.script(Verb::Create, slow_down());
    let sandboxes = host(&provider);
    sandboxes.acquire("k", replacing("node")).await.unwrap_err();
    let replaced = sandboxes.acquire("k", of("node")).await.unwrap();
    assert_eq!(replaced.facts.how, How::Replaced { old: id });
    assert_eq!(replaced.facts.replaced_because, Some(ReplacedBecause::OtherSpec));
    let again = sandboxes.acquire("k", of("node")).await.unwrap();
    assert_eq!((again.facts.how, again.facts.replaced_because), (How::Attached, None));
    assert_eq!(provider.alive().len(), 1);
}

/// Hooks that write down what they were asked for, and whether the sandbox was there.
#[derive(Debug, Default)]
struct Leaving {
    steps: Mutex<Vec<String>>,
    restores: AtomicUsize,
    fails_to_save: AtomicBool,
    fails_to_leave: AtomicBool,
}

impl Leaving {
    async fn step(&self, name: &str, sandbox: &Sandbox) -> Result<()> {
        let work = sandbox.read_text("/home/user/work").await?;
        self.steps.lock().unwrap().push(format!("{name} {work}"));
        Ok(())
    }

    fn steps(&self) -> Vec<String> {
        std::mem::take(&mut *self.steps.lock().unwrap())
    }
}

fn failed_if(fails: &AtomicBool) -> Result<()> {
    if fails.load(Ordering::SeqCst) { Err(Error::new(ErrorKind::StorageFull, "no room")) } else { Ok(()) }
}

#[async_trait]
impl PersistHook for Leaving {
    async fn restore(&self, _: &Sandbox, reason: RestoreReason) -> Result<RestoreReport> {
        let replaces = self.restores.fetch_add(1, Ordering::SeqCst) > 0;
        assert_eq!(reason == RestoreReason::Replaced, replaces);
        Ok(RestoreReport::default())
    }

    async fn before_pause(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }

    async fn before_destroy(&self, sandbox: &Sandbox) -> Result<()> {
        failed_if(&self.fails_to_save)?;
        self.step("saved", sandbox).await
    }

    async fn tick(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Hooks for Leaving {
    async fn on_destroy(&self, sandbox: &Sandbox) -> Result<()> {
        failed_if(&self.fails_to_leave)?;
        self.step("left", sandbox).await
    }
}

/// A host with hooks, and a sandbox of another template than `node` with work in it.
async fn at_work(provider: &FakeProvider) -> (Sandboxes, Arc<Leaving>, Sandbox) {
    let leaving = Arc::new(Leaving::default());
    let sandboxes = host(provider)
        .with_registry(Arc::new(MemoryRegistry::new()))
        .with_hooks(leaving.clone())
        .with_persist(leaving.clone());
    let sandbox = sandboxes.acquire("k", of("python")).await.unwrap().sandbox;
    sandbox.write_bytes("/home/user/work", "mine").await.unwrap();
    (sandboxes, leaving, sandbox)
}

#[tokio::test]
async fn a_sandbox_that_is_replaced_has_its_work_saved_and_is_told() {
    for is_paused in [false, true] {
        let provider = FakeProvider::new();
        let (sandboxes, leaving, sandbox) = at_work(&provider).await;
        if is_paused {
            sandbox.pause().await.unwrap();
        }
        let new = sandboxes.acquire("k", replacing("node")).await.unwrap();
        assert_eq!(leaving.steps(), ["saved mine", "left mine"]);
        assert_eq!(new.facts.how, How::Replaced { old: sandbox.provider_id().unwrap().clone() });
        assert_eq!((leaving.restores.load(Ordering::SeqCst), provider.alive().len()), (2, 1));
    }
}

#[tokio::test]
async fn a_sandbox_whose_work_cannot_be_saved_is_not_replaced() {
    let provider = FakeProvider::new();
    let (sandboxes, leaving, sandbox) = at_work(&provider).await;
    leaving.fails_to_save.store(true, Ordering::SeqCst);
    let error = sandboxes.acquire("k", replacing("node")).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::StorageFull, Outcome::NotStarted));
    assert_eq!(sandbox.read_text("/home/user/work").await.unwrap(), "mine");
    let again = sandboxes.acquire("k", of("python")).await.unwrap();
    assert_eq!((again.outcome, provider.counts().created), (AcquireOutcome::Connected, 1));
}

#[tokio::test]
async fn a_destroy_hook_that_fails_does_not_keep_a_sandbox_from_being_replaced() {
    let provider = FakeProvider::new();
    let (sandboxes, leaving, _sandbox) = at_work(&provider).await;
    leaving.fails_to_leave.store(true, Ordering::SeqCst);
    sandboxes.acquire("k", replacing("node")).await.unwrap();
    assert_eq!((leaving.steps(), provider.alive().len()), (vec!["saved mine".to_owned()], 1));
}

#[tokio::test]
async fn a_sandbox_that_is_gone_is_replaced_without_hooks() {
    let provider = FakeProvider::new();
    let (sandboxes, leaving, sandbox) = at_work(&provider).await;
    provider.vanish(sandbox.provider_id().unwrap());
    sandboxes.acquire("k", replacing("node")).await.unwrap();
    assert_eq!((leaving.steps(), provider.alive().len()), (Vec::<String>::new(), 1));
}

/// Another host of this registry.
fn at(provider: &FakeProvider, registry: &Arc<MemoryRegistry>) -> Sandboxes {
    host(provider).with_registry(registry.clone())
}

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(900);

#[tokio::test(start_paused = true)]
async fn an_open_create_of_another_spec_is_settled_before_it_is_replaced() {
    for (fault, replaces) in [(Fault::HangAfter, true), (Fault::HangBefore, false)] {
        let (provider, registry) = (FakeProvider::new(), Arc::default());
        provider.script(Verb::Create, fault);
        at(&provider, &registry).acquire("k", of("python").with_deadline(SECOND)).await.unwrap_err();
        let next =
            at(&provider, &registry).acquire("k", replacing("node").with_deadline(LONG)).await.unwrap();
        assert_eq!(matches!(next.facts.how, How::Replaced { .. }), replaces);
        tokio::time::sleep(LONG).await;
        let alive: Vec<_> = provider.alive().into_iter().map(|info| info.id).collect();
        assert_eq!(alive, [next.sandbox.provider_id().unwrap().clone()]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_unsupported_destroys_nothing() {
    let mut shape = FakeOptions::default();
    shape.capabilities.list_visibility = None;
    let provider = FakeProvider::with_options(shape);
    let sandboxes = host(&provider);
    let careless = of("python").with_exclusion(Exclusion::BestEffort);
    sandboxes.acquire("k", careless).await.unwrap();
    let error = sandboxes.acquire("k", replacing("node")).await.unwrap_err();
    assert_eq!((error.kind(), provider.alive().len()), (ErrorKind::Unsupported, 1));
}

#[tokio::test(start_paused = true)]
async fn what_may_exist_under_other_credentials_is_not_written_down_as_to_be_destroyed() {
    let (here, there) = (FakeProvider::new(), FakeProvider::new().with_fingerprint("elsewhere"));
    let registry = Arc::default();
    let first = at(&here, &registry).acquire("k", of("python")).await.unwrap().sandbox;
    let error = at(&there, &registry).acquire("k", replacing("node")).await.unwrap_err();
    let record = registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap().unwrap();
    assert_eq!((error.kind(), record.phase), (ErrorKind::Ownership, Phase::Ready));
    let again = at(&here, &registry).acquire("k", of("python")).await.unwrap();
    assert_eq!((again.facts.how, again.sandbox.provider_id()), (How::Attached, first.provider_id()));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_was_cut_in_its_destroy_is_remembered() {
    for fault in [Fault::HangAfter, Fault::refused()] {
        let (provider, registry) = (FakeProvider::new(), Arc::default());
        let old = at(&provider, &registry).acquire("k", of("python")).await.unwrap().sandbox;
        provider.script(Verb::Destroy, fault);
        at(&provider, &registry).acquire("k", replacing("node").with_deadline(SECOND)).await.unwrap_err();
        let fail = of("python").with_replace_when_gone(ReplaceWhenGone::Fail);
        let error = at(&provider, &registry).acquire("k", fail).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone);
        let next = at(&provider, &registry).acquire("k", replacing("node")).await.unwrap();
        assert_eq!(next.facts.how, How::Replaced { old: old.provider_id().unwrap().clone() });
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_gone_is_not_replaced_for_its_spec_where_that_is_to_fail() {
    let (provider, registry) = (FakeProvider::new(), Arc::default());
    let old = at(&provider, &registry).acquire("k", of("python")).await.unwrap().sandbox;
    provider.vanish(old.provider_id().unwrap());
    let fail = replacing("node").with_replace_when_gone(ReplaceWhenGone::Fail);
    let error = at(&provider, &registry).acquire("k", fail).await.unwrap_err();
    assert_eq!((error.kind(), provider.alive().len()), (ErrorKind::Gone, 0));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_says_which_other_sandboxes_of_its_key_are_left() {
    let provider = FakeProvider::new();
    for generation in ["first", "second"] {
        let tags = Tags {
            owner: Owner::default(),
            key: Key::new("k").unwrap(),
            generation: Generation::new(generation),
            attempt: Attempt::random().unwrap(),
        };
        provider.create_opts(CreateOptions::new(SandboxSpec::new("python"), tags)).await.unwrap();
        tokio::time::sleep(SECOND).await;
    }
    let sandboxes = host(&provider);
    let mut events = sandboxes.events();
    let got = sandboxes.acquire("k", replacing("node")).await.unwrap();
    assert_eq!(got.facts.duplicates.len(), provider.alive().len() - 1);
    let mut told = false;
    while let Ok(Some(Ok(event))) = tokio::time::timeout(SECOND, events.next()).await {
        told |= matches!(event.kind, EventKind::DuplicateFound { .. });
    }
    assert!(told);
}

#[tokio::test]
async fn a_spec_that_the_provider_refuses_ends_and_writes_nothing() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let sandbox = sandboxes.acquire("k", of("a")).await.unwrap().sandbox;
    let mut limited = replacing("b");
    limited.spec.resources.memory = Some(1 << 30);
    let error = sandboxes.acquire("k", limited).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotStarted));
    let again = sandboxes.acquire("k", of("a")).await.unwrap();
    assert_eq!(again.sandbox.provider_id(), sandbox.provider_id());
}

#[tokio::test(start_paused = true)]
async fn what_takes_the_place_of_a_lost_one_says_so_also_where_its_own_answer_was_lost() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider);
    let old = sandboxes.acquire("k", options()).await.unwrap().sandbox.provider_id().unwrap().clone();
    provider.vanish(&old);
    provider.script(Verb::Create, Fault::reset_after());
    let acquired = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(acquired.facts.how, How::Replaced { old });
    assert_eq!(acquired.facts.replaced_because, Some(ReplacedBecause::Gone));
}

#[tokio::test]
async fn what_the_provider_does_not_cover_is_refused_before_anything_is_written_down() {
    type Refused = (fn(&mut Capabilities), SandboxSpec, &'static str);
    let leased = SandboxSpec::default().with_lease(Duration::from_secs(60));
    let mounted = SandboxSpec::default().with_mount(Mount::host_dir("/data", "/srv/data"));
    let cases: [Refused; 3] = [
        (|can| can.egress_policy = false, SandboxSpec::default(), "network"),
        (|can| can.lease = false, leased, "lease"),
        (|can| can.host_mounts = false, mounted, "mounts"),
    ];
    for (change, spec, field) in cases {
        let provider = FakeProvider::with_options(FakeOptions::default().with_capabilities(change));
        let registry = Arc::new(MemoryRegistry::new());
        let sandboxes = at(&provider, &registry);
        let error = sandboxes.acquire("k", AcquireOptions::new(spec)).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotStarted));
        assert!(error.context().any(|pair| pair == ("field", field)), "{error}");
        assert!(registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap().is_none());
        assert_eq!(provider.counts().of(Verb::Create), 0);
    }
}

#[tokio::test]
async fn a_lease_that_would_be_ignored_is_refused_for_a_sandbox_that_is_there_too() {
    let provider =
        FakeProvider::with_options(FakeOptions::default().with_capabilities(|can| can.lease = false));
    let sandboxes = host(&provider);
    sandboxes.acquire("k", options()).await.unwrap();
    let leased = AcquireOptions::new(SandboxSpec::default().with_lease(Duration::from_secs(60)));
    let error = sandboxes.acquire("k", leased).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(provider.counts().of(Verb::Connect), 0);
}

#[tokio::test]
async fn a_replacement_with_a_longer_lease_than_there_is_ends_nothing() {
    let longest = |can: &mut Capabilities| can.max_lease = Some(Duration::from_secs(60));
    let provider = FakeProvider::with_options(FakeOptions::default().with_capabilities(longest));
    let sandboxes = host(&provider);
    let kept = sandboxes.acquire("k", options()).await.unwrap().sandbox;
    let longer = SandboxSpec::new("other").with_lease(Duration::from_secs(61));
    let replacing = AcquireOptions::new(longer).with_on_spec_conflict(OnSpecConflict::Replace);
    let error = sandboxes.acquire("k", replacing).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("60s"), "{error}");
    assert_eq!(
        provider.alive().into_iter().map(|info| info.id).collect::<Vec<_>>(),
        [kept.provider_id().unwrap().clone()]
    );
}
