use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;

use crate::acquire::Facts;
use crate::events::Event;
use crate::{AcquireOutcome, Error, ErrorKind, FreshFile, Memory, Result, Sandbox, SetupState};

/// Default deadline of one hook, each time it runs.
pub const DEFAULT_HOOK_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// What a start hook is told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Start {
    /// The sandbox; usable at once, while other callers still wait.
    pub sandbox: Sandbox,
    /// Whether this acquire made it.
    pub outcome: AcquireOutcome,
    /// Whether the setup is still to be done.
    pub setup: SetupState,
    /// More about how it came.
    pub facts: Facts,
}

/// What a host does at the turning points of a sandbox's life. Every method has a default that does nothing.
///
/// Setup is at least once: a host that dies inside [`Hooks::on_start`] has it run again by whoever acquires next.
///
/// # Cancellation
/// A hook that overruns its deadline is dropped where it waits, and fails with [`ErrorKind::Timeout`], reason
/// [`REASON_HOOK`] and context `hook`. The deadline of [`Hooks::on_start`] is
/// [`crate::AcquireOptions::hook_deadline`]; that of every other is set by [`crate::Sandboxes::with_hook_deadline`].
#[async_trait]
pub trait Hooks: fmt::Debug + Send + Sync + 'static {
    /// Returns the version of the setup that [`Hooks::on_start`] does; it runs again where a lower one was done.
    /// Default 1.
    fn setup_version(&self) -> u64 {
        1
    }

    /// Says whether [`Hooks::on_start`] runs on every acquire, also when the setup is done. Default no.
    fn runs_on_every_start(&self) -> bool {
        false
    }

    /// Returns files with secrets, which are put in place after the work of the sandbox was put back and before
    /// [`Hooks::on_start`]: nothing that is restored can read or replace them, and no snapshot needs to hold them. Runs
    /// whenever the start hook does, under a deadline of its own that includes putting them in place; what is to be fresh
    /// after a resume is for [`Hooks::on_resume`].
    ///
    /// # Errors
    /// Fails the acquire, and [`Hooks::on_start`] does not run; the next one runs it again.
    async fn secrets(&self, sandbox: &Sandbox) -> Result<Vec<FreshFile>> {
        let _ = sandbox;
        Ok(Vec::new())
    }

    /// Sets the sandbox up. Nobody else gets the sandbox before it has returned.
    ///
    /// # Errors
    /// Fails the acquire; the next one runs it again.
    async fn on_start(&self, start: Start) -> Result<()> {
        let _ = start;
        Ok(())
    }

    /// Runs after a resume, before queued work, and returns files to refresh. Its deadline includes putting them in place.
    ///
    /// # Errors
    /// Fails the resume; the sandbox is kept, and runs. Whatever is asked of it next runs the hook again first.
    async fn on_resume(&self, sandbox: &Sandbox, memory: Memory) -> Result<Vec<FreshFile>> {
        let _ = (sandbox, memory);
        Ok(Vec::new())
    }

    /// Runs before a stop.
    ///
    /// # Errors
    /// Are reported with the stop, which goes on.
    async fn on_stop(&self, sandbox: &Sandbox) -> Result<()> {
        let _ = sandbox;
        Ok(())
    }

    /// Runs before a destroy.
    ///
    /// # Errors
    /// Are reported with the destroy, which goes on.
    async fn on_destroy(&self, sandbox: &Sandbox) -> Result<()> {
        let _ = sandbox;
        Ok(())
    }

    /// Is told of every event as it happens, in its place: it must return at once. What takes time belongs to a listener
    /// of [`crate::Sandboxes::events`].
    fn on_event(&self, event: &Event) {
        let _ = event;
    }
}

/// Why work is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RestoreReason {
    /// The sandbox is new.
    Created,
    /// It takes the place of one that is gone.
    Replaced,
}

/// What a restore put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The snapshot that was put back; `None` when there was none.
    pub snapshot: Option<String>,
    /// What was promised to survive at the snapshot, and was found there again, in the words of whoever took it; `None`
    /// where nothing was declared.
    pub receipt: Option<serde_json::Value>,
}

