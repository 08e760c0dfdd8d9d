//! Foreground commands and the other shorthands over a handle.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use crate::files::{EntryInfo, FileOptions, ListOptions, ReadOptions, WriteOptions};
use crate::process::{
    ExitStatus, OutputStream, Process, ProcessControl, ProcessEvent, ProcessSpec, Signal, Stdin,
};
use crate::stream::ByteStream;
use crate::{DEFAULT_CALL_DEADLINE, Error, ErrorKind, Outcome, Result, SandboxHandle};

/// Default deadline of a foreground command.
pub const DEFAULT_EXEC_TIMEOUT: Duration = Duration::from_secs(60);

/// Default cap of captured output: 1 MiB a stream, the tail kept.
pub const DEFAULT_OUTPUT_LIMIT: usize = 1024 * 1024;

/// How much longer than deadline and grace the answer about a killed command is waited for.
const ANSWER_SLACK: Duration = Duration::from_secs(10);

/// Deadlines and graces beyond this are this, a year: no clock overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Shapes one foreground command.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExecOptions {
    /// After this time the process tree gets TERM, grace, KILL; zero for never; default [`DEFAULT_EXEC_TIMEOUT`].
    pub timeout: Duration,
    /// What the command reads; default end of file at once.
    pub stdin: Option<Bytes>,
    /// How many bytes of each stream are kept, the tail; default [`DEFAULT_OUTPUT_LIMIT`].
    pub output_limit: usize,
}

impl Default for ExecOptions {
    fn default() -> Self {
        Self { timeout: DEFAULT_EXEC_TIMEOUT, stdin: None, output_limit: DEFAULT_OUTPUT_LIMIT }
    }
}

impl ExecOptions {
    /// Ends the command after this time; zero for never.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Has the command read these bytes.
    #[must_use]
    pub fn with_stdin(mut self, bytes: impl Into<Bytes>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Keeps so many bytes of each stream.
    #[must_use]
    pub fn with_output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }
}

/// Captured bytes of one stream: the tail, and how much before it was dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// The bytes, at most the limit.
    pub bytes: Vec<u8>,
    /// How many bytes before them were dropped.
    pub dropped: u64,
}

impl Captured {
    fn push(&mut self, data: &[u8], limit: usize) {
        let data = if data.len() > limit {
            self.dropped += (data.len() - limit) as u64;
            &data[data.len() - limit..]
        } else {
            data
        };
        self.bytes.extend_from_slice(data);
        // Trimming only at twice the limit keeps the cost of a long output linear.
        if self.bytes.len() > limit.saturating_mul(2).max(1) {
            self.trim(limit);
        }
    }

    fn trim(&mut self, limit: usize) {
        let excess = self.bytes.len().saturating_sub(limit);
        self.bytes.drain(..excess);
        self.dropped += excess as u64;
    }

    /// Returns the bytes as text; what is not UTF-8 becomes U+FFFD.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}

/// The result of a foreground command. A non-zero exit is a result: look at [`ExecOutput::exit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecOutput {
    /// How it ended; `timed_out` is set when its deadline ended it, and the output so far is kept.
    pub exit: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: Captured,
    /// What it wrote to standard error.
    pub stderr: Captured,
}

/// Kills a foreground command whose caller stopped waiting, from a task of its own.
struct KillOnDrop(Option<std::sync::Arc<dyn ProcessControl>>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let (Some(control), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        runtime.spawn(async move {
            if let Err(error) = control.signal(Signal::KILL).await {
                tracing::warn!(%error, "an abandoned command could not be killed; its own deadline ends it");
            }
        });
    }
}

/// Shorthands over [`SandboxHandle`]; not to be implemented.
pub trait SandboxHandleExt: SandboxHandle {
    /// Runs a program to completion with every default and captures its output.
    ///
    /// # Errors
    /// As [`SandboxHandleExt::exec_opts`].
    fn exec(&self, spec: ProcessSpec) -> impl Future<Output = Result<ExecOutput>> + Send {
        self.exec_opts(spec, ExecOptions::default())
    }

