//! What changes in the life of a sandbox and no provider tells: kept in the server's home, one document a sandbox.

use sandhold_e2b::wire::{NetworkUpdate, PauseMode, Timestamp};
use serde::{Deserialize, Serialize};

/// The directory of the documents.
pub(crate) const NOTES: &str = "sandboxes";

/// The notes about one sandbox. All of it can be missing: what the provider tells stands in for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Notes {
    /// When the present run began, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<Timestamp>,
    /// When it ends, or when it was paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end_at: Option<Timestamp>,
    /// What its pause kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pause_mode: Option<PauseMode>,
    /// The network policy that replaced the one of the create.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkUpdate>,
    /// How far what its template starts has come in its present memory; nothing is not begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<Start>,
}

/// How far what a template starts has come in a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Start {
    /// It is to be started.
    #[default]
    Pending,
    /// It runs, and is waited for until it serves.
    Begun,
    /// Nothing is left to be done.
    Done,
}

/// The name of a sandbox's document.
pub(crate) fn name(id: &str) -> String {
    format!("{NOTES}/{id}")
}
