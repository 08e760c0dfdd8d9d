//! The client against the daemon: processes.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![cfg(all(feature = "client", feature = "daemon"))]

#[path = "support/handle.rs"]
mod handles;
mod support;

use std::net::SocketAddr;
use std::time::Duration;

use handles::{Plane, handle};
use sandhold_core::{
    AttachOptions, ErrorKind, ExecOptions, ExitStatus, OutputStream, Process, ProcessEvent, ProcessSelector,
    ProcessSpec, PtySize, ReplayFrom, SandboxHandle, SandboxHandleExt, Signal, Stdin,
};
use sandhold_envd::{Dialect, EnvdConfig, EnvdHandle};
use support::{Running, start};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

async fn sandbox() -> (Running, EnvdHandle) {
    let running = start(|config| config).await;
    let handle = handle(running.address, EnvdConfig::new(), Plane::Running);
    (running, handle)
}

fn sh(line: &str) -> ProcessSpec {
    ProcessSpec::argv("/bin/sh", ["-c", line])
}

/// Reads until the output holds `wanted`.
async fn read_until(process: &mut Process, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        match process.next_event().await.unwrap() {
            Some(ProcessEvent::Output { data, .. }) => text.push_str(std::str::from_utf8(&data).unwrap()),
            other => panic!("{other:?} before {wanted:?}; so far {text:?}"),
        }
    }
    text
}

#[tokio::test]
async fn output_exit_code_and_signal_come_as_they_are() {
    let (_running, handle) = sandbox().await;
    let output = handle.exec(sh("printf out; printf err >&2; exit 7")).await.unwrap();
    assert_eq!((output.stdout.text().as_ref(), output.stderr.text().as_ref()), ("out", "err"));
    assert_eq!(output.exit, ExitStatus::exited(7));
    assert_eq!(handle.exec(sh("kill -SEGV $$")).await.unwrap().exit, ExitStatus::signaled(11));
}

