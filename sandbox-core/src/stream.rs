use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;

use crate::{Error, ErrorKind, Result};

/// A stream of results that can be sent between tasks.
///
/// Dropping it ends the transfer or the subscription behind it.
pub struct ResultStream<T>(Pin<Box<dyn Stream<Item = Result<T>> + Send>>);

/// The bytes of a file or of a body, in chunks of the sender's choice.
pub type ByteStream = ResultStream<Bytes>;

impl<T> ResultStream<T> {
    /// Wraps a stream.
    pub fn new(stream: impl Stream<Item = Result<T>> + Send + 'static) -> Self {
        Self(Box::pin(stream))
    }

    /// Returns the next item, or `None` at the end.
    ///
    /// # Errors
    /// What the sender reports; the stream has ended then.
    ///
    /// # Cancellation
    /// Safe: an item that was not returned stays for the next call.
    pub async fn next(&mut self) -> Option<Result<T>> {
        poll_fn(|cx| self.0.as_mut().poll_next(cx)).await
    }

    /// Reads all items.
    ///
    /// # Errors
    /// The first error of the stream.
    pub async fn collect(mut self) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while let Some(item) = self.next().await {
            items.push(item?);
        }
        Ok(items)
    }
}

impl<T: Send + 'static> ResultStream<T> {
    /// A stream whose next item is made by `step` from the state that the last step left; `None` ends it, and so does
    /// the first error.
    pub fn unfold<S, F>(state: S, step: impl FnMut(S) -> F + Send + 'static) -> Self
    where
        S: Send + 'static,
        F: Future<Output = Option<(Result<T>, S)>> + Send + 'static,
    {
        Self::new(Unfold { state: Some(state), step, running: None })
    }

    /// A stream of these items.
    pub fn from_items(items: Vec<T>) -> Self {
        struct Items<T>(std::vec::IntoIter<T>);
        impl<T> Unpin for Items<T> {}
        impl<T> Stream for Items<T> {
            type Item = Result<T>;
            fn poll_next(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                Poll::Ready(self.get_mut().0.next().map(Ok))
            }
        }
        Self::new(Items(items.into_iter()))
    }
}

struct Unfold<S, F, G> {
    state: Option<S>,
    step: G,
    running: Option<Pin<Box<F>>>,
}

// Nothing is pinned in place: the running step has its own box.
impl<S, F, G> Unpin for Unfold<S, F, G> {}

impl<T, S, F, G> Stream for Unfold<S, F, G>
where
    F: Future<Output = Option<(Result<T>, S)>>,
    G: FnMut(S) -> F,
{
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(state) = this.state.take() {
            this.running = Some(Box::pin((this.step)(state)));
        }
        let Some(running) = this.running.as_mut() else {
            return Poll::Ready(None);
        };
        let made = std::task::ready!(running.as_mut().poll(cx));
        this.running = None;
        Poll::Ready(made.map(|(item, state)| {
            this.state = item.is_ok().then_some(state);
            item
        }))
    }
}

impl ByteStream {
    /// A body of these bytes.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::from_items(if bytes.is_empty() { Vec::new() } else { vec![bytes] })
    }

    /// Reads everything into one buffer.
    ///
    /// # Errors
    /// The first error of the stream, or [`crate::ErrorKind::InvalidArgument`] above `limit` bytes.
    pub async fn into_bytes(mut self, limit: usize) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            if all.len() + chunk.len() > limit {
                return Err(Error::invalid_argument(format!(
                    "the content is larger than the limit of {limit} bytes; read it as a stream"
                ))
                .with_reason("too_long"));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

/// How much of a body is kept to be sent again: what a refusal that comes while the body is under way may have cost.
const REPLAY_LIMIT: usize = 4 * 1024 * 1024;

/// A body that can be sent a second time, as long as no more than [`REPLAY_LIMIT`] was read from it.
pub(crate) struct Lent(Arc<Mutex<Lending>>);

struct Lending {
    body: ByteStream,
    /// What was read so far; `None` once that was too much to keep.
    read: Option<Vec<Bytes>>,
    kept: usize,
}

struct Borrowed {
    lending: Arc<Mutex<Lending>>,
    next: usize,
}

impl ByteStream {
    pub(crate) fn lend(self) -> Lent {
        Lent(Arc::new(Mutex::new(Lending { body: self, read: Some(Vec::new()), kept: 0 })))
    }
}

impl Lent {
    /// Returns the body from its beginning.
    pub(crate) fn borrow(&self) -> ByteStream {
        ByteStream::new(Borrowed { lending: Arc::clone(&self.0), next: 0 })
    }
}

impl Stream for Borrowed {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let lending = Arc::clone(&self.lending);
        let mut lending = lending.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(read) = &lending.read else {
            return if self.next == usize::MAX {
                Pin::new(&mut lending.body).poll_next(cx)
            } else {
                let message = "too much of the body was read to send it again; write it once more";
                Poll::Ready(Some(Err(Error::new(ErrorKind::InvalidState, message))))
            };
        };
        if let Some(chunk) = read.get(self.next) {
            let chunk = chunk.clone();
            self.next += 1;
            return Poll::Ready(Some(Ok(chunk)));
        }
        let polled = Pin::new(&mut lending.body).poll_next(cx);
        if let Poll::Ready(Some(Ok(chunk))) = &polled {
            lending.kept += chunk.len();
            if lending.kept > REPLAY_LIMIT {
                // This reader is at the end of what was kept and goes on; nobody can begin again.
                lending.read = None;
                self.next = usize::MAX;
            } else if let Some(read) = &mut lending.read {
                read.push(chunk.clone());
                self.next += 1;
            }
        }
        polled
    }
}

impl<T> Stream for ResultStream<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl<T> fmt::Debug for ResultStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultStream").finish_non_exhaustive()
    }
}
