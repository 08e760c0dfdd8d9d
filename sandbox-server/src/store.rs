//! What the server keeps in its home: small JSON documents, each replaced whole.

use std::collections::BTreeMap;
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

fn failed(doing: &'static str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot {doing} {}", path.display())).with_source(error)
}

/// Makes a directory for this user alone.
fn make_dir(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| failed("make the directory", path, error))
}

/// Keeps other servers out; the kernel lets them in when this one has ended, however it did.
fn lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|error| failed("open", &path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message = format!(
                "another server uses {}; stop that one, or give this one another home",
                root.display()
            );
            Err(Error::new(ErrorKind::Conflict, message))
        }
        Err(TryLockError::Error(error)) => Err(failed("lock", &path, error)),
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
        store.sweep(root, 0).map_err(|error| failed("sweep", root, error))?;
        Ok(store)
    }

    /// Makes a directory of documents, for this user alone; returns its path.
    pub(crate) fn make_dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        make_dir(&path)?;
        Ok(path)
    }

    /// Reads the secret that tokens and ids are derived from; draws it on first use.
    ///
    /// # Errors
    /// [`ErrorKind::Unexpected`] for one that is damaged, or was lost: with another one a create that is asked for again
    /// would make a second sandbox.
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
            Err(error) => return Err(self.failed("read", &path, error)),
        }
        for kept in ["sandboxes", "spent"] {
            if !self.names(kept)?.is_empty() {
                let message = format!(
                    "{} is lost, and {kept} beside it was made with it; put it back, or move the directory away",
                    path.display()
                );
                return Err(Error::new(ErrorKind::Unexpected, message));
            }
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
            Err(error) => return Err(self.failed("read", &path, error)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            Error::new(ErrorKind::Unexpected, format!("{} cannot be understood", path.display()))
                .with_source(error)
        })
    }

    /// Reads all documents of a directory, by name. One that cannot be understood is left out, and left as it is: it must
    /// not take the others away. Says by the second value whether there was one.
    pub(crate) fn read_all<T: DeserializeOwned>(
        &self,
        directory: &str,
    ) -> Result<(BTreeMap<String, T>, bool)> {
        let (mut all, mut damaged) = (BTreeMap::new(), false);
        for name in self.names(directory)? {
            match self.read(&format!("{directory}/{name}")) {
                Ok(Some(document)) => drop(all.insert(name, document)),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Unexpected => {
                    tracing::error!(%error, "a document is left out; restore it from a copy, or remove it");
                    damaged = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((all, damaged))
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
            return Err(self.failed("write", path, error));
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
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed("remove", &path, error)),
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
            listed => listed.map_err(|error| self.failed("list", &path, error)),
        }
    }

    /// Says what failed without where the home is: clients are told, too.
    fn failed(&self, doing: &'static str, path: &Path, error: io::Error) -> Error {
        failed(doing, path.strip_prefix(&self.root).unwrap_or(path), error)
            .with_context("home", self.root.display())
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
            self.failed("write", path, error)
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
        File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(|error| self.failed("sync", parent, error))
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

    #[test]
    fn a_secret_that_was_lost_is_not_drawn_anew_beside_what_was_made_with_it() {
        for kept in ["sandboxes", "spent"] {
            let home = tempfile::tempdir().unwrap();
            let store = Store::open(home.path()).unwrap();
            store.secret().unwrap();
            store.make_dir(kept).unwrap();
            store.write(&format!("{kept}/a"), &1, Durability::Machine).unwrap();
            std::fs::remove_file(home.path().join("secret")).unwrap();
            let refused = store.secret().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unexpected);
            assert!(refused.message().contains("secret is lost"), "{refused}");
        }
    }

    #[test]
    fn what_clients_are_told_of_a_document_does_not_say_where_the_home_is() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let error = store.write("things/a", &1, Durability::Process).unwrap_err();
        assert_eq!(error.message(), "cannot write things/a");
        assert!(error.to_string().contains(&home.path().display().to_string()), "the log tells: {error}");
    }
}
