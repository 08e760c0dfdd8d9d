//! The contract of Sandhold: let go of a sandbox, and get exactly that one back, with its work.
//!
//! Two traits carry everything. A [`SandboxProvider`] says where sandboxes are: find, connect, create, list, pause,
//! destroy. A [`SandboxHandle`] says what happens inside one: processes, files, watches, ports.
//!
//! | feature | what it adds |
//! |---|---|
//! | `testing` | a scriptable fake provider and the conformance suite; not covered by semver |

mod acquire;
mod capabilities;
mod clock;
mod decorators;
mod error;
mod error_kind;
mod events;
mod exec;
mod fate;
mod files;
mod fresh_file;
mod handle;
mod hooks;
mod id;
mod info;
mod lifecycle;
mod process;
mod provider;
mod providers;
mod reconcile;
mod registry;
pub mod retry;
mod sandbox;
mod spec;
mod stream;
mod tenure;
#[cfg(feature = "testing")]
pub mod testing;

pub use acquire::{
    AcquireOptions, AcquireOutcome, Acquired, DEFAULT_ACQUIRE_DEADLINE, DEFAULT_RECORD_LEASE, Exclusion,
    Facts, HookScope, How, OnDuplicates, OnGone, OnResumeFailure, OnSetupFailure, OnSpecConflict,
    REASON_BUSY, REASON_MOVED, ReplaceWhenGone, ReplacedBecause, Sandboxes, SetupState,
};
pub use capabilities::Capabilities;
pub use clock::BootTime;
pub use decorators::{Limited, Traced, WithTimeout};
pub use error::{Error, Outcome, Result};
pub use error_kind::ErrorKind;
pub use events::{DEFAULT_EVENT_CAPACITY, Event, EventKind, Events, Lagged};
pub use exec::{
    Captured, DEFAULT_EXEC_TIMEOUT, DEFAULT_OUTPUT_LIMIT, ExecOptions, ExecOutput, SandboxHandleExt,
};
pub use fate::REASON_REPLACED;
pub use files::{
    Download, EntryInfo, FileOptions, FileType, ListOptions, ReadOptions, WatchEvent, WatchEventKind,
    WatchOptions, WriteOptions,
};
pub use fresh_file::FreshFile;
pub use handle::{DAEMON_PORT, PortStream, SandboxHandle};
pub use hooks::{
    DEFAULT_HOOK_DEADLINE, Hooks, PersistHook, REASON_HOOK, RestoreReason, RestoreReport, Start,
};
pub use id::{Attempt, Generation, Key, Owner, SandboxId, SnapshotId};
pub use info::{Isolation, SandboxInfo, SandboxState};
pub use lifecycle::StopOutcome;
pub use process::{
    AttachOptions, DEFAULT_GRACE, DEFAULT_RETAIN, ExitStatus, OutputStream, Process, ProcessControl,
    ProcessEvent, ProcessInfo, ProcessSelector, ProcessSpec, PtySize, ReplayFrom, Signal, Stdin,
};
pub use provider::{
    ConnectOptions, Connection, CreateOptions, DEFAULT_CALL_DEADLINE, DestroyOutcome, FindQuery, ForkOptions,
    ListFilter, LogLine, LogOptions, Memory, Metrics, PauseOptions, PauseOutcome, SandboxProvider,
    SandboxProviderExt, SnapshotFilter, SnapshotInfo, SnapshotOptions,
};
pub use providers::{PROVIDER_VARIABLE, Providers};
pub use reconcile::{
    DEFAULT_RECONCILE_AGE, Disposal, Finding, Kept, OrphanReport, ReconcilePlan, ReconcilePolicy, Reconciler,
    Step, StepOutcome,
};
pub use registry::{
    Abandoned, KEEP_ABANDONED, Lease, MemoryRegistry, Phase, Record, RecordFilter, Registry, RegistryExt,
    RegistryScope,
};
pub use sandbox::{CloneOptions, REASON_PAUSED, REASON_UNSTARTED, Sandbox};
pub use spec::{Kind, Mount, MountSource, Network, OnExpiry, Resources, SandboxSpec, Tags};
pub use stream::{ByteStream, ResultStream};
