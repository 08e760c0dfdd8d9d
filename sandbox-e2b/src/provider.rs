//! The provider: sandboxes of one E2B account.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandhold_core::{
    Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, Error, ErrorKind, FindQuery,
    ForkOptions, Generation, Key, ListFilter, LogLine, LogOptions, Memory, Metrics, Network, Outcome, Owner,
    PauseOptions, PauseOutcome, REASON_PAUSED, Result, ResultStream, SandboxHandle, SandboxId, SandboxInfo,
    SandboxProvider, SandboxState, SnapshotFilter, SnapshotId, SnapshotInfo, SnapshotOptions,
};
use sandhold_envd::{ControlPlane, Dialect, EnvdClient, EnvdConfig, EnvdHandle, transport_from_url};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::access::SandboxAccess;
use crate::config::{E2bConfig, PublicTraffic};
use crate::control::{Control, SharedControl};
use crate::create::{create, lease_seconds};
use crate::error::{Call, NAME};
use crate::identity;
use crate::paging::pages;
use crate::wire::{self, Connect, ListQuery, Order, PauseMode, SandboxDetail, State};

/// How long what a `find` showed stands in for the look that a connect begins with.
const FRESH: Duration = Duration::from_secs(5);

/// How many sandboxes' last look is remembered.
const REMEMBERED: usize = 4096;

/// The lease that a connect asks for where the caller wants none and the sandbox runs: E2B takes no request without
/// one, and never shortens a longer one.
const LEAST_LEASE: Duration = Duration::from_secs(15);

/// How long the first measurement of a new sandbox is waited for; E2B measures every five seconds.
const FIRST_MEASUREMENT: Duration = Duration::from_secs(15);

/// A sandbox whose run ends within this time is warned of.
const RUN_ENDS_SOON: Duration = Duration::from_secs(600);

/// Sandboxes of one E2B account, or of any server that speaks E2B's protocol. Clones share connections.
#[derive(Clone, Debug)]
pub struct E2bProvider(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    control: SharedControl,
    fingerprint: String,
    known: Mutex<HashMap<SandboxId, Known>>,
}

/// What was last seen of a sandbox.
#[derive(Clone, Debug)]
struct Known {
    at: Instant,
    state: State,
    pause_mode: Option<PauseMode>,
    started_at: SystemTime,
    generation: Option<Generation>,
    user: String,
}

impl Known {
    fn of(config: &E2bConfig, detail: &SandboxDetail) -> Self {
        Self {
            at: Instant::now(),
            state: detail.state,
            pause_mode: detail.pause_mode,
            started_at: detail.started_at.0,
            generation: identity::tags(config, detail).map(|tags| tags.generation),
            user: identity::user(detail).to_owned(),
        }
    }
}

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
        Ok(Self(Arc::new(Inner { control: Arc::new(control), fingerprint, known: Mutex::default() })))
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

    /// Returns the facts in E2B's own words.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`].
    pub async fn detail(&self, id: &SandboxId) -> Result<SandboxDetail> {
        self.0.detail("info", id).await
    }
}

/// A connected sandbox.
struct Connected {
    sandbox: wire::Sandbox,
    generation: Option<Generation>,
    user: String,
    resumed: Option<Memory>,
}

impl Inner {
    fn config(&self) -> &E2bConfig {
        &self.control.config
    }

    fn remember(&self, detail: &SandboxDetail) {
        let known = Known::of(self.config(), detail);
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED {
            all.retain(|_, known| known.at.elapsed() < FRESH);
        }
        if all.len() < REMEMBERED {
            all.insert(SandboxId::new(detail.sandbox_id.clone()), known);
        }
    }

