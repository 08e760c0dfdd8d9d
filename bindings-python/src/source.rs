//! What a file is written from.

use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use sandhold_core::{ByteStream, Result, ResultStream};

use crate::errors::from_python;
use crate::hooks;
use crate::process::bytes;
use crate::runtime;

/// How much of an open file is read at a time.
const PIECE: usize = 1 << 20;

/// Reads a body, and its size where that is known.
pub(crate) fn body(
    py: Python<'_>,
    body: &Bound<'_, PyAny>,
    is_async: bool,
) -> PyResult<(ByteStream, Option<u64>)> {
    if let Ok(bytes) = bytes("write", "body", body) {
        let size = bytes.len() as u64;
        return Ok((ByteStream::from_bytes(bytes), Some(size)));
    }
    if body.hasattr(intern!(py, "read"))? {
        let file = body.clone().unbind();
        let step = move |py: Python<'_>| {
            let piece = file.call_method1(py, intern!(py, "read"), (PIECE,))?;
            let piece = bytes("write", "body", piece.bind(py))?;
            Ok((!piece.is_empty()).then_some(piece))
        };
        return Ok((on_threads(step), None));
    }
    if is_async && body.hasattr(intern!(py, "__aiter__"))? {
        let items = body.call_method0(intern!(py, "__aiter__"))?.unbind();
        return Ok((on_loop(items, runtime::running_loop(py)?.unbind()), None));
    }
    let Ok(items) = body.try_iter() else {
        return Err(PyTypeError::new_err(format!(
            "write() argument 'body': give bytes, text, an open binary file or an iterable of bytes, not {}",
            body.get_type().name()?
        )));
    };
    let items = items.unbind();
    let step = move |py: Python<'_>| match items.bind(py).clone().next() {
        Some(item) => bytes("write", "body", &item?).map(Some),
        None => Ok(None),
    };
    Ok((on_threads(step), None))
}

/// A stream of what a function returns, which may block.
fn on_threads(step: impl Fn(Python<'_>) -> PyResult<Option<Bytes>> + Send + 'static) -> ByteStream {
    ResultStream::unfold(step, |step| async move {
        let work = move || {
            let piece = runtime::attach(|py| step(py).map_err(|raised| from_python(py, raised, "the body")));
            (piece, step)
        };
        let (piece, step) = tokio::task::spawn_blocking(work).await.ok()?;
        let piece: Result<Option<Bytes>> = piece?;
        piece.transpose().map(|piece| (piece, step))
    })
}

/// A stream of what an asynchronous iterator yields on its event loop.
fn on_loop(items: Py<PyAny>, event_loop: Py<PyAny>) -> ByteStream {
    ResultStream::unfold((items, event_loop), |(items, event_loop)| async move {
        let piece: Result<Option<Bytes>> = hooks::next_on_loop(&items, &event_loop).await;
        piece.transpose().map(|piece| (piece, (items, event_loop)))
    })
}
