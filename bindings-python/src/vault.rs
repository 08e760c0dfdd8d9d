//! Snapshots of work, kept outside of where it is done.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core as core;
use sandhold_core::Result;
use sandhold_persist as persist;
use sandhold_persist::{
    AdoptOptions, BundleLimits, BundleOptions, CaptureOptions, GcOptions, ImportOptions, Label, ObjectId,
    OnDirty, OnUnfit, Phase, ProgressFn, RemoteWorkspace, RepoKey, RepositoryRepairOptions, RestoreOptions,
    Retention, RunOutcome, SnapId, Survive, VaultConfig, VerifyDepth, VerifyOptions, WorkPath,
};
use tokio::sync::OnceCell;

use crate::convert::{Options, checked, extract, one_of, seconds};
use crate::json::Json;
use crate::options::set;
use crate::runtime;
use crate::sandbox;
use crate::snapshots::{
    Bundle, BundleHeader, Collected, Examined, Imported, Pruned, Repaired, RepositoryRepaired, Restored,
    RestoredBranch, Snapshot, Unfinished, side,
};
use crate::twins::twins;

/// A vault that the first call which needs it opens, once for all who hold it.
pub(crate) struct Store {
    pub(crate) config: VaultConfig,
    open: OnceCell<persist::Vault>,
}

impl Store {
    pub(crate) fn new(config: VaultConfig) -> Arc<Self> {
        Arc::new(Self { config, open: OnceCell::new() })
    }

    /// Reads a vault of either face.
    pub(crate) fn read(call: &'static str, given: &Bound<'_, PyAny>) -> PyResult<Arc<Self>> {
        if let Ok(vault) = given.cast::<AsyncVault>() {
            return Ok(Arc::clone(&vault.get().0));
        }
        let vault = extract::<Py<Vault>>(call, "vault", given)?;
        Ok(Arc::clone(&vault.get().0))
    }

    pub(crate) async fn open(&self) -> Result<&persist::Vault> {
        self.open.get_or_try_init(|| persist::Vault::open(self.config.clone())).await
    }
}

/// Reads the name of a vault.
pub(crate) fn repo_key(py: Python<'_>, key: String) -> PyResult<RepoKey> {
    checked(py, "key", RepoKey::new(key))
}

/// Reads the id of a snapshot.
pub(crate) fn snap_id(py: Python<'_>, id: &str) -> PyResult<SnapId> {
    checked(py, "id", SnapId::from_str(id))
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name(Arc<Store>);

        #[pymethods]
        impl $name {
            #[new]
            fn new(py: Python<'_>, home: PathBuf, key: String) -> PyResult<Self> {
                Ok(Self(Store::new(VaultConfig::new(home, repo_key(py, key)?))))
            }

            /// Keeps snapshots in the git repository of a workspace, where no clone has them.
            #[staticmethod]
            fn in_repo(py: Python<'_>, workspace: PathBuf, key: String) -> PyResult<Self> {
                Ok(Self(Store::new(VaultConfig::in_repo(workspace, repo_key(py, key)?))))
            }

            /// The name of the vault.
            #[getter]
            fn key(&self) -> &str {
                self.0.config.key.as_str()
            }

            fn __repr__(&self) -> String {
                format!("{}(home={:?}, key={:?})", stringify!($name), self.0.config.home, self.key())
            }
        }

        impl $name {
            fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }
    )+};
}

faces! {
    /// A store of snapshots on this machine, outside of every workspace.
    Vault
    /// A store of snapshots on this machine, outside of every workspace, for event loops.
    AsyncVault
}

const DEPTHS: [(&str, VerifyDepth); 3] =
    [("reachable", VerifyDepth::Reachable), ("sums", VerifyDepth::Sums), ("content", VerifyDepth::Content)];

