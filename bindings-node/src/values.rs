//! Facts and results, as plain objects of JavaScript.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use napi::bindgen_prelude::{Either, Null};
use napi_derive::napi;
use sandhold_core as core;
use serde_json::Value;

use crate::js::{Data, Time};
use crate::plain;

/// How a process ended. A non-zero code is a result, not an error.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Clone, Debug)]
pub struct ExitStatus {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub timed_out: bool,
    pub oom_killed: bool,
    pub success: bool,
}

/// Captured bytes of one stream: the tail, and how much before it was dropped.
#[napi(object, object_from_js = false)]
#[derive(Debug)]
pub struct Captured {
    pub bytes: Data,
    pub dropped: i64,
}

/// The result of a foreground command.
#[napi(object, object_from_js = false)]
#[derive(Debug)]
pub struct ExecOutput {
    pub exit: ExitStatus,
    pub stdout: Captured,
    pub stderr: Captured,
}

/// A piece of what a process wrote.
#[napi(object, object_from_js = false)]
#[derive(Debug)]
pub struct Output {
    pub stream: &'static str,
    pub data: Data,
    pub offset: i64,
    pub dropped: i64,
}

/// Facts about a process inside a sandbox.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct ProcessInfo {
    pub pid: u32,
    pub tag: Option<String>,
    pub argv: Vec<String>,
    pub cwd: Option<String>,
    pub exit: Option<ExitStatus>,
}

/// Facts about one file or directory.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct EntryInfo {
    pub name: String,
    pub path: String,
    pub file_type: &'static str,
    pub size: i64,
    pub mode: u32,
    pub owner: String,
    pub group: String,
    pub modified_at: Option<Time>,
    pub symlink_target: Option<String>,
    pub metadata: BTreeMap<String, String>,
}

/// One event of a watch.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct WatchEvent {
    pub name: String,
    pub kind: &'static str,
    pub entry: Option<EntryInfo>,
}

/// How strongly a sandbox is separated from its host.
#[napi(object, object_from_js = false)]
#[derive(Debug)]
pub struct Isolation {
    pub namespaces: Vec<String>,
    pub users: String,
    pub filesystem: String,
    pub network: String,
    pub seccomp: bool,
    pub limits: String,
    pub freezer: String,
}

/// Facts about one sandbox, as its provider tells them.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct SandboxInfo {
    pub id: String,
    pub state: &'static str,
    pub owner: Option<String>,
    pub key: Option<String>,
    pub generation: Option<String>,
    pub template: String,
    pub created_at: Time,
    pub started_at: Time,
    pub expires_at: Option<Time>,
    pub metadata: BTreeMap<String, String>,
    pub isolation: Option<Isolation>,
    pub survives: String,
}

/// How a sandbox came to an acquire.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct Facts {
    pub how: &'static str,
    pub replaced: Option<String>,
    pub replaced_because: Option<&'static str>,
    pub resumed: Option<&'static str>,
    pub attached: bool,
    pub adopted: bool,
    pub setup: &'static str,
    pub joined: bool,
    pub restored: Option<String>,
    pub receipt: Option<Value>,
    pub duplicates: Vec<String>,
}

/// Something that happened to the sandbox of a key, in this host.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct Event {
    pub owner: String,
    pub key: String,
    pub id: Option<String>,
    pub at: Time,
    pub kind: &'static str,
    pub details: BTreeMap<String, Value>,
}

/// What a provider can do. Times are milliseconds.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct Capabilities {
    pub list_visibility: Option<f64>,
    pub create_settle: Option<f64>,
    pub idempotent_create: bool,
    pub find_without_waking: bool,
    pub tags: bool,
    pub pause: bool,
    pub pause_keeps_memory: bool,
    pub pause_without_memory: bool,
    pub lease: bool,
    pub max_lease: Option<f64>,
    pub snapshot: bool,
    pub snapshot_keeps_memory: bool,
    pub fork: bool,
    pub metrics: bool,
    pub logs: bool,
    pub update_network: bool,
    pub dial: bool,
    pub retained_output: bool,
    pub signal_tree: bool,
    pub host_mounts: bool,
    pub egress_policy: bool,
    pub port_auth: bool,
    pub binary_exec: bool,
}

/// Facts about a snapshot that a provider keeps.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct SnapshotInfo {
    pub id: String,
    pub names: Vec<String>,
    pub created_at: Option<Time>,
    pub sandbox: Option<String>,
}

