mod apply;
mod branch;
mod journal;
mod metadata;
mod names;
mod options;
mod patch;
mod plan;
mod verify;

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use sandhold_core::{Error, ErrorKind, Result};

pub use branch::RestoredBranch;
pub use journal::Unfinished;
pub(crate) use journal::list as unfinished;
pub use options::{OnDirty, OnUnfit, RestoreOptions, Restored};

use crate::cancel::{Cancel, run_blocking};
use crate::capture::{CaptureOptions, CaptureRules, Purpose, Scan, Workspace, read_side, threads};
use crate::path::WorkPath;
use crate::side::SideManifest;
use crate::snapshot::{RunOutcome, SnapId, Snapshot, Source};
use crate::vault::{Inner, Lock, Sharing, Vault};
use crate::{error, failpoint};
use plan::Plan;
pub(crate) use plan::Wanted;

impl Vault {
    /// Writes a snapshot into a directory, which is made where it is not there, or over a workspace.
    ///
    /// Afterwards the directory has what the snapshot has. What is so already is not touched; what was captured of
    /// the directory and is not in the snapshot is removed; what is never captured (ignored files, `.git`, env files)
    /// is left alone. A repository in it is neither read nor written. Nothing outside of the directory is reached, no
    /// symlink is followed, no filter or attribute is heeded, and no setuid bit is set.
    ///
    /// Where a receipt was asked for at the capture, all that it promises is read again and compared.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] with reason `dirty` where the directory holds work that no snapshot has, `in_the_way`
    /// where something that is never captured has the place of a file, `restore_incomplete` where something that was
    /// to survive is not there, `case_collision` and `unfit_name` where the file system of the directory cannot hold the names
    /// of the snapshot, before anything is written; [`ErrorKind::InvalidArgument`] with reason `hostile_tree`; [`ErrorKind::NotFound`]
    /// where the vault has no such snapshot, and with reason `snapshot_gone` where its objects are not here.
    ///
    /// # Cancellation
    /// Dropping the future stops the work at the next file, as a crash does: [`Vault::unfinished_restores`] names it,
    /// and another restore of the same snapshot to the same place completes it.
    pub async fn restore(
        &self,
        id: &SnapId,
        target: impl AsRef<Path>,
        options: RestoreOptions,
    ) -> Result<Restored> {
        let (inner, id, target) = (Arc::clone(&self.0), id.clone(), target.as_ref().to_owned());
        run_blocking(options.budget, move |cancel| inner.restore(&id, &target, &options, cancel)).await
    }

    /// Lists the restores that have begun and have not ended: they go on right now, or were cut off.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub async fn unfinished_restores(&self) -> Result<Vec<Unfinished>> {
        let inner = Arc::clone(&self.0);
        run_blocking(None, move |_| journal::list(&inner)).await
    }
}

