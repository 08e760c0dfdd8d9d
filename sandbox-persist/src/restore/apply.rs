//! Writing a plan, below the opened directory and nowhere else.

use std::cell::OnceCell;
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
use crate::oid::ObjectId;
use crate::path::{self, WorkPath};
use crate::vault::{Objects, Store};
use crate::{beneath, error, failpoint};

/// What begins the names of files that have not got their own yet.
pub(crate) const STAGED: &str = ".sandhold-restore-";

/// Above this size a file is not held in memory.
const WHOLE: usize = 4 << 20;

/// What a file is to hold.
enum Content<'a> {
    Whole(&'a [u8]),
    Stored(&'a Store, ObjectId),
}

/// Why a file was not made: the workspace's file system, or the vault.
enum Failure {
    Os(Errno),
    Vault(Error),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

/// Writes files below `root`.
#[derive(Debug)]
pub(crate) struct Apply<'a> {
    pub(crate) root: BorrowedFd<'a>,
    pub(crate) objects: &'a Objects,
    /// Whether there is nothing yet, so that nothing has to be replaced.
    pub(crate) is_new: bool,
    /// Whether a file is on the disk before it takes the place of another.
    pub(crate) is_synced: bool,
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
                Err(errno) => return Err(failed_at("remove", path, errno)),
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
                    Err(errno) => return Err(failed_at("remove", above, errno)),
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
                Err(errno) => return Err(failed_at("make the directory", path, errno)),
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
        let store = OnceCell::new();
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
                            .map_err(|errno| failed_at("open the directory of", path, errno))
                            .inspect_err(|_| stop())?;
                        &at.insert((dir, fd)).1
                    }
                };
                let failed = |failure| {
                    error::git(format_args!("read {} of {:?}", item.id, WorkPath::new(&**path)), failure)
                };
                let (size, _) = odb.read_header(item.id.into()).map_err(failed).inspect_err(|_| stop())?;
                bytes.fetch_add(size as u64, Ordering::Relaxed);
                let blob;
                let content = if size > WHOLE && item.mode != SYMLINK {
                    let opened = store.get_or_init(|| self.objects.store()).as_ref();
                    Content::Stored(opened.map_err(Clone::clone).inspect_err(|_| stop())?, item.id)
                } else {
                    blob = odb.read(item.id.into()).map_err(failed).inspect_err(|_| stop())?;
                    Content::Whole(blob.data())
                };
                self.put(dir.as_fd(), name, item, &content)
                    .map_err(|failure| match failure {
                        Failure::Os(errno) => failed_at("write", path, errno),
                        Failure::Vault(failure) => failure,
                    })
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
    fn put(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        item: &Item,
        content: &Content<'_>,
    ) -> Result<(), Failure> {
        let own = OsStr::from_bytes(name);
        if self.is_new {
            match make(dir, own, item, content, false) {
                // A restore before this one came as far as here.
                Err(Failure::Os(Errno::EXIST)) => {}
                answer => return answer,
            }
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
        let staged = format!("{STAGED}{:016x}", u64::from_le_bytes(random));
        let put = make(dir, OsStr::new(&staged), item, content, self.is_synced).and_then(|()| {
            failpoint::pass("restore.staged");
            match rustix::fs::renameat(dir, &*staged, dir, own) {
                // An empty directory is in its place: what was in it has been removed.
                Err(Errno::ISDIR) => {
                    rustix::fs::unlinkat(dir, own, AtFlags::REMOVEDIR)?;
                    Ok(rustix::fs::renameat(dir, &*staged, dir, own)?)
                }
                answer => Ok(answer?),
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
fn make(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    item: &Item,
    content: &Content<'_>,
    is_synced: bool,
) -> Result<(), Failure> {
    if item.mode == SYMLINK {
        let Content::Whole(target) = content else { return Err(Errno::NAMETOOLONG.into()) };
        return Ok(rustix::fs::symlinkat(OsStr::from_bytes(target), dir, name)?);
    }
    let mode = Mode::from_raw_mode(if item.mode == EXECUTABLE { 0o755 } else { 0o644 });
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, name, flags, mode)?);
    fill(&mut file, content)?;
    if is_synced {
        rustix::fs::fsync(&file)?;
    }
    Ok(())
}

fn fill(file: &mut File, content: &Content<'_>) -> Result<(), Failure> {
    let mut write = |part: &[u8]| {
        file.write_all(part).map_err(|failure| Errno::from_io_error(&failure).unwrap_or(Errno::IO))
    };
    match content {
        Content::Whole(content) => Ok(write(content)?),
        Content::Stored(store, id) => {
            let mut broken = None;
            let given = store.inflate(*id, |part| {
                write(part).map_err(|errno| {
                    broken = Some(errno);
                    Error::new(ErrorKind::Unexpected, "the file cannot be written")
                })
            });
            match (broken, given) {
                (Some(errno), _) => Err(errno.into()),
                (None, Ok(true)) => Ok(()),
                // A delta, which is put together in memory.
                (None, Ok(false)) => match store.read(*id).map_err(Failure::Vault)? {
                    Some((_, content)) => Ok(write(&content)?),
                    None => Err(Errno::NOENT.into()),
                },
                (None, Err(failure)) => Err(Failure::Vault(failure)),
            }
        }
    }
}

fn failed_at(what: &str, path: &[u8], errno: Errno) -> Error {
    error::io(what, WorkPath::new(path).as_path(), errno)
}
