//! Volumes: directories of this machine that several sandboxes can have, and that outlive them.

mod closed;
mod content;
mod entry;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use sandhold_core::{Error, ErrorKind, Result};
use sandhold_e2b::wire::{NewVolume, Secret, Timestamp, Volume};
use serde::{Deserialize, Serialize};
use tokio::sync::RwLock;

use crate::app::{App, blocking};
use crate::error::{ApiError, ApiResult};
use crate::extract::{Json, Segment};
use crate::holds::{Hold, Holds};
use crate::rooted;
use crate::sandboxes::now;
use crate::store::{Durability, Store};
use crate::templates::short_id;
use crate::tokens::Tokens;

pub(crate) use content::routes as open;

const VOLUMES: &str = "volumes";
/// Where their files are, one directory a volume.
const FILES: &str = "volume-files";
/// What the names of directories end with whose volume was deleted: only those are removed.
const DELETED: &str = ".deleted";
const MAX_NAME: usize = 128;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    id: String,
    name: String,
    created_at: Timestamp,
}

/// The volumes of a server, by id.
#[derive(Debug)]
pub(crate) struct Volumes {
    store: Arc<Store>,
    files: PathBuf,
    kept: RwLock<BTreeMap<String, Kept>>,
}

impl Volumes {
    /// Reads all volumes, and removes the files of those that were deleted. Files that nobody deleted are kept, also
    /// where what says whose they are is lost.
    pub(crate) async fn open(store: Arc<Store>) -> Result<Self> {
        let reading = Arc::clone(&store);
        let opened = blocking(move || {
            reading.make_dir(VOLUMES)?;
            let files = reading.make_dir(FILES)?;
            let (mut all, _) = reading.read_all::<Kept>(VOLUMES)?;
            let documents = reading.names(VOLUMES)?;
            for left in std::fs::read_dir(&files).into_iter().flatten().flatten() {
                let name = left.file_name().to_string_lossy().into_owned();
                if let Some(id) = name.strip_suffix(DELETED) {
                    reading.remove(&format!("{VOLUMES}/{id}"))?;
                    all.remove(id);
                    discard(&left.path());
                } else if documents.contains(&name) {
                    // Also of one that could not be read.
                    continue;
                } else if holds_nothing(&left.path().join("data")) {
                    // It was never finished.
                    discard(&left.path());
                } else {
                    tracing::error!(
                        id = name,
                        "files of a volume are there without its document, and are left"
                    );
                }
            }
            Ok((all, files))
        });
        let (kept, files) = opened.await?;
        Ok(Self { store, files, kept: RwLock::new(kept) })
    }

    /// Returns the directory of the volume with this name, or this id, and keeps it from being deleted.
    pub(crate) async fn held(&self, which: &str, holds: &Holds) -> Option<(PathBuf, Hold)> {
        let all = self.kept.read().await;
        let found = all.values().find(|kept| kept.name == which).or_else(|| all.get(which))?;
        Some((self.data(&found.id), holds.hold(&found.id)))
    }

    /// Returns the directory of the volume with this id.
    async fn directory_of(&self, id: &str) -> Option<PathBuf> {
        self.kept.read().await.contains_key(id).then(|| self.data(id))
    }

    fn data(&self, id: &str) -> PathBuf {
        self.files.join(id).join("data")
    }

    /// Where the files of a volume are from its deletion on, until they are removed.
    fn deleted(&self, id: &str) -> PathBuf {
        self.files.join(format!("{id}{DELETED}"))
    }

    /// Where files are written before they get their place; on the same file system.
    fn staging(&self, id: &str) -> PathBuf {
        self.files.join(id).join("staging")
    }
}

