use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandhold_core::{Error, ErrorKind, Result};

/// How far an operation has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Files that are finished in this phase.
    pub files: u64,
    /// Files that this phase has in all, where that is known.
    pub total: Option<u64>,
    /// Bytes that were read or written in this phase.
    pub bytes: u64,
}

/// What an operation is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// It looks at what is in the workspace.
    #[default]
    Scanning,
    /// It reads the files that changed, and stores them.
    Storing,
    /// It writes files of a snapshot.
    Restoring,
}

/// Called after every few files, on the threads of the operation, so that a count may come behind a greater one; it should
/// return soon.
#[derive(Clone)]
pub struct ProgressFn(Arc<dyn Fn(Progress) + Send + Sync>);

impl ProgressFn {
    /// Wraps a function.
    pub fn new(tell: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, progress: Progress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for ProgressFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressFn")
    }
}

/// Whether blocking work is to go on: its future was not dropped, and its budget is not used up.
#[derive(Clone, Debug)]
pub(crate) struct Cancel {
    dropped: Arc<AtomicBool>,
    ends: Option<(Instant, Duration)>,
}

impl Cancel {
    pub(crate) fn new(budget: Option<Duration>) -> Self {
        let ends = budget.and_then(|budget| Some((Instant::now().checked_add(budget)?, budget)));
        Self { dropped: Arc::default(), ends }
    }

    /// The same, with half of the time that is left.
    pub(crate) fn half(&self) -> Self {
        let ends = self.ends.map(|(end, _)| {
            let half = end.saturating_duration_since(Instant::now()) / 2;
            (end - half, half)
        });
        Self { dropped: Arc::clone(&self.dropped), ends }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.dropped.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "the call was dropped before it was done"));
        }
        match self.ends {
            Some((end, budget)) if Instant::now() >= end => Err(Error::new(
                ErrorKind::Timeout,
                format!("the budget of {budget:?} is used up; nothing was changed, and a greater one may do"),
            )
            .with_reason("budget")),
            _ => Ok(()),
        }
    }
}

/// Runs blocking work off the async threads; dropping the future tells the work to stop.
pub(crate) async fn run_blocking<T: Send + 'static>(
    budget: Option<Duration>,
    work: impl FnOnce(&Cancel) -> Result<T> + Send + 'static,
) -> Result<T> {
    struct OnDrop(Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let cancel = Cancel::new(budget);
    let _dropped = OnDrop(Arc::clone(&cancel.dropped));
    tokio::task::spawn_blocking(move || work(&cancel)).await.unwrap_or_else(|failure| {
        Err(Error::new(ErrorKind::Unexpected, "the work ended before it was done").with_source(failure))
    })
}
