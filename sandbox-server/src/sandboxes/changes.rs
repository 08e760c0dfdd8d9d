//! What changes a sandbox that is there: connect, pause, kill, and its end. One at a time for each sandbox.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::{
    ConnectOptions, Connection, DestroyOutcome, Error, Memory, PauseOptions, PauseOutcome, Result,
    SandboxInfo, SandboxProviderExt, SandboxState,
};
use sandhold_e2b::wire::{NetworkUpdate, PauseMode};

use super::expiry;
use super::index::not_found;
use super::notes::Start;
use super::sandbox::{Phase, Run, Sandbox, now};
use super::start::lease;
use super::turn::Turn;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::network;
use crate::store::Durability;

/// Ends of leases that are closer than this are the same.
const SAME_END: Duration = Duration::from_secs(1);

/// How long a request waits for an end that is due.
const END_WAIT: Duration = Duration::from_secs(10);

/// How often the provider is asked how a sandbox is while others change it.
const LOOKS: usize = 3;

/// What a connect found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connected {
    /// It ran.
    Running,
    /// It was woken.
    Resumed,
}

/// Whether the end of a run may be brought nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nearer {
    Too,
    Never,
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
        let turn = sandbox.turn().await?;
        // A run that is at its end is seen out first: a connect must not be promised what is about to be killed.
        if sandbox.ends_within(Duration::ZERO) {
            expiry::see_out(self, sandbox, END_WAIT).await;
        }
        if sandbox.phase() == Phase::Running {
            match self.extend_now(sandbox, timeout).await {
                // It ended before it could be extended, and is what it is now.
                Err(_) if sandbox.phase() != Phase::Running => {}
                Err(error) => return Err(error),
                Ok(connected) => {
                    drop(turn);
                    self.start_again(sandbox, timeout).await?;
                    return Ok(connected);
                }
            }
        }
        sandbox.must_be_there()?;
        self.resume_now(&turn, sandbox, timeout, memory).await?;
        drop(turn);
        self.start_again(sandbox, timeout).await?;
        Ok(Connected::Resumed)
    }

    /// Wakes a paused sandbox; 409 for one that runs.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
        memory: Memory,
    ) -> ApiResult<()> {
        let turn = sandbox.turn().await?;
        match sandbox.phase() {
            Phase::Killing => return Err(not_found(&sandbox.id)),
            Phase::Running => {
                return Err(ApiError::conflict(format!("Sandbox {} is already running", sandbox.id)));
            }
            _ => self.resume_now(&turn, sandbox, timeout, memory).await?,
        }
        drop(turn);
        self.start_again(sandbox, timeout).await
    }

    /// Wakes a paused sandbox because somebody wants to talk to it.
    pub(crate) async fn wake(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> ApiResult<()> {
        let timeout = Duration::from_secs(sandbox.made.timeout.max(300)).min(self.config.max_run);
        let turn = sandbox.turn().await?;
        match sandbox.phase() {
            Phase::Killing => return Err(not_found(&sandbox.id)),
            Phase::Running => return Ok(()),
            _ => self.resume_now(&turn, sandbox, timeout, Memory::Kept).await?,
        }
        drop(turn);
        self.start_again(sandbox, timeout).await
    }

    async fn resume_now(
        self: &Arc<Self>,
        turn: &Turn<'_>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
        memory: Memory,
    ) -> ApiResult<()> {
        turn.begins_transition();
        let started_at = now();
        let run = sandbox.run();
        let lost = memory == Memory::Lost || run.pause_mode == PauseMode::Filesystem;
        let before = run.start;
        if lost && sandbox.made.start.is_some() {
            // Noted first: whoever finds it running must know that this is to be done.
            sandbox.set_start(Start::Pending);
            if let Err(error) = self.note(sandbox, Durability::Process).await {
                sandbox.set_start(before);
                return Err(error.into());
            }
        }
        let started = sandbox.made.start.as_ref().filter(|_| sandbox.run().start != Start::Done);
        let lease = lease(timeout, started);
        let options = ConnectOptions::default().with_lease(lease).with_memory(if lost {
            Memory::Lost
        } else {
            Memory::Kept
        });
        sandbox.set_phase(Phase::Resuming);
        match self.provider.connect_opts(&sandbox.provided, options).await {
            Ok(connection) => {
                sandbox.pool.set_handle(Arc::clone(&connection.handle));
                sandbox.begin_run(started_at, started_at + lease);
                sandbox.set_start(start_after(&connection, sandbox, before));
                sandbox.set_phase(Phase::Running);
                self.note_or_warn(sandbox).await;
                Ok(())
            }
            Err(error) => {
                self.settle_after(sandbox).await;
                if sandbox.phase() != Phase::Running {
                    sandbox.set_start(before);
                }
                sandbox.must_be_there()?;
                Err(self.said(error))
            }
        }
    }

    async fn extend_now(self: &Arc<Self>, sandbox: &Arc<Sandbox>, timeout: Duration) -> ApiResult<Connected> {
        let run = sandbox.run();
        let (end, lease) = self.end_of_run(run.started_at, timeout)?;
        let connected =
            self.provider.connect_opts(&sandbox.provided, ConnectOptions::default().with_lease(lease)).await;
        match connected {
            Ok(connection) if connection.resumed.is_some() => {
                // It had ended by itself, and was woken by the provider for us; this is a new run.
                let started_at = now();
                sandbox.set_phase(Phase::Resuming);
                sandbox.begin_run(started_at, started_at + timeout);
                sandbox.pool.set_handle(Arc::clone(&connection.handle));
                sandbox.set_start(start_after(&connection, sandbox, run.start));
                sandbox.set_phase(Phase::Running);
                self.note_or_warn(sandbox).await;
                return Ok(Connected::Resumed);
            }
            Ok(_) if end > run.end_at => {
                sandbox.set_end(end);
                self.note_or_warn(sandbox).await;
            }
            Ok(_) => {}
            Err(error) => return Err(self.failed(sandbox, error, not_found).await),
        }
        Ok(Connected::Running)
    }

    /// Sets when a run ends. It wakes nothing: a run that is over by then stays over.
    pub(crate) async fn set_timeout(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
        nearer: Nearer,
    ) -> ApiResult<()> {
        let turn = sandbox.adjustment().await?;
        self.set_timeout_now(&turn, sandbox, timeout, nearer).await
    }

    pub(super) async fn set_timeout_now(
        self: &Arc<Self>,
        _turn: &Turn<'_>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
        nearer: Nearer,
    ) -> ApiResult<()> {
        if sandbox.ends_within(Duration::ZERO) {
            expiry::see_out(self, sandbox, END_WAIT).await;
        }
        sandbox.must_run(not_found)?;
        let run = sandbox.run();
        let (end, lease) = self.end_of_run(run.started_at, timeout)?;
        if nearer == Nearer::Never && end <= run.end_at {
            return Ok(());
        }
        if let Err(error) = self.provider.set_lease(&sandbox.provided, lease).await {
            return Err(self.failed(sandbox, error, not_found).await);
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
        let _turn = sandbox.adjustment().await?;
        sandbox.must_run(not_found)?;
        let made = sandbox.made.network.clone().unwrap_or_default();
        let present = sandbox
            .run()
            .network
            .unwrap_or_else(|| network::egress_of(&made, sandbox.made.allow_internet_access));
        if network::enforced(&present, self.config.egress)? != wanted
            && let Err(error) = self.provider.update_network(&sandbox.provided, wanted).await
        {
            return Err(self.failed(sandbox, error, not_found).await);
        }
        sandbox.set_network(policy);
        Ok(self.note(sandbox, Durability::Machine).await?)
    }

    /// Pauses a running sandbox; 409 for one that does not run.
    pub(crate) async fn pause(self: &Arc<Self>, sandbox: &Arc<Sandbox>, memory: Memory) -> ApiResult<()> {
        let paused = |id: &str| ApiError::conflict(format!("Sandbox {id} is already paused"));
        let _turn = sandbox.transition().await?;
        sandbox.must_run(paused)?;
        let mode = if memory == Memory::Lost { PauseMode::Filesystem } else { PauseMode::Full };
        sandbox.set_pause_mode(mode);
        sandbox.set_phase(Phase::Pausing);
        let options = PauseOptions::default().with_memory(memory);
        match self.provider.pause_opts(&sandbox.provided, options).await {
            Ok(PauseOutcome::Paused) => {
                sandbox.set_paused(now(), mode);
                // A caller who is told that it is paused finds it paused, whatever happens to this machine.
                Ok(self.note(sandbox, Durability::Machine).await?)
            }
            Ok(_) => {
                // Somebody else did, or its run has ended.
                self.settle_after(sandbox).await;
                Err(sandbox.must_run(paused).err().unwrap_or_else(|| paused(&sandbox.id)))
            }
            Err(error) => Err(self.failed(sandbox, error, paused).await),
        }
    }

    /// Ends a sandbox with all that belongs to it.
    pub(crate) async fn kill(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> ApiResult<()> {
        let turn = sandbox.turn().await?;
        sandbox.must_be_there()?;
        turn.begins_transition();
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
                sandbox.must_be_there()?;
                Err(error.into())
            }
        }
    }

    /// Asks the provider how a sandbox is, unless somebody changes it now; false when it is no more. It takes a turn
    /// only when there is something new: looks are in nobody's way.
    pub(crate) async fn check(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<bool> {
        for _ in 0..LOOKS {
            let Some(idle) = sandbox.turns.idle() else { break };
            if sandbox.phase() == Phase::Killing {
                break;
            }
            match self.provider.find_id(&sandbox.provided).await {
                Ok(Some(info)) if is_as_known(&info, &sandbox.run()) => return Ok(true),
                Ok(info) => {
                    if let Some(_turn) = sandbox.turns.since(idle) {
                        return self.settle(sandbox, info).await;
                    }
                }
                Err(error) => {
                    let Some(_turn) = sandbox.turns.since(idle) else { continue };
                    if !sandbox.ends_within(SAME_END) {
                        return Err(error);
                    }
                    expiry::see_out(self, sandbox, END_WAIT).await;
                }
            }
        }
        Ok(sandbox.phase() != Phase::Killing)
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

    /// Finds out what a change that failed has left. If it failed at the end of a run, that end is what is left. The
    /// caller holds the turn.
    pub(super) async fn settle_after(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let found = self.provider.find_id(&sandbox.provided).await;
        let is_paused = matches!(&found, Ok(Some(info)) if info.state == SandboxState::Paused);
        if sandbox.ends_within(SAME_END) && !is_paused {
            return expiry::see_out(self, sandbox, END_WAIT).await;
        }
        let settled = match found {
            Ok(info) => self.settle(sandbox, info).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = settled {
            tracing::warn!(%error, id = sandbox.id, "how a sandbox is after a failed change is not known");
        }
    }

    /// Says why a change of a running sandbox failed: that it does not run any more, or else the provider's reason.
    /// The caller holds the turn.
    pub(crate) async fn failed(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        error: Error,
        when_paused: fn(&str) -> ApiError,
    ) -> ApiError {
        self.settle_after(sandbox).await;
        sandbox.must_run(when_paused).err().unwrap_or_else(|| self.said(error))
    }

    /// Says why something about a sandbox could not be read: that it is no more, or else the provider's reason.
    pub(crate) async fn unread(self: &Arc<Self>, sandbox: &Arc<Sandbox>, error: Error) -> ApiError {
        match sandbox.turn().await {
            Ok(_turn) if sandbox.phase() != Phase::Killing => self.settle_after(sandbox).await,
            _ => {}
        }
        sandbox.must_be_there().err().unwrap_or_else(|| error.into())
    }

    /// Keeps what the provider knows as well in its own words, so that a failure costs nothing but precision.
    pub(super) async fn note_or_warn(&self, sandbox: &Sandbox) {
        if let Err(error) = self.note(sandbox, Durability::Process).await {
            tracing::warn!(%error, id = sandbox.id, "the end of a run could not be noted");
        }
    }
}

/// How far what the template starts has come after a connect: nowhere, where the memory was lost.
fn start_after(connection: &Connection, sandbox: &Sandbox, before: Start) -> Start {
    let lost = connection.resumed == Some(Memory::Lost) && sandbox.made.start.is_some();
    if lost { Start::Pending } else { before }
}

/// Tells whether a look has nothing new.
fn is_as_known(info: &SandboxInfo, run: &Run) -> bool {
    match (info.state, run.phase) {
        (SandboxState::Running, Phase::Running) => {
            info.expires_at.is_none_or(|end| distance(end, run.end_at) <= SAME_END)
        }
        (SandboxState::Paused, Phase::Paused) => true,
        (SandboxState::Stopped, Phase::Paused) => run.pause_mode == PauseMode::Filesystem,
        _ => false,
    }
}

fn distance(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|earlier| earlier.duration())
}
