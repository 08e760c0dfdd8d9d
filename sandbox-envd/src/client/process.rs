//! Processes: start, attach, follow, feed, signal.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use buffa::MessageView;
use bytes::Bytes;
use futures_core::Stream;
use sandhold_core::{
    AttachOptions, Error, ErrorKind, OutputStream, Process, ProcessControl, ProcessEvent, ProcessInfo,
    ProcessSelector, ProcessSpec, PtySize, Result, Signal, Stdin,
};

use crate::client::convert::{self, Ending, exit_status};
use crate::client::fault::{Call, Effect};
use crate::client::handle::EnvdHandle;
use crate::client::rpc::Messages;
use crate::messages::process::__buffa::oneof::process_input::Input;
use crate::messages::process::__buffa::view::oneof::process_event::Event;
use crate::messages::process::__buffa::view::oneof::process_event::data_event::Output;
use crate::messages::process::{
    self as wire, CloseStdinRequest, CloseStdinResponse, ConnectRequest, ListRequest, ListResponse,
    ProcessConfig, ProcessInput, Replay, Retain, SendInputRequest, SendInputResponse, SendSignalRequest,
    SendSignalResponse, StartRequest, StartResponseView, UpdateRequest, UpdateResponse,
};

/// Largest piece of input that is sent in one call.
const INPUT_PIECE: usize = 1 << 20;

/// How long a process may leave its input unread; a reader may sleep as long as it likes, so long a line cannot.
const INPUT_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// How much later than our own TERM, grace and KILL a daemon without a deadline of its own kills.
const DEADLINE_SLACK: Duration = Duration::from_secs(10);

/// What a process reads from.
mod input_kind {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const PIPE: u8 = 1;
    pub(super) const PTY: u8 = 2;
}

impl EnvdHandle {
    pub(crate) async fn start_process(&self, spec: ProcessSpec) -> Result<Process> {
        let own = self.client().has_own_daemon();
        if spec.retain.is_some() && !own {
            return Err(self.unsupported("start with kept output"));
        }
        let call = self.call("start", Effect::Once);
        let deadline = spec.deadline.filter(|deadline| !deadline.is_zero());
        let own_deadline = deadline.filter(|_| own);
        // E2B's daemon ends stream and process at the timeout of the stream: that catches what a dead client left.
        let stream_deadline = deadline
            .filter(|_| !own)
            .map(|deadline| deadline.saturating_add(spec.grace).saturating_add(DEADLINE_SLACK));
        let user = spec.user.clone();
        let tag = spec.tag.clone();
        let kind = if spec.pty.is_some() { input_kind::PTY } else { input_kind::PIPE };
        let request = StartRequest {
            process: ProcessConfig {
                cmd: spec.program,
                args: spec.args,
                envs: spec.env.into_iter().collect(),
                cwd: spec.cwd,
            }
            .into(),
            pty: spec.pty.map(convert::pty).into(),
            tag: spec.tag,
            stdin: Some(spec.stdin == Stdin::Open),
            retain: spec.retain.map(|max_bytes| Retain { max_bytes }).into(),
            deadline_ms: own_deadline.map(millis),
            grace_ms: own_deadline.map(|_| millis(spec.grace)),
        };
        let path = "/process.Process/Start";
        let started = self.client().stream(&call, path, &request, user.as_deref(), stream_deadline).await;
        self.follow(started, None, tag, kind).await
    }

    pub(crate) async fn attach_process(
        &self,
        process: ProcessSelector,
        options: AttachOptions,
    ) -> Result<Process> {
        if options.replay.is_some() && !self.client().has_own_daemon() {
            return Err(self.unsupported("attach with replay"));
        }
        let call = self.call("attach", Effect::None);
        let replay =
            options.replay.map(|from| Replay { stdout: from.stdout, stderr: from.stderr, pty: from.pty });
        let request = ConnectRequest { process: self.selector(&process)?.into(), replay: replay.into() };
        let tag = match &process {
            ProcessSelector::Tag(tag) => Some(tag.clone()),
            _ => None,
        };
        let attached = self.client().stream(&call, "/process.Process/Connect", &request, None, None).await;
        self.follow(attached, Some(process), tag, input_kind::UNKNOWN).await
    }

    /// Waits for the first event, which says that the process runs.
    async fn follow(
        &self,
        stream: Result<Messages>,
        selector: Option<ProcessSelector>,
        tag: Option<String>,
        kind: u8,
    ) -> Result<Process> {
        let mut messages = self.explained(stream).await?;
        let pid = loop {
            let Some(message) = messages.next().await else {
                let error =
                    messages.call().lost(ErrorKind::Unexpected, "the stream ended before the process ran");
                return Err(self.explain(error).await);
            };
            let message = self.explained(message).await?;
            match first_pid(&message) {
                Ok(Some(pid)) => break pid,
                Ok(None) => {}
                Err(error) => return Err(messages.malformed(error)),
            }
        };
        let kind = Arc::new(AtomicU8::new(kind));
        let control = EnvdProcess {
            handle: self.clone(),
            selector: selector.unwrap_or(ProcessSelector::Pid(pid)),
            kind: Arc::clone(&kind),
            writing: tokio::sync::Mutex::new(()),
        };
        let call = self.call(messages.call().operation, Effect::Once);
        let events = self.explained_stream(Events { call, pid, messages, kind, ended: false });
        Ok(Process::new(pid, tag, Arc::new(control), events))
    }

