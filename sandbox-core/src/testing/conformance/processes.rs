//! Rules about processes that need a real shell, `/bin/sh`, and the usual programs of a Linux system.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::commands::output;
use super::{Stage, eventually, within};
use crate::{
    AttachOptions, ExecOptions, OutputStream, ProcessEvent, ProcessSelector, ProcessSpec, PtySize,
    ReplayFrom, SandboxHandle, SandboxHandleExt, Signal,
};

fn sh(script: &str) -> ProcessSpec {
    ProcessSpec::argv("/bin/sh", ["-c", script])
}

/// Values that a shell, `echo` or `printf` would change.
fn hostile_values() -> Vec<String> {
    let mut values: Vec<String> = [
        "",
        " ",
        "'",
        "\"",
        "`id`",
        "$(id)",
        "$HOME",
        "a\nb",
        "\\n",
        "%s",
        "-n",
        "-e",
        "--",
        "*",
        "~",
        "!",
        "a;b",
        "a&&b",
        "é漢😀",
        "\u{1b}[31m",
        "\t",
        "trailing\n",
    ]
    .map(String::from)
    .into();
    values.push("x'\"".repeat(34_000));
    values
}

/// Counts the processes whose command line is exactly this one.
async fn alive(handle: &Arc<dyn SandboxHandle>, command: &str) -> usize {
    // The command lines of the counting shell and its children begin otherwise, so they do not count themselves.
    let script =
        "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep -c \"^$1 \\$\"";
    let spec = ProcessSpec::argv("/bin/sh", ["-c", script, "sh", command]);
    handle.exec(spec).await.unwrap().stdout.text().trim().parse().unwrap()
}

/// Arguments arrive as they were given; nothing evaluates them.
pub async fn arguments_arrive_byte_for_byte(stage: &Stage) {
    let handle = stage.create("one").await;
    let values = hostile_values();
    let script = "for a; do printf '%s\\0' \"$a\"; done".to_owned();
    let args = ["-c".to_owned(), script, "sh".to_owned()].into_iter().chain(values.iter().cloned());
    let options = ExecOptions::default().with_output_limit(1 << 20);
    let output = handle.exec_opts(ProcessSpec::argv("/bin/sh", args), options).await.unwrap();
    let expected: String = values.iter().map(|value| format!("{value}\0")).collect();
    assert!(output.stdout.bytes == expected.as_bytes(), "{}", output.stdout.text());
}

/// So do variables.
pub async fn variables_arrive_byte_for_byte(stage: &Stage) {
    let handle = stage.create("one").await;
    if !stage.needs_program(&handle, "env").await {
        return;
    }
    let values = hostile_values();
    let mut spec = ProcessSpec::argv("env", ["-0"]);
    for (number, value) in values.iter().enumerate() {
        spec = spec.with_env(format!("VALUE_{number}"), value);
    }
    let options = ExecOptions::default().with_output_limit(1 << 20);
    let output = handle.exec_opts(spec, options).await.unwrap();
    let seen: Vec<_> = output.stdout.bytes.split(|byte| *byte == 0).collect();
    for (number, value) in values.iter().enumerate() {
        let expected = format!("VALUE_{number}={value}");
        assert!(seen.contains(&expected.as_bytes()), "VALUE_{number} {value:.40?} is missing or changed");
    }
}

/// The streams are told apart.
pub async fn the_two_output_streams_are_told_apart(stage: &Stage) {
    let handle = stage.create("one").await;
    let output = handle.exec(sh("echo out; echo err >&2; echo out2")).await.unwrap();
    assert_eq!((output.stdout.text().as_ref(), output.stderr.text().as_ref()), ("out\nout2\n", "err\n"));
}

/// A process that kills itself died by that signal.
pub async fn a_process_that_kills_itself_died_by_that_signal(stage: &Stage) {
    let handle = stage.create("one").await;
    for signal in [9, 15, 6] {
        let exit = handle.exec(sh(&format!("kill -{signal} $$"))).await.unwrap().exit;
        assert_eq!((exit.code, exit.signal), (None, Some(signal)));
    }
}