impl RestoreReport {
    /// Says that this snapshot was put back.
    pub fn restored(snapshot: impl Into<String>) -> Self {
        Self { snapshot: Some(snapshot.into()), receipt: None }
    }

    /// Adds the receipt that the restore was held to.
    #[must_use]
    pub fn with_receipt(mut self, receipt: serde_json::Value) -> Self {
        self.receipt = Some(receipt);
        self
    }
}

/// Keeps the work of a sandbox outside it, and puts it back.
///
/// # Cancellation
/// As [`Hooks`]: each call ends with the deadline of [`crate::Sandboxes::with_hook_deadline`].
#[async_trait]
pub trait PersistHook: fmt::Debug + Send + Sync + 'static {
    /// Puts the work back into a new sandbox, before [`Hooks::on_start`].
    ///
    /// # Errors
    /// Fails the acquire with reason `restore_incomplete`.
    async fn restore(&self, sandbox: &Sandbox, reason: RestoreReason) -> Result<RestoreReport>;

    /// Saves the work before a pause.
    ///
    /// # Errors
    /// The pause does not happen.
    async fn before_pause(&self, sandbox: &Sandbox) -> Result<()>;

    /// Saves the work before a destroy.
    ///
    /// # Errors
    /// The destroy does not happen.
    async fn before_destroy(&self, sandbox: &Sandbox) -> Result<()>;

    /// Says how often [`PersistHook::tick`] runs by itself, while a value of the sandbox is there and the sandbox runs; the
    /// first time so long after an acquire. Default `None`, which is never: [`Sandbox::save`] runs it on demand.
    ///
    /// It is asked again after each interval, so that it may change.
    fn interval(&self) -> Option<Duration> {
        None
    }

    /// Saves the work of a sandbox that is in use. On an interval it is given a value that does not wake a paused sandbox;
    /// a pause or destroy cuts it off, and saves the work itself.
    ///
    /// # Errors
    /// Of an interval are told as [`crate::EventKind::SaveFailed`], and the next one tries again; of [`Sandbox::save`] are
    /// its own.
    async fn tick(&self, sandbox: &Sandbox) -> Result<()>;
}

/// The reason of the [`ErrorKind::Timeout`] of a hook that overran its deadline, and of the [`ErrorKind::Unexpected`] of
/// one that panicked; context `hook` names the hook.
pub const REASON_HOOK: &str = "hook";

/// Runs a hook under its deadline; one that overruns is dropped, and the error names it. One that panics has failed.
pub(crate) async fn bounded<T>(
    name: &'static str,
    deadline: Duration,
    hook: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut hook = pin!(hook);
    let caught = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| hook.as_mut().poll(cx))) {
        Ok(polled) => polled,
        Err(_) => Poll::Ready(Err(Error::new(ErrorKind::Unexpected, format!("the hook {name} panicked"))
            .with_reason(REASON_HOOK)
            .with_context("hook", name))),
    });
    tokio::time::timeout(deadline, caught).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Timeout, format!("the hook {name} did not end within {deadline:?}"))
            .with_reason(REASON_HOOK)
            .with_context("hook", name)
            .with_context("stage", name))
    })
}

type StartFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A start hook from a closure, for hosts that need nothing else.
pub(crate) struct OnStart(Arc<dyn Fn(Start) -> StartFuture + Send + Sync>);

impl OnStart {
    pub(crate) fn new<F, R>(hook: F) -> Self
    where
        F: Fn(Start) -> R + Send + Sync + 'static,
        R: Future<Output = Result<()>> + Send + 'static,
    {
        Self(Arc::new(move |start| Box::pin(hook(start))))
    }
}

impl fmt::Debug for OnStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnStart")
    }
}

#[async_trait]
impl Hooks for OnStart {
    async fn on_start(&self, start: Start) -> Result<()> {
        (self.0)(start).await
    }
}
