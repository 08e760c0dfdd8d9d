//! What a vault tells of its snapshots, and of what was done with them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use sandhold_persist as persist;

use crate::json::Json;
use crate::values::values;

values! {
    /// Something that was declared to survive and is not in the snapshot.
    Missing {
        /// The path or the pattern, or `git`.
        what: String,
        /// Why, such as `too_large` or `not_found`.
        why: String,
    }

    /// A file or symlink that a restore will bring back.
    Promise {
        /// Where it is.
        path: OsString,
        /// The mode as git has it.
        mode: u32,
        /// The id of its content.
        id: String,
    }

    /// What a capture answers to a declaration; a restore is held to it.
    Receipt {
        /// What will be there after a restore.
        promised: Vec<Promise>,
        /// The commit whose history is in the vault.
        head: Option<String>,
        /// What was declared and did not get in.
        missing: Vec<Missing>,
        /// All that was declared is in the snapshot.
        is_complete: bool,
    }

    /// A copy of a snapshot in a bucket, as far as this machine knows.
    RemoteCopy {
        /// The bucket.
        bucket: String,
        /// The key of the bundle; empty where nothing was uploaded.
        key: String,
        /// When it was uploaded.
        uploaded_at: Option<SystemTime>,
        /// The commit that was uploaded.
        commit: Option<String>,
        /// The size of the bundle.
        bytes: Option<u64>,
        /// The SHA-256 of the bundle.
        sha256: Option<String>,
        /// Why the last upload failed.
        error: Option<String>,
    }

    /// What a vault knows of a snapshot.
    Snapshot {
        /// The id.
        id: String,
        /// The name of the vault.
        repo: String,
        /// The workspace that was captured.
        workspace: PathBuf,
        /// The sandbox whose workspace it is of, and the path inside; None for a directory of this machine.
        sandbox: Option<String>,
        /// How it is best called: `baseline`, `snapshot`, `open`, `interrupted`, `exited`, `failed` or `clean`.
        status: &'static str,
        /// When the session began.
        started_at: SystemTime,
        /// When the newest state was captured.
        captured_at: SystemTime,
        /// When the session ended.
        ended_at: Option<SystemTime>,
        /// How the session ended: `clean`, `signalled`, `failed`, `manual` or `baseline`.
        outcome: Option<&'static str>,
        /// The exit code of what ran.
        exit_code: Option<i32>,
        /// How many states the session has captured.
        captures: u64,
        /// The name that people gave it.
        label: Option<String>,
        /// Who asked for it: `run` or `sdk`.
        source: &'static str,
        /// The agent that worked in the workspace.
        agent: Option<String>,
        /// How long it is to be kept, such as `168h`.
        retention: Option<String>,
        /// The commit that holds the newest state.
        commit: String,
        /// The tree of that commit.
        tree: String,
        /// The branch that the workspace was on.
        branch: Option<String>,
        /// The commit that the workspace was at.
        head: Option<String>,
        /// The commit that the workspace was at when the session began.
        head_at_start: Option<String>,
        /// `head` is in the vault with all its history.
        has_history: bool,
        /// Files that were captured.
        files: u64,
        /// Their bytes.
        bytes: u64,
        /// Paths that were not captured, or not as they should be.
        skipped: u64,
        /// What was to survive, and did.
        receipt: Option<Receipt>,
        /// The copy in a bucket.
        remote: Option<RemoteCopy>,
        /// Its newest state is in the mirror, as far as is known.
        is_mirrored: bool,
    }

    /// What a restore did.
    Restored {
        /// The snapshot.
        id: String,
        /// Where it was written.
        target: PathBuf,
        /// Files that were written.
        written: u64,
        /// Files that were as they should be.
        untouched: u64,
        /// Files that were deleted.
        deleted: u64,
        /// The snapshot of what was there before.
        saved: Option<String>,
        /// What has another name there than in the snapshot, and which.
        renamed: Vec<(OsString, OsString)>,
        /// Submodules whose repositories have to be fetched.
        submodules: Vec<OsString>,
        /// What else whoever restores should know.
        warnings: Vec<String>,
    }

    /// A branch that a snapshot was put on.
    RestoredBranch {
        /// Its name.
        name: String,
        /// The commit that it is at.
        commit: String,
        /// It was there, at this very commit.
        was_there: bool,
        /// How many files it has.
        files: u64,
        /// The workspace is as the branch is.
        matches_workspace: bool,
    }

    /// A restore that was begun and has not ended: run it again.
    Unfinished {
        /// The snapshot.
        id: String,
        /// Where it is written.
        target: PathBuf,
        /// The target was made by it.
        is_new: bool,
        /// The snapshot of what is overwritten.
        over: Option<String>,
        /// What it writes.
        writes: Vec<OsString>,
        /// What it deletes.
        deletes: Vec<OsString>,
    }

    /// A file that holds a snapshot.
    Bundle {
        /// The snapshot.
        id: String,
        /// Its commit.
        commit: String,
        /// Where the file is.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The SHA-256 of the file.
        sha256: String,
        /// Objects in it.
        objects: u64,
        /// Commits that whoever reads it has to have.
        prerequisites: Vec<String>,
    }

    /// What a bundle says of itself; nothing of it is checked.
    BundleHeader {
        /// Names, and the commits that they stand for.
        refs: Vec<(String, String)>,
        /// Commits that whoever reads it has to have.
        prerequisites: Vec<String>,
    }

    /// What was taken from a bundle.
    Imported {
        /// The snapshot, which is now in the vault.
        snapshot: Snapshot,
        /// How it is known that it is the one that was made: `known` or `bundle_alone`.
        provenance: &'static str,
        /// Objects that the vault did not have.
        objects: u64,
        /// The vault had the snapshot already.
        was_here: bool,
    }

    /// What is wrong with an object, or with a snapshot as such.
    Flaw {
        /// The object.
        object: Option<String>,
        /// What is wrong.
        what: String,
    }

    /// A snapshot that was looked at.
    Examined {
        /// The snapshot.
        id: String,
        /// How closely: `reachable`, `sums` or `content`.
        depth: &'static str,
        /// Objects that were looked at.
        objects: u64,
        /// What is wrong.
        flaws: Vec<Flaw>,
        /// Nothing is wrong.
        is_good: bool,
    }

    /// What a collection of garbage did.
    Collected {
        /// Packs that are there now.
        packs: u64,
        /// Packs that were deleted.
        deleted: u64,
        /// Objects that were copied to a new pack.
        copied: u64,
        /// Bytes that are free now.
        freed: u64,
    }

    /// What a look at all snapshots led to.
    Pruned {
        /// Snapshots that were deleted, or would be, the oldest first.
        removed: Vec<String>,
        /// Snapshots that stay though a limit would have them go, and why: `last_good`, `live`, `not_mirrored`,
        /// `restoring` or `moved`.
        kept: BTreeMap<String, &'static str>,
    }

    /// What was done to the repository of a workspace, and what was left to its user.
    RepositoryRepaired {
        /// The directory of git of a linked worktree, where it was gone and was made again.
        worktree: Option<PathBuf>,
        /// Locks that were removed, by their names.
        locks: Vec<String>,
        /// Locks that are too young: somebody may be at work.
        held: Vec<String>,
        /// What is going on there, and is never touched: `merge`, `rebase`, `cherry_pick`, `revert` or `bisect`.
        in_progress: Vec<&'static str>,
    }

    /// What a repair did.
    Repaired {
        /// Snapshots whose record was written anew.
        records: Vec<String>,
        /// Snapshots whose name in git was written anew.
        refs: Vec<String>,
        /// Packs whose index was made again.
        indexes: u64,
        /// Packs with damaged objects, whose good ones were copied.
        packs: u64,
        /// Objects that are lost.
        lost: Vec<String>,
        /// Snapshots that lack some of them.
        incomplete: Vec<String>,
    }
}

