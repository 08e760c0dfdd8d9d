//! Files of a volume, as the content API shows and changes them. All of it blocks.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use sandhold_e2b::wire::{Timestamp, VolumeEntry, VolumeEntryKind};

use crate::rooted::{Place, Root, inner_path, names};

/// The ordinary user inside, who gets what nobody else is named for.
const USER_ID: u32 = 1000;
/// Deepest listing, and most entries of one.
const MAX_DEPTH: u32 = 64;
const MAX_ENTRIES: usize = 100_000;

/// What went wrong.
#[derive(Debug)]
pub(super) enum Fault {
    /// There is nothing there.
    NotFound,
    /// It cannot be done with what is there, or with what was asked for.
    Invalid(String),
    /// It belongs to somebody whom this server may not act for.
    Closed(String),
    /// This machine could not do it.
    Failed(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            // What stands in the way in the volume is the caller's to clear.
            Some(Errno::LOOP | Errno::NAMETOOLONG | Errno::XDEV) => return Self::Invalid(error.to_string()),
            Some(Errno::NXIO) => return Self::Invalid("a socket cannot be opened".to_owned()),
            _ => {}
        }
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::AlreadyExists => Self::Invalid(error.to_string()),
            io::ErrorKind::PermissionDenied => Self::Closed(format!(
                "it belongs to a user inside, and this server does not run as root: {error}"
            )),
            _ => Self::Failed(error),
        }
    }
}

