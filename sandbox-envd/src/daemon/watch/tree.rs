//! Which directories the kernel watches for whom, and what its events mean to each watcher.
//!
//! Everything here blocks (it asks the file system), and is called under one lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::daemon::watch::WatchOptions;
use crate::daemon::watch::queue::Queue;
use crate::messages::filesystem::{EventType, FilesystemEvent};

/// What is asked of the kernel for every directory: the same for all, so that watchers can share a watch.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::ONLYDIR)
    // Files without a name (any more) are nobody's business; an upload is staged in one.
    .union(WatchFlags::EXCL_UNLINK);

/// Bytes read from the kernel at once: some hundred events.
const READ_BUFFER: usize = 64 * 1024;
/// Reads before other work (watchers that come and go) gets its turn.
const READS_A_TURN: usize = 64;

type WatcherId = u64;

/// All watches of the daemon, on one inotify instance.
pub(super) struct Tree {
    inotify: Arc<OwnedFd>,
    dirs: HashMap<i32, Vec<Subscriber>>,
    watchers: HashMap<WatcherId, Watcher>,
    next_id: WatcherId,
    /// Watched directories in which some entries were announced before the kernel's own event was read.
    announced: HashMap<(WatcherId, PathBuf), HashSet<OsString>>,
}

/// One watcher's interest in one watched directory, and what that directory is to it.
struct Subscriber {
    watcher: WatcherId,
    relative: PathBuf,
}

struct Watcher {
    options: WatchOptions,
    queue: Arc<Queue>,
    /// Watched directories by their path below the root; the root itself is the empty path. Paths order by
    /// component, so everything below a directory is one range.
    dirs: BTreeMap<PathBuf, i32>,
}

impl Tree {
    pub(super) fn new(inotify: Arc<OwnedFd>) -> Self {
        Self {
            inotify,
            dirs: HashMap::new(),
            watchers: HashMap::new(),
            next_id: 0,
            announced: HashMap::new(),
        }
    }

    /// Starts to watch; on failure nothing stays watched.
    pub(super) fn add(&mut self, options: WatchOptions, queue: Arc<Queue>) -> Result<WatcherId, Errno> {
        self.next_id += 1;
        let id = self.next_id;
        self.watchers.insert(id, Watcher { options, queue, dirs: BTreeMap::new() });
        match self.watch_below(id, Path::new(""), false) {
            Ok(()) if self.watchers.get(&id).is_some_and(|watcher| !watcher.dirs.is_empty()) => Ok(id),
            Ok(()) => {
                self.remove(id);
                Err(Errno::NOENT)
            }
            Err(error) => {
                self.remove(id);
                Err(error)
            }
        }
    }

    /// Stops to watch.
    pub(super) fn remove(&mut self, id: WatcherId) {
        self.unwatch_below(id, Path::new(""));
        self.watchers.remove(&id);
    }

