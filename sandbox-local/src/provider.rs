//! The local provider: sandboxes of this machine, found by their directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandhold_core::{
    Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, Error, ErrorKind, FindQuery,
    ForkOptions, ListFilter, LogLine, LogOptions, Metrics, Outcome, PauseOptions, PauseOutcome, Result,
    ResultStream, SandboxHandle, SandboxId, SandboxInfo, SandboxProvider, SandboxSpec, SandboxState,
    SnapshotFilter, SnapshotId, SnapshotInfo, SnapshotOptions,
};
use sandhold_envd::{ControlPlane, EnvdHandle};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::cleanup;
use crate::config::LocalConfig;
use crate::control::{Info, State};
use crate::launch::Helper;
use crate::record::{IdMap, Origin, Record};
use crate::registration::{self, Registration, TEMPLATE};
use crate::state_dir::{Beginning, ChangeLock, StateDir};
use crate::store::{Pin, Store};
use crate::{journal, link, requirement, state_dir};

/// The name of this provider.
pub(crate) const NAME: &str = "local";

/// How long a change by another process is waited for.
pub(crate) const CHANGE_WAIT: Duration = Duration::from_secs(30);

/// How long a killed sandbox may take to be removed, with all its files.
pub(crate) const REMOVE_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a daemon that should be there may take to answer a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Sandboxes on this machine: isolated processes that outlive the program that made them.
///
/// Every value over one state directory sees the same sandboxes, in this process or another. Clones share what was
/// found out about the host.
#[derive(Clone, Debug)]
pub struct LocalProvider(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: LocalConfig,
    pub(crate) home: StateDir,
    pub(crate) store: Store,
    pub(crate) helper: Helper,
    fingerprint: String,
    probed: OnceCell<()>,
}

/// What a look at one sandbox showed.
pub(crate) enum Look {
    /// It does not exist, or its end was decided.
    Gone,
    Running(Box<Info>),
    Stopped,
    /// It starts or ends.
    Between,
}

impl LocalProvider {
    /// Opens the state directory and finds the helper; makes nothing but the directory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] with reason `no_helper`, or for a state directory that is not known;
    /// [`ErrorKind::PermissionDenied`] when it cannot be written; [`ErrorKind::Unsupported`] with reason `newer_version`
    /// when a newer library wrote it.
    pub fn new(config: LocalConfig) -> Result<Self> {
        let at = |error: Error| error.at(NAME, "open");
        let home = StateDir::open(config.resolve_home().map_err(at)?).map_err(at)?;
        let helper = Helper::find(&config, home.root()).map_err(at)?;
        let fingerprint = format!("local:{}", home.root().display());
        let store = Store::below(home.root());
        Ok(Self(Arc::new(Inner { config, home, store, helper, fingerprint, probed: OnceCell::new() })))
    }

    /// Returns the state directory.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.0.home.root()
    }

    /// Makes a template from a directory that holds a whole root: the unpacked file system of an image.
    ///
    /// Its id, or one of the names, is what a spec then names as its template. Such a sandbox sees nothing of this
    /// machine's programs: everything comes from the directory, which is copied (blocks are shared where the file system
    /// can) and not needed afterwards. What is missing is added when a sandbox starts: the ordinary user, its home,
    /// `/tmp`, `/etc/hosts`. Owners are kept as root; for everybody else the caller's files become root's. Devices are
    /// left out. The template is listed and deleted like a snapshot; it cannot be deleted while one stands on it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such directory, [`ErrorKind::InvalidArgument`] for a bad name or content
    /// that cannot be stored, [`ErrorKind::Conflict`] when another snapshot has the name.
    ///
    /// # Cancellation
    /// What was copied is removed by a later create.
    pub async fn import_template(
        &self,
        directory: &Path,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<SnapshotInfo> {
        let names = names.into_iter().map(Into::into).collect();
        self.0.import(directory, names).await.map_err(|error| error.at(NAME, "import_template"))
    }

    /// Runs the host's probe: what isolation works here, as JSON, found out by doing it.
    ///
    /// # Errors
    /// What kept the probe from running.
    pub async fn probe(&self) -> Result<String> {
        self.0
            .helper
            .probe(self.home(), self.0.config.start_timeout)
            .await
            .map_err(|error| error.at(NAME, "probe"))
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::new(ErrorKind::Unexpected, "the file work was ended").with_source(error))?
}

