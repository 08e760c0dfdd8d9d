//! Resumes: one for all values of a sandbox, and its hook has ended well before anything is let through, whoever resumed.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandhold_core::testing::{FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, Error, ErrorKind, EventKind, FreshFile, Hooks, How, Key, Memory, MemoryRegistry, Owner,
    Phase, Registry as _, Result, Sandbox, SandboxHandle as _, SandboxHandleExt as _,
    SandboxProviderExt as _, SandboxSpec, SandboxState, Sandboxes,
};

/// A resume hook that counts, fails while it is told to, and waits at a gate where there is one.
#[derive(Debug, Default)]
struct Resuming {
    runs: AtomicUsize,
    fails: AtomicBool,
    gate: Mutex<Option<Gate>>,
}

impl Resuming {
    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    fn hold(&self) -> Gate {
        let gate = Gate::new();
        *self.gate.lock().unwrap() = Some(gate.clone());
        gate
    }
}

#[async_trait]
impl Hooks for Resuming {
    async fn on_resume(&self, sandbox: &Sandbox, _: Memory) -> Result<Vec<FreshFile>> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "no token"));
        }
        sandbox.write_bytes("/home/user/token", "fresh").await?;
        Ok(Vec::new())
    }
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn host(provider: &FakeProvider, hooks: &Arc<Resuming>) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone())).with_hooks(hooks.clone())
}

async fn acquired(sandboxes: &Sandboxes) -> Sandbox {
    sandboxes.acquire("k", options()).await.unwrap().sandbox
}

async fn phase(registry: &MemoryRegistry) -> Phase {
    registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap().unwrap().phase
}