/// All output is there before the exit is told, however much and however many at once.
pub async fn output_is_complete_before_the_exit(stage: &Stage) {
    const SIZE: usize = 2_000_000;
    let handle = stage.create("one").await;
    let runs: Vec<_> = (0..16)
        .map(|_| {
            let handle = Arc::clone(&handle);
            tokio::spawn(async move {
                let options = ExecOptions::default().with_output_limit(2 * SIZE);
                handle.exec_opts(sh("head -c 2000000 /dev/zero | tr '\\0' x; exit 7"), options).await
            })
        })
        .collect();
    for run in runs {
        let output = run.await.unwrap().unwrap();
        assert_eq!(output.exit.code, Some(7));
        assert_eq!((output.stdout.bytes.len(), output.stdout.dropped), (SIZE, 0));
        assert!(output.stdout.bytes.iter().all(|byte| *byte == b'x'));
    }
}

/// Text is whole, wherever its chunks are cut.
pub async fn multibyte_output_is_exact(stage: &Stage) {
    let handle = stage.create("one").await;
    let text = "é漢😀".repeat(5_000);
    handle.write_bytes("/tmp/text", text.clone()).await.unwrap();
    // Writes of one to five bytes, which cut characters in every way.
    for size in [1, 2, 3, 5] {
        let output = handle.exec(sh(&format!("dd if=/tmp/text bs={size} 2>/dev/null"))).await.unwrap();
        assert!(output.stdout.bytes == text.as_bytes(), "writes of {size} bytes");
        assert!(output.stdout.text() == text);
    }
}

/// Bytes that are no text come as they are, and their text is a view with a mark for each.
pub async fn output_that_is_no_text_is_exact(stage: &Stage) {
    if !stage.needs(stage.capabilities().binary_exec, "binary_exec") {
        return;
    }
    let handle = stage.create("one").await;
    let output = handle.exec(sh("printf 'a\\377b\\303'")).await.unwrap();
    assert_eq!(output.stdout.bytes, b"a\xffb\xc3");
    assert_eq!(output.stdout.text(), "a\u{fffd}b\u{fffd}");
}

/// A child in the background that holds the output open does not hold the answer up.
pub async fn a_background_child_does_not_delay_the_exit(stage: &Stage) {
    let handle = stage.create("one").await;
    let output = within("the command ends", handle.exec(sh("sleep 1000 & echo hi"))).await.unwrap();
    assert_eq!((output.exit.code, output.stdout.text().as_ref()), (Some(0), "hi\n"));
}

/// Such a child may go on writing: nobody breaks its pipe.
pub async fn a_background_child_is_not_killed_by_its_output(stage: &Stage) {
    let handle = stage.create("one").await;
    // It waits until the exit was told, writes to its output, and only then makes the file.
    let script = "(while ! test -e /tmp/go; do sleep 0.1; done; echo late && echo later && touch /tmp/written) & echo hi";
    let output = within("the command ends", handle.exec(sh(script))).await.unwrap();
    assert_eq!(output.stdout.text(), "hi\n");
    handle.write_bytes("/tmp/go", "").await.unwrap();
    eventually("the child has written", || async {
        handle.exists("/tmp/written").await.unwrap().then_some(())
    })
    .await;
}

/// A kill takes the whole tree, also what ignores polite signals.
pub async fn a_kill_reaches_the_whole_tree(stage: &Stage) {
    if !stage.needs(stage.capabilities().signal_tree, "signals to the whole tree") {
        return;
    }
    let handle = stage.create("one").await;
    let script = "trap '' TERM; sleep 98761 & (sleep 98761 & sleep 98761) & echo up; wait";
    let mut process = handle.start(sh(script)).await.unwrap();
    output(&mut process, 3).await;
    eventually("three children run", || async { (alive(&handle, "sleep 98761").await == 3).then_some(()) })
        .await;
    assert!(process.kill().await.unwrap());
    let exit = within("the process ends", process.wait()).await.unwrap();
    assert_eq!(exit.signal, Some(9));
    eventually("no child is left", || async { (alive(&handle, "sleep 98761").await == 0).then_some(()) })
        .await;
}

