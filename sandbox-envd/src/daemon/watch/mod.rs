//! Watching directories: one inotify instance for the whole daemon, because a user may only have 128.
//!
//! A task waits for the kernel and hands all work to a blocking thread; watchers read from bounded queues of
//! their own, so a slow one delays nobody. Lost events are never silent: see [`FilesystemEvent`]'s `overflow`.
//! E2B's own clients skip that marker, as they do every event of a type they do not know.

mod mounts;
mod queue;
mod tree;

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use connectrpc::ConnectError;
use rustix::fs::inotify::{self, CreateFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use self::queue::Queue;
use self::tree::Tree;
use crate::daemon::fs::missing_or_internal;
use crate::messages::filesystem::{EntryInfo, FilesystemEvent};

/// What to watch, and what to tell of it.
pub(crate) struct WatchOptions {
    /// The directory; a link is followed.
    pub(crate) root: PathBuf,
    /// Whether to watch everything below it too, and what comes later.
    pub(crate) recursive: bool,
    /// Whether a network mount may be watched, whose remote changes stay unseen.
    pub(crate) allow_network_mounts: bool,
    /// Looks up the entry that goes along with an event. Default: events go without.
    pub(crate) describe: Option<Describe>,
}

/// Looks up the entry at a path. Blocks.
pub(crate) type Describe = Box<dyn Fn(&Path) -> Option<EntryInfo> + Send>;

/// The daemon's watchers.
pub(crate) struct Watchers {
    shared: Arc<Shared>,
    /// Those that outlive their request and are asked for events by id.
    named: Mutex<HashMap<String, Watch>>,
}

#[derive(Default)]
struct Shared {
    /// Made with the first watcher. Locked for as long as the file system takes: only on blocking threads.
    engine: Mutex<Option<Engine>>,
    /// Watchers that were dropped and are still to be taken out of the tree.
    dropped: Mutex<Vec<u64>>,
    wake: Arc<Notify>,
}

struct Engine {
    tree: Tree,
    task: AbortHandle,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watchers {
    pub(crate) fn new() -> Self {
        Self { shared: Arc::default(), named: Mutex::default() }
    }

    /// Starts to watch; dropping the result stops it.
    ///
    /// # Errors
    ///
    /// `not_found` for a missing directory, `invalid_argument` for what is no directory or a network mount,
    /// `resource_exhausted` when the kernel's limit on watches is reached.
    pub(crate) async fn watch(&self, options: WatchOptions) -> Result<Watch, ConnectError> {
        let shared = Arc::clone(&self.shared);
        let runtime = Handle::current();
        let started = tokio::task::spawn_blocking(move || {
            check(&options)?;
            let root = options.root.clone();
            let queue = Arc::new(Queue::default());
            let id = {
                let mut engine = lock(&shared.engine);
                let engine = match &mut *engine {
                    Some(engine) => engine,
                    none => none.insert(shared.start(&runtime).map_err(|error| failed(&root, error))?),
                };
                engine.tree.add(options, Arc::clone(&queue)).map_err(|error| failed(&root, error))?
            };
            Ok(Watch { id, queue, shared })
        });
        started.await.map_err(|error| ConnectError::internal(format!("watching was interrupted: {error}")))?
    }

    /// Starts to watch for a client that asks for events by the id this returns.
    pub(crate) async fn create(&self, options: WatchOptions) -> Result<String, ConnectError> {
        let watch = self.watch(options).await?;
        let mut named = lock(&self.named);
        loop {
            let letters = std::iter::repeat_with(|| fastrand::alphanumeric().to_ascii_lowercase());
            let id: String = std::iter::once('w').chain(letters.take(20)).collect();
            if !named.contains_key(&id) {
                named.insert(id.clone(), watch);
                return Ok(id);
            }
        }
    }

    /// Takes the events that wait for a watcher made by [`create`](Self::create): of all that happened before.
    pub(crate) async fn events(&self, id: &str) -> Result<Vec<FilesystemEvent>, ConnectError> {
        let queue = lock(&self.named).get(id).map(|watch| Arc::clone(&watch.queue));
        let queue = queue.ok_or_else(|| unknown(id))?;
        // The task may not have heard yet of what the client just did. One turn takes all that the kernel keeps.
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || shared.turn()).await;
        read.map_err(|error| ConnectError::internal(format!("reading events was interrupted: {error}")))?;
        Ok(queue.drain())
    }

    /// Ends a watcher made by [`create`](Self::create).
    pub(crate) fn remove(&self, id: &str) -> Result<(), ConnectError> {
        lock(&self.named).remove(id).map(drop).ok_or_else(|| unknown(id))
    }
}

impl Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers").field("named", &lock(&self.named).keys()).finish_non_exhaustive()
    }
}