impl Inner {
    pub(crate) fn handle(
        self: &Arc<Self>,
        id: &SandboxId,
        registration: &Registration,
    ) -> Result<EnvdHandle> {
        let directory = self.directory(id)?;
        let client = link::client(&directory, &registration.spec.user)?;
        let generation = registration.tags.generation.clone();
        Ok(EnvdHandle::new(
            client,
            NAME,
            id.clone(),
            Some(generation),
            Arc::clone(self) as Arc<dyn ControlPlane>,
        ))
    }

    pub(crate) fn directory(&self, id: &SandboxId) -> Result<PathBuf> {
        self.home.directory(id).ok_or_else(|| gone(id))
    }

    /// Reads a sandbox's record; `None` when it does not exist or its end was decided.
    pub(crate) async fn record(&self, id: &SandboxId) -> Result<Option<(Record, Registration)>> {
        let Some(directory) = self.home.directory(id) else { return Ok(None) };
        blocking(move || registration::load(&directory)).await
    }

    /// Looks at a sandbox without changing it.
    pub(crate) async fn look(&self, id: &SandboxId, user: &str) -> Result<Look> {
        let Some(directory) = self.home.directory(id) else { return Ok(Look::Gone) };
        let there = directory.clone();
        let monitored = blocking(move || {
            if !there.is_dir() {
                return Ok(None);
            }
            Ok(Some(cleanup::is_monitored(&there)?))
        })
        .await?;
        match monitored {
            None => return Ok(Look::Gone),
            Some(false) => return Ok(Look::Stopped),
            Some(true) => {}
        }
        let client = link::client(&directory, user)?;
        match tokio::time::timeout(ANSWER_TIMEOUT, link::info(&client)).await {
            Ok(Ok(live)) => Ok(Look::Running(Box::new(live))),
            // It has a monitor and no daemon that answers: it is on its way up or down.
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown) => {
                Ok(Look::Between)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(Look::Between),
        }
    }

    async fn info(&self, id: &SandboxId) -> Result<Option<SandboxInfo>> {
        let Some((_, registration)) = self.record(id).await? else { return Ok(None) };
        let (state, live) = match self.look(id, &registration.spec.user).await? {
            Look::Gone => return Ok(None),
            Look::Running(live) => (
                match live.state {
                    State::Running => SandboxState::Running,
                    State::Paused => SandboxState::Paused,
                },
                Some(live),
            ),
            Look::Stopped if registration.paused => (SandboxState::Paused, None),
            Look::Stopped => (SandboxState::Stopped, None),
            Look::Between => (SandboxState::Transitioning, None),
        };
        let mut info =
            SandboxInfo::new(id.clone(), state, registration.spec.template.clone(), registration.created_at);
        info.started_at = registration.resumed_at.unwrap_or(registration.created_at);
        info.metadata = registration.spec.metadata;
        info.tags = Some(registration.tags);
        // Detached from the process that made it, and still in the control group of its service.
        info.survives = "host_process".to_owned();
        if let Some(live) = live {
            info.expires_at = live.lease_ms.map(|left| SystemTime::now() + Duration::from_millis(left));
            info.isolation = Some(live.isolation.facts());
        }
        Ok(Some(info))
    }

    /// Checks what must hold on this host, once.
    pub(crate) async fn check_requirements(&self) -> Result<()> {
        if self.config.requirements.is_empty() {
            return Ok(());
        }
        self.probed
            .get_or_try_init(|| async {
                let text = self.helper.probe(self.home.root(), self.config.start_timeout).await?;
                requirement::check(&text, &self.config.requirements)
            })
            .await
            .map(|_| ())
    }

