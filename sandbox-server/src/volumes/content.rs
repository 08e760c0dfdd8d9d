//! The content of volumes over HTTP: its clients have a token of one volume and no API key.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::StreamExt;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use sandhold_e2b::wire::{VolumeEntry, VolumeError};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::entry::{Fault, Files, Wanted, check_mode, parse};
use super::{closed, token};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::Query;
use crate::templates::uuid;
use crate::tokens::same_secret;

/// The code of what this server may not do itself.
const CLOSED: &str = "permission_denied";
/// Bytes of one read of a file.
const CHUNK: usize = 256 * 1024;

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/volumecontent/{id}/path", get(stat).patch(change).delete(remove))
        .route("/volumecontent/{id}/dir", get(list).post(make_dir))
        .route("/volumecontent/{id}/file", get(read).put(write))
}

/// An answer that is an error: its code is a word.
#[derive(Debug)]
struct Refusal(StatusCode, &'static str, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, code, message) = self;
        (status, axum::Json(VolumeError { code: code.to_owned(), message })).into_response()
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::NotFound => {
                Self(StatusCode::NOT_FOUND, "not_found", "there is nothing at this path".to_owned())
            }
            Fault::Invalid(why) => Self(StatusCode::BAD_REQUEST, "invalid_argument", why),
            Fault::Closed(why) => Self(StatusCode::FORBIDDEN, CLOSED, why),
            Fault::Failed(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                Self(StatusCode::INSUFFICIENT_STORAGE, "storage_full", error.to_string())
            }
            Fault::Failed(error) => {
                tracing::warn!(%error, "a volume could not be used");
                Self(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
            }
        }
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let code = if error.status.is_client_error() { "invalid_argument" } else { "internal" };
        Self(error.status, code, error.message.into_owned())
    }
}

/// A volume that the request has the token of, and the path in it that the request names.
#[derive(Debug)]
struct Target {
    id: String,
    directory: PathBuf,
    path: Option<PathBuf>,
    query: Query,
}

impl FromRequestParts<Arc<App>> for Target {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let id = Path::<String>::from_request_parts(parts, app).await;
        let Ok(Path(id)) = id else {
            return Err(Refusal(
                StatusCode::BAD_REQUEST,
                "invalid_argument",
                "the path is not valid".to_owned(),
            ));
        };
        let given = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        // Of a volume that is gone the token still is right: whoever has it may know.
        if !same_secret(given.as_bytes(), token(&app.tokens, &id).as_bytes()) {
            let message = "the token is not that of this volume".to_owned();
            return Err(Refusal(StatusCode::UNAUTHORIZED, "unauthenticated", message));
        }
        let directory = app.volumes.directory_of(&id).await;
        let directory = directory.ok_or_else(|| {
            Refusal(StatusCode::NOT_FOUND, "not_found", "there is no such volume".to_owned())
        })?;
        let query = Query::decode(parts.uri.query().unwrap_or_default());
        let path = parse(query.get("path").unwrap_or("/"))?;
        Ok(Self { id, directory, path, query })
    }
}

impl Target {
    fn wanted(&self) -> Result<Wanted, Refusal> {
        let force = match self.query.get("force") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                return Err(
                    ApiError::bad_request("the query parameter \"force\" is not true or false").into()
                );
            }
        };
        let mode = self.query.number("mode")?;
        check_mode(mode)?;
        Ok(Wanted { uid: self.query.number("uid")?, gid: self.query.number("gid")?, mode, force })
    }
}

/// Does something with the files of a volume, off the async threads.
async fn with_files<T: Send + 'static>(
    directory: PathBuf,
    work: impl FnOnce(&Files) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(move || work(&Files::open(&directory)?)).await;
    Ok(done.unwrap_or_else(|_| Err(Fault::Failed(std::io::Error::other("the work was ended"))))?)
}

