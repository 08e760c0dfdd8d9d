use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::OFlags;
use sandhold_core::{Error, ErrorKind, Result};

use super::options::CaptureOptions;
use super::scan::{Content, Kind, Scan};
use super::workspace::Workspace;
use crate::git::GitDir;
use crate::oid::ObjectId;
use crate::path::{self, WorkPath};
use crate::receipt::Receipt;
use crate::side::{Metadata, Nested, SideManifest, SkipReason, Skipped};
use crate::snapshot::Snapshot;
use crate::{beneath, error, vault};

/// The files of the side commit's tree.
pub(super) const SIDE: &str = "side.json";
pub(super) const RECEIPT: &str = "receipt.json";
/// Values of extended attributes above this are left out.
const MAX_XATTR: usize = 64 << 10;

/// Gathers what git cannot hold of a scan.
pub(crate) fn of(scan: &Scan, workspace: &Workspace, options: &CaptureOptions) -> Result<SideManifest> {
    let mut side = SideManifest { version: 1, ..SideManifest::default() };
    for (at, dir) in &scan.dirs {
        if dir.is_repository {
            let git = GitDir::find(workspace.root.as_fd(), &workspace.path, at);
            let head = git.ok().flatten().and_then(|git| git.head().ok()).and_then(|head| head.commit);
            side.nested.push(Nested { path: WorkPath::new(&**at), head, submodule: false });
        }
        if dir.is_unreadable {
            side.skipped.push(Skipped::new(&**at, SkipReason::Unreadable));
        }
        let holds_nothing = dir.entries.iter().all(|entry| matches!(entry.kind, Kind::Skipped(_)));
        if holds_nothing && !at.is_empty() && !dir.is_unreadable {
            side.empty_dirs.push(WorkPath::new(&**at));
        }
        for entry in &dir.entries {
            let path = || path::join(at, &entry.name);
            let reason = match (entry.kind, entry.content) {
                (Kind::Skipped(reason), _) => Some(reason),
                (_, Content::Unstable) => Some(SkipReason::Unstable),
                (_, Content::Kept) if options.rules.max_file.is_some_and(|max| entry.stat.size > max) => {
                    Some(SkipReason::TooLarge)
                }
                (_, Content::Kept) => Some(SkipReason::Unreadable),
                _ => None,
            };
            if let Some(reason) = reason {
                let size = (reason == SkipReason::TooLarge).then_some(entry.stat.size);
                side.skipped.push(Skipped { size, ..Skipped::new(path(), reason) });
            }
            if entry.is_pointer {
                side.lfs_pointers.push(WorkPath::new(path()));
            }
            if (options.mtimes || options.xattrs) && !matches!(entry.kind, Kind::Skipped(_)) {
                let path = path();
                let modified = options.mtimes.then_some(entry.stat.modified);
                let xattrs = match options.xattrs && entry.kind != Kind::Symlink {
                    true => xattrs(workspace, &path),
                    false => Vec::new(),
                };
                if modified.is_some() || !xattrs.is_empty() {
                    side.metadata.push(Metadata { path: WorkPath::new(path), modified, xattrs });
                }
            }
        }
    }
    if !options.older.is_empty() {
        let told: HashSet<WorkPath> = side.skipped.iter().map(|skipped| skipped.path.clone()).collect();
        side.skipped.extend(options.older.iter().filter(|older| !told.contains(&older.path)).cloned());
    }
    Ok(side)
}

/// The attributes of the `user.` namespace; those of a file that is gone meanwhile are none.
fn xattrs(workspace: &Workspace, path: &[u8]) -> Vec<(WorkPath, Vec<u8>)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(file) = beneath::open(workspace.root.as_fd(), path, flags, rustix::fs::Mode::empty()) else {
        return Vec::new();
    };
    let mut names = vec![0u8; MAX_XATTR];
    let Ok(length) = rustix::fs::flistxattr(&file, &mut names[..]) else { return Vec::new() };
    names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| name.starts_with(b"user."))
        .filter_map(|name| {
            let mut value = vec![0u8; MAX_XATTR];
            let length =
                rustix::fs::fgetxattr(&file, std::ffi::OsStr::from_bytes(name), &mut value[..]).ok()?;
            value.truncate(length);
            Some((WorkPath::new(name), value))
        })
        .collect()
}

/// Reads what a snapshot has beside its tree; one without a side commit has nothing.
pub(crate) fn read(repository: &git2::Repository, snapshot: &Snapshot) -> Result<SideManifest> {
    let Some(side) = snapshot.side else {
        return Ok(SideManifest { version: 1, ..SideManifest::default() });
    };
    let text = file(repository, side, SIDE)?.ok_or_else(|| {
        Error::new(ErrorKind::Unexpected, format!("the side commit {side} of {} has no {SIDE}", snapshot.id))
    })?;
    serde_json::from_slice(&text).map_err(|failure| {
        Error::new(ErrorKind::Unexpected, format!("{SIDE} of {} cannot be read: {failure}", snapshot.id))
    })
}

/// Reads the receipt out of the side commit, where there is one.
pub(crate) fn read_receipt(repository: &git2::Repository, snapshot: &Snapshot) -> Option<Receipt> {
    serde_json::from_slice(&file(repository, snapshot.side?, RECEIPT).ok()??).ok()
}

fn file(repository: &git2::Repository, side: ObjectId, name: &str) -> Result<Option<Vec<u8>>> {
    let commit = vault::commit(repository, side)?;
    let tree = vault::tree(repository, commit.tree_id().into())?;
    let Some(entry) = tree.get_name(name) else { return Ok(None) };
    let blob = repository
        .find_blob(entry.id())
        .map_err(|failure| error::git(format_args!("read {name} of the side commit {side}"), failure))?;
    Ok(Some(blob.content().to_vec()))
}
