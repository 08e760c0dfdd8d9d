//! Rules about pauses and connects that are asked to keep only the files.

use super::Stage;
use crate::{
    ConnectOptions, ErrorKind, Memory, PauseOptions, PauseOutcome, ProcessSpec, SandboxHandleExt,
    SandboxProviderExt, SandboxState,
};

fn files_only() -> PauseOptions {
    PauseOptions::default().with_memory(Memory::Lost)
}

fn anew() -> ConnectOptions {
    ConnectOptions::default().with_memory(Memory::Lost)
}

/// What runs is told by its tag: process ids may be given again.
async fn runs(stage: &Stage, handle: &dyn crate::SandboxHandle, tag: &str) -> bool {
    let listed = handle.processes().await.unwrap();
    let runs = listed.iter().any(|process| process.tag.as_deref() == Some(tag) && process.exit.is_none());
    assert_eq!(stage.info(handle.id()).await.state, SandboxState::Running);
    runs
}

fn sleeper() -> ProcessSpec {
    ProcessSpec::argv("sleep", ["1000"]).with_tag("sleeper")
}

/// It is paused like any other, and comes back with its files and nothing else.
pub async fn a_pause_without_memory_keeps_the_files_and_ends_the_processes(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause_without_memory, "pauses without memory") {
        return;
    }
    let made = stage.create("one").await;
    made.write_bytes("mark", "here").await.unwrap();
    made.start(sleeper()).await.unwrap();
    let outcome = stage.provider().pause_opts(made.id(), files_only()).await.unwrap();
    assert_eq!(outcome, PauseOutcome::Paused);
    assert_eq!(stage.info(made.id()).await.state, SandboxState::Paused);
    let again = stage.fresh_provider().await.pause_opts(made.id(), files_only()).await.unwrap();
    assert_eq!(again, PauseOutcome::AlreadyPaused);
    let connection = stage.fresh_provider().await.connect(made.id()).await.unwrap();
    assert_eq!(connection.resumed, Some(Memory::Lost));
    let handle = connection.handle;
    assert_eq!(handle.read_text("mark").await.unwrap(), "here");
    assert!(!runs(stage, &*handle, "sleeper").await, "the process was ended");
    let generation = made.generation();
    assert_eq!(handle.generation(), generation);
}

/// Whoever connects can give up what the pause kept.
pub async fn a_connect_without_memory_starts_a_paused_sandbox_anew(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause_without_memory, "pauses without memory") {
        return;
    }
    let made = stage.create("one").await;
    made.write_bytes("mark", "here").await.unwrap();
    made.start(sleeper()).await.unwrap();
    stage.provider().pause(made.id()).await.unwrap();
    let connection = stage.provider().connect_opts(made.id(), anew()).await.unwrap();
    assert_eq!(connection.resumed, Some(Memory::Lost));
    assert_eq!(connection.handle.read_text("mark").await.unwrap(), "here");
    assert!(!runs(stage, &*connection.handle, "sleeper").await, "the process was ended");
}

/// It is about how a paused one resumes.
pub async fn a_connect_without_memory_leaves_a_running_sandbox_alone(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause_without_memory, "pauses without memory") {
        return;
    }
    let made = stage.create("one").await;
    made.start(sleeper()).await.unwrap();
    let connection = stage.provider().connect_opts(made.id(), anew()).await.unwrap();
    assert_eq!(connection.resumed, None);
    assert!(runs(stage, &*connection.handle, "sleeper").await, "the process runs on");
}

/// A provider that cannot says so and leaves the sandbox as it is.
pub async fn memory_cannot_be_given_up_without_the_capability(stage: &Stage) {
    if !stage.needs(!stage.capabilities().pause_without_memory, "a provider without this") {
        return;
    }
    let handle = stage.create("one").await;
    let errors = [
        stage.provider().pause_opts(handle.id(), files_only()).await.unwrap_err(),
        stage.provider().connect_opts(handle.id(), anew()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    assert_eq!(stage.info(handle.id()).await.state, SandboxState::Running);
}
