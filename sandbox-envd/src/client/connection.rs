//! Connections: opened, used by one exchange at a time, kept for the next.
//!
//! An exchange drives its connection itself, in the task that reads the answer. That saves a task switch per
//! chunk, gives back-pressure down to the socket, and ends the connection when its reader goes away.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use sandhold_core::{ByteStream, PortStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::client::transport::Transport;

/// Idle connections that are kept.
const MAX_IDLE: usize = 32;

/// How long they are kept; well below what servers allow.
const IDLE_TIME: Duration = Duration::from_secs(20);

/// How long the rest of an answer may take after its reader has what it wanted.
const DRAIN_TIME: Duration = Duration::from_secs(2);

type BoxError = Box<dyn StdError + Send + Sync>;

/// Why an exchange failed below the level of answers.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) source: BoxError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Nothing was sent.
    Unsent,
    /// The connection broke after something was sent.
    Lost,
    /// No byte moved for too long after something was sent.
    Stalled,
    /// The answer is not what the protocol says.
    Malformed,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, source: impl Into<BoxError>) -> Self {
        Self { kind, source: source.into() }
    }
}

/// What a request carries.
pub(crate) enum RequestBody {
    Whole(Option<Bytes>),
    Stream(Upload),
}

/// A body that comes from the caller.
pub(crate) struct Upload {
    pub(crate) source: ByteStream,
    /// Bytes still to come, where their number was said.
    pub(crate) left: Option<u64>,
    /// What went wrong with the body itself.
    pub(crate) failed: Arc<Mutex<Option<sandhold_core::Error>>>,
    pub(crate) sent: Arc<AtomicU64>,
    pub(crate) waiting: Arc<AtomicBool>,
}

impl Upload {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, sandhold_core::Error>>> {
        let next = futures_core::Stream::poll_next(Pin::new(&mut self.source), cx);
        self.waiting.store(next.is_pending(), Relaxed);
        let chunk = match ready!(next) {
            Some(chunk) => chunk?,
            None if self.left.is_some_and(|left| left > 0) => {
                return Poll::Ready(Some(Err(self.wrong_size())));
            }
            None => return Poll::Ready(None),
        };
        let length = chunk.len() as u64;
        self.sent.fetch_add(length, Relaxed);
        if let Some(left) = &mut self.left {
            match left.checked_sub(length) {
                Some(rest) => *left = rest,
                None => return Poll::Ready(Some(Err(self.wrong_size()))),
            }
        }
        Poll::Ready(Some(Ok(chunk)))
    }

