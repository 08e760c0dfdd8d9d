mod cache;
mod commit;
mod options;
mod promise;
mod rules;
mod scan;
mod side;
mod store;
mod stream;
mod tree;
mod walk;
mod workspace;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandhold_core::{Error, ErrorKind, Result};

pub(crate) use commit::write as write_commit;
pub(crate) use options::threads;
pub use options::{CaptureOptions, DEFAULT_MAX_FILE};
pub use rules::CaptureRules;
pub(crate) use rules::Rules;
pub(crate) use scan::Scan;
pub(crate) use side::{read as read_side, read_receipt};
pub(crate) use store::blob_id;
pub(crate) use workspace::Workspace;

use crate::cancel::{Cancel, ProgressFn, run_blocking};
use crate::git::{self, GitDir, Head, HeadTree, History};
use crate::oid::ObjectId;
use crate::retention::refuse_unreadable;
use crate::side::SideManifest;
use crate::snapshot::{RunOutcome, SnapId, Snapshot, Source};
use crate::vault::{self, Inner, Lock, PackWriter, Sharing, Vault};
use crate::{failpoint, time};

/// What a capture belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Purpose {
    /// The snapshot to go on with; `None` begins one.
    pub(crate) id: Option<SnapId>,
    pub(crate) source: Source,
    pub(crate) outcome: Option<RunOutcome>,
}

impl Vault {
    /// Captures a workspace: all its files but those that `.gitignore` files and the rules leave out.
    ///
    /// The workspace is read and never written; neither are the index, the refs or the configuration of a repository in
    /// it. When this returns, the snapshot is on the disk, and no crash takes it back.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] with reason `nothing_to_snapshot` where nothing has changed since the last snapshot
    /// of this workspace; [`ErrorKind::Timeout`] with reason `budget`; [`ErrorKind::StorageFull`];
    /// [`ErrorKind::InvalidArgument`] for `/` and home directories, unless forced.
    ///
    /// # Cancellation
    /// Dropping the future stops the work at the next file. Either the whole snapshot is there, or nothing of it.
    pub async fn capture(&self, workspace: impl AsRef<Path>, options: CaptureOptions) -> Result<Snapshot> {
        let purpose = Purpose { id: None, source: Source::Sdk, outcome: Some(RunOutcome::Manual) };
        self.capture_for(workspace.as_ref().to_owned(), options, purpose).await?.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidState,
                "nothing has changed since the last snapshot of this workspace",
            )
            .with_reason("nothing_to_snapshot")
            .with_context("workspace", workspace.as_ref().display())
        })
    }

    /// Captures for a purpose; `None` where nothing has changed.
    pub(crate) async fn capture_for(
        &self,
        workspace: PathBuf,
        options: CaptureOptions,
        purpose: Purpose,
    ) -> Result<Option<Snapshot>> {
        let inner = Arc::clone(&self.0);
        run_blocking(options.budget, move |cancel| inner.capture(&workspace, &options, &purpose, cancel))
            .await
    }

    /// Reads what a snapshot has beside its tree.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where the objects of the snapshot are not here.
    pub async fn side_manifest(&self, snapshot: &Snapshot) -> Result<SideManifest> {
        let (inner, snapshot) = (Arc::clone(&self.0), snapshot.clone());
        run_blocking(None, move |_| side::read(&inner.objects.open()?, &snapshot)).await
    }
}

/// What there was before, for this snapshot or for this workspace.
struct Before {
    /// The tip of the session, which a new commit follows.
    tip: Option<Snapshot>,
    /// What the state is compared with.
    compared: Option<Snapshot>,
}

/// The last look at a workspace, whose objects are in the vault.
#[derive(Debug)]
pub(crate) struct Remembered {
    /// The generation of the vault in which they were.
    generation: String,
    scan: Arc<Scan>,
    /// How much was read since it was last written to the disk.
    unwritten: u64,
    /// The newest snapshot of it.
    last: Option<SnapId>,
}

/// What a workspace is at.
#[derive(Default)]
struct GitState {
    head: Head,
    /// The tree of that commit, where all its history is in the vault.
    tree: Option<HeadTree>,
    /// The commit that its history began with.
    root: Option<ObjectId>,
    warning: Option<String>,
}

impl Inner {
    pub(crate) fn capture(
        &self,
        workspace: &Path,
        options: &CaptureOptions,
        purpose: &Purpose,
        cancel: &Cancel,
    ) -> Result<Option<Snapshot>> {
        if let Some(survive) = &options.survive {
            survive.check()?;
        }
        refuse_unreadable(options.retention.as_deref())?;
        let workspace = Workspace::open(workspace, options.force, self.root())?;
        let _held = self.hold(cancel)?;
        let _alone = Lock::take(&self.lock_path(&workspace.key()), Sharing::Exclusive, cancel)?;
        self.capture_held(&workspace, options, purpose, cancel)
    }

