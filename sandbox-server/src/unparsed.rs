//! Refusals of what is no request. The HTTP library answers it without a body, which E2B's clients cannot read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::ApiError;
use crate::pace::Pace;

/// The end of the head of an answer.
const END: &[u8] = b"\r\n\r\n";

/// How an answer says that it has no body.
const EMPTY: &str = "content-length: 0\r\n";

/// A connection on which the refusals of its HTTP library have bodies, too.
#[derive(Debug)]
pub(crate) struct Explained<S> {
    stream: S,
    pace: Arc<Pace>,
    /// What is still to be sent of a refusal.
    refusal: Vec<u8>,
}

impl<S> Explained<S> {
    pub(crate) fn new(stream: S, pace: Arc<Pace>) -> Self {
        Self { stream, pace, refusal: Vec::new() }
    }
}

/// Returns a refusal with a body, where this is one that has none.
fn explained(data: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(data.strip_suffix(b"\r\n")?).ok().filter(|_| data.ends_with(END))?;
    let (first, fields) = head.split_once("\r\n")?;
    let message = match first.strip_prefix("HTTP/1.")?.split(' ').nth(1)? {
        "400" => "this is no request of HTTP/1.1",
        "414" => "the address of the request is too long",
        "431" => "the head of the request is too long, or has too many fields",
        _ => return None,
    };
    let status = first.split(' ').nth(1).and_then(|code| StatusCode::from_bytes(code.as_bytes()).ok())?;
    let (before, after) = fields.split_once(EMPTY)?;
    let body = ApiError::new(status, message).to_json();
    let length = body.len();
    let mut whole = format!(
        "{first}\r\n{before}content-type: application/json\r\ncontent-length: {length}\r\n{after}\r\n"
    )
    .into_bytes();
    whole.extend(body);
    Some(whole)
}

impl<S: AsyncRead + Unpin> AsyncRead for Explained<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> Explained<S> {
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.refusal.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.refusal))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.refusal.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Explained<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_refusal(cx))?;
        // No request was handed over: what is written now is the library's own.
        if self.pace.in_head()
            && let Some(refusal) = explained(data)
        {
            self.refusal = refusal;
            return Poll::Ready(Ok(data.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.refusal.is_empty() || self.pace.in_head() {
            let first = data.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
            return self.poll_write(cx, first);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_without_a_body_gets_one() {
        let refusal =
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\
            date: now\r\n\r\n";
        let body = r#"{"code":431,"message":"the head of the request is too long, or has too many fields"}"#;
        let whole = format!(
            "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\ndate: now\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(String::from_utf8(explained(refusal).unwrap()).unwrap(), whole);
        for other in [
            &b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"400\r\n\r\n",
            b"\r\n\r\n",
            b"",
        ] {
            assert_eq!(explained(other), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
