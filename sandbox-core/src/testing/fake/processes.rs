//! The processes of a fake sandbox: their output logs, input and signals.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::machine::{Machine, lock};
use crate::{
    AttachOptions, Error, ErrorKind, ExitStatus, OutputStream, Process, ProcessControl, ProcessEvent,
    ProcessInfo, ProcessSelector, ProcessSpec, PtySize, ReplayFrom, Result, ResultStream, Signal, Stdin,
};

#[derive(Debug, Default)]
pub(super) struct ProcessTable {
    last_pid: u32,
    processes: BTreeMap<u32, Arc<FakeProcess>>,
}

impl ProcessTable {
    /// Enters a process; returns it with the end of its input that the command reads.
    pub(super) fn enter(&mut self, spec: ProcessSpec) -> (Arc<FakeProcess>, mpsc::UnboundedReceiver<Bytes>) {
        self.last_pid += 1;
        let (stdin, input) = mpsc::unbounded_channel();
        let open = spec.stdin == Stdin::Open || spec.pty.is_some();
        let process = Arc::new(FakeProcess {
            pid: 100 + self.last_pid,
            stdin: Mutex::new(open.then_some(stdin)),
            spec,
            log: Mutex::default(),
            changed: watch::Sender::new(()),
            stop: watch::Sender::new(None),
        });
        self.processes.insert(process.pid, Arc::clone(&process));
        (process, input)
    }

    pub(super) fn get(&self, selector: &ProcessSelector) -> Result<Arc<FakeProcess>> {
        let found = match selector {
            ProcessSelector::Pid(pid) => self.processes.get(pid),
            // The newest one of a tag.
            ProcessSelector::Tag(tag) => {
                self.processes.values().rev().find(|process| process.spec.tag.as_deref() == Some(tag))
            }
        };
        found
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no process with {selector}")))
    }

    pub(super) fn infos(&self) -> Vec<ProcessInfo> {
        self.processes.values().map(|process| process.info()).collect()
    }

    /// Forgets an ended process; of one that was not kept nothing is left at its end.
    pub(super) fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Ends all, and with them what was kept of those that had ended.
    pub(super) fn kill_all(&mut self) {
        for process in std::mem::take(&mut self.processes).into_values() {
            process.send(Signal::KILL);
        }
    }
}

#[derive(Debug, Default)]
struct Log {
    chunks: Vec<(OutputStream, u64, Bytes)>,
    lengths: HashMap<OutputStream, u64>,
    exit: Option<ExitStatus>,
}

#[derive(Debug)]
pub(super) struct FakeProcess {
    pub(super) pid: u32,
    pub(super) spec: ProcessSpec,
    stdin: Mutex<Option<mpsc::UnboundedSender<Bytes>>>,
    log: Mutex<Log>,
    changed: watch::Sender<()>,
    stop: watch::Sender<Option<i32>>,
}

impl FakeProcess {
    pub(super) fn output(&self, stream: OutputStream, data: impl Into<Bytes>) {
        let data = data.into();
        if data.is_empty() {
            return;
        }
        let stream = if self.spec.pty.is_some() { OutputStream::Pty } else { stream };
        let mut log = lock(&self.log);
        let length = log.lengths.entry(stream).or_default();
        let offset = *length;
        *length += data.len() as u64;
        log.chunks.push((stream, offset, data));
        self.changed.send_replace(());
    }

    pub(super) fn finish(&self, status: ExitStatus) {
        lock(&self.stdin).take();
        lock(&self.log).exit = Some(status);
        self.changed.send_replace(());
    }

    pub(super) fn exit(&self) -> Option<ExitStatus> {
        lock(&self.log).exit
    }

    /// Waits for a signal that ends the process.
    pub(super) async fn stopped(&self) -> i32 {
        let mut stop = self.stop.subscribe();
        let signal = stop.wait_for(Option::is_some).await.ok().and_then(|signal| *signal);
        // The sender lives in `self`: the wait cannot fail.
        signal.unwrap_or(Signal::KILL.0)
    }

    fn send(&self, signal: Signal) -> bool {
        let running = self.exit().is_none();
        if running {
            self.stop.send_replace(Some(signal.0));
        }
        running
    }

    fn info(&self) -> ProcessInfo {
        let argv = std::iter::once(&self.spec.program).chain(&self.spec.args).cloned().collect();
        let mut info = ProcessInfo::new(self.pid, argv);
        info.tag.clone_from(&self.spec.tag);
        info.cwd.clone_from(&self.spec.cwd);
        info.exit = self.exit();
        info
    }

