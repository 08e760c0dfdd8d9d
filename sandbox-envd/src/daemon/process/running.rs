//! One process as clients see it: its input, whoever follows its output, and its end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};

use crate::daemon::process::follower::Follower;
use crate::daemon::process::log::{Log, Slice};
use crate::daemon::process::pty;
use crate::daemon::process::readiness;
use crate::daemon::process::reaper::{Exit, Reaper};
use crate::daemon::process::stream::{Chunk, STREAMS, Stream};
use crate::daemon::process::tree::{self, Tree};
use crate::daemon::state::ChildSetup;
use crate::messages::process::process_event::EndEvent;
use crate::messages::process::{ProcessConfig, Replay};

/// Input that does not fit into a pipe of the kernel's default size.
const LARGE_INPUT: usize = 64 << 10;

/// How a process ended, as far as anybody knows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    Known(EndEvent),
    /// The daemon that ran it is gone, or somebody else collected it.
    Unknown,
}

/// What a process reads from.
#[derive(Debug)]
pub(crate) enum Input {
    /// Never opened, closed by a client, or the process ended.
    Closed,
    Pipe(AsyncFd<OwnedFd>),
    Terminal(Arc<AsyncFd<OwnedFd>>),
}

/// Why input was not taken; the texts are those of E2B's envd.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("stdin not enabled or closed")]
    Closed,
    #[error("tty assigned to process")]
    IsTerminal,
    #[error("tty not assigned to process")]
    NoTerminal,
    #[error("the process ended")]
    Ended,
    #[error("cannot close stdin for PTY process - send Ctrl+D (0x04) instead")]
    CloseTerminal,
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) tag: Option<String>,
    pub(crate) is_terminal: bool,
    /// False once a client released it: then it is forgotten like any other.
    retained: AtomicBool,
    /// Of an earlier daemon: its number means nothing any more.
    pub(crate) inherited: bool,
    timed_out: AtomicBool,
    memory: MemoryKills,
    tree: Tree,
    /// When the leader was collected, in ticks since boot; 0 while it runs.
    collected: watch::Sender<u64>,
    config: Mutex<ProcessConfig>,
    input: tokio::sync::Mutex<Input>,
    terminal: Mutex<Option<Arc<AsyncFd<OwnedFd>>>>,
    output: Mutex<Output>,
    ended: watch::Sender<bool>,
}

/// What the reaper says of an exit.
pub(crate) type Ended = Result<Exit, oneshot::error::RecvError>;

/// Whether memory ran out while a process was there.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryKills {
    setup: Option<Arc<dyn ChildSetup>>,
    before: u64,
}

impl MemoryKills {
    /// Notes the present count.
    pub(crate) fn since_now(setup: Option<Arc<dyn ChildSetup>>) -> Self {
        let before = setup.as_ref().map_or(0, |setup| setup.out_of_memory_kills());
        Self { setup, before }
    }

    fn rose(&self) -> bool {
        self.setup.as_ref().is_some_and(|setup| setup.out_of_memory_kills() > self.before)
    }
}

#[derive(Debug)]
struct Output {
    followers: Vec<Follower>,
    written: [u64; STREAMS],
    log: Option<Log>,
    end: Option<End>,
}

/// A client's view of the output: first what is retained, then what comes; closed when the end is known.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) replay: Vec<Slice>,
    pub(crate) live: mpsc::Receiver<Chunk>,
}

impl Process {
    pub(crate) fn new(
        tree: Tree,
        tag: Option<String>,
        config: ProcessConfig,
        input: Input,
        log: Option<Log>,
        memory: MemoryKills,
    ) -> Self {
        let terminal = match &input {
            Input::Terminal(master) => Some(Arc::clone(master)),
            Input::Pipe(_) | Input::Closed => None,
        };
        Self {
            pid: tree.leader.as_raw_nonzero().get().unsigned_abs(),
            tag,
            is_terminal: terminal.is_some(),
            retained: AtomicBool::new(log.is_some()),
            inherited: false,
            timed_out: AtomicBool::new(false),
            memory,
            tree,
            collected: watch::Sender::new(0),
            config: Mutex::new(config),
            input: tokio::sync::Mutex::new(input),
            terminal: Mutex::new(terminal),
            output: Mutex::new(Output { followers: Vec::new(), written: [0; STREAMS], log, end: None }),
            ended: watch::Sender::new(false),
        }
    }

    /// Returns a process that an earlier daemon ran and retained.
    pub(crate) fn inherited(
        pid: u32,
        tag: Option<String>,
        config: ProcessConfig,
        is_terminal: bool,
        log: Log,
        end: End,
    ) -> Self {
        let leader = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap_or(Pid::INIT);
        // The nonce of that life is not known: an empty one marks nothing.
        let tree = Tree { leader, nonce: String::new(), started: u64::MAX, collected: Some(0) };
        let mut process = Self::new(tree, tag, config, Input::Closed, Some(log), MemoryKills::default());
        (process.pid, process.is_terminal, process.inherited) = (pid, is_terminal, true);
        let output = process.output.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = &output.log {
            output.written = Stream::ALL.map(|stream| log.end(stream));
        }
        output.end = Some(end);
        process.ended.send_replace(true);
        process
    }

