//! Writing packs: every object whole, no deltas, so that what was packed can be read at once and checked alone.
//!
//! The format is git's pack version 2 and index version 2 (`gitformat-pack`). We know the id, the place and the sum of
//! every object when we write it, so that nothing has to be inflated again for the index.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use flate2::{Compress, Compression, FlushCompress, Status};
use sandhold_core::{Error, ErrorKind, Result};
use sha1::{Digest, Sha1};

use crate::oid::ObjectId;
use crate::{beneath, durable, error, failpoint};

/// The kinds of objects, with their numbers in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Commit = 1,
    Tree = 2,
    Blob = 3,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
        }
    }
}

struct Packed {
    id: ObjectId,
    sum: u32,
    offset: u64,
}

/// A pack that grows in a file of its own until it is published.
pub(crate) struct PackWriter {
    path: PathBuf,
    file: BufWriter<File>,
    offset: u64,
    objects: Vec<Packed>,
    known: HashSet<ObjectId>,
}

impl std::fmt::Debug for PackWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackWriter").field("path", &self.path).field("objects", &self.objects.len()).finish()
    }
}

impl PackWriter {
    /// Begins a pack in the file `path`, which must not be there.
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 18, durable::create_file(&path)?);
        // The number of objects takes its place at the end.
        file.write_all(b"PACK\0\0\0\x02\0\0\0\0").map_err(|failure| error::io("write", &path, failure))?;
        failpoint::pass("pack.begun");
        Ok(Self { path, file, offset: 12, objects: Vec::new(), known: HashSet::new() })
    }

    /// Tells whether the object is in this pack already.
    pub(crate) fn contains(&self, id: ObjectId) -> bool {
        self.known.contains(&id)
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Where the pack is now, for going back to.
    pub(crate) fn mark(&self) -> usize {
        self.objects.len()
    }

    /// Takes back all objects since a mark.
    pub(crate) fn go_back(&mut self, mark: usize) -> Result<()> {
        let Some(first) = self.objects.get(mark) else { return Ok(()) };
        self.shorten(first.offset)?;
        for object in self.objects.drain(mark..) {
            self.known.remove(&object.id);
        }
        Ok(())
    }

    fn shorten(&mut self, to: u64) -> Result<()> {
        let path = &self.path;
        let failed = |failure| error::io("shorten", path, failure);
        self.file.flush().map_err(failed)?;
        self.file.seek(SeekFrom::Start(to)).map_err(failed)?;
        self.file.get_mut().set_len(to).map_err(failed)?;
        self.offset = to;
        Ok(())
    }

    /// Adds an object, deflated as zlib has it, unless it is in already.
    pub(crate) fn add(&mut self, kind: Kind, id: ObjectId, size: u64, deflated: &[u8]) -> Result<()> {
        if !self.known.insert(id) {
            return Ok(());
        }
        let header = entry_header(kind, size);
        let mut sum = crc32fast::Hasher::new();
        for part in [&header, deflated] {
            sum.update(part);
            self.file.write_all(part).map_err(|failure| error::io("write", &self.path, failure))?;
        }
        self.objects.push(Packed { id, sum: sum.finalize(), offset: self.offset });
        self.offset += (header.len() + deflated.len()) as u64;
        Ok(())
    }

    /// Begins an object whose content comes in parts.
    pub(crate) fn begin(&mut self, kind: Kind, size: u64) -> Result<PackStream<'_>> {
        let start = self.offset;
        let mut stream = PackStream { pack: self, sum: crc32fast::Hasher::new(), start };
        stream.write(&entry_header(kind, size))?;
        Ok(stream)
    }

    /// Makes the pack durable and known in `dir`, and returns its digest; an empty one vanishes.
    pub(crate) fn publish(self, dir: &Path) -> Result<Option<ObjectId>> {
        self.publish_with(dir, None)
    }

    /// As [`PackWriter::publish`], and makes another file, which is written already, durable at the same time.
    pub(crate) fn publish_with(mut self, dir: &Path, beside: Option<&File>) -> Result<Option<ObjectId>> {
        if self.objects.is_empty() {
            let synced = beside.map_or(Ok(()), File::sync_all);
            return synced.map(|()| None).map_err(|failure| error::io("sync", &self.path, failure));
        }
        let (digest, index) = self.seal()?;
        let staged = self.path.with_extension("idx");
        let write = || -> Result<()> {
            let failed = |failure| error::io("write", &staged, failure);
            let mut file = durable::create_file(&staged)?;
            file.write_all(&index).map_err(failed)?;
            // All at once, so that a journal writes once for them.
            sync_all(&[self.file.get_ref(), &file].into_iter().chain(beside).collect::<Vec<_>>())
                .map_err(failed)?;
            failpoint::pass("pack.synced");
            install(&self.path, &staged, dir, digest)
        };
        write().inspect_err(|_| drop(fs::remove_file(&staged)))?;
        Ok(Some(digest))
    }

    /// Completes the file, which is yet to be synced, and returns its digest and its index.
    fn seal(&mut self) -> Result<(ObjectId, Vec<u8>)> {
        let path = self.path.clone();
        let failed = |failure| error::io("complete", &path, failure);
        let count = u32::try_from(self.objects.len())
            .map_err(|_| Error::new(ErrorKind::Unsupported, "a pack holds less than 2^32 objects"))?;
        self.file.flush().map_err(failed)?;
        let file = self.file.get_mut();
        file.seek(SeekFrom::Start(8)).map_err(failed)?;
        file.write_all(&count.to_be_bytes()).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;

        // What is to be read once more is written to the disk meanwhile.
        let early = file.try_clone().map_err(failed)?;
        let mut hash = Sha1::new();
        std::thread::scope(|scope| {
            if self.offset > 8 << 20 {
                scope.spawn(move || early.sync_data());
            }
            let mut buffer = vec![0; 1 << 18];
            loop {
                match file.read(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(count) => hash.update(&buffer[..count]),
                    Err(failure) if failure.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(failure) => return Err(failure),
                }
            }
        })
        .map_err(failed)?;
        let digest = ObjectId::from_bytes(hash.finalize().into());
        file.write_all(digest.as_bytes()).map_err(failed)?;
        self.objects.sort_unstable_by_key(|object| object.id);
        Ok((digest, index_of(&self.objects, digest)))
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // After a publish it has another name.
        let _ = fs::remove_file(&self.path);
    }
}

