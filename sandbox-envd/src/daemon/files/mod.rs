//! File contents over plain HTTP.

use std::sync::Arc;

use hyper::body::Incoming;

use crate::daemon::http::{self, Body};
use crate::daemon::state::State;

/// Answers `/files` and everything under it. The access token of `/files` itself is this module's to check,
/// because a signature may stand in for it; of `/files/compose` it was checked before.
pub(crate) async fn handle(
    _state: &Arc<State>,
    _request: ::http::Request<Incoming>,
) -> ::http::Response<Body> {
    http::json_error(::http::StatusCode::NOT_IMPLEMENTED, "not implemented")
}
