//! What changes a sandbox that is there: connect, pause, kill, and its end. One at a time for each sandbox.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::{
    ConnectOptions, DestroyOutcome, Memory, PauseOptions, PauseOutcome, Result, SandboxInfo,
    SandboxProviderExt, SandboxState,
};
use sandhold_e2b::wire::{NetworkUpdate, PauseMode};
use tokio::sync::MutexGuard;

use super::index::not_found;
use super::sandbox::{Phase, Sandbox, now};
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::network;
use crate::store::Durability;

/// How long a change by somebody else is waited for.
const CHANGE_WAIT: Duration = Duration::from_secs(60);

/// Ends of leases that are closer than this are the same.
const SAME_END: Duration = Duration::from_secs(1);

/// What a connect found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connected {
    /// It ran.
    Running,
    /// It was woken.
    Resumed,
}

impl Sandbox {
    /// The right to change it, after those who have it now.
    pub(super) async fn turn(&self) -> ApiResult<MutexGuard<'_, ()>> {
        tokio::time::timeout(CHANGE_WAIT, self.change.lock())
            .await
            .map_err(|_| ApiError::conflict(format!("Sandbox {} is in transition", self.id)))
    }

    /// The right to change it, unless somebody has it now.
    pub(crate) fn turn_now(&self) -> ApiResult<MutexGuard<'_, ()>> {
        self.change
            .try_lock()
            .map_err(|_| ApiError::conflict(format!("Sandbox {} is in transition", self.id)))
    }
}

impl App {
    /// When a run that began then and is to last so long from now ends: never later than the longest run allows.
    fn end_of_run(&self, started_at: SystemTime, timeout: Duration) -> ApiResult<(SystemTime, Duration)> {
        let now = now();
        let latest = started_at + self.config.max_run;
        if latest <= now {
            return Err(ApiError::bad_request("the sandbox has reached its maximum length"));
        }
        let end = latest.min(now + timeout);
        Ok((end, end.duration_since(now).unwrap_or_default()))
    }

    /// Refuses a timeout that no run can have.
    pub(crate) fn check_timeout(&self, timeout: Duration) -> ApiResult<Duration> {
        if timeout > self.config.max_run {
            return Err(ApiError::bad_request(format!(
                "Timeout cannot be greater than {} hours",
                self.config.max_run.as_secs_f64() / 3600.0
            )));
        }
        Ok(timeout)
    }

