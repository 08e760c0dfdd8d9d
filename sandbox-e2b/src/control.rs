//! The control plane: one method for each of its routes that concern sandboxes and snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sandhold_core::{DEFAULT_CALL_DEADLINE, Error, Outcome, Result, SandboxId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::E2bConfig;
use crate::error::{Call, FOREIGN, NAME, NO_TEMPLATE, is_page, own_error};
use crate::http::{Answer, Http, private, request, whole};
use crate::wire::{
    Connect, CreateSandbox, CreateSnapshot, LogQuery, LogsV2, Metric, NetworkUpdate, Pause, Sandbox,
    SandboxDetail, SetTimeout, SnapshotInfo,
};

/// What stays as it is in one segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Which routes the server has for create and connect.
mod version {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const V1: u8 = 1;
    pub(super) const V2: u8 = 2;
}

/// Speaks to the control plane.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) config: E2bConfig,
    pub(crate) http: Http,
    url: String,
    headers: HeaderMap,
    version: AtomicU8,
}

/// One request, to be sent as often as it may be.
pub(crate) struct Ask {
    call: Call,
    method: Method,
    path: String,
    body: Option<Bytes>,
    key: Option<HeaderValue>,
    deadline: Duration,
    also: Option<StatusCode>,
}

/// The answer, and whether an earlier send of the same request may have taken effect.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) call: Call,
    pub(crate) answer: Answer,
    pub(crate) doubted: bool,
}

impl Ask {
    pub(crate) fn new(call: Call, method: Method, path: impl Into<String>) -> Self {
        Self {
            call,
            method,
            path: path.into(),
            body: None,
            key: None,
            deadline: DEFAULT_CALL_DEADLINE,
            also: None,
        }
    }

    pub(crate) fn with_json(mut self, body: &impl Serialize) -> Result<Self> {
        let bytes = serde_json::to_vec(body).map_err(|error| {
            Error::invalid_argument("the request cannot be written as JSON").with_source(error)
        })?;
        self.body = Some(bytes.into());
        Ok(self)
    }

    pub(crate) fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Takes this status for an answer too, where it comes in E2B's own form.
    pub(crate) fn with_also(mut self, status: StatusCode) -> Self {
        self.also = Some(status);
        self
    }
}

impl Reply {
    /// Reads the answer's JSON; an empty one is an error.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T> {
        if self.answer.body.is_empty() {
            return Err(self.unreadable("the answer is empty where one is due"));
        }
        serde_json::from_slice(&self.answer.body).map_err(|error| {
            self.unreadable("the answer is not what E2B says at this place").with_source(error)
        })
    }

    fn unreadable(&self, message: &'static str) -> Error {
        self.call.unreadable(message).with_context("status", self.answer.status.as_u16())
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.answer.status
    }
}

impl Control {
    pub(crate) fn new(config: E2bConfig) -> Result<Self> {
        let url = config.api_url();
        private(&url, config.allow_plaintext)?;
        let mut headers = HeaderMap::new();
        let agent = HeaderValue::from_static(concat!("sandhold/", env!("CARGO_PKG_VERSION")));
        headers.insert(USER_AGENT, agent);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &config.headers {
            let bad = || Error::invalid_argument(format!("the header {name:?} cannot be sent"));
            let value = HeaderValue::from_str(value.expose()).map_err(|error| bad().with_source(error))?;
            headers.insert(HeaderName::try_from(name).map_err(|error| bad().with_source(error))?, value);
        }
        let mut key = HeaderValue::from_str(config.api_key.expose())
            .map_err(|_| Error::invalid_argument("the E2B key has a character that no header can carry"))?;
        key.set_sensitive(true);
        headers.insert("x-api-key", key);
        Ok(Self { config, http: Http::new(), url, headers, version: AtomicU8::new(version::UNKNOWN) })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Tells whether the server is known to take no idempotency key.
    pub(crate) fn is_v1(&self) -> bool {
        self.version.load(Relaxed) == version::V1
    }

    fn learn(&self, version: u8) {
        // Decided once: a later answer of something in between changes nothing.
        let _ = self.version.compare_exchange(version::UNKNOWN, version, Relaxed, Relaxed);
    }

    /// Sends a request, again and again where that does no harm, and returns its accepted answer.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Reply> {
        self.ask_doubtfully(ask).await.map_err(|(error, doubted)| {
            // What the last answer says of itself is not all: an earlier send may have taken effect.
            if doubted { error.with_outcome(Outcome::Unknown) } else { error }
        })
    }

    async fn ask_doubtfully(&self, ask: Ask) -> Result<Reply, (Error, bool)> {
        let doubted = std::sync::atomic::AtomicBool::new(false);
        let policy = self.config.retry.clone().with_budget(ask.deadline);
        let answer = policy
            .run(|| async {
                let answered = self.ask_once(&ask).await;
                if let Err(error) = &answered
                    && error.is_retryable()
                    && error.outcome() == Outcome::Unknown
                {
                    doubted.store(true, Relaxed);
                }
                answered
            })
            .await;
        let doubted = doubted.into_inner();
        match answer {
            Ok(answer) => Ok(Reply { call: ask.call, answer, doubted }),
            Err(error) if error.provider().is_empty() => Err((error.at(NAME, ask.call.operation), doubted)),
            Err(error) => Err((error, doubted)),
        }
    }

