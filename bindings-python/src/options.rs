//! What shapes an acquire, from keyword arguments.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core as core;
use sandhold_core::{
    AcquireOptions, CloneOptions, Exclusion, Key, Network, OnDuplicates, OnExpiry, OnGone, OnResumeFailure,
    OnSetupFailure, OnSpecConflict, ReplaceWhenGone, Resources, SandboxId, SandboxSpec,
};

use crate::convert::{Options, checked, extract};
use crate::errors::invalid_argument;
use crate::hooks::PyHooks;

/// Reads the options of an acquire, and its hooks.
pub(crate) fn acquire(
    py: Python<'_>,
    call: &'static str,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<(AcquireOptions, Option<Arc<PyHooks>>)> {
    let mut given = Options::new(py, call, given)?;
    let mut options = AcquireOptions::new(spec(py, &mut given)?);
    options.provider_id = given.take::<String>("provider_id")?.map(SandboxId::new);
    let words = [("create", ReplaceWhenGone::Create), ("fail", ReplaceWhenGone::Fail)];
    set(&mut options.replace_when_gone, given.word("replace_when_gone", &words)?);
    let words = [("fail", OnGone::Fail), ("reacquire", OnGone::Reacquire)];
    set(&mut options.on_gone, given.word("on_gone", &words)?);
    let words = [("report", OnDuplicates::Report), ("reap", OnDuplicates::Reap)];
    set(&mut options.on_duplicates, given.word("on_duplicates", &words)?);
    let words = [
        ("error", OnSpecConflict::Error),
        ("keep", OnSpecConflict::Keep),
        ("replace", OnSpecConflict::Replace),
    ];
    set(&mut options.on_spec_conflict, given.word("on_spec_conflict", &words)?);
    let words = [("keep", OnSetupFailure::Keep), ("destroy", OnSetupFailure::Destroy)];
    set(&mut options.on_setup_failure, given.word("on_setup_failure", &words)?);
    let words = [("keep", OnResumeFailure::Keep), ("destroy", OnResumeFailure::Destroy)];
    set(&mut options.on_resume_failure, given.word("on_resume_failure", &words)?);
    let words = [("proven", Exclusion::Proven), ("best_effort", Exclusion::BestEffort)];
    set(&mut options.exclusion, given.word("exclusion", &words)?);
    set(&mut options.hook_deadline, given.seconds("hook_deadline")?);
    set(&mut options.call_deadline, given.seconds("call_deadline")?);
    set(&mut options.deadline, given.seconds("deadline")?);
    let hooks = PyHooks::take(py, &mut given)?;
    options.hooks = hooks.clone().map(|hooks| hooks as Arc<dyn core::Hooks>);
    given.finish()?;
    Ok((options, hooks))
}

pub(crate) fn set<T>(field: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *field = given;
    }
}

/// What processes inside see.
pub(crate) const NETWORKS: [(&str, Network); 3] =
    [("none", Network::None), ("loopback", Network::Loopback), ("host", Network::Host)];

fn spec(py: Python<'_>, given: &mut Options<'_>) -> PyResult<SandboxSpec> {
    let mut spec = SandboxSpec::default();
    set(&mut spec.template, given.take("template")?);
    set(&mut spec.user, given.take("user")?);
    set(&mut spec.home, given.take("home")?);
    spec.workdir = given.take("workdir")?;
    set(&mut spec.env, given.take("env")?);
    set(&mut spec.metadata, given.take("metadata")?);
    set(&mut spec.resources, resources(py, given)?);
    set(&mut spec.network, given.word("network", &NETWORKS)?);
    spec.lease = given.seconds("lease")?;
    let words = [("pause", OnExpiry::Pause), ("kill", OnExpiry::Kill)];
    set(&mut spec.on_expiry, given.word("on_expiry", &words)?);
    if let Some(kind) = given.any("kind")? {
        spec.kind = self::kind(&kind)?;
    }
    for mount in given.take::<Vec<Py<Mount>>>("mounts")?.unwrap_or_default() {
        spec.mounts.push(mount.get().0.clone());
    }
    Ok(spec)
}

