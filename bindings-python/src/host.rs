//! The sandboxes of one owner at one provider: acquired by key, from either kind of caller.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core as core;
use sandhold_core::{Owner, Result};
use tokio::sync::OnceCell;

use crate::convert::{Options, checked};
use crate::hooks::{Followed, PyHooks};
use crate::persist::Persist;
use crate::provider::provider;
use crate::providers::Providers;
use crate::registry::Place;
use crate::sandbox::{AsyncSandbox, Sandbox, Taken};
use crate::stream::{AsyncEvents, Events};
use crate::twins::twins;
use crate::{options, values};

/// A host whose registry and vault are opened by the first call that needs it.
struct Host {
    unopened: core::Sandboxes,
    registry: Option<Arc<Place>>,
    persist: Option<Persist>,
    hooks: Option<Arc<PyHooks>>,
    open: OnceCell<core::Sandboxes>,
}

impl Host {
    fn new(
        py: Python<'_>,
        call: &'static str,
        at: &Bound<'_, PyAny>,
        given: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Arc<Self>> {
        let mut unopened = core::Sandboxes::new(provider(call, at)?);
        let mut given = Options::new(py, call, given)?;
        if let Some(owner) = given.take::<String>("owner")? {
            unopened = unopened.with_owner(checked(py, "owner", Owner::new(owner))?);
        }
        if let Some(deadline) = given.seconds("hook_deadline")? {
            unopened = unopened.with_hook_deadline(deadline);
        }
        if let Some(limit) = given.seconds("wait_limit")? {
            unopened = unopened.with_wait_limit(limit);
        }
        if let Some(lease) = given.seconds("record_lease")? {
            unopened = unopened.with_record_lease(lease);
        }
        if let Some(events) = given.take("event_capacity")? {
            unopened = unopened.with_event_capacity(events);
        }
        let registry = given.any("registry")?.map(|at| Place::read(call, &at)).transpose()?;
        if let Some(providers) = given.take::<Py<Providers>>("providers")? {
            unopened = unopened.with_providers(providers.get().known());
        }
        let persist = Persist::take(&mut given)?;
        let hooks = PyHooks::take(py, &mut given)?;
        if let Some(hooks) = &hooks {
            unopened = unopened.with_hooks(Arc::clone(hooks) as Arc<dyn core::Hooks>);
        }
        given.finish()?;
        Ok(Arc::new(Self { unopened, registry, persist, hooks, open: OnceCell::new() }))
    }

    /// What is to know of the event loops that its sandboxes are used from.
    fn followed(&self, hooks: Option<&Arc<PyHooks>>) -> Vec<Arc<Followed>> {
        let hooks = hooks.or(self.hooks.as_ref()).map(|hooks| Arc::clone(&hooks.followed));
        hooks.into_iter().chain(self.persist.as_ref().and_then(Persist::followed)).collect()
    }

    async fn open(&self) -> Result<&core::Sandboxes> {
        let open = || async {
            let mut sandboxes = self.unopened.clone();
            if let Some(registry) = &self.registry {
                sandboxes = sandboxes.with_registry(registry.open().await?);
            }
            if let Some(hook) = &self.persist {
                sandboxes = sandboxes.with_persist(hook.open().await?);
            }
            Ok(sandboxes)
        };
        self.open.get_or_try_init(open).await
    }
}

/// The sandboxes of one owner at one provider: acquire them by key, let them go, get the same ones back.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct Sandboxes(Arc<Host>);

#[pymethods]
impl Sandboxes {
    #[new]
    #[pyo3(signature = (provider, **options))]
    fn new(provider: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Host::new(provider.py(), "Sandboxes", provider, options).map(Self)
    }
}

impl Sandboxes {
    fn enter(&self, _py: Python<'_>) -> PyResult<()> {
        Ok(())
    }
}

/// The sandboxes of one owner at one provider, for event loops.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct AsyncSandboxes(Arc<Host>);

#[pymethods]
impl AsyncSandboxes {
    #[new]
    #[pyo3(signature = (provider, **options))]
    fn new(provider: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Host::new(provider.py(), "AsyncSandboxes", provider, options).map(Self)
    }
}

impl AsyncSandboxes {
    fn enter(&self, py: Python<'_>) -> PyResult<()> {
        self.0.followed(None).iter().try_for_each(|followed| followed.follow(py))
    }
}

twins! {
    impl Sandboxes, AsyncSandboxes;

    /// Finds, connects or creates the one sandbox of a key.
    #[pyo3(signature = (key, **options))]
    fn acquire(py, this, key: String, **options) -> Sandbox, AsyncSandbox {
        let host = Arc::clone(&this.0);
        let (options, hooks) = options::acquire(py, "acquire", options)?;
        let followed = host.followed(hooks.as_ref());
        if IS_ASYNC {
            followed.iter().try_for_each(|followed| followed.follow(py))?;
        }
        async move {
            let acquired = host.open().await?.acquire(key, options).await?;
            Ok(Taken { came: Some((acquired.outcome, acquired.facts)), sandbox: acquired.sandbox, followed })
        }
    }

    /// Returns a value of the key's sandbox that is acquired by its first use.
    #[pyo3(signature = (key, **options))]
    fn lazy(py, this, key: String, **options) -> Sandbox, AsyncSandbox {
        let host = Arc::clone(&this.0);
        let (options, hooks) = options::acquire(py, "lazy", options)?;
        let followed = host.followed(hooks.as_ref());
        async move { Ok(Taken { sandbox: host.open().await?.lazy(key, options)?, came: None, followed }) }
    }

    /// Looks for the sandbox that a key has, without waking or making one.
    fn find(py, this, key: String) -> Option<values::SandboxInfo>, Option<values::SandboxInfo> {
        let host = Arc::clone(&this.0);
        async move { Ok(host.open().await?.find(key).await?.map(Into::into)) }
    }

    /// Says that the credentials or the endpoint were changed on purpose: a key's sandbox that is not found under them
    /// counts as gone. Returns whether they differed.
    fn confirm_move(py, this, key: String) -> bool, bool {
        let host = Arc::clone(&this.0);
        async move { host.open().await?.confirm_move(key).await }
    }

    /// Lets a key's sandbox rest, without connecting to it.
    fn stop(py, this, key: String) -> &'static str, &'static str {
        let host = Arc::clone(&this.0);
        async move { Ok(values::stopped(host.open().await?.stop(key).await?)) }
    }

    /// Destroys a key's sandbox, without waking it, and forgets its record.
    fn destroy(py, this, key: String) -> &'static str, &'static str {
        let host = Arc::clone(&this.0);
        async move { Ok(values::destroyed(host.open().await?.destroy(key).await?)) }
    }

    /// Listens to what happens to the sandboxes of this host from now on.
    fn events(py, this) -> Events, AsyncEvents {
        let host = Arc::clone(&this.0);
        async move { Ok(host.open().await?.events()) }
    }
}
