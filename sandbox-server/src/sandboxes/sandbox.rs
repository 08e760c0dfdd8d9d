//! One sandbox, as this server knows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandhold_core::{SandboxHandle, SandboxId, SandboxInfo, SandboxState};
use sandhold_e2b::wire::{NetworkUpdate, PauseMode, State, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::index::not_found;
use super::lines::Lines;
use super::made::Made;
use super::notes::{Notes, Start};
use super::turn::Turns;
use crate::error::{ApiError, ApiResult};
use crate::proxy::Pool;
use crate::samples::Samples;

/// What a sandbox is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// On its way to be paused; shown as paused.
    Pausing,
    Paused,
    /// On its way to run; shown as paused until it does.
    Resuming,
    /// On its way to be gone; shown as gone.
    Killing,
}

/// The present run, or the last one.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) phase: Phase,
    pub(crate) started_at: SystemTime,
    /// When it ends; for a paused one when it was paused.
    pub(crate) end_at: SystemTime,
    /// The same on the clock that nobody sets.
    deadline: Instant,
    pub(crate) pause_mode: PauseMode,
    pub(crate) network: Option<NetworkUpdate>,
    /// How far what its template starts has come.
    pub(super) start: Start,
    /// When it last ceased to run, as far as this server saw it.
    stopped: Option<Instant>,
}

/// One sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The id that clients use.
    pub(crate) id: String,
    /// The id that the provider uses.
    pub(crate) provided: SandboxId,
    pub(crate) made: Made,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) access_token: Option<String>,
    pub(crate) traffic_token: Option<String>,
    pub(crate) lines: Arc<Lines>,
    pub(crate) pool: Pool,
    pub(crate) samples: Mutex<Samples>,
    /// Held by whoever changes what the sandbox is doing.
    pub(super) turns: Turns,
    /// Held by whoever starts what its template starts.
    pub(super) starting: tokio::sync::Mutex<()>,
    /// Tells its timer that its end was changed.
    pub(crate) rescheduled: Arc<Notify>,
    run: Mutex<Run>,
}

pub(crate) fn now() -> SystemTime {
    microseconds(SystemTime::now())
}

