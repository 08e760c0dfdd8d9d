//! The operators' report and what may be done about it, over a registry that several hosts share.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::testing::registry::lease;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, Attempt, CreateOptions, Disposal, Error, ErrorKind, Finding, Generation, Kept, Key,
    MemoryRegistry, OrphanReport, Outcome, Owner, Phase, ReconcilePolicy, Reconciler, Record, Registry,
    RegistryExt as _, SandboxId, SandboxProvider as _, SandboxSpec, Sandboxes, StepOutcome, Tags,
};
use sandhold_registry::SqliteRegistry;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(600);

struct World {
    _directory: TempDir,
    provider: FakeProvider,
    registry: Arc<SqliteRegistry>,
}

impl World {
    async fn new() -> Self {
        Self::with(FakeOptions::default()).await
    }

    async fn with(options: FakeOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = Arc::new(SqliteRegistry::open(directory.path().join("r.sqlite")).await.unwrap());
        // Its creates are over when they have answered.
        let options = options.with_capabilities(|can| can.create_settle = Some(Duration::ZERO));
        Self { _directory: directory, provider: FakeProvider::with_options(options), registry }
    }

    fn host(&self) -> Sandboxes {
        Sandboxes::new(Arc::new(self.provider.clone())).with_registry(Arc::clone(&self.registry) as _)
    }

    async fn acquire(&self, key: &str) -> SandboxId {
        let acquired = self.host().acquire(key, AcquireOptions::default()).await.unwrap();
        acquired.sandbox.provider_id().unwrap().clone()
    }

    /// Makes a sandbox of a key without a record, as a host without this registry does.
    async fn make(&self, key: &str, attempt: &Attempt) -> SandboxId {
        let tags = Tags {
            owner: Owner::default(),
            key: Key::new(key).unwrap(),
            generation: Generation::random().unwrap(),
            attempt: attempt.clone(),
        };
        let made = self.provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap();
        made.id().clone()
    }

    async fn record(&self, key: &str) -> Option<Record> {
        self.registry.load(&Owner::default(), &Key::new(key).unwrap()).await.unwrap()
    }

    async fn change(&self, key: &str, change: impl FnOnce(&mut Record)) {
        let mut record = self.record(key).await.unwrap();
        let held = lease(&*self.registry, &record, LONG).await;
        change(&mut record);
        self.registry.store(record, &held).await.unwrap();
    }

    fn reconciler(&self) -> Reconciler {
        Reconciler::new(Arc::new(self.provider.clone()), Arc::clone(&self.registry) as _)
            .with_min_age(Duration::ZERO)
    }

    async fn report(&self) -> OrphanReport {
        self.reconciler().orphans().await.unwrap()
    }

    /// What is found, in short: code and key, or id where there is no key.
    async fn found(&self) -> Vec<String> {
        let short = |finding: &Finding| match finding.name() {
            Some((_, key)) => format!("{} {key}", finding.as_str()),
            None => format!("{} {}", finding.as_str(), finding.info().unwrap().id),
        };
        self.report().await.findings.iter().map(short).collect()
    }

    fn alive(&self) -> Vec<SandboxId> {
        self.provider.alive().into_iter().map(|info| info.id).collect()
    }

    /// Plans and applies; returns how each step ended.
    async fn reconcile(&self, policy: &ReconcilePolicy) -> Vec<(String, StepOutcome)> {
        let report = self.report().await;
        let plan = self.reconciler().plan(&report, policy).unwrap();
        let applied = self.reconciler().apply(plan).await;
        applied.into_iter().map(|(step, outcome)| (step.to_string(), outcome)).collect()
    }
}

fn everything() -> ReconcilePolicy {
    ReconcilePolicy::default()
        .with_unrecorded(Disposal::Remove)
        .with_duplicates(Disposal::Remove)
        .with_missing(Disposal::Remove)
}

#[tokio::test]
async fn what_both_sides_agree_about_is_no_finding() {
    let world = World::new().await;
    world.acquire("a").await;
    let paused = world.acquire("b").await;
    world.host().stop("b").await.unwrap();
    let report = world.report().await;
    assert_eq!((report.findings.len(), report.sandboxes, report.records), (0, 2, 2));
    assert!(world.reconcile(&everything()).await.is_empty());
    assert!(world.alive().contains(&paused));
}