    pub(crate) async fn list_processes(&self) -> Result<Vec<ProcessInfo>> {
        let call = self.call("processes", Effect::None);
        let request = ListRequest { include_ended: true };
        let answer: ListResponse = self.rpc(&call, "/process.Process/List", &request, None).await?;
        Ok(answer.processes.into_iter().map(convert::process_info).collect())
    }

    pub(crate) async fn signal_process(&self, process: &ProcessSelector, signal: Signal) -> Result<bool> {
        let known = match signal {
            Signal::KILL => wire::Signal::SIGNAL_SIGKILL,
            Signal::TERM => wire::Signal::SIGNAL_SIGTERM,
            _ if self.client().has_own_daemon() => wire::Signal::SIGNAL_UNSPECIFIED,
            _ => return Err(self.unsupported("signal").with_context("signal", signal.0)),
        };
        // Other signals may be counted by who gets them.
        let twice = matches!(signal, Signal::KILL | Signal::TERM);
        let call = self.call("signal", if twice { Effect::Idempotent } else { Effect::Once });
        let request = SendSignalRequest {
            process: self.selector(process)?.into(),
            signal: known.into(),
            tree: Some(true),
            signal_number: (known == wire::Signal::SIGNAL_UNSPECIFIED).then_some(signal.0),
        };
        let sent: Result<SendSignalResponse> =
            self.rpc(&call, "/process.Process/SendSignal", &request, None).await;
        match sent {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn release_process(&self, process: &ProcessSelector) -> Result<bool> {
        if !self.client().has_own_daemon() {
            return Err(self.unsupported("release"));
        }
        let call = self.call("release", Effect::Idempotent);
        let body = match process {
            ProcessSelector::Pid(pid) => serde_json::json!({ "pid": pid }),
            ProcessSelector::Tag(tag) => serde_json::json!({ "tag": tag }),
            _ => return Err(self.unsupported("release by such a selector")),
        };
        let path = "/sandhold/processes/release";
        let answer = self.client().json(&call, http::Method::POST, path, Some(&body)).await;
        match self.explained(answer).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                Err(call.error(ErrorKind::InvalidState, "the process is still running").with_source(error))
            }
            Err(error) => Err(error),
        }
    }

    fn selector(&self, process: &ProcessSelector) -> Result<wire::ProcessSelector> {
        convert::selector(process).ok_or_else(|| self.unsupported("selecting a process this way"))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a first event; none for a ping, an error for anything but a start.
fn first_pid(message: &Bytes) -> std::result::Result<Option<u32>, Box<dyn std::error::Error + Send + Sync>> {
    let view = StartResponseView::decode_view(message)?;
    match view.event.as_option().and_then(|event| event.event.as_ref()) {
        Some(Event::Start(start)) => Ok(Some(start.pid)),
        Some(Event::Keepalive(_)) => Ok(None),
        _ => Err("the first event is not a start".into()),
    }
}

/// The events after the start.
struct Events {
    call: Call,
    pid: u32,
    messages: Messages,
    kind: Arc<AtomicU8>,
    ended: bool,
}

impl Stream for Events {
    type Item = Result<ProcessEvent>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while !this.ended {
            let event = match ready!(this.messages.poll_next(cx)) {
                Some(message) => message.and_then(|message| this.event(&message)),
                None => Err(this.messages.malformed("the stream ended without an end event")),
            };
            match event {
                Ok(Some(event)) => {
                    if matches!(event, ProcessEvent::Exit(_)) {
                        this.messages.only_end_left();
                        this.ended = true;
                    }
                    return Poll::Ready(Some(Ok(event)));
                }
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(this.unknown(error)))),
            }
        }
        Poll::Ready(None)
    }
}

