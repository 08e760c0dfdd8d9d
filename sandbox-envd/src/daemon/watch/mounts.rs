//! File systems whose changes the kernel does not tell about, because another machine makes them.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::statfs;

/// `f_type` of network file systems, from `linux/magic.h` and the kernel's own sources.
const NETWORK: [u64; 11] = [
    0x6969,      // NFS
    0x517B,      // SMB
    0xFE53_4D42, // SMB2
    0xFF53_4D42, // CIFS
    0x0102_1997, // 9P
    0x5346_414F, // AFS (kAFS)
    0x6B41_4653, // AFS
    0x00C3_6400, // Ceph
    0x7375_7245, // Coda
    0x564C,      // NCP
    0x0BD0_0BD0, // Lustre
];
const FUSE: u64 = 0x6573_5546;
/// FUSE file systems that show this machine's own files.
const LOCAL_FUSE: [&str; 3] = ["fuse.fuse-overlayfs", "fuseblk", "fuse.bindfs"];

/// Whether `path` lies on a network mount. A FUSE mount counts as one unless its kind is known to be local.
pub(super) fn is_network(path: &Path) -> io::Result<bool> {
    let stat = statfs(path)?;
    // The field is signed and 32 or 64 bits wide, depending on the machine; the constants are 32 bits.
    let kind = stat.f_type as u64 & 0xFFFF_FFFF;
    if kind != FUSE {
        return Ok(NETWORK.contains(&kind));
    }
    let path = fs::canonicalize(path)?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mount_type(&mounts, &path).is_none_or(|kind| !LOCAL_FUSE.contains(&kind)))
}

/// Type of the mount that `path` lies on, out of the text of `/proc/self/mountinfo` (see proc(5)).
fn mount_type<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let covering = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let point = unescape(place.split(' ').nth(4)?);
        path.starts_with(&point).then_some((point.len(), kind.split(' ').next()?))
    });
    // The longest mount point is the nearest; of equal ones the last was mounted on top.
    covering.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

/// Decodes the octal escapes of space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_and_newest_mount_decides() {
        let mounts = "22 1 0:20 / / rw - ext4 /dev/sda rw\n\
            30 22 0:40 / /mnt/a\\040b rw shared:1 - fuse.sshfs host: rw\n\
            31 30 0:41 / /mnt/a\\040b/in rw - tmpfs tmpfs rw\n\
            32 31 0:42 / /mnt/a\\040b/in rw - fuse.fuse-overlayfs x rw\n";
        assert_eq!(mount_type(mounts, Path::new("/mnt/ab")), Some("ext4"));
        assert_eq!(mount_type(mounts, Path::new("/mnt/a b/x")), Some("fuse.sshfs"));
        assert_eq!(mount_type(mounts, Path::new("/mnt/a b/in/x")), Some("fuse.fuse-overlayfs"));
        assert_eq!(mount_type("", Path::new("/")), None);
    }

    #[test]
    fn this_machines_root_and_proc_are_no_network_mounts() {
        assert!(!is_network(Path::new("/proc")).unwrap());
        assert!(!is_network(Path::new("/dev")).unwrap());
    }
}
