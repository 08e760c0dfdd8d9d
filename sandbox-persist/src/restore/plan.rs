//! What a restore will do, decided before anything is touched.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use sandhold_core::{Error, ErrorKind, Result};

use crate::capture::Scan;
use crate::oid::ObjectId;
use crate::path::{self, WorkPath};
use crate::vault;

/// A file or a symlink to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) mode: u32,
    pub(crate) id: ObjectId,
}

pub(crate) const FILE: u32 = 0o100_644;
pub(crate) const EXECUTABLE: u32 = 0o100_755;
pub(crate) const SYMLINK: u32 = 0o120_000;
const DIR: u32 = 0o040_000;
const GITLINK: u32 = 0o160_000;

/// A tree as it is to be on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) items: BTreeMap<Box<[u8]>, Item>,
    /// All directories, the empty ones too, but for the root.
    pub(crate) dirs: BTreeSet<Box<[u8]>>,
    pub(crate) gitlinks: Vec<WorkPath>,
}

impl Wanted {
    /// Reads a tree, and refuses one that would write where it must not.
    pub(crate) fn read(repository: &git2::Repository, tree: ObjectId) -> Result<Self> {
        let mut wanted = Self::default();
        wanted.read_dir(repository, tree, &[], 0)?;
        Ok(wanted)
    }

    fn read_dir(
        &mut self,
        repository: &git2::Repository,
        tree: ObjectId,
        at: &[u8],
        depth: u32,
    ) -> Result<()> {
        let refused = |path: &[u8], why: &str| {
            let path = WorkPath::new(path);
            Error::new(ErrorKind::InvalidArgument, format!("the tree {tree} is not restored: {path:?} {why}"))
                .with_reason("hostile_tree")
        };
        if depth > 1024 {
            return Err(refused(at, "is more than 1024 directories deep"));
        }
        let tree = vault::tree(repository, tree)?;
        let mut names = HashSet::new();
        for entry in &tree {
            let name = entry.name_bytes();
            let path = path::join(at, name);
            if path::is_forbidden_name(name) {
                return Err(refused(
                    &path,
                    "has a name that some file systems take for `.git` or for another directory",
                ));
            }
            if !names.insert(name.to_vec()) {
                return Err(refused(&path, "is there twice"));
            }
            let id: ObjectId = entry.id().into();
            match entry.filemode_raw() as u32 {
                DIR => {
                    self.dirs.insert(path.clone().into());
                    self.read_dir(repository, id, &path, depth + 1)?;
                }
                GITLINK => self.gitlinks.push(WorkPath::new(path)),
                SYMLINK if matches!(name, b".gitmodules") => {
                    return Err(refused(&path, "is a symlink, which git would follow"));
                }
                mode @ (FILE | EXECUTABLE | SYMLINK) => {
                    self.items.insert(path.into(), Item { mode, id });
                }
                mode => return Err(refused(&path, &format!("has the mode {mode:o}"))),
            }
        }
        Ok(())
    }

    /// Adds directories that hold nothing, which git does not have.
    pub(crate) fn add_empty_dirs(&mut self, dirs: &[WorkPath]) -> Result<()> {
        for dir in dirs {
            let names: Vec<&[u8]> = dir.as_bytes().split(|byte| *byte == b'/').collect();
            if names.iter().any(|name| path::is_forbidden_name(name)) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("the side manifest names {dir:?} as an empty directory, which is no path within a workspace"),
                )
                .with_reason("hostile_tree"));
            }
            let mut at = Vec::new();
            for name in names {
                at = path::join(&at, name);
                if self.items.contains_key(&*at) {
                    return Err(Error::new(
                        ErrorKind::InvalidArgument,
                        format!("{dir:?} is below a file of the same snapshot"),
                    )
                    .with_reason("hostile_tree"));
                }
                self.dirs.insert(at.clone().into());
            }
        }
        Ok(())
    }

    /// Names within one directory that are the same where letters have no case.
    pub(crate) fn collisions(&self) -> Vec<(WorkPath, WorkPath)> {
        let mut seen: BTreeMap<Vec<u8>, &[u8]> = BTreeMap::new();
        let mut found = Vec::new();
        for path in self.items.keys().chain(&self.dirs) {
            let folded = String::from_utf8_lossy(path).to_lowercase().into_bytes();
            match seen.insert(folded, path) {
                Some(other) if *other != **path => found.push((WorkPath::new(other), WorkPath::new(&**path))),
                _ => {}
            }
        }
        found
    }
}

/// The steps from what is there to what is wanted.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// In the order of their paths, so that what is in one directory is together.
    pub(crate) writes: Vec<(Box<[u8]>, Item)>,
    /// Files and symlinks that are to go.
    pub(crate) deletes: Vec<Box<[u8]>>,
    pub(crate) untouched: u64,
}

impl Plan {
    pub(crate) fn new(wanted: &Wanted, present: &Scan) -> Self {
        let mut plan = Self::default();
        for (path, item) in &wanted.items {
            let is_so = present
                .entry(path)
                .is_some_and(|entry| entry.id == item.id && entry.git_mode() == Some(item.mode));
            match is_so {
                true => plan.untouched += 1,
                false => plan.writes.push((path.clone(), item.clone())),
            }
        }
        for (at, dir) in &present.dirs {
            for entry in &dir.entries {
                let path = path::join(at, &entry.name);
                let is_content = matches!(entry.git_mode(), Some(FILE | EXECUTABLE | SYMLINK));
                if is_content && !wanted.items.contains_key(&*path) {
                    plan.deletes.push(path.into());
                }
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_case_alone_are_found() {
        let mut wanted = Wanted::default();
        let item = Item { mode: FILE, id: ObjectId::ZERO };
        for path in ["README", "Readme", "dir/a", "other/A", "STRASSE"] {
            wanted.items.insert(path.as_bytes().into(), item.clone());
        }
        wanted.dirs.extend(["dir", "Dir", "other"].map(|dir| Box::from(dir.as_bytes())));
        let found: Vec<_> = wanted.collisions().iter().map(|(one, other)| format!("{one} {other}")).collect();
        assert_eq!(found, ["README Readme", "Dir dir"]);
    }
}