    pub(crate) fn config(&self) -> ProcessConfig {
        lock(&self.config).clone()
    }

    pub(crate) fn is_retained(&self) -> bool {
        self.retained.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) -> Option<End> {
        lock(&self.output).end.clone()
    }

    /// Returns how many bytes a stream had so far.
    pub(crate) fn written(&self, stream: Stream) -> u64 {
        lock(&self.output).written[stream as usize]
    }

    /// Waits until the end is known.
    pub(crate) async fn wait(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Follows the output: from the offsets of `replay` if it was retained, else from now on.
    ///
    /// Both sides are taken under one lock, so nothing is missing or there twice at the seam.
    pub(crate) fn subscribe(&self, replay: Option<&Replay>) -> io::Result<Subscription> {
        let mut output = lock(&self.output);
        let mut slices = Vec::new();
        if let (Some(log), Some(replay)) = (&output.log, replay) {
            let offsets = [replay.stdout, replay.stderr, replay.pty];
            for (stream, offset) in Stream::ALL.into_iter().zip(offsets) {
                slices.extend(log.kept_from(stream, offset)?);
            }
        }
        let (mut follower, live) = Follower::new();
        if *self.collected.borrow() != 0 {
            follower.release();
        }
        if output.end.is_none() {
            output.followers.push(follower);
        }
        Ok(Subscription { replay: slices, live })
    }

    /// Hands output to every follower, waiting for those that lag; without any it is dropped.
    ///
    /// Returns the exit when it comes in the meantime: from then on nobody waits for a follower, so that one that does
    /// not read keeps the end from nobody.
    pub(crate) async fn publish(
        &self,
        stream: Stream,
        bytes: bytes::Bytes,
        mut exit: impl Future<Output = Ended> + Unpin,
    ) -> Option<Ended> {
        let (chunk, followers) = {
            let mut output = lock(&self.output);
            if let Some(log) = &mut output.log {
                log.append(stream, &bytes);
            }
            let written = &mut output.written[stream as usize];
            let chunk = Chunk { stream, offset: *written, dropped: 0, bytes };
            *written += chunk.bytes.len() as u64;
            (chunk, output.followers.clone())
        };
        let mut gone = false;
        for (index, follower) in followers.iter().enumerate() {
            tokio::select! {
                biased;
                sent = follower.send(chunk.clone()) => gone |= !sent,
                ended = &mut exit => {
                    self.release_followers(&followers[index..], &chunk);
                    return Some(ended);
                }
            }
        }
        if gone {
            lock(&self.output).followers.retain(|follower| !follower.has_gone());
        }
        None
    }

    /// Lets nobody wait for a follower from now on. Those in `waiting` have yet to get `chunk`.
    fn release_followers(&self, waiting: &[Follower], chunk: &Chunk) {
        for follower in &mut lock(&self.output).followers {
            let lacks = waiting.iter().any(|other| other.is(follower));
            follower.release();
            if let (true, Follower::Keeps(keeps)) = (lacks, &*follower) {
                // It may have gone, which is its right.
                let _ = keeps.send(chunk.clone());
            }
        }
    }

    /// Lets nobody wait for a follower: the process has ended.
    pub(crate) fn release_all_followers(&self) {
        lock(&self.output).followers.iter_mut().for_each(Follower::release);
    }

    /// Notes that the leader's number is free from now on.
    pub(crate) fn collected(&self) {
        self.collected.send_replace(tree::ticks_since_boot());
    }

    /// Waits until the leader's number is free.
    pub(crate) async fn wait_collected(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.collected.subscribe().wait_for(|collected| *collected > 0).await;
    }

    /// Tells the end to everybody and lets go of the input.
    pub(crate) async fn finish(&self, exit: Option<Exit>) {
        let end = exit.map_or(End::Unknown, |exit| {
            let mut end = end_event(exit, self.timed_out.load(Ordering::Acquire));
            // A shell tells of a killed child by its own code.
            let killed = matches!(exit, Exit::Signal { number: 9, .. } | Exit::Code(137));
            end.oom_killed = killed && !end.timed_out && self.memory.rose();
            End::Known(end)
        });
        {
            let mut output = lock(&self.output);
            if let (Some(log), End::Known(event)) = (&mut output.log, &end)
                && let Err(error) = log.finish(event)
            {
                tracing::warn!(%error, pid = self.pid, "the end of a retained process is not recorded");
            }
            output.end = Some(end);
            // A closed channel is how followers learn that the end is there.
            output.followers.clear();
        }
        self.ended.send_replace(true);
        lock(&self.terminal).take();
        *self.input.lock().await = Input::Closed;
        if !self.is_retained() {
            // Remembered for a while, but only its number and end are asked for.
            *lock(&self.config) = ProcessConfig::default();
        }
    }

    /// Closes the retained output: nobody can write to it any more.
    pub(crate) fn close_log(&self) {
        if let Some(log) = &mut lock(&self.output).log {
            log.close();
        }
    }

    /// Removes the retained output.
    pub(crate) fn release(&self) -> io::Result<()> {
        self.retained.store(false, Ordering::Release);
        match lock(&self.output).log.take() {
            Some(log) => log.remove(),
            None => Ok(()),
        }
    }

    /// Writes all of `bytes`, as long as that takes; writes of several clients do not mix.
    ///
    /// # Cancellation
    ///
    /// A dropped call may have written a part.
    pub(crate) async fn write(&self, to_terminal: bool, bytes: &[u8]) -> Result<(), InputError> {
        match (self.is_terminal, to_terminal) {
            (true, false) => return Err(InputError::IsTerminal),
            (false, true) => return Err(InputError::NoTerminal),
            _ => {}
        }
        // A grandchild may keep a full pipe open for ever: the end of the process ends the write.
        tokio::select! {
            biased;
            result = self.write_locked(bytes) => result,
            () = self.wait() => Err(InputError::Ended),
        }
    }

    async fn write_locked(&self, bytes: &[u8]) -> Result<(), InputError> {
        let input = self.input.lock().await;
        let fd = match &*input {
            Input::Closed => return Err(InputError::Closed),
            Input::Pipe(fd) => fd,
            Input::Terminal(fd) => fd,
        };
        if bytes.len() > LARGE_INPUT {
            readiness::enlarge(fd.get_ref());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut ready = fd.writable().await?;
            match ready.try_io(|fd| Ok(rustix::io::write(fd, rest)?)) {
                Ok(Ok(count)) => rest = &rest[count..],
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// Closes the input after the writes before it; doing it twice is fine.
    pub(crate) async fn close_input(&self) -> Result<(), InputError> {
        if self.is_terminal {
            return Err(InputError::CloseTerminal);
        }
        *self.input.lock().await = Input::Closed;
        Ok(())
    }

    pub(crate) fn resize(&self, cols: u16, rows: u16) -> Result<(), InputError> {
        if !self.is_terminal {
            return Err(InputError::NoTerminal);
        }
        let master = lock(&self.terminal).clone().ok_or(InputError::Ended)?;
        Ok(pty::resize(master.get_ref(), cols, rows)?)
    }

    /// Signals the direct child alone; false if it was collected already.
    pub(crate) fn signal(&self, reaper: &Reaper, signal: Signal) -> io::Result<bool> {
        reaper.signal(self.tree.leader, signal)
    }

    /// Signals everything the process started; killing waits until nothing is left. Returns how many there were.
    pub(crate) async fn signal_tree(&self, signal: Signal) -> io::Result<usize> {
        let collected = *self.collected.borrow();
        let tree = Tree { collected: (collected > 0).then_some(collected), ..self.tree.clone() };
        if signal == Signal::KILL { tree.kill().await } else { tree.signal(signal).await }
    }

    /// Notes that a deadline ends this process.
    pub(crate) fn time_out(&self) {
        self.timed_out.store(true, Ordering::Release);
    }
}

/// Returns the end as Go's `ProcessState` words it, which is what clients of E2B's envd compare with.
fn end_event(exit: Exit, timed_out: bool) -> EndEvent {
    let (exit_code, status, signal) = match exit {
        Exit::Code(code) => (code, format!("exit status {code}"), None),
        Exit::Signal { number, core_dumped } => {
            let dumped = if core_dumped { " (core dumped)" } else { "" };
            (-1, format!("signal: {}{dumped}", signal_name(number)), Some(number))
        }
    };
    let error = (exit_code != 0).then(|| status.clone());
    EndEvent { exit_code, exited: signal.is_none(), status, error, signal, oom_killed: false, timed_out }
}

/// The names of Go's syscall package for Linux.
fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => return format!("signal {number}"),
    };
    name.into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_worded_as_gos_process_state() {
        let end = end_event(Exit::Code(0), false);
        assert_eq!(
            (end.exit_code, end.exited, end.status.as_str(), end.error),
            (0, true, "exit status 0", None)
        );
        let end = end_event(Exit::Code(7), false);
        assert_eq!((end.exit_code, end.exited, end.error.as_deref()), (7, true, Some("exit status 7")));
        let end = end_event(Exit::Signal { number: 9, core_dumped: false }, true);
        assert_eq!((end.exit_code, end.exited, end.signal, end.timed_out), (-1, false, Some(9), true));
        assert_eq!((end.status.as_str(), end.error.as_deref()), ("signal: killed", Some("signal: killed")));
        let end = end_event(Exit::Signal { number: 11, core_dumped: true }, false);
        assert_eq!(end.status, "signal: segmentation fault (core dumped)");
        assert_eq!(signal_name(40), "signal 40");
    }
}
