use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::field::{Empty, display};
use tracing::{Instrument, Span, info_span};

use crate::{
    Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, FindQuery, ForkOptions,
    ListFilter, LogLine, LogOptions, Metrics, Network, PauseOptions, PauseOutcome, Result, ResultStream,
    SandboxHandle, SandboxId, SandboxInfo, SandboxProvider, SandboxSpec, SnapshotFilter, SnapshotId,
    SnapshotInfo, SnapshotOptions,
};

/// A provider whose every call is a span of `tracing`: `sandbox.find`, `sandbox.create` and so on.
///
/// Spans carry the provider's name, ids, counts and, after a failure, the code of the error. Keys, metadata,
/// environment and messages are never recorded. The span of a listing lasts until its stream ends.
#[derive(Debug)]
pub struct Traced<P> {
    inner: P,
}

impl<P: SandboxProvider> Traced<P> {
    /// Traces the calls of `inner`.
    pub fn new(inner: P) -> Self {
        Self { inner }
    }
}

/// Runs the call inside the span and writes the code of its failure there.
async fn traced<T>(span: Span, call: impl Future<Output = Result<T>>) -> Result<T> {
    let result = call.instrument(span.clone()).await;
    if let Err(error) = &result {
        span.record("error.kind", error.kind().as_str());
        span.record("error.outcome", error.outcome().as_str());
    }
    result
}

/// Writes into the span how many items a listing had, once it ends.
fn counted<T: Send + 'static>(span: Span, listing: ResultStream<T>) -> ResultStream<T> {
    ResultStream::unfold((listing, 0u64), move |(mut listing, count)| {
        let span = span.clone();
        async move {
            let item = listing.next().instrument(span.clone()).await;
            match &item {
                None => {
                    span.record("sandbox.count", count);
                }
                Some(Err(error)) => {
                    span.record("sandbox.count", count);
                    span.record("error.kind", error.kind().as_str());
                }
                Some(Ok(_)) => {}
            }
            item.map(|item| (item, (listing, count + 1)))
        }
    })
}

macro_rules! span {
    ($name:literal, $self:ident $(, $($field:tt)*)?) => {
        info_span!(
            $name,
            sandbox.provider = $self.inner.name(),
            error.kind = Empty,
            error.outcome = Empty
            $(, $($field)*)?
        )
    };
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<P: SandboxProvider> SandboxProvider for Traced<P> {
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
        let span = span!("sandbox.find", self, sandbox.id = Empty, sandbox.count = Empty);
        if let FindQuery::Id(id) = &query {
            span.record("sandbox.id", display(id));
        }
        let found = traced(span.clone(), self.inner.find(query)).await?;
        span.record("sandbox.count", found.len());
        Ok(found)
    }

    async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection> {
        let span = span!("sandbox.connect", self, sandbox.id = %id, sandbox.resumed = Empty);
        let connection = traced(span.clone(), self.inner.connect_opts(id, options)).await?;
        if let Some(memory) = connection.resumed {
            span.record("sandbox.resumed", memory.as_str());
        }
        Ok(connection)
    }

    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        let span = span!("sandbox.create", self, sandbox.attempt = %options.tags.attempt, sandbox.id = Empty);
        let handle = traced(span.clone(), self.inner.create_opts(options)).await?;
        span.record("sandbox.id", display(handle.id()));
        Ok(handle)
    }

    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        let span = span!("sandbox.list", self, sandbox.count = Empty);
        let listing = traced(span.clone(), self.inner.list(filter)).await?;
        Ok(counted(span, listing))
    }

    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        traced(span!("sandbox.pause", self, sandbox.id = %id), self.inner.pause_opts(id, options)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        traced(span!("sandbox.destroy", self, sandbox.id = %id), self.inner.destroy(id)).await
    }

    async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
        let span = span!("sandbox.set_lease", self, sandbox.id = %id, sandbox.lease_s = lease.as_secs());
        traced(span, self.inner.set_lease(id, lease)).await
    }

    async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotInfo> {
        traced(span!("sandbox.snapshot", self, sandbox.id = %id), self.inner.snapshot(id, options)).await
    }

    async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<ResultStream<SnapshotInfo>> {
        let span = span!("sandbox.list_snapshots", self, sandbox.count = Empty);
        let listing = traced(span.clone(), self.inner.list_snapshots(filter)).await?;
        Ok(counted(span, listing))
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
        let span = span!("sandbox.delete_snapshot", self, sandbox.snapshot = %id);
        traced(span, self.inner.delete_snapshot(id)).await
    }

    async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
        traced(span!("sandbox.fork", self, sandbox.id = %id), self.inner.fork(id, options)).await
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<ResultStream<LogLine>> {
        traced(span!("sandbox.logs", self, sandbox.id = %id), self.inner.logs(id, options)).await
    }

    async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
        traced(span!("sandbox.metrics", self, sandbox.id = %id), self.inner.metrics(id)).await
    }

    async fn update_network(&self, id: &SandboxId, network: Network) -> Result<()> {
        traced(
            span!("sandbox.update_network", self, sandbox.id = %id),
            self.inner.update_network(id, network),
        )
        .await
    }
}