    fn wrong_size(&self) -> sandhold_core::Error {
        sandhold_core::Error::invalid_argument(
            "the body has another size than the options say; give the right one, or none",
        )
        .with_context("sent", self.sent.load(Relaxed))
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(upload) => match ready!(upload.poll(cx)) {
                None => Poll::Ready(None),
                Some(Ok(chunk)) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
                Some(Err(error)) => {
                    *upload.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
                    Poll::Ready(Some(Err(error.into())))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(upload) => upload.left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// A stream that counts the bytes that moved, so that a stall can be told from slowness.
struct Counted {
    stream: Box<dyn PortStream>,
    moved: Arc<AtomicU64>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.moved.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.moved.fetch_add(written as u64, Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        self.moved.fetch_add(written as u64, Relaxed);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// One connection.
struct Line {
    sender: SendRequest<RequestBody>,
    /// None once it has ended.
    driver: Option<Connection<TokioIo<Counted>, RequestBody>>,
    moved: Arc<AtomicU64>,
    /// Who is waiting for the caller's body, if there is one.
    waiting: Arc<AtomicBool>,
    ended_with: Option<hyper::Error>,
}

impl Line {
    /// Lets the connection move bytes; must be called on every poll of an exchange.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && let Poll::Ready(ended) = Pin::new(driver).poll(cx)
        {
            self.driver = None;
            self.ended_with = ended.err();
        }
    }
}

/// Watches that bytes move.
struct Patience {
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    seen: u64,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { limit, timer: Box::pin(tokio::time::sleep(limit)), seen: 0 }
    }

    /// Ready when no byte moved for the limit although it was the other side's turn.
    fn poll(&mut self, line: &Line, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let moved = line.moved.load(Relaxed);
            if moved == self.seen && !line.waiting.load(Relaxed) {
                return Poll::Ready(());
            }
            self.seen = moved;
            self.timer.as_mut().reset(Instant::now() + self.limit);
        }
    }
}

/// Opens connections to one place and keeps idle ones.
pub(crate) struct Pool {
    transport: Arc<dyn Transport>,
    connect_timeout: Duration,
    idle: Mutex<Vec<(Instant, Line)>>,
}

impl Pool {
    pub(crate) fn new(transport: Arc<dyn Transport>, connect_timeout: Duration) -> Self {
        Self { transport, connect_timeout, idle: Mutex::new(Vec::new()) }
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Sends a request and returns when the head of the answer is there. `patience` is the longest time without
    /// a byte, for the head and for every part of the body.
    pub(crate) async fn send(
        self: &Arc<Self>,
        mut request: Request<RequestBody>,
        patience: Duration,
    ) -> Result<Response<ResponseBody>, Fault> {
        loop {
            let reused = self.take_idle().await;
            let fresh = reused.is_none();
            let mut line = match reused {
                Some(line) => line,
                None => self.open().await?,
            };
            line.waiting = match request.body() {
                RequestBody::Stream(upload) => Arc::clone(&upload.waiting),
                RequestBody::Whole(_) => Arc::default(),
            };
            match exchange(&mut line, request, patience).await {
                Ok((response, patience)) => {
                    return Ok(response.map(|incoming| ResponseBody {
                        reading: Some(Reading { incoming, line, patience }),
                        pool: Arc::clone(self),
                        only_end_left: false,
                    }));
                }
                // The server closed the idle connection before the request went out.
                Err((_, Some(unsent))) if !fresh => request = *unsent,
                Err((fault, _)) => return Err(fault),
            }
        }
    }

    /// Opens a connection that is used once, for an upgrade.
    pub(crate) async fn upgrade(
        &self,
        request: Request<RequestBody>,
        patience: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let Line { mut sender, driver, .. } = self.open().await?;
        let lost = |error: hyper::Error| Fault::new(FaultKind::Lost, error);
        let Some(driver) = driver else {
            return Err(Fault::new(FaultKind::Unsent, "the connection closed at once"));
        };
        // It ends with the upgrade, or with the body of the answer that refuses one.
        tokio::spawn(driver.with_upgrades());
        let answer = tokio::time::timeout(patience, sender.send_request(request));
        match answer.await {
            Ok(answer) => answer.map_err(lost),
            Err(elapsed) => Err(Fault::new(FaultKind::Stalled, elapsed)),
        }
    }

    /// Opens a connection for whoever speaks on it himself.
    pub(crate) async fn raw(&self) -> Result<Box<dyn PortStream>, Fault> {
        let opened = tokio::time::timeout(self.connect_timeout, self.transport.open()).await;
        opened
            .map_err(|elapsed| Fault::new(FaultKind::Unsent, elapsed))?
            .map_err(|error| Fault::new(FaultKind::Unsent, error))
    }

    async fn open(&self) -> Result<Line, Fault> {
        let opening = async {
            let stream = self.transport.open().await.map_err(BoxError::from)?;
            let moved = Arc::new(AtomicU64::new(0));
            let counted = TokioIo::new(Counted { stream, moved: Arc::clone(&moved) });
            let (sender, driver) = http1::handshake(counted).await.map_err(BoxError::from)?;
            Ok(Line { sender, driver: Some(driver), moved, waiting: Arc::default(), ended_with: None })
        };
        match tokio::time::timeout(self.connect_timeout, opening).await {
            Ok(opened) => opened.map_err(|error: BoxError| Fault::new(FaultKind::Unsent, error)),
            Err(elapsed) => Err(Fault::new(FaultKind::Unsent, elapsed)),
        }
    }

    async fn take_idle(&self) -> Option<Line> {
        loop {
            let (since, mut line) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if since.elapsed() > IDLE_TIME {
                continue;
            }
            // The close of the other side shows as soon as the connection is driven again.
            poll_fn(|cx| {
                line.drive(cx);
                Poll::Ready(())
            })
            .await;
            if line.driver.is_some() && line.sender.is_ready() {
                return Some(line);
            }
        }
    }

    fn put_idle(&self, line: Line) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, _)| since.elapsed() <= IDLE_TIME);
        if idle.len() < MAX_IDLE {
            idle.push((Instant::now(), line));
        }
    }
}

/// A request that was not sent, to be sent again.
type Unsent = Option<Box<Request<RequestBody>>>;

async fn exchange(
    line: &mut Line,
    request: Request<RequestBody>,
    patience: Duration,
) -> Result<(Response<Incoming>, Patience), (Fault, Unsent)> {
    let mut patience = Patience::new(patience);
    let mut answer = std::pin::pin!(line.sender.try_send_request(request));
    poll_fn(|cx| {
        line.drive(cx);
        match answer.as_mut().poll(cx) {
            Poll::Ready(Ok(response)) => return Poll::Ready(Ok(response)),
            Poll::Ready(Err(mut error)) => {
                let unsent = error.take_message().map(Box::new);
                let kind = if unsent.is_some() { FaultKind::Unsent } else { FaultKind::Lost };
                return Poll::Ready(Err((Fault::new(kind, error.into_error()), unsent)));
            }
            Poll::Pending => {}
        }
        if line.driver.is_none() {
            let closed = io::Error::from(io::ErrorKind::UnexpectedEof);
            let source = line.ended_with.take().map_or_else(|| closed.into(), BoxError::from);
            return Poll::Ready(Err((Fault::new(FaultKind::Lost, source), None)));
        }
        patience.poll(line, cx).map(|()| {
            let stalled = io::Error::from(io::ErrorKind::TimedOut);
            Err((Fault::new(FaultKind::Stalled, stalled), None))
        })
    })
    .await
    .map(|response| (response, patience))
}

/// The body of an answer; the connection goes back to the pool after its end.
pub(crate) struct ResponseBody {
    /// None after the end.
    reading: Option<Reading>,
    pool: Arc<Pool>,
    only_end_left: bool,
}

struct Reading {
    incoming: Incoming,
    line: Line,
    patience: Patience,
}

impl ResponseBody {
    /// Returns the next bytes, or `None` at the proper end.
    pub(crate) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        while let Some(Reading { incoming, line, patience }) = &mut self.reading {
            let mut frame = Pin::new(&mut *incoming).poll_frame(cx);
            if frame.is_pending() {
                line.drive(cx);
                frame = Pin::new(incoming).poll_frame(cx);
            }
            match frame {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.reading = None;
                    return Poll::Ready(Some(Err(Fault::new(FaultKind::Lost, error))));
                }
                Poll::Ready(None) => self.recycle(cx),
                Poll::Pending => {
                    ready!(patience.poll(line, cx));
                    self.reading = None;
                    let stalled = io::Error::from(io::ErrorKind::TimedOut);
                    return Poll::Ready(Some(Err(Fault::new(FaultKind::Stalled, stalled))));
                }
            }
        }
        Poll::Ready(None)
    }

    pub(crate) async fn data(&mut self) -> Option<Result<Bytes, Fault>> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Reads the rest, at most so many bytes.
    pub(crate) async fn collect(&mut self, limit: usize) -> Result<Bytes, Fault> {
        let mut whole = bytes::BytesMut::new();
        while let Some(data) = self.data().await {
            let data = data?;
            if whole.len() + data.len() > limit {
                let message = format!("the answer is larger than {limit} bytes");
                return Err(Fault::new(FaultKind::Malformed, message));
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    }

    /// Says that the reader has what it wanted, and that the answer ends here of its own accord.
    pub(crate) fn only_end_left(&mut self) {
        self.only_end_left = true;
    }

    fn recycle(&mut self, cx: &mut Context<'_>) {
        let Some(Reading { mut line, .. }) = self.reading.take() else { return };
        line.drive(cx);
        if line.driver.is_some() && matches!(line.sender.poll_ready(cx), Poll::Ready(Ok(()))) {
            self.pool.put_idle(line);
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if !self.only_end_left {
            return;
        }
        // The end is on its way: reading it saves the next call a new connection.
        if let (Some(mut reading), Ok(runtime)) = (self.reading.take(), tokio::runtime::Handle::try_current())
        {
            reading.patience = Patience::new(DRAIN_TIME);
            let pool = Arc::clone(&self.pool);
            let mut rest = ResponseBody { reading: Some(reading), pool, only_end_left: false };
            runtime.spawn(async move { while let Some(Ok(_)) = rest.data().await {} });
        }
    }
}
