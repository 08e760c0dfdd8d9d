//! What persistence goes by: the words of a user, of a project and of a host.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::{PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core::{Error, ErrorKind, Result};
use sandhold_persist::{PersistConfig, PersistSettings};

use crate::convert::extract;
use crate::errors::thrown;
use crate::plain::Plain;
use crate::process::bytes;
use crate::runtime::{NativeCall, call};
use crate::values::{self, Maybe};

/// What persistence goes by.
#[napi]
pub struct NativePersistConfig(PersistConfig);

impl NativePersistConfig {
    pub(crate) fn config(&self) -> PersistConfig {
        self.0.clone()
    }
}

impl From<PersistConfig> for NativePersistConfig {
    fn from(config: PersistConfig) -> Self {
        Self(config)
    }
}

fn millis(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64() * 1000.0)
}

/// How long snapshots are kept. Ages are milliseconds.
#[napi(object, object_from_js = false, use_nullable = true)]
pub struct RetentionTold {
    pub runs: Option<f64>,
    pub manual: Option<f64>,
    pub max_count: Option<f64>,
    pub max_bytes: Option<f64>,
    pub require_mirror: bool,
    pub superseded: bool,
    pub dry: bool,
}

#[napi]
impl NativePersistConfig {
    #[napi(constructor)]
    pub fn new() -> Self {
        Self(PersistConfig::new())
    }

    /// Adds the text of a settings file of the user.
    #[napi]
    pub fn with_user_file(&self, env: &Env, text: Unknown<'_>) -> napi::Result<Self> {
        let text = bytes(env, "withUserFile", "text", text)?;
        self.config().with_user_file(&text).map(Self).map_err(|error| thrown(env, error))
    }

    /// Adds the text of a settings file of the project.
    #[napi]
    pub fn with_project_file(&self, env: &Env, text: Unknown<'_>) -> napi::Result<Self> {
        let text = bytes(env, "withProjectFile", "text", text)?;
        self.config().with_project_file(&text).map(Self).map_err(|error| thrown(env, error))
    }

    /// How often work is saved.
    #[napi(getter)]
    pub fn interval(&self) -> Maybe<f64> {
        values::maybe(millis(self.0.interval))
    }

    /// How long snapshots are kept.
    #[napi(getter)]
    pub fn retention(&self) -> RetentionTold {
        let retention = &self.0.retention;
        RetentionTold {
            runs: millis(retention.runs),
            manual: millis(retention.manual),
            max_count: retention.max_count.map(|count| count as f64),
            max_bytes: retention.max_bytes.map(|bytes| bytes as f64),
            require_mirror: retention.require_mirror,
            superseded: retention.superseded,
            dry: retention.dry,
        }
    }

    /// What is captured.
    #[napi(getter)]
    pub fn rules(&self) -> Plain {
        (&self.0.rules).into()
    }

    /// Where copies go.
    #[napi(getter)]
    pub fn mirror(&self) -> Plain {
        (&self.0.mirror).into()
    }
}

/// Reads the settings files of the user and of a project, where they are there.
#[napi]
pub fn load_persist_config<'env>(
    env: &'env Env,
    around: Option<&NativeCall>,
    user: Option<String>,
    project: Option<String>,
) -> napi::Result<PromiseRaw<'env, NativePersistConfig>> {
    call(env, around, blocking(move || PersistConfig::load(path(user.as_ref()), path(project.as_ref()))))
}

fn path(given: Option<&String>) -> Option<&Path> {
    given.map(Path::new)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let ended = |error| Error::new(ErrorKind::Unexpected, "the file work was ended").with_source(error);
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}

/// Settings of persistence that a program lets its user change.
#[napi]
pub struct NativePersistSettings(Arc<Mutex<PersistSettings>>);

impl From<PersistSettings> for NativePersistSettings {
    fn from(settings: PersistSettings) -> Self {
        Self(Arc::new(Mutex::new(settings)))
    }
}

/// What a change of settings did.
#[napi(object, object_from_js = false)]
pub struct SettingsChange {
    pub changed: Vec<String>,
    pub pinned: Vec<String>,
}

impl NativePersistSettings {
    fn lock(&self) -> MutexGuard<'_, PersistSettings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[napi]
impl NativePersistSettings {
    #[napi(constructor)]
    pub fn new() -> Self {
        PersistSettings::new().into()
    }

    /// Adds what the host wants, which nobody changes.
    #[napi]
    pub fn with_host(&self, env: &Env, text: Unknown<'_>) -> napi::Result<Self> {
        let text = bytes(env, "withHost", "text", text)?;
        let settings = self.lock().clone();
        settings.with_host(&text).map(Into::into).map_err(|error| thrown(env, error))
    }

    /// What they come to.
    #[napi]
    pub fn resolve(&self, env: &Env) -> napi::Result<NativePersistConfig> {
        self.lock().resolve().map(NativePersistConfig).map_err(|error| thrown(env, error))
    }

    /// The settings that only the host has a say in.
    #[napi]
    pub fn pinned(&self) -> Vec<String> {
        self.lock().pinned()
    }

    /// Changes some of them.
    #[napi]
    pub fn update(&self, env: &Env, change: Unknown<'_>) -> napi::Result<SettingsChange> {
        let change = bytes(env, "update", "change", change)?;
        let done = self.lock().update(&change).map_err(|error| thrown(env, error))?;
        Ok(SettingsChange { changed: done.changed, pinned: done.pinned })
    }

    /// Writes what was chosen to a file.
    #[napi]
    pub fn save<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        chosen: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let chosen = extract::<String>(env, "save", "chosen", chosen)?;
        let settings = self.lock().clone();
        call(env, around, blocking(move || settings.save(Path::new(&chosen))))
    }
}

/// Reads the settings files of the user and of what was chosen, where they are there.
#[napi]
pub fn load_persist_settings<'env>(
    env: &'env Env,
    around: Option<&NativeCall>,
    user: Option<String>,
    chosen: Option<String>,
) -> napi::Result<PromiseRaw<'env, NativePersistSettings>> {
    call(env, around, blocking(move || PersistSettings::load(path(user.as_ref()), path(chosen.as_ref()))))
}
