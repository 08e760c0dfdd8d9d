//! What a template starts in its sandboxes: once in each memory, and before anybody is told that they are there.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/building.rs"]
mod building;
#[path = "support/http.rs"]
mod http;
mod support;

use std::fs;
use std::net::SocketAddr;

use building::{built, sandbox};
use http::{Box, Request, read, until};
use serde_json::{Value, json};
use support::Served;

#[test]
fn what_a_template_starts_runs_again_when_the_memory_of_its_sandbox_was_lost() {
    let server = Served::start(&[]);
    let at = server.address();
    let body = json!({
        "fromTemplate": "base", "steps": [], "readyCmd": "test -s /home/user/runs",
        "startCmd": "echo run >> /home/user/runs; exec sleep 1000",
    });
    let (_, end) = built(at, "serving", &body);
    assert_eq!(end["status"], "ready", "{end}");
    let sandbox = sandbox(at, "serving");
    let runs = || sandbox.read("/home/user/runs").text().to_owned();
    assert_eq!(runs(), "run\n");
    let connect = || {
        let connected = sandbox.control("POST", "/connect").json(&json!({ "timeout": 60 })).send(at);
        assert_eq!(connected.status, 201, "{connected:?}");
    };
    assert_eq!(sandbox.control("POST", "/pause").send(at).status, 204);
    connect();
    assert_eq!(runs(), "run\n", "memory was kept, and so is what runs");
    assert_eq!(sandbox.control("POST", "/pause").json(&json!({ "memory": false })).send(at).status, 204);
    connect();
    until("it runs again", || runs() == "run\nrun\n");
}

/// Builds a template that is ready at once, except in a sandbox with the variable `GATED`: there only with its gate.
fn gated(at: SocketAddr, name: &str) {
    let body = json!({
        "fromTemplate": "base", "steps": [], "readyCmd": "test -z \"$GATED\" || test -e /home/user/gate",
        "startCmd": "echo run >> /home/user/runs; exec sleep 1000",
    });
    let (_, end) = built(at, name, &body);
    assert_eq!(end["status"], "ready", "{end}");
}

/// Waits for the only sandbox there is, which need not be ready.
fn only_sandbox(at: SocketAddr) -> Box {
    let mut listed = Value::Null;
    until("the sandbox is there", || {
        listed = Request::new("GET", "/v2/sandboxes").key().send(at).json();
        listed[0]["sandboxID"].is_string()
    });
    let info = Request::new("GET", &format!("/sandboxes/{}", listed[0]["sandboxID"].as_str().unwrap()));
    Box::of(at, info.key().send(at).json())
}

/// Makes sure that a request has no answer yet. A server that answers too early may be late, but a right one never fails.
fn is_not_answered(stream: &std::net::TcpStream) {
    stream.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
    let kind = stream.peek(&mut [0]).map_err(|error| error.kind());
    assert_eq!(
        kind,
        Err(std::io::ErrorKind::WouldBlock),
        "answered before what the template starts was ready"
    );
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
}

#[test]
fn a_start_that_a_killed_server_left_is_finished_before_the_same_create_answers() {
    let mut server = Served::start(&[]);
    gated(server.address(), "gated");
    let asked = json!({ "templateID": "gated", "timeout": 600, "envVars": { "GATED": "yes" } });
    let create = |at| {
        let request = Request::new("POST", "/v2/sandboxes").key().header("Idempotency-Key", "once");
        request.header("Connection", "close").json(&asked).open(at)
    };
    let lost = create(server.address());
    only_sandbox(server.address());
    server.crash_and_restart();
    drop(lost);
    let at = server.address();
    let mut again = create(at);
    is_not_answered(&again);
    let sandbox = only_sandbox(at);
    sandbox.write("gate", "");
    let answer = read(&mut again);
    assert_eq!((answer.status, answer.json()["sandboxID"].as_str()), (201, Some(sandbox.id.as_str())));
    assert!(sandbox.read("runs").text().starts_with("run\n"));
}

