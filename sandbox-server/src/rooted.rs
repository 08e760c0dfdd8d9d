//! A directory that nothing written through it can leave.
//!
//! Names come from strangers: every parent is resolved by the kernel as if the directory was `/` (`RESOLVE_IN_ROOT`), so
//! that absolute links and `..` stay inside, and the last part of a name is never followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, Stat, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

const STAY: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
/// Longer paths are nobody's honest file, and would make the removal of a tree deep.
const MAX_DEPTH: usize = 512;

/// An open directory that stands for `/`.
#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

/// A place in a root: an open parent directory and a name in it.
#[derive(Debug)]
pub(crate) struct Place {
    parent: OwnedFd,
    name: OsString,
}

impl Root {
    /// Opens a directory.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::openat(CWD, path, OFlags::RDONLY | DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self(fd))
    }

    /// Returns the directory itself.
    pub(crate) fn as_fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Opens a directory inside, and makes it and its parents with mode 0755 where they are missing.
    pub(crate) fn make_dirs(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.dir(path) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
            other => return other,
        }
        let mut at = PathBuf::from(".");
        for part in path.components() {
            at.push(part);
            match rustix::fs::openat2(&self.0, &at, OFlags::PATH | DIRECTORY, Mode::empty(), STAY) {
                Ok(_) => {}
                Err(Errno::NOENT) => {
                    let place = self.place_of(&at)?;
                    rustix::fs::mkdirat(&place.parent, &place.name, Mode::from_raw_mode(0o755))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.dir(path)
    }

    /// Opens a directory inside.
    pub(crate) fn dir(&self, path: &Path) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(rustix::fs::openat2(&self.0, path, OFlags::RDONLY | DIRECTORY, Mode::empty(), STAY)?)
    }

    /// Opens a file for reading, following links inside.
    pub(crate) fn read(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(rustix::fs::openat2(&self.0, path, flags, Mode::empty(), STAY)?.into())
    }

    /// Finds a place whose parent is there.
    pub(crate) fn place_of(&self, path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or_else(no_name)?.to_owned();
        Ok(Place { parent: self.dir(path.parent().unwrap_or(Path::new("")))?, name })
    }

    /// Finds a place, and makes its parents where they are missing.
    pub(crate) fn make_place(&self, path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or_else(no_name)?.to_owned();
        Ok(Place { parent: self.make_dirs(path.parent().unwrap_or(Path::new("")))?, name })
    }
}

fn no_name() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the path names no entry")
}

impl Place {
    /// A name in an open directory.
    pub(crate) fn new(parent: OwnedFd, name: OsString) -> Self {
        Self { parent, name }
    }