#[tokio::test]
async fn a_report_and_a_plan_change_nothing_and_wake_nobody() {
    let world = World::new().await;
    let id = world.acquire("a").await;
    world.host().stop("a").await.unwrap();
    world.make("a", &Attempt::random().unwrap()).await;
    world.make("b", &Attempt::random().unwrap()).await;
    let (alive, records) =
        (world.provider.alive(), world.registry.list_all(Default::default()).await.unwrap());
    let held = lease(&*world.registry, &world.record("a").await.unwrap(), LONG).await;
    let plan = world.reconciler().plan(&world.report().await, &everything()).unwrap();
    assert_eq!(plan.steps().len(), 2);
    assert!(plan.steps().iter().all(|step| step.destroys() != Some(&id)));
    assert_eq!(world.provider.alive(), alive);
    assert_eq!(world.registry.list_all(Default::default()).await.unwrap(), records);
    drop(held);
}

#[tokio::test]
async fn by_default_nothing_is_destroyed_that_a_host_could_still_want() {
    let world = World::new().await;
    world.acquire("a").await;
    world.make("a", &Attempt::random().unwrap()).await;
    world.make("b", &Attempt::random().unwrap()).await;
    let foreign = world.provider.make_untagged(SandboxSpec::default());
    let gone = world.acquire("c").await;
    world.provider.vanish(&gone);
    let untagged = format!("untagged {foreign}");
    assert_eq!(world.found().await, [untagged.as_str(), "duplicate a", "unrecorded b", "missing c"]);
    let before = world.alive();
    assert!(world.reconcile(&ReconcilePolicy::default()).await.is_empty());
    assert_eq!(world.alive(), before);
    assert!(world.record("c").await.is_some());
}

#[tokio::test]
async fn what_the_policy_names_is_removed_and_what_has_no_tags_never() {
    let world = World::new().await;
    let kept = world.acquire("a").await;
    world.make("a", &Attempt::random().unwrap()).await;
    world.make("b", &Attempt::random().unwrap()).await;
    let foreign = world.provider.make_untagged(SandboxSpec::default());
    let gone = world.acquire("c").await;
    world.provider.vanish(&gone);
    let done = world.reconcile(&everything()).await;
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|(_, outcome)| matches!(outcome, StepOutcome::Done)), "{done:?}");
    let mut alive = world.alive();
    alive.sort();
    let mut expected = vec![kept.clone(), foreign.clone()];
    expected.sort();
    assert_eq!(alive, expected);
    assert!(world.record("c").await.is_none());
    assert_eq!(world.found().await, [format!("untagged {foreign}")]);
    assert_eq!(world.acquire("a").await, kept);
}

#[tokio::test]
async fn of_several_without_a_record_the_senior_one_is_kept() {
    let world = World::new().await;
    let first = world.make("a", &Attempt::random().unwrap()).await;
    world.make("a", &Attempt::random().unwrap()).await;
    assert_eq!(world.found().await.len(), 2);
    let only_duplicates = ReconcilePolicy::default().with_duplicates(Disposal::Remove);
    assert_eq!(world.reconcile(&only_duplicates).await.len(), 1);
    // The very one that an acquire attaches to.
    assert_eq!(world.alive(), std::slice::from_ref(&first));
    assert_eq!(world.acquire("a").await, first);
}

#[tokio::test]
async fn a_sandbox_of_an_attempt_that_was_given_up_is_destroyed() {
    let world = World::new().await;
    let kept = world.acquire("a").await;
    let attempt = Attempt::random().unwrap();
    world
        .change("a", |record| {
            let own = std::mem::replace(&mut record.attempt, attempt.clone());
            record.abandon();
            record.attempt = own;
        })
        .await;
    let late = world.make("a", &attempt).await;
    assert_eq!(world.found().await, ["abandoned a"]);
    let done = world.reconcile(&ReconcilePolicy::default()).await;
    assert_eq!(done[0].0, format!("destroy {late} of default/a (abandoned)"));
    assert_eq!(world.alive(), [kept]);
}

#[tokio::test]
async fn a_destroy_that_was_written_down_is_finished() {
    let world = World::new().await;
    world.acquire("a").await;
    let lost = Error::new(ErrorKind::Unavailable, "no answer").with_outcome(Outcome::Unknown);
    world.provider.script(Verb::Destroy, Fault::Before(lost));
    world.host().destroy("a").await.unwrap_err();
    assert_eq!(world.found().await, ["open_destroy a"]);
    assert_eq!(world.reconcile(&ReconcilePolicy::default()).await.len(), 1);
    assert!(world.alive().is_empty());
    assert!(world.record("a").await.is_none());
}

