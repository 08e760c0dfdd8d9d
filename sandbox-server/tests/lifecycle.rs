//! When a sandbox ends, and what connect, pause, fork and their like do to it.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use http::{Answer, Box, Request, until};
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
    // Facts that no measurement has told yet are those of the machine.
    for field in ["cpuCount", "memoryMB", "diskSizeMB"] {
        assert_ne!(sandbox.info().json()[field], 0, "{field}");
    }
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

/// Sends both at once and returns their answers.
fn together(sandbox: &Box, one: (&str, Value), other: (&str, Value)) -> (Answer, Answer) {
    let send = |(rest, body): (&str, Value)| sandbox.control("POST", rest).json(&body).send(sandbox.at);
    thread::scope(|scope| {
        let other = scope.spawn(|| send(other));
        (send(one), other.join().unwrap())
    })
}

#[test]
fn looks_are_in_the_way_of_no_change() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({ "timeout": 600 }));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let look = |path: &str| {
            while !done.load(Ordering::Relaxed) {
                let answer = Request::new("GET", path).key().send(at);
                assert_eq!(answer.status, 200, "{path}: {answer:?}");
            }
        };
        let one = format!("/sandboxes/{}", sandbox.id);
        let lookers = [one.clone(), one, "/v2/sandboxes".to_owned()];
        let lookers = lookers.map(|path| scope.spawn(move || look(&path)));
        let changes = thread::scope(|changing| {
            let changing = changing.spawn(|| {
                for round in 0..20 {
                    for (rest, body, status) in [
                        ("/timeout", json!({ "timeout": 600 }), 204),
                        ("/pause", json!({}), 204),
                        ("/connect", json!({ "timeout": 600 }), 201),
                        ("/connect", json!({ "timeout": 600 }), 200),
                    ] {
                        let answer = sandbox.control("POST", rest).json(&body).send(at);
                        assert_eq!(answer.status, status, "{rest} in round {round}: {answer:?}");
                    }
                    let deny = json!({ "denyOut": ["0.0.0.0/0"] });
                    let network = sandbox.control("PUT", "/network").json(&deny).send(at);
                    assert_ne!(network.status, 409, "{network:?}");
                    if round % 5 == 0 {
                        assert_eq!(post(&sandbox, "/snapshots", json!({})), 201);
                        let fork = sandbox.control("POST", "/fork").json(&json!({ "timeout": 60 })).send(at);
                        assert_eq!(fork.status, 201, "{fork:?}");
                        drop(Box::of(at, fork.json()[0]["sandbox"].clone()));
                    }
                }
            });
            changing.join()
        });
        done.store(true, Ordering::Relaxed);
        for looker in lookers {
            looker.join().unwrap();
        }
        changes.unwrap();
    });
}

#[test]
fn a_timeout_or_a_connect_beside_a_pause_is_not_in_its_way() {
    let server = Served::start(&[]);
    let sandbox = Box::create(server.address(), json!({ "timeout": 600 }));
    let asked = || json!({ "timeout": 600 });
    for round in 0..20 {
        let (timeout, paused) = together(&sandbox, ("/timeout", asked()), ("/pause", json!({})));
        assert_eq!(paused.status, 204, "{round}: {paused:?}");
        // Before the pause, after it, or in the midst of it.
        assert!([204, 404, 409].contains(&timeout.status), "{round}: {timeout:?}");
        assert_eq!(post(&sandbox, "/connect", asked()), 201);
        let (connected, paused) = together(&sandbox, ("/connect", asked()), ("/pause", json!({})));
        assert_eq!(paused.status, 204, "{round}: {paused:?}");
        assert!([200, 201].contains(&connected.status), "{round}: {connected:?}");
        let (one, other) = together(&sandbox, ("/connect", asked()), ("/timeout", asked()));
        assert!([200, 201].contains(&one.status), "{round}: {one:?}");
        assert!([204, 404, 409].contains(&other.status), "{round}: {other:?}");
        let (one, other) = together(&sandbox, ("/timeout", asked()), ("/timeout", asked()));
        assert_eq!((one.status, other.status), (204, 204), "{round}");
    }
}

