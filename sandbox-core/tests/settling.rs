//! A create whose outcome is open is settled before anything else happens to its key, also when nobody waits for it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a broken rule panics")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, BootTime, CreateOptions, Error, ErrorKind, EventKind, How, Key, Lease,
    MemoryRegistry, Outcome, Owner, Phase, Record, RecordFilter, Registry, RegistryScope, ReplaceWhenGone,
    Result, ResultStream, SandboxProvider as _, SandboxSpec, Sandboxes, Tags,
};

fn host(provider: &FakeProvider, registry: &MemoryRegistry) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(Shared::new(registry)))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

async fn record(registry: &MemoryRegistry) -> Option<Record> {
    registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap()
}

/// A registry that all hosts share, and notes when a lease was renewed last.
#[derive(Clone, Debug)]
struct Shared {
    registry: MemoryRegistry,
    renewed: Arc<Mutex<Option<BootTime>>>,
}

impl Shared {
    fn new(registry: &MemoryRegistry) -> Self {
        Self { registry: registry.clone(), renewed: Arc::default() }
    }
}

#[async_trait]
impl Registry for Shared {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Cluster
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        self.registry.load(owner, key).await
    }

    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        self.registry.store(record, lease).await
    }

    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        self.registry.remove(record, lease).await
    }

    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        self.registry.try_lease(owner, key, ttl).await
    }

    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        // As slow as it takes until the clock of the records has moved.
        let begun = BootTime::now();
        while begun.as_ref().and_then(BootTime::elapsed).is_some_and(|passed| passed.is_zero()) {
            std::thread::yield_now();
        }
        self.registry.renew(owner, key, lease, ttl).await?;
        *self.renewed.lock().unwrap() = BootTime::now();
        Ok(())
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        self.registry.list(filter).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_of_an_open_create_counts_from_its_sending() {
    let (provider, registry) = (FakeProvider::new(), Shared::new(&MemoryRegistry::new()));
    if BootTime::now().is_none() {
        println!("skipped: needs /proc/uptime");
        return;
    }
    provider.script(Verb::Create, Fault::HangBefore);
    let sandboxes = Sandboxes::new(Arc::new(provider)).with_registry(Arc::new(registry.clone()));
    sandboxes.acquire("k", options().with_deadline(Duration::from_secs(1))).await.unwrap_err();
    let open = record(&registry.registry).await.unwrap();
    let age = open.phase_age();
    let since_renewal = registry.renewed.lock().unwrap().as_ref().and_then(BootTime::elapsed).unwrap();
    assert_eq!(open.phase, Phase::Creating);
    assert!(
        age <= since_renewal,
        "the intent is {age:?} old, and its lease was renewed {since_renewal:?} ago"
    );
}

