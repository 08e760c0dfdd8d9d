//! Copies of snapshots elsewhere: a backup, and never what the only copy is moved to.

#[cfg(feature = "https")]
mod cloud;
mod config;
#[cfg(feature = "https")]
mod credentials;
mod fetch;
#[cfg(feature = "https")]
mod http;
mod list;
mod manifest;
mod queue;
mod store;
mod upload;
mod verify;

use sandhold_core::Result;

pub use config::{
    AzureTarget, DEFAULT_MAX_OBJECT_MB, DEFAULT_MULTIPART_ABOVE_MB, GcsTarget, MirrorConfig, MirrorMode,
    MirrorTarget, S3Target, refuse_project_keys,
};
pub use fetch::Fetched;
pub use list::{MirroredRepo, MirroredSnapshot, MirroredSnapshots, Orphan, SHOWN};
pub use upload::{DEFAULT_EXIT_BUDGET, DEFAULT_UPLOAD_BUDGET};
pub use verify::{Verified, VerifyLevel};

use manifest::Keys;
use store::Store;

/// A mirror of vaults: a bucket, or a directory, that holds bundles and their manifests.
///
/// Many vaults may share one, each below its repository key. Nothing here deletes anything from a mirror, but
/// [`Mirror::delete_orphan`] where it is called. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mirror {
    config: MirrorConfig,
    keys: Keys,
    store: Store,
}

impl Mirror {
    /// Makes ready for a mirror, with the credentials that the process has in the variables that the configuration
    /// names. Nothing is asked of the mirror yet; [`Mirror::check`] does.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::InvalidArgument`] for a configuration that cannot be meant;
    /// [`sandhold_core::ErrorKind::Unauthenticated`] with reason `credential`, which names the variable that is missing;
    /// [`sandhold_core::ErrorKind::Unsupported`] for a kind of mirror that this build has not.
    pub fn open(config: MirrorConfig) -> Result<Self> {
        Self::open_with(config, |name| std::env::var(name).ok())
    }

    /// Does as [`Mirror::open`], with credentials from elsewhere than the environment, such as a store of secrets.
    ///
    /// # Errors
    /// As [`Mirror::open`].
    pub fn open_with(config: MirrorConfig, lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let keys = Keys::new(&config.prefix)?;
        let store = Store::open(&config.target, &lookup)?;
        Ok(Self { config, keys, store })
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &MirrorConfig {
        &self.config
    }

    /// Which mirror it is, as far as an upload may go on in it.
    fn place(&self) -> String {
        format!("{}/{}", self.store.name(), self.keys.root())
    }
}
