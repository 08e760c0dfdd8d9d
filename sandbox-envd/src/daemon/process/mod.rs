//! Processes: start, follow, signal, retain.

mod follower;
mod guest;
mod log;
mod outputs;
mod pty;
mod readiness;
mod reaper;
mod reply;
mod running;
mod service;
mod signal;
mod spawn;
mod stream;
mod supervise;
mod tree;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use rustix::process::Signal;
use serde::Deserialize;
use tokio::io::Interest;
use tokio::time::Instant;

pub use self::guest::{Guest, GuestCommand, GuestExit};
use self::log::{Description, Log};
use self::outputs::Outputs;
use self::reaper::{Reaper, Scope};
use self::running::{End, Input, MemoryKills, Process, Subscription};
use self::spawn::{Command, Io, SpawnError};
use self::stream::Stream;
use self::supervise::Deadline;
use self::tree::Tree;
use crate::daemon::http::{self, Body};
use crate::daemon::state::{DaemonConfig, State};
use crate::messages::process::{ProcessConfig, ProcessExt};

/// How long the end of a process can still be asked for, as in E2B's envd.
const REMEMBERED: Duration = Duration::from_secs(30);

/// The tag of what a host starts once in each memory of a sandbox: the daemon remembers the end of the last process of
/// that tag for as long as it lives, so that a host can ask at any time whether it did so.
pub const START_TAG: &str = "sandhold.server/start";

/// Largest body of a release request.
const RELEASE_LIMIT: usize = 64 << 10;

/// How clients name a process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Selector {
    Pid(u32),
    Tag(String),
}

/// A process that was just started, and the output of whoever started it.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) process: Arc<Process>,
    pub(crate) subscription: Subscription,
}

/// The processes that this daemon started, and those of earlier ones that are retained.
#[derive(Debug)]
pub(crate) struct ProcessTable {
    scope: Scope,
    retain_dir: PathBuf,
    reaper: Mutex<Option<Arc<Reaper>>>,
    entries: Arc<Mutex<Entries>>,
}

/// Processes by the order of their start; numbers alone are not unique, because the kernel reuses them.
#[derive(Debug, Default)]
struct Entries {
    next: u64,
    processes: BTreeMap<u64, Arc<Process>>,
    /// Ended ones that are not retained, and when they are forgotten.
    ended: VecDeque<(Instant, u64)>,
}

impl Entries {
    fn insert(&mut self, process: Arc<Process>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.processes.insert(id, process);
        id
    }

    /// Notes that a process ended of which nothing is retained.
    fn end(&mut self, id: u64, process: &Process) {
        if process.tag.as_deref() != Some(START_TAG) {
            self.ended.push_back((Instant::now() + REMEMBERED, id));
            return;
        }
        // Only the last one is remembered, so that there cannot be more and more of them.
        self.processes.retain(|known, other| {
            *known == id || other.tag != process.tag || other.end().is_none() || other.is_retained()
        });
    }

    /// Forgets what ended long enough ago; every look begins with it, so no timer is needed.
    fn forget(&mut self) {
        let now = Instant::now();
        while let Some((_, id)) = self.ended.front().filter(|(until, _)| *until <= now) {
            self.processes.remove(id);
            self.ended.pop_front();
        }
    }
}

impl ProcessTable {
    /// Opens the table with what an earlier daemon retained.
    pub(crate) fn new(config: &DaemonConfig) -> io::Result<Self> {
        let mut entries = Entries::default();
        for process in inherited(&config.retain_dir)? {
            entries.insert(Arc::new(process));
        }
        Ok(Self {
            scope: if config.init_reaps_all { Scope::All } else { Scope::Own },
            retain_dir: config.retain_dir.clone(),
            reaper: Mutex::default(),
            entries: Arc::new(Mutex::new(entries)),
        })
    }

    /// Begins to collect orphans, if they are this process' to collect; must run on the runtime that serves.
    pub(crate) fn serve(&self) -> io::Result<()> {
        match self.scope {
            Scope::All => self.reaper().map(drop),
            Scope::Own => Ok(()),
        }
    }

    /// Returns the reaper, which is made by the first call on the runtime that serves.
    fn reaper(&self) -> io::Result<Arc<Reaper>> {
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        match &*reaper {
            Some(reaper) => Ok(Arc::clone(reaper)),
            None => Ok(Arc::clone(reaper.insert(Reaper::start(self.scope)?))),
        }
    }

    /// Starts a process; it runs whether or not the caller still waits.
    pub(crate) async fn start(
        &self,
        command: Command,
        config: ProcessConfig,
        tag: Option<String>,
        retain: Option<u64>,
        deadlines: impl Iterator<Item = Deadline>,
    ) -> Result<Started, SpawnError> {
        let reaper = self.reaper().map_err(SpawnError::Prepare)?;
        let request = Request {
            command,
            config,
            tag,
            retain: retain.map(|max_bytes| (self.retain_dir.clone(), max_bytes)),
            deadlines: deadlines.collect(),
        };
        let entries = Arc::clone(&self.entries);
        // One closure from fork to supervision: a caller that leaves in between leaves no stray process.
        tokio::task::spawn_blocking(move || request.start(&reaper, &entries))
            .await
            .map_err(|error| SpawnError::Prepare(io::Error::other(error)))?
    }

