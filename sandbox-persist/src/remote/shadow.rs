//! The copy on this machine of what is captured of a workspace in a sandbox.
//!
//! Captures and restores work on it as on any directory, and the sandbox is brought in line before or after. It holds
//! each content once more; without it every capture would have to fetch all.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::listing::{Found, Listing};
use super::select::Want;
use crate::cancel::Cancel;
use crate::path::{self, WorkPath};
use crate::vault::{Lock, Sharing};
use crate::{beneath, durable, error};

/// What begins the names of files that are not whole yet.
const STAGED: &[u8] = b".sandhold-fetch-";

/// The file `held.json`: what of the sandbox is here, as it was listed when it was fetched.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Held {
    /// The sandbox, whose inodes and times these are.
    pub(super) sandbox: String,
    pub(super) files: BTreeMap<WorkPath, Found>,
}

/// One copy; whoever has it is alone with it.
#[derive(Debug)]
pub(super) struct Shadow {
    dir: PathBuf,
    root: OwnedFd,
    pub(super) held: Held,
    _alone: Lock,
}

impl Shadow {
    /// Opens the copy in `dir`, and makes it where it is not there. What is held of another sandbox counts as nothing.
    pub(super) fn open(dir: &Path, sandbox: &str, cancel: &Cancel) -> Result<Self> {
        durable::create_dir(&dir.join("tree"))?;
        let alone = Lock::take(&dir.join("lock"), Sharing::Exclusive, cancel)?;
        let held = fs::read(dir.join("held.json")).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let held = held.filter(|held: &Held| held.sandbox == sandbox).unwrap_or_default();
        let root = beneath::open_root(&dir.join("tree"))?;
        let held = Held { sandbox: sandbox.to_owned(), ..held };
        Ok(Self { dir: dir.to_owned(), root, held, _alone: alone })
    }

    pub(super) fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Forgets what is held, before something else than a fetch changes the copy.
    pub(super) fn forget(&self) -> Result<()> {
        match fs::remove_file(self.dir.join("held.json")) {
            Err(failure) if failure.kind() != std::io::ErrorKind::NotFound => {
                Err(error::io("forget the copy in", &self.dir, failure))
            }
            _ => beneath::sync_dir(&self.dir),
        }
    }

    /// Writes down what is held. The copy itself is made durable before.
    pub(super) fn save(&mut self, listed_at: (i64, u32)) -> Result<()> {
        // Another write in the same tick would not show: it is fetched again.
        self.held.files.retain(|_, found| !found.is_racy(listed_at));
        rustix::fs::syncfs(&self.root).map_err(|errno| error::io("sync", &self.dir, errno))?;
        let text = serde_json::to_vec(&self.held).map_err(|failure| {
            Error::new(ErrorKind::Unexpected, "what is held of a sandbox is no JSON").with_source(failure)
        })?;
        let staged = self.dir.join("held.json.new");
        let _ = fs::remove_file(&staged);
        durable::replace(&staged, &self.dir.join("held.json"), &text)
    }

    /// Reads a small file of the copy.
    pub(super) fn text(&self, at: &[u8]) -> Option<Vec<u8>> {
        beneath::read_small(self.root(), at, crate::ignore::MAX_BYTES).ok()
    }

    /// What the index of the repository names, as far as it can be read.
    pub(super) fn tracked(&self) -> HashSet<Vec<u8>> {
        let path = self.tree().join(".git/index");
        if !path.is_file() {
            return HashSet::new();
        }
        match git2::Index::open(&path) {
            Ok(index) => index.iter().map(|entry| entry.path).collect(),
            Err(failure) => {
                tracing::warn!(%failure, "the index of the sandbox's repository cannot be read");
                HashSet::new()
            }
        }
    }

