//! What only the daemon inside can say and do: the lease, and freezing. Plain HTTP under `/sandhold/`.
//!
//! | route | body | answer |
//! |---|---|---|
//! | `GET /sandhold/info` | | [`Info`] |
//! | `GET /sandhold/usage` | | what the processes use |
//! | `POST /sandhold/lease` | [`LeaseRequest`] | [`Info`] |
//! | `POST /sandhold/freeze` | | [`Changed`]; ends the lease |
//! | `POST /sandhold/thaw` | [`LeaseRequest`], optional | [`Changed`] |
//! | `POST /sandhold/hold` | upgrade | `101`: everything is still until the connection ends |
//! | `POST /sandhold/stop` | | none: the sandbox is stopped and its files are kept |

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustix::time::{ClockId, clock_gettime};
use sandhold_envd::{Body, ExtraRoutes};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedMutexGuard, oneshot, watch};

use crate::cgroup::FreezerTier;
use crate::freezer::Freezer;
use crate::monitor::EXIT_LEASE;
use crate::record::{Expiry, Network, Spec};
use crate::rootfs::UsrTier;
use crate::sys;
use crate::usage::Meter;

/// Largest body that is read.
const MOST_BYTES: usize = 64 * 1024;

/// Whether the processes of a sandbox run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// They run.
    Running,
    /// They are frozen.
    Paused,
}

/// How users are told apart.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsersTier {
    /// By ids of their own, on files of the host too.
    Full,
    /// By ids of their own; files of the host belong to nobody.
    Ranges,
    /// By name only: all are one id outside.
    Single,
}

/// What keeps a sandbox apart from its host: what was reached, not what was tried.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// How users are told apart.
    pub users: UsersTier,
    /// How the host's programs are shown.
    pub usr: UsrTier,
    /// What can be reached.
    pub network: Network,
    /// Whether a seccomp filter is in force.
    pub seccomp: bool,
    /// Landlock version of the kernel; 0 for none.
    pub landlock: u32,
    /// How a pause freezes.
    pub freezer: FreezerTier,
}

impl Isolation {
    /// Returns the same in the words of the contract.
    pub(crate) fn facts(&self) -> sandhold_core::Isolation {
        let mut facts = sandhold_core::Isolation::default();
        facts.namespaces = NAMESPACES.map(str::to_owned).into();
        if self.network != Network::Host {
            facts.namespaces.push("net".to_owned());
        }
        facts.users = word(&self.users);
        facts.filesystem = word(&self.usr);
        facts.network = word(&self.network);
        facts.seccomp = self.seccomp;
        facts.freezer = word(&self.freezer);
        facts.limits = match self.freezer {
            FreezerTier::Signals => "none".to_owned(),
            _ => facts.freezer.clone(),
        };
        facts
    }
}

/// Facts about a running sandbox.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Id of the sandbox.
    pub id: String,
    /// Whether its processes run.
    pub state: State,
    /// Milliseconds until the lease ends; none if it has no end.
    pub lease_ms: Option<u64>,
    /// What happens then.
    pub on_expiry: Expiry,
    /// Changes with every start of the sandbox; also what it sees as the boot id of its kernel.
    pub boot_id: String,
    /// What keeps it apart.
    pub isolation: Isolation,
}

/// Asks for a lease.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// Milliseconds from now until the end; 0 is now, none is no end.
    pub ms: Option<u64>,
    /// Leaves a lease alone that ends later; default false.
    #[serde(default)]
    pub extend_only: bool,
    /// What happens at the end; default as before.
    #[serde(default)]
    pub on_expiry: Option<Expiry>,
}

impl LeaseRequest {
    /// Returns a request for a lease that ends `ms` milliseconds from now, or never.
    pub fn new(ms: Option<u64>) -> Self {
        Self { ms, extend_only: false, on_expiry: None }
    }

    /// Sets whether a lease that ends later is left alone.
    #[must_use]
    pub fn with_extend_only(mut self, only: bool) -> Self {
        self.extend_only = only;
        self
    }

    /// Sets what happens at the end.
    #[must_use]
    pub fn with_on_expiry(mut self, expiry: Expiry) -> Self {
        self.on_expiry = Some(expiry);
        self
    }
}

/// The namespaces that every sandbox has.
const NAMESPACES: [&str; 6] = ["user", "mount", "pid", "ipc", "uts", "cgroup"];

