//! What a fake does instead of what it was asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::{Error, ErrorKind, Outcome};

/// A call that faults can be scripted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// `find`.
    Find,
    /// `connect`.
    Connect,
    /// `create`.
    Create,
    /// `list`: the call itself; faults of pages come through its stream.
    List,
    /// `pause`.
    Pause,
    /// `destroy`.
    Destroy,
    /// `set_lease`.
    SetLease,
    /// `snapshot`.
    Snapshot,
    /// `list_snapshots`.
    ListSnapshots,
    /// `delete_snapshot`.
    DeleteSnapshot,
    /// `fork`.
    Fork,
    /// `logs`.
    Logs,
    /// `metrics`.
    Metrics,
    /// `update_network`.
    UpdateNetwork,
    /// Every call on a handle but `info`: processes, files, watches, ports.
    Inside,
}

/// What goes wrong with one call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing happens at the provider, and the call fails.
    Before(Error),
    /// The call takes effect, and its answer is replaced by this error.
    LoseAnswer(Error),
    /// The call waits, then goes on as usual.
    Delay(Duration),
    /// The call takes effect after this time, also when its caller has gone; the answer comes then.
    CommitLate(Duration),
    /// Nothing happens, and no answer comes.
    HangBefore,
    /// The call takes effect, and no answer comes.
    HangAfter,
    /// The call waits at the gate before it takes effect.
    HoldBefore(Gate),
    /// The call waits at the gate after it took effect.
    HoldAfter(Gate),
    /// `find` and `connect` see a sandbox of another generation under the id.
    WrongGeneration,
    /// `list` and `find` by key get the cursor of the page that they asked for again.
    RepeatedCursor,
    /// `list` and `find` by key fail at this page; the first is 1.
    ErrorOnPage(usize, Error),
}

impl Fault {
    /// The call takes effect, then the connection is reset.
    #[must_use]
    pub fn reset_after() -> Self {
        Self::LoseAnswer(
            Error::new(ErrorKind::Unavailable, "the connection was reset after the request was written")
                .with_outcome(Outcome::Unknown),
        )
    }

    /// The connection is refused before anything is sent.
    #[must_use]
    pub fn refused() -> Self {
        Self::Before(Error::new(ErrorKind::Unavailable, "the connection was refused").retryable(None))
    }
}

/// Holds calls until it is opened, and tells when one has arrived: races without sleeping.
#[derive(Clone, Debug)]
pub struct Gate(Arc<GateState>);

#[derive(Debug)]
struct GateState {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(GateState { open: watch::Sender::new(false), arrived: watch::Sender::new(0) }))
    }

    /// Waits until so many calls have arrived in all.
    pub async fn arrived(&self, calls: usize) {
        // The sender lives in `self`, so that waiting cannot fail.
        let _ = self.0.arrived.subscribe().wait_for(|arrived| *arrived >= calls).await;
    }

    /// Lets every call through, those to come too.
    pub fn open(&self) {
        self.0.open.send_replace(true);
    }

    /// Arrives, and waits until the gate is open.
    pub async fn pass(&self) {
        let mut open = self.0.open.subscribe();
        self.0.arrived.send_modify(|arrived| *arrived += 1);
        let _ = open.wait_for(|open| *open).await;
    }
}

/// The faults that are still to come.
#[derive(Debug, Default)]
pub(super) struct Script {
    next: HashMap<Verb, VecDeque<Option<Fault>>>,
    always: HashMap<Verb, Fault>,
}

impl Script {
    pub(super) fn push(&mut self, verb: Verb, fault: Option<Fault>) {
        self.next.entry(verb).or_default().push_back(fault);
    }

    pub(super) fn always(&mut self, verb: Verb, fault: Fault) {
        self.always.insert(verb, fault);
    }

    pub(super) fn clear(&mut self, verb: Verb) {
        self.next.remove(&verb);
        self.always.remove(&verb);
    }

    pub(super) fn take(&mut self, verb: Verb) -> Option<Fault> {
        match self.next.get_mut(&verb).and_then(VecDeque::pop_front) {
            Some(fault) => fault,
            None => self.always.get(&verb).cloned(),
        }
    }
}
