//! The state directory: its version, the directory of each sandbox, and the lock of who changes one.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sandhold_core::{Error, ErrorKind, Result, SandboxId};
use tokio::time::Instant;

use crate::record::{ENDED, RECORD, Record};

/// The layout that this version of the library writes.
const VERSION: u32 = 1;

/// Held by whoever changes a sandbox: starts, pauses, resumes, stops or destroys it.
const LOCK: &str = "lock";

/// How long the reason of an end is kept: 7 days.
const KEEP_ENDS: Duration = Duration::from_secs(7 * 24 * 3600);

/// Pauses between two tries to take a lock: the first, and the longest.
const LOCK_POLL: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));

/// A state directory of a version that this library understands.
#[derive(Clone, Debug)]
pub(crate) struct StateDir {
    root: PathBuf,
}

/// The right to change one sandbox, held until it is dropped or its process dies.
#[derive(Debug)]
pub(crate) struct ChangeLock {
    _file: File,
}

fn failed(doing: &'static str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        IoErrorKind::PermissionDenied | IoErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(
        kind,
        format!("cannot {doing} {}; name a writable state directory by SANDHOLD_HOME", path.display()),
    )
    .with_source(error)
}

fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl StateDir {
    /// Opens a state directory, and makes it on first use.
    pub(crate) fn open(root: PathBuf) -> Result<Self> {
        for path in [root.clone(), root.join("sandboxes"), root.join("staging")] {
            private_directory(&path).map_err(|error| failed("make the directory", &path, error))?;
        }
        let facts = fs::metadata(&root).map_err(|error| failed("look at", &root, error))?;
        if facts.uid() != rustix::process::geteuid().as_raw() {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                format!("the state directory {} belongs to another user; set SANDHOLD_HOME", root.display()),
            ));
        }
        if facts.mode() & 0o077 != 0 {
            fs::set_permissions(&root, fs::Permissions::from_mode(0o700))
                .map_err(|error| failed("close to others", &root, error))?;
        }
        let state = Self { root };
        state.check_version()?;
        Ok(state)
    }

    fn check_version(&self) -> Result<()> {
        let path = self.root.join("version");
        match fs::read_to_string(&path) {
            Ok(text) => match text.trim().parse::<u32>() {
                Ok(version) if version <= VERSION => Ok(()),
                Ok(version) => Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "the state directory {} is of version {version} and this library knows {VERSION}; use a newer \
                         library, or another directory",
                        self.root.display()
                    ),
                )
                .with_reason("newer_version")),
                Err(error) => Err(Error::new(
                    ErrorKind::Unexpected,
                    format!("{} holds no version number", path.display()),
                )
                .with_source(error)),
            },
            Err(error) if error.kind() == IoErrorKind::NotFound => {
                let staged = self.root.join(format!("version.{}.new", std::process::id()));
                fs::write(&staged, format!("{VERSION}\n"))
                    .and_then(|()| fs::rename(&staged, &path))
                    .map_err(|error| failed("write", &path, error))
            }
            Err(error) => Err(failed("read", &path, error)),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of a sandbox. An id that is no plain name leads nowhere: no sandbox has it.
    pub(crate) fn directory(&self, id: &SandboxId) -> Option<PathBuf> {
        is_leaf(id.as_str()).then(|| self.root.join("sandboxes").join(id.as_str()))
    }

    /// Lists the ids that are there.
    pub(crate) fn ids(&self) -> Result<Vec<SandboxId>> {
        let path = self.root.join("sandboxes");
        let read = || -> io::Result<Vec<SandboxId>> {
            let mut ids = Vec::new();
            for entry in fs::read_dir(&path)? {
                if let Ok(name) = entry?.file_name().into_string()
                    && is_leaf(&name)
                {
                    ids.push(SandboxId::new(name));
                }
            }
            ids.sort();
            Ok(ids)
        };
        read().map_err(|error| failed("list", &path, error))
    }

    /// Makes the directory of a new sandbox, with its record, all at once; the creator holds its lock.
    ///
    /// `None` when a sandbox of this id is there.
    pub(crate) fn make(&self, id: &SandboxId, record: &Record) -> Result<Option<ChangeLock>> {
        let Some(directory) = self.directory(id) else {
            return Err(Error::invalid_argument(format!("the id {:?} is no plain name", id.as_str())));
        };
        if directory.exists() {
            return Ok(None);
        }
        self.sweep();
        let staged =
            self.root.join("staging").join(format!("{id}.{}.{:x}", std::process::id(), fastrand::u32(..)));
        private_directory(&staged).map_err(|error| failed("make the directory", &staged, error))?;
        let made = self.fill(&staged, record).and_then(|lock| {
            // Onto a directory that is not empty a rename fails: of two creators one wins.
            match fs::rename(&staged, &directory) {
                Ok(()) => {
                    let parent = self.root.join("sandboxes");
                    File::open(&parent)
                        .and_then(|parent| parent.sync_all())
                        .map_err(|error| failed("sync", &parent, error))?;
                    Ok(Some(lock))
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        IoErrorKind::AlreadyExists | IoErrorKind::DirectoryNotEmpty
                    ) =>
                {
                    Ok(None)
                }
                Err(error) => Err(failed("make the directory", &directory, error)),
            }
        });
        if !matches!(made, Ok(Some(_))) {
            // What cannot be removed now is swept by a later create.
            let _ = fs::remove_dir_all(&staged);
        }
        made
    }

    fn fill(&self, staged: &Path, record: &Record) -> Result<ChangeLock> {
        let lock = open_lock(staged)?;
        lock.lock().map_err(|error| failed("lock", staged, error))?;
        record.save(staged)?;
        Ok(ChangeLock { _file: lock })
    }

    /// Removes what creators left that died before their sandbox had its name.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.root.join("staging")) else { return };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            // Its creator is alive as long as it holds the lock; one without a lock file was just begun.
            let dead = File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
            if dead {
                let _ = fs::remove_dir_all(&path);
            }
        }
        self.forget_old_ends();
    }

    /// Removes the reasons that were left of leases that ran out long ago.
    fn forget_old_ends(&self) {
        let Ok(entries) = fs::read_dir(self.root.join("sandboxes")) else { return };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let ended = fs::metadata(path.join(ENDED)).and_then(|facts| facts.modified());
            let age = ended.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if age.is_some_and(|age| age > KEEP_ENDS) {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }

    /// Takes the right to change a sandbox; `None` when it does not exist.
    pub(crate) async fn lock(&self, id: &SandboxId, deadline: Instant) -> Result<Option<ChangeLock>> {
        let Some(directory) = self.directory(id) else { return Ok(None) };
        let mut pause = LOCK_POLL.0;
        loop {
            if let Some(answer) = try_lock(&directory)? {
                return Ok(answer);
            }
            if Instant::now() >= deadline {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    "another process changes this sandbox and does not end",
                )
                .with_context("id", id)
                .retryable(None));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOCK_POLL.1);
        }
    }
}

