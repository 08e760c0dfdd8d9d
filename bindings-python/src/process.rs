//! Commands and processes inside a sandbox.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core as core;
use sandhold_core::{
    ExecOptions, OutputStream, ProcessControl, ProcessEvent, ProcessSelector, ProcessSpec, PtySize, Result,
    SandboxHandleExt as _, Signal, Stdin,
};
use tokio::sync::{Mutex, oneshot};

use crate::convert::{self, Options, extract};
use crate::errors::{self, invalid_argument};
use crate::runtime;
use crate::twins::{Nothing, twins};
use crate::values::{ExitStatus, Output};

/// How a foreground command runs.
pub(crate) struct Exec {
    options: ExecOptions,
    on_output: Option<Py<PyAny>>,
}

impl Exec {
    pub(crate) async fn run(self, sandbox: &core::Sandbox, spec: ProcessSpec) -> Result<core::ExecOutput> {
        let Some(on_output) = self.on_output else { return sandbox.exec_opts(spec, self.options).await };
        let (failed, failure) = oneshot::channel();
        let mut failed = Some(failed);
        let tell = move |stream: OutputStream, data: &[u8]| {
            // Python may take its time; other tasks go on meanwhile.
            let called = tokio::task::block_in_place(|| {
                runtime::attach(|py| on_output.call1(py, (word(stream), data)).map(drop))
            });
            if let Some(Err(raised)) = called
                && let Some(failed) = failed.take()
            {
                let _ = failed.send(raised);
            }
        };
        tokio::select! {
            biased;
            // The command is killed with the future below.
            Ok(raised) = failure => Err(runtime::attach(|py| errors::from_python(py, raised, "on_output"))
                .unwrap_or_else(|| core::Error::new(core::ErrorKind::Cancelled, "the interpreter ended"))),
            output = sandbox.exec_streaming(spec, self.options, tell) => output,
        }
    }
}

/// Reads a foreground command and how it runs.
pub(crate) fn exec(
    py: Python<'_>,
    command: &Bound<'_, PyAny>,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<(ProcessSpec, Exec)> {
    let mut spec = convert::command("exec", command)?;
    let mut given = Options::new(py, "exec", given)?;
    surroundings(&mut spec, &mut given)?;
    let mut options = ExecOptions::default();
    if let Some(timeout) = given.seconds("timeout")? {
        options.timeout = timeout;
    }
    if let Some(stdin) = given.any("stdin")? {
        options.stdin = Some(bytes("exec", "stdin", &stdin)?);
    }
    if let Some(limit) = given.take("output_limit")? {
        options.output_limit = limit;
    }
    let on_output = given.any("on_output")?.map(Bound::unbind);
    given.finish()?;
    Ok((spec, Exec { options, on_output }))
}

/// Reads how a process runs.
pub(crate) fn start(
    py: Python<'_>,
    spec: &mut ProcessSpec,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let mut given = Options::new(py, "start", given)?;
    surroundings(spec, &mut given)?;
    let words = [("closed", Stdin::Closed), ("open", Stdin::Open)];
    if let Some(stdin) = given.word("stdin", &words)? {
        spec.stdin = stdin;
    }
    if let Some((cols, rows)) = given.take::<(u16, u16)>("pty")? {
        spec.pty = Some(PtySize { cols, rows });
    }
    spec.tag = given.take("tag")?;
    spec.retain = given.take("retain")?;
    spec.deadline = given.seconds("deadline")?;
    given.finish()
}

fn surroundings(spec: &mut ProcessSpec, given: &mut Options<'_>) -> PyResult<()> {
    if let Some(env) = given.take("env")? {
        spec.env = env;
    }
    spec.cwd = given.take("cwd")?;
    spec.user = given.take("user")?;
    if let Some(grace) = given.seconds("grace")? {
        spec.grace = grace;
    }
    Ok(())
}

/// Reads a process: a number is its pid, a text its tag.
pub(crate) fn selector(call: &'static str, value: &Bound<'_, PyAny>) -> PyResult<ProcessSelector> {
    match value.extract::<String>() {
        Ok(tag) => Ok(ProcessSelector::Tag(tag)),
        Err(_) => extract(call, "process", value).map(ProcessSelector::Pid),
    }
}

/// Reads bytes; a text is its UTF-8.
pub(crate) fn bytes(call: &str, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    match value.extract::<String>() {
        Ok(text) => Ok(text.into()),
        Err(_) => extract(call, name, value),
    }
}

