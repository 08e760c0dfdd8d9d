use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, Error, ErrorKind, FindQuery,
    ForkOptions, ListFilter, LogLine, LogOptions, Metrics, Network, PauseOptions, PauseOutcome, Result,
    ResultStream, SandboxHandle, SandboxId, SandboxInfo, SandboxProvider, SandboxSpec, SnapshotFilter,
    SnapshotId, SnapshotInfo, SnapshotOptions,
};

/// A provider with at most so many calls under way at once; more wait for their turn, first come, first served.
///
/// The limit covers the provider's verbs, not the calls on the handles it returns. A listing counts while its next item
/// is awaited and not in between, so that its reader may call the provider. The time that a call waits for its turn
/// does not count against its deadline.
#[derive(Debug)]
pub struct Limited<P> {
    inner: P,
    turns: Arc<Semaphore>,
}

impl<P: SandboxProvider> Limited<P> {
    /// Lets at most `calls` calls of `inner` be under way.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0, which would let nothing through, or above 2^32.
    pub fn new(inner: P, calls: usize) -> Result<Self> {
        if calls == 0 || calls as u64 > u64::from(u32::MAX).min(Semaphore::MAX_PERMITS as u64) {
            return Err(Error::invalid_argument(format!(
                "a limit of {calls} calls is not possible; give 1 to {}",
                u32::MAX
            )));
        }
        Ok(Self { inner, turns: Arc::new(Semaphore::new(calls)) })
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        turn(Arc::clone(&self.turns)).await
    }

    /// Lets each item of a listing wait for its turn.
    fn in_turns<T: Send + 'static>(&self, listing: ResultStream<T>) -> ResultStream<T> {
        let turns = Arc::clone(&self.turns);
        ResultStream::unfold(listing, move |mut listing| {
            let turns = Arc::clone(&turns);
            async move {
                let _turn = match turn(turns).await {
                    Ok(turn) => turn,
                    Err(error) => return Some((Err(error), listing)),
                };
                listing.next().await.map(|item| (item, listing))
            }
        })
    }
}

async fn turn(turns: Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    // Nobody closes the semaphore; should it happen, nothing was started.
    turns.acquire_owned().await.map_err(|_| Error::new(ErrorKind::Cancelled, "the limiter was closed"))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<P: SandboxProvider> SandboxProvider for Limited<P> {
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
        let _turn = self.turn().await?;
        self.inner.find(query).await
    }

    async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection> {
        let _turn = self.turn().await?;
        self.inner.connect_opts(id, options).await
    }

    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        let _turn = self.turn().await?;
        self.inner.create_opts(options).await
    }

    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        let _turn = self.turn().await?;
        Ok(self.in_turns(self.inner.list(filter).await?))
    }

    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        let _turn = self.turn().await?;
        self.inner.pause_opts(id, options).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        let _turn = self.turn().await?;
        self.inner.destroy(id).await
    }

    async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
        let _turn = self.turn().await?;
        self.inner.set_lease(id, lease).await
    }

    async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotInfo> {
        let _turn = self.turn().await?;
        self.inner.snapshot(id, options).await
    }

    async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<ResultStream<SnapshotInfo>> {
        let _turn = self.turn().await?;
        Ok(self.in_turns(self.inner.list_snapshots(filter).await?))
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
        let _turn = self.turn().await?;
        self.inner.delete_snapshot(id).await
    }

    async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
        let _turn = self.turn().await?;
        self.inner.fork(id, options).await
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<ResultStream<LogLine>> {
        let _turn = self.turn().await?;
        self.inner.logs(id, options).await
    }

    async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
        let _turn = self.turn().await?;
        self.inner.metrics(id).await
    }

    async fn update_network(&self, id: &SandboxId, network: Network) -> Result<()> {
        let _turn = self.turn().await?;
        self.inner.update_network(id, network).await
    }
}
