//! Facts and results, as plain values of Python.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core as core;

use crate::json::Json;

/// Makes frozen classes whose fields can be read, and which show them.
macro_rules! values {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ })+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, get_all, module = "sandhold")]
        #[derive(Clone, Debug)]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub(crate) $field: $type,)+
        }

        #[pymethods]
        impl $name {
            fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
                let mut fields = Vec::new();
                for field in [$(stringify!($field)),+] {
                    fields.push(format!("{field}={}", slf.getattr(field)?.repr()?));
                }
                Ok(format!("{}({})", stringify!($name), fields.join(", ")))
            }
        }
    )+};
}

pub(crate) use values;

values! {
    /// How a process ended. A non-zero code is a result, not an error.
    ExitStatus {
        /// The exit code; None when a signal ended it.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// It was ended because its deadline had passed.
        timed_out: bool,
        /// It was ended because the sandbox ran out of memory.
        oom_killed: bool,
        /// It exited with code 0.
        success: bool,
    }

    /// The result of a foreground command.
    ExecOutput {
        /// How it ended.
        exit: ExitStatus,
        /// What it wrote to standard output.
        stdout: Captured,
        /// What it wrote to standard error.
        stderr: Captured,
    }

    /// A piece of what a process wrote.
    Output {
        /// Where: `stdout`, `stderr` or `pty`.
        stream: &'static str,
        /// The bytes; characters may be split between pieces.
        data: Bytes,
        /// The position of the first byte in the stream.
        offset: u64,
        /// Bytes before it that the retention cap dropped.
        dropped: u64,
    }

    /// Facts about a process inside a sandbox.
    ProcessInfo {
        /// Its id inside the sandbox.
        pid: u32,
        /// The tag given at its start.
        tag: Option<String>,
        /// The program and its arguments.
        argv: Vec<String>,
        /// Where it started.
        cwd: Option<String>,
        /// How it ended, for a kept one that has.
        exit: Option<ExitStatus>,
    }

    /// Facts about one file or directory.
    EntryInfo {
        /// The last part of the path.
        name: String,
        /// The absolute path.
        path: String,
        /// What it is: `file`, `directory`, `symlink` or `other`.
        file_type: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The permission bits.
        mode: u32,
        /// The owner's name, or the number as text.
        owner: String,
        /// The group's name, or the number as text.
        group: String,
        /// When the content was last modified.
        modified_at: Option<SystemTime>,
        /// Where a symbolic link leads.
        symlink_target: Option<String>,
        /// The pairs that were given at the upload.
        metadata: BTreeMap<String, String>,
    }

    /// One event of a watch.
    WatchEvent {
        /// The path relative to the watched directory.
        name: String,
        /// What happened: `create`, `write`, `remove`, `rename`, `chmod` or `overflow`.
        kind: &'static str,
        /// Facts of the entry, where asked for.
        entry: Option<EntryInfo>,
    }

    /// How strongly a sandbox is separated from its host.
    Isolation {
        /// The kernel namespaces in force.
        namespaces: Vec<String>,
        /// The user tier: `full`, `ranges` or `single`.
        users: String,
        /// What the root view is made of.
        filesystem: String,
        /// The network in force.
        network: String,
        /// Whether a system call filter is on.
        seccomp: bool,
        /// What enforces the limits.
        limits: String,
        /// What freezes the processes.
        freezer: String,
    }

    /// Facts about one sandbox, as its provider tells them.
    SandboxInfo {
        /// The provider's id.
        id: String,
        /// What it is doing: `running`, `paused`, `stopped` or `transitioning`.
        state: &'static str,
        /// The namespace of its key; None when it was made elsewhere.
        owner: Option<String>,
        /// Its key.
        key: Option<String>,
        /// The identity of this very sandbox.
        generation: Option<String>,
        /// The template it was made from.
        template: String,
        /// When it was created, by the provider's clock.
        created_at: SystemTime,
        /// When its present run began.
        started_at: SystemTime,
        /// When its lease ends; None means never.
        expires_at: Option<SystemTime>,
        /// Free text pairs kept with it.
        metadata: BTreeMap<String, String>,
        /// The isolation in force, where the provider tells.
        isolation: Option<Isolation>,
        /// What it outlives: `host_process`, `service`, or empty.
        survives: String,
    }

    /// How a sandbox came to an acquire.
    Facts {
        /// `fresh`, `replaced`, `adopted`, `unfinished`, `attached` or `resumed`.
        how: &'static str,
        /// The id of the sandbox whose place it took.
        replaced: Option<String>,
        /// Why it took that place: `gone` or `other_spec`; known as long as its record is.
        replaced_because: Option<&'static str>,
        /// What a resume kept: `kept` or `lost`; None when it was running.
        resumed: Option<&'static str>,
        /// It was running.
        attached: bool,
        /// Our own create made it, and the answer was lost.
        adopted: bool,
        /// Whether the setup was `needed` or `done`.
        setup: &'static str,
        /// Another caller in this process did the work.
        joined: bool,
        /// The snapshot that was put back.
        restored: Option<String>,
        /// What was promised to survive at that snapshot, and was found there again.
        receipt: Option<Json>,
        /// Other sandboxes of this key that were found and left alone.
        duplicates: Vec<String>,
    }
}

