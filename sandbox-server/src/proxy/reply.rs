//! What is answered when a request does not reach the inside of a sandbox.

use axum::body::Body;
use axum::response::IntoResponse;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

use super::access::Denied;
use super::target::Target;
use crate::error::ApiError;
use crate::sandboxes::Closed;

/// Why a request did not get through.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no such sandbox, or it does not run.
    NotFound,
    /// It runs, and nothing listens on the port.
    PortClosed,
    /// It is between two states.
    Transition,
    /// No more of them can run now.
    TooMany,
    /// How it is could not be found out.
    Unknown,
    /// The path is none for clients.
    Internal(String),
    /// The request has not the token that would let it wake the sandbox.
    Forbidden(&'static str),
    Denied(Denied),
}

impl From<Closed> for Refusal {
    fn from(_: Closed) -> Self {
        Self::NotFound
    }
}

/// The body of the answers that are about a sandbox; the SDKs look for the messages.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AboutSandbox<'a> {
    sandbox_id: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    code: u16,
}

/// The body of an answer to a path that is none for clients.
#[derive(Serialize)]
struct AboutPath<'a> {
    message: &'a str,
    path: &'a str,
    code: u16,
}

impl Refusal {
    pub(super) fn into_response(self, target: &Target, browser: bool) -> Response<Body> {
        let (status, message, port) = match self {
            Self::Internal(path) => {
                let status = StatusCode::NOT_FOUND;
                let body = AboutPath { message: "404 page not found", path: &path, code: status.as_u16() };
                return json(status, &body);
            }
            Self::Denied(Denied::Daemon(message)) => {
                return ApiError::new(StatusCode::UNAUTHORIZED, message).into_response();
            }
            Self::NotFound => (StatusCode::BAD_GATEWAY, "The sandbox was not found", None),
            Self::PortClosed => {
                (StatusCode::BAD_GATEWAY, "The sandbox is running but port is not open", Some(target.port))
            }
            Self::Transition => (StatusCode::CONFLICT, "The sandbox is in transition", None),
            Self::TooMany => (StatusCode::TOO_MANY_REQUESTS, "Too many sandboxes are running", None),
            Self::Unknown => {
                (StatusCode::SERVICE_UNAVAILABLE, "The state of the sandbox could not be found out", None)
            }
            Self::Forbidden(message) | Self::Denied(Denied::Port(message)) => {
                (StatusCode::FORBIDDEN, message, None)
            }
        };
        if browser {
            return page(status, message, target, port);
        }
        json(status, &AboutSandbox { sandbox_id: &target.id, message, port, code: status.as_u16() })
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    // Texts and numbers can always be written.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    answer(status, bytes, "application/json; charset=utf-8")
}

fn answer(status: StatusCode, body: impl Into<Body>, media: &'static str) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// Says what was wrong with the host or the headers that name a sandbox.
pub(crate) fn bad_target(message: &'static str) -> Response<Body> {
    answer(StatusCode::BAD_REQUEST, message, "text/plain; charset=utf-8")
}

/// The same for people. An id is made of letters and digits only, so nothing has to be escaped.
fn page(status: StatusCode, message: &str, target: &Target, port: Option<u16>) -> Response<Body> {
    let port = port.map(|port| format!("<p>Port: <code>{port}</code></p>")).unwrap_or_default();
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{message}</title></head>\
         <body><h1>{message}</h1><p>Sandbox: <code>{}</code></p>{port}</body></html>\n",
        target.id
    );
    answer(status, html, "text/html; charset=utf-8")
}

/// Tells whether a person looks at the answer: a browser that goes to a page, not a script in one.
pub(super) fn is_browser(headers: &HeaderMap) -> bool {
    const BROWSERS: [&str; 7] = ["mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie"];
    let text = |name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_ascii_lowercase()
    };
    let agent = text("user-agent");
    let scripted = headers.contains_key("x-requested-with")
        || !matches!(text("sec-fetch-mode").as_str(), "" | "navigate");
    BROWSERS.iter().any(|browser| agent.contains(browser)) && !text("accept").contains("json") && !scripted
}

/// Answers a page that asks what it may send to a daemon.
pub(crate) fn preflight(asked: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("HEAD, GET, POST, PUT, PATCH, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    // A wildcard would leave `Authorization` out.
    let asked = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(HeaderValue::from_static("*")));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    allow_pages(headers);
    response
}

/// Lets pages of every origin read the answer: a daemon is opened by its token, not by where one comes from.
pub(super) fn allow_pages(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_programs_are_told_apart() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs
                .iter()
                .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect::<HeaderMap>()
        };
        let agent = ("user-agent", "Mozilla/5.0 (X11) Firefox/140");
        assert!(is_browser(&headers(&[agent, ("accept", "text/html,*/*"), ("sec-fetch-mode", "navigate")])));
        for program in [
            &[("user-agent", "e2b-js-sdk/2.51.0")][..],
            &[agent, ("accept", "application/json")],
            &[agent, ("sec-fetch-mode", "cors")],
            &[],
        ] {
            assert!(!is_browser(&headers(program)), "{program:?}");
        }
    }
}
