//! Whose turn it is to change a sandbox.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use super::sandbox::Sandbox;
use crate::error::{ApiError, ApiResult};

/// How long a change by somebody else is waited for.
const CHANGE_WAIT: Duration = Duration::from_secs(60);

/// The turns at one sandbox, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    lock: Mutex<()>,
    /// Whether the present turn brings it from one state to another, which some do not wait for.
    transition: AtomicBool,
    /// Counts begins and ends of turns: odd while somebody has one.
    count: AtomicU64,
}

/// The right to change a sandbox, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    _guard: MutexGuard<'a, ()>,
}

/// A moment at which nobody had a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle(u64);

impl Turns {
    /// The right to change it, after those who have it now.
    pub(super) async fn next(&self) -> Turn<'_> {
        self.begin(self.lock.lock().await)
    }

    fn begin<'a>(&'a self, guard: MutexGuard<'a, ()>) -> Turn<'a> {
        self.count.fetch_add(1, Ordering::AcqRel);
        Turn { turns: self, _guard: guard }
    }

    /// The present moment; `None` while somebody has a turn.
    pub(super) fn idle(&self) -> Option<Idle> {
        let count = self.count.load(Ordering::Acquire);
        count.is_multiple_of(2).then_some(Idle(count))
    }

    /// The right to take over what was seen since then, unless somebody had a turn in the meantime.
    pub(super) fn since(&self, Idle(count): Idle) -> Option<Turn<'_>> {
        let guard = self.lock.try_lock().ok()?;
        (self.count.load(Ordering::Acquire) == count).then(|| self.begin(guard))
    }
}

impl Turn<'_> {
    /// Says that it brings the sandbox from one state to another.
    pub(super) fn begins_transition(&self) {
        self.turns.transition.store(true, Ordering::Release);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.transition.store(false, Ordering::Release);
        self.turns.count.fetch_add(1, Ordering::AcqRel);
    }
}

impl Sandbox {
    /// The right to change it, after those who have it now.
    pub(super) async fn turn(&self) -> ApiResult<Turn<'_>> {
        tokio::time::timeout(CHANGE_WAIT, self.turns.next()).await.map_err(|_| self.in_transition())
    }

    /// The right to change something about it in the state it is in; 409 while it is brought to another one.
    pub(super) async fn adjustment(&self) -> ApiResult<Turn<'_>> {
        if self.turns.transition.load(Ordering::Acquire) {
            return Err(self.in_transition());
        }
        self.turn().await
    }

    /// The right to bring it to another state; 409 while somebody else does.
    pub(crate) async fn transition(&self) -> ApiResult<Turn<'_>> {
        let turn = self.adjustment().await?;
        turn.begins_transition();
        Ok(turn)
    }

    fn in_transition(&self) -> ApiError {
        ApiError::conflict(format!("Sandbox {} is in transition", self.id))
    }
}
