//! The commit that a repository began with, which is the same in every clone of it.
//!
//! Commits are read where they are, a piece at a time: a pack of gigabytes is neither copied nor mapped for it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use sandhold_core::{ErrorKind, Result};

use super::dir::GitDir;
use super::object::{Pack, inflate_loose, list_packs, references};
use crate::beneath;
use crate::cancel::Cancel;
use crate::oid::ObjectId;
use crate::vault::{ObjectKind, apply_delta};

/// A history of more commits than this is not looked through.
const MAX_COMMITS: usize = 4 << 20;
/// A commit above this size is not read; nor is what it is a delta of.
const MAX_COMMIT: u64 = 16 << 20;
/// Git writes chains of 50, and 4095 where it is made to.
const MAX_CHAIN: usize = 4096;

/// Finds the smallest of the commits without parents that `head` goes back to, with what is `known` of other commits.
///
/// # Errors
/// Cancellation, and the budget; `None` stands for a history that is cut off, damaged, or too long for half of it.
pub(crate) fn smallest_root(
    git: &GitDir,
    head: ObjectId,
    known: &HashMap<ObjectId, ObjectId>,
    cancel: &Cancel,
) -> Result<Option<ObjectId>> {
    // What a shallow clone calls the beginning is none.
    if git.is_shallow() {
        return Ok(None);
    }
    match walk(git, head, known, &cancel.half()) {
        Err(failure) if failure.kind() == ErrorKind::Timeout => cancel.check().map(|()| None),
        answer => answer,
    }
}

fn walk(
    git: &GitDir,
    head: ObjectId,
    known: &HashMap<ObjectId, ObjectId>,
    cancel: &Cancel,
) -> Result<Option<ObjectId>> {
    let mut commits = None;
    let mut seen = HashSet::from([head]);
    let mut todo = vec![head];
    let mut smallest: Option<ObjectId> = None;
    while let Some(id) = todo.pop() {
        cancel.check()?;
        let mut root = known.get(&id).copied();
        if root.is_none() {
            let commits = commits.get_or_insert_with(|| Commits::new(git.common()));
            let Some(parents) = commits.parents(id) else { return Ok(None) };
            if parents.is_empty() {
                root = Some(id);
            }
            todo.extend(parents.into_iter().filter(|parent| seen.insert(*parent)));
        }
        smallest = smallest.into_iter().chain(root).min();
        if seen.len() > MAX_COMMITS {
            return Ok(None);
        }
    }
    Ok(smallest)
}

struct Commits<'a> {
    common: BorrowedFd<'a>,
    packs: Vec<(Pack, Option<File>)>,
}

impl<'a> Commits<'a> {
    fn new(common: BorrowedFd<'a>) -> Self {
        Self { common, packs: list_packs(common).into_iter().map(|pack| (pack, None)).collect() }
    }

    /// The parents of a commit; `None` where it cannot be read.
    fn parents(&mut self, id: ObjectId) -> Option<Vec<ObjectId>> {
        let content = self.packed(id, ObjectKind::Commit, 0).or_else(|| self.loose(id))?;
        if ObjectId::of(ObjectKind::Commit.name(), &content) != id {
            return None;
        }
        let references = references(ObjectKind::Commit, &content)?;
        Some(
            references
                .into_iter()
                .filter(|(kind, _)| *kind == ObjectKind::Commit)
                .map(|(_, id)| id)
                .collect(),
        )
    }

    fn loose(&self, id: ObjectId) -> Option<Vec<u8>> {
        let hex = id.to_string();
        let path = format!("objects/{}/{}", &hex[..2], &hex[2..]);
        let (kind, content) =
            inflate_loose(beneath::open_file(self.common, path.as_bytes()).ok()?, MAX_COMMIT)?;
        (kind == ObjectKind::Commit).then_some(content)
    }

    fn packed(&mut self, id: ObjectId, kind: ObjectKind, depth: usize) -> Option<Vec<u8>> {
        for index in 0..self.packs.len() {
            let (pack, file) = &mut self.packs[index];
            let Some(at) = pack.offset(id) else { continue };
            if file.is_none() {
                let path = format!("objects/pack/{}.pack", pack.name);
                *file = beneath::open_file(self.common, path.as_bytes()).ok();
            }
            if self.packs[index].1.is_some() {
                return self.entry(index, at, kind, depth);
            }
        }
        None
    }

    /// Reads the entry at `at`, and what it is a delta of before it.
    fn entry(&mut self, pack: usize, mut at: u64, kind: ObjectKind, mut depth: usize) -> Option<Vec<u8>> {
        let mut deltas = Vec::new();
        let mut content = loop {
            let file = self.packs.get(pack)?.1.as_ref()?;
            let mut input = BufReader::with_capacity(1024, At { file, at });
            let (number, size) = header(&mut input)?;
            match number {
                1 if kind == ObjectKind::Commit => break inflate(input, size)?,
                6 => {
                    let back = distance(&mut input)?;
                    deltas.push(inflate(input, size)?);
                    at = at.checked_sub(back).filter(|_| back > 0)?;
                }
                7 => {
                    let mut base = [0; 20];
                    input.read_exact(&mut base).ok()?;
                    deltas.push(inflate(input, size)?);
                    let base = ObjectId::from_bytes(base);
                    depth += deltas.len();
                    if depth > MAX_CHAIN {
                        return None;
                    }
                    break self.packed(base, kind, depth).or_else(|| self.loose(base))?;
                }
                _ => return None,
            }
            if depth + deltas.len() > MAX_CHAIN {
                return None;
            }
        };
        while let Some(delta) = deltas.pop() {
            content = apply_delta(&content, &delta, MAX_COMMIT).ok()?;
        }
        Some(content)
    }
}

/// A file from some place on: what becomes shorter meanwhile is an end, and no signal.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

fn byte(input: &mut impl Read) -> Option<u8> {
    let mut byte = [0];
    input.read_exact(&mut byte).ok()?;
    Some(byte[0])
}

/// The kind of an entry of a pack by its number, and its size.
fn header(input: &mut impl Read) -> Option<(u8, u64)> {
    let mut next = byte(input)?;
    let number = next >> 4 & 7;
    let (mut size, mut shift) = (u64::from(next & 15), 4);
    while next & 0x80 != 0 {
        next = byte(input)?;
        size |= u64::from(next & 0x7f).checked_shl(shift)?;
        shift += 7;
        if shift > 60 {
            return None;
        }
    }
    (size <= MAX_COMMIT).then_some((number, size))
}

/// How far before a delta its base begins: seven bits a byte, each further byte one more.
fn distance(input: &mut impl Read) -> Option<u64> {
    let mut next = byte(input)?;
    let mut back = u64::from(next & 0x7f);
    while next & 0x80 != 0 {
        next = byte(input)?;
        back = back.checked_add(1)?.checked_mul(128)?.checked_add(u64::from(next & 0x7f))?;
    }
    Some(back)
}

fn inflate(input: impl io::BufRead, size: u64) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    flate2::bufread::ZlibDecoder::new(input).take(size + 1).read_to_end(&mut content).ok()?;
    (content.len() as u64 == size).then_some(content)
}
