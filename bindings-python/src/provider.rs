//! Where sandboxes are: this machine, or a service that speaks E2B's protocol.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core::{Owner, SandboxProvider};
use sandhold_e2b::{AutoResume, E2bConfig, E2bProvider as Remote, PublicTraffic};
use sandhold_local::{LocalConfig, LocalProvider as Local, Requirement};

use crate::convert::{Options, checked, extract, one_of};
use crate::errors::raised;

/// Sandboxes on this machine: isolated processes that outlive the program that made them.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct LocalProvider(Local);

#[pymethods]
impl LocalProvider {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut given = Options::new(py, "LocalProvider", options)?;
        let mut config = LocalConfig::new();
        config.home = given.take::<PathBuf>("home")?;
        config.helper = given.take::<PathBuf>("helper")?;
        config.packaged_helper = packaged_helper(py)?;
        let words: Vec<_> = Requirement::ALL.iter().map(|known| (known.name(), *known)).collect();
        for word in given.take::<Vec<String>>("requirements")?.unwrap_or_default() {
            config.requirements.push(one_of(py, "requirements", &word, &words)?);
        }
        config.in_memory = given.take("in_memory")?.unwrap_or(false);
        if let Some(timeout) = given.seconds("start_timeout")? {
            config.start_timeout = timeout;
        }
        given.finish()?;
        py.detach(|| Local::new(config)).map(Self).map_err(|error| raised(py, &error))
    }

    /// The provider's stable name.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// The state directory.
    #[getter]
    fn home(&self) -> PathBuf {
        self.0.home().to_owned()
    }

    fn __repr__(&self) -> String {
        format!("LocalProvider(home={:?})", self.0.home())
    }
}

/// The helper program that lies in this package, where it was built with one.
fn packaged_helper(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    let package: PathBuf = py.import("sandhold")?.getattr("__file__")?.extract()?;
    Ok(package.parent().map(|place| place.join("_bin/sandhold-helper")).filter(|helper| helper.exists()))
}

/// E2B's cloud, a self-hosted E2B, or any server that speaks its protocol.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct E2bProvider(Remote);

#[pymethods]
impl E2bProvider {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut given = Options::new(py, "E2bProvider", options)?;
        let mut config = match given.take::<String>("api_key")? {
            Some(key) => E2bConfig::new(key),
            None => E2bConfig::from_env().map_err(|error| raised(py, &error))?,
        };
        if let Some(domain) = given.take("domain")? {
            config.domain = domain;
        }
        config.api_url = given.take("api_url")?.or(config.api_url);
        config.sandbox_url = given.take("sandbox_url")?.or(config.sandbox_url);
        config.volume_url = given.take("volume_url")?.or(config.volume_url);
        config.debug = given.take("debug")?.unwrap_or(config.debug);
        config.allow_plaintext = given.take("allow_plaintext")?.unwrap_or(false);
        for (name, value) in given.take::<BTreeMap<String, String>>("headers")?.unwrap_or_default() {
            config = config.with_header(name, value);
        }
        for (name, field) in [
            ("request_timeout", &mut config.request_timeout),
            ("lease", &mut config.lease),
            ("max_run", &mut config.max_run),
            ("list_visibility", &mut config.list_visibility),
        ] {
            if let Some(time) = given.seconds(name)? {
                *field = time;
            }
        }
        let words = [("token_only", PublicTraffic::TokenOnly), ("everybody", PublicTraffic::Everybody)];
        config.public_traffic = given.word("public_traffic", &words)?.unwrap_or_default();
        let words = [("off", AutoResume::Off), ("on_traffic", AutoResume::OnTraffic)];
        config.auto_resume = given.word("auto_resume", &words)?.unwrap_or_default();
        if let Some(owner) = given.take::<String>("mastra_owner")? {
            config.mastra_owner = Some(checked(py, "mastra_owner", Owner::new(owner))?);
        }
        given.finish()?;
        Remote::new(config).map(Self).map_err(|error| raised(py, &error))
    }

    /// The provider's stable name.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("E2bProvider(domain={:?})", self.0.config().domain)
    }
}

/// Reads the provider that a host is made of.
pub(crate) fn provider(call: &'static str, given: &Bound<'_, PyAny>) -> PyResult<Arc<dyn SandboxProvider>> {
    if let Ok(remote) = given.cast::<E2bProvider>() {
        return Ok(Arc::new(remote.get().0.clone()));
    }
    let local = extract::<Py<LocalProvider>>(call, "provider", given)?;
    Ok(Arc::new(local.get().0.clone()))
}