#[tokio::test]
async fn an_open_create_is_shown_and_left_to_the_next_acquire() {
    let world = World::new().await;
    let id = world.acquire("a").await;
    world
        .change("a", |record| {
            record.id = None;
            record.enter(Phase::Creating);
        })
        .await;
    let report = world.report().await;
    assert!(matches!(&report.findings[..], [Finding::OpenCreate { made: Some(made), .. }] if *made == id));
    let plan = world.reconciler().plan(&report, &everything()).unwrap();
    assert_eq!((plan.steps().len(), plan.kept()[0].1), (0, Kept::Acquire));
    assert_eq!(world.acquire("a").await, id);
}

#[tokio::test]
async fn what_is_young_is_left_alone() {
    let world = World::new().await;
    world.make("a", &Attempt::random().unwrap()).await;
    let gone = world.acquire("b").await;
    world.provider.vanish(&gone);
    let report = world.report().await;
    let hour = world.reconciler().with_min_age(Duration::from_secs(3600));
    let plan = hour.plan(&report, &everything()).unwrap();
    let why: Vec<_> = plan.kept().iter().map(|(_, why)| *why).collect();
    assert_eq!((plan.steps().len(), why), (0, vec![Kept::TooYoung; 2]));
    // The provider's own bound counts where it is longer.
    let slow = FakeProvider::with_options(
        FakeOptions::default().with_capabilities(|can| can.create_settle = Some(Duration::from_secs(60))),
    );
    let slow = Reconciler::new(Arc::new(slow), Arc::clone(&world.registry) as _).with_min_age(Duration::ZERO);
    assert!(slow.plan(&report, &everything()).unwrap().steps().is_empty());
}

#[tokio::test]
async fn other_credentials_say_nothing_about_a_sandbox() {
    let world = World::new().await;
    let gone = world.acquire("a").await;
    world.provider.vanish(&gone);
    world.acquire("b").await;
    world.change("b", |record| record.enter(Phase::Destroying)).await;
    let elsewhere = world.provider.clone().with_fingerprint("other credentials");
    let reconciler =
        Reconciler::new(Arc::new(elsewhere), Arc::clone(&world.registry) as _).with_min_age(Duration::ZERO);
    let report = reconciler.orphans().await.unwrap();
    let codes: Vec<_> = report.findings.iter().map(Finding::as_str).collect();
    assert_eq!(codes, ["elsewhere", "open_destroy"]);
    let plan = reconciler.plan(&report, &everything()).unwrap();
    let why: Vec<_> = plan.kept().iter().map(|(_, why)| *why).collect();
    assert_eq!((plan.steps().len(), why), (0, vec![Kept::NotOurs; 2]));
}

#[tokio::test]
async fn a_key_that_somebody_works_on_is_left_alone() {
    let world = World::new().await;
    let id = world.make("a", &Attempt::random().unwrap()).await;
    let plan = world.reconciler().plan(&world.report().await, &everything()).unwrap();
    let (owner, key) = (Owner::default(), Key::new("a").unwrap());
    let held = world.registry.try_lease(&owner, &key, LONG).await.unwrap().unwrap();
    let applied = world.reconciler().apply(plan.clone()).await;
    assert!(matches!(applied[..], [(_, StepOutcome::Held)]), "{applied:?}");
    assert_eq!(world.alive(), [id]);
    drop(held);
    let applied = world.reconciler().apply(plan).await;
    assert!(matches!(applied[..], [(_, StepOutcome::Done)]), "{applied:?}");
    assert!(world.alive().is_empty());
}

#[tokio::test]
async fn what_has_changed_since_the_plan_is_left_alone() {
    let world = World::new().await;
    let id = world.make("a", &Attempt::random().unwrap()).await;
    let gone = world.acquire("b").await;
    world.provider.vanish(&gone);
    let plan = world.reconciler().plan(&world.report().await, &everything()).unwrap();
    assert_eq!(plan.steps().len(), 2);
    // Hosts come for both keys.
    assert_eq!(world.acquire("a").await, id);
    let new = world.acquire("b").await;
    let applied = world.reconciler().apply(plan).await;
    assert!(applied.iter().all(|(_, outcome)| matches!(outcome, StepOutcome::Changed)), "{applied:?}");
    assert_eq!(world.alive(), [id, new.clone()]);
    assert_eq!(world.record("b").await.unwrap().id, Some(new));
}

