//! The embedded default provider: sandboxes made of isolated processes on this machine.
//!
//! A sandbox is two processes of the program `sandhold-helper`: a monitor outside, and a daemon that is PID 1
//! inside. Both outlive the program that asked for them. What a sandbox is stands in its directory, so that any
//! later process finds it there and finishes what another one left.

mod base;
mod cgroup;
mod channel;
mod cleanup;
mod config;
mod control;
mod failure;
mod filter;
mod freezer;
mod furnish;
mod helper;
mod idmap;
mod init;
mod inside;
mod journal;
mod launch;
mod layer;
mod link;
mod monitor;
mod packaged;
mod probe;
mod provider;
mod record;
mod registration;
mod reports;
mod requirement;
mod rootfs;
mod snapshot;
mod snapshots;
mod state_dir;
mod store;
mod sudo;
mod sys;
mod usage;
mod waking;
mod workload;

pub use cgroup::FreezerTier;
pub use cleanup::{Found, recover};
pub use config::{LocalConfig, Requirement};
pub use control::{Changed, Info, Isolation, LeaseRequest, State, UsersTier};
pub use failure::{Failure, FailureKind};
pub use helper::{helper_main, init};
pub use idmap::choose as choose_ids;
pub use probe::{EnforcedLimits, Probe};
pub use provider::LocalProvider;
pub use record::{
    Bind, EndReason, Ended, Expiry, IdMap, Limits, Network, Origin, Phase, Record, Spec, Under, Upper, User,
};
pub use rootfs::UsrTier;

/// The first page of the project, whose example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