    async fn ask_once(&self, ask: &Ask) -> Result<Answer> {
        let body = ask.body.clone();
        let is_json = body.is_some();
        let mut request = request(
            ask.method.clone(),
            &format!("{}{}", self.url, ask.path),
            whole(body.unwrap_or_default()),
        )?;
        request.headers_mut().extend(self.headers.clone());
        if is_json {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = &ask.key {
            request.headers_mut().insert("idempotency-key", key.clone());
        }
        let answer = self.http.send(&ask.call, request, self.config.request_timeout).await?;
        let Answer { status, headers, body } = &answer;
        let also = ask.also == Some(*status) && own_error(*status, headers, body).is_some();
        if status.is_success() && is_page(headers) && !body.is_empty() {
            // Of something on the way, such as the sign-in of a network: nothing says that E2B has heard the request.
            let error = ask.call.unreadable("a web page came in place of E2B's answer");
            return Err(error.with_context("status", status.as_u16()));
        }
        if status.is_success() || also {
            return Ok(answer);
        }
        Err(ask.call.answer(*status, headers, body))
    }

    /// Sends a request to its v2 route, and to its v1 route where the server has none.
    ///
    /// It has none when a 404 or 405 comes that is not E2B's own; what an earlier send of the same request may have
    /// done keeps it from being sent elsewhere.
    async fn by_version(&self, v2: Ask, v1: impl AsyncFnOnce() -> Result<Reply>) -> Result<Reply> {
        if self.is_v1() {
            return v1().await;
        }
        let known = self.version.load(Relaxed) == version::V2;
        match self.ask_doubtfully(v2).await {
            Ok(reply) => {
                self.learn(version::V2);
                Ok(reply)
            }
            Err((error, false)) if !known && lacks_route(&error) => {
                let answered = v1().await;
                if answered.as_ref().map_or_else(is_own, |_| true) {
                    tracing::info!(
                        "the server has no v2 routes; its v1 routes are used, without idempotency keys"
                    );
                    self.learn(version::V1);
                }
                answered
            }
            Err((error, doubted)) => {
                if is_own(&error) {
                    self.learn(version::V2);
                }
                Err(if doubted { error.with_outcome(Outcome::Unknown) } else { error })
            }
        }
    }

    /// Creates a sandbox; the same key again yields the same one. On servers without such keys `look` is asked first
    /// whether there is one, and the create is sent once.
    pub(crate) async fn create(
        &self,
        create: &CreateSandbox,
        key: &str,
        deadline: Duration,
        look: impl AsyncFnOnce() -> Result<Option<Sandbox>>,
    ) -> Result<Sandbox> {
        let mut v2 = Ask::new(Call::idempotent("create").about(NO_TEMPLATE), Method::POST, "/v2/sandboxes")
            .with_json(create)?
            .with_deadline(deadline);
        v2.key = Some(idempotency_key(key)?);
        let mut found = None;
        let v1 = async || {
            found = look().await?;
            if found.is_some() {
                // Nothing is sent: an empty reply stands for the one that was found.
                let answer = Answer { status: StatusCode::OK, headers: HeaderMap::new(), body: Bytes::new() };
                return Ok(Reply { call: Call::look("create"), answer, doubted: false });
            }
            let create = CreateSandbox { secure: Some(true), ..create.clone() };
            let call = Call::once("create").about(NO_TEMPLATE);
            self.ask(Ask::new(call, Method::POST, "/sandboxes").with_json(&create)?.with_deadline(deadline))
                .await
        };
        let reply = self.by_version(v2, v1).await?;
        match found {
            Some(found) => Ok(found),
            None => reply.json(),
        }
    }

    /// Connects, and says whether the sandbox had to be woken for it, as far as the last answer tells, and whether an
    /// earlier send of the same request may have done so.
    pub(crate) async fn connect(
        &self,
        id: &SandboxId,
        connect: Connect,
        deadline: Duration,
    ) -> Result<(Sandbox, bool, bool)> {
        let id = segment(id)?;
        let call = Call::idempotent("connect");
        let v2 = Ask::new(call, Method::POST, format!("/v2/sandboxes/{id}/connect"))
            .with_json(&connect)?
            .with_deadline(deadline);
        let v1 = async || {
            let ask = Ask::new(call, Method::POST, format!("/sandboxes/{id}/connect"));
            self.ask(ask.with_json(&connect)?.with_deadline(deadline)).await
        };
        let reply = self.by_version(v2, v1).await?;
        Ok((reply.json()?, reply.status() == StatusCode::CREATED, reply.doubted))
    }

    pub(crate) async fn get(&self, operation: &'static str, id: &SandboxId) -> Result<SandboxDetail> {
        let path = format!("/sandboxes/{}", segment(id)?);
        self.ask(Ask::new(Call::look(operation), Method::GET, path)).await?.json()
    }

    /// Deletes a sandbox; a 404 of E2B's own is an answer.
    pub(crate) async fn kill(&self, id: &SandboxId) -> Result<Reply> {
        let path = format!("/sandboxes/{}", segment(id)?);
        let ask = Ask::new(Call::idempotent("destroy"), Method::DELETE, path);
        self.ask(ask.with_also(StatusCode::NOT_FOUND)).await
    }

    /// Pauses a sandbox; a 409 of E2B's own is an answer.
    pub(crate) async fn pause(&self, id: &SandboxId, pause: Pause) -> Result<Reply> {
        let path = format!("/sandboxes/{}/pause", segment(id)?);
        let ask = Ask::new(Call::idempotent("pause"), Method::POST, path).with_json(&pause)?;
        self.ask(ask.with_also(StatusCode::CONFLICT)).await
    }

    pub(crate) async fn set_timeout(&self, id: &SandboxId, seconds: i64) -> Result<()> {
        let path = format!("/sandboxes/{}/timeout", segment(id)?);
        let ask = Ask::new(Call::idempotent("set_lease"), Method::POST, path);
        self.ask(ask.with_json(&SetTimeout { timeout: seconds })?).await.map(drop)
    }

    pub(crate) async fn update_network(&self, id: &SandboxId, update: &NetworkUpdate) -> Result<()> {
        let path = format!("/sandboxes/{}/network", segment(id)?);
        let ask = Ask::new(Call::idempotent("update_network"), Method::PUT, path);
        self.ask(ask.with_json(update)?).await.map(drop)
    }

    pub(crate) async fn metrics(&self, id: &SandboxId) -> Result<Vec<Metric>> {
        let path = format!("/sandboxes/{}/metrics", segment(id)?);
        self.ask(Ask::new(Call::look("metrics"), Method::GET, path)).await?.json()
    }

    pub(crate) async fn logs(&self, id: &SandboxId, query: &LogQuery) -> Result<LogsV2> {
        let path = format!("/v2/sandboxes/{}/logs?{}", segment(id)?, query.to_query());
        self.ask(Ask::new(Call::look("logs"), Method::GET, path)).await?.json()
    }

    /// Takes a snapshot. It is sent once: a second one would be another snapshot.
    pub(crate) async fn snapshot(&self, id: &SandboxId, create: &CreateSnapshot) -> Result<SnapshotInfo> {
        let path = format!("/sandboxes/{}/snapshots", segment(id)?);
        self.ask(Ask::new(Call::once("snapshot"), Method::POST, path).with_json(create)?).await?.json()
    }

    /// Deletes a template or snapshot by any of its names; 404 and 400 of E2B's own are for the caller.
    pub(crate) async fn delete_template(&self, call: Call, name: &str) -> Result<Reply> {
        let path = format!("/templates/{}", encoded(name));
        self.ask(Ask::new(call, Method::DELETE, path).with_also(StatusCode::NOT_FOUND)).await
    }
}

/// A 404 or 405 that is not E2B's own: the server has no such route.
fn lacks_route(error: &Error) -> bool {
    error.reason() == Some(FOREIGN)
        && error.context().any(|(name, value)| name == "status" && (value == "404" || value == "405"))
}

/// Tells whether an error is a refusal by E2B itself, and not by something on the way to it.
fn is_own(error: &Error) -> bool {
    !matches!(error.reason(), Some(FOREIGN | "answer_lost"))
        && error.context().any(|(name, value)| name == "status" && value.starts_with('4'))
}

fn idempotency_key(attempt: &str) -> Result<HeaderValue> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if attempt.is_empty() || attempt.len() > 255 || !attempt.bytes().all(fits) {
        let shown: String = attempt.chars().take(64).collect();
        return Err(Error::invalid_argument(format!(
            "the attempt {shown:?} cannot be an idempotency key; give 1 to 255 of a-z, 0-9 and -"
        )));
    }
    HeaderValue::from_str(attempt).map_err(|error| {
        Error::invalid_argument("the attempt cannot be an idempotency key").with_source(error)
    })
}

/// Percent-encodes what stands between two slashes of a path.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Returns an id as it stands in a path. No sandbox of E2B has another id.
pub(crate) fn segment(id: &SandboxId) -> Result<&str> {
    let text = id.as_str();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text.is_empty() || text.len() > 128 || !text.bytes().all(fits) {
        let shown: String = text.chars().take(64).collect();
        return Err(Error::invalid_argument(format!(
            "{shown:?} cannot be the id of an E2B sandbox; give what E2B said when it was made"
        ))
        .at(NAME, "find"));
    }
    Ok(text)
}

/// The control plane, shared.
pub(crate) type SharedControl = Arc<Control>;
