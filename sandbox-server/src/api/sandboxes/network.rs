//! `PUT /sandboxes/{id}/network`.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use sandhold_e2b::wire::NetworkUpdate;

use super::PathId;
use crate::api::to_the_end;
use crate::app::App;
use crate::error::ApiResult;
use crate::extract::Json;
use crate::network;

pub(super) async fn update(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
    Json(asked): Json<NetworkUpdate>,
) -> ApiResult<StatusCode> {
    network::check(&asked)?;
    let sandbox = app.sandbox(&id).await?;
    to_the_end(async move { app.set_network(&sandbox, asked).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
