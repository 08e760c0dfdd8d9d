//! The client: requests to one daemon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use sandhold_core::{Error, ErrorKind, Result};

use crate::client::config::{Dialect, EnvdConfig};
use crate::client::connection::{Pool, RequestBody, ResponseBody};
use crate::client::fault::{Call, Effect};
use crate::client::transport::Transport;

/// Largest error body and largest JSON answer that is read.
pub(crate) const MAX_JSON: usize = 1 << 20;

/// How long the question whether a daemon is alive may take.
const HEALTH_TIME: Duration = Duration::from_secs(5);

/// Speaks to one daemon; clones share its connections.
#[derive(Clone)]
pub struct EnvdClient {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Arc<Pool>,
    config: EnvdConfig,
    /// The headers of every request.
    headers: HeaderMap,
}

impl fmt::Debug for EnvdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvdClient")
            .field("transport", &self.inner.pool.transport())
            .field("config", &self.inner.config)
            .finish()
    }
}

impl EnvdClient {
    /// Makes a client; connections are opened by its calls.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a value that no header can carry, and for a token that would travel in
    /// the clear to another machine unless [`EnvdConfig::allow_plaintext`] is set.
    pub fn new(transport: Arc<dyn Transport>, config: EnvdConfig) -> Result<Self> {
        if config.access_token.is_some() && !config.allow_plaintext && !transport.is_private() {
            return Err(Error::invalid_argument(format!(
                "the access token would travel in the clear to {}; use https, or allow plaintext by name",
                transport.authority()
            )));
        }
        let mut headers = HeaderMap::new();
        headers.insert(HOST, text("the host", transport.authority())?);
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("sandhold/", env!("CARGO_PKG_VERSION"))));
        if let Some(id) = &config.sandbox_id {
            headers.insert("e2b-sandbox-id", text("the sandbox id", id)?);
            headers.insert("e2b-sandbox-port", HeaderValue::from(config.port));
        }
        if let Some(token) = &config.access_token {
            let mut value = HeaderValue::from_str(token).map_err(|_| {
                Error::invalid_argument("the access token has a character that no header can carry")
            })?;
            value.set_sensitive(true);
            headers.insert("x-access-token", value);
        }
        let pool = Arc::new(Pool::new(transport, config.connect_timeout));
        Ok(Self { inner: Arc::new(Inner { pool, config, headers }) })
    }

    /// Returns what the client was made with.
    pub fn config(&self) -> &EnvdConfig {
        &self.inner.config
    }

    /// Asks whether the daemon answers; waits five seconds at most.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Timeout`] when nothing answers;
    /// [`ErrorKind::Unavailable`] with reason `not_running` when something in between says that there is none.
    pub async fn health(&self) -> Result<()> {
        let call = Call { provider: "envd", operation: "health", effect: Effect::None };
        let request = self.request(Method::GET, "/health", RequestBody::Whole(None))?;
        let asking = async {
            let response = self.send(&call, request, HEALTH_TIME).await?;
            self.expect(&call, response, |status| {
                status == StatusCode::NO_CONTENT || status == StatusCode::OK
            })
            .await
        };
        match tokio::time::timeout(HEALTH_TIME, asking).await {
            Ok(answered) => answered.map(|mut response| response.body_mut().only_end_left()),
            Err(_) => Err(call.error(ErrorKind::Timeout, "the daemon gave no sign of life").retryable(None)),
        }
    }

    /// Calls one of the embedding program's own JSON routes; an empty answer is `null`.
    ///
    /// `idempotent` says that another try does no harm.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the daemon has no such route, and what the answer says.
    pub async fn route(
        &self,
        operation: &'static str,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
        idempotent: bool,
    ) -> Result<serde_json::Value> {
        let effect = match () {
            () if method == Method::GET => Effect::None,
            () if idempotent => Effect::Idempotent,
            () => Effect::Once,
        };
        let call = Call { provider: "envd", operation, effect };
        self.json(&call, method, path, body).await
    }

    pub(crate) async fn json(
        &self,
        call: &Call,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<serde_json::Value> {
        let bytes = body.map(|body| Bytes::from(body.to_string()));
        let mut request = self.request(method, path, RequestBody::Whole(bytes))?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = self.send(call, request, self.config().answer_timeout).await?;
        let mut response = self.expect(call, response, |status| status.is_success()).await?;
        let answer = response.body_mut().collect(MAX_JSON).await.map_err(|fault| call.fault(fault))?;
        if answer.is_empty() {
            return Ok(serde_json::Value::Null);
        }
        serde_json::from_slice(&answer)
            .map_err(|error| call.error(ErrorKind::Unexpected, "the answer is not JSON").with_source(error))
    }

    pub(crate) fn has_own_daemon(&self) -> bool {
        self.inner.config.dialect == Dialect::Sandhold
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.inner.pool
    }

    /// Makes a request with the headers that all have.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> Result<Request<RequestBody>> {
        let target = format!("{}{path}", self.inner.pool.transport().prefix());
        let uri = target.parse::<http::Uri>().map_err(|error| {
            Error::invalid_argument(format!("{path:?} cannot be asked for over HTTP")).with_source(error)
        })?;
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        request.headers_mut().clone_from(&self.inner.headers);
        Ok(request)
    }

    /// Returns the user of a call: the one named, else the client's own.
    pub(crate) fn user<'a>(&'a self, named: Option<&'a str>) -> Option<&'a str> {
        named.or(self.inner.config.user.as_deref())
    }

    pub(crate) async fn send(
        &self,
        call: &Call,
        request: Request<RequestBody>,
        patience: Duration,
    ) -> Result<Response<ResponseBody>> {
        self.inner.pool.send(request, patience).await.map_err(|fault| call.fault(fault))
    }

    /// Turns an answer of another status into its error.
    pub(crate) async fn expect(
        &self,
        call: &Call,
        response: Response<ResponseBody>,
        accepted: impl Fn(StatusCode) -> bool,
    ) -> Result<Response<ResponseBody>> {
        if accepted(response.status()) {
            return Ok(response);
        }
        let (head, mut body) = response.into_parts();
        // What the status says holds even when its body is cut off or too large.
        let body = body.collect(MAX_JSON).await.unwrap_or_default();
        Err(call.http(head.status, &head.headers, &body))
    }
}

fn text(what: &str, value: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(value).map_err(|error| {
        Error::invalid_argument(format!("{what} {value:?} has a character that no header can carry"))
            .with_source(error)
    })
}

/// Names the user of a call.
pub(crate) fn set_user(headers: &mut HeaderMap, user: Option<&str>) -> Result<()> {
    if let Some(user) = user {
        if user.contains(':') {
            return Err(Error::invalid_argument(format!("the user name {user:?} contains a colon")));
        }
        headers.insert(
            AUTHORIZATION,
            text("the user name", &format!("Basic {}", STANDARD.encode(format!("{user}:"))))?,
        );
    }
    Ok(())
}

/// Sets a header whose name and value are known to be valid.
pub(crate) fn set(headers: &mut HeaderMap, name: &'static str, value: impl Into<HeaderValue>) {
    headers.insert(HeaderName::from_static(name), value.into());
}
