//! One HTTP service: Connect RPC and plain routes, with the rules that hold for both.

use std::error::Error;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use connectrpc::{
    CompressionPolicy, ConnectError, ConnectRpcBody, ConnectRpcService, DeadlinePolicy, Limits, Router,
};
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::error::Elapsed;
use tower_service::Service as _;

use crate::daemon::init::Init;
use crate::daemon::metrics::Metrics;
use crate::daemon::serve::Orders;
use crate::daemon::state::State;
use crate::daemon::{auth, files, fs, process, tunnel};

/// Largest RPC message that is taken; larger contents go through `/files` or a stream.
const MAX_MESSAGE: usize = 64 << 20;

/// The one call whose request is a stream.
const STREAM_INPUT: &str = "/StreamInput";

/// Length of what stands before a message in a stream: flags and length.
const ENVELOPE_HEADER: usize = 5;

/// The body of a plain answer.
pub type Body = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Routes of the embedding program, under `/sandhold/`.
#[async_trait::async_trait]
pub trait ExtraRoutes: Send + Sync + Debug {
    /// Says whether `request` is for [`respond`](Self::respond); the daemon answers it otherwise.
    fn handles(&self, request: &Request<Incoming>) -> bool;

    /// Answers a request whose access token was checked.
    async fn respond(&self, request: Request<Incoming>) -> Response<Body>;

    /// Keeps a request waiting before anything of it is done; `None`, the default, lets it go on at once.
    fn wait(&self, request: &Request<Incoming>) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let _ = request;
        None
    }

    /// Refuses a request that the daemon itself would answer, before anything of it is done; `None` lets it through.
    fn refuse(&self, request: &Request<Incoming>) -> Option<Response<Body>> {
        let _ = request;
        None
    }
}

/// Everything that answers requests.
pub(crate) struct Service {
    state: Arc<State>,
    rpc: ConnectRpcService<Router>,
    init: Init,
    metrics: Metrics,
    orders: Arc<watch::Sender<Orders>>,
}

impl Service {
    pub(crate) fn new(state: Arc<State>, orders: Arc<watch::Sender<Orders>>) -> Self {
        let router = fs::register(&state, process::register(&state, Router::new()));
        let rpc = ConnectRpcService::new(router)
            .with_limits(
                Limits::default()
                    .with_max_request_body_size(MAX_MESSAGE + ENVELOPE_HEADER)
                    .with_max_message_size(MAX_MESSAGE),
            )
            // E2B's envd takes messages in gzip. Answers stay as they are: the network between is seldom slower than gzip.
            .with_compression_policy(CompressionPolicy::disabled())
            .with_deadline_policy(DeadlinePolicy::new().with_enforce_on_streams(true));
        Self { state, rpc, init: Init::default(), metrics: Metrics::default(), orders }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Begins what the daemon does whether or not it is asked; must run on the runtime that serves.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        self.state.processes.serve()
    }

    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let unread = !request.body().is_end_stream();
        let streamed = request.uri().path().ends_with(STREAM_INPUT);
        let mut response = self.answer_anyone(request).await;
        let refused = matches!(response.body(), AnswerBody::Plain(_)) && response.status().as_u16() >= 400;
        if unread && (refused || streamed) {
            // The rest of the request may still be coming, so the connection ends with this answer. A client that
            // was not told would send its next request into it.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer_anyone(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let from_page = request.headers().contains_key(header::ORIGIN);
        let with_token = self.state.session(|session| session.access_token.is_some());
        if (from_page || named_by_a_page(&request)) && !with_token {
            // Any page that the user visits could else drive the sandbox through the user's browser.
            let message = "a web page may only use a daemon that asks for an access token";
            return json_error(StatusCode::FORBIDDEN, message).map(AnswerBody::Plain);
        }
        let mut response = if from_page && request.method() == Method::OPTIONS {
            preflight(&request).map(AnswerBody::Plain)
        } else {
            self.route(request).await
        };
        if from_page {
            let headers = response.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        }
        response
    }

    async fn route(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        if let Some(wait) = self.state.config.routes.as_ref().and_then(|routes| routes.wait(&request)) {
            wait.await;
        }
        if let Some(refusal) = self.state.config.routes.as_ref().and_then(|routes| routes.refuse(&request)) {
            return refusal.map(AnswerBody::Plain);
        }
        let path = request.uri().path();
        let plain = match (request.method(), path) {
            (&Method::GET, "/health") => health(),
            (&Method::POST, "/init") => self.init.answer(&self.state, request).await,
            // A signature may stand in for the token there.
            (_, "/files") => files::handle(&self.state, request).await,
            _ if !auth::token_matches(&self.state, request.headers()) => auth::unauthorized(),
            _ if is_rpc(path) => return self.call(request).await.map(AnswerBody::Rpc),
            (&Method::GET, "/metrics") => self.metrics.answer(),
            (&Method::GET, "/envs") => self.state.session(|session| json(StatusCode::OK, &session.envs)),
            (_, path) if path.starts_with("/files/") => files::handle(&self.state, request).await,
            (_, path) if path.starts_with("/sandhold/") => self.own(request).await,
            (_, path) => not_found(path),
        };
        plain.map(AnswerBody::Plain)
    }