    /// Hands out the events that wait; says whether that were all of them.
    pub(super) fn read_events(&mut self) -> bool {
        let inotify = Arc::clone(&self.inotify);
        let mut buffer = vec![MaybeUninit::uninit(); READ_BUFFER];
        let mut reader = inotify::Reader::new(&inotify, &mut buffer);
        let mut reads = 0;
        loop {
            reads += usize::from(reader.is_buffer_empty());
            if reads > READS_A_TURN {
                return false;
            }
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    self.interpret(event.wd(), event.events(), name);
                }
                Err(Errno::INTR) => {}
                // Empty: no event is left that could repeat what was announced.
                Err(_) => {
                    self.announced.clear();
                    return true;
                }
            }
        }
    }

    fn interpret(&mut self, wd: i32, event: ReadFlags, name: Option<&OsStr>) {
        if event.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.catch_up();
        }
        let Some(subscribers) = self.dirs.get(&wd) else { return };
        let interests: Vec<(WatcherId, PathBuf)> =
            subscribers.iter().map(|to| (to.watcher, to.relative.clone())).collect();
        if event.contains(ReadFlags::IGNORED) {
            // The directory is gone, and the kernel's watch with it.
            self.dirs.remove(&wd);
            for (id, relative) in interests {
                let watcher = self.watchers.get_mut(&id);
                if let Some(watcher) = watcher.filter(|watcher| watcher.dirs.get(&relative) == Some(&wd)) {
                    watcher.dirs.remove(&relative);
                }
            }
            return;
        }
        for (id, relative) in interests {
            match name {
                Some(name) => self.child_changed(id, &relative, name, event),
                // What happens to a directory below the root is told by the directory above it.
                None if relative.as_os_str().is_empty() => self.root_changed(id, event),
                None => {}
            }
        }
    }

    fn root_changed(&self, id: WatcherId, event: ReadFlags) {
        for (flag, kind) in [
            (ReadFlags::MOVE_SELF, EventType::EVENT_TYPE_RENAME),
            (ReadFlags::ATTRIB, EventType::EVENT_TYPE_CHMOD),
            (ReadFlags::DELETE_SELF, EventType::EVENT_TYPE_REMOVE),
        ] {
            if event.contains(flag) {
                self.tell(id, Path::new("."), kind);
            }
        }
    }

    /// Tells one watcher of one event, in the order of E2B's envd: create, rename, chmod, write, remove.
    fn child_changed(&mut self, id: WatcherId, dir: &Path, name: &OsStr, event: ReadFlags) {
        let path = dir.join(name);
        let is_dir = event.contains(ReadFlags::ISDIR);
        let was_announced = !self.announced.is_empty()
            && event.intersects(ReadFlags::CREATE | ReadFlags::MOVED_FROM | ReadFlags::DELETE)
            && self.announced.get_mut(&(id, dir.to_owned())).is_some_and(|names| names.remove(name));
        let created = event.contains(ReadFlags::CREATE) && !was_announced;
        if created || event.contains(ReadFlags::MOVED_TO) {
            self.tell(id, &path, EventType::EVENT_TYPE_CREATE);
            let recursive = self.watchers.get(&id).is_some_and(|watcher| watcher.options.recursive);
            if is_dir && recursive && self.watch_below(id, &path, true).is_err() {
                // No watch is left for the new directory: its events will be missing.
                self.lose(id);
            }
        }
        if event.contains(ReadFlags::MOVED_FROM) {
            self.tell(id, &path, EventType::EVENT_TYPE_RENAME);
        }
        if event.contains(ReadFlags::ATTRIB) {
            self.tell(id, &path, EventType::EVENT_TYPE_CHMOD);
        }
        if event.contains(ReadFlags::MODIFY) {
            self.tell(id, &path, EventType::EVENT_TYPE_WRITE);
        }
        if event.contains(ReadFlags::DELETE) {
            self.tell(id, &path, EventType::EVENT_TYPE_REMOVE);
        }
        if is_dir && event.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            self.unwatch_below(id, &path);
        }
    }

    /// Watches the directory `relative` for a watcher, and with `recursive` everything below it.
    ///
    /// With `announce`, tells of what is in there already: it came into being before it could be watched.
    /// The kernel's watch is set first, so nothing falls between the two.
    fn watch_below(&mut self, id: WatcherId, relative: &Path, announce: bool) -> Result<(), Errno> {
        let mut left = vec![relative.to_owned()];
        while let Some(relative) = left.pop() {
            let Some(watcher) = self.watchers.get_mut(&id) else { return Ok(()) };
            let is_root = relative.as_os_str().is_empty();
            let path =
                if is_root { watcher.options.root.clone() } else { watcher.options.root.join(&relative) };
            let flags = if is_root { EVENTS } else { EVENTS | WatchFlags::DONT_FOLLOW };
            let wd = match inotify::add_watch(&self.inotify, &path, flags) {
                Ok(wd) => wd,
                Err(error @ (Errno::NOSPC | Errno::NOMEM)) => return Err(error),
                Err(error) if is_root => return Err(error),
                // Gone again, no directory any more, or not ours to see.
                Err(_) => continue,
            };
            let recursive = watcher.options.recursive;
            match watcher.dirs.insert(relative.clone(), wd) {
                Some(known) if known == wd => {}
                replaced => {
                    if let Some(old) = replaced {
                        self.unsubscribe(old, id, &relative);
                    }
                    let subscriber = Subscriber { watcher: id, relative: relative.clone() };
                    self.dirs.entry(wd).or_default().push(subscriber);
                }
            }
            if recursive || announce {
                self.scan(id, &path, &relative, announce, &mut left);
            }
        }
        Ok(())
    }

    /// Collects the directories in `path` into `found`, and announces all entries if asked to.
    fn scan(
        &mut self,
        id: WatcherId,
        path: &Path,
        relative: &Path,
        announce: bool,
        found: &mut Vec<PathBuf>,
    ) {
        let Ok(children) = fs::read_dir(path) else { return };
        for child in children.flatten() {
            let Ok(kind) = child.file_type() else { continue };
            let below = relative.join(child.file_name());
            if announce {
                self.announced.entry((id, relative.to_owned())).or_default().insert(child.file_name());
                self.tell(id, &below, EventType::EVENT_TYPE_CREATE);
                if kind.is_file() && child.metadata().is_ok_and(|stat| stat.len() > 0) {
                    self.tell(id, &below, EventType::EVENT_TYPE_WRITE);
                }
            }
            if kind.is_dir() {
                found.push(below);
            }
        }
    }

    /// Ends a watcher's interest in `relative` and everything below it.
    fn unwatch_below(&mut self, id: WatcherId, relative: &Path) {
        let Some(watcher) = self.watchers.get_mut(&id) else { return };
        let below: Vec<(PathBuf, i32)> = watcher
            .dirs
            .range(relative.to_owned()..)
            .take_while(|(dir, _)| dir.starts_with(relative))
            .map(|(dir, wd)| (dir.clone(), *wd))
            .collect();
        for (dir, _) in &below {
            watcher.dirs.remove(dir);
        }
        for (dir, wd) in below {
            self.unsubscribe(wd, id, &dir);
        }
    }

    fn unsubscribe(&mut self, wd: i32, id: WatcherId, relative: &Path) {
        let Some(subscribers) = self.dirs.get_mut(&wd) else { return };
        subscribers.retain(|to| to.watcher != id || to.relative != relative);
        if subscribers.is_empty() {
            self.dirs.remove(&wd);
            // Fails only when the directory, and the watch with it, is gone already.
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }

    /// After the kernel lost events: watches what may have come meanwhile, then says so to everyone.
    fn catch_up(&mut self) {
        let ids: Vec<WatcherId> = self.watchers.keys().copied().collect();
        for id in ids {
            let recursive = self.watchers.get(&id).is_some_and(|watcher| watcher.options.recursive);
            if recursive {
                // What cannot be watched is as lost as the rest.
                let _ = self.watch_below(id, Path::new(""), false);
            }
            self.lose(id);
        }
    }

    fn lose(&self, id: WatcherId) {
        if let Some(watcher) = self.watchers.get(&id) {
            watcher.queue.lose();
        }
    }

    fn tell(&self, id: WatcherId, relative: &Path, kind: EventType) {
        let Some(watcher) = self.watchers.get(&id) else { return };
        let entry = match (&watcher.options.describe, kind) {
            (None, _) | (_, EventType::EVENT_TYPE_RENAME | EventType::EVENT_TYPE_REMOVE) => None,
            (Some(describe), _) => describe(&watcher.options.root.join(relative)),
        };
        watcher.queue.push(FilesystemEvent {
            name: relative.to_string_lossy().into_owned(),
            r#type: kind.into(),
            entry: entry.into(),
            ..Default::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn tree() -> Tree {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        Tree::new(Arc::new(inotify::init(flags).unwrap()))
    }

    fn options(root: &Path) -> WatchOptions {
        let root = root.to_owned();
        WatchOptions { root, recursive: true, allow_network_mounts: false, describe: None }
    }

    fn names(queue: &Queue) -> Vec<String> {
        queue.drain().into_iter().map(|event| event.name).collect()
    }

    #[test]
    fn after_the_kernel_lost_events_everyone_is_told_and_new_directories_are_watched() {
        let dir = tempfile::tempdir().unwrap();
        let (mut tree, queues) = (tree(), [Arc::new(Queue::default()), Arc::new(Queue::default())]);
        for queue in &queues {
            tree.add(options(dir.path()), Arc::clone(queue)).unwrap();
        }
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let files = ["a", "b"].map(|name| fs::File::create(dir.path().join(name)).unwrap());
        for turn in 0..=limit.trim().parse::<usize>().unwrap() {
            // Two names in turn, since the kernel folds equal events into one.
            files[turn % 2].set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::create_dir_all(dir.path().join("unseen/deep")).unwrap();
        while !tree.read_events() {}
        for queue in &queues {
            let told = queue.drain();
            assert!(told.len() == 1 && told[0].overflow, "{told:?}");
        }
        fs::write(dir.path().join("unseen/deep/f"), "").unwrap();
        while !tree.read_events() {}
        for queue in &queues {
            assert_eq!(names(queue), ["unseen/deep/f"]);
        }
    }

    #[test]
    fn watchers_share_the_kernels_watches_and_the_last_one_frees_them() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let mut tree = tree();
        let all = Arc::new(Queue::default());
        let inner = Arc::new(Queue::default());
        let first = tree.add(options(dir.path()), Arc::clone(&all)).unwrap();
        let second = tree.add(options(&dir.path().join("a")), Arc::clone(&inner)).unwrap();
        assert_eq!(tree.dirs.len(), 3);
        fs::write(dir.path().join("a/b/f"), "").unwrap();
        while !tree.read_events() {}
        assert_eq!((names(&all), names(&inner)), (vec!["a/b/f".into()], vec!["b/f".into()]));
        tree.remove(first);
        assert_eq!(tree.dirs.len(), 2);
        fs::remove_file(dir.path().join("a/b/f")).unwrap();
        while !tree.read_events() {}
        assert_eq!((names(&all), names(&inner)), (vec![], vec!["b/f".into()]));
        tree.remove(second);
        assert!(tree.dirs.is_empty() && tree.watchers.is_empty());
    }

    #[test]
    fn a_removed_directory_frees_its_watch() {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = tree();
        let queue = Arc::new(Queue::default());
        let id = tree.add(options(dir.path()), Arc::clone(&queue)).unwrap();
        for _ in 0..3 {
            fs::create_dir_all(dir.path().join("a/b")).unwrap();
            while !tree.read_events() {}
            assert_eq!((tree.dirs.len(), tree.watchers[&id].dirs.len()), (3, 3));
            fs::remove_dir_all(dir.path().join("a")).unwrap();
            while !tree.read_events() {}
            assert_eq!((tree.dirs.len(), tree.watchers[&id].dirs.len()), (1, 1));
        }
    }
}
