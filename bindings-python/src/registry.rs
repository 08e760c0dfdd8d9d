//! What is kept about keys, for hosts that share it and for operators who look at it.

use std::sync::Arc;
use std::time::SystemTime;

use pyo3::prelude::*;
use sandhold_core as core;
use sandhold_core::{Owner, RecordFilter, RegistryScope, Result};
use sandhold_registry::RegistryUrl;
use tokio::sync::OnceCell;

use crate::convert::{checked, extract, one_of, seconds};
use crate::json::Json;
use crate::stream::{self, AsyncItems, Items};
use crate::twins::twins;
use crate::values::values;

values! {
    /// A create attempt that was given up.
    Abandoned {
        /// The attempt.
        attempt: String,
        /// When it was given up.
        at: SystemTime,
    }

    /// What is kept about one key. Secrets are never in it.
    Record {
        /// The namespace of the key.
        owner: String,
        /// The key.
        key: String,
        /// Counts the stores.
        version: u64,
        /// The fencing number of the lease under which it was last stored.
        fence: u64,
        /// The provider's name.
        provider: String,
        /// The provider's endpoint and credential scope.
        fingerprint: String,
        /// The provider's id; None while the first create is open.
        id: Option<String>,
        /// The identity of the sandbox.
        generation: String,
        /// The create call that made it or is to make it.
        attempt: String,
        /// What it is going through: `creating`, `ready`, `pausing`, `paused`, `resuming` or `destroying`.
        phase: &'static str,
        /// When the phase was entered, by the writer's clock.
        phase_since: SystemTime,
        /// How it was to be made, as it is stored.
        spec: Json,
        /// The version of the setup hook that completed; None until one has.
        setup_done: Option<u64>,
        /// Attempts that were given up and not yet forgotten.
        abandoned: Vec<Abandoned>,
        /// The sandbox that is gone, and whose place the next one takes.
        replaces: Option<String>,
        /// Why it takes that one's place, or has taken it: `gone` or `other_spec`.
        replaced_because: Option<&'static str>,
    }
}

impl From<core::Record> for Record {
    fn from(record: core::Record) -> Self {
        let abandoned =
            |given_up: core::Abandoned| Abandoned { attempt: given_up.attempt.to_string(), at: given_up.at };
        Self {
            owner: record.owner.to_string(),
            key: record.key.to_string(),
            version: record.version,
            fence: record.fence,
            provider: record.provider,
            fingerprint: record.fingerprint,
            id: record.id.map(|id| id.to_string()),
            generation: record.generation.to_string(),
            attempt: record.attempt.to_string(),
            phase: record.phase.as_str(),
            phase_since: record.phase_since,
            spec: Json::of(&record.spec),
            setup_done: record.setup_done,
            abandoned: record.abandoned.into_iter().map(abandoned).collect(),
            replaces: record.replaces.map(|id| id.to_string()),
            replaced_because: record.replaced_because.map(core::ReplacedBecause::as_str),
        }
    }
}

/// A registry that the first call which needs it opens, once for all who hold it.
pub(crate) struct Place {
    url: RegistryUrl,
    open: OnceCell<Arc<dyn core::Registry>>,
}

impl Place {
    fn parse(py: Python<'_>, url: &str) -> PyResult<Arc<Self>> {
        let url = checked(py, "registry", RegistryUrl::parse(url))?;
        Ok(Arc::new(Self { url, open: OnceCell::new() }))
    }

    /// Reads a registry: its URL, or a value of one.
    pub(crate) fn read(call: &'static str, given: &Bound<'_, PyAny>) -> PyResult<Arc<Self>> {
        if let Ok(registry) = given.cast::<Registry>() {
            return Ok(Arc::clone(&registry.get().0));
        }
        if let Ok(registry) = given.cast::<AsyncRegistry>() {
            return Ok(Arc::clone(&registry.get().0));
        }
        Self::parse(given.py(), &extract::<String>(call, "registry", given)?)
    }

    pub(crate) async fn open(&self) -> Result<Arc<dyn core::Registry>> {
        self.open.get_or_try_init(|| self.url.open()).await.map(Arc::clone)
    }
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name(Arc<Place>);

        #[pymethods]
        impl $name {
            #[new]
            fn new(py: Python<'_>, url: &str) -> PyResult<Self> {
                Place::parse(py, url).map(Self)
            }

            fn __repr__(&self) -> String {
                format!("{}({:?})", stringify!($name), self.0.url)
            }
        }

        impl $name {
            fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }
    )+};
}

faces! {
    /// What is kept about keys. Hosts that are given the same one share it; an operator looks at it.
    Registry
    /// What is kept about keys, for event loops. Hosts that are given the same one share it; an operator looks at it.
    AsyncRegistry
}

const PHASES: [(&str, core::Phase); 6] = [
    ("creating", core::Phase::Creating),
    ("ready", core::Phase::Ready),
    ("pausing", core::Phase::Pausing),
    ("paused", core::Phase::Paused),
    ("resuming", core::Phase::Resuming),
    ("destroying", core::Phase::Destroying),
];

twins! {
    impl Registry, AsyncRegistry;

    /// Says how far it reaches: `process`, `machine` or `cluster`.
    fn scope(py, this) -> &'static str, &'static str {
        let _ = py;
        let place = Arc::clone(&this.0);
        async move {
            Ok(match place.open().await?.scope() {
                RegistryScope::Process => "process",
                RegistryScope::Machine => "machine",
                _ => "cluster",
            })
        }
    }

    /// Returns the record of a key. Takes no lease.
    #[pyo3(signature = (key, *, owner = None))]
    fn load(py, this, key: String, owner: Option<String>) -> Option<Record>, Option<Record> {
        let owner = owner_or_default(py, owner)?;
        let key = checked(py, "key", core::Key::new(key))?;
        let place = Arc::clone(&this.0);
        async move { Ok(place.open().await?.load(&owner, &key).await?.map(Into::into)) }
    }

    /// Lists the records, by owner and key. Takes no lease.
    #[pyo3(signature = (*, owner = None, provider = None, phases = None, min_age = None))]
    fn list(
        py, this, owner: Option<String>, provider: Option<String>, phases: Option<Vec<String>>,
        min_age: Option<f64>,
    ) -> Items, AsyncItems {
        let mut filter = RecordFilter::default();
        filter.owner = owner.map(|owner| checked(py, "owner", Owner::new(owner))).transpose()?;
        filter.provider = provider;
        for phase in phases.unwrap_or_default() {
            filter.phases.push(one_of(py, "phases", &phase, &PHASES)?);
        }
        filter.min_age = min_age.map(|age| seconds(py, "min_age", age)).transpose()?;
        let place = Arc::clone(&this.0);
        async move { Ok(stream::items::<_, Record>(place.open().await?.list(filter).await?)) }
    }
}

/// Reads the namespace of a key.
pub(crate) fn owner_or_default(py: Python<'_>, owner: Option<String>) -> PyResult<Owner> {
    owner.map_or_else(|| Ok(Owner::default()), |owner| checked(py, "owner", Owner::new(owner)))
}
