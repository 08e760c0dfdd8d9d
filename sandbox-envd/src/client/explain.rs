//! A stream whose error says what became of the sandbox.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use sandhold_core::{Error, Result, ResultStream};

use crate::client::handle::EnvdHandle;

/// Yields what `inner` yields, up to its first error; that one is looked into first.
struct Explained<S> {
    handle: EnvdHandle,
    state: State<S>,
}

enum State<S> {
    Open(S),
    Explaining(Pin<Box<dyn Future<Output = Error> + Send>>),
    Ended,
}

impl EnvdHandle {
    pub(crate) fn explained_stream<T, S>(&self, inner: S) -> ResultStream<T>
    where
        S: Stream<Item = Result<T>> + Unpin + Send + 'static,
    {
        ResultStream::new(Explained { handle: self.clone(), state: State::Open(inner) })
    }
}

impl<T, S: Stream<Item = Result<T>> + Unpin> Stream for Explained<S> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Open(inner) => match ready!(Pin::new(inner).poll_next(cx)) {
                    Some(Err(error)) => {
                        let handle = this.handle.clone();
                        this.state = State::Explaining(Box::pin(async move { handle.explain(error).await }));
                    }
                    item => return Poll::Ready(item),
                },
                State::Explaining(explaining) => {
                    let error = ready!(explaining.as_mut().poll(cx));
                    this.state = State::Ended;
                    return Poll::Ready(Some(Err(error)));
                }
                State::Ended => return Poll::Ready(None),
            }
        }
    }
}
