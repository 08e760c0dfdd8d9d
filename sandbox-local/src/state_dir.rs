//! The state directory: its version, the directory of each sandbox, and the lock of who changes one.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandhold_core::{Error, ErrorKind, Result, SandboxId};
use tokio::time::Instant;

use crate::cleanup;
use crate::idmap;
use crate::record::{ENDED, IdMap, RECORD, RUNTIME, Record};
use crate::rootfs::OWN_LAYER;

/// The layout that this version of the library writes.
const VERSION: u32 = 1;

/// Held by whoever changes a sandbox: starts, pauses, resumes, stops or destroys it.
const LOCK: &str = "lock";

/// Where directories are made before they have their name, and wait for their removal after they lost it. Locked,
/// shared, by everybody who has something here or in an id range that no directory in `sandboxes` shows.
pub(crate) const STAGING: &str = "staging";

/// How long the reason of an end is kept: 7 days.
const KEEP_ENDS: Duration = Duration::from_secs(7 * 24 * 3600);

/// The ids whose sandbox was destroyed, in a directory a day: a create that comes late must not make another one.
const SPENT: &str = "spent";

/// A day, in seconds: spent ids are kept for one at least, and for two at most.
const DAY: u64 = 24 * 3600;

/// Pauses between two tries to take a lock: the first, and the longest.
const LOCK_POLL: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));

/// A state directory of a version that this library understands.
#[derive(Clone, Debug)]
pub(crate) struct StateDir {
    root: PathBuf,
}

/// What a new sandbox starts from.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    /// Whose the files are that it stands on, as stored; default nobody's yet.
    pub(crate) ids: Option<IdMap>,
    /// A layer in staging that becomes its own.
    pub(crate) layer: Option<PathBuf>,
}

/// The right to change one sandbox, held until it is dropped or its process dies.
#[derive(Debug)]
pub(crate) struct ChangeLock {
    _file: File,
}

