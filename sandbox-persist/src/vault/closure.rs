//! Everything that commits reach, and what of it is not there.

use std::collections::HashSet;

use sandhold_core::{Error, ErrorKind, Result};

use super::pack::Kind;
use super::store::Store;
use crate::cancel::Cancel;
use crate::git::references;
use crate::oid::ObjectId;

/// An object that something refers to and that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) id: ObjectId,
    pub(crate) kind: Kind,
    /// What is wrong with it, for people.
    pub(crate) why: String,
}

impl Hole {
    pub(crate) fn into_error(self) -> Error {
        Error::new(ErrorKind::NotFound, format!("the {} {} {}", self.kind.name(), self.id, self.why))
            .with_reason("missing_objects")
            .with_context("object", self.id)
    }
}

/// What was reached so far; walks from several tips share it.
#[derive(Debug, Default)]
pub(crate) struct Closure {
    pub(crate) seen: HashSet<ObjectId>,
}

impl Closure {
    /// Reaches all that `tip` does, and returns what was not reached before, commits first. The walk goes around holes
    /// and tells of each.
    pub(crate) fn walk(
        &mut self,
        store: &Store,
        tip: ObjectId,
        cancel: &Cancel,
        mut hole: impl FnMut(Hole) -> Result<()>,
    ) -> Result<Vec<(Kind, ObjectId)>> {
        let mut found = Vec::new();
        let mut todo = vec![(Kind::Commit, tip)];
        let mut trees = Vec::new();
        while let Some((kind, id)) = todo.pop().or_else(|| trees.pop()) {
            if !self.seen.insert(id) {
                continue;
            }
            cancel.check()?;
            let missing = |why: &str| Hole { id, kind, why: why.to_owned() };
            if kind == Kind::Blob {
                match store.kind(id) {
                    Some(Kind::Blob) => found.push((kind, id)),
                    Some(_) => hole(missing("is no file"))?,
                    None => hole(missing("is not there"))?,
                }
                continue;
            }
            let content = match store.read(id) {
                Ok(Some((is, content))) if is == kind => content,
                Ok(Some(_)) => {
                    hole(missing("is of another kind"))?;
                    continue;
                }
                Ok(None) => {
                    hole(missing("is not there"))?;
                    continue;
                }
                Err(failure) if failure.reason() == Some("damaged") => {
                    hole(Hole { why: failure.message().to_owned(), ..missing("") })?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let Some(below) = references(kind, &content) else {
                hole(missing("is not as git writes it"))?;
                continue;
            };
            found.push((kind, id));
            for (kind, id) in below {
                match kind {
                    Kind::Commit => todo.push((kind, id)),
                    _ => trees.push((kind, id)),
                }
            }
        }
        Ok(found)
    }

    /// As [`Closure::walk`], and counts what is missing.
    pub(crate) fn holes(&mut self, store: &Store, tip: ObjectId, cancel: &Cancel) -> Result<u64> {
        let mut count = 0;
        self.walk(store, tip, cancel, |_| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    /// As [`Closure::walk`], and fails at the first hole.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with reason `missing_objects`.
    pub(crate) fn reach(
        &mut self,
        store: &Store,
        tip: ObjectId,
        cancel: &Cancel,
    ) -> Result<Vec<(Kind, ObjectId)>> {
        self.walk(store, tip, cancel, |hole| Err(hole.into_error()))
    }
}
