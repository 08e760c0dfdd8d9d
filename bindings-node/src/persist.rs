//! Keeping the work of sandboxes as they come and go.

use std::sync::Arc;
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::{Object, Unknown};
use napi_derive::napi;
use sandhold_core::{PersistHook, Result};
use sandhold_persist::{RepoKey, Vault, VaultConfig, VaultHook};

use crate::convert::{Options, checked, extract};

/// Keeps a workspace inside each sandbox in a vault, and puts it back into the sandbox that takes its place.
#[napi]
#[derive(Clone)]
pub struct NativeVaultHook {
    config: VaultConfig,
    path: String,
    interval: Option<Duration>,
}

#[napi]
impl NativeVaultHook {
    #[napi(constructor)]
    pub fn new(
        env: &Env,
        home: Unknown<'_>,
        key: Unknown<'_>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<Self> {
        let home = extract::<String>(env, "VaultHook", "home", home)?;
        let key = checked(env, "key", RepoKey::new(extract::<String>(env, "VaultHook", "key", key)?))?;
        let path = extract(env, "VaultHook", "path", path)?;
        let mut given = Options::new(env, "VaultHook", options);
        let interval = given.millis("interval")?;
        given.finish()?;
        Ok(Self { config: VaultConfig::new(home, key), path, interval })
    }
}

impl NativeVaultHook {
    /// Opens the vault.
    pub(crate) async fn open(&self) -> Result<Arc<dyn PersistHook>> {
        let hook = VaultHook::new(Vault::open(self.config.clone()).await?, self.path.clone());
        Ok(Arc::new(match self.interval {
            Some(Duration::ZERO) => hook.with_interval(None),
            Some(interval) => hook.with_interval(Some(interval)),
            None => hook,
        }))
    }
}
