//! A sandbox handle over an envd.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use buffa::Message;
use sandhold_core::{
    AttachOptions, ByteStream, Download, EntryInfo, Error, ErrorKind, FileOptions, Generation, ListOptions,
    Outcome, PortStream, Process, ProcessInfo, ProcessSelector, ProcessSpec, REASON_PAUSED, ReadOptions,
    Result, ResultStream, SandboxHandle, SandboxId, SandboxInfo, SandboxState, Signal, WatchEvent,
    WatchOptions, WriteOptions,
};
use tokio::sync::oneshot;

use crate::client::convert;
use crate::client::fault::{Call, Effect};
use crate::client::request::EnvdClient;
use crate::messages::filesystem::{
    EntryInfo as WireEntry, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest,
    MoveResponse, RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};

/// How long the provider is asked what became of a sandbox that does not answer.
const EXPLAIN_TIME: Duration = Duration::from_secs(5);

/// What a handle asks of the provider that made it.
#[async_trait]
pub trait ControlPlane: fmt::Debug + Send + Sync + 'static {
    /// Returns the present facts, without waking the sandbox.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] only when the provider itself says that the sandbox does not exist any more.
    async fn info(&self, id: &SandboxId) -> Result<SandboxInfo>;
}

/// The handle of any provider whose inside speaks envd; clones share one client.
#[derive(Clone)]
pub struct EnvdHandle {
    inner: Arc<Inner>,
}

struct Inner {
    client: EnvdClient,
    id: SandboxId,
    provider: &'static str,
    generation: Option<Generation>,
    control: Arc<dyn ControlPlane>,
}

impl fmt::Debug for EnvdHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvdHandle")
            .field("provider", &self.inner.provider)
            .field("id", &self.inner.id)
            .field("generation", &self.inner.generation)
            .field("client", &self.inner.client)
            .finish()
    }
}

impl EnvdHandle {
    /// Puts a handle together; for providers.
    pub fn new(
        client: EnvdClient,
        provider: &'static str,
        id: SandboxId,
        generation: Option<Generation>,
        control: Arc<dyn ControlPlane>,
    ) -> Self {
        Self { inner: Arc::new(Inner { client, id, provider, generation, control }) }
    }

    /// Returns the client, for what only the provider knows of.
    pub fn client(&self) -> &EnvdClient {
        &self.inner.client
    }

    pub(crate) fn call(&self, operation: &'static str, effect: Effect) -> Call {
        Call { provider: self.inner.provider, operation, effect }
    }

    pub(crate) fn unsupported(&self, operation: &'static str) -> Error {
        Error::unsupported(self.inner.provider, operation).with_context("id", &self.inner.id)
    }

    /// Makes a unary call.
    pub(crate) async fn rpc<Answer: Message>(
        &self,
        call: &Call,
        path: &'static str,
        message: &impl Message,
        user: Option<&str>,
    ) -> Result<Answer> {
        self.explained(self.inner.client.unary(call, path, message, user).await).await
    }

    pub(crate) async fn explained<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// Finds out whether silence means a broken line or a sandbox that is no more.
    ///
    /// Only the provider can say that it is gone; a daemon that answers proves that it is not.
    pub(crate) async fn explain(&self, error: Error) -> Error {
        let error = error.with_context("id", &self.inner.id);
        let silent = matches!(error.reason(), Some("unreachable" | "answer_lost" | "not_running"))
            || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
        if !silent {
            return error;
        }
        if self.inner.client.health().await.is_ok() {
            return error.with_context("sandbox", "alive");
        }
        let asked = tokio::time::timeout(EXPLAIN_TIME, self.inner.control.info(&self.inner.id)).await;
        match asked {
            // Nothing was sent, and the provider says why nobody answers: a connect is the way on.
            Ok(Ok(info))
                if matches!(info.state, SandboxState::Paused | SandboxState::Stopped)
                    && error.outcome() == Outcome::NotStarted =>
            {
                Error::new(
                    ErrorKind::InvalidState,
                    "the sandbox does not run; connect to it first, which resumes it",
                )
                .with_reason(REASON_PAUSED)
                .at(self.inner.provider, error.operation())
                .with_context("id", &self.inner.id)
                .with_source(error)
            }
            Ok(Ok(info)) => error.with_context("sandbox", format!("{:?}", info.state).to_lowercase()),
            Ok(Err(gone)) if gone.kind() == ErrorKind::Gone => {
                let outcome = error.outcome();
                Error::new(ErrorKind::Gone, "the sandbox does not exist any more")
                    .at(self.inner.provider, error.operation())
                    .with_context("id", &self.inner.id)
                    .with_outcome(outcome)
                    .with_source(error)
            }
            // Not known is not gone.
            Ok(Err(_)) | Err(_) => error,
        }
    }

