//! Bodies that are watched while they pass, and cut where a script says.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::exchange::Exchange;
use super::proxy::Records;

/// How much of a body is kept.
const KEPT: usize = 64 << 10;

/// Which body of an exchange it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Request,
    Answer,
}

/// A body that leaves its traces in the record of its exchange.
#[derive(Debug)]
pub(super) struct Watched<B> {
    inner: B,
    side: Side,
    number: usize,
    records: Arc<Records>,
    /// How many bytes may still pass; none for all.
    left: Option<u64>,
    flushed: bool,
}

impl<B> Watched<B> {
    pub(super) fn new(inner: B, side: Side, number: usize, records: Arc<Records>) -> Self {
        Self { inner, side, number, records, left: None, flushed: false }
    }

    pub(super) fn cut_after(mut self, bytes: u64) -> Self {
        self.left = Some(bytes);
        self
    }

    fn note(&self, data: &[u8]) {
        self.records.change(self.number, |exchange: &mut Exchange| {
            let (kept, total) = match self.side {
                Side::Request => (&mut exchange.body, &mut exchange.sent),
                Side::Answer => (&mut exchange.answer_body, &mut exchange.received),
            };
            *total += data.len() as u64;
            let more = &data[..data.len().min(KEPT.saturating_sub(kept.len()))];
            if !more.is_empty() {
                *kept = [&kept[..], more].concat().into();
            }
        });
    }

    fn ended(&self) {
        if let Side::Answer = self.side {
            self.records.change(self.number, |exchange| exchange.complete = true);
        }
    }
}

impl<B> Body for Watched<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if this.left == Some(0) {
            // What passed is flushed while this waits; an error at once would take it along.
            if !std::mem::replace(&mut this.flushed, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(Some(Err(io::Error::other("the script cuts the body here"))));
        }
        let frame = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
            None => {
                this.ended();
                return Poll::Ready(None);
            }
            Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
            Some(Ok(frame)) => frame,
        };
        let Ok(mut data) = frame.into_data() else { return Poll::Ready(None) };
        if let Some(left) = &mut this.left {
            data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= data.len() as u64;
        }
        this.note(&data);
        if this.left.is_none() && this.inner.is_end_stream() {
            this.ended();
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
