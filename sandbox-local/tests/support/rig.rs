//! One sandbox in a state directory of its own, and tests that need a process to themselves. It needs `reality` beside it,
//! as a module of the same parent.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a broken rule panics, and measurements are said"
)]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{
    Attempt, CreateOptions, Generation, Key, Owner, SandboxHandle, SandboxHandleExt as _,
    SandboxProvider as _, SandboxSpec, Tags,
};
use sandhold_local::{LocalConfig, LocalProvider};
use tempfile::TempDir;

use super::reality::{Part, Reality, nothing_is_left, parts};

pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_sandhold-helper");

/// More than any of this takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    pub(crate) place: TempDir,
    pub(crate) provider: LocalProvider,
    pub(crate) handle: Arc<dyn SandboxHandle>,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        let place = TempDir::new().unwrap();
        let provider = open(&place.path().join("state"));
        let tags = Tags {
            owner: Owner::new("tests").unwrap(),
            key: Key::new("one").unwrap(),
            generation: Generation::random().unwrap(),
            attempt: Attempt::random().unwrap(),
        };
        let handle = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap();
        Self { place, provider, handle }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.place.path().join("state")
    }

    pub(crate) fn daemon(&self) -> i32 {
        parts(&self.home()).into_iter().find(|(_, part)| *part == Part::Daemon).unwrap().0
    }

    /// Processes of the sandbox whose command line starts with some words, seen from the host.
    pub(crate) fn survivors(&self, words: &str) -> usize {
        let there = Reality::of(&self.home(), &BTreeSet::from([self.handle.id().to_string()]));
        there.processes.iter().filter(|(_, line)| line.starts_with(words)).count()
    }

    pub(crate) async fn ok(&self, line: &str) -> String {
        let output = self.handle.shell(line).await.unwrap();
        assert_eq!(output.exit.code, Some(0), "{line}: {}", output.stderr.text());
        output.stdout.text().into_owned()
    }

    pub(crate) async fn end(self) {
        self.provider.destroy(self.handle.id()).await.unwrap();
        nothing_is_left(&self.home(), &BTreeSet::from([self.handle.id().to_string()]));
    }
}

pub(crate) fn open(home: &Path) -> LocalProvider {
    LocalProvider::new(LocalConfig::new().with_home(home).with_helper(HELPER)).unwrap()
}

/// Runs one test of this program in a process of its own.
pub(crate) fn alone(test: &str, envs: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .envs(envs.iter().copied())
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    for line in text.lines().filter_map(|line| line.find("measured ").map(|at| &line[at..])) {
        println!("{line}");
    }
}