    /// Returns the running process of that name, else the one that ended last.
    pub(crate) fn find(&self, selector: &Selector) -> Option<Arc<Process>> {
        let mut entries = lock(&self.entries);
        entries.forget();
        let named = |process: &&Arc<Process>| match selector {
            Selector::Pid(pid) => process.pid == *pid && !process.inherited,
            Selector::Tag(tag) => process.tag.as_ref() == Some(tag),
        };
        let mut named = entries.processes.values().rev().filter(named);
        let newest = named.next()?;
        if newest.end().is_none() {
            return Some(Arc::clone(newest));
        }
        Some(Arc::clone(named.find(|process| process.end().is_none()).unwrap_or(newest)))
    }

    /// Returns the running processes in the order of their start, and, if asked for, the retained ones that ended.
    pub(crate) fn list(&self, include_ended: bool) -> Vec<Arc<Process>> {
        let mut entries = lock(&self.entries);
        entries.forget();
        let listed =
            |process: &&Arc<Process>| process.end().is_none() || (include_ended && process.is_retained());
        entries.processes.values().filter(listed).cloned().collect()
    }

    /// Signals the direct child alone; false if it ended.
    pub(crate) fn signal(&self, process: &Process, signal: Signal) -> io::Result<bool> {
        let reaper = self.reaper()?;
        process.signal(&reaper, signal)
    }

    /// Forgets an ended process and what is retained of it. Blocks. False if there is none.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` while it runs.
    fn release(&self, selector: &Selector) -> io::Result<bool> {
        let Some(process) = self.find(selector).filter(|process| process.is_retained()) else {
            return Ok(false);
        };
        if process.end().is_none() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the process is still running"));
        }
        process.release()?;
        lock(&self.entries).processes.retain(|_, known| !Arc::ptr_eq(known, &process));
        Ok(true)
    }
}

/// Everything a start needs, moved to the thread that forks.
struct Request {
    command: Command,
    config: ProcessConfig,
    tag: Option<String>,
    retain: Option<(PathBuf, u64)>,
    deadlines: Vec<Deadline>,
}

impl Request {
    fn start(mut self, reaper: &Arc<Reaper>, entries: &Arc<Mutex<Entries>>) -> Result<Started, SpawnError> {
        let nonce = nonce().map_err(SpawnError::Prepare)?;
        self.command.env.push((tree::MARKER.into(), nonce.clone()));
        let started = tree::ticks_since_boot();
        let memory = MemoryKills::since_now(self.command.setup.clone());
        let child = spawn::spawn(&self.command, reaper)?;
        let tree = Tree { leader: child.pid, nonce: nonce.clone(), started, collected: None };
        let is_terminal = matches!(child.io, Io::Terminal(_));
        let prepared = self.log(&nonce, &tree, is_terminal).and_then(|log| Ok((log, io(child.io)?)));
        let (log, (input, outputs)) = prepared.map_err(|error| {
            // Nobody would ever follow it.
            let _ = reaper.signal(tree.leader, Signal::KILL);
            SpawnError::Prepare(error)
        })?;
        let process = Arc::new(Process::new(tree, self.tag, self.config, input, log, memory));
        let subscription = process.subscribe(None).map_err(SpawnError::Prepare)?;
        let id = lock(entries).insert(Arc::clone(&process));
        for deadline in self.deadlines {
            tokio::spawn(supervise::enforce(Arc::clone(&process), deadline));
        }
        // The reaper must live as long as somebody waits for an exit.
        let (supervised, reaper, entries) = (Arc::clone(&process), Arc::clone(reaper), Arc::clone(entries));
        tokio::spawn(async move {
            tokio::join!(supervise::supervise(Arc::clone(&supervised), outputs, child.exit), async {
                supervised.wait().await;
                drop(reaper);
                if !supervised.is_retained() {
                    lock(&entries).end(id, &supervised);
                }
            });
        });
        Ok(Started { process, subscription })
    }

    fn log(&self, name: &str, tree: &Tree, terminal: bool) -> io::Result<Option<Log>> {
        let Some((dir, max_bytes)) = &self.retain else { return Ok(None) };
        let description = Description {
            pid: tree.leader.as_raw_nonzero().get().unsigned_abs(),
            tag: self.tag.clone(),
            config: ProcessConfig { envs: Default::default(), ..self.config.clone() },
            terminal,
            max_bytes: *max_bytes,
        };
        Log::create(dir, name, &description).map(Some)
    }
}

/// Registers the daemon's ends with the runtime.
fn io(io: Io) -> io::Result<(Input, Outputs)> {
    match io {
        Io::Terminal(master) => {
            let master = Arc::new(readiness::watch(master, Interest::READABLE | Interest::WRITABLE)?);
            Ok((Input::Terminal(Arc::clone(&master)), Outputs::new(vec![(Stream::Pty, master)])))
        }
        Io::Pipes { stdin, stdout, stderr } => {
            let input = match stdin {
                Some(stdin) => Input::Pipe(readiness::watch(stdin, Interest::WRITABLE)?),
                None => Input::Closed,
            };
            let reader = |fd| readiness::watch(fd, Interest::READABLE).map(Arc::new);
            let outputs = vec![(Stream::Stdout, reader(stdout)?), (Stream::Stderr, reader(stderr)?)];
            Ok((input, Outputs::new(outputs)))
        }
    }
}