impl Events {
    fn event(&self, message: &Bytes) -> Result<Option<ProcessEvent>> {
        let view = StartResponseView::decode_view(message).map_err(|error| self.messages.malformed(error))?;
        let event = match view.event.as_option().and_then(|event| event.event.as_ref()) {
            Some(Event::Data(data)) => {
                let (stream, bytes) = match &data.output {
                    Some(Output::Stdout(bytes)) => (OutputStream::Stdout, bytes),
                    Some(Output::Stderr(bytes)) => (OutputStream::Stderr, bytes),
                    Some(Output::Pty(bytes)) => {
                        self.kind.store(input_kind::PTY, Relaxed);
                        (OutputStream::Pty, bytes)
                    }
                    None => return Ok(None),
                };
                let data = ProcessEvent::Output {
                    stream,
                    data: message.slice_ref(bytes),
                    offset: data.offset,
                    dropped: data.dropped,
                };
                Some(data)
            }
            Some(Event::End(end)) => Some(ProcessEvent::Exit(exit_status(&Ending {
                exit_code: end.exit_code,
                exited: end.exited,
                status: end.status,
                signal: end.signal,
                oom_killed: end.oom_killed,
                timed_out: end.timed_out,
            }))),
            // A ping, a second start, or an event of another version.
            _ => None,
        };
        Ok(event)
    }

    /// No answer about the end is an error, and never an exit.
    fn unknown(&self, error: Error) -> Error {
        let message = "the output broke off before the exit; the process may still run";
        self.call
            .error(ErrorKind::OutcomeUnknown, message)
            .with_context("pid", self.pid)
            .with_context("cause", error.kind())
            .with_source(error)
    }
}

/// Input and signals of one process.
#[derive(Debug)]
struct EnvdProcess {
    handle: EnvdHandle,
    selector: ProcessSelector,
    kind: Arc<AtomicU8>,
    /// Keeps the pieces of one write together.
    writing: tokio::sync::Mutex<()>,
}

impl EnvdProcess {
    async fn send(&self, input: Input) -> Result<()> {
        let call = self.handle.call("write", Effect::Once);
        let request = SendInputRequest {
            process: self.handle.selector(&self.selector)?.into(),
            input: ProcessInput { input: Some(input) }.into(),
        };
        let client = self.handle.client();
        let path = "/process.Process/SendInput";
        let sent: Result<SendInputResponse> =
            client.unary_within(&call, path, &request, None, INPUT_PATIENCE).await;
        self.handle.explained(sent).await.map(|_| ())
    }

    async fn write_piece(&self, piece: Bytes) -> Result<()> {
        let sent = match self.kind.load(Relaxed) {
            input_kind::PTY => self.send(Input::Pty(piece)).await,
            input_kind::PIPE => self.send(Input::Stdin(piece)).await,
            // Nothing tells which it is; the wrong one is refused without effect.
            _ => match self.send(Input::Pty(piece.clone())).await {
                Err(error) if answered_internal(&error) => {
                    let sent = self.send(Input::Stdin(piece)).await;
                    if sent.is_ok() {
                        self.kind.store(input_kind::PIPE, Relaxed);
                    }
                    sent
                }
                sent => {
                    if sent.is_ok() {
                        self.kind.store(input_kind::PTY, Relaxed);
                    }
                    sent
                }
            },
        };
        sent.map_err(|error| closed_input(error, "the input is closed, or was never open"))
    }
}

/// Envd answers `internal` or `failed_precondition` to input and sizes that the process does not take.
fn answered_internal(error: &Error) -> bool {
    error.context().any(|(name, value)| name == "code" && matches!(value, "internal" | "failed_precondition"))
}

fn closed_input(error: Error, message: &'static str) -> Error {
    if !answered_internal(&error) {
        return error;
    }
    Error::new(ErrorKind::InvalidState, message).at(error.provider(), error.operation()).with_source(error)
}

#[async_trait]
impl ProcessControl for EnvdProcess {
    async fn write(&self, mut data: Bytes) -> Result<()> {
        let _writing = self.writing.lock().await;
        let mut sent = 0u64;
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(INPUT_PIECE));
            let length = piece.len() as u64;
            self.write_piece(piece).await.map_err(|error| error.with_context("sent", sent))?;
            sent += length;
        }
        Ok(())
    }

    async fn close_stdin(&self) -> Result<()> {
        if self.kind.load(Relaxed) == input_kind::PTY {
            return Err(self.handle.unsupported("closing the input of a terminal; write byte 4 instead"));
        }
        let call = self.handle.call("close_stdin", Effect::Idempotent);
        let request = CloseStdinRequest { process: self.handle.selector(&self.selector)?.into() };
        let _: CloseStdinResponse =
            self.handle.rpc(&call, "/process.Process/CloseStdin", &request, None).await?;
        Ok(())
    }

    async fn resize(&self, size: PtySize) -> Result<()> {
        let call = self.handle.call("resize", Effect::Idempotent);
        let request = UpdateRequest {
            process: self.handle.selector(&self.selector)?.into(),
            pty: convert::pty(size).into(),
        };
        let resized: Result<UpdateResponse> =
            self.handle.rpc(&call, "/process.Process/Update", &request, None).await;
        resized.map(|_| ()).map_err(|error| closed_input(error, "the process has no terminal"))
    }

    async fn signal(&self, signal: Signal) -> Result<bool> {
        self.handle.signal_process(&self.selector, signal).await
    }
}
