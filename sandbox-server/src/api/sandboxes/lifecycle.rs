//! Connect, resume, pause, timeout and kill.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::StatusCode;
use sandhold_core::Memory;
use sandhold_e2b::wire::{Connect, Pause, Refresh, Resume, Sandbox as Ready, SetTimeout};

use super::{PathId, view};
use crate::api::to_the_end;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::extract::Json;
use crate::sandboxes::{Connected, Nearer};

/// Seconds of a connect that names none.
const CONNECT_TIMEOUT: i64 = 300;

/// Seconds of a resume or refresh that names none.
const SHORT_TIMEOUT: i64 = 15;

/// The longest refresh, in seconds.
const LONGEST_REFRESH: i64 = 3600;

type Answer = ApiResult<(StatusCode, axum::Json<Ready>)>;

fn memory(keep: Option<bool>) -> Memory {
    if keep == Some(false) { Memory::Lost } else { Memory::Kept }
}

/// Reads a timeout that may be zero.
fn seconds(app: &App, seconds: i64) -> ApiResult<Duration> {
    let seconds = u64::try_from(seconds).map_err(|_| ApiError::bad_request("Timeout cannot be negative"))?;
    app.check_timeout(Duration::from_secs(seconds))
}

/// Reads a timeout that lets a sandbox run.
fn some_seconds(app: &App, asked: i64) -> ApiResult<Duration> {
    match seconds(app, asked)? {
        Duration::ZERO => Err(ApiError::bad_request("Timeout must be greater than 0")),
        timeout => Ok(timeout),
    }
}

/// `POST /sandboxes/{id}/connect`
pub(super) async fn connect_v1(state: State<Arc<App>>, id: PathId, Json(asked): Json<Connect>) -> Answer {
    if asked.timeout.is_none() {
        return Err(ApiError::bad_request("the request body is not valid: missing field `timeout`"));
    }
    connect(state, id, asked).await
}

/// `POST /v2/sandboxes/{id}/connect`
pub(super) async fn connect_v2(state: State<Arc<App>>, id: PathId, Json(asked): Json<Connect>) -> Answer {
    connect(state, id, asked).await
}

async fn connect(State(app): State<Arc<App>>, PathId(id): PathId, asked: Connect) -> Answer {
    let timeout = some_seconds(&app, asked.timeout.unwrap_or(CONNECT_TIMEOUT))?;
    let sandbox = app.sandbox(&id).await?;
    let connected = {
        let sandbox = Arc::clone(&sandbox);
        to_the_end(async move { app.connect(&sandbox, timeout, memory(asked.memory)).await }).await?
    };
    let status = match connected {
        Connected::Running => StatusCode::OK,
        Connected::Resumed => StatusCode::CREATED,
    };
    Ok((status, axum::Json(view::ready(&sandbox))))
}

/// `POST /sandboxes/{id}/resume`. What happens at the end of a run was decided at the create: `autoPause` is read and
/// changes nothing.
pub(super) async fn resume(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
    Json(asked): Json<Resume>,
) -> Answer {
    let timeout = some_seconds(&app, asked.timeout.unwrap_or(SHORT_TIMEOUT))?;
    let sandbox = app.sandbox(&id).await?;
    {
        let sandbox = Arc::clone(&sandbox);
        to_the_end(async move { app.resume(&sandbox, timeout, memory(asked.memory)).await }).await?;
    }
    Ok((StatusCode::CREATED, axum::Json(view::ready(&sandbox))))
}

/// `POST /sandboxes/{id}/pause`
pub(super) async fn pause(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
    Json(asked): Json<Pause>,
) -> ApiResult<StatusCode> {
    let sandbox = app.sandbox(&id).await?;
    to_the_end(async move { app.pause(&sandbox, memory(asked.memory)).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/timeout`
pub(super) async fn timeout(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
    Json(asked): Json<SetTimeout>,
) -> ApiResult<StatusCode> {
    let timeout = seconds(&app, asked.timeout)?;
    let sandbox = app.sandbox(&id).await?;
    to_the_end(async move { app.set_timeout(&sandbox, timeout, Nearer::Too).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/refreshes`
pub(super) async fn refresh(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
    Json(asked): Json<Refresh>,
) -> ApiResult<StatusCode> {
    let asked = asked.duration.unwrap_or(SHORT_TIMEOUT);
    if !(0..=LONGEST_REFRESH).contains(&asked) {
        return Err(ApiError::bad_request(format!("duration must be 0 to {LONGEST_REFRESH} seconds")));
    }
    let duration = Duration::from_secs(asked.max(SHORT_TIMEOUT).unsigned_abs());
    let sandbox = app.sandbox(&id).await?;
    to_the_end(async move { app.set_timeout(&sandbox, duration, Nearer::Never).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `DELETE /sandboxes/{id}`
pub(super) async fn kill(State(app): State<Arc<App>>, PathId(id): PathId) -> ApiResult<StatusCode> {
    let sandbox = app.sandbox(&id).await?;
    to_the_end(async move { app.kill(&sandbox).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
