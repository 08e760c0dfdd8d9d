//! Copies of what sandboxes wrote: a layer of an overlay, laid over another one.
//!
//! The content was made by whoever ran inside. Nothing of it is followed, and nothing of it decides how many
//! descriptors or how much stack a copy takes.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::failure::{Doing, Failure, FailureKind};

/// Levels that are copied; each costs two descriptors.
const DEEPEST: usize = 256;
/// Bytes of a file that are copied at once.
const CHUNK: usize = 256 * 1024;
/// Ids of a full map.
const IDS: u32 = 65536;
/// An overlay's mark of a directory that hides what is below it.
const OPAQUE: &[u8] = b"user.overlay.opaque";
/// What the kernel accepts as a path.
const LONGEST_PATH: usize = 4000;

/// How the content of files gets into the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// By another name of the same file, which nobody writes to any more.
    Shared,
    /// By a copy, which shares its blocks where the file system can.
    Copied,
}

/// What the source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A layer: it hides what is below it by whiteouts and opaque directories.
    Layer,
    /// A plain tree: such marks in it mean nothing, and are left out like devices.
    Tree,
}

/// Lays the tree at `from` over the one at `to`, which is what an overlay of both would show.
///
/// Owners are stored as the sandbox sees them: `first` is the host's id of root inside.
///
/// # Errors
/// Those of the file system; [`FailureKind::InvalidArgument`] for directories that are too deep, or owned by somebody
/// outside.
pub(crate) fn lay(
    from: BorrowedFd<'_>,
    to: &Path,
    content: Content,
    meaning: Meaning,
    first: u32,
) -> Result<(), Failure> {
    let top = open_dir(CWD, to).doing(format_args!("open {}", to.display()))?;
    let mut copy =
        Copy { top: top.as_fd(), content, meaning, first, links: HashMap::new(), at: PathBuf::new() };
    let from = from.try_clone_to_owned().doing("open the layer")?;
    match copy.directory(&from, &top, false) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(Failure::new(
            FailureKind::InvalidArgument,
            format!("{} cannot be stored: {error}", Path::new("/").join(&copy.at).display()),
        )),
        Err(error) => {
            Err(Failure::os(format_args!("store {}", Path::new("/").join(&copy.at).display()), error))
        }
    }
}

/// Opens a directory that is no link.
pub(crate) fn open_dir(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

struct Copy<'a> {
    top: BorrowedFd<'a>,
    content: Content,
    meaning: Meaning,
    first: u32,
    /// Where the first name of a file is that has several.
    links: HashMap<(u64, u64), PathBuf>,
    /// What is being copied, below the top.
    at: PathBuf,
}

