//! Asking a mirror whether it still has what was put there.

use std::path::PathBuf;

use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::Mirror;
use super::fetch::{Download, known, limits};
use crate::bundle::{ImportOptions, Provenance};
use crate::oid::ObjectId;
use crate::snapshot::SnapId;
use crate::vault::{Vault, VaultConfig};

/// How closely a copy is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VerifyLevel {
    /// Its bundle is there and has its size: one request. The default.
    #[default]
    Head,
    /// All bytes are read, and their SHA-256 is the one that is known.
    Digest,
    /// It is downloaded, every object is checked, nothing that it refers to is missing, and its tree could be restored.
    Full,
}

/// A copy that was found as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// Which look it was.
    pub level: VerifyLevel,
    /// Whether it is the very thing that was uploaded from here or is known here, or is as the mirror says it is.
    pub provenance: Provenance,
    /// The key of the bundle.
    pub key: String,
    /// The size of the bundle.
    pub bytes: u64,
    /// Its SHA-256, where all of it was read.
    pub sha256: Option<String>,
}

impl Mirror {
    /// Looks at the copy of a snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none; [`ErrorKind::InvalidState`] with reason `mirror_damaged` where it is
    /// not what it should be; and whatever the mirror answers.
    pub async fn verify(&self, vault: &Vault, id: &SnapId, level: VerifyLevel) -> Result<Verified> {
        let repo = vault.key();
        let local = known(vault, id).await?;
        let remote = self.adopted(repo, self.manifest(repo, id).await?);
        let copy = remote.remote.unwrap_or_default();
        let uploaded = local
            .as_ref()
            .and_then(|local| local.remote.as_ref())
            .filter(|uploaded| uploaded.commit == copy.commit && uploaded.bucket == copy.bucket);
        let provenance = match uploaded.is_some() {
            true => Provenance::Known,
            false => Provenance::BundleAlone,
        };
        let expected = uploaded.unwrap_or(&copy);
        let key = copy.key.clone();
        let damaged = |why: String| {
            Error::new(ErrorKind::InvalidState, format!("the copy of {id} in {} {why}", copy.bucket))
                .with_reason("mirror_damaged")
                .with_context("key", &key)
        };
        if expected.sha256 != copy.sha256 || expected.bytes != copy.bytes {
            return Err(damaged("is another one than was uploaded from here".to_owned()));
        }
        let wanted = expected.bytes.unwrap_or(0);
        let bytes = self.store.size(&key).await?;
        if bytes != wanted {
            return Err(damaged(format!("has {bytes} bytes and should have {wanted}")));
        }
        let mut verified = Verified { level, provenance, key: key.clone(), bytes, sha256: None };
        if level == VerifyLevel::Head {
            return Ok(verified);
        }
        if level == VerifyLevel::Digest {
            let mut hash = Sha256::new();
            let mut reading = self.store.read(&key, wanted).await?;
            while let Some(piece) = reading.next().await? {
                hash.update(&piece);
            }
            let sum = hex(&hash.finalize());
            if Some(&sum) != expected.sha256.as_ref() {
                return Err(damaged(format!("has the SHA-256 {sum}, which is not its own")));
            }
            verified.sha256 = Some(sum);
            return Ok(verified);
        }
        let sum = expected.sha256.clone().unwrap_or_default();
        let download = self.download(vault, &key, wanted, &sum).await?;
        self.import_aside(vault, &download, id, remote.commit).await.map_err(|failure| {
            damaged(format!("is not a snapshot that could be restored: {}", failure.message()))
                .with_source(failure)
        })?;
        if local.is_some_and(|local| local.commit == remote.commit) {
            verified.provenance = Provenance::Known;
        }
        verified.sha256 = Some(sum);
        Ok(verified)
    }

    /// Takes a bundle into a vault of its own, which goes away.
    async fn import_aside(
        &self,
        vault: &Vault,
        download: &Download,
        id: &SnapId,
        commit: ObjectId,
    ) -> Result<()> {
        let aside = Aside(vault.0.objects.staged("vault")?);
        let scratch = Vault::open(VaultConfig::new(&aside.0, vault.key().clone())).await?;
        let size = std::fs::metadata(&download.0).map_or(0, |found| found.len());
        let options = ImportOptions::new()
            .with_id(id.clone())
            .with_expected(commit)
            .with_any_repository(true)
            .with_limits(limits(size));
        scratch.import_bundle(&download.0, options).await?;
        drop(scratch);
        crate::cancel::run_blocking(None, move |_| {
            drop(aside);
            Ok(())
        })
        .await
    }
}

/// A directory that goes away; what stays is swept with the staging directory.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
