//! The contract of a provider.

mod facts;
mod options;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use facts::{Connection, DestroyOutcome, LogLine, Memory, Metrics, PauseOutcome, SnapshotInfo};
pub use options::{
    ConnectOptions, CreateOptions, DEFAULT_CALL_DEADLINE, FindQuery, ForkOptions, ListFilter, LogOptions,
    PauseOptions, SnapshotFilter, SnapshotOptions,
};

use crate::stream::ResultStream;
use crate::{
    Capabilities, Error, Network, Result, SandboxHandle, SandboxId, SandboxInfo, SandboxSpec, SnapshotId,
};

/// Where sandboxes are: find, connect, create, list, pause, destroy.
///
/// A new provider is these methods. All of them work by id, from any process, without an earlier call.
///
/// # Errors
/// Only the provider's own typed answer that an id does not exist may become `None`, `AlreadyGone` or
/// [`crate::ErrorKind::Gone`]. Everything else that is not understood is an error of another kind.
#[async_trait]
pub trait SandboxProvider: fmt::Debug + Send + Sync + 'static {
    /// Returns the stable lower-case name used in errors, records and spans.
    fn name(&self) -> &'static str;

    /// Says what is supported.
    fn capabilities(&self) -> Capabilities;

    /// Returns what an id is valid under: the endpoint and the scope of the credentials, without secrets.
    ///
    /// A record remembers it, so that *gone* under other credentials is never taken for *gone*.
    fn fingerprint(&self) -> String;

    /// Refuses what a create of this spec would refuse as unsupported, without doing anything. An acquire asks before it
    /// writes anything down, and before it ends a sandbox that the new one is to take the place of.
    ///
    /// By default every spec passes here.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] or [`crate::ErrorKind::InvalidArgument`], naming what the provider cannot do.
    fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
        let _ = spec;
        Ok(())
    }

    /// Finds sandboxes in every state, on every page, without waking, extending or creating one.
    ///
    /// An empty answer means that there is none.
    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>>;

    /// Returns a usable handle; resumes a paused or stopped sandbox.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`] when it does not exist; [`crate::ErrorKind::Stale`] when its generation is another.
    ///
    /// # Cancellation
    /// A resume that was asked for may still happen.
    async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection>;

    /// Creates a sandbox with these tags and returns once commands can run in it. Never retried inside.
    ///
    /// # Errors
    /// With [`crate::Outcome::NotStarted`] nothing was made; with [`crate::Outcome::Unknown`] there may be one, to be
    /// found by its attempt. An error that says neither ([`Error::with_outcome`]) counts as unknown, unless it is retryable
    /// or of a kind that refuses: `gone`, `invalid_argument`, `not_found`, `permission_denied`, `quota_exceeded`,
    /// `rate_limited`, `unauthenticated`, `unsupported`.
    ///
    /// # Cancellation
    /// The outcome is unknown then, as if the answer was lost.
    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>>;

    /// Streams all matching sandboxes of all pages in a stable order; a partial list ends with an error.
    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>>;

    /// Suspends a sandbox by id. Requires [`Capabilities::pause`], and for [`Memory::Lost`]
    /// [`Capabilities::pause_without_memory`].
    ///
    /// One that is paused already is left as it is, whatever it kept.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`].
    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        let _ = (id, options);
        Err(Error::unsupported(self.name(), "pause"))
    }

    /// Destroys a sandbox by id with all that belongs to it, without waking it.
    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome>;

    /// Sets the lease to end so long from now, also sooner than before; zero lets it end at once.
    /// Requires [`Capabilities::lease`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`].
    async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
        let _ = (id, lease);
        Err(Error::unsupported(self.name(), "set_lease"))
    }

    /// Stores the present state of a sandbox as something that new ones can start from: its id is a template.
    /// Requires [`Capabilities::snapshot`].
    ///
    /// The sandbox goes on as it was. The snapshot stays as it is whatever becomes of the sandbox, and of those that
    /// are made from it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`]; [`crate::ErrorKind::Conflict`] when another snapshot has the name, where
    /// names are given once.
    ///
    /// # Cancellation
    /// A snapshot that was asked for may still be made.
    async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotInfo> {
        let _ = (id, options);
        Err(Error::unsupported(self.name(), "snapshot"))
    }

    /// Streams all matching snapshots of all pages, oldest first where the provider tells their age; a partial list
    /// ends with an error. Requires [`Capabilities::snapshot`].
    async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<ResultStream<SnapshotInfo>> {
        let _ = filter;
        Err(Error::unsupported(self.name(), "list_snapshots"))
    }

    /// Deletes a snapshot with all its names. Requires [`Capabilities::snapshot`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Conflict`] with reason `in_use` while a sandbox stands on it, where deleting it would harm
    /// that one.
    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
        let _ = id;
        Err(Error::unsupported(self.name(), "delete_snapshot"))
    }

    /// Makes a new sandbox with these tags from the present state of another, which goes on as it was. Never retried
    /// inside. Requires [`Capabilities::fork`].
    ///
    /// The fork is made as its source was: user, environment, metadata, limits. What it has of the source's memory is
    /// what a snapshot keeps.
    ///
    /// # Errors
    /// As [`SandboxProvider::create_opts`]; [`crate::ErrorKind::Gone`] when the source does not exist.
    async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
        let _ = (id, options);
        Err(Error::unsupported(self.name(), "fork"))
    }

    /// Streams what the provider has logged about a sandbox, oldest first, also after its end where it is kept.
    /// Requires [`Capabilities::logs`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`].
    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<ResultStream<LogLine>> {
        let _ = (id, options);
        Err(Error::unsupported(self.name(), "logs"))
    }

    /// Measures the present use of resources. Requires [`Capabilities::metrics`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`].
    async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
        let _ = id;
        Err(Error::unsupported(self.name(), "metrics"))
    }

    /// Replaces the network policy of a running sandbox. Requires [`Capabilities::update_network`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`].
    async fn update_network(&self, id: &SandboxId, network: Network) -> Result<()> {
        let _ = (id, network);
        Err(Error::unsupported(self.name(), "update_network"))
    }
}

