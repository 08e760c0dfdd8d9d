//! Rules about acquire over the provider: what a host and its hooks rely on, whoever keeps the sandboxes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{Stage, within};
use crate::{
    AcquireOptions, AcquireOutcome, Acquired, CloneOptions, DestroyOutcome, Error, ErrorKind, Events,
    FreshFile, Hooks, How, Key, Memory, MemoryRegistry, OnGone, PersistHook, ProcessSpec, ReplaceWhenGone,
    RestoreReason, RestoreReport, Result, Sandbox, SandboxHandle, SandboxHandleExt, SandboxId,
    SandboxProvider, SandboxProviderExt, SandboxState, Sandboxes, SetupState, Start, StopOutcome,
};

/// The key of every rule, each of which has an owner of its own.
const KEY: &str = "one";

/// A host at this provider value, whose records all hosts of a rule share.
fn host_at(stage: &Stage, provider: Arc<dyn SandboxProvider>, records: &MemoryRegistry) -> Sandboxes {
    Sandboxes::new(provider).with_owner(stage.owner().clone()).with_registry(Arc::new(records.as_shared()))
}

/// The first host of a rule.
fn host(stage: &Stage, records: &MemoryRegistry) -> Sandboxes {
    host_at(stage, Arc::clone(stage.provider()), records)
}

/// A host as another process would be one.
async fn other_host(stage: &Stage, records: &MemoryRegistry) -> Sandboxes {
    host_at(stage, stage.fresh_provider().await, records)
}

fn options(stage: &Stage) -> AcquireOptions {
    AcquireOptions::new(stage.spec())
}

async fn acquire(stage: &Stage, host: &Sandboxes, options: AcquireOptions) -> Result<Acquired> {
    let acquired = within("the acquire ends", host.acquire(KEY, options)).await?;
    stage.own(acquired.sandbox.id());
    Ok(acquired)
}

async fn acquired(stage: &Stage, host: &Sandboxes) -> Acquired {
    acquire(stage, host, options(stage)).await.unwrap()
}

async fn assert_usable(sandbox: &Sandbox) {
    let output = sandbox.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap();
    assert!(output.exit.success(), "{}", output.exit);
}

/// Asserts that the key has this sandbox and no other, as far as the provider can tell.
async fn assert_only(stage: &Stage, id: &SandboxId) {
    let can = stage.capabilities();
    if can.tags {
        // By then every listing shows what there is.
        tokio::time::sleep(can.list_visibility.unwrap_or_default()).await;
        let found: Vec<_> = stage.find_key(KEY).await.into_iter().map(|info| info.id).collect();
        assert_eq!(found, std::slice::from_ref(id));
    }
    stage.info(id).await;
}

/// Hooks that write down when they run, and fail where they are told to.
#[derive(Debug, Default)]
struct Steps {
    seen: Mutex<Vec<&'static str>>,
    resumes: AtomicUsize,
    start_fails: AtomicBool,
}