/// Captured bytes of one stream: the tail, and how much before it was dropped.
#[pyclass(frozen, get_all, module = "sandhold")]
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    /// The bytes.
    pub(crate) bytes: Bytes,
    /// How many bytes before them were dropped.
    pub(crate) dropped: u64,
}

#[pymethods]
impl Captured {
    /// Returns the bytes as text; what is not UTF-8 becomes U+FFFD.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn __str__(&self) -> String {
        self.text()
    }

    fn __bytes__(&self) -> Bytes {
        self.bytes.clone()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let bytes = slf.getattr("bytes")?.repr()?;
        Ok(format!("Captured(bytes={bytes}, dropped={})", slf.get().dropped))
    }
}

impl From<core::Captured> for Captured {
    fn from(captured: core::Captured) -> Self {
        Self { bytes: captured.bytes.into(), dropped: captured.dropped }
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
            size: entry.size,
            mode: entry.mode,
            owner: entry.owner,
            group: entry.group,
            modified_at: entry.modified_at,
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
            created_at: info.created_at,
            started_at: info.started_at,
            expires_at: info.expires_at,
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
            receipt: facts.restored.as_ref().and_then(|report| report.receipt.clone()).map(Json),
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

/// Something that happened to the sandbox of a key, in this host.
#[pyclass(frozen, get_all, module = "sandhold")]
#[derive(Debug)]
pub(crate) struct Event {
    /// The namespace of the key.
    owner: String,
    /// The key.
    key: String,
    /// The provider's id, where there is one.
    id: Option<String>,
    /// When, by this machine's clock.
    at: SystemTime,
    /// What, such as `started`.
    kind: &'static str,
    /// More about it, by name.
    details: Py<PyDict>,
}

#[pymethods]
impl Event {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Event(key={:?}, kind={:?}, details={})",
            self.key,
            self.kind,
            self.details.bind(py).repr()?
        ))
    }
}

impl Event {
    /// Stands in the place of events that a slow listener has missed.
    pub(crate) fn lagged(py: Python<'_>, lagged: core::Lagged) -> PyResult<Self> {
        let details = PyDict::new(py);
        details.set_item("missed", lagged.missed)?;
        Ok(Self {
            owner: String::new(),
            key: String::new(),
            id: None,
            at: SystemTime::now(),
            kind: "lagged",
            details: details.unbind(),
        })
    }

    pub(crate) fn new(py: Python<'_>, event: &core::Event) -> PyResult<Self> {
        use core::EventKind as Kind;
        let details = PyDict::new(py);
        match &event.kind {
            Kind::Started { outcome, how: came } => {
                details.set_item("outcome", outcome.as_str())?;
                details.set_item("how", how(came))?;
            }
            Kind::ProvisionFailed { stage, kind, reason, cleaned_up } => {
                details.set_item("stage", stage)?;
                details.set_item("error", kind.as_str())?;
                details.set_item("reason", reason)?;
                details.set_item("cleaned_up", cleaned_up)?;
            }
            Kind::SetupFailed { stage, kind, reason } => {
                details.set_item("stage", stage)?;
                details.set_item("error", kind.as_str())?;
                details.set_item("reason", reason)?;
            }
            Kind::PauseFailed { kind, reason } | Kind::SaveFailed { kind, reason } => {
                details.set_item("error", kind.as_str())?;
                details.set_item("reason", reason)?;
            }
            Kind::Resumed { memory } => details.set_item("memory", memory.as_str())?,
            Kind::Replaced { old, new } => {
                details.set_item("old", old.as_str())?;
                details.set_item("new", new.as_str())?;
            }
            Kind::Conflict { reason } => details.set_item("reason", reason)?,
            Kind::DuplicateFound { other, reaped } => {
                details.set_item("other", other.as_str())?;
                details.set_item("reaped", reaped)?;
            }
            Kind::Stopped { outcome } => details.set_item("outcome", stopped(*outcome))?,
            _ => {}
        }
        Ok(Self {
            owner: event.owner.to_string(),
            key: event.key.to_string(),
            id: event.id.as_ref().map(ToString::to_string),
            at: event.at,
            kind: event.kind.as_str(),
            details: details.unbind(),
        })
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

/// A file that a resume hook wants fresh inside the sandbox, such as a rotated token.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct FreshFile(pub(crate) core::FreshFile);

#[pymethods]
impl FreshFile {
    #[new]
    #[pyo3(signature = (path, content, *, mode = 0o600, owner = None))]
    fn new(path: String, content: &[u8], mode: u32, owner: Option<String>) -> Self {
        let mut file = core::FreshFile::new(path, content);
        file.mode = mode;
        file.owner = owner;
        Self(file)
    }

    fn __repr__(&self) -> String {
        format!("FreshFile(path={:?}, content=<{} bytes>)", self.0.path, self.0.content.len())
    }
}
