//! The snapshots of a state directory: immutable layers, each with its record, found by id or by name.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use sandhold_core::{Error, ErrorKind, Result, SandboxId, SnapshotFilter, SnapshotId, SnapshotInfo};
use serde::{Deserialize, Serialize};

use crate::record::{self, IdMap, Origin, Under};
use crate::state_dir::is_leaf;

/// Where snapshots are, in the state directory.
pub(crate) const SNAPSHOTS: &str = "snapshots";

/// The record of a snapshot, in its directory.
const RECORD: &str = "snapshot.json";

/// What a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// What a sandbox wrote, over what it was made from.
    Layer,
    /// A root of its own.
    Root,
}

/// The record of a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) id: SnapshotId,
    pub(crate) names: Vec<String>,
    pub(crate) created_at: SystemTime,
    pub(crate) sandbox: Option<SandboxId>,
    pub(crate) content: Content,
    /// The imported root that it stands on.
    pub(crate) root: Option<String>,
    /// Whose its files are; a full map has no ids here.
    pub(crate) ids: IdMap,
}

impl Stored {
    pub(crate) fn info(&self) -> SnapshotInfo {
        let mut info = SnapshotInfo::new(self.id.clone()).with_created_at(self.created_at);
        info.names.clone_from(&self.names);
        info.sandbox.clone_from(&self.sandbox);
        info
    }

    /// What a sandbox is made from that starts from this.
    pub(crate) fn origin(&self) -> Origin {
        let mut origin = Origin::default();
        match self.content {
            Content::Layer => {
                origin.under = Some(Under::Snapshot(self.id.as_str().to_owned()));
                origin.root.clone_from(&self.root);
            }
            Content::Root => origin.root = Some(self.id.as_str().to_owned()),
        }
        origin
    }
}

/// Keeps a snapshot from being deleted as long as it lives.
#[derive(Debug)]
pub(crate) struct Pin {
    _directory: File,
}

/// Names a snapshot: 128 random bits.
pub(crate) fn new_id() -> Result<SnapshotId> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unexpected, "the system gave no random bytes").with_source(error.to_string())
    })?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(SnapshotId::new(format!("snap-{hex}")))
}

/// The snapshots below one state directory.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    path: PathBuf,
}

fn failed(doing: &'static str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot {doing} {}", path.display())).with_source(error)
}

impl Store {
    pub(crate) fn below(home: &Path) -> Self {
        Self { path: home.join(SNAPSHOTS) }
    }

    fn directory(&self, id: &str) -> Option<PathBuf> {
        is_leaf(id).then(|| self.path.join(id))
    }

