//! Every method of `process.Process` as E2B's clients see it.
#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod process_support;

use process_support::{Rig, by_pid, encode, program, sh};
use serde_json::json;

#[tokio::test]
async fn a_program_that_ends_sends_start_output_and_gos_exit_status() {
    let rig = Rig::new();
    let (pid, events) = rig.started(sh("echo out; echo err >&2; exit 7")).await;
    assert!(pid > 1);
    let output = events.output().await;
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(
        output.end,
        json!({ "exitCode": 7, "exited": true, "status": "exit status 7", "error": "exit status 7" })
    );
    assert_eq!(output.error, None);
}

#[tokio::test]
async fn success_has_no_error_and_leaves_the_zero_out() {
    let output = Rig::new().run("true", &[]).await;
    assert_eq!(output.end, json!({ "exited": true, "status": "exit status 0" }));
}

#[tokio::test]
async fn death_by_signal_is_exit_code_minus_one_and_never_exited() {
    let rig = Rig::new();
    for (signal, text) in [("SIGNAL_SIGKILL", "signal: killed"), ("SIGNAL_SIGTERM", "signal: terminated")] {
        let (pid, events) = rig.started(program("sleep", &["100"])).await;
        assert_eq!(
            rig.call("SendSignal", json!({ "process": { "pid": pid }, "signal": signal })).await,
            Ok(json!({}))
        );
        let end = events.output().await.end;
        assert_eq!(
            (&end["exitCode"], &end["status"], &end["error"]),
            (&json!(-1), &json!(text), &json!(text))
        );
        assert_eq!(end.get("exited"), None);
    }
}

#[tokio::test]
async fn the_number_of_a_killed_process_is_free_when_the_kill_is_answered() {
    let rig = Rig::new();
    for _ in 0..100 {
        let (pid, _events) = rig.started(program("sleep", &["100"])).await;
        let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
        assert_eq!(rig.call("SendSignal", kill).await, Ok(json!({})));
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid} is still there");
    }
}

#[tokio::test]
async fn only_kill_and_term_are_implemented_of_e2bs_signals() {
    let rig = Rig::new();
    let (pid, _events) = rig.started(program("sleep", &["100"])).await;
    let refused = rig.call("SendSignal", by_pid(pid)).await.unwrap_err();
    assert_eq!(refused.0, "unimplemented");
    let other = json!({ "process": { "pid": pid }, "signalNumber": 999 });
    assert_eq!(rig.call("SendSignal", other).await.unwrap_err().0, "invalid_argument");
    let kill = json!({ "process": { "pid": pid }, "signalNumber": 9, "tree": true });
    assert_eq!(rig.call("SendSignal", kill).await, Ok(json!({})));
}

#[tokio::test]
async fn every_method_says_not_found_for_an_unknown_process() {
    let rig = Rig::new();
    let expected = ("not_found".to_owned(), "process with pid 999999 not found".to_owned());
    for method in ["Update", "SendInput", "SendSignal", "CloseStdin"] {
        let message = json!({
            "process": { "pid": 999_999 }, "signal": "SIGNAL_SIGKILL", "input": { "stdin": "" },
            "pty": { "size": { "cols": 1, "rows": 1 } },
        });
        assert_eq!(rig.call(method, message).await, Err(expected.clone()), "{method}");
    }
    let start = json!({ "start": { "process": { "pid": 999_999 } } });
    assert_eq!(rig.call_with_stream("StreamInput", &[start]).await, Err(expected.clone()));
    assert_eq!(rig.connect(by_pid(999_999)).await.next().await, Err(Some(expected)));
    let by_tag = rig.connect(json!({ "process": { "tag": "nobody" } })).await.next().await;
    assert_eq!(by_tag, Err(Some(("not_found".into(), "process with tag nobody not found".into()))));
}

