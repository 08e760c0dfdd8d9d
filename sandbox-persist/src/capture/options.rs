use std::time::Duration;

use super::rules::CaptureRules;
use crate::cancel::ProgressFn;
use crate::path::WorkPath;
use crate::receipt::Survive;
use crate::side::Skipped;
use crate::snapshot::Label;

/// The cap for one file, where nothing else is said: 10 MiB.
pub const DEFAULT_MAX_FILE: u64 = 10 << 20;

/// How a workspace is captured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CaptureOptions {
    /// A name for people. Default none.
    pub label: Option<Label>,
    /// The agent that worked in the workspace. Default none.
    pub agent: Option<String>,
    /// How long the snapshot is to be kept, such as `168h`; the rule is stored as it is. Default none: the vault's rule.
    pub retention: Option<String>,
    /// The workspace of a sandbox that it is of; set by captures of sandboxes.
    pub(crate) sandbox: Option<String>,
    /// What of that sandbox could not be fetched: what is captured of it is an older state, or none.
    pub(crate) older: Vec<Skipped>,
    /// What must survive a restore. Default nothing in particular.
    pub survive: Option<Survive>,
    /// What is taken. Default: files up to [`DEFAULT_MAX_FILE`], and neither env files nor private keys.
    pub rules: CaptureRules,
    /// Whether the times of files are kept. Default no.
    pub mtimes: bool,
    /// Whether extended attributes of the `user.` namespace are kept. Default no.
    pub xattrs: bool,
    /// Whether the commits that the workspace is at are copied to the vault. Default yes.
    pub history: bool,
    /// What a watcher saw change since the last capture of this workspace through this vault: all else is believed to
    /// be as it was. Default: everything is looked at. Where nothing is known from before, it is so too.
    pub dirty: Option<Vec<WorkPath>>,
    /// How long it may take. Default no limit.
    pub budget: Option<Duration>,
    /// How many threads read and deflate. Default as many as there are cores.
    pub threads: Option<usize>,
    /// Whether a home directory, or `/`, may be captured. Default no.
    pub force: bool,
    /// Told how far it is. Default nobody.
    pub progress: Option<ProgressFn>,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            label: None,
            agent: None,
            retention: None,
            sandbox: None,
            older: Vec::new(),
            survive: None,
            rules: CaptureRules::default(),
            mtimes: false,
            xattrs: false,
            history: true,
            dirty: None,
            budget: None,
            threads: None,
            force: false,
            progress: None,
        }
    }
}

impl CaptureOptions {
    /// Takes the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the snapshot.
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// Names the agent.
    #[must_use]
    pub fn with_agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Gives the snapshot a rule of retention of its own.
    #[must_use]
    pub fn with_retention(mut self, rule: impl Into<String>) -> Self {
        self.retention = Some(rule.into());
        self
    }

    /// Declares what must survive.
    #[must_use]
    pub fn with_survive(mut self, survive: Survive) -> Self {
        self.survive = Some(survive);
        self
    }

    /// Sets the cap for one file; `None` takes every file.
    #[must_use]
    pub fn with_max_file(mut self, bytes: Option<u64>) -> Self {
        self.rules.max_file = bytes;
        self
    }

    /// Keeps a file that has grown above the cap as an earlier snapshot has it. It is told all the same.
    #[must_use]
    pub fn with_keep_last(mut self) -> Self {
        self.rules.keep_last = true;
        self
    }

    /// Adds a pattern of what is never captured.
    #[must_use]
    pub fn with_never(mut self, glob: impl Into<String>) -> Self {
        self.rules.never.push(glob.into());
        self
    }

    /// Captures files of environment variables, or not.
    #[must_use]
    pub fn with_env_files(mut self, captured: bool) -> Self {
        self.rules.skip_env_files = !captured;
        self
    }

    /// Captures private keys, or not.
    #[must_use]
    pub fn with_private_keys(mut self, captured: bool) -> Self {
        self.rules.skip_private_keys = !captured;
        self
    }

    /// Keeps the times of files.
    #[must_use]
    pub fn with_mtimes(mut self) -> Self {
        self.mtimes = true;
        self
    }

    /// Keeps extended attributes.
    #[must_use]
    pub fn with_xattrs(mut self) -> Self {
        self.xattrs = true;
        self
    }

    /// Copies the commits of the workspace, or not.
    #[must_use]
    pub fn with_history(mut self, copied: bool) -> Self {
        self.history = copied;
        self
    }

    /// Looks at these paths alone, and at the directories that they are in.
    #[must_use]
    pub fn with_dirty(mut self, paths: impl IntoIterator<Item = WorkPath>) -> Self {
        self.dirty = Some(paths.into_iter().collect());
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

/// How many threads work where nothing else is said.
pub(crate) fn threads(wanted: Option<usize>) -> usize {
    wanted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)).clamp(1, 32)
}
