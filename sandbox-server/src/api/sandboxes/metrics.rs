//! Measurements of sandboxes.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
use sandhold_e2b::wire::{Metric, MetricsById};

use super::PathId;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::extract::Query;
use crate::ids;

/// Most sandboxes of one request.
const MOST: usize = 100;

/// `GET /sandboxes/{id}/metrics`
pub(super) async fn of_one(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
    query: Query,
) -> ApiResult<Json<Vec<Metric>>> {
    let (start, end) = (query.number("start")?, query.number("end")?);
    if let (Some(start), Some(end)) = (start, end)
        && start > end
    {
        return Err(ApiError::bad_request("start is after end"));
    }
    let sandbox = app.sandbox(&id).await?;
    let samples = sandbox.samples.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Json(samples.between(start, end)))
}

/// `GET /sandboxes/metrics`
pub(super) async fn last_of_several(
    State(app): State<Arc<App>>,
    query: Query,
) -> ApiResult<Json<MetricsById>> {
    let asked: Vec<_> = query
        .all("sandbox_ids")
        .flat_map(|ids| ids.split(','))
        .filter(|id| !id.is_empty())
        .map(ids::of_path)
        .collect::<ApiResult<_>>()?;
    if asked.len() > MOST {
        return Err(ApiError::bad_request(format!("sandbox_ids holds {MOST} ids at most")));
    }
    let mut sandboxes = BTreeMap::new();
    for id in asked {
        let Some(sandbox) = app.sandboxes.get(id) else { continue };
        let samples = sandbox.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = samples.last() {
            sandboxes.insert(sandbox.id.clone(), last.clone());
        }
    }
    Ok(Json(MetricsById { sandboxes }))
}
