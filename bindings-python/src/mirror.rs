//! Copies of snapshots in buckets and directories.

use std::path::PathBuf;
use std::time::SystemTime;

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core::Result;
use sandhold_persist as persist;
use sandhold_persist::{AzureTarget, GcsTarget, MirrorMode, MirrorTarget, RepoKey, S3Target, VerifyLevel};

use crate::convert::{Options, one_of, seconds};
use crate::errors::raised;
use crate::options::set;
use crate::snapshots::{Restored, Snapshot, provenance, texts};
use crate::twins::{Nothing, twins};
use crate::values::values;
use crate::vault::{Store, repo_key, restore_options, snap_id};

values! {
    /// A vault that a mirror has something of.
    MirroredRepo {
        /// Its name.
        key: String,
        /// How many snapshots.
        snapshots: usize,
        /// The newest of them.
        newest: String,
        /// The size of all bundles.
        bytes: u64,
    }

    /// A snapshot that a mirror has.
    MirroredSnapshot {
        /// The snapshot.
        snapshot: Snapshot,
        /// Its bundle is there and has its size.
        is_whole: bool,
    }

    /// The snapshots of a vault that a mirror has.
    MirroredSnapshots {
        /// The newest of them.
        snapshots: Vec<MirroredSnapshot>,
        /// How many there are in all.
        total: usize,
        /// Those whose manifest cannot be read.
        unreadable: Vec<String>,
    }

    /// A snapshot that came from a mirror.
    Fetched {
        /// The snapshot, which is now in the vault.
        snapshot: Snapshot,
        /// How it is known that it is the one that was made: `known` or `bundle_alone`.
        provenance: &'static str,
        /// The vault had it already.
        was_here: bool,
    }

    /// A copy that was found as it should be.
    Verified {
        /// Which look it was: `head`, `digest` or `full`.
        level: &'static str,
        /// Whether it is what was uploaded from here, `known`, or is as the mirror says it is, `bundle_alone`.
        provenance: &'static str,
        /// The key of the bundle.
        key: String,
        /// The size of the bundle.
        bytes: u64,
        /// Its SHA-256, where all of it was read.
        sha256: Option<String>,
    }
}

/// Where copies of snapshots go, and when.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct MirrorConfig(pub(crate) persist::MirrorConfig);

#[pymethods]
impl MirrorConfig {
    /// Amazon S3, or a server that speaks its protocol.
    #[staticmethod]
    #[pyo3(signature = (bucket, **options))]
    fn s3(py: Python<'_>, bucket: String, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut given = Options::new(py, "s3", options)?;
        let mut target = S3Target::new(bucket);
        set(&mut target.region, given.take("region")?);
        target.endpoint = given.take("endpoint")?;
        set(&mut target.path_style, given.take("path_style")?);
        set(&mut target.allow_http, given.take("allow_http")?);
        set(&mut target.access_key_env, given.take("access_key_env")?);
        set(&mut target.secret_key_env, given.take("secret_key_env")?);
        set(&mut target.session_token_env, given.take("session_token_env")?);
        Self::of(MirrorTarget::S3(target), given)
    }

    /// Google Cloud Storage.
    #[staticmethod]
    #[pyo3(signature = (bucket, **options))]
    fn gcs(py: Python<'_>, bucket: String, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut given = Options::new(py, "gcs", options)?;
        let mut target = GcsTarget::new(bucket);
        target.endpoint = given.take("endpoint")?;
        set(&mut target.service_account_env, given.take("service_account_env")?);
        set(&mut target.access_token_env, given.take("access_token_env")?);
        Self::of(MirrorTarget::Gcs(target), given)
    }

    /// Azure Blob Storage.
    #[staticmethod]
    #[pyo3(signature = (account, container, **options))]
    fn azure(
        py: Python<'_>,
        account: String,
        container: String,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut given = Options::new(py, "azure", options)?;
        let mut target = AzureTarget::new(account, container);
        target.endpoint = given.take("endpoint")?;
        set(&mut target.access_key_env, given.take("access_key_env")?);
        set(&mut target.sas_token_env, given.take("sas_token_env")?);
        Self::of(MirrorTarget::Azure(target), given)
    }

    /// A directory, such as one of a network file system.
    #[staticmethod]
    #[pyo3(signature = (path, **options))]
    fn file(py: Python<'_>, path: PathBuf, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let given = Options::new(py, "file", options)?;
        Self::of(MirrorTarget::File(path), given)
    }

    fn __repr__(&self) -> String {
        format!("MirrorConfig({:?})", self.0)
    }
}

impl MirrorConfig {
    fn of(target: MirrorTarget, mut given: Options<'_>) -> PyResult<Self> {
        let mut config = persist::MirrorConfig::new(target);
        set(&mut config.prefix, given.take("prefix")?);
        let words = [("all", MirrorMode::All), ("manual", MirrorMode::Manual), ("off", MirrorMode::Off)];
        set(&mut config.mode, given.word("mode", &words)?);
        set(&mut config.max_object_mb, given.take("max_object_mb")?);
        set(&mut config.multipart_above_mb, given.take("multipart_above_mb")?);
        given.finish()?;
        Ok(Self(config))
    }
}

