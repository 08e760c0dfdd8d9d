use std::collections::HashSet;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandhold_core::{Error, ErrorKind, Result};

use super::header::BundleHeader;
use super::options::{BundleLimits, ImportOptions, Imported, Provenance};
use crate::cancel::{Cancel, run_blocking};
use crate::oid::ObjectId;
use crate::restore::Wanted;
use crate::snapshot::{SnapId, Snapshot};
use crate::vault::{
    self, Closure, Inner, Lock, PackLimits, PackWriter, SNAPSHOTS, Sharing, Store, Vault, copy_all, unpack,
};
use crate::{beneath, durable, error, failpoint, time};

/// An id this far ahead of the clock is refused: the ids of later snapshots have to be greater.
const MAX_AHEAD_MS: u64 = 24 * 3600 * 1000;

impl Vault {
    /// Reads what a bundle says of itself.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] with reason `damaged` for what is no bundle; [`ErrorKind::Unsupported`] for a
    /// version, a hash or a filter that is not read here; and whatever the file system says.
    pub async fn bundle_header(path: impl AsRef<Path>) -> Result<BundleHeader> {
        let path = path.as_ref().to_owned();
        run_blocking(None, move |_| Ok(BundleHeader::read(BufReader::new(open(&path)?))?.0)).await
    }

    /// Takes a snapshot out of a bundle into the vault.
    ///
    /// The bundle may come from anybody. Its pack is taken apart in quarantine under limits, every object is hashed and
    /// stored anew, the tree is checked as a restore would, and everything that the snapshot refers to must be there.
    /// Until all of that has held, nothing of it can be seen in the vault; objects that the snapshot does not need never
    /// can.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] with reason `damaged`, `too_large`, `hostile_tree`, `ambiguous` (the bundle has
    /// several snapshots, or several match), `not_a_snapshot`, `incremental` (it needs commits, and that was not
    /// allowed), `other_repository`; [`ErrorKind::NotFound`] with reason `missing_objects`; [`ErrorKind::Conflict`] with
    /// reason `substituted` where the snapshot has another commit than is known of it here or was expected;
    /// [`ErrorKind::Unsupported`] as for [`Vault::bundle_header`].
    ///
    /// # Cancellation
    /// Dropping the future stops the work. Either the whole snapshot is there, or nothing of it.
    pub async fn import_bundle(&self, path: impl AsRef<Path>, options: ImportOptions) -> Result<Imported> {
        let (inner, path) = (Arc::clone(&self.0), path.as_ref().to_owned());
        run_blocking(options.budget, move |cancel| inner.import_bundle(&path, &options, cancel)).await
    }
}

fn open(path: &Path) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // A pipe would have us wait for whoever writes to it.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|failure| error::io("open", path, failure))?;
    let stat = file.metadata().map_err(|failure| error::io("look at", path, failure))?;
    match stat.is_file() {
        true => Ok(file),
        false => Err(Error::invalid_argument(format!("{} is no file", path.display()))),
    }
}

/// A bundle whose header was read and found fit.
pub(super) struct Opened {
    file: File,
    start: u64,
    pub(super) header: BundleHeader,
}

impl Opened {
    pub(super) fn open(path: &Path, limits: &BundleLimits, incremental: bool) -> Result<Self> {
        let file = open(path)?;
        let length = file.metadata().map_err(|failure| error::io("look at", path, failure))?.len();
        if length > limits.file {
            return Err(refusal(
                "too_large",
                format!(
                    "{} has {length} bytes, more than {}; raise the limit if it is yours",
                    path.display(),
                    limits.file
                ),
            ));
        }
        let (header, start) = BundleHeader::read(BufReader::new(&file))?;
        if !header.prerequisites.is_empty() && !incremental {
            return Err(refusal(
                "incremental",
                "the bundle needs commits that are not in it; allow that with `with_incremental`, or get a complete one"
                    .to_owned(),
            ));
        }
        std::io::Seek::seek(&mut &file, std::io::SeekFrom::Start(start))
            .map_err(|failure| error::io("read", path, failure))?;
        Ok(Self { file, start, header })
    }