twins! {
    impl Vault, AsyncVault;

    /// Returns the directory of its objects.
    fn git_dir(py, this) -> PathBuf, PathBuf {
        let _ = py;
        let store = Arc::clone(&this.0);
        async move { Ok(store.open().await?.git_dir()) }
    }

    /// Lists the snapshots, the newest first.
    fn snapshots(py, this) -> Vec<Snapshot>, Vec<Snapshot> {
        let _ = py;
        let store = Arc::clone(&this.0);
        async move { Ok(all(store.open().await?.snapshots().await?)) }
    }

    /// Returns a snapshot by its id, or by a beginning of it that no other has.
    fn snapshot(py, this, id: String) -> Snapshot, Snapshot {
        let _ = py;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.snapshot(&id).await.map(Snapshot::from) }
    }

    /// Takes a snapshot of a directory of this machine.
    #[pyo3(signature = (workspace, **options))]
    fn capture(py, this, workspace: PathBuf, **options) -> Snapshot, Snapshot {
        let options = capture_options(py, "capture", options)?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.capture(workspace, options).await.map(Snapshot::from) }
    }

    /// Takes a snapshot of the state before a run; None where that state is known.
    #[pyo3(signature = (workspace, **options))]
    fn capture_baseline(py, this, workspace: PathBuf, **options) -> Option<Snapshot>, Option<Snapshot> {
        let options = capture_options(py, "capture_baseline", options)?;
        let store = Arc::clone(&this.0);
        async move { Ok(store.open().await?.capture_baseline(workspace, options).await?.map(Into::into)) }
    }

    /// Takes a snapshot of a directory inside a sandbox; None where nothing has changed since its last one.
    #[pyo3(signature = (sandbox, path, *, name = None, **options))]
    fn capture_sandbox(py, this, sandbox: &Bound<'_, PyAny>, path: String, name: Option<String>, **options)
        -> Option<Snapshot>, Option<Snapshot>
    {
        let options = capture_options(py, "capture_sandbox", options)?;
        let sandbox = sandbox::read("capture_sandbox", sandbox)?;
        let workspace = remote(py, &sandbox, name, path)?;
        let store = Arc::clone(&this.0);
        async move {
            Ok(store.open().await?.capture_sandbox(&sandbox, &workspace, options).await?.map(Into::into))
        }
    }

    /// Puts a snapshot back into a directory inside a sandbox.
    #[pyo3(signature = (sandbox, path, id, *, name = None, **options))]
    fn restore_sandbox(
        py, this, sandbox: &Bound<'_, PyAny>, path: String, id: &str, name: Option<String>, **options
    ) -> Restored, Restored {
        let options = restore_options(py, "restore_sandbox", options)?;
        let sandbox = sandbox::read("restore_sandbox", sandbox)?;
        let workspace = remote(py, &sandbox, name, path)?;
        let id = snap_id(py, id)?;
        let store = Arc::clone(&this.0);
        async move {
            let done = store.open().await?.restore_sandbox(&sandbox, &workspace, &id, options).await;
            done.map(Restored::from)
        }
    }

    /// Returns the newest snapshot of a directory inside the sandbox of a key.
    fn newest_of_sandbox(py, this, key: String, path: String) -> Option<Snapshot>, Option<Snapshot> {
        let workspace = checked(py, "path", RemoteWorkspace::new(key, path))?;
        let store = Arc::clone(&this.0);
        async move { Ok(store.open().await?.newest_of_sandbox(&workspace).await?.map(Into::into)) }
    }

    /// Returns what git cannot hold of a snapshot: what was left out and why, empty directories, nested repositories.
    fn side_manifest(py, this, id: &str) -> Json, Json {
        let id = snap_id(py, id)?;
        let store = Arc::clone(&this.0);
        async move {
            let vault = store.open().await?;
            let snapshot = vault.snapshot(id.as_str()).await?;
            Ok(side(&vault.side_manifest(&snapshot).await?))
        }
    }

    /// Makes a directory of this machine what a snapshot says.
    #[pyo3(signature = (id, target, **options))]
    fn restore(py, this, id: &str, target: PathBuf, **options) -> Restored, Restored {
        let options = restore_options(py, "restore", options)?;
        let id = snap_id(py, id)?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.restore(&id, target, options).await.map(Restored::from) }
    }

    /// Puts a snapshot on a branch of a workspace's repository, and touches no file.
    #[pyo3(signature = (id, workspace, *, name = None))]
    fn restore_branch(py, this, id: &str, workspace: PathBuf, name: Option<String>)
        -> RestoredBranch, RestoredBranch
    {
        let id = snap_id(py, id)?;
        let store = Arc::clone(&this.0);
        async move {
            let done = store.open().await?.restore_branch(&id, workspace, name.as_deref()).await;
            done.map(RestoredBranch::from)
        }
    }

    /// Writes a snapshot as a patch against the commit that its workspace was at, and returns its size.
    fn restore_patch(py, this, id: &str, file: PathBuf) -> u64, u64 {
        let id = snap_id(py, id)?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.restore_patch(&id, file).await }
    }

    /// Lists restores that have begun and not ended.
    fn unfinished_restores(py, this) -> Vec<Unfinished>, Vec<Unfinished> {
        let _ = py;
        let store = Arc::clone(&this.0);
        async move { Ok(all(store.open().await?.unfinished_restores().await?)) }
    }

    /// Writes a snapshot to a file that git can read.
    #[pyo3(signature = (id, path, *, since = None, branch = None, budget = None))]
    fn write_bundle(
        py, this, id: &str, path: PathBuf, since: Option<Vec<String>>, branch: Option<String>,
        budget: Option<f64>,
    ) -> Bundle, Bundle {
        let id = snap_id(py, id)?;
        let mut options = BundleOptions::new();
        for id in since.unwrap_or_default() {
            options.since.push(checked(py, "since", SnapId::from_str(&id))?);
        }
        (options.branch, options.budget) = (branch, self::budget(py, budget)?);
        let store = Arc::clone(&this.0);
        async move { store.open().await?.write_bundle(&id, path, options).await.map(Bundle::from) }
    }

    /// Returns what a bundle says of itself.
    fn bundle_header(py, this, path: PathBuf) -> BundleHeader, BundleHeader {
        let _ = (py, this);
        async move { persist::Vault::bundle_header(path).await.map(BundleHeader::from) }
    }

    /// Takes a snapshot out of a bundle that a vault wrote, and checks all of it.
    #[pyo3(signature = (path, **options))]
    fn import_bundle(py, this, path: PathBuf, **options) -> Imported, Imported {
        let mut given = Options::new(py, "import_bundle", options)?;
        let mut options = ImportOptions::new();
        options.id = given.take::<String>("id")?.map(|id| snap_id(py, &id)).transpose()?;
        options.expected = expected(py, &mut given)?;
        set(&mut options.incremental, given.take("incremental")?);
        set(&mut options.any_repository, given.take("any_repository")?);
        limits(&mut options.limits, &mut given)?;
        options.budget = given.seconds("budget")?;
        given.finish()?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.import_bundle(path, options).await.map(Imported::from) }
    }

    /// Takes a snapshot out of a bundle that git wrote.
    #[pyo3(signature = (path, **options))]
    fn adopt_bundle(py, this, path: PathBuf, **options) -> Imported, Imported {
        let mut given = Options::new(py, "adopt_bundle", options)?;
        let mut options = AdoptOptions::new();
        options.reference = given.take("reference")?;
        options.expected = expected(py, &mut given)?;
        set(&mut options.incremental, given.take("incremental")?);
        options.label = label(py, &mut given)?;
        options.retention = given.take("retention")?;
        limits(&mut options.limits, &mut given)?;
        options.budget = given.seconds("budget")?;
        given.finish()?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.adopt_bundle(path, options).await.map(Imported::from) }
    }

    /// Looks at a snapshot as closely as is asked for: `reachable`, `sums` or `content`.
    #[pyo3(signature = (id, *, depth = "content", budget = None))]
    fn verify(py, this, id: &str, depth: &str, budget: Option<f64>) -> Examined, Examined {
        let id = snap_id(py, id)?;
        let options = verify_options(py, depth, budget)?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.verify(&id, options).await.map(Examined::from) }
    }

    /// Looks at every snapshot.
    #[pyo3(signature = (*, depth = "content", budget = None))]
    fn verify_all(py, this, depth: &str, budget: Option<f64>) -> Vec<Examined>, Vec<Examined> {
        let options = verify_options(py, depth, budget)?;
        let store = Arc::clone(&this.0);
        async move { Ok(all(store.open().await?.verify_all(options).await?)) }
    }

    /// Deletes objects that no snapshot needs.
    #[pyo3(signature = (*, min_age = None, max_packs = None, budget = None))]
    fn gc(py, this, min_age: Option<f64>, max_packs: Option<usize>, budget: Option<f64>)
        -> Collected, Collected
    {
        let mut options = GcOptions::new();
        set(&mut options.min_age, min_age.map(|age| seconds(py, "min_age", age)).transpose()?);
        set(&mut options.max_packs, max_packs);
        options.budget = self::budget(py, budget)?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.gc(options).await.map(Collected::from) }
    }

    /// Deletes the snapshots whose time is over, and those above the limits; times in seconds, 0 is for ever.
    #[pyo3(signature = (**options))]
    fn prune(py, this, **options) -> Pruned, Pruned {
        let mut given = Options::new(py, "prune", options)?;
        let mut retention = Retention::new();
        set(&mut retention.runs, given.seconds("runs")?.map(Some));
        set(&mut retention.manual, given.seconds("manual")?.map(Some));
        retention.max_count = given.take("max_count")?;
        retention.max_bytes = given.take("max_bytes")?;
        set(&mut retention.require_mirror, given.take("require_mirror")?);
        set(&mut retention.superseded, given.take("superseded")?);
        set(&mut retention.dry, given.take("dry")?);
        given.finish()?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.prune(retention).await.map(Pruned::from) }
    }

    /// Sets how long one snapshot is kept, such as `168h`; None leaves it to the rule for all.
    fn set_retention(py, this, id: &str, retention: Option<String>) -> Snapshot, Snapshot {
        let id = snap_id(py, id)?;
        let store = Arc::clone(&this.0);
        async move {
            store.open().await?.set_retention(&id, retention.as_deref()).await.map(Snapshot::from)
        }
    }

    /// Makes whole what can be made whole again, and throws nothing away.
    #[pyo3(signature = (*, budget = None))]
    fn repair(py, this, budget: Option<f64>) -> Repaired, Repaired {
        let budget = self::budget(py, budget)?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.repair(budget).await.map(Repaired::from) }
    }

    /// Puts right what keeps git from working in a workspace: old locks, and with `main` the directory of git that a linked
    /// worktree of that repository has lost.
    #[pyo3(signature = (workspace, *, main = None, head = None, lock_age = None))]
    fn repair_repository(
        py, this, workspace: PathBuf, main: Option<PathBuf>, head: Option<String>, lock_age: Option<f64>,
    ) -> RepositoryRepaired, RepositoryRepaired {
        let mut options = RepositoryRepairOptions::new();
        (options.main, options.head) = (main, head);
        set(&mut options.lock_age, lock_age.map(|age| seconds(py, "lock_age", age)).transpose()?);
        let store = Arc::clone(&this.0);
        async move {
            let done = store.open().await?.repair_repository(workspace, options).await;
            done.map(RepositoryRepaired::from)
        }
    }

    /// Begins snapshots that accompany a run. Nothing is captured yet.
    #[pyo3(signature = (workspace, **options))]
    fn begin(py, this, workspace: PathBuf, **options) -> Session, AsyncSession {
        let options = capture_options(py, "begin", options)?;
        let store = Arc::clone(&this.0);
        async move { Ok(store.open().await?.begin(workspace, options)) }
    }

    /// Goes on with a session that another host began, such as one that died.
    #[pyo3(signature = (id, **options))]
    fn resume(py, this, id: &str, **options) -> Session, AsyncSession {
        let id = snap_id(py, id)?;
        let options = capture_options(py, "resume", options)?;
        let store = Arc::clone(&this.0);
        async move { store.open().await?.resume(&id, options).await }
    }
}