    /// Takes what a look of just now showed; it stands in for one connect only.
    fn recall(&self, id: &SandboxId) -> Option<Known> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(id)?;
        (known.at.elapsed() < FRESH && known.state == State::Running).then_some(known)
    }

    async fn detail(&self, operation: &'static str, id: &SandboxId) -> Result<SandboxDetail> {
        self.control.get(operation, id).await.map_err(|error| error.with_context("id", id))
    }

    /// Lists by what E2B can filter itself, earliest run first: what is resumed while the list is read moves to its end,
    /// so that it may come twice but is never missed.
    fn list(&self, operation: &'static str, query: ListQuery) -> ResultStream<SandboxDetail> {
        let call = Call::look(operation).about("list");
        let pages: ResultStream<SandboxDetail> = pages(&self.control, call, move |next_token| {
            let query = ListQuery { order: Some(Order::Ascending), next_token, ..query.clone() };
            format!("/v2/sandboxes?{}", query.to_query())
        });
        ResultStream::unfold((pages, std::collections::HashSet::new()), |(mut pages, mut seen)| async move {
            loop {
                match pages.next().await? {
                    Ok(detail) if !seen.insert(detail.sandbox_id.clone()) => {}
                    item => return Some((item, (pages, seen))),
                }
            }
        })
    }

    /// Looks at a sandbox, then connects. The look is needed: only it tells the generation, which must be checked before
    /// the sandbox is woken, and how it was paused. One of just now is taken instead.
    async fn connect(&self, id: &SandboxId, options: &ConnectOptions) -> Result<Connected> {
        let call = Call::idempotent("connect");
        let known = match self.recall(id) {
            Some(known) => known,
            None => Known::of(self.config(), &self.detail("connect", id).await?),
        };
        if let Some(wanted) = &options.generation
            && known.generation.as_ref() != Some(wanted)
        {
            return Err(call
                .error(ErrorKind::Stale, "the sandbox is of another generation; acquire it again")
                .with_context("id", id));
        }
        let runs = known.state == State::Running;
        let lease = match options.lease {
            Some(lease) => lease,
            None if runs => LEAST_LEASE.min(self.config().lease),
            None => self.config().lease,
        };
        let lost = options.memory == Memory::Lost;
        let connect = Connect {
            timeout: Some(lease_seconds(self.config(), lease)?.max(1)),
            memory: lost.then_some(false),
        };
        let connected = self.control.connect(id, connect, options.deadline).await;
        let (sandbox, woken) = connected.map_err(|error| error.with_context("id", id))?;
        if woken && runs && options.lease.is_none() {
            // It was paused after the look, and woken for a moment only.
            let seconds = lease_seconds(self.config(), self.config().lease)?;
            self.control.set_timeout(id, seconds).await.map_err(|error| error.at(NAME, "connect"))?;
        }
        if !woken {
            self.warn_of_end_of_run(id, known.started_at, lease);
        }
        let without_memory = lost || known.pause_mode == Some(PauseMode::Filesystem);
        let memory = if without_memory { Memory::Lost } else { Memory::Kept };
        // An answer that was lost may have been the one that said so.
        let resumed = (woken || known.state == State::Paused).then_some(memory);
        Ok(Connected { sandbox, generation: known.generation, user: known.user, resumed })
    }

    /// E2B ends a run at the plan's limit, whatever its lease says; a pause and resume begin a new one.
    fn warn_of_end_of_run(&self, id: &SandboxId, started: SystemTime, lease: Duration) {
        let ran = SystemTime::now().duration_since(started).unwrap_or_default();
        let left = self.config().max_run.saturating_sub(ran);
        if left < lease || left < RUN_ENDS_SOON {
            tracing::warn!(%id, ?left, "the plan's longest run ends before the lease does; pause and resume it at a quiet moment");
        }
    }

    fn access(&self, sandbox: &wire::Sandbox) -> SandboxAccess {
        SandboxAccess {
            config: self.config().clone(),
            id: SandboxId::new(sandbox.sandbox_id.clone()),
            domain: self.config().sandbox_domain(sandbox.domain.as_deref()).to_owned(),
            envd_token: sandbox.envd_access_token.clone(),
            traffic_token: sandbox.traffic_access_token.clone(),
        }
    }

    fn handle(
        self: &Arc<Self>,
        sandbox: &wire::Sandbox,
        user: &str,
        generation: Option<Generation>,
    ) -> Result<Arc<dyn SandboxHandle>> {
        let id = SandboxId::new(sandbox.sandbox_id.clone());
        let domain = self.config().sandbox_domain(sandbox.domain.as_deref());
        let url = self.config().envd_url(id.as_str(), domain);
        let mut config =
            EnvdConfig::new().with_sandbox_id(id.as_str()).with_user(user).with_dialect(Dialect::E2b);
        if let Some(token) = &sandbox.envd_access_token {
            config = config.with_access_token(token.expose());
        }
        if self.config().allow_plaintext {
            config = config.with_plaintext_allowed();
        }
        let client = EnvdClient::new(transport_from_url(&url)?, config)?;
        let control = Arc::clone(self) as Arc<dyn ControlPlane>;
        Ok(Arc::new(EnvdHandle::new(client, NAME, id, generation, control)))
    }

    /// E2B says 404 to some calls on a paused sandbox too: it is asked once more before anything is called gone.
    async fn unless_paused<T>(
        &self,
        operation: &'static str,
        id: &SandboxId,
        result: Result<T>,
    ) -> Result<T> {
        let error = match result {
            Err(error) if error.kind() == ErrorKind::Gone => error,
            result => return result.map_err(|error| error.with_context("id", id)),
        };
        let detail = self.detail(operation, id).await?;
        let not_running = Call::idempotent(operation)
            .error(ErrorKind::InvalidState, "the sandbox does not run; connect to it first, which resumes it")
            .with_context("id", id);
        Err(match detail.state {
            State::Paused => not_running.with_reason(REASON_PAUSED).with_source(error),
            // It was woken, or is about to end: the same call may succeed now.
            _ => not_running.with_source(error).retryable(None),
        })
    }

    /// Closed ports need a token: a sandbox without one is open, or of no use, and must not stay.
    async fn expect_traffic_token(&self, sandbox: &wire::Sandbox) -> Result<()> {
        if self.config().public_traffic == PublicTraffic::Everybody || sandbox.traffic_access_token.is_some()
        {
            return Ok(());
        }
        let id = SandboxId::new(sandbox.sandbox_id.clone());
        let error = Error::new(
            ErrorKind::Unsupported,
            "the server gave no traffic token, so the ports of the sandbox may be open to everybody; it was destroyed. Allow public traffic by name to use this server",
        )
        .with_reason("no_traffic_token")
        .at(NAME, "create")
        .with_context("id", &id);
        match self.control.kill(&id).await {
            Ok(_) => Err(error),
            Err(cleanup) => Err(error.with_cleanup(&cleanup).with_outcome(Outcome::Done)),
        }
    }

    /// Finds the sandbox of an attempt, for servers that take no idempotency key.
    async fn of_attempt(&self, metadata: &BTreeMap<String, String>) -> Result<Option<wire::Sandbox>> {
        let mut wanted = BTreeMap::new();
        for name in [identity::OWNER, identity::KEY, identity::ATTEMPT] {
            if let Some(value) = metadata.get(name) {
                wanted.insert(name.to_owned(), value.clone());
            }
        }
        let states = vec![State::Running, State::Paused];
        let query = ListQuery { metadata: wanted.clone(), state: states, ..ListQuery::default() };
        let mut found = self.list("create", query);
        while let Some(detail) = found.next().await {
            let detail = detail?;
            let carries = |(name, value): (&String, &String)| {
                detail.metadata.as_ref().and_then(|all| all.get(name)) == Some(value)
            };
            if wanted.iter().all(carries) {
                let connect = Connect {
                    timeout: Some(lease_seconds(self.config(), self.config().lease)?),
                    memory: None,
                };
                let id = SandboxId::new(detail.sandbox_id);
                let deadline = self.config().request_timeout;
                // Boxed: create and connect both choose between routes.
                return Ok(Some(Box::pin(self.control.connect(&id, connect, deadline)).await?.0));
            }
        }
        Ok(None)
    }

    async fn create(
        self: &Arc<Self>,
        request: wire::CreateSandbox,
        options: &CreateOptions,
    ) -> Result<Arc<dyn SandboxHandle>> {
        let attempt = options.tags.attempt.as_str();
        let metadata = request.metadata.clone().unwrap_or_default();
        let look = async || self.of_attempt(&metadata).await;
        let made = self.control.create(&request, attempt, options.deadline, look).await;
        let sandbox = made.map_err(|error| error.with_context("attempt", attempt))?;
        self.expect_traffic_token(&sandbox).await?;
        self.handle(&sandbox, &options.spec.user, Some(options.tags.generation.clone()))
            .map_err(|error| error.with_outcome(Outcome::Done).with_context("id", &sandbox.sandbox_id))
    }

    /// What E2B can filter by itself; the contract's own filter sees the rest.
    fn query(filter: &ListFilter) -> ListQuery {
        let mut metadata = filter.metadata.clone();
        if let Some(owner) = &filter.owner {
            metadata.insert(identity::OWNER.to_owned(), owner.as_str().to_owned());
        }
        if let Some(key) = &filter.key {
            metadata.insert(identity::KEY.to_owned(), key.as_str().to_owned());
        }
        let mut state = Vec::new();
        for wanted in &filter.states {
            let word = match wanted {
                SandboxState::Running => State::Running,
                SandboxState::Paused | SandboxState::Stopped => State::Paused,
                // E2B has no word for it, so all must be looked at.
                _ => return ListQuery { metadata, ..ListQuery::default() },
            };
            if !state.contains(&word) {
                state.push(word);
            }
        }
        if state.is_empty() {
            state = vec![State::Running, State::Paused];
        }
        ListQuery { metadata, state, ..ListQuery::default() }
    }

    fn listing(
        self: &Arc<Self>,
        operation: &'static str,
        query: ListQuery,
        filter: ListFilter,
    ) -> ResultStream<SandboxInfo> {
        let details = self.list(operation, query);
        ResultStream::unfold((details, filter, Arc::clone(self)), |(mut details, filter, this)| async move {
            loop {
                let detail = match details.next().await? {
                    Ok(detail) => detail,
                    Err(error) => return Some((Err(error), (details, filter, this))),
                };
                let info = identity::info(this.config(), &detail);
                if filter.matches(&info) {
                    return Some((Ok(info), (details, filter, this)));
                }
            }
        })
    }

    async fn find_key(self: &Arc<Self>, owner: Owner, key: Key) -> Result<Vec<SandboxInfo>> {
        let filter = ListFilter::default().with_owner(owner.clone()).with_key(key.clone());
        let mut found = self.listing("find", Self::query(&filter), filter.clone()).collect().await?;
        if self.config().mastra_owner.as_ref() == Some(&owner) {
            let metadata = BTreeMap::from([(identity::MASTRA_ID.to_owned(), key.as_str().to_owned())]);
            let query = ListQuery { metadata, ..Self::query(&ListFilter::default()) };
            let theirs = self.listing("find", query, filter).collect().await?;
            let fresh = theirs.into_iter().filter(|info| found.iter().all(|known| known.id != info.id));
            let fresh: Vec<_> = fresh.collect();
            found.extend(fresh);
        }
        Ok(found)
    }
}

