//! What a client that follows a process is sent, and how it is put on the wire.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use buffa::{Message, MessageField};
use bytes::{BufMut, Bytes, BytesMut};
use connectrpc::{CodecFormat, ConnectError, Encodable, EncodedBody};
use futures_core::Stream as FuturesStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::daemon::process::log::Slice;
use crate::daemon::process::running::{End, Process, Subscription};
use crate::daemon::process::stream::{Chunk, Stream};
use crate::messages::process::__buffa::oneof::process_event::Event;
use crate::messages::process::__buffa::oneof::process_event::data_event::Output;
use crate::messages::process::process_event::{DataEvent, EndEvent, KeepAlive, StartEvent};
use crate::messages::process::{ConnectResponse, ProcessEvent, StartResponse};

/// Largest chunk of clients that speak JSON, as in E2B's envd: 32 KiB, terminals 16 KiB.
const JSON_CHUNK: usize = 32 << 10;
const JSON_TERMINAL_CHUNK: usize = 16 << 10;

/// Read at once from retained output.
const REPLAY_CHUNK: usize = 256 << 10;

/// One message of a `Start` or `Connect` stream; both look the same on the wire.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Start(u32),
    Data(Chunk),
    End(EndEvent),
    KeepAlive,
}

impl Reply {
    fn event(&self) -> ProcessEvent {
        let event = match self {
            Self::Start(pid) => Event::Start(Box::new(StartEvent { pid: *pid })),
            Self::Data(chunk) => {
                let bytes = chunk.bytes.clone();
                let output = match chunk.stream {
                    Stream::Stdout => Output::Stdout(bytes),
                    Stream::Stderr => Output::Stderr(bytes),
                    Stream::Pty => Output::Pty(bytes),
                };
                let (offset, dropped) = (chunk.offset, chunk.dropped);
                Event::Data(Box::new(DataEvent { output: Some(output), offset, dropped }))
            }
            Self::End(end) => Event::End(Box::new(end.clone())),
            Self::KeepAlive => Event::Keepalive(Box::<KeepAlive>::default()),
        };
        ProcessEvent { event: Some(event) }
    }

    fn proto(&self) -> EncodedBody {
        match self {
            Self::Data(chunk) => EncodedBody::from_segments(vec![data_prefix(chunk), chunk.bytes.clone()]),
            other => {
                let response = StartResponse { event: MessageField::some(other.event()) };
                EncodedBody::from(response.encode_to_bytes())
            }
        }
    }

    fn json(&self) -> Result<Bytes, ConnectError> {
        let response = StartResponse { event: MessageField::some(self.event()) };
        let json = serde_json::to_vec(&response).map_err(|error| {
            ConnectError::internal(format!("the event cannot be written as JSON: {error}"))
        })?;
        Ok(json.into())
    }
}

/// Encodes everything of a data message but its bytes, which then follow without having been copied.
fn data_prefix(chunk: &Chunk) -> Bytes {
    const EVENT: u32 = 1;
    const DATA: u32 = 2;
    const OFFSET: u32 = 1000;
    const DROPPED: u32 = 1001;
    let length = chunk.bytes.len() as u64;
    // The order of fields is free in protobuf, so the bytes can go last.
    let mut fields = BytesMut::with_capacity(32);
    for (field, value) in [(OFFSET, chunk.offset), (DROPPED, chunk.dropped)] {
        if value > 0 {
            put_varint(&mut fields, u64::from(field << 3));
            put_varint(&mut fields, value);
        }
    }
    put_length_key(&mut fields, chunk.stream.field(), length);
    let data = fields.len() as u64 + length;
    let mut data_key = BytesMut::with_capacity(16);
    put_length_key(&mut data_key, DATA, data);
    let mut prefix = BytesMut::with_capacity(64);
    put_length_key(&mut prefix, EVENT, data_key.len() as u64 + data);
    prefix.unsplit(data_key);
    prefix.unsplit(fields);
    prefix.freeze()
}

/// Puts the key and length of a length-delimited field.
fn put_length_key(buffer: &mut BytesMut, field: u32, length: u64) {
    put_varint(buffer, u64::from(field << 3 | 2));
    put_varint(buffer, length);
}

fn put_varint(buffer: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        buffer.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    buffer.put_u8(value as u8);
}

macro_rules! encodes_as {
    ($($message:ty),+) => {$(
        impl Encodable<$message> for Reply {
            fn encode(&self, codec: CodecFormat) -> Result<Bytes, ConnectError> {
                Encodable::<$message>::encode_segments(self, codec).map(EncodedBody::into_contiguous)
            }

            fn encode_segments(&self, codec: CodecFormat) -> Result<EncodedBody, ConnectError> {
                match codec {
                    CodecFormat::Proto => Ok(self.proto()),
                    CodecFormat::Json => self.json().map(EncodedBody::from),
                    _ => Err(ConnectError::unimplemented("events are written as protobuf or JSON")),
                }
            }
        }
    )+};
}
encodes_as!(StartResponse, ConnectResponse);