    /// Reads all, oldest first.
    pub(crate) fn all(&self) -> Result<Vec<Stored>> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("list", &self.path, error)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed("list", &self.path, error))?.path();
            all.extend(load(&path)?);
        }
        all.sort_by(|a, b| (a.created_at, a.id.as_str()).cmp(&(b.created_at, b.id.as_str())));
        Ok(all)
    }

    pub(crate) fn matching(&self, filter: &SnapshotFilter) -> Result<Vec<SnapshotInfo>> {
        let all = self.all()?.into_iter().map(|stored| stored.info());
        Ok(all.filter(|info| filter.matches(info)).collect())
    }

    /// Finds a snapshot by its id, else by its name, and keeps it from being deleted.
    pub(crate) fn pin(&self, template: &str) -> Result<Option<(Stored, Pin)>> {
        if let Some(found) = self.pin_id(template)? {
            return Ok(Some(found));
        }
        let named = self.all()?.into_iter().find(|stored| stored.names.iter().any(|name| name == template));
        named.map_or(Ok(None), |stored| self.pin_id(stored.id.as_str()))
    }

    fn pin_id(&self, id: &str) -> Result<Option<(Stored, Pin)>> {
        let Some(path) = self.directory(id) else { return Ok(None) };
        let held = File::open(&path).and_then(|directory| directory.lock_shared().map(|()| directory));
        let directory = match held {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", &path, error)),
        };
        // It may have been deleted before the lock was ours.
        Ok(load(&path)?
            .filter(|_| is_there(&directory, &path))
            .map(|stored| (stored, Pin { _directory: directory })))
    }

    /// Writes the record of a snapshot that has no name yet.
    pub(crate) fn describe(&self, staged: &Path, stored: &Stored) -> Result<()> {
        record::write_durable(&staged.join(RECORD), stored).map_err(Error::from)
    }

    /// Gives a finished snapshot its place: from then on it exists, also after a crash of the machine.
    pub(crate) fn publish(&self, staged: &Path, stored: &Stored) -> Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(|error| failed("make the directory", &self.path, error))?;
        // One at a time: of two with one name the second is refused.
        let turn = File::open(&self.path).and_then(|directory| directory.lock().map(|()| directory));
        let turn = turn.map_err(|error| failed("lock", &self.path, error))?;
        self.check_names(&stored.names)?;
        let place = self.path.join(stored.id.as_str());
        fs::rename(staged, &place)
            .and_then(|()| turn.sync_all())
            .and_then(|()| File::open(self.path.parent().unwrap_or(&self.path))?.sync_all())
            .map_err(|error| failed("store", &place, error))
    }

    /// Refuses names that other snapshots have, or that could not be told from an id.
    pub(crate) fn check_names(&self, names: &[String]) -> Result<()> {
        let bad = names.iter().find(|name| {
            name.is_empty() || name.len() > 256 || name.chars().any(char::is_control) || *name == "base"
        });
        if let Some(bad) = bad {
            return Err(Error::invalid_argument(format!(
                "a snapshot cannot be named {bad:?}; give 1 to 256 bytes of printable text, not `base`"
            )));
        }
        let taken = self
            .all()?
            .into_iter()
            .find(|other| names.iter().any(|name| other.names.contains(name) || other.id.as_str() == name));
        match taken {
            Some(other) => Err(Error::new(ErrorKind::Conflict, "another snapshot has this name")
                .with_reason("name_taken")
                .with_context("snapshot", other.id)),
            None => Ok(()),
        }
    }

    /// Takes a snapshot away that nobody needs, by moving it to `staged`; `false` when there is none.
    ///
    /// `needed_by` names a sandbox that stands on it. It is asked once no new one can come to stand on it.
    pub(crate) fn withdraw(
        &self,
        id: &SnapshotId,
        staged: &Path,
        needed_by: impl FnOnce() -> Result<Option<SandboxId>>,
    ) -> Result<bool> {
        let Some(path) = self.directory(id.as_str()) else { return Ok(false) };
        let directory = match File::open(&path) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failed("open", &path, error)),
        };
        let in_use = |what: &'static str, who: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Conflict, "something stands on this snapshot; destroy that first")
                .with_reason("in_use")
                .with_context("snapshot", id)
                .with_context(what, who.to_string())
        };
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(in_use("by", &"a sandbox that is just being made").retryable(None));
            }
            Err(error) => return Err(failed("lock", &path, error.into())),
        }
        if !is_there(&directory, &path) {
            return Ok(false);
        }
        if let Some(sandbox) = needed_by()? {
            return Err(in_use("sandbox", &sandbox));
        }
        if let Some(other) = self.all()?.into_iter().find(|other| other.root.as_deref() == Some(id.as_str()))
        {
            return Err(in_use("by", &other.id));
        }
        fs::rename(&path, staged)
            .and_then(|()| File::open(&self.path)?.sync_all())
            .map_err(|error| failed("remove", &path, error))?;
        Ok(true)
    }
}

/// Reads a record; `None` when there is no such snapshot.
fn load(path: &Path) -> Result<Option<Stored>> {
    match record::read_json(&path.join(RECORD)) {
        Ok(stored) => Ok(Some(stored)),
        Err(error) if error.kind == crate::FailureKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Says whether an open directory is the one that has the name now.
fn is_there(directory: &File, path: &Path) -> bool {
    match (directory.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}