impl Steps {
    fn note(&self, step: &'static str) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    /// Returns what ran since it was asked last.
    fn seen(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Hooks for Steps {
    async fn secrets(&self, _: &Sandbox) -> Result<Vec<FreshFile>> {
        self.note("secrets");
        Ok(Vec::new())
    }

    async fn on_start(&self, start: Start) -> Result<()> {
        self.note("on_start");
        start.sandbox.write_bytes("set-up", "").await?;
        if self.start_fails.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the setup could not be done"));
        }
        Ok(())
    }

    async fn on_resume(&self, sandbox: &Sandbox, _: Memory) -> Result<Vec<FreshFile>> {
        self.note("on_resume");
        self.resumes.fetch_add(1, Ordering::SeqCst);
        assert_usable(sandbox).await;
        Ok(Vec::new())
    }

    async fn on_stop(&self, sandbox: &Sandbox) -> Result<()> {
        self.note("on_stop");
        assert_usable(sandbox).await;
        Ok(())
    }

    async fn on_destroy(&self, sandbox: &Sandbox) -> Result<()> {
        self.note("on_destroy");
        assert_usable(sandbox).await;
        Ok(())
    }
}

#[async_trait]
impl PersistHook for Steps {
    async fn restore(&self, sandbox: &Sandbox, _: RestoreReason) -> Result<RestoreReport> {
        self.note("restore");
        sandbox.write_bytes("work", "put back").await?;
        Ok(RestoreReport::restored("snapshot"))
    }

    async fn before_pause(&self, sandbox: &Sandbox) -> Result<()> {
        self.note("before_pause");
        sandbox.read_bytes("work").await.map(drop)
    }

    async fn before_destroy(&self, sandbox: &Sandbox) -> Result<()> {
        self.note("before_destroy");
        sandbox.read_bytes("work").await.map(drop)
    }

    async fn tick(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }
}

/// Whoever comes first makes it, and whoever comes next, from another process too, gets that very one.
pub async fn the_first_acquire_creates_and_the_next_ones_connect(stage: &Stage) {
    let records = MemoryRegistry::new();
    let host = host(stage, &records);
    let first = acquired(stage, &host).await;
    let told = (first.outcome, first.facts.how, first.facts.setup);
    assert_eq!(told, (AcquireOutcome::Created, How::Fresh, SetupState::Needed));
    assert_usable(&first.sandbox).await;
    first.sandbox.write_bytes("mark", "here").await.unwrap();
    for host in [host, other_host(stage, &records).await] {
        let next = acquired(stage, &host).await;
        let told = (next.outcome, next.facts.how, next.facts.setup);
        assert_eq!(told, (AcquireOutcome::Connected, How::Attached, SetupState::Done));
        assert_eq!(next.sandbox.provider_id(), first.sandbox.provider_id());
        assert_eq!(next.sandbox.read_text("mark").await.unwrap(), "here");
    }
    assert_only(stage, first.sandbox.id()).await;
}

/// Callers of two hosts at the same time get one sandbox, and one of the hosts made it.
pub async fn callers_at_the_same_time_get_one_sandbox(stage: &Stage) {
    let records = MemoryRegistry::new();
    let hosts = [host(stage, &records), other_host(stage, &records).await];
    let calls: Vec<_> = (0..8)
        .map(|number| {
            let (host, options) = (hosts[number % 2].clone(), options(stage));
            tokio::spawn(async move { host.acquire(KEY, options).await })
        })
        .collect();
    let mut all = Vec::new();
    for call in calls {
        all.push(within("the acquire ends", call).await.unwrap().unwrap());
    }
    let id = all[0].sandbox.id();
    stage.own(id);
    assert!(all.iter().all(|acquired| acquired.sandbox.id() == id));
    let made = all.iter().filter(|one| one.outcome == AcquireOutcome::Created && !one.facts.joined);
    assert_eq!(made.count(), 1);
    assert_only(stage, id).await;
}

/// A host without any record finds the sandbox by its key.
pub async fn a_host_without_records_finds_the_sandbox_of_its_key(stage: &Stage) {
    let can = stage.capabilities();
    if !stage
        .needs(can.tags && can.list_visibility.is_some() && can.create_settle.is_some(), "tags, with bounds")
    {
        return;
    }
    let first = acquired(stage, &host(stage, &MemoryRegistry::new())).await.sandbox;
    let stranger = Sandboxes::new(stage.fresh_provider().await).with_owner(stage.owner().clone());
    let found = acquired(stage, &stranger).await;
    assert_eq!(
        (found.outcome, found.sandbox.provider_id()),
        (AcquireOutcome::Connected, first.provider_id())
    );
    assert_usable(&found.sandbox).await;
    assert_only(stage, first.id()).await;
}

/// The provider's id, kept by the caller, is enough.
pub async fn the_provider_id_alone_leads_back(stage: &Stage) {
    let first = acquired(stage, &host(stage, &MemoryRegistry::new())).await.sandbox;
    let stranger = host_at(stage, stage.fresh_provider().await, &MemoryRegistry::new());
    let named = options(stage).with_provider_id(first.id().clone());
    let back = acquire(stage, &stranger, named).await.unwrap();
    assert_eq!((back.outcome, back.sandbox.provider_id()), (AcquireOutcome::Connected, first.provider_id()));
    assert_usable(&back.sandbox).await;
}

/// An id leads to nobody else's sandbox.
pub async fn the_sandbox_of_another_key_is_refused(stage: &Stage) {
    if !stage.needs(stage.capabilities().tags, "tags") {
        return;
    }
    let host = host(stage, &MemoryRegistry::new());
    let theirs = acquired(stage, &host).await.sandbox;
    let named = options(stage).with_provider_id(theirs.id().clone());
    let error = host.acquire("another", named).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ownership, "{error}");
    assert!(stage.find_key("another").await.is_empty());
    assert_usable(&theirs).await;
}

/// Only what the provider itself says to be gone is replaced, and not where the caller wants that one or none.
pub async fn what_is_gone_is_replaced_unless_the_caller_says_no(stage: &Stage) {
    let records = MemoryRegistry::new();
    let host = host(stage, &records);
    let old = acquired(stage, &host).await.sandbox.id().clone();
    stage.fresh_provider().await.destroy(&old).await.unwrap();
    let wants_that_one = options(stage).with_replace_when_gone(ReplaceWhenGone::Fail);
    let error = acquire(stage, &host, wants_that_one).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    let next = acquired(stage, &host).await;
    assert_eq!(
        (next.outcome, &next.facts.how),
        (AcquireOutcome::Created, &How::Replaced { old: old.clone() })
    );
    assert_ne!(*next.sandbox.id(), old);
    assert_only(stage, next.sandbox.id()).await;
}

/// Killed by others, then the next command: it is told, or goes on in the next sandbox where that was asked for.
pub async fn a_value_of_a_killed_sandbox_fails_or_goes_on_as_asked(stage: &Stage) {
    let host = host(stage, &MemoryRegistry::new());
    let kept = acquired(stage, &host).await.sandbox;
    let goes_on =
        acquire(stage, &host, options(stage).with_on_gone(OnGone::Reacquire)).await.unwrap().sandbox;
    let old = kept.id().clone();
    stage.fresh_provider().await.destroy(&old).await.unwrap();
    let command = || ProcessSpec::argv("true", [""; 0]);
    for _ in 0..2 {
        assert_eq!(kept.exec(command()).await.unwrap_err().kind(), ErrorKind::Gone);
    }
    // The call that learns of it is sent again only where it is known not to have begun.
    if let Err(error) = goes_on.exec(command()).await {
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    }
    assert_usable(&goes_on).await;
    stage.own(goes_on.id());
    assert_ne!(*goes_on.id(), old);
    assert_only(stage, goes_on.id()).await;
}

/// Work comes back before secrets, secrets before the start hook, and work is saved before the end.
pub async fn hooks_run_in_their_order(stage: &Stage) {
    let steps = Arc::new(Steps::default());
    let host = host(stage, &MemoryRegistry::new()).with_hooks(steps.clone()).with_persist(steps.clone());
    let first = acquired(stage, &host).await;
    assert_eq!(steps.seen(), ["restore", "secrets", "on_start"]);
    assert_eq!(first.facts.restored.and_then(|report| report.snapshot).as_deref(), Some("snapshot"));
    acquired(stage, &host).await;
    assert_eq!(steps.seen(), [""; 0]);
    if stage.capabilities().pause {
        first.sandbox.stop().await.unwrap();
        assert_eq!(steps.seen(), ["on_stop", "before_pause"]);
        assert_usable(&first.sandbox).await;
        assert_eq!(steps.seen(), ["on_resume"]);
    }
    first.sandbox.destroy().await.unwrap();
    assert_eq!(steps.seen(), ["before_destroy", "on_destroy"]);
}

/// A setup that failed is done again, in the same sandbox, by whoever comes next; the outcome stays `created` until then.
pub async fn a_failed_setup_runs_again_in_the_same_sandbox(stage: &Stage) {
    let (records, steps) = (MemoryRegistry::new(), Arc::new(Steps::default()));
    steps.start_fails.store(true, Ordering::SeqCst);
    let failing = host(stage, &records).with_hooks(steps.clone());
    for _ in 0..2 {
        let error = acquire(stage, &failing, options(stage)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    steps.start_fails.store(false, Ordering::SeqCst);
    let next = other_host(stage, &records).await.with_hooks(steps.clone());
    let done = acquired(stage, &next).await;
    assert_eq!((done.outcome, done.facts.setup), (AcquireOutcome::Created, SetupState::Needed));
    assert_eq!(steps.seen(), ["secrets", "on_start"].repeat(3));
    let again = acquired(stage, &next).await;
    assert_eq!((again.outcome, again.facts.setup), (AcquireOutcome::Connected, SetupState::Done));
    assert_only(stage, done.sandbox.id()).await;
}

/// A hook that acquires its own key would wait for itself.
pub async fn an_acquire_of_its_own_key_in_a_hook_is_reentrant(stage: &Stage) {
    let host = host(stage, &MemoryRegistry::new());
    let (inner, again) = (host.clone(), options(stage));
    let refused = Arc::new(Mutex::new(None));
    let told = Arc::clone(&refused);
    let hooked = options(stage).with_on_start(move |start| {
        let (inner, again, told) = (inner.clone(), again.clone(), Arc::clone(&told));
        async move {
            let error = inner.acquire(KEY, again).await.err();
            *told.lock().unwrap_or_else(PoisonError::into_inner) =
                error.map(|error| (error.kind(), error.reason()));
            // What it was given works.
            start.sandbox.write_bytes("set-up", "").await.map(drop)
        }
    });
    acquire(stage, &host, hooked).await.unwrap();
    let refused = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
    assert_eq!(refused, Some((ErrorKind::Conflict, Some("reentrant"))));
}

/// Each round by another host: the sandbox, its files and its setup stay.
pub async fn three_rounds_of_stop_and_acquire_keep_the_sandbox(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause, "pause") {
        return;
    }
    let (records, steps) = (MemoryRegistry::new(), Arc::new(Steps::default()));
    let memory = if stage.capabilities().pause_keeps_memory { Memory::Kept } else { Memory::Lost };
    let first = acquired(stage, &host(stage, &records).with_hooks(steps.clone())).await.sandbox;
    let id = first.id().clone();
    assert_eq!(first.stop().await.unwrap(), StopOutcome::Paused);
    for round in 0..3 {
        let host = other_host(stage, &records).await.with_hooks(steps.clone());
        let again = acquired(stage, &host).await;
        assert_eq!((again.outcome, &again.facts.how), (AcquireOutcome::Connected, &How::Resumed { memory }));
        assert_eq!(*again.sandbox.id(), id);
        again.sandbox.write_bytes(&format!("round-{round}"), round.to_string()).await.unwrap();
        for written in 0..=round {
            let file = again.sandbox.read_text(&format!("round-{written}")).await.unwrap();
            assert_eq!(file, written.to_string());
        }
        assert_eq!(again.sandbox.stop().await.unwrap(), StopOutcome::Paused);
    }
    let starts = steps.seen().into_iter().filter(|step| *step == "on_start").count();
    assert_eq!((starts, steps.resumes.load(Ordering::SeqCst)), (1, 3));
    assert_eq!(stage.info(&id).await.state, SandboxState::Paused);
}

/// However many commands meet a paused sandbox, it is resumed once, and none of them runs before the resume hook has ended.
pub async fn commands_on_a_paused_sandbox_resume_it_once(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause, "pause") {
        return;
    }
    let steps = Arc::new(Steps::default());
    let host = host(stage, &MemoryRegistry::new()).with_hooks(steps.clone());
    let sandbox = acquired(stage, &host).await.sandbox;
    sandbox.pause().await.unwrap();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { sandbox.exec(ProcessSpec::argv("true", [""; 0])).await })
        })
        .collect();
    for call in calls {
        assert!(within("the command ends", call).await.unwrap().unwrap().exit.success());
    }
    assert_eq!(steps.resumes.load(Ordering::SeqCst), 1);
}