fn resources(py: Python<'_>, given: &mut Options<'_>) -> PyResult<Option<Resources>> {
    let Some(limits) = given.any("resources")? else { return Ok(None) };
    let limits = extract::<Bound<'_, PyDict>>("acquire", "resources", &limits)?;
    let mut limits = Options::new(py, "resources", Some(&limits))?;
    let mut resources = Resources::default();
    resources.cpu_millis = limits.take("cpu_millis")?;
    resources.memory = limits.take("memory")?;
    resources.pids = limits.take("pids")?;
    resources.disk = limits.take("disk")?;
    limits.finish()?;
    Ok(Some(resources))
}

fn kind(value: &Bound<'_, PyAny>) -> PyResult<core::Kind> {
    if let Ok(kind) = value.cast::<Kind>() {
        return Ok(kind.get().0.clone());
    }
    match extract::<String>("acquire", "kind", value)?.as_str() {
        "standard" => Ok(core::Kind::Standard),
        "privileged" => Ok(core::Kind::Privileged),
        other => {
            let problem = format!("is {other:?}; give \"standard\", \"privileged\", Kind.gpu or Kind.image");
            Err(invalid_argument(value.py(), "kind", &problem))
        }
    }
}

/// Reads what differs between a sandbox and a clone of its spec.
pub(crate) fn clone(
    py: Python<'_>,
    call: &'static str,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<CloneOptions> {
    let mut given = Options::new(py, call, given)?;
    let mut options = CloneOptions::default();
    options.key = match given.take::<String>("key")? {
        Some(key) => Some(checked(py, "key", Key::new(key))?),
        None => None,
    };
    options.provider_id = given.take::<String>("provider_id")?.map(SandboxId::new);
    set(&mut options.env, given.take("env")?);
    options.lease = given.seconds("lease")?;
    options.workdir = given.take("workdir")?;
    given.finish()?;
    Ok(options)
}

/// What kind of box is asked for, beside the words `standard` and `privileged`.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct Kind(core::Kind);

#[pymethods]
impl Kind {
    /// One with so many graphics processors of the provider's name.
    #[staticmethod]
    #[pyo3(signature = (model, count = 1))]
    fn gpu(model: String, count: u32) -> Self {
        Self(core::Kind::Gpu { model, count })
    }

    /// One made from a container image.
    #[staticmethod]
    fn image(reference: String) -> Self {
        Self(core::Kind::Image { reference })
    }

    fn __repr__(&self) -> String {
        format!("Kind({:?})", self.0)
    }
}

/// A directory that appears inside the sandbox.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct Mount(core::Mount);

#[pymethods]
impl Mount {
    /// Mounts a host directory at `path`, read-only unless `writable`.
    #[staticmethod]
    #[pyo3(signature = (path, host, *, writable = false))]
    fn host_dir(path: String, host: PathBuf, writable: bool) -> Self {
        Self(if writable {
            core::Mount::host_dir_writable(path, host)
        } else {
            core::Mount::host_dir(path, host)
        })
    }

    /// Mounts a host directory at `path` that several sandboxes share, writable from inside.
    #[staticmethod]
    fn shared_dir(path: String, host: PathBuf) -> Self {
        Self(core::Mount::shared_dir(path, host))
    }

    /// Mounts a volume of the provider at `path`.
    #[staticmethod]
    fn volume(path: String, name: String) -> Self {
        let mut mount = core::Mount::host_dir(path, PathBuf::new());
        mount.source = core::MountSource::Volume { name };
        Self(mount)
    }

    fn __repr__(&self) -> String {
        format!("Mount(path={:?}, source={:?})", self.0.path, self.0.source)
    }
}
