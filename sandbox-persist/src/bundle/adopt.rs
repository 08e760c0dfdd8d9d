//! Taking ordinary git bundles for snapshots: those that `git bundle create` makes of any repository.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use sandhold_core::Result;

use super::header::BundleHeader;
use super::options::{AdoptOptions, Imported, Provenance};
use super::read::{Opened, Quarantine, refusal, substituted_commit};
use crate::cancel::{Cancel, run_blocking};
use crate::capture::{CaptureRules, write_commit};
use crate::oid::ObjectId;
use crate::restore::Wanted;
use crate::retention::refuse_unreadable;
use crate::side::SideManifest;
use crate::snapshot::{RunOutcome, Snapshot, Source};
use crate::vault::{Closure, Inner, ObjectKind, SNAPSHOTS, Store, Vault, copy_all};
use crate::{error, failpoint, time, vault};

impl Vault {
    /// Takes a commit of an ordinary git bundle, with its history, for a new snapshot.
    ///
    /// The bundle is read as in [`Vault::import_bundle`]: in quarantine, under limits, every object hashed and stored
    /// anew, the tree checked as a restore would. The snapshot has the files of the commit, and keeps the commit alive;
    /// as its workspace stands the path of the bundle. A commit that was adopted before is not adopted again.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::InvalidArgument`] with reason `damaged`, `too_large`, `hostile_tree`, `ambiguous` (the
    /// bundle has several refs and no `HEAD`), `no_such_ref`, `not_a_commit`, `incremental`;
    /// [`sandhold_core::ErrorKind::NotFound`] with reason `missing_objects`; [`sandhold_core::ErrorKind::Conflict`] with
    /// reason `substituted`; [`sandhold_core::ErrorKind::Unsupported`] as for [`Vault::bundle_header`].
    ///
    /// # Cancellation
    /// Dropping the future stops the work. Either the whole snapshot is there, or nothing of it.
    pub async fn adopt_bundle(&self, path: impl AsRef<Path>, options: AdoptOptions) -> Result<Imported> {
        let (inner, path) = (Arc::clone(&self.0), path.as_ref().to_owned());
        run_blocking(options.budget, move |cancel| inner.adopt_bundle(&path, &options, cancel)).await
    }
}

impl Inner {
    fn adopt_bundle(&self, path: &Path, options: &AdoptOptions, cancel: &Cancel) -> Result<Imported> {
        refuse_unreadable(options.retention.as_deref())?;
        let bundle = Opened::open(path, &options.limits, options.incremental)?;
        let (name, head) = chosen(&bundle.header, options)?;
        if let Some(expected) = options.expected.filter(|expected| *expected != head) {
            return Err(substituted_commit(&name, expected, head, "what was expected is"));
        }
        let provenance = match options.expected {
            Some(_) => Provenance::Known,
            None => Provenance::BundleAlone,
        };
        let _held = self.hold(cancel)?;
        let source = path.canonicalize().map_err(|failure| error::io("find", path, failure))?;
        if let Some(snapshot) = self.adopted(head)? {
            return Ok(Imported { snapshot, provenance, objects: 0, was_here: true });
        }

        let base = self.objects.store()?;
        let quarantine = Quarantine::new(self)?;
        let mut writer = self.objects.pack()?;
        bundle.unpack(&base, &options.limits, &mut writer, cancel)?;
        writer.publish(&quarantine.packs())?;
        let store = Store::open(&[self.objects.dir(), quarantine.dir()])?;
        bundle.has_all(&store, cancel)?;
        if store.kind(head) != Some(ObjectKind::Commit) {
            return Err(refusal(
                "not_a_commit",
                format!("{name} points to {head}, which is no commit that the bundle has; choose a branch"),
            ));
        }
        let found = Closure::default().reach(&store, head, cancel)?;
        let mut snapshot = self.snapshot_of(&quarantine, &name, head, options)?;
        snapshot.root = self.smallest_root(&quarantine, &found)?;
        failpoint::pass("import.checked");

        let mut writer = self.objects.pack()?;
        let fresh: HashSet<ObjectId> =
            found.into_iter().map(|(_, id)| id).filter(|id| !base.has(*id)).collect();
        copy_all(&store, fresh, &mut writer, cancel)?;
        let objects = writer.len() as u64;
        snapshot.workspace = source;
        write_commit(&mut writer, &mut snapshot, &SideManifest::default(), None)?;
        cancel.check()?;
        writer.publish(&self.objects.packs())?;
        self.refs.swap(&snapshot.id.ref_name(), None, Some(snapshot.commit), cancel)?;
        failpoint::pass("ref.moved");
        self.write_record(&mut snapshot, cancel)?;
        Ok(Imported { snapshot, provenance, objects, was_here: false })
    }