/// A way to the daemon on which answers are held back from a certain moment on, until told.
async fn relay(daemon: SocketAddr, held: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_daemon, mut to_daemon) = TcpStream::connect(daemon).await.unwrap().into_split();
            let mut held = held.clone();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_daemon).await });
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = from_daemon.read(&mut bytes).await {
                    held.wait_for(|held| !held).await.unwrap();
                    to_client.write_all(&bytes[..read]).await.unwrap();
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_command_that_is_cancelled_before_it_is_known_to_run_is_killed() {
    let (running, direct) = sandbox().await;
    let (hold, held) = watch::channel(true);
    let slow = handle(relay(running.address, held).await, EnvdConfig::new(), Plane::Running);
    let waiting = tokio::spawn(async move { slow.exec(sh("exec sleep 1000").with_tag("early")).await });
    let is_there =
        || async { direct.processes().await.unwrap().iter().any(|process| process.exit.is_none()) };
    while !is_there().await {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    hold.send(false).unwrap();
    let killed = async {
        while is_there().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), killed).await.expect("the command runs on");
}

#[tokio::test]
async fn argv_and_environment_arrive_byte_for_byte() {
    let (_running, handle) = sandbox().await;
    let values = ["'", "\"", "$(id)", "`id`", "a\nb", "\\n", "%s", "-n", "", "é漢😀"];
    let mut spec = ProcessSpec::argv("/bin/sh", ["-c", "printf '%s\\0' \"$@\" \"$VALUE\"", "sh"]);
    spec.args.extend(values.map(str::to_owned));
    let output = handle.exec(spec.with_env("VALUE", values.concat())).await.unwrap();
    let expected: Vec<_> = values.iter().map(|value| (*value).to_owned()).chain([values.concat()]).collect();
    let text = output.stdout.text().into_owned();
    assert_eq!(text.strip_suffix('\0').unwrap().split('\0').collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn what_cannot_start_is_refused_by_kind() {
    let (_running, handle) = sandbox().await;
    for (spec, kind) in [
        (ProcessSpec::argv("/no/such/program", [""; 0]), ErrorKind::InvalidArgument),
        (sh("true").with_cwd("/no/such/directory"), ErrorKind::InvalidArgument),
        (sh("true").with_user("nobody-at-all"), ErrorKind::Unauthenticated),
    ] {
        let error = handle.start(spec).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    for error in [
        handle.attach(ProcessSelector::Pid(999_999), AttachOptions::default()).await.map(drop).unwrap_err(),
        handle
            .attach(ProcessSelector::Tag("x".into()), AttachOptions::default())
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert!(!handle.signal(ProcessSelector::Pid(999_999), Signal::KILL).await.unwrap());
}

#[tokio::test]
async fn a_large_input_comes_back_whole() {
    let (_running, handle) = sandbox().await;
    let input: Vec<u8> = (0..1_500_000u32).flat_map(u32::to_le_bytes).collect();
    let options = ExecOptions::default().with_stdin(input.clone()).with_output_limit(input.len());
    let output = handle.exec_opts(sh("cat"), options).await.unwrap();
    assert!(output.stdout.bytes == input);
    assert_eq!(output.exit, ExitStatus::exited(0));
}

#[tokio::test]
async fn input_that_was_never_open_is_an_invalid_state() {
    let (_running, handle) = sandbox().await;
    let process = handle.start(sh("sleep 60")).await.unwrap();
    let error = process.write("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    let error = process.resize(PtySize::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    assert!(process.kill().await.unwrap());
}

#[tokio::test]
async fn a_terminal_echoes_resizes_and_is_found_again_by_its_tag() {
    let (_running, handle) = sandbox().await;
    let spec = sh("read line; stty size; read line; echo \"got $line\"").with_tag("term");
    let mut first = handle.start(spec.with_pty(PtySize { cols: 90, rows: 20 })).await.unwrap();
    first.resize(PtySize { cols: 100, rows: 30 }).await.unwrap();
    first.write("\n").await.unwrap();
    read_until(&mut first, "30 100").await;
    let tag = ProcessSelector::Tag("term".to_owned());
    let mut second = handle.attach(tag, AttachOptions::default()).await.unwrap();
    assert_eq!((second.pid(), second.tag()), (first.pid(), Some("term")));
    assert_eq!(first.close_stdin().await.unwrap_err().kind(), ErrorKind::Unsupported);
    // Nothing has told this one that it is a terminal.
    second.write("word\n").await.unwrap();
    read_until(&mut second, "got word").await;
    assert_eq!(first.wait().await.unwrap(), ExitStatus::exited(0));
    assert_eq!(second.wait().await.unwrap(), ExitStatus::exited(0));
}

#[tokio::test]
async fn input_of_an_attached_process_finds_its_pipe() {
    let (_running, handle) = sandbox().await;
    let started = handle.start(sh("cat").with_stdin(Stdin::Open)).await.unwrap();
    let mut attached =
        handle.attach(ProcessSelector::Pid(started.pid()), AttachOptions::default()).await.unwrap();
    drop(started);
    attached.write("through").await.unwrap();
    read_until(&mut attached, "through").await;
    attached.close_stdin().await.unwrap();
    assert_eq!(attached.wait().await.unwrap(), ExitStatus::exited(0));
}

#[tokio::test]
async fn kept_output_is_replayed_from_an_offset_after_the_end_until_released() {
    let (_running, handle) = sandbox().await;
    let mut process =
        handle.start(sh("printf 0123456789; exit 5").with_retain(1 << 20).with_tag("job")).await.unwrap();
    let pid = process.pid();
    process.wait().await.unwrap();
    drop(process);
    let tag = || ProcessSelector::Tag("job".to_owned());
    let listed = handle.processes().await.unwrap();
    let kept = listed.iter().find(|info| info.pid == pid).unwrap();
    assert_eq!((kept.exit, kept.tag.as_deref()), (Some(ExitStatus::exited(5)), Some("job")));
    assert_eq!(kept.argv, ["/bin/sh", "-c", "printf 0123456789; exit 5"]);
    let options = AttachOptions::default().with_replay(ReplayFrom::start().with_stdout(4));
    let mut again = handle.attach(tag(), options.clone()).await.unwrap();
    let (mut text, mut next) = (String::new(), 4);
    while let Some(event) = again.next_event().await.unwrap() {
        match event {
            ProcessEvent::Output { stream: OutputStream::Stdout, data, offset, dropped } => {
                assert_eq!((offset, dropped), (next, 0));
                next += data.len() as u64;
                text.push_str(std::str::from_utf8(&data).unwrap());
            }
            ProcessEvent::Exit(status) => assert_eq!(status, ExitStatus::exited(5)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(text, "456789");
    assert!(handle.release(tag()).await.unwrap());
    assert!(!handle.release(tag()).await.unwrap());
    assert!(!handle.processes().await.unwrap().iter().any(|info| info.pid == pid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replay_has_the_whole_kept_tail_however_it_is_split() {
    let (_running, handle) = sandbox().await;
    // 228890 bytes in small writes, so that what is kept lies in several files.
    let line = "i=0; while [ $i -lt 40000 ]; do echo $i; i=$((i+1)); done";
    let mut process = handle.start(sh(line).with_retain(50_000)).await.unwrap();
    process.wait().await.unwrap();
    let replays: Vec<_> = (0..20)
        .map(|_| {
            let (handle, pid) = (handle.clone(), ProcessSelector::Pid(process.pid()));
            tokio::spawn(async move {
                let options = AttachOptions::default().with_replay(ReplayFrom::start());
                let mut replay = handle.attach(pid, options).await.unwrap();
                let mut at = 0;
                while let Some(event) = replay.next_event().await.unwrap() {
                    if let ProcessEvent::Output { data, offset, dropped, .. } = event {
                        assert_eq!(offset, at + dropped, "bytes are missing that nobody counted");
                        at = offset + data.len() as u64;
                    }
                }
                assert_eq!(at, 228_890);
            })
        })
        .collect();
    for replay in replays {
        replay.await.unwrap();
    }
}

#[tokio::test]
async fn what_runs_cannot_be_released() {
    let (_running, handle) = sandbox().await;
    let process = handle.start(sh("sleep 60").with_retain(1000)).await.unwrap();
    let error = handle.release(ProcessSelector::Pid(process.pid())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    assert!(process.kill().await.unwrap());
}

#[tokio::test]
async fn dropping_a_process_leaves_it_alone_and_a_signal_reaches_its_tree() {
    let (_running, handle) = sandbox().await;
    // Deaf to the first signal from the start: a child that was just forked would not be yet.
    let mut process = handle.start(sh("trap '' INT; sleep 60 & echo $!; wait")).await.unwrap();
    let child: i32 = read_until(&mut process, "\n").await.trim().parse().unwrap();
    let pid = process.pid();
    drop(process);
    let mut again = handle.attach(ProcessSelector::Pid(pid), AttachOptions::default()).await.unwrap();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::test_kill_process(child).unwrap();
    assert!(handle.signal(ProcessSelector::Pid(pid), Signal::INT).await.unwrap());
    assert!(handle.signal(ProcessSelector::Pid(pid), Signal::KILL).await.unwrap());
    assert_eq!(again.wait().await.unwrap().code, None);
    // The child is the daemon's or init's to reap, which takes a moment.
    while std::fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim().starts_with('Z'))
    {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_last_real_time_signal_arrives_and_one_that_is_none_is_refused() {
    let (_running, handle) = sandbox().await;
    let mut process =
        handle.start(sh("trap 'exit 7' 64; echo here; while :; do sleep 0.05; done")).await.unwrap();
    read_until(&mut process, "here").await;
    let pid = process.pid();
    for none in [-1, 0, 32, 65] {
        let error = handle.signal(ProcessSelector::Pid(pid), Signal(none)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{none}: {error}");
    }
    assert!(handle.signal(ProcessSelector::Pid(pid), Signal(64)).await.unwrap());
    assert_eq!(process.wait().await.unwrap().code, Some(7));
}

#[tokio::test]
async fn the_daemon_ends_a_foreground_command_whose_host_died() {
    let (_running, handle) = sandbox().await;
    let spec = sh("trap '' TERM; while :; do sleep 0.05; done");
    let spec = spec.with_deadline(Duration::from_millis(100)).with_grace(Duration::from_millis(100));
    let process = handle.start(spec).await.unwrap();
    let pid = ProcessSelector::Pid(process.pid());
    drop(process);
    let mut watcher = handle.attach(pid, AttachOptions::default()).await.unwrap();
    let status = watcher.wait().await.unwrap();
    assert_eq!((status.signal, status.timed_out), (Some(9), true));
}

#[tokio::test]
async fn a_timeout_keeps_the_output_so_far() {
    for dialect in [Dialect::Sandhold, Dialect::E2b] {
        let running = start(|config| config).await;
        let handle = handle(running.address, EnvdConfig::new().with_dialect(dialect), Plane::Running);
        let options = ExecOptions::default().with_timeout(Duration::from_millis(300));
        let output = handle.exec_opts(sh("echo before; exec sleep 60"), options).await.unwrap();
        assert_eq!(output.stdout.text(), "before\n");
        assert!(output.exit.timed_out && !output.exit.success(), "{dialect:?}: {}", output.exit);
    }
}

#[tokio::test]
async fn a_daemon_that_goes_away_leaves_the_outcome_unknown() {
    let (running, handle) = sandbox().await;
    let mut process = handle.start(sh("sleep 60")).await.unwrap();
    running.daemon.abort_connections();
    let error = process.next_event().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.context().any(|pair| pair == ("sandbox", "alive")), "{error}");
    let mut again =
        handle.attach(ProcessSelector::Pid(process.pid()), AttachOptions::default()).await.unwrap();
    assert!(again.kill().await.unwrap());
    assert_eq!(again.wait().await.unwrap(), ExitStatus::signaled(9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_commands_end_with_all_their_output() {
    let (_running, handle) = sandbox().await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let handle = handle.clone();
            let options = ExecOptions::default().with_output_limit(usize::MAX / 4);
            tokio::spawn(async move {
                handle.exec_opts(sh("head -c 2000000 /dev/zero; exit 7"), options).await.unwrap()
            })
        })
        .collect();
    for task in tasks {
        let output = task.await.unwrap();
        assert_eq!((output.stdout.bytes.len(), output.exit.code), (2_000_000, Some(7)));
    }
}
