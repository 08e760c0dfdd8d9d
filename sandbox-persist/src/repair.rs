//! Making a damaged vault one that works with all that is left of it.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::Result;
use serde::Serialize;

use crate::cancel::{Cancel, run_blocking};
use crate::oid::ObjectId;
use crate::snapshot::{SnapId, Snapshot};
use crate::vault::{
    Closure, Inner, Lock, PackLimits, SNAPSHOTS, Sharing, Store, StoredPack, Vault, list, unpack,
};
use crate::{beneath, durable, error};

/// What a repair did, and what it could not do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Repaired {
    /// Manifests that were missing or torn, made again out of their commits.
    pub records: Vec<SnapId>,
    /// Refs that were torn or missing, made again out of their manifests, where all of the snapshot is still here.
    pub refs: Vec<SnapId>,
    /// Packs whose index was missing or damaged, and was made again.
    pub indexes: u64,
    /// Packs with damaged objects, whose good ones were copied to a new one. The old ones are in `damaged/`.
    pub packs: u64,
    /// Objects that could not be saved from a damaged pack, and are nowhere else.
    pub lost: Vec<ObjectId>,
    /// Snapshots that need something that is not here any more. Importing a bundle of one makes it whole.
    pub incomplete: Vec<SnapId>,
}

impl Vault {
    /// Makes whole what can be made whole again: manifests, refs, indexes and packs.
    ///
    /// Nothing is thrown away: a pack or an index that is damaged is moved to the directory `damaged` of the vault. No
    /// ref is moved from one commit to another. Every object is read, so that this takes as long as reading the vault.
    ///
    /// # Errors
    /// Whatever the file system says; [`sandhold_core::ErrorKind::Unsupported`] with reason `in_repo` for a vault in
    /// somebody's repository. What cannot be made whole is no error, but in the answer.
    ///
    /// # Cancellation
    /// Dropping the future stops the work. Whatever moment that is, or a crash, nothing is lost, and the next repair goes
    /// on.
    pub async fn repair(&self, budget: Option<Duration>) -> Result<Repaired> {
        let inner = Arc::clone(&self.0);
        run_blocking(budget, move |cancel| {
            inner.refuse_in_repo("repair", "what is damaged there is for `git fsck` and its owner")?;
            let _alone = Lock::take(&inner.lock_path("vault"), Sharing::Exclusive, cancel)?;
            inner.repair_alone(cancel)
        })
        .await
    }
}

impl Inner {
    fn repair_alone(&self, cancel: &Cancel) -> Result<Repaired> {
        self.sweep()?;
        // What was there may not be there any more.
        self.renew_generation()?;
        let mut repaired = Repaired::default();
        let mut bad = HashSet::new();
        self.repair_indexes(&mut repaired, cancel)?;
        self.repair_packs(&mut repaired, &mut bad, cancel)?;
        let store = self.objects.store()?;
        repaired.lost = bad.into_iter().filter(|id| !store.has(*id)).collect();
        repaired.lost.sort();
        self.repair_refs(&store, &mut repaired, cancel)?;
        self.repair_records(&store, &mut repaired, cancel)?;
        Ok(repaired)
    }

    /// Makes the objects of packs known again that have no index, or one that does not fit.
    fn repair_indexes(&self, repaired: &mut Repaired, cancel: &Cancel) -> Result<()> {
        let unusable: BTreeSet<PathBuf> =
            self.objects.store()?.unusable.into_iter().map(|(path, _)| path).collect();
        let files = list(&self.objects.packs())?;
        let packs = files.iter().filter(|path| path.extension().is_some_and(|end| end == "pack"));
        for pack in packs {
            let index = pack.with_extension("idx");
            if index.exists() && !unusable.contains(&index) {
                continue;
            }
            // What can be read of it goes to a pack of its own, with an index of its own.
            let mut writer = self.objects.pack()?;
            let file = fs::File::open(pack).map_err(|failure| error::io("open", pack, failure))?;
            let limits = PackLimits { objects: u32::MAX, object: u64::MAX, inflated: u64::MAX };
            match unpack(file, 0, None, limits, &mut writer, cancel) {
                Ok(()) => repaired.indexes += 1,
                Err(failure) => {
                    cancel.check()?;
                    tracing::warn!(pack = %pack.display(), %failure, "a pack without an index is read in part");
                    repaired.packs += 1;
                }
            }
            let made = writer.publish(&self.objects.packs())?;
            let made = made.map(|digest| self.objects.packs().join(format!("pack-{digest}.pack")));
            if made.as_ref() != Some(pack) {
                self.set_aside(pack)?;
            }
        }
        // An index without its pack, or one that still does not fit.
        let still: Vec<PathBuf> = self.objects.store()?.unusable.into_iter().map(|(path, _)| path).collect();
        still.iter().try_for_each(|index| self.set_aside(index))
    }

