//! What comes one after the other: the bytes of a file, events of a watch, events of a host.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use sandhold_core as core;
use sandhold_core::{Lagged, Result, ResultStream};
use tokio::sync::{Mutex, watch};

use crate::runtime;
use crate::twins::Nothing;
use crate::values::{Event, WatchEvent};

/// A stream whose readers take turns, and which whoever holds it can end.
struct Shared<T> {
    stream: Mutex<Option<ResultStream<T>>>,
    closed: watch::Sender<bool>,
}

impl<T> Shared<T> {
    fn new(stream: ResultStream<T>) -> Arc<Self> {
        Arc::new(Self { stream: Mutex::new(Some(stream)), closed: watch::Sender::new(false) })
    }

    /// Ends it, also for those who wait for its next item right now.
    fn close(&self) {
        self.closed.send_replace(true);
        // One who waits drops it.
        if let Ok(mut stream) = self.stream.try_lock() {
            *stream = None;
        }
    }

    async fn next<U: From<T>>(&self) -> Result<Option<U>> {
        let mut closed = self.closed.subscribe();
        let mut stream = self.stream.lock().await;
        let Some(open) = stream.as_mut() else { return Ok(None) };
        let next = tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => Ok(None),
            next = open.next() => next.transpose(),
        };
        if !matches!(next, Ok(Some(_))) {
            *stream = None;
        }
        Ok(next?.map(U::from))
    }
}

/// What a host tells: an event, or how many were missed.
struct Told(std::result::Result<core::Event, Lagged>);

impl From<std::result::Result<core::Event, Lagged>> for Told {
    fn from(told: std::result::Result<core::Event, Lagged>) -> Self {
        Self(told)
    }
}

impl<'py> IntoPyObject<'py> for Told {
    type Target = Event;
    type Output = Bound<'py, Event>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, Event>> {
        let event = match self.0 {
            Ok(event) => Event::new(py, &event),
            Err(lagged) => Event::lagged(py, lagged),
        };
        Bound::new(py, event?)
    }
}

/// One item of a listing, which becomes a value of Python where it is taken.
pub(crate) struct Item(Box<Converted>);

type Converted = dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send;

impl<'py> IntoPyObject<'py> for Item {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (self.0)(py).map(|item| item.into_bound(py))
    }
}

/// A listing whose items become values of this type.
pub(crate) fn items<T, U>(stream: ResultStream<T>) -> ResultStream<Item>
where
    T: Send + 'static,
    U: From<T> + for<'any> IntoPyObject<'any>,
{
    ResultStream::unfold(stream, |mut stream| async move {
        let item = stream.next().await?;
        Some((item.map(|item| Item(Box::new(move |py| U::from(item).into_py_any(py)))), stream))
    })
}

macro_rules! faces {
    ($($(#[$doc:meta])* $sync:ident, $asynchronous:ident: $from:ty => $item:ty $(, $field:ident: $type:ty = $value:expr)?;)+) => {$(
        faces!(@ $(#[$doc])* $sync: $from $(, $field: $type = $value)?);
        faces!(@ $(#[$doc])* $asynchronous: $from $(, $field: $type = $value)?);

        #[pymethods]
        impl $sync {
            fn __iter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            fn __next__(&self, py: Python<'_>) -> PyResult<Option<$item>> {
                runtime::wait(py, self.stream.next())
            }

            fn __enter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            #[pyo3(signature = (*_raised))]
            fn __exit__(&self, _raised: &Bound<'_, pyo3::types::PyTuple>) {
                self.stream.close();
            }
        }

        #[pymethods]
        impl $asynchronous {
            fn __aiter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let stream = Arc::clone(&self.stream);
                runtime::spawn_next(py, async move { stream.next::<$item>().await })
            }

            fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                let this = slf.clone().unbind();
                runtime::spawn(slf.py(), async move { Ok(this) })
            }

            #[pyo3(signature = (*_raised))]
            fn __aexit__<'py>(
                &self,
                py: Python<'py>,
                _raised: &Bound<'py, pyo3::types::PyTuple>,
            ) -> PyResult<Bound<'py, PyAny>> {
                self.stream.close();
                runtime::spawn(py, async { Ok(Nothing) })
            }
        }
    )+};
    (@ $(#[$doc:meta])* $name:ident: $from:ty $(, $field:ident: $type:ty = $value:expr)?) => {
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name {
            stream: Arc<Shared<<$from as Streamed>::Item>>,
            $(#[pyo3(get)] $field: $type,)?
        }

        impl From<$from> for $name {
            fn from(from: $from) -> Self {
                Self { $($field: $value(&from),)? stream: Shared::new(from.stream()) }
            }
        }

        #[pymethods]
        impl $name {
            /// Ends it; whoever waits for the next item gets the end.
            fn close(&self) {
                self.stream.close();
            }
        }
    };
}

/// A download whose size nobody tells.
pub(crate) fn unsized_download(body: core::ByteStream) -> core::Download {
    core::Download::new(None, body)
}

/// What a stream is taken out of.
trait Streamed {
    type Item;
    fn stream(self) -> ResultStream<Self::Item>;
}

impl<T> Streamed for ResultStream<T> {
    type Item = T;
    fn stream(self) -> Self {
        self
    }
}

impl Streamed for core::Download {
    type Item = Bytes;
    fn stream(self) -> ResultStream<Bytes> {
        self.body
    }
}

impl Streamed for core::Events {
    type Item = std::result::Result<core::Event, Lagged>;
    fn stream(self) -> ResultStream<Self::Item> {
        ResultStream::unfold(self, |mut events| async move {
            let told = events.next().await?;
            Some((Ok(told), events))
        })
    }
}

faces! {
    /// The content of a file on its way out of the sandbox, in pieces. One that breaks ends with an error.
    Download, AsyncDownload: core::Download => Bytes, size: Option<u64> = |download: &core::Download| download.size;
    /// A listing, item by item.
    Items, AsyncItems: ResultStream<Item> => Item;
    /// What happens in a watched directory.
    Watch, AsyncWatch: ResultStream<core::WatchEvent> => WatchEvent;
    /// What happens to the sandboxes of a host. Where a listener was too slow, an event of kind `lagged` says so.
    Events, AsyncEvents: core::Events => Told;
}
