//! The start command of a template: what makes its sandboxes serve.
//!
//! A snapshot keeps files and no processes. So the command is tried once at the end of the build, and runs anew in each
//! sandbox, right after its creation.

use std::time::Duration;

use sandhold_core::{
    AttachOptions, Error, ErrorKind, ExecOptions, ProcessEvent, ProcessSelector, ProcessSpec, SandboxHandle,
    SandboxHandleExt,
};
use sandhold_envd::START_TAG;

use super::log::Lines;
use super::record::StartCommands;
use super::session::{Voice, shell};
use super::steps::{refusal, succeeded};

/// How long a start command may fail in a build when nothing says that it is ready, as in E2B.
const SETTLE: Duration = Duration::from_secs(20);
/// How long it may take until it is ready, as in E2B.
const READY_LIMIT: Duration = Duration::from_secs(600);
/// The time between two looks whether it is ready.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

fn spec(line: &str, commands: &StartCommands) -> ProcessSpec {
    let context = &commands.context;
    let spec = shell(line, context, &context.user);
    match &context.workdir {
        Some(workdir) => spec.with_cwd(workdir),
        None => spec,
    }
}

/// Tries the commands in the sandbox of a build, or says what failed.
pub(crate) async fn try_out(
    handle: &dyn SandboxHandle,
    commands: &StartCommands,
    voice: Voice<'_>,
) -> Result<(), String> {
    let running = async {
        let Some(line) = &commands.start else { return std::future::pending().await };
        let mut process = match handle.start(spec(line, commands)).await {
            Ok(process) => process,
            Err(error) => return Err(refusal(&error, &commands.context.user)),
        };
        let mut lines = Lines::default();
        loop {
            match process.next_event().await {
                Ok(Some(ProcessEvent::Output { stream, data, .. })) => {
                    lines.push(&data, |line| voice.output(stream, &line));
                }
                Ok(Some(ProcessEvent::Exit(exit))) if exit.success() => return Ok(()),
                Ok(Some(ProcessEvent::Exit(exit))) => return Err(exit.to_string()),
                Ok(_) => return Err("its output ended without an exit".to_owned()),
                Err(error) => return Err(error.message().to_owned()),
            }
        }
    };
    let ready = async {
        match (&commands.ready, &commands.start) {
            (Some(_), _) => until_ready(handle, commands, READY_LIMIT).await,
            (None, Some(_)) => {
                tokio::time::sleep(SETTLE).await;
                Ok(())
            }
            (None, None) => Ok(()),
        }
    };
    let mut ready = std::pin::pin!(ready);
    tokio::select! {
        ended = running => {
            ended.map_err(|why| format!("start command failed: {why}"))?;
            // One that ends well has done its work, and nothing is left that could fail.
            if commands.ready.is_some() { ready.await } else { Ok(()) }
        }
        outcome = &mut ready => outcome,
    }
}

/// Starts the start command in a sandbox, where there is one that was not started in its present memory: a server may
/// have died before it noted the start. Its process is named for that, and a daemon remembers how it ended.
///
/// # Errors
/// What failed.
pub(crate) async fn begin(handle: &dyn SandboxHandle, commands: &StartCommands) -> Result<(), String> {
    let Some(line) = &commands.start else { return Ok(()) };
    let failed = |error: Error| format!("start command failed: {}", refusal(&error, &commands.context.user));
    // Dropping the process leaves it alone.
    match handle.attach(ProcessSelector::Tag(START_TAG.to_owned()), AttachOptions::default()).await {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    handle.start(spec(line, commands).with_tag(START_TAG)).await.map(drop).map_err(failed)
}

/// Waits until the ready command succeeds, at most so long.
///
/// # Errors
/// What failed; at once where the sandbox is no more.
pub(crate) async fn until_ready(
    handle: &dyn SandboxHandle,
    commands: &StartCommands,
    limit: Duration,
) -> Result<(), String> {
    let Some(line) = &commands.ready else { return Ok(()) };
    let look = async {
        loop {
            let options = ExecOptions::default().with_timeout(limit);
            let output = handle.exec_opts(spec(line, commands), options).await;
            let gone = matches!(&output, Err(error) if error.kind() == ErrorKind::Gone);
            match succeeded(output, &commands.context.user) {
                Ok(_) => return Ok(()),
                Err(why) if gone => return Err(format!("ready {why}")),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    };
    tokio::time::timeout(limit, look).await.unwrap_or_else(|_| {
        Err(format!("ready command failed: {line:?} did not succeed within {} s", limit.as_secs()))
    })
}