/// The word that stands for a value in JSON.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Says whether a request changed anything.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// False if it was so already.
    pub changed: bool,
}

/// Milliseconds of the clock that also counts while the machine sleeps.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[derive(Debug)]
struct Lease {
    /// In milliseconds of [`now`].
    deadline: Option<u64>,
    on_expiry: Expiry,
}

/// The daemon's own knowledge of its sandbox.
#[derive(Debug)]
pub(crate) struct Control {
    me: Weak<Self>,
    id: String,
    boot_id: String,
    isolation: Isolation,
    lease: Mutex<Lease>,
    timer: AsyncFd<OwnedFd>,
    /// The state changes only while this is held: one freeze or thaw at a time.
    freezer: Arc<tokio::sync::Mutex<Freezer>>,
    state: Mutex<State>,
    /// Whether everything is held still for a copy of the files: what would change them waits.
    held: watch::Sender<bool>,
    meter: Meter,
}

impl Control {
    /// Starts the first lease. Must run in a Tokio runtime.
    pub(crate) fn start(spec: &Spec, freezer: Freezer, isolation: Isolation) -> io::Result<Arc<Self>> {
        let boot_id = std::fs::read_to_string("/run/sandhold/boot_id")?.trim().to_owned();
        let timer = sys::watch(sys::boottime_timer()?)?;
        let control = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            id: spec.id.clone(),
            boot_id,
            isolation,
            lease: Mutex::new(Lease { deadline: None, on_expiry: spec.on_expiry }),
            timer,
            freezer: Arc::new(tokio::sync::Mutex::new(freezer)),
            state: Mutex::new(State::Running),
            held: watch::Sender::new(false),
            meter: Meter::new(),
        });
        control.set_lease(&LeaseRequest::new(spec.lease_ms))?;
        tokio::spawn(Arc::clone(&control).expire());
        Ok(control)
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Changes a lease that has not ended yet. One that has is acted upon: more time would be a promise that nobody
    /// keeps.
    fn change_lease(&self, request: &LeaseRequest) -> io::Result<bool> {
        let mut lease = self.lease();
        if lease.deadline.is_some_and(|deadline| deadline <= now()) {
            return Ok(false);
        }
        self.put_lease(&mut lease, request).map(|()| true)
    }

    fn set_lease(&self, request: &LeaseRequest) -> io::Result<()> {
        self.put_lease(&mut self.lease(), request)
    }

    fn put_lease(&self, lease: &mut Lease, request: &LeaseRequest) -> io::Result<()> {
        let wanted = request.ms.map(|ms| now().saturating_add(ms));
        let longer = match (lease.deadline, wanted) {
            (Some(old), Some(new)) => new > old,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if longer || !request.extend_only {
            sys::arm_timer(self.timer.as_fd(), wanted)?;
            lease.deadline = wanted;
        }
        if let Some(expiry) = request.on_expiry {
            lease.on_expiry = expiry;
        }
        Ok(())
    }

    /// Does what is to be done at the end of each lease.
    async fn expire(self: Arc<Self>) {
        loop {
            let Ok(mut ready) = self.timer.readable().await else { return };
            ready.clear_ready();
            drop(ready);
            let mut ticks = [0_u8; 8];
            // Not due any more: the lease was changed in between.
            if rustix::io::read(self.timer.as_fd(), &mut ticks).is_err() {
                continue;
            }
            let due = {
                let lease = self.lease();
                lease.deadline.is_some_and(|deadline| deadline <= now()).then_some(lease.on_expiry)
            };
            match due {
                // The end of PID 1 ends every process of its namespace; the monitor removes the files.
                Some(Expiry::Kill) => sys::exit_now(EXIT_LEASE),
                Some(Expiry::Pause) => {
                    if let Err(error) = self.freeze().await {
                        // Running on without a lease would be for ever: try again.
                        let again = LeaseRequest::new(Some(1000));
                        let _ = (error, self.set_lease(&again));
                    }
                }
                None => {}
            }
        }
    }

    fn info(&self) -> Info {
        let lease = self.lease();
        Info {
            id: self.id.clone(),
            state: self.state(),
            lease_ms: lease.deadline.map(|deadline| deadline.saturating_sub(now())),
            on_expiry: lease.on_expiry,
            boot_id: self.boot_id.clone(),
            isolation: self.isolation.clone(),
        }
    }

    async fn freeze(&self) -> io::Result<Changed> {
        self.change(State::Paused, Freezer::freeze, LeaseRequest::new(None)).await
    }

    /// Freezes or thaws to the end, also when whoever asked is gone before: half a change would be a lie.
    async fn change(
        &self,
        to: State,
        how: impl FnOnce(&mut Freezer) -> io::Result<()> + Send + 'static,
        lease: LeaseRequest,
    ) -> io::Result<Changed> {
        let me = self.me.upgrade().ok_or_else(|| io::Error::other("the daemon ends"))?;
        tokio::spawn(async move { me.change_now(to, how, &lease).await }).await.map_err(io::Error::other)?
    }

    async fn change_now(
        &self,
        to: State,
        how: impl FnOnce(&mut Freezer) -> io::Result<()> + Send + 'static,
        lease: &LeaseRequest,
    ) -> io::Result<Changed> {
        let mut freezer = Arc::clone(&self.freezer).lock_owned().await;
        let changed = self.state() != to;
        if changed {
            // Paused from the first moment on: whoever asks in the middle must not take it for running, and what was
            // let in would freeze halfway.
            self.set_state(State::Paused);
            let done = tokio::task::spawn_blocking(move || {
                let done = how(&mut freezer);
                (freezer, done)
            });
            let (held, done) = done.await.map_err(io::Error::other)?;
            if let Err(error) = done {
                // A freeze that failed let everything go on; a thaw that failed can be tried again.
                self.set_state(if to == State::Paused { State::Running } else { State::Paused });
                return Err(error);
            }
            self.set_state(to);
            self.set_lease(lease)?;
            drop(held);
        } else if to == State::Running {
            // Due and not frozen yet: whoever wants it awake asks again.
            if !self.change_lease(&lease.clone().with_extend_only(true))? {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, LEASE_ENDED));
            }
        }
        Ok(Changed { changed })
    }

    /// Freezes everything until the connection ends, whatever ends it. A paused sandbox stays paused meanwhile.
    async fn hold(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let me = self.me.upgrade().ok_or_else(|| io::Error::other("the daemon ends"))?;
        if request.method() != Method::POST || !request.headers().contains_key(header::UPGRADE) {
            return Err(Refusal(
                StatusCode::UPGRADE_REQUIRED,
                "a hold lasts as long as its connection".into(),
            ));
        }
        let (tell, told) = oneshot::channel();
        // On its own: whoever asked may be gone at any moment, and nothing may stay frozen for that.
        tokio::spawn(me.hold_until_closed(hyper::upgrade::on(&mut request), tell));
        told.await.map_err(io::Error::other)??;
        let mut response = Response::new(Full::default().map_err(|never| match never {}).boxed_unsync());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(header::UPGRADE, header::HeaderValue::from_static("hold"));
        Ok(response)
    }

    async fn hold_until_closed(
        self: Arc<Self>,
        upgrade: hyper::upgrade::OnUpgrade,
        tell: oneshot::Sender<io::Result<()>>,
    ) {
        // One change at a time: no pause, resume or other hold until this one ends.
        let freezer = Arc::clone(&self.freezer).lock_owned().await;
        let ran = self.state() == State::Running;
        let freezer = if ran {
            self.held.send_replace(true);
            match change_freezer(freezer, Freezer::freeze).await {
                Ok(freezer) => freezer,
                Err(error) => {
                    self.held.send_replace(false);
                    let _ = tell.send(Err(error));
                    return;
                }
            }
        } else {
            freezer
        };
        if tell.send(Ok(())).is_ok()
            && let Ok(line) = upgrade.await
        {
            let mut line = TokioIo::new(line);
            let mut ignored = [0; 64];
            while matches!(line.read(&mut ignored).await, Ok(1..)) {}
        }
        if ran {
            if change_freezer(freezer, Freezer::thaw).await.is_err() {
                // Frozen is what it is: a resume tries again.
                self.set_state(State::Paused);
            }
            self.held.send_replace(false);
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let (parts, body) = request.into_parts();
        match (&parts.method, parts.uri.path()) {
            (&Method::GET, "/sandhold/info") => Ok(json(StatusCode::OK, &self.info())),
            (&Method::GET, USAGE) => Ok(json(StatusCode::OK, &self.meter.read()?)),
            (&Method::POST, "/sandhold/lease") => {
                let lease = lease_request(body).await?.unwrap_or_default();
                if self.state() == State::Paused {
                    return Err(Refusal(
                        StatusCode::CONFLICT,
                        "a paused sandbox has no lease; resume it".into(),
                    ));
                }
                if !self.change_lease(&lease)? {
                    return Err(Refusal(StatusCode::CONFLICT, LEASE_ENDED.into()));
                }
                Ok(json(StatusCode::OK, &self.info()))
            }
            (&Method::POST, "/sandhold/freeze") => Ok(json(StatusCode::OK, &self.freeze().await?)),
            (&Method::POST, "/sandhold/thaw") => {
                let lease = lease_request(body).await?.unwrap_or_default();
                let changed = self.change(State::Running, Freezer::thaw, lease).await?;
                Ok(json(StatusCode::OK, &changed))
            }
            (&Method::POST, "/sandhold/stop") => sys::exit_now(0),
            _ => Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, "another method is needed here".into())),
        }
    }
}

