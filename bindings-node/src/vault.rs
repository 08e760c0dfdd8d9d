//! Snapshots of workspaces: capturing, restoring, keeping them sound.

use std::sync::Arc;

use napi::bindgen_prelude::{Null, Object, PromiseRaw, Unknown};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Status};
use napi_derive::napi;
use sandhold_core::Result;
use sandhold_persist::{
    CaptureOptions, GcOptions, Label, OnDirty, OnUnfit, Phase, Progress, ProgressFn, RemoteWorkspace,
    RepoKey, RepositoryRepairOptions, RestoreOptions, Retention, RunOutcome, Session, SnapId, Snapshot,
    Survive, Vault, VaultConfig, VerifyDepth, VerifyOptions, WorkPath,
};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::convert::{Options, checked, extract, one_of};
use crate::errors::type_error;
use crate::plain::{self, Plain};
use crate::runtime::{NativeCall, call};
use crate::sandbox::NativeSandbox;
use crate::values::{self, Maybe};

/// How far an operation is.
#[napi(object, object_from_js = false, use_nullable = true)]
pub struct ProgressTold {
    pub phase: &'static str,
    pub files: i64,
    pub total: Option<i64>,
    pub bytes: i64,
}

type Watcher = ThreadsafeFunction<ProgressTold, Unknown<'static>, ProgressTold, Status, false, true>;

fn progress(given: &mut Options<'_>) -> napi::Result<Option<ProgressFn>> {
    let Some(watcher) = given.function::<Watcher>("progress")? else { return Ok(None) };
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    Ok(Some(ProgressFn::new(move |now: Progress| {
        let phase = match now.phase {
            Phase::Storing => "storing",
            Phase::Restoring => "restoring",
            _ => "scanning",
        };
        let told = ProgressTold {
            phase,
            files: number(now.files),
            total: now.total.map(number),
            bytes: number(now.bytes),
        };
        // An environment that ends hears nothing any more.
        watcher.call(told, ThreadsafeFunctionCallMode::NonBlocking);
    })))
}

/// Reads how a workspace is captured.
pub(crate) fn capture(given: &mut Options<'_>) -> napi::Result<CaptureOptions> {
    let env = given.env;
    let mut options = CaptureOptions::new();
    if let Some(label) = given.take::<String>("label")? {
        options.label = Some(checked(env, "label", Label::new(label))?);
    }
    options.agent = given.take("agent")?;
    options.retention = given.take("retention")?;
    let mut survive = Survive::new();
    survive.paths = paths(given.take("survivePaths")?);
    survive.globs = given.take("surviveGlobs")?.unwrap_or_default();
    survive.git = given.take("surviveGit")?.unwrap_or(false);
    options.survive = Some(survive).filter(|survive| *survive != Survive::new());
    if let Some(limit) = given.count::<u64>("maxFile")? {
        options.rules.max_file = Some(limit).filter(|limit| *limit > 0);
    }
    options.rules.keep_last = given.take("keepLast")?.unwrap_or(options.rules.keep_last);
    options.rules.never = given.take("never")?.unwrap_or(options.rules.never);
    options.rules.skip_env_files = given.take("skipEnvFiles")?.unwrap_or(options.rules.skip_env_files);
    options.rules.skip_private_keys =
        given.take("skipPrivateKeys")?.unwrap_or(options.rules.skip_private_keys);
    options.mtimes = given.take("mtimes")?.unwrap_or(options.mtimes);
    options.xattrs = given.take("xattrs")?.unwrap_or(options.xattrs);
    options.history = given.take("history")?.unwrap_or(options.history);
    options.dirty = given.take::<Vec<String>>("dirty")?.map(|dirty| paths(Some(dirty)));
    options.budget = given.millis("budget")?;
    options.threads = given.count("threads")?;
    options.force = given.take("force")?.unwrap_or(false);
    options.progress = progress(given)?;
    Ok(options)
}

