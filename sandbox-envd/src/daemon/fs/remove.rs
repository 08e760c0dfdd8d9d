//! Removes directory trees of any depth.
//!
//! Whoever fills a directory decides how deep it gets, so neither the stack nor the descriptors may grow with it:
//! a directory that lies too deep is moved up to the top of the tree first, and removed from there.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

/// Levels below the top that are walked down; each costs two descriptors.
const DEEPEST: u32 = 16;

/// Removes the directory at `path` and everything below it, however deep; follows no link below it.
///
/// What is mounted below it is not touched, and keeps the directories above it from being removed.
///
/// With `open_up`, directories that forbid it to their own owner are opened up to them.
///
/// # Errors
///
/// Fails with the first error; what was removed until then stays removed.
pub fn remove_tree(path: &Path, open_up: bool) -> io::Result<()> {
    let top = open(CWD, path, open_up)?;
    let mut removal = Removal { top: top.as_fd(), open_up, moved: 0 };
    // What was moved to the top may have come too late for the reading of the top.
    loop {
        let before = removal.moved;
        removal.empty(top.as_fd(), 0)?;
        if removal.moved == before {
            return fs::remove_dir(path);
        }
    }
}

struct Removal<'a> {
    top: BorrowedFd<'a>,
    open_up: bool,
    /// How many directories were moved to the top.
    moved: u64,
}

impl Removal<'_> {
    fn empty(&mut self, dir: BorrowedFd<'_>, depth: u32) -> Result<(), Errno> {
        let mut entries = match Dir::read_from(dir) {
            Err(Errno::ACCESS) if self.open_up => {
                rustix::fs::fchmod(dir, Mode::RWXU)?;
                Dir::read_from(dir)?
            }
            entries => entries?,
        };
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if entry.file_type() != FileType::Directory {
                match self.unlink(dir, name, AtFlags::empty()) {
                    Err(Errno::ISDIR) => {}
                    unlinked => {
                        unlinked?;
                        continue;
                    }
                }
            }
            self.directory(dir, name, depth)?;
        }
        Ok(())
    }

    fn directory(&mut self, dir: BorrowedFd<'_>, name: &CStr, depth: u32) -> Result<(), Errno> {
        let child = match open(dir, name, self.open_up) {
            Err(Errno::NOENT) => return Ok(()),
            // Something else took its place meanwhile.
            Err(Errno::NOTDIR | Errno::LOOP) => return self.unlink(dir, name, AtFlags::empty()),
            child => child?,
        };
        if is_mount_root(child.as_fd(), c"") {
            // It could not be removed, but it could be emptied.
            return Err(Errno::BUSY);
        }
        if depth >= DEEPEST {
            return self.move_up(dir, name);
        }
        self.empty(child.as_fd(), depth + 1)?;
        self.unlink(dir, name, AtFlags::REMOVEDIR)
    }

    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        loop {
            self.moved += 1;
            match rustix::fs::renameat(dir, name, self.top, format!(".removed-{}", self.moved)) {
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(Errno::NOENT) => return Ok(()),
                moved => return moved,
            }
        }
    }

    fn unlink(&self, dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
        let unlink = || match rustix::fs::unlinkat(dir, name, flags) {
            Err(Errno::NOENT) => Ok(()),
            unlinked => unlinked,
        };
        match unlink() {
            Err(Errno::ACCESS) if self.open_up => {
                rustix::fs::fchmod(dir, Mode::RWXU)?;
                unlink()
            }
            unlinked => unlinked,
        }
    }
}

/// Says whether `name` in `dir`, or `dir` itself if the name is empty, is the top of a mounted file system.
pub(crate) fn is_mount_root(dir: BorrowedFd<'_>, name: impl rustix::path::Arg) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let stat = rustix::fs::statx(dir, name, flags, StatxFlags::empty());
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn open(dir: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy, open_up: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) if open_up => {
            // Through the descriptor: the name may be a link by now.
            let locked = rustix::fs::openat(dir, name, flags | OFlags::PATH, Mode::empty())?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", locked.as_raw_fd()), Mode::RWXU)?;
            rustix::fs::openat(dir, name, flags, Mode::empty())
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Makes a chain of directories far below what a path can name.
    fn chain(top: &Path, levels: usize) {
        fs::create_dir(top).unwrap();
        let mut dir = open(CWD, top, false).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
            dir = open(dir.as_fd(), c"d", false).unwrap();
        }
        rustix::fs::symlinkat("/", &dir, "root").unwrap();
    }

    fn on_a_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::Builder::new().stack_size(256 * 1024).spawn(work).unwrap().join().unwrap()
    }

    #[test]
    fn a_tree_deeper_than_any_stack_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        chain(&top, 10_000);
        let removed = top.clone();
        on_a_small_stack(move || remove_tree(&removed, false)).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn many_directories_that_lie_too_deep_are_removed_too() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        let deep = top.join("d/".repeat(DEEPEST as usize + 2));
        for name in 0..300 {
            fs::create_dir_all(deep.join(name.to_string()).join("below")).unwrap();
            fs::write(deep.join(format!("{name}/below/file")), "").unwrap();
        }
        fs::create_dir_all(top.join(".removed-1/taken")).unwrap();
        fs::write(top.join(".removed-2"), "").unwrap();
        remove_tree(&top, false).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (top, other) = (dir.path().join("top"), dir.path().join("other"));
        fs::create_dir_all(top.join("a")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "").unwrap();
        symlink(&other, top.join("a/link")).unwrap();
        remove_tree(&top, true).unwrap();
        assert!(!top.exists() && other.join("kept").exists());
    }

    #[test]
    fn directories_that_forbid_it_are_opened_up_only_if_asked() {
        if rustix::process::geteuid().is_root() {
            println!("skipped: needs an ordinary user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o000, 0o400, 0o500] {
            let top = dir.path().join(mode.to_string());
            fs::create_dir_all(top.join("locked/in")).unwrap();
            fs::set_permissions(top.join("locked"), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(remove_tree(&top, false).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            remove_tree(&top, true).unwrap();
            assert!(!top.exists());
        }
    }
}