fn at(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

pub(crate) fn texts<T: ToString>(ids: Vec<T>) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

fn text<T: ToString>(id: Option<T>) -> Option<String> {
    id.map(|id| id.to_string())
}

fn path(path: &persist::WorkPath) -> OsString {
    path.as_path().as_os_str().to_owned()
}

fn paths(all: &[persist::WorkPath]) -> Vec<OsString> {
    all.iter().map(path).collect()
}

/// The manifest of what git cannot hold, as it is stored.
pub(crate) fn side(manifest: &persist::SideManifest) -> Json {
    Json::of(manifest)
}

pub(crate) fn provenance(known: persist::Provenance) -> &'static str {
    match known {
        persist::Provenance::Known => "known",
        _ => "bundle_alone",
    }
}

impl From<persist::Receipt> for Receipt {
    fn from(receipt: persist::Receipt) -> Self {
        let is_complete = receipt.is_complete();
        let promise = |kept: persist::Promise| Promise {
            path: path(&kept.path),
            mode: kept.mode,
            id: kept.id.to_string(),
        };
        let missing = |left: persist::Missing| Missing { what: left.what, why: left.why };
        Self {
            promised: receipt.promised.into_iter().map(promise).collect(),
            head: text(receipt.head),
            missing: receipt.missing.into_iter().map(missing).collect(),
            is_complete,
        }
    }
}

