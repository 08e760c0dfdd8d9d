//! Commands and processes inside a sandbox.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use bytes::Bytes;
use napi::Env;
use napi::bindgen_prelude::{FnArgs, FromNapiValue as _, Object, PromiseRaw, Uint8Array, Unknown};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Status, ValueType};
use napi_derive::napi;
use sandhold_core as core;
use sandhold_core::{
    ExecOptions, OutputStream, ProcessControl, ProcessEvent, ProcessSelector, ProcessSpec, PtySize, Result,
    SandboxHandleExt as _, Signal, Stdin,
};
use tokio::sync::Mutex;

use crate::convert::{self, Options, count, extract};
use crate::errors::{invalid_argument, type_error};
use crate::js::Data;
use crate::runtime::{NativeCall, call};
use crate::values::{self, ExitStatus, Maybe, Output};

/// How many pieces of output wait for JavaScript before the command has to.
const QUEUE: usize = 16;

type Told = FnArgs<(String, Data)>;
type Listener = ThreadsafeFunction<Told, (), Told, Status, false, false, QUEUE>;

/// How a foreground command runs.
pub(crate) struct Exec {
    options: ExecOptions,
    on_output: Option<Listener>,
}

impl Exec {
    pub(crate) async fn run(self, sandbox: &core::Sandbox, spec: ProcessSpec) -> Result<core::ExecOutput> {
        let Some(on_output) = self.on_output else { return sandbox.exec_opts(spec, self.options).await };
        let on_output = Arc::new(on_output);
        let listener = Arc::clone(&on_output);
        let tell = move |stream: OutputStream, data: &[u8]| {
            let told = (word(stream).to_owned(), Data(Bytes::copy_from_slice(data))).into();
            // JavaScript may take its time; other tasks go on meanwhile. An environment that ends hears nothing any more.
            tokio::task::block_in_place(|| listener.call(told, ThreadsafeFunctionCallMode::Blocking));
        };
        let output = sandbox.exec_streaming(spec, self.options, tell).await;
        // What was told is heard before the result: an empty piece is the last one in its queue.
        let last = (word(OutputStream::Stdout).to_owned(), Data(Bytes::new())).into();
        let _ = on_output.call_async_catch(last).await;
        output
    }
}

/// Reads a foreground command and how it runs.
pub(crate) fn exec(
    env: &Env,
    command: Unknown<'_>,
    given: Option<Object<'_>>,
) -> napi::Result<(ProcessSpec, Exec)> {
    let mut spec = convert::command(env, "exec", command)?;
    let mut given = Options::new(env, "exec", given);
    surroundings(&mut spec, &mut given)?;
    let mut options = ExecOptions::default();
    if let Some(timeout) = given.millis("timeout")? {
        options.timeout = timeout;
    }
    if let Some(stdin) = given.any("stdin")? {
        options.stdin = Some(bytes(env, "exec", "stdin", stdin)?);
    }
    if let Some(limit) = given.count("outputLimit")? {
        options.output_limit = limit;
    }
    let on_output = given.function::<Listener>("onOutput")?;
    given.finish()?;
    Ok((spec, Exec { options, on_output }))
}

/// Reads a process to start and how it runs.
pub(crate) fn start(env: &Env, command: Unknown<'_>, given: Option<Object<'_>>) -> napi::Result<ProcessSpec> {
    let mut spec = convert::command(env, "start", command)?;
    let mut given = Options::new(env, "start", given);
    surroundings(&mut spec, &mut given)?;
    let words = [("closed", Stdin::Closed), ("open", Stdin::Open)];
    if let Some(stdin) = given.word("stdin", &words)? {
        spec.stdin = stdin;
    }
    if let Some(mut size) = given.options("pty")? {
        let (cols, rows) = (size.count("cols")?, size.count("rows")?);
        size.finish()?;
        let (Some(cols), Some(rows)) = (cols, rows) else {
            return Err(type_error(env, "start() argument 'pty': give { cols, rows }"));
        };
        spec.pty = Some(PtySize { cols, rows });
    }
    spec.tag = given.take("tag")?;
    spec.retain = given.count("retain")?;
    spec.deadline = given.millis("deadline")?;
    given.finish()?;
    Ok(spec)
}

fn surroundings(spec: &mut ProcessSpec, given: &mut Options<'_>) -> napi::Result<()> {
    if let Some(env) = given.take("env")? {
        spec.env = env;
    }
    spec.cwd = given.take("cwd")?;
    spec.user = given.take("user")?;
    if let Some(grace) = given.millis("grace")? {
        spec.grace = grace;
    }
    Ok(())
}