#[tokio::test]
async fn what_cannot_be_started_is_the_callers_argument() {
    let rig = Rig::new();
    let with = |process| json!({ "process": process, "stdin": false });
    for (process, part) in [
        (json!({ "cmd": "no-such-program" }), "no-such-program"),
        (json!({ "cmd": "/no/such/program" }), "/no/such/program"),
        (json!({ "cmd": "/etc/passwd" }), "/etc/passwd"),
        (json!({ "cmd": "true", "cwd": "/no/such/dir" }), "cwd '/no/such/dir' does not exist"),
        (json!({ "cmd": "true", "cwd": "/etc/passwd" }), "/etc/passwd"),
        (json!({ "cmd": "" }), "cmd is empty"),
        (json!({ "cmd": "tr\0ue" }), "cmd"),
        (json!({ "cmd": "true", "args": ["a", "b\0c"] }), "args[1]"),
        (json!({ "cmd": "true", "envs": { "A=B": "c" } }), "A=B"),
        (json!({ "cmd": "true", "envs": { "": "c" } }), "\"\""),
        (json!({ "cmd": "true", "envs": { "NAME": "c\0" } }), "NAME"),
    ] {
        let (code, message) = rig.refused(&[], with(process.clone())).await;
        assert_eq!(code, "invalid_argument", "{process}: {message}");
        assert!(message.contains(part), "{process}: {message}");
    }
    assert_eq!(rig.call("List", json!({})).await, Ok(json!({})));
}

#[tokio::test]
async fn an_unknown_user_is_unauthenticated() {
    let rig = Rig::new();
    let user = format!("Basic {}", encode(b"nobody-of-that-name:"));
    let (code, message) = rig.refused(&[("authorization", &user)], program("true", &[])).await;
    assert_eq!((code.as_str(), message.contains("nobody-of-that-name")), ("unauthenticated", true));
}

#[tokio::test]
async fn list_shows_what_runs_with_its_config_and_tag_and_nothing_that_ended() {
    let rig = Rig::new();
    rig.run("true", &[]).await;
    let process = json!({ "cmd": "sleep", "args": ["100"], "envs": { "A": "b" }, "cwd": "/" });
    let (pid, _events) = rig.started(json!({ "process": process, "tag": "t", "stdin": false })).await;
    let expected = json!({ "processes": [{ "config": process, "pid": pid, "tag": "t" }] });
    assert_eq!(rig.call("List", json!({})).await, Ok(expected));
    let kill = json!({ "process": { "tag": "t" }, "signal": "SIGNAL_SIGKILL" });
    rig.call("SendSignal", kill).await.unwrap();
}

#[tokio::test]
async fn connect_starts_at_once_follows_from_now_on_and_several_may() {
    let rig = Rig::new();
    let request = json!({ "process": { "cmd": "cat" }, "tag": "cat", "stdin": true });
    let (pid, mut first) = rig.started(request).await;
    let input =
        |text: &str| json!({ "process": { "tag": "cat" }, "input": { "stdin": encode(text.as_bytes()) } });
    rig.call("SendInput", input("early\n")).await.unwrap();
    first.until("early").await;
    let mut second = rig.connect(json!({ "process": { "tag": "cat" } })).await;
    assert_eq!(second.next().await.unwrap(), json!({ "event": { "start": { "pid": pid } } }));
    rig.call("SendInput", input("late\n")).await.unwrap();
    rig.call("CloseStdin", by_pid(pid)).await.unwrap();
    let (first, second) = (first.output().await, second.output().await);
    assert_eq!((first.text(), second.text()), ("late\n".into(), "late\n".into()));
    assert_eq!((&first.end["status"], &second.end), (&json!("exit status 0"), &first.end));
}

#[tokio::test]
async fn a_disconnected_client_kills_nothing() {
    let rig = Rig::new();
    let (pid, events) = rig.started(json!({ "process": { "cmd": "cat" }, "stdin": true })).await;
    drop(events);
    let mut again = rig.connect(by_pid(pid)).await;
    again.next().await.unwrap();
    let input = json!({ "process": { "pid": pid }, "input": { "stdin": encode(b"still here\n") } });
    rig.call("SendInput", input).await.unwrap();
    again.until("still here").await;
    rig.call("CloseStdin", by_pid(pid)).await.unwrap();
    assert_eq!(again.output().await.end["status"], "exit status 0");
}

#[tokio::test]
async fn an_end_of_a_moment_ago_is_still_told() {
    let rig = Rig::new();
    let (pid, events) = rig.started(sh("echo gone; exit 3")).await;
    events.output().await;
    let output = rig.connect(by_pid(pid)).await.output().await;
    assert_eq!((output.end["exitCode"].as_i64(), output.stdout.as_slice()), (Some(3), &b""[..]));
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
    assert_eq!(rig.call("SendSignal", kill).await.unwrap_err().0, "not_found");
}

