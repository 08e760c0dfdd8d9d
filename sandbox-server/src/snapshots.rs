//! Snapshots of sandboxes: stored by the provider, named here.
//!
//! A name goes over to the latest snapshot that was taken with it, which is why names are not the provider's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderValue, StatusCode, Uri};
use sandhold_core::{
    DestroyOutcome, Memory, Result, SandboxProvider, SnapshotFilter, SnapshotId, SnapshotInfo,
    SnapshotOptions,
};
use sandhold_e2b::wire::{CreateSnapshot, NEXT_TOKEN_HEADER, SnapshotInfo as Shown, SnapshotQuery};
use serde::{Deserialize, Serialize};
use tokio::sync::RwLock;

use crate::api::to_the_end;
use crate::app::{App, blocking};
use crate::error::{ApiError, ApiResult};
use crate::extract::{Json, Segment};
use crate::ids;
use crate::store::{Durability, Store};
use crate::templates::resolve::Resolved;
use crate::templates::{Context, DEFAULT_TAG, NAMESPACE, SNAPSHOT_PREFIX, StartCommands, TemplateName};

const SNAPSHOTS: &str = "snapshots";
/// Most snapshots of one page, and the default.
const MAX_PAGE: usize = 100;

/// What is known here about a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// Its name, without namespace and tag.
    name: Option<String>,
    tag: Option<String>,
    /// The sandbox that it was taken of, as clients know it.
    sandbox: String,
    context: Option<Context>,
    start: Option<StartCommands>,
}

/// The snapshots of a server.
#[derive(Debug)]
pub(crate) struct Snapshots {
    provider: Arc<dyn SandboxProvider>,
    store: Arc<Store>,
    notes: RwLock<BTreeMap<String, Notes>>,
}

impl Snapshots {
    /// Reads what is noted.
    pub(crate) async fn open(provider: Arc<dyn SandboxProvider>, store: Arc<Store>) -> Result<Self> {
        let reading = Arc::clone(&store);
        let notes = blocking(move || {
            reading.make_dir(SNAPSHOTS)?;
            Ok(reading.read_all(SNAPSHOTS)?.0)
        });
        Ok(Self { provider, store, notes: RwLock::new(notes.await?) })
    }

    /// Returns the snapshots that clients took, oldest first, and forgets notes about those that are gone.
    async fn all(&self) -> Result<Vec<(SnapshotInfo, Notes)>> {
        if !self.provider.capabilities().snapshot {
            return Ok(Vec::new());
        }
        let notes = self.notes.read().await;
        let all = self.provider.list_snapshots(SnapshotFilter::default()).await?.collect().await?;
        let of_builds = |info: &SnapshotInfo| info.names.iter().any(|name| name.starts_with(SNAPSHOT_PREFIX));
        let noted = |info: &SnapshotInfo| notes.get(info.id.as_str()).cloned().unwrap_or_default();
        Ok(all
            .into_iter()
            .filter(|info| !of_builds(info))
            .map(|info| (noted(&info), info))
            .map(|(n, i)| (i, n))
            .collect())
    }

    async fn find(&self, name: &TemplateName) -> Result<Option<(SnapshotInfo, Notes)>> {
        let stands_for = |info: &SnapshotInfo, notes: &Notes| {
            let named = notes.name.as_ref() == Some(&name.name)
                && notes.tag.as_deref().unwrap_or(DEFAULT_TAG) == name.tag();
            let plain = name.namespace.is_none() && name.tag() == DEFAULT_TAG;
            // The provider's own names are those of templates that were made without this server.
            let by_id = plain && (info.id.as_str() == name.name || info.names.contains(&name.name));
            (named && name.is_ours()) || by_id
        };
        Ok(self.all().await?.into_iter().rev().find(|(info, notes)| stands_for(info, notes)))
    }