#[async_trait]
impl ControlPlane for Inner {
    async fn info(&self, id: &SandboxId) -> Result<SandboxInfo> {
        Ok(identity::info(self.config(), &self.detail("info", id).await?))
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
        can
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint.clone()
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
        let request = create(self.config(), &options)?;
        self.0.create(request, &options).await
    }

    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        Ok(self.0.listing("list", Inner::query(&filter), filter))
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
        let query = wire::SnapshotQuery {
            sandbox_id: filter.sandbox.as_ref().map(|id| id.as_str().to_owned()),
            name: filter.name.clone(),
            ..wire::SnapshotQuery::default()
        };
        let call = Call::look("list_snapshots").about("list");
        let found: ResultStream<wire::SnapshotInfo> = pages(&self.0.control, call, move |next_token| {
            let query = wire::SnapshotQuery { next_token, ..query.clone() };
            format!("/snapshots?{}", query.to_query())
        });
        // E2B matches names by its own rules, with and without team and tag; it tells no sandbox.
        Ok(ResultStream::unfold((found, filter.sandbox), |(mut found, sandbox)| async move {
            let item = found.next().await?.map(|taken| snapshot_info(taken, sandbox.as_ref()));
            Some((item, (found, sandbox)))
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
    /// carry one identity.
    async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
        let source = self.0.detail("fork", id).await?;
        let (request, create) = crate::fork::request(self.config(), &source, &options)?;
        crate::fork::sweep(self).await;
        let name = crate::fork::snapshot_name(&options.tags.attempt);
        let taken = self.snapshot(id, SnapshotOptions::default().with_name(name)).await;
        let taken = taken.map_err(|error| error.at(NAME, "fork"))?;
        let request = wire::CreateSandbox { template_id: taken.id.as_str().to_owned(), ..request };
        self.0.create(request, &create).await.map_err(|error| error.at(NAME, "fork"))
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
    metrics.disk_used = metric.disk_used;
    metrics.disk_total = metric.disk_total;
    metrics
}
