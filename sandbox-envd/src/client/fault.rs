//! From what came over the wire to one kind of error. Decided by status, typed code and place, never by message text.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use sandhold_core::{Error, ErrorKind, Outcome, REASON_PAUSED};
use serde_json::Value;

use crate::client::connection::{Fault, FaultKind};

/// Context that names the HTTP status.
const STATUS: &str = "status";

/// What a call does to the sandbox, and so what a lost answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It only looks: another try does no harm.
    None,
    /// It may be done twice.
    Idempotent,
    /// It must not be done twice.
    Once,
}

/// One call, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) provider: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) effect: Effect,
}

impl Call {
    pub(crate) fn error(&self, kind: ErrorKind, message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::new(kind, message).at(self.provider, self.operation)
    }

    /// The error of an exchange that broke.
    pub(crate) fn fault(&self, fault: Fault) -> Error {
        match fault.kind {
            FaultKind::Unsent => self
                .error(ErrorKind::Unavailable, "no connection to the sandbox's daemon")
                .with_reason("unreachable")
                .retryable(None),
            FaultKind::Lost => {
                self.lost(ErrorKind::Unavailable, "the connection broke before the answer was complete")
            }
            FaultKind::Stalled => self.lost(ErrorKind::Timeout, "the sandbox's daemon has fallen silent"),
            FaultKind::Malformed => {
                self.unclear(ErrorKind::Unexpected, "the answer is not what the protocol says")
            }
        }
        .with_source(fault.source)
    }

    /// The error of an answer that is lost; `kind` where that did no harm.
    pub(crate) fn lost(&self, kind: ErrorKind, message: &'static str) -> Error {
        let error = match self.effect {
            Effect::None => self.error(kind, message).retryable(None),
            Effect::Idempotent => self.error(kind, message).retryable(None).with_outcome(Outcome::Unknown),
            Effect::Once => self.error(ErrorKind::OutcomeUnknown, message),
        };
        error.with_reason("answer_lost")
    }

    /// An error that leaves open whether the call took effect.
    fn unclear(&self, kind: ErrorKind, message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        let error = self.error(kind, message);
        if self.effect == Effect::None { error } else { error.with_outcome(Outcome::Unknown) }
    }

    /// The error of a Connect code.
    pub(crate) fn code(&self, code: &str, message: &str) -> Error {
        let message =
            if message.is_empty() { format!("the daemon answered {code}") } else { message.to_owned() };
        let error = match code {
            "invalid_argument" | "out_of_range" => self.error(ErrorKind::InvalidArgument, message),
            "unauthenticated" => self.error(ErrorKind::Unauthenticated, message),
            "permission_denied" => self.error(ErrorKind::PermissionDenied, message),
            "not_found" => self.error(ErrorKind::NotFound, message),
            "already_exists" => self.error(ErrorKind::AlreadyExists, message),
            "resource_exhausted" => self.error(ErrorKind::RateLimited, message).retryable(None),
            "failed_precondition" => self.error(ErrorKind::InvalidState, message),
            "aborted" => self.error(ErrorKind::Conflict, message),
            "unimplemented" => self.error(ErrorKind::Unsupported, message),
            "canceled" => self.unclear(ErrorKind::Cancelled, message),
            "deadline_exceeded" => self.unclear(ErrorKind::Timeout, message),
            "unavailable" => match self.effect {
                Effect::None => self.error(ErrorKind::Unavailable, message).retryable(None),
                Effect::Idempotent | Effect::Once => self.unclear(ErrorKind::Unavailable, message),
            },
            _ => self.unclear(ErrorKind::Unexpected, message),
        };
        error.with_context("code", code)
    }

    /// The error of an HTTP answer that is not the one asked for.
    pub(crate) fn http(&self, status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Error {
        let json = is_json(headers).then(|| serde_json::from_slice::<Value>(body).ok()).flatten();
        let field = |name: &str| json.as_ref().and_then(|json| json.get(name));
        let code = field("code");
        if let Some(Value::String(code)) = code {
            let message = field("message").and_then(Value::as_str).unwrap_or_default();
            return self.code(code, message).with_context(STATUS, status.as_u16());
        }
        // An answer in envd's or the proxy's own shape; a page of something in between has none.
        let ours = code.and_then(Value::as_u64) == Some(u64::from(status.as_u16()));
        let message = match field("message").and_then(Value::as_str) {
            Some(message) if ours => message.to_owned(),
            _ => format!("the answer is HTTP {status}, and not in a form the daemon uses"),
        };
        let error = match status {
            StatusCode::BAD_GATEWAY if ours && field("sandboxId").is_some() && field("port").is_some() => {
                self.error(ErrorKind::Unavailable, message).with_reason("port_closed").retryable(None)
            }
            StatusCode::BAD_GATEWAY if ours && field("sandboxId").is_some() => {
                self.error(ErrorKind::Unavailable, message).with_reason("not_running")
            }
            StatusCode::TOO_MANY_REQUESTS => {
                self.error(ErrorKind::RateLimited, message).retryable(retry_after(headers))
            }
            _ if status.is_server_error() && !matches!(status.as_u16(), 500 | 501 | 507) => {
                let error =
                    self.lost(ErrorKind::Unavailable, "something between here and the sandbox failed");
                match retry_after(headers) {
                    Some(delay) if error.is_retryable() => error.retryable(Some(delay)),
                    _ => error,
                }
            }
            StatusCode::INSUFFICIENT_STORAGE => self.unclear(ErrorKind::StorageFull, message),
            _ if !ours => self.unclear(ErrorKind::Unexpected, message).with_reason("foreign_answer"),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::RANGE_NOT_SATISFIABLE => {
                self.error(ErrorKind::InvalidArgument, message)
            }
            StatusCode::UNAUTHORIZED => self.error(ErrorKind::Unauthenticated, message),
            StatusCode::FORBIDDEN => self.error(ErrorKind::PermissionDenied, message),
            // A missing file names itself; a missing route says which path it was.
            StatusCode::NOT_FOUND if field("path").is_some() => self.error(ErrorKind::Unsupported, message),
            StatusCode::NOT_FOUND => self.error(ErrorKind::NotFound, message),
            // Refused before anything was done: the sandbox's processes are frozen.
            StatusCode::CONFLICT if field("state").and_then(Value::as_str) == Some("paused") => {
                self.error(ErrorKind::InvalidState, message).with_reason(REASON_PAUSED)
            }
            StatusCode::CONFLICT => self.error(ErrorKind::Conflict, message),
            // The daemon waited for the body, of which a part may have been written.
            StatusCode::REQUEST_TIMEOUT => self.unclear(ErrorKind::Timeout, message),
            StatusCode::NOT_IMPLEMENTED | StatusCode::METHOD_NOT_ALLOWED => {
                self.error(ErrorKind::Unsupported, message)
            }
            _ => self.unclear(ErrorKind::Unexpected, message),
        };
        error.with_context(STATUS, status.as_u16())
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"))
}

/// Reads `Retry-After`: seconds or a date; what is neither counts as absent.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(std::time::SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn call(effect: Effect) -> Call {
        Call { provider: "test", operation: "try", effect }
    }

