//! Rules about processes that need no more than the simplest programs: `true`, `cat`, `echo`, `printenv`, `sleep` and
//! `sh -c 'exit N'`.

use std::time::Duration;

use bytes::Bytes;

use super::{Stage, eventually, within};
use crate::{
    AttachOptions, CreateOptions, ErrorKind, ExecOptions, Process, ProcessEvent, ProcessSelector,
    ProcessSpec, ReplayFrom, SandboxHandleExt, Signal, Stdin,
};

fn argv(program: &str, args: &[&str]) -> ProcessSpec {
    ProcessSpec::argv(program, args.iter().copied())
}

/// Reads output until there are so many bytes.
pub(super) async fn output(process: &mut Process, bytes: usize) -> Vec<u8> {
    within("the output comes", async {
        let mut seen = Vec::new();
        while seen.len() < bytes {
            match process.next_event().await.unwrap() {
                Some(ProcessEvent::Output { data, .. }) => seen.extend_from_slice(&data),
                other => panic!("the process ended early with {other:?}, after {seen:?}"),
            }
        }
        seen
    })
    .await
}

/// A non-zero exit is a result.
pub async fn an_exit_code_is_a_result(stage: &Stage) {
    let handle = stage.create("one").await;
    for code in [0, 1, 7, 127, 255] {
        let exit = handle.exec(argv("/bin/sh", &["-c", &format!("exit {code}")])).await.unwrap().exit;
        assert_eq!((exit.code, exit.signal, exit.timed_out), (Some(code), None, false));
    }
    assert_eq!(handle.exec(argv("false", &[])).await.unwrap().exit.code, Some(1));
}

/// A death by signal is told as one, and not as an exit code.
pub async fn a_death_by_signal_has_its_own_field(stage: &Stage) {
    let handle = stage.create("one").await;
    for signal in [Signal::KILL, Signal::TERM] {
        let mut process = handle.start(argv("sleep", &["1000"])).await.unwrap();
        assert!(process.control().signal(signal).await.unwrap());
        let exit = within("the process ends", process.wait()).await.unwrap();
        assert_eq!((exit.code, exit.signal, exit.timed_out), (None, Some(signal.0), false));
    }
}

