//! What a restore is about to touch, on disk before the first write: whoever runs it again knows what is ours.

use std::fs;
use std::path::{Path, PathBuf};

use sandhold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::path::WorkPath;
use crate::snapshot::SnapId;
use crate::vault::{self, Inner};
use crate::{beneath, durable, error};

/// A restore that has begun, and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Unfinished {
    /// The snapshot.
    pub id: SnapId,
    /// Where it was to be written.
    pub target: PathBuf,
    /// Whether there was nothing before, so that a file may be there in part.
    pub is_new: bool,
    /// The snapshot that has what was there before, which stays until the restore has ended.
    #[serde(default)]
    pub over: Option<SnapId>,
    /// What was to be written.
    pub writes: Vec<WorkPath>,
    /// What was to be removed.
    pub deletes: Vec<WorkPath>,
}

fn path(inner: &Inner, target: &Path) -> PathBuf {
    inner.root().join("journal").join(format!("restore-{}.json", vault::path_hash(target)))
}

pub(crate) fn begin(inner: &Inner, entry: &Unfinished) -> Result<()> {
    let text = serde_json::to_vec(entry).map_err(|failure| {
        Error::new(ErrorKind::InvalidArgument, format!("the journal of the restore is no JSON: {failure}"))
    })?;
    durable::replace(&inner.objects.staged("journal")?, &path(inner, &entry.target), &text)
}

/// A torn entry was never acted upon, and counts as none.
pub(crate) fn read(inner: &Inner, target: &Path) -> Result<Option<Unfinished>> {
    read_file(&path(inner, target))
}

fn read_file(path: &Path) -> Result<Option<Unfinished>> {
    match fs::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(failure) => Err(error::io("read the journal", path, failure)),
    }
}

pub(crate) fn end(inner: &Inner, target: &Path) -> Result<()> {
    let path = path(inner, target);
    match fs::remove_file(&path) {
        Ok(()) => beneath::sync_dir(&inner.root().join("journal")),
        Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(failure) => Err(error::io("end the journal", &path, failure)),
    }
}

pub(crate) fn list(inner: &Inner) -> Result<Vec<Unfinished>> {
    let dir = inner.root().join("journal");
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).map_err(|failure| error::io("list", &dir, failure))? {
        let entry = entry.map_err(|failure| error::io("list", &dir, failure))?;
        if entry.file_name().to_string_lossy().starts_with("restore-") {
            found.extend(read_file(&entry.path())?);
        }
    }
    Ok(found)
}
