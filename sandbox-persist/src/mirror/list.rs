//! What a mirror has, as its listing and its manifests say.

use std::collections::{BTreeMap, HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt};
use sandhold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::manifest::{Kind, MAX_MANIFEST, Manifest};
use super::{Mirror, store::Listed};
use crate::oid::ObjectId;
use crate::snapshot::{RemoteCopy, SnapId, Snapshot};
use crate::vault::RepoKey;

/// How many snapshots [`Mirror::snapshots`] reads at most, the newest ones.
pub const SHOWN: usize = 200;
/// How many manifests are read at the same time.
const AT_ONCE: usize = 8;

/// A snapshot in a mirror.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MirroredSnapshot {
    /// The snapshot as its manifest has it, with `remote` set to the copy.
    pub snapshot: Snapshot,
    /// Whether its bundle is there with the size that the manifest says.
    pub is_whole: bool,
}

/// The snapshots of a repository in a mirror.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MirroredSnapshots {
    /// The newest ones that can be read, newest first, at most [`SHOWN`].
    pub snapshots: Vec<MirroredSnapshot>,
    /// How many there are in all.
    pub total: usize,
    /// Those among the newest whose manifest cannot be read.
    pub unreadable: Vec<SnapId>,
}

/// A repository in a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MirroredRepo {
    /// Its key.
    pub key: RepoKey,
    /// How many snapshots it has.
    pub snapshots: usize,
    /// The newest of them.
    pub newest: SnapId,
    /// The bytes of all its bundles, orphans too.
    pub bytes: u64,
}

/// A bundle that no manifest names: an upload that was cut off, or is under way; or an earlier state of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Orphan {
    /// The repository.
    pub repo: RepoKey,
    /// The snapshot that it is of.
    pub id: SnapId,
    /// The commit that it holds.
    pub commit: ObjectId,
    /// Its key.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// When it was uploaded, in milliseconds since 1970.
    pub uploaded_at_ms: u64,
    /// Whether the mirror has another state of this snapshot, complete.
    pub is_superseded: bool,
}

impl Mirror {
    /// Asks whether the mirror can be reached and read. Nothing is written.
    ///
    /// # Errors
    /// Whatever the mirror answers.
    pub async fn check(&self) -> Result<()> {
        let mut found = Box::pin(self.store.list(self.keys.root())?);
        found.next().await.transpose().map(drop)
    }

    /// Lists the repositories of the mirror, the one with the newest snapshot first.
    ///
    /// # Errors
    /// Whatever the mirror answers.
    pub async fn repos(&self) -> Result<Vec<MirroredRepo>> {
        let mut found: BTreeMap<RepoKey, (usize, Option<SnapId>, u64)> = BTreeMap::new();
        let mut list = Box::pin(self.store.list(self.keys.root())?);
        while let Some(listed) = list.try_next().await? {
            match self.keys.parse(&listed.key) {
                Some((repo, Kind::Manifest(id))) => {
                    let (count, newest, _) = found.entry(repo).or_default();
                    *count += 1;
                    *newest = Some(newest.take().map_or(id.clone(), |newest| newest.max(id)));
                }
                Some((repo, Kind::Bundle(..))) => found.entry(repo).or_default().2 += listed.bytes,
                None => {}
            }
        }
        let mut repos: Vec<MirroredRepo> = found
            .into_iter()
            .filter_map(|(key, (snapshots, newest, bytes))| {
                Some(MirroredRepo { key, snapshots, newest: newest?, bytes })
            })
            .collect();
        repos.sort_by(|one, other| other.newest.cmp(&one.newest));
        Ok(repos)
    }

