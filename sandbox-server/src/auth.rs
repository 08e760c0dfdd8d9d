//! Who may use the control plane.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};

use crate::app::App;
use crate::error::ApiError;
use crate::tokens::same_secret;

const API_KEY: &str = "x-api-key";

/// Lets a request through that carries an API key which is accepted.
pub(crate) async fn with_api_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match check(app.config.api_key.as_deref(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn check(accepted: Option<&str>, headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(API_KEY).map(|key| key.as_bytes()).filter(|key| !key.is_empty());
    let unauthorized = |message| Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
    match (given, accepted) {
        (None, _) => unauthorized("no API key was given; set the header X-API-KEY"),
        (Some(given), Some(accepted)) if !same_secret(given, accepted.as_bytes()) => {
            unauthorized("the API key is not valid")
        }
        (Some(_), _) => Ok(()),
    }
}
