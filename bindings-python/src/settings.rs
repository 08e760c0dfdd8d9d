//! How work is kept, as the host, its user and a project say.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_persist as persist;

use crate::errors::raised;
use crate::mirror::MirrorConfig;

/// How work is kept: how often it is saved, how long, what of it, and where copies go.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct PersistConfig(pub(crate) persist::PersistConfig);

#[pymethods]
impl PersistConfig {
    #[new]
    fn new() -> Self {
        Self(persist::PersistConfig::new())
    }

    /// Lays the files of a user and of a project over the defaults; one that is not there says nothing.
    #[staticmethod]
    #[pyo3(signature = (user = None, project = None))]
    fn load(py: Python<'_>, user: Option<PathBuf>, project: Option<PathBuf>) -> PyResult<Self> {
        let load = || persist::PersistConfig::load(user.as_deref(), project.as_deref());
        py.detach(load).map(Self).map_err(|error| raised(py, &error))
    }

    /// Lays the text of a user's file over what is settled.
    fn with_user_file(&self, py: Python<'_>, text: &[u8]) -> PyResult<Self> {
        self.0.clone().with_user_file(text).map(Self).map_err(|error| raised(py, &error))
    }

    /// Lays the text of a project's file over what is settled; it may only narrow what is captured.
    fn with_project_file(&self, py: Python<'_>, text: &[u8]) -> PyResult<Self> {
        self.0.clone().with_project_file(text).map(Self).map_err(|error| raised(py, &error))
    }

    /// How often the work of a sandbox in use is saved, in seconds; None only before pauses and destroys.
    #[getter]
    fn interval(&self) -> Option<f64> {
        self.0.interval.map(|interval| interval.as_secs_f64())
    }

    /// How long snapshots are kept, as `Vault.prune` takes it.
    #[getter]
    fn retention<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kept = &self.0.retention;
        let seconds = |age: Option<std::time::Duration>| age.map_or(0.0, |age| age.as_secs_f64());
        let dict = PyDict::new(py);
        dict.set_item("runs", seconds(kept.runs))?;
        dict.set_item("manual", seconds(kept.manual))?;
        dict.set_item("max_count", kept.max_count)?;
        dict.set_item("max_bytes", kept.max_bytes)?;
        dict.set_item("require_mirror", kept.require_mirror)?;
        dict.set_item("superseded", kept.superseded)?;
        Ok(dict)
    }

    /// What is captured, as `Vault.capture` takes it.
    #[getter]
    fn rules<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let rules = &self.0.rules;
        let dict = PyDict::new(py);
        dict.set_item("max_file", rules.max_file.unwrap_or(0))?;
        dict.set_item("keep_last", rules.keep_last)?;
        dict.set_item("never", &rules.never)?;
        dict.set_item("skip_env_files", rules.skip_env_files)?;
        dict.set_item("skip_private_keys", rules.skip_private_keys)?;
        Ok(dict)
    }

    /// Where copies go; None is nowhere.
    #[getter]
    fn mirror(&self) -> Option<MirrorConfig> {
        self.0.mirror.clone().map(MirrorConfig)
    }

    fn __repr__(&self) -> String {
        format!("PersistConfig(interval={:?}, mirror={:?})", self.interval(), self.0.mirror)
    }
}

/// What came of a change of settings.
#[pyclass(frozen, get_all, module = "sandhold")]
#[derive(Debug)]
pub(crate) struct SettingsChange {
    /// The keys that say something else now.
    changed: Vec<String>,
    /// The keys that were left as they are, as a higher layer has fixed them.
    pinned: Vec<String>,
}

#[pymethods]
impl SettingsChange {
    fn __repr__(&self) -> String {
        format!("SettingsChange(changed={:?}, pinned={:?})", self.changed, self.pinned)
    }
}

/// The settings of a host in layers: what its code fixes, over what its user wrote, over what was chosen while it ran.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct PersistSettings(Mutex<persist::PersistSettings>);

impl PersistSettings {
    fn with<T>(&self, look: impl FnOnce(&mut persist::PersistSettings) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl PersistSettings {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// Reads the file of a user, and the one that `save` wrote; one that is not there says nothing.
    #[staticmethod]
    #[pyo3(signature = (user = None, chosen = None))]
    fn load(py: Python<'_>, user: Option<PathBuf>, chosen: Option<PathBuf>) -> PyResult<Self> {
        let load = || persist::PersistSettings::load(user.as_deref(), chosen.as_deref());
        let loaded = py.detach(load).map_err(|error| raised(py, &error))?;
        Ok(Self(Mutex::new(loaded)))
    }

    /// Returns settings in which the code of the host fixes this, over whatever files and requests say.
    fn with_host(&self, py: Python<'_>, text: &[u8]) -> PyResult<Self> {
        let fixed = self.with(|settings| settings.clone()).with_host(text);
        fixed.map(|settings| Self(Mutex::new(settings))).map_err(|error| raised(py, &error))
    }

    /// Settles all layers.
    fn resolve(&self, py: Python<'_>) -> PyResult<PersistConfig> {
        self.with(|settings| settings.resolve()).map(PersistConfig).map_err(|error| raised(py, &error))
    }

    /// The keys that can be chosen no more, in order.
    fn pinned(&self) -> Vec<String> {
        self.with(|settings| settings.pinned())
    }

    /// Changes what was chosen: JSON, where an absent key stays and null takes back what was chosen for it.
    fn update(&self, py: Python<'_>, change: &[u8]) -> PyResult<SettingsChange> {
        let answer = self.with(|settings| settings.update(change)).map_err(|error| raised(py, &error))?;
        Ok(SettingsChange { changed: answer.changed, pinned: answer.pinned })
    }

    /// Writes what was chosen, for `load`.
    fn save(&self, py: Python<'_>, chosen: PathBuf) -> PyResult<()> {
        let settings = self.with(|settings| settings.clone());
        py.detach(|| settings.save(&chosen)).map_err(|error| raised(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("PersistSettings(pinned={:?})", self.pinned())
    }
}
