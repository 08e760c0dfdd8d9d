//! The official E2B SDKs, unchanged, judge the daemon.
//!
//! The daemon runs as root of a small root directory of its own, where the users `root` and `user` exist; or
//! `SANDHOLD_SDK_ENVD_CMD` is a shell command that runs an envd with such users at the SDKs' address.
#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests: a broken rule panics")]

#[path = "sdk/harness.rs"]
mod harness;
#[path = "sdk/packages.rs"]
mod packages;

use std::fs;
use std::path::Path;
use std::process::Command;

use harness::{ADDRESS, Envd, Judge, Users};

/// Tells the SDKs from other users of the address, and a daemon of its own to each test.
fn judged(judge: impl FnOnce(&Judge)) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = match daemon(dir.path()) {
        Ok(command) => command,
        Err(missing) => return println!("skipped: needs {missing}"),
    };
    match Judge::new(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(judge_of_it) => {
            let _envd = Envd::start(&mut command);
            judge(&judge_of_it);
        }
        Err(missing) => println!("skipped: needs {missing}"),
    }
}

/// The command that runs the daemon, or what it lacks.
fn daemon(dir: &Path) -> Result<Command, &'static str> {
    if let Some(given) = std::env::var_os("SANDHOLD_SDK_ENVD_CMD") {
        let mut command = Command::new("sh");
        command.arg("-c").arg(given);
        return Ok(command);
    }
    fs::write(dir.join("passwd"), "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n")
        .unwrap();
    fs::write(dir.join("group"), "root:x:0:\nuser:x:1000:\n").unwrap();
    let mut probe = rooted(dir);
    probe.args(["/bin/sh", "-c", "chown 1000:1000 /home/user"]);
    if !probe.output().is_ok_and(|output| output.status.success()) {
        return Err("bubblewrap, and for an ordinary user uidmap with a range of ids in /etc/subuid");
    }
    let mut command = rooted(dir);
    let start = format!("chown 1000:1000 /home/user && exec /sandhold-envd --listen {ADDRESS} --user user");
    command.args(["/bin/sh", "-c", &start]);
    Ok(command)
}

/// Runs what follows as root of a root directory of its own, with the ids of two users at least.
fn rooted(dir: &Path) -> Command {
    let mut command = if rustix::process::geteuid().is_root() {
        Command::new("bwrap")
    } else {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--map-auto", "bwrap"]);
        command
    };
    command.args([
        "--cap-add",
        "ALL",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--die-with-parent",
    ]);
    command.args([
        "--ro-bind",
        "/usr",
        "/usr",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--perms",
        "1777",
        "--tmpfs",
        "/tmp",
    ]);
    for name in ["bin", "sbin", "lib", "lib64"] {
        command.args(["--symlink", &format!("usr/{name}"), &format!("/{name}")]);
    }
    for name in ["/etc", "/root", "/home/user", "/run"] {
        command.args(["--dir", name]);
    }
    for shared in ["/etc/alternatives", "/etc/ld.so.cache"] {
        command.args(["--ro-bind-try", shared, shared]);
    }
    for name in ["passwd", "group"] {
        command.arg("--ro-bind").arg(dir.join(name)).arg(format!("/etc/{name}"));
    }
    command.args([
        "--ro-bind",
        env!("CARGO_BIN_EXE_sandhold-envd"),
        "/sandhold-envd",
        "--chdir",
        "/",
        "--clearenv",
    ]);
    command.args(["--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
    command
}

#[test]
fn the_javascript_sdk_finds_everything_as_it_expects() {
    judged(|judge| judge.javascript(".", Users::Many));
}

#[test]
fn the_python_sdk_finds_everything_as_it_expects() {
    judged(|judge| judge.python(".", Users::Many));
}

#[test]
fn tokens_and_signatures_are_as_both_sdks_make_them() {
    judged(|judge| {
        judge.javascript("secured", Users::Many);
        judge.python("secured", Users::Many);
    });
}
