//! Deltas: an object as parts of another one, and what is new in it (`gitformat-pack`).

use sandhold_core::{Error, Result};

use super::unpack::{damaged, too_large};

/// No more room is taken at first than this, whatever a delta says of its result.
const AT_FIRST: usize = 1 << 16;

/// A size at the beginning of a delta: seven bits a byte, the lowest first.
fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (byte, rest) = bytes.split_first().ok_or_else(bad_delta)?;
        *bytes = rest;
        if shift > 56 {
            return Err(bad_delta());
        }
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
}

pub(super) fn result_size(mut delta: &[u8], base: u64) -> Result<u64> {
    match varint(&mut delta)? == base {
        true => varint(&mut delta),
        false => Err(bad_delta()),
    }
}

/// As [`apply`], for an object of at most `limit` bytes.
pub(crate) fn apply_delta(base: &[u8], delta: &[u8], limit: u64) -> Result<Vec<u8>> {
    match result_size(delta, base.len() as u64)? <= limit {
        true => apply(base, delta),
        false => Err(too_large(format!("a delta makes more than {limit} bytes"))),
    }
}

/// Makes an object of its base: parts that are copied, and parts that are new.
pub(super) fn apply(base: &[u8], mut delta: &[u8]) -> Result<Vec<u8>> {
    varint(&mut delta)?;
    let size = varint(&mut delta)? as usize;
    let mut made = Vec::with_capacity(size.min(AT_FIRST));
    while let Some((&op, rest)) = delta.split_first() {
        delta = rest;
        let part = match op {
            0 => return Err(bad_delta()),
            1..=0x7f => {
                let (part, rest) = delta.split_at_checked(usize::from(op)).ok_or_else(bad_delta)?;
                delta = rest;
                part
            }
            _ => {
                let mut field = |bits: std::ops::Range<u32>| -> Result<usize> {
                    let mut value = 0;
                    for (place, bit) in bits.enumerate() {
                        if op & 1 << bit != 0 {
                            let (byte, rest) = delta.split_first().ok_or_else(bad_delta)?;
                            delta = rest;
                            value |= usize::from(*byte) << (place * 8);
                        }
                    }
                    Ok(value)
                };
                let from = field(0..4)?;
                let length = match field(4..7)? {
                    0 => 0x1_0000,
                    length => length,
                };
                base.get(from..from.saturating_add(length)).ok_or_else(bad_delta)?
            }
        };
        if made.len() + part.len() > size {
            return Err(bad_delta());
        }
        made.extend_from_slice(part);
    }
    match made.len() == size {
        true => Ok(made),
        false => Err(bad_delta()),
    }
}

fn bad_delta() -> Error {
    damaged("has a delta that does not fit what it is of")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_delta_copies_and_inserts() {
        // 11 bytes become "hello brave world": copy 0..6, insert "brave ", copy 6..11.
        let delta = [11, 17, 0x90, 6, 6, b'b', b'r', b'a', b'v', b'e', b' ', 0x91, 6, 5];
        assert_eq!(result_size(&delta, 11).unwrap(), 17);
        assert_eq!(apply(b"hello world", &delta).unwrap(), b"hello brave world");
        for bad in [&delta[..13], &[11, 17, 0x90, 6], &[11, 1, 0], &[11, 4, 0x91, 9, 4]] {
            assert!(apply(b"hello world", bad).is_err());
        }
        assert!(result_size(&delta, 12).is_err());
    }

    proptest! {
        #[test]
        fn a_delta_of_any_bytes_is_applied_or_refused(base in proptest::collection::vec(any::<u8>(), 0..200), delta in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(made) = apply(&base, &delta) {
                prop_assert!(made.len() <= delta.len() * 0x1_0000);
            }
        }
    }
}
