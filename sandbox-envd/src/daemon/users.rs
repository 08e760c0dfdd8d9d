//! Users of the sandbox.

use crate::daemon::state::UserMode;

/// Looks up users by name.
pub(crate) struct Users {
    _mode: UserMode,
}

impl Users {
    pub(crate) fn new(mode: UserMode) -> Self {
        Self { _mode: mode }
    }
}
