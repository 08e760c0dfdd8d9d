//! How long the head of a request may take: whoever begins one and never ends it would keep a connection for nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::passes::write_to_stream;

/// How long a head may take from its first byte on, and the first one of a connection from its beginning on; at most a
/// look longer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two looks: a timer for each head would cost more than it is worth.
const LOOK: Duration = Duration::from_secs(5);

/// No head is under way.
const NONE: u64 = u64::MAX;

/// What the requests of one connection are at.
#[derive(Debug)]
pub(crate) struct Pace {
    begun: Instant,
    /// When the head began that is under way, in milliseconds from the beginning; or [`NONE`].
    head: AtomicU64,
    /// Whether a request is being answered: what arrives is its body then.
    busy: AtomicBool,
}

impl Pace {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { begun: Instant::now(), head: AtomicU64::new(0), busy: AtomicBool::new(false) })
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(NONE - 1)
    }

    fn arrived(&self) {
        if !self.busy.load(Relaxed) && self.head.load(Relaxed) == NONE {
            self.head.store(self.elapsed(), Relaxed);
        }
    }

    /// Says that a head is complete; its request lasts until the guard is dropped.
    pub(crate) fn answer(self: &Arc<Self>) -> Answering {
        self.busy.store(true, Relaxed);
        self.head.store(NONE, Relaxed);
        Answering(Arc::clone(self))
    }

    /// Says whether a head is under way, or the first one is waited for.
    pub(crate) fn in_head(&self) -> bool {
        !self.busy.load(Relaxed) && self.head.load(Relaxed) != NONE
    }

    /// Waits until a head takes too long.
    pub(crate) async fn overdue(&self) {
        let most = u64::try_from(HEAD_TIMEOUT.as_millis()).unwrap_or(NONE);
        loop {
            tokio::time::sleep(LOOK).await;
            let head = self.head.load(Relaxed);
            if head != NONE && self.elapsed().saturating_sub(head) >= most {
                return;
            }
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Pace>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.busy.store(false, Relaxed);
    }
}

/// The body of an answer, which keeps its request until it was sent.
#[derive(Debug)]
pub(crate) struct Answer<B> {
    body: B,
    _answering: Answering,
}

impl<B> Answer<B> {
    pub(crate) fn new(body: B, answering: Answering) -> Self {
        Self { body, _answering: answering }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that notes when something arrives.
#[derive(Debug)]
pub(crate) struct Paced<S> {
    stream: S,
    pace: Arc<Pace>,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, pace: Arc<Pace>) -> Self {
        Self { stream, pace }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.pace.arrived();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    write_to_stream!();
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::{sleep, timeout};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn connection() -> (DuplexStream, Paced<DuplexStream>, Arc<Pace>) {
        let (client, server) = duplex(64);
        let pace = Pace::new();
        (client, Paced::new(server, Arc::clone(&pace)), pace)
    }

    async fn exchange(client: &mut DuplexStream, server: &mut Paced<DuplexStream>) {
        client.write_all(b"x").await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_brings_no_whole_head_is_given_up_however_slowly_it_writes() {
        let (mut client, mut server, pace) = connection();
        let drips = async {
            loop {
                exchange(&mut client, &mut server).await;
                sleep(Duration::from_secs(1)).await;
            }
        };
        let begun = Instant::now();
        tokio::select! {
            () = pace.overdue() => {}
            () = drips => {}
        }
        assert!((HEAD_TIMEOUT..=HEAD_TIMEOUT + LOOK).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_as_long_as_it_likes_and_so_may_the_pause_after_it() {
        let (mut client, mut server, pace) = connection();
        exchange(&mut client, &mut server).await;
        let answering = pace.answer();
        exchange(&mut client, &mut server).await;
        assert!(timeout(LONG, pace.overdue()).await.is_err(), "the body of a request is no head");
        drop(answering);
        assert!(timeout(LONG, pace.overdue()).await.is_err(), "nobody has to ask again at once");
        exchange(&mut client, &mut server).await;
        assert!(timeout(LONG, pace.overdue()).await.is_ok(), "a second head has to end, too");
    }
}
