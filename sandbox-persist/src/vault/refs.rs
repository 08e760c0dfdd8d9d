//! The refs of the vault: plain files, as git reads them.
//!
//! In a vault only Sandhold writes them, under one lock, so that a `.lock` file that is found is of somebody who died. In
//! somebody's repository git does so too: there its locks are heeded, and refs that it has packed are written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use sandhold_core::{Error, ErrorKind, Result};

use super::git_lock::{self, GitLock};
use super::lock::{Lock, Sharing};
use super::store::list;
use crate::cancel::Cancel;
use crate::oid::ObjectId;
use crate::{beneath, durable, error, failpoint};

/// Where snapshots have their refs: `refs/sandbox/snapshots/<id>`.
pub(crate) const SNAPSHOTS: &str = "refs/sandbox/snapshots/";

#[derive(Clone, Debug)]
pub(crate) struct Refs {
    git_dir: PathBuf,
    lock: PathBuf,
    /// Our staging directory, where git writes refs too.
    shared: Option<PathBuf>,
}

/// What a ref is to say, in a file that has another name yet.
#[derive(Debug)]
pub(crate) struct StagedRef {
    path: PathBuf,
    pub(crate) file: File,
}

impl Drop for StagedRef {
    fn drop(&mut self) {
        // It has another name where the ref was moved.
        let _ = fs::remove_file(&self.path);
    }
}

impl Refs {
    pub(crate) fn new(git_dir: PathBuf, lock: PathBuf, shared: Option<PathBuf>) -> Self {
        Self { git_dir, lock, shared }
    }

    /// Removes the locks of those who died. The exclusive lock of the vault tells that nobody is at it.
    pub(crate) fn sweep(&self) -> Result<()> {
        let dir = self.git_dir.join(SNAPSHOTS);
        let mut locks = list(&dir)?;
        locks.retain(|path| path.extension().is_some_and(|end| end == "lock"));
        let Some(staging) = &self.shared else {
            return locks.iter().try_for_each(|path| {
                fs::remove_file(path).map_err(|failure| error::io("remove", path, failure))
            });
        };
        locks.push(self.git_dir.join("packed-refs.lock"));
        locks.iter().try_for_each(|path| git_lock::remove_if_ours(path, staging, Path::new("")).map(drop))
    }

