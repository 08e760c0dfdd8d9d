//! Rules about the end of a sandbox while it is used: whoever waits hears `gone`, and soon.

use std::sync::Arc;

use super::{Stage, eventually, within};
use crate::{
    DestroyOutcome, Error, ErrorKind, ExecOptions, FileOptions, Process, ProcessSpec, ReadOptions,
    SandboxHandle, SandboxHandleExt, WatchOptions,
};

fn sleeper(tag: &str) -> ProcessSpec {
    ProcessSpec::argv("sleep", ["1000"]).with_tag(tag)
}

async fn runs(handle: &Arc<dyn SandboxHandle>, count: usize) {
    eventually("the commands run", || async {
        let running =
            handle.processes().await.unwrap().iter().filter(|process| process.exit.is_none()).count();
        (running >= count).then_some(())
    })
    .await;
}

async fn end_of(mut process: Process) -> Error {
    process.wait().await.expect_err("a command of a destroyed sandbox has no exit")
}

fn assert_gone(what: &str, error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Gone, "{what}: {error}");
}

/// Foreground commands end with `gone`, never with an exit that nobody saw.
pub async fn destroy_ends_foreground_commands_with_gone(stage: &Stage) {
    let handle = stage.create("one").await;
    let commands: Vec<_> = (0..16)
        .map(|number| {
            let handle = Arc::clone(&handle);
            let options = ExecOptions::default().with_timeout(std::time::Duration::ZERO);
            tokio::spawn(async move { handle.exec_opts(sleeper(&format!("s{number}")), options).await })
        })
        .collect();
    runs(&handle, 16).await;
    stage.provider().destroy(handle.id()).await.unwrap();
    for command in commands {
        let error = within("the command ends", command).await.unwrap().unwrap_err();
        assert_gone("exec", &error);
    }
}

/// So do followed processes, those attached to as well, and their input.
pub async fn destroy_ends_followed_processes_with_gone(stage: &Stage) {
    let handle = stage.create("one").await;
    let process = handle.start(sleeper("one")).await.unwrap();
    let attached = handle
        .attach(crate::ProcessSelector::Pid(process.pid()), crate::AttachOptions::default())
        .await
        .unwrap();
    let control = process.control();
    stage.provider().destroy(handle.id()).await.unwrap();
    assert_gone("start", &within("the process ends", end_of(process)).await);
    assert_gone("attach", &within("the attached one ends", end_of(attached)).await);
    assert_gone("signal", &control.signal(crate::Signal::KILL).await.unwrap_err());
}

/// A watch ends with `gone`, perhaps after events of the removal.
pub async fn destroy_ends_a_watch_with_gone(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.make_dir("/tmp/watched", FileOptions::default()).await.unwrap();
    let mut events = handle.watch("/tmp/watched", WatchOptions::default()).await.unwrap();
    stage.provider().destroy(handle.id()).await.unwrap();
    let error = within("the watch ends", async {
        loop {
            if let Err(error) = events.next().await.expect("a watch does not end without a word") {
                return error;
            }
        }
    })
    .await;
    assert_gone("watch", &error);
}

/// A read that is under way brings the whole file or an error, never a short file.
pub async fn destroy_never_shortens_a_read(stage: &Stage) {
    const SIZE: usize = 16 << 20;
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/large", vec![7; SIZE]).await.unwrap();
    let mut body = handle.read("/tmp/large", ReadOptions::default()).await.unwrap().body;
    let mut read = body.next().await.unwrap().unwrap().len();
    stage.provider().destroy(handle.id()).await.unwrap();
    within("the read ends", async {
        loop {
            match body.next().await {
                Some(Ok(chunk)) => read += chunk.len(),
                Some(Err(error)) => return assert_gone("read", &error),
                // What was on its way may still arrive, but then all of it.
                None => return assert_eq!(read, SIZE, "a short file without an error"),
            }
        }
    })
    .await;
}

/// However many destroy at once, it is destroyed, and nobody is told of a failure.
pub async fn concurrent_destroys_all_succeed(stage: &Stage) {
    let handle = stage.create("one").await;
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (provider, id) = (Arc::clone(stage.provider()), handle.id().clone());
            tokio::spawn(async move { provider.destroy(&id).await })
        })
        .collect();
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(within("the destroy ends", call).await.unwrap().unwrap());
    }
    assert!(outcomes.contains(&DestroyOutcome::Destroyed));
    assert_gone("info", &handle.info().await.unwrap_err());
}
