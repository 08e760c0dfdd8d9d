//! Snapshots of workspaces that cannot be lost, and their restore.
//!
//! A [`Vault`] is a bare git repository of ours, outside of every workspace. [`Vault::capture`] reads a workspace as
//! files and stores what changed as one pack; nothing in the workspace, its `.git` least of all, can stop or steer that.
//! [`Vault::restore`] writes a snapshot back, byte for byte, below a directory that it opened. A [`Mirror`] keeps copies
//! of snapshots elsewhere.
//!
//! | feature | brings |
//! | --- | --- |
//! | `s3`, `gcs`, `azure` | mirrors in buckets of that kind; one in a directory is always there |
//! | `testing` | points where a test kills the process (`FAILPOINTS`); not covered by semantic versioning |

mod beneath;
mod bundle;
mod cancel;
mod capture;
mod config;
mod durable;
mod error;
mod failpoint;
mod gc;
mod git;
mod hook;
mod ignore;
mod mirror;
mod oid;
mod path;
mod receipt;
mod remote;
mod repair;
mod restore;
mod retention;
mod session;
mod settings;
mod side;
mod snapshot;
mod time;
mod vault;
mod verify;

pub use bundle::{
    AdoptOptions, Bundle, BundleHeader, BundleLimits, BundleOptions, ImportOptions, Imported, Provenance,
};
pub use cancel::{Phase, Progress, ProgressFn};
pub use capture::{CaptureOptions, CaptureRules, DEFAULT_MAX_FILE};
pub use config::PersistConfig;
#[cfg(feature = "testing")]
pub use failpoint::FAILPOINTS;
pub use gc::{Collected, GcOptions};
pub use git::{DEFAULT_LOCK_AGE, InProgress, RepositoryRepairOptions, RepositoryRepaired};
pub use hook::{DEFAULT_SAVE_INTERVAL, VaultHook};
pub use mirror::{
    AzureTarget, DEFAULT_EXIT_BUDGET, DEFAULT_MAX_OBJECT_MB, DEFAULT_MULTIPART_ABOVE_MB,
    DEFAULT_UPLOAD_BUDGET, Fetched, GcsTarget, Mirror, MirrorConfig, MirrorMode, MirrorTarget, MirroredRepo,
    MirroredSnapshot, MirroredSnapshots, Orphan, S3Target, SHOWN, Verified, VerifyLevel, refuse_project_keys,
};
pub use oid::ObjectId;
pub use path::WorkPath;
pub use receipt::{Missing, Promise, Receipt, Survive};
pub use remote::RemoteWorkspace;
pub use repair::Repaired;
pub use restore::{OnDirty, OnUnfit, RestoreOptions, Restored, RestoredBranch, Unfinished};
pub use retention::{KeptBecause, Pruned, Retention};
pub use session::Session;
pub use settings::{PersistSettings, SettingsChange};
pub use side::{Metadata, Nested, SideManifest, SkipReason, Skipped};
pub use snapshot::{Label, RemoteCopy, RunOutcome, SnapId, Snapshot, Source, Status};
pub use vault::{RepoKey, Vault, VaultConfig};
pub use verify::{Examined, Flaw, VerifyDepth, VerifyOptions};
