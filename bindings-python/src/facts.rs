//! What a provider tells beside its sandboxes: what it can do, snapshots, log lines, measurements.

use std::time::{Duration, SystemTime};

use pyo3::prelude::*;
use sandhold_core as core;

use crate::values::values;

values! {
    /// What a provider can do. A call that is not covered is `unsupported` before anything happens. Times in seconds.
    Capabilities {
        /// How long after a create a listing may miss it; None when the provider states no bound.
        list_visibility: Option<f64>,
        /// The longest create plus `list_visibility`; None when the provider states no bound.
        create_settle: Option<f64>,
        /// Creates with the same attempt yield the same sandbox.
        idempotent_create: bool,
        /// A look never wakes a paused sandbox.
        find_without_waking: bool,
        /// Owner, key, generation and attempt are kept with the sandbox.
        tags: bool,
        /// Sandboxes can be paused.
        pause: bool,
        /// A paused sandbox keeps its processes and memory.
        pause_keeps_memory: bool,
        /// A pause can be asked to keep only the files.
        pause_without_memory: bool,
        /// Leases are enforced.
        lease: bool,
        /// The longest lease; None for no limit.
        max_lease: Option<f64>,
        /// Snapshots can be taken, listed, deleted, and named as a template.
        snapshot: bool,
        /// A snapshot stores the processes too.
        snapshot_keeps_memory: bool,
        /// A running sandbox can be forked.
        fork: bool,
        /// It tells measurements.
        metrics: bool,
        /// It tells log lines.
        logs: bool,
        /// The network of a running sandbox can be changed.
        update_network: bool,
        /// Ports inside can be reached.
        dial: bool,
        /// Output of a process can be kept in the sandbox and replayed by offset.
        retained_output: bool,
        /// Signals reach the whole process tree.
        signal_tree: bool,
        /// Host directories can be mounted.
        host_mounts: bool,
        /// The sandbox reaches no further than `network` says.
        egress_policy: bool,
        /// Ports that the provider exposes to the network ask for a token.
        port_auth: bool,
        /// Input and output of commands are bytes, and arrive as they are.
        binary_exec: bool,
    }

    /// A snapshot that a provider keeps.
    SnapshotInfo {
        /// Its id, which is a template's name too.
        id: String,
        /// Its names.
        names: Vec<String>,
        /// When it was taken.
        created_at: Option<SystemTime>,
        /// The sandbox that it was taken of.
        sandbox: Option<String>,
    }

    /// A line of a sandbox's log.
    LogLine {
        /// When it was written.
        at: SystemTime,
        /// Its level, in the provider's word.
        level: String,
        /// The text.
        message: String,
    }

    /// What a sandbox uses. Sizes in bytes.
    Metrics {
        /// When it was measured.
        at: Option<SystemTime>,
        /// How many processors it has.
        cpu_count: f64,
        /// How much of one processor it uses, in percent.
        cpu_used_percent: f64,
        /// Memory in use.
        memory_used: u64,
        /// Memory that caches hold.
        memory_cache: u64,
        /// Memory that it may use.
        memory_total: u64,
        /// Disk in use.
        disk_used: u64,
        /// Disk that it may use.
        disk_total: u64,
    }
}

impl From<core::Capabilities> for Capabilities {
    fn from(can: core::Capabilities) -> Self {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        Self {
            list_visibility: seconds(can.list_visibility),
            create_settle: seconds(can.create_settle),
            idempotent_create: can.idempotent_create,
            find_without_waking: can.find_without_waking,
            tags: can.tags,
            pause: can.pause,
            pause_keeps_memory: can.pause_keeps_memory,
            pause_without_memory: can.pause_without_memory,
            lease: can.lease,
            max_lease: seconds(can.max_lease),
            snapshot: can.snapshot,
            snapshot_keeps_memory: can.snapshot_keeps_memory,
            fork: can.fork,
            metrics: can.metrics,
            logs: can.logs,
            update_network: can.update_network,
            dial: can.dial,
            retained_output: can.retained_output,
            signal_tree: can.signal_tree,
            host_mounts: can.host_mounts,
            egress_policy: can.egress_policy,
            port_auth: can.port_auth,
            binary_exec: can.binary_exec,
        }
    }
}

impl From<core::SnapshotInfo> for SnapshotInfo {
    fn from(info: core::SnapshotInfo) -> Self {
        Self {
            id: info.id.to_string(),
            names: info.names,
            created_at: info.created_at,
            sandbox: info.sandbox.map(|id| id.to_string()),
        }
    }
}

impl From<core::LogLine> for LogLine {
    fn from(line: core::LogLine) -> Self {
        Self { at: line.at, level: line.level, message: line.message }
    }
}

impl From<core::Metrics> for Metrics {
    fn from(measured: core::Metrics) -> Self {
        Self {
            at: measured.at,
            cpu_count: measured.cpu_count,
            cpu_used_percent: measured.cpu_used_percent,
            memory_used: measured.memory_used,
            memory_cache: measured.memory_cache,
            memory_total: measured.memory_total,
            disk_used: measured.disk_used,
            disk_total: measured.disk_total,
        }
    }
}
