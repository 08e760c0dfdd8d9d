//! Snapshots on their way back: what the vault has no objects of, or never had.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::Mirror;
use super::verify::hex;
use crate::bundle::{BundleLimits, ImportOptions, Provenance};
use crate::cancel::run_blocking;
use crate::restore::{RestoreOptions, Restored};
use crate::snapshot::{SnapId, Snapshot};
use crate::vault::{RepoKey, Vault};
use crate::{durable, error, failpoint};

/// What came of a fetch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Fetched {
    /// The snapshot, whose objects are in the vault now.
    pub snapshot: Snapshot,
    /// Whether it was known here, or is what the mirror says it is.
    pub provenance: Provenance,
    /// Whether the vault had its objects already; then nothing was downloaded.
    pub was_here: bool,
}

impl Mirror {
    /// Brings a snapshot of this vault's repository back into the vault, by its id or the beginning of one.
    ///
    /// Where the vault still has a record of the snapshot, the copy must be of that very commit; else it is taken as
    /// the mirror has it, which proves that it is whole and not whose it is. The bundle is read in quarantine as any
    /// stranger's: see [`Vault::import_bundle`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], which names the bucket and the key; [`ErrorKind::InvalidArgument`] with reason `ambiguous`
    /// or `mirror_manifest`, and as [`Vault::import_bundle`]; [`ErrorKind::Conflict`] with reason `substituted` where
    /// the mirror has another commit than is known here; [`ErrorKind::InvalidState`] with reason `mirror_damaged`.
    ///
    /// # Cancellation
    /// Dropping the future stops the work. Either the whole snapshot is there, or nothing of it.
    pub async fn fetch(&self, vault: &Vault, id: &str) -> Result<Fetched> {
        self.fetch_from(vault, vault.key(), id).await
    }

    /// Does as [`Mirror::fetch`], from what another repository key has in the mirror.
    ///
    /// # Errors
    /// As [`Mirror::fetch`].
    ///
    /// # Cancellation
    /// As [`Mirror::fetch`].
    pub async fn fetch_from(&self, vault: &Vault, repo: &RepoKey, id: &str) -> Result<Fetched> {
        let id = self.find(repo, id).await?;
        let known = known(vault, &id).await?;
        if let Some(snapshot) = &known
            && has_objects(vault, &id).await?
        {
            let (snapshot, provenance) = (snapshot.clone(), Provenance::Known);
            return Ok(Fetched { snapshot, provenance, was_here: true });
        }
        let manifest = self.manifest(repo, &id).await?;
        let commit = manifest.snapshot.commit;
        if let Some(known) = known.as_ref().filter(|known| known.commit != commit) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "the mirror has {commit} as {id}, and this vault knows it as {}: it is not the snapshot that was taken here",
                    known.commit
                ),
            )
            .with_reason("substituted"));
        }
        let provenance = if known.is_some() { Provenance::Known } else { Provenance::BundleAlone };
        let key = self.keys.bundle(repo, &manifest.bundle.name);
        let download = self.download(vault, &key, manifest.bundle.bytes, &manifest.bundle.sha256).await?;
        let options = ImportOptions::new()
            .with_id(id.clone())
            .with_expected(commit)
            .with_any_repository(repo != vault.key())
            .with_limits(limits(manifest.bundle.bytes));
        vault.import_bundle(&download.0, options).await?;
        failpoint::pass("mirror.fetched");
        // What it is comes from the commit; what was said of it later, and where it is kept too, from here.
        let adopted = self.adopted(repo, manifest);
        let snapshot = vault
            .update(id, move |snapshot| {
                snapshot.remote = adopted.remote;
                if known.is_none() {
                    (snapshot.label, snapshot.retention) = (adopted.label, adopted.retention);
                }
            })
            .await?;
        Ok(Fetched { snapshot, provenance, was_here: false })
    }

    /// Restores a snapshot, and fetches it before where its objects are not here.
    ///
    /// # Errors
    /// As [`Vault::restore`] and [`Mirror::fetch`].
    ///
    /// # Cancellation
    /// As [`Vault::restore`].
    pub async fn restore(
        &self,
        vault: &Vault,
        id: &SnapId,
        target: impl AsRef<Path>,
        options: RestoreOptions,
    ) -> Result<Restored> {
        self.fetch_if_gone(vault, id).await?;
        vault.restore(id, target, options).await
    }

    /// Fetches a snapshot whose objects are not here.
    pub(crate) async fn fetch_if_gone(&self, vault: &Vault, id: &SnapId) -> Result<()> {
        match has_objects(vault, id).await? {
            true => Ok(()),
            false => self.fetch(vault, id.as_str()).await.map(drop),
        }
    }

    /// Downloads a bundle and compares its sum. The file goes away with the value.
    pub(super) async fn download(
        &self,
        vault: &Vault,
        key: &str,
        bytes: u64,
        sha256: &str,
    ) -> Result<Download> {
        let inner = Arc::clone(&vault.0);
        let download = run_blocking(None, move |_| {
            let path = inner.objects.staged("bundle")?;
            durable::create_file(&path)?;
            Ok(Download(path))
        })
        .await?;
        let failed = |failure| error::io("write", &download.0, failure);
        let mut out = tokio::fs::OpenOptions::new().write(true).open(&download.0).await.map_err(failed)?;
        let (mut hash, mut got) = (Sha256::new(), 0);
        let mut reading = self.store.read(key, bytes).await?;
        while let Some(piece) = reading.next().await? {
            hash.update(&piece);
            got += piece.len() as u64;
            out.write_all(&piece).await.map_err(failed)?;
        }
        out.flush().await.map_err(failed)?;
        let sum = hex(&hash.finalize());
        match got == bytes && sum == sha256 {
            true => Ok(download),
            false => Err(Error::new(
                ErrorKind::InvalidState,
                format!(
                    "{key} in {} has {got} bytes with the SHA-256 {sum} and should have {bytes} with {sha256}",
                    self.store.name()
                ),
            )
            .with_reason("mirror_damaged")),
        }
    }
}

/// What the vault knows of a snapshot, with its objects or without.
pub(super) async fn known(vault: &Vault, id: &SnapId) -> Result<Option<Snapshot>> {
    match vault.snapshot(id.as_str()).await {
        Ok(snapshot) => Ok(Some(snapshot)),
        Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn has_objects(vault: &Vault, id: &SnapId) -> Result<bool> {
    let (inner, name) = (Arc::clone(&vault.0), id.ref_name());
    run_blocking(None, move |_| Ok(inner.refs.read(&name)?.is_some())).await
}

/// Our own bundles may be as large as `max_object_mb` allowed; the mirror has said how large this one is.
pub(super) fn limits(bytes: u64) -> BundleLimits {
    let default = BundleLimits::default();
    BundleLimits { file: default.file.max(bytes), ..default }
}

/// A file of the staging directory that goes away.
#[derive(Debug)]
pub(super) struct Download(pub(super) PathBuf);

impl Drop for Download {
    fn drop(&mut self) {
        if let Err(failure) = std::fs::remove_file(&self.0) {
            let failure = error::io("remove", &self.0, failure);
            tracing::debug!(%failure, "a download is left for the next sweep");
        }
    }
}
