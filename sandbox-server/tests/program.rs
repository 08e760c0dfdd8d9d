//! The program itself: what it says on its two outputs, and when it does not start.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support {
    pub(crate) const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";
}

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use http::Request;
use tempfile::TempDir;

/// A state directory as a user has it, where no base was built yet: nothing here makes a sandbox.
fn home() -> (TempDir, PathBuf) {
    let home = TempDir::new().unwrap();
    let state = home.path().join("state");
    std::fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
    (home, state)
}

fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_sandhold-server"));
    program.env_remove("SANDHOLD_API_KEY").env_remove("SANDHOLD_HOME").env("SANDHOLD_LOG", "info");
    program.stdin(Stdio::null());
    program
}

fn ended(arguments: &[&str]) -> Output {
    let (_home, state) = home();
    program().args(arguments).arg("--home").arg(state).output().unwrap()
}

#[test]
fn other_machines_are_let_in_by_a_key_only_and_by_the_names_of_the_server() {
    let refused = ended(&["--listen", "0.0.0.0:0"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(1), &b""[..]), "{said}");
    assert!(said.contains("can be reached from other machines; give an API key"), "{said}");
    for (arguments, named) in [
        (&["--listen", "here"][..], "here"),
        (&["--no-such"], "--no-such"),
        (&["--api-key", ""], "--api-key"),
    ] {
        let refused = ended(arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && said.contains(named), "{said}");
    }

    let (_home, state) = home();
    let mut child = program()
        .args(["--listen", "0.0.0.0:0", "--allow-host", "box.example", "--home"])
        .arg(&state)
        .env("SANDHOLD_API_KEY", support::KEY)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port =
        line.trim_end().strip_prefix("listening on http://0.0.0.0:").and_then(|port| port.parse().ok());
    let at =
        SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or_else(|| panic!("the first line is {line:?}"))));
    let status = |host: &str| Request::new("GET", "/health").header("Host", host).send(at).status;
    let keyless = Request::new("GET", "/v2/sandboxes").send(at).status;
    let hosts = ["127.0.0.1", "localhost", "box.example", "other.example", "0.0.0.0"].map(status);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((hosts, keyless), ([200, 200, 200, 421, 421], 401));
}

#[test]
fn each_request_is_one_line_of_the_log_without_what_is_secret() {
    let (_home, state) = home();
    let mut child = program()
        .args(["--listen=127.0.0.1:0", "--api-key", support::KEY, "--home"])
        .arg(&state)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let at = line.trim_end().strip_prefix("listening on http://").unwrap().parse().unwrap();
    let signed = "/files?path=a.txt&signature=v1_5ec7e7";
    assert_eq!(Request::new("GET", signed).send(at).status, 401);
    assert_eq!(Request::new("GET", "/v2/sandboxes?limit=1").key().send(at).status, 200);
    let inside = Request::new("GET", "/x?token=5ec7e7")
        .header("E2b-Sandbox-Id", "i0")
        .header("E2b-Sandbox-Port", "80");
    assert_eq!(inside.header("X-Access-Token", "5ec7e7").send(at).status, 502);
    // Asked to stop it does, and says nothing more on its output.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let requests: Vec<_> = log.lines().filter(|line| line.contains(" request ")).collect();
    assert_eq!((rest.as_str(), requests.len()), ("", 3), "{log}");
    for (line, facts) in requests.iter().zip([
        &["method=GET", "path=\"/files\"", "status=401", "ms="][..],
        &["method=GET", "path=\"/v2/sandboxes\"", "status=200", "ms="],
        &["method=GET", "path=\"/x\"", "sandbox=\"i0:80\"", "status=502", "ms="],
    ]) {
        assert!(facts.iter().all(|fact| line.contains(fact)), "{line}");
    }
    assert!(!log.contains("5ec7e7") && !log.contains(support::KEY), "{log}");
}