fn paths(given: Option<Vec<String>>) -> Vec<WorkPath> {
    given.unwrap_or_default().into_iter().map(|path| WorkPath::from(path.as_str())).collect()
}

/// Reads how a snapshot is written back.
pub(crate) fn restore(given: &mut Options<'_>, mut options: RestoreOptions) -> napi::Result<RestoreOptions> {
    let words = [("refuse", OnDirty::Refuse), ("capture", OnDirty::Capture)];
    if let Some(on_dirty) = given.word("onDirty", &words)? {
        options.on_dirty = on_dirty;
    }
    let words = [("refuse", OnUnfit::Refuse), ("rename", OnUnfit::Rename)];
    if let Some(on_unfit) = given.word("onUnfit", &words)? {
        options.on_unfit = on_unfit;
    }
    options.sync = given.take("sync")?.unwrap_or(false);
    options.budget = given.millis("budget")?;
    options.threads = given.count("threads")?;
    options.force = given.take("force")?.unwrap_or(false);
    options.progress = progress(given)?;
    Ok(options)
}

fn captured(env: &Env, call: &'static str, given: Option<Object<'_>>) -> napi::Result<CaptureOptions> {
    let mut given = Options::new(env, call, given);
    let options = capture(&mut given)?;
    given.finish()?;
    Ok(options)
}

pub(crate) fn restored(
    env: &Env,
    call: &'static str,
    given: Option<Object<'_>>,
) -> napi::Result<RestoreOptions> {
    let mut given = Options::new(env, call, given);
    let options = restore(&mut given, RestoreOptions::new())?;
    given.finish()?;
    Ok(options)
}

/// Says a snapshot, with what follows from its facts.
pub(crate) fn told(snapshot: &Snapshot) -> Value {
    let mut told = plain::facts(snapshot);
    if let Value::Object(fields) = &mut told {
        fields.insert("status".to_owned(), plain::facts(snapshot.status()));
        fields.entry("sandbox").or_insert(Value::Null);
        fields.insert("isMirrored".to_owned(), snapshot.is_mirrored().into());
    }
    told
}

/// Says facts that have a snapshot among them.
pub(crate) fn told_with(facts: impl Serialize, snapshot: &Snapshot) -> Value {
    let mut facts = plain::facts(facts);
    if let Value::Object(fields) = &mut facts {
        fields.insert("snapshot".to_owned(), told(snapshot));
    }
    facts
}

/// Reads the id of a snapshot.
pub(crate) fn snap_id(env: &Env, call: &str, id: Unknown<'_>) -> napi::Result<SnapId> {
    checked(env, "id", extract::<String>(env, call, "id", id)?.parse())
}

struct Unopened {
    config: VaultConfig,
    open: OnceCell<Vault>,
}

/// A store of snapshots. It is opened by the first call.
#[napi]
#[derive(Clone)]
pub struct NativeVault(Arc<Unopened>);

impl NativeVault {
    pub(crate) async fn open(&self) -> Result<Vault> {
        self.0.open.get_or_try_init(|| Vault::open(self.0.config.clone())).await.cloned()
    }
}

#[napi]
impl NativeVault {
    #[napi(constructor)]
    pub fn new(env: &Env, home: Unknown<'_>, key: Unknown<'_>, in_repo: bool) -> napi::Result<Self> {
        let name = if in_repo { "workspace" } else { "home" };
        let home = extract::<String>(env, "Vault", name, home)?;
        let key = checked(env, "key", RepoKey::new(extract::<String>(env, "Vault", "key", key)?))?;
        let config = if in_repo { VaultConfig::in_repo(home, key) } else { VaultConfig::new(home, key) };
        Ok(Self(Arc::new(Unopened { config, open: OnceCell::new() })))
    }

    /// The key.
    #[napi(getter)]
    pub fn key(&self) -> String {
        self.0.config.key.to_string()
    }

    /// The git repository that it is.
    #[napi]
    pub fn git_dir<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, String>> {
        let vault = self.clone();
        call(env, around, async move { Ok(vault.open().await?.git_dir().to_string_lossy().into_owned()) })
    }

