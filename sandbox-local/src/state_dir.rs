//! The state directory: where all sandboxes of one user on one machine are.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::{Doing, Failure, FailureKind};
use crate::record::{Record, Spec};

/// Version of the layout below the state directory.
const VERSION: u32 = 1;

/// The directory that holds sandboxes, base trees and id ranges.
#[derive(Clone, Debug)]
pub struct StateDir {
    home: PathBuf,
}

impl StateDir {
    /// Returns where sandboxes are kept unless said otherwise: `SANDHOLD_HOME`, else `sandhold` in the user's state
    /// directory (`XDG_STATE_HOME`, else `~/.local/state`).
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] if no variable says where.
    pub fn default_home() -> Result<PathBuf, Failure> {
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        variable("SANDHOLD_HOME")
            .or_else(|| variable("XDG_STATE_HOME").map(|dir| dir.join("sandhold")))
            .or_else(|| variable("HOME").map(|dir| dir.join(".local/state/sandhold")))
            .ok_or_else(|| {
                Failure::new(
                    FailureKind::InvalidArgument,
                    "no state directory: set SANDHOLD_HOME, XDG_STATE_HOME or HOME to an absolute path",
                )
            })
    }

    /// Opens the state directory at `home`, and makes it if it is not there.
    ///
    /// # Errors
    /// [`FailureKind::Unsupported`] if a newer version of this program made it, [`FailureKind::PermissionDenied`] if it
    /// belongs to another user, and those of the file system.
    pub fn open(home: impl Into<PathBuf>) -> Result<Self, Failure> {
        let home = home.into();
        let doing = || format!("use the state directory {}", home.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(home.join("sandboxes")).doing(doing())?;
        let meta = fs::metadata(&home).doing(doing())?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(Failure::new(
                FailureKind::PermissionDenied,
                format!("the state directory {} belongs to another user; set SANDHOLD_HOME", home.display()),
            ));
        }
        if meta.mode() & 0o077 != 0 {
            let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(&home, closed).doing(doing())?;
        }
        check_version(&home.join("version"))?;
        Ok(Self { home })
    }

    /// Returns the path of the state directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the directory of a sandbox, which need not be there.
    pub fn sandbox(&self, id: &str) -> PathBuf {
        self.home.join("sandboxes").join(id)
    }

    /// Makes the directory of a new sandbox with its record, which is on disk when this returns.
    ///
    /// # Errors
    /// [`FailureKind::Conflict`] if there is one of that id, [`FailureKind::InvalidArgument`] names a bad value.
    pub fn create(&self, spec: Spec) -> Result<PathBuf, Failure> {
        spec.check()?;
        let dir = self.sandbox(&spec.id);
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Failure::new(
                    FailureKind::Conflict,
                    format!("there is a sandbox {:?} already", spec.id),
                ));
            }
            other => other.doing(format_args!("make {}", dir.display()))?,
        }
        Record::new(spec).save(&dir)?;
        Ok(dir)
    }
}

fn check_version(path: &Path) -> Result<(), Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fresh = path.with_extension(format!("new-{}", std::process::id()));
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh);
            return file
                .as_mut()
                .map_err(|error| io::Error::from(error.kind()))
                .and_then(|file| file.write_all(format!("{VERSION}\n").as_bytes()))
                .and_then(|()| fs::rename(&fresh, path))
                .doing("write the version of the state directory");
        }
        Err(error) => return Err(Failure::os("read the version of the state directory", error)),
    };
    match text.trim().parse::<u32>() {
        Ok(VERSION) => Ok(()),
        Ok(newer) => Err(Failure::unsupported(format!(
            "the state directory has version {newer} and this program knows {VERSION}: use a newer program, or \
             another directory (SANDHOLD_HOME)"
        ))),
        Err(_) => {
            Err(Failure::new(FailureKind::Unexpected, format!("{} is damaged: {text:?}", path.display())))
        }
    }
}
