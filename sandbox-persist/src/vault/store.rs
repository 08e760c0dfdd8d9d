//! The objects of packs, read and copied as they are stored.
//!
//! The packs of a vault hold every object whole, so that one can be moved to another pack or to a bundle without being
//! inflated. Should somebody have run git on the vault, what it made deltas of is read through libgit2.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::{Decompress, FlushDecompress, Status};
use sandhold_core::{Error, ErrorKind, Result};

use super::index::{self, IndexEntry};
use super::pack::{Deflater, Kind, PackWriter, entry_header};
use crate::oid::ObjectId;
use crate::{cancel::Cancel, error};

/// A commit or a tree above this is damaged; files may be as large as they like.
const MAX_IN_MEMORY: u64 = 256 << 20;
const CHUNK: usize = 1 << 18;

/// A pack and what its index says.
#[derive(Debug)]
pub(crate) struct StoredPack {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    pub(crate) modified: SystemTime,
    pub(crate) entries: Vec<IndexEntry>,
    file: File,
}

/// How an object begins in a pack.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// `None` for a delta, and for a tag, of which the vault has none.
    kind: Option<Kind>,
    size: u64,
    len: u64,
}

/// All packs of some directories.
pub(crate) struct Store {
    pub(crate) packs: Vec<StoredPack>,
    /// Packs that cannot be used, with why.
    pub(crate) unusable: Vec<(PathBuf, Error)>,
    at: HashMap<ObjectId, (u32, u32)>,
    odb: git2::Odb<'static>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("packs", &self.packs).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the packs below these directories of objects. Where two packs have an object, the first one counts.
    pub(crate) fn open(dirs: &[&Path]) -> Result<Self> {
        let mut store =
            Self { packs: Vec::new(), unusable: Vec::new(), at: HashMap::new(), odb: open_odb(dirs)? };
        for dir in dirs {
            let mut paths = list(&dir.join("pack"))?;
            paths.sort();
            for path in paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "idx")) {
                match open_pack(&path.with_extension("pack"), &path) {
                    Ok(pack) => store.add(pack),
                    Err(failure) => store.unusable.push((path, failure)),
                }
            }
        }
        Ok(store)
    }

    fn add(&mut self, pack: StoredPack) {
        let number = self.packs.len() as u32;
        for (index, entry) in pack.entries.iter().enumerate() {
            self.at.entry(entry.id).or_insert((number, index as u32));
        }
        self.packs.push(pack);
    }

    pub(crate) fn has(&self, id: ObjectId) -> bool {
        self.at.contains_key(&id) || self.odb.exists(id.into())
    }

    fn place(&self, id: ObjectId) -> Option<(&StoredPack, &IndexEntry)> {
        let (pack, entry) = self.at.get(&id)?;
        let pack = self.packs.get(*pack as usize)?;
        Some((pack, pack.entries.get(*entry as usize)?))
    }

    /// The bytes that an object takes in its pack.
    pub(crate) fn stored_len(&self, id: ObjectId) -> u64 {
        self.place(id).map_or(0, |(_, entry)| entry.end - entry.offset)
    }

    /// Tells of what kind an object is; `None` where there is none, or it cannot be read.
    pub(crate) fn kind(&self, id: ObjectId) -> Option<Kind> {
        match self.place(id).and_then(|(pack, entry)| pack.header(entry).ok()) {
            Some(Header { kind: Some(kind), .. }) => Some(kind),
            _ => kind_of(self.odb.read_header(id.into()).ok()?.1),
        }
    }

    /// Reads an object and hashes it; `None` where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Unexpected`] with reason `damaged`.
    pub(crate) fn read(&self, id: ObjectId) -> Result<Option<(Kind, Vec<u8>)>> {
        if let Some((pack, entry)) = self.place(id) {
            let header = pack.header(entry)?;
            if let Some(kind) = header.kind {
                let mut content = Vec::new();
                let mut hash = ObjectId::hasher(kind.name(), header.size);
                pack.inflate(entry, header, |part| {
                    sha1::Digest::update(&mut hash, part);
                    content.extend_from_slice(part);
                    match content.len() as u64 > MAX_IN_MEMORY {
                        true => Err(damaged(id, "is too large for what it is")),
                        false => Ok(()),
                    }
                })?;
                let found = ObjectId::from_bytes(sha1::Digest::finalize(hash).into());
                return match found == id {
                    true => Ok(Some((kind, content))),
                    false => Err(damaged(id, "has another content")),
                };
            }
        }
        match self.odb.read(id.into()) {
            Ok(object) => Ok(kind_of(object.kind()).map(|kind| (kind, object.data().to_vec()))),
            Err(failure) if failure.code() == git2::ErrorCode::NotFound => Ok(None),
            Err(failure) => Err(damaged(id, failure.message())),
        }
    }

    /// Reads an object to its end and compares its content with its id, without keeping it.
    pub(crate) fn check(&self, id: ObjectId) -> Result<()> {
        let Some((pack, entry)) = self.place(id) else {
            return match self.read(id)? {
                Some(_) => Ok(()),
                None => Err(damaged(id, "is not there")),
            };
        };
        pack.check(entry).or_else(|failure| match pack.header(entry) {
            Ok(Header { kind: Some(_), .. }) | Err(_) => Err(failure),
            Ok(_) => self.read(id).map(drop),
        })
    }

    /// Compares the stored bytes of an object with their sum.
    pub(crate) fn check_sum(&self, id: ObjectId) -> Result<()> {
        match self.place(id) {
            Some((pack, entry)) => pack.copy(entry, 0, |_| Ok(())),
            None => self.check(id),
        }
    }

    /// Gives an object as it is stored, header and all, in parts. A damaged one fails at its end.
    pub(crate) fn stream(&self, id: ObjectId, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if let Some((pack, entry)) = self.place(id)
            && pack.header(entry)?.kind.is_some()
        {
            return pack.copy(entry, 0, sink);
        }
        let (kind, content) = self.read(id)?.ok_or_else(|| damaged(id, "is not there"))?;
        sink(&entry_header(kind, content.len() as u64))?;
        sink(Deflater::new().deflate(&content)?)
    }

    /// Gives the content of an object in parts, and compares it with its id at the end; `false` for one that is not
    /// stored whole, of which nothing was given.
    pub(crate) fn inflate(&self, id: ObjectId, sink: impl FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        match self.place(id) {
            Some((pack, entry)) if pack.header(entry)?.kind.is_some() => {
                pack.inflate_checked(entry, sink).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Copies an object to another pack, unless it is there already.
    pub(crate) fn copy_to(&self, writer: &mut PackWriter, id: ObjectId) -> Result<()> {
        if writer.contains(id) {
            return Ok(());
        }
        if let Some((pack, entry)) = self.place(id) {
            let header = pack.header(entry)?;
            if let Some(kind) = header.kind {
                let mut stream = writer.begin(kind, header.size)?;
                pack.copy(entry, header.len, |part| stream.write(part))?;
                return stream.finish(id);
            }
        }
        let (kind, content) = self.read(id)?.ok_or_else(|| damaged(id, "is not there"))?;
        writer.add(kind, id, content.len() as u64, Deflater::new().deflate(&content)?)
    }
}

impl StoredPack {
    fn header(&self, entry: &IndexEntry) -> Result<Header> {
        let mut bytes = [0; 16];
        let wanted = bytes.len().min((entry.end - entry.offset) as usize);
        self.file
            .read_exact_at(&mut bytes[..wanted], entry.offset)
            .map_err(|failure| error::io("read", &self.path, failure))?;
        let first = bytes[0];
        let mut size = u64::from(first & 15);
        let (mut at, mut shift) = (1, 4);
        let mut more = first & 0x80 != 0;
        while more {
            let byte = *bytes
                .get(at)
                .filter(|_| shift < 60)
                .ok_or_else(|| damaged(entry.id, "has a header that never ends"))?;
            size |= u64::from(byte & 0x7f) << shift;
            (at, shift, more) = (at + 1, shift + 7, byte & 0x80 != 0);
        }
        let kind = match first >> 4 & 7 {
            1 => Some(Kind::Commit),
            2 => Some(Kind::Tree),
            3 => Some(Kind::Blob),
            4 | 6 | 7 => None,
            _ => return Err(damaged(entry.id, "is of no kind")),
        };
        Ok(Header { kind, size, len: at as u64 })
    }

    /// Gives the stored bytes from `skip` on, and compares the sum of all of them with that of the index.
    fn copy(&self, entry: &IndexEntry, skip: u64, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut sum = crc32fast::Hasher::new();
        let mut skip = skip as usize;
        self.chunks(entry.offset, entry.end, |part| {
            sum.update(part);
            let part = part.get(std::mem::take(&mut skip)..).unwrap_or_default();
            sink(part)
        })?;
        match sum.finalize() == entry.sum {
            true => Ok(()),
            false => Err(damaged(entry.id, "has other bytes than its index says")),
        }
    }

    fn chunks(&self, from: u64, to: u64, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; CHUNK.min((to - from) as usize)];
        let mut at = from;
        while at < to {
            let wanted = CHUNK.min((to - at) as usize);
            self.file
                .read_exact_at(&mut buffer[..wanted], at)
                .map_err(|failure| error::io("read", &self.path, failure))?;
            sink(&buffer[..wanted])?;
            at += wanted as u64;
        }
        Ok(())
    }

    fn inflate(
        &self,
        entry: &IndexEntry,
        header: Header,
        mut sink: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut state = Decompress::new(true);
        let mut out = vec![0; CHUNK.min(usize::try_from(header.size).unwrap_or(CHUNK).saturating_add(64))];
        let mut ended = false;
        self.chunks(entry.offset + header.len, entry.end, |mut part| {
            while !ended {
                let (read, written) = (state.total_in(), state.total_out());
                let status = state
                    .decompress(part, &mut out, FlushDecompress::None)
                    .map_err(|_| damaged(entry.id, "cannot be inflated"))?;
                part = &part[(state.total_in() - read) as usize..];
                let got = (state.total_out() - written) as usize;
                if got == 0 && state.total_in() == read && !part.is_empty() && status != Status::StreamEnd {
                    return Err(damaged(entry.id, "cannot be inflated"));
                }
                if state.total_out() > header.size {
                    return Err(damaged(entry.id, "is longer than it says"));
                }
                sink(&out[..got])?;
                ended = status == Status::StreamEnd;
                if part.is_empty() && got < out.len() {
                    break;
                }
            }
            Ok(())
        })?;
        match ended && state.total_out() == header.size {
            true => Ok(()),
            false => Err(damaged(entry.id, "is shorter than it says")),
        }
    }

    /// Tells whether an object is stored whole, and not as a delta.
    pub(crate) fn is_whole(&self, entry: &IndexEntry) -> Result<bool> {
        Ok(self.header(entry)?.kind.is_some())
    }

    /// Compares the stored bytes with their sum, and the content with its id.
    pub(crate) fn check_whole(&self, entry: &IndexEntry) -> Result<()> {
        self.copy(entry, 0, |_| Ok(()))?;
        self.check(entry)
    }

    /// Inflates an object and compares its content with its id.
    fn check(&self, entry: &IndexEntry) -> Result<()> {
        self.inflate_checked(entry, |_| Ok(()))
    }

    fn inflate_checked(&self, entry: &IndexEntry, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let header = self.header(entry)?;
        let kind = header.kind.ok_or_else(|| damaged(entry.id, "is a delta"))?;
        let mut hash = ObjectId::hasher(kind.name(), header.size);
        self.inflate(entry, header, |part| {
            sha1::Digest::update(&mut hash, part);
            sink(part)
        })?;
        match ObjectId::from_bytes(sha1::Digest::finalize(hash).into()) == entry.id {
            true => Ok(()),
            false => Err(damaged(entry.id, "has another content")),
        }
    }

    /// Copies one object of this very pack.
    pub(crate) fn copy_entry(&self, writer: &mut PackWriter, entry: &IndexEntry) -> Result<()> {
        let header = self.header(entry)?;
        let kind = header.kind.ok_or_else(|| damaged(entry.id, "is a delta"))?;
        let mut stream = writer.begin(kind, header.size)?;
        self.copy(entry, header.len, |part| stream.write(part))?;
        stream.finish(entry.id)
    }
}

/// Copies objects that are stored in one place, in the order of that place, so that they are read in one sweep.
pub(crate) fn copy_all(
    store: &Store,
    ids: impl IntoIterator<Item = ObjectId>,
    writer: &mut PackWriter,
    cancel: &Cancel,
) -> Result<()> {
    for id in store.in_order(ids) {
        cancel.check()?;
        store.copy_to(writer, id)?;
    }
    Ok(())
}

impl Store {
    /// Sorts objects by where they are.
    pub(crate) fn in_order(&self, ids: impl IntoIterator<Item = ObjectId>) -> Vec<ObjectId> {
        let mut ids: Vec<ObjectId> = ids.into_iter().collect();
        ids.sort_by_cached_key(|id| {
            let (pack, _) = self.at.get(id).copied().unwrap_or((u32::MAX, 0));
            (pack, self.place(*id).map_or(0, |(_, entry)| entry.offset))
        });
        ids
    }
}

fn open_pack(pack: &Path, index: &Path) -> Result<StoredPack> {
    let file = File::open(pack).map_err(|failure| error::io("open", pack, failure))?;
    let stat = file.metadata().map_err(|failure| error::io("look at", pack, failure))?;
    let entries = index::read(index, stat.len())?;
    let modified = stat.modified().map_err(|failure| error::io("look at", pack, failure))?;
    Ok(StoredPack { path: pack.to_owned(), len: stat.len(), modified, entries, file })
}

fn open_odb(dirs: &[&Path]) -> Result<git2::Odb<'static>> {
    let open = || -> Result<git2::Odb<'static>, git2::Error> {
        let odb = git2::Odb::new()?;
        for dir in dirs {
            odb.add_disk_alternate(dir.to_str().ok_or_else(|| git2::Error::from_str("not UTF-8"))?)?;
        }
        Ok(odb)
    };
    open().map_err(|failure| error::git("open the objects of the vault", failure))
}

/// The files of a directory; none where it is not there.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(failure) => return Err(error::io("list", dir, failure)),
    };
    entries
        .map(|entry| entry.map(|entry| entry.path()).map_err(|failure| error::io("list", dir, failure)))
        .collect()
}

fn kind_of(kind: git2::ObjectType) -> Option<Kind> {
    match kind {
        git2::ObjectType::Commit => Some(Kind::Commit),
        git2::ObjectType::Tree => Some(Kind::Tree),
        git2::ObjectType::Blob => Some(Kind::Blob),
        _ => None,
    }
}

fn damaged(id: ObjectId, how: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the object {id} {how}"))
        .with_reason("damaged")
        .with_context("object", id)
}