    /// Captures a directory of this machine.
    #[napi]
    pub fn capture<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        workspace: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let vault = self.clone();
        let workspace = extract::<String>(env, "capture", "workspace", workspace)?;
        let options = captured(env, "capture", options)?;
        call(env, around, async move { Ok(told(&vault.open().await?.capture(workspace, options).await?)) })
    }

    /// Captures a directory inside a sandbox; `null` where nothing has changed.
    #[napi]
    pub fn capture_sandbox<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        sandbox: &NativeSandbox,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, sandbox) = (self.clone(), sandbox.sandbox());
        let workspace = remote(env, "captureSandbox", &sandbox, path)?;
        let options = captured(env, "captureSandbox", options)?;
        call(env, around, async move {
            Ok(vault.open().await?.capture_sandbox(&sandbox, &workspace, options).await?.as_ref().map(told))
        })
    }

    /// Writes a snapshot back to a directory of this machine.
    #[napi]
    pub fn restore<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        target: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, id) = (self.clone(), snap_id(env, "restore", id)?);
        let target = extract::<String>(env, "restore", "target", target)?;
        let options = restored(env, "restore", options)?;
        call(env, around, async move { vault.open().await?.restore(&id, target, options).await })
    }

    /// Writes a snapshot back to a directory inside a sandbox.
    #[napi]
    pub fn restore_sandbox<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        sandbox: &NativeSandbox,
        path: Unknown<'_>,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, sandbox) = (self.clone(), sandbox.sandbox());
        let workspace = remote(env, "restoreSandbox", &sandbox, path)?;
        let id = snap_id(env, "restoreSandbox", id)?;
        let options = restored(env, "restoreSandbox", options)?;
        call(env, around, async move {
            vault.open().await?.restore_sandbox(&sandbox, &workspace, &id, options).await
        })
    }

    /// The newest snapshot of a directory inside a sandbox, by the sandbox's key.
    #[napi]
    pub fn newest_of_sandbox<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        key: Unknown<'_>,
        path: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let vault = self.clone();
        let key = extract::<String>(env, "newestOfSandbox", "key", key)?;
        let path = extract::<String>(env, "newestOfSandbox", "path", path)?;
        let workspace = checked(env, "path", RemoteWorkspace::new(key, path))?;
        call(env, around, async move {
            Ok(vault.open().await?.newest_of_sandbox(&workspace).await?.as_ref().map(told))
        })
    }

    /// Restores of which the end is not recorded.
    #[napi]
    pub fn unfinished_restores<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Vec<Plain>>> {
        let vault = self.clone();
        call(env, around, async move { Ok(values::all(vault.open().await?.unfinished_restores().await?)) })
    }

    /// Writes what a snapshot differs in from its commit as a patch; returns its size.
    #[napi]
    pub fn restore_patch<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        file: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, f64>> {
        let (vault, id) = (self.clone(), snap_id(env, "restorePatch", id)?);
        let file = extract::<String>(env, "restorePatch", "file", file)?;
        call(env, around, async move { Ok(vault.open().await?.restore_patch(&id, file).await? as f64) })
    }

    /// Adds a branch with the snapshot to the repository of a workspace.
    #[napi]
    pub fn restore_branch<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        workspace: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, id) = (self.clone(), snap_id(env, "restoreBranch", id)?);
        let workspace = extract::<String>(env, "restoreBranch", "workspace", workspace)?;
        let mut given = Options::new(env, "restoreBranch", options);
        let name = given.take::<String>("name")?;
        given.finish()?;
        call(
            env,
            around,
            async move { vault.open().await?.restore_branch(&id, workspace, name.as_deref()).await },
        )
    }

    /// All snapshots, the newest first.
    #[napi]
    pub fn snapshots<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Vec<Plain>>> {
        let vault = self.clone();
        call(env, around, async move {
            Ok(vault
                .open()
                .await?
                .snapshots()
                .await?
                .iter()
                .map(|found| told(found).into())
                .collect::<Vec<Plain>>())
        })
    }

    /// The snapshot of an id, or of the beginning of one.
    #[napi]
    pub fn snapshot<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, id) = (self.clone(), extract::<String>(env, "snapshot", "id", id)?);
        call(env, around, async move { Ok(told(&vault.open().await?.snapshot(&id).await?)) })
    }

    /// What git cannot hold of a snapshot, and what was not captured.
    #[napi]
    pub fn side_manifest<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, id) = (self.clone(), snap_id(env, "sideManifest", id)?);
        call(env, around, async move {
            let vault = vault.open().await?;
            vault.side_manifest(&vault.snapshot(id.as_str()).await?).await
        })
    }

    /// Looks whether a snapshot could be restored.
    #[napi]
    pub fn verify<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, id) = (self.clone(), snap_id(env, "verify", id)?);
        let options = verify(env, "verify", options)?;
        call(env, around, async move { vault.open().await?.verify(&id, options).await })
    }

    /// Looks whether each snapshot could be restored.
    #[napi]
    pub fn verify_all<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Vec<Plain>>> {
        let vault = self.clone();
        let options = verify(env, "verifyAll", options)?;
        call(env, around, async move { Ok(values::all(vault.open().await?.verify_all(options).await?)) })
    }

    /// Deletes what no snapshot needs.
    #[napi]
    pub fn gc<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let vault = self.clone();
        let mut given = Options::new(env, "gc", options);
        let mut options = GcOptions::new();
        if let Some(age) = given.millis("minAge")? {
            options.min_age = age;
        }
        if let Some(packs) = given.count("maxPacks")? {
            options.max_packs = packs;
        }
        options.budget = given.millis("budget")?;
        given.finish()?;
        call(env, around, async move { vault.open().await?.gc(options).await })
    }

    /// Mends what can be mended.
    #[napi]
    pub fn repair<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let vault = self.clone();
        let mut given = Options::new(env, "repair", options);
        let budget = given.millis("budget")?;
        given.finish()?;
        call(env, around, async move { vault.open().await?.repair(budget).await })
    }

    /// Puts right what keeps git from working in a workspace.
    #[napi]
    pub fn repair_repository<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        workspace: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let vault = self.clone();
        let workspace = extract::<String>(env, "repairRepository", "workspace", workspace)?;
        let mut given = Options::new(env, "repairRepository", options);
        let mut options = RepositoryRepairOptions::new();
        options.main = given.take::<String>("main")?.map(Into::into);
        options.head = given.take("head")?;
        if let Some(age) = given.millis("lockAge")? {
            options.lock_age = age;
        }
        given.finish()?;
        call(env, around, async move { vault.open().await?.repair_repository(workspace, options).await })
    }

    /// Deletes snapshots that are older, or more, than is wanted.
    #[napi]
    pub fn prune<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, retention) = (self.clone(), retention(env, options)?);
        call(env, around, async move { vault.open().await?.prune(retention).await })
    }

    /// Says how long a snapshot is kept; `null` takes the rule away.
    #[napi]
    pub fn set_retention<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        retention: Option<String>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, id) = (self.clone(), snap_id(env, "setRetention", id)?);
        call(env, around, async move {
            Ok(told(&vault.open().await?.set_retention(&id, retention.as_deref()).await?))
        })
    }

    /// Begins a session over a directory of this machine.
    #[napi]
    pub fn begin<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        workspace: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeSession>> {
        let vault = self.clone();
        let workspace = extract::<String>(env, "begin", "workspace", workspace)?;
        let options = captured(env, "begin", options)?;
        call(env, around, async move { Ok(vault.open().await?.begin(workspace, options)) })
    }

    /// Goes on with the session of a snapshot.
    #[napi]
    pub fn resume<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeSession>> {
        let (vault, id) = (self.clone(), snap_id(env, "resume", id)?);
        let options = captured(env, "resume", options)?;
        call(env, around, async move { vault.open().await?.resume(&id, options).await })
    }

    /// Captures the state before a run; `null` where it is known already.
    #[napi]
    pub fn capture_baseline<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        workspace: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let vault = self.clone();
        let workspace = extract::<String>(env, "captureBaseline", "workspace", workspace)?;
        let options = captured(env, "captureBaseline", options)?;
        call(env, around, async move {
            Ok(vault.open().await?.capture_baseline(workspace, options).await?.as_ref().map(told))
        })
    }
}