/// A lock on the state directory, given up when it is dropped or its process dies.
#[derive(Debug)]
pub(crate) struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // Said aloud: a child that another thread is about to start has a copy of the descriptor until it is executed.
        let _ = self.0.unlock();
    }
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
        let make =
            |path: &Path| private_directory(path).map_err(|error| failed("make the directory", path, error));
        make(&root)?;
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
        // What belongs to another user or to a newer library is left as it is.
        state.check_version()?;
        for name in ["sandboxes", STAGING] {
            make(&state.root.join(name))?;
        }
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
                    .map_err(|error| {
                        let _ = fs::remove_file(&staged);
                        failed("write", &path, error)
                    })
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
    /// It survives a crash of the machine once [`keep`](Self::keep) returned. `None` when a sandbox of this id is
    /// there, or was destroyed lately.
    pub(crate) fn make(
        &self,
        id: &SandboxId,
        beginning: Beginning,
        record: impl FnOnce(IdMap) -> Result<Record>,
    ) -> Result<Option<ChangeLock>> {
        let Some(directory) = self.directory(id) else {
            return Err(Error::invalid_argument(format!("the id {:?} is no plain name", id.as_str())));
        };
        if directory.exists() {
            return Ok(None);
        }
        let _creating = self.creating()?;
        let ids = self.ids_for(id, beginning.ids)?;
        let _turn = self.turn()?;
        if self.is_spent(id) {
            idmap::release(&self.root, &ids, id.as_str());
            return Ok(None);
        }
        let layer = beginning.layer.as_deref();
        let made = record(ids.clone()).and_then(|record| self.place(id, &directory, &record, layer));
        if !matches!(made, Ok(Some(_))) {
            idmap::release(&self.root, &ids, id.as_str());
        }
        made
    }

    /// Notes that the sandbox of this id is about to be destroyed, for creates of it that are still under way. They die with
    /// the machine, so that the note need not outlive it.
    pub(crate) fn spend(&self, id: &SandboxId) -> Result<()> {
        let [today, _] = self.spent_days();
        let path = today.join(id.as_str());
        private_directory(&self.root.join(SPENT))
            .and_then(|()| private_directory(&today))
            .and_then(|()| File::create(&path).map(drop))
            .map_err(|error| failed("note the end in", &path, error))
    }

    fn is_spent(&self, id: &SandboxId) -> bool {
        self.spent_days().iter().any(|day| day.join(id.as_str()).exists())
    }

    /// Where the ids of today are, and those of yesterday.
    fn spent_days(&self) -> [PathBuf; 2] {
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / DAY;
        [today, today.saturating_sub(1)].map(|day| self.root.join(SPENT).join(day.to_string()))
    }

    fn forget_old_spent(&self) {
        let days = self.spent_days();
        for old in entries(&self.root.join(SPENT)).filter(|day| !days.contains(day)) {
            let _ = fs::remove_dir_all(old);
        }
    }

    /// Chooses the ids of a new sandbox: those that the files have which it starts from.
    fn ids_for(&self, id: &SandboxId, stored: Option<IdMap>) -> Result<IdMap> {
        let tier = idmap::tier().map_err(Error::from)?;
        match (stored, tier) {
            (None | Some(IdMap::Full { .. }), IdMap::Full { .. }) | (None, _) => {
                idmap::choose(&self.root, id.as_str()).map_err(Error::from)
            }
            (Some(stored @ (IdMap::Ranges { .. } | IdMap::Single)), IdMap::Ranges { .. } | IdMap::Single) => {
                Ok(stored)
            }
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                "the snapshot was taken as root and this is an ordinary user, or the other way round; use it as then",
            )
            .with_reason("id_map")),
        }
    }

    /// Keeps the sweep away from what is between two places; given up with its process.
    pub(crate) fn creating(&self) -> Result<Held> {
        hold_staging(&self.root).map_err(|error| failed("lock", &self.root.join(STAGING), error))
    }

    /// Lets one creator at a time give its sandbox a time and a name. Whoever lists then sees no sandbox without those
    /// that are older, and all contenders for a key agree on the first.
    fn turn(&self) -> Result<Held> {
        let path = self.root.join("sandboxes");
        let held = File::open(&path).and_then(|directory| directory.lock().map(|()| Held(directory)));
        held.map_err(|error| failed("lock", &path, error))
    }

    /// A place for what has no name yet.
    pub(crate) fn staged(&self, id: impl std::fmt::Display) -> PathBuf {
        self.root.join(STAGING).join(format!("{id}.{}.{:x}", std::process::id(), fastrand::u32(..)))
    }

    /// Makes a directory there that only this user can enter.
    pub(crate) fn stage(&self, id: impl std::fmt::Display) -> Result<PathBuf> {
        let staged = self.staged(id);
        private_directory(&staged).map_err(|error| failed("make the directory", &staged, error))?;
        Ok(staged)
    }

    fn place(
        &self,
        id: &SandboxId,
        directory: &Path,
        record: &Record,
        layer: Option<&Path>,
    ) -> Result<Option<ChangeLock>> {
        let staged = self.staged(id);
        private_directory(&staged).map_err(|error| failed("make the directory", &staged, error))?;
        let made = self.fill(&staged, record, layer).and_then(|lock| {
            // Onto a directory that is not empty a rename fails: of two creators one wins.
            match fs::rename(&staged, directory) {
                Ok(()) => Ok(Some(lock)),
                Err(error)
                    if matches!(
                        error.kind(),
                        IoErrorKind::AlreadyExists | IoErrorKind::DirectoryNotEmpty
                    ) =>
                {
                    Ok(None)
                }
                Err(error) => Err(failed("make the directory", directory, error)),
            }
        });
        if !matches!(made, Ok(Some(_))) {
            // What cannot be removed now is swept by a later create.
            let _ = fs::remove_dir_all(&staged);
        }
        made
    }

    /// Waits until a new sandbox is on disk. What is lost before was told to nobody.
    pub(crate) fn keep(&self, directory: &Path) -> Result<()> {
        let parent = self.root.join("sandboxes");
        [directory, parent.as_path()].into_iter().try_for_each(|path| {
            File::open(path)
                .and_then(|directory| directory.sync_all())
                .map_err(|error| failed("sync", path, error))
        })
    }

    fn fill(&self, staged: &Path, record: &Record, layer: Option<&Path>) -> Result<ChangeLock> {
        let lock = open_lock(staged, true).map_err(|error| failed("open the lock in", staged, error))?;
        lock.lock().map_err(|error| failed("lock", staged, error))?;
        if let Some(layer) = layer {
            fs::rename(layer, staged.join(OWN_LAYER)).map_err(|error| failed("move", layer, error))?;
        }
        record.stage(staged)?;
        Ok(ChangeLock { _file: lock })
    }

    /// Removes what creators left that died before their sandbox had its name. Does nothing while another creates.
    ///
    /// Returns what only the helper can remove, as it belongs to ids of the inside: nobody else goes near it.
    pub(crate) fn sweep(&self) -> Vec<PathBuf> {
        let staging = self.root.join(STAGING);
        let Ok(lock) = File::open(&staging) else { return Vec::new() };
        if lock.try_lock().is_err() {
            return Vec::new();
        }
        let _alone = Held(lock);
        let left = entries(&staging).filter(|path| cleanup::remove_tree(path).is_err()).collect();
        for path in entries(&self.root.join("ids")) {
            // It holds the id of its sandbox, or nothing when its creator died at once.
            let owner = fs::read_to_string(&path).unwrap_or_default();
            let owned = is_leaf(&owner) && self.root.join("sandboxes").join(&owner).join(RECORD).exists();
            if !owned {
                let _ = fs::remove_file(&path);
            }
        }
        self.forget_old_ends();
        self.forget_old_spent();
        left
    }

    /// Removes a sandbox of which nothing was ever started, without the helper: by whoever holds its lock and made it.
    ///
    /// False when something was started, or is about to be: then only the helper can remove it.
    pub(crate) fn discard(&self, id: &SandboxId) -> Result<bool> {
        let Some(directory) = self.directory(id) else { return Ok(true) };
        let started = [RUNTIME, "upper"].iter().any(|name| directory.join(name).exists());
        if started || cleanup::is_monitored(&directory)? {
            return Ok(false);
        }
        let _moving = self.creating()?;
        let ids = Record::load(&directory).map(|record| record.spec.ids);
        let staged = self.staged(id);
        // Gone at once for everybody; what is not removed now is swept by a later create.
        fs::rename(&directory, &staged).map_err(|error| failed("remove", &directory, error))?;
        if let Ok(ids) = ids {
            idmap::release(&self.root, &ids, id.as_str());
        }
        let _ = fs::remove_dir_all(&staged);
        Ok(true)
    }

    /// Removes the reasons that were left of leases that ran out long ago.
    fn forget_old_ends(&self) {
        for path in entries(&self.root.join("sandboxes")) {
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
    // Not made here: in a directory that is being removed it would be in the way.
    let lock = match open_lock(directory, false) {
        Ok(lock) => lock,
        Err(_) if !directory.join(RECORD).exists() => return Ok(Some(None)),
        Err(error) if error.kind() == IoErrorKind::NotFound => {
            open_lock(directory, true).map_err(|error| failed("open the lock in", directory, error))?
        }
        Err(error) => return Err(failed("open the lock in", directory, error)),
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

/// Waits until everything that the sandbox wrote is on disk.
pub(crate) fn sync_files(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|there| Ok(rustix::fs::syncfs(there)?))
        .map_err(|error| failed("sync", directory, error))
}

/// Removes the directory of a sandbox that has ended, and of which only the reason is left.
pub(crate) fn remove_ended(directory: &Path) -> Result<()> {
    if is_ended(directory) {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != IoErrorKind::NotFound => {
                return Err(failed("remove", directory, error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes the place for what has no name yet, and keeps the sweep away from it as long as the answer lives.
pub(crate) fn hold_staging(root: &Path) -> io::Result<Held> {
    let path = root.join(STAGING);
    private_directory(&path)?;
    let staging = File::open(&path)?;
    staging.lock_shared()?;
    Ok(Held(staging))
}

/// What is in a directory; nothing when it cannot be read.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// Says whether of a sandbox only the reason of its end is left, which is kept for a while.
pub(crate) fn is_ended(directory: &Path) -> bool {
    directory.join(ENDED).exists() && !directory.join(RECORD).exists()
}

fn open_lock(directory: &Path, make: bool) -> io::Result<File> {
    OpenOptions::new().create(make).truncate(false).write(true).mode(0o600).open(directory.join(LOCK))
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
