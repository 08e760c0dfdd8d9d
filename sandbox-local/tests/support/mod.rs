//! A local provider in a state directory of its own, for the tests of this crate.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
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
        let home = TempDir::new().unwrap();
        let state = home.path().join("state");
        std::fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
        // Base trees are read-only and named by their content: all tests of one user share them, and build them once.
        let bases = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("bases-{}", rustix::process::geteuid().as_raw()));
        std::fs::create_dir_all(&bases).unwrap();
        std::os::unix::fs::symlink(bases, state.join("base")).unwrap();
        Self { home }
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
