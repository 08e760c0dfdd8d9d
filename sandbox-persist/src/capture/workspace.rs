use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use sandhold_core::{Error, Result};

use crate::{beneath, error, vault};

/// A workspace that was opened: from now on its path is not resolved again.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) path: PathBuf,
    pub(crate) root: OwnedFd,
}

impl Workspace {
    /// Resolves the path once, and refuses what is hardly meant, and what holds the vault itself.
    pub(crate) fn open(path: &Path, force: bool, vault: &Path) -> Result<Self> {
        let resolved =
            path.canonicalize().map_err(|failure| error::io("find the workspace", path, failure))?;
        if resolved.to_str().is_none() {
            return Err(Error::invalid_argument(format!(
                "the workspace {} has a path that is not UTF-8; give it another name",
                resolved.display()
            )));
        }
        let home = std::env::home_dir().and_then(|home| home.canonicalize().ok());
        if !force && (resolved == Path::new("/") || home.as_deref() == Some(&*resolved)) {
            return Err(Error::invalid_argument(format!(
                "{} is a whole home or machine and hardly a workspace; force it where it is meant",
                resolved.display()
            ))
            .with_reason("too_wide"));
        }
        let vault = vault.canonicalize().map_err(|failure| error::io("find the vault", vault, failure))?;
        // What is in a `.git` is neither captured nor restored over.
        let is_seen = vault
            .strip_prefix(&resolved)
            .is_ok_and(|inner| !inner.components().any(|name| name.as_os_str() == ".git"));
        if is_seen || resolved.starts_with(&vault) {
            return Err(Error::invalid_argument(format!(
                "the workspace {} and the vault {} are within one another; put the vault elsewhere",
                resolved.display(),
                vault.display()
            )));
        }
        Ok(Self { root: beneath::open_root(&resolved)?, path: resolved })
    }

    /// The name of what is kept for this workspace: its lock and its stat cache.
    pub(crate) fn key(&self) -> String {
        format!("workspace-{}", vault::path_hash(&self.path))
    }
}
