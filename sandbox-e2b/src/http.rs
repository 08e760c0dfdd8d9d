//! Requests to the control plane, and what became of them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandhold_core::{ByteStream, Error, ErrorKind, PortStream, Result};
use sandhold_envd::{Transport, transport_from_url};
use tower_service::Service;

use crate::error::Call;

/// Largest answer that is read whole.
const MAX_ANSWER: usize = 64 << 20;

/// Longest time to open a connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that is sent.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body of these bytes.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that comes from a stream; `length` is announced where it is known, and must be right then.
pub(crate) fn streamed(source: ByteStream, length: Option<u64>) -> Body {
    Streamed { source, left: length }.boxed_unsync()
}

struct Streamed {
    source: ByteStream,
    left: Option<u64>,
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        let next = std::task::ready!(futures_core::Stream::poll_next(Pin::new(&mut self.source), cx));
        let wrong = || Some(Err("the body has another length than was announced".into()));
        Poll::Ready(match (next, &mut self.left) {
            (None, Some(left)) if *left > 0 => wrong(),
            (None, _) => None,
            (Some(Err(error)), _) => Some(Err(error.into())),
            (Some(Ok(chunk)), None) => Some(Ok(http_body::Frame::data(chunk))),
            (Some(Ok(chunk)), Some(left)) => match left.checked_sub(chunk.len() as u64) {
                Some(rest) => {
                    *left = rest;
                    Some(Ok(http_body::Frame::data(chunk)))
                }
                None => wrong(),
            },
        })
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.left.map_or_else(http_body::SizeHint::default, http_body::SizeHint::with_exact)
    }
}

/// An answer that was read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Sends requests and keeps connections; clones share them.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client<Connector, Body>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

impl Http {
    pub(crate) fn new() -> Self {
        let client = Client::builder(TokioExecutor::new())
            // Well below what servers allow, so that a kept connection is rarely closed under a request.
            .pool_idle_timeout(Duration::from_secs(20))
            .pool_timer(hyper_util::rt::TokioTimer::new())
            .build(Connector::default());
        Self { client }
    }

    /// Sends a request and returns the head of the answer.
    pub(crate) async fn open(
        &self,
        call: &Call,
        request: Request<Body>,
        timeout: Duration,
    ) -> Result<http::Response<Incoming>> {
        match tokio::time::timeout(timeout, self.client.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.is_connect() => {
                Err(call.unreachable("no connection to E2B").with_source(error))
            }
            Ok(Err(error)) => Err(call
                .lost(ErrorKind::Unavailable, "the connection broke before the answer came")
                .with_source(error)),
            Err(elapsed) => Err(call
                .lost(ErrorKind::Timeout, format!("no answer within {timeout:?}"))
                .with_source(elapsed)),
        }
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn send(
        &self,
        call: &Call,
        request: Request<Body>,
        timeout: Duration,
    ) -> Result<Answer> {
        let reading = async {
            let (head, body) = self.open(call, request, timeout).await?.into_parts();
            let body = match Limited::new(body, MAX_ANSWER).collect().await {
                Ok(body) => body.to_bytes(),
                // What the status says holds even when the text of the failure is cut off; a 404 says nothing without.
                Err(_) if !head.status.is_success() && head.status != StatusCode::NOT_FOUND => Bytes::new(),
                Err(error) => {
                    return Err(call
                        .lost(ErrorKind::Unavailable, "the connection broke before the answer was complete")
                        .with_source(error));
                }
            };
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        match tokio::time::timeout(timeout, reading).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(call
                .lost(ErrorKind::Timeout, format!("no complete answer within {timeout:?}"))
                .with_source(elapsed)),
        }
    }
}

/// Puts a request together; a URL that cannot be asked for names itself.
pub(crate) fn request(method: Method, url: &str, body: Body) -> Result<Request<Body>> {
    let uri: Uri = url
        .parse()
        .map_err(|error| Error::invalid_argument(format!("{url:?} is no URL")).with_source(error))?;
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    Ok(request)
}

/// Refuses a URL through which others could read what is sent.
pub(crate) fn private(url: &str, allowed: bool) -> Result<()> {
    let transport = transport_from_url(url)?;
    if transport.is_private() || allowed {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "the key would travel in the clear to {}; use https, or allow plaintext by name",
        transport.authority()
    )))
}

/// Refuses a link through which others could read what is sent. The link itself is a secret: it may carry a signature.
pub(crate) fn private_link(link: &str, allowed: bool) -> Result<()> {
    match link.parse::<Uri>() {
        Ok(uri) if uri.scheme().is_some() => private(&place(&uri), allowed),
        _ => Err(Error::invalid_argument("the link that the server gave is not a URL")),
    }
}

/// Returns where a URL leads, without what is asked there.
fn place(uri: &Uri) -> String {
    let scheme = uri.scheme_str().unwrap_or_default();
    let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    format!("{scheme}://{authority}")
}

/// Opens connections for the client, by the transports that handles use too.
#[derive(Clone, Default)]
struct Connector {
    /// Made once for each place: they hold what TLS needs.
    transports: Arc<Mutex<HashMap<String, Arc<dyn Transport>>>>,
}

impl Connector {
    fn transport(&self, uri: &Uri) -> Result<Arc<dyn Transport>> {
        let place = place(uri);
        let mut transports = self.transports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(transport) = transports.get(&place) {
            return Ok(Arc::clone(transport));
        }
        let transport = transport_from_url(&place)?;
        transports.insert(place, Arc::clone(&transport));
        Ok(transport)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Line>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let transport = self.transport(&uri);
        Box::pin(async move {
            let stream = tokio::time::timeout(CONNECT_TIMEOUT, transport?.open()).await??;
            Ok(TokioIo::new(Line(stream)))
        })
    }
}

struct Line(Box<dyn PortStream>);

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl tokio::io::AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl tokio::io::AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