/// The variables of a clone lie over those of its spec, and those of a command over both; a clone shares nothing else.
pub async fn variables_of_spec_clone_and_command_lie_over_each_other(stage: &Stage) {
    let host = host(stage, &MemoryRegistry::new());
    let spec = stage.spec().with_env("FIRST", "spec").with_env("SECOND", "spec").with_env("THIRD", "spec");
    let sandbox = acquire(stage, &host, AcquireOptions::new(spec)).await.unwrap().sandbox;
    let clone = sandbox
        .clone_with(
            CloneOptions::default()
                .with_key(Key::new("clone").unwrap())
                .with_env("SECOND", "clone")
                .with_env("THIRD", "clone"),
        )
        .unwrap();
    let seen = async |sandbox: &Sandbox, name: &str| {
        let command = ProcessSpec::argv("printenv", [name]).with_env("THIRD", "command");
        sandbox.exec(command).await.unwrap().stdout.text().trim_end().to_owned()
    };
    for (sandbox, second) in [(&sandbox, "spec"), (&clone, "clone")] {
        assert_eq!(seen(sandbox, "FIRST").await, "spec");
        assert_eq!(seen(sandbox, "SECOND").await, second);
        assert_eq!(seen(sandbox, "THIRD").await, "command");
    }
    stage.own(clone.id());
    assert_ne!(clone.id(), sandbox.id());
}

