//! Keeping the work of sandboxes as they come and go.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandhold_core::{
    Error, ErrorKind, Key, PersistHook, REASON_PAUSED, RestoreReason, RestoreReport, Result, Sandbox,
    SandboxHandle, SandboxId, SandboxState,
};

use crate::capture::CaptureOptions;
use crate::config::PersistConfig;
use crate::mirror::{Mirror, MirrorMode};
use crate::receipt::Receipt;
use crate::remote::RemoteWorkspace;
use crate::restore::{OnDirty, RestoreOptions};
use crate::snapshot::Snapshot;
use crate::vault::Vault;

/// How often a hook captures by default: every 5 minutes.
pub const DEFAULT_SAVE_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The hook for [`sandhold_core::Sandboxes::with_persist`]: a workspace inside each sandbox is captured before a pause, before a
/// destroy and on an interval, and put back into the sandbox that takes its place.
///
/// Snapshots go by the key of a sandbox, so that the next one with this key gets the work, also from another provider
/// or another host. With a mirror whose mode is [`MirrorMode::All`] every snapshot is copied there, and one that this
/// host has not is fetched from there.
#[derive(Debug)]
pub struct VaultHook {
    vault: Vault,
    path: String,
    restore: RestoreOptions,
    settled: RwLock<Settled>,
    /// Sandboxes whose work was saved right before they were paused, and since when they had run then: nothing has
    /// changed until they run again.
    paused: Mutex<HashMap<Key, (SandboxId, SystemTime)>>,
}

/// What can be settled anew while sandboxes run.
#[derive(Clone, Debug)]
struct Settled {
    capture: CaptureOptions,
    mirror: Option<Mirror>,
    interval: Option<Duration>,
}

impl VaultHook {
    /// Keeps the workspace at this absolute path of every sandbox in a vault.
    pub fn new(vault: Vault, path: impl Into<String>) -> Self {
        Self {
            vault,
            path: path.into(),
            // What a template brought is kept as a snapshot, and the work takes its place.
            restore: RestoreOptions::new().with_on_dirty(OnDirty::Capture),
            settled: RwLock::new(Settled {
                capture: CaptureOptions::new(),
                mirror: None,
                interval: Some(DEFAULT_SAVE_INTERVAL),
            }),
            paused: Mutex::default(),
        }
    }

    /// Captures so.
    #[must_use]
    pub fn with_capture(self, options: CaptureOptions) -> Self {
        self.settle(|settled| settled.capture = options);
        self
    }

    /// Restores so; what is there already is captured first, unless it is said otherwise here.
    #[must_use]
    pub fn with_restore(mut self, options: RestoreOptions) -> Self {
        self.restore = options;
        self
    }

    /// Captures so often while a sandbox is in use; `None` is only before a pause, before a destroy and on demand. Default
    /// [`DEFAULT_SAVE_INTERVAL`].
    #[must_use]
    pub fn with_interval(self, interval: Option<Duration>) -> Self {
        self.settle(|settled| settled.interval = interval);
        self
    }

    /// Uses a mirror.
    #[must_use]
    pub fn with_mirror(self, mirror: Mirror) -> Self {
        self.settle(|settled| settled.mirror = Some(mirror));
        self
    }

    /// Goes by other settings from now on: the interval, the rules of captures, and the mirror. A mirror whose
    /// configuration is the same stays as it is. Saves that are on their way end by the old ones, and a sandbox that is
    /// in use goes by another interval once the one that it waits for is over.
    ///
    /// How long snapshots are kept is for whoever calls [`Vault::prune`].
    ///
    /// # Errors
    /// As [`Mirror::open`]; nothing is changed then.
    pub fn apply(&self, config: &PersistConfig) -> Result<()> {
        let known = self.settled().mirror.filter(|mirror| Some(mirror.config()) == config.mirror.as_ref());
        let mirror = match known {
            Some(mirror) => Some(mirror),
            None => config.mirror.clone().map(Mirror::open).transpose()?,
        };
        self.settle(|settled| {
            settled.interval = config.interval;
            settled.capture.rules = config.rules.clone();
            settled.mirror = mirror;
        });
        Ok(())
    }