/// A bundle of a mirror that no manifest speaks of.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct Orphan(persist::Orphan);

#[pymethods]
impl Orphan {
    /// The vault that it is of.
    #[getter]
    fn repo(&self) -> &str {
        self.0.repo.as_str()
    }

    /// The snapshot that it is of.
    #[getter]
    fn id(&self) -> &str {
        self.0.id.as_str()
    }

    /// Its commit.
    #[getter]
    fn commit(&self) -> String {
        self.0.commit.to_string()
    }

    /// Its key.
    #[getter]
    fn key(&self) -> &str {
        &self.0.key
    }

    /// Its size.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// When it was uploaded.
    #[getter]
    fn uploaded_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(self.0.uploaded_at_ms)
    }

    /// A newer state of its snapshot is there.
    #[getter]
    fn is_superseded(&self) -> bool {
        self.0.is_superseded
    }

    fn __repr__(&self) -> String {
        format!("Orphan(key={:?}, bytes={})", self.0.key, self.0.bytes)
    }
}

impl From<persist::Orphan> for Orphan {
    fn from(orphan: persist::Orphan) -> Self {
        Self(orphan)
    }
}

/// What became of a queued upload.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct Resumed {
    id: String,
    result: Result<Snapshot>,
}

#[pymethods]
impl Resumed {
    /// The snapshot.
    #[getter]
    fn id(&self) -> &str {
        &self.id
    }

    /// The snapshot with its copy; None where the upload failed.
    #[getter]
    fn snapshot(&self) -> Option<Snapshot> {
        self.result.as_ref().ok().cloned()
    }

    /// Why the upload failed.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyBaseException>> {
        self.result.as_ref().err().map(|error| raised(py, error).into_value(py))
    }

    fn __repr__(&self) -> String {
        format!("Resumed(id={:?}, uploaded={})", self.id, self.result.is_ok())
    }
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name(persist::Mirror);

        #[pymethods]
        impl $name {
            #[new]
            fn new(py: Python<'_>, config: Py<MirrorConfig>) -> PyResult<Self> {
                opened(py, config.get()).map(Self)
            }

            fn __repr__(&self) -> String {
                format!("{}({:?})", stringify!($name), self.0.config())
            }
        }

        impl $name {
            fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }
    )+};
}

/// Makes ready for a mirror, with the credentials of the environment.
pub(crate) fn opened(py: Python<'_>, config: &MirrorConfig) -> PyResult<persist::Mirror> {
    persist::Mirror::open(config.0.clone()).map_err(|error| raised(py, &error))
}

faces! {
    /// A bucket or a directory that holds copies of snapshots, with the credentials that the environment has.
    Mirror
    /// A bucket or a directory that holds copies of snapshots, for event loops.
    AsyncMirror
}

const LEVELS: [(&str, VerifyLevel); 3] =
    [("head", VerifyLevel::Head), ("digest", VerifyLevel::Digest), ("full", VerifyLevel::Full)];