    /// Captures a workspace whose lock, and the vault's, are held.
    pub(crate) fn capture_held(
        &self,
        workspace: &Workspace,
        options: &CaptureOptions,
        purpose: &Purpose,
        cancel: &Cancel,
    ) -> Result<Option<Snapshot>> {
        let rules = Rules::new(&options.rules)?;
        let started_at_ms = time::now_ms();

        let before = self.before(workspace, purpose)?;
        let mut pack = self.objects.pack()?;
        let known = self.git_state(workspace, options, before.compared.as_ref(), &mut pack, cancel)?;
        let pack = Mutex::new(pack);
        let previous = self.last_scan(workspace, &rules)?;
        let threads = threads(options.threads);
        let mut scan = walk::Walk {
            root: workspace.root.as_fd(),
            rules: &rules,
            previous: previous.as_deref(),
            dirty: options.dirty.as_deref().filter(|_| {
                // What is ignored, and by which rules, is then as it was.
                before.compared.as_ref().is_some_and(|compared| {
                    compared.head == known.head.commit && compared.rules == options.rules
                })
            }),
            head_tree: known.tree.as_ref(),
            objects: &self.objects,
            threads,
            progress: options.progress.as_ref(),
            cancel,
        }
        .run()?;
        failpoint::pass("capture.scanned");
        let read = store::Store {
            root: workspace.root.as_fd(),
            rules: &rules,
            objects: &self.objects,
            pack: Some(&pack),
            previous: previous.as_deref(),
            base_tree: before.compared.as_ref().map(|snapshot| snapshot.tree),
            threads,
            progress: options.progress.as_ref(),
            cancel,
        }
        .run(&mut scan)?;

        let mut pack = pack.into_inner().unwrap_or_else(PoisonError::into_inner);
        let repository = self.objects.open()?;
        let odb = repository.odb().map_err(|failure| crate::error::git("open the vault", failure))?;
        let has = |id: ObjectId| odb.exists_ext(id.into(), git2::OdbLookupFlags::NO_REFRESH);
        let tree = tree::write_trees(&mut scan, Some(&mut pack), has)?;
        let mut side = side::of(&scan, workspace, options)?;
        side.warnings.extend(known.warning);
        if let Some(head) = &known.tree {
            for nested in &mut side.nested {
                nested.submodule = head.has_submodule(&repository, nested.path.as_bytes());
            }
        }
        if let Some(compared) = &before.compared
            && compared.tree == tree
            && known.head.commit.is_none_or(|commit| compared.head == Some(commit))
            && side::read(&repository, compared).is_ok_and(|known| known.empty_dirs == side.empty_dirs)
        {
            self.keep_scan(workspace, scan, read, &compared.id);
            return Ok(None);
        }

        let (files, bytes) = scan.totals();
        let id = match &purpose.id {
            Some(id) => id.clone(),
            None => self.next_id(started_at_ms)?,
        };
        let tip = before.tip.as_ref();
        let mut snapshot = Snapshot {
            id,
            repo: self.key.to_string(),
            path_key: vault::RepoKey::of_path(&workspace.path)?.to_string(),
            root: known.root,
            workspace: workspace.path.clone(),
            commit: ObjectId::ZERO,
            tree,
            branch: known.head.branch,
            head: known.head.commit,
            head_at_start: tip.map_or(known.head.commit, |tip| tip.head_at_start),
            has_history: known.tree.is_some(),
            started_at_ms: tip.map_or(started_at_ms, |tip| tip.started_at_ms),
            captured_at_ms: tip.map_or(started_at_ms, |tip| started_at_ms.max(tip.captured_at_ms)),
            ended_at_ms: purpose.outcome.map(|_| started_at_ms),
            outcome: purpose.outcome,
            exit_code: None,
            captures: tip.map_or(0, |tip| tip.captures) + 1,
            label: options.label.clone().or_else(|| tip?.label.clone()),
            source: purpose.source,
            agent: options.agent.clone().or_else(|| tip?.agent.clone()),
            retention: options.retention.clone().or_else(|| tip?.retention.clone()),
            sandbox: options.sandbox.clone().or_else(|| tip?.sandbox.clone()),
            side: None,
            rules: options.rules.clone(),
            files,
            bytes,
            skipped: side.skipped.len() as u64,
            receipt: options.survive.as_ref().map(|survive| {
                let head = known.head.commit.filter(|_| known.tree.is_some());
                promise::receipt(&scan, &side, survive, head)
            }),
            remote: None,
            other: tip.map(|tip| tip.other.clone()).unwrap_or_default(),
        };
        commit::write(&mut pack, &mut snapshot, &side, tip.map(|tip| tip.commit))?;
        cancel.check()?;
        self.publish(pack, &snapshot, tip.map(|tip| tip.commit), cancel)?;
        failpoint::pass("ref.moved");
        // It is safe from here on, also without a manifest, which is made again from the commit.
        if let Err(failure) = self.write_record(&mut snapshot, cancel) {
            tracing::warn!(id = %snapshot.id, %failure, "the manifest of a snapshot could not be written");
        }
        self.keep_scan(workspace, scan, read, &snapshot.id);
        Ok(Some(snapshot))
    }

