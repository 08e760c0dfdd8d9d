use sandhold_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::oid::ObjectId;
use crate::path::WorkPath;

/// What must survive a restore, as the caller declares it before the capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survive {
    /// Files and symlinks that must be there, and directories with all that is in them but pipes and sockets. Default
    /// none.
    pub paths: Vec<WorkPath>,
    /// Patterns as in `.gitignore`, of which each must match some file, and all that match must be there. Default
    /// none.
    pub globs: Vec<String>,
    /// Whether the commit that the workspace is at must be in the vault with its history. Default no.
    pub git: bool,
}

impl Survive {
    /// Declares nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path within the workspace.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<WorkPath>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Adds a pattern.
    #[must_use]
    pub fn with_glob(mut self, glob: impl Into<String>) -> Self {
        self.globs.push(glob.into());
        self
    }

    /// Asks for the commits too.
    #[must_use]
    pub fn with_git(mut self) -> Self {
        self.git = true;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        for path in &self.paths {
            let bytes = path.as_bytes();
            if bytes.split(|byte| *byte == b'/').any(crate::path::is_forbidden_name) {
                return Err(Error::invalid_argument(format!(
                    "{path:?} cannot survive: name a path within the workspace, such as `src/main.rs`"
                )));
            }
        }
        for glob in &self.globs {
            if crate::ignore::Patterns::parse(glob.as_bytes()).is_empty() {
                return Err(Error::invalid_argument(format!("{glob:?} is no pattern that can match a file")));
            }
        }
        Ok(())
    }
}

/// A file or symlink that was promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Promise {
    /// Where it is.
    pub path: WorkPath,
    /// The mode as git has it: `100644`, `100755`, `120000`, and `40000` for a directory.
    pub mode: u32,
    /// The id of its content.
    pub id: ObjectId,
}

/// Something that was declared and is not in the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Missing {
    /// The path or the pattern, or `git`.
    pub what: String,
    /// Why, such as `too_large` or `not_found`.
    pub why: String,
}

/// What a capture answers to a declaration; a restore is held to it.
///
/// As JSON it is what [`sandhold_core::RestoreReport::receipt`] has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Receipt {
    /// What will be there after a restore.
    pub promised: Vec<Promise>,
    /// The commit whose history is in the vault.
    #[serde(default)]
    pub head: Option<ObjectId>,
    /// What was declared and did not get in.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

impl Receipt {
    /// Tells whether all that was declared is in the snapshot.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}
