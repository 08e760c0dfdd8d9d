//! The provider: sandboxes of one E2B account.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::{
    Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, Error, ErrorKind, FindQuery,
    ForkOptions, ListFilter, LogLine, LogOptions, Memory, Metrics, Network, Outcome, PauseOptions,
    PauseOutcome, Result, ResultStream, SandboxHandle, SandboxId, SandboxInfo, SandboxProvider, SandboxSpec,
    SnapshotFilter, SnapshotId, SnapshotInfo, SnapshotOptions,
};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::access::SandboxAccess;
use crate::account::Account;
use crate::config::E2bConfig;
use crate::control::{Control, SharedControl};
use crate::create::{check, create, lease_seconds};
use crate::error::{Call, NAME, NO_TEMPLATE};
use crate::identity;
use crate::paging::pages;
use crate::templates::Resolved;
use crate::wire::{self, SandboxDetail, State};

/// How long the first measurement of a new sandbox is waited for; E2B measures every five seconds.
const FIRST_MEASUREMENT: Duration = Duration::from_secs(15);

/// The template of a spec that names none.
const DEFAULT_TEMPLATE: &str = "base";

/// Sandboxes of one E2B account, or of any server that speaks E2B's protocol. Clones share connections.
#[derive(Clone, Debug)]
pub struct E2bProvider(Arc<Account>);

impl E2bProvider {
    /// Makes a provider; connections are opened by its calls.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a URL or a header that cannot be used, and for a key that would travel in the
    /// clear to another machine unless [`E2bConfig::allow_plaintext`] is set.
    pub fn new(config: E2bConfig) -> Result<Self> {
        let control = Control::new(config).map_err(|error| error.at(NAME, "open"))?;
        // The account is told apart by its key, which must not be stored: a short hash of it is enough.
        let key = Sha256::digest(format!("sandhold-e2b:{}", control.config.api_key.expose()));
        let account: String = key.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let fingerprint = format!("e2b:{}:{account}", control.url());
        Ok(Self(Arc::new(Account::new(Arc::new(control), fingerprint))))
    }

