//! Keeping the work of sandboxes as they come and go: in a vault, or as an object of Python wants it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core as core;
use sandhold_core::{PersistHook, RestoreReason, Result};
use sandhold_persist as persist;
use sandhold_persist::{Mirror, VaultConfig, VaultHook as Hook};

use crate::convert::{Options, extract, seconds};
use crate::errors::raised;
use crate::hooks::{Callback, Followed, face, tuple};
use crate::json::{self, Json};
use crate::mirror::{self, MirrorConfig};
use crate::runtime;
use crate::settings::PersistConfig;
use crate::vault::{Store, capture_options, repo_key, restore_options};

/// Keeps a workspace inside each sandbox in a vault, and puts it back into the sandbox that takes its place.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct VaultHook {
    store: Arc<Store>,
    path: String,
    interval: Option<Duration>,
    capture: Option<persist::CaptureOptions>,
    restore: Option<persist::RestoreOptions>,
    mirror: Option<Mirror>,
    now: Mutex<Now>,
}

/// What was settled since it was made, and the hooks that go by it.
#[derive(Default)]
struct Now {
    applied: Option<persist::PersistConfig>,
    open: Vec<Weak<Hook>>,
}

#[pymethods]
impl VaultHook {
    #[new]
    #[pyo3(signature = (home, key, path, **options))]
    fn new(
        py: Python<'_>,
        home: PathBuf,
        key: String,
        path: String,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        Self::made(py, Store::new(VaultConfig::new(home, repo_key(py, key)?)), path, options)
    }

    /// Keeps work in this vault.
    #[staticmethod]
    #[pyo3(signature = (vault, path, **options))]
    fn of(vault: &Bound<'_, PyAny>, path: String, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Self::made(vault.py(), Store::read("of", vault)?, path, options)
    }

    /// Goes by other settings from now on: the interval, the rules of captures, and the mirror.
    fn apply(&self, py: Python<'_>, config: Py<PersistConfig>) -> PyResult<()> {
        let config = &config.get().0;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        for hook in now.open.iter().filter_map(Weak::upgrade) {
            hook.apply(config).map_err(|error| raised(py, &error))?;
        }
        now.applied = Some(config.clone());
        Ok(())
    }

    fn __repr__(&self) -> String {
        let VaultConfig { home, key, .. } = &self.store.config;
        format!("VaultHook(home={home:?}, key={:?}, path={:?})", key.as_str(), self.path)
    }
}

impl VaultHook {
    fn made(
        py: Python<'_>,
        store: Arc<Store>,
        path: String,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut given = Options::new(py, "VaultHook", options)?;
        let interval = given.seconds("interval")?;
        let capture = given.take::<Bound<'_, PyDict>>("capture")?;
        let capture = capture.map(|options| capture_options(py, "capture", Some(&options))).transpose()?;
        let restore = given.take::<Bound<'_, PyDict>>("restore")?;
        let restore = restore.map(|options| restore_options(py, "restore", Some(&options))).transpose()?;
        let mirror = given.take::<Py<MirrorConfig>>("mirror")?;
        let mirror = mirror.map(|config| mirror::opened(py, config.get())).transpose()?;
        given.finish()?;
        Ok(Self { store, path, interval, capture, restore, mirror, now: Mutex::default() })
    }

    /// Opens the vault and makes a hook for one host.
    async fn open(&self) -> Result<Arc<dyn PersistHook>> {
        let mut hook = Hook::new(self.store.open().await?.clone(), self.path.clone());
        if let Some(interval) = self.interval {
            hook = hook.with_interval(Some(interval).filter(|interval| !interval.is_zero()));
        }
        if let Some(options) = &self.capture {
            hook = hook.with_capture(options.clone());
        }
        if let Some(options) = &self.restore {
            hook = hook.with_restore(options.clone());
        }
        if let Some(mirror) = &self.mirror {
            hook = hook.with_mirror(mirror.clone());
        }
        let hook = Arc::new(hook);
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = &now.applied {
            hook.apply(config)?;
        }
        now.open.retain(|hook| hook.strong_count() > 0);
        now.open.push(Arc::downgrade(&hook));
        Ok(hook)
    }
}

/// What a restore put back.
#[pyclass(frozen, get_all, module = "sandhold")]
pub(crate) struct RestoreReport {
    /// The snapshot that was put back; None when there was none.
    snapshot: Option<String>,
    /// What was promised to survive, and was found there again, as whoever took the snapshot says it.
    receipt: Option<Json>,
}

