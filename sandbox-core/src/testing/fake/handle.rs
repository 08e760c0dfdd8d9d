//! The handle to a fake sandbox.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{copy, split};

use super::cloud::Cloud;
use super::commands;
use super::files::{Path, parse};
use super::machine::{Machine, lock};
use super::processes::{follow, signal_process};
use super::script::Verb;
use super::{FAKE, call};
use crate::{
    AttachOptions, ByteStream, Download, EntryInfo, Error, ErrorKind, FileOptions, Generation, ListOptions,
    PortStream, Process, ProcessInfo, ProcessSelector, ProcessSpec, ReadOptions, Result, ResultStream,
    SandboxHandle, SandboxId, SandboxInfo, Signal, WatchEvent, WatchOptions, WriteOptions,
};

/// How large the chunks of a read are.
const CHUNK: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct FakeHandle {
    cloud: Arc<Cloud>,
    machine: Arc<Machine>,
    generation: Option<Generation>,
}

impl FakeHandle {
    pub(super) fn new(cloud: Arc<Cloud>, machine: Arc<Machine>, generation: Option<Generation>) -> Self {
        Self { cloud, machine, generation }
    }

    /// Runs one call inside the sandbox through the script.
    async fn inside<T: Send + 'static>(
        &self,
        user: Option<&str>,
        effect: impl FnOnce(&Arc<Cloud>, &Arc<Machine>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let machine = Arc::clone(&self.machine);
        let user = user.map(ToOwned::to_owned);
        call(&self.cloud, Verb::Inside, move |cloud, _| {
            let life = machine.settle();
            if life.state.is_none() {
                return Err(machine.gone_error());
            }
            if !life.is_running() {
                return Err(Error::new(
                    ErrorKind::InvalidState,
                    "the sandbox does not run; connect to it first",
                )
                .with_reason(crate::REASON_PAUSED)
                .with_context("sandbox", &machine.id));
            }
            if let Some(user) = user
                && user != "root"
                && user != machine.spec.user
            {
                return Err(Error::new(ErrorKind::Unauthenticated, format!("there is no user {user:?}")));
            }
            effect(cloud, &machine)
        })
        .await
    }

    fn path(&self, path: &str) -> Result<Path> {
        parse(path, &self.machine.spec.home).map_err(|error| error.at(FAKE, "inside"))
    }
}

#[async_trait]
impl SandboxHandle for FakeHandle {
    fn id(&self) -> &SandboxId {
        &self.machine.id
    }