    /// Looks at a workspace as a capture by these rules would, and stores nothing.
    pub(crate) fn look(
        &self,
        workspace: &Workspace,
        rules: &CaptureRules,
        wanted_threads: Option<usize>,
        progress: Option<&ProgressFn>,
        cancel: &Cancel,
    ) -> Result<Scan> {
        let rules = Rules::new(rules)?;
        let previous = self.last_scan(workspace, &rules)?;
        let threads = threads(wanted_threads);
        let (root, objects) = (workspace.root.as_fd(), &self.objects);
        let previous = previous.as_deref();
        let mut scan = walk::Walk {
            root,
            rules: &rules,
            previous,
            dirty: None,
            head_tree: None,
            objects,
            threads,
            progress,
            cancel,
        }
        .run()?;
        store::Store {
            root,
            rules: &rules,
            objects,
            pack: None,
            previous,
            base_tree: None,
            threads,
            progress,
            cancel,
        }
        .run(&mut scan)?;
        tree::write_trees(&mut scan, None, |_| true)?;
        Ok(scan)
    }

    /// Makes the pack durable and known, and then the ref that relies on it.
    fn publish(
        &self,
        pack: PackWriter,
        snapshot: &Snapshot,
        tip: Option<ObjectId>,
        cancel: &Cancel,
    ) -> Result<()> {
        let name = snapshot.id.ref_name();
        let staged = self.refs.stage(self.objects.staged("ref")?, snapshot.commit)?;
        pack.publish_with(&self.objects.packs(), staged.as_ref().map(|staged| &staged.file))?;
        match &staged {
            Some(staged) => self.refs.swap_staged(&name, tip, staged, cancel),
            None => self.refs.swap(&name, tip, Some(snapshot.commit), cancel),
        }
    }

    fn before(&self, workspace: &Workspace, purpose: &Purpose) -> Result<Before> {
        let tip = match &purpose.id {
            Some(id) => match self.refs.read(&id.ref_name())? {
                Some(commit) => Some(self.records.of_ref(&self.objects.open()?, id, commit)?),
                None => None,
            },
            None => None,
        };
        let compared = match &tip {
            Some(tip) => Some(tip.clone()),
            None => self.last_snapshot(workspace)?,
        };
        Ok(Before { tip, compared })
    }

    /// Writes the manifest of a state, with what was said of the session meanwhile.
    pub(crate) fn write_record(&self, snapshot: &mut Snapshot, cancel: &Cancel) -> Result<()> {
        let _alone = Lock::take(&self.lock_path("records"), Sharing::Exclusive, cancel)?;
        match self.records.read(&snapshot.id)? {
            Some(kept) => {
                snapshot.label = kept.label.or_else(|| snapshot.label.take());
                snapshot.retention = kept.retention.or_else(|| snapshot.retention.take());
                snapshot.other = kept.other;
                self.records.write(&self.objects, snapshot)
            }
            // It says no more than the commit does, of which it is made again.
            None => self.records.write_lazily(&self.objects, snapshot),
        }
    }

    /// The newest snapshot of a workspace whose objects are here.
    pub(crate) fn last_snapshot(&self, workspace: &Workspace) -> Result<Option<Snapshot>> {
        let id = {
            let scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
            scans.get(&workspace.path).and_then(|known| known.last.clone())
        };
        if let Some(id) = id
            && let Some(commit) = self.refs.read(&id.ref_name())?
        {
            return self.records.of_ref(&self.objects.open()?, &id, commit).map(Some);
        }
        let known = self.records.list(&self.objects, &self.refs)?;
        let refs = self.refs.list(vault::SNAPSHOTS)?;
        Ok(known.into_iter().rev().find(|snapshot| {
            snapshot.workspace == workspace.path
                && refs.get(&snapshot.id.ref_name()) == Some(&snapshot.commit)
        }))
    }

