//! What E2B has beside sandboxes: how they are reached from elsewhere, secrets, volumes.

use std::collections::BTreeMap;
use std::time::SystemTime;

use pyo3::prelude::*;
use sandhold_core::SandboxId;
use sandhold_e2b as e2b;
use sandhold_e2b::wire::{NetworkConfig, NetworkUpdate, VolumeEntryKind};
use sandhold_e2b::{SignOptions, VolumeOptions};

use crate::convert::{Options, seconds};
use crate::errors::raised;
use crate::json::{self, Json};
use crate::provider::{AsyncE2bProvider, E2bProvider};
use crate::source;
use crate::stream::{self, AsyncDownload, AsyncItems, Download, Items};
use crate::templates::{AsyncTemplates, Templates};
use crate::twins::{Nothing, twins};
use crate::values::{destroyed, values};

values! {
    /// Where a port answers over HTTP, and what requests to it must carry.
    PortAccess {
        /// The URL, without a path.
        url: String,
        /// Headers for every request.
        headers: BTreeMap<&'static str, String>,
    }

    /// A secret of the account; its value is never told.
    SecretInfo {
        /// Its id.
        secret_id: String,
        /// Its name.
        name: String,
        /// How often it got a value.
        current_version: u64,
        /// Free text pairs kept with it.
        metadata: BTreeMap<String, String>,
        /// When it was made.
        created_at: Option<SystemTime>,
        /// When it last got a value.
        updated_at: Option<SystemTime>,
    }

    /// A volume of the account.
    Volume {
        /// Its id.
        volume_id: String,
        /// Its name.
        name: String,
    }

    /// A path in a volume.
    VolumeEntry {
        /// The last part of the path.
        name: String,
        /// The path.
        path: String,
        /// What it is: `file`, `directory`, `symlink` or `other`.
        file_type: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The permission bits.
        mode: u32,
        /// The owner's number.
        uid: u32,
        /// The group's number.
        gid: u32,
        /// When it was last read.
        accessed_at: SystemTime,
        /// When the content was last modified.
        modified_at: SystemTime,
        /// When it was last changed.
        changed_at: SystemTime,
        /// Where a symbolic link leads.
        symlink_target: Option<String>,
    }
}

impl From<e2b::wire::SecretInfo> for SecretInfo {
    fn from(info: e2b::wire::SecretInfo) -> Self {
        Self {
            secret_id: info.secret_id,
            name: info.name,
            current_version: info.current_version,
            metadata: info.metadata.unwrap_or_default(),
            created_at: info.created_at.map(|at| at.0),
            updated_at: info.updated_at.map(|at| at.0),
        }
    }
}

impl From<e2b::wire::Volume> for Volume {
    fn from(volume: e2b::wire::Volume) -> Self {
        Self { volume_id: volume.volume_id, name: volume.name }
    }
}

impl From<e2b::wire::VolumeEntry> for VolumeEntry {
    fn from(entry: e2b::wire::VolumeEntry) -> Self {
        Self {
            name: entry.name,
            path: entry.path,
            file_type: match entry.kind {
                VolumeEntryKind::File => "file",
                VolumeEntryKind::Directory => "directory",
                VolumeEntryKind::Symlink => "symlink",
                _ => "other",
            },
            size: entry.size,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            accessed_at: entry.atime.0,
            modified_at: entry.mtime.0,
            changed_at: entry.ctime.0,
            symlink_target: entry.target,
        }
    }
}

/// How a sandbox is reached from elsewhere: by host names, by its tokens, and by URLs that need none.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct SandboxAccess(e2b::SandboxAccess);

impl From<e2b::SandboxAccess> for SandboxAccess {
    fn from(access: e2b::SandboxAccess) -> Self {
        Self(access)
    }
}

fn sign(py: Python<'_>, user: Option<String>, expires: Option<f64>) -> PyResult<SignOptions> {
    let mut options = SignOptions::default();
    options.user = user;
    options.expires = expires.map(|after| seconds(py, "expires", after)).transpose()?;
    Ok(options)
}

