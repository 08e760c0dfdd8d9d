//! Mirrors of every kind, each on a server of its own.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "a failure here fails the test")]

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
#[path = "servers.rs"]
mod servers;

use std::fs;
use std::path::{Path, PathBuf};

use sandhold_persist::{Mirror, MirrorConfig, MirrorTarget};

/// A mirror, and the directory of its objects where it is one.
pub struct Remote {
    pub config: MirrorConfig,
    pub objects: Option<PathBuf>,
    pub dir: tempfile::TempDir,
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    _server: Option<servers::Server>,
}

impl Remote {
    pub fn file() -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        let objects = dir.path().join("objects");
        Ok(Self {
            config: MirrorConfig::new(MirrorTarget::File(objects.clone())).with_prefix("team/a"),
            objects: Some(objects),
            dir,
            #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
            _server: None,
        })
    }

    #[cfg(feature = "s3")]
    pub fn moto() -> Result<Self, String> {
        Ok(Self::s3(servers::Server::moto()?, tempfile::tempdir().unwrap()))
    }

    #[cfg(feature = "s3")]
    pub fn rclone() -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        Ok(Self::s3(servers::Server::rclone(&dir.path().join("served"))?, dir))
    }

    /// Google's XML interface has the words of S3, which rclone answers; who may ask is not looked at.
    #[cfg(feature = "gcs")]
    pub fn gcs() -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        let server = servers::Server::open_rclone(&dir.path().join("served"))?;
        let mut target = sandhold_persist::GcsTarget::new(servers::BUCKET);
        target.endpoint = Some(server.url.clone());
        target.service_account_env = "THE_ACCOUNT".to_owned();
        Ok(Self {
            config: MirrorConfig::new(MirrorTarget::Gcs(target)).with_prefix("team/a"),
            objects: None,
            dir,
            _server: Some(server),
        })
    }

    #[cfg(feature = "azure")]
    pub fn azurite() -> Result<Self, String> {
        let server = servers::Server::azurite()?;
        let mut target = sandhold_persist::AzureTarget::new(servers::ACCOUNT, servers::BUCKET);
        target.endpoint = Some(server.url.clone());
        target.access_key_env = "THE_ACCOUNT_KEY".to_owned();
        Ok(Self {
            config: MirrorConfig::new(MirrorTarget::Azure(target)).with_prefix("team/a"),
            objects: None,
            dir: tempfile::tempdir().unwrap(),
            _server: Some(server),
        })
    }

    #[cfg(feature = "s3")]
    fn s3(server: servers::Server, dir: tempfile::TempDir) -> Self {
        let target = sandhold_persist::S3Target::new(servers::BUCKET)
            .with_endpoint(server.url.clone())
            .with_key_variables("THE_KEY", "THE_SECRET");
        Self {
            config: MirrorConfig::new(MirrorTarget::S3(target)).with_prefix("team/a"),
            objects: None,
            dir,
            _server: Some(server),
        }
    }

    pub fn open(&self) -> Mirror {
        self.open_as(self.config.clone())
    }

    pub fn open_as(&self, config: MirrorConfig) -> Mirror {
        Mirror::open_with(config, lookup).unwrap()
    }

    /// The objects whose keys end so, in the order of their keys.
    fn files(&self, ending: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(self.objects.as_ref().unwrap(), &mut found);
        found.retain(|path| path.extension().is_some_and(|end| end == ending));
        found.sort();
        found
    }

    pub fn manifests(&self) -> Vec<PathBuf> {
        self.files("json")
    }

    pub fn bundle(&self) -> PathBuf {
        self.files("bundle").remove(0)
    }
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub fn lookup(name: &str) -> Option<String> {
    match name {
        "THE_KEY" => Some(servers::KEY.to_owned()),
        "THE_SECRET" => Some(servers::SECRET.to_owned()),
        "THE_ACCOUNT_KEY" => Some(servers::ACCOUNT_KEY.to_owned()),
        // A service account whose tokens nobody asks for.
        "THE_ACCOUNT" => Some(
            r#"{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}"#
                .to_owned(),
        ),
        _ => None,
    }
}

#[cfg(not(any(feature = "s3", feature = "gcs", feature = "azure")))]
pub fn lookup(_: &str) -> Option<String> {
    None
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { walk(&path, found) } else { found.push(path) }
    }
}