#[tokio::test]
async fn a_destroy_that_fails_is_said_and_the_next_steps_go_on() {
    let world = World::new().await;
    for key in ["a", "b"] {
        world.make(key, &Attempt::random().unwrap()).await;
    }
    world.provider.script(Verb::Destroy, Fault::Before(Error::new(ErrorKind::RateLimited, "slow down")));
    let done = world.reconcile(&everything()).await;
    assert!(
        matches!(&done[..], [(_, StepOutcome::Failed(error)), (_, StepOutcome::Done)]
            if error.kind() == ErrorKind::RateLimited),
        "{done:?}"
    );
    // It is written down by then, so that no host takes it, and whoever comes next finishes it.
    assert_eq!(world.found().await, ["abandoned a"]);
    let done = world.reconcile(&ReconcilePolicy::default()).await;
    assert!(matches!(&done[..], [(_, StepOutcome::Done)]), "{done:?}");
    assert!(world.alive().is_empty());
}

#[tokio::test]
async fn half_a_listing_is_no_report() {
    let world = World::with(FakeOptions::default().with_page_size(1)).await;
    world.acquire("a").await;
    world.acquire("b").await;
    let broken = Error::new(ErrorKind::Unavailable, "the second page is not there");
    world.provider.script(Verb::List, Fault::ErrorOnPage(1, broken));
    let error = world.reconciler().orphans().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_listing_that_lags_behind_makes_no_record_missing() {
    let lagging = FakeOptions::default().with_list_visibility(Duration::from_secs(3600));
    let world = World::with(lagging).await;
    let owner = Owner::default();
    let mut record =
        Record::intent(owner, Key::new("a").unwrap(), "fake", "fake".to_owned(), SandboxSpec::default())
            .unwrap();
    let tags = Tags {
        owner: record.owner.clone(),
        key: record.key.clone(),
        generation: record.generation.clone(),
        attempt: record.attempt.clone(),
    };
    let made = world.provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap();
    record.id = Some(made.id().clone());
    record.enter(Phase::Ready);
    let held = lease(&*world.registry, &record, LONG).await;
    world.registry.store(record, &held).await.unwrap();
    let report = world.report().await;
    assert_eq!((report.sandboxes, report.findings.len()), (0, 0), "{report:?}");
}

#[tokio::test]
async fn a_registry_of_one_process_removes_nothing_of_other_hosts() {
    let world = World::new().await;
    world.make("a", &Attempt::random().unwrap()).await;
    let alone = Reconciler::new(Arc::new(world.provider.clone()), Arc::new(MemoryRegistry::new()))
        .with_min_age(Duration::ZERO);
    let report = alone.orphans().await.unwrap();
    assert_eq!(report.findings.len(), 1);
    let error = alone.plan(&report, &everything()).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("exclusion")));
    assert!(alone.plan(&report, &ReconcilePolicy::default()).unwrap().steps().is_empty());
}

#[tokio::test]
async fn records_that_remember_nothing_any_more_are_forgotten() {
    let world = World::new().await;
    world.acquire("a").await;
    world.change("a", Record::abandon).await;
    world.host().destroy("a").await.unwrap();
    assert!(world.found().await.is_empty(), "its attempts are still remembered");
    world
        .change("a", |record| record.abandoned[0].at = SystemTime::now() - Duration::from_secs(8 * 24 * 3600))
        .await;
    assert_eq!(world.found().await, ["spent a"]);
    assert_eq!(world.reconcile(&ReconcilePolicy::default()).await.len(), 1);
    assert!(world.record("a").await.is_none());
}

#[tokio::test]
async fn one_owners_report_shows_nobody_elses() {
    let world = World::new().await;
    world.make("a", &Attempt::random().unwrap()).await;
    world.provider.make_untagged(SandboxSpec::default());
    let of_other = world.reconciler().with_owner(Owner::new("other").unwrap());
    assert_eq!(of_other.orphans().await.unwrap(), OrphanReport::default());
    let of_default = world.reconciler().with_owner(Owner::default());
    assert_eq!(of_default.orphans().await.unwrap().findings.len(), 1);
}