/// Reads a process: a number is its pid, a text its tag.
pub(crate) fn selector(env: &Env, call: &str, value: Unknown<'_>) -> napi::Result<ProcessSelector> {
    match value.get_type()? {
        ValueType::String => Ok(ProcessSelector::Tag(String::from_unknown(value)?)),
        _ => count(env, "process", extract(env, call, "process", value)?).map(ProcessSelector::Pid),
    }
}

/// Reads bytes; a text is its UTF-8.
///
/// They are copied: JavaScript may write to its memory, or give it away, while the call is under way.
pub(crate) fn bytes(env: &Env, call: &str, name: &str, value: Unknown<'_>) -> napi::Result<Bytes> {
    if value.get_type()? == ValueType::String {
        return Ok(String::from_unknown(value)?.into());
    }
    match Uint8Array::from_unknown(value) {
        Ok(array) => Ok(Bytes::copy_from_slice(&array)),
        Err(_) => Err(type_error(env, &format!("{call}() argument '{name}': give a Uint8Array or a text"))),
    }
}

/// Reads the number of a signal.
pub(crate) fn signal(env: &Env, value: f64) -> napi::Result<Signal> {
    count::<u32>(env, "signal", value).map(|number| Signal(number as i32))
}

fn size(env: &Env, name: &str, value: Unknown<'_>) -> napi::Result<u16> {
    count(env, name, extract(env, "resize", name, value)?)
}

fn word(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stderr => "stderr",
        OutputStream::Pty => "pty",
        _ => "stdout",
    }
}

struct Running {
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
                Ok(Some(Output::new(word(stream), data, offset, dropped)))
            }
            Some(ProcessEvent::Exit(status)) => {
                self.ended(status);
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// A process inside a sandbox. Dropping it leaves the process alone.
#[napi]
pub struct NativeProcess {
    pid: u32,
    tag: Option<String>,
    running: Arc<Running>,
}

impl From<core::Process> for NativeProcess {
    fn from(process: core::Process) -> Self {
        Self {
            pid: process.pid(),
            tag: process.tag().map(str::to_owned),
            running: Arc::new(Running {
                control: process.control(),
                process: Mutex::new(process),
                exit: StdMutex::default(),
            }),
        }
    }
}

#[napi]
impl NativeProcess {
    /// The process id inside the sandbox.
    #[napi(getter)]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The tag given at its start.
    #[napi(getter)]
    pub fn tag(&self) -> Option<String> {
        self.tag.clone()
    }

    /// How it ended, once its end was read.
    #[napi(getter)]
    pub fn exit(&self) -> Option<ExitStatus> {
        self.running.exit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the next piece of output; `null` is the end.
    #[napi]
    pub fn next<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Maybe<Output>>> {
        let running = Arc::clone(&self.running);
        call(env, around, async move { running.next().await.map(values::maybe) })
    }

    /// Waits for the exit and drops the output on the way.
    #[napi]
    pub fn wait<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, ExitStatus>> {
        let running = Arc::clone(&self.running);
        call(env, around, async move { Ok(running.ended(running.process.lock().await.wait().await?)) })
    }

    /// Writes to the standard input or to the terminal; a text is written as UTF-8.
    #[napi]
    pub fn write<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        data: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let data = bytes(env, "write", "data", data)?;
        let control = Arc::clone(&self.running.control);
        call(env, around, async move { control.write(data).await })
    }

    /// Closes the standard input; a second time is no error.
    #[napi]
    pub fn close_stdin<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let control = Arc::clone(&self.running.control);
        call(env, around, async move { control.close_stdin().await })
    }

    /// Changes the size of the terminal.
    #[napi]
    pub fn resize<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        cols: Unknown<'_>,
        rows: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let size = PtySize { cols: size(env, "cols", cols)?, rows: size(env, "rows", rows)? };
        if size.cols == 0 || size.rows == 0 {
            let name = if size.cols == 0 { "cols" } else { "rows" };
            return Err(invalid_argument(env, name, "is 0; give 1 or more"));
        }
        let control = Arc::clone(&self.running.control);
        call(env, around, async move { control.resize(size).await })
    }

    /// Sends a signal to the whole process tree; false when the process had ended.
    #[napi]
    pub fn signal<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        signal: f64,
    ) -> napi::Result<PromiseRaw<'env, bool>> {
        let signal = self::signal(env, signal)?;
        let control = Arc::clone(&self.running.control);
        call(env, around, async move { control.signal(signal).await })
    }
}
