//! The manifests of snapshots on disk: one JSON file each, whole or not there.
//!
//! The commit says the same once more in its message, so that a manifest that was never written, or that is torn, is
//! made again from it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use sandhold_core::{Error, ErrorKind, Result};

use super::objects::{self, Objects};
use super::refs::{Refs, SNAPSHOTS};
use crate::oid::ObjectId;
use crate::snapshot::{SnapId, Snapshot};
use crate::{durable, error, failpoint};

/// The line of a commit's message that holds the manifest.
const TRAILER: &str = "Sandhold-Snapshot: ";
/// A manifest above this size is none of ours.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn path(&self, id: &SnapId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    pub(crate) fn write(&self, objects: &Objects, snapshot: &Snapshot) -> Result<()> {
        let text = encode(snapshot)?;
        durable::replace_at(&objects.staged("json")?, &self.path(&snapshot.id), &text, "record.written")?;
        failpoint::pass("record.published");
        Ok(())
    }

    /// As [`Records::write`], and leaves it to the system when it is on the disk: a power cut may take it.
    pub(crate) fn write_lazily(&self, objects: &Objects, snapshot: &Snapshot) -> Result<()> {
        let text = encode(snapshot)?;
        durable::replace_lazily(&objects.staged("json")?, &self.path(&snapshot.id), &text, "record.written")?;
        failpoint::pass("record.published");
        Ok(())
    }

    /// Removes a manifest; its ref must be gone before.
    pub(crate) fn remove(&self, id: &SnapId) -> Result<()> {
        let path = self.path(id);
        match fs::remove_file(&path) {
            Ok(()) => crate::beneath::sync_dir(&self.dir),
            Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(failure) => Err(error::io("remove", &path, failure)),
        }
    }

    /// Reads a manifest; a torn one counts as missing.
    pub(crate) fn read(&self, id: &SnapId) -> Result<Option<Snapshot>> {
        let path = self.path(id);
        match fs::metadata(&path) {
            Ok(found) if found.len() <= MAX_BYTES => {}
            Ok(_) => return Ok(None),
            Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(failure) => return Err(error::io("read", &path, failure)),
        }
        let text = fs::read(&path).map_err(|failure| error::io("read", &path, failure))?;
        match serde_json::from_slice::<Snapshot>(&text) {
            Ok(snapshot) if snapshot.id == *id => Ok(Some(snapshot)),
            _ => {
                tracing::warn!(path = %path.display(), "a manifest is torn and is left out");
                Ok(None)
            }
        }
    }

    /// Returns the manifests of all snapshots, oldest first: what the refs say, with what the files know of it.
    ///
    /// A manifest without a ref is of a snapshot whose objects are not here any more, such as one in a bucket alone.
    pub(crate) fn list(&self, objects: &Objects, refs: &Refs) -> Result<Vec<Snapshot>> {
        let mut found = BTreeMap::new();
        let repository = objects.open()?;
        for (name, commit) in refs.list(SNAPSHOTS)? {
            let Ok(id) = name[SNAPSHOTS.len()..].parse::<SnapId>() else { continue };
            match self.of_ref(&repository, &id, commit) {
                Ok(snapshot) => drop(found.insert(id, snapshot)),
                // One that cannot be read hides no other.
                Err(failure) => tracing::warn!(%id, %failure, "a snapshot of the vault cannot be read"),
            }
        }
        let entries = fs::read_dir(&self.dir).map_err(|failure| error::io("list", &self.dir, failure))?;
        for entry in entries {
            let entry = entry.map_err(|failure| error::io("list", &self.dir, failure))?;
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse::<SnapId>().ok());
            if let Some(id) = id.filter(|id| !found.contains_key(id))
                && let Some(snapshot) = self.read(&id)?
            {
                found.insert(id, snapshot);
            }
        }
        Ok(found.into_values().collect())
    }

    /// The manifest of a ref: the file's where it speaks of this commit, else the commit's own.
    pub(crate) fn of_ref(
        &self,
        repository: &git2::Repository,
        id: &SnapId,
        commit: ObjectId,
    ) -> Result<Snapshot> {
        let kept = self.read(id)?;
        match kept {
            Some(snapshot) if snapshot.commit == commit => Ok(snapshot),
            kept => {
                let mut snapshot = from_commit(repository, id, commit)?;
                // What was said of it later, such as where it was copied to, is in the file alone.
                if let Some(kept) = kept {
                    (snapshot.label, snapshot.retention) = (kept.label, kept.retention);
                    (snapshot.remote, snapshot.other) = (kept.remote, kept.other);
                }
                Ok(snapshot)
            }
        }
    }
}

fn encode(snapshot: &Snapshot) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(snapshot).map_err(|failure| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("the manifest of {} is no JSON: {failure}", snapshot.id),
        )
    })
}

/// The message of a snapshot's commit. The commit's own id cannot be in it.
pub(crate) fn message(snapshot: &Snapshot) -> Result<String> {
    let branch = snapshot.branch.as_deref().unwrap_or(match snapshot.head {
        Some(_) => "(detached)",
        None => "(no repository)",
    });
    let mut written = snapshot.clone();
    written.commit = ObjectId::ZERO;
    // It can be long, and is in a file of the side commit.
    written.receipt = None;
    let json = serde_json::to_string(&written).map_err(|failure| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("the manifest of {} is no JSON: {failure}", snapshot.id),
        )
    })?;
    let time = crate::time::rfc3339(snapshot.captured_at_ms);
    Ok(format!("sandbox snapshot: {branch} @ {time}\n\n{TRAILER}{json}\n"))
}

/// Makes the manifest of a commit out of its message.
pub(crate) fn from_commit(repository: &git2::Repository, id: &SnapId, commit: ObjectId) -> Result<Snapshot> {
    let object = objects::commit(repository, commit)?;
    let text = String::from_utf8_lossy(object.message_bytes());
    let json = text.lines().find_map(|line| line.strip_prefix(TRAILER));
    let snapshot = json.and_then(|json| serde_json::from_str::<Snapshot>(json).ok());
    let Some(mut snapshot) = snapshot.filter(|snapshot| snapshot.id == *id) else {
        return Err(Error::new(
            ErrorKind::Unexpected,
            format!("the commit {commit} of {id} does not say what it is a snapshot of"),
        ));
    };
    snapshot.commit = commit;
    snapshot.tree = object.tree_id().into();
    snapshot.receipt = crate::capture::read_receipt(repository, &snapshot);
    Ok(snapshot)
}