    /// Brings everything in line but contents, and tells which of those are to be fetched.
    pub(super) fn shape(
        &mut self,
        listing: &Listing,
        wanted: &BTreeMap<Box<[u8]>, Want>,
    ) -> Result<Vec<Box<[u8]>>> {
        self.remove_strangers(&[], listing, wanted)?;
        let mut missing = Vec::new();
        for (at, want) in wanted {
            let Some(found) = listing.entries.get(at) else { continue };
            let (dir, name) = path::split(at);
            let failed = |errno| error::io("make", WorkPath::new(&**at).as_path(), errno);
            let dir = beneath::open_dir(self.root(), dir).map_err(failed)?;
            let name = OsStr::from_bytes(name);
            let there = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            match want {
                Want::Dir => match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(failed(errno)),
                },
                Want::Symlink => {
                    let target = found.target.as_ref().map_or(&b""[..], WorkPath::as_bytes);
                    let now = rustix::fs::readlinkat(&dir, name, Vec::new()).ok();
                    if now.is_none_or(|now| now.as_bytes() != target) {
                        let _ = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
                        rustix::fs::symlinkat(OsStr::from_bytes(target), &dir, name).map_err(failed)?;
                    }
                }
                // There is something, so that the directories above are not empty.
                Want::Kept if found.file_type() == FileType::Directory && there.is_none() => {
                    rustix::fs::mkdirat(&dir, name, Mode::RWXU).map_err(failed)?;
                }
                Want::Kept => {}
                Want::Stand => stand(&dir, name, found, there.is_some()).map_err(failed)?,
                Want::Content => {
                    let key = WorkPath::new(&**at);
                    let is_held = there.is_some_and(|there| {
                        u64::try_from(there.st_size).is_ok_and(|size| size == found.size)
                    }) && self.held.files.get(&key) == Some(found);
                    if !is_held {
                        self.held.files.remove(&key);
                        missing.push(at.clone());
                    }
                }
            }
        }
        self.held.files.retain(|at, _| wanted.get(at.as_bytes()) == Some(&Want::Content));
        Ok(missing)
    }

    /// Makes directories, in the place of whatever else has their names.
    pub(super) fn make_dirs(&self, dirs: &BTreeMap<Box<[u8]>, Want>) -> Result<()> {
        for at in dirs.keys() {
            let failed = |errno| error::io("make", WorkPath::new(&**at).as_path(), errno);
            let (dir, name) = path::split(at);
            let dir = beneath::open_dir(self.root(), dir).map_err(failed)?;
            let name = OsStr::from_bytes(name);
            let there = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            match there.map(|there| FileType::from_raw_mode(there.st_mode)) {
                Some(FileType::Directory) => {}
                other => {
                    if other.is_some() {
                        rustix::fs::unlinkat(&dir, name, AtFlags::empty()).map_err(failed)?;
                    }
                    rustix::fs::mkdirat(&dir, name, Mode::RWXU).map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// Removes what the sandbox has not, or has as something else.
    fn remove_strangers(
        &self,
        at: &[u8],
        listing: &Listing,
        wanted: &BTreeMap<Box<[u8]>, Want>,
    ) -> Result<()> {
        let failed = |errno: Errno| error::io("list", WorkPath::new(at).as_path(), errno);
        let dir = beneath::open_dir(self.root(), at).map_err(failed)?;
        for entry in rustix::fs::Dir::read_from(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = path::join(at, name);
            let own = OsStr::from_bytes(name);
            let stat = rustix::fs::statat(&dir, own, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let stays = match wanted.get(&*path) {
                Some(Want::Dir) => kind == FileType::Directory,
                Some(Want::Symlink) => kind == FileType::Symlink,
                Some(Want::Content) => kind == FileType::RegularFile,
                Some(Want::Kept) => {
                    listing.entries.get(&*path).is_some_and(|found| found.file_type() == kind)
                }
                Some(Want::Stand) => {
                    let shape = listing.entries.get(&*path).map(|found| stand_type(name, found));
                    shape == Some(kind)
                }
                None => false,
            };
            if !stays {
                remove_all(dir.as_fd(), own).map_err(failed)?;
            } else if wanted.get(&*path) == Some(&Want::Dir) {
                self.remove_strangers(&path, listing, wanted)?;
            }
        }
        Ok(())
    }

    /// Takes files out of a compressed archive, no others than were asked for.
    pub(super) fn unpack(
        &mut self,
        packed: impl Read,
        asked: &BTreeMap<Box<[u8]>, Found>,
        cancel: &Cancel,
    ) -> Result<()> {
        let broken = |failure: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("the files of the sandbox came damaged: {failure}"))
                .with_source(failure)
                .retryable(None)
        };
        let mut archive = tar::Archive::new(GzDecoder::new(packed));
        for entry in archive.entries().map_err(broken)? {
            cancel.check()?;
            let mut entry = entry.map_err(broken)?;
            let named = entry.path_bytes().into_owned();
            let at = named.strip_prefix(b"./").unwrap_or(&named);
            // It may have become something else meanwhile, which the next listing tells.
            let Some(found) = asked.get(at).filter(|_| entry.header().entry_type().is_file()) else {
                continue;
            };
            if entry.size() > found.size.saturating_mul(2).saturating_add(64 << 20) {
                continue;
            }
            self.put(at, found, &mut entry)?;
            let is_whole = entry.size() == found.size;
            if is_whole {
                self.held.files.insert(WorkPath::new(at), found.clone());
            }
        }
        Ok(())
    }

    fn put(&self, at: &[u8], found: &Found, content: &mut impl Read) -> Result<()> {
        let failed = |failure: std::io::Error| error::io("write", WorkPath::new(at).as_path(), failure);
        let (dir, name) = path::split(at);
        let dir = beneath::open_dir(self.root(), dir).map_err(|errno| failed(errno.into()))?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| failed(Errno::IO.into()))?;
        let staged = [STAGED, format!("{:016x}", u64::from_le_bytes(random)).as_bytes()].concat();
        let staged = OsStr::from_bytes(&staged);
        let mut write = || -> std::io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = if found.is_executable() { 0o700 } else { 0o600 };
            let mut file = File::from(rustix::fs::openat(&dir, staged, flags, Mode::from_raw_mode(mode))?);
            std::io::copy(content, &mut file)?;
            file.flush()?;
            let (seconds, nanos) = found.modified_at();
            let modified = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
            rustix::fs::futimens(&file, &Timestamps { last_access: modified, last_modification: modified })?;
            Ok(rustix::fs::renameat(&dir, staged, &dir, OsStr::from_bytes(name))?)
        };
        write().map_err(failed).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&dir, staged, AtFlags::empty());
        })
    }

    /// What the copy is like now, for finding out what a restore changes.
    pub(super) fn state(&self) -> Result<BTreeMap<Box<[u8]>, State>> {
        let mut states = BTreeMap::new();
        gather(&self.tree(), Path::new(""), &mut states)?;
        Ok(states)
    }
}