fn remote(
    env: &Env,
    call: &str,
    sandbox: &sandhold_core::Sandbox,
    path: Unknown<'_>,
) -> napi::Result<RemoteWorkspace> {
    let path = extract::<String>(env, call, "path", path)?;
    checked(env, "path", RemoteWorkspace::new(sandbox.key().to_string(), path))
}

fn verify(env: &Env, call: &'static str, given: Option<Object<'_>>) -> napi::Result<VerifyOptions> {
    let mut given = Options::new(env, call, given);
    let mut options = VerifyOptions::new();
    let words = [
        ("reachable", VerifyDepth::Reachable),
        ("sums", VerifyDepth::Sums),
        ("content", VerifyDepth::Content),
    ];
    if let Some(depth) = given.word("depth", &words)? {
        options.depth = depth;
    }
    options.budget = given.millis("budget")?;
    given.finish()?;
    Ok(options)
}

fn retention(env: &Env, given: Option<Object<'_>>) -> napi::Result<Retention> {
    let mut given = Options::new(env, "prune", given);
    let mut retention = Retention::new();
    for (name, field) in [("runs", &mut retention.runs), ("manual", &mut retention.manual)] {
        if let Some(age) = given.millis(name)? {
            *field = Some(age);
        }
    }
    retention.max_count = given.count("maxCount")?.or(retention.max_count);
    retention.max_bytes = given.count("maxBytes")?.or(retention.max_bytes);
    retention.require_mirror = given.take("requireMirror")?.unwrap_or(retention.require_mirror);
    retention.superseded = given.take("superseded")?.unwrap_or(retention.superseded);
    retention.dry = given.take("dry")?.unwrap_or(retention.dry);
    given.finish()?;
    Ok(retention)
}

