//! Watching directories.

/// The watchers that outlive the request that made them.
pub(crate) struct Watchers {}

impl Watchers {
    pub(crate) fn new() -> Self {
        Self {}
    }
}