    /// Takes the pack apart. Deltas may refer to what `base` has where the bundle says that it needs that.
    pub(super) fn unpack(
        &self,
        base: &Store,
        limits: &BundleLimits,
        writer: &mut PackWriter,
        cancel: &Cancel,
    ) -> Result<()> {
        let limits = PackLimits { objects: limits.objects, object: limits.object, inflated: limits.inflated };
        let outside = Some(base).filter(|_| !self.header.prerequisites.is_empty());
        let file =
            self.file.try_clone().map_err(|failure| error::io("read", Path::new("the bundle"), failure))?;
        unpack(file, self.start, outside, limits, writer, cancel)
    }

    /// Refuses a bundle whose prerequisites are not here, with all that they refer to.
    pub(super) fn has_all(&self, store: &Store, cancel: &Cancel) -> Result<()> {
        let mut closure = Closure::default();
        for id in &self.header.prerequisites {
            closure.reach(store, *id, cancel)?;
        }
        Ok(())
    }
}

impl Inner {
    /// As [`Vault::import_bundle`], on this thread.
    pub(crate) fn import_bundle(
        &self,
        path: &Path,
        options: &ImportOptions,
        cancel: &Cancel,
    ) -> Result<Imported> {
        let bundle = Opened::open(path, &options.limits, options.incremental)?;
        let (id, commit) = chosen(&bundle.header, options)?;
        let _held = self.hold(cancel)?;
        let (here, provenance) = self.known(&id, commit, options)?;
        let base = self.objects.store()?;
        let was_here = here == Some(commit);
        // Where something of it was lost, the bundle brings it back.
        if was_here && Closure::default().holes(&base, commit, cancel)? == 0 {
            return Ok(Imported { snapshot: self.find(id.as_str())?, provenance, objects: 0, was_here });
        }

        let quarantine = Quarantine::new(self)?;
        let mut writer = self.objects.pack()?;
        bundle.unpack(&base, &options.limits, &mut writer, cancel)?;
        let count = writer.len();
        let digest = writer.publish(&quarantine.packs())?;

        let store = Store::open(&[self.objects.dir(), &quarantine.dir])?;
        bundle.has_all(&store, cancel)?;
        let found = Closure::default().reach(&store, commit, cancel)?;
        let snapshot = self.check(&quarantine, &id, commit, options)?;
        if let Some(here) = here
            && !found.iter().any(|(_, reached)| *reached == here)
        {
            return Err(substituted(&id, here, commit, "the vault has"));
        }
        failpoint::pass("import.checked");

        let fresh: HashSet<ObjectId> =
            found.into_iter().map(|(_, id)| id).filter(|id| !base.has(*id)).collect();
        let objects = fresh.len() as u64;
        match digest {
            // All of it is needed: it moves as it is.
            Some(digest) if fresh.len() == count => {
                let staged = quarantine.packs().join(format!("pack-{digest}"));
                let (pack, index) = (staged.with_extension("pack"), staged.with_extension("idx"));
                vault::install(&pack, &index, &self.objects.packs(), digest)?;
            }
            _ => {
                let mut writer = self.objects.pack()?;
                copy_all(&store, fresh, &mut writer, cancel)?;
                writer.publish(&self.objects.packs())?;
            }
        }
        cancel.check()?;
        let _alone = Lock::take(&self.lock_path("records"), Sharing::Exclusive, cancel)?;
        self.refs.swap(&id.ref_name(), here, Some(commit), cancel)?;
        failpoint::pass("ref.moved");
        let kept = self.records.read(&id)?;
        let snapshot = match kept {
            // What was said of it later, such as where it was copied to, is in the file alone.
            Some(kept) if kept.commit == commit => kept,
            Some(kept) => {
                Snapshot { label: kept.label, retention: kept.retention, remote: kept.remote, ..snapshot }
            }
            None => snapshot,
        };
        self.records.write(&self.objects, &snapshot)?;
        Ok(Imported { snapshot, provenance, objects, was_here })
    }

    /// What the vault has of the snapshot, and whether the commit is the one that is known of it.
    fn known(
        &self,
        id: &SnapId,
        commit: ObjectId,
        options: &ImportOptions,
    ) -> Result<(Option<ObjectId>, Provenance)> {
        if let Some(expected) = options.expected.filter(|expected| *expected != commit) {
            return Err(substituted(id, expected, commit, "what was expected is"));
        }
        let here = self.refs.read(&id.ref_name())?;
        let recorded = here.or(self.records.read(id)?.map(|record| record.commit));
        match recorded {
            Some(recorded) if recorded == commit => Ok((here, Provenance::Known)),
            // The caller knows of a later state.
            _ if options.expected.is_some() => Ok((here, Provenance::Known)),
            Some(recorded) => Err(substituted(id, recorded, commit, "this vault knows")),
            None => Ok((here, Provenance::BundleAlone)),
        }
    }

