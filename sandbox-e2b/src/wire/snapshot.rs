use serde::{Deserialize, Serialize};

use super::nullable;

/// Asks for a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateSnapshot {
    /// A name, and maybe `:tag`, to find it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether memory is stored too; default yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// A stored state that new sandboxes can start from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// What a create takes as its template: `<template>:default`, or `<team>/<alias>:<tag>`.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// Its names, without the tag.
    #[serde(default, deserialize_with = "nullable")]
    pub names: Vec<String>,
}
