//! The connections that are in use for one sandbox, and the gate before them.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::connection::Connection;

/// A gate: while it is open, requests pass. When it closes, those that wait for their answer are told, and the
/// connections of those whose answer is on its way are dropped.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    state: Mutex<State>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct State {
    open: bool,
    next: u64,
    used: HashMap<u64, Connection>,
}

/// An answer on its way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Line {
    lines: Arc<Lines>,
    number: u64,
}

/// The gate closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what is asked of the inside, as long as the gate is open.
    pub(crate) async fn while_open<T>(&self, asked: impl Future<Output = T>) -> Result<T, Closed> {
        let mut closed = pin!(self.closed.notified());
        // Listens before it looks: a gate that closes in between is heard.
        closed.as_mut().enable();
        if !self.state().open {
            return Err(Closed);
        }
        tokio::select! {
            answer = asked => Ok(answer),
            () = closed => Err(Closed),
        }
    }

    /// Counts a connection whose answer begins.
    pub(crate) fn enter(self: &Arc<Self>, connection: &Connection) -> Result<Line, Closed> {
        let mut state = self.state();
        if !state.open {
            return Err(Closed);
        }
        state.next += 1;
        let number = state.next;
        state.used.insert(number, connection.clone());
        Ok(Line { lines: Arc::clone(self), number })
    }

    pub(crate) fn open(&self) {
        self.state().open = true;
    }

    /// Closes the gate, and only then drops the connections: whoever asks why is told the truth.
    pub(crate) fn close(&self) {
        let used = {
            let mut state = self.state();
            state.open = false;
            std::mem::take(&mut state.used)
        };
        self.closed.notify_waiters();
        for connection in used.into_values() {
            connection.abort();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lines.state().used.remove(&self.number);
    }
}