impl Inner {
    fn restore(
        &self,
        id: &SnapId,
        target: &Path,
        options: &RestoreOptions,
        cancel: &Cancel,
    ) -> Result<Restored> {
        let _held = self.hold(cancel)?;
        let snapshot = self.find(id.as_str())?;
        let repository = self.objects.open()?;
        let side = read_side(&repository, &snapshot).map_err(|failure| gone(&snapshot, failure))?;
        let mut wanted =
            Wanted::read(&repository, snapshot.tree).map_err(|failure| gone(&snapshot, failure))?;
        wanted.add_empty_dirs(&side.empty_dirs)?;
        fs::create_dir_all(target).map_err(|failure| error::io("make the directory", target, failure))?;
        let workspace = Workspace::open(target, options.force, self.root())?;
        let _alone = Lock::take(&self.lock_path(&workspace.key()), Sharing::Exclusive, cancel)?;
        names::sweep(&workspace)?;
        let renamed = names::settle(&workspace, &mut wanted, options.on_unfit)?;

        let begun = journal::read(self, &workspace.path)?;
        let is_empty = fs::read_dir(&workspace.path)
            .map_err(|failure| error::io("list", &workspace.path, failure))?
            .next()
            .is_none();
        let is_new = is_empty || begun.as_ref().is_some_and(|begun| begun.is_new && begun.id == *id);
        let mut present = Scan::default();
        let mut saved = None;
        let mut over = begun.as_ref().filter(|begun| begun.id == *id).and_then(|begun| begun.over.clone());
        if !is_empty {
            remove_staged(&workspace, begun.as_ref());
            let rules = self.rules_of(&workspace)?;
            present = self.look(&workspace, &rules, options.threads, options.progress.as_ref(), cancel)?;
        }
        let mut plan = Plan::new(&wanted, &present);
        if !is_empty {
            let was_ours = |path: &[u8]| {
                begun.as_ref().filter(|begun| begun.id == *id).is_some_and(|begun| begun.touches(path))
            };
            in_the_way(&workspace, &present, &mut plan, |path| is_new && was_ours(path))?;
            let ours = begun.as_ref().is_some_and(|begun| begun.id == *id)
                && self.only_ours(&repository, &present, &plan, is_new, was_ours)?;
            if !(ours || plan.writes.is_empty() && plan.deletes.is_empty()) {
                (over, saved) = self.save_or_refuse(&workspace, &present, options, cancel)?;
            }
        }

        let unfinished = Unfinished {
            id: id.clone(),
            target: workspace.path.clone(),
            is_new,
            over,
            writes: plan.writes.iter().map(|(path, _)| WorkPath::new(&**path)).collect(),
            deletes: plan.deletes.iter().map(|path| WorkPath::new(&**path)).collect(),
        };
        journal::begin(self, &unfinished)?;
        failpoint::pass("restore.journalled");
        let root = workspace.root.as_fd();
        apply::Apply {
            root,
            objects: &self.objects,
            is_new,
            is_synced: options.sync,
            threads: threads(options.threads),
            progress: options.progress.as_ref(),
            cancel,
        }
        .run(&plan, &wanted)?;
        metadata::set(root, &side, &wanted)?;
        if options.sync {
            rustix::fs::syncfs(&workspace.root)
                .map_err(|errno| error::io("sync the file system of", &workspace.path, errno))?;
        }
        let kept =
            snapshot.receipt.as_ref().map_or(Ok(()), |receipt| verify::receipt(root, &wanted, receipt));
        journal::end(self, &workspace.path)?;
        kept?;
        Ok(Restored {
            id: id.clone(),
            target: workspace.path,
            written: plan.writes.len() as u64,
            untouched: plan.untouched,
            deleted: plan.deletes.len() as u64,
            saved,
            renamed,
            submodules: wanted.gitlinks,
            warnings: warnings(&snapshot, &side),
        })
    }

    /// The rules by which this workspace was captured last.
    fn rules_of(&self, workspace: &Workspace) -> Result<CaptureRules> {
        let known = self.records.list(&self.objects, &self.refs)?;
        let last = known.into_iter().rev().find(|snapshot| snapshot.workspace == workspace.path);
        Ok(last.map(|last| last.rules).unwrap_or_default())
    }

    /// Whether all that would be lost by going on with a restore is in the vault, or was written by it.
    fn only_ours(
        &self,
        repository: &git2::Repository,
        present: &Scan,
        plan: &Plan,
        is_new: bool,
        was_ours: impl Fn(&[u8]) -> bool,
    ) -> Result<bool> {
        let odb = repository.odb().map_err(|failure| error::git("open the vault", failure))?;
        let mut touched = plan.writes.iter().map(|(path, _)| path).chain(&plan.deletes);
        Ok(touched.all(|path| match present.entry(path) {
            _ if is_new && was_ours(path) => true,
            Some(entry) if entry.git_mode().is_some() => odb.exists(entry.id.into()),
            _ => true,
        }))
    }

    /// Goes on where a snapshot has what is there now; else captures it, or refuses. Returns which snapshot has it, and
    /// once more the one that was made for it.
    fn save_or_refuse(
        &self,
        workspace: &Workspace,
        present: &Scan,
        options: &RestoreOptions,
        cancel: &Cancel,
    ) -> Result<(Option<SnapId>, Option<SnapId>)> {
        let known = self.held_snapshots()?;
        let tree = present.root_tree();
        if let Some(same) = known.iter().rev().find(|snapshot| snapshot.tree == tree) {
            return Ok((Some(same.id.clone()), None));
        }
        match options.on_dirty {
            OnDirty::Capture => {
                let purpose = Purpose { id: None, source: Source::Sdk, outcome: Some(RunOutcome::Manual) };
                let rules = self.rules_of(workspace)?;
                let threads = options.threads;
                let capture = CaptureOptions { rules, threads, ..CaptureOptions::new() };
                let saved = self.capture_held(workspace, &capture, &purpose, cancel)?;
                let saved = saved.map(|saved| saved.id);
                Ok((saved.clone(), saved))
            }
            OnDirty::Refuse => {
                let mut refusal = Error::new(
                    ErrorKind::InvalidState,
                    format!(
                        "{} holds work that no snapshot has; capture it first, or restore with `OnDirty::Capture`",
                        workspace.path.display()
                    ),
                )
                .with_reason("dirty");
                let last = known.iter().rev().find(|snapshot| snapshot.workspace == workspace.path);
                if let Some(last) = last
                    && let Ok(before) = Wanted::read(&self.objects.open()?, last.tree)
                {
                    let change = Plan::new(&before, present);
                    let paths = change.writes.iter().map(|(path, _)| path).chain(&change.deletes);
                    let shown: Vec<_> =
                        paths.take(20).map(|path| WorkPath::new(&**path).to_string()).collect();
                    refusal = refusal.with_context("changed", shown.join(" "));
                }
                Err(refusal)
            }
        }
    }
}

