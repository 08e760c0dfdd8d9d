//! Lays the layers of an image over each other in a directory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use sha2::{Digest, Sha256};
use tar::EntryType;

use super::ImageError;
use super::archive::Image;
use crate::rooted::{Place, Root, inner_path, names};

/// Marks in a layer: what was removed from those below, and directories of which only what this layer has is left.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &str = ".wh..wh..opq";
/// Ids above this one are not mapped in any sandbox.
const MAX_ID: u64 = 65_535;
/// Bits of a mode that are kept: set-user-id has no effect in a sandbox and would have one outside.
const MODE_BITS: u32 = 0o1777;

/// What an image may at most become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of all files, also of those that later layers replace.
    pub(crate) bytes: u64,
    /// Entries of all layers.
    pub(crate) entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 4_000_000 }
    }
}

/// What was not laid down as the image says.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    /// Who owns what is not root's, where this process may not give files away.
    pub(crate) owners: BTreeMap<PathBuf, (u32, u32)>,
    /// Device nodes, which no sandbox could use.
    pub(crate) skipped_devices: u64,
    /// Bytes of all files.
    pub(crate) bytes: u64,
}

/// Lays down one image after another.
#[derive(Debug)]
pub(crate) struct Unpacker<'a> {
    root: &'a Root,
    limits: Limits,
    is_root: bool,
    entries: u64,
    unpacked: Unpacked,
    /// Modes and times of directories, set when nothing is put into them any more.
    directories: BTreeMap<PathBuf, (u32, i64)>,
}

impl<'a> Unpacker<'a> {
    /// An unpacker into an empty directory.
    pub(crate) fn new(root: &'a Root, limits: Limits) -> Self {
        Self {
            root,
            limits,
            is_root: rustix::process::geteuid().is_root(),
            entries: 0,
            unpacked: Unpacked::default(),
            directories: BTreeMap::new(),
        }
    }

