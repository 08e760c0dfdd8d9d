//! Pings on quiet streams, so that no middle box takes them for dead.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use http::HeaderMap;
use tokio::time::{Instant, Sleep};

/// Seconds between pings when a client asks for none, as in E2B's envd.
const DEFAULT_SECONDS: u64 = 90;

/// The longest quiet time that is waited for; more than a year is never, and more than a clock can count is a trap.
const MAX_SECONDS: u64 = 366 * 24 * 60 * 60;

/// Returns how long a stream may be quiet before it pings, from `Keepalive-Ping-Interval` (seconds).
pub(crate) fn interval(headers: &HeaderMap) -> Duration {
    let asked = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok());
    let seconds = asked.and_then(|value| value.trim().parse().ok()).filter(|seconds| *seconds > 0);
    Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS).min(MAX_SECONDS))
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
        poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_ping_comes_only_after_so_long_without_anything_else() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<&str>(1);
        let inner = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let start = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(40)).await;
            let _ = sender.send("data").await;
            tokio::time::sleep(Duration::from_secs(60)).await;
        });
        let mut stream = KeepAlive::new(inner, Duration::from_secs(50), || "ping");
        for (expected, seconds) in [(Some("data"), 40), (Some("ping"), 90), (None, 100), (None, 100)] {
            assert_eq!(next(&mut stream).await, expected);
            assert_eq!(start.elapsed().as_secs(), seconds);
        }
    }

    #[tokio::test]
    async fn no_interval_is_too_long_to_be_waited_for() {
        let header = ("keepalive-ping-interval".parse().unwrap(), u64::MAX.into());
        let inner = futures_util::stream::iter(["data"]);
        let mut stream = KeepAlive::new(inner, interval(&HeaderMap::from_iter([header])), || "ping");
        assert_eq!((next(&mut stream).await, next(&mut stream).await), (Some("data"), None));
    }

    #[test]
    fn the_interval_is_seconds_and_never_zero() {
        let of =
            |value| interval(&HeaderMap::from_iter([("keepalive-ping-interval".parse().unwrap(), value)]));
        let seconds = |text: &'static str| of(http::HeaderValue::from_static(text)).as_secs();
        assert_eq!(
            (seconds("50"), seconds(" 1 "), seconds("0"), seconds("-1"), seconds("x")),
            (50, 1, 90, 90, 90)
        );
        assert_eq!(interval(&HeaderMap::new()).as_secs(), 90);
    }
}