/// Makes a sandbox that ends in a second and sends a request so many milliseconds from its end.
fn at_the_end(server: &Served, auto_pause: bool, aim: i64, send: impl Fn(&Box) -> Answer) -> (Box, Answer) {
    let asked = json!({ "timeout": 1, "autoPause": auto_pause });
    let sandbox = Box::create(server.address(), asked);
    let end = moment(&sandbox.info().json(), "endAt");
    let distance = Duration::from_millis(aim.unsigned_abs());
    let aim_at = if aim < 0 { end - distance } else { end + distance };
    thread::sleep(aim_at.duration_since(SystemTime::now()).unwrap_or_default());
    let answer = send(&sandbox);
    (sandbox, answer)
}

/// Does so for many sandboxes, some at once, from well before the end until after it.
fn around_the_end(
    server: &Served,
    auto_pause: bool,
    send: impl Fn(usize, &Box) -> Answer + Sync,
    rule: impl Fn(usize, &Box, &Answer) + Sync,
) {
    let (send, rule) = (&send, &rule);
    thread::scope(|scope| {
        for lane in 0..8_usize {
            scope.spawn(move || {
                for round in 0..9_usize {
                    let number = round * 8 + lane;
                    let aim = i64::try_from(number * 7 % 36).unwrap() - 12;
                    let (sandbox, answer) =
                        at_the_end(server, auto_pause, aim, |sandbox| send(number, sandbox));
                    rule(number, &sandbox, &answer);
                }
            });
        }
    });
}

#[test]
fn a_connect_at_the_moment_of_the_pause_gets_the_sandbox_back() {
    let server = Served::start(&[]);
    let connect = |number: usize, sandbox: &Box| {
        let (rest, body) = if number.is_multiple_of(3) {
            ("/timeout", json!({ "timeout": 300 }))
        } else {
            ("/connect", json!({ "timeout": 300 }))
        };
        sandbox.control("POST", rest).json(&body).send(sandbox.at)
    };
    around_the_end(&server, true, connect, |number, sandbox, answer| {
        let asked: &[u16] = if number.is_multiple_of(3) { &[204, 404] } else { &[200, 201] };
        assert!(asked.contains(&answer.status), "{answer:?}");
        if answer.status == 404 {
            assert_eq!(answer.json()["message"], format!("Sandbox \"{}\" not found", sandbox.id));
            return;
        }
        assert_eq!((sandbox.info().json()["state"].as_str(), left(sandbox)), (Some("running"), 300));
        sandbox.write("there.txt", "yes");
        assert_eq!(sandbox.read("there.txt").text(), "yes");
    });
}

#[test]
fn a_refresh_at_the_moment_of_the_pause_keeps_the_sandbox_running_or_wakes_nothing() {
    let server = Served::start(&[]);
    let refresh = |_: usize, sandbox: &Box| {
        sandbox.control("POST", "/refreshes").json(&json!({ "duration": 300 })).send(sandbox.at)
    };
    around_the_end(&server, true, refresh, |_, sandbox, answer| {
        let state = sandbox.info().json()["state"].as_str().unwrap().to_owned();
        match answer.status {
            204 => assert_eq!((state.as_str(), left(sandbox)), ("running", 300)),
            _ => assert_eq!((answer.status, state.as_str()), (404, "paused"), "{answer:?}"),
        }
    });
}

#[test]
fn whatever_is_asked_at_the_moment_of_the_end_finds_the_sandbox_or_finds_it_gone() {
    let server = Served::start(&[]);
    let calls = [
        ("POST", "/connect", json!({ "timeout": 300 })),
        ("POST", "/timeout", json!({ "timeout": 300 })),
        ("POST", "/refreshes", json!({ "duration": 300 })),
        ("POST", "/pause", json!({})),
        ("POST", "/snapshots", json!({})),
        ("POST", "/fork", json!({ "timeout": 60 })),
        ("GET", "", json!({})),
        ("GET", "/logs", json!({})),
        ("DELETE", "", json!({})),
    ];
    let call = |number: usize, sandbox: &Box| {
        // Every call comes at several distances from the end.
        let (method, rest, body) = &calls[(number + number / 36) % calls.len()];
        sandbox.control(method, rest).json(body).send(sandbox.at)
    };
    around_the_end(&server, false, call, |number, sandbox, answer| {
        let call = &calls[(number + number / 36) % calls.len()];
        if answer.status >= 300 {
            let gone = format!("Sandbox \"{}\" not found", sandbox.id);
            assert_eq!((answer.status, answer.json()["message"].as_str()), (404, Some(&*gone)), "{call:?}");
        } else if call.1 == "/fork" {
            let fork = &answer.json()[0]["sandbox"];
            assert!(fork.is_object(), "{answer:?}");
            drop(Box::of(sandbox.at, fork.clone()));
        }
    });
}
