//! From an answer of the control plane to one kind of error: by status, typed code and place, never by message text.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use sandhold_core::{Error, ErrorKind, Outcome};

use crate::wire::{ApiError, codes};

/// The name of this provider.
pub(crate) const NAME: &str = "e2b";

/// Reason of an answer that is not in a form that E2B uses.
pub(crate) const FOREIGN: &str = "foreign_answer";

/// Reason of a create with an attempt that was used for another spec.
pub(crate) const MISMATCH: &str = "idempotency_mismatch";

/// Reason of a create that names no template.
pub(crate) const NO_TEMPLATE: &str = "template_not_found";

/// What a call does, and so what a lost answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It only looks.
    Look,
    /// It may be sent again: the second does nothing more.
    Idempotent,
    /// It must not be done twice, and the server cannot tell.
    Once,
}

/// What a 404 in E2B's own words says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The sandbox does not exist.
    Sandbox,
    /// Something else does not.
    Thing(&'static str),
}

/// One call, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) effect: Effect,
    pub(crate) missing: Missing,
}

impl Call {
    pub(crate) const fn look(operation: &'static str) -> Self {
        Self { operation, effect: Effect::Look, missing: Missing::Sandbox }
    }

    pub(crate) const fn idempotent(operation: &'static str) -> Self {
        Self { operation, effect: Effect::Idempotent, missing: Missing::Sandbox }
    }

    pub(crate) const fn once(operation: &'static str) -> Self {
        Self { operation, effect: Effect::Once, missing: Missing::Sandbox }
    }

    pub(crate) const fn about(mut self, thing: &'static str) -> Self {
        self.missing = Missing::Thing(thing);
        self
    }

    pub(crate) fn error(&self, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(kind, message).at(NAME, self.operation)
    }

    /// Nothing was sent.
    pub(crate) fn unreachable(&self, message: &'static str) -> Error {
        self.error(ErrorKind::Unavailable, message).with_reason("unreachable").retryable(None)
    }

    /// The answer is lost, or nobody knows what it means; `kind` where that did no harm.
    pub(crate) fn lost(&self, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        let error = match self.effect {
            Effect::Look => self.error(kind, message).retryable(None),
            Effect::Idempotent => self.error(kind, message).retryable(None).with_outcome(Outcome::Unknown),
            Effect::Once => self.error(ErrorKind::OutcomeUnknown, message),
        };
        error.with_reason("answer_lost")
    }

    /// An error that leaves open whether the call took effect; trying again would not help.
    pub(crate) fn unclear(&self, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        let error = self.error(kind, message);
        if self.effect == Effect::Look { error } else { error.with_outcome(Outcome::Unknown) }
    }

    /// The call succeeded, and what it should have said is not there or not readable.
    pub(crate) fn unreadable(&self, message: impl Into<Cow<'static, str>>) -> Error {
        self.unclear(ErrorKind::Unexpected, message).with_reason(FOREIGN)
    }

    /// The error of an answer with another status than the one asked for.
    pub(crate) fn answer(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
        let own = own_error(status, headers, body);
        let message = match &own {
            Some(own) if !own.message.is_empty() => Cow::Owned(own.message.clone()),
            Some(_) => Cow::Owned(format!("E2B answered HTTP {status}")),
            None => Cow::Owned(format!("the answer is HTTP {status}, and not in a form that E2B uses")),
        };
        let code = own.as_ref().and_then(|own| own.error_code.as_deref());
        let error = match code {
            Some(codes::IDEMPOTENCY_MISMATCH) => {
                self.error(ErrorKind::Conflict, message).with_reason(MISMATCH).with_outcome(Outcome::Unknown)
            }
            Some(codes::IDEMPOTENCY_IN_PROGRESS) => {
                self.lost(ErrorKind::Unavailable, message).with_reason("idempotency_in_progress")
            }
            Some(codes::IDEMPOTENCY_UNKNOWN) => {
                self.error(ErrorKind::OutcomeUnknown, message).with_reason("idempotency_outcome_unknown")
            }
            Some(codes::GUEST_UNRESPONSIVE) => {
                self.error(ErrorKind::InvalidState, message).with_reason("guest_unresponsive")
            }
            _ => self.by_status(status, own.is_some(), message),
        };
        let error = match code {
            Some(code) => error.with_context("error_code", code),
            None if own.is_none() && error.reason().is_none() => error.with_reason(FOREIGN),
            None => error,
        };
        self.retry_as_told(error, headers).with_context("status", status.as_u16())
    }