/// Cuts what clients cannot send back: they compare to the microsecond.
fn microseconds(at: SystemTime) -> SystemTime {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

impl Sandbox {
    /// Puts together what the provider and the notes tell.
    pub(crate) fn new(
        info: &SandboxInfo,
        made: Made,
        metadata: BTreeMap<String, String>,
        notes: Notes,
        tokens: &crate::tokens::Tokens,
    ) -> Self {
        let id = info.tags.as_ref().map_or_else(|| info.id.to_string(), |tags| tags.key.to_string());
        let access_token = made.secure.then(|| tokens.access(&id));
        let traffic_token = (!made.is_public()).then(|| tokens.traffic(&id));
        let started_at = microseconds(notes.started_at.map_or(info.started_at, |at| at.0));
        let running = info.state == SandboxState::Running;
        let noted = notes.end_at.map(|at| at.0);
        let asked = started_at + Duration::from_secs(made.timeout);
        let end_at =
            if running { info.expires_at.or(noted).unwrap_or(asked) } else { noted.unwrap_or(asked) };
        let end_at = microseconds(end_at);
        let phase = if running { Phase::Running } else { Phase::Paused };
        let files_only = made.auto_pause && !made.auto_pause_memory;
        let pause_mode = match notes.pause_mode {
            // Whatever was kept, it is lost since.
            _ if info.state == SandboxState::Stopped => PauseMode::Filesystem,
            Some(noted) => noted,
            None if files_only => PauseMode::Filesystem,
            None => PauseMode::Full,
        };
        let start = match notes.start {
            _ if made.start.is_none() => Start::Done,
            // It is lost with the memory.
            _ if info.state == SandboxState::Stopped => Start::Pending,
            noted => noted.unwrap_or_default(),
        };
        let run = Run {
            phase,
            started_at,
            end_at,
            deadline: instant(end_at),
            pause_mode,
            network: notes.network,
            start,
            stopped: None,
        };
        let lines = Arc::new(Lines::default());
        if running {
            lines.open();
        }
        Self {
            id,
            provided: info.id.clone(),
            made,
            metadata,
            access_token,
            traffic_token,
            lines,
            pool: Pool::default(),
            samples: Mutex::default(),
            turns: Turns::default(),
            starting: tokio::sync::Mutex::default(),
            rescheduled: Arc::new(Notify::new()),
            run: Mutex::new(run),
        }
    }

    /// Keeps the handle of a create, which saves the first request a look.
    pub(crate) fn with_handle(self, handle: Arc<dyn SandboxHandle>) -> Self {
        self.pool.set_handle(handle);
        self
    }

    fn run_mut(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn run(&self) -> Run {
        self.run_mut().clone()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.run_mut().phase
    }

    /// What clients see it do; `None` when it is as good as gone.
    pub(crate) fn state(&self) -> Option<State> {
        match self.phase() {
            Phase::Running => Some(State::Running),
            Phase::Pausing | Phase::Paused | Phase::Resuming => Some(State::Paused),
            Phase::Killing => None,
        }
    }

    /// When the present run is to end; `None` when it does not run.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let run = self.run_mut();
        (run.phase == Phase::Running).then_some(run.deadline)
    }

    /// Tells whether the present run ends so soon, or is over.
    pub(crate) fn ends_within(&self, time: Duration) -> bool {
        let run = self.run_mut();
        matches!(run.phase, Phase::Running | Phase::Pausing) && run.deadline <= Instant::now() + time
    }

    /// Refuses what only one that is not as good as gone can do.
    pub(crate) fn must_be_there(&self) -> ApiResult<()> {
        if self.phase() == Phase::Killing { Err(not_found(&self.id)) } else { Ok(()) }
    }

    /// Refuses what only a running sandbox can do.
    pub(crate) fn must_run(&self, when_paused: fn(&str) -> ApiError) -> ApiResult<()> {
        match self.phase() {
            Phase::Running => Ok(()),
            Phase::Killing => Err(not_found(&self.id)),
            Phase::Pausing | Phase::Paused | Phase::Resuming => Err(when_paused(&self.id)),
        }
    }

    /// Moves to another phase. The gate is closed first and opened last.
    pub(crate) fn set_phase(&self, phase: Phase) {
        if phase != Phase::Running {
            let mut run = self.run_mut();
            if run.phase == Phase::Running {
                run.stopped = Some(Instant::now());
            }
            run.phase = phase;
            drop(run);
            self.lines.close();
            self.pool.clear();
            return;
        }
        self.run_mut().phase = phase;
        self.lines.open();
        // An end that was set before it ran is one only now.
        self.rescheduled.notify_one();
    }

    /// Tells whether it ceased to run so short a time ago.
    pub(crate) fn stopped_within(&self, time: Duration) -> bool {
        self.run_mut().stopped.is_some_and(|stopped| stopped.elapsed() < time)
    }

    /// Sets the end of the present run.
    pub(crate) fn set_end(&self, end_at: SystemTime) {
        {
            let mut run = self.run_mut();
            run.end_at = microseconds(end_at);
            run.deadline = instant(end_at);
        }
        self.rescheduled.notify_one();
    }

    /// Begins a new run, which is not open yet.
    pub(crate) fn begin_run(&self, started_at: SystemTime, end_at: SystemTime) {
        self.run_mut().started_at = microseconds(started_at);
        self.set_end(end_at);
    }

    /// Notes that it is paused now, and what that kept.
    pub(crate) fn set_paused(&self, at: SystemTime, mode: PauseMode) {
        {
            let mut run = self.run_mut();
            run.end_at = at;
            run.pause_mode = mode;
        }
        self.set_phase(Phase::Paused);
    }

    pub(crate) fn set_pause_mode(&self, mode: PauseMode) {
        self.run_mut().pause_mode = mode;
    }

    pub(crate) fn set_network(&self, network: NetworkUpdate) {
        self.run_mut().network = Some(network);
    }

    pub(super) fn set_start(&self, start: Start) {
        self.run_mut().start = start;
    }

    /// What is to be kept about it.
    pub(crate) fn notes(&self) -> Notes {
        let run = self.run();
        let paused = matches!(run.phase, Phase::Pausing | Phase::Paused);
        Notes {
            started_at: Some(Timestamp(run.started_at)),
            end_at: Some(Timestamp(run.end_at)),
            pause_mode: paused.then_some(run.pause_mode),
            network: run.network,
            start: self.made.start.is_some().then_some(run.start),
        }
    }
}

/// The moment of another clock that is as far away.
fn instant(at: SystemTime) -> Instant {
    let now = Instant::now();
    match at.duration_since(SystemTime::now()) {
        Ok(left) => now.checked_add(left).unwrap_or(now + Duration::from_secs(365 * 24 * 3600)),
        Err(_) => now,
    }
}
