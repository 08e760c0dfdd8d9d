//! Hooks that are callables of Python.
//!
//! A coroutine function runs on the event loop from which its sandbox was last used, where that one still runs; everything
//! else runs on a thread of its own and may block. Either may call the sandbox that it gets.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use sandhold_core as core;
use sandhold_core::{Error, ErrorKind, HookScope, Memory, Result};
use tokio::sync::{mpsc, oneshot};

use crate::convert::Options;
use crate::sandbox::{AsyncSandbox, Sandbox};
use crate::values::{Event, Facts, FreshFile, setup};
use crate::{errors, process, runtime};

/// How many hooks are under way; only then a call may be one of a hook.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

struct UnderWay;

impl UnderWay {
    fn begin() -> Self {
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The hooks that a Python context is inside of.
#[pyclass(frozen, module = "sandhold._native")]
struct Scope(HookScope);

/// Returns the hooks that this call comes from.
pub(crate) fn scope(py: Python<'_>) -> Option<HookScope> {
    static SCOPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if UNDER_WAY.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let variable = SCOPE.import(py, "sandhold._hooks", "SCOPE").ok()?;
    let value = variable.call_method1("get", (py.None(),)).ok()?;
    value.cast::<Scope>().ok().map(|scope| scope.get().0.clone())
}

/// What a start hook is told.
#[pyclass(frozen, get_all, module = "sandhold")]
pub(crate) struct Start {
    /// The sandbox; usable at once, while other callers still wait.
    sandbox: Py<PyAny>,
    /// Whether this acquire made it: `created` or `connected`.
    outcome: &'static str,
    /// Whether the setup is `needed` or `done`.
    setup: &'static str,
    /// More about how it came.
    facts: Facts,
}

#[pymethods]
impl Start {
    fn __repr__(&self) -> String {
        format!("Start(outcome={:?}, setup={:?}, facts={:?})", self.outcome, self.setup, self.facts)
    }
}

pub(crate) struct Callback {
    name: &'static str,
    function: Py<PyAny>,
    is_async: bool,
}

impl Callback {
    fn take(given: &mut Options<'_>, name: &'static str) -> PyResult<Option<Self>> {
        given.any(name)?.map(|function| Self::new(name, function)).transpose()
    }

    /// Reads a callable.
    pub(crate) fn new(name: &'static str, function: Bound<'_, PyAny>) -> PyResult<Self> {
        if !function.is_callable() {
            let problem = format!("argument '{name}': {} is not callable", function.repr()?);
            return Err(PyTypeError::new_err(problem));
        }
        static TEST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let test = TEST.import(function.py(), "sandhold._hooks", "is_async")?;
        let is_async = test.call1((&function,))?.is_truthy()?;
        Ok(Self { name, is_async, function: function.unbind() })
    }

    /// Calls it with arguments that are made for its kind, and reads what it returns.
    ///
    /// # Cancellation
    /// A coroutine is cancelled; code that blocks a thread runs on there, and nobody waits for it.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        event_loop: Option<Py<PyAny>>,
        arguments: impl FnOnce(Python<'_>, bool) -> PyResult<Py<PyTuple>> + Send + 'static,
        read: fn(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T> {
        let _under_way = UnderWay::begin();
        let (name, is_async) = (self.name, self.is_async);
        let scope = HookScope::current();
        let Some(function) = runtime::attach(|py| self.function.clone_ref(py)) else {
            return Err(ended());
        };
        if is_async && let Some(event_loop) = event_loop.filter(runs) {
            return on_loop(name, &event_loop, function, scope, arguments, read).await;
        }
        let work = move || {
            runtime::attach(|py| {
                let _under_way = UnderWay::begin();
                let run = py.import("sandhold._hooks")?.getattr("run")?;
                read(&run.call1((function, arguments(py, is_async)?, Scope(scope)))?)
            })
            .map(|result| result.map_err(|raised| from_python(raised, name)))
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(Some(result)) => result,
            _ => Err(ended()),
        }
    }
}

fn runs(event_loop: &Py<PyAny>) -> bool {
    let running = |py: Python<'_>| event_loop.call_method0(py, "is_running")?.is_truthy(py);
    runtime::attach(|py| running(py).unwrap_or(false)).unwrap_or(false)
}

fn ended() -> Error {
    Error::new(ErrorKind::Cancelled, "the interpreter ended")
}

fn from_python(raised: PyErr, name: &str) -> Error {
    runtime::attach(|py| errors::from_python(py, raised, &format!("the hook {name}")))
        .unwrap_or_else(ended)
        .with_context("hook", name)
}

/// Cancels the coroutine of a hook that nobody waits for any more.
struct CancelOnDrop(Py<PyAny>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        // It has an effect only before the end, and then its task is cancelled.
        runtime::attach(|py| self.0.call_method0(py, "cancel").map(drop));
    }
}

#[pyclass(frozen, module = "sandhold._native")]
struct Done(Mutex<Option<oneshot::Sender<()>>>);

#[pymethods]
impl Done {
    fn __call__(&self, _future: &Bound<'_, PyAny>) {
        if let Some(waiting) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = waiting.send(());
        }
    }
}

async fn on_loop<T>(
    name: &'static str,
    event_loop: &Py<PyAny>,
    function: Py<PyAny>,
    scope: HookScope,
    arguments: impl FnOnce(Python<'_>, bool) -> PyResult<Py<PyTuple>>,
    read: fn(&Bound<'_, PyAny>) -> PyResult<T>,
) -> Result<T> {
    let begin = |py: Python<'_>, done: Done| {
        let begin = py.import("sandhold._hooks")?.getattr("begin")?;
        begin.call1((function, arguments(py, true)?, Scope(scope), event_loop, done)).map(Bound::unbind)
    };
    awaited(begin, read).await.map_err(|raised| from_python(raised, name))
}

/// Returns the next piece of an asynchronous iterator, which lives on an event loop.
pub(crate) async fn next_on_loop(items: &Py<PyAny>, event_loop: &Py<PyAny>) -> Result<Option<Bytes>> {
    let begin = |py: Python<'_>, done: Done| {
        let begin = py.import("sandhold._hooks")?.getattr("begin_next")?;
        begin.call1((items, event_loop, done)).map(Bound::unbind)
    };
    let read = |item: &Bound<'_, PyAny>| {
        if item.is_none() { Ok(None) } else { process::bytes("write", "body", item).map(Some) }
    };
    awaited(begin, read).await.map_err(|raised| {
        runtime::attach(|py| errors::from_python(py, raised, "the body")).unwrap_or_else(ended)
    })
}

/// Waits for what was begun on an event loop. Dropping this cancels it.
async fn awaited<T>(
    begin: impl FnOnce(Python<'_>, Done) -> PyResult<Py<PyAny>>,
    read: fn(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<T> {
    let (sender, receiver) = oneshot::channel();
    let interpreter_ended = || PyRuntimeError::new_err("the interpreter ended");
    let begun = runtime::attach(|py| begin(py, Done(Mutex::new(Some(sender)))).map(CancelOnDrop));
    let future = begun.ok_or_else(interpreter_ended)??;
    // The sender goes with the future, whose loop may be closed; then there is no result.
    let _ = receiver.await;
    runtime::attach(|py| read(&future.0.bind(py).call_method1("result", (0,))?))
        .ok_or_else(interpreter_ended)?
}

/// The event loop from which sandboxes were last used: coroutines of their hooks run there.
#[derive(Default)]
pub(crate) struct Followed(Mutex<Option<Py<PyAny>>>);

impl Followed {
    /// Remembers the running event loop.
    pub(crate) fn follow(&self, py: Python<'_>) -> PyResult<()> {
        let event_loop = runtime::running_loop(py)?.unbind();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(event_loop);
        Ok(())
    }

    pub(crate) fn event_loop(&self) -> Option<Py<PyAny>> {
        let event_loop = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runtime::attach(|py| event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py))).flatten()
    }
}

/// The hooks of a host or of an acquire.
pub(crate) struct PyHooks {
    secrets: Option<Callback>,
    on_start: Option<Callback>,
    on_resume: Option<Callback>,
    on_stop: Option<Callback>,
    on_destroy: Option<Callback>,
    events: Option<mpsc::UnboundedSender<core::Event>>,
    setup_version: u64,
    every_start: bool,
    pub(crate) followed: Arc<Followed>,
}

impl PyHooks {
    /// Takes the hooks out of keyword arguments; `None` where there are none.
    pub(crate) fn take(py: Python<'_>, given: &mut Options<'_>) -> PyResult<Option<Arc<Self>>> {
        let secrets = Callback::take(given, "secrets")?;
        let on_start = Callback::take(given, "on_start")?;
        let on_resume = Callback::take(given, "on_resume")?;
        let on_stop = Callback::take(given, "on_stop")?;
        let on_destroy = Callback::take(given, "on_destroy")?;
        let on_event = Callback::take(given, "on_event")?;
        let setup_version = given.take("setup_version")?.unwrap_or(1);
        let every_start = given.take("runs_on_every_start")?.unwrap_or(false);
        let any = [&secrets, &on_start, &on_resume, &on_stop, &on_destroy, &on_event]
            .into_iter()
            .any(Option::is_some);
        if !any {
            return Ok(None);
        }
        let events = on_event.map(|callback| tell(py, callback)).transpose()?;
        let hooks = Self {
            secrets,
            on_start,
            on_resume,
            on_stop,
            on_destroy,
            events,
            setup_version,
            every_start,
            followed: Arc::default(),
        };
        Ok(Some(Arc::new(hooks)))
    }

    async fn with_sandbox(&self, callback: Option<&Callback>, sandbox: &core::Sandbox) -> Result<()> {
        let Some(callback) = callback else { return Ok(()) };
        let sandbox = sandbox.clone();
        let arguments = move |py: Python<'_>, is_async: bool| tuple(py, [face(py, sandbox, is_async)?]);
        callback.call(self.followed.event_loop(), arguments, |_| Ok(())).await
    }
}

/// Hands events to a callable one by one, in their order, on threads that it may block.
fn tell(py: Python<'_>, callback: Callback) -> PyResult<mpsc::UnboundedSender<core::Event>> {
    let (sender, mut events) = mpsc::unbounded_channel();
    let runtime = runtime::runtime().map_err(|error| errors::raised(py, &error))?;
    runtime.spawn(async move {
        while let Some(event) = events.recv().await {
            let arguments =
                move |py: Python<'_>, _: bool| tuple(py, [Bound::new(py, Event::new(py, &event)?)?]);
            let Err(error) = callback.call(None, arguments, |_| Ok(())).await else { continue };
            // What a listener does with the news is no part of what happened; Python says where such errors go.
            runtime::attach(|py| {
                errors::raised(py, &error).write_unraisable(py, Some(callback.function.bind(py)));
            });
        }
    });
    Ok(sender)
}

/// Reads the files that a hook wants fresh.
fn fresh_files(returned: &Bound<'_, PyAny>) -> PyResult<Vec<core::FreshFile>> {
    let files = returned.extract::<Option<Vec<Py<FreshFile>>>>()?.unwrap_or_default();
    Ok(files.iter().map(|file| file.get().0.clone()).collect())
}

pub(crate) fn tuple<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    items: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
) -> PyResult<Py<PyTuple>> {
    PyTuple::new(py, items).map(Bound::unbind)
}

pub(crate) fn face(py: Python<'_>, sandbox: core::Sandbox, is_async: bool) -> PyResult<Bound<'_, PyAny>> {
    Ok(if is_async {
        Bound::new(py, AsyncSandbox::bare(sandbox))?.into_any()
    } else {
        Bound::new(py, Sandbox::bare(sandbox))?.into_any()
    })
}

impl fmt::Debug for PyHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PyHooks").finish_non_exhaustive()
    }
}

