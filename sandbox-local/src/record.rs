//! What a sandbox is, as its directory says it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Failure, FailureKind};

/// Name of the record in the directory of a sandbox.
pub(crate) const RECORD: &str = "record.json";
/// Name of the file that says why a sandbox ended.
pub(crate) const ENDED: &str = "ended.json";
/// Name of the empty file that stands for [`Phase::Destroying`] on a full disk.
pub(crate) const DESTROYING: &str = "destroying";
/// Name of the file that says what a running sandbox consists of: its last line holds. Worthless after a reboot, so not
/// made durable.
pub(crate) const RUNTIME: &str = "runtime.jsonl";

/// Where the ids inside a sandbox are on the host.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tier", rename_all = "snake_case")]
pub enum IdMap {
    /// 0..65535 are `start`.. on the host, and the host's own files are shown through idmapped mounts. Needs root.
    Full {
        /// First host id.
        start: u32,
    },
    /// 0 is the caller, 1.. are its subordinate ids, mapped by `newuidmap` and `newgidmap`.
    Ranges {
        /// First subordinate user id.
        uid_start: u32,
        /// First subordinate group id.
        gid_start: u32,
        /// How many of each.
        count: u32,
    },
    /// 0 is the caller and nobody else is mapped; other users are shown by nested namespaces.
    Single,
}

/// What a sandbox may reach.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Nothing, not even another process of its own over TCP or UDP; its listeners are reachable from the host
    /// through the handle.
    None,
    /// Its own loopback interface only.
    #[default]
    Loopback,
    /// Everything the host reaches, with the host's addresses.
    Host,
}

/// Where what a sandbox writes is kept.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Upper {
    /// In its directory; outlives a stop and a reboot.
    #[default]
    Disk,
    /// In memory, at most so many bytes; gone when the sandbox stops.
    Tmpfs {
        /// Largest size in bytes.
        bytes: u64,
    },
}

/// What happens when the lease runs out.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiry {
    /// The sandbox ends and its files are removed.
    #[default]
    Kill,
    /// Its processes are frozen and everything is kept.
    Pause,
}

/// Limits of all processes of a sandbox together.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Thousandths of a processor; default unlimited.
    pub cpu_millis: Option<u64>,
    /// Bytes of memory; default unlimited.
    pub memory_bytes: Option<u64>,
    /// Processes and threads; default unlimited.
    pub pids: Option<u64>,
}

/// Most directories of one sandbox that are shared with others.
pub(crate) const MOST_SHARED: usize = 16;

/// A directory of the host that is shown inside.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Absolute path on the host.
    pub source: PathBuf,
    /// Absolute path inside.
    pub target: PathBuf,
    /// Whether it can be written to inside.
    pub writable: bool,
    /// Whether its files belong to the ids that sandboxes see, the same for all of them; default the host's ids.
    #[serde(default)]
    pub shared: bool,
}

/// The ordinary user of a sandbox, next to `root`.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    /// Login name; default `user`.
    pub name: String,
    /// User and group id; default 1000.
    pub id: u32,
    /// Home directory; default `/home/user`.
    pub home: PathBuf,
}

impl Default for User {
    fn default() -> Self {
        Self { name: "user".into(), id: 1000, home: "/home/user".into() }
    }
}

/// Where the layer is that lies right under what a sandbox writes.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Under {
    /// In its own directory: it is a fork.
    Own,
    /// In the snapshot of this id.
    Snapshot(String),
}

/// What a sandbox was made from, besides this machine's programs.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The layer that lies right under what it writes; default none.
    pub under: Option<Under>,
    /// The imported root directory that takes the place of the base tree and of this machine's `/usr`; default none.
    pub root: Option<String>,
}

impl Origin {
    /// Says whether a sandbox of this origin needs the snapshot of this id.
    pub(crate) fn stands_on(&self, snapshot: &str) -> bool {
        self.root.as_deref() == Some(snapshot)
            || matches!(&self.under, Some(Under::Snapshot(id)) if id == snapshot)
    }
}

/// Everything the helper needs to know to start a sandbox.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Id of the sandbox; a leaf name.
    pub id: String,
    /// Where its ids are on the host.
    pub ids: IdMap,
    /// Its ordinary user.
    #[serde(default)]
    pub user: User,
    /// User of calls that name none; default the ordinary user.
    #[serde(default)]
    pub default_user: Option<String>,
    /// A directory that is made and belongs to the ordinary user, and where commands run that name no directory;
    /// default its home.
    #[serde(default)]
    pub workspace: Option<PathBuf>,
    /// A directory where commands run that name no directory, and which is whoever's it is; made for the ordinary user
    /// where it is missing. Default none.
    #[serde(default)]
    pub workdir: Option<PathBuf>,
    /// What it may reach; default its own loopback interface.
    #[serde(default)]
    pub network: Network,
    /// Where what it writes is kept; default on disk.
    #[serde(default)]
    pub upper: Upper,
    /// Limits of its processes; default none.
    #[serde(default)]
    pub limits: Limits,
    /// Directories of the host shown inside; default none.
    #[serde(default)]
    pub binds: Vec<Bind>,
    /// What it was made from; default this machine's programs alone.
    #[serde(default)]
    pub origin: Origin,
    /// The name of its template, as it is told to those inside; default `base`.
    #[serde(default = "base_template")]
    pub template: String,
    /// Host name inside; default `sandhold`.
    #[serde(default)]
    pub hostname: Option<String>,
    /// Variables of every process inside; default none.
    #[serde(default)]
    pub envs: BTreeMap<String, String>,
    /// Length of the first lease in milliseconds; default no end.
    #[serde(default)]
    pub lease_ms: Option<u64>,
    /// What happens when the lease runs out; default kill.
    #[serde(default)]
    pub on_expiry: Expiry,
}

