//! How requests get to a bucket: hyper, and rustls with ring and the roots that browsers trust.
//!
//! Nothing else is asked: no proxy of the environment, no redirect, no metadata service.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use hyper::body::{Body, Frame, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

/// Longest time to open a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest time from the begin of a request to the head of its answer, beside what its body takes.
const ANSWER: Duration = Duration::from_secs(30);
/// The slowest line that bodies are sent over, in bytes a second.
const SLOWEST: u64 = 64 << 10;
/// Longest time between two pieces of an answer's body.
const PIECE: Duration = Duration::from_secs(60);

/// How much of a refusal is kept.
const SAID: usize = 8 << 10;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Makes the clients of a store.
#[derive(Debug)]
pub(super) struct Connector {
    tls: Arc<ClientConfig>,
}

impl Connector {
    pub(super) fn new() -> sandhold_core::Result<Self> {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|failure| {
                sandhold_core::Error::new(
                    sandhold_core::ErrorKind::Unexpected,
                    "no version of TLS is supported",
                )
                .with_source(failure)
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { tls: Arc::new(tls) })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = Client::builder(TokioExecutor::new())
            // Below what servers allow, so that a kept connection is rarely closed under a request.
            .pool_idle_timeout(Duration::from_secs(15))
            .pool_timer(TokioTimer::new())
            .build(Dial(TlsConnector::from(Arc::clone(&self.tls))));
        Ok(HttpClient::new(Requests { client }))
    }
}

#[derive(Debug)]
struct Requests {
    client: Client<Dial, HttpRequestBody>,
}

#[async_trait]
impl HttpService for Requests {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_listing = request.method() == http::Method::GET
            && request.uri().query().is_some_and(|query| {
                query.split('&').any(|part| matches!(part, "list-type=2" | "comp=list"))
            });
        let sending = Duration::from_secs(request.body().content_length() as u64 / SLOWEST);
        let answer = tokio::time::timeout(ANSWER + sending, self.client.request(request))
            .await
            .map_err(|elapsed| HttpError::new(HttpErrorKind::Timeout, elapsed))?
            .map_err(|failure| {
                let kind =
                    if failure.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
                HttpError::new(kind, failure)
            })?;
        let (parts, body) = answer.into_parts();
        let body = HttpResponseBody::new(Patient { body, ends: None });
        let status = parts.status.as_u16();
        // Of one object the library has a type for these.
        let has_type = !is_listing && matches!(status, 401 | 403 | 404 | 409 | 412 | 416);
        if parts.status.is_client_error() && !has_type && !matches!(status, 408 | 429) {
            let text = beginning(body).await;
            return Err(HttpError::new(HttpErrorKind::Unknown, Refused { status, text }));
        }
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// A request that the server refuses in a way that the library has no type for.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) status: u16,
    text: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the server answered {}: {}", self.status, self.text)
    }
}

impl std::error::Error for Refused {}

/// What a refusal begins with, as far as it comes.
async fn beginning(body: HttpResponseBody) -> String {
    let (mut pieces, mut text) = (body.bytes_stream(), Vec::new());
    while text.len() < SAID
        && let Some(Ok(piece)) = pieces.next().await
    {
        text.extend_from_slice(&piece);
    }
    text.truncate(SAID);
    String::from_utf8_lossy(&text).into_owned()
}

/// A body that fails where its sender falls silent.
struct Patient {
    body: Incoming,
    ends: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Body for Patient {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.ends = None;
            let failed = |failure| HttpError::new(HttpErrorKind::Interrupted, failure);
            return Poll::Ready(frame.map(|frame| frame.map_err(failed)));
        }
        let ends = this.ends.get_or_insert_with(|| Box::pin(tokio::time::sleep(PIECE)));
        std::task::ready!(ends.as_mut().poll(cx));
        let silent = io::Error::new(io::ErrorKind::TimedOut, "the server fell silent");
        Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, silent))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Opens connections, with TLS where the scheme says so.
#[derive(Clone)]
struct Dial(TlsConnector);

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dial")
    }
}

impl Service<http::Uri> for Dial {
    type Response = TokioIo<Line>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        let tls = self.0.clone();
        Box::pin(async move {
            let is_private = uri.scheme_str() != Some("http");
            let host = uri.host().ok_or("the URL has no host")?.trim_matches(['[', ']']).to_owned();
            let port = uri.port_u16().unwrap_or(if is_private { 443 } else { 80 });
            let open = async {
                let tcp = TcpStream::connect((&*host, port)).await?;
                tcp.set_nodelay(true)?;
                Ok::<_, BoxError>(match is_private {
                    true => Line(Box::new(tls.connect(ServerName::try_from(host.clone())?, tcp).await?)),
                    false => Line(Box::new(tcp)),
                })
            };
            Ok(TokioIo::new(tokio::time::timeout(CONNECT, open).await??))
        })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

struct Line(Box<dyn Stream>);

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