impl From<persist::RemoteCopy> for RemoteCopy {
    fn from(copy: persist::RemoteCopy) -> Self {
        Self {
            bucket: copy.bucket,
            key: copy.key,
            uploaded_at: copy.uploaded_at_ms.map(at),
            commit: text(copy.commit),
            bytes: copy.bytes,
            sha256: copy.sha256,
            error: copy.error,
        }
    }
}

impl From<persist::Snapshot> for Snapshot {
    fn from(found: persist::Snapshot) -> Self {
        let is_mirrored = found.is_mirrored();
        let status = match found.status() {
            persist::Status::Baseline => "baseline",
            persist::Status::Snapshot => "snapshot",
            persist::Status::Open => "open",
            persist::Status::Interrupted => "interrupted",
            persist::Status::Exited(_) => "exited",
            persist::Status::Failed => "failed",
            _ => "clean",
        };
        let outcome = |outcome| match outcome {
            persist::RunOutcome::Clean => "clean",
            persist::RunOutcome::Signalled => "signalled",
            persist::RunOutcome::Failed => "failed",
            persist::RunOutcome::Manual => "manual",
            _ => "baseline",
        };
        Self {
            id: found.id.to_string(),
            repo: found.repo,
            workspace: found.workspace,
            sandbox: found.sandbox,
            status,
            started_at: at(found.started_at_ms),
            captured_at: at(found.captured_at_ms),
            ended_at: found.ended_at_ms.map(at),
            outcome: found.outcome.map(outcome),
            exit_code: found.exit_code,
            captures: found.captures,
            label: found.label.map(String::from),
            source: match found.source {
                persist::Source::Run => "run",
                _ => "sdk",
            },
            agent: found.agent,
            retention: found.retention,
            commit: found.commit.to_string(),
            tree: found.tree.to_string(),
            branch: found.branch,
            head: text(found.head),
            head_at_start: text(found.head_at_start),
            has_history: found.has_history,
            files: found.files,
            bytes: found.bytes,
            skipped: found.skipped,
            receipt: found.receipt.map(Into::into),
            remote: found.remote.map(Into::into),
            is_mirrored,
        }
    }
}

impl From<persist::Restored> for Restored {
    fn from(done: persist::Restored) -> Self {
        Self {
            id: done.id.to_string(),
            target: done.target,
            written: done.written,
            untouched: done.untouched,
            deleted: done.deleted,
            saved: text(done.saved),
            renamed: done.renamed.iter().map(|(from, to)| (path(from), path(to))).collect(),
            submodules: paths(&done.submodules),
            warnings: done.warnings,
        }
    }
}

