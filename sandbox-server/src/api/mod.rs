//! The control plane: E2B's REST routes.

mod sandboxes;

use std::sync::Arc;

use axum::routing::get;
use axum::{Router, middleware};
use http::{Method, StatusCode, Uri};

use crate::app::App;
use crate::auth;
use crate::error::{ApiError, ApiResult};
use crate::{secrets, snapshots, templates, volumes};

/// Routes that need an API key; each part of the API adds its own here.
fn keyed() -> Router<Arc<App>> {
    Router::new()
        .merge(sandboxes::routes())
        .merge(templates::routes::keyed())
        .merge(snapshots::routes())
        .merge(volumes::keyed())
        .merge(secrets::routes())
}

/// Routes that anybody may ask for, or that check credentials of their own.
fn open() -> Router<Arc<App>> {
    Router::new().route("/health", get(health)).merge(templates::routes::open()).merge(volumes::open())
}

/// The whole control plane. What is not a route is an error of E2B's form too.
pub(crate) fn router(app: Arc<App>) -> Router {
    let checked = middleware::from_fn_with_state(Arc::clone(&app), auth::with_api_key);
    keyed()
        .route_layer(checked)
        .merge(open())
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

async fn health() -> &'static str {
    "Health check successful"
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::not_found(format!("no route {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("method {method} is not allowed for {}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// Runs a change to its end, also when the client that asked for it is gone: half a change helps nobody.
pub(crate) async fn to_the_end<T: Send + 'static>(
    change: impl Future<Output = ApiResult<T>> + Send + 'static,
) -> ApiResult<T> {
    match tokio::spawn(change).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "a change broke off");
            Err(ApiError::internal("the change broke off; look at what became of it"))
        }
    }
}
