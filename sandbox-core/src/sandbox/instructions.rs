//! What a model is told of the sandbox that it works in.

use std::fmt::Write as _;

use super::Sandbox;
use crate::{DEFAULT_EXEC_TIMEOUT, Network};

impl Sandbox {
    /// Says what a model should know of this sandbox to work in it: users, places, network, limits. Does no I/O.
    #[must_use]
    pub fn instructions(&self) -> String {
        let spec = &self.shared.options.spec;
        let workdir = spec.workdir.as_deref().unwrap_or(&spec.home);
        let network = match spec.network {
            Network::None => "There is no network, not even between processes.",
            Network::Loopback => "Of the network there is only loopback: nothing outside can be reached.",
            Network::Host => "The internet can be reached.",
        };
        let mut text = format!(
            "You work in a Linux sandbox. Commands run as the user {} and start in {workdir}; relative paths of files lead \
             to {}. Files stay when the sandbox is paused, and until it is destroyed. {network} A command ends after {} \
             seconds unless it is given more; start what shall run longer as a process of its own.",
            spec.user,
            spec.home,
            DEFAULT_EXEC_TIMEOUT.as_secs(),
        );
        let resources = &spec.resources;
        let limits = [
            ("processors", resources.cpu_millis.map(|millis| format!("{}", f64::from(millis) / 1000.0))),
            ("bytes of memory", resources.memory.map(|bytes| bytes.to_string())),
            ("processes", resources.pids.map(|count| count.to_string())),
            ("bytes on disk", resources.disk.map(|bytes| bytes.to_string())),
        ];
        for (what, limit) in limits {
            if let Some(limit) = limit {
                // A String takes everything.
                let _ = write!(text, " It may use {limit} {what}.");
            }
        }
        for mount in &spec.mounts {
            let _ = write!(text, " {} is mounted from outside.", mount.path);
        }
        text
    }
}
