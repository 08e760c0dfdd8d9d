//! What a server that was killed leaves to the next one: everything.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use http::{Box, Request, until};
use serde_json::{Value, json};
use support::Served;

/// A view of a sandbox without what time changes.
fn facts(sandbox: &Box) -> Value {
    let mut info = sandbox.info().json();
    let end = info["endAt"].as_str().unwrap().to_owned();
    // The clock of the provider's lease has another origin: to the second it is the same.
    info["endAt"] = end[..16].into();
    info.as_object_mut().unwrap().remove("diskSizeMB");
    info
}

fn moved(mut sandbox: Box, server: &Served) -> Box {
    sandbox.at = server.address();
    sandbox
}

#[test]
fn a_killed_server_loses_no_sandbox_and_no_fact_about_one() {
    let mut server = Served::start(&[]);
    let at = server.address();
    let running = Box::create(
        at,
        json!({
            "timeout": 3600, "metadata": { "a b": "c&d=é" }, "envVars": { "GREETING": "hi" },
            "autoPause": true, "autoResume": { "enabled": true }, "allow_internet_access": false,
            "network": { "allowPublicTraffic": false, "maskRequestHost": "me:${PORT}" },
        }),
    );
    running.write("kept.txt", "kept");
    let network = running.control("PUT", "/network").json(&json!({ "denyOut": ["10.0.0.0/8"] })).send(at);
    assert_eq!(network.status, 204);
    let paused = Box::create(at, json!({ "timeout": 600 }));
    paused.write("kept.txt", "asleep");
    assert_eq!(paused.control("POST", "/pause").send(at).status, 204);
    let asked = json!({ "templateID": "base", "timeout": 600 });
    let ask = |at| {
        Request::new("POST", "/v2/sandboxes").key().header("Idempotency-Key", "again").json(&asked).send(at)
    };
    let keyed = ask(at).text().to_owned();
    let before = (facts(&running), paused.info().json());

    server.crash_and_restart();

    let (running, paused) = (moved(running, &server), moved(paused, &server));
    assert_eq!((facts(&running), paused.info().json()), before);
    assert_eq!(running.health(), 204);
    assert_eq!(running.read("kept.txt").text(), "kept");
    assert_eq!(paused.health(), 502);
    assert_eq!(ask(server.address()).text(), keyed);
    let connected = paused.control("POST", "/connect").json(&json!({ "timeout": 60 })).send(paused.at);
    assert_eq!((connected.status, connected.json()), (201, paused.created.clone()));
    assert_eq!(paused.read("kept.txt").text(), "asleep");
    let again = running.control("POST", "/connect").json(&json!({ "timeout": 60 })).send(running.at);
    assert_eq!((again.status, again.json()), (200, running.created.clone()));
    let listed = Request::new("GET", "/v2/sandboxes").key().send(server.address());
    assert_eq!(listed.json().as_array().unwrap().len(), 3);
}

#[test]
fn a_sandbox_ends_in_time_also_when_no_server_runs() {
    let mut server = Served::start(&[]);
    let at = server.address();
    let killed = Box::create(at, json!({ "timeout": 1 }));
    let paused = Box::create(at, json!({ "timeout": 1, "autoPause": true }));
    server.crash_and_restart();
    let (killed, paused) = (moved(killed, &server), moved(paused, &server));
    until("the one is gone", || killed.info().status == 404);
    until("the other is paused", || paused.info().json()["state"] == "paused");
    assert_eq!((killed.health(), paused.health()), (502, 502));
    let connected = paused.control("POST", "/connect").json(&json!({ "timeout": 60 })).send(paused.at);
    assert_eq!(connected.status, 201);
    assert_eq!(paused.health(), 204);
}

#[test]
fn three_rounds_of_pause_and_resume_keep_id_token_files_and_processes() {
    let mut server = Served::start(&[]);
    let mut sandbox = Box::create(server.address(), json!({ "timeout": 600 }));
    let _running = sandbox.start("echo $$ > pid; while :; do echo x >> ticks; sleep 0.05; done");
    until("the process runs", || sandbox.read("ticks").status == 200);
    let pid = sandbox.read("pid").text().to_owned();
    for round in 0..3 {
        assert_eq!(sandbox.control("POST", "/pause").send(sandbox.at).status, 204);
        assert_eq!(sandbox.control("POST", "/pause").send(sandbox.at).status, 409);
        if round == 1 {
            server.crash_and_restart();
            sandbox = moved(sandbox, &server);
        }
        let connected = sandbox.control("POST", "/connect").json(&json!({ "timeout": 600 })).send(sandbox.at);
        assert_eq!((connected.status, connected.json()), (201, sandbox.created.clone()));
        assert_eq!(sandbox.read("pid").text(), pid);
        let ticks = sandbox.read("ticks").body.len();
        until("the process goes on", || sandbox.read("ticks").body.len() > ticks);
    }
}