    /// Makes a provider from the environment of the official SDKs; see [`E2bConfig::from_env`].
    ///
    /// # Errors
    /// As [`E2bConfig::from_env`] and [`E2bProvider::new`].
    pub fn from_env() -> Result<Self> {
        Self::new(E2bConfig::from_env()?)
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &E2bConfig {
        &self.0.control.config
    }

    pub(crate) fn control(&self) -> &SharedControl {
        &self.0.control
    }

    /// Says how a sandbox is reached beside its handle. Connects to it, which wakes a paused one: its traffic token is
    /// told at no other place.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`].
    pub async fn access(&self, id: &SandboxId) -> Result<SandboxAccess> {
        let connected = self.0.connect(id, &ConnectOptions::default()).await?;
        Ok(self.0.access(&connected.sandbox))
    }

    /// Replaces the whole network policy of a running sandbox, in E2B's own words.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`]; [`ErrorKind::InvalidState`] while it is paused.
    pub async fn update_network_policy(&self, id: &SandboxId, policy: &wire::NetworkUpdate) -> Result<()> {
        let updated = self.0.control.update_network(id, policy).await;
        self.0.unless_paused("update_network", id, updated).await
    }

    /// Lists snapshots as E2B tells them, with those that carry forks.
    pub(crate) fn snapshots(&self, filter: &SnapshotFilter) -> ResultStream<wire::SnapshotInfo> {
        let query = wire::SnapshotQuery {
            sandbox_id: filter.sandbox.as_ref().map(|id| id.as_str().to_owned()),
            name: filter.name.clone(),
            ..wire::SnapshotQuery::default()
        };
        let call = Call::look("list_snapshots").about("list");
        pages(&self.0.control, call, move |next_token| {
            let query = wire::SnapshotQuery { next_token, ..query.clone() };
            format!("/snapshots?{}", query.to_query())
        })
    }

    /// Returns the facts in E2B's own words.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`].
    pub async fn detail(&self, id: &SandboxId) -> Result<SandboxDetail> {
        self.0.detail("info", id).await
    }
}

#[async_trait]
impl SandboxProvider for E2bProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let config = self.config();
        let mut can = Capabilities::default();
        can.list_visibility = Some(config.list_visibility);
        can.create_settle = Some(config.request_timeout.saturating_add(config.list_visibility));
        can.idempotent_create = !self.0.control.is_v1();
        can.find_without_waking = true;
        can.tags = true;
        can.pause = true;
        can.pause_keeps_memory = true;
        can.pause_without_memory = true;
        can.lease = true;
        can.max_lease = Some(config.max_run);
        can.snapshot = true;
        can.snapshot_keeps_memory = true;
        can.fork = true;
        can.metrics = true;
        can.logs = true;
        can.update_network = true;
        can.dial = true;
        can.egress_policy = true;
        can.port_auth = true;
        can.binary_exec = true;
        can
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint.clone()
    }

    fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
        check(spec)
    }

    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
        match query {
            FindQuery::Id(id) => match self.0.detail("find", &id).await {
                Ok(detail) => {
                    self.0.remember(&detail);
                    Ok(vec![identity::info(self.config(), &detail)])
                }
                Err(error) if error.kind() == ErrorKind::Gone => Ok(Vec::new()),
                Err(error) => Err(error),
            },
            FindQuery::Key { owner, key, attempt } => {
                let mut found = self.0.find_key(owner, key).await?;
                if let Some(attempt) = attempt {
                    found.retain(|info| info.tags.as_ref().is_some_and(|tags| tags.attempt == attempt));
                }
                Ok(found)
            }
            _ => Err(Error::unsupported(NAME, "find")),
        }
    }

    async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection> {
        let connected = self.0.connect(id, &options).await?;
        let handle = self.0.handle(&connected.sandbox, &connected.user, connected.generation)?;
        Ok(Connection::new(handle, connected.resumed))
    }

    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        let mut request = create(self.config(), &options)?;
        let default = match &self.config().default_template {
            Some(template) if options.spec.template == DEFAULT_TEMPLATE => Resolved::of(template).await?,
            // A template that the caller names is the caller's: that it is missing is an error.
            _ => return self.0.create(request, &options).await,
        };
        request.template_id = default.reference();
        match self.0.create(request.clone(), &options).await {
            Err(error) if error.reason() == Some(NO_TEMPLATE) && error.outcome() == Outcome::NotStarted => {
                let built = default.build(&self.0.control, &self.0.builds).await;
                built.map_err(|failed| failed.with_context("attempt", &options.tags.attempt))?;
                self.0.create(request, &options).await
            }
            created => created,
        }
    }

    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        Ok(self.0.listing("list", Account::query(&filter), filter))
    }

    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        let lost = options.memory == Memory::Lost;
        let pause = wire::Pause { memory: lost.then_some(false), require_healthy_guest: None };
        let paused = self.0.control.pause(id, pause).await;
        let reply = paused.map_err(|error| error.with_context("id", id))?;
        if reply.status().is_success() {
            return Ok(PauseOutcome::Paused);
        }
        // A refusal is said of a paused one and of one between two states alike.
        let detail = self.0.detail("pause", id).await?;
        if detail.state == State::Paused {
            // An earlier send of this very call may have done it.
            return Ok(if reply.doubted { PauseOutcome::Paused } else { PauseOutcome::AlreadyPaused });
        }
        let answer = &reply.answer;
        Err(reply
            .call
            .answer(answer.status, &answer.headers, &answer.body)
            .with_context("id", id)
            .retryable(None))
    }

    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        let reply = self.0.control.kill(id).await.map_err(|error| error.with_context("id", id))?;
        // After a lost answer a 404 says that the first send was heard.
        let done = reply.status().is_success() || reply.doubted;
        Ok(if done { DestroyOutcome::Destroyed } else { DestroyOutcome::AlreadyGone })
    }

    async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
        let seconds = lease_seconds(self.config(), lease)?;
        let set = self.0.control.set_timeout(id, seconds).await;
        self.0.unless_paused("set_lease", id, set).await
    }

    async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotInfo> {
        let lost = options.memory == Memory::Lost;
        let request = wire::CreateSnapshot { name: options.name, memory: lost.then_some(false) };
        let taken = self.0.control.snapshot(id, &request).await;
        let taken = self.0.unless_paused("snapshot", id, taken).await?;
        Ok(snapshot_info(taken, Some(id)))
    }

    async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<ResultStream<SnapshotInfo>> {
        let found = self.snapshots(&filter);
        // E2B tells no age and lists the newest first: all are read before the first, the oldest, is told. It matches
        // names by its own rules, with and without team and tag, and tells no sandbox.
        Ok(ResultStream::unfold((Some(found), Vec::new()), move |(unread, mut read)| {
            let sandbox = filter.sandbox.clone();
            async move {
                if let Some(found) = unread {
                    match found.collect().await {
                        Ok(found) => read = found,
                        Err(error) => return Some((Err(error), (None, read))),
                    }
                    read.retain(|taken| !crate::fork::carries(taken));
                }
                let oldest = read.pop()?;
                Some((Ok(snapshot_info(oldest, sandbox.as_ref())), (None, read)))
            }
        }))
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
        if id.as_str().is_empty() {
            return Err(
                Error::invalid_argument("an empty text is no snapshot's id").at(NAME, "delete_snapshot")
            );
        }
        let call = Call::idempotent("delete_snapshot").about("snapshot_not_found");
        match self.0.control.delete_template(call, id.as_str()).await {
            Ok(reply) if reply.status().is_success() || reply.doubted => Ok(DestroyOutcome::Destroyed),
            Ok(_) => Ok(DestroyOutcome::AlreadyGone),
            // For this route E2B says 400 where sandboxes stand on it.
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                let message = "E2B keeps the snapshot: a sandbox stands on it, or it is not yours to delete";
                Err(call
                    .error(ErrorKind::Conflict, message)
                    .with_reason("in_use")
                    .with_context("id", id)
                    .with_source(error))
            }
            Err(error) => Err(error.with_context("id", id)),
        }
    }

    /// Takes a snapshot and creates a sandbox from it: E2B's own fork takes no metadata, so that two sandboxes would
    /// carry one identity. The snapshot is no part of any list, and goes with a later fork once nothing stands on it.
    async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
        let source = self.0.detail("fork", id).await?;
        let (request, create) = crate::fork::request(self.config(), &source, &options)?;
        let at = |error: Error| error.at(NAME, "fork").with_context("id", id);
        // A second snapshot would be another template: what the attempt has made already is looked for.
        let metadata = request.metadata.clone().unwrap_or_default();
        if let Some(made) = self.0.of_attempt(&metadata).await.map_err(at)? {
            return self.0.handle(&made, &create.spec.user, Some(options.tags.generation)).map_err(at);
        }
        let name = crate::fork::snapshot_name(&options.tags.attempt);
        let taken = self.snapshot(id, SnapshotOptions::default().with_name(name)).await.map_err(at)?;
        let request = wire::CreateSandbox { template_id: taken.id.as_str().to_owned(), ..request };
        let made = self.0.create(request, &create).await.map_err(at)?;
        tokio::spawn(crate::fork::sweep(self.clone()));
        Ok(made)
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<ResultStream<LogLine>> {
        crate::logs::stream(&self.0.control, id, &options).await
    }

    async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
        let begun = Instant::now();
        loop {
            let measured = self.0.unless_paused("metrics", id, self.0.control.metrics(id).await).await?;
            if let Some(last) = measured.into_iter().max_by_key(|metric| metric.timestamp) {
                return Ok(measurement(&last));
            }
            if begun.elapsed() > FIRST_MEASUREMENT {
                return Err(Call::look("metrics")
                    .error(ErrorKind::Unavailable, "E2B has measured nothing yet")
                    .with_context("id", id)
                    .retryable(None));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn update_network(&self, id: &SandboxId, network: Network) -> Result<()> {
        let policy = match network {
            Network::Host => {
                let policy = &self.config().network;
                wire::NetworkUpdate {
                    allow_out: policy.allow_out.clone(),
                    deny_out: policy.deny_out.clone(),
                    rules: policy.rules.clone(),
                    egress_proxy: policy.egress_proxy.clone(),
                    allow_internet_access: None,
                }
            }
            Network::Loopback => {
                wire::NetworkUpdate { allow_internet_access: Some(false), ..wire::NetworkUpdate::default() }
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "E2B keeps loopback; ask for the network `loopback`",
                )
                .at(NAME, "update_network"));
            }
        };
        self.update_network_policy(id, &policy).await
    }
}

fn snapshot_info(taken: wire::SnapshotInfo, sandbox: Option<&SandboxId>) -> SnapshotInfo {
    let mut info = SnapshotInfo::new(SnapshotId::new(taken.snapshot_id));
    info.names = taken.names;
    info.sandbox = sandbox.cloned();
    info
}

#[expect(clippy::cast_lossless, reason = "a count of cores")]
fn measurement(metric: &wire::Metric) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.at = Some(metric.timestamp.0);
    metrics.cpu_count = metric.cpu_count as f64;
    // E2B counts all cores as one hundred.
    metrics.cpu_used_percent = metric.cpu_used_pct * metric.cpu_count as f64;
    metrics.memory_used = metric.mem_used;
    metrics.memory_total = metric.mem_total;
    metrics.memory_cache = metric.mem_cache;
    metrics.disk_used = metric.disk_used;
    metrics.disk_total = metric.disk_total;
    metrics
}
