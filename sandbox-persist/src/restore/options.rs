use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

use crate::cancel::ProgressFn;
use crate::path::WorkPath;
use crate::snapshot::SnapId;

/// What happens where the target holds work that no snapshot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDirty {
    /// Nothing is touched, and the error names what differs. The default.
    #[default]
    Refuse,
    /// The target is captured first, so that the restore can be taken back.
    Capture,
}

/// What happens to names that the file system of the target cannot hold, or takes for one another: `Readme` and `README`
/// where letters have no case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnfit {
    /// Nothing is written, and the error names them. The default.
    #[default]
    Refuse,
    /// They get other names, the same ones at every restore; [`Restored::renamed`] tells which. What a receipt promises
    /// under such a name is missing all the same.
    Rename,
}

/// How a snapshot is written back.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// What happens where the target holds work that no snapshot has. Default: refuse.
    pub on_dirty: OnDirty,
    /// What happens to names that the file system of the target has not. Default: refuse.
    pub on_unfit: OnUnfit,
    /// Whether to wait until all is on the disk, and each file before it takes the place of another: a power cut then
    /// leaves what running the restore again completes. Without it a power cut may tear files, which the next restore
    /// refuses as `dirty` or captures first. Default no: the vault has it all the same.
    pub sync: bool,
    /// How long it may take. Default no limit.
    pub budget: Option<Duration>,
    /// How many threads write. Default as many as there are cores.
    pub threads: Option<usize>,
    /// Whether a home directory, or `/`, may be restored over. Default no.
    pub force: bool,
    /// Told how far it is. Default nobody.
    pub progress: Option<ProgressFn>,
}

impl RestoreOptions {
    /// Takes the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses what happens to work that no snapshot has.
    #[must_use]
    pub fn with_on_dirty(mut self, on_dirty: OnDirty) -> Self {
        self.on_dirty = on_dirty;
        self
    }

    /// Chooses what happens to names that the target has not.
    #[must_use]
    pub fn with_on_unfit(mut self, on_unfit: OnUnfit) -> Self {
        self.on_unfit = on_unfit;
        self
    }

    /// Waits until all is on the disk.
    #[must_use]
    pub fn with_sync(mut self) -> Self {
        self.sync = true;
        self
    }

    /// Limits how long it may take.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sets the number of threads.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Allows a home directory, and `/`.
    #[must_use]
    pub fn with_force(mut self) -> Self {
        self.force = true;
        self
    }

    /// Tells how far it is.
    #[must_use]
    pub fn with_progress(mut self, progress: ProgressFn) -> Self {
        self.progress = Some(progress);
        self
    }
}

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Restored {
    /// The snapshot.
    pub id: SnapId,
    /// Where it is now.
    pub target: PathBuf,
    /// Files and symlinks that were written.
    pub written: u64,
    /// Those that were so already, and were not touched.
    pub untouched: u64,
    /// Those that the snapshot has not, and were removed.
    pub deleted: u64,
    /// The snapshot of what was there before, where one was taken.
    pub saved: Option<SnapId>,
    /// What has another name there than in the snapshot, and which, where that was asked for.
    pub renamed: Vec<(WorkPath, WorkPath)>,
    /// Submodules of a foreign tree, which a restore lists and does not make.
    pub submodules: Vec<WorkPath>,
    /// What whoever restored should know: what the snapshot says it has not.
    pub warnings: Vec<String>,
}
