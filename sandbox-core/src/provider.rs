use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::stream::ResultStream;
use crate::{
    Attempt, Capabilities, Error, Generation, Key, Network, Owner, Result, SandboxHandle, SandboxId,
    SandboxInfo, SandboxSpec, SandboxState, Tags,
};

/// Default deadline of one provider call.
pub const DEFAULT_CALL_DEADLINE: Duration = Duration::from_secs(60);

/// What to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindQuery {
    /// The sandbox with the provider's id.
    Id(SandboxId),
    /// Every sandbox with these tags, in every state.
    Key {
        /// The namespace of the key.
        owner: Owner,
        /// The caller's logical id.
        key: Key,
        /// Only the one of this create call; `None` for all.
        attempt: Option<Attempt>,
    },
}

/// Which sandboxes to list; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListFilter {
    /// Only those of this owner.
    pub owner: Option<Owner>,
    /// Only those with this key.
    pub key: Option<Key>,
    /// Only those in one of these states; empty for every state.
    pub states: Vec<SandboxState>,
    /// Only those that carry all these pairs.
    pub metadata: BTreeMap<String, String>,
}

impl ListFilter {
    /// Lists only those of this owner.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Lists only those with this key.
    #[must_use]
    pub fn with_key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Lists those in this state, beside states named before.
    #[must_use]
    pub fn with_state(mut self, state: SandboxState) -> Self {
        self.states.push(state);
        self
    }

    /// Lists only those that carry this pair.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Tells whether these facts pass the filter: the one definition that every provider uses.
    #[must_use]
    pub fn matches(&self, info: &SandboxInfo) -> bool {
        let tags = info.tags.as_ref();
        self.owner.as_ref().is_none_or(|owner| tags.is_some_and(|tags| tags.owner == *owner))
            && self.key.as_ref().is_none_or(|key| tags.is_some_and(|tags| tags.key == *key))
            && (self.states.is_empty() || self.states.contains(&info.state))
            && self.metadata.iter().all(|(name, value)| info.metadata.get(name) == Some(value))
    }
}

/// Shapes one create.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// How the sandbox is to be made.
    pub spec: SandboxSpec,
    /// What it is tagged with.
    pub tags: Tags,
    /// After this time the call is given up; default [`DEFAULT_CALL_DEADLINE`].
    pub deadline: Duration,
}

impl CreateOptions {
    /// A create of this spec with these tags.
    #[must_use]
    pub fn new(spec: SandboxSpec, tags: Tags) -> Self {
        Self { spec, tags, deadline: DEFAULT_CALL_DEADLINE }
    }

    /// Gives the call up after this time.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// Shapes one connect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Extends the lease to so long from now; a longer one is never shortened. Default: the lease is left alone.
    pub lease: Option<Duration>,
    /// Only a sandbox of this generation will do; default any.
    pub generation: Option<Generation>,
    /// After this time the call is given up; default [`DEFAULT_CALL_DEADLINE`].
    pub deadline: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { lease: None, generation: None, deadline: DEFAULT_CALL_DEADLINE }
    }
}

impl ConnectOptions {
    /// Extends the lease to so long from now.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Accepts only a sandbox of this generation.
    #[must_use]
    pub fn with_generation(mut self, generation: Generation) -> Self {
        self.generation = Some(generation);
        self
    }

    /// Gives the call up after this time.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// What a resume kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Memory {
    /// Processes go on where they were.
    Kept,
    /// Only the files are there.
    Lost,
}

impl Memory {
    /// Returns the stable snake_case code.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Lost => "lost",
        }
    }
}

/// A connected sandbox, and whether it had to be woken for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Connection {
    /// The handle.
    pub handle: Arc<dyn SandboxHandle>,
    /// What the resume kept; `None` when it was running.
    pub resumed: Option<Memory>,
}

impl Connection {
    /// Pairs a handle with what the resume kept.
    #[must_use]
    pub fn new(handle: Arc<dyn SandboxHandle>, resumed: Option<Memory>) -> Self {
        Self { handle, resumed }
    }
}

/// What a pause found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PauseOutcome {
    /// It was running and is paused now.
    Paused,
    /// It was paused before.
    AlreadyPaused,
}

/// What a destroy found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DestroyOutcome {
    /// It was there and is gone now.
    Destroyed,
    /// It was gone before.
    AlreadyGone,
}

/// The provider's id of a stored state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId(String);

impl SnapshotId {
    /// Wraps an id as the provider wrote it.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// Returns the text, verbatim.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Shapes one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// A name to find it by; default the provider's own.
    pub name: Option<String>,
}

impl SnapshotOptions {
    /// Names the snapshot.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// Shapes one look at the logs; the default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogOptions {
    /// Only lines from this moment on.
    pub since: Option<SystemTime>,
    /// At most so many lines.
    pub limit: Option<usize>,
}

impl LogOptions {
    /// Shows only lines from this moment on.
    #[must_use]
    pub fn with_since(mut self, since: SystemTime) -> Self {
        self.since = Some(since);
        self
    }

    /// Shows at most so many lines.
    #[must_use]
    pub fn with_limit(mut self, lines: usize) -> Self {
        self.limit = Some(lines);
        self
    }
}

/// One line of a provider's log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLine {
    /// When it was written.
    pub at: SystemTime,
    /// The provider's word for its level, such as `info`.
    pub level: String,
    /// The text.
    pub message: String,
}

impl LogLine {
    /// Puts a line together; for providers.
    pub fn new(at: SystemTime, level: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at, level: level.into(), message: message.into() }
    }
}

/// Present use of a sandbox's resources.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// When it was measured.
    pub at: Option<SystemTime>,
    /// Cores it may use.
    pub cpu_count: f64,
    /// Per cent of one core, averaged since the last measurement.
    pub cpu_used_percent: f64,
    /// Memory in use, in bytes.
    pub memory_used: u64,
    /// Memory it may use, in bytes.
    pub memory_total: u64,
    /// Disk in use, in bytes.
    pub disk_used: u64,
    /// Disk it may use, in bytes.
    pub disk_total: u64,
}

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
    /// found by its attempt.
    ///
    /// # Cancellation
    /// The outcome is unknown then, as if the answer was lost.
    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>>;

    /// Streams all matching sandboxes of all pages in a stable order; a partial list ends with an error.
    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>>;

    /// Suspends a sandbox by id. Requires [`Capabilities::pause`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`].
    async fn pause(&self, id: &SandboxId) -> Result<PauseOutcome> {
        let _ = id;
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

    /// Stores the present state of a sandbox as something that new ones can start from; it runs on.
    /// Requires [`Capabilities::snapshot`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Gone`]; [`crate::ErrorKind::InvalidState`] when it does not run.
    async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotId> {
        let _ = (id, options);
        Err(Error::unsupported(self.name(), "snapshot"))
    }

    /// Makes a new sandbox with these tags from the present state of another, which runs on. Never retried inside.
    /// Requires [`Capabilities::fork`].
    ///
    /// # Errors
    /// As [`SandboxProvider::create_opts`]; [`crate::ErrorKind::Gone`] when the source does not exist.
    async fn fork(&self, id: &SandboxId, tags: Tags) -> Result<Arc<dyn SandboxHandle>> {
        let _ = (id, tags);
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

    /// Lists all matching sandboxes into memory.
    ///
    /// # Errors
    /// As [`SandboxProvider::list`].
    fn list_all(&self, filter: ListFilter) -> impl Future<Output = Result<Vec<SandboxInfo>>> + Send {
        async move { self.list(filter).await?.collect().await }
    }
}

impl<P: SandboxProvider + ?Sized> SandboxProviderExt for P {}
