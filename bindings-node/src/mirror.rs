//! Copies of snapshots: bundles in files, and mirrors in buckets and directories.

use std::str::FromStr as _;

use napi::Env;
use napi::bindgen_prelude::{Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core::{Error, Result};
use sandhold_persist::{
    AdoptOptions, BundleLimits, BundleOptions, ImportOptions, Label, Mirror, ObjectId, RepoKey, SnapId,
    Snapshot, Vault, VerifyLevel,
};

use crate::convert::{Options, checked, extract};
use crate::errors::{NativeFailure, thrown};
use crate::plain::{self, Plain};
use crate::runtime::{NativeCall, call};
use crate::values;
use crate::vault::{NativeVault, restored, snap_id, told, told_with};

/// Copies of snapshots, elsewhere.
#[napi]
#[derive(Clone)]
pub struct NativeMirror(pub(crate) Mirror);

/// What became of an upload that was left in the queue.
#[napi]
pub struct NativeUploaded(SnapId, Result<Snapshot>);

impl From<(SnapId, Result<Snapshot>)> for NativeUploaded {
    fn from((id, answer): (SnapId, Result<Snapshot>)) -> Self {
        Self(id, answer)
    }
}

#[napi]
impl NativeUploaded {
    /// The snapshot.
    #[napi(getter)]
    pub fn id(&self) -> String {
        self.0.to_string()
    }

    /// Its record, where it is in the mirror now.
    #[napi(getter)]
    pub fn snapshot(&self) -> Option<Plain> {
        self.1.as_ref().ok().map(|snapshot| told(snapshot).into())
    }

    /// Why it is not.
    #[napi(getter)]
    pub fn error(&self) -> Option<NativeFailure> {
        self.1.as_ref().err().cloned().map(NativeFailure)
    }
}

fn repo(env: &Env, call: &str, repo: Unknown<'_>) -> napi::Result<RepoKey> {
    checked(env, "repo", RepoKey::new(extract::<String>(env, call, "repo", repo)?))
}

#[napi]
impl NativeMirror {
    #[napi(constructor)]
    pub fn new(env: &Env, config: Unknown<'_>) -> napi::Result<Self> {
        let config = plain::read_snake(env, "config", config)?;
        Mirror::open(config).map(Self).map_err(|error| thrown(env, error))
    }

    /// Whether it can be reached and written to.
    #[napi]
    pub fn check<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let mirror = self.0.clone();
        call(env, around, async move { mirror.check().await })
    }

    /// The vaults that have copies in it.
    #[napi]
    pub fn repos<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Vec<Plain>>> {
        let mirror = self.0.clone();
        call(env, around, async move { Ok(values::all(mirror.repos().await?)) })
    }

    /// The snapshots of a vault that it has.
    #[napi]
    pub fn snapshots<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        repo: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (mirror, repo) = (self.0.clone(), self::repo(env, "snapshots", repo)?);
        call(env, around, async move {
            let found = mirror.snapshots(&repo).await?;
            let told: Vec<_> = found.snapshots.iter().map(|copy| told_with(copy, &copy.snapshot)).collect();
            let mut facts = plain::facts(&found);
            facts["snapshots"] = told.into();
            Ok(facts)
        })
    }

    /// Bundles that no snapshot needs any more.
    #[napi]
    pub fn orphans<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        repo: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Vec<Plain>>> {
        let (mirror, repo) = (self.0.clone(), self::repo(env, "orphans", repo)?);
        call(env, around, async move { Ok(values::all(mirror.orphans(&repo).await?)) })
    }

    /// Deletes such a bundle.
    #[napi]
    pub fn delete_orphan<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        orphan: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let (mirror, orphan) = (self.0.clone(), plain::read_snake(env, "orphan", orphan)?);
        call(env, around, async move { mirror.delete_orphan(&orphan).await })
    }

    /// Copies a snapshot there.
    #[napi]
    pub fn upload<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        vault: &NativeVault,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (mirror, vault, id) = (self.0.clone(), vault.clone(), snap_id(env, "upload", id)?);
        let mut given = Options::new(env, "upload", options);
        let budget = given.millis("budget")?;
        given.finish()?;
        call(env, around, async move {
            let vault = vault.open().await?;
            let uploaded = match budget {
                Some(budget) => mirror.upload_within(&vault, &id, budget).await,
                None => mirror.upload(&vault, &id).await,
            };
            Ok(told(&uploaded?))
        })
    }

    /// Uploads what is in the queue of a vault.
    #[napi]
    pub fn resume<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        vault: &NativeVault,
    ) -> napi::Result<PromiseRaw<'env, Vec<NativeUploaded>>> {
        let (mirror, vault) = (self.0.clone(), vault.clone());
        call(env, around, async move { Ok(values::all(mirror.resume(&vault.open().await?).await?)) })
    }

    /// The snapshots that are in the queue of a vault.
    #[napi]
    pub fn queued<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        vault: &NativeVault,
    ) -> napi::Result<PromiseRaw<'env, Vec<String>>> {
        let (mirror, vault) = (self.0.clone(), vault.clone());
        call(env, around, async move { Ok(values::all(mirror.queued(&vault.open().await?).await?)) })
    }

    /// Brings a snapshot into a vault, from its own copies or those of another one.
    #[napi]
    pub fn fetch<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        vault: &NativeVault,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (mirror, vault) = (self.0.clone(), vault.clone());
        let id = extract::<String>(env, "fetch", "id", id)?;
        let mut given = Options::new(env, "fetch", options);
        let from = match given.take::<String>("repo")? {
            Some(repo) => Some(checked(env, "repo", RepoKey::new(repo))?),
            None => None,
        };
        given.finish()?;
        call(env, around, async move {
            let vault = vault.open().await?;
            let fetched = match from {
                Some(repo) => mirror.fetch_from(&vault, &repo, &id).await,
                None => mirror.fetch(&vault, &id).await,
            }?;
            Ok(told_with(&fetched, &fetched.snapshot))
        })
    }

    /// Restores a snapshot, and fetches it first where this machine has it not.
    #[napi]
    pub fn restore<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        vault: &NativeVault,
        id: Unknown<'_>,
        target: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (mirror, vault, id) = (self.0.clone(), vault.clone(), snap_id(env, "restore", id)?);
        let target = extract::<String>(env, "restore", "target", target)?;
        let options = restored(env, "restore", options)?;
        call(env, around, async move { mirror.restore(&vault.open().await?, &id, target, options).await })
    }

    /// Looks at the copy of a snapshot.
    #[napi]
    pub fn verify<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        vault: &NativeVault,
        id: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (mirror, vault, id) = (self.0.clone(), vault.clone(), snap_id(env, "verify", id)?);
        let mut given = Options::new(env, "verify", options);
        let words =
            [("head", VerifyLevel::Head), ("digest", VerifyLevel::Digest), ("full", VerifyLevel::Full)];
        let level = given.word("level", &words)?.unwrap_or_default();
        given.finish()?;
        call(env, around, async move { mirror.verify(&vault.open().await?, &id, level).await })
    }
}

