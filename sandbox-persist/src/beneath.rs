//! Opening files below a directory that somebody else may write to at the same time.
//!
//! No path is resolved a second time, no symlink is followed, and nothing outside of the directory is reached.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sandhold_core::Result;

use crate::error;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory, following symlinks of its own path: whoever names it decides where it is.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| error::io("open the directory", path, errno))
}

/// Opens `path`, relative and with `/` between its names, below `root`; an empty path is `root` itself.
pub(crate) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let name = if path.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(path) };
    // One call takes no path as long as this one.
    if path.len() >= 4000 {
        return open_by_steps(root, path, flags, mode);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(root, name, flags, mode, resolve) {
            // A rename elsewhere in the tree raced with the walk.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Kernels before 5.6, and containers whose filter does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => return open_by_steps(root, path, flags, mode),
            answer => return answer,
        }
    }
}

fn open_by_steps(root: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return rustix::fs::openat(root, ".", flags, Mode::empty());
    }
    let mut at: Option<OwnedFd> = None;
    let mut names = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = names.next() {
        if name.is_empty() || name == b"." || name == b".." {
            return Err(Errno::INVAL);
        }
        let from = at.as_ref().map_or(root, AsFd::as_fd);
        let name = OsStr::from_bytes(name);
        at = Some(match names.peek() {
            Some(_) => rustix::fs::openat(from, name, DIRECTORY, Mode::empty())?,
            None => rustix::fs::openat(from, name, flags, mode)?,
        });
    }
    at.ok_or(Errno::INVAL)
}

/// Opens a directory below `root`.
pub(crate) fn open_dir(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    open(root, path, DIRECTORY, Mode::empty())
}

/// Opens a regular file for reading; anything else, such as a pipe that nobody writes to, is `EINVAL`.
pub(crate) fn open_file(root: BorrowedFd<'_>, path: &[u8]) -> Result<File, Errno> {
    let file = open(root, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    Ok(file.into())
}

/// Reads a small regular file below `root`; above `limit` bytes it is `EFBIG`.
pub(crate) fn read_small(root: BorrowedFd<'_>, path: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    open_file(root, path)?.take(limit + 1).read_to_end(&mut text)?;
    if text.len() as u64 > limit {
        return Err(Errno::FBIG.into());
    }
    Ok(text)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    let dir = open_root(path)?;
    rustix::fs::fsync(&dir).map_err(|errno| error::io("sync", path, errno))
}
