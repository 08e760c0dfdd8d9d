//! Secrets: names and values that clients store. A value is never given back.
//!
//! Values are kept in files of this user alone, beside the secret that tokens are made from.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, StatusCode};
use sandhold_core::Result;
use sandhold_e2b::wire::{NEXT_TOKEN_HEADER, NewSecret, Secret, SecretInfo, Timestamp, UpdateSecret};
use serde::{Deserialize, Serialize};
use tokio::sync::RwLock;

use crate::app::{App, blocking};
use crate::error::{ApiError, ApiResult};
use crate::extract::{Json, Query, Segment};
use crate::sandboxes::now;
use crate::store::{Durability, Store};
use crate::templates::short_id;

const SECRETS: &str = "secrets";
/// Most secrets of one page, and the default.
const MAX_PAGE: usize = 100;
/// Longest name and value, in bytes.
const MAX_NAME: usize = 256;
const MAX_VALUE: usize = 64 * 1024;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    id: String,
    name: String,
    value: Secret,
    version: u64,
    metadata: BTreeMap<String, String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl Kept {
    fn info(&self) -> SecretInfo {
        SecretInfo {
            secret_id: self.id.clone(),
            name: self.name.clone(),
            current_version: self.version,
            metadata: Some(self.metadata.clone()),
            created_at: Some(self.created_at),
            updated_at: Some(self.updated_at),
        }
    }
}

/// The secrets of a server, by id.
#[derive(Debug)]
pub(crate) struct Secrets {
    store: Arc<Store>,
    kept: RwLock<BTreeMap<String, Kept>>,
}

impl Secrets {
    /// Reads all secrets.
    pub(crate) async fn open(store: Arc<Store>) -> Result<Self> {
        let reading = Arc::clone(&store);
        let kept = blocking(move || {
            reading.make_dir(SECRETS)?;
            Ok(reading.read_all(SECRETS)?.0)
        });
        Ok(Self { store, kept: RwLock::new(kept.await?) })
    }

    async fn write(&self, kept: &Kept) -> Result<()> {
        let (store, name, kept) = (Arc::clone(&self.store), format!("{SECRETS}/{}", kept.id), kept.clone());
        blocking(move || store.write(&name, &kept, Durability::Machine)).await
    }
}

/// Finds a secret by id or name.
fn find<'a>(all: &'a BTreeMap<String, Kept>, which: &str) -> ApiResult<&'a Kept> {
    let found = all.get(which).or_else(|| all.values().find(|kept| kept.name == which));
    found.ok_or_else(|| {
        ApiError::not_found(format!("secret '{}' not found", which.chars().take(64).collect::<String>()))
    })
}

fn check(name: &str, value: &Secret) -> ApiResult<()> {
    // Names stand between `${e2b.secrets.` and `}`.
    if name.is_empty()
        || name.len() > MAX_NAME
        || name.contains(['{', '}'])
        || name.chars().any(char::is_control)
    {
        return Err(ApiError::bad_request(format!(
            "a secret's name has 1 to {MAX_NAME} bytes, without braces and control characters"
        )));
    }
    if value.expose().len() > MAX_VALUE {
        return Err(ApiError::bad_request(format!("the value is larger than {MAX_VALUE} bytes")));
    }
    Ok(())
}

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/secrets", get(list).post(create))
        .route("/secrets/{id}", get(detail).post(update).delete(remove))
}

async fn list(State(app): State<Arc<App>>, query: Query) -> ApiResult<Response> {
    let limit = query.number::<usize>("limit")?.unwrap_or(MAX_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ApiError::bad_request(format!("the query parameter \"limit\" is not 1 to {MAX_PAGE}")));
    }
    let kept = app.secrets.kept.read().await;
    // By id, which never changes: the cursor is the last one that was seen.
    let after = query.get("nextToken").unwrap_or_default().to_owned();
    let mut rest = kept.values().filter(|kept| kept.id > after);
    let page: Vec<_> = rest.by_ref().take(limit).map(Kept::info).collect();
    let more = rest.next().is_some();
    let last = page.last().map(|info| info.secret_id.clone()).filter(|_| more);
    let mut response = axum::Json(page).into_response();
    if let Some(token) = last.and_then(|id| HeaderValue::from_str(&id).ok()) {
        response.headers_mut().insert(NEXT_TOKEN_HEADER, token);
    }
    Ok(response)
}

async fn create(
    State(app): State<Arc<App>>,
    Json(asked): Json<NewSecret>,
) -> ApiResult<(StatusCode, axum::Json<SecretInfo>)> {
    check(&asked.name, &asked.value)?;
    let mut all = app.secrets.kept.write().await;
    if all.values().any(|kept| kept.name == asked.name) {
        return Err(ApiError::conflict(format!(
            "a secret named {:?} is there already; update it",
            asked.name
        )));
    }
    let at = Timestamp(now());
    let kept = Kept {
        id: short_id()?,
        name: asked.name,
        value: asked.value,
        version: 1,
        metadata: asked.metadata.unwrap_or_default(),
        created_at: at,
        updated_at: at,
    };
    app.secrets.write(&kept).await?;
    let info = kept.info();
    all.insert(kept.id.clone(), kept);
    Ok((StatusCode::CREATED, axum::Json(info)))
}

async fn detail(State(app): State<Arc<App>>, Segment(which): Segment) -> ApiResult<axum::Json<SecretInfo>> {
    let all = app.secrets.kept.read().await;
    Ok(axum::Json(find(&all, &which)?.info()))
}

async fn update(
    State(app): State<Arc<App>>,
    Segment(which): Segment,
    Json(asked): Json<UpdateSecret>,
) -> ApiResult<axum::Json<SecretInfo>> {
    let mut all = app.secrets.kept.write().await;
    let mut kept = find(&all, &which)?.clone();
    check(&kept.name, &asked.value)?;
    kept.value = asked.value;
    kept.version += 1;
    if let Some(metadata) = asked.metadata {
        kept.metadata = metadata;
    }
    kept.updated_at = Timestamp(now());
    app.secrets.write(&kept).await?;
    let info = kept.info();
    all.insert(kept.id.clone(), kept);
    Ok(axum::Json(info))
}

async fn remove(State(app): State<Arc<App>>, Segment(which): Segment) -> ApiResult<StatusCode> {
    let mut all = app.secrets.kept.write().await;
    let id = find(&all, &which)?.id.clone();
    let (store, name) = (Arc::clone(&app.secrets.store), format!("{SECRETS}/{id}"));
    blocking(move || store.remove(&name)).await?;
    all.remove(&id);
    Ok(StatusCode::NO_CONTENT)
}
