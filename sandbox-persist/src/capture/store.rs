//! Reading what changed, on all cores, into one pack.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::time::ClockId;
use sandhold_core::{Error, ErrorKind, Result};
use sha1::Digest;

use super::rules::{self, Rules};
use super::scan::{Content, Entry, Kind, Scan, Stat};
use super::stream;
use crate::cancel::{Cancel, Phase, Progress, ProgressFn};
use crate::oid::ObjectId;
use crate::side::SkipReason;
use crate::vault::{Deflater, ObjectKind, Objects, PackWriter};
use crate::{beneath, path};

/// Above this size a file is not held in memory.
const WHOLE: u64 = 4 << 20;
/// How often a file is read again that changed while it was read.
const TRIES: u32 = 3;

/// What reading the files of a scan is given.
#[derive(Debug)]
pub(crate) struct Store<'a> {
    pub(crate) root: BorrowedFd<'a>,
    pub(crate) rules: &'a Rules,
    pub(crate) objects: &'a Objects,
    /// Where new contents go; without it they are hashed and no more.
    pub(crate) pack: Option<&'a Mutex<PackWriter>>,
    /// The look before, and the tree of the snapshot before, for what cannot be read now.
    pub(crate) previous: Option<&'a Scan>,
    pub(crate) base_tree: Option<ObjectId>,
    pub(crate) threads: usize,
    pub(crate) progress: Option<&'a ProgressFn>,
    pub(crate) cancel: &'a Cancel,
}

/// What one thread keeps from file to file.
struct Worker {
    repository: git2::Repository,
    odb_is_empty: bool,
    deflater: Deflater,
    content: Vec<u8>,
}

/// A file to read: its directory and its place there.
type Job = (Box<[u8]>, usize);

