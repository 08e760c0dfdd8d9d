//! Which sandbox and port a request names: by its host, or by two headers.

use http::HeaderMap;

use crate::ids;

const SANDBOX_ID: &str = "e2b-sandbox-id";
const SANDBOX_PORT: &str = "e2b-sandbox-port";

/// Where a request is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The sandbox's id, as clients know it.
    pub(crate) id: String,
    pub(crate) port: u16,
}

/// Reads a host name whose left-most label is `{port}-{id}`, maybe with more after another dash. `None` for every
/// other name.
pub(crate) fn named_by_host(host: &str) -> Option<Result<Target, &'static str>> {
    let (label, rest) = host.split_once('.')?;
    let (port, named) = label.split_once('-')?;
    if rest.is_empty() || port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let named = named.to_ascii_lowercase();
    Some(target(named.split('-').next().unwrap_or_default(), port))
}

/// Reads the two headers; `None` when neither is there.
pub(crate) fn named_by_headers(headers: &HeaderMap) -> Option<Result<Target, &'static str>> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    match (text(SANDBOX_ID), text(SANDBOX_PORT)) {
        (None, None) => None,
        (Some(id), Some(port)) => Some(target(id.split('-').next().unwrap_or_default(), port)),
        (None, Some(_)) => Some(Err("missing header E2b-Sandbox-Id")),
        (Some(_), None) => Some(Err("missing header E2b-Sandbox-Port")),
    }
}

fn target(id: &str, port: &str) -> Result<Target, &'static str> {
    if !ids::is_plain(id) {
        return Err("invalid sandbox ID");
    }
    // A sign is no part of a port, though Rust reads one.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port @ 1..) if digits => Ok(Target { id: id.to_owned(), port }),
        _ => Err("invalid sandbox port"),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn found(id: &str, port: u16) -> Option<Result<Target, &'static str>> {
        Some(Ok(Target { id: id.to_owned(), port }))
    }

    #[test]
    fn the_left_most_label_of_a_host_names_port_and_sandbox() {
        assert_eq!(named_by_host("49983-i1a.e2b.local"), found("i1a", 49983));
        assert_eq!(named_by_host("80-I1A-client.x"), found("i1a", 80));
        for none in ["localhost", "127.0.0.1", "sandbox.e2b.app", "a-i1.example", "80-i1", "80-i1.", "-i1.x"]
        {
            assert_eq!(named_by_host(none), None, "{none}");
        }
        for bad in ["0-i1.x", "65536-i1.x", "80-.x", "80-i_1.x"] {
            assert!(matches!(named_by_host(bad), Some(Err(_))), "{bad}");
        }
    }

    #[test]
    fn both_headers_are_needed() {
        let read = |id: Option<&'static str>, port: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            let values = [(SANDBOX_ID, id), (SANDBOX_PORT, port)];
            for (name, value) in values.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                headers.insert(name, HeaderValue::from_static(value));
            }
            named_by_headers(&headers)
        };
        assert_eq!(read(None, None), None);
        assert_eq!(read(Some("i1"), Some("80")), found("i1", 80));
        assert_eq!(read(Some("i1-client"), Some("80")), found("i1", 80));
        for (id, port) in
            [(Some("i1"), None), (None, Some("80")), (Some("../x"), Some("80")), (Some("i1"), Some("+80"))]
        {
            assert!(matches!(read(id, port), Some(Err(_))), "{id:?} {port:?}");
        }
    }
}