/// A value that was never used makes nothing, whatever it is asked that is no work.
pub async fn a_lazy_value_makes_nothing_before_its_first_call(stage: &Stage) {
    let host = host(stage, &MemoryRegistry::new());
    let lazy = host.lazy(KEY, options(stage)).unwrap();
    assert_eq!(lazy.provider_id(), None);
    assert_eq!(lazy.stop().await.unwrap(), StopOutcome::NoSandbox);
    if stage.capabilities().tags {
        assert!(stage.find_key(KEY).await.is_empty());
    }
    let (one, two) = tokio::join!(lazy.write_bytes("a", "1"), lazy.write_bytes("b", "2"));
    one.and(two).unwrap();
    stage.own(lazy.id());
    assert_only(stage, lazy.id()).await;
}

/// A process that has never seen the sandbox stops and destroys it by its key alone, and does not wake it for that.
pub async fn a_fresh_host_stops_and_destroys_by_key(stage: &Stage) {
    let records = MemoryRegistry::new();
    let sandbox = acquired(stage, &host(stage, &records)).await.sandbox;
    let fresh = other_host(stage, &records).await;
    let (stopped, again) = match stage.capabilities().pause {
        true => (StopOutcome::Paused, StopOutcome::AlreadyPaused),
        false => (StopOutcome::LeftRunning, StopOutcome::LeftRunning),
    };
    assert_eq!(fresh.stop(KEY).await.unwrap(), stopped);
    assert_eq!(fresh.stop(KEY).await.unwrap(), again);
    assert_eq!(fresh.destroy(KEY).await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!(fresh.destroy(KEY).await.unwrap(), DestroyOutcome::AlreadyGone);
    assert!(stage.provider().find_id(sandbox.id()).await.unwrap().is_none());
    assert_eq!(fresh.stop(KEY).await.unwrap(), StopOutcome::NoSandbox);
}

/// Letting go ends nothing, said aloud or not.
pub async fn letting_go_of_a_value_ends_nothing(stage: &Stage) {
    let records = MemoryRegistry::new();
    let host = host(stage, &records);
    let first = acquired(stage, &host).await.sandbox;
    let id = first.id().clone();
    first.detach();
    let error = first.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidState, Some("detached")));
    drop((first, host));
    let back = acquired(stage, &other_host(stage, &records).await).await;
    assert_eq!((back.outcome, back.sandbox.id()), (AcquireOutcome::Connected, &id));
    assert_usable(&back.sandbox).await;
}

