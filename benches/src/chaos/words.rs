//! What a host says on its standard output, one line of JSON each.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Who hears what happens in a host.
pub(crate) type Tell = Arc<dyn Fn(Said) + Send + Sync>;

/// One thing that happened in a host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    /// An acquire returned this sandbox.
    Acquired {
        key: String,
        id: String,
        created: bool,
        /// Another caller in the same process did the work.
        joined: bool,
        /// Other sandboxes of the key that were found.
        duplicates: usize,
        /// How long it took.
        ms: u64,
    },
    /// It had not been set up.
    NotSetUp { key: String, id: String, found: String },
    /// A call failed.
    Failed { key: String, verb: String, why: String },
    /// The lease of a key was given to this host, `at` nanoseconds after the boot.
    Leased { key: String, fence: u64, at: u64 },
    /// The registry said that it removed this version of a record for this host.
    Removed { generation: String, version: u64, fence: u64 },
}

/// What is written into a sandbox by a start hook: under which lease, since when, and when that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) fence: u64,
    /// When the lease was given, in nanoseconds since the boot.
    pub(crate) leased: u64,
    /// When the line was sent.
    pub(crate) sent: u64,
}

impl Line {
    pub(crate) fn to_text(self) -> String {
        format!("{} {} {}", self.fence, self.leased, self.sent)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        let line = Self { fence: numbers.next()??, leased: numbers.next()??, sent: numbers.next()?? };
        numbers.next().is_none().then_some(line)
    }
}

/// The file inside that says for which sandbox the setup was done.
pub(crate) const MARKER: &str = "/home/user/set-up";

/// The file inside that every start hook writes to.
pub(crate) const LOG: &str = "/home/user/hooks.log";
