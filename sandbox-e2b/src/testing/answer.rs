//! Answers that the proxy makes up.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

/// An answer that no server gave: any status, headers and body.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// The forms in which a server says when to come again, good and bad.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryAfter {
    /// A number of seconds.
    Seconds(u64),
    /// An HTTP-date.
    At(SystemTime),
    /// Anything else, such as `-1` or `junk`.
    Text(String),
}

impl Answer {
    /// An answer of this status without a body.
    ///
    /// # Panics
    /// When it is no HTTP status: from 100 to 999.
    #[must_use]
    pub fn new(status: u16) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or_else(|_| panic!("{status} is no HTTP status"));
        Self { status, headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// An error as E2B's control plane says it: `{"code","message"}`.
    ///
    /// # Panics
    /// When it is no HTTP status.
    #[must_use]
    pub fn error(status: u16, message: &str) -> Self {
        Self::new(status).with_json(&serde_json::json!({ "code": status, "message": message }))
    }

    /// Gives it a body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Gives it a JSON body.
    #[must_use]
    pub fn with_json(self, value: &serde_json::Value) -> Self {
        self.with_header("content-type", "application/json").with_body(value.to_string())
    }

    /// Gives it a header, in place of one of the same name.
    ///
    /// # Panics
    /// When the name or the value cannot be sent.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
            panic!("{name:?}: {value:?} is no header");
        };
        self.headers.insert(name, value);
        self
    }

    /// Says when to come again.
    #[must_use]
    pub fn with_retry_after(self, when: &RetryAfter) -> Self {
        let text = match when {
            RetryAfter::Seconds(seconds) => seconds.to_string(),
            RetryAfter::At(time) => httpdate::fmt_http_date(*time),
            RetryAfter::Text(text) => text.clone(),
        };
        self.with_header(header::RETRY_AFTER.as_str(), &text)
    }
}