/// A caller that leaves in the middle of its acquire leaves nothing that nobody knows of.
pub async fn a_caller_that_leaves_during_its_acquire_leaves_one_sandbox_at_most(stage: &Stage) {
    let records = MemoryRegistry::new();
    for moment in [0, 1, 5, 20] {
        let (host, options) = (host(stage, &records), options(stage));
        let call = tokio::spawn(async move { host.acquire(KEY, options).await });
        // Anywhere in the acquire: the moment is the subject, not a wait for anything.
        tokio::time::sleep(Duration::from_millis(moment)).await;
        call.abort();
        let _ = call.await;
    }
    let next = acquired(stage, &other_host(stage, &records).await).await;
    assert_usable(&next.sandbox).await;
    assert_only(stage, next.sandbox.id()).await;
}

async fn told(events: &mut Events, count: usize) -> Vec<&'static str> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let event = within("the event comes", events.next()).await.unwrap().unwrap();
        seen.push(event.kind.as_str());
    }
    seen
}

/// A listener hears what happens to the sandboxes of its host, in order.
pub async fn events_tell_what_happened_in_order(stage: &Stage) {
    let host = host(stage, &MemoryRegistry::new());
    let mut events = host.events();
    let sandbox = acquired(stage, &host).await.sandbox;
    assert_eq!(told(&mut events, 2).await, ["starting", "started"]);
    if stage.capabilities().pause {
        sandbox.stop().await.unwrap();
        assert_eq!(told(&mut events, 2).await, ["paused", "stopped"]);
        assert_usable(&sandbox).await;
        assert_eq!(told(&mut events, 1).await, ["resumed"]);
    }
    sandbox.destroy().await.unwrap();
    assert_eq!(told(&mut events, 1).await, ["destroyed"]);
}
