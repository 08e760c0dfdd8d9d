//! Keeping the work of sandboxes as they come and go.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use sandhold_core::{PersistHook, Result};
use sandhold_persist::{RepoKey, Vault, VaultConfig, VaultHook as Hook};

use crate::convert::{checked, seconds};

/// Keeps a workspace inside each sandbox in a vault, and puts it back into the sandbox that takes its place.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct VaultHook {
    config: VaultConfig,
    path: String,
    interval: Option<Duration>,
}

#[pymethods]
impl VaultHook {
    #[new]
    #[pyo3(signature = (home, key, path, *, interval = None))]
    fn new(
        py: Python<'_>,
        home: PathBuf,
        key: String,
        path: String,
        interval: Option<f64>,
    ) -> PyResult<Self> {
        let key = checked(py, "key", RepoKey::new(key))?;
        let interval = interval.map(|interval| seconds(py, "interval", interval)).transpose()?;
        Ok(Self { config: VaultConfig::new(home, key), path, interval })
    }

    fn __repr__(&self) -> String {
        format!(
            "VaultHook(home={:?}, key={:?}, path={:?})",
            self.config.home,
            self.config.key.as_str(),
            self.path
        )
    }
}

impl VaultHook {
    /// Opens the vault.
    pub(crate) async fn open(&self) -> Result<Arc<dyn PersistHook>> {
        let hook = Hook::new(Vault::open(self.config.clone()).await?, self.path.clone());
        Ok(Arc::new(match self.interval {
            Some(Duration::ZERO) => hook.with_interval(None),
            Some(interval) => hook.with_interval(Some(interval)),
            None => hook,
        }))
    }
}