    /// Runs a line of shell text to completion with every default and captures its output.
    ///
    /// # Errors
    /// As [`SandboxHandleExt::exec_opts`].
    fn shell(&self, line: &str) -> impl Future<Output = Result<ExecOutput>> + Send {
        self.exec_opts(ProcessSpec::shell(line), ExecOptions::default())
    }

    /// Runs a program to completion and captures its output.
    ///
    /// # Errors
    /// As [`SandboxHandle::start`]; [`ErrorKind::OutcomeUnknown`] when the answer about its end was lost.
    ///
    /// # Cancellation
    /// Dropping the future has the whole process tree killed from a task of its own; the sandbox stays up.
    fn exec_opts(
        &self,
        spec: ProcessSpec,
        options: ExecOptions,
    ) -> impl Future<Output = Result<ExecOutput>> + Send {
        async move { foreground(self, spec, options, |_, _| {}).await }
    }

    /// Runs a program to completion, hands each chunk of output to `on_output` as it comes, and captures it too.
    ///
    /// # Errors
    /// As [`SandboxHandleExt::exec_opts`].
    ///
    /// # Cancellation
    /// As [`SandboxHandleExt::exec_opts`].
    fn exec_streaming<F>(
        &self,
        spec: ProcessSpec,
        options: ExecOptions,
        on_output: F,
    ) -> impl Future<Output = Result<ExecOutput>> + Send
    where
        F: FnMut(OutputStream, &[u8]) + Send,
    {
        async move { foreground(self, spec, options, on_output).await }
    }

    /// Reads a whole file of at most 64 MiB.
    ///
    /// # Errors
    /// As [`SandboxHandle::read`]; [`ErrorKind::InvalidArgument`] for a larger file.
    fn read_bytes(&self, path: &str) -> impl Future<Output = Result<Vec<u8>>> + Send {
        async move { self.read(path, ReadOptions::default()).await?.body.into_bytes(64 * 1024 * 1024).await }
    }

    /// Reads a whole text file of at most 64 MiB.
    ///
    /// # Errors
    /// As [`SandboxHandleExt::read_bytes`]; [`ErrorKind::InvalidArgument`] when it is not UTF-8.
    fn read_text(&self, path: &str) -> impl Future<Output = Result<String>> + Send {
        async move {
            String::from_utf8(self.read_bytes(path).await?).map_err(|error| {
                Error::invalid_argument(format!("{path:?} is not UTF-8; read it as bytes"))
                    .with_source(error.utf8_error())
            })
        }
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// As [`SandboxHandle::write`].
    fn write_bytes(
        &self,
        path: &str,
        content: impl Into<Bytes> + Send,
    ) -> impl Future<Output = Result<EntryInfo>> + Send {
        let content = content.into();
        let options = WriteOptions::default().with_size(content.len() as u64);
        async move { self.write(path, ByteStream::from_bytes(content), options).await }
    }

    /// Tells whether a path exists.
    ///
    /// # Errors
    /// As [`SandboxHandle::stat`], without [`ErrorKind::NotFound`].
    fn exists(&self, path: &str) -> impl Future<Output = Result<bool>> + Send {
        async move {
            match self.stat(path, FileOptions::default()).await {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        }
    }

    /// Lists a directory's own entries.
    ///
    /// # Errors
    /// As [`SandboxHandle::list`].
    fn list_dir(&self, path: &str) -> impl Future<Output = Result<Vec<EntryInfo>>> + Send {
        async move { self.list(path, ListOptions::default()).await }
    }
}

impl<H: SandboxHandle + ?Sized> SandboxHandleExt for H {}

async fn foreground<H, F>(
    handle: &H,
    mut spec: ProcessSpec,
    options: ExecOptions,
    on_output: F,
) -> Result<ExecOutput>
where
    H: SandboxHandle + ?Sized,
    F: FnMut(OutputStream, &[u8]) + Send,
{
    let timeout = (!options.timeout.is_zero()).then_some(options.timeout.min(LONGEST));
    spec.deadline = timeout;
    spec.grace = spec.grace.min(LONGEST);
    let grace = spec.grace;
    if options.stdin.is_some() {
        spec.stdin = Stdin::Open;
    }
    let process = match timeout {
        None => handle.start(spec).await?,
        // A daemon that accepts and never answers must not hold the caller for ever. The start may have to resume first.
        Some(timeout) => tokio::time::timeout(timeout + DEFAULT_CALL_DEADLINE, handle.start(spec))
            .await
            .unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::OutcomeUnknown, "the sandbox did not say that the command started")
                    .at(handle.provider(), "start")
                    .with_context("id", handle.id())
                    .with_outcome(Outcome::Unknown))
            })?,
    };
    let mut guard = KillOnDrop(Some(process.control()));
    let result = match options.stdin {
        Some(input) => {
            let control = process.control();
            // Input and output move together: a command may stop reading until its output is taken.
            let feed = async move {
                match control.write(input).await {
                    // The command may end without reading all of it, which is its right.
                    Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidState) => {
                        Err(error)
                    }
                    _ => match control.close_stdin().await {
                        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                        _ => Ok(()),
                    },
                }
            };
            let (fed, output) =
                join(feed, follow(process, timeout, grace, options.output_limit, on_output)).await;
            output.and_then(|output| fed.map(|()| output))
        }
        None => follow(process, timeout, grace, options.output_limit, on_output).await,
    };
    if result.is_ok() {
        guard.0 = None;
    }
    result
}

