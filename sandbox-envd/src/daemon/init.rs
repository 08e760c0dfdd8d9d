//! `POST /init`: what the host tells a sandbox after it made or woke it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use buffa_types::google::protobuf::Timestamp;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;

use crate::daemon::http::{Body, empty, json_error, read};
use crate::daemon::state::State;
use crate::daemon::{ENVD_VERSION, auth};

/// Largest body that is read; certificates and variables fit many times over.
const MAX_BODY: usize = 4 << 20;

const X_ENVD_VERSION: HeaderName = HeaderName::from_static("x-envd-version");

/// The fields that this daemon acts on; what belongs to E2B's virtual machines is ignored.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InitRequest {
    env_vars: Option<BTreeMap<String, String>>,
    access_token: Option<String>,
    timestamp: Option<Timestamp>,
    default_user: Option<String>,
    default_workdir: Option<PathBuf>,
}

/// Remembers when the last accepted request was written.
#[derive(Default)]
pub(crate) struct Init {
    latest: Mutex<Option<(i64, i32)>>,
}

impl Init {
    pub(crate) async fn answer(&self, state: &State, request: Request<Incoming>) -> Response<Body> {
        let body = match read(request.into_body(), MAX_BODY, state.config.upload_idle).await {
            Ok(body) => body,
            Err(response) => return response,
        };
        let parsed = if body.is_empty() { Ok(InitRequest::default()) } else { serde_json::from_slice(&body) };
        let request: InitRequest = match parsed {
            Ok(request) => request,
            Err(error) => {
                return json_error(StatusCode::BAD_REQUEST, &format!("the body is not valid: {error}"));
            }
        };
        if !self.apply(state, request) {
            return auth::unauthorized();
        }
        let mut response = empty(StatusCode::NO_CONTENT);
        response.headers_mut().insert(X_ENVD_VERSION, HeaderValue::from_static(ENVD_VERSION));
        response
    }

    /// Changes the session, unless a request that was written later came first. False: not allowed.
    fn apply(&self, state: &State, request: InitRequest) -> bool {
        // Held to the end, so that two requests cannot pass each other.
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let given = request.access_token.filter(|token| !token.is_empty());
        let allowed = state.session(|session| match (&session.access_token, &given) {
            (None, _) => true,
            (Some(token), Some(given)) => auth::same_secret(given.as_bytes(), token.as_bytes()),
            (Some(_), None) => false,
        });
        if !allowed {
            return false;
        }
        if let Some(timestamp) = request.timestamp {
            let written = (timestamp.seconds, timestamp.nanos);
            if latest.is_some_and(|latest| written <= latest) {
                return true;
            }
            *latest = Some(written);
        }
        state.update_session(|session| {
            session.envs.extend(request.env_vars.unwrap_or_default());
            if given.is_some() {
                session.access_token = given;
            }
            if let Some(user) = request.default_user.filter(|user| !user.is_empty()) {
                session.default_user = user;
            }
            if let Some(dir) = request.default_workdir.filter(|dir| !dir.as_os_str().is_empty()) {
                session.default_workdir = Some(dir);
            }
        });
        true
    }
}