/// `None` while another has the lock; `Some(None)` when the sandbox does not exist.
fn try_lock(directory: &Path) -> Result<Option<Option<ChangeLock>>> {
    let lock = match open_lock(directory) {
        Ok(lock) => lock,
        Err(_) if !directory.exists() => return Ok(Some(None)),
        Err(error) => return Err(error),
    };
    match lock.try_lock() {
        // It may have been removed, and even made again, between open and lock.
        Ok(()) => match (lock.metadata(), fs::metadata(directory.join(LOCK))) {
            (Ok(held), Ok(named)) if held.ino() == named.ino() && held.dev() == named.dev() => {
                Ok(Some(Some(ChangeLock { _file: lock })))
            }
            _ => Ok(None),
        },
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed("lock", directory, error)),
    }
}

/// Removes the directory of a sandbox that has ended, and of which only the reason is left.
pub(crate) fn remove_ended(directory: &Path) -> Result<()> {
    if directory.join(ENDED).exists() && !directory.join(RECORD).exists() {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != IoErrorKind::NotFound => {
                return Err(failed("remove", directory, error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn open_lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| failed("open", &path, error))
}

/// The names that ids may have: they become directories.
pub(crate) fn is_leaf(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_a_newer_version_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("home");
        StateDir::open(root.clone()).unwrap();
        fs::write(root.join("version"), "2\n").unwrap();
        let error = StateDir::open(root).unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("newer_version")));
    }

    #[test]
    fn an_id_that_is_a_path_leads_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let home = StateDir::open(directory.path().join("home")).unwrap();
        for id in ["", "..", "a/b", "/etc", "a\0b"] {
            assert_eq!(home.directory(&SandboxId::new(id)), None);
        }
    }
}
