use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

use crate::oid::ObjectId;
use crate::snapshot::{Label, SnapId, Snapshot};

/// How a bundle is written.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BundleOptions {
    /// Snapshots that whoever reads the bundle has already. None by default: the bundle is complete.
    pub since: Vec<SnapId>,
    /// A branch, such as `main`, that the bundle names beside the snapshot, so that `git clone` checks it out. None by
    /// default: the bundle has one ref below `refs/sandbox/snapshots/`, which `git fetch` takes and `git clone` does not.
    pub branch: Option<String>,
    /// How long it may take. No limit by default.
    pub budget: Option<Duration>,
}

impl BundleOptions {
    /// A complete bundle with one ref.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out what this snapshot has; the bundle is of no use without it.
    #[must_use]
    pub fn with_since(mut self, id: SnapId) -> Self {
        self.since.push(id);
        self
    }

    /// Names a branch for `git clone`.
    #[must_use]
    pub fn with_branch(mut self, branch: impl Into<String>) -> Self {
        self.branch = Some(branch.into());
        self
    }

    /// Limits the time.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }
}

/// A bundle that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Bundle {
    /// The snapshot.
    pub id: SnapId,
    /// Its commit.
    pub commit: ObjectId,
    /// Where the bundle is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// The SHA-256 of all of it, in hex.
    pub sha256: String,
    /// The objects in it.
    pub objects: u64,
    /// The commits that whoever reads it must have.
    pub prerequisites: Vec<ObjectId>,
}

/// How much a bundle may make of itself before it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BundleLimits {
    /// Bytes of the file. 16 GiB by default.
    pub file: u64,
    /// Objects. 2,000,000 by default.
    pub objects: u32,
    /// Bytes of one object. 4 GiB by default.
    pub object: u64,
    /// Bytes of all objects, inflated. 64 GiB by default.
    pub inflated: u64,
}

impl Default for BundleLimits {
    fn default() -> Self {
        Self { file: 16 << 30, objects: 2_000_000, object: 4 << 30, inflated: 64 << 30 }
    }
}

/// What is taken from a bundle, and on which conditions.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Which snapshot. By default the only one.
    pub id: Option<SnapId>,
    /// The commit that it must have, where the caller knows: such as from a manifest of its own.
    pub expected: Option<ObjectId>,
    /// Whether a bundle may need what is in the vault already. Refused by default.
    pub incremental: bool,
    /// Whether the snapshot may be one of another repository key. Refused by default.
    pub any_repository: bool,
    /// The limits.
    pub limits: BundleLimits,
    /// How long it may take. No limit by default.
    pub budget: Option<Duration>,
}

impl ImportOptions {
    /// Takes the only snapshot of a complete bundle of this repository.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a snapshot.
    #[must_use]
    pub fn with_id(mut self, id: SnapId) -> Self {
        self.id = Some(id);
        self
    }

    /// Refuses any commit but this one.
    #[must_use]
    pub fn with_expected(mut self, commit: ObjectId) -> Self {
        self.expected = Some(commit);
        self
    }

    /// Lets the bundle be one that needs what is here.
    #[must_use]
    pub fn with_incremental(mut self, incremental: bool) -> Self {
        self.incremental = incremental;
        self
    }

    /// Lets the snapshot be of another repository key.
    #[must_use]
    pub fn with_any_repository(mut self, any: bool) -> Self {
        self.any_repository = any;
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_limits(mut self, limits: BundleLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Limits the time.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }
}

/// What of an ordinary git bundle becomes a snapshot, and on which conditions.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AdoptOptions {
    /// The ref, such as `main` or `refs/tags/v1`. By default `HEAD`, or the only one that there is.
    pub reference: Option<String>,
    /// The commit that it must point to, where the caller knows.
    pub expected: Option<ObjectId>,
    /// Whether the bundle may need what is in the vault already. Refused by default.
    pub incremental: bool,
    /// A name for the snapshot. None by default.
    pub label: Option<Label>,
    /// How long the snapshot is kept, such as `168h`. By default as [`crate::Retention`] says.
    pub retention: Option<String>,
    /// The limits.
    pub limits: BundleLimits,
    /// How long it may take. No limit by default.
    pub budget: Option<Duration>,
}

impl AdoptOptions {
    /// Takes what `HEAD` of a complete bundle points to.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a ref.
    #[must_use]
    pub fn with_reference(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    /// Refuses any commit but this one.
    #[must_use]
    pub fn with_expected(mut self, commit: ObjectId) -> Self {
        self.expected = Some(commit);
        self
    }

    /// Lets the bundle be one that needs what is here.
    #[must_use]
    pub fn with_incremental(mut self, incremental: bool) -> Self {
        self.incremental = incremental;
        self
    }

    /// Names the snapshot.
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// Sets how long the snapshot is kept.
    #[must_use]
    pub fn with_retention(mut self, rule: impl Into<String>) -> Self {
        self.retention = Some(rule.into());
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_limits(mut self, limits: BundleLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Limits the time.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }
}

/// How it is known that a snapshot is the one that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Provenance {
    /// The commit was known before: by the caller, or by the manifest that this vault has of the snapshot.
    Known,
    /// The bundle is consistent with itself, and nothing else is known of it.
    BundleAlone,
}

/// What was taken from a bundle.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Imported {
    /// The snapshot, which is now in the vault.
    pub snapshot: Snapshot,
    /// How it is known that it is the one that was made.
    pub provenance: Provenance,
    /// Objects that the vault did not have.
    pub objects: u64,
    /// Whether the vault had the snapshot already.
    pub was_here: bool,
}
