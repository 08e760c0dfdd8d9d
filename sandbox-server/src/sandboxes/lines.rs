//! The connections that are in use for one sandbox, and the gate before them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::connection::Connection;

/// A gate: while it is open, connections are counted; when it closes, all of them are dropped.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: bool,
    next: u64,
    used: HashMap<u64, Connection>,
}

/// The use of a connection for a sandbox, until it is dropped.
#[derive(Debug)]
pub(crate) struct Line {
    lines: Arc<Lines>,
    number: u64,
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection; `None` while the gate is closed.
    pub(crate) fn enter(self: &Arc<Self>, connection: &Connection) -> Option<Line> {
        let mut state = self.state();
        if !state.open {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.used.insert(number, connection.clone());
        Some(Line { lines: Arc::clone(self), number })
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