    async fn create(self: &Arc<Self>, options: CreateOptions) -> Result<EnvdHandle> {
        let unmade = |error: Error| error.with_outcome(Outcome::NotStarted);
        self.check_requirements().await.map_err(unmade)?;
        let registration = Registration::new(&options);
        let (beginning, origin, pin) = self.resolve(&options.spec.template).await.map_err(unmade)?;
        let made = self.make(registration, beginning, origin, options.deadline).await;
        // Its record tells from here on what it stands on.
        drop(pin);
        made
    }

    /// Finds what a template stands for, and keeps it as long as the answer lives.
    async fn resolve(self: &Arc<Self>, template: &str) -> Result<(Beginning, Origin, Option<Pin>)> {
        if template == TEMPLATE {
            return Ok((Beginning::default(), Origin::default(), None));
        }
        let (inner, wanted) = (Arc::clone(self), template.to_owned());
        match blocking(move || inner.store.pin(&wanted)).await? {
            Some((stored, pin)) => {
                let origin = stored.origin();
                Ok((Beginning { ids: Some(stored.ids), layer: None }, origin, Some(pin)))
            }
            None => Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no template or snapshot {template:?}; {TEMPLATE:?} is always there"),
            )
            .with_reason("template")),
        }
    }

    /// Makes and starts a sandbox, or connects to the one that this attempt made before.
    pub(crate) async fn make(
        self: &Arc<Self>,
        registration: Registration,
        beginning: Beginning,
        origin: Origin,
        deadline: Duration,
    ) -> Result<EnvdHandle> {
        let unmade = |error: Error| error.with_outcome(Outcome::NotStarted);
        let id = registration::id_of(&registration.tags.attempt)?;
        let directory = self.directory(&id).map_err(unmade)?;
        let (inner, new_id, new_directory) = (Arc::clone(self), id.clone(), directory.clone());
        let mut new = registration.clone();
        let template = registration.spec.template.clone();
        let made = blocking(move || {
            let lock = inner.home.make(&new_id, beginning, |ids| {
                // In this creator's turn: times tell the order in which sandboxes can be seen.
                new.created_at = SystemTime::now();
                registration::check_sources(&new.spec)?;
                let spec =
                    registration::helper_spec(&new.spec, &new_id, ids, inner.config.in_memory, origin)?;
                new.record(spec)
            })?;
            // The sandbox starts while the disk takes its record, and is not told of before both are done.
            Ok(lock.map(|lock| {
                let begun = inner.helper.begin(&new_directory);
                journal::note(&new_directory, "info", &format!("created from {template}"));
                let kept = inner.home.keep(&new_directory);
                (lock, begun, kept, inner.home.sweep())
            }))
        })
        .await
        .map_err(unmade)?;
        let Some((lock, begun, kept, left)) = made else {
            // The same attempt made it before: it is the same sandbox.
            let options = ConnectOptions::default()
                .with_generation(registration.tags.generation.clone())
                .with_deadline(deadline);
            return self.connect(&id, options).await.map(|(handle, _)| handle);
        };
        let timeout = self.config.start_timeout.min(deadline);
        let started = match begun {
            Ok(started) => started.ready(timeout).await.and(kept),
            Err(error) => Err(error),
        };
        self.discard(left).await;
        if let Err(error) = started {
            return Err(match self.unmake(&id, lock).await {
                Ok(()) => error.with_outcome(Outcome::NotStarted),
                // The record says that its end was decided, or it is stopped: both are found by a later look.
                Err(cleanup) => error.with_cleanup(&cleanup).with_outcome(Outcome::Unknown),
            });
        }
        drop(lock);
        self.handle(&id, &registration)
    }

    /// Removes what creators left that died, where only the helper can. What stays is swept by a later create.
    pub(crate) async fn discard(&self, left: Vec<PathBuf>) {
        for path in left {
            let _ = self.helper.discard(&path).await;
        }
    }

    /// Adds a line to the log of a sandbox: one small write, which is not waited for elsewhere either.
    pub(crate) fn note(&self, id: &SandboxId, message: &str) {
        if let Some(directory) = self.home.directory(id) {
            journal::note(&directory, "info", message);
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        let Some(lock) = self.home.lock(id, Instant::now() + CHANGE_WAIT).await? else {
            // Of one whose lease ran out the reason may be left, which nobody is to be told any more.
            if let Some(directory) = self.home.directory(id) {
                blocking(move || state_dir::remove_ended(&directory)).await?;
            }
            return Ok(DestroyOutcome::AlreadyGone);
        };
        let existed = self.record(id).await?.is_some();
        if existed {
            let (home, spent) = (self.home.clone(), id.clone());
            blocking(move || home.spend(&spent)).await?;
        }
        self.remove(id, lock).await?;
        Ok(if existed { DestroyOutcome::Destroyed } else { DestroyOutcome::AlreadyGone })
    }

    /// Removes a sandbox that could not be started.
    async fn unmake(self: &Arc<Self>, id: &SandboxId, lock: ChangeLock) -> Result<()> {
        let (inner, new_id) = (Arc::clone(self), id.clone());
        // Without the helper where that is possible: it may be what failed.
        if blocking(move || inner.home.discard(&new_id)).await? {
            return Ok(());
        }
        self.remove(id, lock).await
    }

    /// Finishes the removal of a sandbox whose end was decided, and whose remover died.
    async fn finish(&self, id: &SandboxId) -> Result<()> {
        let directory = self.directory(id)?;
        // Whoever holds the lock is at it.
        let Ok(Some(lock)) = self.home.lock(id, Instant::now()).await else { return Ok(()) };
        self.helper.recover(&directory, REMOVE_TIMEOUT).await?;
        drop(lock);
        Ok(())
    }

    /// Decides the end of a sandbox, durably, and sees to it that nothing is left.
    async fn remove(&self, id: &SandboxId, lock: ChangeLock) -> Result<()> {
        let directory = self.directory(id)?;
        self.helper.destroy(&directory, REMOVE_TIMEOUT).await?;
        // After a lease that ran out the reason is left; a destroy leaves nothing.
        blocking(move || state_dir::remove_ended(&directory)).await?;
        drop(lock);
        Ok(())
    }

    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
        let (owner, key, attempt) = match query {
            FindQuery::Id(id) => return Ok(self.info(&id).await?.into_iter().collect()),
            FindQuery::Key { owner, key, attempt } => (owner, key, attempt),
            _ => return Err(Error::unsupported(NAME, "find by this query")),
        };
        let filter = ListFilter::default().with_owner(owner).with_key(key);
        let wanted = |registration: &Registration| {
            registration.matches(&filter)
                && attempt.as_ref().is_none_or(|attempt| registration.tags.attempt == *attempt)
        };
        if let Some(attempt) = &attempt {
            // The attempt says which one it can only be.
            let Ok(id) = registration::id_of(attempt) else { return Ok(Vec::new()) };
            let there = self.record(&id).await?.is_some_and(|(_, registration)| wanted(&registration));
            return Ok(if there { self.info(&id).await?.into_iter().collect() } else { Vec::new() });
        }
        let mut found = Vec::new();
        for (id, registration) in self.registrations().await? {
            // Only the wanted ones are asked how they are.
            if wanted(&registration) {
                found.extend(self.info(&id).await?);
            }
        }
        Ok(found)
    }

    /// Reads the records of all sandboxes. What others began to remove and left is removed on the way.
    pub(crate) async fn registrations(&self) -> Result<Vec<(SandboxId, Registration)>> {
        let home = self.home.clone();
        let (there, ending) = blocking(move || {
            let (mut there, mut ending) = (Vec::new(), Vec::new());
            for id in home.ids()? {
                let Some(directory) = home.directory(&id) else { continue };
                match registration::load(&directory)? {
                    Some((_, registration)) => there.push((id, registration)),
                    None if state_dir::is_ended(&directory) => {}
                    None => ending.push(id),
                }
            }
            Ok((there, ending))
        })
        .await?;
        for id in ending {
            // It is not listed whether or not this works; a later listing tries again.
            let _ = self.finish(&id).await;
        }
        Ok(there)
    }

    async fn list(&self, filter: &ListFilter) -> Result<Vec<SandboxInfo>> {
        let mut found = Vec::new();
        for (id, registration) in self.registrations().await? {
            if registration.matches(filter) {
                found.extend(self.info(&id).await?.filter(|info| filter.matches(info)));
            }
        }
        found.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(found)
    }
}

