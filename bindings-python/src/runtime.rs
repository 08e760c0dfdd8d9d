//! Futures of Rust, waited for by a Python thread or awaited by an event loop.

use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use sandhold_core::{Error, ErrorKind, HookScope, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use crate::{errors, hooks};

/// How soon a waiting main thread takes notice of Ctrl-C.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// The one runtime of this process, and the process that it was made in.
static RUNTIME: OnceLock<(u32, Runtime)> = OnceLock::new();

/// Returns the runtime, which is made at the first call.
///
/// # Errors
/// [`ErrorKind::InvalidState`] with reason `forked` in the child of a fork: none of its threads are there.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    let pid = std::process::id();
    if RUNTIME.get().is_none() {
        let made =
            Builder::new_multi_thread().enable_all().thread_name("sandhold").build().map_err(|error| {
                Error::new(ErrorKind::Unavailable, "the threads of sandhold cannot be started")
                    .with_source(error)
            })?;
        // Another thread may have been faster; its runtime is as good.
        let _ = RUNTIME.set((pid, made));
    }
    match RUNTIME.get() {
        Some((owner, runtime)) if *owner == pid => Ok(runtime),
        _ => Err(Error::new(
            ErrorKind::InvalidState,
            "this process was forked from one that uses sandhold, whose threads are not here; start it with \
             multiprocessing's method spawn or forkserver, or use sandhold only after the fork",
        )
        .with_reason("forked")),
    }
}

/// How many threads of ours run Python code, or are about to.
static ATTACHED: AtomicUsize = AtomicUsize::new(0);

/// Set when the interpreter begins to end.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// How long the end of the interpreter waits for hooks that still run.
const LONGEST_FAREWELL: Duration = Duration::from_secs(5);

/// Runs Python code on a thread of ours; `None` when the interpreter ends.
///
/// A thread that asks for an ending interpreter is ended by it, in the middle of Rust, which must not happen: so the end
/// waits for those who are inside, and lets nobody in any more.
pub(crate) fn attach<R>(work: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    struct Attached;
    impl Drop for Attached {
        fn drop(&mut self) {
            ATTACHED.fetch_sub(1, Ordering::SeqCst);
        }
    }
    ATTACHED.fetch_add(1, Ordering::SeqCst);
    let _attached = Attached;
    if CLOSED.load(Ordering::SeqCst) { None } else { Python::try_attach(work) }
}

/// Lets no thread of ours into the interpreter any more.
#[pyfunction]
fn close(py: Python<'_>) {
    CLOSED.store(true, Ordering::SeqCst);
    let is_ours = RUNTIME.get().is_some_and(|(owner, _)| *owner == std::process::id());
    let begun = Instant::now();
    py.detach(|| {
        while is_ours && ATTACHED.load(Ordering::SeqCst) > 0 && begun.elapsed() < LONGEST_FAREWELL {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Has the end of the interpreter say goodbye first.
pub(crate) fn close_at_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(close, py)?,)).map(drop)
}

/// Waits for a future with the interpreter released. Ctrl-C and other signals whose handlers raise end the wait, and the
/// future with it.
pub(crate) fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let runtime = runtime().map_err(|error| errors::raised(py, &error))?;
    let scope = hooks::scope(py);
    let ended = py.detach(|| runtime.block_on(scoped(scope, interruptible(future))));
    ended?.map_err(|error| errors::raised(py, &error))
}

async fn interruptible<T>(future: impl Future<Output = Result<T>>) -> PyResult<Result<T>> {
    let mut future = pin!(future);
    loop {
        tokio::select! {
            biased;
            result = &mut future => return Ok(result),
            () = tokio::time::sleep(SIGNAL_POLL) => attach(|py| py.check_signals()).unwrap_or(Ok(()))?,
        }
    }
}

async fn scoped<T>(scope: Option<HookScope>, future: impl Future<Output = T>) -> T {
    match scope {
        Some(scope) => scope.run(future).await,
        None => future.await,
    }
}

