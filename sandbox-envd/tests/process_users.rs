//! Commands as other users, the embedding program's hooks, and the duties of an init. Alone in its program:
//! parts of it run again as a child of their own, in namespaces or as a subreaper.
#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod process_support;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use process_support::{Rig, encode, program, sh, soon, survivors};
use sandhold_envd::{ChildSetup, ChildUser, DaemonConfig, UserMode};
use serde_json::json;

const INNER: &str = "SANDHOLD_TEST_INNER";

/// Runs one ignored test of this program under `wrapper`; false if the wrapper itself does not work here.
fn inner(wrapper: &[&str], test: &str) -> bool {
    let probe = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped: needs {}", wrapper.join(" "));
        return false;
    }
    let output = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads", "1"])
        .env(INNER, "1")
        .output()
        .unwrap();
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    true
}

fn as_user(name: &str) -> String {
    format!("Basic {}", encode(format!("{name}:").as_bytes()))
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

#[tokio::test]
async fn root_becomes_another_user_with_its_groups_and_home() {
    if !is_root() {
        return;
    }
    let rig = Rig::with(DaemonConfig::new().with_user_mode(UserMode::SetId));
    let script = "id -u; id -g; id -G; echo $HOME $USER; grep -E '^Uid|^CapEff' /proc/self/status";
    let events = rig.stream_with("Start", &[("authorization", &as_user("daemon"))], sh(script)).await;
    let text = events.output().await.text();
    let groups = Command::new("id").args(["-G", "daemon"]).output().unwrap();
    let groups = String::from_utf8(groups.stdout).unwrap();
    let expected = format!("1\n1\n{groups}/usr/sbin daemon\nUid:\t1\t1\t1\t1\nCapEff:\t0000000000000000\n");
    assert_eq!(text, expected);
}

#[tokio::test]
async fn the_terminal_belongs_to_its_user() {
    if !is_root() {
        return;
    }
    let rig = Rig::with(DaemonConfig::new().with_user_mode(UserMode::SetId));
    let mut request = program("sh", &["-c", "stat -c %u $(tty); echo opened > /dev/tty"]);
    request["pty"] = json!({ "size": { "cols": 80, "rows": 24 } });
    let output =
        rig.stream_with("Start", &[("authorization", &as_user("daemon"))], request).await.output().await;
    assert_eq!(String::from_utf8_lossy(&output.pty), "1\r\nopened\r\n");
}

#[tokio::test]
async fn a_tree_of_another_user_is_killed_with_those_that_left_the_session() {
    if !is_root() {
        return;
    }
    let rig = Rig::with(DaemonConfig::new().with_user_mode(UserMode::SetId));
    let script = "(setsid sh -c 'sleep 300 & echo $!; sleep 300 & echo $!; echo up; wait' &); exec sleep 300";
    let mut events = rig.stream_with("Start", &[("authorization", &as_user("daemon"))], sh(script)).await;
    let pid = events.next().await.unwrap()["event"]["start"]["pid"].clone();
    let text = events.until("up").await.text();
    let mut orphans: Vec<&str> = text.lines().filter(|line| *line != "up").collect();
    assert_eq!(orphans.len(), 2, "{text}");
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL", "tree": true });
    rig.call("SendSignal", kill).await.unwrap();
    orphans.retain(|orphan| {
        let stat = std::fs::read_to_string(format!("/proc/{orphan}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    });
    assert_eq!(orphans, [""; 0]);
}

#[test]
fn such_a_tree_is_found_by_a_root_that_may_not_trace() {
    if is_root() && std::env::var_os(INNER).is_none() {
        inner(
            &["setpriv", "--bounding-set", "-sys_ptrace,-perfmon,-sys_admin"],
            "a_tree_of_another_user_is_killed_with_those_that_left_the_session",
        );
    }
}

#[test]
fn one_mapped_id_shows_two_users() {
    if std::env::var_os(INNER).is_none() {
        inner(&["unshare", "-Ur"], "two_users_over_one_id");
    }
}

#[tokio::test]
#[ignore = "runs inside the namespace that one_mapped_id_shows_two_users makes"]
async fn two_users_over_one_id() {
    // Root's home on the host is closed to the root of a namespace.
    let rig = Rig::with(DaemonConfig::new().with_user_mode(UserMode::SingleId).with_default_workdir("/"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let path = file.display();
    let root = rig.run("sh", &["-c", &format!("id -u; touch {path}; stat -c %u {path}")]).await;
    assert_eq!(root.text(), "0\n0\n");
    let script = format!("id -u; id -g; stat -c '%u %g' {path}; echo x >> {path} && echo written");
    let events = rig.stream_with("Start", &[("authorization", &as_user("daemon"))], sh(&script)).await;
    assert_eq!(events.output().await.text(), "1\n1\n1 1\nwritten\n");
    // A process in the nested namespace that lost its parent and its session is still found.
    let marker = format!("NESTED_{}", std::process::id());
    let script = "(setsid sh -c 'sleep 300 & sleep 300' &); echo up; exit 0";
    let request = json!({ "process": { "cmd": "sh", "args": ["-c", script], "envs": { &marker: "1" } }, "stdin": false });
    let mut events = rig.stream_with("Start", &[("authorization", &as_user("daemon"))], request).await;
    let pid = events.next().await.unwrap()["event"]["start"]["pid"].clone();
    events.output().await;
    soon("the orphans", async {
        while survivors(&marker).len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL", "tree": true });
    rig.call("SendSignal", kill).await.unwrap();
    assert!(survivors(&marker).is_empty(), "{:?}", survivors(&marker));
}

#[test]
fn an_init_collects_every_orphan_and_loses_no_exit_of_its_own() {
    if std::env::var_os(INNER).is_none() {
        inner(&["unshare", "-Urpf", "--mount-proc"], "pid_1_among_orphans");
    }
}

#[tokio::test]
#[ignore = "runs as PID 1 of the namespace that the test of an init makes"]
async fn pid_1_among_orphans() {
    assert_eq!(std::process::id(), 1);
    let rig = Arc::new(Rig::with(DaemonConfig::new().with_init_reaps_all(true).with_default_workdir("/")));
    let runs: Vec<_> = (0..200)
        .map(|n| {
            let rig = rig.clone();
            let script = format!("(sh -c 'sleep 0.05 & :' &); exit {}", n % 100 + 1);
            tokio::spawn(async move { (n, rig.run("sh", &["-c", &script]).await) })
        })
        .collect();
    for run in runs {
        let (n, output) = soon("an exit", run).await.unwrap();
        assert_eq!(output.end["exitCode"], n % 100 + 1);
    }
    let others = || {
        let names = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.parse::<u32>().ok()).filter(|pid| *pid != 1).count()
    };
    soon("the orphans", async {
        while others() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Leaves its mark by system calls alone: the working directory is the child's own.
#[derive(Debug)]
struct Setup {
    fails_with: Option<i32>,
    panics: bool,
}

impl ChildSetup for Setup {
    fn before_identity(&self) -> io::Result<()> {
        assert!(!self.panics, "a hook that panics");
        rustix::process::setrlimit(
            rustix::process::Resource::Core,
            rustix::process::Rlimit { current: Some(0), maximum: Some(0) },
        )?;
        Ok(())
    }

    fn before_exec(&self, user: &ChildUser) -> io::Result<()> {
        if user.uid == 1 {
            rustix::process::chdir("/usr")?;
        }
        self.fails_with.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
    }
}

fn with_setup(fails_with: Option<i32>, panics: bool) -> Rig {
    let mode = if rustix::process::geteuid().is_root() { UserMode::SetId } else { UserMode::OwnUser };
    Rig::with(
        DaemonConfig::new().with_user_mode(mode).with_child_setup(Arc::new(Setup { fails_with, panics })),
    )
}

#[tokio::test]
async fn hooks_run_in_every_child_and_know_its_user() {
    let rig = with_setup(None, false);
    let script = "ulimit -c; pwd";
    let mut request = sh(script);
    request["process"]["cwd"] = json!("/");
    assert_eq!(rig.run_with(request.clone()).await.text(), "0\n/\n");
    if is_root() {
        let events = rig.stream_with("Start", &[("authorization", &as_user("daemon"))], request).await;
        assert_eq!(events.output().await.text(), "0\n/usr\n");
    }
}

#[tokio::test]
async fn a_hook_that_fails_or_panics_fails_the_start() {
    for rig in [with_setup(Some(13), false), with_setup(None, true)] {
        let (code, message) = rig.refused(&[], program("true", &[])).await;
        assert_eq!(code, "internal", "{message}");
        assert_eq!(rig.call("List", json!({})).await, Ok(json!({})));
    }
}

#[test]
fn a_daemon_that_is_not_root_knows_only_itself() {
    if !is_root() || std::env::var_os(INNER).is_some() {
        return;
    }
    // A copy that anybody may run, because the build folder may be closed to others.
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let copy = dir.path().join("test");
    // By another program: a descriptor of ours open for writing would make the copy busy in a child of a test beside.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let output = Command::new(&copy)
        .args(["--exact", "only_own_user", "--ignored", "--nocapture"])
        .env(INNER, "1")
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .uid(1)
        .gid(1)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
#[ignore = "runs as the user that a_daemon_that_is_not_root_knows_only_itself becomes"]
async fn only_own_user() {
    let rig = Rig::new();
    assert_eq!(rig.run("id", &["-un"]).await.text(), "daemon\n", "whatever the default is");
    let (code, _) = rig.refused(&[("authorization", &as_user("root"))], program("true", &[])).await;
    assert_eq!(code, "unauthenticated");
}
