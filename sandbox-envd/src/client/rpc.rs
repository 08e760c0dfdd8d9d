//! Connect RPC with the binary codec: unary calls and server streams.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use buffa::Message;
use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use sandhold_core::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::client::connection::{Fault, FaultKind, RequestBody, ResponseBody};
use crate::client::fault::Call;
use crate::client::request::{EnvdClient, set, set_user};

/// Largest message that is taken.
const MAX_MESSAGE: usize = 64 << 20;

/// Length of what stands before a message in a stream: flags and length.
const HEADER: usize = 5;

const END_OF_STREAM: u8 = 2;

const UNARY: &str = "application/proto";

const STREAM: &str = "application/connect+proto";

/// How often a quiet stream pings, in seconds; official clients ask for the same.
const PING_SECONDS: u16 = 50;

/// A stream that missed three pings is dead.
const STREAM_PATIENCE: Duration = Duration::from_secs(3 * PING_SECONDS as u64);

impl EnvdClient {
    /// Makes a unary call.
    pub(crate) async fn unary<Answer: Message>(
        &self,
        call: &Call,
        path: &str,
        message: &impl Message,
        user: Option<&str>,
    ) -> Result<Answer> {
        self.unary_within(call, path, message, user, self.config().answer_timeout).await
    }

    /// Makes a unary call that may be silent for so long.
    pub(crate) async fn unary_within<Answer: Message>(
        &self,
        call: &Call,
        path: &str,
        message: &impl Message,
        user: Option<&str>,
        patience: Duration,
    ) -> Result<Answer> {
        let body = Bytes::from(message.encode_to_vec());
        let mut request = self.request(Method::POST, path, RequestBody::Whole(Some(body)))?;
        rpc_headers(request.headers_mut(), UNARY);
        set_user(request.headers_mut(), self.user(user))?;
        let response = self.send(call, request, patience).await?;
        let mut response = self.expect(call, response, |status| status == StatusCode::OK).await?;
        check_type(call, response.headers(), UNARY)?;
        let answer = response.body_mut().collect(MAX_MESSAGE).await.map_err(|fault| call.fault(fault))?;
        Answer::decode_from_slice(&answer)
            .map_err(|error| call.fault(Fault::new(FaultKind::Malformed, error)))
    }

    /// Makes a call that is answered by a stream.
    pub(crate) async fn stream(
        &self,
        call: &Call,
        path: &str,
        message: &impl Message,
        user: Option<&str>,
        deadline: Option<Duration>,
    ) -> Result<Messages> {
        let encoded = message.encode_to_vec();
        let length = u32::try_from(encoded.len())
            .map_err(|_| Error::invalid_argument("the request is larger than 4 GiB"))?;
        let mut body = BytesMut::with_capacity(HEADER + encoded.len());
        body.extend_from_slice(&[0]);
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(&encoded);
        let mut request = self.request(Method::POST, path, RequestBody::Whole(Some(body.freeze())))?;
        rpc_headers(request.headers_mut(), STREAM);
        set(request.headers_mut(), "keepalive-ping-interval", PING_SECONDS);
        if let Some(deadline) = deadline {
            let millis = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX).max(1);
            set(request.headers_mut(), "connect-timeout-ms", millis);
        }
        set_user(request.headers_mut(), self.user(user))?;
        let response = self.send(call, request, STREAM_PATIENCE).await?;
        let response = self.expect(call, response, |status| status == StatusCode::OK).await?;
        check_type(call, response.headers(), STREAM)?;
        Ok(Messages { call: *call, envelopes: Envelopes::new(response.into_body()), ended: false })
    }
}

fn rpc_headers(headers: &mut HeaderMap, content_type: &'static str) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    set(headers, "connect-protocol-version", HeaderValue::from_static("1"));
}

fn check_type(call: &Call, headers: &HeaderMap, expected: &str) -> Result<()> {
    let given = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if given == expected.as_bytes() {
        return Ok(());
    }
    let given = String::from_utf8_lossy(given);
    Err(call
        .fault(Fault::new(FaultKind::Malformed, format!("the content type is {given:?}, not {expected}"))))
}

/// The messages of a stream, still encoded.
pub(crate) struct Messages {
    call: Call,
    envelopes: Envelopes,
    ended: bool,
}