macro_rules! sessions {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name(Arc<persist::Session>);

        impl From<persist::Session> for $name {
            fn from(session: persist::Session) -> Self {
                Self(Arc::new(session))
            }
        }

        #[pymethods]
        impl $name {
            /// The snapshot that each capture moves along; None before the first.
            #[getter]
            fn id(&self) -> Option<String> {
                self.0.id().map(|id| id.to_string())
            }

            fn __repr__(&self) -> String {
                format!("{}(id={:?})", stringify!($name), self.id())
            }
        }

        impl $name {
            fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }
    )+};
}

sessions! {
    /// Snapshots that accompany a run: one, which each capture moves along.
    Session
    /// Snapshots that accompany a run, for event loops: one, which each capture moves along.
    AsyncSession
}

const OUTCOMES: [(&str, RunOutcome); 3] =
    [("clean", RunOutcome::Clean), ("signalled", RunOutcome::Signalled), ("failed", RunOutcome::Failed)];

twins! {
    impl Session, AsyncSession;

    /// Captures the state of now; None where nothing has changed.
    fn capture(py, this) -> Option<Snapshot>, Option<Snapshot> {
        let _ = py;
        let session = Arc::clone(&this.0);
        async move { Ok(session.capture().await?.map(Into::into)) }
    }

    /// Captures for the last time and says how it ended: `clean`, `signalled` or `failed`.
    #[pyo3(signature = (outcome, *, exit_code = None))]
    fn end(py, this, outcome: &str, exit_code: Option<i32>) -> Option<Snapshot>, Option<Snapshot> {
        let outcome = one_of(py, "outcome", outcome, &OUTCOMES)?;
        let session = Arc::clone(&this.0);
        async move { Ok(session.end(outcome, exit_code).await?.map(Into::into)) }
    }
}

