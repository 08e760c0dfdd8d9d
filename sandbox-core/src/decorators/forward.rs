//! A shared or boxed provider is a provider.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, FindQuery, ForkOptions,
    ListFilter, LogLine, LogOptions, Metrics, Network, PauseOptions, PauseOutcome, Result, ResultStream,
    SandboxHandle, SandboxId, SandboxInfo, SandboxProvider, SandboxSpec, SnapshotFilter, SnapshotId,
    SnapshotInfo, SnapshotOptions,
};

macro_rules! forward {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<P: SandboxProvider + ?Sized> SandboxProvider for $pointer<P> {
            fn name(&self) -> &'static str {
                (**self).name()
            }

            fn fingerprint(&self) -> String {
                (**self).fingerprint()
            }

            fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
                (**self).check_spec(spec)
            }

            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }

            async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
                (**self).find(query).await
            }

            async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection> {
                (**self).connect_opts(id, options).await
            }

            async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
                (**self).create_opts(options).await
            }

            async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
                (**self).list(filter).await
            }

            async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
                (**self).pause_opts(id, options).await
            }

            async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
                (**self).destroy(id).await
            }

            async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
                (**self).set_lease(id, lease).await
            }

            async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotInfo> {
                (**self).snapshot(id, options).await
            }

            async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<ResultStream<SnapshotInfo>> {
                (**self).list_snapshots(filter).await
            }

            async fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
                (**self).delete_snapshot(id).await
            }

            async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
                (**self).fork(id, options).await
            }

            async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<ResultStream<LogLine>> {
                (**self).logs(id, options).await
            }

            async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
                (**self).metrics(id).await
            }

            async fn update_network(&self, id: &SandboxId, network: Network) -> Result<()> {
                (**self).update_network(id, network).await
            }
        }
    };
}

forward!(Arc);
forward!(Box);
