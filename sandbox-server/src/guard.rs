//! Whom a request may call this server: a page whose name was pointed at this machine must not drive it.

use std::io;
use std::net::IpAddr;

use axum::response::{IntoResponse, Response};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri, header};
use if_addrs::Interface;

use crate::error::ApiError;

/// The names and addresses that this server goes by.
#[derive(Debug)]
pub(crate) struct Guard {
    allowed: Vec<String>,
}

impl Guard {
    pub(crate) fn new(allowed: &[String]) -> Self {
        Self { allowed: allowed.iter().map(|name| name.trim().to_ascii_lowercase()).collect() }
    }

    /// Refuses a request to a name that is not this server's. `local` is the address of this end of the connection,
    /// where it could be read.
    pub(crate) fn host_refusal(&self, host: &str, local: Option<IpAddr>) -> Option<Response> {
        (!self.is_own(host, local)).then(|| {
            let shown: String = host.chars().take(128).collect();
            let message = format!("this server does not go by {shown:?}; allow the name by --allow-host");
            ApiError::new(StatusCode::MISDIRECTED_REQUEST, message).into_response()
        })
    }

    /// Refuses a request that a page of another host made.
    pub(crate) fn origin_refusal(&self, headers: &HeaderMap, local: Option<IpAddr>) -> Option<Response> {
        let origin = headers.get(header::ORIGIN)?;
        let from = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        let own = from.as_ref().and_then(Uri::host).is_some_and(|from| self.is_own(from, local));
        (!own).then(|| {
            let message =
                "a web page of another host may not use this server; allow its name by --allow-host";
            ApiError::new(StatusCode::FORBIDDEN, message).into_response()
        })
    }

    fn is_own(&self, host: &str, local: Option<IpAddr>) -> bool {
        let name =
            host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
        if let Ok(address) = name.parse::<IpAddr>() {
            return address.is_loopback()
                || local.is_some_and(|local| local.to_canonical() == address)
                || is_among(address, if_addrs::get_if_addrs());
        }
        name == "localhost" || name.ends_with(".localhost") || self.allowed.contains(&name)
    }
}

/// Tells whether one of this machine's interfaces has the address now: behind a forwarded port a client calls another one
/// than it reaches. What cannot be read is nobody's address, and is logged.
fn is_among(address: IpAddr, interfaces: io::Result<Vec<Interface>>) -> bool {
    match interfaces {
        Ok(interfaces) => interfaces.iter().any(|interface| interface.ip() == address),
        Err(error) => {
            tracing::warn!(%error, "the addresses of the interfaces cannot be read; clients cannot call this server by them");
            false
        }
    }
}

/// Returns the name that a request calls this server by, without its port; `None` when it is not readable, or when there
/// is more than one: what stands in front of this server may have gone by the other.
pub(crate) fn host_of(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return None;
    }
    if let Some(host) = uri.host() {
        return Some(host.to_owned());
    }
    let authority = Authority::try_from(headers.get(header::HOST)?.as_bytes()).ok()?;
    Some(authority.host().to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::HeaderValue;

    use super::*;

    fn status(host: &str, origin: Option<&'static str>) -> Option<u16> {
        let mut headers = HeaderMap::new();
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
        }
        let local = Some(IpAddr::from([192, 168, 1, 7]));
        let guard = Guard::new(&["Box.example".to_owned()]);
        let refusal = guard.host_refusal(host, local).or_else(|| guard.origin_refusal(&headers, local));
        refusal.map(|response| response.status().as_u16())
    }

    #[test]
    fn loopback_names_own_addresses_and_allowed_names_are_let_in() {
        for own in
            ["localhost", "127.0.0.1", "[::1]", "api.localhost", "192.168.1.7", "box.example", "BOX.example."]
        {
            assert_eq!(status(own, None), None, "{own}");
        }
    }

    #[test]
    fn the_addresses_of_this_machines_interfaces_are_let_in() {
        for interface in if_addrs::get_if_addrs().unwrap() {
            assert_eq!(status(&interface.ip().to_string(), None), None, "{interface:?}");
        }
    }

    #[test]
    fn interfaces_that_cannot_be_read_let_nobody_in_and_are_logged() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        let subscriber = tracing_subscriber::fmt().with_writer(move || Log(Arc::clone(&written))).finish();
        let unread = || Err(io::Error::other("no interfaces today"));
        tracing::subscriber::with_default(subscriber, || {
            assert!(!is_among(IpAddr::from([192, 168, 1, 9]), unread()));
        });
        let log = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        assert!(log.contains("WARN") && log.contains("no interfaces today"), "{log}");
    }

    /// Keeps what is logged.
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn other_names_and_addresses_are_misdirected() {
        for other in ["evil.example", "192.168.1.8", "localhost.evil.example", "sub.box.example", ""] {
            assert_eq!(status(other, None), Some(421), "{other}");
        }
    }

    #[test]
    fn pages_of_other_hosts_are_refused() {
        assert_eq!(status("localhost", Some("http://localhost:8080")), None);
        for other in ["https://evil.example", "null", "http://localhost.evil.example"] {
            assert_eq!(status("localhost", Some(other)), Some(403), "{other}");
        }
    }
}
