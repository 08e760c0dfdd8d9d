use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Secret, Timestamp, nullable};

/// Asks for a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
}

/// A volume; lists carry id and name only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its id.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Its name.
    pub name: String,
    /// The bearer token for its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The domain of the host of its content, where it is not the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

/// What an entry of a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum VolumeEntryKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Something else.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A file or directory of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeEntry {
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(default, rename = "type", deserialize_with = "nullable")]
    pub kind: VolumeEntryKind,
    /// Its path in the volume.
    pub path: String,
    /// Its size in bytes.
    #[serde(default, deserialize_with = "nullable")]
    pub size: u64,
    /// Its permission bits.
    #[serde(default, deserialize_with = "nullable")]
    pub mode: u32,
    /// Its owner.
    #[serde(default, deserialize_with = "nullable")]
    pub uid: u32,
    /// Its group.
    #[serde(default, deserialize_with = "nullable")]
    pub gid: u32,
    /// When it was last read.
    #[serde(default, deserialize_with = "nullable")]
    pub atime: Timestamp,
    /// When its content last changed.
    #[serde(default, deserialize_with = "nullable")]
    pub mtime: Timestamp,
    /// When anything of it last changed.
    #[serde(default, deserialize_with = "nullable")]
    pub ctime: Timestamp,
    /// Where a symbolic link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// The error object of a volume's content: its code is a word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeError {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
}

/// Asks for a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSecret {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Secret,
    /// Free text pairs kept with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Gives a secret another value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateSecret {
    /// Its new value.
    pub value: Secret,
    /// Free text pairs kept with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// A secret, without its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretInfo {
    /// Its id.
    #[serde(rename = "secretID")]
    pub secret_id: String,
    /// Its name.
    pub name: String,
    /// How often it got a value.
    #[serde(default, deserialize_with = "nullable")]
    pub current_version: u64,
    /// Free text pairs kept with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// When it was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Timestamp>,
}
