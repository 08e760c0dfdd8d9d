//! What a host says of its mirror. Credentials are never in it: the names of the variables that hold them are.

use std::path::PathBuf;

use sandhold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The cap for one bundle, where nothing else is said, in MiB.
pub const DEFAULT_MAX_OBJECT_MB: u64 = 1024;

/// Above which size bundles go up in parts, where nothing else is said, in MiB.
pub const DEFAULT_MULTIPART_ABOVE_MB: u64 = 64;

/// When snapshots go to the mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MirrorMode {
    /// Never, also where it is asked for.
    Off,
    /// Where it is asked for. The default.
    #[default]
    Manual,
    /// Where it is asked for, and every snapshot that a [`crate::VaultHook`] takes.
    All,
}

/// Where copies of snapshots are kept, and which.
///
/// It is the host's alone: see [`refuse_project_keys`] for what a project may not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MirrorConfig {
    /// The bucket, or the directory.
    pub target: MirrorTarget,
    /// What all keys begin with; default nothing. Slashes at its ends are of no matter.
    #[serde(default)]
    pub prefix: String,
    /// When snapshots go there. Default manual.
    #[serde(default)]
    pub mode: MirrorMode,
    /// Bundles above this are refused before anything is sent, in MiB; 0 is no limit. Default
    /// [`DEFAULT_MAX_OBJECT_MB`].
    #[serde(default = "default_max_object_mb")]
    pub max_object_mb: u64,
    /// Bundles above this go up in parts, and an upload that was cut off goes on after the last of them, in MiB; the
    /// least is 5. Default [`DEFAULT_MULTIPART_ABOVE_MB`].
    #[serde(default = "default_multipart_above_mb")]
    pub multipart_above_mb: u64,
}

fn default_max_object_mb() -> u64 {
    DEFAULT_MAX_OBJECT_MB
}

fn default_multipart_above_mb() -> u64 {
    DEFAULT_MULTIPART_ABOVE_MB
}

impl MirrorConfig {
    /// Names a target, with defaults for the rest.
    #[must_use]
    pub fn new(target: MirrorTarget) -> Self {
        Self {
            target,
            prefix: String::new(),
            mode: MirrorMode::default(),
            max_object_mb: DEFAULT_MAX_OBJECT_MB,
            multipart_above_mb: DEFAULT_MULTIPART_ABOVE_MB,
        }
    }

    /// Sets what all keys begin with.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets when snapshots go there.
    #[must_use]
    pub fn with_mode(mut self, mode: MirrorMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the cap for one bundle, in MiB; 0 is no limit.
    #[must_use]
    pub fn with_max_object_mb(mut self, limit: u64) -> Self {
        self.max_object_mb = limit;
        self
    }

    /// Sets above which size bundles go up in parts, in MiB.
    #[must_use]
    pub fn with_multipart_above_mb(mut self, size: u64) -> Self {
        self.multipart_above_mb = size;
        self
    }
}

/// A place that keeps objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MirrorTarget {
    /// Amazon S3, or a server that speaks its protocol. Needs the feature `s3`.
    S3(S3Target),
    /// Google Cloud Storage. Needs the feature `gcs`.
    Gcs(GcsTarget),
    /// Azure Blob Storage. Needs the feature `azure`.
    Azure(AzureTarget),
    /// A directory, such as one of a network file system; it is made where it is not there.
    File(PathBuf),
}

impl MirrorTarget {
    /// Tells whether it names no place.
    pub(crate) fn is_nowhere(&self) -> bool {
        match self {
            Self::S3(target) => target.bucket.is_empty(),
            Self::Gcs(target) => target.bucket.is_empty(),
            Self::Azure(target) => target.container.is_empty(),
            Self::File(path) => path.as_os_str().is_empty(),
        }
    }
}

/// A bucket that is reached by the protocol of S3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct S3Target {
    /// The bucket.
    pub bucket: String,
    /// The region. Default `us-east-1`.
    #[serde(default = "us_east_1")]
    pub region: String,
    /// The server, `https://` where no scheme is said. Default Amazon's of the region.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Whether the bucket is in the path of a URL and not in its host. Default no.
    #[serde(default)]
    pub path_style: bool,
    /// Whether the contents may travel in the clear; a server of this machine needs no such leave. Default no.
    #[serde(default)]
    pub allow_http: bool,
    /// The variable that holds the access key. Default `AWS_ACCESS_KEY_ID`.
    #[serde(default = "access_key")]
    pub access_key_env: String,
    /// The variable that holds the secret key. Default `AWS_SECRET_ACCESS_KEY`.
    #[serde(default = "secret_key")]
    pub secret_key_env: String,
    /// The variable that holds the session token, where there is one. Default `AWS_SESSION_TOKEN`.
    #[serde(default = "session_token")]
    pub session_token_env: String,
}

fn us_east_1() -> String {
    "us-east-1".to_owned()
}

fn access_key() -> String {
    "AWS_ACCESS_KEY_ID".to_owned()
}

fn secret_key() -> String {
    "AWS_SECRET_ACCESS_KEY".to_owned()
}

