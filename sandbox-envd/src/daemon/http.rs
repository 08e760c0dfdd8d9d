//! Plain HTTP of the daemon: bodies, JSON answers, routing.

use std::error::Error;
use std::fmt::Debug;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Serialize;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Routes of the embedding program, under `/sandhold/`.
#[async_trait::async_trait]
pub trait ExtraRoutes: Send + Sync + Debug {
    /// Says whether `request` is for [`respond`](Self::respond); the daemon answers it otherwise.
    fn handles(&self, request: &Request<Incoming>) -> bool;

    /// Answers a request whose access token was checked.
    async fn respond(&self, request: Request<Incoming>) -> Response<Body>;
}

/// Returns a body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns an answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Returns `value` as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let Ok(bytes) = serde_json::to_vec(value) else {
        return json_error(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be written as JSON");
    };
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Returns envd's error body, `{"code":status,"message":...}`.
pub(crate) fn json_error(status: StatusCode, message: &str) -> Response<Body> {
    json(status, &serde_json::json!({ "code": status.as_u16(), "message": message }))
}