#[test]
fn a_second_server_over_the_same_home_is_refused_and_the_first_one_goes_on() {
    let server = Served::start(&[]);
    let sandbox = Box::create(server.address(), json!({ "timeout": 600 }));
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_sandhold-server"))
        .args(["--listen", "127.0.0.1:0", "--home"])
        .arg(server.state())
        .output()
        .unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(said.contains("another server uses") && said.contains("home"), "{said}");
    assert_eq!(sandbox.health(), 204);
}

#[test]
fn a_server_that_is_told_to_stop_ends_by_itself_and_leaves_sandboxes_alone() {
    let mut server = Served::start(&[]);
    let sandbox = Box::create(server.address(), json!({ "timeout": 600 }));
    sandbox.write("kept.txt", "kept");
    server.stop_and_restart();
    let sandbox = moved(sandbox, &server);
    assert_eq!(sandbox.read("kept.txt").text(), "kept");
}

#[test]
fn a_key_whose_sandbox_ended_before_that_was_noted_makes_no_other_one() {
    let mut server = Served::start(&[]);
    let create = |at| {
        let request = Request::new("POST", "/v2/sandboxes").key().header("Idempotency-Key", "brief");
        request.json(&json!({ "templateID": "base", "timeout": 1 })).send(at)
    };
    let made = create(server.address());
    assert_eq!(made.status, 201, "{made:?}");
    let sandbox = Box::of(server.address(), made.json());
    // As if the server had died between the sandbox and the note.
    std::fs::remove_file(server.state().join("server/spent").join(&sandbox.id)).unwrap();
    server.crash_and_restart();
    let sandbox = moved(sandbox, &server);
    until("it is gone", || sandbox.info().status == 404);
    let mut late = made;
    until("its end is over", || {
        late = create(server.address());
        late.json()["error_code"] != "idempotency_in_progress"
    });
    assert_eq!(
        (late.status, &late.json()["error_code"]),
        (409, &json!("idempotency_sandbox_ended")),
        "{late:?}"
    );
}

#[test]
fn a_document_that_is_damaged_takes_nothing_else_away() {
    let mut server = Served::start(&[]);
    let post = |at, path: &str, body: Value| {
        let answer = Request::new("POST", path).key().header("Idempotency-Key", "one").json(&body).send(at);
        assert!(answer.status < 300, "{path} {answer:?}");
        answer.json()
    };
    let create = |at| post(at, "/v2/sandboxes", json!({ "templateID": "base", "timeout": 600 }));
    let at = server.address();
    let sandbox = Box::of(at, create(at));
    let volume = post(at, "/volumes", json!({ "name": "data" }))["volumeID"].as_str().unwrap().to_owned();
    let file = server.state().join("server/volume-files").join(volume).join("data/file");
    std::fs::write(&file, "kept").unwrap();
    post(at, "/secrets", json!({ "name": "s", "value": "v" }));
    post(at, "/v3/templates", json!({ "name": "t" }));
    post(at, &format!("/sandboxes/{}/snapshots", sandbox.id), json!({ "name": "snap" }));
    let mut damaged = 0;
    for directory in ["volumes", "secrets", "templates", "snapshots", "spent"] {
        for document in std::fs::read_dir(server.state().join("server").join(directory)).unwrap() {
            std::fs::write(document.unwrap().path(), "{").unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 5);

    server.crash_and_restart();

    let at = server.address();
    let copy = create(at);
    assert_eq!(copy["sandboxID"], sandbox.id.as_str());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let sandbox = moved(sandbox, &server);
    assert_eq!(sandbox.control("DELETE", "").send(at).status, 204);
    let again = Request::new("POST", "/v2/sandboxes").key().header("Idempotency-Key", "one");
    let again = again.json(&json!({ "templateID": "base", "timeout": 600 })).send(at);
    assert_eq!(again.status, 409, "{again:?}");
}
