//! Taking a pack of strangers apart: every object is inflated under limits, hashed, and put whole into a pack of ours.
//!
//! What is whole already goes over as it was deflated; deltas are applied here. Nothing of the stranger's file is
//! believed or kept, its index least of all: there is none.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::rc::Rc;

use flate2::{Decompress, FlushDecompress, Status};
use sandhold_core::{Error, ErrorKind, Result};
use sha1::{Digest, Sha1};

use super::delta;
use super::pack::{Deflater, Kind, PackWriter};
use super::store::Store;
use crate::cancel::Cancel;
use crate::oid::ObjectId;

/// Deltas whose results are kept for others that are based on them hold at most this much together.
const MAX_IN_MEMORY: u64 = 512 << 20;
const CHUNK: usize = 1 << 16;

/// How much a pack may make of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) objects: u32,
    /// Bytes of one object.
    pub(crate) object: u64,
    /// Bytes of all objects, inflated.
    pub(crate) inflated: u64,
}

/// Reads the pack that begins where `file` stands and that must end where the file does.
///
/// `base` has the objects that deltas may refer to outside of the pack; without it there are none.
pub(crate) fn unpack(
    file: File,
    start: u64,
    base: Option<&Store>,
    limits: Limits,
    writer: &mut PackWriter,
    cancel: &Cancel,
) -> Result<()> {
    let mut input = Input { file: BufReader::with_capacity(CHUNK, file), hash: Sha1::new(), at: start };
    let head: [u8; 12] = input.array()?;
    if !head.starts_with(b"PACK\0\0\0\x02") {
        return Err(damaged("does not begin as a pack of version 2 does"));
    }
    let count = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
    if count > limits.objects {
        return Err(too_large(format!("{count} objects are more than {}", limits.objects)));
    }
    let mut work = Unpack {
        limits,
        left: limits.inflated,
        whole: HashMap::new(),
        deltas: Vec::new(),
        children: Children::default(),
    };
    for _ in 0..count {
        cancel.check()?;
        work.entry(&mut input, writer)?;
    }
    let digest: [u8; 20] = input.hash.clone().finalize().into();
    if input.array::<20>()? != digest {
        return Err(damaged("has another sum at its end than its bytes have"));
    }
    if !input.fill()?.is_empty() {
        return Err(damaged("goes on after its end"));
    }
    work.resolve(input, base, writer, cancel)
}

/// The bytes of the pack, hashed as they are consumed.
struct Input {
    file: BufReader<File>,
    hash: Sha1,
    at: u64,
}

impl Input {
    fn fill(&mut self) -> Result<&[u8]> {
        self.file.fill_buf().map_err(unreadable)
    }