fn all<T, U: From<T>>(found: Vec<T>) -> Vec<U> {
    found.into_iter().map(U::from).collect()
}

fn remote(
    py: Python<'_>,
    sandbox: &core::Sandbox,
    name: Option<String>,
    path: String,
) -> PyResult<RemoteWorkspace> {
    checked(py, "path", RemoteWorkspace::new(name.unwrap_or_else(|| sandbox.key().to_string()), path))
}

fn budget(py: Python<'_>, given: Option<f64>) -> PyResult<Option<Duration>> {
    given.map(|time| seconds(py, "budget", time)).transpose()
}

fn verify_options(py: Python<'_>, depth: &str, given: Option<f64>) -> PyResult<VerifyOptions> {
    let mut options = VerifyOptions::new().with_depth(one_of(py, "depth", depth, &DEPTHS)?);
    options.budget = budget(py, given)?;
    Ok(options)
}

fn expected(py: Python<'_>, given: &mut Options<'_>) -> PyResult<Option<ObjectId>> {
    let expected = given.take::<String>("expected")?;
    expected.map(|commit| checked(py, "expected", ObjectId::from_str(&commit))).transpose()
}

fn label(py: Python<'_>, given: &mut Options<'_>) -> PyResult<Option<Label>> {
    given.take::<String>("label")?.map(|text| checked(py, "label", Label::new(text))).transpose()
}

