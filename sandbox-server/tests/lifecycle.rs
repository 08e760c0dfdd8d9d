//! When a sandbox ends, and what connect, pause, fork and their like do to it.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use std::time::{Duration, SystemTime};

use http::{Box, Request, until};
use sandhold_e2b::wire::Timestamp;
use serde_json::{Value, json};
use support::Served;

fn moment(info: &Value, field: &str) -> SystemTime {
    info[field].as_str().unwrap().parse::<Timestamp>().unwrap().0
}

/// Seconds from now until the sandbox ends, to the next ten: the machine may be busy.
fn left(sandbox: &Box) -> u64 {
    let end = moment(&sandbox.info().json(), "endAt");
    let left = end.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
    left.as_secs().div_ceil(10) * 10
}

fn post(sandbox: &Box, rest: &str, body: Value) -> u16 {
    sandbox.control("POST", rest).json(&body).send(sandbox.at).status
}

#[test]
fn a_connect_and_a_refresh_put_the_end_off_and_only_a_timeout_brings_it_nearer() {
    let server = Served::start(&[]);
    let sandbox = Box::create(server.address(), json!({ "timeout": 600 }));
    assert_eq!(left(&sandbox), 600);
    assert_eq!(post(&sandbox, "/connect", json!({ "timeout": 60 })), 200);
    assert_eq!(left(&sandbox), 600);
    assert_eq!(post(&sandbox, "/connect", json!({ "timeout": 900 })), 200);
    assert_eq!(left(&sandbox), 900);
    assert_eq!(post(&sandbox, "/refreshes", json!({ "duration": 60 })), 204);
    assert_eq!(left(&sandbox), 900);
    assert_eq!(post(&sandbox, "/refreshes", json!({ "duration": 1200 })), 204);
    assert_eq!(left(&sandbox), 1200);
    assert_eq!(post(&sandbox, "/timeout", json!({ "timeout": 100 })), 204);
    assert_eq!(left(&sandbox), 100);
    // Without a body v2 connects for five minutes.
    let path = format!("/v2/sandboxes/{}/connect", sandbox.id);
    assert_eq!(Request::new("POST", &path).key().send(sandbox.at).status, 200);
    assert_eq!(left(&sandbox), 300);
    // The longest run is a day from its start.
    assert_eq!(post(&sandbox, "/timeout", json!({ "timeout": 86400 })), 204);
    let info = sandbox.info().json();
    let day = moment(&info, "endAt").duration_since(moment(&info, "startedAt")).unwrap();
    assert_eq!(day, Duration::from_secs(86400));
}

#[test]
fn older_clients_create_for_fifteen_seconds_and_without_a_token() {
    let server = Served::start(&[]);
    let at = server.address();
    let old = |body: Value| {
        let answer = Request::new("POST", "/sandboxes").key().json(&body).send(at);
        assert_eq!(answer.status, 201, "{answer:?}");
        Box::of(at, answer.json())
    };
    let open = old(json!({ "templateID": "base" }));
    assert_eq!((left(&open), &open.created["envdAccessToken"]), (20, &json!(null)));
    assert_eq!(open.port(49983, "GET", "/envs").send(at).status, 200);
    let secure = old(json!({ "templateID": "base", "secure": true, "timeout": 300 }));
    assert_eq!(secure.port(49983, "GET", "/envs").send(at).status, 401);
    assert_eq!(secure.daemon("GET", "/envs").send(at).status, 200);
}