    /// Returns what a ref points to; a torn one counts as missing.
    pub(crate) fn read(&self, name: &str) -> Result<Option<ObjectId>> {
        let path = self.git_dir.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => match text.trim_end().parse() {
                Ok(id) => return Ok(Some(id)),
                Err(_) => tracing::warn!(name, "a ref of the vault is torn and is left out"),
            },
            Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => {}
            Err(failure) => return Err(error::io("read the ref", &path, failure)),
        }
        Ok(self.packed()?.remove(name))
    }

    /// Returns the refs whose names begin with `prefix`, which ends with a slash, in order.
    pub(crate) fn list(&self, prefix: &str) -> Result<BTreeMap<String, ObjectId>> {
        let mut found = BTreeMap::new();
        for name in self.loose(prefix)? {
            if let Some(id) = self.read(&name)? {
                found.insert(name, id);
            }
        }
        // After the others: git packs a ref before it removes the file.
        for (name, id) in self.packed()?.into_iter().filter(|(name, _)| name.starts_with(prefix)) {
            found.entry(name).or_insert(id);
        }
        Ok(found)
    }

    /// Returns the last of the names that begin with `prefix`, without reading what they point to.
    pub(crate) fn last(&self, prefix: &str) -> Result<Option<String>> {
        let loose = self.loose(prefix)?;
        let packed = self.packed()?.into_keys().filter(|name| name.starts_with(prefix));
        Ok(packed.chain(loose).max())
    }

    fn loose(&self, prefix: &str) -> Result<Vec<String>> {
        let dir = self.git_dir.join(prefix);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(failure) => return Err(error::io("list", &dir, failure)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|failure| error::io("list", &dir, failure))?;
            let Ok(leaf) = entry.file_name().into_string() else { continue };
            if !leaf.ends_with(".lock") && !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                names.push(format!("{prefix}{leaf}"));
            }
        }
        Ok(names)
    }

    /// Writes what a ref is to say to `staged`, which is yet to be synced; `None` where git's locks are to be taken.
    pub(crate) fn stage(&self, staged: PathBuf, id: ObjectId) -> Result<Option<StagedRef>> {
        if self.shared.is_some() {
            return Ok(None);
        }
        let mut file = durable::create_file(&staged)?;
        file.write_all(format!("{id}\n").as_bytes())
            .map_err(|failure| error::io("write", &staged, failure))?;
        Ok(Some(StagedRef { path: staged, file }))
    }

    /// As [`Refs::swap`], with what was staged and has been synced since.
    pub(crate) fn swap_staged(
        &self,
        name: &str,
        old: Option<ObjectId>,
        staged: &StagedRef,
        cancel: &Cancel,
    ) -> Result<()> {
        let _alone = Lock::take(&self.lock, Sharing::Exclusive, cancel)?;
        self.expect(name, old)?;
        let path = self.git_dir.join(name);
        let dir = path.parent().unwrap_or(&self.git_dir);
        create_dirs_durably(&self.git_dir, dir)?;
        failpoint::pass("ref.before");
        fs::rename(&staged.path, &path).map_err(|failure| error::io("replace", &path, failure))?;
        beneath::sync_dir(dir)
    }

    /// Points a ref to `new` where it is at `old`; `None` stands for a ref that does not exist.
    pub(crate) fn swap(
        &self,
        name: &str,
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        cancel: &Cancel,
    ) -> Result<()> {
        let _alone = Lock::take(&self.lock, Sharing::Exclusive, cancel)?;
        match &self.shared {
            Some(staging) => self.swap_shared(name, old, new, staging, cancel),
            None => self.swap_alone(name, old, new),
        }
    }

    /// Fails where a ref is not where it is thought to be.
    fn expect(&self, name: &str, old: Option<ObjectId>) -> Result<()> {
        let found = self.read(name)?;
        if found == old {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, format!("{name} was moved by somebody else"))
            .with_reason("ref_moved")
            .with_context("found", found.map_or_else(|| "none".to_owned(), |id| id.to_string()))
            .retryable(None))
    }

    fn swap_shared(
        &self,
        name: &str,
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        staging: &Path,
        cancel: &Cancel,
    ) -> Result<()> {
        let path = self.git_dir.join(name);
        create_dirs_durably(&self.git_dir, path.parent().unwrap_or(&self.git_dir))?;
        let lock = GitLock::take(&path, staging, cancel)?;
        self.expect(name, old)?;
        let Some(id) = new else {
            // The packed one first: without the file it would be back.
            self.unpack_ref(name, staging, cancel)?;
            match fs::remove_file(&path) {
                Err(failure) if failure.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error::io("delete the ref", &path, failure));
                }
                _ => {}
            }
            drop(lock);
            return path.parent().map_or(Ok(()), beneath::sync_dir);
        };
        lock.replace(format!("{id}\n").as_bytes())
    }

    /// Takes a ref out of `packed-refs`, with the line that says what a tag of that name points to.
    fn unpack_ref(&self, name: &str, staging: &Path, cancel: &Cancel) -> Result<()> {
        let path = self.git_dir.join("packed-refs");
        if !self.packed()?.contains_key(name) {
            return Ok(());
        }
        let lock = GitLock::take(&path, staging, cancel)?;
        let text = fs::read(&path).map_err(|failure| error::io("read", &path, failure))?;
        let mut kept = Vec::with_capacity(text.len());
        let mut is_of_it = false;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if !(line.starts_with(b"^") && is_of_it) {
                let named = line.trim_ascii_end().splitn(2, |byte| *byte == b' ').nth(1);
                is_of_it = named == Some(name.as_bytes());
                if !is_of_it {
                    kept.extend_from_slice(line);
                }
            }
        }
        lock.replace(&kept)
    }

    fn swap_alone(&self, name: &str, old: Option<ObjectId>, new: Option<ObjectId>) -> Result<()> {
        self.expect(name, old)?;
        let path = self.git_dir.join(name);
        let lock = self.git_dir.join(format!("{name}.lock"));
        let dir = path.parent().unwrap_or(&self.git_dir).to_owned();
        create_dirs_durably(&self.git_dir, &dir)?;
        let _ = fs::remove_file(&lock);
        match new {
            Some(id) => {
                let write = || -> Result<()> {
                    let mut file = durable::create_file(&lock)?;
                    file.write_all(format!("{id}\n").as_bytes())
                        .and_then(|()| file.sync_all())
                        .map_err(|failure| error::io("write", &lock, failure))?;
                    failpoint::pass("ref.before");
                    fs::rename(&lock, &path).map_err(|failure| error::io("replace", &path, failure))
                };
                write().inspect_err(|_| drop(fs::remove_file(&lock)))?;
            }
            None => {
                if self.packed()?.contains_key(name) {
                    return Err(Error::new(
                        ErrorKind::InvalidState,
                        format!(
                            "{name} is in packed-refs, which Sandhold never writes; run `git update-ref -d {name}` in the vault"
                        ),
                    ));
                }
                if old.is_some() {
                    fs::remove_file(&path).map_err(|failure| error::io("delete the ref", &path, failure))?;
                }
            }
        }
        beneath::sync_dir(&dir)
    }

    /// Refs that `git pack-refs` or `git gc` moved together, should anybody run them on the vault.
    fn packed(&self) -> Result<BTreeMap<String, ObjectId>> {
        let path = self.git_dir.join("packed-refs");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text
                .lines()
                .filter_map(|line| {
                    let (id, name) = line.split_once(' ')?;
                    Some((name.to_owned(), id.parse().ok()?))
                })
                .collect()),
            Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(failure) => Err(error::io("read", &path, failure)),
        }
    }
}

/// Makes the directories from `base` down to `dir`, each one durable in its parent.
fn create_dirs_durably(base: &Path, dir: &Path) -> Result<()> {
    if dir.is_dir() || dir == base {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        create_dirs_durably(base, parent)?;
        durable::create_dir(dir)?;
        beneath::sync_dir(parent)?;
    }
    Ok(())
}
