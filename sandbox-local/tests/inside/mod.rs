//! Starts real sandboxes with the real helper, and talks to them as a provider would.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests panic, and say what they skip"
)]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandhold_core::{
    ExecOutput, ProcessSpec, Result, SandboxHandleExt, SandboxId, SandboxInfo, SandboxState,
};
use sandhold_envd::{ControlPlane, EnvdClient, EnvdConfig, EnvdHandle, UnixTransport};
use sandhold_local::{IdMap, Info, Spec};
use tempfile::TempDir;

pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_sandhold-helper");

/// An ordinary user for tests that run as root.
const ORDINARY: u32 = 23456;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Whoever runs the tests.
    Me,
    /// An ordinary user.
    Ordinary,
}

/// A state directory of its own, whose sandboxes are destroyed with it.
#[derive(Debug)]
pub(crate) struct Home {
    dir: TempDir,
    who: Who,
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Home {
    /// Returns a home in which sandboxes start; `None`, said aloud, where this host has none.
    pub(crate) fn new(who: Who) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("sandhold-test-").tempdir().unwrap();
        if who == Who::Ordinary && is_root() {
            std::os::unix::fs::chown(dir.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
        let home = Self { dir, who };
        home.share_base_trees();
        let output = home.helper(&["local", "probe", "--home", home.path().to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let probe: serde_json::Value = serde_json::from_str(&text).expect(&text);
        if probe["isolation"].is_null() {
            println!("skipped: needs user namespaces: {text}");
            return None;
        }
        Some(home)
    }

    /// Keeps base trees outside, where the next test finds them: they are named by their content.
    fn share_base_trees(&self) {
        let owner = if self.who == Who::Ordinary && is_root() {
            ORDINARY
        } else {
            rustix::process::geteuid().as_raw()
        };
        let shared = std::env::temp_dir().join(format!("sandhold-test-base-{owner}"));
        if std::fs::create_dir(&shared).is_ok() && is_root() {
            std::os::unix::fs::chown(&shared, Some(owner), Some(owner)).unwrap();
        }
        std::os::unix::fs::symlink(shared, self.path().join("base")).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs the helper as the owner of this home.
    pub(crate) fn helper(&self, args: &[&str]) -> Output {
        let mut command = Command::new(HELPER);
        command.args(args).stdin(Stdio::null()).stderr(Stdio::null());
        if self.who == Who::Ordinary && is_root() {
            command.uid(ORDINARY).gid(ORDINARY);
        }
        command.output().unwrap()
    }

    pub(crate) fn ids(&self, id: &str) -> IdMap {
        match self.who {
            Who::Me if is_root() => sandhold_local::choose_ids(self.path(), id).unwrap(),
            _ => IdMap::Single,
        }
    }

    pub(crate) fn spec(&self, id: &str) -> Spec {
        Spec::new(id, self.ids(id))
    }

    /// Writes the record of a sandbox.
    pub(crate) fn create(&self, spec: Spec) -> Sandbox<'_> {
        let id = spec.id.clone();
        let dir = self.path().join("sandboxes").join(&id);
        std::fs::create_dir_all(&dir).unwrap();
        sandhold_local::Record::new(spec).save(&dir).unwrap();
        if self.who == Who::Ordinary && is_root() {
            for path in [dir.join("record.json"), dir.clone(), self.path().join("sandboxes")] {
                std::os::unix::fs::chown(path, Some(ORDINARY), Some(ORDINARY)).unwrap();
            }
        }
        Sandbox { home: self, id, dir }
    }

    /// Starts a sandbox.
    pub(crate) fn start(&self, spec: Spec) -> Sandbox<'_> {
        let sandbox = self.create(spec);
        sandbox.run().unwrap();
        sandbox
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.path().join("sandboxes")).into_iter().flatten().flatten() {
            self.helper(&["local", "destroy", "--dir", entry.path().to_str().unwrap()]);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Sandbox<'a> {
    home: &'a Home,
    pub(crate) id: String,
    pub(crate) dir: PathBuf,
}

#[derive(Debug)]
struct Nothing;

#[async_trait]
impl ControlPlane for Nothing {
    async fn info(&self, id: &SandboxId) -> Result<SandboxInfo> {
        Ok(SandboxInfo::new(id.clone(), SandboxState::Running, "base", std::time::SystemTime::now()))
    }
}

impl Sandbox<'_> {
    /// Starts the monitor; returns what it says when it is not `ready`.
    pub(crate) fn run(&self) -> std::result::Result<(), serde_json::Value> {
        let output = self.home.helper(&["local", "run", "--dir", self.dir.to_str().unwrap()]);
        match String::from_utf8(output.stdout).unwrap().trim() {
            "ready" => Ok(()),
            text => Err(serde_json::from_str(text).expect(text)),
        }
    }

    /// Runs one of the helper's verbs on the sandbox.
    pub(crate) fn verb(&self, verb: &str) -> serde_json::Value {
        let output = self.home.helper(&["local", verb, "--dir", self.dir.to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(&text).expect(&text)
    }

    pub(crate) fn client(&self) -> EnvdClient {
        let transport = Arc::new(UnixTransport::new(self.dir.join("envd.sock")));
        EnvdClient::new(transport, EnvdConfig::new()).unwrap()
    }

    pub(crate) fn handle(&self) -> EnvdHandle {
        EnvdHandle::new(self.client(), "local", SandboxId::new(&*self.id), None, Arc::new(Nothing))
    }

    pub(crate) async fn info(&self) -> Info {
        let info =
            self.client().route("info", http::Method::GET, "/sandhold/info", None, true).await.unwrap();
        serde_json::from_value(info).unwrap()
    }

    pub(crate) async fn post(&self, route: &str, body: serde_json::Value) -> Result<serde_json::Value> {
        self.client().route("test", http::Method::POST, route, Some(&body), true).await
    }

    /// Runs a line of shell as `user`, with everything it wrote in one text.
    pub(crate) async fn shell(&self, user: &str, line: &str) -> (i32, String) {
        let output = self.exec(user, line).await;
        let text = format!("{}{}", output.stdout.text(), output.stderr.text());
        (output.exit.code.unwrap_or(-1), text)
    }

    pub(crate) async fn exec(&self, user: &str, line: &str) -> ExecOutput {
        self.handle().exec(ProcessSpec::shell(line).with_user(user)).await.unwrap()
    }

    /// Runs a line that must succeed.
    pub(crate) async fn ok(&self, user: &str, line: &str) -> String {
        let (code, text) = self.shell(user, line).await;
        assert_eq!(code, 0, "{line}: {text}");
        text
    }

    /// Returns the process ids of the monitor and of PID 1, seen from outside.
    pub(crate) fn pids(&self) -> (i32, i32) {
        let runtime = std::fs::read_to_string(self.dir.join("runtime.jsonl")).unwrap();
        let runtime: serde_json::Value = serde_json::from_str(runtime.lines().last().unwrap()).unwrap();
        let init = runtime["init"].as_i64().unwrap() as i32;
        let stat = std::fs::read_to_string(format!("/proc/{init}/stat")).unwrap();
        let parent = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap();
        (parent.parse().unwrap(), init)
    }

    /// Says which control groups of this sandbox there are.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        let name = format!("sandhold-{}", self.id);
        let mut found = Vec::new();
        find(Path::new("/sys/fs/cgroup"), &name, &mut found);
        found
    }
}

fn find(dir: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name() == name {
                found.push(entry.path());
            }
            find(&entry.path(), name, found);
        }
    }
}

/// Waits until something holds; fails after ten seconds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

pub(crate) fn is_alive(pid: i32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'),
        Err(_) => false,
    }
}
