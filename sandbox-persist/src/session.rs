use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandhold_core::Result;

use crate::cancel::run_blocking;
use crate::capture::{CaptureOptions, Purpose};
use crate::snapshot::{RunOutcome, SnapId, Snapshot, Source};
use crate::time;
use crate::vault::{Sharing, Vault};

/// Snapshots that accompany a run: one snapshot, which each capture moves along.
///
/// It may be captured as often as one likes: where nothing has changed, nothing is stored. What was captured is kept
/// whatever becomes of the host; a session that nobody ended is [`crate::Status::Open`].
#[derive(Debug)]
pub struct Session {
    vault: Vault,
    workspace: PathBuf,
    options: CaptureOptions,
    id: Mutex<Option<SnapId>>,
}

impl Vault {
    /// Begins a session for a workspace. Nothing is captured yet.
    #[must_use]
    pub fn begin(&self, workspace: impl AsRef<Path>, options: CaptureOptions) -> Session {
        Session {
            vault: self.clone(),
            workspace: workspace.as_ref().to_owned(),
            options,
            id: Mutex::default(),
        }
    }

    /// Goes on with a session that another host began, such as one that died.
    ///
    /// # Errors
    /// As [`Vault::snapshot`].
    pub async fn resume(&self, id: &SnapId, options: CaptureOptions) -> Result<Session> {
        let snapshot = self.snapshot(id.as_str()).await?;
        Ok(Session {
            vault: self.clone(),
            workspace: snapshot.workspace,
            options,
            id: Mutex::new(Some(snapshot.id)),
        })
    }

    /// Captures the state before a run as a snapshot of its own, with the outcome `baseline`; `None` where the last
    /// snapshot of the workspace has it already.
    ///
    /// # Errors
    /// As [`Vault::capture`].
    pub async fn capture_baseline(
        &self,
        workspace: impl AsRef<Path>,
        options: CaptureOptions,
    ) -> Result<Option<Snapshot>> {
        let purpose = Purpose { id: None, source: Source::Run, outcome: Some(RunOutcome::Baseline) };
        self.capture_for(workspace.as_ref().to_owned(), options, purpose).await
    }
}

impl Session {
    /// Returns the id, once something was captured.
    #[must_use]
    pub fn id(&self) -> Option<SnapId> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Captures the workspace; `None` where nothing has changed since the last snapshot of it.
    ///
    /// # Errors
    /// As [`Vault::capture`], but for `nothing_to_snapshot`.
    ///
    /// # Cancellation
    /// As [`Vault::capture`].
    pub async fn capture(&self) -> Result<Option<Snapshot>> {
        let purpose = Purpose { id: self.id(), source: Source::Run, outcome: None };
        let snapshot = self.vault.capture_for(self.workspace.clone(), self.options.clone(), purpose).await?;
        if let Some(snapshot) = &snapshot {
            *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot.id.clone());
        }
        Ok(snapshot)
    }

    /// Captures once more, and says how the run has ended. `None` where nothing was ever captured.
    ///
    /// A capture that fails does not keep the end from being written; its error is returned all the same.
    ///
    /// # Errors
    /// As [`Session::capture`].
    pub async fn end(&self, outcome: RunOutcome, exit_code: Option<i32>) -> Result<Option<Snapshot>> {
        let captured = self.capture().await;
        let ended = match self.id() {
            Some(id) => Some(self.vault.end(id, outcome, exit_code).await?),
            None => None,
        };
        captured.map(|_| ended)
    }
}

impl Vault {
    async fn end(&self, id: SnapId, outcome: RunOutcome, exit_code: Option<i32>) -> Result<Snapshot> {
        self.update(id, move |snapshot| {
            snapshot.outcome = Some(outcome);
            snapshot.exit_code = exit_code;
            snapshot.ended_at_ms = Some(time::now_ms().max(snapshot.captured_at_ms));
        })
        .await
    }

    /// Changes what the manifest says of a snapshot.
    pub(crate) async fn update(
        &self,
        id: SnapId,
        change: impl FnOnce(&mut Snapshot) + Send + 'static,
    ) -> Result<Snapshot> {
        let inner = Arc::clone(&self.0);
        run_blocking(None, move |cancel| {
            let _held = inner.hold(cancel)?;
            // A manifest is read, changed and written by one at a time.
            let lock = inner.lock_path("records");
            let _alone = crate::vault::Lock::take(&lock, Sharing::Exclusive, cancel)?;
            let mut snapshot = inner.find(id.as_str())?;
            change(&mut snapshot);
            inner.records.write(&inner.objects, &snapshot)?;
            Ok(snapshot)
        })
        .await
    }
}