/// The stream of a follower: the start at once, what is retained, what comes, the end.
///
/// Dropping it detaches the follower and does nothing to the process.
#[derive(Debug)]
pub(crate) struct Follow {
    process: Arc<Process>,
    start: Option<Reply>,
    replay: VecDeque<Slice>,
    reading: Option<JoinHandle<(Slice, io::Result<Chunk>)>>,
    live: mpsc::Receiver<Chunk>,
    rest: Option<Chunk>,
    limit: usize,
    /// Whether a death at a deadline is told as the stream's error: `Start` with `Connect-Timeout-Ms`.
    deadline_is_error: bool,
    done: bool,
}

impl Follow {
    pub(crate) fn new(
        process: Arc<Process>,
        subscription: Subscription,
        json: bool,
        deadline_is_error: bool,
    ) -> Self {
        let limit = match (json, process.is_terminal) {
            (false, _) => usize::MAX,
            (true, false) => JSON_CHUNK,
            (true, true) => JSON_TERMINAL_CHUNK,
        };
        Self {
            start: Some(Reply::Start(process.pid)),
            process,
            replay: subscription.replay.into(),
            reading: None,
            live: subscription.live,
            rest: None,
            limit,
            deadline_is_error,
            done: false,
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        // One at a time: a second poll during a read must not put the next slice in its place.
        if self.reading.is_none()
            && let Some(mut slice) = self.replay.pop_front()
        {
            self.reading = Some(tokio::task::spawn_blocking(move || {
                let (stream, offset, dropped) = (slice.stream, slice.offset, slice.dropped);
                let read = slice.read(REPLAY_CHUNK);
                (slice, read.map(|bytes| Chunk { stream, offset, dropped, bytes }))
            }));
        }
        if let Some(reading) = &mut self.reading {
            let (slice, chunk) = match ready!(Pin::new(reading).poll(cx)) {
                Ok(read) => read,
                Err(error) => return Poll::Ready(Some(Err(io::Error::other(error)))),
            };
            self.reading = None;
            if chunk.is_ok() && slice.offset < slice.end {
                self.replay.push_front(slice);
            }
            return Poll::Ready(Some(chunk));
        }
        self.live.poll_recv(cx).map(|chunk| chunk.map(Ok))
    }

    fn end(&self) -> Result<Reply, ConnectError> {
        match self.process.end() {
            Some(End::Known(end)) if self.deadline_is_error && end.timed_out => {
                Err(ConnectError::deadline_exceeded("the process was killed at its deadline"))
            }
            Some(End::Known(end)) => Ok(Reply::End(end)),
            Some(End::Unknown) => {
                let pid = self.process.pid;
                Err(ConnectError::data_loss(format!(
                    "how process {pid} ended is unknown: nobody recorded it"
                )))
            }
            None => Err(ConnectError::internal("the output ended before the process")),
        }
    }
}

impl FuturesStream for Follow {
    type Item = Result<Reply, ConnectError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(start) = this.start.take() {
            return Poll::Ready(Some(Ok(start)));
        }
        if this.done {
            return Poll::Ready(None);
        }
        let mut chunk = match this.rest.take() {
            Some(rest) => rest,
            None => match ready!(this.poll_chunk(cx)) {
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => {
                    this.done = true;
                    let text = format!("retained output cannot be read: {error}");
                    return Poll::Ready(Some(Err(ConnectError::internal(text))));
                }
                None => {
                    this.done = true;
                    return Poll::Ready(Some(this.end()));
                }
            },
        };
        if chunk.bytes.len() > this.limit {
            let front = chunk.split_to(this.limit);
            this.rest = Some(chunk);
            return Poll::Ready(Some(Ok(Reply::Data(front))));
        }
        Poll::Ready(Some(Ok(Reply::Data(chunk))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_bytes_that_follow_uncopied_are_the_message_a_generated_encoder_means(
            bytes in proptest::collection::vec(any::<u8>(), 1..300),
            offset in any::<u64>(),
            dropped in any::<u64>(),
            index in 0_usize..3,
        ) {
            let chunk = Chunk { stream: Stream::ALL[index], offset, dropped, bytes: bytes.into() };
            let reply = Reply::Data(chunk);
            let encoded = Encodable::<StartResponse>::encode(&reply, CodecFormat::Proto).unwrap();
            let decoded = StartResponse::decode_from_slice(&encoded).unwrap();
            prop_assert_eq!(decoded, StartResponse { event: MessageField::some(reply.event()) });
        }
    }
}
