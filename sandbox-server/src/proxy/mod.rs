//! The way into sandboxes: requests go on to their daemon, or to what listens on their ports.

mod access;
mod forward;
mod pool;
mod reply;
mod signed;
mod target;
mod tls;
mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Method, Request, Response, Uri, header};
use sandhold_core::DAEMON_PORT;
use sandhold_e2b::wire::PauseMode;

use self::access::Denied;
pub(crate) use self::pool::Pool;
use self::reply::Refusal;
pub(crate) use self::reply::{bad_target, preflight};
pub(crate) use self::signed::{is_signed, owner_of};
pub(crate) use self::target::{Target, named_by_headers, named_by_host};
pub(crate) use self::tls::Tls;
use crate::app::App;
use crate::connection::Connection;
use crate::inflow::Inflow;
use crate::sandboxes::{Phase, Sandbox};

/// For so long after a pause a question for health is taken for the one that follows a dropped stream.
const ASKING_WHY: Duration = Duration::from_secs(2);

/// Answers a request for the inside of a sandbox.
pub(crate) async fn answer(
    app: &Arc<App>,
    target: Target,
    request: Request<Inflow>,
    connection: &Connection,
) -> Response<Body> {
    let page = request.headers().contains_key(header::ORIGIN);
    let to_daemon = target.port == DAEMON_PORT;
    if to_daemon && page && request.method() == Method::OPTIONS {
        return reply::preflight(request.headers());
    }
    // What an answer to a refused request depends on, as the request is used up by then.
    let wants_page = reply::is_browser(request.headers());
    let mut response = match pass(app, &target, request, connection).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(&target, wants_page),
    };
    if to_daemon && page {
        // Its daemon has no token of its own, and so would not let pages in.
        reply::allow_pages(response.headers_mut());
    }
    response
}

async fn pass(
    app: &Arc<App>,
    target: &Target,
    request: Request<Inflow>,
    connection: &Connection,
) -> Result<Response<Body>, Refusal> {
    if target.port == DAEMON_PORT && access::is_internal(request.uri().path()) {
        return Err(Refusal::Internal(request.uri().path().to_owned()));
    }
    let found = app.find_sandbox(&target.id).await;
    let sandbox = match found {
        Ok(Some(sandbox)) => sandbox,
        Ok(None) => return Err(Refusal::NotFound),
        Err(error) => {
            tracing::warn!(%error, id = target.id, "the provider could not be asked for a sandbox");
            return Err(Refusal::Unknown);
        }
    };
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    if sandbox.phase() != Phase::Running {
        awake(app, &sandbox, target.port, method, uri, headers).await?;
    }
    access::check(&sandbox, target.port, method, uri, headers).map_err(Refusal::Denied)?;
    if tunnel::is_upgrade(headers) {
        return tunnel::open(app, &sandbox, target.port, request, connection).await;
    }
    forward::send(app, &sandbox, target.port, request, connection).await
}

/// Wakes a sandbox that traffic may wake, and that this request may reach.
async fn awake(
    app: &Arc<App>,
    sandbox: &Arc<Sandbox>,
    port: u16,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let keeps_memory = sandbox.run().pause_mode == PauseMode::Full;
    match sandbox.phase() {
        Phase::Running => return Ok(()),
        Phase::Killing => return Err(Refusal::NotFound),
        _ if sandbox.made.auto_resume && keeps_memory => {}
        Phase::Resuming => return Err(Refusal::Transition),
        _ => return Err(Refusal::NotFound),
    }
    access::check_wake(sandbox, port, method, uri, headers).map_err(|_: Denied| {
        Refusal::Forbidden("the sandbox is paused, and only a request with its token wakes it")
    })?;
    // Clients whose streams a pause dropped ask why, and are told. Were that a wish to use the sandbox, none with an
    // open stream could ever stay paused.
    if port == DAEMON_PORT && uri.path() == "/health" && sandbox.stopped_within(ASKING_WHY) {
        return Err(Refusal::NotFound);
    }
    let (app, woken) = (Arc::clone(app), Arc::clone(sandbox));
    crate::api::to_the_end(async move { app.wake(&woken).await }).await.map_err(|error| {
        match error.status.as_u16() {
            404 => Refusal::NotFound,
            409 => Refusal::Transition,
            429 => Refusal::TooMany,
            _ => Refusal::Unknown,
        }
    })
}