#[pymethods]
impl RestoreReport {
    #[new]
    #[pyo3(signature = (snapshot = None, *, receipt = None))]
    fn new(snapshot: Option<String>, receipt: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let receipt = receipt.map(|receipt| json::read("receipt", receipt)).transpose()?;
        Ok(Self { snapshot, receipt: receipt.map(Json) })
    }

    fn __repr__(&self) -> String {
        format!("RestoreReport(snapshot={:?})", self.snapshot)
    }
}

/// What keeps the work of a host's sandboxes.
pub(crate) enum Persist {
    Vault(Py<VaultHook>),
    Python(Arc<PyPersist>),
}

impl Persist {
    pub(crate) fn take(given: &mut Options<'_>) -> PyResult<Option<Self>> {
        let Some(hook) = given.any("persist")? else { return Ok(None) };
        if let Ok(vault) = hook.extract::<Py<VaultHook>>() {
            return Ok(Some(Self::Vault(vault)));
        }
        PyPersist::new(&hook).map(|hook| Some(Self::Python(Arc::new(hook))))
    }

    pub(crate) async fn open(&self) -> Result<Arc<dyn PersistHook>> {
        match self {
            Self::Vault(hook) => hook.get().open().await,
            Self::Python(hook) => Ok(Arc::clone(hook) as Arc<dyn PersistHook>),
        }
    }

    pub(crate) fn followed(&self) -> Option<Arc<Followed>> {
        match self {
            Self::Vault(_) => None,
            Self::Python(hook) => Some(Arc::clone(&hook.followed)),
        }
    }
}

/// An object of Python that keeps work.
pub(crate) struct PyPersist {
    object: Py<PyAny>,
    restore: Callback,
    before_pause: Callback,
    before_destroy: Callback,
    tick: Callback,
    followed: Arc<Followed>,
}

impl PyPersist {
    fn new(hook: &Bound<'_, PyAny>) -> PyResult<Self> {
        let method = |name: &'static str| {
            let missing = || {
                PyTypeError::new_err(format!(
                    "argument 'persist': give a VaultHook or an object with restore, before_pause, before_destroy and \
                     tick; this one has no {name}"
                ))
            };
            Callback::new(name, hook.getattr(name).map_err(|_| missing())?)
        };
        Ok(Self {
            restore: method("restore")?,
            before_pause: method("before_pause")?,
            before_destroy: method("before_destroy")?,
            tick: method("tick")?,
            object: hook.clone().unbind(),
            followed: Arc::default(),
        })
    }

    async fn call(&self, callback: &Callback, sandbox: &core::Sandbox) -> Result<()> {
        let sandbox = sandbox.clone();
        let arguments = move |py: Python<'_>, is_async: bool| tuple(py, [face(py, sandbox, is_async)?]);
        callback.call(self.followed.event_loop(), arguments, |_| Ok(())).await
    }
}

impl std::fmt::Debug for PyPersist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PyPersist").finish_non_exhaustive()
    }
}

#[async_trait]
impl PersistHook for PyPersist {
    async fn restore(&self, sandbox: &core::Sandbox, reason: RestoreReason) -> Result<core::RestoreReport> {
        let sandbox = sandbox.clone();
        let arguments = move |py: Python<'_>, is_async: bool| {
            let reason = match reason {
                RestoreReason::Replaced => "replaced",
                _ => "created",
            };
            tuple(py, [face(py, sandbox, is_async)?, reason.into_pyobject(py)?.into_any()])
        };
        let read = |returned: &Bound<'_, PyAny>| {
            if returned.is_none() {
                return Ok(core::RestoreReport::default());
            }
            let report = extract::<Py<RestoreReport>>("restore", "returned", returned)?;
            let report = report.get();
            let mut told = core::RestoreReport::default();
            told.snapshot = report.snapshot.clone();
            told.receipt = report.receipt.clone().map(|receipt| receipt.0);
            Ok(told)
        };
        self.restore.call(self.followed.event_loop(), arguments, read).await
    }

    async fn before_pause(&self, sandbox: &core::Sandbox) -> Result<()> {
        self.call(&self.before_pause, sandbox).await
    }

    async fn before_destroy(&self, sandbox: &core::Sandbox) -> Result<()> {
        self.call(&self.before_destroy, sandbox).await
    }

    fn interval(&self) -> Option<Duration> {
        let ask = |py: Python<'_>| {
            let interval = self.object.bind(py).getattr("interval").ok()?.extract::<f64>().ok()?;
            seconds(py, "interval", interval).ok()
        };
        runtime::attach(ask).flatten().filter(|interval| !interval.is_zero())
    }

    async fn tick(&self, sandbox: &core::Sandbox) -> Result<()> {
        self.call(&self.tick, sandbox).await
    }
}
