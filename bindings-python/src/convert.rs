//! Arguments of Python as values of Rust. What does not fit is an error that names the argument.

use std::time::Duration;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core::ProcessSpec;

use crate::errors::{invalid_argument, raised};

/// The keyword arguments of a call, taken out one by one. `None` is as good as none.
pub(crate) struct Options<'py> {
    call: &'static str,
    left: Bound<'py, PyDict>,
}

impl<'py> Options<'py> {
    pub(crate) fn new(
        py: Python<'py>,
        call: &'static str,
        given: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let left = given.map_or_else(|| Ok(PyDict::new(py)), |given| given.copy())?;
        Ok(Self { call, left })
    }

    fn py(&self) -> Python<'py> {
        self.left.py()
    }

    /// Takes an argument as it is.
    pub(crate) fn any(&mut self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(value) = self.left.get_item(name)? else { return Ok(None) };
        self.left.del_item(name)?;
        Ok((!value.is_none()).then_some(value))
    }

    /// Takes an argument.
    pub(crate) fn take<T: FromPyObjectOwned<'py>>(&mut self, name: &str) -> PyResult<Option<T>> {
        let Some(value) = self.any(name)? else { return Ok(None) };
        extract(self.call, name, &value).map(Some)
    }

    /// Takes a time in seconds.
    pub(crate) fn seconds(&mut self, name: &str) -> PyResult<Option<Duration>> {
        let Some(value) = self.take::<f64>(name)? else { return Ok(None) };
        seconds(self.py(), name, value).map(Some)
    }

    /// Takes one of these words.
    pub(crate) fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> PyResult<Option<T>> {
        let Some(word) = self.take::<String>(name)? else { return Ok(None) };
        one_of(self.py(), name, &word, words).map(Some)
    }

    /// Refuses whatever was not taken.
    pub(crate) fn finish(self) -> PyResult<()> {
        let Some((name, _)) = self.left.iter().next() else { return Ok(()) };
        Err(PyTypeError::new_err(format!(
            "{}() got an unexpected keyword argument {}",
            self.call,
            name.repr()?
        )))
    }
}

/// Reads an argument that is no text of a wrong type.
pub(crate) fn extract<'py, T: FromPyObjectOwned<'py>>(
    call: &str,
    name: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<T> {
    let py = value.py();
    value.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        if error.is_instance_of::<PyTypeError>(py) {
            PyTypeError::new_err(format!("{call}() argument '{name}': {}", error.value(py)))
        } else {
            invalid_argument(py, name, &format!("is not acceptable: {}", error.value(py)))
        }
    })
}

/// Reads a time in seconds.
pub(crate) fn seconds(py: Python<'_>, name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        invalid_argument(py, name, &format!("is {value}; give seconds, 0 or more and less than 1.8e19"))
    })
}

/// Finds one of these words.
pub(crate) fn one_of<T: Copy>(py: Python<'_>, name: &str, word: &str, words: &[(&str, T)]) -> PyResult<T> {
    words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(known, _)| format!("{known:?}")).collect();
        invalid_argument(py, name, &format!("is {word:?}; give one of {}", known.join(", ")))
    })
}

/// Reads a command: a text is a line of shell, a list the program and its arguments.
pub(crate) fn command(call: &'static str, value: &Bound<'_, PyAny>) -> PyResult<ProcessSpec> {
    if let Ok(line) = value.extract::<String>() {
        return Ok(ProcessSpec::shell(line));
    }
    let mut argv = extract::<Vec<String>>(call, "command", value)?.into_iter();
    match argv.next() {
        Some(program) => Ok(ProcessSpec::argv(program, argv)),
        None => Err(invalid_argument(value.py(), "command", "is empty; give a program and its arguments")),
    }
}

/// Names the argument in the error of a value that Rust has checked.
pub(crate) fn checked<T>(
    py: Python<'_>,
    argument: &'static str,
    value: sandhold_core::Result<T>,
) -> PyResult<T> {
    value.map_err(|error| raised(py, &error.with_context("argument", argument)))
}
