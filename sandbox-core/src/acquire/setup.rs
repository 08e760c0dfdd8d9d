//! Setup: restore, the start hook under its deadline and a renewed lease, and the mark that it is done.

use std::time::Duration;

use super::flight::inside;
use super::steps::{Acquisition, Found};
use super::{AcquireOutcome, Acquired, Facts, How, OnSetupFailure, SetupState};
use crate::events::EventKind;
use crate::fate::End;
use crate::fresh_file::put_in_place;
use crate::hooks::{RestoreReason, Start, bounded};
use crate::lifecycle::{Unresumed, resume, usual_memory};
use crate::registry::{Lease, Phase, Record};
use crate::sandbox::Sandbox;
use crate::stream::ByteStream;
use crate::tenure::{Tenure, refresh, within};
use crate::{
    Connection, Error, ErrorKind, FileOptions, Generation, Memory, Outcome, ReadOptions, Result,
    SandboxHandle, SandboxId, SandboxInfo, SandboxState, WriteOptions,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Where the mark of a completed setup is kept inside a sandbox, for hosts that have no record of it.
const MARK: &str = "/var/lib/sandhold/setup.json";

/// How long a hook may go on after it has stopped or destroyed its sandbox: to tell of its own failure, or to resume it.
const GRACE_AT_REST: Duration = Duration::from_secs(5);

/// The user that the mark belongs to.
const MARK_USER: &str = "root";

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    /// The hook's version; 0 for a setup without a hook.
    version: u64,
    /// The sandbox it is about: a copy of the file in another sandbox says nothing.
    generation: Generation,
}