    fn by_status(&self, status: StatusCode, own: bool, message: Cow<'static, str>) -> Error {
        match status {
            StatusCode::UNAUTHORIZED => self.error(ErrorKind::Unauthenticated, message),
            StatusCode::FORBIDDEN => self.error(ErrorKind::PermissionDenied, message),
            StatusCode::TOO_MANY_REQUESTS => self.error(ErrorKind::RateLimited, message).retryable(None),
            StatusCode::REQUEST_TIMEOUT => self.lost(ErrorKind::Timeout, message),
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                self.lost(ErrorKind::Unavailable, message)
            }
            StatusCode::INSUFFICIENT_STORAGE => self.unclear(ErrorKind::StorageFull, message),
            _ if !own => self.unclear(ErrorKind::Unexpected, message),
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::PAYLOAD_TOO_LARGE => {
                self.error(ErrorKind::InvalidArgument, message)
            }
            StatusCode::NOT_FOUND => match self.missing {
                Missing::Sandbox => self.error(ErrorKind::Gone, "the sandbox does not exist any more"),
                Missing::Thing(reason) => self.error(ErrorKind::NotFound, message).with_reason(reason),
            },
            StatusCode::CONFLICT => self.error(ErrorKind::Conflict, message),
            StatusCode::NOT_IMPLEMENTED | StatusCode::METHOD_NOT_ALLOWED => {
                self.error(ErrorKind::Unsupported, message)
            }
            _ => self.unclear(ErrorKind::Unexpected, message),
        }
    }

    /// The server's own word on trying again wins, where trying again can do no harm.
    fn retry_as_told(&self, error: Error, headers: &HeaderMap) -> Error {
        let told = headers.get("should-retry").and_then(|value| value.to_str().ok());
        let harmless = self.effect != Effect::Once || error.outcome() == Outcome::NotStarted;
        match told {
            Some(told) if told.eq_ignore_ascii_case("false") => error.not_retryable(),
            Some(told) if told.eq_ignore_ascii_case("true") && harmless => {
                error.retryable(retry_after(headers))
            }
            _ if error.is_retryable() => error.retryable(retry_after(headers)),
            _ => error,
        }
    }
}

/// Reads the error object of an answer; only what has its form speaks for E2B.
pub(crate) fn own_error(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Option<ApiError> {
    let own: ApiError = is_json(headers).then(|| serde_json::from_slice(body).ok()).flatten()?;
    (own.code == i32::from(status.as_u16())).then_some(own)
}

fn is_json(headers: &HeaderMap) -> bool {
    has_media(headers, "application/json")
}

/// Tells whether an answer is a web page, which E2B never sends.
pub(crate) fn is_page(headers: &HeaderMap) -> bool {
    has_media(headers, "text/html")
}

fn has_media(headers: &HeaderMap, wanted: &str) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case(wanted))
}

