//! Reading the indexes of packs, version 2 of `gitformat-pack`: where each object is, and the sum of its bytes.

use std::path::Path;

use sandhold_core::{Error, ErrorKind, Result};

use crate::error;
use crate::oid::ObjectId;

const MAGIC: &[u8] = b"\xfftOc\0\0\0\x02";
const IDS_AT: usize = 8 + 1024;
/// What follows the last object of a pack: its digest.
pub(crate) const TRAILER: u64 = 20;

/// Where an object is in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) id: ObjectId,
    pub(crate) offset: u64,
    /// Where the next object or the trailer begins.
    pub(crate) end: u64,
    pub(crate) sum: u32,
}

/// Reads the index of a pack of `pack_len` bytes; its entries are in the order of their ids.
pub(crate) fn read(path: &Path, pack_len: u64) -> Result<Vec<IndexEntry>> {
    let bytes = std::fs::read(path).map_err(|failure| error::io("read", path, failure))?;
    parse(&bytes, pack_len).ok_or_else(|| {
        Error::new(ErrorKind::Unexpected, format!("the index {} is damaged", path.display()))
            .with_reason("damaged")
    })
}

fn parse(bytes: &[u8], pack_len: u64) -> Option<Vec<IndexEntry>> {
    let word = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if !bytes.starts_with(MAGIC) {
        return None;
    }
    let count = word(8 + 255 * 4)? as usize;
    let sums_at = IDS_AT.checked_add(count.checked_mul(20)?)?;
    let near_at = sums_at + count * 4;
    let far_at = near_at + count * 4;
    if bytes.len() < far_at + 40 {
        return None;
    }
    let last = pack_len.checked_sub(TRAILER)?;
    let mut entries = Vec::with_capacity(count);
    for at in 0..count {
        let id = bytes.get(IDS_AT + at * 20..IDS_AT + (at + 1) * 20)?;
        let near = word(near_at + at * 4)?;
        let offset = match near >> 31 {
            0 => u64::from(near),
            _ => {
                let far = far_at + (near & 0x7fff_ffff) as usize * 8;
                u64::from_be_bytes(bytes.get(far..far + 8)?.try_into().ok()?)
            }
        };
        if offset < 12 || offset >= last {
            return None;
        }
        let id = ObjectId::from_bytes(id.try_into().ok()?);
        entries.push(IndexEntry { id, offset, end: last, sum: word(sums_at + at * 4)? });
    }
    if !entries.is_sorted_by(|one, other| one.id < other.id) {
        return None;
    }
    let mut by_offset: Vec<usize> = (0..count).collect();
    by_offset.sort_unstable_by_key(|at| entries[*at].offset);
    for pair in by_offset.windows(2) {
        entries[pair[0]].end = entries[pair[1]].offset;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_index_of_any_bytes_is_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..3000), len in any::<u64>()) {
            let _ = parse(&bytes, len);
            for (at, byte) in MAGIC.iter().enumerate().take(bytes.len()) {
                bytes[at] = *byte;
            }
            let _ = parse(&bytes, len);
        }
    }
}