    fn answer(status: u16, content_type: &'static str, body: &'static str, effect: Effect) -> Error {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        call(effect).http(
            StatusCode::from_u16(status).unwrap(),
            &headers,
            &Bytes::from_static(body.as_bytes()),
        )
    }

    const JSON: &str = "application/json; charset=utf-8";

    #[test]
    fn the_two_meanings_of_502_are_told_apart_by_their_fields() {
        let dead = answer(502, JSON, r#"{"sandboxId":"x","message":"any text","code":502}"#, Effect::Once);
        assert_eq!((dead.kind(), dead.reason()), (ErrorKind::Unavailable, Some("not_running")));
        assert_eq!(dead.outcome(), Outcome::NotStarted);
        let closed = answer(502, JSON, r#"{"sandboxId":"x","message":"","port":1,"code":502}"#, Effect::Once);
        assert_eq!((closed.kind(), closed.reason()), (ErrorKind::Unavailable, Some("port_closed")));
    }

    #[test]
    fn a_page_of_something_in_between_never_says_that_a_thing_is_missing() {
        for body in ["<html>404</html>", "", r#"{"error":"not found"}"#] {
            let error = answer(404, "text/html", body, Effect::None);
            assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some("foreign_answer")));
        }
        assert_eq!(answer(404, JSON, r#"{"message":"gone"}"#, Effect::None).kind(), ErrorKind::Unexpected);
        assert_eq!(
            answer(404, JSON, r#"{"code":404,"message":""}"#, Effect::None).kind(),
            ErrorKind::NotFound
        );
        let route = answer(404, JSON, r#"{"code":404,"message":"","path":"/x"}"#, Effect::None);
        assert_eq!(route.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_foreign_502_leaves_open_what_happened_to_a_call_that_must_not_run_twice() {
        for status in [502, 503, 504] {
            let once = answer(status, "text/html", "<html>", Effect::Once);
            assert_eq!((once.kind(), once.is_retryable()), (ErrorKind::OutcomeUnknown, false));
            let look = answer(status, "text/html", "<html>", Effect::None);
            assert_eq!((look.kind(), look.is_retryable()), (ErrorKind::Unavailable, true));
        }
    }

    #[test]
    fn an_upload_that_the_daemon_gave_up_waiting_for_is_a_timeout_with_an_open_outcome() {
        let stalled = answer(408, JSON, r#"{"code":408,"message":"stalled"}"#, Effect::Idempotent);
        assert_eq!((stalled.kind(), stalled.outcome()), (ErrorKind::Timeout, Outcome::Unknown));
        let foreign = answer(408, "text/html", "<html>", Effect::Idempotent);
        assert_eq!((foreign.kind(), foreign.reason()), (ErrorKind::Unexpected, Some("foreign_answer")));
    }

    #[test]
    fn each_connect_code_has_its_kind() {
        let kinds = [
            ("invalid_argument", ErrorKind::InvalidArgument),
            ("unauthenticated", ErrorKind::Unauthenticated),
            ("permission_denied", ErrorKind::PermissionDenied),
            ("not_found", ErrorKind::NotFound),
            ("already_exists", ErrorKind::AlreadyExists),
            ("resource_exhausted", ErrorKind::RateLimited),
            ("failed_precondition", ErrorKind::InvalidState),
            ("aborted", ErrorKind::Conflict),
            ("unimplemented", ErrorKind::Unsupported),
            ("canceled", ErrorKind::Cancelled),
            ("deadline_exceeded", ErrorKind::Timeout),
            ("unavailable", ErrorKind::Unavailable),
            ("internal", ErrorKind::Unexpected),
            ("a_code_of_another_version", ErrorKind::Unexpected),
        ];
        for (code, kind) in kinds {
            assert_eq!(call(Effect::None).code(code, "not found").kind(), kind, "{code}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_or_nothing() {
        let parse =
            |value| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]));
        assert_eq!(parse("2"), Some(Duration::from_secs(2)));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert!(parse("Fri, 01 Jan 2100 00:00:00 GMT").is_some_and(|delay| delay.as_secs() > 1_000_000));
        for junk in ["-1", "junk", "", "1.5"] {
            assert_eq!(parse(junk), None, "{junk}");
        }
    }
}