/// A command that reads its input finds the end of it, unless input was promised.
pub async fn stdin_is_closed_unless_asked_for(stage: &Stage) {
    let handle = stage.create("one").await;
    let output = within("cat ends", handle.exec(argv("cat", &[]))).await.unwrap();
    assert_eq!((output.exit.code, output.stdout.bytes.as_slice()), (Some(0), b"".as_slice()));
    let process = handle.start(argv("sleep", &["1000"])).await.unwrap();
    let error = process.write("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    process.close_stdin().await.unwrap();
}

/// Promised input stays open until it is closed; then comes its end.
pub async fn stdin_stays_open_until_it_is_closed(stage: &Stage) {
    let handle = stage.create("one").await;
    let mut process = handle.start(argv("cat", &[]).with_stdin(Stdin::Open)).await.unwrap();
    for text in ["one", "two", "é漢😀"] {
        process.write(text).await.unwrap();
        assert_eq!(output(&mut process, text.len()).await, text.as_bytes());
    }
    process.close_stdin().await.unwrap();
    // A second time is no error; by then the program may have ended.
    if let Err(error) = process.close_stdin().await {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert!(within("cat ends", process.wait()).await.unwrap().success());
    assert_eq!(process.write("late").await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Input that is larger than any buffer arrives whole while output flows back.
pub async fn large_input_arrives_whole(stage: &Stage) {
    if !stage.needs(stage.capabilities().binary_exec, "binary_exec") {
        return;
    }
    let handle = stage.create("one").await;
    let input: Bytes = (0..500_000u32).flat_map(u32::to_le_bytes).collect();
    let options = ExecOptions::default().with_stdin(input.clone()).with_output_limit(4 << 20);
    let output = handle.exec_opts(argv("cat", &[]), options).await.unwrap();
    assert!(output.exit.success());
    assert!(output.stdout.bytes == input, "{} bytes came back, not the same ones", output.stdout.bytes.len());
}

/// A directory that is not there is refused and named.
pub async fn a_missing_working_directory_is_invalid_argument(stage: &Stage) {
    let handle = stage.create("one").await;
    let error = handle.start(argv("true", &[]).with_cwd("/no/such/dir")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("/no/such/dir"), "{error}");
    handle.write_bytes("/tmp/here/file", "x").await.unwrap();
    let output = handle.exec(argv("cat", &["file"]).with_cwd("/tmp/here")).await.unwrap();
    assert_eq!(output.stdout.text(), "x");
}

/// A program that is not there is refused and named.
pub async fn an_unknown_program_is_invalid_argument(stage: &Stage) {
    let handle = stage.create("one").await;
    for program in ["no-such-program", "/no/such/program", ""] {
        let error = handle.start(argv(program, &[])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(program), "{error}");
    }
}

/// What no program can be given is refused, and the message names it.
pub async fn nul_and_equals_are_refused_and_named(stage: &Stage) {
    let handle = stage.create("one").await;
    for (spec, named) in [
        (argv("echo", &["bad\0arg"]), "bad"),
        (argv("true", &[]).with_env("BAD=NAME", "x"), "BAD=NAME"),
        (argv("true", &[]).with_env("BAD\0NAME", "x"), "BAD"),
        (argv("true", &[]).with_env("BADVALUE", "a\0b"), "BADVALUE"),
        (argv("true", &[]).with_env("", "x"), "\"\""),
    ] {
        let error = handle.start(spec).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(named), "{named:?} is not in: {error}");
    }
}

/// A user that does not exist runs nothing.
pub async fn a_command_as_an_unknown_user_is_unauthenticated(stage: &Stage) {
    let handle = stage.create("one").await;
    let error = handle.start(argv("true", &[]).with_user("nobody-at-all")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
}

/// Variables of the process are laid over those of the sandbox.
pub async fn variables_of_a_process_win_over_those_of_the_sandbox(stage: &Stage) {
    let spec = stage.spec().with_env("BOTH", "sandbox").with_env("BELOW", "sandbox");
    let handle = stage.create_with(CreateOptions::new(spec, stage.tags("one"))).await;
    for (name, value) in [("BOTH", "process"), ("BELOW", "sandbox"), ("ABOVE", "process")] {
        let spec = argv("printenv", &[name]).with_env("BOTH", "process").with_env("ABOVE", "process");
        assert_eq!(handle.exec(spec).await.unwrap().stdout.text(), format!("{value}\n"), "{name}");
    }
    let unset = handle.exec(argv("printenv", &["ABOVE"])).await.unwrap();
    assert_eq!(unset.exit.code, Some(1), "a variable of one process is not seen by the next");
}

/// A deadline ends a foreground command and is told beside the output so far.
pub async fn a_foreground_deadline_is_a_result(stage: &Stage) {
    let handle = stage.create("one").await;
    let options = ExecOptions::default().with_timeout(Duration::from_millis(300));
    let output = handle.exec_opts(argv("sleep", &["1000"]), options).await.unwrap();
    assert!(output.exit.timed_out, "{:?}", output.exit);
    assert!(!output.exit.success());
}

/// Whoever stops waiting for a foreground command has it killed.
pub async fn a_cancelled_foreground_command_is_killed(stage: &Stage) {
    let handle = stage.create("one").await;
    let waiting = tokio::spawn({
        let handle = std::sync::Arc::clone(&handle);
        async move { handle.exec(argv("sleep", &["1000"]).with_tag("cancelled")).await }
    });
    let is_there = || async {
        let processes = handle.processes().await.unwrap();
        processes.iter().any(|process| process.tag.as_deref() == Some("cancelled") && process.exit.is_none())
    };
    eventually("the command runs", || async { is_there().await.then_some(()) }).await;
    waiting.abort();
    eventually("the command is killed", || async { (!is_there().await).then_some(()) }).await;
}

/// Whoever lets go of a process leaves it running; another finds it by pid or by tag, with its input.
pub async fn a_dropped_process_runs_on_and_is_attached_by_pid_and_tag(stage: &Stage) {
    let handle = stage.create("one").await;
    let spec = argv("cat", &[]).with_stdin(Stdin::Open).with_tag("kept");
    let pid = handle.start(spec).await.unwrap().pid();
    for selector in [ProcessSelector::Pid(pid), ProcessSelector::Tag("kept".to_owned())] {
        let by_pid = matches!(selector, ProcessSelector::Pid(_));
        let connection = stage.provider().connect_opts(handle.id(), Default::default()).await.unwrap();
        let mut attached = connection.handle.attach(selector, AttachOptions::default()).await.unwrap();
        assert_eq!(attached.pid(), pid);
        // A wire that answers with the pid alone cannot tell the tag of a process that was found by its pid.
        assert!(attached.tag() == Some("kept") || by_pid && attached.tag().is_none(), "{:?}", attached.tag());
        attached.write("hello").await.unwrap();
        assert_eq!(output(&mut attached, 5).await, b"hello");
    }
    let mut attached = handle.attach(ProcessSelector::Pid(pid), AttachOptions::default()).await.unwrap();
    attached.close_stdin().await.unwrap();
    assert!(within("cat ends", attached.wait()).await.unwrap().success());
}

/// What never ran is not found, by tag or by number.
pub async fn attach_to_an_unknown_process_is_not_found(stage: &Stage) {
    let handle = stage.create("one").await;
    for selector in [ProcessSelector::Tag("never".to_owned()), ProcessSelector::Pid(4_000_000)] {
        let error = handle.attach(selector.clone(), AttachOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{selector}: {error}");
        assert!(!handle.signal(selector, Signal::KILL).await.unwrap());
    }
}

/// One that has just ended is either forgotten, or tells its exit again; never another.
pub async fn attach_to_an_ended_process_tells_its_exit_or_is_not_found(stage: &Stage) {
    let handle = stage.create("one").await;
    let mut ended = handle.start(argv("false", &[])).await.unwrap();
    let exit = within("the process ends", ended.wait()).await.unwrap();
    match handle.attach(ProcessSelector::Pid(ended.pid()), AttachOptions::default()).await {
        Ok(mut late) => assert_eq!(within("the exit is told again", late.wait()).await.unwrap(), exit),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
    }
    assert!(!handle.signal(ProcessSelector::Pid(ended.pid()), Signal::KILL).await.unwrap());
}

/// Running processes are listed as they were started.
pub async fn processes_lists_what_runs(stage: &Stage) {
    let handle = stage.create("one").await;
    let process = handle.start(argv("sleep", &["1000"]).with_tag("listed").with_cwd("/tmp")).await.unwrap();
    let pid = process.pid();
    let listed = handle.processes().await.unwrap();
    let info = listed.iter().find(|info| info.pid == pid).expect("it is listed");
    assert_eq!((info.tag.as_deref(), info.exit), (Some("listed"), None));
    assert_eq!(info.argv, ["sleep", "1000"]);
    assert_eq!(info.cwd.as_deref(), Some("/tmp"));
    assert!(process.kill().await.unwrap());
    eventually("it is listed no more", || async {
        let listed = handle.processes().await.unwrap();
        (!listed.iter().any(|info| info.pid == pid)).then_some(())
    })
    .await;
}

/// Kept output and the exit are there after the end, from any position, until they are released.
pub async fn kept_output_is_replayed_after_the_exit(stage: &Stage) {
    let can = stage.capabilities().retained_output;
    if !stage.needs(can, "retained output") {
        return;
    }
    let handle = stage.create("one").await;
    let spec = argv("echo", &["abcdefgh"]).with_retain(1000).with_tag("kept");
    let mut process = handle.start(spec).await.unwrap();
    let selector = ProcessSelector::Pid(process.pid());
    within("echo ends", process.wait()).await.unwrap();
    drop(process);
    for from in [0u64, 3, 9] {
        let options = AttachOptions::default().with_replay(ReplayFrom::start().with_stdout(from));
        let mut replay = handle.attach(selector.clone(), options).await.unwrap();
        let mut text = Vec::new();
        let exit = within("the replay ends", async {
            loop {
                match replay.next_event().await.unwrap().expect("an exit comes") {
                    ProcessEvent::Output { data, offset, dropped, .. } => {
                        assert_eq!((offset, dropped), (from + text.len() as u64, 0));
                        text.extend_from_slice(&data);
                    }
                    ProcessEvent::Exit(exit) => return exit,
                }
            }
        })
        .await;
        assert_eq!(text, b"abcdefgh\n"[from as usize..]);
        assert!(exit.success());
    }
    assert!(
        handle.processes().await.unwrap().iter().any(|info| info.exit.is_some_and(|exit| exit.success()))
    );
    assert!(handle.release(selector.clone()).await.unwrap());
    assert!(!handle.release(selector.clone()).await.unwrap());
    let error = handle.attach(selector, AttachOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

/// What runs cannot be released.
pub async fn a_running_process_is_not_released(stage: &Stage) {
    if !stage.needs(stage.capabilities().retained_output, "retained output") {
        return;
    }
    let handle = stage.create("one").await;
    let process = handle.start(argv("sleep", &["1000"]).with_retain(1000)).await.unwrap();
    let error = handle.release(ProcessSelector::Pid(process.pid())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
}

/// A provider that keeps no output says so when asked for a replay.
pub async fn replay_without_the_capability_is_unsupported(stage: &Stage) {
    if !stage.needs(!stage.capabilities().retained_output, "a provider without retained output") {
        return;
    }
    let handle = stage.create("one").await;
    let process = handle.start(argv("sleep", &["1000"])).await.unwrap();
    let options = AttachOptions::default().with_replay(ReplayFrom::start());
    let error = handle.attach(ProcessSelector::Pid(process.pid()), options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
