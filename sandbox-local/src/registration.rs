//! What the provider keeps in a sandbox's record beside what the helper needs, and how one becomes the other.

use std::path::Path;
use std::time::SystemTime;

use sandhold_core::{
    Attempt, CreateOptions, Error, ErrorKind, Kind, ListFilter, MountSource, Network, OnExpiry, Result,
    SandboxId, SandboxSpec, Tags,
};
use serde::{Deserialize, Serialize};

use crate::record::{self, Bind, IdMap, Origin, Record, Spec, Upper};
use crate::state_dir::is_leaf;
use crate::{Failure, FailureKind, Phase};

/// The name of this part of the record.
const FIELD: &str = "registration";

/// The template that is always there: the synthesized root over this machine's `/usr`.
pub(crate) const TEMPLATE: &str = "base";

/// Who a sandbox belongs to and how it was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Registration {
    pub(crate) tags: Tags,
    pub(crate) spec: SandboxSpec,
    pub(crate) created_at: SystemTime,
    /// When it was last started again after its processes were lost.
    #[serde(default)]
    pub(crate) resumed_at: Option<SystemTime>,
    /// Whether it does not run because somebody paused it and asked for its files only.
    #[serde(default)]
    pub(crate) paused: bool,
}

/// The id of an attempt's sandbox: the same attempt always makes the same one.
///
/// An attempt in the form of E2B's ids (`i` and 20 letters or digits) is the id itself: a server that speaks E2B's
/// protocol chooses the id that its clients, and the inside of the sandbox, see.
pub(crate) fn id_of(attempt: &Attempt) -> Result<SandboxId> {
    let text = attempt.as_str();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_e2b = text.len() == 21 && text.starts_with('i') && text.bytes().all(plain);
    let id = if is_e2b { text.to_owned() } else { format!("sb-{attempt}") };
    if is_leaf(&id) {
        return Ok(SandboxId::new(id));
    }
    Err(Error::invalid_argument(format!(
        "the attempt {:?} cannot be part of an id; draw one by Attempt::random",
        attempt.as_str()
    )))
}

impl Registration {
    pub(crate) fn new(options: &CreateOptions) -> Self {
        Self {
            tags: options.tags.clone(),
            spec: options.spec.clone(),
            created_at: SystemTime::now(),
            resumed_at: None,
            paused: false,
        }
    }

    /// That of a sandbox that is made as another one was.
    pub(crate) fn forked(spec: SandboxSpec, tags: Tags) -> Self {
        Self { tags, spec, created_at: SystemTime::now(), resumed_at: None, paused: false }
    }

    pub(crate) fn record(&self, spec: Spec) -> Result<Record> {
        let mut record = Record::new(spec);
        self.put(&mut record)?;
        Ok(record)
    }

    fn put(&self, record: &mut Record) -> Result<()> {
        let value = serde_json::to_value(self).map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the record cannot be written as JSON").with_source(error)
        })?;
        record.other.insert(FIELD.to_owned(), value);
        Ok(())
    }

    /// Tells whether a filter takes this sandbox, whatever its state is.
    pub(crate) fn matches(&self, filter: &ListFilter) -> bool {
        filter.owner.as_ref().is_none_or(|owner| self.tags.owner == *owner)
            && filter.key.as_ref().is_none_or(|key| self.tags.key == *key)
            && filter.metadata.iter().all(|(name, value)| self.spec.metadata.get(name) == Some(value))
    }
}