fn session_token() -> String {
    "AWS_SESSION_TOKEN".to_owned()
}

impl S3Target {
    /// Names a bucket of Amazon's, with defaults for the rest.
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            region: us_east_1(),
            endpoint: None,
            path_style: false,
            allow_http: false,
            access_key_env: access_key(),
            secret_key_env: secret_key(),
            session_token_env: session_token(),
        }
    }

    /// Sets the region.
    #[must_use]
    pub fn with_region(mut self, region: impl Into<String>) -> Self {
        self.region = region.into();
        self
    }

    /// Goes to another server, with the bucket in the path.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self.path_style = true;
        self
    }

    /// Names the variables that hold the access key and the secret key.
    #[must_use]
    pub fn with_key_variables(mut self, access: impl Into<String>, secret: impl Into<String>) -> Self {
        (self.access_key_env, self.secret_key_env) = (access.into(), secret.into());
        self
    }
}

/// A bucket of Google Cloud Storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GcsTarget {
    /// The bucket.
    pub bucket: String,
    /// Another server than Google's. Default none.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The variable that holds the JSON key of a service account. Default `GOOGLE_SERVICE_ACCOUNT_KEY`.
    #[serde(default = "service_account")]
    pub service_account_env: String,
    /// The variable that holds an access token, such as `gcloud auth print-access-token` prints, where there is no such
    /// key. It is read once: when it expires, the mirror is opened again. Default `GOOGLE_OAUTH_ACCESS_TOKEN`.
    #[serde(default = "access_token")]
    pub access_token_env: String,
}

fn access_token() -> String {
    "GOOGLE_OAUTH_ACCESS_TOKEN".to_owned()
}

fn service_account() -> String {
    "GOOGLE_SERVICE_ACCOUNT_KEY".to_owned()
}

impl GcsTarget {
    /// Names a bucket, with defaults for the rest.
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            endpoint: None,
            service_account_env: service_account(),
            access_token_env: access_token(),
        }
    }
}

/// A container of Azure Blob Storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AzureTarget {
    /// The storage account.
    pub account: String,
    /// The container.
    pub container: String,
    /// Another server than Azure's. Default none.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The variable that holds the access key. Default `AZURE_STORAGE_ACCOUNT_KEY`.
    #[serde(default = "account_key")]
    pub access_key_env: String,
    /// The variable that holds a shared access signature, the part of its URL after the `?`, where there is no such key.
    /// Default `AZURE_STORAGE_SAS_TOKEN`.
    #[serde(default = "sas_token")]
    pub sas_token_env: String,
}

fn sas_token() -> String {
    "AZURE_STORAGE_SAS_TOKEN".to_owned()
}

fn account_key() -> String {
    "AZURE_STORAGE_ACCOUNT_KEY".to_owned()
}

impl AzureTarget {
    /// Names a container, with defaults for the rest.
    pub fn new(account: impl Into<String>, container: impl Into<String>) -> Self {
        Self {
            account: account.into(),
            container: container.into(),
            endpoint: None,
            access_key_env: account_key(),
            sas_token_env: sas_token(),
        }
    }
}

/// The keys of a configuration that belong to the host.
const HOST_KEYS: [&str; 7] =
    ["snapshot", "snapshots", "mirror", "mirrors", "project_host", "credential", "credentials"];

/// Refuses the configuration file of a project that speaks of snapshots, mirrors, credentials or the project host.
///
/// Whoever may write to a project, an agent among them, could else send its contents to a bucket of their own, switch
/// snapshots off, or let them be thrown away.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] with reason `project_config`, which names the keys.
pub fn refuse_project_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let refused: Vec<&str> = keys
        .into_iter()
        .filter(|key| {
            let first = key.split('.').next().unwrap_or(key);
            HOST_KEYS.iter().any(|known| known.eq_ignore_ascii_case(first.trim()))
        })
        .collect();
    match refused.is_empty() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "the configuration of a project may not set {}: it could send the project elsewhere or switch its \
                 snapshots off; set it where the host is configured",
                refused.join(", ")
            ),
        )
        .with_reason("project_config")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_may_not_speak_of_snapshots_or_mirrors() {
        for key in ["snapshot", "snapshot.s3.bucket", "Mirror", "mirror.target", "project_host"] {
            let refused = refuse_project_keys(["env", key]).unwrap_err();
            assert!(refused.to_string().contains(key), "{refused}");
        }
        refuse_project_keys(["env", "mirrored", "version"]).unwrap();
    }

    #[test]
    fn a_configuration_with_a_secret_in_it_is_no_configuration() {
        let text = r#"{"target":{"s3":{"bucket":"b","secret_key":"x"}}}"#;
        assert!(serde_json::from_str::<MirrorConfig>(text).is_err());
        let text = r#"{"target":{"s3":{"bucket":"b"}},"mode":"all"}"#;
        let config: MirrorConfig = serde_json::from_str(text).unwrap();
        assert_eq!(
            config,
            MirrorConfig::new(MirrorTarget::S3(S3Target::new("b"))).with_mode(MirrorMode::All)
        );
        assert_eq!(config.max_object_mb, 1024);
    }
}
