//! Snapshots on their way to the mirror: planned, bundle put, manifest put, recorded. Another run of the same goes on
//! from wherever one was cut off.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use sandhold_core::{Error, ErrorKind, Result};

use super::manifest::{Bundle, Manifest, bundle_name};
use super::queue::{Queue, Upload, Written};
use super::store::{Outgoing, Parts};
use super::{Mirror, MirrorMode};
use crate::bundle::BundleOptions;
use crate::cancel::{Cancel, run_blocking};
use crate::snapshot::{RemoteCopy, SnapId, Snapshot};
use crate::vault::{Inner, Lock, Sharing, Vault};
use crate::{failpoint, time};

/// How long one upload may take, where nothing else is said.
pub const DEFAULT_UPLOAD_BUDGET: Duration = Duration::from_secs(20 * 60);

/// How long the last upload of a host that ends may take, where nothing else is said.
pub const DEFAULT_EXIT_BUDGET: Duration = Duration::from_secs(10);

impl Mirror {
    /// Copies a snapshot to the mirror: its bundle, then its manifest, then the record of it here.
    ///
    /// A state that is there already is not sent again. What fails is returned, and is said in the snapshot's record
    /// too; the snapshot itself is kept as it is, and the upload stays in the queue of [`Mirror::resume`], unless it can
    /// never succeed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] with reason `mirror_off`; [`ErrorKind::InvalidArgument`] with reason `too_large`, before
    /// anything is sent; [`ErrorKind::Timeout`] with reason `budget`; [`ErrorKind::NotFound`] with reason
    /// `snapshot_gone` where its objects are not here; and whatever the mirror answers.
    ///
    /// # Cancellation
    /// Dropping the future leaves the upload in the queue, with the parts that have arrived.
    pub async fn upload(&self, vault: &Vault, id: &SnapId) -> Result<Snapshot> {
        self.upload_within(vault, id, DEFAULT_UPLOAD_BUDGET).await
    }

    /// Does as [`Mirror::upload`], and takes no longer than `budget`.
    ///
    /// # Errors
    /// As [`Mirror::upload`].
    ///
    /// # Cancellation
    /// As [`Mirror::upload`].
    pub async fn upload_within(&self, vault: &Vault, id: &SnapId, budget: Duration) -> Result<Snapshot> {
        self.refuse_if_off()?;
        let answer = tokio::time::timeout(budget, self.upload_now(vault, id, budget)).await;
        let failure = match answer {
            Ok(Ok(snapshot)) => return Ok(snapshot),
            Ok(Err(failure)) => failure,
            Err(_) => Error::new(
                ErrorKind::Timeout,
                format!("the upload of {id} did not end within {budget:?}; it stays in the queue"),
            )
            .with_reason("budget")
            .retryable(None),
        };
        self.note_failure(vault, id, &failure).await;
        Err(failure)
    }

    /// Uploads all that was begun and not recorded, oldest first; one that fails keeps no other from its turn.
    ///
    /// # Errors
    /// Whatever the file system says of the queue.
    pub async fn resume(&self, vault: &Vault) -> Result<Vec<(SnapId, Result<Snapshot>)>> {
        let mut answers = Vec::new();
        for id in self.queued(vault).await? {
            let answer = self.upload(vault, &id).await;
            answers.push((id, answer));
        }
        Ok(answers)
    }

