//! The last look at a workspace on disk, for the process that looks next.
//!
//! Losing it costs time and nothing else, so that it is not synced; a sum at its end tells a torn one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sandhold_core::Result;

use super::scan::{Content, Dir, Entry, Kind, Scan, Stat};
use crate::error;
use crate::oid::ObjectId;
use crate::side::SkipReason;

const MAGIC: &[u8] = b"sandhold scan 1\n";

/// A scan, and the generation of the vault in which its objects were there.
pub(super) fn write(staged: &Path, path: &Path, generation: &str, scan: &Scan) -> Result<()> {
    let mut out = Vec::with_capacity(scan.dirs.values().map(|dir| 64 + dir.entries.len() * 110).sum());
    out.extend_from_slice(MAGIC);
    out.push(u8::from(scan.checked_keys));
    put_bytes(&mut out, generation.as_bytes());
    for (at, dir) in &scan.dirs {
        put_bytes(&mut out, at);
        out.push(
            u8::from(dir.is_repository) | u8::from(dir.is_ignored) << 1 | u8::from(dir.is_unreadable) << 2,
        );
        out.extend_from_slice(dir.tree.as_bytes());
        out.extend_from_slice(&(dir.entries.len() as u32).to_le_bytes());
        for entry in &dir.entries {
            put_bytes(&mut out, &entry.name);
            out.extend_from_slice(&[
                kind_code(entry.kind),
                content_code(entry.content),
                u8::from(entry.is_pointer),
            ]);
            let stat = &entry.stat;
            out.extend_from_slice(&stat.mode.to_le_bytes());
            out.extend_from_slice(&stat.size.to_le_bytes());
            for (seconds, nanos) in [stat.modified, stat.changed] {
                out.extend_from_slice(&seconds.to_le_bytes());
                out.extend_from_slice(&nanos.to_le_bytes());
            }
            out.extend_from_slice(&stat.inode.to_le_bytes());
            out.extend_from_slice(&stat.device.to_le_bytes());
            out.extend_from_slice(entry.id.as_bytes());
        }
    }
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    fs::write(staged, &out)
        .and_then(|()| fs::rename(staged, path))
        .map_err(|failure| error::io("write the cache", path, failure))
}

/// `None` for a cache that is not there, torn, or of another version.
pub(super) fn read(path: &Path) -> Option<(String, Scan)> {
    let text = fs::read(path).ok()?;
    let (text, sum) = text.split_last_chunk::<4>()?;
    if crc32fast::hash(text) != u32::from_le_bytes(*sum) {
        return None;
    }
    let mut input = Input(text.strip_prefix(MAGIC)?);
    let mut scan = Scan { checked_keys: input.byte()? != 0, ..Scan::default() };
    let generation = String::from_utf8(input.bytes()?.to_vec()).ok()?;
    while !input.0.is_empty() {
        let at = input.bytes()?.into();
        let flags = input.byte()?;
        let tree = ObjectId::from_bytes(input.array()?);
        let count = u32::from_le_bytes(input.array()?) as usize;
        let mut entries = Vec::with_capacity(count.min(1 << 20));
        for _ in 0..count {
            let name = input.bytes()?.into();
            let (kind, content) = (kind_of(input.byte()?)?, content_of(input.byte()?)?);
            let is_pointer = input.byte()? != 0;
            let mode = u32::from_le_bytes(input.array()?);
            let size = u64::from_le_bytes(input.array()?);
            let mut time = || Some((i64::from_le_bytes(input.array()?), u32::from_le_bytes(input.array()?)));
            let (modified, changed) = (time()?, time()?);
            let (inode, device) = (u64::from_le_bytes(input.array()?), u64::from_le_bytes(input.array()?));
            let stat = Stat { mode, size, modified, changed, inode, device };
            let id = ObjectId::from_bytes(input.array()?);
            entries.push(Entry { name, kind, content, is_pointer, stat, id });
        }
        let dir = Dir {
            entries,
            is_repository: flags & 1 != 0,
            is_ignored: flags & 2 != 0,
            is_unreadable: flags & 4 != 0,
            tree,
        };
        scan.dirs.insert(at, Arc::new(dir));
    }
    Some((generation, scan))
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// The walk goes to no path that is longer.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX));
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

const REASONS: [SkipReason; 10] = [
    SkipReason::Special,
    SkipReason::TooLarge,
    SkipReason::EnvFile,
    SkipReason::PrivateKey,
    SkipReason::HostRule,
    SkipReason::Vanished,
    SkipReason::Unreadable,
    SkipReason::Unstable,
    SkipReason::ForbiddenName,
    SkipReason::TooDeep,
];

fn kind_code(kind: Kind) -> u8 {
    match kind {
        Kind::File => 0,
        Kind::Symlink => 1,
        Kind::Dir => 2,
        Kind::Skipped(reason) => {
            3 + REASONS.iter().position(|known| *known == reason).unwrap_or(REASONS.len()) as u8
        }
    }
}

fn kind_of(code: u8) -> Option<Kind> {
    Some(match code {
        0 => Kind::File,
        1 => Kind::Symlink,
        2 => Kind::Dir,
        code => Kind::Skipped(*REASONS.get(usize::from(code - 3))?),
    })
}

const CONTENTS: [Content; 5] =
    [Content::Unread, Content::Known, Content::Racy, Content::Unstable, Content::Kept];

fn content_code(content: Content) -> u8 {
    CONTENTS.iter().position(|known| *known == content).unwrap_or(0) as u8
}

fn content_of(code: u8) -> Option<Content> {
    CONTENTS.get(usize::from(code)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_comes_back_as_it_was_and_a_torn_one_not_at_all() {
        let entry = |name: &str, kind, content| Entry {
            name: name.as_bytes().into(),
            kind,
            content,
            is_pointer: name == "b",
            stat: Stat {
                mode: 0o100_644,
                size: 1 << 40,
                modified: (-1, 5),
                changed: (7, 9),
                inode: 3,
                device: 4,
            },
            id: ObjectId::of("blob", name.as_bytes()),
        };
        let entries = vec![
            entry("a", Kind::File, Content::Known),
            entry("b", Kind::Skipped(SkipReason::ForbiddenName), Content::Racy),
        ];
        let mut scan = Scan { checked_keys: true, ..Scan::default() };
        let dir = Dir { entries, is_ignored: true, tree: ObjectId::of("tree", b"x"), ..Dir::default() };
        scan.dirs.insert(Box::from(&b"deep/er"[..]), Arc::new(dir));
        scan.dirs.insert(Box::default(), Arc::default());

        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("scan");
        write(&place.path().join("staged"), &path, "first", &scan).unwrap();
        assert_eq!(read(&path), Some(("first".to_owned(), scan)));
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read(&path), None, "cut at {cut}");
        }
    }
}