/// A line that a provider logged.
#[napi(object, object_from_js = false)]
#[derive(Debug)]
pub struct LogLine {
    pub at: Time,
    pub level: String,
    pub message: String,
}

/// What a sandbox uses. Sizes are bytes.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct Metrics {
    pub at: Option<Time>,
    pub cpu_count: f64,
    pub cpu_used_percent: f64,
    pub memory_used: i64,
    pub memory_cache: i64,
    pub memory_total: i64,
    pub disk_used: i64,
    pub disk_total: i64,
}

/// An attempt that was given up.
#[napi(object, object_from_js = false)]
#[derive(Debug)]
pub struct Abandoned {
    pub attempt: String,
    pub at: Time,
}

/// What a registry remembers of a key.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct Record {
    pub owner: String,
    pub key: String,
    pub version: i64,
    pub fence: i64,
    pub provider: String,
    pub fingerprint: String,
    pub id: Option<String>,
    pub generation: String,
    pub attempt: String,
    pub phase: &'static str,
    pub phase_since: Time,
    pub spec: Value,
    pub setup_done: Option<i64>,
    pub abandoned: Vec<Abandoned>,
    pub replaces: Option<String>,
    pub replaced_because: Option<&'static str>,
}

/// Something that provider and registry do not agree about, or that nobody has finished.
#[napi(object, object_from_js = false, use_nullable = true)]
#[derive(Debug)]
pub struct Finding {
    pub kind: &'static str,
    pub owner: Option<String>,
    pub key: Option<String>,
    pub info: Option<SandboxInfo>,
    pub record: Option<Record>,
    pub keeps: Option<String>,
    pub made: Option<String>,
}

/// A value, or `null`.
pub(crate) type Maybe<T> = Either<T, Null>;

/// Lifts the value that may be there.
pub(crate) fn maybe<T, U: From<T>>(value: Option<T>) -> Maybe<U> {
    value.map_or(Either::B(Null), |value| Either::A(value.into()))
}

/// Lifts each of a list.
pub(crate) fn all<T, U: From<T>>(found: Vec<T>) -> Vec<U> {
    found.into_iter().map(U::from).collect()
}

/// Makes a number of JavaScript, which is exact up to 2^53.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl From<core::Captured> for Captured {
    fn from(captured: core::Captured) -> Self {
        Self { bytes: captured.bytes.into(), dropped: number(captured.dropped) }
    }
}

impl From<core::ExitStatus> for ExitStatus {
    fn from(exit: core::ExitStatus) -> Self {
        Self {
            code: exit.code,
            signal: exit.signal,
            timed_out: exit.timed_out,
            oom_killed: exit.oom_killed,
            success: exit.success(),
        }
    }
}

impl From<core::ExecOutput> for ExecOutput {
    fn from(output: core::ExecOutput) -> Self {
        Self { exit: output.exit.into(), stdout: output.stdout.into(), stderr: output.stderr.into() }
    }
}

impl Output {
    pub(crate) fn new(stream: &'static str, data: Bytes, offset: u64, dropped: u64) -> Self {
        Self { stream, data: data.into(), offset: number(offset), dropped: number(dropped) }
    }
}

impl From<core::ProcessInfo> for ProcessInfo {
    fn from(info: core::ProcessInfo) -> Self {
        Self { pid: info.pid, tag: info.tag, argv: info.argv, cwd: info.cwd, exit: info.exit.map(Into::into) }
    }
}

impl From<core::EntryInfo> for EntryInfo {
    fn from(entry: core::EntryInfo) -> Self {
        Self {
            name: entry.name,
            path: entry.path,
            file_type: match entry.file_type {
                core::FileType::File => "file",
                core::FileType::Directory => "directory",
                core::FileType::Symlink => "symlink",
                _ => "other",
            },
            size: number(entry.size),
            mode: entry.mode,
            owner: entry.owner,
            group: entry.group,
            modified_at: entry.modified_at.map(Into::into),
            symlink_target: entry.symlink_target,
            metadata: entry.metadata,
        }
    }
}

impl From<core::WatchEvent> for WatchEvent {
    fn from(event: core::WatchEvent) -> Self {
        Self {
            name: event.name,
            kind: match event.kind {
                core::WatchEventKind::Create => "create",
                core::WatchEventKind::Write => "write",
                core::WatchEventKind::Remove => "remove",
                core::WatchEventKind::Rename => "rename",
                core::WatchEventKind::Chmod => "chmod",
                // Whatever else there may be one day: look again.
                _ => "overflow",
            },
            entry: event.entry.map(Into::into),
        }
    }
}