#[pymethods]
impl SandboxAccess {
    /// The token that requests to ports carry, where ports are not open to everybody.
    #[getter]
    fn traffic_token(&self) -> Option<&str> {
        self.0.traffic_token().map(e2b::wire::Secret::expose)
    }

    /// The token of the daemon inside.
    #[getter]
    fn envd_token(&self) -> Option<&str> {
        self.0.envd_token().map(e2b::wire::Secret::expose)
    }

    /// Returns the host of a port, without a scheme.
    fn host(&self, port: u16) -> String {
        self.0.host(port)
    }

    /// Says how a port is asked over HTTP.
    fn port(&self, port: u16) -> PortAccess {
        let access = self.0.port(port);
        let headers = access.headers.into_iter().map(|(name, value)| (name, value.expose().to_owned()));
        PortAccess { url: access.url, headers: headers.collect() }
    }

    /// Returns a URL from which one file can be downloaded without any token; `expires` in seconds from now.
    #[pyo3(signature = (path, *, user = None, expires = None))]
    fn download_url(
        &self,
        py: Python<'_>,
        path: &str,
        user: Option<String>,
        expires: Option<f64>,
    ) -> PyResult<String> {
        self.0.download_url(path, &sign(py, user, expires)?).map_err(|error| raised(py, &error))
    }

    /// Returns a URL to which one file can be uploaded without any token; an empty path leaves it to the upload.
    #[pyo3(signature = (path, *, user = None, expires = None))]
    fn upload_url(
        &self,
        py: Python<'_>,
        path: &str,
        user: Option<String>,
        expires: Option<f64>,
    ) -> PyResult<String> {
        self.0.upload_url(path, &sign(py, user, expires)?).map_err(|error| raised(py, &error))
    }

    fn __repr__(&self) -> &'static str {
        "SandboxAccess()"
    }
}

macro_rules! accounts {
    ($($name:ident: $templates:ident, $secrets:ident, $volumes:ident;)+) => {$(
        #[pymethods]
        impl $name {
            /// The templates of the account.
            #[getter]
            fn templates(&self) -> $templates {
                self.0.templates().into()
            }

            /// The secrets of the account.
            #[getter]
            fn secrets(&self) -> $secrets {
                $secrets(self.0.secrets())
            }

            /// The volumes of the account.
            #[getter]
            fn volumes(&self) -> $volumes {
                $volumes(self.0.volumes())
            }
        }
    )+};
}

accounts! {
    E2bProvider: Templates, Secrets, Volumes;
    AsyncE2bProvider: AsyncTemplates, AsyncSecrets, AsyncVolumes;
}

twins! {
    impl E2bProvider, AsyncE2bProvider;

    /// Says how a sandbox is reached from elsewhere. Connects to it, which wakes a paused one.
    fn access(py, this, id: String) -> SandboxAccess, SandboxAccess {
        let _ = py;
        let provider = this.0.clone();
        async move { provider.access(&SandboxId::new(id)).await }
    }

    /// Returns the facts about a sandbox in E2B's own words.
    fn detail(py, this, id: String) -> Json, Json {
        let _ = py;
        let provider = this.0.clone();
        async move { Ok(Json::of(&provider.detail(&SandboxId::new(id)).await?)) }
    }

    /// Replaces the whole network policy of a running sandbox.
    #[pyo3(signature = (id, **options))]
    fn update_network_policy(py, this, id: String, **options) -> (), Nothing {
        let mut given = Options::new(py, "update_network_policy", options)?;
        let policy = NetworkUpdate {
            allow_out: given.take("allow_out")?,
            deny_out: given.take("deny_out")?,
            rules: plain(&mut given, "rules")?,
            egress_proxy: plain(&mut given, "egress_proxy")?,
            allow_internet_access: given.take("allow_internet_access")?,
        };
        given.finish()?;
        let provider = this.0.clone();
        async move { provider.update_network_policy(&SandboxId::new(id), &policy).await }
    }
}

