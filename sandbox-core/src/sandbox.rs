use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::acquire::Home;
use crate::files::{
    Download, EntryInfo, FileOptions, ListOptions, ReadOptions, WatchEvent, WatchOptions, WriteOptions,
};
use crate::hooks::{Hooks, bounded};
use crate::lifecycle::{self, Lent, StopOutcome};
use crate::process::{AttachOptions, Process, ProcessInfo, ProcessSelector, ProcessSpec, Signal};
use crate::registry::Record;
use crate::stream::{ByteStream, ResultStream};
use crate::{
    DestroyOutcome, Error, ErrorKind, Generation, Key, Memory, Outcome, Owner, PauseOutcome, PortStream,
    Result, SandboxHandle, SandboxHandleExt as _, SandboxId, SandboxInfo,
};

/// The reason of the [`ErrorKind::InvalidState`] that a handle answers while its sandbox is paused; nothing was sent.
pub const REASON_PAUSED: &str = "paused";

/// An acquired sandbox: what users hold.
///
/// It is a [`SandboxHandle`] with a guard around every call: work on a paused sandbox resumes it first, once for all
/// callers, and after *gone* or a destroy every call says so and sends nothing. Clones are the same sandbox. Dropping it
/// leaves the sandbox alone.
#[derive(Clone)]
pub struct Sandbox {
    shared: Arc<Shared>,
    /// Set for the value that a hook of a pause or resume gets: its calls do not wait for that very transition.
    within_transition: bool,
    /// Set for the value that a hook of a flight gets: it changes the sandbox under the lease of that flight.
    lent: Weak<Lent>,
}

struct Shared {
    home: Arc<Home>,
    key: Key,
    id: SandboxId,
    generation: Generation,
    hooks: Option<Arc<dyn Hooks>>,
    handle: RwLock<Arc<dyn SandboxHandle>>,
    end: Mutex<Option<End>>,
    /// Held while a pause or resume is under way.
    resume: tokio::sync::Mutex<Resumes>,
}

/// The resumes of one sandbox.
#[derive(Debug, Default)]
struct Resumes {
    done: u64,
    /// The provider has resumed it, and the hook has not ended well since: nothing is let through before it has.
    hook_due: Option<Memory>,
}

/// Why no call is admitted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Gone,
    Destroyed,
    Detached,
    Stale,
}

impl Sandbox {
    pub(crate) fn new(
        home: &Arc<Home>,
        record: &Record,
        handle: Arc<dyn SandboxHandle>,
        hooks: Option<Arc<dyn Hooks>>,
    ) -> Self {
        let shared = Arc::new(Shared {
            home: Arc::clone(home),
            key: record.key.clone(),
            id: handle.id().clone(),
            generation: record.generation.clone(),
            hooks,
            handle: RwLock::new(handle),
            end: Mutex::new(None),
            resume: tokio::sync::Mutex::default(),
        });
        Self { shared, within_transition: false, lent: Weak::new() }
    }

    /// The value for the hooks of a flight, which carries its lease as long as the flight lends it.
    pub(crate) fn within_flight(&self, lent: &Arc<Lent>) -> Self {
        Self { lent: Arc::downgrade(lent), ..self.clone() }
    }

