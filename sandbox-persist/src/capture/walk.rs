//! The look at a workspace: one `lstat` for every name, on all cores, and nothing is read but `.gitignore` files.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, RawDir};
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};

use super::rules::Rules;
use super::scan::{Content, Dir, Entry, Kind, Scan, Stat};
use crate::cancel::{Cancel, Phase, Progress, ProgressFn};
use crate::git::{HeadTree, TreeEntry};
use crate::ignore::{self, Patterns};
use crate::oid::ObjectId;
use crate::path;
use crate::side::SkipReason;
use crate::vault::Objects;

/// One `.gitignore`, and those above it.
#[derive(Debug)]
struct Ignores {
    base: usize,
    patterns: Patterns,
    above: Option<Arc<Ignores>>,
}

impl Ignores {
    fn verdict(&self, path: &[u8], is_dir: bool) -> bool {
        let mut level = Some(self);
        while let Some(ignores) = level {
            if let Some(verdict) = ignores.patterns.verdict(&path[ignores.base..], is_dir) {
                return verdict;
            }
            level = ignores.above.as_deref();
        }
        false
    }
}

struct Task {
    path: Box<[u8]>,
    ignores: Option<Arc<Ignores>>,
    is_ignored: bool,
}

#[derive(Default)]
struct Queue {
    tasks: Vec<Task>,
    /// Threads that have a task, and may bring more.
    busy: usize,
    failure: Option<Error>,
}

/// What a walk is given.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    pub(crate) root: BorrowedFd<'a>,
    pub(crate) rules: &'a Rules,
    /// The look before, whose contents hold for files that have not changed.
    pub(crate) previous: Option<&'a Scan>,
    /// What `HEAD` has is captured, ignored or not.
    pub(crate) head_tree: Option<&'a HeadTree>,
    pub(crate) objects: &'a Objects,
    pub(crate) threads: usize,
    pub(crate) progress: Option<&'a ProgressFn>,
    pub(crate) cancel: &'a Cancel,
}

