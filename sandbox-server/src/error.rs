//! Errors as E2B's clients read them: `{"code","message","error_code"?}`, always.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use sandhold_core::{Error, ErrorKind};
use serde::Serialize;

/// What E2B's Python SDK obeys.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// The result of every route.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: Cow<'static, str>,
    /// A stable word within the status, where E2B has one.
    pub(crate) error_code: Option<&'static str>,
    /// Whether another try may help and cannot do harm; clients try some statuses again unless they are told.
    pub(crate) retry: Option<Retry>,
}

/// Advice about another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Not at all: it may have taken effect.
    Never,
    /// After so many seconds.
    After(u64),
}

/// The body of an error. JavaScript's SDK decides by `code`, Python's cannot read an error without a body.
#[derive(Serialize)]
struct Body<'a> {
    code: u16,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into(), error_code: None, retry: None }
    }

    pub(crate) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn conflict(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub(crate) fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub(crate) fn with_error_code(mut self, code: &'static str) -> Self {
        self.error_code = Some(code);
        self
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let body = Body { code: self.status.as_u16(), message: &self.message, error_code: self.error_code };
        // A number and two texts can always be written.
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(self.to_json().into());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(retry) = self.retry {
            let again = retry != Retry::Never;
            headers.insert(SHOULD_RETRY, HeaderValue::from_static(if again { "true" } else { "false" }));
            if let Retry::After(seconds) = retry {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
        }
        response
    }
}

/// What a provider could not do. A text that is not understood never becomes a 404: clients read that as *gone*.
impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Gone => StatusCode::NOT_FOUND,
            ErrorKind::NotFound if error.reason() == Some("template") => StatusCode::NOT_FOUND,
            ErrorKind::InvalidArgument => StatusCode::BAD_REQUEST,
            ErrorKind::Conflict | ErrorKind::AlreadyExists | ErrorKind::InvalidState => StatusCode::CONFLICT,
            ErrorKind::RateLimited | ErrorKind::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::warn!(%error, "the provider failed");
        }
        let retry = if error.is_retryable() {
            // In whole seconds, and at least one: clients that are told zero try at once.
            let after = error.retry_after().map_or(1, |after| after.as_secs().max(1));
            Some(Retry::After(after))
        } else {
            status.is_server_error().then_some(Retry::Never)
        };
        Self { retry, ..Self::new(status, error.message().to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_taken_effect_is_not_to_be_tried_again() {
        let unknown = Error::new(ErrorKind::Timeout, "the answer did not come");
        let response = ApiError::from(unknown).into_response();
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(response.headers()[SHOULD_RETRY], "false");
        let busy = Error::new(ErrorKind::Unavailable, "busy").retryable(None);
        let response = ApiError::from(busy).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            (&response.headers()[SHOULD_RETRY], &response.headers()["retry-after"]),
            (&HeaderValue::from_static("true"), &HeaderValue::from_static("1"))
        );
    }

    #[test]
    fn what_is_not_understood_is_never_gone() {
        for kind in ErrorKind::ALL.iter().filter(|kind| **kind != ErrorKind::Gone) {
            assert_ne!(ApiError::from(Error::new(*kind, "x")).status, StatusCode::NOT_FOUND, "{kind}");
        }
    }
}