/// At the deadline the tree is told to end, then killed; what it wrote is kept.
pub async fn a_deadline_kills_the_tree_and_keeps_the_output(stage: &Stage) {
    let handle = stage.create("one").await;
    let script = "trap '' TERM; echo begun; sleep 98762 & sleep 98762 & while :; do wait; done";
    let options = ExecOptions::default().with_timeout(Duration::from_secs(2));
    let spec = sh(script).with_grace(Duration::from_millis(300));
    let output = within("the command ends", handle.exec_opts(spec, options)).await.unwrap();
    assert_eq!((output.exit.timed_out, output.exit.signal), (true, Some(9)));
    assert_eq!(output.stdout.text(), "begun\n");
    if stage.capabilities().signal_tree {
        eventually("no child is left", || async { (alive(&handle, "sleep 98762").await == 0).then_some(()) })
            .await;
    }
}

/// TERM comes first, and what a command says and does then is its result.
pub async fn a_deadline_asks_politely_first(stage: &Stage) {
    let handle = stage.create("one").await;
    let script = "trap 'echo bye; exit 3' TERM; echo begun; while :; do sleep 0.1; done";
    let options = ExecOptions::default().with_timeout(Duration::from_secs(2));
    let output = within("the command ends", handle.exec_opts(sh(script), options)).await.unwrap();
    assert_eq!((output.exit.timed_out, output.exit.code), (true, Some(3)));
    assert_eq!(output.stdout.text(), "begun\nbye\n");
}

/// The sandbox keeps the deadline itself: a host that has died leaves nothing running.
pub async fn a_deadline_holds_without_its_caller(stage: &Stage) {
    let handle = stage.create("one").await;
    let spec = sh("trap '' TERM; while :; do sleep 98763; done")
        .with_deadline(Duration::from_secs(1))
        .with_grace(Duration::from_millis(200))
        .with_tag("deadline");
    drop(handle.start(spec).await.unwrap());
    eventually("the command is ended", || async {
        let processes = handle.processes().await.unwrap();
        (!processes.iter().any(|process| process.tag.as_deref() == Some("deadline"))).then_some(())
    })
    .await;
}

/// An attach that replays from a position and follows has neither gap nor repetition.
pub async fn a_replay_that_follows_has_no_gap(stage: &Stage) {
    if !stage.needs(stage.capabilities().retained_output, "retained output") {
        return;
    }
    let handle = stage.create("one").await;
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; while ! test -e /tmp/go; do sleep 0.1; done; echo end";
    let mut process = handle.start(sh(script).with_retain(1 << 20).with_tag("lines")).await.unwrap();
    let all: String = (0..2000).map(|number| format!("line {number}\n")).collect::<String>() + "end\n";
    output(&mut process, 1000).await;
    drop(process);
    // Another process attaches, from the middle, while it runs.
    let fresh =
        stage.fresh_provider().await.connect_opts(handle.id(), Default::default()).await.unwrap().handle;
    for from in [0usize, 777] {
        let options = AttachOptions::default().with_replay(ReplayFrom::start().with_stdout(from as u64));
        let mut replay = fresh.attach(ProcessSelector::Tag("lines".to_owned()), options).await.unwrap();
        let mut seen = output(&mut replay, all.len() - 4 - from).await;
        handle.write_bytes("/tmp/go", "").await.unwrap();
        within("the process ends", async {
            while let Some(event) = replay.next_event().await.unwrap() {
                if let ProcessEvent::Output { data, offset, .. } = event {
                    assert_eq!(offset, (from + seen.len()) as u64);
                    seen.extend_from_slice(&data);
                }
            }
        })
        .await;
        assert!(seen == all.as_bytes()[from..], "{}", String::from_utf8_lossy(&seen));
    }
}

