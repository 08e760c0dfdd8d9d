//! Connections: each can be dropped at once by whoever answers on it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sandhold_envd::Lingering;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use crate::inflow::{self, Inflow};
use crate::pace::{Answer, Pace, Paced};
use crate::socket::Socket;
use crate::unparsed::Explained;

/// How long to wait before accepting again when accepting failed, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long requests in flight may go on after the stop; then their connections are dropped.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// How long a connection may wait for its next request: longer than the SDKs keep idle ones, so that none is closed just
/// when it is used again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(620);

/// Most bytes that one connection keeps of a body on its way through.
const BUFFER: usize = 256 * 1024;

/// What a request can know and do about the connection it came on.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// The address of this end, where it could be read.
    pub(crate) local: Option<IpAddr>,
    drop_it: Arc<Notify>,
    reset: Arc<AtomicBool>,
}

impl Connection {
    /// Resets the connection: an end without a reset is no failure of the transport to every client, who then does not ask
    /// what became of the sandbox.
    pub(crate) fn abort(&self) {
        self.reset.store(true, Ordering::Relaxed);
        self.drop_it.notify_one();
    }

    /// Waits until it is to be dropped; for what took it over from HTTP.
    pub(crate) async fn aborted(&self) {
        self.drop_it.notified().await;
    }
}

/// Accepts until `stop`, then lets requests in flight end within their grace.
pub(crate) async fn serve<H, A>(listener: TcpListener, handle: H, stop: impl Future<Output = ()>)
where
    H: Fn(Request<Inflow>, Connection) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let stopping = watch::Sender::new(false);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, handle.clone(), stopping.subscribe()));
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    stopping.send_replace(true);
    if tokio::time::timeout(STOP_GRACE, stopping.closed()).await.is_err() {
        tracing::warn!(
            connections = stopping.receiver_count(),
            "connections are dropped in the middle of a request"
        );
    }
}

async fn converse<H, A>(stream: TcpStream, handle: H, mut stopping: watch::Receiver<bool>)
where
    H: Fn(Request<Inflow>, Connection) -> A,
    A: Future<Output = Response<Body>>,
{
    // Answers are small and awaited: they must not wait for acknowledgements.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection ended before it was used");
        return;
    }
    let local = stream.local_addr().map(|address| address.ip());
    if let Err(error) = &local {
        tracing::warn!(%error, "the address of an interface cannot be read; clients cannot call it by that");
    }
    let reset = Arc::new(AtomicBool::new(false));
    let stream = Socket { stream, reset: Arc::clone(&reset) };
    let connection = Connection { local: local.ok(), drop_it: Arc::new(Notify::new()), reset };
    let dropped = Arc::clone(&connection.drop_it);
    let upgraded = Arc::new(AtomicBool::new(false));
    // Whoever is refused in the middle of an upload is to read why, not to be reset.
    let pace = Pace::new();
    let paced = Paced::new(stream, Arc::clone(&pace));
    let stream = Lingering::new(Explained::new(paced, Arc::clone(&pace)), Arc::clone(&upgraded));
    let answer = service_fn(|request: Request<Incoming>| {
        // What is left of a smaller one is read and thrown away.
        let unread = request.body().size_hint().lower() > inflow::DRAINED;
        let answered = handle(request.map(Inflow::new), connection.clone());
        let (upgraded, answering) = (Arc::clone(&upgraded), pace.answer());
        async move {
            let mut response = answered.await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                upgraded.store(true, Ordering::Relaxed);
            } else if unread && response.status().as_u16() >= 400 {
                // The rest of the request may still be coming, so the connection ends with this answer. A client that
                // was not told would send its next request into it.
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| Answer::new(body, answering)))
        }
    });
    let mut conversation = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), answer)
            .with_upgrades()
    );
    let (mut overdue, mut told) = (std::pin::pin!(pace.overdue()), false);
    let ended = loop {
        tokio::select! {
            ended = conversation.as_mut() => break ended,
            () = dropped.notified() => return,
            () = &mut overdue => return tracing::debug!("a connection brought no whole head of a request"),
            _ = stopping.wait_for(|stopping| *stopping), if !told => {
                told = true;
                conversation.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = ended {
        if error.is_user() {
            // An answer broke off inside a sandbox, before anybody here knew that it ends.
            connection.reset.store(true, Ordering::Relaxed);
        }
        tracing::debug!(%error, "a connection ended early");
    }
}
