//! The look at a workspace: one `lstat` for every name, on all cores, and nothing is read but `.gitignore` files.

use std::cell::OnceCell;
use std::collections::BTreeMap;
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
use crate::path::{self, WorkPath};
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
    /// Whether directories below that are known already are left as they are.
    is_alone: bool,
}

/// Directories by their paths.
type LookedAt = Vec<(Box<[u8]>, Arc<Dir>)>;

#[derive(Default)]
struct Queue {
    tasks: Vec<Task>,
    /// Threads that have a task, and may bring more.
    busy: usize,
    /// Whether a directory is gone that was to be looked at alone, so that the ones above are to be.
    is_lost: bool,
    failure: Option<Error>,
}

/// What a walk is given.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    pub(crate) root: BorrowedFd<'a>,
    pub(crate) rules: &'a Rules,
    /// The look before, whose contents hold for files that have not changed.
    pub(crate) previous: Option<&'a Scan>,
    /// The paths that are to be looked at, where that is known.
    pub(crate) dirty: Option<&'a [WorkPath]>,
    /// What `HEAD` has is captured, ignored or not.
    pub(crate) head_tree: Option<&'a HeadTree>,
    pub(crate) objects: &'a Objects,
    pub(crate) threads: usize,
    pub(crate) progress: Option<&'a ProgressFn>,
    pub(crate) cancel: &'a Cancel,
}

