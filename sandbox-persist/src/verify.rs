//! Whether what the vault says it has can be had.

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::Result;
use serde::Serialize;

use crate::cancel::{Cancel, run_blocking};
use crate::oid::ObjectId;
use crate::restore::Wanted;
use crate::snapshot::{SnapId, Snapshot};
use crate::vault::{Closure, Inner, SNAPSHOTS, Store, Vault};

/// How closely a snapshot is looked at; each of them includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VerifyDepth {
    /// Everything that the snapshot refers to is there, as the indexes have it. Commits and trees are read and hashed.
    Reachable,
    /// The stored bytes of every object have the sum that they were written with.
    Sums,
    /// Every object is read to its end and hashed, and the tree is checked as a restore would. The default.
    #[default]
    Content,
}

/// How snapshots are verified.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// How closely. [`VerifyDepth::Content`] by default.
    pub depth: VerifyDepth,
    /// How long it may take. No limit by default.
    pub budget: Option<Duration>,
}

impl VerifyOptions {
    /// Reads and hashes everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how closely.
    #[must_use]
    pub fn with_depth(mut self, depth: VerifyDepth) -> Self {
        self.depth = depth;
        self
    }

    /// Limits the time.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }
}

/// What is wrong with an object, or with a snapshot as such.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Flaw {
    /// The object; `None` where it is the manifest or the ref.
    pub object: Option<ObjectId>,
    /// What is wrong, for people.
    pub what: String,
}

/// What a look at one snapshot found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Examined {
    /// The snapshot.
    pub id: SnapId,
    /// How closely it was looked at.
    pub depth: VerifyDepth,
    /// The objects that were found.
    pub objects: u64,
    /// What is wrong; nothing where it can be restored.
    pub flaws: Vec<Flaw>,
}

impl Examined {
    /// Tells whether nothing is wrong.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.flaws.is_empty()
    }
}

impl Vault {
    /// Looks whether a snapshot can be restored, and all that it refers to be had. Nothing is changed.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::NotFound`], with reason `snapshot_gone` where its objects are not here, and whatever
    /// the file system says. What is wrong with the snapshot is no error, but in the answer.
    pub async fn verify(&self, id: &SnapId, options: VerifyOptions) -> Result<Examined> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        run_blocking(options.budget, move |cancel| {
            let _held = inner.hold(cancel)?;
            let snapshot = inner.held(&id)?;
            inner.verify(&inner.objects.store()?, &snapshot, options.depth, &mut Closure::default(), cancel)
        })
        .await
    }

    /// Looks at every snapshot whose objects are here, the oldest first. What several share is looked at once, and
    /// reported with the first of them.
    ///
    /// # Errors
    /// As [`Vault::verify`].
    pub async fn verify_all(&self, options: VerifyOptions) -> Result<Vec<Examined>> {
        let inner = Arc::clone(&self.0);
        run_blocking(options.budget, move |cancel| {
            let _held = inner.hold(cancel)?;
            let (store, mut closure) = (inner.objects.store()?, Closure::default());
            let repository = inner.objects.open()?;
            let mut found = Vec::new();
            for (name, commit) in inner.refs.list(SNAPSHOTS)? {
                let Ok(id) = name[SNAPSHOTS.len()..].parse::<SnapId>() else { continue };
                found.push(match inner.records.of_ref(&repository, &id, commit) {
                    Ok(snapshot) => inner.verify(&store, &snapshot, options.depth, &mut closure, cancel)?,
                    Err(failure) => Examined {
                        id,
                        depth: options.depth,
                        objects: 0,
                        flaws: vec![Flaw { object: Some(commit), what: failure.message().to_owned() }],
                    },
                });
            }
            for record in inner.records.list(&inner.objects, &inner.refs)? {
                if inner.has_torn_ref(&record.id) {
                    let flaw = Flaw { object: None, what: "its ref is torn".to_owned() };
                    let depth = options.depth;
                    found.push(Examined { id: record.id, depth, objects: 0, flaws: vec![flaw] });
                }
            }
            found.sort_by(|one, other| one.id.cmp(&other.id));
            Ok(found)
        })
        .await
    }
}

impl Inner {
    pub(crate) fn verify(
        &self,
        store: &Store,
        snapshot: &Snapshot,
        depth: VerifyDepth,
        closure: &mut Closure,
        cancel: &Cancel,
    ) -> Result<Examined> {
        let mut flaws = Vec::new();
        let found = closure.walk(store, snapshot.commit, cancel, |hole| {
            flaws.push(Flaw { object: Some(hole.id), what: hole.into_error().message().to_owned() });
            Ok(())
        })?;
        for id in store.in_order(found.iter().map(|(_, id)| *id)) {
            cancel.check()?;
            let checked = match depth {
                VerifyDepth::Reachable => break,
                VerifyDepth::Sums => store.check_sum(id),
                VerifyDepth::Content => store.check(id),
            };
            if let Err(failure) = checked {
                flaws.push(Flaw { object: Some(id), what: failure.message().to_owned() });
            }
        }
        if depth == VerifyDepth::Content {
            let repository = self.objects.open()?;
            let checked = Wanted::read(&repository, snapshot.tree)
                .and_then(|mut wanted| {
                    wanted.add_empty_dirs(&crate::capture::read_side(&repository, snapshot)?.empty_dirs)
                })
                .err();
            flaws.extend(checked.map(|failure| Flaw { object: None, what: failure.message().to_owned() }));
        }
        Ok(Examined { id: snapshot.id.clone(), depth, objects: found.len() as u64, flaws })
    }
}
