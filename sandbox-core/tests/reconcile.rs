//! What is reconciled is fenced: an operator who is slow takes nothing from a host that came meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, Attempt, CreateOptions, Disposal, ErrorKind, Generation, Key, MemoryRegistry, Owner,
    ReconcilePlan, ReconcilePolicy, Reconciler, SandboxId, SandboxProvider as _, SandboxSpec, Sandboxes,
    StepOutcome, Tags,
};

/// A sandbox that no record names, an operator who wants it removed, and a host that wants it.
async fn world() -> (FakeProvider, Reconciler, ReconcilePlan, Sandboxes, SandboxId) {
    let over = FakeOptions::default().with_capabilities(|can| can.create_settle = Some(Duration::ZERO));
    let (provider, registry) = (FakeProvider::with_options(over), MemoryRegistry::new().as_shared());
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new("k").unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    };
    let made = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap();
    let reconciler =
        Reconciler::new(Arc::new(provider.clone()), Arc::new(registry.clone())).with_min_age(Duration::ZERO);
    let policy = ReconcilePolicy::default().with_unrecorded(Disposal::Remove);
    let plan = reconciler.plan(&reconciler.orphans().await.unwrap(), &policy).unwrap();
    assert_eq!(plan.steps().len(), 1);
    let host = Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry));
    (provider, reconciler, plan, host, made.id().clone())
}

async fn acquired(host: &Sandboxes) -> SandboxId {
    let patient = AcquireOptions::default().with_deadline(Duration::from_secs(900));
    host.acquire("k", patient).await.unwrap().sandbox.provider_id().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_destroy_that_outlasts_its_lease_takes_no_sandbox_from_a_host() {
    let (provider, reconciler, plan, host, old) = world().await;
    let gate = Gate::new();
    provider.script(Verb::Find, Fault::Delay(Duration::from_secs(80)));
    provider.script(Verb::Destroy, Fault::HoldBefore(gate.clone()));
    let applied = tokio::spawn(async move { reconciler.apply(plan).await });
    gate.arrived(1).await;
    // It was written down: whoever comes next ends it, and makes one of its own.
    let new = acquired(&host).await;
    gate.open();
    let (_, outcome) = applied.await.unwrap().pop().unwrap();
    assert!(
        matches!(&outcome, StepOutcome::Failed(error) if error.kind() == ErrorKind::Timeout),
        "{outcome:?}"
    );
    assert_ne!(new, old);
    assert_eq!(provider.alive().into_iter().map(|info| info.id).collect::<Vec<_>>(), [new]);
}

#[tokio::test(start_paused = true)]
async fn a_look_that_outlasts_its_lease_destroys_nothing() {
    let (provider, reconciler, plan, host, old) = world().await;
    // As one that was stopped in the middle of it.
    provider.script(Verb::Find, Fault::Delay(Duration::from_secs(200)));
    let applied = tokio::spawn(async move { reconciler.apply(plan).await });
    while provider.counts().of(Verb::Find) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(acquired(&host).await, old);
    let (_, outcome) = applied.await.unwrap().pop().unwrap();
    assert!(
        matches!(&outcome, StepOutcome::Failed(error) if error.kind() == ErrorKind::Stale),
        "{outcome:?}"
    );
    assert_eq!((provider.counts().of(Verb::Destroy), provider.alive().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_written_down_for_a_destroy_is_forgotten_after_it() {
    let (provider, reconciler, plan, host, _) = world().await;
    let (_, outcome) = reconciler.apply(plan).await.pop().unwrap();
    assert!(matches!(outcome, StepOutcome::Done), "{outcome:?}");
    assert!(provider.alive().is_empty());
    assert!(reconciler.orphans().await.unwrap().findings.is_empty());
    assert_eq!(reconciler.orphans().await.unwrap().records, 0);
    acquired(&host).await;
}
