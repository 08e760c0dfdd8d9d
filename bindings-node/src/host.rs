//! The sandboxes of one owner at one provider, acquired by key.

use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core as core;
use sandhold_core::{Owner, Result};
use sandhold_registry::RegistryUrl;
use tokio::sync::OnceCell;

use crate::control::NativeProvider;
use crate::convert::{Options, checked, extract};
use crate::hooks::NodeHooks;
use crate::persist::NativeVaultHook;
use crate::provider::NativeProviders;
use crate::runtime::{NativeCall, call};
use crate::sandbox::{NativeSandbox, Taken};
use crate::stream::NativeEvents;
use crate::{options, values};

/// A host whose registry and vault are opened by the first call that needs it.
struct Host {
    unopened: core::Sandboxes,
    registry: Option<RegistryUrl>,
    persist: Option<NativeVaultHook>,
    open: OnceCell<core::Sandboxes>,
}

impl Host {
    async fn open(&self) -> Result<&core::Sandboxes> {
        let open = || async {
            let mut sandboxes = self.unopened.clone();
            if let Some(url) = &self.registry {
                sandboxes = sandboxes.with_registry(url.open().await?);
            }
            if let Some(hook) = &self.persist {
                sandboxes = sandboxes.with_persist(hook.open().await?);
            }
            Ok(sandboxes)
        };
        self.open.get_or_try_init(open).await
    }
}

/// The sandboxes of one owner at one provider.
#[napi]
pub struct NativeSandboxes(Arc<Host>);

#[napi]
impl NativeSandboxes {
    #[napi(constructor)]
    pub fn new(
        env: &Env,
        provider: &NativeProvider,
        persist: Option<&NativeVaultHook>,
        providers: Option<&NativeProviders>,
        options: Option<Object<'_>>,
    ) -> napi::Result<Self> {
        let mut unopened = core::Sandboxes::new(Arc::clone(&provider.0));
        if let Some(providers) = providers {
            unopened = unopened.with_providers(providers.0.clone());
        }
        let mut given = Options::new(env, "Sandboxes", options);
        if let Some(owner) = given.take::<String>("owner")? {
            unopened = unopened.with_owner(checked(env, "owner", Owner::new(owner))?);
        }
        if let Some(deadline) = given.millis("hookDeadline")? {
            unopened = unopened.with_hook_deadline(deadline);
        }
        if let Some(limit) = given.millis("waitLimit")? {
            unopened = unopened.with_wait_limit(limit);
        }
        if let Some(lease) = given.millis("recordLease")? {
            unopened = unopened.with_record_lease(lease);
        }
        if let Some(events) = given.count("eventCapacity")? {
            unopened = unopened.with_event_capacity(events);
        }
        let registry = match given.take::<String>("registry")? {
            Some(url) => Some(checked(env, "registry", RegistryUrl::parse(&url))?),
            None => None,
        };
        if let Some(hooks) = NodeHooks::take(&mut given)? {
            unopened = unopened.with_hooks(hooks);
        }
        given.finish()?;
        Ok(Self(Arc::new(Host { unopened, registry, persist: persist.cloned(), open: OnceCell::new() })))
    }

    /// Finds, connects or creates the one sandbox of a key.
    #[napi]
    pub fn acquire<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        key: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeSandbox>> {
        let key = extract::<String>(env, "acquire", "key", key)?;
        let host = Arc::clone(&self.0);
        let options = options::acquire(env, "acquire", options)?;
        call(env, around, async move {
            let acquired = host.open().await?.acquire(key, options).await?;
            Ok(Taken { came: Some((acquired.outcome, acquired.facts)), sandbox: acquired.sandbox })
        })
    }

    /// Returns a value of the key's sandbox that is acquired by its first use.
    #[napi]
    pub fn lazy<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        key: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeSandbox>> {
        let key = extract::<String>(env, "lazy", "key", key)?;
        let host = Arc::clone(&self.0);
        let options = options::acquire(env, "lazy", options)?;
        call(
            env,
            around,
            async move { Ok(Taken { sandbox: host.open().await?.lazy(key, options)?, came: None }) },
        )
    }

    /// Looks for the sandbox that a key has, without waking or making one.
    #[napi]
    pub fn find<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        key: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, values::Maybe<values::SandboxInfo>>> {
        let key = extract::<String>(env, "find", "key", key)?;
        let host = Arc::clone(&self.0);
        call(env, around, async move { host.open().await?.find(key).await.map(values::maybe) })
    }

    /// Says that credentials or endpoint were changed on purpose, for the sandbox of a key.
    #[napi]
    pub fn confirm_move<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        key: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, bool>> {
        let key = extract::<String>(env, "confirmMove", "key", key)?;
        let host = Arc::clone(&self.0);
        call(env, around, async move { host.open().await?.confirm_move(key).await })
    }

    /// Lets a key's sandbox rest, without connecting to it.
    #[napi]
    pub fn stop<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        key: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let key = extract::<String>(env, "stop", "key", key)?;
        let host = Arc::clone(&self.0);
        call(env, around, async move { host.open().await?.stop(key).await.map(values::stopped) })
    }

    /// Destroys a key's sandbox, without waking it, and forgets its record.
    #[napi]
    pub fn destroy<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        key: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let key = extract::<String>(env, "destroy", "key", key)?;
        let host = Arc::clone(&self.0);
        call(env, around, async move { host.open().await?.destroy(key).await.map(values::destroyed) })
    }

    /// Listens to what happens to the sandboxes of this host from now on.
    #[napi]
    pub fn events<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, NativeEvents>> {
        let host = Arc::clone(&self.0);
        call(env, around, async move { Ok(host.open().await?.events()) })
    }
}