/// Returns 128 random bits as text.
fn nonce() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// Reads what earlier daemons retained; a folder that cannot be read is left alone and said.
fn inherited(dir: &Path) -> io::Result<Vec<Process>> {
    let folders = match std::fs::read_dir(dir) {
        Ok(folders) => folders,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut processes = Vec::new();
    for folder in folders {
        let path = folder?.path();
        match Log::open(&path) {
            Ok((log, description, end)) => {
                let Description { pid, tag, config, terminal, .. } = description;
                let end = end.map_or(End::Unknown, End::Known);
                processes.push(Process::inherited(pid, tag, config, terminal, log, end));
            }
            Err(error) => tracing::warn!(%error, path = %path.display(), "retained output cannot be read"),
        }
    }
    Ok(processes)
}

fn lock(entries: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the `process.Process` service to the router.
pub(crate) fn register(state: &Arc<State>, router: connectrpc::Router) -> connectrpc::Router {
    Arc::new(service::Service { state: Arc::clone(state) }).register(router)
}

/// Answers `POST /sandhold/processes/release` with `{"pid":N}` or `{"tag":"T"}`: 204, 404 if nothing of that
/// name is retained, or 409 while it runs.
pub(crate) async fn release(
    state: &Arc<State>,
    request: ::http::Request<Incoming>,
) -> ::http::Response<Body> {
    use ::http::StatusCode;
    let body = match Limited::new(request.into_body(), RELEASE_LIMIT).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return http::json_error(StatusCode::BAD_REQUEST, &format!("body: {error}")),
    };
    let selector: Selector = match serde_json::from_slice(&body) {
        Ok(selector) => selector,
        Err(error) => return http::json_error(StatusCode::BAD_REQUEST, &format!("body: {error}")),
    };
    let state = Arc::clone(state);
    let released = tokio::task::spawn_blocking(move || state.processes.release(&selector)).await;
    match released.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(true) => http::empty(StatusCode::NO_CONTENT),
        Ok(false) => http::json_error(StatusCode::NOT_FOUND, "no process of that name is retained"),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            http::json_error(StatusCode::CONFLICT, &error.to_string())
        }
        Err(error) => http::json_error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::spawn::Stdio;
    use super::*;
    use crate::daemon::state::UserMode;
    use crate::daemon::users::Users;

    fn command(program: &str) -> Command {
        Command {
            program: program.into(),
            args: Vec::new(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            cwd: "/".into(),
            user: Users::new(UserMode::OwnUser).own().unwrap(),
            mode: UserMode::OwnUser,
            setup: None,
            stdio: Stdio::Pipes { stdin: false },
        }
    }

    #[tokio::test]
    async fn an_end_is_remembered_for_thirty_seconds_and_then_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let table = ProcessTable::new(&DaemonConfig::new().with_retain_dir(dir.path())).unwrap();
        let config = ProcessConfig::default();
        let started = table.start(command("true"), config, None, None, std::iter::empty()).await.unwrap();
        started.process.wait().await;
        let selector = Selector::Pid(started.process.pid);
        // The entry for forgetting is made by a task of its own.
        while lock(&table.entries).ended.is_empty() {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        tokio::time::advance(REMEMBERED - Duration::from_millis(100)).await;
        assert!(table.find(&selector).is_some());
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(table.find(&selector).is_none());
        assert!(lock(&table.entries).processes.is_empty());
    }

    #[tokio::test]
    async fn the_end_of_what_a_host_starts_once_is_remembered_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let table = ProcessTable::new(&DaemonConfig::new().with_retain_dir(dir.path())).unwrap();
        let mut last = 0;
        for _ in 0..3 {
            let tag = Some(START_TAG.to_owned());
            let config = ProcessConfig::default();
            let started = table.start(command("true"), config, tag, None, std::iter::empty()).await.unwrap();
            started.process.wait().await;
            last = started.process.pid;
        }
        while lock(&table.entries).processes.len() > 1 {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        tokio::time::advance(REMEMBERED * 1000).await;
        let found = table.find(&Selector::Tag(START_TAG.to_owned())).unwrap();
        assert_eq!((found.pid, found.end().is_some()), (last, true));
        assert!(table.list(true).is_empty());
    }

    #[tokio::test]
    async fn a_start_whose_caller_left_is_supervised_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let table = ProcessTable::new(&DaemonConfig::new().with_retain_dir(dir.path())).unwrap();
        let start = table.start(command("true"), ProcessConfig::default(), None, None, std::iter::empty());
        // Polled once, so that the fork is under way, and dropped whether or not it was done by then.
        let _ = tokio::time::timeout(Duration::ZERO, start).await;
        while lock(&table.entries).ended.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(table.list(false).is_empty());
    }
}
