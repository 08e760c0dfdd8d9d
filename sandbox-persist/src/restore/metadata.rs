//! Times and extended attributes, where the snapshot has them.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, OFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;
use sandhold_core::Result;

use super::plan::Wanted;
use crate::side::{Metadata, SideManifest};
use crate::{beneath, error, path};

/// Sets them, directories after what is in them; paths that the snapshot does not have are passed over.
pub(super) fn set(root: BorrowedFd<'_>, side: &SideManifest, wanted: &Wanted) -> Result<()> {
    let mut known: Vec<&Metadata> = side
        .metadata
        .iter()
        .filter(|metadata| {
            let path = metadata.path.as_bytes();
            wanted.items.contains_key(path) || wanted.dirs.contains(path)
        })
        .collect();
    known.sort_by(|a, b| b.path.cmp(&a.path));
    for metadata in known {
        set_one(root, metadata)
            .map_err(|errno| error::io("set the times and attributes of", metadata.path.as_path(), errno))?;
    }
    Ok(())
}

fn set_one(root: BorrowedFd<'_>, metadata: &Metadata) -> Result<(), Errno> {
    let at = metadata.path.as_bytes();
    if !metadata.xattrs.is_empty() {
        let file = beneath::open(root, at, OFlags::RDONLY | OFlags::NONBLOCK, rustix::fs::Mode::empty())?;
        for (name, value) in &metadata.xattrs {
            // The only namespace that any file's owner may write, and the only one that is captured.
            if name.as_bytes().starts_with(b"user.") {
                let name = std::ffi::OsStr::from_bytes(name.as_bytes());
                rustix::fs::fsetxattr(&file, name, value, XattrFlags::empty())?;
            }
        }
    }
    if let Some((seconds, nanos)) = metadata.modified {
        let (dir, name) = path::split(at);
        let dir = beneath::open_dir(root, dir)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanos.into() },
        };
        let name = std::ffi::OsStr::from_bytes(name);
        rustix::fs::utimensat(&dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
