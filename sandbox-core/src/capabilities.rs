use std::time::Duration;

/// What a provider can do. A call that is not covered is `unsupported` before anything happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// How long after a create a listing may miss it; `None` when the provider states no bound.
    pub list_visibility: Option<Duration>,
    /// The longest create plus `list_visibility`; `None` when the provider states no bound.
    pub create_settle: Option<Duration>,
    /// Creates with the same attempt yield the same sandbox.
    pub idempotent_create: bool,
    /// `find` never wakes a paused sandbox.
    pub find_without_waking: bool,
    /// Owner, key, generation and attempt are kept with the sandbox.
    pub tags: bool,
    /// [`crate::SandboxProvider::pause_opts`] works.
    pub pause: bool,
    /// A paused sandbox keeps its processes and memory.
    pub pause_keeps_memory: bool,
    /// A pause can be asked to keep only the files, and a connect to start a paused sandbox anew on them.
    pub pause_without_memory: bool,
    /// Leases are enforced.
    pub lease: bool,
    /// The longest lease; `None` for no limit.
    pub max_lease: Option<Duration>,
    /// Snapshots can be taken, listed, deleted, and named as the template of a new sandbox.
    pub snapshot: bool,
    /// A snapshot stores the processes too, and a sandbox made from it goes on with them.
    pub snapshot_keeps_memory: bool,
    /// [`crate::SandboxProvider::fork`] works.
    pub fork: bool,
    /// [`crate::SandboxProvider::metrics`] works.
    pub metrics: bool,
    /// [`crate::SandboxProvider::logs`] works.
    pub logs: bool,
    /// [`crate::SandboxProvider::update_network`] works.
    pub update_network: bool,
    /// [`crate::SandboxHandle::dial`] works.
    pub dial: bool,
    /// Output of a process can be kept in the sandbox and replayed by offset.
    pub retained_output: bool,
    /// Signals reach the whole process tree.
    pub signal_tree: bool,
    /// Host directories can be mounted.
    pub host_mounts: bool,
}
