//! The provider's verbs that wake a sandbox and put it to rest: connect, pause, lease.

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{ConnectOptions, Error, ErrorKind, Memory, PauseOutcome, Result, SandboxId};
use sandhold_envd::EnvdHandle;
use tokio::time::Instant;

use crate::control::State;
use crate::provider::{CHANGE_WAIT, Inner, Look, REMOVE_TIMEOUT, blocking, gone};
use crate::record::{Record, Upper};
use crate::{link, registration, state_dir};

/// Deadlines beyond this are this: no clock of the host overflows.
const LONGEST_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

impl Inner {
    /// Connects to a sandbox and brings it to run; says what was kept when it did not.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        id: &SandboxId,
        options: ConnectOptions,
    ) -> Result<(EnvdHandle, Option<Memory>)> {
        let deadline = Instant::now() + options.deadline.min(LONGEST_DEADLINE);
        let Some((record, registration)) = self.record(id).await? else { return Err(gone(id)) };
        if let Some(wanted) = &options.generation
            && *wanted != registration.tags.generation
        {
            return Err(Error::new(ErrorKind::Stale, "the sandbox is of another generation")
                .with_context("id", id)
                .with_context("wanted", wanted)
                .with_context("found", &registration.tags.generation));
        }
        let handle = self.handle(id, &registration)?;
        let user = &registration.spec.user;
        let anew = options.memory == Memory::Lost;
        if anew {
            keeps_files(&record, id)?;
        }
        let mut resumed = None;
        // A running one is connected to without a lock.
        if !matches!(self.look(id, user).await?, Look::Running(live) if live.state == State::Running) {
            let Some(lock) = self.home.lock(id, deadline).await? else { return Err(gone(id)) };
            resumed = self.wake(id, &handle, user, (options.lease, anew), deadline).await?;
            drop(lock);
        }
        if let Some(lease) = options.lease {
            link::lease(handle.client(), lease, true).await?;
        }
        Ok((handle, resumed))
    }

    /// Brings a sandbox to run, under its lock; says what was kept when it was not running. `anew` gives up the
    /// processes of a frozen one.
    async fn wake(
        &self,
        id: &SandboxId,
        handle: &EnvdHandle,
        user: &str,
        (lease, anew): (Option<Duration>, bool),
        deadline: Instant,
    ) -> Result<Option<Memory>> {
        let directory = self.directory(id)?;
        loop {
            match self.look(id, user).await? {
                Look::Gone => return Err(gone(id)),
                Look::Running(live) if live.state == State::Paused && anew => {
                    self.helper.stop(&directory, REMOVE_TIMEOUT).await?;
                }
                Look::Running(live) if live.state == State::Paused => {
                    link::thaw(handle.client(), lease).await?;
                    self.note(id, "resumed with its processes");
                    return Ok(Some(Memory::Kept));
                }
                Look::Running(_) => return Ok(None),
                Look::Stopped => {
                    // What was decided or left behind comes first.
                    self.helper.recover(&directory, REMOVE_TIMEOUT).await?;
                    if self.record(id).await?.is_none() {
                        return Err(gone(id));
                    }
                    let now = directory.clone();
                    blocking(move || registration::note_resume(&now)).await?;
                    match self.helper.run(&directory, self.config.start_timeout).await {
                        Ok(()) => return Ok(Some(Memory::Lost)),
                        // A start that was ordered by a host that died since was faster: its sandbox is looked at.
                        Err(error) if error.kind() == ErrorKind::Conflict && Instant::now() < deadline => {}
                        Err(error) => return Err(error),
                    }
                }
                Look::Between if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Look::Between => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the sandbox has a monitor and its daemon does not answer; try again, or destroy it",
                    )
                    .with_context("id", id)
                    .retryable(None));
                }
            }
        }
    }

    /// Freezes the processes of a sandbox, or ends them and keeps its files.
    pub(crate) async fn pause(&self, id: &SandboxId, memory: Memory) -> Result<PauseOutcome> {
        let deadline = Instant::now() + CHANGE_WAIT;
        let Some((record, registration)) = self.record(id).await? else { return Err(gone(id)) };
        if memory == Memory::Lost {
            keeps_files(&record, id)?;
        }
        let Some(lock) = self.home.lock(id, deadline).await? else { return Err(gone(id)) };
        let client = link::client(&self.directory(id)?, &registration.spec.user)?;
        let outcome = loop {
            match self.look(id, &registration.spec.user).await? {
                Look::Gone => return Err(gone(id)),
                // Its processes are lost already, and its files are at rest.
                Look::Stopped => break PauseOutcome::AlreadyPaused,
                Look::Running(live) if memory == Memory::Lost && live.state == State::Running => {
                    self.stop(id).await?;
                    break PauseOutcome::Paused;
                }
                // Asked also when it says that it is paused: it may be in the middle of it, and answers at the end.
                Look::Running(_) => {
                    break if link::freeze(&client).await? {
                        self.note(id, "paused with its processes");
                        PauseOutcome::Paused
                    } else {
                        PauseOutcome::AlreadyPaused
                    };
                }
                Look::Between if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(2)).await
                }
                Look::Between => {
                    return Err(Error::new(ErrorKind::Unavailable, "the sandbox's daemon does not answer")
                        .with_context("id", id)
                        .retryable(None));
                }
            }
        };
        drop(lock);
        Ok(outcome)
    }

    /// Ends the processes of a sandbox, under its lock, and returns once its files are on disk.
    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let directory = self.directory(id)?;
        let there = directory.clone();
        blocking(move || registration::note_pause(&there)).await?;
        self.helper.stop(&directory, REMOVE_TIMEOUT).await?;
        self.note(id, "paused on its files");
        blocking(move || state_dir::sync_files(&directory)).await
    }

    pub(crate) async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
        let Some((_, registration)) = self.record(id).await? else { return Err(gone(id)) };
        match self.look(id, &registration.spec.user).await? {
            Look::Gone => Err(gone(id)),
            // Nothing runs that a lease could end, and its files are kept until they are destroyed.
            Look::Stopped => Ok(()),
            Look::Running(_) | Look::Between => {
                let client = link::client(&self.directory(id)?, &registration.spec.user)?;
                link::lease(&client, lease, false).await
            }
        }
    }
}

/// Refuses to end the processes of a sandbox whose files would end with them.
fn keeps_files(record: &Record, id: &SandboxId) -> Result<()> {
    if let Upper::Disk = record.spec.upper {
        return Ok(());
    }
    let message = "the files of this sandbox are in memory and end with its processes; keep the processes";
    Err(Error::new(ErrorKind::Unsupported, message).with_reason("in_memory").with_context("id", id))
}