#[napi]
impl NativeVault {
    /// Writes a snapshot into a file that stands alone.
    #[napi]
    pub fn write_bundle<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (vault, id) = (self.clone(), snap_id(env, "writeBundle", id)?);
        let path = extract::<String>(env, "writeBundle", "path", path)?;
        let mut given = Options::new(env, "writeBundle", options);
        let mut options = BundleOptions::new();
        for since in given.take::<Vec<String>>("since")?.unwrap_or_default() {
            options.since.push(checked(env, "since", since.parse())?);
        }
        options.branch = given.take("branch")?;
        options.budget = given.millis("budget")?;
        given.finish()?;
        call(env, around, async move { vault.open().await?.write_bundle(&id, path, options).await })
    }

    /// Takes the snapshot of a bundle of this library.
    #[napi]
    pub fn import_bundle<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let vault = self.clone();
        let path = extract::<String>(env, "importBundle", "path", path)?;
        let mut given = Options::new(env, "importBundle", options);
        let mut options = ImportOptions::new();
        if let Some(id) = given.take::<String>("id")? {
            options.id = Some(checked(env, "id", id.parse())?);
        }
        options.expected = commit(&mut given)?;
        options.incremental = given.take("incremental")?.unwrap_or(false);
        options.any_repository = given.take("anyRepository")?.unwrap_or(false);
        options.limits = limits(&mut given)?;
        options.budget = given.millis("budget")?;
        given.finish()?;
        call(env, around, async move {
            let imported = vault.open().await?.import_bundle(path, options).await?;
            Ok(told_with(&imported, &imported.snapshot))
        })
    }

    /// Takes a commit of any git bundle as a snapshot.
    #[napi]
    pub fn adopt_bundle<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let vault = self.clone();
        let path = extract::<String>(env, "adoptBundle", "path", path)?;
        let mut given = Options::new(env, "adoptBundle", options);
        let mut options = AdoptOptions::new();
        options.reference = given.take("reference")?;
        options.expected = commit(&mut given)?;
        options.incremental = given.take("incremental")?.unwrap_or(false);
        if let Some(label) = given.take::<String>("label")? {
            options.label = Some(checked(env, "label", Label::new(label))?);
        }
        options.retention = given.take("retention")?;
        options.limits = limits(&mut given)?;
        options.budget = given.millis("budget")?;
        given.finish()?;
        call(env, around, async move {
            let adopted = vault.open().await?.adopt_bundle(path, options).await?;
            Ok(told_with(&adopted, &adopted.snapshot))
        })
    }
}

fn commit(given: &mut Options<'_>) -> napi::Result<Option<ObjectId>> {
    let Some(commit) = given.take::<String>("expected")? else { return Ok(None) };
    checked(given.env, "expected", ObjectId::from_str(&commit)).map(Some)
}

fn limits(given: &mut Options<'_>) -> napi::Result<BundleLimits> {
    let mut limits = BundleLimits::default();
    limits.file = given.count("maxFile")?.unwrap_or(limits.file);
    limits.objects = given.count("maxObjects")?.unwrap_or(limits.objects);
    limits.object = given.count("maxObject")?.unwrap_or(limits.object);
    limits.inflated = given.count("maxInflated")?.unwrap_or(limits.inflated);
    Ok(limits)
}

/// Says what a bundle holds and needs, without taking it.
#[napi]
pub fn bundle_header<'env>(
    env: &'env Env,
    around: Option<&NativeCall>,
    path: Unknown<'_>,
) -> napi::Result<PromiseRaw<'env, Plain>> {
    let path = extract::<String>(env, "bundleHeader", "path", path)?;
    call(env, around, async move { Vault::bundle_header(path).await })
}

/// Says by what key the vault of a workspace is best called: the same in every clone.
#[napi]
pub fn repo_key_of<'env>(
    env: &'env Env,
    around: Option<&NativeCall>,
    workspace: Unknown<'_>,
) -> napi::Result<PromiseRaw<'env, String>> {
    let workspace = extract::<String>(env, "keyOf", "workspace", workspace)?;
    call(env, around, async move { Ok::<_, Error>(RepoKey::of_workspace(workspace).await?.to_string()) })
}