#[tokio::test]
async fn input_of_the_wrong_kind_or_after_close_is_internal_and_close_is_idempotent() {
    let rig = Rig::new();
    let (pid, events) = rig.started(json!({ "process": { "cmd": "cat" }, "stdin": true })).await;
    let send = |kind: &str| json!({ "process": { "pid": pid }, "input": { kind: encode(b"x") } });
    assert_eq!(rig.call("SendInput", send("pty")).await.unwrap_err().0, "internal");
    let resize = json!({ "process": { "pid": pid }, "pty": { "size": { "cols": 80, "rows": 24 } } });
    assert_eq!(rig.call("Update", resize).await.unwrap_err().0, "internal");
    let (held, _held_events) = rig.started(sh("exec sleep 100 <&-")).await;
    let closed = json!({ "process": { "pid": held }, "input": { "stdin": encode(b"x") } });
    assert_eq!(rig.call("SendInput", closed).await.unwrap_err().0, "internal", "stdin was not asked for");
    for _ in 0..2 {
        assert_eq!(rig.call("CloseStdin", by_pid(held)).await, Ok(json!({})));
    }
    rig.call("SendSignal", json!({ "process": { "pid": held }, "signal": "SIGNAL_SIGKILL" })).await.unwrap();
    rig.call("CloseStdin", by_pid(pid)).await.unwrap();
    assert_eq!(events.output().await.end["status"], "exit status 0");
}

#[tokio::test]
async fn stdin_is_a_pipe_when_nothing_is_said_and_empty_when_refused() {
    let rig = Rig::new();
    let (pid, events) = rig.started(json!({ "process": { "cmd": "cat" } })).await;
    let input = json!({ "process": { "pid": pid }, "input": { "stdin": encode(b"old client") } });
    rig.call("SendInput", input).await.unwrap();
    rig.call("CloseStdin", by_pid(pid)).await.unwrap();
    assert_eq!(events.output().await.text(), "old client");
    assert_eq!(rig.run("cat", &[]).await.text(), "");
}

#[tokio::test]
async fn a_stream_of_input_is_written_in_order() {
    let rig = Rig::new();
    let (pid, events) = rig.started(json!({ "process": { "cmd": "cat" }, "stdin": true })).await;
    let mut messages = vec![json!({ "start": { "process": { "pid": pid } } }), json!({ "keepalive": {} })];
    let mut expected = Vec::new();
    for n in 0..100 {
        let line = format!("line {n}\n");
        messages.push(json!({ "data": { "input": { "stdin": encode(line.as_bytes()) } } }));
        expected.extend_from_slice(line.as_bytes());
    }
    assert_eq!(rig.call_with_stream("StreamInput", &messages).await, Ok(json!({})));
    rig.call("CloseStdin", by_pid(pid)).await.unwrap();
    assert_eq!(events.output().await.stdout, expected);
    let data = json!({ "data": { "input": { "stdin": "" } } });
    assert_eq!(rig.call_with_stream("StreamInput", &[data]).await.unwrap_err().0, "invalid_argument");
}

#[tokio::test]
async fn a_terminal_has_its_size_is_resized_and_takes_input() {
    let rig = Rig::new();
    let request = json!({
        "process": { "cmd": "/bin/sh", "envs": { "TERM": "xterm-256color", "PS1": "" } },
        "pty": { "size": { "cols": 80, "rows": 24 } },
    });
    let (pid, mut events) = rig.started(request).await;
    let send = |text: &str| json!({ "process": { "pid": pid }, "input": { "pty": encode(text.as_bytes()) } });
    // One at a time: a wait takes whatever comes with what it waits for.
    rig.call("SendInput", send("stty size\n")).await.unwrap();
    events.until("24 80").await;
    rig.call("SendInput", send("tty\n")).await.unwrap();
    events.until("/dev/pts/").await;
    let resize = json!({ "process": { "pid": pid }, "pty": { "size": { "cols": 100, "rows": 30 } } });
    rig.call("Update", resize).await.unwrap();
    rig.call("SendInput", send("stty size\n")).await.unwrap();
    events.until("30 100").await;
    let stdin = json!({ "process": { "pid": pid }, "input": { "stdin": encode(b"x") } });
    assert_eq!(rig.call("SendInput", stdin).await.unwrap_err().0, "internal");
    let (code, message) = rig.call("CloseStdin", by_pid(pid)).await.unwrap_err();
    assert_eq!((code.as_str(), message.contains("Ctrl+D")), ("unknown", true));
    rig.call("SendInput", send("exit 5\n")).await.unwrap();
    assert_eq!(events.output().await.end["exitCode"], 5);
}

