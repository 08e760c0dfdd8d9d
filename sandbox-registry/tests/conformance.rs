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

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;
    use sandhold_registry::SqliteRegistry;

    struct Sqlite {
        directory: TempDir,
        registry: Arc<SqliteRegistry>,
    }

    #[async_trait]
    impl RegistryFixture for Sqlite {
        fn registry(&self) -> Arc<dyn Registry> {
            Arc::clone(&self.registry) as _
        }

        async fn reopened(&self) -> Arc<dyn Registry> {
            Arc::new(SqliteRegistry::open(self.directory.path().join("registry.sqlite")).await.unwrap())
        }
    }

    async fn fixture() -> Result<Sqlite, String> {
        let directory = tempfile::tempdir().unwrap();
        let registry =
            Arc::new(SqliteRegistry::open(directory.path().join("registry.sqlite")).await.unwrap());
        Ok(Sqlite { directory, registry })
    }

    sandhold_core::registry_conformance!(fixture);
}

#[cfg(feature = "postgres")]
mod support;

#[cfg(feature = "postgres")]
mod postgres {
    use super::support::Schema;
    use super::*;
    use sandhold_registry::PostgresRegistry;

    struct Postgres {
        schema: Schema,
        registry: PostgresRegistry,
    }

    #[async_trait]
    impl RegistryFixture for Postgres {
        fn registry(&self) -> Arc<dyn Registry> {
            Arc::new(self.registry.clone())
        }

        async fn reopened(&self) -> Arc<dyn Registry> {
            Arc::new(self.schema.open().await)
        }
    }

    async fn fixture() -> Result<Postgres, String> {
        let schema = Schema::new().await?;
        let registry = schema.open().await;
        Ok(Postgres { schema, registry })
    }

    sandhold_core::registry_conformance!(fixture);
}
