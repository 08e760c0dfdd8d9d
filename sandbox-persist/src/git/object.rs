//! The store of objects of a foreign repository. Every object is hashed before it is believed.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use sandhold_core::Result;

use crate::cancel::Cancel;
use crate::oid::ObjectId;
use crate::vault::{ObjectKind, Objects};
use crate::{beneath, durable, error};

/// An object above this size, inflated, is not copied.
const MAX_OBJECT: u64 = 256 << 20;
const MAX_INDEX: u64 = 512 << 20;
const MAX_PACKS: usize = 512;

/// An object that was read and hashed.
pub(super) type Read1 = Option<(ObjectKind, Vec<u8>)>;

/// Loose objects are read where they are, packs are copied first: a file that becomes shorter while libgit2 has it
/// mapped would end the process.
pub(crate) struct ForeignStore<'a> {
    common: BorrowedFd<'a>,
    packs: Option<Vec<Pack>>,
    quarantine: PathBuf,
    odb: Option<git2::Odb<'static>>,
}

pub(super) struct Pack {
    pub(super) name: String,
    index: Vec<u8>,
    is_copied: bool,
}

impl Pack {
    /// Where an object begins in the pack; `None` where it is not there.
    pub(super) fn offset(&self, id: ObjectId) -> Option<u64> {
        let index = &self.index;
        let count = number(index, 8 + 255 * 4)?;
        // After the ids their checksums, and then where they are.
        let offsets = 1032 + count * 24;
        let short = number(index, offsets + position(index, id)? * 4)?;
        match short & 1 << 31 {
            0 => Some(short as u64),
            _ => {
                let at = offsets + count * 4 + (short & !(1 << 31)) * 8;
                Some(u64::from_be_bytes(index.get(at..at + 8)?.try_into().ok()?))
            }
        }
    }
}

impl<'a> ForeignStore<'a> {
    pub(crate) fn new(common: BorrowedFd<'a>, objects: &Objects) -> Result<Self> {
        Ok(Self { common, packs: None, quarantine: objects.staged("quarantine")?, odb: None })
    }

    /// Tells whether an object seems to be there; what it is is not read.
    pub(crate) fn has(&mut self, id: ObjectId) -> bool {
        let hex = id.to_string();
        let path = format!("objects/{}/{}", &hex[..2], &hex[2..]);
        if beneath::open_file(self.common, path.as_bytes()).is_ok() {
            return true;
        }
        let packs = self.packs.get_or_insert_with(|| list_packs(self.common));
        packs.iter().any(|pack| position(&pack.index, id).is_some())
    }

    /// Reads an object; `None` where it is not there, is damaged, or is too big.
    pub(super) fn read(&mut self, id: ObjectId, cancel: &Cancel) -> Result<Read1> {
        let hex = id.to_string();
        let path = format!("objects/{}/{}", &hex[..2], &hex[2..]);
        if let Ok(file) = beneath::open_file(self.common, path.as_bytes())
            && let Some((kind, content)) = inflate_loose(file, MAX_OBJECT)
            && ObjectId::of(kind.name(), &content) == id
        {
            return Ok(Some((kind, content)));
        }
        self.read_packed(id, cancel)
    }

    fn read_packed(&mut self, id: ObjectId, cancel: &Cancel) -> Result<Read1> {
        let packs = self.packs.get_or_insert_with(|| list_packs(self.common));
        let Some(pack) = packs.iter_mut().find(|pack| position(&pack.index, id).is_some()) else {
            return Ok(None);
        };
        let dir = self.quarantine.join("pack");
        if !pack.is_copied {
            durable::create_dir(&dir)?;
            let path = format!("objects/pack/{}.pack", pack.name);
            let Ok(from) = beneath::open_file(self.common, path.as_bytes()) else { return Ok(None) };
            copy(from, &dir.join(format!("{}.pack", pack.name)), cancel)?;
            let index = dir.join(format!("{}.idx", pack.name));
            fs::write(&index, &pack.index).map_err(|failure| error::io("write", &index, failure))?;
            pack.is_copied = true;
            self.odb = None;
        }
        let odb = match &self.odb {
            Some(odb) => odb,
            None => {
                let open = || -> Result<git2::Odb<'static>, git2::Error> {
                    let odb = git2::Odb::new()?;
                    odb.add_disk_alternate(self.quarantine.to_str().unwrap_or_default())?;
                    Ok(odb)
                };
                self.odb.insert(open().map_err(|failure| error::git("open copied packs", failure))?)
            }
        };
        // libgit2 looks at the size first, and hashes what it reads.
        match odb.read_header(id.into()) {
            Ok((size, _)) if size as u64 <= MAX_OBJECT => {}
            _ => return Ok(None),
        }
        Ok(odb.read(id.into()).ok().and_then(|object| {
            let kind = match object.kind() {
                git2::ObjectType::Commit => ObjectKind::Commit,
                git2::ObjectType::Tree => ObjectKind::Tree,
                git2::ObjectType::Blob => ObjectKind::Blob,
                _ => return None,
            };
            Some((kind, object.data().to_vec()))
        }))
    }
}

impl Drop for ForeignStore<'_> {
    fn drop(&mut self) {
        // What stays is swept with the staging directory.
        self.odb = None;
        let _ = fs::remove_dir_all(&self.quarantine);
    }
}