    /// Returns the key it was acquired by.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.shared.key
    }

    /// Returns the owner of the key.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.shared.home.owner
    }

    /// Returns the provider's id: stored by the caller, it reattaches without any registry.
    #[must_use]
    pub fn provider_id(&self) -> &SandboxId {
        &self.shared.id
    }

    /// Pauses it, after the persist hook has saved the work. Work that comes later resumes it.
    ///
    /// # Errors
    /// What the persist hook answered, or [`ErrorKind::Timeout`] when it overran its deadline, and then it runs on;
    /// [`ErrorKind::Unsupported`] where the provider cannot.
    pub async fn pause(&self) -> Result<PauseOutcome> {
        self.admit()?;
        self.refuse_within_transition("pause")?;
        let Shared { home, key, id, .. } = &*self.shared;
        let mut resume = self.shared.resume.lock().await;
        if let Some(persist) = &home.persist {
            let within = self.within_transition();
            bounded("before_pause", home.hook_deadline, persist.before_pause(&within))
                .await
                .map_err(|error| error.with_outcome(Outcome::NotStarted))?;
        }
        let paused = lifecycle::pause(home, key, id, &self.lent).await;
        if paused.is_ok() {
            resume.hook_due = None;
        }
        drop(resume);
        self.seen(paused)
    }

    /// Resumes it; no effect on a running one. Callers at the same time cause one connect.
    ///
    /// # Errors
    /// What the provider or the resume hook answered, the latter with outcome `done`: it runs. The sandbox is kept, and
    /// the next call tries again.
    pub async fn resume(&self) -> Result<()> {
        self.admit()?;
        self.refuse_within_transition("resume")?;
        let epoch = self.epoch().await?;
        self.resume_after(epoch).await
    }

    fn within_transition(&self) -> Self {
        Self { within_transition: true, ..self.clone() }
    }

    /// A pause or resume by the hook of one would wait for itself.
    fn refuse_within_transition(&self, operation: &'static str) -> Result<()> {
        if !self.within_transition {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, "a hook of a pause or resume asked for another one")
            .with_reason("reentrant")
            .at(self.shared.home.provider.name(), operation)
            .with_context("id", &self.shared.id))
    }

    /// Waits for a transition that is under way, makes up for a resume hook that failed, and returns how many resumes
    /// there were.
    async fn epoch(&self) -> Result<u64> {
        if self.within_transition {
            return Ok(0);
        }
        let mut resumes = self.shared.resume.lock().await;
        match self.finish_resume(&mut resumes).await {
            // Somebody else has paused it again: the resume to come has a hook of its own.
            Err(error) if is_paused(&error) => resumes.hook_due = None,
            ran => ran?,
        }
        Ok(resumes.done)
    }

    /// Resumes unless another caller has done so since `epoch`.
    async fn resume_after(&self, epoch: u64) -> Result<()> {
        let mut resumes = self.shared.resume.lock().await;
        if resumes.done != epoch {
            return Ok(());
        }
        let Shared { home, key, id, generation, .. } = &*self.shared;
        let resumed = lifecycle::resume(home, key, id, generation, &self.lent).await;
        let connection = self.seen(resumed)?;
        *self.shared.handle.write().unwrap_or_else(PoisonError::into_inner) = connection.handle;
        match connection.resumed {
            Some(memory) => resumes.hook_due = Some(memory),
            None if resumes.hook_due.is_none() => resumes.done += 1,
            None => {}
        }
        self.finish_resume(&mut resumes).await
    }

    /// Runs the resume hook that is due, where one is.
    async fn finish_resume(&self, resumes: &mut Resumes) -> Result<()> {
        let Some(memory) = resumes.hook_due else { return Ok(()) };
        self.after_resume(memory).await.map_err(|error| error.with_outcome(Outcome::Done))?;
        resumes.hook_due = None;
        resumes.done += 1;
        Ok(())
    }

    /// Runs the resume hook and puts the files it returns in place, all under the hook's deadline.
    pub(crate) async fn after_resume(&self, memory: Memory) -> Result<()> {
        let Some(hooks) = &self.shared.hooks else { return Ok(()) };
        bounded("on_resume", self.shared.home.hook_deadline, self.refresh_files(&**hooks, memory)).await
    }

    async fn refresh_files(&self, hooks: &dyn Hooks, memory: Memory) -> Result<()> {
        for file in hooks.on_resume(&self.within_transition(), memory).await? {
            let handle = self.handle();
            let owner = file.owner.clone();
            // Staged beside the target, so that the rename is on one file system; private before it has its content.
            let staged = format!("{}.sandhold-new", file.path);
            let as_owner = |path: &str| -> ProcessSpec {
                let argv = [
                    "-c",
                    r#"umask 077 && : > "$1" && chmod "$2" "$1""#,
                    "sh",
                    path,
                    &format!("{:o}", file.mode),
                ];
                let spec = ProcessSpec::argv("/bin/sh", argv);
                match &owner {
                    Some(owner) => spec.with_user(owner.clone()),
                    None => spec,
                }
            };
            let options = FileOptions { user: owner.clone() };
            if let Some((parent, _)) = file.path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty())
                && !handle.exists(parent).await?
            {
                handle.make_dir(parent, options.clone()).await?;
            }
            let made = handle.exec(as_owner(&staged)).await?;
            if !made.exit.success() {
                return Err(Error::new(
                    ErrorKind::PermissionDenied,
                    format!("the file {:?} could not be refreshed after the resume", file.path),
                )
                .with_context("exit", made.exit));
            }
            let body = ByteStream::from_bytes(Bytes::from(file.content));
            handle.write(&staged, body, WriteOptions { user: owner, ..WriteOptions::default() }).await?;
            handle.rename(&staged, &file.path, options).await?;
        }
        Ok(())
    }

    /// Lets it rest: the stop hook runs, then it is paused where the provider can and left alone otherwise.
    ///
    /// # Errors
    /// A stop hook that fails or overruns its deadline does not keep it from stopping; its error is returned afterwards
    /// with outcome `done`. When the stop fails as well, its error carries the hook's as context `on_stop`.
    pub async fn stop(&self) -> Result<StopOutcome> {
        self.admit()?;
        let Shared { home, hooks, .. } = &*self.shared;
        let hook = match hooks {
            Some(hooks) => bounded("on_stop", home.hook_deadline, hooks.on_stop(self)).await,
            None => Ok(()),
        };
        let stopped = if home.provider.capabilities().pause {
            self.pause().await.map(|paused| match paused {
                PauseOutcome::Paused => StopOutcome::Paused,
                PauseOutcome::AlreadyPaused => StopOutcome::AlreadyPaused,
            })
        } else {
            Ok(StopOutcome::LeftRunning)
        };
        after_hook(stopped, "on_stop", hook)
    }

    /// Destroys it with all that belongs to it, after the persist hook has saved the work.
    ///
    /// # Errors
    /// What the persist hook answered, or [`ErrorKind::Timeout`] when it overran its deadline, and then nothing is
    /// destroyed. A destroy hook that fails or overruns does not stop the destroy; its error is returned afterwards with
    /// outcome `done`. When the destroy fails as well, its error carries the hook's as context `on_destroy`.
    pub async fn destroy(&self) -> Result<DestroyOutcome> {
        match self.end() {
            Some(End::Destroyed | End::Gone) => return Ok(DestroyOutcome::AlreadyGone),
            _ => self.admit()?,
        }
        let Shared { home, key, id, hooks, .. } = &*self.shared;
        if let Some(persist) = &home.persist {
            bounded("before_destroy", home.hook_deadline, persist.before_destroy(self))
                .await
                .map_err(|error| error.with_outcome(Outcome::NotStarted))?;
        }
        let hook = match hooks {
            Some(hooks) => bounded("on_destroy", home.hook_deadline, hooks.on_destroy(self)).await,
            None => Ok(()),
        };
        let destroyed = lifecycle::destroy_id(home, key, id, &self.lent).await;
        if destroyed.is_ok() {
            self.finish(End::Destroyed);
        }
        after_hook(destroyed, "on_destroy", hook)
    }

    /// Lets go of it: this value admits no call any more, and the sandbox and its record stay as they are.
    pub fn detach(&self) {
        self.finish(End::Detached);
    }

    /// Sets the lease to end so long from now, also sooner than before.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the provider has no leases.
    pub async fn set_lease(&self, lease: Duration) -> Result<()> {
        self.admit()?;
        self.seen(self.shared.home.provider.set_lease(&self.shared.id, lease).await)
    }

    pub(crate) fn mark_stale(&self) {
        self.finish(End::Stale);
    }

    fn end(&self) -> Option<End> {
        *self.shared.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, end: End) {
        self.shared.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
    }

    /// The provider's handle, without the guard.
    pub(crate) fn handle(&self) -> Arc<dyn SandboxHandle> {
        Arc::clone(&self.shared.handle.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The guard before a call.
    fn admit(&self) -> Result<()> {
        let Some(end) = self.end() else { return Ok(()) };
        let (kind, message, reason) = match end {
            End::Gone => (ErrorKind::Gone, "the sandbox does not exist any more", "gone"),
            End::Destroyed => (ErrorKind::Gone, "the sandbox was destroyed", "destroyed"),
            End::Detached => {
                (ErrorKind::InvalidState, "this value was detached; acquire the key again", "detached")
            }
            End::Stale => (ErrorKind::Stale, "another host has taken this key over", "lease_lost"),
        };
        Err(Error::new(kind, message)
            .with_reason(reason)
            .at(self.shared.home.provider.name(), "call")
            .with_context("id", &self.shared.id))
    }

    /// The guard after a call: *gone* is remembered.
    fn seen<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::Gone => {
                self.finish(End::Gone);
                Err(error)
            }
            // A call that was cut by our own destroy is no riddle.
            Err(error) if self.end() == Some(End::Destroyed) && cut_off(&error) => {
                Err(self.admit().err().unwrap_or_else(|| error.clone()).with_source(error))
            }
            result => result,
        }
    }
}

