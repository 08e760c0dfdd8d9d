//! The messages of E2B's control plane, as JSON.
//!
//! Each type can be read and written, so that a client and a server speak from one definition. Reading ignores fields
//! it does not know and takes `null` for an unset one; writing leaves unset fields out. The names and meanings are those
//! of E2B's public API and of the SDKs that its users install.
//!
//! Unlike the options of this crate, these structs are open (`..Default::default()`): they are what the wire is.

mod error;
mod filter;
mod list;
mod logs;
mod network;
mod sandbox;
mod secret;
mod snapshot;
mod template;
mod time;
mod volume;

pub use error::{ApiError, codes};
pub use filter::{FilterError, decode_metadata, encode_metadata};
pub use list::{
    ListQuery, MAX_PAGE, NEXT_TOKEN_HEADER, Order, QueryError, SnapshotQuery, TOTAL_RUNNING_HEADER,
};
pub use logs::{Direction, LogEntry, LogLevel, LogLine, LogQuery, Logs, LogsV2, Metric, MetricsById};
pub use network::{EgressProxy, HeaderTransform, NetworkConfig, NetworkRule, NetworkUpdate};
pub use sandbox::{
    AutoResume, Connect, CreateSandbox, Fork, ForkResult, Lifecycle, OnTimeout, Pause, PauseMode, Refresh,
    Resume, Sandbox, SandboxDetail, SetTimeout, State, VolumeMount,
};
pub use secret::Secret;
pub use snapshot::{CreateSnapshot, SnapshotInfo};
pub use template::{
    AliasInfo, AssignTags, AssignedTags, Build, BuildInfo, BuildReason, BuildStatus, BuildStatusAnswer,
    CreatedTemplate, FileUpload, ImageRegistry, NewTemplate, RemoveTags, Step, StepKind, Tag, Template,
    UpdateTemplate,
};
pub use time::{Timestamp, TimestampError};
pub use volume::{
    NewSecret, NewVolume, SecretInfo, UpdateSecret, Volume, VolumeEntry, VolumeEntryKind, VolumeError,
};

use serde::{Deserialize, Deserializer};

/// Takes `null` for the default.
pub(crate) fn nullable<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