pub(super) fn inflate_loose(file: fs::File, limit: u64) -> Option<(ObjectKind, Vec<u8>)> {
    let mut inflated = Vec::new();
    let mut reader = flate2::read::ZlibDecoder::new(file);
    reader.by_ref().take(limit + 64).read_to_end(&mut inflated).ok()?;
    let end = inflated.iter().take(64).position(|byte| *byte == 0)?;
    let header = std::str::from_utf8(&inflated[..end]).ok()?;
    let (kind, size) = header.split_once(' ')?;
    let kind = match kind {
        "commit" => ObjectKind::Commit,
        "tree" => ObjectKind::Tree,
        "blob" => ObjectKind::Blob,
        _ => return None,
    };
    let size: usize = size.parse().ok()?;
    inflated.drain(..=end);
    (size == inflated.len()).then_some((kind, inflated))
}

pub(super) fn list_packs(common: BorrowedFd<'_>) -> Vec<Pack> {
    let Ok(dir) = beneath::open_dir(common, b"objects/pack") else { return Vec::new() };
    let Ok(entries) = rustix::fs::Dir::read_from(&dir) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str().ok()?.strip_suffix(".idx")?.to_owned()))
        // What is no name of a pack could be the name of anything.
        .filter(|name| {
            name.starts_with("pack-") && name.bytes().all(|byte| byte == b'-' || byte.is_ascii_alphanumeric())
        })
        .take(MAX_PACKS)
        .filter_map(|name| {
            let path = format!("objects/pack/{name}.idx");
            let index = beneath::read_small(common, path.as_bytes(), MAX_INDEX).ok()?;
            Some(Pack { name, index, is_copied: false })
        })
        .collect()
}

fn number(index: &[u8], at: usize) -> Option<usize> {
    let bytes = index.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?) as usize)
}

/// Looks an id up in an index of version 2, and tells which of its ids it is.
fn position(index: &[u8], id: ObjectId) -> Option<usize> {
    if index.get(..8)? != b"\xfftOc\0\0\0\x02" {
        return None;
    }
    let first = usize::from(id.as_bytes()[0]);
    let mut low = if first == 0 { 0 } else { number(index, 8 + (first - 1) * 4)? };
    let mut high = number(index, 8 + first * 4)?;
    while low < high {
        let middle = low + (high - low) / 2;
        let found = index.get(1032 + middle * 20..1052 + middle * 20)?;
        match found.cmp(id.as_bytes()) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
            std::cmp::Ordering::Equal => return Some(middle),
        }
    }
    None
}

fn copy(mut from: fs::File, to: &std::path::Path, cancel: &Cancel) -> Result<()> {
    let mut to_file = durable::create_file(to)?;
    loop {
        cancel.check()?;
        match io::copy(&mut from.by_ref().take(64 << 20), &mut to_file) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(failure) => return Err(error::io("copy a pack to", to, failure)),
        }
    }
}

/// The ids that an object refers to, with whether each is a commit, a tree or a blob; `None` where it is damaged.
///
/// Submodules' commits are in other repositories and are left out.
pub(crate) fn references(kind: ObjectKind, content: &[u8]) -> Option<Vec<(ObjectKind, ObjectId)>> {
    let mut found = Vec::new();
    match kind {
        ObjectKind::Blob => {}
        ObjectKind::Commit => {
            let head = content.windows(2).position(|pair| pair == b"\n\n").unwrap_or(content.len());
            for line in content[..head].split(|byte| *byte == b'\n') {
                let id = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<ObjectId>().ok();
                if let Some(text) = line.strip_prefix(b"tree ") {
                    found.push((ObjectKind::Tree, id(text)?));
                } else if let Some(text) = line.strip_prefix(b"parent ") {
                    found.push((ObjectKind::Commit, id(text)?));
                } else {
                    break;
                }
            }
            if found.first().is_none_or(|(kind, _)| *kind != ObjectKind::Tree) {
                return None;
            }
        }
        ObjectKind::Tree => {
            for entry in parse_tree(content)? {
                match entry.mode {
                    0o160_000 => {}
                    _ if entry.is_dir() => found.push((ObjectKind::Tree, entry.id)),
                    _ => found.push((ObjectKind::Blob, entry.id)),
                }
            }
        }
    }
    Some(found)
}

/// One name in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    pub(crate) mode: u32,
    pub(crate) name: Box<[u8]>,
    pub(crate) id: ObjectId,
}

impl TreeEntry {
    pub(crate) fn is_dir(&self) -> bool {
        self.mode == 0o040_000
    }
}

/// Reads a tree; `None` for one that git itself would not write.
pub(super) fn parse_tree(content: &[u8]) -> Option<Vec<TreeEntry>> {
    let mut seen = HashSet::new();
    let mut entries = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let space = rest.iter().take(8).position(|byte| *byte == b' ')?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let name = rest.get(space + 1..end)?;
        let id = ObjectId::from_bytes(rest.get(end + 1..end + 21)?.try_into().ok()?);
        if !seen.insert(name) || crate::path::is_forbidden_name(name) {
            return None;
        }
        let mode = u32::from_str_radix(std::str::from_utf8(&rest[..space]).ok()?, 8).ok()?;
        entries.push(TreeEntry { mode, name: name.into(), id });
        rest = &rest[end + 21..];
    }
    Some(entries)
}