impl Messages {
    /// Returns the next message, or `None` after an end without error.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = ready!(self.envelopes.poll_next(cx));
        let error = match next {
            Some(Ok((0, message))) => return Poll::Ready(Some(Ok(message))),
            Some(Ok((END_OF_STREAM, message))) => match serde_json::from_slice::<EndOfStream>(&message) {
                Ok(EndOfStream { error: None }) => {
                    self.ended = true;
                    self.envelopes.body.only_end_left();
                    return Poll::Ready(None);
                }
                Ok(EndOfStream { error: Some(error) }) => {
                    self.envelopes.body.only_end_left();
                    self.call.code(&error.code, &error.message)
                }
                Err(error) => self.call.fault(Fault::new(FaultKind::Malformed, error)),
            },
            Some(Ok((flags, _))) => {
                let fault =
                    Fault::new(FaultKind::Malformed, format!("an envelope has unknown flags {flags}"));
                self.call.fault(fault)
            }
            Some(Err(fault)) => self.call.fault(fault),
            None => self.call.lost(ErrorKind::Unavailable, "the stream ended without saying so"),
        };
        self.ended = true;
        Poll::Ready(Some(Err(error)))
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Bytes>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Says that only the end of the stream is still to come.
    pub(crate) fn only_end_left(&mut self) {
        self.envelopes.body.only_end_left();
    }

    pub(crate) fn malformed(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.call.fault(Fault::new(FaultKind::Malformed, error))
    }

    pub(crate) fn call(&self) -> &Call {
        &self.call
    }
}

#[derive(Deserialize)]
struct EndOfStream {
    error: Option<EndError>,
}

#[derive(Deserialize)]
struct EndError {
    code: String,
    #[serde(default)]
    message: String,
}

/// Cuts a body into envelopes; a message that came in one piece is not copied.
struct Envelopes {
    body: ResponseBody,
    chunk: Bytes,
    /// The beginning of an envelope that came in pieces.
    partial: BytesMut,
}

impl Envelopes {
    fn new(body: ResponseBody) -> Self {
        Self { body, chunk: Bytes::new(), partial: BytesMut::new() }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(u8, Bytes), Fault>>> {
        loop {
            match cut(&mut self.chunk, &mut self.partial) {
                Ok(Some(envelope)) => return Poll::Ready(Some(Ok(envelope))),
                Ok(None) => {}
                Err(length) => {
                    let message =
                        format!("a message of {length} bytes is larger than the limit of {MAX_MESSAGE}");
                    return Poll::Ready(Some(Err(Fault::new(FaultKind::Malformed, message))));
                }
            }
            match ready!(self.body.poll_data(cx)) {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(fault)) => return Poll::Ready(Some(Err(fault))),
                None if self.partial.is_empty() => return Poll::Ready(None),
                None => {
                    let fault = Fault::new(FaultKind::Lost, "the stream ended inside a message");
                    return Poll::Ready(Some(Err(fault)));
                }
            }
        }
    }
}

/// Takes one envelope from the front; what is not enough for one goes to `partial`. An error is a length above
/// the limit.
fn cut(chunk: &mut Bytes, partial: &mut BytesMut) -> Result<Option<(u8, Bytes)>, usize> {
    let length_of = |head: &[u8]| {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > MAX_MESSAGE { Err(length) } else { Ok(length) }
    };
    if partial.is_empty() && chunk.len() >= HEADER {
        let length = length_of(chunk)?;
        if chunk.len() >= HEADER + length {
            let flags = chunk[0];
            chunk.advance(HEADER);
            return Ok(Some((flags, chunk.split_to(length))));
        }
        partial.reserve(HEADER + length);
    }
    if partial.len() < HEADER {
        let missing = (HEADER - partial.len()).min(chunk.len());
        partial.extend_from_slice(&chunk.split_to(missing));
        if partial.len() < HEADER {
            return Ok(None);
        }
    }
    let length = length_of(partial)?;
    let missing = (HEADER + length - partial.len()).min(chunk.len());
    partial.extend_from_slice(&chunk.split_to(missing));
    if partial.len() < HEADER + length {
        return Ok(None);
    }
    let mut whole = std::mem::take(partial);
    let flags = whole[0];
    whole.advance(HEADER);
    Ok(Some((flags, whole.freeze())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn envelopes_come_out_whole_however_the_bytes_are_split(
            messages in prop::collection::vec((0u8..3, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            cuts in prop::collection::vec(1usize..30, 1..20),
        ) {
            let mut wire = Vec::new();
            for (flags, message) in &messages {
                wire.push(*flags);
                wire.extend_from_slice(&(message.len() as u32).to_be_bytes());
                wire.extend_from_slice(message);
            }
            let (mut rest, mut partial, mut got) = (Bytes::from(wire), BytesMut::new(), Vec::new());
            let mut sizes = cuts.iter().cycle();
            while !rest.is_empty() {
                let size = rest.len().min(*sizes.next().unwrap());
                let mut chunk = rest.split_to(size);
                while let Some((flags, message)) = cut(&mut chunk, &mut partial).unwrap() {
                    got.push((flags, message.to_vec()));
                }
                prop_assert!(chunk.is_empty());
            }
            prop_assert!(partial.is_empty());
            prop_assert_eq!(got, messages);
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_anything_is_kept() {
        let mut chunk = Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(cut(&mut chunk, &mut BytesMut::new()), Err(0xffff_ffff));
    }
}
