//! Holding a restore to its receipt.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, OFlags};
use sandhold_core::{Error, ErrorKind, Outcome, Result};

use super::plan::{EXECUTABLE, FILE, SYMLINK, Wanted};
use crate::capture::blob_id;
use crate::path::WorkPath;
use crate::receipt::Receipt;
use crate::{beneath, path};

/// Looks at all that was promised, on disk.
///
/// # Errors
/// `invalid_state` with reason `restore_incomplete`, which names what is missing.
pub(super) fn receipt(root: BorrowedFd<'_>, wanted: &Wanted, receipt: &Receipt) -> Result<()> {
    let mut missing: Vec<String> =
        receipt.missing.iter().map(|missing| format!("{} ({})", missing.what, missing.why)).collect();
    for promise in &receipt.promised {
        let at = promise.path.as_bytes();
        if !matches!(promise.mode, FILE | EXECUTABLE | SYMLINK) {
            if beneath::open_dir(root, at).is_err() {
                missing.push(format!("{} (no directory)", promise.path));
                continue;
            }
            let below = [at, b"/"].concat();
            let items = wanted.items.range(below.clone().into_boxed_slice()..);
            for (path, item) in items.take_while(|(path, _)| path.starts_with(&below)) {
                check(root, path, item.mode, item.id, &mut missing);
            }
            continue;
        }
        check(root, at, promise.mode, promise.id, &mut missing);
    }
    if missing.is_empty() {
        return Ok(());
    }
    let shown = missing.iter().take(20).map(String::as_str).collect::<Vec<_>>().join(", ");
    Err(Error::new(
        ErrorKind::InvalidState,
        format!("{} things that were to survive are not there: {shown}", missing.len()),
    )
    .with_reason("restore_incomplete")
    .with_outcome(Outcome::Done))
}

fn check(root: BorrowedFd<'_>, at: &[u8], mode: u32, id: crate::ObjectId, missing: &mut Vec<String>) {
    let found = found(root, at);
    if found != Some((mode, id)) {
        let why = if found.is_none() { "not there" } else { "another content or mode" };
        missing.push(format!("{} ({why})", WorkPath::new(at)));
    }
}

pub(super) fn found(root: BorrowedFd<'_>, at: &[u8]) -> Option<(u32, crate::ObjectId)> {
    use std::os::unix::ffi::OsStrExt;
    let (dir, name) = path::split(at);
    let dir = beneath::open_dir(root, dir).ok()?;
    let name = std::ffi::OsStr::from_bytes(name);
    let stat = rustix::fs::statat(&dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&dir, name, Vec::new()).ok()?;
            Some((SYMLINK, crate::ObjectId::of("blob", target.as_bytes())))
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let file = beneath::open(root, at, flags, rustix::fs::Mode::empty()).ok()?;
            let mode = if stat.st_mode & 0o100 != 0 { EXECUTABLE } else { FILE };
            Some((mode, blob_id(&file.into()).ok()?))
        }
        _ => None,
    }
}

/// Tells whether a file may be made at a path: nothing is there, or directories that the plan empties.
///
/// # Errors
/// What is in the way.
pub(super) fn is_free(root: BorrowedFd<'_>, at: &[u8], deletes: &[Box<[u8]>]) -> Result<(), WorkPath> {
    use std::os::unix::ffi::OsStrExt;
    let (dir, name) = path::split(at);
    // A directory that is not there has nothing in it; a file in its place is captured, or blocks.
    let Ok(dir) = beneath::open_dir(root, dir) else {
        return above_is_free(root, dir, deletes);
    };
    let name = std::ffi::OsStr::from_bytes(name);
    match rustix::fs::statat(&dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Err(_) => Ok(()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            only_deleted(root, at, deletes)
        }
        Ok(_) => Err(WorkPath::new(at)),
    }
}

fn above_is_free(root: BorrowedFd<'_>, at: &[u8], deletes: &[Box<[u8]>]) -> Result<(), WorkPath> {
    let mut above = at;
    while !above.is_empty() {
        let (dir, name) = path::split(above);
        if let Ok(dir) = beneath::open_dir(root, dir) {
            use std::os::unix::ffi::OsStrExt;
            let name = std::ffi::OsStr::from_bytes(name);
            let is_there = rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok();
            let goes = deletes.iter().any(|path| **path == *above);
            return if is_there && !goes { Err(WorkPath::new(above)) } else { Ok(()) };
        }
        above = dir;
    }
    Ok(())
}

fn only_deleted(root: BorrowedFd<'_>, at: &[u8], deletes: &[Box<[u8]>]) -> Result<(), WorkPath> {
    let unreadable = |_| WorkPath::new(at);
    let dir = beneath::open_dir(root, at).map_err(unreadable)?;
    for entry in rustix::fs::Dir::read_from(&dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let path = path::join(at, name);
        let stat = rustix::fs::statat(&dir, entry.file_name(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .map_err(unreadable)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            only_deleted(root, &path, deletes)?;
        } else if !deletes.iter().any(|deleted| **deleted == *path) {
            return Err(WorkPath::new(path));
        }
    }
    Ok(())
}