fn limits(limits: &mut BundleLimits, given: &mut Options<'_>) -> PyResult<()> {
    set(&mut limits.file, given.take("max_file")?);
    set(&mut limits.objects, given.take("max_objects")?);
    set(&mut limits.object, given.take("max_object")?);
    set(&mut limits.inflated, given.take("max_inflated")?);
    Ok(())
}

/// Reads how a snapshot is taken.
pub(crate) fn capture_options(
    py: Python<'_>,
    call: &'static str,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<CaptureOptions> {
    let mut given = Options::new(py, call, given)?;
    let options = take_capture_options(py, &mut given)?;
    given.finish()?;
    Ok(options)
}

fn take_capture_options(py: Python<'_>, given: &mut Options<'_>) -> PyResult<CaptureOptions> {
    let mut options = CaptureOptions::new();
    options.label = label(py, given)?;
    options.agent = given.take("agent")?;
    options.retention = given.take("retention")?;
    options.survive = survive(given)?;
    if let Some(limit) = given.take::<u64>("max_file")? {
        options.rules.max_file = (limit > 0).then_some(limit);
    }
    set(&mut options.rules.keep_last, given.take("keep_last")?);
    set(&mut options.rules.never, given.take("never")?);
    set(&mut options.rules.skip_env_files, given.take("skip_env_files")?);
    set(&mut options.rules.skip_private_keys, given.take("skip_private_keys")?);
    set(&mut options.mtimes, given.take("mtimes")?);
    set(&mut options.xattrs, given.take("xattrs")?);
    set(&mut options.history, given.take("history")?);
    let dirty = given.take::<Vec<PathBuf>>("dirty")?;
    options.dirty = dirty.map(|paths| paths.iter().map(|path| WorkPath::from(path.as_path())).collect());
    options.budget = given.seconds("budget")?;
    options.threads = given.take("threads")?;
    set(&mut options.force, given.take("force")?);
    options.progress = progress(given)?;
    Ok(options)
}

