//! What every provider can do with sandboxes that it is told by id, for operators.

use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core as core;
use sandhold_core::{
    Attempt, FindQuery, ForkOptions, Generation, Key, ListFilter, LogOptions, Memory, Network, Owner,
    PauseOptions, SandboxId, SandboxProvider, SandboxProviderExt as _, SandboxState, SnapshotFilter,
    SnapshotId, SnapshotOptions, Tags,
};

use crate::convert::{Options, checked, extract, millis, one_of};
use crate::errors::{thrown, type_error};
use crate::runtime::{NativeCall, call};
use crate::stream::{NativeInfos, NativeLog, NativeSnapshots};
use crate::values::{self, Maybe};

const MEMORY: [(&str, Memory); 2] = [("kept", Memory::Kept), ("lost", Memory::Lost)];

/// A provider.
#[napi]
pub struct NativeProvider(pub(crate) Arc<dyn SandboxProvider>);

fn id(env: &Env, call: &str, id: Unknown<'_>) -> napi::Result<SandboxId> {
    extract::<String>(env, call, "id", id).map(SandboxId::new)
}

#[napi]
impl NativeProvider {
    /// The provider's stable name.
    #[napi(getter)]
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// What it can do.
    #[napi(getter)]
    pub fn capabilities(&self) -> values::Capabilities {
        self.0.capabilities().into()
    }