    fn settled(&self) -> Settled {
        self.settled.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn settle(&self, change: impl FnOnce(&mut Settled)) {
        change(&mut self.settled.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Captures the workspace of a sandbox now; `None` where nothing has changed since its last snapshot.
    ///
    /// What the mirror answers is in the snapshot's record, and does not fail the save: the upload stays queued.
    ///
    /// # Errors
    /// As [`Vault::capture_sandbox`].
    pub async fn save(&self, sandbox: &Sandbox) -> Result<Option<Snapshot>> {
        self.forget_pause(sandbox);
        let workspace = RemoteWorkspace::new(sandbox.key().to_string(), self.path.clone())?;
        let Settled { capture, mirror, .. } = self.settled();
        let saved = self.vault.capture_sandbox(sandbox, &workspace, capture).await?;
        let (Some(snapshot), Some(mirror)) = (&saved, &mirror) else { return Ok(saved) };
        if mirror.config().mode != MirrorMode::All {
            return Ok(saved);
        }
        match mirror.upload(&self.vault, &snapshot.id).await {
            Ok(copied) => Ok(Some(copied)),
            Err(failure) => {
                tracing::warn!(id = %snapshot.id, %failure, "a snapshot is not in the mirror yet");
                Ok(saved)
            }
        }
    }

    /// Puts the newest snapshot of a sandbox's key back into it; `None` where there is none.
    ///
    /// # Errors
    /// As [`Vault::restore_sandbox`] and [`Mirror::fetch`]. A mirror that cannot be asked is an error: there may be work.
    pub async fn load(&self, sandbox: &Sandbox) -> Result<Option<Snapshot>> {
        self.forget_pause(sandbox);
        let workspace = RemoteWorkspace::new(sandbox.key().to_string(), self.path.clone())?;
        let mirror = self.settled().mirror;
        let Some(snapshot) = self.newest(&workspace, mirror.as_ref()).await? else { return Ok(None) };
        if let Some(mirror) = &mirror {
            mirror.fetch_if_gone(&self.vault, &snapshot.id).await?;
        }
        self.vault.restore_sandbox(sandbox, &workspace, &snapshot.id, self.restore.clone()).await?;
        Ok(Some(snapshot))
    }

    /// The newest of what this host and the mirror know of.
    async fn newest(&self, workspace: &RemoteWorkspace, mirror: Option<&Mirror>) -> Result<Option<Snapshot>> {
        let here = self.vault.newest_of_sandbox(workspace).await?;
        let Some(mirror) = mirror.filter(|mirror| mirror.config().mode != MirrorMode::Off) else {
            return Ok(here);
        };
        let label = workspace.label();
        let known = here.as_ref().map(|here| &here.id);
        let there = mirror
            .newest_after(self.vault.key(), known, |snapshot| snapshot.sandbox.as_ref() == Some(&label))
            .await?;
        Ok(there.or(here))
    }

    fn forget_pause(&self, sandbox: &Sandbox) {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner).remove(sandbox.key());
    }

    /// Whether it sleeps since its work was saved, so that it need not be woken for saving it again.
    async fn sleeps_saved(&self, sandbox: &Sandbox) -> bool {
        let saved = self.paused.lock().unwrap_or_else(PoisonError::into_inner).get(sandbox.key()).cloned();
        let Some((id, started_at)) = saved.filter(|(id, _)| id == sandbox.id()) else { return false };
        sandbox.info().await.is_ok_and(|info| {
            info.id == id && info.state == SandboxState::Paused && info.started_at == started_at
        })
    }
}

#[async_trait]
impl PersistHook for VaultHook {
    async fn restore(&self, sandbox: &Sandbox, _reason: RestoreReason) -> Result<RestoreReport> {
        let restored = self.load(sandbox).await?;
        let Some(snapshot) = restored else { return Ok(RestoreReport::default()) };
        let report = RestoreReport::restored(snapshot.id.to_string());
        match &snapshot.receipt {
            Some(receipt) => Ok(report.with_receipt(json_of(receipt)?)),
            None => Ok(report),
        }
    }

    async fn before_pause(&self, sandbox: &Sandbox) -> Result<()> {
        match self.save(sandbox).await {
            // It sleeps already, and is not woken to be put to sleep.
            Err(error) if error.reason() == Some(REASON_PAUSED) => return Ok(()),
            saved => unless_missing(saved)?,
        }
        if let Ok(info) = sandbox.info().await {
            let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
            paused.insert(sandbox.key().clone(), (info.id, info.started_at));
        }
        Ok(())
    }

    async fn before_destroy(&self, sandbox: &Sandbox) -> Result<()> {
        if self.sleeps_saved(sandbox).await {
            return Ok(());
        }
        unless_missing(self.save(sandbox).await)
    }

    fn interval(&self) -> Option<Duration> {
        self.settled().interval
    }

    async fn tick(&self, sandbox: &Sandbox) -> Result<()> {
        unless_missing(self.save(sandbox).await)
    }
}

fn json_of(receipt: &Receipt) -> Result<serde_json::Value> {
    serde_json::to_value(receipt).map_err(|error| {
        Error::new(ErrorKind::Unexpected, "the receipt cannot be written as JSON").with_source(error)
    })
}

/// A workspace that is not there yet holds no work.
fn unless_missing(saved: Result<Option<Snapshot>>) -> Result<()> {
    match saved {
        Err(error) if is_missing(&error) => Ok(()),
        answer => answer.map(drop),
    }
}

fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound && error.reason() == Some("no_workspace")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::{MirrorConfig, MirrorTarget};
    use crate::vault::{RepoKey, VaultConfig};

    #[tokio::test]
    async fn other_settings_hold_from_then_on_and_bad_ones_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::open(VaultConfig::new(dir.path(), RepoKey::new("key").unwrap())).await.unwrap();
        let hook = VaultHook::new(vault, "/work");
        assert_eq!(hook.interval(), Some(DEFAULT_SAVE_INTERVAL));
        let mut config = PersistConfig::new();
        config.interval = Some(Duration::from_secs(7));
        config.rules.never = vec!["*.iso".to_owned()];
        config.mirror = Some(MirrorConfig::new(MirrorTarget::File(dir.path().join("mirror"))));
        hook.apply(&config).unwrap();
        let settled = hook.settled();
        assert_eq!((hook.interval(), &settled.capture.rules), (config.interval, &config.rules));
        assert_eq!(settled.mirror.as_ref().map(Mirror::config), config.mirror.as_ref());

        let mut bad = PersistConfig::new();
        std::fs::write(dir.path().join("file"), "").unwrap();
        bad.mirror = Some(MirrorConfig::new(MirrorTarget::File(dir.path().join("file/below"))));
        hook.apply(&bad).unwrap_err();
        assert_eq!(hook.interval(), config.interval);
        assert_eq!(hook.settled().mirror.as_ref().map(Mirror::config), config.mirror.as_ref());

        hook.apply(&PersistConfig::new()).unwrap();
        assert!(hook.settled().mirror.is_none() && hook.settled().capture.rules.never.is_empty());
    }
}