#[test]
fn a_start_that_a_killed_server_could_not_note_is_not_begun_twice() {
    let mut server = Served::start(&[]);
    gated(server.address(), "gated");
    let asked = json!({ "templateID": "gated", "timeout": 600, "envVars": { "GATED": "yes" } });
    let create = |at| {
        let request = Request::new("POST", "/v2/sandboxes").key().header("Idempotency-Key", "once");
        request.header("Connection", "close").json(&asked).open(at)
    };
    let lost = create(server.address());
    let sandbox = only_sandbox(server.address());
    until("it runs", || sandbox.read("runs").status == 200);
    let note = server.state().join("server/sandboxes").join(&sandbox.id);
    until("the start is noted", || note.exists());
    server.crash_and_restart_after(|| fs::remove_file(&note).unwrap());
    drop(lost);
    let mut again = create(server.address());
    let sandbox = only_sandbox(server.address());
    sandbox.write("gate", "");
    assert_eq!(read(&mut again).status, 201);
    assert_eq!(sandbox.read("runs").text(), "run\n");
}

#[test]
fn every_connect_waits_for_what_is_started_anew() {
    let server = Served::start(&[]);
    let at = server.address();
    gated(at, "gated");
    let asked = json!({ "templateID": "gated", "timeout": 600, "envVars": { "GATED": "yes" } });
    let mut create =
        Request::new("POST", "/v2/sandboxes").key().header("Connection", "close").json(&asked).open(at);
    let sandbox = only_sandbox(at);
    sandbox.write("gate", "");
    assert_eq!(read(&mut create).status, 201);
    let _removing = sandbox.start("rm gate");
    until("the gate is gone", || sandbox.read("gate").status == 404);
    assert_eq!(sandbox.control("POST", "/pause").json(&json!({ "memory": false })).send(at).status, 204);
    let connect = || {
        let connect = sandbox.control("POST", "/connect").header("Connection", "close");
        connect.json(&json!({ "timeout": 600 })).open(at)
    };
    let mut first = connect();
    until("it runs", || sandbox.info().json()["state"] == "running");
    let mut second = connect();
    is_not_answered(&first);
    is_not_answered(&second);
    sandbox.write("gate", "");
    assert_eq!((read(&mut first).status, read(&mut second).status), (201, 200));
    assert_eq!(sandbox.read("runs").text(), "run\nrun\n");
}

#[test]
fn a_fork_runs_what_its_template_starts() {
    let server = Served::start(&[]);
    let at = server.address();
    gated(at, "gated");
    let sandbox = sandbox(at, "gated");
    until("it runs", || sandbox.read("runs").status == 200);
    let forked = sandbox.control("POST", "/fork").json(&json!({ "timeout": 60 })).send(at);
    assert_eq!(forked.status, 201, "{forked:?}");
    let fork = Box::of(at, forked.json()[0]["sandbox"].clone());
    until("it runs in the fork", || fork.read("runs").text() == "run\nrun\n");
    assert_eq!(sandbox.read("runs").text(), "run\n");
}

#[test]
fn the_time_of_a_sandbox_counts_from_the_end_of_its_start() {
    let server = Served::start(&[]);
    let at = server.address();
    let body = json!({ "fromTemplate": "base", "steps": [], "readyCmd": "sleep 3" });
    assert_eq!(built(at, "slow", &body).1["status"], "ready");
    let asked = json!({ "templateID": "slow", "timeout": 1, "autoPause": true });
    let answer = Request::new("POST", "/v2/sandboxes").key().json(&asked).send(at);
    assert_eq!(answer.status, 201, "{answer:?}");
    let sandbox = Box::of(at, answer.json());
    until("it is paused", || sandbox.info().json()["state"] == "paused");
    let info = sandbox.info().json();
    let moment =
        |field: &str| info[field].as_str().unwrap().parse::<sandhold_e2b::wire::Timestamp>().unwrap().0;
    let ran = moment("endAt").duration_since(moment("startedAt")).unwrap().as_secs();
    assert!((4..50).contains(&ran), "it ran for {ran} s");
}

#[test]
fn a_create_whose_sandbox_is_killed_during_the_start_is_told_so() {
    let server = Served::start(&[]);
    let at = server.address();
    gated(at, "gated");
    let asked = json!({ "templateID": "gated", "timeout": 600, "envVars": { "GATED": "yes" } });
    let mut create =
        Request::new("POST", "/v2/sandboxes").key().header("Connection", "close").json(&asked).open(at);
    let sandbox = only_sandbox(at);
    assert_eq!(sandbox.control("DELETE", "").send(at).status, 204);
    let answer = read(&mut create);
    assert_eq!((answer.status, &answer.json()["code"]), (409, &json!(409)), "{answer:?}");
}
