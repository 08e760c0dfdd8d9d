use std::collections::HashMap;

use super::object::{TreeEntry, parse_tree};
use crate::oid::ObjectId;

/// The tree of the commit that a workspace is at, also while parts of it are in a pack that nobody reads yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadTree {
    pub(crate) root: ObjectId,
    pub(super) fresh: HashMap<ObjectId, Vec<u8>>,
}

impl HeadTree {
    /// Returns what the commit has in the directory `at`.
    pub(crate) fn dir(&self, repository: &git2::Repository, at: &[u8]) -> Option<Vec<TreeEntry>> {
        let mut entries = self.read(repository, self.root)?;
        for name in at.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let below = entries.iter().find(|entry| *entry.name == *name && entry.is_dir())?.id;
            entries = self.read(repository, below)?;
        }
        Some(entries)
    }

    /// Tells whether the commit knows `path` as a submodule.
    pub(crate) fn has_submodule(&self, repository: &git2::Repository, path: &[u8]) -> bool {
        let (dir, name) = crate::path::split(path);
        let entries = self.dir(repository, dir).unwrap_or_default();
        entries.iter().any(|entry| *entry.name == *name && entry.mode == 0o160_000)
    }

    fn read(&self, repository: &git2::Repository, id: ObjectId) -> Option<Vec<TreeEntry>> {
        if let Some(content) = self.fresh.get(&id) {
            return parse_tree(content);
        }
        let odb = repository.odb().ok()?;
        parse_tree(odb.read(id.into()).ok()?.data())
    }
}
