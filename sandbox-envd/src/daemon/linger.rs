//! A connection that is closed without losing the last answer.
//!
//! An answer may come before the request is read to its end: a wrong token, an unknown user, a full disk. Were
//! the socket closed then, the kernel would answer the bytes still coming with a reset, and the client would
//! lose the answer that lies in its buffer. So the sending side is closed first, and what comes is dropped for a
//! while.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How long to wait for more bytes, or the client's own end, before the socket is closed.
const SILENCE: Duration = Duration::from_secs(1);

/// How long to drop bytes at most: a client that never stops sending is cut off.
const WHOLE: Duration = Duration::from_secs(30);

/// Bytes dropped at once.
const SCRATCH: usize = 16 * 1024;

/// A socket whose shutdown waits for the other side's end.
#[derive(Debug)]
pub struct Lingering<S> {
    socket: S,
    /// The connection carries another protocol now, whose half-closes are its own.
    upgraded: Arc<AtomicBool>,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    silence: Pin<Box<Sleep>>,
    latest: Instant,
}

impl<S> Lingering<S> {
    /// Wraps a socket; `upgraded` is set once it carries another protocol, whose half-closes are its own.
    pub fn new(socket: S, upgraded: Arc<AtomicBool>) -> Self {
        Self { socket, upgraded, end: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.end.is_none() {
            ready!(Pin::new(&mut this.socket).poll_shutdown(cx))?;
            if this.upgraded.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let end = this
            .end
            .get_or_insert_with(|| End { silence: Box::pin(sleep(SILENCE)), latest: Instant::now() + WHOLE });
        let mut scratch = [0; SCRATCH];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.socket).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let until = Instant::now() + SILENCE;
                    if until > end.latest {
                        return Poll::Ready(Ok(()));
                    }
                    end.silence.as_mut().reset(until);
                }
                // The other side's end, or a reset: either way nothing more comes.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return end.silence.as_mut().poll(cx).map(Ok),
            }
        }
    }
}