#[tokio::test(start_paused = true)]
async fn a_create_that_its_caller_left_is_settled_in_the_background() {
    for shared in [true, false] {
        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
        let sandboxes = match shared {
            true => host(&provider, &registry),
            false => Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry.clone())),
        };
        provider.script(Verb::Create, Fault::HangAfter);
        sandboxes.acquire("k", options().with_deadline(Duration::from_secs(1))).await.unwrap_err();
        assert_eq!(record(&registry).await.unwrap().phase, Phase::Creating);
        tokio::time::sleep(Duration::from_secs(600)).await;
        let settled = record(&registry).await.unwrap();
        assert_eq!(
            (settled.phase, settled.id, settled.setup_done),
            (Phase::Ready, Some(provider.alive()[0].id.clone()), None)
        );
        let acquired = sandboxes.acquire("k", options()).await.unwrap();
        assert_eq!((acquired.outcome, provider.counts().created), (AcquireOutcome::Created, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_that_its_caller_left_and_that_never_came_is_given_up_in_the_background() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    provider.script(Verb::Create, Fault::HangBefore);
    let left = options().with_deadline(Duration::from_secs(1));
    host(&provider, &registry).acquire("k", left).await.unwrap_err();
    let attempt = record(&registry).await.unwrap().attempt;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let settled = record(&registry).await.unwrap();
    assert!(settled.is_tombstone() && settled.has_abandoned(&attempt), "{settled:?}");
}

#[tokio::test(start_paused = true)]
async fn what_settles_in_the_background_leaves_what_others_have_settled_alone() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    provider.script(Verb::Create, Fault::reset_after());
    provider.script_honest(Verb::Find, 1);
    provider.script_always(Verb::Find, Fault::refused());
    let left = options().with_deadline(Duration::from_secs(1));
    host(&provider, &registry).acquire("k", left).await.unwrap_err();
    provider.script_clear(Verb::Find);
    let mine = host(&provider, &registry).acquire("k", options()).await.unwrap();
    let known = record(&registry).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(record(&registry).await, known);
    assert_eq!(
        (mine.facts.how, provider.counts().created, provider.counts().destroyed),
        (How::Adopted, 1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_id_that_the_caller_names_is_not_forgotten_over_an_open_create() {
    for idempotent in [false, true] {
        let shape = FakeOptions::default();
        let shape = if idempotent { shape.with_idempotent_create() } else { shape };
        let (provider, registry) = (FakeProvider::with_options(shape), MemoryRegistry::new());
        let named = provider.make_untagged(SandboxSpec::default());
        provider.script(Verb::Create, Fault::HangAfter);
        let left = options().with_deadline(Duration::from_secs(1));
        host(&provider, &registry).acquire("k", left).await.unwrap_err();
        let wanted = options().with_provider_id(named);
        let error = host(&provider, &registry).acquire("k", wanted).await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("provider_id")));
        // The open create is settled: its sandbox is the key's.
        let made = provider.alive().pop().unwrap();
        assert!(made.tags.is_some());
        assert_eq!(record(&registry).await.unwrap().id, Some(made.id));
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_the_caller_names_is_attached_once_an_open_create_is_proven_absent() {
    for idempotent in [false, true] {
        let shape = FakeOptions::default();
        let shape = if idempotent { shape.with_idempotent_create() } else { shape };
        let (provider, registry) = (FakeProvider::with_options(shape), MemoryRegistry::new());
        let named = provider.make_untagged(SandboxSpec::default());
        provider.script(Verb::Create, Fault::HangBefore);
        let left = options().with_deadline(Duration::from_secs(1));
        host(&provider, &registry).acquire("k", left).await.unwrap_err();
        let attempt = record(&registry).await.unwrap().attempt;
        let wanted = options().with_provider_id(named.clone()).with_deadline(Duration::from_secs(900));
        let acquired = host(&provider, &registry).acquire("k", wanted).await.unwrap();
        assert_eq!(acquired.sandbox.provider_id(), Some(&named));
        assert!(record(&registry).await.unwrap().has_abandoned(&attempt));
        assert_eq!((provider.counts().of(Verb::Create), provider.alive().len()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn cleaned_up_is_told_only_where_nothing_is_left() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    let sandboxes = host(&provider, &registry);
    let told = |provider: &FakeProvider| {
        let (mut events, sandboxes, provider) = (sandboxes.events(), sandboxes.clone(), provider.clone());
        async move {
            let error = sandboxes.acquire("k", options()).await.unwrap_err();
            let alive = provider.alive().len();
            loop {
                if let EventKind::ProvisionFailed { cleaned_up, .. } =
                    events.next().await.unwrap().unwrap().kind
                {
                    return (error.outcome(), cleaned_up, alive);
                }
            }
        }
    };
    provider.script(Verb::Create, Fault::refused());
    assert_eq!(told(&provider).await, (Outcome::NotStarted, true, 0));
    provider.script(Verb::Create, Fault::reset_after());
    provider.script(Verb::Connect, Fault::refused());
    assert_eq!(told(&provider).await, (Outcome::Done, false, 1));
}

#[tokio::test(start_paused = true)]
async fn a_failed_create_that_does_not_say_what_it_did_counts_as_a_lost_answer() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Timeout, ErrorKind::Unexpected, ErrorKind::Conflict] {
        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
        let unclear = Error::new(kind, "something went wrong");
        provider.script(Verb::Create, Fault::LoseAnswer(unclear.clone()));
        let acquired = host(&provider, &registry).acquire("k", options()).await.unwrap();
        assert_eq!((acquired.facts.how, provider.counts().created), (How::Adopted, 1), "{kind}");

        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
        provider.script(Verb::Create, Fault::Before(unclear.clone().with_outcome(Outcome::NotStarted)));
        let error = host(&provider, &registry).acquire("k", options()).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, Outcome::NotStarted));
        assert_eq!(record(&registry).await, None, "{kind}");

        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
        provider.script(Verb::Create, Fault::Before(unclear));
        let error = host(&provider, &registry).acquire("k", options()).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, Outcome::NotStarted), "proven absent");
        assert!(record(&registry).await.unwrap().is_tombstone());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_a_lost_create_is_settled() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    provider.script(Verb::Create, Fault::HangBefore);
    let lease = Duration::from_secs(6);
    let (one, two) = (host(&provider, &registry), host(&provider, &registry));
    let (one, two) = (one.with_record_lease(lease), two.with_record_lease(lease));
    let patient = || options().with_deadline(Duration::from_secs(900));
    let first = tokio::spawn(async move { one.acquire("k", patient()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = tokio::spawn(async move { two.acquire("k", patient()).await });
    // Whoever sent it proves that it never came; nobody has taken it over meanwhile.
    let error = first.await.unwrap().unwrap_err();
    assert_eq!((error.operation(), error.outcome()), ("create", Outcome::NotStarted), "{error}");
    second.await.unwrap().unwrap();
    assert_eq!((provider.counts().of(Verb::Create), provider.alive().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_gets_no_answer_ends_with_its_lease() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    provider.script(Verb::Create, Fault::reset_after());
    provider.script(Verb::Connect, Fault::HangBefore);
    let lease = Duration::from_secs(6);
    let begun = tokio::time::Instant::now();
    let hanging = options().with_call_deadline(Duration::from_secs(600));
    let error = host(&provider, &registry).with_record_lease(lease).acquire("k", hanging).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Done, "{error}");
    assert!(begun.elapsed() < lease, "{:?}", begun.elapsed());
    let next = host(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!((next.outcome, provider.counts().created), (AcquireOutcome::Created, 1));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_of_an_attempt_that_was_given_up_is_destroyed_also_where_the_caller_names_it() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    provider.script(Verb::Create, Fault::CommitLate(Duration::from_secs(3600)));
    let patient = options().with_deadline(Duration::from_secs(900));
    host(&provider, &registry).acquire("k", patient).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let late = provider.alive()[0].id.clone();
    let named = options().with_provider_id(late.clone());
    let fail = named.clone().with_replace_when_gone(ReplaceWhenGone::Fail);
    assert_eq!(host(&provider, &registry).acquire("k", fail).await.unwrap_err().kind(), ErrorKind::Gone);
    assert!(provider.alive().is_empty());
    let acquired = host(&provider, &registry).acquire("k", named).await.unwrap();
    assert_eq!((acquired.facts.how, provider.alive().len()), (How::Replaced { old: late }, 1));
}

#[tokio::test(start_paused = true)]
async fn a_look_for_a_lost_create_waits_as_long_as_the_provider_asks_for() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
    provider.script(Verb::Create, Fault::reset_after());
    provider.script_honest(Verb::Find, 1);
    let asked_for = Duration::from_secs(30);
    let busy = Error::new(ErrorKind::RateLimited, "too many questions").retryable(Some(asked_for));
    provider.script(Verb::Find, Fault::Before(busy));
    let began = tokio::time::Instant::now();
    let acquired = host(&provider, &registry).acquire("k", options()).await.unwrap();
    assert_eq!(acquired.facts.how, How::Adopted);
    assert!(began.elapsed() >= asked_for, "{:?}", began.elapsed());
    assert_eq!(provider.counts().of(Verb::Find), 3);
}

#[tokio::test(start_paused = true)]
async fn an_open_create_of_another_spec_that_made_nothing_is_no_conflict() {
    for makes in [false, true] {
        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
        // Its host dies right after the intent, or right after the call.
        let (owner, key) = (Owner::default(), Key::new("k").unwrap());
        let lease = registry.try_lease(&owner, &key, Duration::from_secs(60)).await.unwrap().unwrap();
        let (name, fingerprint) = (provider.name(), provider.fingerprint());
        let spec = SandboxSpec::new("other");
        let intent = Record::intent(owner.clone(), key.clone(), name, fingerprint, spec.clone()).unwrap();
        let intent = registry.store(intent, &lease).await.unwrap();
        drop(lease);
        if makes {
            let (generation, attempt) = (intent.generation, intent.attempt);
            let made = CreateOptions::new(spec, Tags { owner, key, generation, attempt });
            provider.create_opts(made).await.unwrap();
        }
        let acquired = host(&provider, &registry).acquire("k", options()).await;
        if makes {
            let error = acquired.unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("spec")), "{error}");
        } else {
            assert_eq!(acquired.unwrap().facts.how, How::Fresh);
        }
        assert_eq!(provider.counts().created, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_anywhere_in_an_open_create_names_the_attempt_which_the_next_acquire_settles() {
    let seconds = Duration::from_secs;
    let late = |fault: &Fault| matches!(fault, Fault::HangBefore | Fault::CommitLate(_));
    for (fault, deadline) in [
        (Fault::HangAfter, 30),
        (Fault::HangBefore, 30),
        (Fault::HangAfter, 62),
        (Fault::HangBefore, 62),
        (Fault::CommitLate(seconds(61)), 30),
        (Fault::CommitLate(seconds(61)), 61),
        (Fault::Delay(seconds(20)), 10),
        (Fault::Delay(seconds(20)), 22),
        (Fault::reset_after(), 3),
    ] {
        for (shared, idempotent) in [(true, true), (true, false), (false, true), (false, false)] {
            let shape = FakeOptions::default().with_list_visibility(seconds(4));
            let shape = if idempotent { shape.with_idempotent_create() } else { shape };
            let (provider, registry) = (FakeProvider::with_options(shape), MemoryRegistry::new());
            provider.script(Verb::Create, fault.clone());
            let registry = if shared { registry.as_shared() } else { registry };
            let host =
                || Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry.clone()));
            let case = format!("{fault:?} {deadline} {shared} {idempotent}");
            if let Err(error) = host().acquire("k", options().with_deadline(seconds(deadline))).await {
                let named = error.context().any(|(name, _)| name == "attempt");
                assert!(named && error.kind() == ErrorKind::OutcomeUnknown, "{case}: {error}");
            }
            let mut next = host().acquire("k", options()).await;
            if next.is_err() && late(&fault) {
                // Its absence was proven, or it ended as it came too late.
                next = host().acquire("k", options()).await;
            }
            let id = next.unwrap_or_else(|error| panic!("{case}: {error}")).sandbox.provider_id().cloned();
            tokio::time::sleep(seconds(600)).await;
            let again = host().acquire("k", options()).await.unwrap();
            assert_eq!(again.sandbox.provider_id().cloned(), id, "{case}");
            assert_eq!((again.outcome, provider.alive().len()), (AcquireOutcome::Connected, 1), "{case}");
        }
    }
}
