//! What the server keeps in its home: small JSON documents, each replaced whole.

use std::fmt::Display;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::tokens::SECRET_BYTES;

/// How much of a document must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The death of this server, at any moment.
    Process,
    /// The death of the machine too, from the moment the call returns.
    Machine,
}

/// The server's home. All methods block.
#[derive(Debug)]
pub(crate) struct Store {
    root: PathBuf,
    /// Held as long as this is: what one server keeps in memory, another one must not change.
    _lock: File,
    /// Makes names of unfinished documents unique in this process.
    staged: AtomicU64,
}

/// Says what failed. Of a document it is the name in the home: clients may read it, and are not told where the home is.
fn failed(doing: &'static str, what: impl Display, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot {doing} {what}")).with_source(error)
}

/// Makes a directory for this user alone.
fn make_dir(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| failed("make the directory", path.display(), error))
}

/// Keeps other servers out; the kernel lets them in when this one has ended, however it did.
fn lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|error| failed("open", path.display(), error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message = format!(
                "another server uses {}; stop that one, or give this one another home",
                root.display()
            );
            Err(Error::new(ErrorKind::Conflict, message))
        }
        Err(TryLockError::Error(error)) => Err(failed("lock", path.display(), error)),
    }
}

impl Store {
    /// Opens the home, and makes it on first use.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while another server uses it.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        make_dir(root)?;
        let store = Self { root: root.to_owned(), _lock: lock(root)?, staged: AtomicU64::new(0) };
        store.sweep(root, 0).map_err(|error| failed("sweep", root.display(), error))?;
        Ok(store)
    }

    /// Makes a directory of documents, for this user alone; returns its path.
    pub(crate) fn make_dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        make_dir(&path)?;
        Ok(path)
    }

    /// Reads the secret that tokens are derived from; draws it on first use.
    pub(crate) fn secret(&self) -> Result<[u8; SECRET_BYTES]> {
        let path = self.root.join("secret");
        match std::fs::read(&path) {
            Ok(bytes) => {
                return bytes.try_into().map_err(|_| {
                    let message = format!("{} does not hold {SECRET_BYTES} bytes", path.display());
                    Error::new(ErrorKind::Unexpected, message)
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", path.display(), error)),
        }
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the system gave no random bytes")
                .with_source(error.to_string())
        })?;
        self.replace(&path, &secret, Durability::Machine)?;
        Ok(secret)
    }

    /// Reads a document; `None` when there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Unexpected`] for one that cannot be understood.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.root.join(name);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", name, error)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            Error::new(ErrorKind::Unexpected, format!("{name} cannot be understood")).with_source(error)
        })
    }

    /// Replaces a document whole: a reader sees the old one or the new one.
    pub(crate) fn write(&self, name: &str, document: &impl Serialize, durability: Durability) -> Result<()> {
        let path = self.root.join(name);
        let bytes = serde_json::to_vec(document).map_err(|error| {
            Error::new(ErrorKind::Unexpected, format!("{name} cannot be written as JSON")).with_source(error)
        })?;
        self.replace(&path, &bytes, durability)
    }

    fn replace(&self, path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
        let staged = self.stage(path, bytes, durability)?;
        if let Err(error) = std::fs::rename(&staged, path) {
            let _ = std::fs::remove_file(&staged);
            return Err(failed("write", self.name(path), error));
        }
        if durability == Durability::Machine {
            self.sync_parent(path)?;
        }
        Ok(())
    }

    /// Removes a document; a missing one is no error.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let path = self.root.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", name, error)),
            _ => Ok(()),
        }
    }

    /// Lists the documents of a directory by name, without those that are being written.
    pub(crate) fn names(&self, directory: &str) -> Result<Vec<String>> {
        let path = self.root.join(directory);
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&path)? {
                if let Ok(name) = entry?.file_name().into_string()
                    && !name.starts_with('.')
                {
                    names.push(name);
                }
            }
            names.sort();
            Ok(names)
        };
        match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed.map_err(|error| failed("list", directory, error)),
        }
    }

    /// Returns what a document or directory of the home is called in it.
    fn name<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    fn stage(&self, path: &Path, bytes: &[u8], durability: Durability) -> Result<PathBuf> {
        let number = self.staged.fetch_add(1, Ordering::Relaxed);
        let staged = path.with_file_name(format!(".{}.{number}.new", std::process::id()));
        let write = || -> io::Result<()> {
            // One of an earlier process of this number, which died while it wrote.
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&staged)?;
            file.write_all(bytes)?;
            if durability == Durability::Machine { file.sync_all() } else { Ok(()) }
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&staged);
            failed("write", self.name(path), error)
        })?;
        Ok(staged)
    }

    /// Removes what was staged by processes that are dead.
    fn sweep(&self, directory: &Path, depth: usize) -> io::Result<()> {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                if depth < STAGING_DEPTH {
                    self.sweep(&entry.path(), depth + 1)?;
                }
            } else if let Some(writer) = entry.file_name().to_str().and_then(staged_by)
                && !Path::new("/proc").join(writer).exists()
            {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn sync_parent(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(&self.root);
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(|error| failed("sync", self.name(parent), error))
    }
}