/// Shorthands over [`SandboxProvider`]; not to be implemented.
pub trait SandboxProviderExt: SandboxProvider {
    /// Finds the sandbox with this id; `None` only when the provider says that it does not exist.
    ///
    /// # Errors
    /// As [`SandboxProvider::find`]; [`crate::ErrorKind::Unexpected`] when the provider answers with several.
    fn find_id(&self, id: &SandboxId) -> impl Future<Output = Result<Option<SandboxInfo>>> + Send {
        let query = FindQuery::Id(id.clone());
        async move {
            let mut found = self.find(query).await?;
            match found.len() {
                0 => Ok(None),
                1 => Ok(found.pop()),
                several => Err(Error::new(
                    crate::ErrorKind::Unexpected,
                    format!("the provider found {several} sandboxes of one id"),
                )
                .at(self.name(), "find")),
            }
        }
    }

    /// Connects with every default.
    ///
    /// # Errors
    /// As [`SandboxProvider::connect_opts`].
    fn connect(&self, id: &SandboxId) -> impl Future<Output = Result<Connection>> + Send {
        async move { self.connect_opts(id, ConnectOptions::default()).await }
    }

    /// Suspends a sandbox with every default.
    ///
    /// # Errors
    /// As [`SandboxProvider::pause_opts`].
    fn pause(&self, id: &SandboxId) -> impl Future<Output = Result<PauseOutcome>> + Send {
        async move { self.pause_opts(id, PauseOptions::default()).await }
    }

    /// Lists all matching sandboxes into memory.
    ///
    /// # Errors
    /// As [`SandboxProvider::list`].
    fn list_all(&self, filter: ListFilter) -> impl Future<Output = Result<Vec<SandboxInfo>>> + Send {
        async move { self.list(filter).await?.collect().await }
    }
}

impl<P: SandboxProvider + ?Sized> SandboxProviderExt for P {}
