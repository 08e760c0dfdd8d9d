//! What a provider answers.

use std::sync::Arc;
use std::time::SystemTime;

use crate::{SandboxHandle, SandboxId, SnapshotId};

/// What a pause, a resume or a snapshot keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Memory {
    /// Processes go on where they were. The default.
    #[default]
    Kept,
    /// Only the files are there.
    Lost,
}

impl Memory {
    /// Returns the stable snake_case code.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Lost => "lost",
        }
    }
}

/// A connected sandbox, and whether it had to be woken for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Connection {
    /// The handle.
    pub handle: Arc<dyn SandboxHandle>,
    /// What the resume kept; `None` when it was running.
    pub resumed: Option<Memory>,
}

impl Connection {
    /// Pairs a handle with what the resume kept.
    #[must_use]
    pub fn new(handle: Arc<dyn SandboxHandle>, resumed: Option<Memory>) -> Self {
        Self { handle, resumed }
    }
}

/// What a pause found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PauseOutcome {
    /// It was running and is paused now.
    Paused,
    /// It was paused before.
    AlreadyPaused,
}

/// What a destroy found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DestroyOutcome {
    /// It was there and is gone now.
    Destroyed,
    /// It was gone before.
    AlreadyGone,
}

/// A snapshot of a sandbox, kept by its provider apart from the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// What a new sandbox names as [`crate::SandboxSpec::template`] to start from it.
    pub id: SnapshotId,
    /// The names that it is found by.
    pub names: Vec<String>,
    /// When it was taken, by the provider's clock, where it tells.
    pub created_at: Option<SystemTime>,
    /// The sandbox that it was taken of, which may be gone; `None` where there was none or the provider does not tell.
    pub sandbox: Option<SandboxId>,
}

impl SnapshotInfo {
    /// Facts with nothing optional set.
    #[must_use]
    pub fn new(id: SnapshotId) -> Self {
        Self { id, names: Vec::new(), created_at: None, sandbox: None }
    }

    /// Adds a name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Sets when it was taken.
    #[must_use]
    pub fn with_created_at(mut self, at: SystemTime) -> Self {
        self.created_at = Some(at);
        self
    }

    /// Sets the sandbox that it was taken of.
    #[must_use]
    pub fn with_sandbox(mut self, sandbox: SandboxId) -> Self {
        self.sandbox = Some(sandbox);
        self
    }
}

/// One line of a provider's log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLine {
    /// When it was written.
    pub at: SystemTime,
    /// The provider's word for its level, such as `info`.
    pub level: String,
    /// The text.
    pub message: String,
}

impl LogLine {
    /// Puts a line together; for providers.
    pub fn new(at: SystemTime, level: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at, level: level.into(), message: message.into() }
    }
}

/// Present use of a sandbox's resources.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// When it was measured.
    pub at: Option<SystemTime>,
    /// Cores it may use.
    pub cpu_count: f64,
    /// Per cent of one core, averaged since the last measurement.
    pub cpu_used_percent: f64,
    /// Memory in use, in bytes.
    pub memory_used: u64,
    /// Memory that holds cached files and can be given back, in bytes; 0 where the provider does not tell.
    pub memory_cache: u64,
    /// Memory it may use, in bytes.
    pub memory_total: u64,
    /// Disk in use, in bytes.
    pub disk_used: u64,
    /// Disk it may use, in bytes.
    pub disk_total: u64,
}
