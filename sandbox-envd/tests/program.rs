//! The program `sandhold-envd`, started and ended as others do it.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![cfg(all(feature = "client", feature = "daemon"))]

#[path = "support/handle.rs"]
mod support;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use sandhold_core::{ErrorKind, ProcessSpec, SandboxHandleExt, SandboxId};
use sandhold_envd::{EnvdClient, EnvdConfig, EnvdHandle, transport_from_url};
use support::Plane;

struct Program {
    child: Child,
    url: String,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandhold-envd"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Program {
    let mut child = command(args).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Some(url) = line.trim().strip_prefix("listening on ") else {
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        panic!("{line:?} {errors}");
    };
    let url = url.to_owned();
    Program { child, url }
}

fn handle(url: &str, config: EnvdConfig) -> EnvdHandle {
    let client = EnvdClient::new(transport_from_url(url).unwrap(), config).unwrap();
    EnvdHandle::new(client, "test", SandboxId::new("box"), None, Arc::new(Plane::Running))
}

#[tokio::test]
async fn it_runs_commands_for_whoever_has_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let (token, kept) = (dir.path().join("token"), dir.path().join("kept"));
    std::fs::write(&token, "secret\n").unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--env", "GREETING=hello there", "--access-token-file"];
    let rest = [token.to_str().unwrap(), "--retain-dir", kept.to_str().unwrap()];
    let program = run(&[&arguments[..], &rest[..]].concat());
    let output = handle(&program.url, EnvdConfig::new().with_access_token("secret"))
        .exec(ProcessSpec::argv("/bin/sh", ["-c", "printf %s \"$GREETING\""]))
        .await
        .unwrap();
    assert_eq!((output.stdout.text().as_ref(), output.exit.code), ("hello there", Some(0)));
    let refused = handle(&program.url, EnvdConfig::new()).shell("true").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated);
}

#[tokio::test]
async fn a_unix_socket_is_for_its_owner_and_goes_with_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, kept) = (dir.path().join("envd.sock"), dir.path().join("kept"));
    // What a killed program left behind is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut program = run(&["--unix", socket.to_str().unwrap(), "--retain-dir", kept.to_str().unwrap()]);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let output = handle(&program.url, EnvdConfig::new()).shell("echo $((6 * 7))").await.unwrap();
    assert_eq!(output.stdout.text(), "42\n");
    let second = command(&["--unix", socket.to_str().unwrap()]).output().unwrap();
    assert_eq!(second.status.code(), Some(2), "a live socket must not be taken over");
    let inode = std::fs::metadata(&socket).unwrap().ino();
    assert_ne!(inode, 0);
    let pid = rustix::process::Pid::from_child(&program.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(program.child.wait().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn it_does_not_open_itself_to_the_network_without_a_token() {
    let output = command(&["--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("0.0.0.0:0") && errors.contains("--access-token-file"), "{errors}");
}

#[test]
fn a_wrong_option_is_named() {
    for args in [
        &["--lisen"][..],
        &["--listen", "nowhere"],
        &["--env", "=x"],
        &["--user"],
        &["--listen", "127.0.0.1:0", "--unix", "/x"],
    ] {
        let output = command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("--"), "{args:?}");
    }
    let help = command(&["--help"]).output().unwrap();
    assert!(help.status.success() && String::from_utf8(help.stdout).unwrap().contains("--unix PATH"));
}
