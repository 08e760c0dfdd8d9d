//! Keeping the work of sandboxes as they come and go.

use std::sync::Arc;
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::{Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core::Result;
use sandhold_persist::{CaptureOptions, OnDirty, RestoreOptions, VaultHook};
use tokio::sync::OnceCell;

use crate::convert::{Options, extract};
use crate::mirror::NativeMirror;
use crate::plain::Plain;
use crate::runtime::{NativeCall, call};
use crate::sandbox::NativeSandbox;
use crate::settings::NativePersistConfig;
use crate::vault::{self, NativeVault};

struct Unopened {
    vault: NativeVault,
    path: String,
    interval: Option<Duration>,
    capture: CaptureOptions,
    restore: RestoreOptions,
    mirror: Option<NativeMirror>,
    open: OnceCell<Arc<VaultHook>>,
}

/// Keeps a workspace inside each sandbox in a vault, and puts it back into the sandbox that takes its place.
#[napi]
#[derive(Clone)]
pub struct NativeVaultHook(Arc<Unopened>);

#[napi]
impl NativeVaultHook {
    #[napi(constructor)]
    pub fn new(
        env: &Env,
        vault: &NativeVault,
        path: Unknown<'_>,
        mirror: Option<&NativeMirror>,
        options: Option<Object<'_>>,
    ) -> napi::Result<Self> {
        let path = extract(env, "VaultHook", "path", path)?;
        let mut given = Options::new(env, "VaultHook", options);
        let interval = given.millis("interval")?;
        let capture = match given.options("capture")? {
            Some(mut given) => {
                let options = vault::capture(&mut given)?;
                given.finish()?;
                options
            }
            None => CaptureOptions::new(),
        };
        // As the hook does it by itself: what a template brought is kept as a snapshot.
        let mut restore = RestoreOptions::new().with_on_dirty(OnDirty::Capture);
        if let Some(mut given) = given.options("restore")? {
            restore = vault::restore(&mut given, restore)?;
            given.finish()?;
        }
        given.finish()?;
        let (vault, mirror) = (vault.clone(), mirror.cloned());
        let unopened = Unopened { vault, path, interval, capture, restore, mirror, open: OnceCell::new() };
        Ok(Self(Arc::new(unopened)))
    }

    /// Captures the workspace of a sandbox now; `null` where nothing has changed.
    #[napi]
    pub fn save<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        sandbox: &NativeSandbox,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (hook, sandbox) = (self.clone(), sandbox.sandbox());
        call(
            env,
            around,
            async move { Ok(hook.open().await?.save(&sandbox).await?.as_ref().map(vault::told)) },
        )
    }

    /// Puts the newest snapshot of a sandbox's key back into it; `null` where there is none.
    #[napi]
    pub fn load<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        sandbox: &NativeSandbox,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (hook, sandbox) = (self.clone(), sandbox.sandbox());
        call(
            env,
            around,
            async move { Ok(hook.open().await?.load(&sandbox).await?.as_ref().map(vault::told)) },
        )
    }

    /// Goes by other settings from now on.
    #[napi]
    pub fn apply<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        config: &NativePersistConfig,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let (hook, config) = (self.clone(), config.config());
        call(env, around, async move { hook.open().await?.apply(&config) })
    }
}

impl NativeVaultHook {
    /// Opens the vault.
    pub(crate) async fn open(&self) -> Result<Arc<VaultHook>> {
        let unopened = &self.0;
        let open = || async {
            let hook = VaultHook::new(unopened.vault.open().await?, unopened.path.clone())
                .with_capture(unopened.capture.clone())
                .with_restore(unopened.restore.clone());
            let hook = match unopened.interval {
                Some(Duration::ZERO) => hook.with_interval(None),
                Some(interval) => hook.with_interval(Some(interval)),
                None => hook,
            };
            Ok(Arc::new(match &unopened.mirror {
                Some(mirror) => hook.with_mirror(mirror.0.clone()),
                None => hook,
            }))
        };
        unopened.open.get_or_try_init(open).await.cloned()
    }
}
