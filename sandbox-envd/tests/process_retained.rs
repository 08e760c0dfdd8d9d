//! Output and exit that outlive whoever started the process, and the daemon itself.
#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod process_support;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use process_support::{Events, Rig, by_pid, encode, program, sh, soon};
use sandhold_envd::DaemonConfig;
use serde_json::{Value, json};

fn retained(mut request: Value, tag: &str, max_bytes: u64) -> Value {
    request["tag"] = json!(tag);
    request["retain"] = json!({ "maxBytes": max_bytes.to_string() });
    request
}

fn from(tag: &str, stdout: u64) -> Value {
    json!({ "process": { "tag": tag }, "replay": { "stdout": stdout.to_string() } })
}

/// Reads stdout to the end, checking that every chunk begins where the one before ended.
async fn contiguous(mut events: Events, mut at: u64) -> (Vec<u8>, u64, Value) {
    let number = |value: &Value| value.as_str().map_or(0, |text| text.parse::<u64>().unwrap());
    let (mut bytes, mut dropped) = (Vec::new(), 0);
    while let Ok(message) = events.next().await {
        let event = &message["event"];
        if let Some(text) = event["data"]["stdout"].as_str() {
            dropped += number(&event["data"]["dropped"]);
            at += number(&event["data"]["dropped"]);
            assert_eq!(number(&event["data"]["offset"]), at, "{message}");
            let chunk = STANDARD.decode(text).unwrap();
            at += chunk.len() as u64;
            bytes.extend_from_slice(&chunk);
        }
        if let Some(end) = event.get("end") {
            return (bytes, dropped, end.clone());
        }
    }
    panic!("no end")
}

#[tokio::test]
async fn a_reader_that_comes_later_gets_everything_from_its_offset_and_the_exit() {
    let rig = Rig::new();
    drop(rig.started(retained(sh("seq 1 20000; echo err >&2; exit 3"), "job", 0)).await);
    let expected: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    let (bytes, dropped, end) = contiguous(rig.connect(from("job", 0)).await, 0).await;
    assert!(bytes == expected.as_bytes());
    assert_eq!((dropped, &end["exitCode"]), (0, &json!(3)));
    let again = contiguous(rig.connect(from("job", 1000)).await, 1000).await;
    assert!(again.0 == expected.as_bytes()[1000..]);
    let past = contiguous(rig.connect(from("job", expected.len() as u64)).await, expected.len() as u64).await;
    assert_eq!((past.0.len(), past.1), (0, 0));
}

#[tokio::test]
async fn replay_and_live_output_meet_without_gap_or_duplicate() {
    let rig = Rig::new();
    let script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done";
    let (_, events) = rig.started(retained(sh(script), "job", 0)).await;
    let first = tokio::spawn(contiguous(events, 0));
    let expected: String = (0..3000).map(|n| format!("line {n}\n")).collect();
    let mut readers = Vec::new();
    for _ in 0..30 {
        readers.push(tokio::spawn(contiguous(rig.connect(from("job", 0)).await, 0)));
    }
    for reader in readers {
        let (bytes, ..) = soon("a reader", reader).await.unwrap();
        assert!(bytes == expected.as_bytes());
    }
    assert!(first.await.unwrap().0 == expected.as_bytes());
}

#[tokio::test]
async fn the_tail_is_kept_and_what_was_dropped_is_counted() {
    let rig = Rig::new();
    drop(rig.started(retained(sh("seq 1 200000"), "job", 10_000)).await);
    let all: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    rig.connect(json!({ "process": { "tag": "job" } })).await.output().await;
    let (bytes, dropped, _) = contiguous(rig.connect(from("job", 5)).await, 5).await;
    assert_eq!((bytes.len(), dropped), (10_000, all.len() as u64 - 10_000 - 5));
    assert!(bytes == all.as_bytes()[all.len() - 10_000..]);
}

