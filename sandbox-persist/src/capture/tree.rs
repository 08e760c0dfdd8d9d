//! The trees of a scan, from the leaves up.

use std::collections::HashMap;
use std::sync::Arc;

use sandhold_core::Result;

use super::scan::{Dir, Kind, Scan};
use crate::oid::ObjectId;
use crate::path;
use crate::vault::{Deflater, ObjectKind, PackWriter};

/// Makes the trees that are not known, and stores those that `has` says the vault has not.
///
/// A directory without a file in it has no tree, but for the root.
pub(crate) fn write_trees(
    scan: &mut Scan,
    mut pack: Option<&mut PackWriter>,
    has: impl Fn(ObjectId) -> bool,
) -> Result<ObjectId> {
    let mut deflater = Deflater::new();
    let mut made: HashMap<Box<[u8]>, ObjectId> = HashMap::new();
    let mut content = Vec::new();
    // In reverse, what is in a directory comes before it.
    for (at, dir) in scan.dirs.iter_mut().rev() {
        let below = |dir: &Dir, index: usize| {
            let path = path::join(at, &dir.entries[index].name);
            made.get(&*path).copied().unwrap_or(ObjectId::ZERO)
        };
        let changed: Vec<(usize, ObjectId)> = dir
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.kind == Kind::Dir)
            .map(|(index, entry)| (index, entry.id, below(dir, index)))
            .filter(|(_, before, after)| before != after)
            .map(|(index, _, after)| (index, after))
            .collect();
        if dir.tree == ObjectId::ZERO || !changed.is_empty() {
            let is_kept = dir.is_unreadable;
            let dir = Arc::make_mut(dir);
            for (index, id) in changed {
                dir.entries[index].id = id;
            }
            if !is_kept {
                encode(dir, &mut content);
                dir.tree = match content.is_empty() && !at.is_empty() {
                    true => ObjectId::ZERO,
                    false => ObjectId::of("tree", &content),
                };
                if let Some(pack) = pack.as_deref_mut()
                    && dir.tree != ObjectId::ZERO
                    && !pack.contains(dir.tree)
                    && !has(dir.tree)
                {
                    let size = content.len() as u64;
                    pack.add(ObjectKind::Tree, dir.tree, size, deflater.deflate(&content)?)?;
                }
            }
        }
        if dir.tree != ObjectId::ZERO {
            made.insert(at.clone(), dir.tree);
        }
    }
    Ok(scan.root_tree())
}

/// Writes entries as git has them: in the order of their names, where directories end with a slash.
fn encode(dir: &Dir, content: &mut Vec<u8>) {
    let mut entries: Vec<_> =
        dir.entries.iter().filter_map(|entry| entry.git_mode().map(|mode| (mode, entry))).collect();
    if entries.iter().any(|(mode, _)| *mode == 0o040_000) {
        entries.sort_by_cached_key(|(mode, entry)| {
            let mut name = entry.name.to_vec();
            if *mode == 0o040_000 {
                name.push(b'/');
            }
            name
        });
    }
    content.clear();
    for (mode, entry) in entries {
        content.extend_from_slice(format!("{mode:o} ").as_bytes());
        content.extend_from_slice(&entry.name);
        content.push(0);
        content.extend_from_slice(entry.id.as_bytes());
    }
}
