//! Plain data as values of Python: what Rust keeps as JSON.

use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sandhold_core::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::errors::invalid_argument;

/// Data without a class of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Json(pub(crate) Value);

impl Json {
    /// Reads JSON.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let read = serde_json::from_str(text);
        read.map(Self)
            .map_err(|error| Error::new(ErrorKind::Unexpected, "the answer is no JSON").with_source(error))
    }

    /// Reads what a type of Rust is stored as.
    pub(crate) fn of(value: &impl serde::Serialize) -> Self {
        Self(serde_json::to_value(value).unwrap_or_default())
    }
}

impl<'py> IntoPyObject<'py> for Json {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        object(py, &self.0)
    }
}

fn object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(truth) => truth.into_bound_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => whole.into_bound_py_any(py),
            (None, Some(whole)) => whole.into_bound_py_any(py),
            (None, None) => number.as_f64().into_bound_py_any(py),
        },
        Value::String(text) => text.into_bound_py_any(py),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(object(py, item)?)?;
            }
            Ok(list.into_any())
        }
        Value::Object(pairs) => {
            let dict = PyDict::new(py);
            for (name, value) in pairs {
                dict.set_item(name, object(py, value)?)?;
            }
            Ok(dict.into_any())
        }
    }
}

/// Reads plain data as what Rust keeps as JSON.
pub(crate) fn read<T: serde::de::DeserializeOwned>(name: &str, given: &Bound<'_, PyAny>) -> PyResult<T> {
    let py = given.py();
    let text: String = py.import("json")?.call_method1("dumps", (given,))?.extract()?;
    serde_json::from_str(&text)
        .map_err(|error| invalid_argument(py, name, &format!("is not acceptable: {error}")))
}
