//! Lock files as git takes them, for files that git writes too.
//!
//! Git makes `<file>.lock` exclusively, writes it, and renames it over the file. One of ours is a second name of a file in
//! our staging directory: so that, after a death, it is known from one that belongs to git.

use std::fs::{self, File};
use std::io::{ErrorKind as IoKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sandhold_core::{Error, ErrorKind, Result};

use crate::cancel::Cancel;
use crate::{beneath, durable, error};

/// How long another's lock is waited for; git's own are held for moments.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// A lock that is held, and let go by the drop.
#[derive(Debug)]
pub(super) struct GitLock {
    path: PathBuf,
    /// The lock file; `None` before it is ours, and when it has become the file.
    lock: Option<PathBuf>,
    staged: PathBuf,
    file: File,
}

impl GitLock {
    /// Takes the lock of `path`. Nobody else of ours may do so at the same time.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with reason `ref_locked`, which names the file, where somebody keeps it.
    pub(super) fn take(path: &Path, staging: &Path, cancel: &Cancel) -> Result<Self> {
        let lock = lock_of(path);
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|failure| {
            Error::new(ErrorKind::Unexpected, "the system gave no random bytes")
                .with_source(failure.to_string())
        })?;
        let staged = staging.join(format!("{:016x}.lock", u64::from_le_bytes(random)));
        let file = durable::create_file(&staged)?;
        let mut held = Self { path: path.to_owned(), lock: None, staged, file };
        let begun = Instant::now();
        loop {
            match fs::hard_link(&held.staged, &lock) {
                Ok(()) => {
                    held.lock = Some(lock);
                    return Ok(held);
                }
                Err(failure) if failure.kind() == IoKind::AlreadyExists => {
                    if remove_if_ours(&lock, staging, &held.staged)? {
                        continue;
                    }
                }
                // Git removes directories of refs that are empty.
                Err(failure) if failure.kind() == IoKind::NotFound => {
                    durable::create_dir(path.parent().unwrap_or(path))?;
                }
                Err(failure) => return Err(error::io("lock", &lock, failure)),
            }
            if begun.elapsed() >= PATIENCE {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("{} is held by somebody; if no git runs here, remove it", lock.display()),
                )
                .with_reason("ref_locked")
                .with_context("lock", lock.display())
                .retryable(None));
            }
            cancel.check()?;
            std::thread::sleep(PAUSE);
        }
    }

    /// Puts this content in the place of the file, durably.
    pub(super) fn replace(mut self, content: &[u8]) -> Result<()> {
        self.file
            .write_all(content)
            .and_then(|()| self.file.sync_all())
            .map_err(|failure| error::io("write", &self.staged, failure))?;
        crate::failpoint::pass("ref.before");
        if let Some(lock) = self.lock.take() {
            let renamed = fs::rename(&lock, &self.path);
            renamed
                .inspect_err(|_| drop(fs::remove_file(&lock)))
                .map_err(|failure| error::io("replace", &self.path, failure))?;
        }
        self.path.parent().map_or(Ok(()), beneath::sync_dir)
    }
}

impl Drop for GitLock {
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let _ = fs::remove_file(lock);
        }
        let _ = fs::remove_file(&self.staged);
    }
}

fn lock_of(path: &Path) -> PathBuf {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    lock.into()
}

/// Removes a lock that somebody of ours left who died; tells whether it was one. None of ours may hold it now.
pub(super) fn remove_if_ours(lock: &Path, staging: &Path, but: &Path) -> Result<bool> {
    let Ok(stat) = fs::symlink_metadata(lock) else { return Ok(true) };
    if stat.nlink() < 2 {
        return Ok(false);
    }
    let entries = fs::read_dir(staging).map_err(|failure| error::io("list", staging, failure))?;
    for entry in entries.flatten().filter(|entry| entry.path() != but) {
        if entry.metadata().is_ok_and(|other| (other.dev(), other.ino()) == (stat.dev(), stat.ino())) {
            fs::remove_file(lock).map_err(|failure| error::io("remove", lock, failure))?;
            return Ok(true);
        }
    }
    Ok(false)
}
