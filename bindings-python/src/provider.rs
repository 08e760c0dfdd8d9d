//! Where sandboxes are: this machine, or a service that speaks E2B's protocol. And what can be asked of a sandbox there by
//! its id, without connecting to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core as core;
use sandhold_core::{
    FindQuery, ForkOptions, ListFilter, LogOptions, Memory, Owner, PauseOptions, SandboxId, SandboxProvider,
    SandboxProviderExt as _, SandboxState, SnapshotFilter, SnapshotId, SnapshotOptions, Tags,
};
use sandhold_e2b::{AutoResume, E2bConfig, E2bProvider as Remote, PublicTraffic};
use sandhold_local::{LocalConfig, LocalProvider as Local, Requirement};

use crate::convert::{Options, checked, extract, one_of, seconds};
use crate::e2b;
use crate::errors::raised;
use crate::facts::{Capabilities, LogLine, Metrics, SnapshotInfo};
use crate::json::Json;
use crate::options::{NETWORKS, set};
use crate::registry::owner_or_default;
use crate::stream::{self, AsyncItems, Items};
use crate::templates::DefaultTemplate;
use crate::twins::{Nothing, twins};
use crate::values;

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, subclass, module = "sandhold")]
        pub(crate) struct $name(Arc<dyn SandboxProvider>);

        impl From<Arc<dyn SandboxProvider>> for $name {
            fn from(provider: Arc<dyn SandboxProvider>) -> Self {
                Self(provider)
            }
        }

        impl $name {
            fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }

        #[pymethods]
        impl $name {
            /// The provider's stable name.
            #[getter]
            fn name(&self) -> &'static str {
                self.0.name()
            }

            /// What it can do.
            #[getter]
            fn capabilities(&self) -> Capabilities {
                self.0.capabilities().into()
            }

            /// Its endpoint and credential scope, which records are stored with; holds no secret.
            #[getter]
            fn fingerprint(&self) -> String {
                self.0.fingerprint()
            }

            fn __repr__(&self) -> String {
                format!("{}(name={:?})", stringify!($name), self.0.name())
            }
        }
    )+};
}

faces! {
    /// Where sandboxes are. Its calls are about a sandbox by its id and do not connect to it.
    Provider
    /// Where sandboxes are, for event loops. Its calls are about a sandbox by its id and do not connect to it.
    AsyncProvider
}

const MEMORY: [(&str, Memory); 2] = [("kept", Memory::Kept), ("lost", Memory::Lost)];

const STATES: [(&str, SandboxState); 4] = [
    ("running", SandboxState::Running),
    ("paused", SandboxState::Paused),
    ("stopped", SandboxState::Stopped),
    ("transitioning", SandboxState::Transitioning),
];

