use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::stream::ResultStream;
use crate::{Error, ErrorKind, Result};

/// Default time between TERM and KILL of a process whose deadline passed.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Default cap of retained output: 1 MiB a stream, the tail kept.
pub const DEFAULT_RETAIN: u64 = 1024 * 1024;

/// Names a process inside a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProcessSelector {
    /// By its process id inside the sandbox.
    Pid(u32),
    /// By the tag given at its start.
    Tag(String),
}

impl fmt::Display for ProcessSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "pid {pid}"),
            Self::Tag(tag) => write!(f, "tag {tag:?}"),
        }
    }
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtySize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

impl Default for PtySize {
    fn default() -> Self {
        Self { cols: 80, rows: 24 }
    }
}

/// What a process reads as its standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stdin {
    /// End of file at once. The default: a command that reads does not hang.
    #[default]
    Closed,
    /// What [`Process::write`] sends, until [`Process::close_stdin`].
    Open,
}

/// What to run inside a sandbox, as argv: nothing is pasted into a shell line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessSpec {
    /// The program, found by the sandbox's `PATH` when it has no slash.
    pub program: String,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Added to the sandbox's environment; default nothing.
    pub env: BTreeMap<String, String>,
    /// Where it starts; default the sandbox's working directory.
    pub cwd: Option<String>,
    /// As whom; default the sandbox's user.
    pub user: Option<String>,
    /// Its standard input; default closed. Ignored with a terminal.
    pub stdin: Stdin,
    /// A terminal of this size instead of pipes; default none.
    pub pty: Option<PtySize>,
    /// A name to find it by; default none.
    pub tag: Option<String>,
    /// Keeps output and exit inside the sandbox for later [`crate::SandboxHandle::attach`] calls, up to so many bytes
    /// a stream (the tail; dropped bytes are counted); default not kept.
    pub retain: Option<u64>,
    /// After this time the process tree gets TERM, then KILL, even when this program has died; default none.
    pub deadline: Option<Duration>,
    /// The time between TERM and KILL; default [`DEFAULT_GRACE`].
    pub grace: Duration,
}

impl ProcessSpec {
    /// Runs this program with these arguments.
    pub fn argv<A: Into<String>>(program: impl Into<String>, args: impl IntoIterator<Item = A>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            stdin: Stdin::Closed,
            pty: None,
            tag: None,
            retain: None,
            deadline: None,
            grace: DEFAULT_GRACE,
        }
    }

    /// Runs a line of shell text by `/bin/bash -l -c`, as the official E2B SDKs do.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::argv("/bin/bash", ["-l".to_owned(), "-c".to_owned(), line.into()])
    }

    /// Adds one environment variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Starts in this directory.
    #[must_use]
    pub fn with_cwd(mut self, cwd: impl Into<String>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Runs as this user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets what it reads.
    #[must_use]
    pub fn with_stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Runs in a terminal of this size.
    #[must_use]
    pub fn with_pty(mut self, size: PtySize) -> Self {
        self.pty = Some(size);
        self
    }

    /// Names it.
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Keeps up to so many bytes of each output stream inside the sandbox.
    #[must_use]
    pub fn with_retain(mut self, bytes: u64) -> Self {
        self.retain = Some(bytes);
        self
    }

    /// Ends its whole tree after this time.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the time between TERM and KILL.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}

/// How a process ended. A non-zero code is a result, not an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExitStatus {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It was ended because its deadline had passed.
    pub timed_out: bool,
    /// It was ended because the sandbox ran out of memory.
    pub oom_killed: bool,
}

impl ExitStatus {
    /// An ordinary exit with this code.
    #[must_use]
    pub fn exited(code: i32) -> Self {
        Self { code: Some(code), ..Self::default() }
    }

    /// A death by this signal.
    #[must_use]
    pub fn signaled(signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::default() }
    }

    /// Tells whether it exited with code 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}")?,
            (None, Some(signal)) => write!(f, "signal {signal}")?,
            (None, None) => f.write_str("an end without code or signal")?,
        }
        if self.timed_out {
            f.write_str(" (deadline passed)")?;
        }
        if self.oom_killed {
            f.write_str(" (out of memory)")?;
        }
        Ok(())
    }
}

/// Which stream a chunk of output belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal, which has one stream only.
    Pty,
}

/// What a process reports while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessEvent {
    /// Bytes it wrote, in order.
    Output {
        /// Where it wrote them.
        stream: OutputStream,
        /// The bytes; characters may be split between chunks.
        data: Bytes,
        /// The position of the first byte in the stream; 0 throughout where the provider keeps no positions.
        offset: u64,
        /// Bytes before this chunk that the retention cap dropped.
        dropped: u64,
    },
    /// It ended; all its output came before. The last event.
    Exit(ExitStatus),
}

/// The end of a process's input, and signals to it: what a provider implements behind [`Process`].
#[async_trait]
pub trait ProcessControl: fmt::Debug + Send + Sync {
    /// Writes to the standard input or to the terminal.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] when the input is closed; [`ErrorKind::NotFound`] when the process has ended.
    async fn write(&self, data: Bytes) -> Result<()>;

    /// Closes the standard input; a second time is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a terminal: send byte 4 instead.
    async fn close_stdin(&self) -> Result<()>;

    /// Changes the size of the terminal.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] for a process without one.
    async fn resize(&self, size: PtySize) -> Result<()>;

