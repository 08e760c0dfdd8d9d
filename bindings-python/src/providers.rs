//! Providers by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use sandhold_core::{Error, ErrorKind, SandboxProvider};

use crate::errors::{from_python, raised};
use crate::provider::{AsyncProvider, Provider, provider};
use crate::runtime;

/// The providers that a program can use, by name: each is made when it is asked for.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct Providers(sandhold_core::Providers);

#[allow(clippy::wrong_self_convention, reason = "they are called as in Rust")]
#[pymethods]
impl Providers {
    #[new]
    fn new(makers: BTreeMap<String, Py<PyAny>>, py: Python<'_>) -> PyResult<Self> {
        let mut providers = sandhold_core::Providers::new();
        for (name, maker) in makers {
            if !maker.bind(py).is_callable() {
                let problem =
                    format!("argument 'makers': {name:?} is not callable: {}", maker.bind(py).repr()?);
                return Err(PyTypeError::new_err(problem));
            }
            let made_by = format!("the maker of the provider {name:?}");
            providers = providers.with(name, move || made(&maker, &made_by));
        }
        Ok(Self(providers))
    }

    /// The names, sorted.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.names().map(str::to_owned).collect()
    }

    /// Makes the provider of this name.
    fn from_name(&self, py: Python<'_>, name: &str) -> PyResult<Provider> {
        self.0.from_name(name).map(Provider::from).map_err(|error| raised(py, &error))
    }

    /// Makes the provider that `SANDHOLD_PROVIDER` names.
    fn from_env(&self, py: Python<'_>) -> PyResult<Provider> {
        self.0.from_env().map(Provider::from).map_err(|error| raised(py, &error))
    }

    /// Makes the provider of this name, for event loops.
    fn async_from_name(&self, py: Python<'_>, name: &str) -> PyResult<AsyncProvider> {
        self.0.from_name(name).map(AsyncProvider::from).map_err(|error| raised(py, &error))
    }

    /// Makes the provider that `SANDHOLD_PROVIDER` names, for event loops.
    fn async_from_env(&self, py: Python<'_>) -> PyResult<AsyncProvider> {
        self.0.from_env().map(AsyncProvider::from).map_err(|error| raised(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("Providers({:?})", self.names())
    }
}

impl Providers {
    pub(crate) fn known(&self) -> sandhold_core::Providers {
        self.0.clone()
    }
}

fn made(maker: &Py<PyAny>, made_by: &str) -> sandhold_core::Result<Arc<dyn SandboxProvider>> {
    let call = |py: Python<'_>| provider("Providers", maker.bind(py).call0()?.as_any());
    runtime::attach(|py| call(py).map_err(|raised| from_python(py, raised, made_by)))
        .unwrap_or_else(|| Err(Error::new(ErrorKind::Cancelled, "the interpreter ended")))
}