/// An object that is being written; dropping it takes it back.
#[derive(Debug)]
pub(crate) struct PackStream<'a> {
    pack: &'a mut PackWriter,
    sum: crc32fast::Hasher,
    start: u64,
}

impl PackStream<'_> {
    /// Adds deflated bytes.
    pub(crate) fn write(&mut self, deflated: &[u8]) -> Result<()> {
        self.sum.update(deflated);
        self.pack.file.write_all(deflated).map_err(|failure| error::io("write", &self.pack.path, failure))?;
        self.pack.offset += deflated.len() as u64;
        Ok(())
    }

    /// Completes the object; where it is in the pack already, the second copy is taken back.
    pub(crate) fn finish(mut self, id: ObjectId) -> Result<()> {
        if self.pack.known.insert(id) {
            let sum = std::mem::take(&mut self.sum).finalize();
            self.pack.objects.push(Packed { id, sum, offset: self.start });
            self.start = self.pack.offset;
            return Ok(());
        }
        self.take_back()
    }

    fn take_back(&mut self) -> Result<()> {
        if self.start == self.pack.offset {
            return Ok(());
        }
        self.pack.shorten(self.start)
    }
}

impl Drop for PackStream<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.take_back() {
            tracing::warn!(%failure, "an object that was given up could not be taken out of its pack");
        }
    }
}

/// Makes files durable, each on a thread of its own.
fn sync_all(files: &[&File]) -> std::io::Result<()> {
    let Some((first, others)) = files.split_first() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|file| scope.spawn(|| file.sync_all())).collect();
        let first = first.sync_all();
        let panicked = |_| Err(std::io::Error::other("a thread that syncs a file panicked"));
        others.into_iter().map(|other| other.join().unwrap_or_else(panicked)).fold(first, Result::and)
    })
}