    /// Lays down every layer and checks their digests. `stop` is asked now and then.
    pub(crate) fn unpack(mut self, image: &Image, stop: &dyn Fn() -> bool) -> Result<Unpacked, ImageError> {
        for layer in image.layers() {
            let (reader, diff_id) = layer?;
            let mut hashed = Hashed { inner: reader, hash: Sha256::new() };
            self.layer(&mut hashed, stop)?;
            // What follows the end of the tar belongs to the digest.
            io::copy(&mut hashed, &mut io::sink())?;
            let digest = format!("sha256:{:x}", hashed.hash.finalize());
            if digest != diff_id {
                return Err(ImageError::invalid(format!(
                    "a layer is damaged: its content has the digest {digest}, the image says {diff_id}"
                )));
            }
        }
        // From the innermost out: closing a directory may take away the way to those in it.
        for (path, (mode, modified)) in std::mem::take(&mut self.directories).into_iter().rev() {
            let place = self.root.place_of(&path)?;
            if place.stat()?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()) {
                place.chmod(mode)?;
                place.set_modified(modified)?;
            }
        }
        Ok(self.unpacked)
    }

    fn layer(&mut self, reader: &mut dyn Read, stop: &dyn Fn() -> bool) -> Result<(), ImageError> {
        let mut archive = tar::Archive::new(reader);
        let mut written = BTreeSet::new();
        for entry in archive.entries()? {
            let mut entry = entry.map_err(damaged)?;
            self.entries += 1;
            if self.entries > self.limits.entries {
                return Err(ImageError::invalid(format!(
                    "the image has more than {} entries",
                    self.limits.entries
                )));
            }
            if stop() {
                return Err(ImageError::Stopped);
            }
            let Some(path) = inner_path(&entry.path().map_err(damaged)?)? else {
                continue;
            };
            let name = path.file_name().unwrap_or_default();
            let parent = path.parent().unwrap_or(Path::new(""));
            if name == OPAQUE {
                self.clear(parent, &written)?;
            } else if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
                // `.wh..` and the like name no entry.
                if matches!(hidden, b"" | b"." | b"..") {
                    return Err(ImageError::invalid(format!(
                        "{path:?} of a layer hides nothing that can be named"
                    )));
                }
                self.hide(&parent.join(OsStr::from_bytes(hidden)), &written)?;
            } else {
                self.entry(&mut entry, &path)?;
                for above in path.ancestors().take_while(|above| !above.as_os_str().is_empty()) {
                    if !written.insert(above.to_owned()) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes what lower layers have at a path.
    fn hide(&mut self, path: &Path, written: &BTreeSet<PathBuf>) -> Result<(), ImageError> {
        if written.contains(path) {
            return self.clear(path, written);
        }
        match self.root.place_of(path) {
            Ok(place) => place.remove()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        self.forget(path);
        Ok(())
    }

    /// Removes what lower layers have in a directory.
    fn clear(&mut self, path: &Path, written: &BTreeSet<PathBuf>) -> Result<(), ImageError> {
        let dir = match self.root.dir(path) {
            Ok(dir) => dir,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        for name in names(&dir)? {
            self.hide(&path.join(name), written)?;
        }
        Ok(())
    }

    /// Forgets what was noted for later of a path and all below it.
    fn forget(&mut self, path: &Path) {
        fn below<V>(map: &mut BTreeMap<PathBuf, V>, path: &Path) {
            let gone: Vec<_> = map
                .range(path.to_owned()..)
                .map(|(key, _)| key.clone())
                .take_while(|key| key.starts_with(path))
                .collect();
            for key in gone {
                map.remove(&key);
            }
        }
        below(&mut self.directories, path);
        below(&mut self.unpacked.owners, path);
    }

    fn entry<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, path: &Path) -> Result<(), ImageError> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::Char | EntryType::Block) {
            self.unpacked.skipped_devices += 1;
            return Ok(());
        }
        let mode = entry.header().mode().map_err(damaged)? & MODE_BITS;
        let modified = i64::try_from(entry.header().mtime().map_err(damaged)?).unwrap_or_default();
        let place = self.root.make_place(path)?;
        let there = place.stat()?.map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kind.is_dir() {
            match there {
                Some(FileType::Directory) => {}
                // `lib` of a lower layer may be a link to `usr/lib`, and stays one if it leads to a directory.
                Some(FileType::Symlink) if self.root.dir(path).is_ok() => return Ok(()),
                other => {
                    if other.is_some() {
                        place.remove()?;
                        self.forget(path);
                    }
                    place.make_dir(0o755)?;
                }
            }
            self.directories.insert(path.to_owned(), (mode, modified));
            return self.own(entry, &place, path);
        }
        if there.is_some() {
            place.remove()?;
            self.forget(path);
        }
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mut file = place.create(0o600)?;
                let left = self.limits.bytes.saturating_sub(self.unpacked.bytes);
                let copied = io::copy(&mut entry.by_ref().take(left.saturating_add(1)), &mut file)?;
                if copied > left {
                    return Err(ImageError::invalid(format!(
                        "the image is larger than {} bytes",
                        self.limits.bytes
                    )));
                }
                self.unpacked.bytes += copied;
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(damaged)?;
                let target =
                    target.ok_or_else(|| ImageError::invalid(format!("the link {path:?} leads nowhere")))?;
                place.symlink(target.as_os_str())?;
            }
            EntryType::Link => {
                let target =
                    entry.link_name().map_err(damaged)?.as_deref().map(inner_path).transpose()?.flatten();
                let target = target
                    .ok_or_else(|| ImageError::invalid(format!("the hard link {path:?} leads nowhere")))?;
                let of = self.root.place_of(&target);
                let linked =
                    of.and_then(|of| match of.stat()?.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                        Some(FileType::Directory) | None => Err(io::ErrorKind::NotFound.into()),
                        Some(_) => place.hard_link(&of),
                    });
                // It is the same file, with the owner and the mode that it has.
                return linked.map_err(|error| {
                    ImageError::invalid(format!(
                        "the hard link {path:?} to {target:?} cannot be made: {error}"
                    ))
                });
            }
            EntryType::Fifo => place.fifo(0o600)?,
            // Of global headers and the like nothing is to be made.
            _ => return Ok(()),
        }
        self.own(entry, &place, path)?;
        if kind != EntryType::Symlink {
            // After the owner, whose change takes bits away. A file that its owner cannot read cannot be opened.
            place.chmod(mode)?;
        }
        Ok(place.set_modified(modified)?)
    }

    /// Gives an entry to its owner, or notes who that is.
    fn own<R: Read>(
        &mut self,
        entry: &tar::Entry<'_, R>,
        place: &Place,
        path: &Path,
    ) -> Result<(), ImageError> {
        let id = |id: io::Result<u64>| match id {
            Ok(id) if id <= MAX_ID => Ok(id as u32),
            Ok(id) => Err(ImageError::invalid(format!(
                "{path:?} belongs to id {id}; sandboxes have the ids up to {MAX_ID} only"
            ))),
            Err(error) => Err(damaged(error)),
        };
        let (uid, gid) = (id(entry.header().uid())?, id(entry.header().gid())?);
        if self.is_root {
            place.chown(uid, gid)?;
        } else if (uid, gid) == (0, 0) {
            self.unpacked.owners.remove(path);
        } else {
            self.unpacked.owners.insert(path.to_owned(), (uid, gid));
        }
        Ok(())
    }
}

fn damaged(error: io::Error) -> ImageError {
    ImageError::invalid(format!("a layer is damaged: {error}"))
}

/// Hashes what is read through it.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Groups paths by their owner, for few calls.
pub(crate) fn by_owner(owners: &BTreeMap<PathBuf, (u32, u32)>) -> HashMap<(u32, u32), Vec<&Path>> {
    let mut groups: HashMap<_, Vec<&Path>> = HashMap::new();
    for (path, owner) in owners {
        groups.entry(*owner).or_default().push(path);
    }
    groups
}