    /// Opens the directory that is there, unless it is a link to one.
    pub(crate) fn open_dir(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | DIRECTORY | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(&self.parent, &self.name, flags, Mode::empty())?)
    }

    /// Reads where a symbolic link leads, as text.
    pub(crate) fn read_link(&self) -> io::Result<OsString> {
        let target = rustix::fs::readlinkat(&self.parent, &self.name, Vec::new())?;
        Ok(OsStr::from_bytes(target.to_bytes()).to_owned())
    }

    /// Moves what is here to another place of the same file system, in place of what is there.
    pub(crate) fn rename_to(&self, to: &Self) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.parent, &self.name, &to.parent, &to.name)?)
    }

    /// Looks at what is there, without following a link.
    pub(crate) fn stat(&self) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a file that is not there yet.
    pub(crate) fn create(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.parent, &self.name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Makes a directory that is not there yet.
    pub(crate) fn make_dir(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.parent, &self.name, Mode::from_raw_mode(mode))?)
    }

    /// Makes a symbolic link; its target is text and may be anything.
    pub(crate) fn symlink(&self, target: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.parent, &self.name)?)
    }

    /// Makes a second name for what is at another place.
    pub(crate) fn hard_link(&self, of: &Self) -> io::Result<()> {
        Ok(rustix::fs::linkat(&of.parent, &of.name, &self.parent, &self.name, AtFlags::empty())?)
    }

    /// Makes a named pipe.
    pub(crate) fn fifo(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mknodat(&self.parent, &self.name, FileType::Fifo, Mode::from_raw_mode(mode), 0)?)
    }

    /// Sets the owner, of a link itself.
    pub(crate) fn chown(&self, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        Ok(rustix::fs::chownat(&self.parent, &self.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets the mode of something that is no link.
    pub(crate) fn chmod(&self, mode: u32) -> io::Result<()> {
        // Through an open file, because `fchmodat` follows links.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.parent, &self.name, flags, Mode::empty()) {
            Ok(fd) => Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?),
            // A link has no mode.
            Err(Errno::LOOP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets when the content was last changed, of a link itself.
    pub(crate) fn set_modified(&self, seconds: i64) -> io::Result<()> {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(&self.parent, &self.name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Removes whatever is there, with all that is in it; links are removed and not followed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        remove_entry(&self.parent, &self.name, 0)
    }
}

/// Lists the names in an open directory.
pub(crate) fn names(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let fresh = rustix::fs::openat(dir, ".", OFlags::RDONLY | DIRECTORY, Mode::empty())?;
    let mut buffer = Vec::with_capacity(16 * 1024);
    let mut found = Vec::new();
    let mut entries = RawDir::new(fresh, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

fn remove_entry(parent: &OwnedFd, name: &OsStr, depth: usize) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    if depth > MAX_DEPTH {
        return Err(io::Error::other("the directories are nested too deep"));
    }
    let flags = OFlags::RDONLY | DIRECTORY | OFlags::NOFOLLOW;
    let dir = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        // An ordinary user must open its own directory before it can look into it.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(0o700), AtFlags::empty())?;
            rustix::fs::openat(parent, name, flags, Mode::empty())?
        }
        other => other?,
    };
    if !rustix::process::geteuid().is_root() {
        rustix::fs::fchmod(dir.as_fd(), Mode::from_raw_mode(0o700))?;
    }
    for inner in names(&dir)? {
        remove_entry(&dir, &inner, depth + 1)?;
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Removes a directory of our own with all that is in it; one that is not there is no error.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(no_name()) };
    match rustix::fs::openat(CWD, parent, OFlags::RDONLY | DIRECTORY, Mode::empty()) {
        Ok(parent) => remove_entry(&parent, name, 0),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads a path of an archive as one below the root; `None` if it names the root itself.
///
/// # Errors
/// A path with `..` or a NUL byte, one that is too deep or too long.
pub(crate) fn inner_path(path: &Path) -> io::Result<Option<PathBuf>> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the path {path:?} {what}"));
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&0) {
        return Err(bad("has a NUL byte"));
    }
    if bytes.len() > 4000 {
        return Err(bad("is longer than 4,000 bytes"));
    }
    let mut inner = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => inner.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(bad("leads out of the archive")),
        }
    }
    if inner.components().count() > MAX_DEPTH {
        return Err(bad("is nested too deep"));
    }
    Ok((!inner.as_os_str().is_empty()).then_some(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_nowhere_but_inside() {
        let outer = tempfile::tempdir().expect("a directory");
        let inner = outer.path().join("root");
        std::fs::create_dir_all(inner.join("etc")).expect("a directory");
        std::os::unix::fs::symlink("/etc", inner.join("absolute")).expect("a link");
        std::os::unix::fs::symlink("../../../../..", inner.join("up")).expect("a link");
        let root = Root::open(&inner).expect("the root");
        root.make_place(Path::new("absolute/made")).and_then(|place| place.create(0o644)).expect("a file");
        assert!(inner.join("etc/made").exists());
        root.make_place(Path::new("up/above")).and_then(|place| place.create(0o644)).expect("a file");
        assert!(inner.join("above").exists() && !outer.path().join("above").exists());
        // A link as the last part is refused by an exclusive create, not written through.
        assert!(root.make_place(Path::new("up")).expect("a place").create(0o644).is_err());
    }

    #[test]
    fn removal_does_not_follow_links() {
        let outer = tempfile::tempdir().expect("a directory");
        let inner = outer.path().join("root");
        std::fs::create_dir_all(inner.join("a/b")).expect("a directory");
        std::fs::write(outer.path().join("kept"), "kept").expect("a file");
        std::os::unix::fs::symlink(outer.path(), inner.join("a/b/link")).expect("a link");
        let root = Root::open(&inner).expect("the root");
        root.place_of(Path::new("a")).and_then(|place| place.remove()).expect("removed");
        assert!(!inner.join("a").exists() && outer.path().join("kept").exists());
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        for bad in ["../x", "a/../../x", "a/..", "/../x"] {
            assert!(inner_path(Path::new(bad)).is_err(), "{bad}");
        }
        assert_eq!(inner_path(Path::new("/a/./b/")).expect("a path"), Some(PathBuf::from("a/b")));
        assert_eq!(inner_path(Path::new("./")).expect("the root"), None);
    }
}