fn word(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stderr => "stderr",
        OutputStream::Pty => "pty",
        _ => "stdout",
    }
}

struct Running {
    pid: u32,
    tag: Option<String>,
    control: Arc<dyn ProcessControl>,
    process: Mutex<core::Process>,
    exit: StdMutex<Option<ExitStatus>>,
}

impl Running {
    fn ended(&self, status: core::ExitStatus) -> ExitStatus {
        let exit = ExitStatus::from(status);
        *self.exit.lock().unwrap_or_else(PoisonError::into_inner) = Some(exit.clone());
        exit
    }

    async fn next(&self) -> Result<Option<Output>> {
        match self.process.lock().await.next_event().await? {
            Some(ProcessEvent::Output { stream, data, offset, dropped }) => {
                Ok(Some(Output { stream: word(stream), data, offset, dropped }))
            }
            Some(ProcessEvent::Exit(status)) => {
                self.ended(status);
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name(Arc<Running>);

        impl From<core::Process> for $name {
            fn from(process: core::Process) -> Self {
                Self(Arc::new(Running {
                    pid: process.pid(),
                    tag: process.tag().map(str::to_owned),
                    control: process.control(),
                    process: Mutex::new(process),
                    exit: StdMutex::default(),
                }))
            }
        }

        impl $name {
            fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }

        #[pymethods]
        impl $name {
            /// The process id inside the sandbox.
            #[getter]
            fn pid(&self) -> u32 {
                self.0.pid
            }

            /// The tag given at its start.
            #[getter]
            fn tag(&self) -> Option<&str> {
                self.0.tag.as_deref()
            }

            /// How it ended, once its end was read; None before.
            #[getter]
            fn exit(&self) -> Option<ExitStatus> {
                self.0.exit.lock().unwrap_or_else(PoisonError::into_inner).clone()
            }

            fn __repr__(&self) -> String {
                format!("{}(pid={}, tag={:?})", stringify!($name), self.0.pid, self.0.tag)
            }
        }
    )+};
}

faces! {
    /// A process inside a sandbox: iterate over its output. Dropping it leaves the process alone.
    Process
    /// A process inside a sandbox, for event loops: iterate over its output. Dropping it leaves the process alone.
    AsyncProcess
}

#[pymethods]
impl Process {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Output>> {
        runtime::wait(py, self.0.next())
    }
}

#[pymethods]
impl AsyncProcess {
    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let running = Arc::clone(&self.0);
        runtime::spawn_next(py, async move { running.next().await })
    }
}

twins! {
    impl Process, AsyncProcess;

    /// Waits for the exit and drops the output on the way.
    fn wait(py, this) -> ExitStatus, ExitStatus {
        let _ = py;
        let running = Arc::clone(&this.0);
        async move { Ok(running.ended(running.process.lock().await.wait().await?)) }
    }

    /// Writes to the standard input or to the terminal; a text is written as UTF-8.
    fn write(py, this, data: &Bound<'_, PyAny>) -> (), Nothing {
        let _ = py;
        let data = bytes("write", "data", data)?;
        let running = Arc::clone(&this.0);
        async move { running.control.write(data).await }
    }

    /// Closes the standard input; a second time is no error.
    fn close_stdin(py, this) -> (), Nothing {
        let _ = py;
        let running = Arc::clone(&this.0);
        async move { running.control.close_stdin().await }
    }

    /// Changes the size of the terminal.
    fn resize(py, this, cols: u16, rows: u16) -> (), Nothing {
        if cols == 0 || rows == 0 {
            return Err(invalid_argument(py, if cols == 0 { "cols" } else { "rows" }, "is 0; give 1 or more"));
        }
        let running = Arc::clone(&this.0);
        async move { running.control.resize(PtySize { cols, rows }).await }
    }

    /// Sends a signal to the whole process tree; False when the process had ended.
    #[pyo3(signature = (signal = 15))]
    fn signal(py, this, signal: i32) -> bool, bool {
        let _ = py;
        let running = Arc::clone(&this.0);
        async move { running.control.signal(Signal(signal)).await }
    }

    /// Kills the whole process tree; False when it had ended.
    fn kill(py, this) -> bool, bool {
        let _ = py;
        let running = Arc::clone(&this.0);
        async move { running.control.signal(Signal::KILL).await }
    }
}