/// Polls both futures to their ends.
async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut a_out, mut b_out) = (None, None);
    loop {
        tokio::select! {
            out = &mut a, if a_out.is_none() => a_out = Some(out),
            out = &mut b, if b_out.is_none() => b_out = Some(out),
        }
        if let (Some(_), Some(_)) = (&a_out, &b_out)
            && let (Some(a), Some(b)) = (a_out.take(), b_out.take())
        {
            return (a, b);
        }
    }
}

/// Reads a process to its end. The daemon knows the deadline too; TERM, grace and KILL are sent from here as well, so
/// that it holds with a daemon that does not.
async fn follow<F>(
    mut process: Process,
    timeout: Option<Duration>,
    grace: Duration,
    limit: usize,
    mut on_output: F,
) -> Result<ExecOutput>
where
    F: FnMut(OutputStream, &[u8]) + Send,
{
    #[derive(Clone, Copy)]
    enum Next {
        Term,
        Kill,
        GiveUp,
    }
    let mut output = ExecOutput::default();
    let mut alarm = timeout.map(|timeout| (Instant::now() + timeout, Next::Term));
    let mut timed_out = false;
    let control = process.control();
    loop {
        let ring = async {
            match alarm {
                Some((at, next)) => {
                    sleep_until(at).await;
                    next
                }
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            event = process.next_event() => event?,
            next = ring => {
                timed_out = true;
                let now = Instant::now();
                alarm = Some(match next {
                    Next::Term => {
                        control.signal(Signal::TERM).await?;
                        (now + grace, Next::Kill)
                    }
                    Next::Kill => {
                        control.signal(Signal::KILL).await?;
                        (now + ANSWER_SLACK, Next::GiveUp)
                    }
                    Next::GiveUp => {
                        return Err(Error::new(
                            ErrorKind::OutcomeUnknown,
                            "the command was told to end at its deadline, and no answer about its end came",
                        )
                        .with_context("pid", process.pid()));
                    }
                });
                continue;
            }
        };
        match event {
            Some(ProcessEvent::Output { stream, data, .. }) => {
                on_output(stream, &data);
                let captured = match stream {
                    OutputStream::Stderr => &mut output.stderr,
                    OutputStream::Stdout | OutputStream::Pty => &mut output.stdout,
                };
                captured.push(&data, limit);
            }
            Some(ProcessEvent::Exit(status)) => {
                output.exit = status;
                output.exit.timed_out |= timed_out;
                output.stdout.trim(limit);
                output.stderr.trim(limit);
                return Ok(output);
            }
            None => {
                return Err(Error::new(ErrorKind::OutcomeUnknown, "the process reported no end")
                    .with_context("pid", process.pid()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_output_keeps_the_tail_and_counts_the_rest() {
        let mut captured = Captured::default();
        for chunk in ["abc", "defgh", "ijklmnopqrstuvw", "x"] {
            captured.push(chunk.as_bytes(), 4);
        }
        captured.trim(4);
        assert_eq!((captured.text().as_ref(), captured.dropped), ("uvwx", 20));
    }
}
