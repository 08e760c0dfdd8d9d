//! What is kept of a template: one document each, with its builds and its tags, so that they change together.

use std::collections::BTreeMap;

use sandhold_e2b::wire::{BuildStatus, Timestamp};
use serde::{Deserialize, Serialize};

/// A template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TemplateRecord {
    pub(crate) id: String,
    /// Its name, without namespace and tag.
    pub(crate) name: String,
    pub(crate) public: bool,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    /// Oldest first.
    pub(crate) builds: Vec<BuildRecord>,
    pub(crate) tags: BTreeMap<String, TagRecord>,
}

impl TemplateRecord {
    pub(crate) fn build(&self, id: &str) -> Option<&BuildRecord> {
        self.builds.iter().find(|build| build.id == id)
    }

    pub(crate) fn build_mut(&mut self, id: &str) -> Option<&mut BuildRecord> {
        self.builds.iter_mut().find(|build| build.id == id)
    }
}

/// What a tag stands for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TagRecord {
    pub(crate) build: String,
    /// When it was given, or when the build that brought it was asked for: an older build that ends later does not
    /// take it back.
    pub(crate) since: Timestamp,
}

/// A build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BuildRecord {
    pub(crate) id: String,
    pub(crate) status: BuildStatus,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) cpu_count: Option<u32>,
    pub(crate) memory_mb: Option<u64>,
    /// Tags that it gets when it is ready.
    pub(crate) tags: Vec<String>,
    pub(crate) reason: Option<Reason>,
    /// What it made.
    pub(crate) built: Option<Built>,
}

/// Why a build failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reason {
    pub(crate) message: String,
    /// `base`, `finalize`, or the number of the step, from 1.
    pub(crate) step: Option<String>,
}

/// What sandboxes are made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Built {
    pub(crate) layer: Layer,
    /// What runs when a sandbox starts.
    pub(crate) start: Option<StartCommands>,
}

/// Files, and how processes start on them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layer {
    /// The provider's snapshot; `None` for its base.
    pub(crate) snapshot: Option<String>,
    pub(crate) context: Context,
}

/// How processes start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Context {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) user: String,
    /// `None` for the user's home.
    pub(crate) workdir: Option<String>,
}

impl Default for Context {
    fn default() -> Self {
        Self { env: BTreeMap::new(), user: "user".to_owned(), workdir: None }
    }
}

/// Commands that make a sandbox serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartCommands {
    /// Runs as long as the sandbox.
    pub(crate) start: Option<String>,
    /// Succeeds when the first one serves.
    pub(crate) ready: Option<String>,
    pub(crate) context: Context,
}