/// Freezes or thaws off the daemon's thread.
async fn change_freezer(
    mut freezer: OwnedMutexGuard<Freezer>,
    how: impl FnOnce(&mut Freezer) -> io::Result<()> + Send + 'static,
) -> io::Result<OwnedMutexGuard<Freezer>> {
    let change = move || how(&mut freezer).map(|()| freezer);
    tokio::task::spawn_blocking(change).await.map_err(io::Error::other)?
}

/// Why a request is not answered.
struct Refusal(StatusCode, String);

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        let busy = error.kind() == io::ErrorKind::ResourceBusy;
        let status = if busy { StatusCode::CONFLICT } else { StatusCode::INTERNAL_SERVER_ERROR };
        Self(status, error.to_string())
    }
}

async fn lease_request(body: Incoming) -> Result<Option<LeaseRequest>, Refusal> {
    let bad = |error: &dyn std::fmt::Display| Refusal(StatusCode::BAD_REQUEST, format!("bad lease: {error}"));
    let bytes = Limited::new(body, MOST_BYTES).collect().await.map_err(|error| bad(&error))?.to_bytes();
    if bytes.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| bad(&error))
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::from(bytes).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

const LEASE_ENDED: &str = "the lease has ended, and what is to be done at its end is under way";

const HOLD: &str = "/sandhold/hold";
const USAGE: &str = "/sandhold/usage";

