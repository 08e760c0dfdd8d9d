//! What makes templates of root directories.

use std::path::Path;

use async_trait::async_trait;
use sandhold_core::{Result, SnapshotInfo};
use sandhold_local::LocalProvider;

/// Makes templates from root directories: what images need of a provider.
#[async_trait]
pub trait RootImporter: std::fmt::Debug + Send + Sync {
    /// Makes a template of this name from a directory, which is left to the caller. As root, files belong to the ids that
    /// they have inside; as another user, everything belongs to the caller, who is root inside.
    ///
    /// # Errors
    /// As [`sandhold_core::SandboxProvider::snapshot`].
    async fn import_root(&self, directory: &Path, name: &str) -> Result<SnapshotInfo>;
}

#[async_trait]
impl RootImporter for LocalProvider {
    async fn import_root(&self, directory: &Path, name: &str) -> Result<SnapshotInfo> {
        self.import_template(directory, [name]).await
    }
}
