use std::time::Duration;

use crate::{Error, ErrorKind, MountSource, Network, Result, SandboxSpec};

/// What a provider can do. A call that is not covered is `unsupported` before anything happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// How long after a create a listing may miss it; `None` when the provider states no bound.
    pub list_visibility: Option<Duration>,
    /// The longest create plus `list_visibility`; `None` when the provider states no bound.
    pub create_settle: Option<Duration>,
    /// Creates with the same attempt yield the same sandbox.
    pub idempotent_create: bool,
    /// `find` never wakes a paused sandbox.
    pub find_without_waking: bool,
    /// Owner, key, generation and attempt are kept with the sandbox.
    pub tags: bool,
    /// [`crate::SandboxProvider::pause_opts`] works.
    pub pause: bool,
    /// A paused sandbox keeps its processes and memory.
    pub pause_keeps_memory: bool,
    /// A pause can be asked to keep only the files, and a connect to start a paused sandbox anew on them.
    pub pause_without_memory: bool,
    /// Leases are enforced.
    pub lease: bool,
    /// The longest lease; `None` for no limit.
    pub max_lease: Option<Duration>,
    /// Snapshots can be taken, listed, deleted, and named as the template of a new sandbox.
    pub snapshot: bool,
    /// A snapshot stores the processes too, and a sandbox made from it goes on with them.
    pub snapshot_keeps_memory: bool,
    /// [`crate::SandboxProvider::fork`] works.
    pub fork: bool,
    /// [`crate::SandboxProvider::metrics`] works.
    pub metrics: bool,
    /// [`crate::SandboxProvider::logs`] works.
    pub logs: bool,
    /// [`crate::SandboxProvider::update_network`] works.
    pub update_network: bool,
    /// [`crate::SandboxHandle::dial`] works.
    pub dial: bool,
    /// Output of a process can be kept in the sandbox and replayed by offset.
    pub retained_output: bool,
    /// Signals reach the whole process tree.
    pub signal_tree: bool,
    /// Host directories can be mounted.
    pub host_mounts: bool,
    /// The sandbox reaches no further than [`crate::SandboxSpec::network`] says. Without it a spec that asks for less than
    /// [`crate::Network::Host`] is refused before anything is made.
    pub egress_policy: bool,
    /// Ports that the provider exposes to the network ask for a token; `false` also where it exposes none.
    pub port_auth: bool,
    /// Input and output of commands are bytes, and arrive as they are.
    pub binary_exec: bool,
}

impl Capabilities {
    /// Refuses a spec that asks for what is not covered: it would be ignored without a word.
    pub(crate) fn check(&self, spec: &SandboxSpec) -> Result<()> {
        let refuse =
            |message, field| Err(Error::new(ErrorKind::Unsupported, message).with_context("field", field));
        if !self.egress_policy && spec.network != Network::Host {
            return refuse(
                "the provider cannot limit the network of a sandbox; ask for Network::Host",
                "network",
            );
        }
        self.check_lease(spec)?;
        let is_dir = |source: &MountSource| {
            matches!(source, MountSource::HostDir { .. } | MountSource::SharedDir { .. })
        };
        if !self.host_mounts && spec.mounts.iter().any(|mount| is_dir(&mount.source)) {
            return refuse("the provider mounts no directories of the host; leave them out", "mounts");
        }
        Ok(())
    }

    /// Refuses a lease that would be ignored or is longer than any, also for a sandbox that is there.
    pub(crate) fn check_lease(&self, spec: &SandboxSpec) -> Result<()> {
        match spec.lease {
            Some(_) if !self.lease => Err(Error::new(
                ErrorKind::Unsupported,
                "the provider enforces no leases; leave the lease out",
            )
            .with_context("field", "lease")),
            Some(lease) if self.max_lease.is_some_and(|max| lease > max) => {
                let max = self.max_lease.unwrap_or_default();
                Err(Error::invalid_argument(format!(
                    "a lease of {lease:?} is longer than the provider's longest of {max:?}; ask for less"
                ))
                .with_context("field", "lease"))
            }
            _ => Ok(()),
        }
    }
}