impl Walk<'_> {
    pub(crate) fn run(&self) -> Result<Scan> {
        let queue = Mutex::new(Queue::default());
        queue.lock().unwrap_or_else(PoisonError::into_inner).tasks.push(Task {
            path: Box::default(),
            ignores: None,
            is_ignored: false,
        });
        let wake = Condvar::new();
        let seen = AtomicU64::new(0);
        let found = std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..self.threads).map(|_| scope.spawn(|| self.work(&queue, &wake, &seen))).collect();
            workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
        });
        let mut dirs = BTreeMap::new();
        for part in found {
            dirs.extend(
                part.map_err(|_| Error::new(ErrorKind::Unexpected, "a thread of the walk panicked"))?,
            );
        }
        match queue.into_inner().unwrap_or_else(PoisonError::into_inner).failure {
            Some(failure) => Err(failure),
            None => Ok(Scan { dirs, checked_keys: self.rules.private_keys }),
        }
    }

    fn work(&self, queue: &Mutex<Queue>, wake: &Condvar, seen: &AtomicU64) -> Vec<(Box<[u8]>, Arc<Dir>)> {
        let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
        let objects = OnceCell::new();
        let mut buffer = vec![MaybeUninit::uninit(); 1 << 15];
        let mut found = Vec::new();
        loop {
            let task = {
                let mut queue = lock();
                loop {
                    if queue.failure.is_some() || (queue.tasks.is_empty() && queue.busy == 0) {
                        wake.notify_all();
                        return found;
                    }
                    if let Some(task) = queue.tasks.pop() {
                        queue.busy += 1;
                        break task;
                    }
                    queue = wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let mut below = Vec::new();
            let looked =
                self.cancel.check().and_then(|()| self.look(&task, &objects, &mut buffer, &mut below));
            let mut queue = lock();
            queue.busy -= 1;
            queue.tasks.append(&mut below);
            match looked {
                Ok(Some(dir)) => {
                    let count = dir.entries.len() as u64;
                    found.push((task.path, dir));
                    let files = seen.fetch_add(count, Ordering::Relaxed) + count;
                    if let Some(progress) = self.progress.filter(|_| found.len() % 64 == 0) {
                        progress.tell(Progress { phase: Phase::Scanning, files, total: None, bytes: 0 });
                    }
                }
                Ok(None) => {}
                Err(failure) => queue.failure = Some(failure),
            }
            drop(queue);
            wake.notify_all();
        }
    }

    /// Lists one directory; `None` where it is gone meanwhile.
    fn look(
        &self,
        task: &Task,
        objects: &OnceCell<Option<git2::Repository>>,
        buffer: &mut [MaybeUninit<u8>],
        below: &mut Vec<Task>,
    ) -> Result<Option<Arc<Dir>>> {
        let dir = match crate::beneath::open_dir(self.root, &task.path) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !task.path.is_empty() => return Ok(None),
            Err(Errno::ACCESS | Errno::PERM) if !task.path.is_empty() => {
                let tree = self.previous.and_then(|scan| scan.dirs.get(&task.path)).map(|before| before.tree);
                let tree = tree.unwrap_or(ObjectId::ZERO);
                return Ok(Some(Arc::new(Dir { is_unreadable: true, tree, ..Dir::default() })));
            }
            Err(errno) => return Err(self.failed("open the directory", &task.path, errno)),
        };
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut list = RawDir::new(dir.as_fd(), buffer);
        while let Some(entry) = list.next() {
            let entry = entry.map_err(|errno| self.failed("list", &task.path, errno))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.into());
            }
        }
        names.sort_unstable();

        let has = |name: &[u8]| names.binary_search_by(|found| (**found).cmp(name)).is_ok();
        let ignores = if has(b".gitignore") { self.read_ignores(task) } else { task.ignores.clone() };
        let before = self.previous.and_then(|scan| scan.dirs.get(&task.path));
        let tree = OnceCell::new();
        let mut found = Dir {
            entries: Vec::with_capacity(names.len()),
            is_repository: !task.path.is_empty() && has(b".git"),
            is_ignored: task.is_ignored,
            is_unreadable: false,
            tree: ObjectId::ZERO,
        };
        for name in names {
            let path = path::join(&task.path, &name);
            let Ok(stat) = lstat(dir.as_fd(), &name) else { continue };
            let is_dir = stat.file_type() == FileType::Directory;
            if *name == *b".git" {
                continue;
            }
            let mut is_ignored = task.is_ignored;
            if !is_ignored {
                is_ignored = ignores.as_ref().is_some_and(|ignores| ignores.verdict(&path, is_dir));
            }
            if is_ignored {
                let tracked = tree.get_or_init(|| self.head_dir(objects, &task.path));
                let tracked = tracked.iter().flatten().find(|entry| entry.name == name);
                // A directory that git knows as a submodule has nothing of ours in it.
                if tracked.is_none_or(|entry| entry.is_dir() != is_dir) {
                    continue;
                }
            }
            let kind = self.kind_of(&path, &name, &stat);
            if kind == Kind::Dir {
                below.push(Task {
                    path: path.clone().into_boxed_slice(),
                    ignores: ignores.clone(),
                    is_ignored,
                });
            }
            found.entries.push(self.entry(name, kind, stat, before));
        }
        Ok(Some(match before {
            // Nothing is new: the parts are shared with the look before.
            Some(before) if same_but_tree(before, &found) => Arc::clone(before),
            _ => Arc::new(found),
        }))
    }

    fn entry(&self, name: Box<[u8]>, kind: Kind, stat: Stat, before: Option<&Arc<Dir>>) -> Entry {
        let known = before
            .and_then(|before| before.entry(&name))
            .filter(|entry| entry.stat == stat && entry.content == Content::Known);
        match (kind, known) {
            (Kind::File, Some(known))
                if matches!(known.kind, Kind::File) || self.is_still_secret(known.kind) =>
            {
                known.clone()
            }
            (Kind::Symlink, Some(known)) if known.kind == Kind::Symlink => known.clone(),
            (Kind::Dir, _) => {
                let id = before
                    .and_then(|before| before.entry(&name))
                    .filter(|entry| entry.kind == Kind::Dir)
                    .map_or(ObjectId::ZERO, |entry| entry.id);
                Entry { name, kind, content: Content::Known, is_pointer: false, stat, id }
            }
            (Kind::Skipped(_), _) => {
                Entry { name, kind, content: Content::Known, is_pointer: false, stat, id: ObjectId::ZERO }
            }
            _ => Entry { name, kind, content: Content::Unread, is_pointer: false, stat, id: ObjectId::ZERO },
        }
    }

    fn is_still_secret(&self, kind: Kind) -> bool {
        self.rules.private_keys && kind == Kind::Skipped(SkipReason::PrivateKey)
    }

    fn kind_of(&self, path: &[u8], name: &[u8], stat: &Stat) -> Kind {
        if path::is_forbidden_name(name) {
            return Kind::Skipped(SkipReason::ForbiddenName);
        }
        let file_type = stat.file_type();
        if let Some(reason) = self.rules.refuses(path, name, file_type == FileType::Directory) {
            return Kind::Skipped(reason);
        }
        match file_type {
            FileType::Directory if is_too_deep(path) => Kind::Skipped(SkipReason::TooDeep),
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Symlink,
            FileType::RegularFile if self.rules.max_file.is_some_and(|max| stat.size > max) => {
                Kind::Skipped(SkipReason::TooLarge)
            }
            FileType::RegularFile => Kind::File,
            _ => Kind::Skipped(SkipReason::Special),
        }
    }

    /// A file that cannot be read ignores nothing: more is captured then.
    fn read_ignores(&self, task: &Task) -> Option<Arc<Ignores>> {
        let path = path::join(&task.path, b".gitignore");
        let text = crate::beneath::read_small(self.root, &path, ignore::MAX_BYTES).unwrap_or_default();
        let patterns = Patterns::parse(&text);
        if patterns.is_empty() {
            return task.ignores.clone();
        }
        let base = if task.path.is_empty() { 0 } else { task.path.len() + 1 };
        Some(Arc::new(Ignores { base, patterns, above: task.ignores.clone() }))
    }

    /// The directory as `HEAD` has it, which is asked only where something is ignored.
    fn head_dir(&self, objects: &OnceCell<Option<git2::Repository>>, path: &[u8]) -> Option<Vec<TreeEntry>> {
        let repository = objects.get_or_init(|| self.objects.open().ok()).as_ref()?;
        self.head_tree?.dir(repository, path)
    }

    fn failed(&self, what: &str, path: &[u8], errno: Errno) -> Error {
        crate::error::io(what, crate::WorkPath::new(path).as_path(), errno)
    }
}

fn is_too_deep(path: &[u8]) -> bool {
    path.len() > 32 << 10 || path.iter().filter(|byte| **byte == b'/').count() >= 1000
}

/// The trees of directories are made later, from what is found now.
fn same_but_tree(before: &Dir, found: &Dir) -> bool {
    before.is_repository == found.is_repository
        && before.is_ignored == found.is_ignored
        && !before.is_unreadable
        && before.entries == found.entries
}

fn lstat(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    let mut space = [0u8; 256];
    let Some(space) = space.get_mut(..=name.len()) else { return Err(Errno::NAMETOOLONG) };
    space[..name.len()].copy_from_slice(name);
    let name = CStr::from_bytes_with_nul(space).map_err(|_| Errno::INVAL)?;
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|raw| Stat::of(&raw))
}