/// A name of the copy: what would change with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) mode: u32,
    pub(super) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    inode: u64,
}

impl State {
    pub(super) fn modified_seconds(&self) -> i64 {
        self.modified.0
    }

    pub(super) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

fn gather(root: &Path, at: &Path, states: &mut BTreeMap<Box<[u8]>, State>) -> Result<()> {
    let failed = |failure| error::io("list", at, failure);
    for entry in fs::read_dir(root.join(at)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name() == ".git" {
            continue;
        }
        let path = at.join(entry.file_name());
        let stat = entry.metadata().map_err(failed)?;
        let state = State {
            mode: stat.mode(),
            size: stat.size(),
            // Entries of directories are states of their own.
            modified: if stat.is_dir() { (0, 0) } else { (stat.mtime(), stat.mtime_nsec()) },
            changed: if stat.is_dir() { (0, 0) } else { (stat.ctime(), stat.ctime_nsec()) },
            inode: if stat.is_dir() { 0 } else { stat.ino() },
        };
        let state = if stat.is_dir() { State { size: 0, ..state } } else { state };
        states.insert(path.as_os_str().as_bytes().into(), state);
        if stat.is_dir() {
            gather(root, &path, states)?;
        }
    }
    Ok(())
}

/// As what a name stands here that is not captured.
fn stand_type(name: &[u8], found: &Found) -> FileType {
    match found.file_type() {
        _ if name == b".git" => FileType::Directory,
        kind @ (FileType::RegularFile | FileType::Directory) => kind,
        FileType::Symlink => FileType::RegularFile,
        _ => FileType::Fifo,
    }
}

fn stand(dir: &OwnedFd, name: &OsStr, found: &Found, is_there: bool) -> Result<(), Errno> {
    match stand_type(name.as_bytes(), found) {
        FileType::Directory if !is_there => rustix::fs::mkdirat(dir, name, Mode::RWXU),
        FileType::Fifo if !is_there => rustix::fs::mknodat(dir, name, FileType::Fifo, Mode::RWXU, 0),
        FileType::RegularFile => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
            // A hole as long as the file is there: nothing of it is here.
            rustix::fs::ftruncate(&file, found.size.min(1 << 50))
        }
        _ => Ok(()),
    }
}

fn remove_all(dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    let below = beneath::open_dir(dir, name.as_bytes())?;
    for entry in rustix::fs::Dir::read_from(&below)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            remove_all(below.as_fd(), OsStr::from_bytes(name))?;
        }
    }
    rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
}