    /// Wakes a sandbox if need be, and lets it run for so long at least.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
        memory: Memory,
    ) -> ApiResult<Connected> {
        let _turn = sandbox.turn().await?;
        // A run that is at its end is settled first: a connect must not be promised what is about to be killed.
        if sandbox.deadline().is_some_and(|deadline| deadline <= tokio::time::Instant::now()) {
            let info = self.provider.find_id(&sandbox.provided).await?;
            self.settle(sandbox, info).await?;
        }
        match sandbox.phase() {
            Phase::Killing => Err(not_found(&sandbox.id)),
            Phase::Running => {
                self.extend_now(sandbox, timeout).await?;
                // It can have ended by itself, and been woken by the provider for us.
                Ok(Connected::Running)
            }
            Phase::Pausing | Phase::Paused | Phase::Resuming => {
                self.resume_now(sandbox, timeout, memory).await?;
                Ok(Connected::Resumed)
            }
        }
    }

    /// Wakes a paused sandbox; 409 for one that runs.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
        memory: Memory,
    ) -> ApiResult<()> {
        let _turn = sandbox.turn().await?;
        match sandbox.phase() {
            Phase::Killing => Err(not_found(&sandbox.id)),
            Phase::Running => Err(ApiError::conflict(format!("Sandbox {} is already running", sandbox.id))),
            _ => self.resume_now(sandbox, timeout, memory).await,
        }
    }

    /// Wakes a paused sandbox because somebody wants to talk to it.
    pub(crate) async fn wake(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> ApiResult<()> {
        let timeout = Duration::from_secs(sandbox.made.timeout.max(300)).min(self.config.max_run);
        let _turn = sandbox.turn().await?;
        match sandbox.phase() {
            Phase::Killing => Err(not_found(&sandbox.id)),
            Phase::Running => Ok(()),
            _ => self.resume_now(sandbox, timeout, Memory::Kept).await,
        }
    }

    async fn resume_now(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
        memory: Memory,
    ) -> ApiResult<()> {
        let started_at = now();
        let run = sandbox.run();
        let lost = memory == Memory::Lost || run.pause_mode == PauseMode::Filesystem;
        let options = ConnectOptions::default().with_lease(timeout).with_memory(if lost {
            Memory::Lost
        } else {
            Memory::Kept
        });
        sandbox.set_phase(Phase::Resuming);
        match self.provider.connect_opts(&sandbox.provided, options).await {
            Ok(connection) => sandbox.pool.set_handle(connection.handle),
            Err(error) => {
                self.settle_after(sandbox).await;
                return Err(error.into());
            }
        }
        sandbox.begin_run(started_at, started_at + timeout);
        sandbox.set_phase(Phase::Running);
        self.note_or_warn(sandbox).await;
        Ok(())
    }

    async fn extend_now(self: &Arc<Self>, sandbox: &Arc<Sandbox>, timeout: Duration) -> ApiResult<()> {
        let run = sandbox.run();
        let (end, lease) = self.end_of_run(run.started_at, timeout)?;
        let connected =
            self.provider.connect_opts(&sandbox.provided, ConnectOptions::default().with_lease(lease)).await;
        match connected {
            Ok(connection) if connection.resumed.is_some() => {
                // It had ended by itself; this is a new run.
                let started_at = now();
                sandbox.set_phase(Phase::Resuming);
                sandbox.begin_run(started_at, started_at + timeout);
                sandbox.pool.set_handle(connection.handle);
                sandbox.set_phase(Phase::Running);
                self.note_or_warn(sandbox).await;
            }
            Ok(_) if end > run.end_at => {
                sandbox.set_end(end);
                self.note_or_warn(sandbox).await;
            }
            Ok(_) => {}
            Err(error) => {
                self.settle_after(sandbox).await;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Lets a run go on for so long at least.
    pub(crate) async fn extend(self: &Arc<Self>, sandbox: &Arc<Sandbox>, timeout: Duration) -> ApiResult<()> {
        let _turn = sandbox.turn_now()?;
        match sandbox.phase() {
            Phase::Running => self.extend_now(sandbox, timeout).await,
            _ => Err(not_found(&sandbox.id)),
        }
    }

    /// Sets when a run ends, also sooner than before.
    pub(crate) async fn set_timeout(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
    ) -> ApiResult<()> {
        let _turn = sandbox.turn_now()?;
        if sandbox.phase() != Phase::Running {
            return Err(not_found(&sandbox.id));
        }
        let (end, lease) = self.end_of_run(sandbox.run().started_at, timeout)?;
        match self.provider.set_lease(&sandbox.provided, lease).await {
            Ok(()) => {}
            Err(error) => {
                self.settle_after(sandbox).await;
                return Err(error.into());
            }
        }
        sandbox.set_end(end);
        self.note_or_warn(sandbox).await;
        Ok(())
    }

    /// Replaces the network policy of a running sandbox.
    pub(crate) async fn set_network(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        policy: NetworkUpdate,
    ) -> ApiResult<()> {
        let wanted = network::enforced(&policy, self.config.egress)?;
        let _turn = sandbox.turn_now()?;
        if sandbox.phase() != Phase::Running {
            return Err(not_found(&sandbox.id));
        }
        let made = sandbox.made.network.clone().unwrap_or_default();
        let present = sandbox
            .run()
            .network
            .unwrap_or_else(|| network::egress_of(&made, sandbox.made.allow_internet_access));
        if network::enforced(&present, self.config.egress)? != wanted {
            self.provider.update_network(&sandbox.provided, wanted).await?;
        }
        sandbox.set_network(policy);
        Ok(self.note(sandbox, Durability::Machine).await?)
    }

    /// Pauses a running sandbox; 409 for one that does not run.
    pub(crate) async fn pause(self: &Arc<Self>, sandbox: &Arc<Sandbox>, memory: Memory) -> ApiResult<()> {
        let _turn = sandbox.turn_now()?;
        match sandbox.phase() {
            Phase::Killing => return Err(not_found(&sandbox.id)),
            Phase::Running => {}
            _ => return Err(ApiError::conflict(format!("Sandbox {} is already paused", sandbox.id))),
        }
        let mode = if memory == Memory::Lost { PauseMode::Filesystem } else { PauseMode::Full };
        sandbox.set_pause_mode(mode);
        sandbox.set_phase(Phase::Pausing);
        let options = PauseOptions::default().with_memory(memory);
        match self.provider.pause_opts(&sandbox.provided, options).await {
            Ok(outcome) => {
                sandbox.set_paused(now(), mode);
                // A caller who is told that it is paused finds it paused, whatever happens to this machine.
                self.note(sandbox, Durability::Machine).await?;
                match outcome {
                    PauseOutcome::Paused => Ok(()),
                    _ => Err(ApiError::conflict(format!("Sandbox {} is already paused", sandbox.id))),
                }
            }
            Err(error) => {
                self.settle_after(sandbox).await;
                Err(error.into())
            }
        }
    }

    /// Ends a sandbox with all that belongs to it.
    pub(crate) async fn kill(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> ApiResult<()> {
        let _turn = sandbox.turn().await?;
        if sandbox.phase() == Phase::Killing {
            return Err(not_found(&sandbox.id));
        }
        sandbox.set_phase(Phase::Killing);
        match self.provider.destroy(&sandbox.provided).await {
            Ok(outcome) => {
                self.forget(sandbox).await;
                match outcome {
                    DestroyOutcome::Destroyed => Ok(()),
                    _ => Err(not_found(&sandbox.id)),
                }
            }
            Err(error) => {
                // Whether it still lives is what the provider says, not what was asked for.
                sandbox.set_phase(Phase::Paused);
                self.settle_after(sandbox).await;
                Err(error.into())
            }
        }
    }

    /// Asks the provider how a sandbox is, unless somebody changes it now; false when it is no more.
    pub(crate) async fn check(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<bool> {
        let Ok(_turn) = sandbox.change.try_lock() else { return Ok(sandbox.phase() != Phase::Killing) };
        if sandbox.phase() == Phase::Killing {
            return Ok(false);
        }
        let info = self.provider.find_id(&sandbox.provided).await?;
        self.settle(sandbox, info).await
    }

    /// Takes over what the provider says; false when the sandbox is no more. The caller holds the turn.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        info: Option<SandboxInfo>,
    ) -> Result<bool> {
        let Some(info) = info else {
            self.forget(sandbox).await;
            return Ok(false);
        };
        let run = sandbox.run();
        match (info.state, run.phase) {
            (SandboxState::Running, Phase::Running) => {
                if let Some(end) = info.expires_at.filter(|end| distance(*end, run.end_at) > SAME_END) {
                    sandbox.set_end(end);
                }
            }
            (SandboxState::Running, _) => {
                let started = info.started_at.max(run.started_at);
                sandbox.begin_run(started, info.expires_at.unwrap_or(run.end_at));
                sandbox.set_phase(Phase::Running);
            }
            (
                SandboxState::Paused | SandboxState::Stopped,
                Phase::Running | Phase::Pausing | Phase::Resuming,
            ) => {
                let lost = info.state == SandboxState::Stopped
                    || (sandbox.made.auto_pause && !sandbox.made.auto_pause_memory);
                let mode = if lost { PauseMode::Filesystem } else { PauseMode::Full };
                sandbox.set_paused(run.end_at.min(now()), mode);
                self.note(sandbox, Durability::Machine).await?;
            }
            (SandboxState::Stopped, _) => sandbox.set_pause_mode(PauseMode::Filesystem),
            // It is between two states: the next look tells.
            _ => {}
        }
        Ok(true)
    }

    /// Finds out what a change that failed has left.
    async fn settle_after(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let settled = match self.provider.find_id(&sandbox.provided).await {
            Ok(info) => self.settle(sandbox, info).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = settled {
            tracing::warn!(%error, id = sandbox.id, "how a sandbox is after a failed change is not known");
        }
    }

    /// Keeps what the provider knows as well in its own words, so that a failure costs nothing but precision.
    async fn note_or_warn(&self, sandbox: &Sandbox) {
        if let Err(error) = self.note(sandbox, Durability::Process).await {
            tracing::warn!(%error, id = sandbox.id, "the end of a run could not be noted");
        }
    }
}

fn distance(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|earlier| earlier.duration())
}
