//! Deflating a file that is too big to hold: it is read and hashed on one thread and deflated on others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};

use flate2::{Compress, Compression, FlushCompress};
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};
use sha1::{Digest, Sha1};

use crate::cancel::Cancel;
use crate::oid::ObjectId;

/// Each part is deflated by itself, which costs nothing that could be measured at this size.
const PART: usize = 1 << 20;
/// How much of a part is tried before it is given up as not compressible.
const SAMPLE: usize = 32 << 10;
/// How much of the file is kept for whoever asks what it is.
const HEAD: usize = 4096;

/// What was read.
#[derive(Debug)]
pub(crate) struct Streamed {
    pub(crate) id: ObjectId,
    pub(crate) head: Vec<u8>,
    /// Tells whether there was as much as was expected.
    pub(crate) is_complete: bool,
}

/// Reads `size` bytes of a blob, and gives them deflated, in order, to `write`.
pub(crate) fn deflate(
    file: &File,
    size: u64,
    threads: usize,
    cancel: &Cancel,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Result<Streamed, Errno>> {
    write(&[0x78, 0x01])?;
    std::thread::scope(|scope| {
        let (to_deflate, parts) = mpsc::sync_channel(threads);
        let (done, deflated) = mpsc::sync_channel(threads);
        let parts = std::sync::Arc::new(Mutex::new(parts));
        for _ in 0..threads {
            let (parts, done) = (std::sync::Arc::clone(&parts), done.clone());
            scope.spawn(move || deflate_parts(&parts, &done));
        }
        drop((parts, done));
        let reader = scope.spawn(move || read(file, size, cancel, &to_deflate));

        let mut sum = simd_adler32::Adler32::new();
        let mut early = BTreeMap::new();
        let mut next = 0u64;
        for (index, part) in deflated {
            early.insert(index, part?);
            while let Some(Part { content, deflated }) = early.remove(&next) {
                sum.write(&content);
                write(deflated.as_deref().unwrap_or(&[]))?;
                if deflated.is_none() {
                    write_stored(&content, &mut write)?;
                }
                next += 1;
            }
        }
        // An empty last block closes the stream, whatever the parts were.
        write(&[1, 0, 0, 0xff, 0xff])?;
        write(&sum.finish().to_be_bytes())?;
        reader.join().map_err(|_| Error::new(ErrorKind::Unexpected, "the thread that reads panicked"))?
    })
}

struct Part {
    content: Vec<u8>,
    /// `None` where deflating would not make it smaller.
    deflated: Option<Vec<u8>>,
}

fn read(
    file: &File,
    size: u64,
    cancel: &Cancel,
    parts: &SyncSender<(u64, Vec<u8>)>,
) -> Result<Result<Streamed, Errno>> {
    let mut hash: Sha1 = ObjectId::hasher("blob", size);
    let mut head = Vec::new();
    let mut left = size;
    let mut index = 0;
    while left > 0 {
        cancel.check()?;
        let mut part = Vec::with_capacity(PART);
        let want = left.min(PART as u64);
        if let Err(failure) = file.take(want).read_to_end(&mut part) {
            return Ok(Err(Errno::from_io_error(&failure).unwrap_or(Errno::IO)));
        }
        if (part.len() as u64) < want {
            break;
        }
        hash.update(&part);
        if index == 0 {
            head.extend_from_slice(&part[..part.len().min(HEAD)]);
        }
        left -= want;
        if parts.send((index, part)).is_err() {
            // The other side has failed, and says why.
            break;
        }
        index += 1;
    }
    Ok(Ok(Streamed { id: ObjectId::from_bytes(hash.finalize().into()), head, is_complete: left == 0 }))
}

fn deflate_parts(parts: &Mutex<Receiver<(u64, Vec<u8>)>>, done: &SyncSender<(u64, Result<Part>)>) {
    let mut state = Compress::new(Compression::fast(), false);
    loop {
        let Ok((index, content)) = parts.lock().unwrap_or_else(PoisonError::into_inner).recv() else {
            return;
        };
        let deflated = deflate_part(&mut state, &content);
        if done.send((index, deflated.map(|deflated| Part { content, deflated }))).is_err() {
            return;
        }
    }
}

/// Deflates a part into blocks that end at a byte and refer to nothing outside of it.
fn deflate_part(state: &mut Compress, content: &[u8]) -> Result<Option<Vec<u8>>> {
    let sample = &content[..content.len().min(SAMPLE)];
    if squeeze(state, sample)?.len() > sample.len() - sample.len() / 16 {
        return Ok(None);
    }
    squeeze(state, content).map(Some)
}

fn squeeze(state: &mut Compress, content: &[u8]) -> Result<Vec<u8>> {
    state.reset();
    let mut out = Vec::with_capacity(content.len() + content.len() / 8 + 128);
    let mut taken = 0;
    loop {
        let before = (state.total_in(), out.len());
        state
            .compress_vec(&content[taken..], &mut out, FlushCompress::Full)
            .map_err(|failure| Error::new(ErrorKind::Unexpected, "deflate failed").with_source(failure))?;
        taken += (state.total_in() - before.0) as usize;
        // Room that is left over tells that all of it is out.
        if taken == content.len() && out.len() < out.capacity() {
            return Ok(out);
        }
        out.reserve(PART / 4);
    }
}

/// Writes blocks that are not deflated: each says its length, and once more inverted.
fn write_stored(content: &[u8], write: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    content.chunks(0xffff).try_for_each(|block| {
        let length = (block.len() as u16).to_le_bytes();
        write(&[0, length[0], length[1], !length[0], !length[1]])?;
        write(block)
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    #[test]
    fn what_is_deflated_in_parts_is_one_stream_with_the_content_and_its_id() {
        let mut content = vec![7u8; PART + 3];
        let mut random = fastrand::Rng::with_seed(1);
        content.extend(std::iter::repeat_with(|| random.u8(..)).take(PART * 2 + 70_000));
        content.extend(std::iter::repeat_with(|| random.u8(..4)).take(PART / 2));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        file.rewind().unwrap();

        let mut deflated = Vec::new();
        let size = content.len() as u64;
        let streamed = deflate(&file, size, 2, &Cancel::new(None), |bytes| {
            deflated.extend_from_slice(bytes);
            Ok(())
        });
        let streamed = streamed.unwrap().unwrap();
        assert!(streamed.is_complete);
        assert_eq!(streamed.id, ObjectId::of("blob", &content));
        let mut back = Vec::new();
        flate2::read::ZlibDecoder::new(&deflated[..]).read_to_end(&mut back).unwrap();
        assert!(back == content);
        assert!(deflated.len() < content.len());
    }

    #[test]
    fn a_file_that_became_shorter_is_not_complete() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"short").unwrap();
        file.rewind().unwrap();
        let streamed = deflate(&file, 6, 1, &Cancel::new(None), |_| Ok(())).unwrap().unwrap();
        assert!(!streamed.is_complete);
    }
}