twins! {
    impl Provider, AsyncProvider;

    /// Looks for a sandbox by its id, without waking it; None when the provider itself says that it is gone.
    fn find(py, this, id: String) -> Option<values::SandboxInfo>, Option<values::SandboxInfo> {
        let _ = py;
        let provider = Arc::clone(&this.0);
        async move { Ok(provider.find_id(&SandboxId::new(id)).await?.map(Into::into)) }
    }

    /// Looks for all sandboxes that carry a key's tags, without waking them.
    #[pyo3(signature = (key, *, owner = None))]
    fn find_key(py, this, key: String, owner: Option<String>)
        -> Vec<values::SandboxInfo>, Vec<values::SandboxInfo>
    {
        let owner = owner_or_default(py, owner)?;
        let key = checked(py, "key", core::Key::new(key))?;
        let provider = Arc::clone(&this.0);
        async move {
            let found = provider.find(FindQuery::Key { owner, key, attempt: None }).await?;
            Ok(found.into_iter().map(Into::into).collect::<Vec<_>>())
        }
    }

    /// Lists sandboxes: those that match all that is given.
    #[pyo3(signature = (*, owner = None, key = None, states = None, metadata = None))]
    fn list(
        py, this, owner: Option<String>, key: Option<String>, states: Option<Vec<String>>,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Items, AsyncItems {
        let mut filter = ListFilter::default();
        filter.owner = owner.map(|owner| checked(py, "owner", Owner::new(owner))).transpose()?;
        filter.key = key.map(|key| checked(py, "key", core::Key::new(key))).transpose()?;
        for state in states.unwrap_or_default() {
            filter.states.push(one_of(py, "states", &state, &STATES)?);
        }
        filter.metadata = metadata.unwrap_or_default();
        let provider = Arc::clone(&this.0);
        async move { Ok(stream::items::<_, values::SandboxInfo>(provider.list(filter).await?)) }
    }

    /// Pauses a sandbox; `memory` says whether its processes are kept.
    #[pyo3(signature = (id, *, memory = "kept"))]
    fn pause(py, this, id: String, memory: &str) -> &'static str, &'static str {
        let options = PauseOptions::default().with_memory(one_of(py, "memory", memory, &MEMORY)?);
        let provider = Arc::clone(&this.0);
        async move { provider.pause_opts(&SandboxId::new(id), options).await.map(values::paused) }
    }

    /// Destroys a sandbox with all that belongs to it, without waking it.
    fn destroy(py, this, id: String) -> &'static str, &'static str {
        let _ = py;
        let provider = Arc::clone(&this.0);
        async move { provider.destroy(&SandboxId::new(id)).await.map(values::destroyed) }
    }

    /// Sets the lease of a sandbox to end so many seconds from now.
    fn set_lease(py, this, id: String, lease: f64) -> (), Nothing {
        let lease = seconds(py, "lease", lease)?;
        let provider = Arc::clone(&this.0);
        async move { provider.set_lease(&SandboxId::new(id), lease).await }
    }

    /// Takes a snapshot of a sandbox, which goes on; its id is a template's name too.
    #[pyo3(signature = (id, *, name = None, memory = "kept"))]
    fn snapshot(py, this, id: String, name: Option<String>, memory: &str) -> SnapshotInfo, SnapshotInfo {
        let mut options = SnapshotOptions::default().with_memory(one_of(py, "memory", memory, &MEMORY)?);
        options.name = name;
        let provider = Arc::clone(&this.0);
        async move { provider.snapshot(&SandboxId::new(id), options).await.map(SnapshotInfo::from) }
    }

    /// Lists snapshots: those that match all that is given.
    #[pyo3(signature = (*, sandbox = None, name = None))]
    fn list_snapshots(py, this, sandbox: Option<String>, name: Option<String>) -> Items, AsyncItems {
        let _ = py;
        let mut filter = SnapshotFilter::default();
        (filter.sandbox, filter.name) = (sandbox.map(SandboxId::new), name);
        let provider = Arc::clone(&this.0);
        async move { Ok(stream::items::<_, SnapshotInfo>(provider.list_snapshots(filter).await?)) }
    }

    /// Deletes a snapshot.
    fn delete_snapshot(py, this, id: String) -> &'static str, &'static str {
        let _ = py;
        let provider = Arc::clone(&this.0);
        async move { provider.delete_snapshot(&SnapshotId::new(id)).await.map(values::destroyed) }
    }

    /// Makes a second sandbox that goes on as this one does, and gives it a key: acquire that key to use it.
    #[pyo3(signature = (id, key, *, owner = None, lease = None))]
    fn fork(py, this, id: String, key: String, owner: Option<String>, lease: Option<f64>)
        -> values::SandboxInfo, values::SandboxInfo
    {
        let tags = Tags {
            owner: owner_or_default(py, owner)?,
            key: checked(py, "key", core::Key::new(key))?,
            generation: core::Generation::random().map_err(|error| raised(py, &error))?,
            attempt: core::Attempt::random().map_err(|error| raised(py, &error))?,
        };
        let mut options = ForkOptions::new(tags);
        options.lease = lease.map(|lease| seconds(py, "lease", lease)).transpose()?;
        let provider = Arc::clone(&this.0);
        async move {
            let fork = provider.fork(&SandboxId::new(id), options).await?;
            fork.info().await.map(values::SandboxInfo::from)
        }
    }

    /// Tells the lines of a sandbox's log.
    #[pyo3(signature = (id, *, since = None, limit = None))]
    fn logs(py, this, id: String, since: Option<SystemTime>, limit: Option<usize>) -> Items, AsyncItems {
        let _ = py;
        let mut options = LogOptions::default();
        (options.since, options.limit) = (since, limit);
        let provider = Arc::clone(&this.0);
        async move { Ok(stream::items::<_, LogLine>(provider.logs(&SandboxId::new(id), options).await?)) }
    }

    /// Tells what a sandbox uses.
    fn metrics(py, this, id: String) -> Metrics, Metrics {
        let _ = py;
        let provider = Arc::clone(&this.0);
        async move { provider.metrics(&SandboxId::new(id)).await.map(Metrics::from) }
    }

    /// Changes what the processes of a running sandbox see of the network.
    fn update_network(py, this, id: String, network: &str) -> (), Nothing {
        let network = one_of(py, "network", network, &NETWORKS)?;
        let provider = Arc::clone(&this.0);
        async move { provider.update_network(&SandboxId::new(id), network).await }
    }
}

fn local(py: Python<'_>, call: &'static str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Local> {
    let mut given = Options::new(py, call, options)?;
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
    py.detach(|| Local::new(config)).map_err(|error| raised(py, &error))
}

/// The helper program that lies in this package, where it was built with one.
fn packaged_helper(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    let package: PathBuf = py.import("sandhold")?.getattr("__file__")?.extract()?;
    Ok(package.parent().map(|place| place.join("_bin/sandhold-helper")).filter(|helper| helper.exists()))
}

fn remote(py: Python<'_>, call: &'static str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Remote> {
    let mut given = Options::new(py, call, options)?;
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
    if let Some(policy) = given.take::<Bound<'_, PyDict>>("network")? {
        config.network = e2b::network(py, &policy)?;
    }
    if let Some(policy) = given.take::<Bound<'_, PyDict>>("retry")? {
        let mut policy = Options::new(py, "retry", Some(&policy))?;
        set(&mut config.retry.max_retries, policy.take("max_retries")?);
        set(&mut config.retry.initial_backoff, policy.seconds("initial_backoff")?);
        set(&mut config.retry.max_backoff, policy.seconds("max_backoff")?);
        set(&mut config.retry.budget, policy.seconds("budget")?);
        policy.finish()?;
    }
    if let Some(template) = given.take::<Py<DefaultTemplate>>("default_template")? {
        config.default_template = Some(template.get().0.clone());
    }
    if let Some(owner) = given.take::<String>("mastra_owner")? {
        config.mastra_owner = Some(checked(py, "mastra_owner", Owner::new(owner))?);
    }
    given.finish()?;
    Remote::new(config).map_err(|error| raised(py, &error))
}

macro_rules! providers {
    ($($(#[$doc:meta])* $name:ident, $base:ident: $made:ident of $inner:ty { $($extra:tt)* })+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, extends = $base, module = "sandhold")]
        pub(crate) struct $name(pub(crate) $inner);

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = (**options))]
            fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<PyClassInitializer<Self>> {
                let provider = $made(py, stringify!($name), options)?;
                let base = $base::from(Arc::new(provider.clone()) as Arc<dyn SandboxProvider>);
                Ok(PyClassInitializer::from(base).add_subclass(Self(provider)))
            }

            $($extra)*
        }

        impl $name {
            pub(crate) fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }
    )+};
}