fn survive(given: &mut Options<'_>) -> PyResult<Option<Survive>> {
    let paths = given.take::<Vec<PathBuf>>("survive_paths")?;
    let globs = given.take::<Vec<String>>("survive_globs")?;
    let git = given.take::<bool>("survive_git")?;
    if paths.is_none() && globs.is_none() && git.is_none() {
        return Ok(None);
    }
    let mut survive = Survive::new();
    survive.paths = paths.unwrap_or_default().iter().map(|path| WorkPath::from(path.as_path())).collect();
    survive.globs = globs.unwrap_or_default();
    survive.git = git.unwrap_or(false);
    Ok(Some(survive))
}

/// Reads how a snapshot is written back.
pub(crate) fn restore_options(
    py: Python<'_>,
    call: &'static str,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<RestoreOptions> {
    let mut given = Options::new(py, call, given)?;
    let mut options = RestoreOptions::new();
    let words = [("refuse", OnDirty::Refuse), ("capture", OnDirty::Capture)];
    set(&mut options.on_dirty, given.word("on_dirty", &words)?);
    let words = [("refuse", OnUnfit::Refuse), ("rename", OnUnfit::Rename)];
    set(&mut options.on_unfit, given.word("on_unfit", &words)?);
    set(&mut options.sync, given.take("sync")?);
    options.budget = given.seconds("budget")?;
    options.threads = given.take("threads")?;
    set(&mut options.force, given.take("force")?);
    options.progress = progress(&mut given)?;
    given.finish()?;
    Ok(options)
}

/// Reads a listener of progress. It is called on threads of the operation; what it raises is told as unraisable.
fn progress(given: &mut Options<'_>) -> PyResult<Option<ProgressFn>> {
    let Some(function) = given.any("progress")? else { return Ok(None) };
    if !function.is_callable() {
        return Err(PyTypeError::new_err(format!(
            "argument 'progress': {} is not callable",
            function.repr()?
        )));
    }
    let function = function.unbind();
    Ok(Some(ProgressFn::new(move |progress| {
        let phase = match progress.phase {
            Phase::Scanning => "scanning",
            Phase::Storing => "storing",
            _ => "restoring",
        };
        runtime::attach(|py| {
            let told = function.call1(py, (phase, progress.files, progress.total, progress.bytes));
            if let Err(raised) = told {
                raised.write_unraisable(py, Some(function.bind(py)));
            }
        });
    })))
}