    /// Lists the snapshots of a repository, as this or another machine uploaded them.
    ///
    /// # Errors
    /// Whatever the mirror answers. A manifest that cannot be read hides no other.
    pub async fn snapshots(&self, repo: &RepoKey) -> Result<MirroredSnapshots> {
        let (mut ids, mut sizes) = (Vec::new(), HashMap::new());
        for listed in self.of(repo).await? {
            match self.keys.parse(&listed.key) {
                Some((_, Kind::Manifest(id))) => ids.push(id),
                Some((_, Kind::Bundle(..))) => drop(sizes.insert(listed.key, listed.bytes)),
                None => {}
            }
        }
        ids.sort_unstable();
        let total = ids.len();
        ids.reverse();
        ids.truncate(SHOWN);
        let mut found = MirroredSnapshots { total, ..MirroredSnapshots::default() };
        for (id, manifest) in self.manifests(repo, ids).await {
            match manifest {
                Ok(manifest) => {
                    let (bytes, snapshot) = (manifest.bundle.bytes, self.adopted(repo, manifest));
                    let key = snapshot.remote.as_ref().map_or("", |copy| &copy.key);
                    let is_whole = sizes.get(key) == Some(&bytes);
                    found.snapshots.push(MirroredSnapshot { snapshot, is_whole });
                }
                Err(failure) if is_unreadable(&failure) => {
                    tracing::warn!(%id, %failure, "a manifest of the mirror cannot be read");
                    found.unreadable.push(id);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(found)
    }

    /// Finds the newest snapshot of a repository that fits and is newer than `known`, however many others are newer.
    ///
    /// # Errors
    /// Whatever the mirror answers. A manifest that cannot be read hides no other.
    pub(crate) async fn newest_after(
        &self,
        repo: &RepoKey,
        known: Option<&SnapId>,
        fits: impl Fn(&Snapshot) -> bool,
    ) -> Result<Option<Snapshot>> {
        let mut ids: Vec<SnapId> = Vec::new();
        for listed in self.of(repo).await? {
            if let Some((_, Kind::Manifest(id))) = self.keys.parse(&listed.key)
                && known.is_none_or(|known| id > *known)
            {
                ids.push(id);
            }
        }
        ids.sort_unstable();
        while !ids.is_empty() {
            let few = ids.split_off(ids.len().saturating_sub(AT_ONCE));
            for (id, manifest) in self.manifests(repo, few).await.into_iter().rev() {
                match manifest {
                    Ok(manifest) if fits(&manifest.snapshot) => {
                        return Ok(Some(self.adopted(repo, manifest)));
                    }
                    Ok(_) => {}
                    Err(failure) if is_unreadable(&failure) => {
                        tracing::warn!(%id, %failure, "a manifest of the mirror cannot be read");
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(None)
    }

    /// Lists the bundles of a repository that no manifest names, oldest first.
    ///
    /// # Errors
    /// Whatever the mirror answers; a manifest that cannot be read is an error here, as what it names is not known.
    pub async fn orphans(&self, repo: &RepoKey) -> Result<Vec<Orphan>> {
        // A manifest is put after its bundle: who lists first and reads then, misses no name of what was listed.
        let listed = self.of(repo).await?;
        let mut bundles = Vec::new();
        let mut ids = HashSet::new();
        for listed in listed {
            match self.keys.parse(&listed.key) {
                Some((_, Kind::Manifest(id))) => drop(ids.insert(id)),
                Some((_, Kind::Bundle(id, commit))) => bundles.push((id, commit, listed)),
                None => {}
            }
        }
        let mut named = HashSet::new();
        for (_, manifest) in self.manifests(repo, ids.iter().cloned().collect()).await {
            named.insert(self.keys.bundle(repo, &manifest?.bundle.name));
        }
        let mut orphans: Vec<Orphan> = bundles
            .into_iter()
            .filter(|(_, _, listed)| !named.contains(&listed.key))
            .map(|(id, commit, listed)| Orphan {
                repo: repo.clone(),
                is_superseded: ids.contains(&id),
                id,
                commit,
                key: listed.key,
                bytes: listed.bytes,
                uploaded_at_ms: listed.modified_ms,
            })
            .collect();
        orphans.sort_by_key(|orphan| orphan.uploaded_at_ms);
        Ok(orphans)
    }

    /// Deletes a bundle that no manifest names, after a last look whether one does by now.
    ///
    /// An upload that is under way has such a bundle for a moment: delete what is hours old.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with reason `not_an_orphan`, and whatever the mirror answers.
    pub async fn delete_orphan(&self, orphan: &Orphan) -> Result<()> {
        let Some((repo, Kind::Bundle(id, _))) = self.keys.parse(&orphan.key) else {
            return Err(Error::invalid_argument(format!("{:?} is no bundle of this mirror", orphan.key)));
        };
        match self.manifest(&repo, &id).await {
            Ok(manifest) if self.keys.bundle(&repo, &manifest.bundle.name) == orphan.key => {
                Err(Error::new(ErrorKind::Conflict, format!("{} is the bundle of {id} by now", orphan.key))
                    .with_reason("not_an_orphan"))
            }
            Err(failure) if failure.kind() != ErrorKind::NotFound => Err(failure),
            _ => self.store.delete(&orphan.key).await,
        }
    }

    /// Finds the one snapshot of a repository whose id begins so.
    pub(super) async fn find(&self, repo: &RepoKey, id: &str) -> Result<SnapId> {
        if let Ok(id) = id.parse() {
            return Ok(id);
        }
        let mut found: Vec<SnapId> = self
            .of(repo)
            .await?
            .into_iter()
            .filter_map(|listed| match self.keys.parse(&listed.key)? {
                (_, Kind::Manifest(found)) if !id.is_empty() && found.as_str().starts_with(id) => Some(found),
                _ => None,
            })
            .collect();
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(Error::new(
                ErrorKind::NotFound,
                format!("the mirror {} has no snapshot {id:?} of {repo}", self.store.name()),
            )),
            _ => Err(Error::invalid_argument(format!("{id:?} begins more than one id; give more of it"))
                .with_reason("ambiguous")
                .with_context(
                    "candidates",
                    found.iter().take(10).map(SnapId::as_str).collect::<Vec<_>>().join(" "),
                )),
        }
    }

    pub(super) async fn manifest(&self, repo: &RepoKey, id: &SnapId) -> Result<Manifest> {
        let text = self.store.get(&self.keys.manifest(repo, id), MAX_MANIFEST).await?;
        Manifest::decode(&text, id)
    }

    /// Reads many manifests, a few at a time.
    async fn manifests(&self, repo: &RepoKey, ids: Vec<SnapId>) -> Vec<(SnapId, Result<Manifest>)> {
        let mut read = Vec::with_capacity(ids.len());
        for few in ids.chunks(AT_ONCE) {
            let mut reads = Vec::with_capacity(few.len());
            for id in few {
                reads.push(self.manifest(repo, id));
            }
            read.extend(futures_util::future::join_all(reads).await);
        }
        ids.into_iter().zip(read).collect()
    }

    /// The snapshot of a manifest as one that this machine knows of; the key is made of its id, whatever it says.
    pub(super) fn adopted(&self, repo: &RepoKey, manifest: Manifest) -> Snapshot {
        let copy = RemoteCopy {
            bucket: self.store.name().to_owned(),
            key: self.keys.bundle(repo, &manifest.bundle.name),
            uploaded_at_ms: Some(manifest.uploaded_at_ms),
            commit: Some(manifest.snapshot.commit),
            bytes: Some(manifest.bundle.bytes),
            sha256: Some(manifest.bundle.sha256),
            error: None,
        };
        Snapshot { repo: repo.to_string(), remote: Some(copy), ..manifest.snapshot }
    }

    async fn of(&self, repo: &RepoKey) -> Result<Vec<Listed>> {
        self.store.list(&self.keys.repo(repo))?.try_collect().await
    }
}

/// It went away since, or it is no manifest of ours.
fn is_unreadable(failure: &Error) -> bool {
    matches!(failure.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::CaptureOptions;
    use crate::mirror::{MirrorConfig, MirrorTarget};
    use crate::vault::{Vault, VaultConfig};

    #[tokio::test]
    async fn the_newest_that_fits_is_found_behind_more_than_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("work")).unwrap();
        let key = RepoKey::new("shared").unwrap();
        let vault = Vault::open(VaultConfig::new(at("vaults"), key.clone())).await.unwrap();
        let mirror = Mirror::open(MirrorConfig::new(MirrorTarget::File(at("mirror")))).unwrap();
        let mut taken = Vec::new();
        for sandbox in ["wanted", "wanted", "other"] {
            std::fs::write(at("work/a"), taken.len().to_string()).unwrap();
            let options = CaptureOptions { sandbox: Some(sandbox.to_owned()), ..CaptureOptions::new() };
            let snapshot = vault.capture(at("work"), options).await.unwrap();
            taken.push(mirror.upload(&vault, &snapshot.id).await.unwrap().id);
        }
        // Many more of somebody else, as if each had been uploaded.
        let manifests = at("mirror").join(mirror.keys.repo(&key));
        let text = std::fs::read_to_string(manifests.join(format!("{}.json", taken[2]))).unwrap();
        for index in 0..SHOWN {
            let id = format!("20991231-235959-{index:06x}");
            std::fs::write(manifests.join(format!("{id}.json")), text.replace(taken[2].as_str(), &id))
                .unwrap();
        }
        std::fs::write(manifests.join("20991231-235959-ffffff.json"), "torn").unwrap();
        let shown = mirror.snapshots(&key).await.unwrap();
        assert!(shown.snapshots.iter().all(|found| found.snapshot.sandbox.as_deref() == Some("other")));
        let fits = |snapshot: &Snapshot| snapshot.sandbox.as_deref() == Some("wanted");
        let found = mirror.newest_after(&key, None, fits).await.unwrap().unwrap();
        assert_eq!((&found.id, found.is_mirrored()), (&taken[1], true));
        let found = mirror.newest_after(&key, Some(&taken[0]), fits).await.unwrap().unwrap();
        assert_eq!(found.id, taken[1]);
        assert!(mirror.newest_after(&key, Some(&taken[1]), fits).await.unwrap().is_none());
    }
}