/// Returns an awaitable of the running event loop for a future. Its cancellation drops the future.
pub(crate) fn spawn<'py, T>(
    py: Python<'py>,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'any> IntoPyObject<'any> + Send + 'static,
{
    settled_by(py, future, |py, value| value.into_py_any(py))
}

/// As [`spawn`], for the next item of an iteration.
pub(crate) fn spawn_next<'py, T>(
    py: Python<'py>,
    future: impl Future<Output = Result<Option<T>>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'any> IntoPyObject<'any> + Send + 'static,
{
    settled_by(py, future, |py, item| match item {
        Some(item) => item.into_py_any(py),
        None => Err(PyStopAsyncIteration::new_err(())),
    })
}

fn settled_by<'py, T: Send + 'static>(
    py: Python<'py>,
    future: impl Future<Output = Result<T>> + Send + 'static,
    convert: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let runtime = runtime().map_err(|error| errors::raised(py, &error))?;
    let event_loop = running_loop(py)?;
    let awaitable = event_loop.call_method0(intern!(py, "create_future"))?;
    let promise = Promise(Some((event_loop.unbind(), awaitable.clone().unbind())));
    let scope = hooks::scope(py);
    let task = runtime.spawn(async move {
        let result = scoped(scope, future).await;
        promise.settle(result, convert);
    });
    awaitable.call_method1(intern!(py, "add_done_callback"), (Abort(task.abort_handle()),))?;
    Ok(awaitable)
}

/// Returns the event loop that this thread runs.
pub(crate) fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    GET.import(py, "asyncio", "get_running_loop")?.call0()
}

/// What an event loop awaits. One that is dropped unsettled, by a panic, tells so.
struct Promise(Option<(Py<PyAny>, Py<PyAny>)>);

impl Promise {
    fn settle<T>(mut self, result: Result<T>, convert: fn(Python<'_>, T) -> PyResult<Py<PyAny>>) {
        let Some(parts) = self.0.take() else { return };
        // Where the interpreter ends, nobody waits any more.
        attach(|py| {
            let settled = match result {
                Ok(value) => convert(py, value),
                Err(error) => Err(errors::raised(py, &error)),
            };
            deliver(py, &parts, settled);
        });
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let Some(parts) = self.0.take() else { return };
        attach(|py| {
            let error =
                Error::new(ErrorKind::Unexpected, "the call ended without an answer; please report it");
            deliver(py, &parts, Err(errors::raised(py, &error)));
        });
    }
}

/// Hands a result to the event loop's own thread.
fn deliver(py: Python<'_>, (event_loop, awaitable): &(Py<PyAny>, Py<PyAny>), result: PyResult<Py<PyAny>>) {
    let (value, error) = match result {
        Ok(value) => (value, py.None()),
        Err(error) => (py.None(), error.into_value(py).into_any()),
    };
    let settle = wrap_pyfunction!(settle, py);
    // A loop that was closed meanwhile has nobody who awaits.
    let _ = settle.and_then(|settle| {
        event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (settle, awaitable, value, error))
    });
}

#[pyfunction]
fn settle(awaitable: &Bound<'_, PyAny>, value: Py<PyAny>, error: Py<PyAny>) -> PyResult<()> {
    let py = awaitable.py();
    if awaitable.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    if error.is_none(py) {
        awaitable.call_method1(intern!(py, "set_result"), (value,))?;
    } else {
        awaitable.call_method1(intern!(py, "set_exception"), (error,))?;
    }
    Ok(())
}

/// Ends the future behind an awaitable that is done; no effect on one that has ended.
#[pyclass(frozen, module = "sandhold._native")]
struct Abort(AbortHandle);

#[pymethods]
impl Abort {
    fn __call__(&self, _awaitable: &Bound<'_, PyAny>) {
        self.0.abort();
    }
}