/// Lets everything happen that can happen without a gate opening.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_resume_hook_that_failed_in_an_acquire_runs_again_in_the_next_also_of_another_host() {
    for elsewhere in [false, true] {
        let provider = FakeProvider::new();
        let (hooks, registry) = (Arc::new(Resuming::default()), MemoryRegistry::new());
        let first = host(&provider, &hooks).with_registry(Arc::new(registry.clone()));
        acquired(&first).await.pause().await.unwrap();
        hooks.fail(true);
        assert_eq!(first.acquire("k", options()).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(phase(&registry).await, Phase::Resuming, "it runs, and is not ready");
        hooks.fail(false);
        let next =
            if elsewhere { host(&provider, &hooks).with_registry(Arc::new(registry.clone())) } else { first };
        let again = next.acquire("k", options()).await.unwrap();
        assert_eq!(again.facts.how, How::Resumed { memory: Memory::Kept });
        assert_eq!(again.sandbox.read_text("/home/user/token").await.unwrap(), "fresh");
        assert_eq!((hooks.runs(), phase(&registry).await), (2, Phase::Ready));
        acquired(&next).await;
        assert_eq!((hooks.runs(), provider.counts().resumed), (2, 1), "once it has ended well, no more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_hook_that_failed_in_a_call_runs_again_in_an_acquire() {
    let provider = FakeProvider::new();
    let hooks = Arc::new(Resuming::default());
    let sandboxes = host(&provider, &hooks);
    let sandbox = acquired(&sandboxes).await;
    sandbox.pause().await.unwrap();
    hooks.fail(true);
    sandbox.resume().await.unwrap_err();
    hooks.fail(false);
    acquired(&sandboxes).await;
    sandbox.read_text("/home/user/token").await.unwrap();
    assert_eq!((hooks.runs(), provider.counts().resumed), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_attach_that_resumes_runs_the_resume_hook() {
    // Another of our values paused it, or the provider itself, of which no record knows.
    for recorded in [true, false] {
        let provider = FakeProvider::new();
        let hooks = Arc::new(Resuming::default());
        let sandboxes = host(&provider, &hooks);
        let first = acquired(&sandboxes).await;
        let gate = Gate::new();
        provider.script(Verb::Connect, Fault::HoldBefore(gate.clone()));
        let second = tokio::spawn(async move { sandboxes.acquire("k", options()).await });
        gate.arrived(1).await;
        if recorded {
            first.pause().await.unwrap();
        } else {
            provider.pause(first.id()).await.unwrap();
        }
        gate.open();
        let second = second.await.unwrap().unwrap();
        assert_eq!((second.facts.how, hooks.runs()), (How::Resumed { memory: Memory::Kept }, 1));
        assert_eq!(first.read_text("/home/user/token").await.unwrap(), "fresh");
    }
}

#[tokio::test(start_paused = true)]
async fn two_values_of_one_paused_sandbox_cause_one_connect() {
    for overlapping in [false, true] {
        let provider = FakeProvider::new();
        let hooks = Arc::new(Resuming::default());
        let sandboxes = host(&provider, &hooks);
        let (one, two) = (acquired(&sandboxes).await, acquired(&sandboxes).await);
        one.pause().await.unwrap();
        let before = provider.counts().of(Verb::Connect);
        let gate = Gate::new();
        if overlapping {
            provider.script(Verb::Connect, Fault::HoldBefore(gate.clone()));
        }
        let calls = [one, two].map(|value| tokio::spawn(async move { value.exists("/f").await }));
        if overlapping {
            gate.arrived(1).await;
            settle().await;
            gate.open();
        }
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!((provider.counts().of(Verb::Connect) - before, hooks.runs()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_and_an_acquire_on_a_paused_sandbox_cause_one_resume() {
    let provider = FakeProvider::new();
    let hooks = Arc::new(Resuming::default());
    let sandboxes = host(&provider, &hooks);
    let value = acquired(&sandboxes).await;
    value.pause().await.unwrap();
    let gate = Gate::new();
    provider.script(Verb::Connect, Fault::HoldBefore(gate.clone()));
    let acquire = tokio::spawn(async move { sandboxes.acquire("k", options()).await });
    gate.arrived(1).await;
    let call = tokio::spawn(async move { value.read_text("/home/user/token").await });
    settle().await;
    gate.open();
    acquire.await.unwrap().unwrap();
    assert_eq!(call.await.unwrap().unwrap(), "fresh");
    assert_eq!((provider.counts().resumed, hooks.runs()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn every_value_of_the_host_waits_for_the_resume_hook_of_a_call_or_an_acquire() {
    for by_acquire in [false, true] {
        let provider = FakeProvider::new();
        let hooks = Arc::new(Resuming::default());
        let sandboxes = host(&provider, &hooks);
        let (one, two) = (acquired(&sandboxes).await, acquired(&sandboxes).await);
        one.pause().await.unwrap();
        let gate = hooks.hold();
        let resuming = tokio::spawn(async move {
            if by_acquire {
                sandboxes.acquire("k", options()).await.map(drop)
            } else {
                one.exists("/f").await.map(drop)
            }
        });
        gate.arrived(1).await;
        let inside = provider.counts().of(Verb::Inside);
        let waiting = tokio::spawn(async move { two.read_text("/home/user/token").await });
        settle().await;
        assert_eq!(provider.counts().of(Verb::Inside), inside, "sent before the hook had ended");
        gate.open();
        resuming.await.unwrap().unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), "fresh");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_while_another_value_or_the_key_is_paused_and_then_resumes_it() {
    for by_key in [false, true] {
        let provider = FakeProvider::new();
        let hooks = Arc::new(Resuming::default());
        let sandboxes = host(&provider, &hooks);
        let (one, two) = (acquired(&sandboxes).await, acquired(&sandboxes).await);
        let gate = Gate::new();
        provider.script(Verb::Pause, Fault::HoldBefore(gate.clone()));
        let pause = tokio::spawn(async move {
            if by_key { sandboxes.stop("k").await.map(drop) } else { one.pause().await.map(drop) }
        });
        gate.arrived(1).await;
        let inside = provider.counts().of(Verb::Inside);
        let call = tokio::spawn(async move { two.read_text("/home/user/token").await });
        settle().await;
        assert_eq!(provider.counts().of(Verb::Inside), inside, "sent to a sandbox that freezes");
        gate.open();
        pause.await.unwrap().unwrap();
        assert_eq!(call.await.unwrap().unwrap(), "fresh");
        assert_eq!((provider.counts().resumed, hooks.runs()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_was_left_in_the_middle_owes_its_hook() {
    let provider = FakeProvider::new();
    let hooks = Arc::new(Resuming::default());
    let sandbox = acquired(&host(&provider, &hooks)).await;
    sandbox.pause().await.unwrap();
    provider.script(Verb::Connect, Fault::HangAfter);
    let left = tokio::time::timeout(Duration::from_secs(1), sandbox.resume()).await;
    assert!(left.is_err() && provider.alive()[0].state == SandboxState::Running);
    assert_eq!(sandbox.read_text("/home/user/token").await.unwrap(), "fresh");
    assert_eq!((provider.counts().resumed, hooks.runs()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_resume_by_a_call_asks_for_the_lease_of_the_spec() {
    let provider = FakeProvider::new();
    let hooks = Arc::new(Resuming::default());
    let sandboxes = host(&provider, &hooks);
    let leased = |seconds| {
        let mut spec = SandboxSpec::default();
        spec.lease = Some(Duration::from_secs(seconds));
        AcquireOptions::new(spec)
    };
    sandboxes.acquire("k", leased(300)).await.unwrap();
    let sandbox = sandboxes.acquire("k", leased(3000)).await.unwrap().sandbox;
    sandbox.pause().await.unwrap();
    sandbox.resume().await.unwrap();
    let ends = sandbox.info().await.unwrap().expires_at.unwrap();
    assert!(
        ends > SystemTime::now() + Duration::from_secs(2000),
        "that of whoever made it, not of this value"
    );
}

#[tokio::test]
async fn a_sandbox_that_was_made_elsewhere_is_resumed_by_calls() {
    let provider = FakeProvider::new();
    let id = provider.make_untagged(SandboxSpec::default());
    let hooks = Arc::new(Resuming::default());
    let sandboxes = host(&provider, &hooks);
    let sandbox = sandboxes.acquire("k", options().with_provider_id(id)).await.unwrap().sandbox;
    sandbox.pause().await.unwrap();
    assert_eq!(sandbox.read_text("/home/user/token").await.unwrap(), "fresh");
}

/// What a resume hook tries with the key and the value that it is given.
#[derive(Debug, Default)]
struct Trying {
    sandboxes: OnceLock<Sandboxes>,
    destroys: AtomicBool,
    kept: Mutex<Option<Sandbox>>,
    refused: Mutex<Vec<Option<&'static str>>>,
}

#[async_trait]
impl Hooks for Trying {
    async fn on_resume(&self, sandbox: &Sandbox, _: Memory) -> Result<Vec<FreshFile>> {
        *self.kept.lock().unwrap() = Some(sandbox.clone());
        let sandboxes = self.sandboxes.get().unwrap();
        let mut tried = vec![
            sandboxes.acquire("k", options()).await.map(drop),
            sandboxes.stop("k").await.map(drop),
            sandboxes.destroy("k").await.map(drop),
            sandbox.pause().await.map(drop),
            sandbox.stop().await.map(drop),
        ];
        if self.destroys.load(Ordering::SeqCst) {
            tried.push(sandbox.destroy().await.map(drop));
        }
        let refused = tried.into_iter().filter_map(Result::err).map(|error| error.reason());
        self.refused.lock().unwrap().extend(refused);
        Ok(Vec::new())
    }
}

fn trying(provider: &FakeProvider) -> (Arc<Trying>, Sandboxes) {
    let hooks = Arc::new(Trying::default());
    let sandboxes = Sandboxes::new(Arc::new(provider.clone())).with_hooks(hooks.clone());
    hooks.sandboxes.set(sandboxes.clone()).unwrap();
    (hooks, sandboxes)
}

#[tokio::test(start_paused = true)]
async fn a_resume_hook_that_would_wait_for_its_own_resume_is_refused_at_once() {
    for by_acquire in [false, true] {
        let provider = FakeProvider::new();
        let (hooks, sandboxes) = trying(&provider);
        let sandbox = acquired(&sandboxes).await;
        sandbox.pause().await.unwrap();
        hooks.destroys.store(!by_acquire, Ordering::SeqCst);
        let began = tokio::time::Instant::now();
        if by_acquire {
            acquired(&sandboxes).await;
        } else {
            sandbox.resume().await.unwrap();
        }
        let refused = hooks.refused.lock().unwrap().clone();
        assert_eq!(refused, vec![Some("reentrant"); if by_acquire { 5 } else { 6 }]);
        assert!(began.elapsed() < Duration::from_secs(1));
        // The hook's value is an ordinary one afterwards.
        let kept = hooks.kept.lock().unwrap().take().unwrap();
        kept.pause().await.unwrap();
        kept.exists("/f").await.unwrap();
        assert_eq!(provider.counts().resumed, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_hook_that_destroys_the_sandbox_of_its_acquire_ends_the_acquire() {
    let provider = FakeProvider::new();
    let (hooks, sandboxes) = trying(&provider);
    acquired(&sandboxes).await.pause().await.unwrap();
    hooks.destroys.store(true, Ordering::SeqCst);
    let error = sandboxes.acquire("k", options()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Cancelled, Some("ended_by_hook")), "{error}");
    assert!(provider.alive().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_told_before_the_resume_of_a_call_that_waited_for_it() {
    let provider = FakeProvider::new();
    let sandboxes = host(&provider, &Arc::new(Resuming::default()));
    let (one, two) = (acquired(&sandboxes).await, acquired(&sandboxes).await);
    let mut events = sandboxes.events();
    let gate = Gate::new();
    provider.script(Verb::Pause, Fault::HoldBefore(gate.clone()));
    let pause = tokio::spawn(async move { one.pause().await });
    gate.arrived(1).await;
    let call = tokio::spawn(async move { two.exists("/f").await });
    settle().await;
    gate.open();
    pause.await.unwrap().unwrap();
    call.await.unwrap().unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().kind, EventKind::Paused);
    assert_eq!(events.next().await.unwrap().unwrap().kind, EventKind::Resumed { memory: Memory::Kept });
}

/// A hook that works through a value of its sandbox that it was not given.
#[derive(Debug, Default)]
struct Roundabout {
    other: OnceLock<Sandbox>,
    refused: Mutex<Vec<Option<&'static str>>>,
}

impl Roundabout {
    async fn work(&self) {
        let Some(other) = self.other.get() else { return };
        let tried = [
            other.exists("/f").await.map(drop),
            other.resume().await,
            other.pause().await.map(drop),
            other.destroy().await.map(drop),
        ];
        let refused = tried.into_iter().filter_map(Result::err).map(|error| error.reason());
        self.refused.lock().unwrap().extend(refused);
    }
}

#[async_trait]
impl Hooks for Roundabout {
    fn runs_on_every_start(&self) -> bool {
        true
    }
    async fn on_start(&self, start: sandhold_core::Start) -> Result<()> {
        if self.other.get().is_some() {
            start.sandbox.pause().await?;
        }
        self.work().await;
        start.sandbox.resume().await
    }
    async fn on_resume(&self, _: &Sandbox, _: Memory) -> Result<Vec<FreshFile>> {
        self.work().await;
        Ok(Vec::new())
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_would_wait_for_itself_through_another_value_is_refused_at_once() {
    for by_acquire in [true, false] {
        let provider = FakeProvider::new();
        let hooks = Arc::new(Roundabout::default());
        let sandboxes = Sandboxes::new(Arc::new(provider.clone())).with_hooks(hooks.clone());
        let sandbox = acquired(&sandboxes).await;
        hooks.other.set(acquired(&sandboxes).await).unwrap();
        let began = tokio::time::Instant::now();
        if by_acquire {
            // It pauses what it sets up, and resumes it: the hook of that resume tries the same.
            acquired(&sandboxes).await;
        } else {
            sandbox.pause().await.unwrap();
            sandbox.resume().await.unwrap();
        }
        let refused = hooks.refused.lock().unwrap().clone();
        assert_eq!(refused, vec![Some("reentrant"); if by_acquire { 8 } else { 4 }]);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        hooks.other.get().unwrap().exists("/f").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_pause_forgets_no_resume_hook_that_is_owed() {
    for fault in [Fault::refused(), Fault::HangBefore] {
        let (provider, registry, hooks) = (FakeProvider::new(), MemoryRegistry::new(), Arc::default());
        let host = || host(&provider, &hooks).with_registry(Arc::new(registry.clone()));
        let sandbox = acquired(&host()).await;
        sandbox.pause().await.unwrap();
        hooks.fail(true);
        sandbox.resume().await.unwrap_err();
        hooks.fail(false);
        let runs = hooks.runs();
        provider.script(Verb::Pause, fault);
        host().stop("k").await.unwrap_err();
        assert_eq!(phase(&registry).await, Phase::Resuming);
        acquired(&host()).await;
        assert_eq!((hooks.runs(), phase(&registry).await), (runs + 1, Phase::Ready));
    }
}

#[tokio::test]
async fn a_failed_pause_of_a_paused_sandbox_leaves_it_recorded_as_paused() {
    let (provider, registry, hooks) = (FakeProvider::new(), MemoryRegistry::new(), Arc::default());
    let host = || host(&provider, &hooks).with_registry(Arc::new(registry.clone()));
    acquired(&host()).await;
    host().stop("k").await.unwrap();
    provider.script(Verb::Pause, Fault::refused());
    host().stop("k").await.unwrap_err();
    assert_eq!(phase(&registry).await, Phase::Paused);
}