providers! {
    /// Sandboxes on this machine: isolated processes that outlive the program that made them.
    LocalProvider, Provider: local of Local {
        /// The state directory.
        #[getter]
        fn home(&self) -> PathBuf {
            self.0.home().to_owned()
        }

        fn __repr__(&self) -> String {
            format!("LocalProvider(home={:?})", self.0.home())
        }
    }

    /// Sandboxes on this machine, for event loops.
    AsyncLocalProvider, AsyncProvider: local of Local {
        /// The state directory.
        #[getter]
        fn home(&self) -> PathBuf {
            self.0.home().to_owned()
        }

        fn __repr__(&self) -> String {
            format!("AsyncLocalProvider(home={:?})", self.0.home())
        }
    }

    /// E2B's cloud, a self-hosted E2B, or any server that speaks its protocol.
    E2bProvider, Provider: remote of Remote {
        fn __repr__(&self) -> String {
            format!("E2bProvider(domain={:?})", self.0.config().domain)
        }
    }

    /// E2B's cloud, a self-hosted E2B, or any server that speaks its protocol, for event loops.
    AsyncE2bProvider, AsyncProvider: remote of Remote {
        fn __repr__(&self) -> String {
            format!("AsyncE2bProvider(domain={:?})", self.0.config().domain)
        }
    }
}

twins! {
    impl LocalProvider, AsyncLocalProvider;

    /// Makes a template of a directory that holds a whole root: the unpacked file system of an image.
    #[pyo3(signature = (directory, *, names = None))]
    fn import_template(py, this, directory: PathBuf, names: Option<Vec<String>>) -> SnapshotInfo, SnapshotInfo {
        let _ = py;
        let provider = this.0.clone();
        async move {
            provider.import_template(&directory, names.unwrap_or_default()).await.map(SnapshotInfo::from)
        }
    }

    /// Finds out what isolation works on this machine, by trying it.
    fn probe(py, this) -> Json, Json {
        let _ = py;
        let provider = this.0.clone();
        async move { Json::parse(&provider.probe().await?) }
    }
}

/// Reads a provider of either face.
pub(crate) fn provider(call: &'static str, given: &Bound<'_, PyAny>) -> PyResult<Arc<dyn SandboxProvider>> {
    if let Ok(provider) = given.cast::<AsyncProvider>() {
        return Ok(Arc::clone(&provider.get().0));
    }
    let provider = extract::<Py<Provider>>(call, "provider", given)?;
    Ok(Arc::clone(&provider.get().0))
}