/// What the helper is told of a spec. Everything that this provider cannot do is refused here, before anything is made.
pub(crate) fn helper_spec(
    wanted: &SandboxSpec,
    id: &SandboxId,
    ids: IdMap,
    in_memory: bool,
    origin: Origin,
) -> Result<Spec> {
    let unsupported = |what: &str| Err(Error::new(ErrorKind::Unsupported, what.to_owned()));
    if wanted.kind != Kind::Standard {
        return unsupported("the local provider makes sandboxes of the kind `standard` only");
    }
    let mut spec = Spec::new(id.as_str(), ids);
    spec.origin = origin;
    spec.template.clone_from(&wanted.template);
    spec.user.home = wanted.home.clone().into();
    let standard = wanted.template == TEMPLATE;
    match wanted.user.as_str() {
        "root" => spec.default_user = Some("root".to_owned()),
        // A template has users of its own, beside the ordinary one.
        name if !standard && name != spec.user.name => spec.default_user = Some(name.to_owned()),
        name => spec.user.name = name.to_owned(),
    }
    let workdir = wanted.workdir.clone().map(Into::into);
    // What a template has belongs to whom it says.
    if standard {
        spec.workspace = workdir
    } else {
        spec.workdir = workdir
    }
    spec.envs = wanted.env.clone();
    spec.network = match wanted.network {
        Network::None => record::Network::None,
        Network::Loopback => record::Network::Loopback,
        Network::Host => record::Network::Host,
        _ => return unsupported("the local provider does not know this network"),
    };
    spec.upper = match (in_memory, wanted.resources.disk) {
        (true, Some(bytes)) => Upper::Tmpfs { bytes },
        (true, None) => {
            return Err(Error::invalid_argument("a sandbox in memory needs a size; give Resources::disk"));
        }
        (false, None) => Upper::Disk,
        (false, Some(_)) => {
            return unsupported(
                "a disk limit is enforced for sandboxes in memory only; see LocalConfig::in_memory",
            );
        }
    };
    spec.limits.cpu_millis = wanted.resources.cpu_millis.map(u64::from);
    spec.limits.memory_bytes = wanted.resources.memory;
    spec.limits.pids = wanted.resources.pids.map(u64::from);
    spec.lease_ms = wanted.lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
    spec.on_expiry = match wanted.on_expiry {
        OnExpiry::Kill => record::Expiry::Kill,
        OnExpiry::Pause => record::Expiry::Pause,
        _ => return unsupported("the local provider does not know this end of a lease"),
    };
    for mount in &wanted.mounts {
        match &mount.source {
            MountSource::HostDir { path, writable } => {
                spec.binds.push(Bind {
                    source: path.clone(),
                    target: mount.path.clone().into(),
                    writable: *writable,
                    shared: false,
                });
            }
            MountSource::SharedDir { path } => {
                spec.binds.push(Bind {
                    source: path.clone(),
                    target: mount.path.clone().into(),
                    writable: true,
                    shared: true,
                });
            }
            _ => return unsupported("the local provider mounts host directories only"),
        }
    }
    spec.check().map_err(Error::from)?;
    Ok(spec)
}

/// Reads the record in a sandbox's directory; `None` when there is none, or when its end was decided.
pub(crate) fn load(directory: &Path) -> Result<Option<(Record, Registration)>> {
    let record = match Record::load(directory) {
        Ok(record) => record,
        Err(error) if error.kind == FailureKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if record.phase == Phase::Destroying || directory.join(record::ENDED).exists() {
        return Ok(None);
    }
    let value = record.other.get(FIELD).cloned().unwrap_or_default();
    let registration = serde_json::from_value(value).map_err(|error| {
        Error::new(
            ErrorKind::Unexpected,
            format!("{} cannot be understood", directory.join(record::RECORD).display()),
        )
        .with_source(error)
    })?;
    Ok(Some((record, registration)))
}

/// Writes down that a sandbox is started again.
pub(crate) fn note_resume(directory: &Path) -> Result<()> {
    change(directory, |registration| {
        registration.resumed_at = Some(SystemTime::now());
        registration.paused = false;
    })
}

/// Writes down that the processes of a sandbox are about to be ended by a pause.
pub(crate) fn note_pause(directory: &Path) -> Result<()> {
    change(directory, |registration| registration.paused = true)
}

fn change(directory: &Path, change: impl FnOnce(&mut Registration)) -> Result<()> {
    if let Some((mut record, mut registration)) = load(directory)? {
        change(&mut registration);
        registration.put(&mut record)?;
        record.save(directory).map_err(Error::from)?;
    }
    Ok(())
}

impl From<Failure> for Error {
    fn from(failed: Failure) -> Self {
        let kind = match failed.kind {
            FailureKind::Unsupported => ErrorKind::Unsupported,
            FailureKind::InvalidArgument => ErrorKind::InvalidArgument,
            FailureKind::InvalidState => ErrorKind::InvalidState,
            FailureKind::Conflict => ErrorKind::Conflict,
            FailureKind::NotFound => ErrorKind::NotFound,
            FailureKind::PermissionDenied => ErrorKind::PermissionDenied,
            FailureKind::StorageFull => ErrorKind::StorageFull,
            FailureKind::Unexpected => ErrorKind::Unexpected,
        };
        Self::new(kind, failed.message)
    }
}

/// Refuses to mount what is not there, or is no directory.
/// Refuses host directories that are not there.
pub(crate) fn check_sources(spec: &SandboxSpec) -> Result<()> {
    for mount in &spec.mounts {
        if let MountSource::HostDir { path, .. } | MountSource::SharedDir { path } = &mount.source {
            check_source(path)?;
        }
    }
    Ok(())
}

fn check_source(path: &Path) -> Result<()> {
    let refuse = |why: &str| {
        Error::invalid_argument(format!("the host directory {} {why}", path.display())).with_reason("mount")
    };
    match std::fs::metadata(path) {
        Ok(facts) if facts.is_dir() => Ok(()),
        Ok(_) => Err(refuse("is no directory")),
        Err(error) => Err(refuse("cannot be mounted").with_source(error)),
    }
}