    /// Finds what sandboxes are made from by the id or the name of a snapshot.
    pub(crate) async fn resolve(&self, name: &TemplateName) -> Result<Option<Resolved>> {
        Ok(self.find(name).await?.map(|(info, notes)| Resolved {
            template_id: info.id.as_str().to_owned(),
            alias: notes.name,
            build_id: None,
            snapshot: Some(info.id.as_str().to_owned()),
            context: notes.context.unwrap_or_default(),
            start: notes.start,
        }))
    }

    /// Deletes a snapshot; `false` when there is none.
    ///
    /// # Errors
    /// As [`SandboxProvider::delete_snapshot`].
    pub(crate) async fn delete(&self, name: &TemplateName) -> Result<bool> {
        let Some((info, _)) = self.find(name).await? else { return Ok(false) };
        let outcome = self.provider.delete_snapshot(&info.id).await?;
        let mut notes = self.notes.write().await;
        if notes.remove(info.id.as_str()).is_some() {
            let (store, document) = (Arc::clone(&self.store), format!("{SNAPSHOTS}/{}", info.id.as_str()));
            blocking(move || store.remove(&document)).await?;
        }
        Ok(outcome == DestroyOutcome::Destroyed)
    }

    /// Notes what is known about a new snapshot; its name is taken from whichever had it.
    async fn note(&self, id: &SnapshotId, new: Notes) -> Result<()> {
        let mut notes = self.notes.write().await;
        let mut changed = vec![(id.as_str().to_owned(), new.clone())];
        if new.name.is_some() {
            let same = |notes: &Notes| notes.name == new.name && notes.tag == new.tag;
            for (other, old) in notes.iter().filter(|(other, notes)| same(notes) && *other != id.as_str()) {
                changed.push((other.clone(), Notes { name: None, tag: None, ..old.clone() }));
            }
        }
        for (id, document) in changed {
            let (store, name, written) =
                (Arc::clone(&self.store), format!("{SNAPSHOTS}/{id}"), document.clone());
            blocking(move || store.write(&name, &written, Durability::Machine)).await?;
            notes.insert(id, document);
        }
        Ok(())
    }
}

/// What clients know a snapshot as.
fn shown(info: &SnapshotInfo, notes: &Notes) -> Shown {
    match &notes.name {
        Some(name) => {
            let (name, tag) = (format!("{NAMESPACE}/{name}"), notes.tag.as_deref().unwrap_or(DEFAULT_TAG));
            Shown { snapshot_id: format!("{name}:{tag}"), names: vec![name] }
        }
        None => Shown { snapshot_id: format!("{}:{DEFAULT_TAG}", info.id.as_str()), names: Vec::new() },
    }
}

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new().route("/sandboxes/{id}/snapshots", post(create)).route("/snapshots", get(list))
}

async fn create(
    State(app): State<Arc<App>>,
    Segment(id): Segment,
    Json(asked): Json<CreateSnapshot>,
) -> ApiResult<(StatusCode, axum::Json<Shown>)> {
    let id = ids::of_path(&id)?.to_owned();
    let name = asked.name.as_deref().map(TemplateName::parse).transpose().map_err(ApiError::bad_request)?;
    if let Some(name) = &name {
        if !name.is_ours() {
            return Err(ApiError::bad_request(format!(
                "the name {name} is in a namespace that is not {NAMESPACE:?}"
            )));
        }
        let untagged = TemplateName { tag: None, ..name.clone() };
        if app.templates.catalog.find(&untagged).await.is_some() || name.name == crate::templates::BASE {
            return Err(ApiError::bad_request(format!("the name {} is that of a template", name.name)));
        }
    }
    let memory = if asked.memory == Some(false) { Memory::Lost } else { Memory::Kept };
    let sandbox = app.sandbox(&id).await?;
    let taken = to_the_end(async move { app.take_snapshot(&sandbox, name, memory).await }).await?;
    Ok((StatusCode::CREATED, axum::Json(taken)))
}

