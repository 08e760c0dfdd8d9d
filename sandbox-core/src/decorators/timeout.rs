use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use crate::{
    Attempt, Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, Error, ErrorKind,
    FindQuery, ForkOptions, ListFilter, LogLine, LogOptions, Metrics, Network, Outcome, PauseOptions,
    PauseOutcome, Result, ResultStream, SandboxHandle, SandboxId, SandboxInfo, SandboxProvider, SandboxSpec,
    SnapshotFilter, SnapshotId, SnapshotInfo, SnapshotOptions,
};

/// A provider whose every call ends within a deadline.
///
/// A call that is given up fails with [`ErrorKind::Timeout`]. A question (`find`, `list`, `list_snapshots`, `metrics`) had no effect and
/// may be asked again. For every other verb the outcome is unknown; the idempotent ones are retryable all the same, a
/// create is not: it is to be found by its attempt. The deadline of a listing is for each item.
///
/// Calls on the handles are not covered: they have deadlines of their own.
#[derive(Debug)]
pub struct WithTimeout<P> {
    inner: P,
    deadline: Duration,
}

/// What may have happened when no answer came.
#[derive(Clone, Copy)]
enum Effect {
    /// Nothing: it was a question.
    None,
    /// Perhaps, and once more does no harm.
    Idempotent,
    /// Perhaps, and once more would make a second one.
    Once,
}

impl<P: SandboxProvider> WithTimeout<P> {
    /// Gives every call of `inner` so much time; a create or connect that names a shorter deadline keeps it.
    pub fn new(inner: P, deadline: Duration) -> Self {
        Self { inner, deadline }
    }

    async fn within<T>(
        &self,
        operation: &'static str,
        effect: Effect,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match timeout(self.deadline, call).await {
            Ok(result) => result,
            Err(_) => Err(late(self.inner.name(), operation, effect, self.deadline)),
        }
    }

    /// Gives each item of a listing the deadline of a call.
    fn each_within<T: Send + 'static>(
        &self,
        operation: &'static str,
        listing: ResultStream<T>,
    ) -> ResultStream<T> {
        let (provider, deadline) = (self.inner.name(), self.deadline);
        ResultStream::unfold(listing, move |mut listing| async move {
            match timeout(deadline, listing.next()).await {
                Ok(item) => item.map(|item| (item, listing)),
                Err(_) => Some((Err(late(provider, operation, Effect::None, deadline)), listing)),
            }
        })
    }
}

fn late(provider: &'static str, operation: &'static str, effect: Effect, deadline: Duration) -> Error {
    let error =
        Error::new(ErrorKind::Timeout, format!("no answer within {deadline:?}")).at(provider, operation);
    match effect {
        Effect::None => error.retryable(None),
        Effect::Idempotent => error.with_outcome(Outcome::Unknown).retryable(None),
        Effect::Once => error.with_outcome(Outcome::Unknown),
    }
}

/// Names the attempt that a sandbox of an unknown outcome is found by.
fn to_be_found_by(error: Error, attempt: Attempt) -> Error {
    if error.kind() == ErrorKind::Timeout { error.with_context("attempt", attempt) } else { error }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<P: SandboxProvider> SandboxProvider for WithTimeout<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn fingerprint(&self) -> String {
        self.inner.fingerprint()
    }

    fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
        self.inner.check_spec(spec)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
        self.within("find", Effect::None, self.inner.find(query)).await
    }

    async fn connect_opts(&self, id: &SandboxId, mut options: ConnectOptions) -> Result<Connection> {
        options.deadline = options.deadline.min(self.deadline);
        self.within("connect", Effect::Idempotent, self.inner.connect_opts(id, options)).await
    }

    async fn create_opts(&self, mut options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        options.deadline = options.deadline.min(self.deadline);
        let attempt = options.tags.attempt.clone();
        self.within("create", Effect::Once, self.inner.create_opts(options))
            .await
            .map_err(|error| to_be_found_by(error, attempt))
    }

    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        let listing = self.within("list", Effect::None, self.inner.list(filter)).await?;
        Ok(self.each_within("list", listing))
    }

    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        self.within("pause", Effect::Idempotent, self.inner.pause_opts(id, options)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        self.within("destroy", Effect::Idempotent, self.inner.destroy(id)).await
    }

    async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
        self.within("set_lease", Effect::Idempotent, self.inner.set_lease(id, lease)).await
    }

    async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotInfo> {
        self.within("snapshot", Effect::Once, self.inner.snapshot(id, options)).await
    }

    async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<ResultStream<SnapshotInfo>> {
        let listing = self.within("list_snapshots", Effect::None, self.inner.list_snapshots(filter)).await?;
        Ok(self.each_within("list_snapshots", listing))
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
        self.within("delete_snapshot", Effect::Idempotent, self.inner.delete_snapshot(id)).await
    }

    async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
        let attempt = options.tags.attempt.clone();
        self.within("fork", Effect::Once, self.inner.fork(id, options))
            .await
            .map_err(|error| to_be_found_by(error, attempt))
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<ResultStream<LogLine>> {
        self.within("logs", Effect::None, self.inner.logs(id, options)).await
    }

    async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
        self.within("metrics", Effect::None, self.inner.metrics(id)).await
    }

    async fn update_network(&self, id: &SandboxId, network: Network) -> Result<()> {
        self.within("update_network", Effect::Idempotent, self.inner.update_network(id, network)).await
    }
}