#[async_trait]
impl core::Hooks for PyHooks {
    fn setup_version(&self) -> u64 {
        self.setup_version
    }

    fn runs_on_every_start(&self) -> bool {
        self.every_start
    }

    async fn secrets(&self, sandbox: &core::Sandbox) -> Result<Vec<core::FreshFile>> {
        let Some(callback) = &self.secrets else { return Ok(Vec::new()) };
        let sandbox = sandbox.clone();
        let arguments = move |py: Python<'_>, is_async: bool| tuple(py, [face(py, sandbox, is_async)?]);
        callback.call(self.followed.event_loop(), arguments, fresh_files).await
    }

    async fn on_start(&self, start: core::Start) -> Result<()> {
        let Some(callback) = &self.on_start else { return Ok(()) };
        let arguments = move |py: Python<'_>, is_async: bool| {
            let told = Start {
                outcome: start.outcome.as_str(),
                setup: setup(start.setup),
                facts: (&start.facts).into(),
                sandbox: face(py, start.sandbox, is_async)?.unbind(),
            };
            tuple(py, [Bound::new(py, told)?])
        };
        callback.call(self.followed.event_loop(), arguments, |_| Ok(())).await
    }

    async fn on_resume(&self, sandbox: &core::Sandbox, memory: Memory) -> Result<Vec<core::FreshFile>> {
        let Some(callback) = &self.on_resume else { return Ok(Vec::new()) };
        let sandbox = sandbox.clone();
        let arguments = move |py: Python<'_>, is_async: bool| {
            let memory = memory.as_str().into_pyobject(py)?.into_any();
            tuple(py, [face(py, sandbox, is_async)?, memory])
        };
        callback.call(self.followed.event_loop(), arguments, fresh_files).await
    }

    async fn on_stop(&self, sandbox: &core::Sandbox) -> Result<()> {
        self.with_sandbox(self.on_stop.as_ref(), sandbox).await
    }

    async fn on_destroy(&self, sandbox: &core::Sandbox) -> Result<()> {
        self.with_sandbox(self.on_destroy.as_ref(), sandbox).await
    }

    fn on_event(&self, event: &core::Event) {
        if let Some(events) = &self.events {
            // The listener lives as long as the hooks.
            let _ = events.send(event.clone());
        }
    }
}
