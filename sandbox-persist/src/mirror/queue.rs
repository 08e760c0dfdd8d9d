//! Uploads that have begun and are not recorded yet, so that the next try goes on where this one was cut off.

use std::fs;
use std::path::PathBuf;

use sandhold_core::Result;
use serde::{Deserialize, Serialize};

use super::store::Parts;
use crate::oid::ObjectId;
use crate::snapshot::SnapId;
use crate::vault::Inner;
use crate::{beneath, durable, error};

/// The file `uploads/<id>.json` of a vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Upload {
    pub(super) id: SnapId,
    /// The mirror that it goes to.
    pub(super) mirror: String,
    /// The bundle, once it is written.
    pub(super) bundle: Option<Written>,
}

/// The file `uploads/<id>.bundle` of a vault, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) commit: ObjectId,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    pub(super) parts: Option<Parts>,
}

/// The uploads of one vault. Whoever changes them holds the lock `uploads`.
#[derive(Debug)]
pub(super) struct Queue<'a>(pub(super) &'a Inner);

impl Queue<'_> {
    fn dir(&self) -> PathBuf {
        self.0.root().join("uploads")
    }

    fn path(&self, id: &SnapId) -> PathBuf {
        self.dir().join(format!("{id}.json"))
    }

    /// Where the bundle of an upload is.
    pub(super) fn bundle(&self, id: &SnapId) -> PathBuf {
        self.dir().join(format!("{id}.bundle"))
    }

    pub(super) fn write(&self, upload: &Upload) -> Result<()> {
        let text = serde_json::to_vec(upload).map_err(|failure| {
            sandhold_core::Error::new(sandhold_core::ErrorKind::Unexpected, "an upload is no JSON")
                .with_source(failure)
        })?;
        durable::replace(&self.0.objects.staged("json")?, &self.path(&upload.id), &text)
    }

    /// `None` for one that is not there, or torn.
    pub(super) fn read(&self, id: &SnapId) -> Option<Upload> {
        let upload: Upload = serde_json::from_slice(&fs::read(self.path(id)).ok()?).ok()?;
        let upload = Some(upload).filter(|upload| upload.id == *id)?;
        // The bundle goes with it, whole.
        let is_whole = upload.bundle.as_ref().is_none_or(|written| {
            fs::metadata(self.bundle(id)).is_ok_and(|found| found.len() == written.bytes)
        });
        Some(if is_whole { upload } else { Upload { bundle: None, ..upload } })
    }

    /// The ids of all that is under way, oldest first.
    pub(super) fn ids(&self) -> Result<Vec<SnapId>> {
        let dir = self.dir();
        let entries = fs::read_dir(&dir).map_err(|failure| error::io("list", &dir, failure))?;
        let mut ids: Vec<SnapId> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".json")?.parse().ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Forgets the bundle of an upload, and that it has come anywhere.
    pub(super) fn drop_bundle(&self, id: &SnapId) -> Result<()> {
        remove(&self.bundle(id))
    }

    /// Forgets an upload.
    pub(super) fn remove(&self, id: &SnapId) -> Result<()> {
        remove(&self.path(id))?;
        self.drop_bundle(id)?;
        beneath::sync_dir(&self.dir())
    }
}

fn remove(path: &std::path::Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(failure) if failure.kind() != std::io::ErrorKind::NotFound => {
            Err(error::io("remove", path, failure))
        }
        _ => Ok(()),
    }
}
