//! What every process inside goes through between fork and exec, and which rights are left to it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use sandhold_envd::{ChildSetup, ChildUser};

use crate::failure::{Doing, Failure};
use crate::record::{IdMap, Network};
use crate::{filter, sys};

/// Rights that root inside keeps: what package managers and `su`-like programs need, and that reach no further than
/// the sandbox's own files and processes.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Number of capabilities that a kernel can have.
const CAPABILITIES: u32 = 64;

/// Takes from this process, and so from all it starts, every right that is not [`KEPT`], and hides its memory.
///
/// Must run before this process has a second thread: the sets belong to threads.
pub(crate) fn drop_rights() -> Result<(), Failure> {
    drop_bounding();
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).doing("give up rights")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).doing("hide the daemon's memory")
}

fn drop_bounding() {
    for capability in 0..CAPABILITIES {
        if KEPT.bits() & 1 << capability == 0 {
            sys::drop_bounding(capability);
        }
    }
}

/// Prepares each child of the daemon.
#[derive(Debug)]
pub(crate) struct Workload {
    /// Files of control groups that a process joins by writing `0`.
    join: Vec<File>,
    /// Tells how often memory ran out, where it is limited.
    memory: Option<File>,
    filter: Vec<libc::sock_filter>,
    /// Denies connections, in a sandbox without a network.
    landlock: Option<OwnedFd>,
    /// Whether users are shown by nested namespaces, whose maps a process writes itself.
    nested: bool,
}

impl Workload {
    /// Prepares what children share.
    ///
    /// # Errors
    /// [`Unsupported`](crate::FailureKind::Unsupported) if the network asked for cannot be enforced by this kernel.
    pub(crate) fn new(
        join: Vec<File>,
        memory: Option<File>,
        network: Network,
        ids: &IdMap,
    ) -> Result<Self, Failure> {
        let landlock = match network {
            Network::None => Some(no_connections()?),
            Network::Loopback | Network::Host => None,
        };
        let nested = matches!(ids, IdMap::Single);
        Ok(Self { join, memory, filter: filter::compile(network), landlock, nested })
    }
}

fn no_connections() -> Result<OwnedFd, Failure> {
    if sys::landlock_version() < sys::LANDLOCK_WITH_NETWORK {
        return Err(Failure::unsupported(
            "network `none` needs Landlock version 4 (Linux 6.7); use `loopback` on this kernel",
        ));
    }
    sys::landlock_no_tcp_connect().doing("make a Landlock ruleset")
}

impl ChildSetup for Workload {
    fn out_of_memory_kills(&self) -> u64 {
        self.memory.as_ref().map_or(0, crate::cgroup::memory_kills)
    }

    fn before_identity(&self) -> io::Result<()> {
        for group in &self.join {
            rustix::io::write(group, b"0")?;
        }
        if self.nested {
            // A process that hides its memory may not write its own id map. It has executed nothing yet, and
            // hides it again below.
            rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        }
        Ok(())
    }

    fn before_exec(&self, _user: &ChildUser) -> io::Result<()> {
        if self.nested {
            rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
            // A new user namespace comes with every right over itself.
            drop_bounding();
        }
        rustix::thread::set_no_new_privs(true)?;
        if let Some(ruleset) = &self.landlock {
            sys::landlock_restrict_self(ruleset.as_fd())?;
        }
        sys::install_filter(&self.filter)
    }
}
