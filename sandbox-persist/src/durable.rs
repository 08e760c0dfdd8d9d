//! Files that are whole or not there, also after a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use sandhold_core::Result;

use crate::{beneath, error};

/// Makes a private directory and its parents, where they are missing.
pub(crate) fn create_dir(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|failure| error::io("make the directory", path, failure))
}

/// Makes a private file, which must not be there.
pub(crate) fn create_file(path: &Path) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .read(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|failure| error::io("make the file", path, failure))
}

/// Writes `content` to `staged`, makes it durable, and gives it its name `path` in the same file system.
pub(crate) fn replace(staged: &Path, path: &Path, content: &[u8]) -> Result<()> {
    replace_at(staged, path, content, "")
}

/// As [`replace`], and comes by a failpoint before the rename.
pub(crate) fn replace_at(staged: &Path, path: &Path, content: &[u8], point: &str) -> Result<()> {
    put(staged, path, content, point, true)?;
    path.parent().map_or(Ok(()), beneath::sync_dir)
}

/// As [`replace_at`], for what may be torn or not there after a power cut: nothing is waited for.
pub(crate) fn replace_lazily(staged: &Path, path: &Path, content: &[u8], point: &str) -> Result<()> {
    put(staged, path, content, point, false)
}

fn put(staged: &Path, path: &Path, content: &[u8], point: &str, synced: bool) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = create_file(staged)?;
        file.write_all(content)
            .and_then(|()| if synced { file.sync_all() } else { Ok(()) })
            .map_err(|failure| error::io("write", staged, failure))?;
        if !point.is_empty() {
            crate::failpoint::pass(point);
        }
        fs::rename(staged, path).map_err(|failure| error::io("replace", path, failure))
    };
    write().inspect_err(|_| drop(fs::remove_file(staged)))
}