    fn consume(&mut self, count: usize) {
        self.hash.update(&self.file.buffer()[..count]);
        self.file.consume(count);
        self.at += count as u64;
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.fill()?.first().ok_or_else(|| damaged("ends in the middle"))?;
        self.consume(1);
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    /// Inflates `size` bytes, and gives them with the deflated bytes that they came of.
    fn inflate(&mut self, size: u64, mut sink: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut state = Decompress::new(true);
        let mut out = vec![0; CHUNK];
        loop {
            let part = self.fill()?;
            if part.is_empty() {
                return Err(damaged("ends in the middle"));
            }
            let (read, written) = (state.total_in(), state.total_out());
            let status = state
                .decompress(part, &mut out, FlushDecompress::None)
                .map_err(|_| damaged("cannot be inflated"))?;
            let taken = (state.total_in() - read) as usize;
            let got = (state.total_out() - written) as usize;
            if state.total_out() > size {
                return Err(damaged("has an object that is longer than it says"));
            }
            sink(&part[..taken], &out[..got])?;
            self.consume(taken);
            match status {
                Status::StreamEnd if state.total_out() == size => return Ok(()),
                Status::StreamEnd => return Err(damaged("has an object that is shorter than it says")),
                _ if taken == 0 && got == 0 => return Err(damaged("cannot be inflated")),
                _ => {}
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    At(u64),
    Id(ObjectId),
}

struct Delta {
    /// Where the entry begins: deltas upon it name it so.
    at: u64,
    /// Where its deflated bytes begin.
    data: u64,
    size: u64,
}

/// The deltas that wait for an object.
#[derive(Default)]
struct Children {
    at: HashMap<u64, Vec<usize>>,
    id: HashMap<ObjectId, Vec<usize>>,
}

impl Children {
    fn take(&mut self, at: Option<u64>, id: ObjectId) -> Vec<usize> {
        let mut found = at.and_then(|at| self.at.remove(&at)).unwrap_or_default();
        found.extend(self.id.remove(&id).unwrap_or_default());
        found
    }
}

/// An object that was whole. The kind is `None` for a tag, which is read and left out.
#[derive(Clone, Copy)]
struct Whole {
    kind: Option<Kind>,
    id: ObjectId,
    data: u64,
    size: u64,
}

struct Unpack {
    limits: Limits,
    left: u64,
    whole: HashMap<u64, Whole>,
    deltas: Vec<Delta>,
    children: Children,
}

/// An object whose children are being made.
struct Frame {
    kind: Option<Kind>,
    content: Rc<[u8]>,
    children: Vec<usize>,
}

impl Unpack {
    fn spend(&mut self, size: u64) -> Result<()> {
        if size > self.limits.object {
            return Err(too_large(format!("an object of {size} bytes is more than {}", self.limits.object)));
        }
        self.left = self
            .left
            .checked_sub(size)
            .ok_or_else(|| too_large(format!("its objects have more than {} bytes", self.limits.inflated)))?;
        Ok(())
    }

    fn entry(&mut self, input: &mut Input, writer: &mut PackWriter) -> Result<()> {
        let at = input.at;
        let mut byte = input.byte()?;
        let number = byte >> 4 & 7;
        let mut size = u64::from(byte & 15);
        let mut shift = 4;
        while byte & 0x80 != 0 {
            byte = input.byte()?;
            if shift > 53 {
                return Err(too_large("an object has a size of more than 60 bits".to_owned()));
            }
            size |= u64::from(byte & 0x7f) << shift;
            shift += 7;
        }
        self.spend(size)?;
        let kind = match number {
            1 => Some(Kind::Commit),
            2 => Some(Kind::Tree),
            3 => Some(Kind::Blob),
            4 => None,
            6 | 7 => {
                let base = match number {
                    6 => Base::At(base_offset(input, at)?),
                    _ => Base::Id(ObjectId::from_bytes(input.array()?)),
                };
                let data = input.at;
                input.inflate(size, |_, _| Ok(()))?;
                match base {
                    Base::At(base) => self.children.at.entry(base).or_default(),
                    Base::Id(base) => self.children.id.entry(base).or_default(),
                }
                .push(self.deltas.len());
                self.deltas.push(Delta { at, data, size });
                return Ok(());
            }
            _ => return Err(damaged("has an object of no kind")),
        };
        let data = input.at;
        let mut hash = ObjectId::hasher(name(kind), size);
        let id = match kind {
            Some(kind) => {
                let mut stream = writer.begin(kind, size)?;
                input.inflate(size, |deflated, content| {
                    hash.update(content);
                    stream.write(deflated)
                })?;
                let id = ObjectId::from_bytes(hash.finalize().into());
                stream.finish(id)?;
                id
            }
            None => {
                input.inflate(size, |_, content| {
                    hash.update(content);
                    Ok(())
                })?;
                ObjectId::from_bytes(hash.finalize().into())
            }
        };
        self.whole.insert(at, Whole { kind, id, data, size });
        Ok(())
    }

    /// Applies all deltas, from the objects that are whole upwards.
    fn resolve(
        mut self,
        input: Input,
        base: Option<&Store>,
        writer: &mut PackWriter,
        cancel: &Cancel,
    ) -> Result<()> {
        if self.deltas.is_empty() {
            return Ok(());
        }
        let mut reader = Reader { input };
        let mut deflater = Deflater::new();
        for (at, whole) in std::mem::take(&mut self.whole) {
            let children = self.children.take(Some(at), whole.id);
            if !children.is_empty() {
                self.in_memory(whole.size)?;
                let content = reader.read(whole.data, whole.size)?.into();
                let frame = Frame { kind: whole.kind, content, children };
                self.grow(frame, &mut reader, writer, &mut deflater, cancel)?;
            }
        }
        // What is left is based on objects that are not in the pack, and on what is made of those.
        while let Some(id) =
            self.children.id.keys().copied().find(|id| base.is_some_and(|base| base.has(*id)))
        {
            let children = self.children.take(None, id);
            let (kind, content) =
                base.map_or(Ok(None), |base| base.read(id))?.ok_or_else(|| not_there(id))?;
            self.in_memory(content.len() as u64)?;
            let frame = Frame { kind: Some(kind), content: content.into(), children };
            self.grow(frame, &mut reader, writer, &mut deflater, cancel)?;
        }
        if let Some(id) = self.children.id.keys().next() {
            return Err(not_there(*id));
        }
        match self.children.at.is_empty() {
            true => Ok(()),
            false => Err(damaged("has deltas of nothing")),
        }
    }

    /// Makes everything that is based on an object.
    fn grow(
        &mut self,
        root: Frame,
        reader: &mut Reader,
        writer: &mut PackWriter,
        deflater: &mut Deflater,
        cancel: &Cancel,
    ) -> Result<()> {
        let mut held = root.content.len() as u64;
        let mut stack = vec![root];
        while let Some(frame) = stack.last_mut() {
            cancel.check()?;
            let kind = frame.kind;
            let content = Rc::clone(&frame.content);
            let child = frame.children.pop();
            if frame.children.is_empty() {
                held -= content.len() as u64;
                stack.pop();
            }
            let Some(delta) = child.and_then(|child| self.deltas.get(child)) else { continue };
            let (at, data, size) = (delta.at, delta.data, delta.size);
            self.in_memory(size)?;
            let instructions = reader.read(data, size)?;
            let made = delta::result_size(&instructions, content.len() as u64)?;
            self.spend(made)?;
            self.in_memory(held.saturating_add(made).saturating_add(content.len() as u64))?;
            let made = delta::apply(&content, &instructions)?;
            let id = ObjectId::of(name(kind), &made);
            if let Some(kind) = kind {
                writer.add(kind, id, made.len() as u64, deflater.deflate(&made)?)?;
            }
            let children = self.children.take(Some(at), id);
            if !children.is_empty() {
                held += made.len() as u64;
                stack.push(Frame { kind, content: made.into(), children });
            }
        }
        Ok(())
    }

    fn in_memory(&self, size: u64) -> Result<()> {
        match size > MAX_IN_MEMORY {
            true => Err(too_large(format!("its deltas take more than {MAX_IN_MEMORY} bytes of memory"))),
            false => Ok(()),
        }
    }
}

/// Reads parts of the pack once more.
struct Reader {
    input: Input,
}

impl Reader {
    fn read(&mut self, at: u64, size: u64) -> Result<Vec<u8>> {
        self.input.file.seek(SeekFrom::Start(at)).map_err(unreadable)?;
        let mut content = Vec::new();
        self.input.inflate(size, |_, part| {
            content.extend_from_slice(part);
            Ok(())
        })?;
        Ok(content)
    }
}

/// How far before its own place the base of a delta begins: seven bits a byte, each further byte one more.
fn base_offset(input: &mut Input, at: u64) -> Result<u64> {
    let mut byte = input.byte()?;
    let mut back = u64::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = input.byte()?;
        back = (back + 1)
            .checked_mul(128)
            .map(|back| back | u64::from(byte & 0x7f))
            .ok_or_else(|| damaged("has a delta of nothing"))?;
    }
    at.checked_sub(back).filter(|_| back > 0).ok_or_else(|| damaged("has a delta of nothing"))
}

fn name(kind: Option<Kind>) -> &'static str {
    kind.map_or("tag", Kind::name)
}

fn not_there(id: ObjectId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("the pack has deltas of the object {id}, which is neither in it nor in the vault"),
    )
    .with_reason("missing_objects")
    .with_context("object", id)
}

pub(super) fn damaged(how: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the pack {how}")).with_reason("damaged")
}

pub(super) fn too_large(how: String) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("the pack is refused: {how}; raise the limit if it is yours"),
    )
    .with_reason("too_large")
}

fn unreadable(failure: std::io::Error) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the pack cannot be read: {failure}")).with_source(failure)
}
