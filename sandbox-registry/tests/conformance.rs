//! The rules of every registry, over each of this crate.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;

use async_trait::async_trait;
use sandhold_core::Registry;
use sandhold_core::testing::registry::RegistryFixture;
use tempfile::TempDir;

mod file {
    use super::*;
    use sandhold_registry::FileRegistry;

    struct File {
        directory: TempDir,
        registry: Arc<FileRegistry>,
    }

    #[async_trait]
    impl RegistryFixture for File {
        fn registry(&self) -> Arc<dyn Registry> {
            Arc::clone(&self.registry) as _
        }

        async fn reopened(&self) -> Arc<dyn Registry> {
            Arc::new(FileRegistry::new(self.directory.path()))
        }

        fn leases_expire(&self) -> bool {
            false
        }
    }

    async fn fixture() -> Result<File, String> {
        let directory = tempfile::tempdir().unwrap();
        let registry = Arc::new(FileRegistry::new(directory.path()));
        Ok(File { directory, registry })
    }

    sandhold_core::registry_conformance!(fixture);
}
