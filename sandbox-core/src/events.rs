//! What happens to the sandboxes of a host, told as it happens: a bounded stream, and a method of the hooks.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::broadcast;

use crate::hooks::Hooks;
use crate::{AcquireOutcome, Error, ErrorKind, How, Key, Memory, Owner, SandboxId, StopOutcome};

/// How many events are kept for a listener that is slow: 256.
pub const DEFAULT_EVENT_CAPACITY: usize = 256;

/// Something that happened to the sandbox of a key, in this host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The namespace of the key.
    pub owner: Owner,
    /// The key.
    pub key: Key,
    /// The provider's id of the sandbox that it is about, where there is one.
    pub id: Option<SandboxId>,
    /// When, by this machine's clock.
    pub at: SystemTime,
    /// What.
    pub kind: EventKind,
}

/// What happened. Failures are told by kind, reason and stage, never by text that may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// An acquire began; callers that join it are not told of again.
    Starting,
    /// An acquire ended well.
    Started {
        /// Whether it made the sandbox.
        outcome: AcquireOutcome,
        /// How the sandbox came.
        how: How,
    },
    /// An acquire failed before the setup.
    ProvisionFailed {
        /// Where, such as `find` or `create`.
        stage: &'static str,
        /// The kind of the error.
        kind: ErrorKind,
        /// Its reason.
        reason: Option<&'static str>,
        /// Nothing that it may have made is left.
        cleaned_up: bool,
    },
    /// The sandbox is there, and its restore, secrets, start hook, resume hook or setup mark failed.
    SetupFailed {
        /// Where, such as `on_start`.
        stage: &'static str,
        /// The kind of the error.
        kind: ErrorKind,
        /// Its reason.
        reason: Option<&'static str>,
    },
    /// It was paused or stopped, and runs again.
    Resumed {
        /// What the resume kept.
        memory: Memory,
    },
    /// It is paused.
    Paused,
    /// It could not be paused, and runs on.
    PauseFailed {
        /// The kind of the error.
        kind: ErrorKind,
        /// Its reason.
        reason: Option<&'static str>,
    },
    /// Its work could not be saved on the interval; the next one tries again.
    SaveFailed {
        /// The kind of the error.
        kind: ErrorKind,
        /// Its reason.
        reason: Option<&'static str>,
    },
    /// Another sandbox has taken its place; told once, however many values there are of it.
    Replaced {
        /// The one before.
        old: SandboxId,
        /// The one that the key has now.
        new: SandboxId,
    },
    /// The provider said that it does not exist any more; told once.
    Gone,
    /// Two actors want different things of one key.
    Conflict {
        /// What about, such as `spec`.
        reason: Option<&'static str>,
    },
    /// The provider has another sandbox of this key.
    DuplicateFound {
        /// The one that was not chosen.
        other: SandboxId,
        /// It was destroyed, as [`crate::OnDuplicates::Reap`] asks for; else an operator should look at it.
        reaped: bool,
    },
    /// A stop ended well.
    Stopped {
        /// What it did.
        outcome: StopOutcome,
    },
    /// It was destroyed.
    Destroyed,
}

impl EventKind {
    /// Returns the stable snake_case code.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Started { .. } => "started",
            Self::ProvisionFailed { .. } => "provision_failed",
            Self::SetupFailed { .. } => "setup_failed",
            Self::Resumed { .. } => "resumed",
            Self::Paused => "paused",
            Self::PauseFailed { .. } => "pause_failed",
            Self::SaveFailed { .. } => "save_failed",
            Self::Replaced { .. } => "replaced",
            Self::Gone => "gone",
            Self::Conflict { .. } => "conflict",
            Self::DuplicateFound { .. } => "duplicate_found",
            Self::Stopped { .. } => "stopped",
            Self::Destroyed => "destroyed",
        }
    }

    /// Tells of an acquire that failed at a stage.
    pub(crate) fn failed(stage: &'static str, error: &Error) -> Self {
        let (kind, reason) = (error.kind(), error.reason());
        match stage {
            "restore" | "secrets" | "on_start" | "on_resume" | "setup mark" => {
                Self::SetupFailed { stage, kind, reason }
            }
            _ if kind == ErrorKind::Conflict => Self::Conflict { reason },
            _ => {
                let cleaned_up = error.outcome() == crate::Outcome::NotStarted;
                Self::ProvisionFailed { stage, kind, reason, cleaned_up }
            }
        }
    }
}

/// Events that a slow listener has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lagged {
    /// How many.
    pub missed: u64,
}

impl fmt::Display for Lagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events were missed; look at what you keep track of anew", self.missed)
    }
}

impl std::error::Error for Lagged {}

/// The events of a host from the moment of the subscription on, in the order in which they happened.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// Waits for the next event; `None` when the host and all its sandboxes are dropped.
    ///
    /// # Errors
    /// [`Lagged`] in the place of events that this listener was too slow for; the stream goes on with the oldest that is
    /// kept.
    ///
    /// # Cancellation
    /// Loses nothing.
    pub async fn next(&mut self) -> Option<Result<Event, Lagged>> {
        match self.0.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(Lagged { missed })),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Where the events of a host are told.
#[derive(Clone, Debug)]
pub(crate) struct Teller(broadcast::Sender<Event>);

impl Teller {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(broadcast::Sender::new(capacity.clamp(1, 1 << 20)))
    }

    pub(crate) fn subscribe(&self) -> Events {
        Events(self.0.subscribe())
    }

    pub(crate) fn tell(&self, hooks: Option<&Arc<dyn Hooks>>, event: Event) {
        if let Some(hooks) = hooks {
            // What a host does with the news is no part of what happened.
            let told = catch_unwind(AssertUnwindSafe(|| hooks.on_event(&event)));
            if told.is_err() {
                tracing::error!(event = event.kind.as_str(), "the hook on_event panicked");
            }
        }
        // Nobody may be listening.
        let _ = self.0.send(event);
    }
}