impl From<persist::RestoredBranch> for RestoredBranch {
    fn from(done: persist::RestoredBranch) -> Self {
        Self {
            name: done.name,
            commit: done.commit.to_string(),
            was_there: done.was_there,
            files: done.files,
            matches_workspace: done.matches_workspace,
        }
    }
}

impl From<persist::Unfinished> for Unfinished {
    fn from(begun: persist::Unfinished) -> Self {
        Self {
            id: begun.id.to_string(),
            writes: paths(&begun.writes),
            deletes: paths(&begun.deletes),
            target: begun.target,
            is_new: begun.is_new,
            over: text(begun.over),
        }
    }
}

impl From<persist::Bundle> for Bundle {
    fn from(bundle: persist::Bundle) -> Self {
        Self {
            id: bundle.id.to_string(),
            commit: bundle.commit.to_string(),
            path: bundle.path,
            bytes: bundle.bytes,
            sha256: bundle.sha256,
            objects: bundle.objects,
            prerequisites: texts(bundle.prerequisites),
        }
    }
}

impl From<persist::BundleHeader> for BundleHeader {
    fn from(header: persist::BundleHeader) -> Self {
        Self {
            refs: header.refs.into_iter().map(|(name, id)| (name, id.to_string())).collect(),
            prerequisites: texts(header.prerequisites),
        }
    }
}

impl From<persist::Imported> for Imported {
    fn from(done: persist::Imported) -> Self {
        Self {
            snapshot: done.snapshot.into(),
            provenance: provenance(done.provenance),
            objects: done.objects,
            was_here: done.was_here,
        }
    }
}

impl From<persist::Examined> for Examined {
    fn from(seen: persist::Examined) -> Self {
        let is_good = seen.is_good();
        Self {
            id: seen.id.to_string(),
            depth: match seen.depth {
                persist::VerifyDepth::Reachable => "reachable",
                persist::VerifyDepth::Sums => "sums",
                _ => "content",
            },
            objects: seen.objects,
            flaws: seen
                .flaws
                .into_iter()
                .map(|flaw| Flaw { object: text(flaw.object), what: flaw.what })
                .collect(),
            is_good,
        }
    }
}

impl From<persist::Collected> for Collected {
    fn from(done: persist::Collected) -> Self {
        Self { packs: done.packs, deleted: done.deleted, copied: done.copied, freed: done.freed }
    }
}

impl From<persist::Pruned> for Pruned {
    fn from(done: persist::Pruned) -> Self {
        let why = |why| match why {
            persist::KeptBecause::LastGood => "last_good",
            persist::KeptBecause::Live => "live",
            persist::KeptBecause::NotMirrored => "not_mirrored",
            persist::KeptBecause::Restoring => "restoring",
            _ => "moved",
        };
        Self {
            removed: texts(done.removed),
            kept: done.kept.into_iter().map(|(id, because)| (id.to_string(), why(because))).collect(),
        }
    }
}

impl From<persist::Repaired> for Repaired {
    fn from(done: persist::Repaired) -> Self {
        Self {
            records: texts(done.records),
            refs: texts(done.refs),
            indexes: done.indexes,
            packs: done.packs,
            lost: texts(done.lost),
            incomplete: texts(done.incomplete),
        }
    }
}

impl From<persist::RepositoryRepaired> for RepositoryRepaired {
    fn from(done: persist::RepositoryRepaired) -> Self {
        let word = |going_on| match going_on {
            persist::InProgress::Merge => "merge",
            persist::InProgress::Rebase => "rebase",
            persist::InProgress::CherryPick => "cherry_pick",
            persist::InProgress::Revert => "revert",
            _ => "bisect",
        };
        Self {
            worktree: done.worktree,
            locks: done.locks,
            held: done.held,
            in_progress: done.in_progress.into_iter().map(word).collect(),
        }
    }
}