    fn provider(&self) -> &'static str {
        FAKE
    }

    fn generation(&self) -> Option<&Generation> {
        self.generation.as_ref()
    }

    async fn info(&self) -> Result<SandboxInfo> {
        self.machine.info().ok_or_else(|| self.machine.gone_error().at(FAKE, "info"))
    }

    async fn start(&self, spec: ProcessSpec) -> Result<Process> {
        let user = spec.user.clone();
        self.inside(user.as_deref(), move |cloud, machine| {
            let reply = cloud.hook().and_then(|hook| hook(&spec));
            commands::check(machine, &spec, reply.is_some())?;
            cloud.count(|counts| counts.processes += 1);
            let (process, input) = lock(&machine.processes).enter(spec);
            let running = follow(Arc::clone(machine), Arc::clone(&process), None);
            tokio::spawn(commands::run(Arc::clone(machine), process, input, reply));
            Ok(running)
        })
        .await
    }

    async fn attach(&self, process: ProcessSelector, options: AttachOptions) -> Result<Process> {
        let replays = self.cloud.options.capabilities.retained_output;
        if options.replay.is_some() && !replays {
            return Err(Error::unsupported(FAKE, "replay"));
        }
        self.inside(None, move |_, machine| {
            let process = lock(&machine.processes).get(&process)?;
            Ok(follow(Arc::clone(machine), process, Some(&options)))
        })
        .await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.inside(None, |_, machine| Ok(lock(&machine.processes).infos())).await
    }

    async fn signal(&self, process: ProcessSelector, signal: Signal) -> Result<bool> {
        self.inside(None, move |_, machine| match lock(&machine.processes).get(&process) {
            Ok(process) => signal_process(&process, signal),
            Err(_) => Ok(false),
        })
        .await
    }

    async fn release(&self, process: ProcessSelector) -> Result<bool> {
        self.inside(None, move |_, machine| {
            let mut processes = lock(&machine.processes);
            let Ok(process) = processes.get(&process) else { return Ok(false) };
            if process.exit().is_none() {
                return Err(Error::new(ErrorKind::InvalidState, format!("process {} runs", process.pid)));
            }
            processes.forget(process.pid);
            Ok(true)
        })
        .await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<Download> {
        let path = self.path(path)?;
        self.inside(options.user.clone().as_deref(), move |_, machine| {
            let content = lock(&machine.files).read(&path)?;
            let length = content.len() as u64;
            let start = options.offset.min(length);
            let end = options.length.map_or(length, |wanted| start.saturating_add(wanted).min(length));
            let content = content.slice(start as usize..end as usize);
            let size = content.len() as u64;
            let machine = Arc::clone(machine);
            let body = ResultStream::unfold(content, move |mut rest: Bytes| {
                let machine = Arc::clone(&machine);
                async move {
                    if rest.is_empty() {
                        return None;
                    }
                    if machine.settle().state.is_none() {
                        return Some((Err(machine.gone_error().at(FAKE, "read")), rest));
                    }
                    let chunk = rest.split_to(rest.len().min(CHUNK));
                    Some((Ok(chunk), rest))
                }
            });
            Ok(Download::new(Some(size), body))
        })
        .await
    }

    async fn write(&self, path: &str, mut body: ByteStream, options: WriteOptions) -> Result<EntryInfo> {
        let path = self.path(path)?;
        let mut content = Vec::new();
        while let Some(chunk) = body.next().await {
            content.extend_from_slice(&chunk?);
        }
        if let Some(size) = options.size.filter(|size| *size != content.len() as u64) {
            return Err(Error::invalid_argument(format!(
                "the body has {} bytes, and {size} were announced",
                content.len()
            ))
            .at(FAKE, "write"));
        }
        self.inside(options.user.clone().as_deref(), move |_, machine| {
            lock(&machine.files).write(path, content.into(), options.metadata)
        })
        .await
    }

    async fn stat(&self, path: &str, options: FileOptions) -> Result<EntryInfo> {
        let path = self.path(path)?;
        self.inside(options.user.as_deref(), move |_, machine| lock(&machine.files).stat(&path)).await
    }

    async fn list(&self, path: &str, options: ListOptions) -> Result<Vec<EntryInfo>> {
        let path = self.path(path)?;
        self.inside(options.user.as_deref(), move |_, machine| {
            lock(&machine.files).list(&path, options.depth)
        })
        .await
    }

    async fn make_dir(&self, path: &str, options: FileOptions) -> Result<EntryInfo> {
        let path = self.path(path)?;
        self.inside(options.user.as_deref(), move |_, machine| lock(&machine.files).make_dir(&path)).await
    }

    async fn rename(&self, from: &str, to: &str, options: FileOptions) -> Result<EntryInfo> {
        let (from, to) = (self.path(from)?, self.path(to)?);
        self.inside(options.user.as_deref(), move |_, machine| lock(&machine.files).rename(&from, &to)).await
    }

    async fn remove(&self, path: &str, options: FileOptions) -> Result<()> {
        let path = self.path(path)?;
        self.inside(options.user.as_deref(), move |_, machine| lock(&machine.files).remove(&path)).await
    }

    async fn watch(&self, path: &str, options: WatchOptions) -> Result<ResultStream<WatchEvent>> {
        let path = self.path(path)?;
        self.inside(options.user.clone().as_deref(), move |_, machine| {
            let events = lock(&machine.files).watch(path, options.recursive, options.include_entry)?;
            let machine = Arc::clone(machine);
            Ok(ResultStream::unfold(events, move |mut events| {
                let machine = Arc::clone(&machine);
                async move {
                    tokio::select! {
                        biased;
                        event = events.recv() => event.map(|event| (Ok(event), events)),
                        () = machine.gone() => Some((Err(machine.gone_error().at(FAKE, "watch")), events)),
                    }
                }
            }))
        })
        .await
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn PortStream>> {
        if !self.cloud.options.capabilities.dial {
            return Err(Error::unsupported(FAKE, "dial"));
        }
        self.inside(None, move |_, machine| {
            if !lock(&machine.ports).contains(&port) {
                return Err(Error::new(ErrorKind::NotFound, format!("nothing listens on port {port}"))
                    .with_reason("port_closed"));
            }
            let (near, far) = tokio::io::duplex(CHUNK);
            let machine = Arc::clone(machine);
            tokio::spawn(async move {
                let (mut read, mut write) = split(far);
                tokio::select! {
                    () = machine.gone() => {}
                    _ = copy(&mut read, &mut write) => {}
                }
            });
            Ok(Box::new(near) as Box<dyn PortStream>)
        })
        .await
    }
}