#[tokio::test]
async fn a_terminal_is_the_controlling_one_and_ctrl_c_interrupts() {
    let rig = Rig::new();
    let request = json!({
        "process": { "cmd": "/bin/sh", "args": ["-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 1; done"] },
        "pty": { "size": { "cols": 80, "rows": 24 } },
    });
    let (pid, mut events) = rig.started(request).await;
    events.until("ready").await;
    let send = json!({ "process": { "pid": pid }, "input": { "pty": encode(b"\x03") } });
    rig.call("SendInput", send).await.unwrap();
    let output = events.output().await;
    assert!(String::from_utf8_lossy(&output.pty).contains("caught"));
    assert_eq!(output.end["exitCode"], 9);
}

#[tokio::test]
async fn chunks_of_json_clients_stay_within_e2bs_limits() {
    let rig = Rig::new();
    let output = rig.run("head", &["-c", "3000000", "/dev/zero"]).await;
    assert_eq!((output.stdout.len(), output.largest <= 32 << 10), (3_000_000, true), "{}", output.largest);
    let request = json!({
        "process": { "cmd": "sh", "args": ["-c", "stty raw; head -c 1000000 /dev/zero"] },
        "pty": { "size": { "cols": 80, "rows": 24 } },
    });
    let output = rig.run_with(request).await;
    assert_eq!((output.pty.len(), output.largest <= 16 << 10), (1_000_000, true), "{}", output.largest);
}

#[tokio::test]
async fn a_child_starts_clean() {
    let rig = Rig::new();
    let script = "ls /proc/self/fd | wc -l; grep -E '^Sig(Blk|Ign)' /proc/self/status; cat /proc/self/oom_score_adj; \
                  umask; ps -o ni=,sid=,pgid= -p $$ | tr -s ' ' ' '; echo $$";
    let output = rig.run("sh", &["-c", script]).await;
    let text = output.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "4", "0, 1, 2 and the listing's own: {text}");
    assert_eq!(&lines[1..3], ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"]);
    assert_eq!((lines[3], lines[4]), ("100", "0022"));
    let pid = lines[6];
    assert_eq!(lines[5].trim(), format!("0 {pid} {pid}"), "nice, session, process group: {text}");
}

#[tokio::test]
async fn variables_come_from_user_daemon_and_request_and_the_later_wins() {
    let envs =
        [("SHARED", "daemon"), ("DAEMON", "yes")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let rig = Rig::with(sandhold_envd::DaemonConfig::new().with_envs(envs.into()));
    let request = json!({
        "process": { "cmd": "sh", "args": ["-c", "echo $SHARED $DAEMON $HOME $USER $LOGNAME; pwd"], "envs": { "SHARED": "request" } },
        "stdin": false,
    });
    let text = rig.run_with(request).await.text();
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
    if rustix::process::geteuid().is_root() {
        assert_eq!(text, format!("request yes {home} root root\n{home}\n"));
    } else {
        assert!(text.starts_with("request yes "), "{text}");
    }
}

#[tokio::test]
async fn quiet_streams_are_pinged_at_the_interval_that_was_asked_for() {
    let rig = Rig::new();
    let mut events =
        rig.stream_with("Start", &[("keepalive-ping-interval", "1")], program("sleep", &["100"])).await;
    let pid = events.next().await.unwrap()["event"]["start"]["pid"].as_u64().unwrap();
    assert_eq!(events.next().await.unwrap(), json!({ "event": { "keepalive": {} } }));
    rig.call("SendSignal", json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" })).await.unwrap();
}