/// One snapshot that moves along with a run.
#[napi]
pub struct NativeSession(Arc<Session>);

impl From<Session> for NativeSession {
    fn from(session: Session) -> Self {
        Self(Arc::new(session))
    }
}

#[napi]
impl NativeSession {
    /// The id of its snapshot, once something was captured.
    #[napi(getter)]
    pub fn id(&self) -> Maybe<String> {
        self.0.id().map_or(Maybe::B(Null), |id| Maybe::A(id.to_string()))
    }

    /// Captures now; `null` where nothing has changed.
    #[napi]
    pub fn capture<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let session = Arc::clone(&self.0);
        call(env, around, async move { Ok(session.capture().await?.as_ref().map(told)) })
    }

    /// Captures for the last time and says how the run ended.
    #[napi]
    pub fn end<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        outcome: Unknown<'_>,
        exit_code: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let session = Arc::clone(&self.0);
        let words = [
            ("clean", RunOutcome::Clean),
            ("signalled", RunOutcome::Signalled),
            ("failed", RunOutcome::Failed),
        ];
        let outcome = one_of(env, "outcome", &extract::<String>(env, "end", "outcome", outcome)?, &words)?;
        let exit_code = match exit_code.get_type()? {
            napi::ValueType::Null | napi::ValueType::Undefined => None,
            _ => {
                let code = extract::<f64>(env, "end", "exitCode", exit_code)?;
                let whole =
                    code.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&code);
                if !whole {
                    return Err(type_error(env, "end() argument 'exitCode': give a whole number"));
                }
                Some(code as i32)
            }
        };
        call(env, around, async move { Ok(session.end(outcome, exit_code).await?.as_ref().map(told)) })
    }
}
