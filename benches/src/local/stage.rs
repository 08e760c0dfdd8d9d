//! Where measurements happen: a state directory of their own, removed at the end.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandhold_core::{
    Attempt, CreateOptions, Generation, Key, Owner, SandboxHandle, SandboxId, SandboxProvider as _,
    SandboxSpec, Tags,
};
use sandhold_local::{LocalConfig, LocalProvider};
use tempfile::TempDir;

use crate::{Result, helper};

pub(crate) struct Stage {
    pub(crate) provider: LocalProvider,
    pub(crate) helper: PathBuf,
    pub(crate) helper_is_static: bool,
    pub(crate) runs: usize,
    /// Of what moves a gibibyte.
    pub(crate) long_runs: usize,
    /// Sandboxes that are alive together.
    pub(crate) crowd: usize,
    directory: TempDir,
}

impl Stage {
    pub(crate) fn open(home: Option<&Path>, quick: bool) -> Result<Self> {
        let directory = match home {
            Some(home) => TempDir::new_in(home)?,
            None => TempDir::new()?,
        };
        let helper = helper::find()?;
        let helper_is_static = is_static(&helper)?;
        let provider = provider(&directory.path().join("state"), &helper)?;
        let (runs, long_runs, crowd) = if quick { (15, 3, 20) } else { (50, 50, 200) };
        Ok(Self { provider, helper, helper_is_static, runs, long_runs, crowd, directory })
    }

    pub(crate) fn home(&self) -> &Path {
        self.provider.home()
    }

    /// A place beside the state directory, on the same file system.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) async fn create(&self) -> Result<Made> {
        let options = CreateOptions::new(SandboxSpec::default(), tags()?);
        let handle = self.provider.create_opts(options).await?;
        Ok(Made { handle, provider: self.provider.clone() })
    }
}

/// A sandbox of this run.
pub(crate) struct Made {
    handle: Arc<dyn SandboxHandle>,
    provider: LocalProvider,
}

impl Made {
    pub(crate) fn directory(&self) -> PathBuf {
        self.provider.home().join("sandboxes").join(self.id().as_str())
    }

    /// Returns the processes of its monitor and its daemon: both are the helper, started for its directory.
    pub(crate) fn processes(&self) -> Result<Vec<u32>> {
        let directory = self.directory();
        let wanted = directory.as_os_str().as_encoded_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if line.split(|byte| *byte == 0).any(|word| word == wanted) {
                found.push(pid);
            }
        }
        match found.len() {
            2 => Ok(found),
            count => Err(format!("{count} processes instead of 2 run {}", directory.display()).into()),
        }
    }

    pub(crate) async fn destroy(self) -> Result<()> {
        self.provider.destroy(self.handle.id()).await?;
        Ok(())
    }
}

impl Deref for Made {
    type Target = Arc<dyn SandboxHandle>;

    fn deref(&self) -> &Self::Target {
        &self.handle
    }
}

pub(crate) fn tags() -> Result<Tags> {
    Ok(Tags {
        owner: Owner::default(),
        key: Key::new("bench")?,
        generation: Generation::random()?,
        attempt: Attempt::random()?,
    })
}

pub(crate) fn provider(home: &Path, helper: &Path) -> Result<LocalProvider> {
    Ok(LocalProvider::new(LocalConfig::new().with_home(home).with_helper(helper))?)
}

pub(crate) fn id(text: &str) -> SandboxId {
    SandboxId::new(text)
}

/// Tells whether a 64-bit ELF program asks for no loader.
fn is_static(program: &Path) -> Result<bool> {
    const INTERPRETER: u32 = 3;
    let bytes = fs::read(program)?;
    let number = |at: usize, length: usize| -> Option<u64> {
        let field = bytes.get(at..at + length)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let headers = || -> Option<bool> {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count).try_fold(true, |is_static, index| {
            let kind = number(usize::try_from(start + index * size).ok()?, 4)?;
            Some(is_static && kind != u64::from(INTERPRETER))
        })
    };
    headers().ok_or_else(|| format!("{} is not a 64-bit ELF program", program.display()).into())
}