/// The routes that are answered here.
const ROUTES: [&str; 7] = [
    "/sandhold/info",
    "/sandhold/lease",
    "/sandhold/freeze",
    "/sandhold/thaw",
    "/sandhold/stop",
    HOLD,
    USAGE,
];

/// The daemon's routes that a paused sandbox answers too.
const OPEN_WHILE_PAUSED: [&str; 4] = ["/health", "/metrics", "/envs", "/init"];

#[async_trait::async_trait]
impl ExtraRoutes for Control {
    fn refuse(&self, request: &Request<Incoming>) -> Option<Response<Body>> {
        let path = request.uri().path();
        if self.state() == State::Running || ROUTES.contains(&path) || OPEN_WHILE_PAUSED.contains(&path) {
            return None;
        }
        // A process that is started now would never run, and a change would surprise those that were frozen.
        let message = "the sandbox is paused; connect to it first, which resumes it";
        let refusal = serde_json::json!({ "code": 409, "message": message, "state": "paused" });
        Some(json(StatusCode::CONFLICT, &refusal))
    }

    fn wait(&self, request: &Request<Incoming>) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let path = request.uri().path();
        if !*self.held.borrow() || ROUTES.contains(&path) || OPEN_WHILE_PAUSED.contains(&path) {
            return None;
        }
        let mut held = self.held.subscribe();
        Some(Box::pin(async move {
            // The sender lives as long as the daemon.
            let _ = held.wait_for(|held| !held).await;
        }))
    }

    fn handles(&self, request: &Request<Incoming>) -> bool {
        ROUTES.contains(&request.uri().path())
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let answered = match request.uri().path() {
            HOLD => self.hold(request).await,
            _ => self.answer(request).await,
        };
        match answered {
            Ok(response) => response,
            Err(Refusal(status, message)) => {
                json(status, &serde_json::json!({ "code": status.as_u16(), "message": message }))
            }
        }
    }
}