fn cut_off(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
}

/// The result of a verb whose hook failed before it: neither failure hides the other.
fn after_hook<T>(verb: Result<T>, name: &'static str, hook: Result<()>) -> Result<T> {
    match (verb, hook) {
        (verb, Ok(())) => verb,
        (Ok(_), Err(hook)) => Err(hook.with_outcome(Outcome::Done)),
        (Err(error), Err(hook)) => Err(error.with_context(name, hook)),
    }
}

/// A resume may have taken effect; the call that it was for was not sent.
fn not_sent(error: Error) -> Error {
    match error.outcome() {
        Outcome::Done => error.with_outcome(Outcome::NotStarted),
        _ => error,
    }
}

fn is_paused(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidState && error.reason() == Some(REASON_PAUSED)
}

/// Runs a call under the guard; on a paused sandbox it resumes and runs the call once more, which was not sent before.
macro_rules! guarded {
    ($sandbox:ident, $handle:ident => $call:expr) => {{
        $sandbox.admit()?;
        let epoch = $sandbox.epoch().await.map_err(not_sent)?;
        let $handle = $sandbox.handle();
        match $call.await {
            Err(error) if is_paused(&error) && !$sandbox.within_transition => {
                $sandbox.resume_after(epoch).await.map_err(not_sent)?;
                let $handle = $sandbox.handle();
                $sandbox.seen($call.await)
            }
            result => $sandbox.seen(result),
        }
    }};
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("key", &self.shared.key)
            .field("id", &self.shared.id)
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl SandboxHandle for Sandbox {
    fn id(&self) -> &SandboxId {
        &self.shared.id
    }

    fn provider(&self) -> &'static str {
        self.shared.home.provider.name()
    }

    fn generation(&self) -> Option<&Generation> {
        Some(&self.shared.generation)
    }

    async fn info(&self) -> Result<SandboxInfo> {
        self.admit()?;
        self.seen(self.handle().info().await)
    }

    async fn start(&self, spec: ProcessSpec) -> Result<Process> {
        guarded!(self, handle => handle.start(spec.clone()))
    }

    async fn attach(&self, process: ProcessSelector, options: AttachOptions) -> Result<Process> {
        guarded!(self, handle => handle.attach(process.clone(), options.clone()))
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        guarded!(self, handle => handle.processes())
    }

    async fn signal(&self, process: ProcessSelector, signal: Signal) -> Result<bool> {
        guarded!(self, handle => handle.signal(process.clone(), signal))
    }

    async fn release(&self, process: ProcessSelector) -> Result<bool> {
        guarded!(self, handle => handle.release(process.clone()))
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<Download> {
        guarded!(self, handle => handle.read(path, options.clone()))
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<EntryInfo> {
        let body = body.lend();
        guarded!(self, handle => handle.write(path, body.borrow(), options.clone()))
    }

    async fn stat(&self, path: &str, options: FileOptions) -> Result<EntryInfo> {
        guarded!(self, handle => handle.stat(path, options.clone()))
    }

    async fn list(&self, path: &str, options: ListOptions) -> Result<Vec<EntryInfo>> {
        guarded!(self, handle => handle.list(path, options.clone()))
    }

    async fn make_dir(&self, path: &str, options: FileOptions) -> Result<EntryInfo> {
        guarded!(self, handle => handle.make_dir(path, options.clone()))
    }

    async fn rename(&self, from: &str, to: &str, options: FileOptions) -> Result<EntryInfo> {
        guarded!(self, handle => handle.rename(from, to, options.clone()))
    }

    async fn remove(&self, path: &str, options: FileOptions) -> Result<()> {
        guarded!(self, handle => handle.remove(path, options.clone()))
    }

    async fn watch(&self, path: &str, options: WatchOptions) -> Result<ResultStream<WatchEvent>> {
        guarded!(self, handle => handle.watch(path, options.clone()))
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn PortStream>> {
        guarded!(self, handle => handle.dial(port))
    }
}