    /// What identifies endpoint and credentials, without telling them.
    #[napi(getter)]
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    /// Finds the sandbox of an id, without waking it.
    #[napi]
    pub fn find<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Maybe<values::SandboxInfo>>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "find", id)?);
        call(env, around, async move { provider.find_id(&id).await.map(values::maybe) })
    }

    /// Finds the sandboxes of a key, without waking them.
    #[napi]
    pub fn find_key<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        owner: Unknown<'_>,
        key: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Vec<values::SandboxInfo>>> {
        let provider = Arc::clone(&self.0);
        let owner = checked(env, "owner", Owner::new(extract::<String>(env, "findKey", "owner", owner)?))?;
        let key = checked(env, "key", Key::new(extract::<String>(env, "findKey", "key", key)?))?;
        let query = FindQuery::Key { owner, key, attempt: None };
        call(env, around, async move { Ok(values::all(provider.find(query).await?)) })
    }

    /// Lists sandboxes, running and paused.
    #[napi]
    pub fn list<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeInfos>> {
        let (provider, filter) = (Arc::clone(&self.0), list(env, options)?);
        call(env, around, async move { provider.list(filter).await })
    }

    /// Suspends a sandbox.
    #[napi]
    pub fn pause<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "pause", id)?);
        let mut given = Options::new(env, "pause", options);
        let mut options = PauseOptions::default();
        if let Some(memory) = given.word("memory", &MEMORY)? {
            options.memory = memory;
        }
        given.finish()?;
        call(env, around, async move { provider.pause_opts(&id, options).await.map(values::paused) })
    }

    /// Destroys a sandbox, without waking it.
    #[napi]
    pub fn destroy<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "destroy", id)?);
        call(env, around, async move { provider.destroy(&id).await.map(values::destroyed) })
    }

    /// Sets the lease to end so many milliseconds from now.
    #[napi]
    pub fn set_lease<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        lease: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "setLease", id)?);
        let lease = millis(env, "lease", extract(env, "setLease", "lease", lease)?)?;
        call(env, around, async move { provider.set_lease(&id, lease).await })
    }

    /// Keeps the state of a sandbox under an id of its own.
    #[napi]
    pub fn snapshot<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, values::SnapshotInfo>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "snapshot", id)?);
        let mut given = Options::new(env, "snapshot", options);
        let mut options = SnapshotOptions::default();
        options.name = given.take("name")?;
        if let Some(memory) = given.word("memory", &MEMORY)? {
            options.memory = memory;
        }
        given.finish()?;
        call(env, around, async move { provider.snapshot(&id, options).await })
    }

    /// Lists snapshots.
    #[napi]
    pub fn list_snapshots<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeSnapshots>> {
        let provider = Arc::clone(&self.0);
        let mut given = Options::new(env, "listSnapshots", options);
        let mut filter = SnapshotFilter::default();
        filter.sandbox = given.take::<String>("sandbox")?.map(SandboxId::new);
        filter.name = given.take("name")?;
        given.finish()?;
        call(env, around, async move { provider.list_snapshots(filter).await })
    }

    /// Deletes a snapshot.
    #[napi]
    pub fn delete_snapshot<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        snapshot: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let provider = Arc::clone(&self.0);
        let snapshot = SnapshotId::new(extract::<String>(env, "deleteSnapshot", "snapshot", snapshot)?);
        call(env, around, async move { provider.delete_snapshot(&snapshot).await.map(values::destroyed) })
    }

    /// Makes a sandbox of another key that begins where this one is; returns its id.
    #[napi]
    pub fn fork<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, String>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "fork", id)?);
        let mut given = Options::new(env, "fork", options);
        let key = given.take::<String>("key")?;
        let key =
            key.ok_or_else(|| type_error(env, "fork() option 'key': give the key of the new sandbox"))?;
        let owner = given.take::<String>("owner")?.unwrap_or_else(|| "default".to_owned());
        let tags = Tags {
            owner: checked(env, "owner", Owner::new(owner))?,
            key: checked(env, "key", Key::new(key))?,
            generation: Generation::random().map_err(|error| thrown(env, error))?,
            attempt: Attempt::random().map_err(|error| thrown(env, error))?,
        };
        let mut options = ForkOptions::new(tags);
        options.lease = given.millis("lease")?;
        given.finish()?;
        call(env, around, async move { Ok(provider.fork(&id, options).await?.id().to_string()) })
    }

    /// Reads what the provider logged about a sandbox, oldest first.
    #[napi]
    pub fn logs<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeLog>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "logs", id)?);
        let mut given = Options::new(env, "logs", options);
        let mut options = LogOptions::default();
        options.since = given.millis("since")?.map(|since| std::time::UNIX_EPOCH + since);
        options.limit = given.count("limit")?;
        given.finish()?;
        call(env, around, async move { provider.logs(&id, options).await })
    }

    /// Tells what a sandbox uses.
    #[napi]
    pub fn metrics<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, values::Metrics>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "metrics", id)?);
        call(env, around, async move { provider.metrics(&id).await })
    }

    /// Changes what a running sandbox may reach.
    #[napi]
    pub fn update_network<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        network: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let (provider, id) = (Arc::clone(&self.0), self::id(env, "updateNetwork", id)?);
        let word = extract::<String>(env, "updateNetwork", "network", network)?;
        let words = [("none", Network::None), ("loopback", Network::Loopback), ("host", Network::Host)];
        let network = one_of(env, "network", &word, &words)?;
        call(env, around, async move { provider.update_network(&id, network).await })
    }
}

fn list(env: &Env, options: Option<Object<'_>>) -> napi::Result<ListFilter> {
    let mut given = Options::new(env, "list", options);
    let mut filter = ListFilter::default();
    if let Some(owner) = given.take::<String>("owner")? {
        filter.owner = Some(checked(env, "owner", Owner::new(owner))?);
    }
    if let Some(key) = given.take::<String>("key")? {
        filter.key = Some(checked(env, "key", Key::new(key))?);
    }
    let words = [
        ("running", SandboxState::Running),
        ("paused", SandboxState::Paused),
        ("stopped", SandboxState::Stopped),
        ("transitioning", SandboxState::Transitioning),
    ];
    for state in given.take::<Vec<String>>("states")?.unwrap_or_default() {
        filter.states.push(one_of(env, "states", &state, &words)?);
    }
    filter.metadata = given.take("metadata")?.unwrap_or_default();
    given.finish()?;
    Ok(filter)
}

impl From<Arc<dyn core::SandboxProvider>> for NativeProvider {
    fn from(provider: Arc<dyn core::SandboxProvider>) -> Self {
        Self(provider)
    }
}