/// What was asked for of a new or changed entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mode: Option<u32>,
    /// Makes parents of directories.
    pub(super) force: bool,
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Lets the ordinary user of sandboxes write into a directory.
pub(super) fn open_to_user(path: &Path) -> io::Result<()> {
    let (parent, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    let place = Root::open(parent)?.place_of(Path::new(name))?;
    settle(&place, Wanted::default(), 0o755).map_err(|fault| match fault {
        Fault::Failed(error) => error,
        Fault::NotFound => io::ErrorKind::NotFound.into(),
        Fault::Invalid(why) | Fault::Closed(why) => io::Error::other(why),
    })
}

/// Sets owner and mode of a new entry.
fn settle(place: &Place, wanted: Wanted, mode: u32) -> Result<(), Fault> {
    // Where files cannot be given away, everybody inside gets them.
    let mode = wanted.mode.unwrap_or(if is_root() { mode } else { mode | 0o666 | (mode & 0o111) });
    if is_root() || wanted.uid.is_some() || wanted.gid.is_some() {
        own(place, wanted.uid.unwrap_or(USER_ID), wanted.gid.unwrap_or(USER_ID))?;
    }
    Ok(place.chmod(mode & 0o1777)?)
}

/// Gives an entry away, by the ids that sandboxes see.
fn own(place: &Place, uid: u32, gid: u32) -> Result<(), Fault> {
    if uid > 65_535 || gid > 65_535 {
        return Err(Fault::Invalid(format!("no sandbox has the ids {uid}:{gid}; they end at 65535")));
    }
    if is_root() {
        return Ok(place.chown(uid, gid)?);
    }
    if (uid, gid) == (0, 0) {
        return Ok(());
    }
    Err(Fault::Invalid(format!("only a server that runs as root can give files to {uid}:{gid}")))
}

/// Refuses what are no permission bits.
pub(super) fn check_mode(mode: Option<u32>) -> Result<(), Fault> {
    match mode.filter(|mode| *mode > 0o7777) {
        None => Ok(()),
        Some(mode) => Err(Fault::Invalid(format!(
            "the mode {mode} is more than the permission bits 0 to 4095 (0o7777)"
        ))),
    }
}

/// Reads a path of a request; `None` for the volume itself.
pub(super) fn parse(path: &str) -> Result<Option<PathBuf>, Fault> {
    inner_path(Path::new(path))
        .map_err(|_| Fault::Invalid(format!("the path {:?} is not one of a volume", shown(path))))
}

fn shown(path: &str) -> String {
    path.chars().take(256).collect()
}

/// A volume.
#[derive(Debug)]
pub(super) struct Files {
    root: Root,
}

impl Files {
    pub(super) fn open(directory: &Path) -> Result<Self, Fault> {
        Ok(Self { root: Root::open(directory)? })
    }

    /// Says what is at a path.
    pub(super) fn stat(&self, path: Option<&Path>) -> Result<VolumeEntry, Fault> {
        match path {
            None => {
                let stat = rustix::fs::fstat(self.root.as_fd()).map_err(io::Error::from)?;
                Ok(entry("", "/".to_owned(), &stat, None))
            }
            Some(path) => self.at(&self.root.place_of(path)?, path),
        }
    }

    fn at(&self, place: &Place, path: &Path) -> Result<VolumeEntry, Fault> {
        let stat = place.stat()?.ok_or(Fault::NotFound)?;
        let target = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => Some(place.read_link()?.to_string_lossy().into_owned()),
            _ => None,
        };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(entry(&name, format!("/{}", path.display()), &stat, target))
    }

    /// Lists a directory, depth first, sorted by name, without the directory itself.
    pub(super) fn list(&self, path: Option<&Path>, depth: u32) -> Result<Vec<VolumeEntry>, Fault> {
        let path = path.unwrap_or(Path::new(""));
        let dir = self.root.dir(path)?;
        let mut found = Vec::new();
        self.list_into(&dir, path, depth.clamp(1, MAX_DEPTH), &mut found)?;
        Ok(found)
    }

    fn list_into(
        &self,
        dir: &OwnedFd,
        path: &Path,
        depth: u32,
        found: &mut Vec<VolumeEntry>,
    ) -> Result<(), Fault> {
        let mut inside = names(dir)?;
        inside.sort();
        for name in inside {
            if found.len() >= MAX_ENTRIES {
                return Err(Fault::Invalid(format!(
                    "there are more than {MAX_ENTRIES} entries; list with less depth"
                )));
            }
            let inner = path.join(&name);
            let place = Place::new(dir.try_clone()?, name);
            match self.at(&place, &inner) {
                Ok(entry) => {
                    let is_dir = entry.kind == VolumeEntryKind::Directory;
                    found.push(entry);
                    if is_dir && depth > 1 {
                        match place.open_dir() {
                            Ok(next) => self.list_into(&next, &inner, depth - 1, found)?,
                            // Gone in between, or closed to this server: it is shown, and not what is in it.
                            Err(_) => continue,
                        }
                    }
                }
                Err(Fault::NotFound) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    /// Makes a directory.
    pub(super) fn make_dir(&self, path: Option<&Path>, wanted: Wanted) -> Result<VolumeEntry, Fault> {
        let Some(path) = path else { return self.stat(None) };
        if wanted.force {
            self.make_parents(path)?;
        }
        let place = self.root.place_of(path)?;
        match place.stat()?.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            None => {
                place.make_dir(0o700)?;
                settle(&place, wanted, 0o755)?;
            }
            Some(FileType::Directory) if wanted.force => {}
            Some(_) => {
                return Err(Fault::Invalid(format!("there is something at /{} already", path.display())));
            }
        }
        self.at(&place, path)
    }

    /// Makes the directories above a path that are missing.
    fn make_parents(&self, path: &Path) -> Result<(), Fault> {
        let parents: Vec<_> =
            path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()).collect();
        for parent in parents.into_iter().rev() {
            if self.root.dir(parent).is_ok() {
                continue;
            }
            let place = self.root.place_of(parent)?;
            match place.make_dir(0o700) {
                Ok(()) => settle(&place, Wanted::default(), 0o755)?,
                // A file, a link that leads nowhere inside, or another request's directory.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.root.dir(parent).map_err(|_| {
                        Fault::Invalid(format!("/{} is there, and is no directory", parent.display()))
                    })?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Opens a file for reading; returns its size too.
    pub(super) fn read(&self, path: Option<&Path>) -> Result<(std::fs::File, u64), Fault> {
        let path = path.ok_or_else(|| Fault::Invalid("the volume itself is no file".to_owned()))?;
        let file = self.root.read(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(Fault::Invalid(format!("/{} is no file", path.display())));
        }
        Ok((file, meta.len()))
    }

    /// Gives a written file, which is in a directory of its own, its place.
    pub(super) fn put(
        &self,
        staging: &Path,
        name: &str,
        path: &Path,
        wanted: Wanted,
    ) -> Result<VolumeEntry, Fault> {
        let staged = Root::open(staging)?.place_of(Path::new(name))?;
        settle(&staged, wanted, 0o644)?;
        self.make_parents(path)?;
        let place = self.root.place_of(path)?;
        if place.stat()?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()) {
            return Err(Fault::Invalid(format!("/{} is a directory", path.display())));
        }
        staged.rename_to(&place)?;
        self.at(&place, path)
    }

    /// Changes owner and mode.
    pub(super) fn change(&self, path: Option<&Path>, wanted: Wanted) -> Result<VolumeEntry, Fault> {
        let path = path.ok_or_else(|| Fault::Invalid("the volume itself is left as it is".to_owned()))?;
        let place = self.root.place_of(path)?;
        let stat = place.stat()?.ok_or(Fault::NotFound)?;
        if wanted.uid.is_some() || wanted.gid.is_some() {
            own(&place, wanted.uid.unwrap_or(stat.st_uid), wanted.gid.unwrap_or(stat.st_gid))?;
        }
        if let Some(mode) = wanted.mode {
            place.chmod(mode & 0o1777)?;
        }
        self.at(&place, path)
    }

    /// Removes a file, or a directory with all that is in it.
    pub(super) fn remove(&self, path: Option<&Path>) -> Result<(), Fault> {
        let path = path
            .ok_or_else(|| Fault::Invalid("the volume itself is removed by DELETE /volumes/ID".to_owned()))?;
        let place = self.root.place_of(path)?;
        place.stat()?.ok_or(Fault::NotFound)?;
        Ok(place.remove()?)
    }
}

fn entry(name: &str, path: String, stat: &Stat, target: Option<String>) -> VolumeEntry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => VolumeEntryKind::File,
        FileType::Directory => VolumeEntryKind::Directory,
        FileType::Symlink => VolumeEntryKind::Symlink,
        _ => VolumeEntryKind::Unknown,
    };
    // Without root the caller's own id is root inside.
    let shown = |id: u32, own: u32| if !is_root() && id == own { 0 } else { id };
    VolumeEntry {
        name: name.to_owned(),
        kind,
        path,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: stat.st_mode & 0o7777,
        uid: shown(stat.st_uid, rustix::process::geteuid().as_raw()),
        gid: shown(stat.st_gid, rustix::process::getegid().as_raw()),
        atime: moment(stat.st_atime, stat.st_atime_nsec),
        mtime: moment(stat.st_mtime, stat.st_mtime_nsec),
        ctime: moment(stat.st_ctime, stat.st_ctime_nsec),
        target,
    }
}

fn moment(seconds: i64, nanos: u64) -> Timestamp {
    let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    let since = since + Duration::from_nanos(nanos.min(999_999_999));
    Timestamp(UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH))
}
