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

/// A body that can be handed out again as long as nothing was read from it.
pub(crate) struct Lent(Arc<Mutex<Option<ByteStream>>>);

impl ByteStream {
    pub(crate) fn lend(self) -> Lent {
        Lent(Arc::new(Mutex::new(Some(self))))
    }
}

impl Lent {
    /// Returns a stream that takes the body at its first poll. One that comes too late fails and sends nothing.
    pub(crate) fn borrow(&self) -> ByteStream {
        struct Borrowed {
            lent: Arc<Mutex<Option<ByteStream>>>,
            body: Option<ByteStream>,
        }
        impl Stream for Borrowed {
            type Item = Result<Bytes>;
            fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                if self.body.is_none() {
                    let taken = self.lent.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let spent = || Err(Error::new(ErrorKind::InvalidState, "the body was read before"));
                    self.body = Some(taken.unwrap_or_else(|| ByteStream::new(Once(Some(spent())))));
                }
                match &mut self.body {
                    Some(body) => Pin::new(body).poll_next(cx),
                    None => Poll::Ready(None),
                }
            }
        }
        ByteStream::new(Borrowed { lent: Arc::clone(&self.0), body: None })
    }
}

/// A stream of one item.
struct Once<T>(Option<T>);

impl<T> Unpin for Once<T> {}

impl<T> Stream for Once<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(self.get_mut().0.take())
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