impl Unfinished {
    fn touches(&self, path: &[u8]) -> bool {
        self.writes.iter().chain(&self.deletes).any(|touched| touched.as_bytes() == path)
    }

    /// The directories that it writes to.
    fn dirs(&self) -> impl Iterator<Item = &[u8]> {
        self.writes.iter().map(|path| crate::path::split(path.as_bytes()).0)
    }
}

fn gone(snapshot: &Snapshot, failure: Error) -> Error {
    match failure.kind() {
        ErrorKind::NotFound => Error::new(
            ErrorKind::NotFound,
            format!("the objects of {} are not in this vault any more", snapshot.id),
        )
        .with_reason("snapshot_gone")
        .with_source(failure),
        _ => failure,
    }
}

/// Takes out of the plan what is so already though it is never captured, and refuses to replace what is not.
fn in_the_way(
    workspace: &Workspace,
    present: &Scan,
    plan: &mut Plan,
    may_replace: impl Fn(&[u8]) -> bool,
) -> Result<()> {
    let root = workspace.root.as_fd();
    let mut blocked = Vec::new();
    let mut same = 0;
    let deletes = &plan.deletes;
    plan.writes.retain(|(path, item)| {
        let is_captured = present.entry(path).is_some_and(|entry| entry.git_mode().is_some());
        if is_captured || may_replace(path) {
            return true;
        }
        match verify::found(root, path) {
            Some(found) if found == (item.mode, item.id) => {
                same += 1;
                return false;
            }
            Some(_) => blocked.push(WorkPath::new(&**path)),
            None => match verify::is_free(root, path, deletes) {
                Ok(()) => {}
                Err(at) => blocked.push(at),
            },
        }
        true
    });
    plan.untouched += same;
    match blocked.is_empty() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::InvalidState,
            format!(
                "{} things that are never captured have the place of files of the snapshot; move them away",
                blocked.len()
            ),
        )
        .with_reason("in_the_way")
        .with_context(
            "paths",
            blocked.iter().take(20).map(ToString::to_string).collect::<Vec<_>>().join(" "),
        )),
    }
}

/// Removes files that a restore which was cut off had not given their names yet.
fn remove_staged(workspace: &Workspace, begun: Option<&Unfinished>) {
    let Some(begun) = begun else { return };
    let mut dirs: Vec<&[u8]> = begun.dirs().collect();
    dirs.dedup();
    for dir in dirs {
        let Ok(fd) = crate::beneath::open_dir(workspace.root.as_fd(), dir) else { continue };
        let Ok(list) = rustix::fs::Dir::read_from(&fd) else { continue };
        for entry in list.flatten() {
            if entry.file_name().to_bytes().starts_with(apply::STAGED.as_bytes()) {
                // It is in nobody's way if it stays.
                let _ = rustix::fs::unlinkat(&fd, entry.file_name(), rustix::fs::AtFlags::empty());
            }
        }
    }
}

fn warnings(snapshot: &Snapshot, side: &SideManifest) -> Vec<String> {
    let mut warnings = side.warnings.clone();
    if snapshot.outcome == Some(RunOutcome::Baseline) {
        warnings.push(format!("{} is the state before a run: what the run did is not in it", snapshot.id));
    }
    for nested in &side.nested {
        warnings.push(format!("the .git of {} was not captured; its files were", nested.path));
    }
    for pointer in &side.lfs_pointers {
        warnings.push(format!("{pointer} is a Git LFS pointer, not the file that it stands for"));
    }
    warnings
}