/// Of more output than is to be kept the tail is there, and what was dropped is counted.
pub async fn kept_output_has_a_cap_and_counts_what_it_dropped(stage: &Stage) {
    if !stage.needs(stage.capabilities().retained_output, "retained output") {
        return;
    }
    let handle = stage.create("one").await;
    let all: String = (0..40_000).map(|number| format!("{number}\n")).collect();
    let script = "i=0; while [ $i -lt 40000 ]; do echo $i; i=$((i+1)); done";
    let mut process = handle.start(sh(script).with_retain(50_000)).await.unwrap();
    let selector = ProcessSelector::Pid(process.pid());
    within("the process ends", process.wait()).await.unwrap();
    let options = AttachOptions::default().with_replay(ReplayFrom::start());
    let mut replay = handle.attach(selector, options).await.unwrap();
    let (mut tail, mut dropped, mut first) = (Vec::new(), 0, None);
    within("the replay ends", async {
        while let Some(event) = replay.next_event().await.unwrap() {
            if let ProcessEvent::Output { data, offset, dropped: lost, .. } = event {
                first.get_or_insert(offset);
                dropped += lost;
                tail.extend_from_slice(&data);
            }
        }
    })
    .await;
    assert!(!tail.is_empty() && tail.len() <= 50_000, "{} bytes were kept", tail.len());
    assert_eq!((dropped as usize, first), (all.len() - tail.len(), Some(dropped)));
    assert!(all.as_bytes().ends_with(&tail));
}

/// A terminal is one, has the size that was asked for, and takes a new one.
pub async fn a_terminal_echoes_and_is_resized(stage: &Stage) {
    let handle = stage.create("one").await;
    if !stage.needs_program(&handle, "stty").await {
        return;
    }
    let size = PtySize { cols: 97, rows: 31 };
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size; while read line; do stty size; done";
    let mut process = handle.start(sh(script).with_pty(size)).await.unwrap();
    let mut seen = String::new();
    read_until(&mut process, &mut seen, "31 97\r\n").await;
    process.resize(PtySize { cols: 111, rows: 42 }).await.unwrap();
    process.write("typed\n").await.unwrap();
    read_until(&mut process, &mut seen, "42 111\r\n").await;
    assert!(seen.contains("typed\r\n"), "the terminal echoes: {seen:?}");
    process.write(Bytes::from_static(&[4])).await.unwrap();
    within("the end of input ends it", process.wait()).await.unwrap();
}

async fn read_until(process: &mut crate::Process, seen: &mut String, wanted: &str) {
    within(&format!("{wanted:?} comes"), async {
        while !seen.contains(wanted) {
            match process.next_event().await.unwrap() {
                Some(ProcessEvent::Output { stream, data, .. }) => {
                    assert_eq!(stream, OutputStream::Pty);
                    seen.push_str(&String::from_utf8_lossy(&data));
                }
                other => panic!("the terminal ended with {other:?} after {seen:?}"),
            }
        }
    })
    .await;
}

/// A byte 3 in a terminal interrupts, as on a keyboard.
pub async fn an_interrupt_typed_into_a_terminal_arrives(stage: &Stage) {
    let handle = stage.create("one").await;
    let script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.1; done";
    let mut process = handle.start(sh(script).with_pty(PtySize::default())).await.unwrap();
    let mut seen = String::new();
    read_until(&mut process, &mut seen, "ready").await;
    process.write(Bytes::from_static(&[3])).await.unwrap();
    let exit = within("the interrupt ends it", process.wait()).await.unwrap();
    assert_eq!(exit.code, Some(5));
}

/// A signal by pid reaches the tree as one through the process does.
pub async fn a_signal_by_pid_or_tag_ends_the_tree(stage: &Stage) {
    if !stage.needs(stage.capabilities().signal_tree, "signals to the whole tree") {
        return;
    }
    let handle = stage.create("one").await;
    let mut process = handle.start(sh("sleep 98764 & echo up; wait").with_tag("tree")).await.unwrap();
    output(&mut process, 3).await;
    assert!(handle.signal(ProcessSelector::Tag("tree".to_owned()), Signal::TERM).await.unwrap());
    within("the process ends", process.wait()).await.unwrap();
    eventually("no child is left", || async { (alive(&handle, "sleep 98764").await == 0).then_some(()) })
        .await;
}
