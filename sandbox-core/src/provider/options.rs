//! What shapes one call of a provider.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::facts::{Memory, SnapshotInfo};
use crate::{Attempt, Generation, Key, Owner, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Tags};

/// Default deadline of one provider call.
pub const DEFAULT_CALL_DEADLINE: Duration = Duration::from_secs(60);

/// What to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindQuery {
    /// The sandbox with the provider's id.
    Id(SandboxId),
    /// Every sandbox with these tags, in every state.
    Key {
        /// The namespace of the key.
        owner: Owner,
        /// The caller's logical id.
        key: Key,
        /// Only the one of this create call; `None` for all.
        attempt: Option<Attempt>,
    },
}

/// Which sandboxes to list; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListFilter {
    /// Only those of this owner.
    pub owner: Option<Owner>,
    /// Only those with this key.
    pub key: Option<Key>,
    /// Only those in one of these states; empty for every state.
    pub states: Vec<SandboxState>,
    /// Only those that carry all these pairs.
    pub metadata: BTreeMap<String, String>,
}

impl ListFilter {
    /// Lists only those of this owner.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Lists only those with this key.
    #[must_use]
    pub fn with_key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Lists those in this state, beside states named before.
    #[must_use]
    pub fn with_state(mut self, state: SandboxState) -> Self {
        self.states.push(state);
        self
    }

    /// Lists only those that carry this pair.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Tells whether these facts pass the filter: the one definition that every provider uses.
    #[must_use]
    pub fn matches(&self, info: &SandboxInfo) -> bool {
        let tags = info.tags.as_ref();
        self.owner.as_ref().is_none_or(|owner| tags.is_some_and(|tags| tags.owner == *owner))
            && self.key.as_ref().is_none_or(|key| tags.is_some_and(|tags| tags.key == *key))
            && (self.states.is_empty() || self.states.contains(&info.state))
            && self.metadata.iter().all(|(name, value)| info.metadata.get(name) == Some(value))
    }
}

/// Shapes one create.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// How the sandbox is to be made.
    pub spec: SandboxSpec,
    /// What it is tagged with.
    pub tags: Tags,
    /// After this time the call is given up; default [`DEFAULT_CALL_DEADLINE`].
    pub deadline: Duration,
}

impl CreateOptions {
    /// A create of this spec with these tags.
    #[must_use]
    pub fn new(spec: SandboxSpec, tags: Tags) -> Self {
        Self { spec, tags, deadline: DEFAULT_CALL_DEADLINE }
    }

    /// Gives the call up after this time.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// Shapes one connect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Extends the lease to so long from now; a longer one is never shortened. Default: the lease is left alone.
    pub lease: Option<Duration>,
    /// Only a sandbox of this generation will do; default any.
    pub generation: Option<Generation>,
    /// With [`Memory::Lost`] a paused sandbox starts anew on its files, and what its processes held is given up; a
    /// running one is left alone. Requires [`crate::Capabilities::pause_without_memory`]. Default [`Memory::Kept`]:
    /// what the pause kept goes on.
    pub memory: Memory,
    /// After this time the call is given up; default [`DEFAULT_CALL_DEADLINE`].
    pub deadline: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { lease: None, generation: None, memory: Memory::Kept, deadline: DEFAULT_CALL_DEADLINE }
    }
}

impl ConnectOptions {
    /// Extends the lease to so long from now.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Accepts only a sandbox of this generation.
    #[must_use]
    pub fn with_generation(mut self, generation: Generation) -> Self {
        self.generation = Some(generation);
        self
    }

    /// Says whether processes of a paused sandbox go on, or it starts anew on its files.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    /// Gives the call up after this time.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// Shapes one pause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PauseOptions {
    /// With [`Memory::Lost`] every process ends and only the files are kept, which needs
    /// [`crate::Capabilities::pause_without_memory`]. Default [`Memory::Kept`]: processes are kept, where
    /// [`crate::Capabilities::pause_keeps_memory`] says that the provider can.
    pub memory: Memory,
}

impl PauseOptions {
    /// Says whether processes are kept.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }
}

/// Shapes one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// A name to find it by; default none but the provider's own.
    pub name: Option<String>,
    /// With [`Memory::Lost`] only the files are stored. Default [`Memory::Kept`]: processes too, where
    /// [`crate::Capabilities::snapshot_keeps_memory`] says that the provider can.
    pub memory: Memory,
}

impl SnapshotOptions {
    /// Names the snapshot.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Says whether processes are stored beside the files.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }
}

/// Which snapshots to list; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotFilter {
    /// Only those taken of this sandbox, which may be gone.
    pub sandbox: Option<SandboxId>,
    /// Only those with this name.
    pub name: Option<String>,
}

impl SnapshotFilter {
    /// Lists only those taken of this sandbox.
    #[must_use]
    pub fn with_sandbox(mut self, sandbox: SandboxId) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// Lists only those with this name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Tells whether these facts pass the filter: the one definition that every provider uses.
    #[must_use]
    pub fn matches(&self, info: &SnapshotInfo) -> bool {
        self.sandbox.as_ref().is_none_or(|sandbox| info.sandbox.as_ref() == Some(sandbox))
            && self.name.as_ref().is_none_or(|name| info.names.contains(name))
    }
}

/// Shapes one fork.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForkOptions {
    /// What the new sandbox is tagged with.
    pub tags: Tags,
    /// How long the new sandbox may run without a renewal; default as the source was made with.
    pub lease: Option<Duration>,
}

impl ForkOptions {
    /// A fork with these tags.
    #[must_use]
    pub fn new(tags: Tags) -> Self {
        Self { tags, lease: None }
    }

    /// Sets how long the new sandbox may run without a renewal.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }
}

/// Shapes one look at the logs; the default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogOptions {
    /// Only lines from this moment on.
    pub since: Option<SystemTime>,
    /// At most so many lines.
    pub limit: Option<usize>,
}

impl LogOptions {
    /// Shows only lines from this moment on.
    #[must_use]
    pub fn with_since(mut self, since: SystemTime) -> Self {
        self.since = Some(since);
        self
    }

    /// Shows at most so many lines.
    #[must_use]
    pub fn with_limit(mut self, lines: usize) -> Self {
        self.limit = Some(lines);
        self
    }
}