    /// Where reading begins: the first chunk, and the first byte of each stream.
    fn begin(&self, options: &AttachOptions) -> Cursor {
        match (options.replay, self.spec.retain) {
            (Some(from), Some(retain)) => {
                let log = lock(&self.log);
                let wanted = [OutputStream::Stdout, OutputStream::Stderr, OutputStream::Pty];
                let starts = wanted.map(|stream| {
                    let kept = log.lengths.get(&stream).copied().unwrap_or_default().saturating_sub(retain);
                    let wanted = position(from, stream);
                    (stream, (wanted.max(kept), kept.saturating_sub(wanted)))
                });
                Cursor { chunk: 0, starts: starts.into() }
            }
            _ => Cursor { chunk: lock(&self.log).chunks.len(), starts: HashMap::new() },
        }
    }

    /// Returns what comes after the cursor, if it is there yet.
    fn read(&self, cursor: &mut Cursor) -> Option<ProcessEvent> {
        let log = lock(&self.log);
        while let Some((stream, offset, data)) = log.chunks.get(cursor.chunk) {
            cursor.chunk += 1;
            let (start, dropped) = cursor.starts.get(stream).copied().unwrap_or_default();
            let skipped = start.saturating_sub(*offset).min(data.len() as u64);
            if skipped == data.len() as u64 {
                continue;
            }
            cursor.starts.insert(*stream, (start, 0));
            return Some(ProcessEvent::Output {
                stream: *stream,
                data: data.slice(skipped as usize..),
                offset: offset + skipped,
                dropped,
            });
        }
        log.exit.map(ProcessEvent::Exit)
    }
}

#[derive(Debug)]
struct Cursor {
    chunk: usize,
    /// By stream: the first byte that is wanted and kept, and how many wanted ones before it are not kept.
    starts: HashMap<OutputStream, (u64, u64)>,
}

fn position(from: ReplayFrom, stream: OutputStream) -> u64 {
    match stream {
        OutputStream::Stdout => from.stdout,
        OutputStream::Stderr => from.stderr,
        OutputStream::Pty => from.pty,
    }
}

/// Hands a process out, from its beginning or as an attach asks for it.
pub(super) fn follow(
    machine: Arc<Machine>,
    process: Arc<FakeProcess>,
    attach: Option<&AttachOptions>,
) -> Process {
    let cursor = match attach {
        Some(options) => process.begin(options),
        None => Cursor { chunk: 0, starts: HashMap::new() },
    };
    let (pid, tag) = (process.pid, process.spec.tag.clone());
    let control = Arc::new(Control { machine: Arc::clone(&machine), process: Arc::clone(&process) });
    let events = ResultStream::unfold(cursor, move |mut cursor| {
        let (machine, process) = (Arc::clone(&machine), Arc::clone(&process));
        async move {
            let mut changes = process.changed.subscribe();
            let item = loop {
                if let Some(event) = process.read(&mut cursor) {
                    break Ok(event);
                }
                tokio::select! {
                    () = machine.gone() => break Err(machine.gone_error().at(super::FAKE, "process")),
                    // The sender lives in `process`.
                    _ = changes.changed() => {}
                }
            };
            Some((item, cursor))
        }
    });
    Process::new(pid, tag, control, events)
}

#[derive(Debug)]
struct Control {
    machine: Arc<Machine>,
    process: Arc<FakeProcess>,
}

impl Control {
    fn check(&self) -> Result<()> {
        if self.machine.settle().state.is_none() {
            return Err(self.machine.gone_error().at(super::FAKE, "process"));
        }
        Ok(())
    }
}

#[async_trait]
impl ProcessControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        self.check()?;
        if self.process.exit().is_some() {
            return Err(Error::new(ErrorKind::NotFound, "the process has ended"));
        }
        match &*lock(&self.process.stdin) {
            Some(stdin) => stdin.send(data).map_err(|_| {
                Error::new(ErrorKind::InvalidState, "the process does not read its input any more")
            }),
            None => Err(Error::new(ErrorKind::InvalidState, "the standard input is closed")),
        }
    }

    async fn close_stdin(&self) -> Result<()> {
        self.check()?;
        if self.process.spec.pty.is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "a terminal has no end of file; send byte 4"));
        }
        lock(&self.process.stdin).take();
        Ok(())
    }

    async fn resize(&self, _size: PtySize) -> Result<()> {
        self.check()?;
        if self.process.spec.pty.is_none() {
            return Err(Error::new(ErrorKind::InvalidState, "the process has no terminal"));
        }
        Ok(())
    }

    async fn signal(&self, signal: Signal) -> Result<bool> {
        self.check()?;
        signal_process(&self.process, signal)
    }
}

pub(super) fn signal_process(process: &FakeProcess, signal: Signal) -> Result<bool> {
    if ![Signal::INT, Signal::KILL, Signal::TERM].contains(&signal) {
        return Err(Error::new(ErrorKind::Unsupported, format!("the fake cannot send signal {}", signal.0)));
    }
    Ok(process.send(signal))
}
