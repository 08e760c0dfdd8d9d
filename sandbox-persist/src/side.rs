use serde::{Deserialize, Serialize};

use crate::oid::ObjectId;
use crate::path::WorkPath;

/// What a snapshot has beside its tree, because git cannot hold it.
///
/// It is the file `side.json` of a commit that is the last parent of the snapshot's, so that it goes wherever the
/// snapshot goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SideManifest {
    /// The version of this format: 1.
    pub version: u32,
    /// Directories with nothing in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub empty_dirs: Vec<WorkPath>,
    /// What was left out, or is not as it should be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// Repositories within the workspace, submodules among them. Their files are in the tree, their `.git` is not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nested: Vec<Nested>,
    /// Times and extended attributes, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metadata: Vec<Metadata>,
    /// Files that stand for a large file elsewhere: Git LFS pointers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lfs_pointers: Vec<WorkPath>,
    /// What else whoever restores should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A path that is not in the snapshot, or not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Skipped {
    /// Where.
    pub path: WorkPath,
    /// Why.
    pub reason: SkipReason,
    /// Its size, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

impl Skipped {
    pub(crate) fn new(path: impl Into<Vec<u8>>, reason: SkipReason) -> Self {
        Self { path: WorkPath::new(path), reason, size: None }
    }
}

/// Why a path is not in a snapshot, or not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SkipReason {
    /// A pipe, a socket or a device.
    Special,
    /// Above the cap for one file.
    TooLarge,
    /// A file of environment variables, such as `.env`, which is never captured.
    EnvFile,
    /// A private key, which is never captured.
    PrivateKey,
    /// A pattern of the host.
    HostRule,
    /// It was gone before it was read.
    Vanished,
    /// It may not be read; where an earlier snapshot has it, that content was kept.
    Unreadable,
    /// It was written to at every try: the last that was read is captured.
    Unstable,
    /// Some file systems take its name for `.git`.
    ForbiddenName,
    /// A directory below 1000 others, or with a path above 32 KiB, which few programs could open.
    TooDeep,
}

impl SkipReason {
    /// Returns the stable snake_case code.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Special => "special",
            Self::TooLarge => "too_large",
            Self::EnvFile => "env_file",
            Self::PrivateKey => "private_key",
            Self::HostRule => "host_rule",
            Self::Vanished => "vanished",
            Self::Unreadable => "unreadable",
            Self::Unstable => "unstable",
            Self::ForbiddenName => "forbidden_name",
            Self::TooDeep => "too_deep",
        }
    }
}

/// A repository within the workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Nested {
    /// The directory that its `.git` is in.
    pub path: WorkPath,
    /// The commit that it is at, where its `.git` could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<ObjectId>,
    /// Tells whether the repository around it knows it as a submodule.
    #[serde(default)]
    pub submodule: bool,
}

/// Times and extended attributes of one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metadata {
    /// Where.
    pub path: WorkPath,
    /// When it was modified: seconds since 1970 and nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<(i64, u32)>,
    /// Extended attributes of the `user.` namespace: names and values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<(WorkPath, Vec<u8>)>,
}