/// Reads `Retry-After`: seconds or a date; what is neither counts as absent.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn own(call: Call, status: u16) -> Error {
        let body = serde_json::to_vec(&ApiError::new(status, "was not found")).unwrap();
        call.answer(StatusCode::from_u16(status).unwrap(), &headers(&[]), &body)
    }

    #[test]
    fn only_a_404_in_the_form_of_the_provider_says_that_a_sandbox_is_gone() {
        assert_eq!(own(Call::look("find"), 404).kind(), ErrorKind::Gone);
        assert_eq!(own(Call::look("find").about("template_not_found"), 404).kind(), ErrorKind::NotFound);
        let html = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/html"))]);
        let json = headers(&[]);
        for (headers, body) in [
            (&html, r#"{"code":404,"message":"sandbox was not found"}"#),
            (&json, "<html>sandbox not found</html>"),
            (&json, ""),
            (&json, r#"{"message":"sandbox not found"}"#),
            (&json, r#"{"code":"404","message":"sandbox not found"}"#),
            (&json, r#"{"code":500,"message":"sandbox not found"}"#),
            (&json, r#"{"code":404}"#),
        ] {
            let error = Call::look("find").answer(StatusCode::NOT_FOUND, headers, body.as_bytes());
            assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some(FOREIGN)), "{body}");
        }
    }

    #[test]
    fn each_status_has_its_kind_whatever_the_message_says() {
        let kinds = [
            (400, ErrorKind::InvalidArgument),
            (401, ErrorKind::Unauthenticated),
            (403, ErrorKind::PermissionDenied),
            (408, ErrorKind::Timeout),
            (409, ErrorKind::Conflict),
            (422, ErrorKind::InvalidArgument),
            (429, ErrorKind::RateLimited),
            (500, ErrorKind::Unexpected),
            (501, ErrorKind::Unsupported),
            (502, ErrorKind::Unavailable),
            (503, ErrorKind::Unavailable),
            (504, ErrorKind::Unavailable),
            (507, ErrorKind::StorageFull),
            (418, ErrorKind::Unexpected),
        ];
        for (status, kind) in kinds {
            assert_eq!(own(Call::look("find"), status).kind(), kind, "{status}");
        }
    }

    #[test]
    fn a_doubtful_answer_to_a_call_that_must_not_run_twice_is_an_unknown_outcome() {
        for status in [408, 502, 503, 504] {
            let error = own(Call::once("create"), status);
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::OutcomeUnknown, false), "{status}");
            let error = own(Call::idempotent("create"), status);
            assert_eq!((error.outcome(), error.is_retryable()), (Outcome::Unknown, true), "{status}");
        }
        assert_eq!(own(Call::once("create"), 500).outcome(), Outcome::Unknown);
        for status in [400, 401, 403, 404, 409, 429] {
            assert_eq!(own(Call::once("create"), status).outcome(), Outcome::NotStarted, "{status}");
        }
    }

    #[test]
    fn typed_codes_win_over_the_status() {
        let told = |code: &str| {
            let body = serde_json::to_vec(&ApiError::new(409, "").with_error_code(code)).unwrap();
            Call::idempotent("create").answer(StatusCode::CONFLICT, &headers(&[]), &body)
        };
        let mismatch = told(codes::IDEMPOTENCY_MISMATCH);
        assert_eq!((mismatch.kind(), mismatch.outcome()), (ErrorKind::Conflict, Outcome::Unknown));
        assert!(told(codes::IDEMPOTENCY_IN_PROGRESS).is_retryable());
        assert_eq!(told(codes::IDEMPOTENCY_UNKNOWN).kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(told("a_code_of_another_version").kind(), ErrorKind::Conflict);
    }

    #[test]
    fn the_server_says_when_to_try_again_and_when_not_to() {
        let told = |call: Call, status: u16, pairs: &[(&'static str, &'static str)]| {
            call.answer(StatusCode::from_u16(status).unwrap(), &headers(pairs), b"")
        };
        let limited = told(Call::once("create"), 429, &[("retry-after", "2")]);
        assert_eq!((limited.is_retryable(), limited.retry_after()), (true, Some(Duration::from_secs(2))));
        assert!(!told(Call::look("find"), 503, &[("should-retry", "false")]).is_retryable());
        assert!(told(Call::look("find"), 500, &[("should-retry", "true")]).is_retryable());
        assert!(!told(Call::once("create"), 500, &[("should-retry", "true")]).is_retryable());
        for junk in ["-1", "junk", "", "1.5"] {
            let error = told(Call::look("find"), 429, &[("retry-after", junk)]);
            assert_eq!((error.kind(), error.retry_after()), (ErrorKind::RateLimited, None), "{junk}");
        }
        let past = told(Call::look("find"), 429, &[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]);
        assert_eq!(past.retry_after(), Some(Duration::ZERO));
        let endless = told(Call::look("find"), 429, &[("retry-after", "99999999999999999999999")]);
        assert_eq!(endless.retry_after(), Some(Duration::from_secs(u64::MAX)));
    }
}
