//! What a new sandbox takes the place of: remembered until there is one, and ended with its work saved.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Error, ErrorKind, Hooks, How, MemoryRegistry, OnSpecConflict, Outcome,
    PersistHook, ReplaceWhenGone, ReplacedBecause, RestoreReason, RestoreReport, Result, Sandbox,
    SandboxHandleExt as _, SandboxSpec, Sandboxes,
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