    /// Reads what the workspace is at, and copies its history.
    ///
    /// Whatever its repository is like costs the history, and not the snapshot.
    fn git_state(
        &self,
        workspace: &Workspace,
        options: &CaptureOptions,
        compared: Option<&Snapshot>,
        pack: &mut PackWriter,
        cancel: &Cancel,
    ) -> Result<GitState> {
        let root = workspace.root.as_fd();
        let warned = |why: String| GitState {
            warning: Some(format!("the commits of .git are not in the snapshot: {why}")),
            ..GitState::default()
        };
        let git = match GitDir::find(root, &workspace.path, &[]) {
            Ok(Some(git)) => git,
            Ok(None) => return Ok(GitState::default()),
            Err(why) => return Ok(warned(why)),
        };
        let head = match git.head() {
            Ok(head) => head,
            Err(why) => return Ok(warned(why)),
        };
        let Some(commit) = head.commit else { return Ok(GitState { head, ..GitState::default() }) };
        let before = compared.and_then(|compared| Some((compared.head?, compared.root?)));
        let root = git::smallest_root(&git, commit, &before.into_iter().collect(), cancel)?;
        if !options.history {
            return Ok(GitState { head, root, ..GitState::default() });
        }
        Ok(match git::copy(self, &git, commit, pack, cancel)? {
            History::Complete { tree } => GitState { head, tree: Some(tree), root, warning: None },
            History::Incomplete(why) => GitState { head, root, ..warned(why) },
        })
    }

    /// The look before, of this process or of another one, as far as it still holds.
    fn last_scan(&self, workspace: &Workspace, rules: &Rules) -> Result<Option<Arc<Scan>>> {
        let generation = self.generation();
        let mut scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = scans.get(&workspace.path).is_some_and(|known| known.generation == generation);
        if !is_known {
            let Some((known, mut scan)) = cache::read(&self.cache_path(workspace)) else { return Ok(None) };
            if known != generation && !self.in_repo {
                self.forget_lost(&mut scan)?;
            }
            let scan = Remembered { generation, scan: Arc::new(scan), unwritten: 0, last: None };
            scans.insert(workspace.path.clone(), scan);
        }
        if let Some(known) = scans.get_mut(&workspace.path).filter(|_| self.in_repo) {
            // Git deletes there what it likes to, and says so to nobody.
            self.forget_lost(Arc::make_mut(&mut known.scan))?;
        }
        let known = scans.get(&workspace.path).map(|known| Arc::clone(&known.scan));
        Ok(known.filter(|scan| scan.checked_keys || !rules.private_keys))
    }

    /// Forgets contents and trees that are not there any more.
    fn forget_lost(&self, scan: &mut Scan) -> Result<()> {
        let repository = self.objects.open()?;
        let odb = repository.odb().map_err(|failure| crate::error::git("open the vault", failure))?;
        scan.forget_where(|id| !odb.exists_ext(id.into(), git2::OdbLookupFlags::NO_REFRESH));
        Ok(())
    }

    fn cache_path(&self, workspace: &Workspace) -> PathBuf {
        self.root().join("cache").join(format!("{}.scan", workspace.key()))
    }

    /// Remembers a scan whose objects are in the vault, so that a later capture may rely on it.
    ///
    /// It is written where the next process would have to `read` more for want of it than the writing costs.
    fn keep_scan(&self, workspace: &Workspace, scan: Scan, read: u64, last: &SnapId) {
        const WORTH_WRITING: u64 = 4096;
        let generation = self.generation();
        let scan = Arc::new(scan);
        let before = {
            let mut scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
            scans.remove(&workspace.path).map_or(WORTH_WRITING, |known| known.unwritten)
        };
        let mut unwritten = before.saturating_add(read);
        if unwritten >= WORTH_WRITING {
            let written = self
                .objects
                .staged("scan")
                .and_then(|staged| cache::write(&staged, &self.cache_path(workspace), &generation, &scan));
            match written {
                Ok(()) => unwritten = 0,
                Err(failure) => {
                    tracing::warn!(%failure, "the next process will have to read the workspace again");
                }
            }
        }
        failpoint::pass("cache.written");
        let mut scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        let last = Some(last.clone());
        scans.insert(workspace.path.clone(), Remembered { generation, scan, unwritten, last });
    }

    /// An id behind all that there are, also where the clock was set back.
    pub(crate) fn next_id(&self, now_ms: u64) -> Result<SnapId> {
        let id = SnapId::at(now_ms)?;
        match self.refs.last(vault::SNAPSHOTS)? {
            Some(name) => match name[vault::SNAPSHOTS.len()..].parse::<SnapId>() {
                Ok(last) if last >= id => last.next(),
                _ => Ok(id),
            },
            None => Ok(id),
        }
    }
}
