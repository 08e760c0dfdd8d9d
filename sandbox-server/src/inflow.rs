//! Bodies of requests, of which nothing is left on the line.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

/// Most bytes that are read of a body that nobody wanted; Go's server, which E2B uses, reads as many.
pub(crate) const DRAINED: u64 = 256 << 10;

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The body of a request. What of it is not read when it is dropped is read and thrown away, within bounds.
///
/// A client that is still writing would otherwise meet a closed connection in place of its answer.
#[derive(Debug)]
pub(crate) struct Inflow(Option<Incoming>);

impl Inflow {
    pub(crate) fn new(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl Body for Inflow {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Inflow {
    fn drop(&mut self) {
        let Some(body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        if body.size_hint().lower() > DRAINED {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(timeout(PATIENCE, drain(body)));
        }
    }
}

async fn drain(mut body: Incoming) {
    let mut left = DRAINED;
    while let Some(Ok(frame)) = body.frame().await {
        let read = frame.data_ref().map_or(0, Bytes::len) as u64;
        match left.checked_sub(read) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
