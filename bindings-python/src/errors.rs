//! Errors on their way to Python and, from hooks, back: by their fields, never by text.

use std::error::Error as StdError;

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use sandhold_core::{Error, ErrorKind, REASON_HOOK};

/// The error that an exception was made of, so that one that a hook lets through stays the same.
#[pyclass(frozen, module = "sandhold._native")]
pub(crate) struct Origin(Error);

/// Makes the exception of an error, with its whole chain of causes.
///
/// Ctrl-C and the like, which came up in a hook or a callback, go on as what they are.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    if let Some(cause) = error.source().and_then(|source| source.downcast_ref::<PyErr>())
        && !cause.is_instance_of::<PyException>(py)
    {
        return cause.clone_ref(py);
    }
    exception(py, error).unwrap_or_else(|failure| failure)
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let raised = class(py, error.kind())?.call1((error.to_string(),))?;
    let context = PyDict::new(py);
    for (name, value) in error.context() {
        context.set_item(name, value)?;
    }
    raised.setattr("kind", error.kind().as_str())?;
    raised.setattr("message", error.message())?;
    raised.setattr("reason", error.reason())?;
    raised.setattr("retryable", error.is_retryable())?;
    raised.setattr("retry_after", error.retry_after().map(|delay| delay.as_secs_f64()))?;
    raised.setattr("outcome", error.outcome().as_str())?;
    raised.setattr("provider", Some(error.provider()).filter(|name| !name.is_empty()))?;
    raised.setattr("operation", Some(error.operation()).filter(|name| !name.is_empty()))?;
    raised.setattr("context", context)?;
    raised.setattr("_origin", Origin(error.clone()))?;
    let raised = PyErr::from_value(raised);
    if let Some(source) = error.source() {
        raised.set_cause(py, Some(cause(py, source)));
    }
    Ok(raised)
}

/// Makes the exception of a cause: one of ours, one of Python's, or a text.
fn cause(py: Python<'_>, source: &(dyn StdError + 'static)) -> PyErr {
    if let Some(error) = source.downcast_ref::<Error>() {
        return raised(py, error);
    }
    if let Some(error) = source.downcast_ref::<PyErr>() {
        return error.clone_ref(py);
    }
    let text = PyRuntimeError::new_err(source.to_string());
    if let Some(next) = source.source() {
        text.set_cause(py, Some(cause(py, next)));
    }
    text
}

fn class(py: Python<'_>, kind: ErrorKind) -> PyResult<Bound<'_, PyType>> {
    static BY_KIND: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let by_kind = BY_KIND.import(py, "sandhold._errors", "BY_KIND")?;
    let found = by_kind.get_item(kind.as_str())?;
    found.ok_or_else(|| PyException::new_err(kind.as_str()))?.cast_into().map_err(Into::into)
}

/// Makes the exception for a value that is not acceptable; the message names the argument.
pub(crate) fn invalid_argument(py: Python<'_>, argument: &str, problem: &str) -> PyErr {
    let error = Error::invalid_argument(format!("the argument {argument} {problem}"));
    raised(py, &error.with_context("argument", argument))
}

/// Reads what Python code raised: an exception of ours is the error that it was made of, any other its cause.
pub(crate) fn from_python(py: Python<'_>, raised: PyErr, at: &str) -> Error {
    let origin = raised.value(py).getattr("_origin").ok();
    if let Some(origin) = origin.as_ref().and_then(|origin| origin.cast::<Origin>().ok()) {
        return origin.get().0.clone();
    }
    let name = raised.get_type(py).name().map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
    Error::new(ErrorKind::Unexpected, format!("{at} raised {name}"))
        .with_reason(REASON_HOOK)
        .with_source(raised)
}

/// Returns the code of every kind.
#[pyfunction]
pub(crate) fn error_kinds() -> Vec<&'static str> {
    ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect()
}