fn base_template() -> String {
    "base".into()
}

impl Spec {
    /// Returns a spec with every default.
    pub fn new(id: impl Into<String>, ids: IdMap) -> Self {
        Self {
            id: id.into(),
            ids,
            user: User::default(),
            default_user: None,
            workspace: None,
            workdir: None,
            network: Network::default(),
            upper: Upper::default(),
            limits: Limits::default(),
            binds: Vec::new(),
            origin: Origin::default(),
            template: base_template(),
            hostname: None,
            envs: BTreeMap::new(),
            lease_ms: None,
            on_expiry: Expiry::default(),
        }
    }

    /// Refuses what could not be started, or would name something outside the sandbox.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] names the bad value.
    pub fn check(&self) -> Result<(), Failure> {
        let bad = |message: String| Err(Failure::new(FailureKind::InvalidArgument, message));
        let leaf = |name: &str| {
            !name.is_empty()
                && name.len() <= 64
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if !leaf(&self.id) {
            return bad(format!("sandbox id {:?}: use 1 to 64 letters, digits, `-` or `_`", self.id));
        }
        let under = match &self.origin.under {
            Some(Under::Snapshot(id)) => Some(id),
            _ => None,
        };
        if let Some(id) = self.origin.root.iter().chain(under).find(|id| !leaf(id)) {
            return bad(format!("snapshot id {id:?}: use 1 to 64 letters, digits, `-` or `_`"));
        }
        // A name of digits would be taken for an id, one with a dash in front for an option.
        let starts_well =
            self.user.name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        if !leaf(&self.user.name) || !starts_well || self.user.name == "root" {
            return bad(format!(
                "user name {:?}: use 1 to 64 letters, digits, `-` or `_`, a letter or `_` first, not root",
                self.user.name
            ));
        }
        if self.user.id == 0 || self.user.id > 65533 {
            return bad(format!("user id {}: use 1 to 65533", self.user.id));
        }
        if crate::base::is_taken(&self.user.name) {
            return bad(format!(
                "user name {:?}: a user or group of the system has it; use another",
                self.user.name
            ));
        }
        let inside = [Some(&self.user.home), self.workspace.as_ref()];
        if let Some(path) = inside.into_iter().flatten().find(|path| is_system_place(path)) {
            return bad(format!("path {}: belongs to the system; use another", path.display()));
        }
        if let Some(bind) = self.binds.iter().find(|bind| hides_the_system(&bind.target)) {
            return bad(format!(
                "mount at {}: it would hide what the system inside needs; use another path",
                bind.target.display()
            ));
        }
        if let Some(path) =
            self.workdir.as_ref().filter(|path| *path != Path::new("/") && !plain_absolute(path))
        {
            return bad(format!(
                "path {}: must be absolute, without `.` or `..`, and plain text",
                path.display()
            ));
        }
        for path in inside.into_iter().flatten().chain(self.binds.iter().map(|bind| &bind.target)) {
            if !plain_absolute(path) {
                return bad(format!(
                    "path {}: must be absolute, without `.` or `..`, and plain text",
                    path.display()
                ));
            }
        }
        for (name, value) in &self.envs {
            if name.is_empty() || name.contains(['=', '\0']) {
                return bad(format!("variable name {name:?}: must not be empty nor hold `=` or a NUL byte"));
            }
            if value.contains('\0') {
                return bad(format!("the value of variable {name:?} holds a NUL byte"));
            }
        }
        if self.binds.iter().filter(|bind| bind.shared).count() > MOST_SHARED {
            return bad(format!("more than {MOST_SHARED} shared directories: use fewer"));
        }
        if let Some(bind) = self.binds.iter().find(|bind| !bind.source.is_absolute()) {
            return bad(format!("host directory {}: must be absolute", bind.source.display()));
        }
        Ok(())
    }
}

/// Says whether a path is in a file system of the kernel.
fn is_kernel_place(path: &Path) -> bool {
    ["/proc", "/sys", "/dev"].iter().any(|place| path.starts_with(place))
}

/// Says whether a path is no place for a user's own files: giving it to a user would break the system inside.
fn is_system_place(path: &Path) -> bool {
    let whole =
        ["/bin", "/boot", "/etc", "/lib", "/lib64", "/opt", "/root", "/run", "/sbin", "/tmp", "/usr", "/var"];
    let below = ["/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib", "/run/sandhold"];
    is_kernel_place(path)
        || whole.iter().any(|place| path == Path::new(place))
        || below.iter().any(|place| path.starts_with(place))
}

/// Says whether a directory shown at a path would hide the system from those inside, or what this crate puts there.
fn hides_the_system(path: &Path) -> bool {
    let open = ["/opt", "/root", "/tmp"];
    let ours = ["/usr/local", "/usr/local/bin", "/var/lib", "/var/lib/sandhold"];
    path == Path::new("/")
        || ours.iter().any(|place| path == Path::new(place))
        || (is_system_place(path) && !open.iter().any(|place| path == Path::new(place)))
}

/// Says whether a path is absolute, below `/`, free of `.` and `..`, and safe in a line of `/etc/passwd`.
fn plain_absolute(path: &Path) -> bool {
    let mut parts = path.components();
    let text = path.to_str().is_some_and(|text| !text.contains([':', '\n', '\r', '\0']));
    text && parts.next() == Some(std::path::Component::RootDir)
        && path.components().count() > 1
        && parts.all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// How far a sandbox is, as far as it was decided (not as far as it is running: that is told by its lock).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It exists.
    #[default]
    Live,
    /// Its end was decided: whoever comes by finishes it.
    Destroying,
}

/// The record of a sandbox: `record.json` in its directory.
#[non_exhaustive]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// How far it is.
    #[serde(default)]
    pub phase: Phase,
    /// What it is.
    pub spec: Spec,
    /// What others keep in the record; passed through.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Record {
    /// Returns the record of a new sandbox.
    pub fn new(spec: Spec) -> Self {
        Self { phase: Phase::Live, spec, other: serde_json::Map::new() }
    }

