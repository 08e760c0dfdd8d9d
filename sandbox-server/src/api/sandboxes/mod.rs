//! Sandboxes: `/sandboxes` and `/v2/sandboxes`.

mod create;
mod fork;
mod lifecycle;
mod list;
mod logs;
mod metrics;
mod network;
mod view;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use http::request::Parts;

use crate::app::App;
use crate::extract::Segment;
use crate::ids;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sandboxes", get(list::running).post(create::v1))
        .route("/v2/sandboxes", get(list::page).post(create::v2))
        .route("/sandboxes/metrics", get(metrics::last_of_several))
        .route("/sandboxes/{id}", get(view::detail).delete(lifecycle::kill))
        .route("/sandboxes/{id}/connect", post(lifecycle::connect_v1))
        .route("/v2/sandboxes/{id}/connect", post(lifecycle::connect_v2))
        .route("/sandboxes/{id}/resume", post(lifecycle::resume))
        .route("/sandboxes/{id}/pause", post(lifecycle::pause))
        .route("/sandboxes/{id}/timeout", post(lifecycle::timeout))
        .route("/sandboxes/{id}/refreshes", post(lifecycle::refresh))
        .route("/sandboxes/{id}/fork", post(fork::fork))
        .route("/sandboxes/{id}/network", put(network::update))
        .route("/sandboxes/{id}/metrics", get(metrics::of_one))
        .route("/sandboxes/{id}/logs", get(logs::v1))
        .route("/v2/sandboxes/{id}/logs", get(logs::v2))
}

/// The id of a sandbox in a path.
#[derive(Debug)]
pub(super) struct PathId(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Segment(text) = Segment::from_request_parts(parts, state).await?;
        match ids::of_path(&text) {
            Ok(id) => Ok(Self(id.to_owned())),
            Err(error) => Err(error.into_response()),
        }
    }
}
