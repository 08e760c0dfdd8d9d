//! One account: what is asked of the control plane for a sandbox, and in which order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandhold_core::{
    ConnectOptions, CreateOptions, Error, ErrorKind, Generation, Key, ListFilter, Memory, Outcome, Owner,
    REASON_PAUSED, Result, ResultStream, SandboxHandle, SandboxId, SandboxInfo, SandboxState,
};
use sandhold_envd::{ControlPlane, Dialect, EnvdClient, EnvdConfig, EnvdHandle, transport_from_url};
use tokio::time::Instant;

use crate::access::SandboxAccess;
use crate::config::{E2bConfig, PublicTraffic};
use crate::control::SharedControl;
use crate::create::lease_seconds;
use crate::error::{Call, NAME};
use crate::identity;
use crate::paging::pages;
use crate::templates::Builds;
use crate::wire::{self, Connect, ListQuery, Order, PauseMode, SandboxDetail, State};

/// How long what a `find` showed stands in for the look that a connect begins with.
const FRESH: Duration = Duration::from_secs(5);

/// How many sandboxes' last look is remembered.
const REMEMBERED: usize = 4096;

/// The lease that a connect asks for where the caller wants none and the sandbox runs: E2B takes no request without
/// one, and never shortens a longer one.
const LEAST_LEASE: Duration = Duration::from_secs(15);

/// A sandbox whose run ends within this time is warned of.
const RUN_ENDS_SOON: Duration = Duration::from_secs(600);

/// One account of one server.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) control: SharedControl,
    pub(crate) fingerprint: String,
    known: Mutex<HashMap<SandboxId, Known>>,
    pub(crate) builds: Builds,
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

/// A connected sandbox.
pub(crate) struct Connected {
    pub(crate) sandbox: wire::Sandbox,
    pub(crate) generation: Option<Generation>,
    pub(crate) user: String,
    pub(crate) resumed: Option<Memory>,
}

impl Account {
    pub(crate) fn new(control: SharedControl, fingerprint: String) -> Self {
        Self { control, fingerprint, known: Mutex::default(), builds: Builds::default() }
    }

    pub(crate) fn config(&self) -> &E2bConfig {
        &self.control.config
    }

    pub(crate) fn remember(&self, detail: &SandboxDetail) {
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

    pub(crate) async fn detail(&self, operation: &'static str, id: &SandboxId) -> Result<SandboxDetail> {
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
        ResultStream::unfold((pages, HashSet::new()), |(mut pages, mut seen)| async move {
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
    pub(crate) async fn connect(&self, id: &SandboxId, options: &ConnectOptions) -> Result<Connected> {
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
        let (sandbox, woken, doubted) = connected.map_err(|error| error.with_context("id", id))?;
        // A lost answer may be the one that said so.
        let woken = woken || (doubted && known.state == State::Paused);
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
        let resumed = woken.then_some(memory);
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

    pub(crate) fn access(&self, sandbox: &wire::Sandbox) -> SandboxAccess {
        SandboxAccess {
            config: self.config().clone(),
            id: SandboxId::new(sandbox.sandbox_id.clone()),
            domain: self.config().sandbox_domain(sandbox.domain.as_deref()).to_owned(),
            envd_token: sandbox.envd_access_token.clone(),
            traffic_token: sandbox.traffic_access_token.clone(),
        }
    }

    pub(crate) fn handle(
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
    pub(crate) async fn unless_paused<T>(
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
    pub(crate) async fn of_attempt(
        &self,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Option<wire::Sandbox>> {
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

    pub(crate) async fn create(
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
    pub(crate) fn query(filter: &ListFilter) -> ListQuery {
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

    pub(crate) fn listing(
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

    pub(crate) async fn find_key(self: &Arc<Self>, owner: Owner, key: Key) -> Result<Vec<SandboxInfo>> {
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
impl ControlPlane for Account {
    async fn info(&self, id: &SandboxId) -> Result<SandboxInfo> {
        Ok(identity::info(self.config(), &self.detail("info", id).await?))
    }
}