impl Copy<'_> {
    /// Copies what is in a directory, and then what is known about it.
    fn directory(&mut self, from: &OwnedFd, to: &OwnedFd, hides: bool) -> io::Result<()> {
        if self.at.components().count() > DEEPEST {
            return Err(invalid(format!("it is deeper than {DEEPEST} directories")));
        }
        for entry in Dir::read_from(from)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.at.push(OsStr::from_bytes(name.to_bytes()));
            self.entry(from, to, name)?;
            self.at.pop();
        }
        let stat = rustix::fs::fstat(from)?;
        rustix::fs::fchown(to, Some(self.uid(&stat)?), Some(self.gid(&stat)?))?;
        rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        self.attributes(from.as_fd(), to.as_fd())?;
        if hides {
            rustix::fs::fsetxattr(to, "user.overlay.opaque", b"y", XattrFlags::empty())?;
        }
        Ok(rustix::fs::futimens(to, &times(&stat))?)
    }

    fn entry(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> io::Result<()> {
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let there = match rustix::fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Some(FileType::from_raw_mode(there.st_mode)),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        if kind == FileType::Directory {
            let source = open_dir(from, name)?;
            let opaque = self.meaning == Meaning::Layer && is_opaque(&source)?;
            let merges = there == Some(FileType::Directory) && !opaque;
            if there.is_some() && !merges {
                remove(to, name)?;
            }
            if !merges {
                rustix::fs::mkdirat(to, name, Mode::RWXU)?;
            }
            let target = open_dir(to, name)?;
            // What took the place of something else hides what that one hid.
            let hides = opaque || (there.is_some() && !merges) || (merges && is_opaque(&target)?);
            return self.directory(&source, &target, hides);
        }
        if is_whiteout(&stat) && self.meaning == Meaning::Layer {
            if there.is_some() {
                remove(to, name)?;
            }
            return Ok(rustix::fs::mknodat(to, name, FileType::CharacterDevice, Mode::empty(), 0)?);
        }
        if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            return Ok(());
        }
        if there.is_some() {
            remove(to, name)?;
        }
        match kind {
            FileType::RegularFile => return self.file(from, to, name, &stat),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, to, name)?;
            }
            FileType::Fifo | FileType::Socket => {
                rustix::fs::mknodat(to, name, kind, Mode::from_raw_mode(stat.st_mode & 0o7777), 0)?;
            }
            _ => return Err(invalid("it is of a type that is not known".to_owned())),
        }
        let owner = (Some(self.uid(&stat)?), Some(self.gid(&stat)?));
        rustix::fs::chownat(to, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(rustix::fs::utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn file(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<()> {
        if self.content == Content::Shared {
            match rustix::fs::linkat(from, name, to, name, AtFlags::empty()) {
                // Too many names, or not allowed to have another: a copy does as well.
                Err(Errno::MLINK | Errno::PERM | Errno::XDEV) => {}
                linked => return Ok(linked?),
            }
        }
        let id = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(first) = self.links.get(&id)
            && rustix::fs::linkat(self.top, first.as_path(), to, name, AtFlags::empty()).is_ok()
        {
            return Ok(());
        }
        // Never waits, should it be no plain file any more.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let source = rustix::fs::openat(from, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&source)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid("it changed while it was stored".to_owned()));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let target = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
        if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
            copy_content(&source, &target, stat.st_size)?;
        }
        rustix::fs::fchown(&target, Some(self.uid(&stat)?), Some(self.gid(&stat)?))?;
        rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        self.attributes(source.as_fd(), target.as_fd())?;
        rustix::fs::futimens(&target, &times(&stat))?;
        if stat.st_nlink > 1 && self.at.as_os_str().len() < LONGEST_PATH {
            self.links.insert(id, self.at.clone());
        }
        Ok(())
    }

    /// Copies the attributes that mean something to whoever runs inside.
    fn attributes(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        for name in attribute_names(from)? {
            let bytes = name.as_bytes();
            // The overlay's own, which it makes anew: but the mark is content.
            let own = bytes.starts_with(b"user.overlay.");
            let kept = bytes == OPAQUE && self.meaning == Meaning::Layer;
            let shifted = self.first != 0;
            let user = bytes.starts_with(b"user.") && (!own || kept);
            let rights = bytes == b"security.capability";
            // These hold ids of the host, and are stored only where those are the ids inside.
            let list = bytes.starts_with(b"system.posix_acl_") && !shifted;
            if !(user || rights || list) {
                continue;
            }
            let Some(mut value) = attribute(from, &name)? else { continue };
            if rights && shifted {
                value = rights_of_root_inside(value);
            }
            match rustix::fs::fsetxattr(to, name.as_c_str(), &value, XattrFlags::empty()) {
                // Not everybody may give rights to a file: without them it is less, never more.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) if !user => {}
                set => set?,
            }
        }
        Ok(())
    }

    fn uid(&self, stat: &Stat) -> io::Result<Uid> {
        self.inside(stat.st_uid).map(Uid::from_raw)
    }

    fn gid(&self, stat: &Stat) -> io::Result<Gid> {
        self.inside(stat.st_gid).map(Gid::from_raw)
    }

    /// The id inside of an id of the host.
    fn inside(&self, id: u32) -> io::Result<u32> {
        match id.checked_sub(self.first) {
            Some(inside) if inside < IDS => Ok(inside),
            // In a user namespace of the sandbox's own map nobody else can be an owner.
            _ => Err(invalid(format!("its owner {id} is nobody inside"))),
        }
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn times(stat: &Stat) -> Timestamps {
    let at = |seconds, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    Timestamps {
        last_access: at(stat.st_atime, stat.st_atime_nsec),
        last_modification: at(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// The mark of an overlay that something below is not there: a character device 0, 0.
fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn is_opaque(dir: &OwnedFd) -> io::Result<bool> {
    let mark = CString::new(OPAQUE).unwrap_or_default();
    Ok(attribute(dir.as_fd(), &mark)?.is_some_and(|value| value == b"y"))
}

/// Removes what is in the way of what lies over it.
fn remove(dir: &OwnedFd, name: &CStr) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return Ok(removed?),
    }
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    sandhold_envd::remove_tree(&Path::new(&path).join(OsStr::from_bytes(name.to_bytes())), true)
}

fn attribute_names(file: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = vec![0_u8; 1024];
    let length = loop {
        match rustix::fs::flistxattr(file, &mut names[..]) {
            Err(Errno::RANGE) if names.len() < 1 << 17 => names.resize(names.len() * 4, 0),
            Err(Errno::OPNOTSUPP) => break 0,
            length => break length?,
        }
    };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| CString::new(name).ok()).collect())
}

fn attribute(file: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0_u8; 256];
    loop {
        match rustix::fs::fgetxattr(file, name, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                return Ok(Some(value));
            }
            // 64 KiB are the most that the kernel takes.
            Err(Errno::RANGE) if value.len() < 1 << 17 => value.resize(value.len() * 8, 0),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Turns rights that were given by root of a user namespace (`VFS_CAP_REVISION_3`, with its id at the end) into rights
/// given by the root that the stored ids know (`VFS_CAP_REVISION_2`); see `linux/capability.h`.
fn rights_of_root_inside(mut value: Vec<u8>) -> Vec<u8> {
    if value.len() == 24 && value[3] == 3 {
        value[3] = 2;
        value.truncate(20);
    }
    value
}

/// Copies the data of a file and leaves its holes as they are.
fn copy_content(from: &OwnedFd, to: &OwnedFd, size: i64) -> io::Result<()> {
    rustix::fs::ftruncate(to, size as u64)?;
    let mut buffer = vec![0_u8; CHUNK.min(size as usize)];
    let mut at = 0;
    while at < size as u64 {
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            at => at?,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(at))?.min(size as u64);
        while at < end {
            let most = buffer.len().min((end - at) as usize);
            let length = rustix::io::pread(from, &mut buffer[..most], at)?;
            if length == 0 {
                return Ok(());
            }
            let mut written = 0;
            while written < length {
                written += rustix::io::pwrite(to, &buffer[written..length], at + written as u64)?;
            }
            at += length as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn lay_over(from: &Path, to: &Path, content: Content) {
        let source = open_dir(CWD, from).unwrap();
        lay(source.as_fd(), to, content, Meaning::Layer, 0).unwrap();
    }

    fn whiteout(path: &Path) {
        rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    #[test]
    fn a_copy_has_contents_modes_links_holes_times_and_attributes() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        fs::create_dir_all(from.join("dir")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("dir/file"), "text").unwrap();
        fs::set_permissions(from.join("dir/file"), fs::Permissions::from_mode(0o4711)).unwrap();
        fs::hard_link(from.join("dir/file"), from.join("again")).unwrap();
        symlink("/nowhere", from.join("link")).unwrap();
        fs::write(from.join("none"), "").unwrap();
        // The helper is root in its namespace and reads every file; who runs this test may be nobody in particular.
        let closed = if rustix::process::geteuid().is_root() { 0o000 } else { 0o400 };
        fs::set_permissions(from.join("none"), fs::Permissions::from_mode(closed)).unwrap();
        fs::set_permissions(from.join("dir"), fs::Permissions::from_mode(0o1755)).unwrap();
        let sparse = fs::File::create(from.join("sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (64 << 20) - 3).unwrap();
        rustix::fs::setxattr(from.join("dir/file"), "user.note", b"n", XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(from.join("dir"), "user.overlay.impure", b"y", XattrFlags::empty()).unwrap();
        lay_over(&from, &to, Content::Copied);

        let file = fs::metadata(to.join("dir/file")).unwrap();
        assert_eq!((file.mode() & 0o7777, file.nlink()), (0o4711, 2));
        assert_eq!(file.ino(), fs::metadata(to.join("again")).unwrap().ino());
        assert_eq!(file.mtime_nsec(), fs::metadata(from.join("dir/file")).unwrap().mtime_nsec());
        assert_ne!(file.ino(), fs::metadata(from.join("dir/file")).unwrap().ino());
        assert_eq!(fs::read_to_string(to.join("dir/file")).unwrap(), "text");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/nowhere"));
        assert_eq!(fs::metadata(to.join("none")).unwrap().mode() & 0o7777, closed);
        assert_eq!(fs::metadata(to.join("dir")).unwrap().mode() & 0o7777, 0o1755);
        let copied = fs::metadata(to.join("sparse")).unwrap();
        assert_eq!(copied.len(), 64 << 20);
        assert!(copied.blocks() * 512 < 1 << 20, "{} blocks", copied.blocks());
        assert!(fs::read(to.join("sparse")).unwrap().ends_with(b"\0end"));
        let dir = open_dir(CWD, to.join("dir")).unwrap();
        assert!(attribute_names(dir.as_fd()).unwrap().is_empty(), "the overlay's own marks are its own");
        let mut note = [0; 8];
        assert_eq!(rustix::fs::getxattr(to.join("dir/file"), "user.note", &mut note[..]), Ok(1));
    }

    #[test]
    fn layers_merge_as_an_overlay_shows_them() {
        let home = tempfile::tempdir().unwrap();
        let [lower, upper, to] = ["lower", "upper", "to"].map(|name| home.path().join(name));
        for dir in ["kept", "gone", "replaced", "back"] {
            fs::create_dir_all(lower.join(dir)).unwrap();
            fs::write(lower.join(dir).join("old"), "old").unwrap();
        }
        fs::write(lower.join("file"), "old").unwrap();
        fs::write(lower.join("becomes-a-directory"), "").unwrap();
        whiteout(&lower.join("below"));
        for dir in ["kept", "replaced", "back", "becomes-a-directory", "below"] {
            fs::create_dir_all(upper.join(dir)).unwrap();
            fs::write(upper.join(dir).join("new"), "new").unwrap();
        }
        rustix::fs::setxattr(upper.join("replaced"), "user.overlay.opaque", b"y", XattrFlags::empty())
            .unwrap();
        whiteout(&upper.join("gone"));
        whiteout(&upper.join("back/old"));
        fs::write(upper.join("file"), "new").unwrap();
        fs::create_dir(&to).unwrap();
        lay_over(&lower, &to, Content::Shared);
        lay_over(&upper, &to, Content::Copied);

        let names = |dir: &str| {
            let mut names: Vec<_> = fs::read_dir(to.join(dir))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let opaque = |dir: &str| is_opaque(&open_dir(CWD, to.join(dir)).unwrap()).unwrap();
        let is_gone = |path: &str| is_whiteout(&rustix::fs::lstat(to.join(path)).unwrap());
        assert_eq!(names("kept"), ["new", "old"]);
        assert_eq!(names("replaced"), ["new"]);
        assert!(is_gone("gone") && is_gone("back/old"));
        assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "new");
        // The old one is shared, and was not written to.
        assert_eq!(fs::read_to_string(lower.join("file")).unwrap(), "old");
        assert_eq!(
            fs::metadata(to.join("kept/old")).unwrap().ino(),
            fs::metadata(lower.join("kept/old")).unwrap().ino()
        );
        // What the lower layer hid must stay hidden below what took its place.
        for (dir, hides) in [
            ("kept", false),
            ("replaced", true),
            ("becomes-a-directory", true),
            ("below", true),
            ("back", false),
        ] {
            assert_eq!(opaque(dir), hides, "{dir}");
        }
    }

    #[test]
    fn what_is_too_deep_is_refused_by_name() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        fs::create_dir(&to).unwrap();
        fs::create_dir_all(from.join("d/".repeat(DEEPEST + 2))).unwrap();
        let source = open_dir(CWD, &from).unwrap();
        let error = lay(source.as_fd(), &to, Content::Copied, Meaning::Layer, 0).unwrap_err();
        assert_eq!(error.kind, FailureKind::InvalidArgument);
        assert!(error.message.contains("d/d/d") && error.message.contains("deeper"), "{error}");
    }
}
