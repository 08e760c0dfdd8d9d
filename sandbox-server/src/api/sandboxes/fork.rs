//! `POST /sandboxes/{id}/fork`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::StatusCode;
use sandhold_e2b::wire::{ApiError as WireError, Fork, ForkResult};

use super::{PathId, view};
use crate::api::to_the_end;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::extract::Json;

/// Seconds of a fork that names none.
const DEFAULT_TIMEOUT: i64 = 15;

/// Most forks of one request.
const MOST: i64 = 100;

pub(super) async fn fork(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
    Json(asked): Json<Fork>,
) -> ApiResult<(StatusCode, axum::Json<Vec<ForkResult>>)> {
    let count = asked.count.unwrap_or(1);
    if !(1..=MOST).contains(&count) {
        return Err(ApiError::bad_request(format!("count must be 1 to {MOST}")));
    }
    let timeout = match u64::try_from(asked.timeout.unwrap_or(DEFAULT_TIMEOUT)) {
        Ok(seconds @ 1..) => app.check_timeout(Duration::from_secs(seconds))?,
        _ => return Err(ApiError::bad_request("Timeout must be greater than 0")),
    };
    let sandbox = app.sandbox(&id).await?;
    let count = usize::try_from(count).unwrap_or_default();
    let made = to_the_end(async move { app.fork(&sandbox, count, timeout).await }).await?;
    let results = made.into_iter().map(|made| match made {
        Ok(sandbox) => ForkResult { sandbox: Some(view::ready(&sandbox)), error: None },
        Err(error) => {
            let error = WireError::new(error.status.as_u16(), error.message);
            ForkResult { sandbox: None, error: Some(error) }
        }
    });
    Ok((StatusCode::CREATED, axum::Json(results.collect())))
}
