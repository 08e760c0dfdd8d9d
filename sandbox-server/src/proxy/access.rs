//! Who may reach the inside of a sandbox. The daemon itself asks for no token: it is reached through here only.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Method, Uri};
use sandhold_core::DAEMON_PORT;
use sandhold_envd::{FileAccess, FileOperation, UNAUTHORIZED_MESSAGE};

use crate::sandboxes::Sandbox;
use crate::tokens::same_secret;

pub(super) const ACCESS_TOKEN: &str = "x-access-token";
pub(super) const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// Routes of the daemon that only whoever runs the sandbox may use.
const INTERNAL: [&str; 7] =
    ["/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"];

/// Everything below it is between the daemon and the provider.
const INTERNAL_PREFIX: &str = "/sandhold/";

/// Why a request may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// By the daemon's rules: 401.
    Daemon(&'static str),
    /// By the rules of ports: 403.
    Port(&'static str),
}

/// Tells whether a path of the daemon is none for clients. The daemon compares paths as they are written, and so does
/// this.
pub(super) fn is_internal(path: &str) -> bool {
    INTERNAL.contains(&path) || path.starts_with(INTERNAL_PREFIX) || path == "/sandhold"
}

/// Checks a request for a sandbox that runs.
pub(super) fn check(
    sandbox: &Sandbox,
    port: u16,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Denied> {
    if port != DAEMON_PORT {
        return check_traffic(sandbox, headers);
    }
    match (method, uri.path()) {
        (&Method::GET | &Method::HEAD, "/health") => Ok(()),
        _ => check_daemon(sandbox, method, uri, headers),
    }
}

/// Checks a request that would wake a sandbox: no route of the daemon is free then.
pub(super) fn check_wake(
    sandbox: &Sandbox,
    port: u16,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Denied> {
    if port == DAEMON_PORT {
        check_daemon(sandbox, method, uri, headers)
    } else {
        check_traffic(sandbox, headers)
    }
}

fn check_daemon(sandbox: &Sandbox, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
    let Some(token) = sandbox.access_token.as_deref() else { return Ok(()) };
    let given = headers.get(ACCESS_TOKEN).map(|token| token.as_bytes());
    if uri.path() == "/files" {
        let access = FileAccess::from_query(uri.query().unwrap_or_default());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        return access.authorize(Some(token), given, operation(method), now).map_err(Denied::Daemon);
    }
    match given {
        Some(given) if same_secret(given, token.as_bytes()) => Ok(()),
        _ => Err(Denied::Daemon(UNAUTHORIZED_MESSAGE)),
    }
}

fn check_traffic(sandbox: &Sandbox, headers: &HeaderMap) -> Result<(), Denied> {
    let Some(token) = sandbox.traffic_token.as_deref() else { return Ok(()) };
    match headers.get(TRAFFIC_TOKEN) {
        Some(given) if same_secret(given.as_bytes(), token.as_bytes()) => Ok(()),
        Some(_) => {
            Err(Denied::Port("Sandbox is secured with traffic access token. Provided token is invalid"))
        }
        None => Err(Denied::Port(
            "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing",
        )),
    }
}

/// What a request does with a file.
pub(super) fn operation(method: &Method) -> FileOperation {
    if matches!(*method, Method::GET | Method::HEAD) { FileOperation::Read } else { FileOperation::Write }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_daemon_and_provider_is_no_route() {
        for internal in ["/init", "/freeze", "/sandhold/freeze", "/sandhold/ports/80", "/sandhold"] {
            assert!(is_internal(internal), "{internal}");
        }
        for open in ["/health", "/files", "/process.Process/Start", "/initial", "/"] {
            assert!(!is_internal(open), "{open}");
        }
    }
}