    /// Lists what [`Mirror::resume`] would upload.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub async fn queued(&self, vault: &Vault) -> Result<Vec<SnapId>> {
        let inner = Arc::clone(&vault.0);
        run_blocking(None, move |_| Queue(&inner).ids()).await
    }

    fn refuse_if_off(&self) -> Result<()> {
        match self.config.mode {
            MirrorMode::Off => {
                Err(Error::new(ErrorKind::InvalidState, "the mirror is switched off in its configuration")
                    .with_reason("mirror_off"))
            }
            _ => Ok(()),
        }
    }

    async fn upload_now(&self, vault: &Vault, id: &SnapId, budget: Duration) -> Result<Snapshot> {
        let (inner, at) = (Arc::clone(&vault.0), id.clone());
        let (place, limit) = (self.place(), self.config.max_object_mb);
        let planned =
            run_blocking(Some(budget), move |cancel| plan(&inner, &at, &place, limit, cancel)).await?;
        let Planned { snapshot, mut upload, _alone } = planned;
        let Some(written) = upload.bundle.clone() else { return Ok(snapshot) };

        let repo = vault.key();
        let name = bundle_name(id, written.commit, &written.sha256);
        let key = self.keys.bundle(repo, &name);
        let is_there = match self.store.size(&key).await {
            // No other content has this name.
            Ok(bytes) => bytes == written.bytes,
            Err(failure) if failure.kind() == ErrorKind::NotFound => false,
            Err(failure) => return Err(failure),
        };
        if !is_there {
            let file = Queue(&vault.0).bundle(id);
            let outgoing = Outgoing {
                key: &key,
                file: &file,
                bytes: written.bytes,
                sha256: &written.sha256,
                parts_above: self.config.multipart_above_mb.saturating_mul(1 << 20),
            };
            let before = written.parts.clone();
            let mut tell = |parts: &Parts| {
                if let Some(written) = &mut upload.bundle {
                    written.parts = Some(parts.clone());
                }
                let (inner, upload) = (Arc::clone(&vault.0), upload.clone());
                run_blocking(None, move |_| Queue(&inner).write(&upload)).boxed()
            };
            self.store.put_file(outgoing, before, &mut tell).await?;
        }
        failpoint::pass("mirror.bundle_put");

        let uploaded_at_ms = time::now_ms();
        let manifest = Manifest {
            version: 1,
            bundle: Bundle { name, bytes: written.bytes, sha256: written.sha256.clone() },
            uploaded_at_ms,
            snapshot: Snapshot { remote: None, ..snapshot },
        };
        let text = manifest.encode()?.into();
        self.store.put(&self.keys.manifest(repo, id), text, "application/json", None).await?;
        failpoint::pass("mirror.manifest_put");

        let copy = RemoteCopy {
            bucket: self.store.name().to_owned(),
            key,
            uploaded_at_ms: Some(uploaded_at_ms),
            commit: Some(written.commit),
            bytes: Some(written.bytes),
            sha256: Some(written.sha256),
            error: None,
        };
        let snapshot = vault.update(id.clone(), |snapshot| snapshot.remote = Some(copy)).await?;
        failpoint::pass("mirror.recorded");
        let (inner, at) = (Arc::clone(&vault.0), id.clone());
        run_blocking(None, move |_| Queue(&inner).remove(&at)).await?;
        drop(_alone);
        Ok(snapshot)
    }

    /// Says in the record that an upload failed, and takes what can never succeed out of the queue.
    async fn note_failure(&self, vault: &Vault, id: &SnapId, failure: &Error) {
        let is_hopeless = matches!(failure.kind(), ErrorKind::InvalidArgument)
            || matches!(failure.reason(), Some("snapshot_gone"));
        let (inner, at) = (Arc::clone(&vault.0), id.clone());
        let shrunk = run_blocking(Some(Duration::from_secs(1)), move |cancel| {
            let _alone = lock(&inner, cancel)?;
            let queue = Queue(&inner);
            if is_hopeless {
                return queue.remove(&at);
            }
            match queue.read(&at) {
                // As long as no part has arrived, the bundle is as good made again.
                Some(upload) if upload.bundle.as_ref().is_some_and(|written| written.parts.is_none()) => {
                    queue.write(&Upload { bundle: None, ..upload })?;
                    queue.drop_bundle(&at)
                }
                _ => Ok(()),
            }
        })
        .await;
        let said = match failure.reason() {
            Some("budget") => "budget".to_owned(),
            _ => failure.message().to_owned(),
        };
        let bucket = self.store.name().to_owned();
        let noted = vault
            .update(id.clone(), move |snapshot| {
                // A copy of this very state stays one, whatever became of another.
                if snapshot.is_mirrored() {
                    return;
                }
                let mut copy = snapshot.remote.take().unwrap_or_default();
                copy.bucket = bucket;
                copy.error = Some(said);
                snapshot.remote = Some(copy);
            })
            .await;
        for trouble in [shrunk.err(), noted.err()].into_iter().flatten() {
            tracing::warn!(%id, failure = %trouble, "what became of an upload could not be written down");
        }
    }
}

struct Planned {
    snapshot: Snapshot,
    /// Without a bundle where there is nothing to do.
    upload: Upload,
    /// One upload of a vault at a time.
    _alone: Lock,
}

fn lock(inner: &Inner, cancel: &Cancel) -> Result<Lock> {
    Lock::take(&inner.lock_path("uploads"), Sharing::Exclusive, cancel)
}

/// Takes the lock, writes the bundle, or finds the one that was written before.
fn plan(inner: &Inner, id: &SnapId, place: &str, limit_mb: u64, cancel: &Cancel) -> Result<Planned> {
    let alone = lock(inner, cancel)?;
    let _held = inner.hold(cancel)?;
    let queue = Queue(inner);
    let snapshot = inner.find(id.as_str())?;
    let mut upload = Upload { id: id.clone(), mirror: place.to_owned(), bundle: None };
    if inner.refs.read(&id.ref_name())?.is_none() {
        let is_there =
            |copy: &RemoteCopy| format!("{}/{}", copy.bucket, copy.key).starts_with(&format!("{place}/"));
        if snapshot.is_mirrored() && snapshot.remote.as_ref().is_some_and(is_there) {
            queue.remove(id)?;
            return Ok(Planned { snapshot, upload, _alone: alone });
        }
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("{id} has no objects left to upload: they are not in the vault {}", inner.key),
        )
        .with_reason("snapshot_gone"));
    }
    let before = queue.read(id).filter(|before| before.mirror == place);
    upload.bundle = before.and_then(|before| before.bundle).filter(|bundle| bundle.commit == snapshot.commit);
    if upload.bundle.is_none() {
        // From here on it is in the queue, whatever happens.
        queue.write(&upload)?;
        queue.drop_bundle(id)?;
        let bundle = inner.write_bundle(id, &queue.bundle(id), &BundleOptions::new(), cancel)?;
        upload.bundle =
            Some(Written { commit: bundle.commit, bytes: bundle.bytes, sha256: bundle.sha256, parts: None });
        queue.write(&upload)?;
    }
    let commit = upload.bundle.as_ref().map(|bundle| bundle.commit);
    if commit != Some(snapshot.commit) {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("{id} moved on while it was bundled; try again"),
        )
        .with_reason("ref_moved")
        .retryable(None));
    }
    let bytes = upload.bundle.as_ref().map_or(0, |bundle| bundle.bytes);
    if limit_mb != 0 && bytes > limit_mb.saturating_mul(1 << 20) {
        return Err(Error::invalid_argument(format!(
            "the bundle of {id} has {} MiB, above `max_object_mb` of {limit_mb}; raise it, or set it to 0 for no limit",
            bytes.div_ceil(1 << 20)
        ))
        .with_reason("too_large"));
    }
    failpoint::pass("mirror.planned");
    Ok(Planned { snapshot, upload, _alone: alone })
}
