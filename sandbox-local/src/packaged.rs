//! The helper of a package, whose installer may have dropped the executable bit or put it where nothing may be executed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use sandhold_core::{Error, ErrorKind, Result};
use sha2::{Digest as _, Sha256};

use crate::launch::NO_HELPER;

/// The directory of copies, below the state directory.
const COPIES: &str = "helpers";

/// Returns a path where the helper can be executed: as it is packaged, or as a copy under its hash.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] with reason `no_helper` when it is not there; [`ErrorKind::Unsupported`] when nothing may
/// be executed in the state directory either.
pub(crate) fn executable(packaged: &Path, state: &Path) -> Result<PathBuf> {
    // Of a file on a file system mounted `noexec` this says no, too.
    if access(packaged, Access::EXEC_OK).is_ok() {
        return Ok(packaged.to_owned());
    }
    let failed = |kind: ErrorKind, doing: &str, path: &Path, error: io::Error| {
        Error::new(kind, format!("the helper of this package cannot be {doing} {}", path.display()))
            .with_reason(NO_HELPER)
            .with_source(error)
    };
    let content =
        fs::read(packaged).map_err(|error| failed(ErrorKind::InvalidArgument, "read at", packaged, error))?;
    let hash: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let copies = state.join(COPIES);
    let copy = copies.join(format!("sandhold-helper-{hash}"));
    let is_whole = fs::metadata(&copy).is_ok_and(|facts| facts.len() == content.len() as u64);
    if !is_whole {
        write(&copies, &copy, &content)
            .map_err(|error| failed(ErrorKind::Unavailable, "copied to", &copy, error))?;
    }
    access(&copy, Access::EXEC_OK).map_err(|error| {
        failed(ErrorKind::Unsupported, "executed, neither as it is nor as a copy at", &copy, error.into())
    })?;
    Ok(copy)
}

/// Writes a copy so that whoever sees it sees all of it.
fn write(copies: &Path, copy: &Path, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(copies)?;
    let draft = copies.join(format!(".{:016x}", fastrand::u64(..)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&draft)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    // Open for writing it could not be executed.
    drop(file);
    let moved = written.and_then(|()| fs::rename(&draft, copy));
    if moved.is_err() {
        // The failure that matters is told already.
        let _ = fs::remove_file(&draft);
    }
    moved
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_helper_without_its_executable_bit_runs_as_a_copy_that_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let (packaged, state) = (dir.path().join("sandhold-helper"), dir.path().join("state"));
        fs::write(&packaged, "#!/bin/sh\necho runs\n").unwrap();
        fs::set_permissions(&packaged, fs::Permissions::from_mode(0o644)).unwrap();
        let copy = executable(&packaged, &state).unwrap();
        let output = std::process::Command::new(&copy).output().unwrap();
        assert_eq!(output.stdout, b"runs\n");
        let made = fs::metadata(&copy).unwrap().modified().unwrap();
        assert_eq!(executable(&packaged, &state).unwrap(), copy);
        assert_eq!(fs::metadata(&copy).unwrap().modified().unwrap(), made);
        assert_eq!(fs::read_dir(state.join(COPIES)).unwrap().count(), 1);
    }

    #[test]
    fn a_helper_that_can_be_executed_stays_where_it_is_and_one_that_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let packaged = dir.path().join("sandhold-helper");
        let error = executable(&packaged, dir.path()).unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidArgument, Some(NO_HELPER)));
        assert!(error.message().contains("sandhold-helper"), "{error}");
        fs::write(&packaged, "").unwrap();
        fs::set_permissions(&packaged, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(executable(&packaged, dir.path()).unwrap(), packaged);
    }
}