/// Reads which setup completed in this sandbox.
pub(super) async fn read_mark(handle: &dyn SandboxHandle, generation: &Generation) -> Result<Option<u64>> {
    let download = match handle.read(MARK, ReadOptions::default().with_user(MARK_USER)).await {
        Ok(download) => download,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let bytes = download.body.into_bytes(64 * 1024).await?;
    let mark: Mark = serde_json::from_slice(&bytes).map_err(|error| {
        Error::new(ErrorKind::Unexpected, format!("{MARK} inside the sandbox cannot be understood"))
            .at(handle.provider(), "acquire")
            .with_context("id", handle.id())
            .with_source(error)
    })?;
    Ok((mark.generation == *generation).then_some(mark.version))
}

async fn write_mark(handle: &dyn SandboxHandle, version: u64, generation: &Generation) -> Result<()> {
    let mark = Mark { version, generation: generation.clone() };
    let bytes = serde_json::to_vec(&mark).map_err(|error| {
        Error::new(ErrorKind::Unexpected, "the setup mark cannot be written as JSON").with_source(error)
    })?;
    let body = ByteStream::from_bytes(Bytes::from(bytes));
    // Renamed into place, so that it is whole or absent; a name of its own, as hosts without a common registry may set
    // one sandbox up at the same time.
    let staged = format!("{MARK}.{:016x}", fastrand::u64(..));
    handle.write(&staged, body, WriteOptions::default().with_user(MARK_USER)).await?;
    handle.rename(&staged, MARK, FileOptions::default().with_user(MARK_USER)).await?;
    Ok(())
}

impl Acquisition {
    /// The end of the everyday way: nothing is left to do.
    pub(super) fn without_setup(&self, found: Found) -> Acquired {
        let facts = Facts {
            how: found.how,
            replaced_because: None,
            setup: SetupState::Done,
            joined: false,
            restored: None,
            duplicates: found.duplicates,
        };
        let sandbox = self.sandbox(&found.record, found.connection, &facts.how);
        Acquired::new(sandbox, AcquireOutcome::Connected, facts)
    }

    /// The value of a connected sandbox; from here on those of the one before it are stale.
    fn sandbox(&self, record: &Record, connection: Connection, how: &How) -> Sandbox {
        let (sandbox, before) =
            Sandbox::acquired(&self.home, record, connection.handle, &self.options, self.hooks.clone());
        let id = sandbox.provider_id();
        let old = match how {
            How::Replaced { old } => Some(old.clone()),
            _ => before,
        };
        if let Some((old, new)) = old.zip(id.cloned()) {
            self.tell(id, EventKind::Replaced { old, new });
        }
        if let Some(memory) = connection.resumed {
            self.tell(id, EventKind::Resumed { memory });
        }
        sandbox
    }

    /// Connects under the lease. What rests is resumed: that is written down first, so that its resume hook runs whatever
    /// comes, and this host's other values wait for the hook.
    pub(super) async fn reach(
        &self,
        record: &mut Record,
        info: &SandboxInfo,
        lease: &mut Lease,
    ) -> Result<Option<Connection>> {
        refresh(&self.home, &self.key, lease).await?;
        let lease = &*lease;
        if info.state == SandboxState::Running {
            let connect = self.connect(info);
            let connected = within(&self.home, &self.key, lease, "connect", connect).await?;
            if let Some(memory) = connected.as_ref().and_then(|connection| connection.resumed) {
                // It was paused meanwhile.
                self.note_resume(&info.id, memory).await;
            }
            return Ok(connected);
        }
        let fate = self.home.fates.of(&self.key).filter(|fate| fate.id == info.id);
        let mut closed = match &fate {
            Some(fate) => Some(fate.close().await),
            None => None,
        };
        let owed = usual_memory(&self.home);
        // Before the call: its caller may leave in the middle of it.
        let before = closed.as_mut().and_then(|resumes| resumes.hook_due.replace(owed));
        let connect = || self.connect(info);
        let (id, on_failure) = (&info.id, self.options.on_resume_failure);
        let resumed =
            resume(&self.home, &self.key, id, Some(record.clone()), lease, on_failure, connect).await;
        if let Some(resumes) = &mut closed {
            resumes.hook_due = match &resumed {
                Ok((Some(connection), _)) => connection.resumed.or(Some(owed)),
                Ok((None, _)) => None,
                Err(failed) if failed.error.outcome() == Outcome::NotStarted => before,
                Err(_) => Some(owed),
            };
        }
        match resumed {
            Ok((connection, resuming)) => {
                if let Some(resuming) = resuming {
                    *record = resuming;
                }
                Ok(connection)
            }
            Err(Unresumed { error, destroyed }) => {
                if destroyed && fate.is_none_or(|fate| fate.finish(End::Gone)) {
                    self.tell(Some(id), EventKind::Destroyed);
                }
                Err(error)
            }
        }
    }

    /// Keeps in mind that the sandbox was resumed before the lease is taken; this host's other values wait for the hook.
    pub(super) async fn note_resume(&self, id: &SandboxId, memory: Memory) {
        self.resumed.get_or_init(|| memory);
        if let Some(fate) = self.home.fates.of(&self.key).filter(|fate| fate.id == *id) {
            fate.close().await.hook_due = Some(memory);
        }
    }

    pub(super) async fn set_up(&self, found: Found, lease: Lease) -> Result<Acquired> {
        let Found { mut record, connection, how, duplicates } = found;
        let wanted = self.wanted_setup();
        let outcome = match how {
            How::Attached | How::Resumed { .. } => AcquireOutcome::Connected,
            _ => AcquireOutcome::Created,
        };
        let done = record.setup_done.filter(|done| *done >= wanted);
        let setup = if done.is_some() { SetupState::Done } else { SetupState::Needed };
        // Adopted, it may have been paused meanwhile; else the record says that a resume is to be seen to its end.
        let resumed = connection
            .resumed
            .or_else(|| (record.phase == Phase::Resuming).then(|| usual_memory(&self.home)));
        let sandbox = self.sandbox(&record, connection, &how);
        // Given up with this flight, whoever keeps the hook's value.
        let tenure = Tenure::new(lease);
        let hooks_own = sandbox.within_flight(&tenure);
        let replaced_because = record.replaced_because.filter(|_| matches!(how, How::Replaced { .. }));
        let mut facts = Facts { how, replaced_because, setup, joined: false, restored: None, duplicates };
        if let Some(memory) = resumed {
            self.stage.enter("on_resume");
            self.run_hooks(&hooks_own, &tenure, hooks_own.after_resume(memory)).await?;
            if tenure.is_at_rest() {
                return Err(self.ended_by_hook());
            }
            if record.phase != Phase::Ready {
                record.enter(Phase::Ready);
                record = tenure.store(&self.home, record).await?;
            }
        }
        let every_time = self.hooks.as_ref().is_some_and(|hooks| hooks.runs_on_every_start());
        let ran = if setup == SetupState::Needed || every_time {
            let hooks = self.start_hooks(&hooks_own, &tenure, outcome, &mut facts);
            self.run_hooks(&hooks_own, &tenure, hooks).await
        } else {
            Ok(())
        };
        let Some(lease) = tenure.end().await else {
            return Err(self.error(ErrorKind::Unexpected, "the lease of the acquire was lost"));
        };
        if tenure.is_at_rest() {
            // There is nothing to hand out. What the hook did stands, also when it failed afterwards.
            return Err(ran.err().unwrap_or_else(|| self.ended_by_hook()));
        }
        if tenure.was_used()
            && let Some(stored) = self.home.load(&self.key).await?
        {
            record = stored;
        }
        if let Err(error) = ran {
            return Err(self.setup_failed(error, outcome, record, &sandbox, lease).await);
        }
        if setup == SetupState::Needed || outcome == AcquireOutcome::Created {
            self.stage.enter("setup mark");
            let tenure = Tenure::new(lease);
            if setup == SetupState::Needed
                && let Some(handle) = sandbox.handle()
            {
                // The mark counts where the record is missing: it too is written by nobody but the holder.
                let mark = write_mark(&*handle, wanted, &record.generation);
                tenure.keep(&self.home, &self.key, mark).await?;
            }
            // Nobody is told that it was created before this is written, and somebody is told after.
            record.setup_done = done.or(Some(wanted));
            tenure.store(&self.home, record).await?;
        }
        Ok(Acquired::new(sandbox, outcome, facts))
    }

    fn ended_by_hook(&self) -> Error {
        self.error(ErrorKind::Cancelled, "a hook of the acquire stopped or destroyed the sandbox")
            .with_reason("ended_by_hook")
    }

    /// Restores, puts secrets in place and runs the start hook, each under its own deadline.
    ///
    /// One that stops or destroys the sandbox is the last.
    async fn start_hooks(
        &self,
        sandbox: &Sandbox,
        tenure: &Tenure,
        outcome: AcquireOutcome,
        facts: &mut Facts,
    ) -> Result<()> {
        let goes_on = || if tenure.is_at_rest() { Err(self.ended_by_hook()) } else { Ok(()) };
        if let (Some(persist), AcquireOutcome::Created) = (&self.home.persist, outcome) {
            self.stage.enter("restore");
            let reason = match facts.how {
                How::Replaced { .. } => RestoreReason::Replaced,
                _ => RestoreReason::Created,
            };
            let restore = bounded("restore", self.home.hook_deadline, persist.restore(sandbox, reason));
            let report = restore.await.map_err(|error| {
                let kind = error.kind();
                self.error(kind, "the work could not be put back")
                    .with_reason("restore_incomplete")
                    .with_context("hook", "restore")
                    .with_source(error)
            })?;
            facts.restored = Some(report).filter(|report| report.snapshot.is_some());
            goes_on()?;
        }
        if let Some(hooks) = &self.hooks {
            self.stage.enter("secrets");
            let secrets = async {
                let files = hooks.secrets(sandbox).await?;
                goes_on()?;
                match sandbox.handle() {
                    Some(handle) => put_in_place(&*handle, files).await,
                    None => Ok(()),
                }
            };
            bounded("secrets", self.home.hook_deadline, secrets).await?;
            self.stage.enter("on_start");
            let start = Start { sandbox: sandbox.clone(), outcome, setup: facts.setup, facts: facts.clone() };
            bounded("on_start", self.options.hook_deadline, hooks.on_start(start)).await?;
        }
        Ok(())
    }

    /// Runs hooks under the lease. Whoever keeps their value after the lease is lost can do nothing more through it. What
    /// stops or destroys its sandbox ends the flight, also where it does not end by itself.
    pub(super) async fn run_hooks(
        &self,
        sandbox: &Sandbox,
        tenure: &Tenure,
        hooks: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        // On the heap: hooks may be large, and call what is.
        let hooks = Box::pin(inside(&self.home, &self.key, hooks));
        let rested = Box::pin(tenure.rested(GRACE_AT_REST));
        let hooks = Box::pin(async {
            tokio::select! {
                biased;
                ran = hooks => ran,
                () = rested => Err(self.ended_by_hook()),
            }
        });
        let ran = tenure.keep(&self.home, &self.key, hooks).await;
        if ran.as_ref().is_err_and(Lease::is_lost) {
            sandbox.mark_stale();
        }
        ran
    }

    async fn setup_failed(
        &self,
        error: Error,
        outcome: AcquireOutcome,
        record: Record,
        sandbox: &Sandbox,
        lease: Lease,
    ) -> Error {
        let destroy = self.options.on_setup_failure == OnSetupFailure::Destroy
            && outcome == AcquireOutcome::Created
            && !Lease::is_lost(&error);
        if !destroy {
            return error;
        }
        match crate::lifecycle::destroy_recorded(&self.home, record, &lease).await {
            Ok(_) => {
                sandbox.mark_destroyed();
                error
            }
            Err(cleanup) => error.with_cleanup(&cleanup),
        }
    }
}
