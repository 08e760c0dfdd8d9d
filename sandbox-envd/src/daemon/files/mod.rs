//! File contents over plain HTTP.

mod compose;
mod download;
mod failure;
mod media;
mod multipart;
mod negotiate;
mod signature;
mod target;
mod turns;
mod upload;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;

use self::failure::Failure;
#[cfg(feature = "fuzzing")]
pub use self::multipart::multipart;
pub use self::signature::{FileAccess, FileOperation};
pub(crate) use self::turns::Turns;
use crate::daemon::auth;
use crate::daemon::fs::Actor;
use crate::daemon::http::Body;
use crate::daemon::state::State;
use ::http::{Method, Request, Response, StatusCode};

/// Answers `/files` and everything under it. The access token of `/files` itself is checked here, because a
/// signature may stand in for it; that of `/files/compose` was checked before.
pub(crate) async fn handle(state: &Arc<State>, request: Request<Incoming>) -> Response<Body> {
    route(state, request).await.unwrap_or_else(Failure::into_response)
}

async fn route(state: &Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let (path, method) = (request.uri().path(), request.method());
    let wrong_method = || {
        let text = format!("method {} is not allowed here", request.method());
        Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, text))
    };
    match (path, method) {
        ("/files", &Method::GET | &Method::HEAD) => {
            let query = authorized(state, &request, FileOperation::Read)?;
            download::download(state, query, request.method(), request.headers()).await
        }
        ("/files", &Method::POST) => {
            let query = authorized(state, &request, FileOperation::Write)?;
            let (head, body) = request.into_parts();
            upload::upload(state, query, &head.headers, body).await
        }
        ("/files/compose", &Method::POST) => compose::compose(state, request).await,
        ("/files" | "/files/compose", _) => wrong_method(),
        _ => Err(Failure::new(StatusCode::NOT_FOUND, format!("there is no route {path}"))),
    }
}

/// Reads the query of a request whose caller may do `operation`.
fn authorized(
    state: &State,
    request: &Request<Incoming>,
    operation: FileOperation,
) -> Result<FileAccess, Failure> {
    let access = FileAccess::from_query(request.uri().query().unwrap_or_default());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let header = request.headers().get(auth::ACCESS_TOKEN).map(|value| value.as_bytes());
    let token = state.session(|session| session.access_token.clone());
    access
        .authorize(token.as_deref(), header, operation, i64::try_from(now).unwrap_or(i64::MAX))
        .map_err(|message| Failure::new(StatusCode::UNAUTHORIZED, message))?;
    Ok(access)
}

/// The user of a request. Blocks.
fn actor(state: &Arc<State>, username: Option<&str>) -> Result<Actor, Failure> {
    Actor::named(state, username)
        .map_err(|name| Failure::new(StatusCode::UNAUTHORIZED, format!("unknown user {name:?}")))
}