twins! {
    impl Mirror, AsyncMirror;

    /// Finds out whether it can be reached, written and read.
    fn check(py, this) -> (), Nothing {
        let _ = py;
        let mirror = this.0.clone();
        async move { mirror.check().await }
    }

    /// Lists the vaults that it has something of.
    fn repos(py, this) -> Vec<MirroredRepo>, Vec<MirroredRepo> {
        let _ = py;
        let mirror = this.0.clone();
        async move { Ok(mirror.repos().await?.into_iter().map(Into::into).collect::<Vec<_>>()) }
    }

    /// Lists the snapshots that it has of a vault, the newest first.
    fn snapshots(py, this, repo: String) -> MirroredSnapshots, MirroredSnapshots {
        let repo = repo_key(py, repo)?;
        let mirror = this.0.clone();
        async move { mirror.snapshots(&repo).await.map(MirroredSnapshots::from) }
    }

    /// Lists bundles of a vault that no manifest speaks of.
    fn orphans(py, this, repo: String) -> Vec<Orphan>, Vec<Orphan> {
        let repo: RepoKey = repo_key(py, repo)?;
        let mirror = this.0.clone();
        async move { Ok(mirror.orphans(&repo).await?.into_iter().map(Into::into).collect::<Vec<_>>()) }
    }

    /// Deletes a bundle that no manifest speaks of.
    fn delete_orphan(py, this, orphan: Py<Orphan>) -> (), Nothing {
        let _ = py;
        let mirror = this.0.clone();
        async move { mirror.delete_orphan(&orphan.get().0).await }
    }

    /// Copies a snapshot there, within so many seconds; default 20 minutes.
    #[pyo3(signature = (vault, id, *, budget = None))]
    fn upload(py, this, vault: &Bound<'_, PyAny>, id: &str, budget: Option<f64>) -> Snapshot, Snapshot {
        let store = Store::read("upload", vault)?;
        let id = snap_id(py, id)?;
        let budget = budget.map(|time| seconds(py, "budget", time)).transpose()?;
        let mirror = this.0.clone();
        async move {
            let budget = budget.unwrap_or(persist::DEFAULT_UPLOAD_BUDGET);
            mirror.upload_within(store.open().await?, &id, budget).await.map(Snapshot::from)
        }
    }

    /// Goes on with every upload that was asked for and is not done.
    fn resume(py, this, vault: &Bound<'_, PyAny>) -> Vec<Resumed>, Vec<Resumed> {
        let _ = py;
        let store = Store::read("resume", vault)?;
        let mirror = this.0.clone();
        async move {
            let done = mirror.resume(store.open().await?).await?;
            let told = |(id, result): (persist::SnapId, Result<persist::Snapshot>)| Resumed {
                id: id.to_string(),
                result: result.map(Into::into),
            };
            Ok(done.into_iter().map(told).collect::<Vec<_>>())
        }
    }

    /// Lists the snapshots whose upload was asked for and is not done.
    fn queued(py, this, vault: &Bound<'_, PyAny>) -> Vec<String>, Vec<String> {
        let _ = py;
        let store = Store::read("queued", vault)?;
        let mirror = this.0.clone();
        async move { Ok(texts(mirror.queued(store.open().await?).await?)) }
    }

    /// Looks at the copy of a snapshot: `head`, `digest` or `full`.
    #[pyo3(signature = (vault, id, *, level = "head"))]
    fn verify(py, this, vault: &Bound<'_, PyAny>, id: &str, level: &str) -> Verified, Verified {
        let store = Store::read("verify", vault)?;
        let id = snap_id(py, id)?;
        let level = one_of(py, "level", level, &LEVELS)?;
        let mirror = this.0.clone();
        async move { mirror.verify(store.open().await?, &id, level).await.map(Verified::from) }
    }

    /// Brings a snapshot from there into a vault; `repo` names the vault that it is of, where that is another one.
    #[pyo3(signature = (vault, id, *, repo = None))]
    fn fetch(py, this, vault: &Bound<'_, PyAny>, id: String, repo: Option<String>) -> Fetched, Fetched {
        let store = Store::read("fetch", vault)?;
        let repo = repo.map(|repo| repo_key(py, repo)).transpose()?;
        let mirror = this.0.clone();
        async move {
            let vault = store.open().await?;
            let fetched = match repo {
                Some(repo) => mirror.fetch_from(vault, &repo, &id).await,
                None => mirror.fetch(vault, &id).await,
            };
            fetched.map(Fetched::from)
        }
    }

    /// Makes a directory of this machine what a snapshot says, and brings the snapshot from there where the vault has it
    /// not.
    #[pyo3(signature = (vault, id, target, **options))]
    fn restore(py, this, vault: &Bound<'_, PyAny>, id: &str, target: PathBuf, **options)
        -> Restored, Restored
    {
        let store = Store::read("restore", vault)?;
        let options = restore_options(py, "restore", options)?;
        let id = snap_id(py, id)?;
        let mirror = this.0.clone();
        async move {
            mirror.restore(store.open().await?, &id, target, options).await.map(Restored::from)
        }
    }
}

impl From<persist::MirroredRepo> for MirroredRepo {
    fn from(found: persist::MirroredRepo) -> Self {
        Self {
            key: found.key.to_string(),
            snapshots: found.snapshots,
            newest: found.newest.to_string(),
            bytes: found.bytes,
        }
    }
}

impl From<persist::MirroredSnapshots> for MirroredSnapshots {
    fn from(found: persist::MirroredSnapshots) -> Self {
        let one = |found: persist::MirroredSnapshot| MirroredSnapshot {
            snapshot: found.snapshot.into(),
            is_whole: found.is_whole,
        };
        Self {
            snapshots: found.snapshots.into_iter().map(one).collect(),
            total: found.total,
            unreadable: texts(found.unreadable),
        }
    }
}

impl From<persist::Fetched> for Fetched {
    fn from(fetched: persist::Fetched) -> Self {
        Self {
            snapshot: fetched.snapshot.into(),
            provenance: provenance(fetched.provenance),
            was_here: fetched.was_here,
        }
    }
}

impl From<persist::Verified> for Verified {
    fn from(seen: persist::Verified) -> Self {
        Self {
            level: match seen.level {
                VerifyLevel::Head => "head",
                VerifyLevel::Digest => "digest",
                _ => "full",
            },
            provenance: provenance(seen.provenance),
            key: seen.key,
            bytes: seen.bytes,
            sha256: seen.sha256,
        }
    }
}