    /// Reads the record in the directory of a sandbox.
    ///
    /// # Errors
    /// [`FailureKind::NotFound`] if there is none, [`FailureKind::Unexpected`] if it cannot be understood.
    pub fn load(dir: &Path) -> Result<Self, Failure> {
        let mut record: Self = read_json(&dir.join(RECORD))?;
        if dir.join(DESTROYING).exists() {
            record.phase = Phase::Destroying;
        }
        Ok(record)
    }

    /// Writes the record of a sandbox that nobody knows yet: whole on disk before its directory gets a name, so that a
    /// damaged one is never met. It is found after a crash of the machine once its directory was synced too.
    pub(crate) fn stage(&self, dir: &Path) -> Result<(), Failure> {
        let path = dir.join(RECORD);
        replace(&path, self, File::sync_all).doing(format_args!("write {}", path.display()))
    }

    /// Writes the record so that it survives a crash of the machine once this returns.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, dir: &Path) -> Result<(), Failure> {
        write_durable(&dir.join(RECORD), self)
    }
}

/// Why a sandbox ended.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// It was asked for.
    Destroyed,
    /// Its lease ran out.
    LeaseExpired,
}

/// What is left of a sandbox that ended: `ended.json` in its directory.
#[non_exhaustive]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// Why.
    pub reason: EndReason,
}

/// What a running sandbox consists of, so that another process can remove it after its monitor was killed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Runtime {
    /// Boot of the host that all of this belongs to.
    pub(crate) boot_id: String,
    /// Process id of PID 1, seen from the host, and its start time in clock ticks; 0 before it was started.
    pub(crate) init: i32,
    pub(crate) init_started: u64,
    /// Control groups, by absolute path.
    pub(crate) cgroups: Vec<PathBuf>,
    /// The monitor and its descriptor of what the sandbox wrote, where that is in memory.
    #[serde(default)]
    pub(crate) memory: Option<(u32, i32)>,
}

impl Runtime {
    /// Notes how the run is now. One line by one call: it is there as a whole or not at all, also for a writer that
    /// is killed.
    pub(crate) fn note(&self, dir: &Path) -> Result<(), Failure> {
        let path = dir.join(RUNTIME);
        let append = || -> io::Result<()> {
            let mut line = serde_json::to_vec(self)?;
            line.push(b'\n');
            fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?.write_all(&line)
        };
        append().doing(format_args!("write {}", path.display()))
    }

    /// Reads the last note.
    pub(crate) fn load(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join(RUNTIME);
        let text = fs::read_to_string(&path).doing(format_args!("read {}", path.display()))?;
        text.lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())
            .ok_or_else(|| Failure::new(FailureKind::Unexpected, format!("{} is damaged", path.display())))
    }
}

/// Reads a JSON file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let bytes = fs::read(path).doing(format_args!("read {}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Failure::new(FailureKind::Unexpected, format!("{} is damaged: {error}", path.display()))
    })
}

/// Writes a JSON file by a new one that takes its place, and returns once it is on disk.
pub(crate) fn write_durable(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    replace(path, value, File::sync_all)
        .and_then(|()| File::open(parent)?.sync_all())
        .doing(format_args!("write {}", path.display()))
}

fn replace(path: &Path, value: &impl Serialize, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let bytes = serde_json::to_vec(value)?;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&bytes).and_then(|()| sync(&file)).and_then(|()| fs::rename(&fresh, path)).inspect_err(
        |_| {
            // On a full disk the rest of it would be in the way of everything else.
            let _ = fs::remove_file(&fresh);
        },
    )
}