#[test]
fn what_a_paused_sandbox_cannot_do_is_refused_with_the_right_status() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({ "timeout": 600 }));
    let running = sandbox.info().json();
    assert_eq!(post(&sandbox, "/pause", json!({})), 204);
    let paused = sandbox.info().json();
    assert_eq!((&paused["state"], &paused["pauseMode"]), (&json!("paused"), &json!("full")));
    assert_eq!(paused["startedAt"], running["startedAt"]);
    assert!(moment(&paused, "endAt") < moment(&running, "endAt"), "the end is that of the pause");
    for (rest, body, status) in [
        ("/pause", json!({}), 409),
        ("/timeout", json!({ "timeout": 60 }), 404),
        ("/refreshes", json!({}), 404),
        ("/fork", json!({}), 409),
        ("/snapshots", json!({}), 404),
    ] {
        assert_eq!(post(&sandbox, rest, body), status, "{rest}");
    }
    assert_eq!(sandbox.control("PUT", "/network").json(&json!({})).send(at).status, 404);
    assert_eq!(post(&sandbox, "/resume", json!({ "timeout": 60 })), 201);
    assert_eq!(post(&sandbox, "/resume", json!({ "timeout": 60 })), 409);
    let resumed = sandbox.info().json();
    assert!(moment(&resumed, "startedAt") > moment(&running, "startedAt"), "a resume begins a run");
    assert_eq!(left(&sandbox), 60);
    // A paused one is killed as a running one is.
    assert_eq!(post(&sandbox, "/pause", json!({})), 204);
    assert_eq!(sandbox.control("DELETE", "").send(at).status, 204);
    assert_eq!(sandbox.info().status, 404);
}

#[test]
fn a_pause_of_the_files_alone_keeps_them_and_no_process() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({ "timeout": 600, "envVars": { "GREETING": "hi" } }));
    let _running = sandbox.start("echo $GREETING > greeting; sleep 1000");
    until("the process runs", || sandbox.read("greeting").body == b"hi\n");
    let boot = sandbox.read("/proc/sys/kernel/random/boot_id").body;
    assert_eq!(post(&sandbox, "/pause", json!({ "memory": false })), 204);
    let paused = sandbox.info().json();
    assert_eq!((&paused["state"], &paused["pauseMode"]), (&json!("paused"), &json!("filesystem")));
    let connected = sandbox.control("POST", "/connect").json(&json!({ "timeout": 60 })).send(at);
    assert_eq!((connected.status, connected.json()), (201, sandbox.created.clone()));
    assert_eq!(sandbox.read("greeting").body, b"hi\n");
    assert_ne!(sandbox.read("/proc/sys/kernel/random/boot_id").body, boot);
    let processes = sandbox
        .daemon("POST", "/process.Process/List")
        .header("Content-Type", "application/json")
        .body("{}")
        .send(at);
    assert_eq!(processes.json(), json!({}));
}

#[test]
fn a_fork_has_the_files_and_facts_of_its_source_and_a_life_of_its_own() {
    let server = Served::start(&[]);
    let at = server.address();
    let source = Box::create(at, json!({ "timeout": 600, "metadata": { "a": "b" }, "autoPause": true }));
    source.write("a.txt", "one");
    let answer = source.control("POST", "/fork").json(&json!({ "count": 2, "timeout": 60 })).send(at);
    assert_eq!(answer.status, 201, "{answer:?}");
    let made = answer.json();
    let forks: Vec<_> =
        made.as_array().unwrap().iter().map(|one| Box::of(at, one["sandbox"].clone())).collect();
    assert_eq!(forks.len(), 2);
    for fork in &forks {
        assert!(fork.id != source.id && fork.token != source.token);
        assert_eq!(fork.read("a.txt").text(), "one");
        let info = fork.info().json();
        assert_eq!(
            (&info["metadata"], &info["lifecycle"]),
            (&json!({ "a": "b" }), &source.info().json()["lifecycle"])
        );
        assert_eq!(left(fork), 60);
    }
    forks[0].write("a.txt", "two");
    assert_eq!((source.read("a.txt").text(), forks[1].read("a.txt").text()), ("one", "one"));
    assert_eq!(source.control("DELETE", "").send(at).status, 204);
    assert_eq!(forks[0].read("a.txt").text(), "two");
    assert_eq!(left(&forks[1]), 60);
}
