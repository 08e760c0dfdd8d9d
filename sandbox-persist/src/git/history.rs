//! Copying the commits that a workspace is at, so that they outlive `reset --hard` and the repository itself.

use std::collections::HashSet;

use sandhold_core::{ErrorKind, Result};

use super::dir::GitDir;
use super::head_tree::HeadTree;
use super::object::{ForeignStore, references};
use crate::cancel::Cancel;
use crate::oid::ObjectId;
use crate::vault::{Deflater, Inner, ObjectKind, PackWriter, SNAPSHOTS};

/// A history above this many bytes, inflated, is not copied.
const MAX_BYTES: u64 = 8 << 30;

/// What became of a history.
#[derive(Debug)]
pub(crate) enum History {
    /// All of it is in the vault, or in the pack that is being made.
    Complete {
        /// The tree of the commit.
        tree: HeadTree,
    },
    /// It cannot be had whole, and nothing refers to it. Why, for people.
    Incomplete(String),
}

/// Copies all that `head` reaches and the vault has not.
///
/// Of a history that cannot be had whole nothing stays in the pack: what is stored has what it refers to beside it.
///
/// # Errors
/// The vault's own failures, cancellation and the budget; never what the foreign repository is like.
pub(crate) fn copy(
    inner: &Inner,
    git: &GitDir,
    head: ObjectId,
    pack: &mut PackWriter,
    cancel: &Cancel,
) -> Result<History> {
    let mark = pack.mark();
    // A long history must not keep the files from being captured.
    let history = match copy_missing(inner, git, head, pack, &cancel.half()) {
        Err(failure) if failure.kind() == ErrorKind::Timeout => {
            cancel.check()?;
            History::Incomplete("copying its history takes more than half of the budget".to_owned())
        }
        answer => answer?,
    };
    if matches!(history, History::Incomplete(_)) {
        pack.go_back(mark)?;
    }
    Ok(history)
}

fn copy_missing(
    inner: &Inner,
    git: &GitDir,
    head: ObjectId,
    pack: &mut PackWriter,
    cancel: &Cancel,
) -> Result<History> {
    let repository = inner.objects.open()?;
    if git.is_shallow() {
        return Ok(History::Incomplete("its history is shallow".to_owned()));
    }
    if inner.is_of(git) {
        return Ok(in_place(git, &repository, head));
    }
    let odb = repository.odb().map_err(|failure| crate::error::git("open the vault", failure))?;
    let stored = |id: ObjectId| odb.exists_ext(id.into(), git2::OdbLookupFlags::NO_REFRESH);
    // Where nothing was ever deleted, whatever is stored has all that it refers to beside it.
    let closed = match inner.was_collected() || inner.in_repo {
        true => Some(reachable(inner, &repository)?),
        false => None,
    };
    let mut store = ForeignStore::new(git.common(), &inner.objects)?;
    let mut deflater = Deflater::new();
    let mut seen = HashSet::new();
    let mut todo = vec![(ObjectKind::Commit, head)];
    let mut root = None;
    let mut bytes = 0;
    while let Some((kind, id)) = todo.pop() {
        if !seen.insert(id) || pack.contains(id) {
            continue;
        }
        cancel.check()?;
        let is_stored = stored(id);
        let is_closed = match &closed {
            Some(closed) => closed.contains(&id) || (kind == ObjectKind::Blob && is_stored),
            None => is_stored,
        };
        if is_closed {
            continue;
        }
        let read = match is_stored {
            true => odb.read(id.into()).ok().map(|object| (kind, object.data().to_vec())),
            false => store.read(id, cancel)?,
        };
        let Some((found, content)) = read.filter(|(found, _)| *found == kind) else {
            return Ok(History::Incomplete(format!("its {} {id} cannot be read", kind.name())));
        };
        let Some(below) = references(found, &content) else {
            return Ok(History::Incomplete(format!("its {} {id} is damaged", kind.name())));
        };
        bytes += content.len() as u64;
        if bytes > MAX_BYTES {
            return Ok(History::Incomplete(format!("its history has more than {MAX_BYTES} bytes")));
        }
        if id == head {
            root = below.first().map(|(_, tree)| *tree);
        }
        todo.extend(below);
        if !is_stored {
            let size = content.len() as u64;
            pack.add(found, id, size, deflater.deflate(&content)?)?;
        }
    }
    let root = match root {
        Some(root) => root,
        None => crate::vault::commit(&repository, head)?.tree_id().into(),
    };
    let mut tree = HeadTree { root, ..HeadTree::default() };
    let mut todo = vec![root];
    while let Some(id) = todo.pop() {
        cancel.check()?;
        if stored(id) || tree.fresh.contains_key(&id) {
            continue;
        }
        let Some((_, content)) = store.read(id, cancel)? else { continue };
        let below = references(ObjectKind::Tree, &content).unwrap_or_default();
        todo.extend(below.into_iter().filter(|(kind, _)| *kind == ObjectKind::Tree).map(|(_, id)| id));
        tree.fresh.insert(id, content);
    }
    Ok(History::Complete { tree })
}

/// The history of the repository that the vault is in: it is there as far as git keeps it.
fn in_place(git: &GitDir, repository: &git2::Repository, head: ObjectId) -> History {
    if git.is_partial() {
        return History::Incomplete("it is a partial clone".to_owned());
    }
    match repository.find_commit(head.into()) {
        Ok(commit) => {
            let root = commit.tree_id().into();
            History::Complete { tree: HeadTree { root, ..HeadTree::default() } }
        }
        Err(failure) => {
            History::Incomplete(format!("its commit {head} cannot be read: {}", failure.message()))
        }
    }
}

/// All commits that snapshots reach.
fn reachable(inner: &Inner, repository: &git2::Repository) -> Result<HashSet<ObjectId>> {
    let walk = || -> Result<HashSet<ObjectId>> {
        let failed = |failure| crate::error::git("walk the vault", failure);
        let mut walk = repository.revwalk().map_err(failed)?;
        for id in inner.refs.list(SNAPSHOTS)?.into_values() {
            walk.push(id.into()).map_err(failed)?;
        }
        walk.map(|id| id.map(ObjectId::from).map_err(failed)).collect()
    };
    match walk() {
        // A damaged snapshot makes more be copied, and nothing fail.
        Err(failure) if failure.kind() != ErrorKind::StorageFull => {
            tracing::warn!(%failure, "the vault cannot be walked");
            Ok(HashSet::new())
        }
        answer => answer,
    }
}