impl Walk<'_> {
    pub(crate) fn run(&self) -> Result<Scan> {
        if let (Some(dirty), Some(previous)) = (self.dirty, self.previous)
            && let Some(tasks) = self.tasks_of(dirty, previous)
            && let Some(found) = self.look_at(tasks)?
        {
            return Ok(self.merge(previous, found));
        }
        let all = Task { path: Box::default(), ignores: None, is_ignored: false, is_alone: false };
        let found = self.look_at(vec![all])?.unwrap_or_default();
        Ok(Scan { dirs: found.into_iter().collect(), checked_keys: self.rules.private_keys })
    }

    /// The directories to look at where these paths have changed; `None` where all of them are to be.
    fn tasks_of(&self, dirty: &[WorkPath], previous: &Scan) -> Option<Vec<Task>> {
        let mut dirs: BTreeMap<&[u8], bool> = BTreeMap::new();
        previous.dirs.get(&b""[..])?;
        for path in dirty.iter().map(WorkPath::as_bytes) {
            let (mut dir, name) = path::split(path);
            // A change of the patterns changes what is below.
            let with_below = name == b".gitignore";
            if path.is_empty() || with_below && dir.is_empty() || path.starts_with(b"/") {
                return None;
            }
            while !previous.dirs.contains_key(dir) {
                dir = path::split(dir).0;
            }
            *dirs.entry(dir).or_default() |= with_below;
            if previous.dirs.contains_key(path) {
                dirs.insert(path, true);
            }
        }
        // What was not still when it was read is read again, whoever says what.
        for (path, dir) in &previous.dirs {
            if dir.is_unreadable || dir.entries.iter().any(|entry| entry.content != Content::Known) {
                dirs.entry(path).or_default();
            }
        }
        let tasks = dirs.into_iter().map(|(path, with_below)| Task {
            path: path.into(),
            ignores: self.ignores_above(path),
            is_ignored: previous.dirs.get(path).is_some_and(|dir| dir.is_ignored),
            is_alone: !with_below,
        });
        Some(tasks.collect())
    }

    fn ignores_above(&self, path: &[u8]) -> Option<Arc<Ignores>> {
        let mut ignores = None;
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let above = (!path.is_empty()).then_some(0).into_iter().chain(ends);
        for end in above {
            let task = Task { path: path[..end].into(), ignores, is_ignored: false, is_alone: true };
            ignores = self.read_ignores(&task);
        }
        ignores
    }

    /// Puts what was looked at in the place of what was known of it.
    fn merge(&self, previous: &Scan, found: LookedAt) -> Scan {
        let mut dirs = previous.dirs.clone();
        for (at, dir) in &found {
            let Some(before) = previous.dirs.get(at).filter(|before| !Arc::ptr_eq(before, dir)) else {
                continue;
            };
            for gone in before.entries.iter().filter(|entry| entry.kind == Kind::Dir) {
                if dir.entry(&gone.name).is_none_or(|entry| entry.kind != Kind::Dir) {
                    let path = path::join(at, &gone.name);
                    let below = path::join(&path, b"");
                    dirs.retain(|known, _| **known != *path && !known.starts_with(&below));
                }
            }
        }
        dirs.extend(found);
        Scan { dirs, checked_keys: self.rules.private_keys }
    }

    /// Looks at directories, and at what is below them; `None` where one that was to be looked at alone is gone.
    fn look_at(&self, tasks: Vec<Task>) -> Result<Option<LookedAt>> {
        let threads =
            if tasks.iter().all(|task| task.is_alone) { tasks.len().div_ceil(16) } else { self.threads };
        let queue = Mutex::new(Queue { tasks, ..Queue::default() });
        let wake = Condvar::new();
        let seen = AtomicU64::new(0);
        let parts = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.clamp(1, self.threads))
                .map(|_| scope.spawn(|| self.work(&queue, &wake, &seen)))
                .collect();
            workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
        });
        let mut found = Vec::new();
        for part in parts {
            found.extend(
                part.map_err(|_| Error::new(ErrorKind::Unexpected, "a thread of the walk panicked"))?,
            );
        }
        let queue = queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        match queue.failure {
            Some(failure) => Err(failure),
            None => Ok(Some(found).filter(|_| !queue.is_lost)),
        }
    }

    fn work(&self, queue: &Mutex<Queue>, wake: &Condvar, seen: &AtomicU64) -> LookedAt {
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
                Ok(None) => queue.is_lost |= task.is_alone,
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
        let mut listed = Listed::default();
        let mut list = RawDir::new(dir.as_fd(), buffer);
        while let Some(entry) = list.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // Removed since it was opened.
                Err(Errno::NOENT) if !task.path.is_empty() => return Ok(None),
                Err(errno) => return Err(self.failed("list", &task.path, errno)),
            };
            let name = entry.file_name();
            // One that is gone meanwhile is none.
            if !matches!(name.to_bytes(), b"." | b"..")
                && let Ok(raw) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
            {
                listed.push(name.to_bytes(), Stat::of(&raw));
            }
        }
        listed.sort();

        let ignores = if listed.has(b".gitignore") { self.read_ignores(task) } else { task.ignores.clone() };
        let before = self.previous.and_then(|scan| scan.dirs.get(&task.path));
        let tree = OnceCell::new();
        let mut found = Found::new(before);
        let mut path = path::join(&task.path, b"");
        let prefix = path.len();
        for (name, stat) in listed.iter() {
            if name == b".git" {
                continue;
            }
            path.truncate(prefix);
            path.extend_from_slice(name);
            let is_dir = stat.file_type() == FileType::Directory;
            let mut is_ignored = task.is_ignored;
            if !is_ignored {
                is_ignored = ignores.as_ref().is_some_and(|ignores| ignores.verdict(&path, is_dir));
            }
            if is_ignored {
                let tracked = tree.get_or_init(|| self.head_dir(objects, &task.path));
                let tracked = tracked.iter().flatten().find(|entry| *entry.name == *name);
                // A directory that git knows as a submodule has nothing of ours in it.
                if tracked.is_none_or(|entry| entry.is_dir() != is_dir) {
                    continue;
                }
            }
            let kind = self.kind_of(&path, name, stat);
            if kind == Kind::Dir {
                let is_known =
                    task.is_alone && self.previous.is_some_and(|scan| scan.dirs.contains_key(&*path));
                if !is_known {
                    let (path, ignores) = (path.as_slice().into(), ignores.clone());
                    below.push(Task { path, ignores, is_ignored, is_alone: false });
                }
            }
            let known = found.before_of(name);
            match known {
                Some(known) if self.still_holds(known, kind, stat) => found.push_same(known),
                _ => found.push(new_entry(name, kind, *stat, known)),
            }
        }
        let is_repository = !task.path.is_empty() && listed.has(b".git");
        Ok(Some(found.into_dir(is_repository, task.is_ignored)))
    }

    /// Tells whether what is known of an entry is what would be found by reading it.
    fn still_holds(&self, known: &Entry, kind: Kind, stat: &Stat) -> bool {
        let is_same_kind = known.kind == kind
            || (kind == Kind::File
                && self.rules.private_keys
                && known.kind == Kind::Skipped(SkipReason::PrivateKey));
        known.stat == *stat && known.content == Content::Known && is_same_kind
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
            // Whether there is an earlier one to keep is known where it would be read.
            FileType::RegularFile if self.rules.is_too_large(stat.size) && !self.rules.keep_last => {
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
        crate::error::io(what, WorkPath::new(path).as_path(), errno)
    }
}

