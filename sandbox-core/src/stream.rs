use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;

use crate::Result;

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
                return Err(crate::Error::invalid_argument(format!(
                    "the content is larger than the limit of {limit} bytes; read it as a stream"
                ))
                .with_reason("too_long"));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
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