    /// Copies the good objects of packs that have bad ones.
    fn repair_packs(
        &self,
        repaired: &mut Repaired,
        bad: &mut HashSet<ObjectId>,
        cancel: &Cancel,
    ) -> Result<()> {
        let store = self.objects.store()?;
        for pack in &store.packs {
            let mut good = Vec::new();
            let mut is_damaged = false;
            for entry in &pack.entries {
                cancel.check()?;
                let checked = match pack.is_whole(entry) {
                    Ok(false) => store.check(entry.id),
                    _ => pack.check_whole(entry),
                };
                match checked {
                    Ok(()) => good.push(entry),
                    Err(failure) => {
                        tracing::warn!(pack = %pack.path.display(), %failure, "an object of the vault is damaged");
                        bad.insert(entry.id);
                        is_damaged = true;
                    }
                }
            }
            if !is_damaged {
                continue;
            }
            let mut writer = self.objects.pack()?;
            for entry in good {
                cancel.check()?;
                match pack.is_whole(entry)? {
                    true => pack.copy_entry(&mut writer, entry)?,
                    false => store.copy_to(&mut writer, entry.id)?,
                }
            }
            writer.publish(&self.objects.packs())?;
            self.set_aside_pack(pack)?;
            repaired.packs += 1;
        }
        Ok(())
    }

    fn set_aside_pack(&self, pack: &StoredPack) -> Result<()> {
        self.set_aside(&pack.path.with_extension("idx"))?;
        self.set_aside(&pack.path)
    }

    /// Moves a file to where nobody reads it and nobody deletes it.
    fn set_aside(&self, path: &Path) -> Result<()> {
        let dir = self.root().join("damaged");
        durable::create_dir(&dir)?;
        let Some(name) = path.file_name() else { return Ok(()) };
        match fs::rename(path, dir.join(name)) {
            Err(failure) if failure.kind() != std::io::ErrorKind::NotFound => {
                return Err(error::io("set aside", path, failure));
            }
            _ => {}
        }
        beneath::sync_dir(&dir)?;
        path.parent().map_or(Ok(()), beneath::sync_dir)
    }

    /// Points refs that are torn or gone to the commits that their manifests have, where those are whole.
    fn repair_refs(&self, store: &Store, repaired: &mut Repaired, cancel: &Cancel) -> Result<()> {
        let refs = self.refs.list(SNAPSHOTS)?;
        for record in self.records.list(&self.objects, &self.refs)? {
            let name = record.id.ref_name();
            if refs.contains_key(&name) {
                continue;
            }
            match Closure::default().reach(store, record.commit, cancel) {
                Ok(_) => {
                    self.refs.swap(&name, None, Some(record.commit), cancel)?;
                    repaired.refs.push(record.id);
                }
                Err(failure) => {
                    cancel.check()?;
                    if self.has_torn_ref(&record.id) {
                        tracing::warn!(id = %record.id, %failure, "a torn ref stays as it is");
                        repaired.incomplete.push(record.id);
                    }
                }
            }
        }
        Ok(())
    }

    /// A manifest without a ref is of one that was pruned or is in a bucket, unless a torn ref lies beside it.
    pub(crate) fn has_torn_ref(&self, id: &SnapId) -> bool {
        let name = id.ref_name();
        self.git_dir().join(&name).exists() && matches!(self.refs.read(&name), Ok(None))
    }

    fn repair_records(&self, store: &Store, repaired: &mut Repaired, cancel: &Cancel) -> Result<()> {
        let repository = self.objects.open()?;
        let refs = self.refs.list(SNAPSHOTS)?;
        let mut all = Closure::default();
        let is_whole = refs.values().try_fold(true, |whole, commit| {
            all.holes(store, *commit, cancel).map(|holes| whole && holes == 0)
        })?;
        for (name, commit) in refs {
            let Ok(id) = name[SNAPSHOTS.len()..].parse::<SnapId>() else { continue };
            if !is_whole && Closure::default().holes(store, commit, cancel)? > 0 {
                repaired.incomplete.push(id.clone());
            }
            let is_known = self.records.read(&id)?.is_some_and(|record: Snapshot| record.commit == commit);
            if is_known {
                continue;
            }
            if let Ok(snapshot) = self.records.of_ref(&repository, &id, commit) {
                self.records.write(&self.objects, &snapshot)?;
                repaired.records.push(id);
            }
        }
        Ok(())
    }
}