/// One running watch.
pub(crate) struct Watch {
    id: u64,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
}

impl Watch {
    /// Waits for the next event.
    ///
    /// # Cancellation
    ///
    /// Loses no event.
    pub(crate) async fn next(&self) -> FilesystemEvent {
        self.queue.next().await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Taking it out of the tree may block, so the task has that done.
        lock(&self.shared.dropped).push(self.id);
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn start(self: &Arc<Self>, runtime: &Handle) -> Result<Engine, Errno> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
        let readable =
            register(&inotify, runtime).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let task = runtime.spawn(serve(readable, Arc::downgrade(self), Arc::clone(&self.wake)));
        Ok(Engine { tree: Tree::new(inotify), task: task.abort_handle() })
    }

    /// Does what waits to be done; says whether no event of the kernel is left.
    fn turn(&self) -> bool {
        let mut engine = lock(&self.engine);
        let Some(engine) = &mut *engine else { return true };
        for id in std::mem::take(&mut *lock(&self.dropped)) {
            engine.tree.remove(id);
        }
        engine.tree.read_events()
    }
}

#[expect(unsafe_code, reason = "tokio registers a file descriptor it does not own")]
fn register(inotify: &Arc<OwnedFd>, runtime: &Handle) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    let _context = runtime.enter();
    // SAFETY: the shared owner inside keeps this one descriptor open for as long as the registration lives.
    Ok(unsafe { AsyncFd::register_with_interest(Arc::clone(inotify), Interest::READABLE) }?)
}

/// Waits for events and for watchers that end, for as long as the daemon lives.
async fn serve(inotify: AsyncFd<Arc<OwnedFd>>, shared: Weak<Shared>, wake: Arc<Notify>) {
    loop {
        let ready = tokio::select! {
            ready = inotify.readable() => match ready {
                Ok(ready) => Some(ready),
                Err(_) => return,
            },
            () = wake.notified() => None,
        };
        let Some(shared) = shared.upgrade() else { return };
        let drained = tokio::task::spawn_blocking(move || shared.turn()).await;
        // Cleared only if nothing came since `readable`, so an event in between is not slept over.
        if let (Some(mut ready), Ok(true)) = (ready, drained) {
            ready.clear_ready();
        }
    }
}

fn check(options: &WatchOptions) -> Result<(), ConnectError> {
    let root = options.root.display();
    let stat =
        fs::metadata(&options.root).map_err(|error| missing_or_internal("watch", &options.root, &error))?;
    if !stat.is_dir() {
        return Err(ConnectError::invalid_argument(format!("path is not a directory: {root}")));
    }
    let remote = !options.allow_network_mounts
        && mounts::is_network(&options.root)
            .map_err(|error| ConnectError::internal(format!("cannot watch {root}: {error}")))?;
    if remote {
        return Err(ConnectError::invalid_argument(format!(
            "cannot watch {root}: it is on a network file system, whose remote changes stay unseen; \
             allow network mounts to watch it all the same"
        )));
    }
    Ok(())
}

fn failed(root: &Path, error: Errno) -> ConnectError {
    let root = root.display();
    match error {
        Errno::NOENT => ConnectError::not_found(format!("path not found: {root}")),
        Errno::NOTDIR => ConnectError::invalid_argument(format!("path is not a directory: {root}")),
        Errno::NOSPC => ConnectError::resource_exhausted(format!(
            "cannot watch {root}: the limit on watched directories is reached; \
             raise the sysctl fs.inotify.max_user_watches or watch fewer"
        )),
        Errno::MFILE => ConnectError::resource_exhausted(format!(
            "cannot watch {root}: the limit on inotify instances is reached; \
             raise the sysctl fs.inotify.max_user_instances"
        )),
        error => ConnectError::internal(format!("cannot watch {root}: {error}")),
    }
}

fn unknown(id: &str) -> ConnectError {
    ConnectError::not_found(format!("watcher with id {id} not found"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking holder may have left half done is at worst a watch too many.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
