//! The guard around every call of a sandbox: acquire, resume, send, and learn from the answer.

use async_trait::async_trait;

use super::resume::is_paused;
use super::{NO_ID, REASON_UNSTARTED, Sandbox, not_sent};
use crate::fate::{End, Fate};
use crate::files::{
    Download, EntryInfo, FileOptions, ListOptions, ReadOptions, WatchEvent, WatchOptions, WriteOptions,
};
use crate::process::{AttachOptions, Process, ProcessInfo, ProcessSelector, ProcessSpec, Signal};
use crate::stream::{ByteStream, ResultStream};
use crate::{
    Error, ErrorKind, Generation, Outcome, PortStream, Result, SandboxHandle, SandboxId, SandboxInfo,
};

/// Runs a call under the guard. On a paused sandbox it resumes and runs the call once more, which was not sent before; so
/// it does on the key's next sandbox, where this value follows the key and the lost one provably did nothing.
macro_rules! guarded {
    ($sandbox:ident, $handle:ident => $call:expr) => {{
        let mut is_second = false;
        loop {
            let fate = $sandbox.live().await.map_err(not_sent)?;
            let answer = async {
                let epoch = $sandbox.epoch(&fate).await.map_err(not_sent)?;
                let $handle = fate.handle();
                match $call.await {
                    Err(error) if is_paused(&error) && !$sandbox.is_within_transition() => {
                        $sandbox.resume_after(&fate, epoch).await.map_err(not_sent)?;
                        let $handle = fate.handle();
                        $sandbox.seen(&fate, $call.await).await
                    }
                    answer => $sandbox.seen(&fate, answer).await,
                }
            };
            match answer.await {
                Err(error) if !is_second && $sandbox.goes_on(&fate, &error) => is_second = true,
                answer => break answer,
            }
        }
    }};
}

impl Sandbox {
    /// Whether a call may be sent to the key's next sandbox.
    fn goes_on(&self, fate: &Fate, error: &Error) -> bool {
        error.outcome() == Outcome::NotStarted
            && matches!(fate.end(), Some(End::Gone | End::Replaced))
            && self.follows()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl SandboxHandle for Sandbox {
    /// Empty before a lazy value has acquired; see [`Sandbox::provider_id`].
    fn id(&self) -> &SandboxId {
        self.provider_id().unwrap_or(&NO_ID)
    }

    fn provider(&self) -> &'static str {
        self.shared.home.provider.name()
    }

    fn generation(&self) -> Option<&Generation> {
        self.shared.names.last().map(|name| &name.generation)
    }

    /// Never acquires: without a sandbox of its own, the value tells of the one that its key has.
    async fn info(&self) -> Result<SandboxInfo> {
        if let Some(fate) = self.usable()? {
            return self.seen(&fate, fate.handle().info().await).await;
        }
        self.shared.home.find(&self.shared.key, self.wanted_id()).await?.ok_or_else(|| {
            Error::new(ErrorKind::InvalidState, "the key has no sandbox; the first call on it makes one")
                .with_reason(REASON_UNSTARTED)
                .at(self.shared.home.provider.name(), "info")
                .with_context("key", &self.shared.key)
        })
    }

    async fn start(&self, spec: ProcessSpec) -> Result<Process> {
        guarded!(self, handle => handle.start(spec.clone()))
    }

    async fn attach(&self, process: ProcessSelector, options: AttachOptions) -> Result<Process> {
        guarded!(self, handle => handle.attach(process.clone(), options.clone()))
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        guarded!(self, handle => handle.processes())
    }

    async fn signal(&self, process: ProcessSelector, signal: Signal) -> Result<bool> {
        guarded!(self, handle => handle.signal(process.clone(), signal))
    }

    async fn release(&self, process: ProcessSelector) -> Result<bool> {
        guarded!(self, handle => handle.release(process.clone()))
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<Download> {
        guarded!(self, handle => handle.read(path, options.clone()))
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<EntryInfo> {
        let body = body.lend();
        guarded!(self, handle => handle.write(path, body.borrow(), options.clone()))
    }

    async fn stat(&self, path: &str, options: FileOptions) -> Result<EntryInfo> {
        guarded!(self, handle => handle.stat(path, options.clone()))
    }

    async fn list(&self, path: &str, options: ListOptions) -> Result<Vec<EntryInfo>> {
        guarded!(self, handle => handle.list(path, options.clone()))
    }

    async fn make_dir(&self, path: &str, options: FileOptions) -> Result<EntryInfo> {
        guarded!(self, handle => handle.make_dir(path, options.clone()))
    }

    async fn rename(&self, from: &str, to: &str, options: FileOptions) -> Result<EntryInfo> {
        guarded!(self, handle => handle.rename(from, to, options.clone()))
    }

    async fn remove(&self, path: &str, options: FileOptions) -> Result<()> {
        guarded!(self, handle => handle.remove(path, options.clone()))
    }

    async fn watch(&self, path: &str, options: WatchOptions) -> Result<ResultStream<WatchEvent>> {
        guarded!(self, handle => handle.watch(path, options.clone()))
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn PortStream>> {
        guarded!(self, handle => handle.dial(port))
    }
}
