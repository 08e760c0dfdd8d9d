use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::{SandboxId, Tags};

/// What a sandbox is doing, as its provider says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxState {
    /// Commands can run.
    Running,
    /// Processes are frozen or stored; connect resumes it.
    Paused,
    /// Its processes are lost and its files are kept; connect starts it again on them.
    Stopped,
    /// It is between two states; ask again.
    Transitioning,
}

/// How strongly a sandbox is separated from its host, as found by running it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Isolation {
    /// The kernel namespaces in force, such as `user`, `mount`, `pid`, `ipc`, `uts`, `net`.
    pub namespaces: Vec<String>,
    /// The user tier: `full`, `ranges` or `single`; empty where the word means nothing.
    pub users: String,
    /// What the root view is made of, such as `overlay` or `bind`.
    pub filesystem: String,
    /// The network in force: `none`, `loopback`, `host` or a provider's own word.
    pub network: String,
    /// Whether a system call filter is on.
    pub seccomp: bool,
    /// What enforces the limits: `cgroup2`, `cgroup1`, `none` or a provider's own word.
    pub limits: String,
    /// What freezes the processes: `cgroup2`, `cgroup1`, `signals` or a provider's own word.
    pub freezer: String,
}

/// A snapshot of facts about one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// The provider's id.
    pub id: SandboxId,
    /// What it is doing.
    pub state: SandboxState,
    /// Who it belongs to; `None` when it was made elsewhere.
    pub tags: Option<Tags>,
    /// The template it was made from.
    pub template: String,
    /// When it was created, by the provider's clock.
    pub created_at: SystemTime,
    /// When its present run began; later than `created_at` when it was resumed.
    pub started_at: SystemTime,
    /// When its lease ends; `None` means never.
    pub expires_at: Option<SystemTime>,
    /// Free text pairs kept with it, without the tags.
    pub metadata: BTreeMap<String, String>,
    /// The isolation in force, where the provider tells.
    pub isolation: Option<Isolation>,
    /// What it outlives: `host_process`, `service`, or empty where the word means nothing.
    pub survives: String,
}

impl SandboxInfo {
    /// Facts with nothing optional set.
    pub fn new(
        id: SandboxId,
        state: SandboxState,
        template: impl Into<String>,
        created_at: SystemTime,
    ) -> Self {
        Self {
            id,
            state,
            tags: None,
            template: template.into(),
            created_at,
            started_at: created_at,
            expires_at: None,
            metadata: BTreeMap::new(),
            isolation: None,
            survives: String::new(),
        }
    }

    /// Sets who it belongs to.
    #[must_use]
    pub fn with_tags(mut self, tags: Tags) -> Self {
        self.tags = Some(tags);
        self
    }
}