impl Store<'_> {
    /// Reads all that is unread, and completes the entries. Returns how many KiB that were, and one for each file.
    pub(crate) fn run(&self, scan: &mut Scan) -> Result<u64> {
        let jobs: Vec<Job> = scan
            .dirs
            .iter()
            .flat_map(|(path, dir)| {
                let unread = |entry: &Entry| entry.content == Content::Unread;
                let found = dir.entries.iter().enumerate().filter(move |(_, entry)| unread(entry));
                found.map(move |(index, _)| (path.clone(), index))
            })
            .collect();
        if jobs.is_empty() {
            return Ok(0);
        }
        let next = AtomicUsize::new(0);
        let bytes = AtomicU64::new(0);
        let done = std::thread::scope(|scope| {
            let scan = &*scan;
            let workers: Vec<_> = (0..self.threads.min(jobs.len().div_ceil(16)))
                .map(|_| scope.spawn(|| self.work(scan, &jobs, &next, &bytes)))
                .collect();
            workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
        });
        let mut entries: BTreeMap<Box<[u8]>, Vec<(usize, Entry)>> = BTreeMap::new();
        for part in done {
            let part =
                part.map_err(|_| Error::new(ErrorKind::Unexpected, "a thread of the capture panicked"))??;
            for ((path, index), entry) in part {
                entries.entry(path).or_default().push((index, entry));
            }
        }
        for (path, changed) in entries {
            let Some(dir) = scan.dirs.get_mut(&path) else { continue };
            let dir = Arc::make_mut(dir);
            for (index, entry) in changed {
                if let Some(place) = dir.entries.get_mut(index) {
                    *place = entry;
                }
            }
        }
        Ok(jobs.len() as u64 + bytes.into_inner() / 1024)
    }

    fn work(
        &self,
        scan: &Scan,
        jobs: &[Job],
        next: &AtomicUsize,
        bytes: &AtomicU64,
    ) -> Result<Vec<(Job, Entry)>> {
        let mut worker = Worker {
            repository: self.objects.open()?,
            odb_is_empty: self.objects.is_empty()?,
            deflater: Deflater::new(),
            content: Vec::new(),
        };
        let mut done = Vec::new();
        let mut at: Option<(&[u8], OwnedFd)> = None;
        // A few at a time, so that neighbours share their directory and the big ones are spread.
        const FEW: usize = 16;
        loop {
            let from = next.fetch_add(FEW, Ordering::Relaxed);
            let Some(few) = jobs.get(from..jobs.len().min(from + FEW)).filter(|few| !few.is_empty()) else {
                return Ok(done);
            };
            for (path, index) in few {
                // A failure of one ends the others here.
                self.cancel.check().inspect_err(|_| next.store(jobs.len(), Ordering::Relaxed))?;
                let Some(entry) = scan.dirs.get(path).and_then(|dir| dir.entries.get(*index)) else {
                    continue;
                };
                if at.as_ref().is_none_or(|(open, _)| **open != **path) {
                    at = beneath::open_dir(self.root, path).ok().map(|dir| (&**path, dir));
                }
                let mut entry = entry.clone();
                match &at {
                    Some((_, dir)) => self
                        .read(&mut worker, dir.as_fd(), path, &mut entry)
                        .inspect_err(|_| next.store(jobs.len(), Ordering::Relaxed))?,
                    None => entry.kind = Kind::Skipped(SkipReason::Vanished),
                }
                bytes.fetch_add(entry.stat.size, Ordering::Relaxed);
                done.push(((path.clone(), *index), entry));
            }
            if let Some(progress) = self.progress {
                progress.tell(Progress {
                    phase: Phase::Storing,
                    files: (from + few.len()) as u64,
                    total: Some(jobs.len() as u64),
                    bytes: bytes.load(Ordering::Relaxed),
                });
            }
        }
    }

    /// Completes one entry, whatever has become of it; only the vault's own failures are errors.
    fn read(&self, worker: &mut Worker, dir: BorrowedFd<'_>, path: &[u8], entry: &mut Entry) -> Result<()> {
        let read_at = now();
        let outcome = match entry.kind {
            Kind::Symlink => self.read_link(worker, dir, entry),
            _ => self.read_file(worker, dir, entry),
        };
        match outcome? {
            Ok(content) => {
                let racy = content == Content::Known && entry.stat.is_racy(read_at);
                entry.content = if racy { Content::Racy } else { content };
            }
            Err(Errno::NOENT | Errno::NOTDIR) => entry.kind = Kind::Skipped(SkipReason::Vanished),
            // It has become a symlink, a pipe or a device meanwhile; the next look will say.
            Err(Errno::LOOP | Errno::INVAL | Errno::NXIO) => entry.kind = Kind::Skipped(SkipReason::Vanished),
            Err(Errno::FBIG) => match self.kept(worker, path, &entry.name).filter(|_| self.rules.keep_last) {
                Some(id) => (entry.id, entry.content) = (id, Content::Kept),
                None => entry.kind = Kind::Skipped(SkipReason::TooLarge),
            },
            Err(Errno::ACCESS | Errno::PERM | Errno::IO) => match self.kept(worker, path, &entry.name) {
                Some(id) => (entry.id, entry.content) = (id, Content::Kept),
                None => entry.kind = Kind::Skipped(SkipReason::Unreadable),
            },
            Err(errno) => {
                let path = path::join(path, &entry.name);
                return Err(crate::error::io("read", crate::WorkPath::new(path).as_path(), errno));
            }
        }
        if matches!(entry.kind, Kind::Skipped(reason) if reason != SkipReason::PrivateKey) {
            // Looked at again by the next capture.
            entry.content = Content::Unread;
        }
        Ok(())
    }

    fn read_link(
        &self,
        worker: &mut Worker,
        dir: BorrowedFd<'_>,
        entry: &mut Entry,
    ) -> Result<Result<Content, Errno>> {
        let target = match rustix::fs::readlinkat(dir, OsStr::from_bytes(&entry.name), Vec::new()) {
            Ok(target) => target,
            Err(errno) => return Ok(Err(errno)),
        };
        worker.content.clear();
        worker.content.extend_from_slice(target.as_bytes());
        entry.id = self.keep(worker)?;
        Ok(Ok(Content::Known))
    }

    fn read_file(
        &self,
        worker: &mut Worker,
        dir: BorrowedFd<'_>,
        entry: &mut Entry,
    ) -> Result<Result<Content, Errno>> {
        for attempt in 1.. {
            let file = match beneath::open_file(dir, &entry.name) {
                Ok(file) => file,
                Err(errno) => return Ok(Err(errno)),
            };
            let before = match rustix::fs::fstat(&file) {
                Ok(raw) => Stat::of(&raw),
                Err(errno) => return Ok(Err(errno)),
            };
            entry.stat = before;
            if self.rules.is_too_large(before.size) {
                return Ok(Err(Errno::FBIG));
            }
            let is_last = attempt == TRIES;
            let stored = match before.size > WHOLE {
                true => self.read_streamed(worker, &file, entry, is_last)?,
                false => self.read_whole(worker, &file, entry, is_last)?,
            };
            match stored {
                Ok(true) => return Ok(Ok(Content::Known)),
                Ok(false) if is_last => return Ok(Ok(Content::Unstable)),
                Ok(false) => {}
                Err(errno) => return Ok(Err(errno)),
            }
        }
        Ok(Err(Errno::IO))
    }

    /// Returns whether the file was still while it was read; one that was not is stored at the last try alone.
    fn read_whole(
        &self,
        worker: &mut Worker,
        file: &File,
        entry: &mut Entry,
        is_last: bool,
    ) -> Result<Result<bool, Errno>> {
        worker.content.clear();
        // One byte more than there should be tells that it grew.
        let limit = if is_last { WHOLE * 4 } else { entry.stat.size + 1 };
        worker.content.reserve(usize::try_from(entry.stat.size + 1).unwrap_or(0));
        if let Err(failure) = file.take(limit).read_to_end(&mut worker.content) {
            return Ok(Err(Errno::from_io_error(&failure).unwrap_or(Errno::IO)));
        }
        let is_still = worker.content.len() as u64 == entry.stat.size && unchanged(file, &entry.stat);
        if is_still || is_last {
            if self.rules.private_keys && rules::is_private_key(&worker.content) {
                entry.kind = Kind::Skipped(SkipReason::PrivateKey);
            } else {
                entry.is_pointer = rules::is_lfs_pointer(&worker.content);
                entry.id = self.keep(worker)?;
            }
        }
        Ok(Ok(is_still))
    }

    fn read_streamed(
        &self,
        worker: &mut Worker,
        file: &File,
        entry: &mut Entry,
        is_last: bool,
    ) -> Result<Result<bool, Errno>> {
        let Some(pack) = self.pack else {
            entry.id = match blob_id(file) {
                Ok(id) => id,
                Err(failure) => return Ok(Err(Errno::from_io_error(&failure).unwrap_or(Errno::IO))),
            };
            return Ok(Ok(unchanged(file, &entry.stat)));
        };
        let mut pack = pack.lock().unwrap_or_else(PoisonError::into_inner);
        let mut packed = pack.begin(ObjectKind::Blob, entry.stat.size)?;
        let streamed = stream::deflate(file, entry.stat.size, self.threads, self.cancel, |deflated| {
            packed.write(deflated)
        })?;
        let streamed = match streamed {
            Ok(streamed) => streamed,
            Err(errno) => return Ok(Err(errno)),
        };
        let is_still = streamed.is_complete && unchanged(file, &entry.stat);
        if !streamed.is_complete && is_last {
            // It shrinks whenever it is looked at; there is no content of the size that was begun with.
            return Ok(Err(Errno::NOENT));
        }
        if self.rules.private_keys && rules::is_private_key(&streamed.head) {
            entry.kind = Kind::Skipped(SkipReason::PrivateKey);
            return Ok(Ok(is_still));
        }
        if is_still || is_last {
            entry.id = streamed.id;
            // Where the vault has it, what was written is taken back by the drop.
            if !worker.has(streamed.id) {
                packed.finish(streamed.id)?;
            }
        }
        Ok(Ok(is_still))
    }

    /// Stores the content that the worker holds, where it is new.
    fn keep(&self, worker: &mut Worker) -> Result<ObjectId> {
        let id = ObjectId::of("blob", &worker.content);
        let Some(pack) = self.pack else { return Ok(id) };
        let packed = || pack.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.has(id) || packed().contains(id) {
            return Ok(id);
        }
        let size = worker.content.len() as u64;
        let deflated = worker.deflater.deflate(&worker.content)?;
        packed().add(ObjectKind::Blob, id, size, deflated)?;
        Ok(id)
    }

    /// What is known of a file that cannot be read now.
    fn kept(&self, worker: &Worker, dir: &[u8], name: &[u8]) -> Option<ObjectId> {
        let path = path::join(dir, name);
        let before =
            self.previous.and_then(|scan| scan.entry(&path)).filter(|entry| entry.kind == Kind::File);
        if let Some(entry) = before.filter(|entry| entry.content != Content::Unread) {
            return Some(entry.id);
        }
        let tree = worker.repository.find_tree(self.base_tree?.into()).ok()?;
        let entry = tree.get_path(crate::WorkPath::new(path).as_path()).ok()?;
        (entry.kind() == Some(git2::ObjectType::Blob)).then(|| entry.id().into())
    }
}

impl Worker {
    fn has(&self, id: ObjectId) -> bool {
        !self.odb_is_empty
            && self
                .repository
                .odb()
                .is_ok_and(|odb| odb.exists_ext(id.into(), git2::OdbLookupFlags::NO_REFRESH))
    }
}

/// The id of a file's content as it is now.
pub(crate) fn blob_id(mut file: &File) -> std::io::Result<ObjectId> {
    let mut hash = ObjectId::hasher("blob", file.metadata()?.len());
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(ObjectId::from_bytes(hash.finalize().into())),
            Ok(count) => hash.update(&buffer[..count]),
            Err(failure) if failure.kind() == std::io::ErrorKind::Interrupted => {}
            Err(failure) => return Err(failure),
        }
    }
}

fn unchanged(file: &File, before: &Stat) -> bool {
    rustix::fs::fstat(file).is_ok_and(|raw| Stat::of(&raw) == *before)
}

fn now() -> (i64, u32) {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}