impl From<core::Isolation> for Isolation {
    fn from(found: core::Isolation) -> Self {
        Self {
            namespaces: found.namespaces,
            users: found.users,
            filesystem: found.filesystem,
            network: found.network,
            seccomp: found.seccomp,
            limits: found.limits,
            freezer: found.freezer,
        }
    }
}

impl From<core::SandboxInfo> for SandboxInfo {
    fn from(info: core::SandboxInfo) -> Self {
        let (owner, key, generation) = match info.tags {
            Some(tags) => {
                (Some(tags.owner.to_string()), Some(tags.key.to_string()), Some(tags.generation.to_string()))
            }
            None => (None, None, None),
        };
        Self {
            id: info.id.to_string(),
            state: match info.state {
                core::SandboxState::Running => "running",
                core::SandboxState::Paused => "paused",
                core::SandboxState::Stopped => "stopped",
                _ => "transitioning",
            },
            owner,
            key,
            generation,
            template: info.template,
            created_at: info.created_at.into(),
            started_at: info.started_at.into(),
            expires_at: info.expires_at.map(Into::into),
            metadata: info.metadata,
            isolation: info.isolation.map(Into::into),
            survives: info.survives,
        }
    }
}

impl From<&core::Facts> for Facts {
    fn from(facts: &core::Facts) -> Self {
        let replaced = match &facts.how {
            core::How::Replaced { old } => Some(old.to_string()),
            _ => None,
        };
        let resumed = match &facts.how {
            core::How::Resumed { memory } => Some(memory.as_str()),
            _ => None,
        };
        Self {
            how: how(&facts.how),
            replaced,
            replaced_because: facts.replaced_because.map(core::ReplacedBecause::as_str),
            resumed,
            attached: facts.how == core::How::Attached,
            adopted: facts.how == core::How::Adopted,
            setup: setup(facts.setup),
            joined: facts.joined,
            restored: facts.restored.as_ref().and_then(|report| report.snapshot.clone()),
            receipt: facts.restored.as_ref().and_then(|report| report.receipt.as_ref()).map(plain::facts),
            duplicates: facts.duplicates.iter().map(ToString::to_string).collect(),
        }
    }
}

fn how(how: &core::How) -> &'static str {
    match how {
        core::How::Fresh => "fresh",
        core::How::Replaced { .. } => "replaced",
        core::How::Adopted => "adopted",
        core::How::Unfinished => "unfinished",
        core::How::Resumed { .. } => "resumed",
        _ => "attached",
    }
}

pub(crate) fn setup(setup: core::SetupState) -> &'static str {
    match setup {
        core::SetupState::Done => "done",
        _ => "needed",
    }
}

/// Milliseconds, where there is a time.
fn millis(time: Option<std::time::Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64() * 1000.0)
}

impl From<core::Capabilities> for Capabilities {
    fn from(can: core::Capabilities) -> Self {
        Self {
            list_visibility: millis(can.list_visibility),
            create_settle: millis(can.create_settle),
            idempotent_create: can.idempotent_create,
            find_without_waking: can.find_without_waking,
            tags: can.tags,
            pause: can.pause,
            pause_keeps_memory: can.pause_keeps_memory,
            pause_without_memory: can.pause_without_memory,
            lease: can.lease,
            max_lease: millis(can.max_lease),
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
            created_at: info.created_at.map(Into::into),
            sandbox: info.sandbox.map(|id| id.to_string()),
        }
    }
}

impl From<core::LogLine> for LogLine {
    fn from(line: core::LogLine) -> Self {
        Self { at: line.at.into(), level: line.level, message: line.message }
    }
}

impl From<core::Metrics> for Metrics {
    fn from(metrics: core::Metrics) -> Self {
        Self {
            at: metrics.at.map(Into::into),
            cpu_count: metrics.cpu_count,
            cpu_used_percent: metrics.cpu_used_percent,
            memory_used: number(metrics.memory_used),
            memory_cache: number(metrics.memory_cache),
            memory_total: number(metrics.memory_total),
            disk_used: number(metrics.disk_used),
            disk_total: number(metrics.disk_total),
        }
    }
}