    /// Sends a signal to the whole process tree; `false` when the process had ended.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a signal that the provider cannot send.
    async fn signal(&self, signal: Signal) -> Result<bool>;
}

/// A signal by its number on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal(pub i32);

impl Signal {
    /// Interrupt, as by Ctrl-C.
    pub const INT: Self = Self(2);
    /// Kill: cannot be caught.
    pub const KILL: Self = Self(9);
    /// Polite termination.
    pub const TERM: Self = Self(15);
}

/// A process inside a sandbox: its events to read, and its input and signals.
///
/// Dropping it stops listening and leaves the process alone: "stop waiting" and "kill" are different verbs.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    tag: Option<String>,
    control: Arc<dyn ProcessControl>,
    events: ResultStream<ProcessEvent>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Puts a process together; for providers.
    pub fn new(
        pid: u32,
        tag: Option<String>,
        control: Arc<dyn ProcessControl>,
        events: ResultStream<ProcessEvent>,
    ) -> Self {
        Self { pid, tag, control, events, ended: None }
    }

    /// Returns the process id inside the sandbox.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the tag given at its start.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the part that can be used from another task while this one reads events.
    #[must_use]
    pub fn control(&self) -> Arc<dyn ProcessControl> {
        Arc::clone(&self.control)
    }

    /// Returns the next event; `None` after the exit was returned.
    ///
    /// # Errors
    /// [`ErrorKind::OutcomeUnknown`] when the stream ended without an exit: the process may still run; attach again to
    /// find out. [`ErrorKind::Gone`] when the sandbox does not exist any more.
    ///
    /// # Cancellation
    /// Safe; the process is left alone.
    pub async fn next_event(&mut self) -> Result<Option<ProcessEvent>> {
        if self.ended.is_some() {
            return Ok(None);
        }
        match self.events.next().await {
            Some(Ok(event)) => {
                if let ProcessEvent::Exit(status) = event {
                    self.ended = Some(status);
                }
                Ok(Some(event))
            }
            Some(Err(error)) => Err(error),
            None => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "the output ended without an exit; attach to the process to learn its state",
            )
            .with_context("pid", self.pid)),
        }
    }

    /// Waits for the exit and drops the output on the way.
    ///
    /// # Errors
    /// As [`Process::next_event`].
    ///
    /// # Cancellation
    /// Safe; the process is left alone.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended {
                return Ok(status);
            }
            self.next_event().await?;
        }
    }

    // These futures hold the control and not `self`, whose stream cannot be shared: they can be sent between threads.

    /// Writes to the standard input or to the terminal.
    ///
    /// # Errors
    /// As [`ProcessControl::write`].
    pub fn write<D: Into<Bytes>>(&self, data: D) -> impl Future<Output = Result<()>> + Send + use<D> {
        let (control, data) = (self.control(), data.into());
        async move { control.write(data).await }
    }

    /// Closes the standard input.
    ///
    /// # Errors
    /// As [`ProcessControl::close_stdin`].
    pub fn close_stdin(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let control = self.control();
        async move { control.close_stdin().await }
    }

    /// Changes the size of the terminal.
    ///
    /// # Errors
    /// As [`ProcessControl::resize`].
    pub fn resize(&self, size: PtySize) -> impl Future<Output = Result<()>> + Send + use<> {
        let control = self.control();
        async move { control.resize(size).await }
    }

    /// Kills the whole process tree; `false` when it had ended.
    ///
    /// # Errors
    /// As [`ProcessControl::signal`].
    pub fn kill(&self) -> impl Future<Output = Result<bool>> + Send + use<> {
        let control = self.control();
        async move { control.signal(Signal::KILL).await }
    }
}

/// Facts about a process inside a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its id inside the sandbox.
    pub pid: u32,
    /// The tag given at its start.
    pub tag: Option<String>,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Where it started.
    pub cwd: Option<String>,
    /// How it ended, for a kept one that has.
    pub exit: Option<ExitStatus>,
}

impl ProcessInfo {
    /// Facts with nothing optional set.
    #[must_use]
    pub fn new(pid: u32, argv: Vec<String>) -> Self {
        Self { pid, tag: None, argv, cwd: None, exit: None }
    }
}

/// Shapes one attach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachOptions {
    /// Replays kept output from these positions before following; default: only what is written from now on.
    pub replay: Option<ReplayFrom>,
}

impl AttachOptions {
    /// Replays kept output from these positions.
    #[must_use]
    pub fn with_replay(mut self, from: ReplayFrom) -> Self {
        self.replay = Some(from);
        self
    }
}

/// Positions in the kept output, in bytes from the start of each stream; the default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayFrom {
    /// In the standard output.
    pub stdout: u64,
    /// In the standard error.
    pub stderr: u64,
    /// In the terminal's stream.
    pub pty: u64,
}

impl ReplayFrom {
    /// The beginning of every stream.
    #[must_use]
    pub fn start() -> Self {
        Self::default()
    }

    /// Begins at this byte of the standard output.
    #[must_use]
    pub fn with_stdout(mut self, offset: u64) -> Self {
        self.stdout = offset;
        self
    }

    /// Begins at this byte of the standard error.
    #[must_use]
    pub fn with_stderr(mut self, offset: u64) -> Self {
        self.stderr = offset;
        self
    }
}
