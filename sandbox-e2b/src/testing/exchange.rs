//! What passed.

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};

/// What a request is about, as far as tests count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// A sandbox is to be made.
    Create,
    /// A sandbox is to be connected to or resumed.
    Connect,
    /// The facts of one sandbox.
    Info,
    /// A page of sandboxes.
    List,
    /// A sandbox is to be paused.
    Pause,
    /// The end of a sandbox is to be moved.
    SetLease,
    /// A sandbox is to be destroyed.
    Destroy,
    /// A sandbox is to be forked.
    Fork,
    /// A snapshot is to be made.
    Snapshot,
    /// The network policy of a sandbox is to be replaced.
    UpdateNetwork,
    /// Metrics or logs of sandboxes.
    Observe,
    /// Everything inside a sandbox: its daemon and its ports.
    Inside,
    /// Templates, volumes, secrets and whatever else.
    Other,
}

impl Route {
    /// Tells what a request is about from its method, path and headers.
    #[must_use]
    pub fn of(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        if headers.contains_key("e2b-sandbox-id") || names_a_port(headers) {
            return Self::Inside;
        }
        let path = path.strip_prefix("/v2").unwrap_or(path);
        let parts: Vec<_> = path.split('/').skip(1).collect();
        match (method.as_str(), &parts[..]) {
            ("POST", ["sandboxes"]) => Self::Create,
            ("GET", ["sandboxes"]) => Self::List,
            ("GET", ["sandboxes", "metrics"] | ["sandboxes", _, "metrics" | "logs"]) => Self::Observe,
            ("GET", ["sandboxes", _]) => Self::Info,
            ("DELETE", ["sandboxes", _]) => Self::Destroy,
            ("POST", ["sandboxes", _, "connect" | "resume"]) => Self::Connect,
            ("POST", ["sandboxes", _, "pause"]) => Self::Pause,
            ("POST", ["sandboxes", _, "timeout" | "refreshes"]) => Self::SetLease,
            ("POST", ["sandboxes", _, "fork"]) => Self::Fork,
            ("POST", ["sandboxes", _, "snapshots"]) => Self::Snapshot,
            ("PUT", ["sandboxes", _, "network"]) => Self::UpdateNetwork,
            _ => Self::Other,
        }
    }
}

/// Tells whether the host is `{port}-{sandbox}.{domain}`.
fn names_a_port(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let Some((label, _)) = host.split_once('.') else { return false };
    label.split_once('-').is_some_and(|(port, _)| port.parse::<u16>().is_ok())
}

/// One request and what was answered, as far as it came by now.
///
/// Of each body the first 64 KiB are kept. Keys and tokens in headers are not shown by `Debug`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Exchange {
    /// The connection it came on, counted from 0; as many round trips as one connection served share it.
    pub connection: usize,
    /// What it is about.
    pub route: Route,
    /// The method.
    pub method: Method,
    /// The path, with its query.
    pub target: String,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// The beginning of the request's body.
    pub body: Bytes,
    /// All bytes of the request's body so far.
    pub sent: u64,
    /// Whether it was passed on to the server.
    pub forwarded: bool,
    /// The status that the client was given; none while there is no answer.
    pub status: Option<StatusCode>,
    /// The headers that the client was given.
    pub answer_headers: HeaderMap,
    /// The beginning of the body that the client was given.
    pub answer_body: Bytes,
    /// All bytes of the answer's body so far.
    pub received: u64,
    /// Whether the client was given the answer to its end.
    pub complete: bool,
}

impl Exchange {
    /// Returns the path without its query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Reads the body of the request as JSON; none when it is not, or was longer than what is kept.
    #[must_use]
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// Marks what must not be shown.
pub(super) fn hide_secrets(headers: &mut HeaderMap) {
    for name in ["x-api-key", "authorization", "x-access-token", "e2b-traffic-access-token", "cookie"] {
        if let Some(value) = headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let none = HeaderMap::new();
        for (method, path, route) in [
            ("POST", "/sandboxes", Route::Create),
            ("POST", "/v2/sandboxes", Route::Create),
            ("GET", "/v2/sandboxes", Route::List),
            ("GET", "/sandboxes/metrics", Route::Observe),
            ("GET", "/sandboxes/iabc", Route::Info),
            ("DELETE", "/sandboxes/iabc", Route::Destroy),
            ("POST", "/v2/sandboxes/iabc/connect", Route::Connect),
            ("POST", "/sandboxes/iabc/timeout", Route::SetLease),
            ("DELETE", "/templates/abc", Route::Other),
            ("GET", "/", Route::Other),
        ] {
            assert_eq!(Route::of(&method.parse().unwrap(), path, &none), route, "{method} {path}");
        }
        let mut inside = HeaderMap::new();
        inside.insert("e2b-sandbox-id", "iabc".parse().unwrap());
        assert_eq!(Route::of(&Method::GET, "/health", &inside), Route::Inside);
        let mut host = HeaderMap::new();
        host.insert(header::HOST, "3000-iabc.e2b.app".parse().unwrap());
        assert_eq!(Route::of(&Method::POST, "/sandboxes", &host), Route::Inside);
    }
}
