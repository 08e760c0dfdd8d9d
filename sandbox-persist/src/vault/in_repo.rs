//! Vaults in somebody's repository.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use sandhold_core::{Error, ErrorKind, Result};

use super::objects::ALTERNATES;
use super::refs::SNAPSHOTS;
use crate::git::GitDir;
use crate::{beneath, durable, error};

/// What is ours in a `.git`, and git leaves alone.
const OURS: &str = "sandhold";

/// Finds the directory of our own files, which is made, and the repository of a workspace, which must be there.
pub(super) fn find(workspace: &Path) -> Result<(PathBuf, PathBuf)> {
    let path =
        workspace.canonicalize().map_err(|failure| error::io("find the workspace", workspace, failure))?;
    let root = beneath::open_root(&path)?;
    let git = match GitDir::find(root.as_fd(), &path, b"") {
        Ok(Some(git)) => git,
        Ok(None) => {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "{} has no repository; run `git init` there, or keep snapshots in a vault",
                    path.display()
                ),
            )
            .with_reason("no_repository"));
        }
        Err(why) => return Err(refused(&path, &why)),
    };
    git.takes_files().map_err(|why| refused(&path, &why))?;
    let git_dir = git.common_path().to_owned();
    if git_dir.to_str().is_none() {
        return Err(refused(&path, "its path is not UTF-8"));
    }
    let ours = git_dir.join(OURS);
    // Whoever may write there must not lead us elsewhere.
    for dir in ["objects", "objects/pack", "refs", "refs/sandbox", SNAPSHOTS.trim_end_matches('/'), OURS] {
        refuse_link(&path, &git_dir.join(dir))?;
    }
    if fs::symlink_metadata(git_dir.join("commondir")).is_ok() {
        return Err(refused(&path, "its commondir names another place for objects and refs"));
    }
    if fs::symlink_metadata(git_dir.join("objects").join(ALTERNATES)).is_ok() {
        return Err(refused(&path, "it borrows objects of another one (objects/info/alternates)"));
    }
    for dir in ["objects/pack", "refs"] {
        if !git_dir.join(dir).is_dir() {
            return Err(refused(&path, &format!("it has no {dir}")));
        }
    }
    durable::create_dir(&ours)?;
    beneath::sync_dir(&git_dir)?;
    for entry in fs::read_dir(&ours).map_err(|failure| error::io("list", &ours, failure))? {
        refuse_link(&path, &entry.map_err(|failure| error::io("list", &ours, failure))?.path())?;
    }
    Ok((ours, git_dir))
}

fn refuse_link(workspace: &Path, path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(stat) if stat.is_symlink() => {
            Err(refused(workspace, &format!("{} is a symlink, which is not followed", path.display())))
        }
        _ => Ok(()),
    }
}

fn refused(workspace: &Path, why: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "the repository of {} cannot hold snapshots: {why}; keep them in a vault elsewhere",
            workspace.display()
        ),
    )
    .with_reason("in_repo")
}
