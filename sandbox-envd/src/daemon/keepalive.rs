//! Pings on quiet streams, so that no middle box takes them for dead.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use http::HeaderMap;
use tokio::time::{Instant, Sleep};

/// Seconds between pings when a client asks for none, as in E2B's envd.
const DEFAULT_SECONDS: u64 = 90;

/// Returns how long a stream may be quiet before it pings, from `Keepalive-Ping-Interval` (seconds).
pub(crate) fn interval(headers: &HeaderMap) -> Duration {
    let asked = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok());
    let seconds = asked.and_then(|value| value.trim().parse().ok()).filter(|seconds| *seconds > 0);
    Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS))
}

/// A stream that yields `ping()` whenever `inner` was quiet for `interval`; it ends when `inner` ends.
pub(crate) struct KeepAlive<S, F> {
    inner: Pin<Box<S>>,
    ping: F,
    interval: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<S: Stream, F: FnMut() -> S::Item> KeepAlive<S, F> {
    pub(crate) fn new(inner: S, interval: Duration, ping: F) -> Self {
        Self { inner: Box::pin(inner), ping, interval, timer: Box::pin(tokio::time::sleep(interval)) }
    }
}

impl<S: Stream, F: FnMut() -> S::Item + Unpin> Stream for KeepAlive<S, F> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        let item = match this.inner.as_mut().poll_next(cx) {
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(item)) => item,
            Poll::Pending => {
                std::task::ready!(Future::poll(this.timer.as_mut(), cx));
                (this.ping)()
            }
        };
        this.timer.as_mut().reset(Instant::now() + this.interval);
        Poll::Ready(Some(item))
    }
}
