use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Attempt, Generation, Key, Owner};

/// The names that identify a sandbox at its provider: who it belongs to, and which create made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tags {
    /// The namespace of the key.
    pub owner: Owner,
    /// The caller's logical id.
    pub key: Key,
    /// The identity of this very sandbox; a handle is bound to it.
    pub generation: Generation,
    /// The create call that made it.
    pub attempt: Attempt,
}

/// What network the processes of a sandbox see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Network {
    /// No connection to anywhere, also not between processes; listeners are reached through the handle only.
    None,
    /// A network of its own with nothing but loopback. The default.
    #[default]
    Loopback,
    /// The network of the host, or the provider's ordinary internet access.
    Host,
}

/// What happens when the lease of a sandbox ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnExpiry {
    /// It is paused and kept. The default: work is never lost by waiting.
    #[default]
    Pause,
    /// It is destroyed with its files.
    Kill,
}

/// Limits of the whole sandbox. A limit that cannot be enforced is `unsupported` before anything is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Resources {
    /// CPU cores, such as `1.5`, stored in thousandths of a core; default unlimited.
    pub cpu_millis: Option<u32>,
    /// Memory in bytes; default unlimited.
    pub memory: Option<u64>,
    /// Processes and threads; default unlimited.
    pub pids: Option<u32>,
    /// Bytes that the writable layer may hold; default unlimited.
    pub disk: Option<u64>,
}

impl Resources {
    /// Limits the CPU to so many thousandths of a core.
    #[must_use]
    pub fn with_cpu_millis(mut self, millis: u32) -> Self {
        self.cpu_millis = Some(millis);
        self
    }

    /// Limits the memory, in bytes.
    #[must_use]
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Limits the number of processes and threads.
    #[must_use]
    pub fn with_pids(mut self, count: u32) -> Self {
        self.pids = Some(count);
        self
    }

    /// Limits the writable layer, in bytes.
    #[must_use]
    pub fn with_disk(mut self, bytes: u64) -> Self {
        self.disk = Some(bytes);
        self
    }
}

/// What kind of box is asked for; checked against the capabilities before create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// An ordinary sandbox. The default.
    #[default]
    Standard,
    /// One with graphics processors.
    Gpu {
        /// The provider's name of the processor type.
        model: String,
        /// How many.
        count: u32,
    },
    /// One whose root may do what the machine's root may.
    Privileged,
    /// One made from a container image.
    Image {
        /// The image reference.
        reference: String,
    },
}

/// Where the content of a mount comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MountSource {
    /// A directory of the host; named only by the embedding program, never over HTTP.
    HostDir {
        /// The directory on the host.
        path: PathBuf,
        /// Whether the sandbox may write to it.
        writable: bool,
    },
    /// A directory of the host whose files belong to the ids that are inside, the same in every sandbox that has it:
    /// what several sandboxes share. Writable; named only by the embedding program, never over HTTP.
    SharedDir {
        /// The directory on the host.
        path: PathBuf,
    },
    /// A volume of the provider.
    Volume {
        /// Its name.
        name: String,
    },
}

/// A directory that appears inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Mount {
    /// The absolute path inside.
    pub path: String,
    /// What is mounted there.
    pub source: MountSource,
}

impl Mount {
    /// Mounts a host directory read-only at `path`.
    pub fn host_dir(path: impl Into<String>, host: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), source: MountSource::HostDir { path: host.into(), writable: false } }
    }

    /// Mounts a host directory at `path` that several sandboxes share, writable from inside.
    pub fn shared_dir(path: impl Into<String>, host: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), source: MountSource::SharedDir { path: host.into() } }
    }

    /// Mounts a host directory at `path`, writable from inside.
    pub fn host_dir_writable(path: impl Into<String>, host: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), source: MountSource::HostDir { path: host.into(), writable: true } }
    }

    /// Mounts a volume of the provider, by its name, at `path`.
    pub fn volume(path: impl Into<String>, name: impl Into<String>) -> Self {
        Self { path: path.into(), source: MountSource::Volume { name: name.into() } }
    }
}

/// How a sandbox is to be made. What a user sets; identity comes from [`Tags`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SandboxSpec {
    /// The template; default `base`.
    pub template: String,
    /// The user that commands and file calls run as; default `user`.
    pub user: String,
    /// The user's home; default `/home/user`.
    pub home: String,
    /// Where commands start and relative paths lead; default the home.
    pub workdir: Option<String>,
    /// Environment of every process; default empty.
    pub env: BTreeMap<String, String>,
    /// Free text pairs kept with the sandbox; default empty.
    pub metadata: BTreeMap<String, String>,
    /// Limits; default none.
    pub resources: Resources,
    /// The network; default [`Network::Loopback`].
    pub network: Network,
    /// How long the sandbox may run without a renewal; default the provider's own, none for the local one.
    pub lease: Option<Duration>,
    /// What happens at the end of the lease; default [`OnExpiry::Pause`].
    pub on_expiry: OnExpiry,
    /// The kind; default [`Kind::Standard`].
    pub kind: Kind,
    /// Directories to mount; default none.
    pub mounts: Vec<Mount>,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            template: "base".to_owned(),
            user: "user".to_owned(),
            home: "/home/user".to_owned(),
            workdir: None,
            env: BTreeMap::new(),
            metadata: BTreeMap::new(),
            resources: Resources::default(),
            network: Network::default(),
            lease: None,
            on_expiry: OnExpiry::default(),
            kind: Kind::default(),
            mounts: Vec::new(),
        }
    }
}

impl SandboxSpec {
    /// A spec of this template with every default.
    pub fn new(template: impl Into<String>) -> Self {
        Self { template: template.into(), ..Self::default() }
    }

    /// Sets the user that commands and file calls run as.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Sets the user's home.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<String>) -> Self {
        self.home = home.into();
        self
    }

    /// Sets the directory where commands start.
    #[must_use]
    pub fn with_workdir(mut self, workdir: impl Into<String>) -> Self {
        self.workdir = Some(workdir.into());
        self
    }

    /// Adds one environment variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Adds one metadata pair.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_resources(mut self, resources: Resources) -> Self {
        self.resources = resources;
        self
    }

    /// Sets the network.
    #[must_use]
    pub fn with_network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Sets how long it may run without a renewal.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets what happens at the end of the lease.
    #[must_use]
    pub fn with_on_expiry(mut self, on_expiry: OnExpiry) -> Self {
        self.on_expiry = on_expiry;
        self
    }

    /// Sets the kind.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Adds a mount.
    #[must_use]
    pub fn with_mount(mut self, mount: Mount) -> Self {
        self.mounts.push(mount);
        self
    }

    /// Returns the name of the first field in which two specs ask for another box, or `None` when one sandbox serves
    /// both. Environment, metadata and lease can differ.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> Option<&'static str> {
        [
            ("template", self.template != other.template),
            ("kind", self.kind != other.kind),
            ("resources", self.resources != other.resources),
            ("network", self.network != other.network),
            ("user", self.user != other.user),
            ("home", self.home != other.home),
            ("mounts", self.mounts != other.mounts),
        ]
        .into_iter()
        .find_map(|(name, differs)| differs.then_some(name))
    }
}
