//! A local provider in a state directory of its own, for the tests of this crate.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sandhold_core::SandboxProvider;
use sandhold_core::testing::conformance::Fixture;
use sandhold_local::{LocalConfig, LocalProvider};
use tempfile::TempDir;

/// The helper that cargo built for these tests.
pub(crate) fn helper() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_sandhold-helper"))
}

/// A state directory that is removed at the end, and providers over it.
pub(crate) struct LocalFixture {
    home: TempDir,
}

impl LocalFixture {
    pub(crate) fn new() -> Self {
        Self { home: TempDir::new().unwrap() }
    }

    pub(crate) fn config(&self) -> LocalConfig {
        LocalConfig::new().with_home(self.home.path().join("state")).with_helper(helper())
    }

    pub(crate) fn open(&self) -> LocalProvider {
        LocalProvider::new(self.config()).unwrap()
    }
}

#[async_trait]
impl Fixture for LocalFixture {
    fn provider(&self) -> Arc<dyn SandboxProvider> {
        Arc::new(self.open())
    }

    async fn fresh_provider(&self) -> Arc<dyn SandboxProvider> {
        Arc::new(self.open())
    }
}
