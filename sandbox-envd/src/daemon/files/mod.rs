//! File contents over plain HTTP.

mod compose;
mod download;
mod failure;
mod media;
mod multipart;
mod negotiate;
mod signature;
mod target;
mod upload;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;

use self::failure::Failure;
use self::signature::{Operation, Signed};
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
            let query = Query::authorized(state, &request, Operation::Read)?;
            download::download(state, query, request.method(), request.headers()).await
        }
        ("/files", &Method::POST) => {
            let query = Query::authorized(state, &request, Operation::Write)?;
            let (head, body) = request.into_parts();
            upload::upload(state, query, &head.headers, body).await
        }
        ("/files/compose", &Method::POST) => compose::compose(state, request).await,
        ("/files" | "/files/compose", _) => wrong_method(),
        _ => Err(Failure::new(StatusCode::NOT_FOUND, format!("there is no route {path}"))),
    }
}

/// The query of `/files`.
#[derive(Debug, Default)]
struct Query {
    path: Option<String>,
    username: Option<String>,
}

impl Query {
    /// Reads the query of a request whose caller may do `operation`.
    fn authorized(state: &State, request: &Request<Incoming>, operation: Operation) -> Result<Self, Failure> {
        let mut query = Self::default();
        let (mut signature, mut expiration) = (None, None);
        let pairs = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes());
        for (name, value) in pairs {
            let slot = match name.as_ref() {
                "path" => &mut query.path,
                "username" => &mut query.username,
                "signature" => &mut signature,
                "signature_expiration" => &mut expiration,
                _ => continue,
            };
            // The first of several counts, as in Go.
            slot.get_or_insert_with(|| value.into_owned());
        }
        let signed = Signed {
            path: query.path.as_deref().unwrap_or_default(),
            operation,
            username: query.username.as_deref().unwrap_or_default(),
            signature: signature.as_deref(),
            expiration: expiration.as_deref(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let header = request.headers().get("x-access-token").map(|value| value.as_bytes());
        let token = state.session(|session| session.access_token.clone());
        signature::authorize(token.as_deref(), header, &signed, i64::try_from(now).unwrap_or(i64::MAX))
            .map_err(|message| Failure::new(StatusCode::UNAUTHORIZED, message))?;
        Ok(query)
    }
}

/// The user of a request. Blocks.
fn actor(state: &Arc<State>, username: Option<&str>) -> Result<Actor, Failure> {
    Actor::named(state, username)
        .map_err(|name| Failure::new(StatusCode::UNAUTHORIZED, format!("unknown user {name:?}")))
}