/// Gives a pack and its index, both durable already, their names in `dir`: the index last, by which readers go.
pub(crate) fn install(pack: &Path, index: &Path, dir: &Path, digest: ObjectId) -> Result<()> {
    for (staged, ending) in [(pack, "pack"), (index, "idx")] {
        let path = dir.join(format!("pack-{digest}.{ending}"));
        fs::rename(staged, &path).map_err(|failure| error::io("publish", &path, failure))?;
        failpoint::pass("pack.renamed");
    }
    beneath::sync_dir(dir)?;
    failpoint::pass("pack.published");
    Ok(())
}

/// Kind and size: four bits of the size in the first byte, seven in each that follows.
pub(super) fn entry_header(kind: Kind, size: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(10);
    let mut byte = ((kind as u8) << 4) | (size & 15) as u8;
    let mut rest = size >> 4;
    while rest != 0 {
        header.push(byte | 0x80);
        byte = (rest & 0x7f) as u8;
        rest >>= 7;
    }
    header.push(byte);
    header
}

/// The index of version 2 over objects in the order of their ids.
fn index_of(objects: &[Packed], digest: ObjectId) -> Vec<u8> {
    let mut index = Vec::with_capacity(8 + 1024 + objects.len() * 28 + 40);
    index.extend_from_slice(b"\xfftOc\0\0\0\x02");
    let mut upto = 0u32;
    let mut rest = objects.iter().peekable();
    for first in 0..=255u8 {
        while rest.next_if(|object| object.id.as_bytes()[0] == first).is_some() {
            upto += 1;
        }
        index.extend_from_slice(&upto.to_be_bytes());
    }
    objects.iter().for_each(|object| index.extend_from_slice(object.id.as_bytes()));
    objects.iter().for_each(|object| index.extend_from_slice(&object.sum.to_be_bytes()));
    let mut far = Vec::new();
    for object in objects {
        let near = match u32::try_from(object.offset) {
            Ok(near) if near < 1 << 31 => near,
            _ => {
                far.extend_from_slice(&object.offset.to_be_bytes());
                (1 << 31) | (far.len() / 8 - 1) as u32
            }
        };
        index.extend_from_slice(&near.to_be_bytes());
    }
    index.extend_from_slice(&far);
    index.extend_from_slice(digest.as_bytes());
    let sum: [u8; 20] = Sha1::digest(&index).into();
    index.extend_from_slice(&sum);
    index
}

/// Deflates whole objects with one state, which costs more to make than most files cost to deflate.
pub(crate) struct Deflater {
    state: Compress,
    out: Vec<u8>,
}

impl Deflater {
    pub(crate) fn new() -> Self {
        Self { state: Compress::new(Compression::fast(), true), out: Vec::new() }
    }

    pub(crate) fn deflate(&mut self, content: &[u8]) -> Result<&[u8]> {
        self.state.reset();
        self.out.clear();
        self.out.reserve(content.len() / 2 + 64);
        let mut taken = 0;
        loop {
            let before = self.state.total_in();
            let status =
                self.state.compress_vec(&content[taken..], &mut self.out, FlushCompress::Finish).map_err(
                    |failure| Error::new(ErrorKind::Unexpected, "deflate failed").with_source(failure),
                )?;
            taken += (self.state.total_in() - before) as usize;
            if status == Status::StreamEnd {
                return Ok(&self.out);
            }
            self.out.reserve(self.out.capacity().max(4096));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_above_2_gib_go_to_the_second_table() {
        let object = |first: u8, offset| Packed { id: ObjectId::from_bytes([first; 20]), sum: 0, offset };
        let objects = [object(1, 5), object(2, 1 << 33), object(3, (1 << 31) - 1)];
        let index = index_of(&objects, ObjectId::ZERO);
        let near = 8 + 1024 + 3 * 24;
        assert_eq!(&index[near..near + 12], [0, 0, 0, 5, 0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff]);
        assert_eq!(&index[near + 12..near + 20], (1u64 << 33).to_be_bytes());
        assert_eq!(index.len(), near + 20 + 40);
    }

    #[test]
    fn sizes_are_written_four_bits_and_then_seven() {
        assert_eq!(entry_header(Kind::Blob, 0), [0x30]);
        assert_eq!(entry_header(Kind::Tree, 15), [0x2f]);
        assert_eq!(entry_header(Kind::Commit, 16), [0x90, 0x01]);
        assert_eq!(entry_header(Kind::Blob, 0x1234), [0xb4, 0xa3, 0x02]);
    }
}
