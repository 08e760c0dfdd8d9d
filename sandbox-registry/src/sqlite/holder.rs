//! Who holds leases: a locked file for each opening. The system unlocks it when the process dies, so a holder that is
//! dead is known at once, and no process id is ever guessed.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sandhold_core::{Attempt, Error, ErrorKind, Result};

/// How long an opening waits while another process opens the same file.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// The directory of the holders' files, beside the database.
#[derive(Clone, Debug)]
pub(super) struct Holders {
    directory: PathBuf,
}

/// One opening's own file. Dropping it says that the holder is gone.
#[derive(Debug)]
pub(super) struct Holder {
    name: String,
    path: PathBuf,
    _lock: File,
}

/// A holder that is proven dead.
#[derive(Debug)]
pub(super) struct Dead {
    path: PathBuf,
}

impl Dead {
    /// Removes its file, once all that it held is free: without the file its death could not be proven.
    pub(super) fn bury(self) {
        // What stays is found again by the next opening.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        IoErrorKind::PermissionDenied | IoErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "the files of the lease holders cannot be used")
        .with_context("path", path.display())
        .with_source(error)
}

fn create(path: &Path) -> Result<File> {
    let made = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    made.map_err(|error| failed(path, error))
}

impl Holders {
    /// Uses the directory beside this database.
    pub(super) fn beside(database: &Path) -> Result<Self> {
        let mut name = database.as_os_str().to_owned();
        name.push("-holders");
        let directory = PathBuf::from(name);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| failed(&directory, error))?;
        Ok(Self { directory })
    }

    /// Keeps other openings out until the answer is dropped: SQLite cannot make one new file for several at a time.
    pub(super) fn open_alone(&self) -> Result<File> {
        let path = self.directory.join("opening");
        let file = create(&path)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if begun.elapsed() < OPEN_LIMIT => {
                    std::thread::sleep(Duration::from_millis(fastrand::u64(1..5)));
                }
                Err(TryLockError::WouldBlock) => {
                    let message = format!("another process has been opening the registry for {OPEN_LIMIT:?}");
                    return Err(Error::new(ErrorKind::Unavailable, message)
                        .with_reason("busy")
                        .with_context("path", path.display())
                        .retryable(None));
                }
                Err(TryLockError::Error(error)) => return Err(failed(&path, error)),
            }
        }
    }

    /// Makes the file of a new holder, while this process opens alone: nobody sees it before it is locked.
    pub(super) fn enter(&self) -> Result<Holder> {
        let name = Attempt::random()?.to_string();
        let path = self.path_of(&name);
        let lock = create(&path)?;
        lock.try_lock().map_err(|error| failed(&path, error.into()))?;
        Ok(Holder { name, path, _lock: lock })
    }

    /// Proves that a holder is dead; `None` while it lives, and when its file is missing, which proves nothing.
    pub(super) fn dead(&self, name: &str) -> Result<Option<Dead>> {
        let path = self.path_of(name);
        let lock = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path, error)),
        };
        // Shared, so that those who ask at the same time do not take each other for the holder.
        match lock.try_lock_shared() {
            Ok(()) => Ok(Some(Dead { path })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed(&path, error)),
        }
    }

    /// Finds every holder that is dead, with its name, while this process opens alone.
    pub(super) fn all_dead(&self) -> Result<Vec<(String, Dead)>> {
        let entries = fs::read_dir(&self.directory).map_err(|error| failed(&self.directory, error))?;
        let mut dead = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed(&self.directory, error))?;
            if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(SUFFIX))
                && let Some(found) = self.dead(name)?
            {
                dead.push((name.to_owned(), found));
            }
        }
        Ok(dead)
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}{SUFFIX}"))
    }
}

const SUFFIX: &str = ".lock";

impl Holder {
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