#[tokio::test]
async fn ended_processes_are_listed_on_demand_until_they_are_released() {
    let rig = Rig::new();
    let (pid, events) = rig.started(retained(sh("printf 12345; exit 2"), "job", 0)).await;
    events.output().await;
    assert_eq!(rig.call("List", json!({})).await, Ok(json!({})));
    let listed = rig.call("List", json!({ "includeEnded": true })).await.unwrap();
    let process = &listed["processes"][0];
    assert_eq!(
        (&process["pid"], &process["exit"]["exitCode"], &process["stdoutEnd"]),
        (&json!(pid), &json!(2), &json!("5"))
    );
    assert_eq!(
        rig.post("/sandhold/processes/release", json!({ "tag": "job" })).await,
        StatusCode::NO_CONTENT
    );
    assert_eq!(rig.post("/sandhold/processes/release", json!({ "tag": "job" })).await, StatusCode::NOT_FOUND);
    assert_eq!(rig.post("/sandhold/processes/release", json!({ "name": 1 })).await, StatusCode::BAD_REQUEST);
    assert_eq!(rig.call("List", json!({ "includeEnded": true })).await, Ok(json!({})));
    assert_eq!(rig.connect(from("job", 0)).await.next().await.unwrap_err().unwrap().0, "not_found");
    assert_eq!(std::fs::read_dir(rig.dir.path().join("retained")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_an_earlier_daemon_retained_is_still_read_by_tag() {
    let first = Rig::new();
    let (pid, events) = first.started(retained(sh("echo kept; exit 4"), "done", 0)).await;
    events.output().await;
    let (cut_pid, mut events) = first.started(retained(sh("echo half; exec sleep 300"), "cut", 0)).await;
    events.until("half").await;
    let copy = tempfile::tempdir().unwrap();
    let status = std::process::Command::new("cp")
        .arg("-r")
        .arg(first.dir.path().join("retained"))
        .arg(copy.path())
        .status();
    assert!(status.unwrap().success());
    let second = Rig::at(copy, DaemonConfig::new());
    let (bytes, _, end) = contiguous(second.connect(from("done", 0)).await, 0).await;
    assert_eq!((bytes.as_slice(), &end["exitCode"]), (&b"kept\n"[..], &json!(4)));
    let output = second.connect(from("cut", 0)).await.output().await;
    assert_eq!((output.text().as_str(), &output.end), ("half\n", &Value::Null));
    assert_eq!(output.error.map(|(code, _)| code).as_deref(), Some("data_loss"), "never a made-up exit");
    for pid in [pid, cut_pid] {
        let by_number = second.connect(by_pid(pid)).await.next().await;
        assert_eq!(by_number.unwrap_err().unwrap().0, "not_found", "a number may be somebody else's by now");
    }
    let kill = json!({ "process": { "tag": "cut" }, "signal": "SIGNAL_SIGKILL", "tree": true });
    assert_eq!(second.call("SendSignal", kill.clone()).await.unwrap_err().0, "not_found");
    first.call("SendSignal", kill).await.unwrap();
}

#[tokio::test]
async fn output_of_a_grandchild_after_the_exit_goes_to_the_retained_log() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    let script =
        format!("(while [ ! -e {path}/go ]; do sleep 0.02; done; echo late; touch {path}/done) & echo hi");
    let (_, events) = rig.started(retained(sh(&script), "job", 0)).await;
    assert_eq!(events.output().await.text(), "hi\n");
    std::fs::write(dir.path().join("go"), "").unwrap();
    soon("the late line", async {
        while rig.connect(from("job", 0)).await.output().await.text() != "hi\nlate\n" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn retained_processes_hold_no_descriptor_once_they_ended() {
    let rig = Rig::new();
    for n in 0..20 {
        rig.run_with(retained(sh("echo out; echo err >&2"), &format!("job-{n}"), 0)).await;
    }
    let retained = rig.dir.path().join("retained");
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .filter(|path| path.starts_with(&retained))
            .count()
    };
    soon("the logs to close", async {
        while open() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_terminal_is_retained_too() {
    let rig = Rig::new();
    let mut request = retained(json!({ "process": { "cmd": "cat" } }), "shell", 0);
    request["pty"] = json!({ "size": { "cols": 80, "rows": 24 } });
    let (_, mut events) = rig.started(request).await;
    let input = |bytes: &[u8]| json!({ "process": { "tag": "shell" }, "input": { "pty": encode(bytes) } });
    rig.call("SendInput", input(b"hello\n")).await.unwrap();
    events.until("hello\r\nhello").await;
    let replay = json!({ "process": { "tag": "shell" }, "replay": {} });
    let mut again = rig.connect(replay).await;
    again.until("hello\r\nhello").await;
    rig.call("SendInput", input(b"\x04")).await.unwrap();
    assert_eq!(again.output().await.end["status"], "exit status 0");
}

#[tokio::test]
async fn what_runs_cannot_be_released() {
    let rig = Rig::new();
    let (pid, events) = rig.started(retained(program("sleep", &["300"]), "job", 0)).await;
    assert_eq!(rig.post("/sandhold/processes/release", json!({ "pid": pid })).await, StatusCode::CONFLICT);
    let kill = json!({ "process": { "tag": "job" }, "signal": "SIGNAL_SIGKILL" });
    rig.call("SendSignal", kill).await.unwrap();
    assert_eq!(events.output().await.end["status"], "signal: killed");
    assert_eq!(rig.post("/sandhold/processes/release", json!({ "pid": pid })).await, StatusCode::NO_CONTENT);
    assert_eq!(rig.call("List", json!({ "includeEnded": true })).await, Ok(json!({})));
}
