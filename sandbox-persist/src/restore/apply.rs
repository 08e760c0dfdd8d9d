//! Writing a plan, below the opened directory and nowhere else.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};

use super::plan::{EXECUTABLE, Item, Plan, SYMLINK, Wanted};
use crate::cancel::{Cancel, Phase, Progress, ProgressFn};
use crate::path::{self, WorkPath};
use crate::vault::Objects;
use crate::{beneath, error, failpoint};

/// What begins the names of files that have not got their own yet.
pub(crate) const STAGED: &str = ".sandhold-restore-";

/// Writes files below `root`.
#[derive(Debug)]
pub(crate) struct Apply<'a> {
    pub(crate) root: BorrowedFd<'a>,
    pub(crate) objects: &'a Objects,
    /// Whether there is nothing yet, so that nothing has to be replaced.
    pub(crate) is_new: bool,
    pub(crate) threads: usize,
    pub(crate) progress: Option<&'a ProgressFn>,
    pub(crate) cancel: &'a Cancel,
}

impl Apply<'_> {
    pub(crate) fn run(&self, plan: &Plan, wanted: &Wanted) -> Result<()> {
        self.delete(plan, wanted)?;
        self.make_dirs(wanted)?;
        self.write(&plan.writes)?;
        failpoint::pass("restore.done");
        Ok(())
    }

    /// Removes what the snapshot has not, and directories that are empty by that.
    fn delete(&self, plan: &Plan, wanted: &Wanted) -> Result<()> {
        for path in &plan.deletes {
            self.cancel.check()?;
            let (dir, name) = path::split(path);
            let removed = beneath::open_dir(self.root, dir)
                .and_then(|dir| rustix::fs::unlinkat(dir, OsStr::from_bytes(name), AtFlags::empty()));
            match removed {
                Ok(()) => failpoint::pass("restore.deleted"),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("remove", path, errno)),
            }
            let mut above = dir;
            while !above.is_empty() && !wanted.dirs.contains(above) {
                let (parent, name) = path::split(above);
                let removed = beneath::open_dir(self.root, parent)
                    .and_then(|dir| rustix::fs::unlinkat(dir, OsStr::from_bytes(name), AtFlags::REMOVEDIR));
                match removed {
                    Ok(()) | Err(Errno::NOENT) => above = parent,
                    // What was never captured is in it.
                    Err(Errno::NOTEMPTY | Errno::EXIST) => break,
                    Err(errno) => return Err(failed("remove", above, errno)),
                }
            }
        }
        Ok(())
    }

    fn make_dirs(&self, wanted: &Wanted) -> Result<()> {
        for path in &wanted.dirs {
            let (dir, name) = path::split(path);
            let made = beneath::open_dir(self.root, dir).and_then(|dir| {
                rustix::fs::mkdirat(dir, OsStr::from_bytes(name), Mode::from_raw_mode(0o755))
            });
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("make the directory", path, errno)),
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[(Box<[u8]>, Item)]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let bytes = AtomicU64::new(0);
        let done = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads.min(writes.len().div_ceil(16)))
                .map(|_| scope.spawn(|| self.work(writes, &next, &bytes)))
                .collect();
            workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
        });
        done.into_iter().try_for_each(|part| {
            part.map_err(|_| Error::new(ErrorKind::Unexpected, "a thread of the restore panicked"))?
        })
    }

    fn work(&self, writes: &[(Box<[u8]>, Item)], next: &AtomicUsize, bytes: &AtomicU64) -> Result<()> {
        const FEW: usize = 64;
        let stop = || next.store(writes.len(), Ordering::Relaxed);
        let repository = self.objects.open()?;
        let odb = repository.odb().map_err(|failure| error::git("open the vault", failure))?;
        let mut at: Option<(&[u8], OwnedFd)> = None;
        loop {
            let from = next.fetch_add(FEW, Ordering::Relaxed);
            let Some(few) = writes.get(from..writes.len().min(from + FEW)).filter(|few| !few.is_empty())
            else {
                return Ok(());
            };
            for (path, item) in few {
                self.cancel.check().inspect_err(|_| stop())?;
                let (dir, name) = path::split(path);
                let dir = match &at {
                    Some((open, fd)) if *open == dir => fd,
                    _ => {
                        let fd = beneath::open_dir(self.root, dir)
                            .map_err(|errno| failed("open the directory of", path, errno))
                            .inspect_err(|_| stop())?;
                        &at.insert((dir, fd)).1
                    }
                };
                let blob = odb
                    .read(item.id.into())
                    .map_err(|failure| {
                        error::git(format_args!("read {} of {:?}", item.id, WorkPath::new(&**path)), failure)
                    })
                    .inspect_err(|_| stop())?;
                bytes.fetch_add(blob.len() as u64, Ordering::Relaxed);
                self.put(dir.as_fd(), name, item, blob.data())
                    .map_err(|errno| failed("write", path, errno))
                    .inspect_err(|_| stop())?;
            }
            if let Some(progress) = self.progress {
                progress.tell(Progress {
                    phase: Phase::Restoring,
                    files: (from + few.len()) as u64,
                    total: Some(writes.len() as u64),
                    bytes: bytes.load(Ordering::Relaxed),
                });
            }
        }
    }

    /// Makes one file or symlink; over another one by a rename, so that it is the old or the new.
    fn put(&self, dir: BorrowedFd<'_>, name: &[u8], item: &Item, content: &[u8]) -> Result<(), Errno> {
        let own = OsStr::from_bytes(name);
        if self.is_new {
            match make(dir, own, item, content) {
                // A restore before this one came as far as here.
                Err(Errno::EXIST) => {}
                answer => return answer,
            }
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
        let staged = format!("{STAGED}{:016x}", u64::from_le_bytes(random));
        let put = make(dir, OsStr::new(&staged), item, content).and_then(|()| {
            failpoint::pass("restore.staged");
            match rustix::fs::renameat(dir, &*staged, dir, own) {
                // An empty directory is in its place: what was in it has been removed.
                Err(Errno::ISDIR) => {
                    rustix::fs::unlinkat(dir, own, AtFlags::REMOVEDIR)?;
                    rustix::fs::renameat(dir, &*staged, dir, own)
                }
                answer => answer,
            }
        });
        if put.is_err() {
            let _ = rustix::fs::unlinkat(dir, &*staged, AtFlags::empty());
        }
        failpoint::pass("restore.replaced");
        put
    }
}

/// Makes a file that is not there. Neither setuid nor any other bit beyond git's own is ever set.
fn make(dir: BorrowedFd<'_>, name: &OsStr, item: &Item, content: &[u8]) -> Result<(), Errno> {
    if item.mode == SYMLINK {
        return rustix::fs::symlinkat(OsStr::from_bytes(content), dir, name);
    }
    let mode = Mode::from_raw_mode(if item.mode == EXECUTABLE { 0o755 } else { 0o644 });
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, name, flags, mode)?);
    file.write_all(content).map_err(|failure| Errno::from_io_error(&failure).unwrap_or(Errno::IO))
}

fn failed(what: &str, path: &[u8], errno: Errno) -> Error {
    error::io(what, WorkPath::new(path).as_path(), errno)
}