    /// Answers what E2B's envd does not have.
    async fn own(&self, request: Request<Incoming>) -> Response<Body> {
        if let Some(routes) = self.state.config.routes.as_ref().filter(|routes| routes.handles(&request)) {
            return routes.respond(request).await;
        }
        match (request.method(), request.uri().path()) {
            (&Method::GET, path) if path.starts_with(tunnel::PREFIX) => {
                tunnel::answer(&self.state, request, self.orders.subscribe()).await
            }
            (&Method::POST, "/sandhold/processes/release") => process::release(&self.state, request).await,
            (_, path) => not_found(path),
        }
    }

    async fn call(&self, request: Request<Incoming>) -> Response<ConnectRpcBody> {
        let mut rpc = self.rpc.clone();
        let called = if request.uri().path().ends_with(STREAM_INPUT) {
            rpc.call(request).await
        } else {
            // A message that is too large is the caller's mistake, not a rate that will do later.
            let (head, body) = request.into_parts();
            let body = match collect(body, MAX_MESSAGE + ENVELOPE_HEADER, self.state.config.upload_idle).await
            {
                Ok(body) => Full::new(body),
                Err(error) => return unreadable(&*error).into_http_response(&head.headers),
            };
            rpc.call(Request::from_parts(head, body)).await
        };
        match called {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

fn unreadable(error: &(dyn Error + Send + Sync + 'static)) -> ConnectError {
    if error.is::<LengthLimitError>() {
        ConnectError::invalid_argument(format!("the message is larger than {MAX_MESSAGE} bytes"))
    } else {
        ConnectError::canceled(format!("the request did not arrive whole: {error}"))
    }
}

/// Says whether the daemon is called by a name that a page could have pointed at this machine: such a page may read
/// without an `Origin`. A number, and a name without a dot such as `localhost`, cannot be pointed elsewhere.
fn named_by_a_page(request: &Request<Incoming>) -> bool {
    let Some(host) = request.headers().get(header::HOST) else { return false };
    let Ok(authority) = http::uri::Authority::try_from(host.as_bytes()) else { return true };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let own = !name.contains('.') || name.ends_with(".localhost");
    !own && name.parse::<std::net::IpAddr>().is_err()
}

fn is_rpc(path: &str) -> bool {
    path.starts_with("/process.Process/") || path.starts_with("/filesystem.Filesystem/")
}

fn health() -> Response<Body> {
    let mut response = empty(StatusCode::NO_CONTENT);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn preflight(request: &Request<Incoming>) -> Response<Body> {
    let mut response = empty(StatusCode::NO_CONTENT);
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("HEAD, GET, POST, PUT, PATCH, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    // A wildcard would leave `Authorization` out.
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(HeaderValue::from_static("*")));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    response
}

fn not_found(path: &str) -> Response<Body> {
    let status = StatusCode::NOT_FOUND;
    json(status, &serde_json::json!({ "code": status.as_u16(), "message": "no such route", "path": path }))
}

/// Returns a body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns an answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Returns `value` as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let Ok(bytes) = serde_json::to_vec(value) else {
        return json_error(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be written as JSON");
    };
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Returns envd's error body, `{"code":status,"message":...}`.
pub(crate) fn json_error(status: StatusCode, message: &str) -> Response<Body> {
    json(status, &serde_json::json!({ "code": status.as_u16(), "message": message }))
}

/// Reads a whole body of at most `limit` bytes, whose sender is silent for `idle` at most.
pub(crate) async fn read(body: Incoming, limit: usize, idle: Duration) -> Result<Bytes, Response<Body>> {
    match collect(body, limit, idle).await {
        Ok(body) => Ok(body),
        Err(error) if error.is::<Elapsed>() => {
            let message = format!("the request stalled: no byte arrived for {} ms", idle.as_millis());
            Err(json_error(StatusCode::REQUEST_TIMEOUT, &message))
        }
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the body is larger than {limit} bytes");
            Err(json_error(StatusCode::PAYLOAD_TOO_LARGE, &message))
        }
        Err(error) => {
            let message = format!("the body did not arrive whole: {error}");
            Err(json_error(StatusCode::BAD_REQUEST, &message))
        }
    }
}

/// A sender that stopped, or is gone without a word, must not hold what it sent for ever.
async fn collect(
    body: Incoming,
    limit: usize,
    idle: Duration,
) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    let mut body = Limited::new(body, limit);
    let mut pieces = Vec::new();
    while let Some(frame) = tokio::time::timeout(idle, body.frame()).await? {
        pieces.extend(frame?.into_data());
    }
    Ok(if pieces.len() == 1 { pieces.remove(0) } else { pieces.concat().into() })
}

/// The body of any answer.
pub(crate) enum AnswerBody {
    Plain(Body),
    Rpc(ConnectRpcBody),
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Plain(body) => Pin::new(body).poll_frame(cx),
            Self::Rpc(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Rpc(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            // The library's own body does not pass the hint on, and a length saves clients the chunks.
            Self::Rpc(ConnectRpcBody::Full(body)) => body.size_hint(),
            Self::Rpc(body) => body.size_hint(),
        }
    }
}
