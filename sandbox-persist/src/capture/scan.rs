//! What a look at a workspace found: the state that snapshots are made of, and that the next look is compared with.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::fs::{FileType, Stat as RawStat};

use crate::oid::ObjectId;
use crate::side::SkipReason;

/// What of `lstat` tells whether a file is still the one that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) modified: (i64, u32),
    pub(crate) changed: (i64, u32),
    pub(crate) inode: u64,
    pub(crate) device: u64,
}

impl Stat {
    #[expect(clippy::unnecessary_cast, reason = "the types differ between architectures")]
    pub(crate) fn of(raw: &RawStat) -> Self {
        Self {
            mode: raw.st_mode as u32,
            size: u64::try_from(raw.st_size).unwrap_or(0),
            modified: (raw.st_mtime as i64, raw.st_mtime_nsec as u32),
            changed: (raw.st_ctime as i64, raw.st_ctime_nsec as u32),
            inode: raw.st_ino as u64,
            device: raw.st_dev as u64,
        }
    }

    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(crate) fn is_executable(&self) -> bool {
        self.mode & 0o100 != 0
    }

    /// Tells whether a write after `read_at` might have left these very times: file systems count time in ticks.
    pub(crate) fn is_racy(&self, read_at: (i64, u32)) -> bool {
        // Ticks of the kernel's clock are 10 ms at most; a file system without nanoseconds has whole seconds, or two.
        let slack = if self.changed.1 == 0 && self.modified.1 == 0 { 2_000_000_000 } else { 20_000_000 };
        let nanos = |(seconds, nanos): (i64, u32)| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        nanos(self.changed.max(self.modified)) + slack >= nanos(read_at)
    }
}

/// What an entry of a directory is to a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Symlink,
    Dir,
    /// Not in the tree.
    Skipped(SkipReason),
}

/// How the content of an entry is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// It is to be read.
    Unread,
    /// It was read, and a change would show.
    Known,
    /// It was read so soon after a change that another one would not show: read again next time.
    Racy,
    /// As `Racy`, and it changed at every try.
    Unstable,
    /// It may not be read, and this is what an earlier snapshot has.
    Kept,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Box<[u8]>,
    pub(crate) kind: Kind,
    pub(crate) content: Content,
    /// Tells whether it is a Git LFS pointer.
    pub(crate) is_pointer: bool,
    pub(crate) stat: Stat,
    /// The blob; the tree of a directory, `ZERO` where there is nothing in it.
    pub(crate) id: ObjectId,
}

impl Entry {
    /// The mode as git has it; `None` for what is not in the tree.
    pub(crate) fn git_mode(&self) -> Option<u32> {
        match self.kind {
            Kind::File if self.stat.is_executable() => Some(0o100_755),
            Kind::File => Some(0o100_644),
            Kind::Symlink => Some(0o120_000),
            Kind::Dir if self.id == ObjectId::ZERO => None,
            Kind::Dir => Some(0o040_000),
            Kind::Skipped(_) => None,
        }
    }
}

/// One directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dir {
    /// In the order of their names.
    pub(crate) entries: Vec<Entry>,
    /// Tells whether there is a repository in it, other than at the root.
    pub(crate) is_repository: bool,
    /// Tells whether nothing but what `HEAD` has is captured in it, because it is ignored.
    pub(crate) is_ignored: bool,
    /// Tells whether it may not be listed; its tree is then the one of before.
    pub(crate) is_unreadable: bool,
    /// Its tree; `ZERO` where it is yet to be made, or where there is nothing in it.
    pub(crate) tree: ObjectId,
}

impl Dir {
    pub(crate) fn entry(&self, name: &[u8]) -> Option<&Entry> {
        let at = self.entries.binary_search_by(|entry| (*entry.name).cmp(name)).ok()?;
        self.entries.get(at)
    }
}

/// The whole workspace: directories by their paths, the root by the empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) dirs: BTreeMap<Box<[u8]>, Arc<Dir>>,
    /// Tells whether private keys were looked for in what was read.
    pub(crate) checked_keys: bool,
}

impl Scan {
    pub(crate) fn root_tree(&self) -> ObjectId {
        self.dirs.get(&b""[..]).map_or(ObjectId::ZERO, |root| root.tree)
    }

    /// Forgets contents and trees that are not there any more: they are read and made again.
    pub(crate) fn forget_where(&mut self, is_gone: impl Fn(ObjectId) -> bool) {
        let is_lost = |entry: &Entry| matches!(entry.kind, Kind::File | Kind::Symlink) && is_gone(entry.id);
        for dir in self.dirs.values_mut() {
            if !is_gone(dir.tree) && !dir.entries.iter().any(is_lost) {
                continue;
            }
            let dir = Arc::make_mut(dir);
            if is_gone(dir.tree) {
                dir.tree = ObjectId::ZERO;
            }
            for entry in &mut dir.entries {
                if is_lost(entry) {
                    entry.content = Content::Unread;
                }
            }
        }
    }

    /// How many files and symlinks are in the tree, and how many bytes.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let entries = self.dirs.values().flat_map(|dir| &dir.entries);
        entries
            .filter(|entry| matches!(entry.kind, Kind::File | Kind::Symlink))
            .fold((0, 0), |(files, bytes), entry| (files + 1, bytes + entry.stat.size))
    }

    pub(crate) fn entry(&self, path: &[u8]) -> Option<&Entry> {
        let (dir, name) = crate::path::split(path);
        self.dirs.get(dir)?.entry(name)
    }
}