/// Tells whether a directory is surely empty, or not there.
fn holds_nothing(data: &Path) -> bool {
    match std::fs::read_dir(data) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Removes the files of a volume that is gone.
fn discard(path: &Path) {
    if let Err(error) = rooted::remove_tree(path) {
        // Of other users inside: this one may not remove them.
        tracing::warn!(%error, path = %path.display(), "files of a volume that is gone are left");
    }
}

/// The bearer token for the content of a volume.
fn token(tokens: &Tokens, id: &str) -> String {
    URL_SAFE_NO_PAD.encode(tokens.derive("volume", id))
}

pub(crate) fn keyed() -> Router<Arc<App>> {
    Router::new().route("/volumes", get(list).post(create)).route("/volumes/{id}", get(detail).delete(remove))
}

fn shown(app: &App, kept: &Kept) -> Volume {
    let token = Some(Secret::new(token(&app.tokens, &kept.id)));
    Volume { volume_id: kept.id.clone(), name: kept.name.clone(), token, domain: None }
}

fn not_found(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::not_found(format!("Volume '{shown}' not found"))
}

async fn list(State(app): State<Arc<App>>) -> axum::Json<Vec<Volume>> {
    let all = app.volumes.kept.read().await;
    let mut sorted: Vec<_> = all.values().collect();
    sorted.sort_by(|a, b| a.created_at.cmp(&b.created_at).then_with(|| a.id.cmp(&b.id)));
    let plain = |kept: &&Kept| Volume { token: None, ..shown(&app, kept) };
    axum::Json(sorted.iter().map(plain).collect())
}

async fn create(
    State(app): State<Arc<App>>,
    Json(asked): Json<NewVolume>,
) -> ApiResult<(StatusCode, axum::Json<Volume>)> {
    let name = asked.name;
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if !(1..=MAX_NAME).contains(&name.len()) || !name.chars().all(plain) {
        return Err(ApiError::bad_request(format!(
            "a volume's name has 1 to {MAX_NAME} letters, digits, dashes and underscores"
        )));
    }
    let mut all = app.volumes.kept.write().await;
    if all.values().any(|kept| kept.name == name) {
        return Err(ApiError::conflict(format!("a volume named {name:?} is there already")));
    }
    let kept = Kept { id: short_id()?, name, created_at: Timestamp(now()) };
    let (store, new) = (Arc::clone(&app.volumes.store), kept.clone());
    let (data, staging) = (app.volumes.data(&kept.id), app.volumes.staging(&kept.id));
    blocking(move || {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "the directory of the volume cannot be made")
                .with_source(error)
        };
        std::fs::create_dir_all(&staging).map_err(failed)?;
        std::fs::create_dir(&data).map_err(failed)?;
        entry::open_to_user(&data).map_err(failed)?;
        store.write(&format!("{VOLUMES}/{}", new.id), &new, Durability::Machine)
    })
    .await?;
    let answer = shown(&app, &kept);
    all.insert(kept.id.clone(), kept);
    Ok((StatusCode::CREATED, axum::Json(answer)))
}

async fn detail(State(app): State<Arc<App>>, Segment(id): Segment) -> ApiResult<axum::Json<Volume>> {
    let all = app.volumes.kept.read().await;
    let kept = all.get(&id).ok_or_else(|| not_found(&id))?;
    Ok(axum::Json(shown(&app, kept)))
}

async fn remove(State(app): State<Arc<App>>, Segment(id): Segment) -> ApiResult<StatusCode> {
    // One that an earlier server left may have it mounted: without knowing all of them nothing is deleted.
    app.all_sandboxes().await?;
    let mut all = app.volumes.kept.write().await;
    let kept = all.get(&id).ok_or_else(|| not_found(&id))?;
    let has = |sandbox: &Arc<crate::sandboxes::Sandbox>| {
        let mounts = sandbox.made.volume_mounts.iter().flatten();
        mounts.into_iter().any(|mount| mount.name == kept.name || mount.name == kept.id)
    };
    // In this order: a create lets go of it when its sandbox is listed.
    if app.holds.is_held(&id) || app.sandboxes.all().iter().any(has) {
        return Err(ApiError::conflict(format!("volume '{}' is mounted in sandboxes", kept.name)));
    }
    let (store, name) = (Arc::clone(&app.volumes.store), format!("{VOLUMES}/{id}"));
    let (files, deleted) = (app.volumes.files.join(&id), app.volumes.deleted(&id));
    blocking(move || {
        // Marked first: whoever finds the mark goes on with the deletion.
        match std::fs::rename(&files, &deleted) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let message = "the files of the volume cannot be given up";
                Err(Error::new(ErrorKind::Unavailable, message).with_source(error))
            }
            _ => store.remove(&name).inspect_err(|_| drop(std::fs::rename(&deleted, &files))),
        }
    })
    .await?;
    all.remove(&id);
    drop(all);
    // It is gone for everybody. Nobody has to wait for its files.
    tokio::spawn(async move { app.remove_files(&id).await });
    Ok(StatusCode::NO_CONTENT)
}

impl App {
    /// Removes the files of a volume that is gone; without root some of them only from inside a sandbox.
    async fn remove_files(&self, id: &str) {
        let files = self.volumes.deleted(id);
        let path = files.clone();
        if blocking(move || Ok(rooted::remove_tree(&path).is_ok())).await.unwrap_or_default() {
            return;
        }
        if let Err(error) = closed::remove(&self.provider, &files.join("data"), Path::new("")).await {
            tracing::warn!(%error, id, "files of a volume that belong to users inside could not be removed");
        }
        tokio::task::spawn_blocking(move || discard(&files));
    }
}
