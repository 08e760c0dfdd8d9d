//! The operations of the filesystem service, with the errors that E2B's clients expect. All of them block.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use connectrpc::ConnectError;
use rustix::fs::CWD;
use rustix::io::Errno;

use crate::daemon::fs::actor::Actor;
use crate::daemon::fs::remove::{is_mount_root, remove_tree};
use crate::daemon::fs::{entry, path};
use crate::messages::filesystem::EntryInfo;

/// Describes one entry.
pub(crate) fn stat(actor: &Actor, path: &str) -> Result<EntryInfo, ConnectError> {
    let path = resolve(actor, path)?;
    entry::describe(&path, actor).map_err(|error| missing_or_internal("stat", &path, &error))
}

/// Makes a directory and its missing parents.
pub(crate) fn make_dir(actor: &Actor, path: &str) -> Result<EntryInfo, ConnectError> {
    let path = resolve(actor, path)?;
    match fs::metadata(&path) {
        Ok(stat) if stat.is_dir() => {
            return Err(ConnectError::already_exists(format!(
                "directory already exists: {}",
                path.display()
            )));
        }
        Ok(_) => {
            return Err(ConnectError::invalid_argument(format!(
                "path already exists but it is not a directory: {}",
                path.display()
            )));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(internal("stat", &path, &error)),
    }
    actor.make_dirs(&path).map_err(|error| internal("make directory", &path, &error))?;
    entry::describe(&path, actor).map_err(|error| internal("stat", &path, &error))
}

/// Renames an entry, after making the destination's missing parents.
pub(crate) fn rename(actor: &Actor, source: &str, destination: &str) -> Result<EntryInfo, ConnectError> {
    let source = resolve(actor, source)?;
    let destination = resolve(actor, destination)?;
    fs::symlink_metadata(&source).map_err(|error| missing_or_internal("move", &source, &error))?;
    if let Some(parent) = destination.parent() {
        actor.make_dirs(parent).map_err(|error| internal("make directory", parent, &error))?;
    }
    fs::rename(&source, &destination).map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing_or_internal("move", &source, &error),
        ErrorKind::CrossesDevices => ConnectError::internal(format!(
            "cannot move {} to {}: they are on different file systems; copy it and remove the source",
            source.display(),
            destination.display()
        )),
        _ => internal("move to", &destination, &error),
    })?;
    entry::describe(&destination, actor).map_err(|error| internal("stat", &destination, &error))
}

/// Lists a directory down to `depth` levels (0 means 1): depth first, each directory in byte order.
///
/// A link as the root is followed, links below it are not; entries keep the prefix that was asked for.
pub(crate) fn list(actor: &Actor, path: &str, depth: u32) -> Result<Vec<EntryInfo>, ConnectError> {
    let root = resolve(actor, path)?;
    let stat = fs::metadata(&root).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => {
            ConnectError::failed_precondition(format!("too many links in path {}", root.display()))
        }
        _ => missing_or_internal("list", &root, &error),
    })?;
    if !stat.is_dir() {
        return Err(ConnectError::invalid_argument(format!("path is not a directory: {}", root.display())));
    }
    let mut entries = Vec::new();
    list_into(&mut entries, &path::clean(&root), depth.max(1), actor)
        .map_err(|error| missing_or_internal("list", &root, &error))?;
    Ok(entries)
}

/// Lists without recursion: how deep a tree is, whoever filled it decided.
fn list_into(entries: &mut Vec<EntryInfo>, root: &Path, depth: u32, actor: &Actor) -> io::Result<()> {
    let mut open = vec![(root.to_owned(), children(root)?)];
    while let Some((dir, left)) = open.last_mut() {
        let Some((name, is_dir)) = left.pop() else {
            open.pop();
            continue;
        };
        let path = dir.join(name);
        // What vanishes while the listing runs was not there.
        let Ok(info) = entry::describe(&path, actor) else { continue };
        entries.push(info);
        if is_dir && open.len() < depth as usize {
            match children(&path) {
                Ok(below) => open.push((path, below)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The names in a directory, the first one last, and whether each is a directory itself.
fn children(dir: &Path) -> io::Result<Vec<(OsString, bool)>> {
    let child = |child: io::Result<fs::DirEntry>| {
        let child = child?;
        Ok((child.file_name(), child.file_type().is_ok_and(|kind| kind.is_dir())))
    };
    let mut children = fs::read_dir(dir)?.map(child).collect::<io::Result<Vec<_>>>()?;
    children.sort_by(|(a, _), (b, _)| b.as_bytes().cmp(a.as_bytes()));
    Ok(children)
}

/// Removes an entry and everything below it; a missing one is as good as removed.
///
/// Refuses the root and the top of a mounted file system: neither can be removed, and trying would empty it.
pub(crate) fn remove(actor: &Actor, path: &str) -> Result<(), ConnectError> {
    let path = resolve(actor, path)?;
    if path::clean(&path) == Path::new("/") {
        return Err(ConnectError::invalid_argument(format!(
            "cannot remove {}: it is the root directory",
            path.display()
        )));
    }
    let stat = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        stat => stat.map_err(|error| internal("remove", &path, &error))?,
    };
    if is_mount_root(CWD, &path) {
        return Err(ConnectError::internal(format!(
            "cannot remove {}: another file system is mounted there",
            path.display()
        )));
    }
    let removed = if stat.is_dir() { remove_tree(&path, false) } else { fs::remove_file(&path) };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| internal("remove", &path, &error)),
    }
}

/// Resolves a path of a request.
pub(crate) fn resolve(actor: &Actor, path: &str) -> Result<PathBuf, ConnectError> {
    actor.resolve(path).map_err(|error| ConnectError::invalid_argument(error.to_string()))
}

/// `not_found` for what is not there, `internal` for any other failure.
pub(crate) fn missing_or_internal(what: &str, path: &Path, error: &io::Error) -> ConnectError {
    if error.kind() == ErrorKind::NotFound {
        ConnectError::not_found(format!("path not found: {}", path.display()))
    } else {
        internal(what, path, error)
    }
}

/// `invalid_argument` for what no entry can be named, else `internal`.
fn internal(what: &str, path: &Path, error: &io::Error) -> ConnectError {
    let message = format!("cannot {what} {}: {error}", path.display());
    match Errno::from_io_error(error) {
        Some(Errno::NAMETOOLONG) => ConnectError::invalid_argument(message),
        _ => ConnectError::internal(message),
    }
}