impl From<core::Record> for Record {
    fn from(record: core::Record) -> Self {
        Self {
            owner: record.owner.to_string(),
            key: record.key.to_string(),
            version: number(record.version),
            fence: number(record.fence),
            provider: record.provider,
            fingerprint: record.fingerprint,
            id: record.id.map(|id| id.to_string()),
            generation: record.generation.to_string(),
            attempt: record.attempt.to_string(),
            phase: record.phase.as_str(),
            phase_since: record.phase_since.into(),
            spec: plain::facts(&record.spec),
            setup_done: record.setup_done.map(number),
            abandoned: record
                .abandoned
                .into_iter()
                .map(|given_up| Abandoned { attempt: given_up.attempt.to_string(), at: given_up.at.into() })
                .collect(),
            replaces: record.replaces.map(|id| id.to_string()),
            replaced_because: record.replaced_because.map(core::ReplacedBecause::as_str),
        }
    }
}

impl From<&core::Finding> for Finding {
    fn from(finding: &core::Finding) -> Self {
        let name = finding.name();
        Self {
            kind: finding.as_str(),
            owner: name.map(|(owner, _)| owner.to_string()),
            key: name.map(|(_, key)| key.to_string()),
            info: finding.info().cloned().map(Into::into),
            record: finding.record().cloned().map(Into::into),
            keeps: match finding {
                core::Finding::Duplicate { keeps, .. } => Some(keeps.to_string()),
                _ => None,
            },
            made: match finding {
                core::Finding::OpenCreate { made, .. } => made.as_ref().map(ToString::to_string),
                _ => None,
            },
        }
    }
}

impl Event {
    /// Stands in the place of events that a slow listener has missed.
    pub(crate) fn lagged(lagged: core::Lagged) -> Self {
        Self {
            owner: String::new(),
            key: String::new(),
            id: None,
            at: SystemTime::now().into(),
            kind: "lagged",
            details: [("missed".to_owned(), lagged.missed.into())].into(),
        }
    }
}

impl From<&core::Event> for Event {
    fn from(event: &core::Event) -> Self {
        use core::EventKind as Kind;
        let details: Vec<(&str, Value)> = match &event.kind {
            Kind::Started { outcome, how: came } => {
                vec![("outcome", outcome.as_str().into()), ("how", how(came).into())]
            }
            Kind::ProvisionFailed { stage, kind, reason, cleaned_up } => vec![
                ("stage", (*stage).into()),
                ("error", kind.as_str().into()),
                ("reason", (*reason).into()),
                ("cleanedUp", (*cleaned_up).into()),
            ],
            Kind::SetupFailed { stage, kind, reason } => vec![
                ("stage", (*stage).into()),
                ("error", kind.as_str().into()),
                ("reason", (*reason).into()),
            ],
            Kind::PauseFailed { kind, reason } | Kind::SaveFailed { kind, reason } => {
                vec![("error", kind.as_str().into()), ("reason", (*reason).into())]
            }
            Kind::Resumed { memory } => vec![("memory", memory.as_str().into())],
            Kind::Replaced { old, new } => vec![("old", old.as_str().into()), ("new", new.as_str().into())],
            Kind::Conflict { reason } => vec![("reason", (*reason).into())],
            Kind::DuplicateFound { other, reaped } => {
                vec![("other", other.as_str().into()), ("reaped", (*reaped).into())]
            }
            Kind::Stopped { outcome } => vec![("outcome", stopped(*outcome).into())],
            _ => Vec::new(),
        };
        Self {
            owner: event.owner.to_string(),
            key: event.key.to_string(),
            id: event.id.as_ref().map(ToString::to_string),
            at: event.at.into(),
            kind: event.kind.as_str(),
            details: details.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }
}

pub(crate) fn stopped(outcome: core::StopOutcome) -> &'static str {
    match outcome {
        core::StopOutcome::Paused => "paused",
        core::StopOutcome::AlreadyPaused => "already_paused",
        core::StopOutcome::NoSandbox => "no_sandbox",
        _ => "left_running",
    }
}

pub(crate) fn paused(outcome: core::PauseOutcome) -> &'static str {
    match outcome {
        core::PauseOutcome::Paused => "paused",
        _ => "already_paused",
    }
}

pub(crate) fn destroyed(outcome: core::DestroyOutcome) -> &'static str {
    match outcome {
        core::DestroyOutcome::Destroyed => "destroyed",
        _ => "already_gone",
    }
}