async fn stat(target: Target) -> Result<axum::Json<VolumeEntry>, Refusal> {
    let Target { directory, path, .. } = target;
    Ok(axum::Json(with_files(directory, move |files| files.stat(path.as_deref())).await?))
}

#[derive(Deserialize)]
struct Change {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

async fn change(target: Target, request: Request) -> Result<axum::Json<VolumeEntry>, Refusal> {
    let bytes = crate::extract::read(request).await?;
    let asked: Change = crate::extract::parse(&bytes)?;
    check_mode(asked.mode)?;
    let wanted = Wanted { uid: asked.uid, gid: asked.gid, mode: asked.mode, force: false };
    let Target { directory, path, .. } = target;
    Ok(axum::Json(with_files(directory, move |files| files.change(path.as_deref(), wanted)).await?))
}

async fn remove(State(app): State<Arc<App>>, target: Target) -> Result<StatusCode, Refusal> {
    let Target { directory, path, .. } = target;
    let (volume, removed) = (directory.clone(), path.clone());
    match with_files(directory, move |files| files.remove(path.as_deref())).await {
        Err(Refusal(_, CLOSED, _)) => {
            let path = removed.unwrap_or_default();
            closed::remove(&app.provider, &volume, &path).await.map_err(ApiError::from)?;
        }
        removed => removed?,
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn list(target: Target) -> Result<axum::Json<Vec<VolumeEntry>>, Refusal> {
    let depth = target.query.number("depth")?.unwrap_or(1);
    let Target { directory, path, .. } = target;
    Ok(axum::Json(with_files(directory, move |files| files.list(path.as_deref(), depth)).await?))
}

async fn make_dir(target: Target) -> Result<(StatusCode, axum::Json<VolumeEntry>), Refusal> {
    let wanted = target.wanted()?;
    let Target { directory, path, .. } = target;
    let made = with_files(directory, move |files| files.make_dir(path.as_deref(), wanted)).await?;
    Ok((StatusCode::CREATED, axum::Json(made)))
}

async fn read(target: Target) -> Result<Response, Refusal> {
    let Target { directory, path, .. } = target;
    let (file, size) = with_files(directory, move |files| files.read(path.as_deref())).await?;
    let file = tokio::fs::File::from_std(file);
    // No more than was promised, should it grow; one that shrinks ends the connection.
    let chunks = futures_util::stream::try_unfold((file, size), |(mut file, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let mut buffer = bytes::BytesMut::with_capacity(CHUNK.min(usize::try_from(left).unwrap_or(CHUNK)));
        let count = (&mut file).take(left).read_buf(&mut buffer).await?;
        if count == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        }
        Ok(Some((buffer.freeze(), (file, left - count as u64))))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(response)
}

/// A file that is removed unless it got its place.
struct Staged(PathBuf);

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn write(
    State(app): State<Arc<App>>,
    target: Target,
    request: Request,
) -> Result<(StatusCode, axum::Json<VolumeEntry>), Refusal> {
    let wanted = target.wanted()?;
    let Some(path) = target.path else {
        return Err(Fault::Invalid("the volume itself is no file".to_owned()).into());
    };
    let staging = app.volumes.staging(&target.id);
    let name = uuid().map_err(ApiError::from)?;
    let staged = Staged(staging.join(&name));
    let failed = |error: std::io::Error| Refusal::from(Fault::Failed(error));
    let mut file = tokio::fs::File::create_new(&staged.0).await.map_err(failed)?;
    let mut body = request.into_body().into_data_stream();
    while let Some(chunk) = body.next().await {
        let chunk =
            chunk.map_err(|error| Fault::Invalid(format!("the body did not arrive whole: {error}")))?;
        file.write_all(&chunk).await.map_err(failed)?;
    }
    file.sync_all().await.map_err(failed)?;
    let directory = target.directory;
    let put = with_files(directory, move |files| files.put(&staging, &name, &path, wanted)).await?;
    Ok((StatusCode::CREATED, axum::Json(put)))
}