/// Takes an argument that is plain data.
fn plain<T: serde::de::DeserializeOwned>(given: &mut Options<'_>, name: &str) -> PyResult<Option<T>> {
    given.any(name)?.map(|value| json::read(name, &value)).transpose()
}

/// Reads the network policy that new sandboxes get.
pub(crate) fn network(py: Python<'_>, given: &Bound<'_, pyo3::types::PyDict>) -> PyResult<NetworkConfig> {
    let mut given = Options::new(py, "network", Some(given))?;
    let policy = NetworkConfig {
        allow_out: given.take("allow_out")?,
        deny_out: given.take("deny_out")?,
        allow_public_traffic: given.take("allow_public_traffic")?,
        mask_request_host: given.take("mask_request_host")?,
        https_ports: given.take("https_ports")?,
        rules: plain(&mut given, "rules")?,
        egress_proxy: plain(&mut given, "egress_proxy")?,
    };
    given.finish()?;
    Ok(policy)
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident: $inner:ty)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name($inner);

        impl From<$inner> for $name {
            fn from(inner: $inner) -> Self {
                Self(inner)
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
    /// The secrets of an account.
    Secrets: e2b::Secrets
    /// The secrets of an account, for event loops.
    AsyncSecrets: e2b::Secrets
    /// The volumes of an account.
    Volumes: e2b::Volumes
    /// The volumes of an account, for event loops.
    AsyncVolumes: e2b::Volumes
    /// The files of one volume.
    VolumeContent: e2b::VolumeContent
    /// The files of one volume, for event loops.
    AsyncVolumeContent: e2b::VolumeContent
}

twins! {
    impl Secrets, AsyncSecrets;

    /// Stores a secret. A second one of the same name is refused.
    #[pyo3(signature = (name, value, *, metadata = None))]
    fn create(py, this, name: String, value: String, metadata: Option<BTreeMap<String, String>>)
        -> SecretInfo, SecretInfo
    {
        let _ = py;
        let secrets = this.0.clone();
        async move { secrets.create(&name, value.into(), metadata).await.map(SecretInfo::from) }
    }

    /// Gives a secret, by id or name, another value.
    #[pyo3(signature = (secret, value, *, metadata = None))]
    fn update(py, this, secret: String, value: String, metadata: Option<BTreeMap<String, String>>)
        -> SecretInfo, SecretInfo
    {
        let _ = py;
        let secrets = this.0.clone();
        async move { secrets.update(&secret, value.into(), metadata).await.map(SecretInfo::from) }
    }

    /// Returns facts about a secret, by id or name.
    fn get(py, this, secret: String) -> SecretInfo, SecretInfo {
        let _ = py;
        let secrets = this.0.clone();
        async move { secrets.get(&secret).await.map(SecretInfo::from) }
    }

    /// Lists the secrets of the account.
    fn list(py, this) -> Items, AsyncItems {
        let _ = py;
        let secrets = this.0.clone();
        async move { Ok(stream::items::<_, SecretInfo>(secrets.list())) }
    }

    /// Deletes a secret, by id or name.
    fn delete(py, this, secret: String) -> &'static str, &'static str {
        let _ = py;
        let secrets = this.0.clone();
        async move { secrets.delete(&secret).await.map(destroyed) }
    }
}

twins! {
    impl Volumes, AsyncVolumes;

    /// Makes a volume and opens its content. A second one of the same name is refused.
    fn create(py, this, name: String) -> VolumeContent, AsyncVolumeContent {
        let _ = py;
        let volumes = this.0.clone();
        async move { volumes.create(&name).await }
    }

    /// Opens the content of a volume.
    fn open(py, this, id: String) -> VolumeContent, AsyncVolumeContent {
        let _ = py;
        let volumes = this.0.clone();
        async move { volumes.open(&id).await }
    }

    /// Lists the volumes of the account.
    fn list(py, this) -> Vec<Volume>, Vec<Volume> {
        let _ = py;
        let volumes = this.0.clone();
        async move { Ok(volumes.list().await?.into_iter().map(Into::into).collect::<Vec<_>>()) }
    }

    /// Deletes a volume with its content.
    fn delete(py, this, id: String) -> &'static str, &'static str {
        let _ = py;
        let volumes = this.0.clone();
        async move { volumes.delete(&id).await.map(destroyed) }
    }
}

macro_rules! contents {
    ($($name:ident)+) => {$(
        #[pymethods]
        impl $name {
            /// The volume's id.
            #[getter]
            fn id(&self) -> &str {
                self.0.id()
            }

            /// The volume's name.
            #[getter]
            fn name(&self) -> &str {
                self.0.name()
            }

            fn __repr__(&self) -> String {
                format!("{}(id={:?}, name={:?})", stringify!($name), self.0.id(), self.0.name())
            }
        }
    )+};
}

contents! { VolumeContent AsyncVolumeContent }

fn options(uid: Option<u32>, gid: Option<u32>, mode: Option<u32>, force: bool) -> VolumeOptions {
    let mut options = VolumeOptions::default();
    (options.uid, options.gid, options.mode, options.force) = (uid, gid, mode, force);
    options
}

twins! {
    impl VolumeContent, AsyncVolumeContent;

    /// Returns facts about a path.
    fn stat(py, this, path: String) -> VolumeEntry, VolumeEntry {
        let _ = py;
        let content = this.0.clone();
        async move { content.stat(&path).await.map(VolumeEntry::from) }
    }

    /// Changes the owner, group or permission bits of a path.
    #[pyo3(signature = (path, *, uid = None, gid = None, mode = None))]
    fn change(py, this, path: String, uid: Option<u32>, gid: Option<u32>, mode: Option<u32>)
        -> VolumeEntry, VolumeEntry
    {
        let _ = py;
        let content = this.0.clone();
        async move { content.change(&path, &options(uid, gid, mode, false)).await.map(VolumeEntry::from) }
    }

    /// Removes a path with all that is in it.
    fn remove(py, this, path: String) -> (), Nothing {
        let _ = py;
        let content = this.0.clone();
        async move { content.remove(&path).await }
    }

    /// Lists a directory, so many levels deep.
    #[pyo3(signature = (path, *, depth = 1))]
    fn list(py, this, path: String, depth: u32) -> Vec<VolumeEntry>, Vec<VolumeEntry> {
        let _ = py;
        let content = this.0.clone();
        async move { Ok(content.list(&path, depth).await?.into_iter().map(Into::into).collect::<Vec<_>>()) }
    }

    /// Makes a directory, and its parents with `force`.
    #[pyo3(signature = (path, *, uid = None, gid = None, mode = None, force = false))]
    fn make_dir(py, this, path: String, uid: Option<u32>, gid: Option<u32>, mode: Option<u32>, force: bool)
        -> VolumeEntry, VolumeEntry
    {
        let _ = py;
        let content = this.0.clone();
        async move { content.make_dir(&path, &options(uid, gid, mode, force)).await.map(VolumeEntry::from) }
    }

    /// Reads a file as a stream of bytes.
    fn read(py, this, path: String) -> Download, AsyncDownload {
        let _ = py;
        let content = this.0.clone();
        async move { content.read(&path).await.map(stream::unsized_download) }
    }

    /// Writes a file, and over one that is there with `force`. The body is as for `Sandbox.write`; it is sent once.
    #[pyo3(signature = (path, body, *, uid = None, gid = None, mode = None, force = false))]
    fn write(
        py, this, path: String, body: &Bound<'_, PyAny>, uid: Option<u32>, gid: Option<u32>,
        mode: Option<u32>, force: bool,
    ) -> VolumeEntry, VolumeEntry {
        let (body, _) = source::body(py, body, IS_ASYNC)?;
        let content = this.0.clone();
        async move {
            content.write(&path, body, &options(uid, gid, mode, force)).await.map(VolumeEntry::from)
        }
    }
}