    /// Checks that the commit is a snapshot, and one that can be restored.
    fn check(
        &self,
        quarantine: &Quarantine,
        id: &SnapId,
        commit: ObjectId,
        options: &ImportOptions,
    ) -> Result<Snapshot> {
        let repository = self.objects.open_with(Some(&quarantine.dir))?;
        let mut snapshot = vault::from_commit(&repository, id, commit)
            .map_err(|failure| refusal("not_a_snapshot", failure.message().to_owned()))?;
        if SnapId::at(time::now_ms() + MAX_AHEAD_MS)? < *id {
            return Err(refusal(
                "not_a_snapshot",
                format!("{id} would be made more than a day from now; set the clock of this machine"),
            ));
        }
        let parents: Vec<ObjectId> =
            vault::commit(&repository, commit)?.parent_ids().map(ObjectId::from).collect();
        let head = snapshot.head.filter(|_| snapshot.has_history);
        if let Some(stray) = head.into_iter().chain(snapshot.side).find(|stray| !parents.contains(stray)) {
            return Err(refusal(
                "not_a_snapshot",
                format!("{id} says that it has {stray}, which is none of its parents"),
            ));
        }
        let mut wanted = Wanted::read(&repository, snapshot.tree)?;
        let side = crate::capture::read_side(&repository, &snapshot)?;
        wanted.add_empty_dirs(&side.empty_dirs)?;
        if snapshot.repo != self.key.as_str() && !options.any_repository {
            return Err(refusal(
                "other_repository",
                format!(
                    "{id} is of the repository {:?}, and this vault is of {:?}; allow that with `with_any_repository`",
                    snapshot.repo.chars().take(128).collect::<String>(),
                    self.key.as_str()
                ),
            ));
        }
        self.key.as_str().clone_into(&mut snapshot.repo);
        snapshot.remote = None;
        Ok(snapshot)
    }
}

/// The snapshot that is meant, out of what the bundle has.
fn chosen(header: &BundleHeader, options: &ImportOptions) -> Result<(SnapId, ObjectId)> {
    let mut found: Vec<(SnapId, ObjectId)> = header
        .refs
        .iter()
        .filter_map(|(name, commit)| Some((name.strip_prefix(SNAPSHOTS)?.parse().ok()?, *commit)))
        .filter(|(id, _)| options.id.as_ref().is_none_or(|wanted| wanted == id))
        .collect();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(refusal(
            "not_a_snapshot",
            match &options.id {
                Some(id) => format!("the bundle has no snapshot {id}"),
                None => format!("the bundle has no ref below {SNAPSHOTS}"),
            },
        )
        .with_context(
            "refs",
            header.refs.iter().take(10).map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" "),
        )),
        _ => Err(refusal(
            "ambiguous",
            "the bundle has several snapshots; choose one with `with_id`".to_owned(),
        )
        .with_context(
            "candidates",
            found.iter().take(10).map(|(id, _)| id.as_str()).collect::<Vec<_>>().join(" "),
        )),
    }
}

pub(super) fn refusal(reason: &'static str, message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message).with_reason(reason)
}

fn substituted(id: &SnapId, known: ObjectId, found: ObjectId, who: &str) -> Error {
    substituted_commit(id.as_str(), known, found, who)
}

pub(super) fn substituted_commit(what: &str, known: ObjectId, found: ObjectId, who: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("the bundle has another commit of {what}: {found}, and {who} {known}; nothing was taken"),
    )
    .with_reason("substituted")
    .with_context("found", found)
    .with_context("known", known)
}

/// Where objects are until they are believed; it goes away with all that was not taken.
pub(super) struct Quarantine {
    dir: PathBuf,
}

impl Quarantine {
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn packs(&self) -> PathBuf {
        self.dir.join("pack")
    }

    pub(super) fn new(inner: &Inner) -> Result<Self> {
        let dir = inner.objects.staged("quarantine")?;
        durable::create_dir(&dir.join("pack"))?;
        beneath::sync_dir(&dir)?;
        Ok(Self { dir })
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        // What stays is swept with the staging directory.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