/// Documents lie at most so many directories deep.
const STAGING_DEPTH: usize = 2;

/// Returns the process that staged a file of this name.
fn staged_by(name: &str) -> Option<&str> {
    let (writer, number) = name.strip_prefix('.')?.strip_suffix(".new")?.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(writer) && digits(number)).then_some(writer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_back_listed_and_removed() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        store.make_dir("things").unwrap();
        assert_eq!(store.read::<Vec<u8>>("things/a").unwrap(), None);
        store.write("things/a", &vec![1_u8], Durability::Machine).unwrap();
        store.write("things/a", &vec![2_u8], Durability::Process).unwrap();
        assert_eq!(store.read::<Vec<u8>>("things/a").unwrap(), Some(vec![2]));
        assert_eq!(store.names("things").unwrap(), ["a"]);
        store.remove("things/a").unwrap();
        store.remove("things/a").unwrap();
        assert_eq!(store.names("things").unwrap(), [""; 0]);
    }

    #[test]
    fn a_document_of_another_form_is_an_error_and_not_none() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        std::fs::write(home.path().join("a"), "{").unwrap();
        assert_eq!(store.read::<u8>("a").unwrap_err().kind(), ErrorKind::Unexpected);
    }

    #[test]
    fn what_failed_is_said_without_the_place_of_the_home() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let room = store.make_dir("things").unwrap();
        std::fs::create_dir_all(room.join("a/b")).unwrap();
        std::fs::write(room.join("c"), "{").unwrap();
        let failures = [
            store.write("things/a", &1, Durability::Machine).unwrap_err(),
            store.write("nowhere/a", &1, Durability::Machine).unwrap_err(),
            store.read::<u8>("things/a").unwrap_err(),
            store.read::<u8>("things/c").unwrap_err(),
            store.remove("things/a").unwrap_err(),
            store.names("things/c").unwrap_err(),
        ];
        let place = home.path().display().to_string();
        for failure in failures {
            assert!(!failure.message().contains(&place), "{failure}");
            assert!(
                ["things/a", "things/c", "nowhere/a"].iter().any(|name| failure.message().contains(name)),
                "{failure}"
            );
        }
    }

    #[test]
    fn what_a_dead_process_staged_is_swept_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let room = Store::open(home.path()).unwrap().make_dir("things").unwrap();
        // No process has a number that large (PID_MAX_LIMIT is 2^22).
        let own = format!(".{}.0.new", std::process::id());
        for name in [".4194305.7.new", &own, ".x.7.new", "4194305.7.new"] {
            std::fs::write(room.join(name), "").unwrap();
        }
        Store::open(home.path()).unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(&room).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [own.as_str(), ".x.7.new", "4194305.7.new"]);
    }

    #[test]
    fn a_home_has_one_server_at_a_time() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let refused = Store::open(home.path()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(refused.message().contains(&home.path().display().to_string()), "{refused}");
        drop(store);
        Store::open(home.path()).unwrap();
    }

    #[test]
    fn the_secret_is_drawn_once() {
        let home = tempfile::tempdir().unwrap();
        let secret = Store::open(home.path()).unwrap().secret().unwrap();
        assert_eq!(Store::open(home.path()).unwrap().secret().unwrap(), secret);
        assert_ne!(secret, [0; SECRET_BYTES]);
    }
}