    pub(crate) fn entry(&self, call: &Call, entry: Option<WireEntry>) -> Result<EntryInfo> {
        entry.map(convert::entry).ok_or_else(|| {
            call.error(ErrorKind::Unexpected, "the answer has no entry").with_context("id", &self.inner.id)
        })
    }

    pub(crate) async fn stat_entry(&self, call: &Call, path: &str, user: Option<&str>) -> Result<EntryInfo> {
        let request = StatRequest { path: path.to_owned() };
        let answer: StatResponse = self.rpc(call, "/filesystem.Filesystem/Stat", &request, user).await?;
        self.entry(call, answer.entry.into_option())
    }
}

#[async_trait]
impl SandboxHandle for EnvdHandle {
    fn id(&self) -> &SandboxId {
        &self.inner.id
    }

    fn provider(&self) -> &'static str {
        self.inner.provider
    }

    fn generation(&self) -> Option<&Generation> {
        self.inner.generation.as_ref()
    }

    async fn info(&self) -> Result<SandboxInfo> {
        self.inner.control.info(&self.inner.id).await
    }

    async fn start(&self, spec: ProcessSpec) -> Result<Process> {
        // In a task of its own: a caller that leaves before the process is known would leave it behind, known to nobody.
        let handle = self.clone();
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            if let Err(Ok(process)) = tell.send(handle.start_process(spec).await)
                && let Err(error) = process.control().signal(Signal::KILL).await
            {
                tracing::warn!(%error, pid = process.pid(), "a process whose start was given up could not be killed");
            }
        });
        told.await.unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::OutcomeUnknown, "the task of the start ended without a result");
            Err(error.at(self.inner.provider, "start").with_outcome(Outcome::Unknown))
        })
    }

    async fn attach(&self, process: ProcessSelector, options: AttachOptions) -> Result<Process> {
        self.attach_process(process, options).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.list_processes().await
    }

    async fn signal(&self, process: ProcessSelector, signal: Signal) -> Result<bool> {
        self.signal_process(&process, signal).await
    }

    async fn release(&self, process: ProcessSelector) -> Result<bool> {
        self.release_process(&process).await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<Download> {
        let read = self.read_file(path, options).await;
        self.explained(read).await
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<EntryInfo> {
        let written = self.write_file(path, body, options).await;
        self.explained(written).await
    }

    async fn stat(&self, path: &str, options: FileOptions) -> Result<EntryInfo> {
        let call = self.call("stat", Effect::None);
        self.stat_entry(&call, path, options.user.as_deref()).await
    }

    async fn list(&self, path: &str, options: ListOptions) -> Result<Vec<EntryInfo>> {
        let call = self.call("list", Effect::None);
        let request = ListDirRequest { path: path.to_owned(), depth: options.depth.max(1) };
        let user = options.user.as_deref();
        let answer: ListDirResponse =
            self.rpc(&call, "/filesystem.Filesystem/ListDir", &request, user).await?;
        Ok(answer.entries.into_iter().map(convert::entry).collect())
    }

    async fn make_dir(&self, path: &str, options: FileOptions) -> Result<EntryInfo> {
        let call = self.call("make_dir", Effect::Idempotent);
        let request = MakeDirRequest { path: path.to_owned() };
        let user = options.user.as_deref();
        let answer: MakeDirResponse =
            self.rpc(&call, "/filesystem.Filesystem/MakeDir", &request, user).await?;
        self.entry(&call, answer.entry.into_option())
    }

    async fn rename(&self, from: &str, to: &str, options: FileOptions) -> Result<EntryInfo> {
        let call = self.call("rename", Effect::Once);
        let request = MoveRequest { source: from.to_owned(), destination: to.to_owned() };
        let user = options.user.as_deref();
        let answer: MoveResponse = self.rpc(&call, "/filesystem.Filesystem/Move", &request, user).await?;
        self.entry(&call, answer.entry.into_option())
    }

    async fn remove(&self, path: &str, options: FileOptions) -> Result<()> {
        let call = self.call("remove", Effect::Idempotent);
        let request = RemoveRequest { path: path.to_owned() };
        let user = options.user.as_deref();
        let _: RemoveResponse = self.rpc(&call, "/filesystem.Filesystem/Remove", &request, user).await?;
        Ok(())
    }

    async fn watch(&self, path: &str, options: WatchOptions) -> Result<ResultStream<WatchEvent>> {
        self.watch_dir(path, options).await
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn PortStream>> {
        self.dial_port(port).await
    }
}