    /// The snapshot as which a commit was adopted.
    fn adopted(&self, head: ObjectId) -> Result<Option<Snapshot>> {
        let repository = self.objects.open()?;
        Ok(self.held_snapshots()?.into_iter().rev().find(|snapshot| {
            snapshot.head == Some(head)
                && snapshot.has_history
                && vault::commit(&repository, head)
                    .is_ok_and(|commit| commit.tree_id() == snapshot.tree.into())
        }))
    }

    /// The commit that a whole history began with, as [`crate::RepoKey::of_workspace`] has it.
    fn smallest_root(
        &self,
        quarantine: &Quarantine,
        history: &[(ObjectKind, ObjectId)],
    ) -> Result<Option<ObjectId>> {
        let repository = self.objects.open_with(Some(quarantine.dir()))?;
        let mut smallest: Option<ObjectId> = None;
        for (_, id) in history.iter().filter(|(kind, _)| *kind == ObjectKind::Commit) {
            if vault::commit(&repository, *id)?.parent_count() == 0 {
                smallest = smallest.into_iter().chain([*id]).min();
            }
        }
        Ok(smallest)
    }

    /// The manifest of the snapshot of a commit, whose tree is checked.
    fn snapshot_of(
        &self,
        quarantine: &Quarantine,
        name: &str,
        head: ObjectId,
        options: &AdoptOptions,
    ) -> Result<Snapshot> {
        let repository = self.objects.open_with(Some(quarantine.dir()))?;
        let odb = repository.odb().map_err(|failure| error::git("open the vault", failure))?;
        let tree: ObjectId = vault::commit(&repository, head)?.tree_id().into();
        let wanted = Wanted::read(&repository, tree)?;
        let mut bytes = 0;
        for item in wanted.items.values() {
            let (size, _) = odb
                .read_header(item.id.into())
                .map_err(|failure| error::git(format_args!("read {}", item.id), failure))?;
            bytes += size as u64;
        }
        let now = time::now_ms();
        Ok(Snapshot {
            id: self.next_id(now)?,
            repo: self.key.to_string(),
            path_key: String::new(),
            root: None,
            workspace: Default::default(),
            commit: ObjectId::ZERO,
            tree,
            branch: name.strip_prefix("refs/heads/").map(ToOwned::to_owned),
            head: Some(head),
            head_at_start: Some(head),
            has_history: true,
            started_at_ms: now,
            captured_at_ms: now,
            ended_at_ms: Some(now),
            outcome: Some(RunOutcome::Manual),
            exit_code: None,
            captures: 1,
            label: options.label.clone(),
            source: Source::Sdk,
            agent: None,
            retention: options.retention.clone(),
            sandbox: None,
            side: None,
            rules: CaptureRules::default(),
            files: wanted.items.len() as u64,
            bytes,
            skipped: 0,
            receipt: None,
            remote: None,
            other: serde_json::Map::new(),
        })
    }
}

/// The ref that is meant: the one that was asked for, else `HEAD`, else the only one.
fn chosen(header: &BundleHeader, options: &AdoptOptions) -> Result<(String, ObjectId)> {
    let names = || header.refs.iter().take(10).map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ");
    let find = |wanted: &str| header.refs.iter().find(|(name, _)| name == wanted);
    if let Some(wanted) = &options.reference {
        let branch = format!("refs/heads/{wanted}");
        return find(wanted).or_else(|| find(&branch)).cloned().ok_or_else(|| {
            refusal("no_such_ref", format!("the bundle has no ref {wanted:?}")).with_context("refs", names())
        });
    }
    if let Some((_, head)) = find("HEAD") {
        // Its branch has a name, and is at the same commit.
        let branch = header.refs.iter().find(|(name, at)| name.starts_with("refs/heads/") && at == head);
        return Ok(branch.cloned().unwrap_or_else(|| ("HEAD".to_owned(), *head)));
    }
    let mut own = header.refs.iter().filter(|(name, _)| !name.starts_with(SNAPSHOTS));
    match (own.next(), own.next()) {
        (Some(only), None) => Ok(only.clone()),
        (None, _) => Err(refusal(
            "no_such_ref",
            "the bundle has snapshots alone; take one with `import_bundle`".to_owned(),
        )),
        _ => Err(refusal(
            "ambiguous",
            "the bundle has several refs and no HEAD; choose one with `with_reference`".to_owned(),
        )
        .with_context("candidates", names())),
    }
}
