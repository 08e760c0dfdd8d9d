//! Processes: start, follow, signal, retain.

mod pty;
mod reaper;
mod spawn;

use std::io;
use std::sync::Arc;

use hyper::body::Incoming;

use crate::daemon::http::{self, Body};
use crate::daemon::state::{DaemonConfig, State};

/// The processes that this daemon started.
pub(crate) struct ProcessTable {}

impl ProcessTable {
    pub(crate) fn new(_config: &DaemonConfig) -> io::Result<Self> {
        Ok(Self {})
    }
}

/// Adds the `process.Process` service to the router.
pub(crate) fn register(_state: &Arc<State>, router: connectrpc::Router) -> connectrpc::Router {
    // A service is a type that implements the generated trait and holds the state:
    //   impl messages::process::Process for ProcessService { async fn start(&self, ctx, request) ... }
    //   router.add_service(Arc::new(ProcessService { state: Arc::clone(state) }))
    // The user comes from `auth::basic_user(ctx.headers())`, pings from `keepalive::{interval, KeepAlive}`;
    // `ctx.deadline()` is `Connect-Timeout-Ms`, at which the router itself ends the stream.
    router
}

/// Answers `POST /sandhold/processes/release`.
pub(crate) async fn release(
    _state: &Arc<State>,
    _request: ::http::Request<Incoming>,
) -> ::http::Response<Body> {
    http::json_error(::http::StatusCode::NOT_IMPLEMENTED, "not implemented")
}