fn is_too_deep(path: &[u8]) -> bool {
    path.len() > 32 << 10 || path.iter().filter(|byte| **byte == b'/').count() >= 1000
}

/// An entry that is not the one of before. What is below a directory is not read here.
fn new_entry(name: &[u8], kind: Kind, stat: Stat, before: Option<&Entry>) -> Entry {
    let (content, id) = match kind {
        Kind::File | Kind::Symlink => (Content::Unread, ObjectId::ZERO),
        Kind::Dir => {
            let before = before.filter(|before| before.kind == Kind::Dir);
            (Content::Known, before.map_or(ObjectId::ZERO, |before| before.id))
        }
        Kind::Skipped(_) => (Content::Known, ObjectId::ZERO),
    };
    Entry { name: name.into(), kind, content, is_pointer: false, stat, id }
}

/// The names in a directory, in one piece of memory.
#[derive(Default)]
struct Listed {
    text: Vec<u8>,
    /// Where each name begins and ends.
    entries: Vec<(usize, usize, Stat)>,
}

impl Listed {
    fn push(&mut self, name: &[u8], stat: Stat) {
        let begins = self.text.len();
        self.text.extend_from_slice(name);
        self.entries.push((begins, self.text.len(), stat));
    }

    fn sort(&mut self) {
        let text = &self.text;
        self.entries.sort_unstable_by(|a, b| text[a.0..a.1].cmp(&text[b.0..b.1]));
    }

    fn has(&self, name: &[u8]) -> bool {
        self.entries.binary_search_by(|(begins, ends, _)| self.text[*begins..*ends].cmp(name)).is_ok()
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &Stat)> {
        self.entries.iter().map(|(begins, ends, stat)| (&self.text[*begins..*ends], stat))
    }
}

/// A directory that is compared with what it was, and is made only where it differs: in most nothing does.
struct Found<'a> {
    before: Option<&'a Arc<Dir>>,
    /// How far in the entries of before the names have come.
    at: usize,
    /// How many of them were found again, as long as there was nothing else.
    same: usize,
    entries: Option<Vec<Entry>>,
}

impl<'a> Found<'a> {
    fn new(before: Option<&'a Arc<Dir>>) -> Self {
        Self { before, at: 0, same: 0, entries: None }
    }

    /// What was known of a name; names must come in their order.
    fn before_of(&mut self, name: &[u8]) -> Option<&'a Entry> {
        let before = self.before?;
        while let Some(entry) = before.entries.get(self.at) {
            match (*entry.name).cmp(name) {
                std::cmp::Ordering::Less => self.at += 1,
                std::cmp::Ordering::Equal => return Some(entry),
                std::cmp::Ordering::Greater => return None,
            }
        }
        None
    }

    fn push_same(&mut self, entry: &Entry) {
        match &mut self.entries {
            Some(entries) => entries.push(entry.clone()),
            // None was passed over.
            None if self.at == self.same => self.same += 1,
            None => self.push(entry.clone()),
        }
    }

    fn push(&mut self, entry: Entry) {
        let same = self.same;
        let before = self.before.map_or(&[][..], |before| &before.entries);
        self.entries.get_or_insert_with(|| before[..same].to_vec()).push(entry);
    }

    fn into_dir(self, is_repository: bool, is_ignored: bool) -> Arc<Dir> {
        if let Some(before) = self.before
            && self.entries.is_none()
            && self.same == before.entries.len()
            && (before.is_repository, before.is_ignored, before.is_unreadable)
                == (is_repository, is_ignored, false)
        {
            return Arc::clone(before);
        }
        let before = self.before.map_or(&[][..], |before| &before.entries);
        let entries = self.entries.unwrap_or_else(|| before[..self.same].to_vec());
        Arc::new(Dir { entries, is_repository, is_ignored, is_unreadable: false, tree: ObjectId::ZERO })
    }
}