pub(crate) fn gone(id: &SandboxId) -> Error {
    Error::new(ErrorKind::Gone, "the sandbox does not exist").with_context("id", id)
}

#[async_trait]
impl ControlPlane for Inner {
    async fn info(&self, id: &SandboxId) -> Result<SandboxInfo> {
        Self::info(self, id).await?.ok_or_else(|| gone(id)).map_err(|error| error.at(NAME, "info"))
    }
}

#[async_trait]
impl SandboxProvider for LocalProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        // A create is visible to every listing once its directory has its name.
        capabilities.list_visibility = Some(Duration::ZERO);
        capabilities.create_settle = Some(self.0.config.start_timeout);
        capabilities.idempotent_create = true;
        capabilities.find_without_waking = true;
        capabilities.tags = true;
        capabilities.pause = true;
        capabilities.pause_keeps_memory = true;
        capabilities.pause_without_memory = true;
        capabilities.lease = true;
        capabilities.snapshot = true;
        capabilities.fork = true;
        capabilities.logs = true;
        capabilities.metrics = true;
        capabilities.dial = true;
        capabilities.retained_output = true;
        capabilities.signal_tree = true;
        capabilities.host_mounts = true;
        capabilities.egress_policy = true;
        capabilities.binary_exec = true;
        capabilities
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint.clone()
    }

    fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
        // Which ids and which origin it would get is nothing to what it asks for.
        let id = SandboxId::new("checked");
        registration::helper_spec(spec, &id, IdMap::Single, self.0.config.in_memory, Origin::default())
            .map(drop)
            .map_err(|error| error.at(NAME, "create"))
    }

    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
        self.0.find(query).await.map_err(|error| error.at(NAME, "find"))
    }

    async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection> {
        let (handle, resumed) =
            self.0.connect(id, options).await.map_err(|error| error.at(NAME, "connect"))?;
        Ok(Connection::new(Arc::new(handle), resumed))
    }

    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        let handle = self.0.create(options).await.map_err(|error| error.at(NAME, "create"))?;
        Ok(Arc::new(handle))
    }

    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        let listed = self.0.list(&filter).await.map_err(|error| error.at(NAME, "list"))?;
        Ok(ResultStream::from_items(listed))
    }

    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        self.0.pause(id, options.memory).await.map_err(|error| error.at(NAME, "pause"))
    }

    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        self.0.destroy(id).await.map_err(|error| error.at(NAME, "destroy"))
    }

    async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotInfo> {
        self.0.snapshot(id, options).await.map_err(|error| error.at(NAME, "snapshot"))
    }

    async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<ResultStream<SnapshotInfo>> {
        let listed = self.0.list_snapshots(filter).await.map_err(|error| error.at(NAME, "list_snapshots"))?;
        Ok(ResultStream::from_items(listed))
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
        self.0.delete_snapshot(id).await.map_err(|error| error.at(NAME, "delete_snapshot"))
    }

    async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
        let handle = self.0.fork(id, options).await.map_err(|error| error.at(NAME, "fork"))?;
        Ok(Arc::new(handle))
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<ResultStream<LogLine>> {
        let lines = self.0.logs(id, options).await.map_err(|error| error.at(NAME, "logs"))?;
        Ok(ResultStream::from_items(lines))
    }

    async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
        self.0.metrics(id).await.map_err(|error| error.at(NAME, "metrics"))
    }

    async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
        self.0.set_lease(id, lease).await.map_err(|error| error.at(NAME, "set_lease"))
    }
}
