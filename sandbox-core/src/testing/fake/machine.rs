//! One sandbox of a fake cloud: its life, and what is inside.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::files::Tree;
use super::processes::ProcessTable;
use crate::{
    Error, ErrorKind, LogLine, Memory, OnExpiry, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Tags,
};

/// Locks, also after a panic elsewhere: a failing test must not make its neighbours fail in another way.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns instants of the test's clock, which may be paused, into times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    instant: Instant,
    time: SystemTime,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    pub(super) fn time(&self, at: Instant) -> SystemTime {
        self.time + at.saturating_duration_since(self.instant)
    }
}

/// What a machine is doing. `None` as state means that it does not exist any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) state: Option<SandboxState>,
    pub(super) expires: Option<Instant>,
    pub(super) started: Instant,
    /// What its last pause kept.
    pub(super) memory: Memory,
}

impl Life {
    pub(super) fn is_running(&self) -> bool {
        self.state == Some(SandboxState::Running)
    }
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) id: SandboxId,
    /// Its place in the cloud's order; the cursor of a page.
    pub(super) number: u64,
    pub(super) tags: Option<Tags>,
    pub(super) spec: SandboxSpec,
    pub(super) created: Instant,
    pub(super) clock: Clock,
    pub(super) life: watch::Sender<Life>,
    pub(super) files: Mutex<Tree>,
    pub(super) processes: Mutex<ProcessTable>,
    /// What became of it.
    pub(super) log: Mutex<Vec<LogLine>>,
    /// Ports on which something echoes.
    pub(super) ports: Mutex<BTreeSet<u16>>,
}

impl Machine {
    pub(super) fn new(
        id: SandboxId,
        number: u64,
        tags: Option<Tags>,
        spec: SandboxSpec,
        clock: Clock,
        files: Option<Tree>,
    ) -> Self {
        let now = Instant::now();
        let life = Life {
            state: Some(SandboxState::Running),
            expires: spec.lease.and_then(|lease| now.checked_add(lease)),
            started: now,
            memory: Memory::Kept,
        };
        let mut files = files.unwrap_or_else(|| Tree::new(&spec.user));
        for dir in ["/tmp", "/root", &spec.home, spec.workdir.as_deref().unwrap_or("/")] {
            files.ensure_dirs(dir);
        }
        Self {
            id,
            number,
            tags,
            spec,
            created: now,
            clock,
            life: watch::Sender::new(life),
            files: Mutex::new(files),
            processes: Mutex::new(ProcessTable::default()),
            log: Mutex::new(vec![LogLine::new(clock.time(now), "info", "created")]),
            ports: Mutex::default(),
        }
    }

    pub(super) fn note(&self, message: &str) {
        lock(&self.log).push(LogLine::new(self.clock.time(Instant::now()), "info", message));
    }

    /// Ends what the lease has ended, and returns the present life.
    pub(super) fn settle(&self) -> Life {
        self.life.send_if_modified(|life| {
            let expired = life.is_running() && life.expires.is_some_and(|at| at <= Instant::now());
            if expired {
                life.expires = None;
                life.state = match self.spec.on_expiry {
                    OnExpiry::Kill => None,
                    OnExpiry::Pause => Some(SandboxState::Paused),
                };
            }
            expired
        });
        *self.life.borrow()
    }

    /// Waits until its life passes `test`.
    pub(super) async fn until(&self, test: impl Fn(&Life) -> bool) {
        let mut changes = self.life.subscribe();
        loop {
            let life = self.settle();
            if test(&life) {
                return;
            }
            let lease_end = async {
                match life.expires.filter(|_| life.is_running()) {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives in `self`.
                _ = changes.changed() => {}
                () = lease_end => {}
            }
        }
    }

    /// Waits until it does not exist any more.
    pub(super) async fn gone(&self) {
        self.until(|life| life.state.is_none()).await;
    }

    pub(super) fn set_lease(&self, lease: Duration) {
        self.life.send_modify(|life| life.expires = Instant::now().checked_add(lease));
        self.settle();
    }

    /// Returns its facts, or `None` when it does not exist any more.
    pub(super) fn info(&self) -> Option<SandboxInfo> {
        let life = self.settle();
        let mut info = SandboxInfo::new(
            self.id.clone(),
            life.state?,
            self.spec.template.clone(),
            self.clock.time(self.created),
        );
        info.tags.clone_from(&self.tags);
        info.metadata.clone_from(&self.spec.metadata);
        info.started_at = self.clock.time(life.started);
        info.expires_at = life.expires.filter(|_| life.is_running()).map(|at| self.clock.time(at));
        Some(info)
    }

    pub(super) fn gone_error(&self) -> Error {
        gone(&self.id)
    }
}

pub(super) fn gone(id: &SandboxId) -> Error {
    Error::new(ErrorKind::Gone, "the sandbox does not exist any more").with_context("sandbox", id)
}