impl App {
    async fn take_snapshot(
        self: &Arc<Self>,
        sandbox: &Arc<crate::sandboxes::Sandbox>,
        name: Option<TemplateName>,
        memory: Memory,
    ) -> ApiResult<Shown> {
        let paused = |id: &str| ApiError::not_found(format!("Sandbox \"{id}\" is not running"));
        let _turn = sandbox.transition().await?;
        sandbox.must_run(paused)?;
        let options = SnapshotOptions::default().with_memory(memory);
        let info = match self.provider.snapshot(&sandbox.provided, options).await {
            Ok(info) => info,
            Err(error) => return Err(self.failed(sandbox, error, paused).await),
        };
        let notes = Notes {
            tag: name.as_ref().map(|name| name.tag().to_owned()),
            name: name.map(|name| name.name),
            sandbox: sandbox.id.clone(),
            context: sandbox.made.context.clone(),
            start: sandbox.made.start.clone(),
        };
        self.snapshots.note(&info.id, notes.clone()).await?;
        Ok(shown(&info, &notes))
    }
}

async fn list(State(app): State<Arc<App>>, uri: Uri) -> ApiResult<Response> {
    let query = SnapshotQuery::from_query(uri.query().unwrap_or_default())
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let name = query.name.as_deref().map(TemplateName::parse).transpose().map_err(ApiError::bad_request)?;
    let is_asked = |notes: &Notes| {
        query.sandbox_id.as_ref().is_none_or(|id| ids::of_path(id).is_ok_and(|id| id == notes.sandbox))
            && name.as_ref().is_none_or(|name| {
                notes.name.as_ref() == Some(&name.name)
                    && name.is_ours()
                    && name.tag.as_ref().is_none_or(|tag| notes.tag.as_deref().unwrap_or(DEFAULT_TAG) == tag)
            })
    };
    let mut all = app.snapshots.all().await?;
    all.retain(|(info, notes)| info.sandbox.is_some() && is_asked(notes));
    // Newest first; the cursor is the place after which the page begins, as what is there may be gone by then.
    all.reverse();
    if all.iter().all(|(info, _)| info.created_at.is_some()) {
        all.sort_by(|(a, _), (b, _)| place(b).cmp(&place(a)));
    }
    let begin = match query.next_token.as_deref().map(read_cursor).transpose()? {
        None => 0,
        Some((at, id)) => match all.iter().position(|(info, _)| info.id.as_str() == id) {
            Some(last) => last + 1,
            None => all.iter().position(|(info, _)| place(info) < (at, id)).unwrap_or(all.len()),
        },
    };
    let limit = query.limit.map_or(MAX_PAGE, |limit| usize::try_from(limit).unwrap_or(MAX_PAGE));
    let page: Vec<_> = all.iter().skip(begin).take(limit).collect();
    let more = all.len() > begin + page.len();
    let body: Vec<_> = page.iter().map(|(info, notes)| shown(info, notes)).collect();
    let mut response = axum::Json(body).into_response();
    if let Some((info, _)) = page.last().filter(|_| more)
        && let Ok(token) = HeaderValue::from_str(&write_cursor(info))
    {
        response.headers_mut().insert(NEXT_TOKEN_HEADER, token);
    }
    Ok(response)
}

/// Where a snapshot stands in the list: when it was taken, in nanoseconds, and its id.
fn place(info: &SnapshotInfo) -> (u128, &str) {
    let since = info.created_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    (since.as_nanos(), info.id.as_str())
}

fn write_cursor(info: &SnapshotInfo) -> String {
    let (at, id) = place(info);
    format!("{at}_{id}")
}

fn read_cursor(token: &str) -> ApiResult<(u128, &str)> {
    let read = token.split_once('_').and_then(|(at, id)| Some((at.parse().ok()?, id)));
    read.ok_or_else(|| ApiError::bad_request("the query parameter \"nextToken\" is not one of this list"))
}
