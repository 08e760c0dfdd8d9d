//! One request and its answer, streamed both ways.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, Uri, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use sandhold_core::DAEMON_PORT;

use super::access::{ACCESS_TOKEN, TRAFFIC_TOKEN};
use super::pool::Sender;
use super::reply::Refusal;
use crate::app::App;
use crate::connection::Connection;
use crate::inflow::Inflow;
use crate::sandboxes::{Line, Phase, Sandbox};

/// Headers that are about one connection only (RFC 9110, section 7.6.1), and `Expect`, which was answered here.
const OF_ONE_CONNECTION: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

/// Sends a request on and returns the answer, whose body is still on its way.
pub(super) async fn send(
    app: &Arc<App>,
    sandbox: &Arc<Sandbox>,
    port: u16,
    mut request: Request<Inflow>,
    connection: &Connection,
) -> Result<Response<Body>, Refusal> {
    prepare(&mut request, sandbox, port);
    strip(request.headers_mut());
    let (response, sender) = sandbox.lines.while_open(ask(app, sandbox, port, request)).await??;
    let line = sandbox.lines.enter(connection)?;
    Ok(answer(response, sandbox, (port == DAEMON_PORT).then_some(sender), line))
}

/// Sends a request and waits for the head of its answer.
async fn ask(
    app: &Arc<App>,
    sandbox: &Arc<Sandbox>,
    port: u16,
    mut request: Request<Inflow>,
) -> Result<(Response<Incoming>, Sender), Refusal> {
    let pooled = port == DAEMON_PORT;
    loop {
        let (mut sender, fresh) = match pooled.then(|| sandbox.pool.take()).flatten() {
            Some(sender) => (sender, false),
            None => (sandbox.pool.connect(app, sandbox, port).await?, true),
        };
        match sender.request.try_send_request(request).await {
            Ok(response) => return Ok((response, sender)),
            Err(mut error) => match error.take_message() {
                // A connection that was kept and closed in the meantime: nothing was sent on it.
                Some(unsent) if !fresh => request = unsent,
                _ => {
                    tracing::debug!(error = %error.into_error(), id = sandbox.id, port, "a request was cut off");
                    return Err(cut_off(app, sandbox).await);
                }
            },
        }
    }
}

/// Says why a connection into a sandbox broke.
pub(super) async fn cut_off(app: &Arc<App>, sandbox: &Arc<Sandbox>) -> Refusal {
    match app.check(sandbox).await {
        Ok(true) if sandbox.phase() == Phase::Running => Refusal::PortClosed,
        Ok(_) => Refusal::NotFound,
        Err(_) => Refusal::Unknown,
    }
}

/// Makes a request one that the inside understands.
pub(super) fn prepare(request: &mut Request<Inflow>, sandbox: &Sandbox, port: u16) {
    *request.version_mut() = Version::HTTP_11;
    let mask = sandbox.made.network.as_ref().and_then(|network| network.mask_request_host.as_ref());
    let host = match mask {
        _ if port == DAEMON_PORT => Some(HeaderValue::from_static("localhost")),
        Some(mask) => HeaderValue::from_str(&mask.replace("${PORT}", &port.to_string())).ok(),
        None => request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()),
    };
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    let headers = request.headers_mut();
    if let Some(host) = host {
        headers.insert(header::HOST, host);
    }
    headers.remove(TRAFFIC_TOKEN);
    if port == DAEMON_PORT {
        // Both were checked here; the daemon has no token, and lets no page in without one.
        headers.remove(ACCESS_TOKEN);
        headers.remove(header::ORIGIN);
    }
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<_> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named.iter().chain(&OF_ONE_CONNECTION) {
        headers.remove(name);
    }
}

pub(super) fn answer(
    response: Response<Incoming>,
    sandbox: &Arc<Sandbox>,
    sender: Option<Sender>,
    line: Line,
) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    strip(&mut head.headers);
    let mut body = Passing { body, sandbox: Arc::clone(sandbox), sender, _line: line };
    if body.body.is_end_stream() {
        body.give_back();
    }
    Response::from_parts(head, Body::new(body))
}

/// A body on its way out; counts as a use of the sandbox until it was sent or dropped.
struct Passing {
    body: Incoming,
    sandbox: Arc<Sandbox>,
    sender: Option<Sender>,
    _line: Line,
}

impl Passing {
    /// Lets the next request have the connection, now that the answer was read.
    fn give_back(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.sandbox.pool.put(sender);
        }
    }
}

impl http_body::Body for Passing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(next) = &polled
            && (next.is_none() || this.body.is_end_stream())
        {
            this.give_back();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
