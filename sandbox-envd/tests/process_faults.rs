//! Faults that users of other sandboxes reported, and the promises beyond E2B: trees, deadlines, complete output.
#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod process_support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use process_support::{Field, Rig, binary_program, by_pid, encode, program, sh, soon, survivors};
use serde_json::{Value, json};

/// Commands of a family that ignores SIGTERM, with a member that left the session and one that lost its parent.
const FAMILY: &str = "trap '' TERM; sleep 300 & sleep 300 & setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300' &) ; echo up; wait";

fn family(marker: &str) -> Value {
    json!({ "process": { "cmd": "/bin/sh", "args": ["-c", FAMILY], "envs": { marker: "1" } }, "stdin": false })
}

/// Waits until that many members are there: a process shows no environment while it executes its program.
async fn all_up(marker: &str, count: usize) {
    soon("the family", async {
        while survivors(marker).len() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn unique(name: &str) -> String {
    format!("FAMILY_{name}_{}", std::process::id())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_a_tree_leaves_no_survivor() {
    let rig = Rig::new();
    let marker = unique("kill");
    let (pid, mut events) = rig.started(family(&marker)).await;
    events.until("up").await;
    all_up(&marker, 5).await;
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL", "tree": true });
    let began = Instant::now();
    assert_eq!(rig.call("SendSignal", kill).await, Ok(json!({})));
    assert_eq!(survivors(&marker), BTreeMap::new());
    let output = events.output().await;
    assert_eq!(output.end["status"], "signal: killed");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_plain_kill_hits_the_leader_alone_and_a_later_tree_kill_finds_the_rest() {
    let rig = Rig::new();
    let marker = unique("late");
    let (pid, mut events) = rig.started(family(&marker)).await;
    events.until("up").await;
    let mut kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
    rig.call("SendSignal", kill.clone()).await.unwrap();
    assert_eq!(events.output().await.end["status"], "signal: killed");
    all_up(&marker, 4).await;
    kill["tree"] = json!(true);
    assert_eq!(rig.call("SendSignal", kill.clone()).await, Ok(json!({})));
    assert_eq!(survivors(&marker), BTreeMap::new());
    assert_eq!(rig.call("SendSignal", kill).await.unwrap_err().0, "not_found");
}

#[tokio::test]
async fn a_family_without_the_marker_is_found_by_session_and_descent() {
    let rig = Rig::new();
    let marker = unique("bare");
    let script = "env -u SANDHOLD_EXEC sleep 300 & env -u SANDHOLD_EXEC setsid sleep 300 & echo up; wait";
    let request =
        json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script], "envs": { &marker: "1" } } });
    let (pid, mut events) = rig.started(request).await;
    events.until("up").await;
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL", "tree": true });
    rig.call("SendSignal", kill).await.unwrap();
    assert_eq!(survivors(&marker), BTreeMap::new());
}

#[tokio::test]
async fn a_deadline_asks_first_then_kills_the_tree_and_keeps_the_output() {
    let rig = Rig::new();
    let marker = unique("deadline");
    let mut request = family(&marker);
    (request["deadlineMs"], request["graceMs"]) = (json!("400"), json!("300"));
    let began = Instant::now();
    let output = soon("a deadline", rig.run_with(request)).await;
    let took = began.elapsed();
    assert_eq!((output.text().as_str(), &output.end["timedOut"]), ("up\n", &json!(true)));
    assert_eq!(output.end["status"], "signal: killed");
    assert!(took >= Duration::from_millis(700), "{took:?}");
    soon("the end of the family", async {
        while !survivors(&marker).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_process_that_ends_on_term_is_timed_out_without_being_killed() {
    let rig = Rig::new();
    let mut request = sh("trap 'echo bye; exit 4' TERM; sleep 300 & wait");
    request["deadlineMs"] = json!(300);
    let output = soon("a deadline", rig.run_with(request)).await;
    assert_eq!((output.text().as_str(), &output.end["exitCode"]), ("bye\n", &json!(4)));
    assert_eq!(output.end["timedOut"], true);
}

#[tokio::test]
async fn a_process_that_ends_in_time_is_not_timed_out() {
    let mut request = program("true", &[]);
    request["deadlineMs"] = json!(60_000);
    assert_eq!(Rig::new().run_with(request).await.end.get("timedOut"), None);
}

#[tokio::test]
async fn the_timeout_of_the_starting_stream_kills_the_tree_and_is_the_streams_error() {
    let rig = Rig::new();
    let marker = unique("timeout");
    let events = rig.stream_with("Start", &[("connect-timeout-ms", "500")], family(&marker)).await;
    let output = soon("the timeout", events.output()).await;
    assert_eq!((output.text().as_str(), &output.end), ("up\n", &Value::Null));
    assert_eq!(output.error.map(|(code, _)| code).as_deref(), Some("deadline_exceeded"));
    soon("the end of the family", async {
        while !survivors(&marker).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_timeout_also_kills_when_the_client_is_long_gone() {
    let rig = Rig::new();
    let marker = unique("gone");
    let mut events = rig.stream_with("Start", &[("connect-timeout-ms", "700")], family(&marker)).await;
    events.until("up").await;
    drop(events);
    soon("the end of the family", async {
        while !survivors(&marker).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_timeout_of_a_connected_stream_ends_the_stream_alone() {
    let rig = Rig::new();
    let (pid, _events) = rig.started(program("sleep", &["300"])).await;
    let connected = rig.stream_with("Connect", &[("connect-timeout-ms", "200")], by_pid(pid)).await;
    let output = soon("the timeout", connected.output()).await;
    assert_eq!(output.error.map(|(code, _)| code).as_deref(), Some("deadline_exceeded"));
    let list = rig.call("List", json!({})).await.unwrap();
    assert_eq!(list["processes"][0]["pid"], pid);
    rig.call("SendSignal", json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" })).await.unwrap();
}

#[tokio::test]
async fn a_background_child_that_holds_the_pipe_does_not_delay_the_exit() {
    let rig = Rig::new();
    let marker = unique("holder");
    let request = json!({ "process": { "cmd": "sh", "args": ["-c", "sleep 60 & echo hi"], "envs": { &marker: "1" } }, "stdin": false });
    let began = Instant::now();
    let (pid, events) = rig.started(request).await;
    let output = events.output().await;
    assert_eq!((output.text().as_str(), &output.end["status"]), ("hi\n", &json!("exit status 0")));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // The child goes on.
    all_up(&marker, 1).await;
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL", "tree": true });
    rig.call("SendSignal", kill).await.unwrap();
    assert_eq!(survivors(&marker), BTreeMap::new());
}

#[tokio::test]
async fn a_late_writer_gets_no_sigpipe_after_the_exit_was_told() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let done = dir.path().join("done");
    // The grandchild waits for the go-ahead, writes more than a pipe holds, and notes that it lived.
    let script = format!(
        "(while [ ! -e {0}/go ]; do sleep 0.02; done; head -c 3000000 /dev/zero && touch {0}/done) & echo hi",
        dir.path().display()
    );
    let output = rig.run("sh", &["-c", &script]).await;
    assert_eq!(output.text(), "hi\n");
    std::fs::write(dir.path().join("go"), "").unwrap();
    soon("the late writer", async {
        while !done.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_grandchild_that_writes_for_ever_does_not_delay_the_exit() {
    let rig = Rig::new();
    let (pid, events) = rig.started(sh("yes & echo hi >&2; exit 6")).await;
    let output = soon("the exit", events.output()).await;
    assert_eq!((output.stderr.as_slice(), &output.end["exitCode"]), (&b"hi\n"[..], &json!(6)));
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL", "tree": true });
    rig.call("SendSignal", kill).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_of_200_parallel_runs_is_complete_before_the_exit() {
    let rig = std::sync::Arc::new(Rig::new());
    let runs: Vec<_> = (0..200)
        .map(|_| {
            let rig = rig.clone();
            let request = binary_program("sh", &["-c", "head -c 2000000 /dev/zero; exit 7"]);
            tokio::spawn(async move { rig.binary_stream("Start", &request).await.binary_output().await })
        })
        .collect();
    for run in runs {
        let (count, end) = run.await.unwrap();
        // Field 1 is a zigzag number.
        assert_eq!((count, &end[&1]), (2_000_000, &Field::Varint(14)));
    }
}

#[tokio::test]
async fn bytes_arrive_exactly_however_they_are_split() {
    let script = r#"
import os, random
data = ('é漢😀' * 5000).encode() + b'\xff' + '😀'.encode()[:2]
random.seed(4)
at = 0
while at < len(data):
    size = random.randint(1, 4)
    os.write(1, data[at:at + size])
    at += size
"#;
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: needs python3");
        return;
    }
    let output = Rig::new().run("python3", &["-c", script]).await;
    let mut expected = "é漢😀".repeat(5000).into_bytes();
    expected.push(0xff);
    expected.extend_from_slice(&"😀".as_bytes()[..2]);
    assert!(output.stdout == expected, "{} of {} bytes", output.stdout.len(), expected.len());
}

#[tokio::test]
async fn programs_that_read_stdin_get_end_of_file_unless_it_was_asked_for() {
    let rig = Rig::new();
    let began = Instant::now();
    assert_eq!(rig.run("cat", &[]).await.end["status"], "exit status 0");
    assert_eq!(rig.run("sh", &["-c", "read line; echo $?"]).await.text(), "1\n");
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn arguments_and_variables_arrive_byte_for_byte_and_nothing_is_evaluated() {
    let rig = Rig::new();
    let large = "x".repeat(100 << 10);
    let values = [
        "'",
        "\"",
        "$(id)",
        "`id`",
        "a\nb",
        "\\n",
        "%s",
        "-n",
        "-e",
        "",
        "😀é漢",
        " lead and trail ",
        &large,
    ];
    let mut args = vec!["-c", "for a in \"$@\"; do printf '%s\\0' \"$a\"; done", "sh"];
    args.extend(values);
    let dumped = rig.run("sh", &args).await;
    let expected: Vec<u8> = values.iter().flat_map(|value| [value.as_bytes(), b"\0"].concat()).collect();
    assert!(dumped.stdout == expected, "{:?}", String::from_utf8_lossy(&dumped.stdout));
    let envs: BTreeMap<String, &str> = (0..).map(|n| format!("VALUE_{n}")).zip(values).collect();
    let request = json!({ "process": { "cmd": "env", "args": ["-0"], "envs": envs }, "stdin": false });
    let output = rig.run_with(request).await;
    let seen: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
    for (name, value) in &envs {
        assert!(seen.contains(&format!("{name}={value}").as_bytes()), "{name}={value:?}");
    }
}

#[tokio::test]
async fn large_input_to_a_slow_reader_arrives_whole_and_blocks_nobody() {
    let rig = std::sync::Arc::new(Rig::new());
    let (pid, events) = rig
        .started(json!({ "process": { "cmd": "sh", "args": ["-c", "sleep 0.3; wc -c"] }, "stdin": true }))
        .await;
    let writer = rig.clone();
    let sent = tokio::spawn(async move {
        let input = json!({ "process": { "pid": pid }, "input": { "stdin": encode(&vec![7; 8 << 20]) } });
        writer.call("SendInput", input).await.unwrap();
        writer.call("CloseStdin", by_pid(pid)).await.unwrap();
    });
    assert_eq!(rig.run("echo", &["meanwhile"]).await.text(), "meanwhile\n");
    assert_eq!(events.output().await.text().trim(), (8 << 20).to_string());
    sent.await.unwrap();
}

#[tokio::test]
async fn input_that_nobody_reads_ends_with_the_process() {
    let rig = std::sync::Arc::new(Rig::new());
    let (pid, mut events) = rig
        .started(json!({ "process": { "cmd": "sh", "args": ["-c", "read -r go; echo up; sleep 300"] }, "stdin": true }))
        .await;
    let writer = rig.clone();
    let stuck = tokio::spawn(async move {
        let input = json!({ "process": { "pid": pid }, "input": { "stdin": encode(&[b"go\n".to_vec(), vec![7; 8 << 20]].concat()) } });
        writer.call("SendInput", input).await
    });
    // The first line went through, and the rest is eight times what the pipe holds.
    events.until("up").await;
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL", "tree": true });
    rig.call("SendSignal", kill).await.unwrap();
    assert_eq!(soon("the stuck writer", stuck).await.unwrap().unwrap_err().0, "internal");
    assert_eq!(events.output().await.end["status"], "signal: killed");
}

#[tokio::test]
async fn a_client_that_does_not_read_keeps_the_end_from_nobody() {
    let rig = Rig::new();
    // It writes until nobody takes any more, and its client never does.
    let (pid, mut stuck) = rig.started(json!({ "process": { "cmd": "yes" }, "stdin": false })).await;
    stuck.until("y").await;
    // It slows everybody's output while the process runs, and so this one may get none.
    let mut other = rig.connect(by_pid(pid)).await;
    assert_eq!(other.next().await.unwrap()["event"]["start"]["pid"], pid);
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL", "tree": true });
    rig.call("SendSignal", kill).await.unwrap();
    let end = soon("the other client's end", other.output()).await.end;
    assert_eq!(end["status"], "signal: killed");
    let listed = rig.call("List", json!({})).await.unwrap();
    assert!(listed["processes"].as_array().is_none_or(Vec::is_empty), "{listed}");
    let late = soon("a late client's end", rig.connect(by_pid(pid)).await.output()).await.end;
    assert_eq!(late["status"], "signal: killed");
    // Whoever was slow still gets what is left, in order, and then the end.
    assert_eq!(soon("the slow client's end", stuck.output()).await.end["status"], "signal: killed");
}

#[tokio::test]
async fn a_slow_reader_slows_the_process_and_loses_nothing() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let script = format!("head -c 64000000 /dev/zero; touch {}/done", dir.path().display());
    let (_, mut events) = rig.started(sh(&script)).await;
    let first = events.until("\0").await.stdout.len();
    // Whatever else runs in between, the process cannot end before its output was taken.
    for _ in 0..20 {
        rig.run("true", &[]).await;
    }
    assert!(!dir.path().join("done").exists());
    let output = events.output().await;
    assert_eq!(
        (first + output.stdout.len(), output.end["status"].as_str()),
        (64_000_000, Some("exit status 0"))
    );
}

#[tokio::test]
async fn output_that_nobody_follows_is_dropped_and_stops_nothing() {
    let rig = Rig::new();
    let (pid, events) = rig.started(sh("head -c 50000000 /dev/zero; exit 8")).await;
    drop(events);
    let output = soon("the end", async { rig.connect(by_pid(pid)).await.output().await }).await;
    assert_eq!(output.end["exitCode"], 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_exit_of_500_commands_that_end_at_once_is_lost() {
    let rig = std::sync::Arc::new(Rig::new());
    let runs: Vec<_> = (0..500)
        .map(|n| {
            let rig = rig.clone();
            tokio::spawn(async move { (n, rig.run("sh", &["-c", &format!("exit {}", n % 200 + 1)]).await) })
        })
        .collect();
    for run in runs {
        let (n, output) = soon("an exit", run).await.unwrap();
        assert_eq!(output.end["exitCode"], n % 200 + 1);
    }
}

#[tokio::test]
async fn pending_streams_end_when_the_daemon_drops_its_connections() {
    let rig = Rig::new();
    let mut pending = Vec::new();
    for _ in 0..50 {
        let mut events = rig.start(program("sleep", &["300"])).await;
        let start = events.next().await.unwrap();
        pending.push((start["event"]["start"]["pid"].clone(), events));
    }
    rig.daemon.abort_connections();
    for (pid, mut events) in pending {
        assert_eq!(soon("a dropped stream", events.envelope()).await, None);
        let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
        rig.call("SendSignal", kill).await.unwrap();
    }
}
