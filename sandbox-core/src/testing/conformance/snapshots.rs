//! Rules about snapshots, forks and what is made from them.

use std::sync::Arc;

use super::Stage;
use crate::{
    CreateOptions, DestroyOutcome, ErrorKind, FileOptions, ForkOptions, Generation, Outcome, ProcessSpec,
    SandboxHandle, SandboxHandleExt, SandboxId, SandboxState, SnapshotFilter, SnapshotId, SnapshotOptions,
    Tags,
};

fn unknown_id() -> SandboxId {
    SandboxId::new(format!("i{}", &Generation::random().unwrap().as_str()[..19]))
}

fn unknown_snapshot() -> SnapshotId {
    SnapshotId::new(format!("snap-{}", Generation::random().unwrap()))
}

async fn made_from(stage: &Stage, snapshot: &SnapshotId, key: &str) -> Arc<dyn SandboxHandle> {
    let mut spec = stage.spec();
    spec.template = snapshot.as_str().to_owned();
    stage.create_with(CreateOptions::new(spec, stage.tags(key))).await
}

async fn is_missing(handle: &Arc<dyn SandboxHandle>, path: &str) -> bool {
    match handle.stat(path, FileOptions::default()).await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            true
        }
    }
}

async fn text(handle: &Arc<dyn SandboxHandle>, path: &str) -> String {
    handle.read_text(path).await.unwrap()
}

async fn listed(stage: &Stage, filter: SnapshotFilter) -> Vec<SnapshotId> {
    let listed = stage.provider().list_snapshots(filter).await.unwrap().collect().await.unwrap();
    listed.into_iter().map(|info| info.id).collect()
}

async fn fork(stage: &Stage, id: &SandboxId, tags: Tags) -> Arc<dyn SandboxHandle> {
    let fork = stage.provider().fork(id, ForkOptions::new(tags)).await.unwrap();
    stage.own(fork.id());
    fork
}

fn can_snapshot(stage: &Stage) -> bool {
    stage.needs(stage.capabilities().snapshot, "snapshots")
}

fn can_fork(stage: &Stage) -> bool {
    stage.needs(stage.capabilities().fork, "forks")
}

/// The id of a snapshot is a template, for any process.
pub async fn a_sandbox_made_from_a_snapshot_has_its_files(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let source = stage.create("source").await;
    source.write_bytes("dir/mark", "here").await.unwrap();
    source.write_bytes("/tmp/mark", "there").await.unwrap();
    let snapshot = stage.snapshot(source.id()).await;
    let mut spec = stage.spec();
    spec.template = snapshot.id.as_str().to_owned();
    let options = CreateOptions::new(spec, stage.tags("made"));
    let made = stage.fresh_provider().await.create_opts(options).await.unwrap();
    stage.own(made.id());
    assert_ne!(made.id(), source.id());
    assert_eq!(text(&made, "dir/mark").await, "here");
    assert_eq!(text(&made, "/tmp/mark").await, "there");
    let output = made.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap();
    assert!(output.exit.success(), "{}", output.exit);
    assert_eq!(stage.info(made.id()).await.template, snapshot.id.as_str());
}

/// Neither its source nor what is made from it writes to it.
pub async fn a_snapshot_stays_as_it_was(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let source = stage.create("source").await;
    source.write_bytes("mark", "first").await.unwrap();
    let snapshot = stage.snapshot(source.id()).await;
    source.write_bytes("mark", "second").await.unwrap();
    let first = made_from(stage, &snapshot.id, "first").await;
    assert_eq!(text(&first, "mark").await, "first");
    first.write_bytes("mark", "third").await.unwrap();
    let second = made_from(stage, &snapshot.id, "second").await;
    assert_eq!(text(&second, "mark").await, "first");
    assert_eq!(text(&source, "mark").await, "second");
    assert_eq!(text(&first, "mark").await, "third");
}

/// It is kept apart from the sandbox.
pub async fn a_snapshot_outlives_its_sandbox(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let source = stage.create("source").await;
    source.write_bytes("mark", "here").await.unwrap();
    let snapshot = stage.snapshot(source.id()).await;
    stage.provider().destroy(source.id()).await.unwrap();
    let made = made_from(stage, &snapshot.id, "made").await;
    assert_eq!(text(&made, "mark").await, "here");
}

/// A snapshot takes nothing from the sandbox.
pub async fn the_source_of_a_snapshot_goes_on(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let source = stage.create("source").await;
    let sleeper = source.start(ProcessSpec::argv("sleep", ["1000"])).await.unwrap();
    stage.snapshot(source.id()).await;
    assert_eq!(stage.info(source.id()).await.state, SandboxState::Running);
    assert!(sleeper.kill().await.unwrap(), "the process runs on");
    source.write_bytes("mark", "here").await.unwrap();
    let output = source.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap();
    assert!(output.exit.success(), "{}", output.exit);
}

/// What was removed stays removed, and what was replaced stays replaced, however often.
pub async fn a_snapshot_holds_the_whole_chain_that_it_stands_on(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let mut sandbox = stage.create("start").await;
    sandbox.write_bytes("kept", "0").await.unwrap();
    for round in 1..4 {
        sandbox.write_bytes(&format!("removed/{round}"), "x").await.unwrap();
        let snapshot = stage.snapshot(sandbox.id()).await;
        sandbox = made_from(stage, &snapshot.id, &format!("round-{round}")).await;
        assert_eq!(text(&sandbox, &format!("removed/{round}")).await, "x");
        sandbox.remove("removed", FileOptions::default()).await.unwrap();
        sandbox.write_bytes("changed", round.to_string()).await.unwrap();
    }
    let snapshot = stage.snapshot(sandbox.id()).await;
    let last = made_from(stage, &snapshot.id, "last").await;
    assert_eq!(text(&last, "kept").await, "0");
    assert_eq!(text(&last, "changed").await, "3");
    assert!(is_missing(&last, "removed").await);
    last.make_dir("removed", FileOptions::default()).await.unwrap();
    for round in 1..4 {
        assert!(is_missing(&last, &format!("removed/{round}")).await, "{round}");
    }
}

/// A listing shows each once, with what it was taken of.
pub async fn snapshots_are_listed_by_sandbox_and_name(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let (one, two) = (stage.create("one").await, stage.create("two").await);
    let first = stage.snapshot(one.id()).await;
    let second = stage.snapshot(two.id()).await;
    let name = format!("named-{}", &Generation::random().unwrap().as_str()[..12]);
    let options = SnapshotOptions::default().with_name(&name);
    let named = stage.provider().snapshot(one.id(), options).await.unwrap();
    stage.own_snapshot(&named.id);
    assert_eq!(named.sandbox.as_ref(), Some(one.id()));
    let of_one = SnapshotFilter::default().with_sandbox(one.id().clone());
    // Only who tells the age of snapshots can list them by it.
    let in_order = |mut ids: Vec<SnapshotId>| {
        if named.created_at.is_none() {
            ids.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        }
        ids
    };
    let both = in_order(vec![first.id.clone(), named.id.clone()]);
    assert_eq!(in_order(listed(stage, of_one.clone()).await), both);
    let all = listed(stage, SnapshotFilter::default()).await;
    for id in [&first.id, &second.id, &named.id] {
        assert_eq!(all.iter().filter(|listed| *listed == id).count(), 1, "{id}");
    }
    // A provider may write a name in its own way; it is found by what the answer says.
    let said = named.names.first().expect("it has a name").clone();
    assert!(said.contains(&name), "{said}");
    assert_eq!(
        listed(stage, SnapshotFilter::default().with_name(said)).await,
        std::slice::from_ref(&named.id)
    );
    stage.provider().destroy(one.id()).await.unwrap();
    assert_eq!(in_order(listed(stage, of_one).await), both);
}

/// Either it is refused while a sandbox stands on it, or that sandbox does not need it.
pub async fn deleting_a_snapshot_harms_no_sandbox(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let source = stage.create("source").await;
    source.write_bytes("mark", "here").await.unwrap();
    let snapshot = stage.snapshot(source.id()).await;
    let made = made_from(stage, &snapshot.id, "made").await;
    match stage.provider().delete_snapshot(&snapshot.id).await {
        Ok(outcome) => assert_eq!(outcome, DestroyOutcome::Destroyed),
        Err(error) => {
            assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("in_use")), "{error}");
            assert_eq!(text(&made, "mark").await, "here");
            stage.provider().destroy(made.id()).await.unwrap();
            let deleted = stage.provider().delete_snapshot(&snapshot.id).await.unwrap();
            assert_eq!(deleted, DestroyOutcome::Destroyed);
            return;
        }
    }
    assert_eq!(text(&made, "mark").await, "here");
}

/// Nothing is made from what is gone.
pub async fn a_deleted_snapshot_is_no_template(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let source = stage.create("source").await;
    let snapshot = stage.snapshot(source.id()).await;
    let deleted = stage.provider().delete_snapshot(&snapshot.id).await.unwrap();
    assert_eq!(deleted, DestroyOutcome::Destroyed);
    let again = stage.fresh_provider().await.delete_snapshot(&snapshot.id).await.unwrap();
    assert_eq!(again, DestroyOutcome::AlreadyGone);
    assert!(listed(stage, SnapshotFilter::default().with_sandbox(source.id().clone())).await.is_empty());
    let mut spec = stage.spec();
    spec.template = snapshot.id.as_str().to_owned();
    let refused = stage.provider().create_opts(CreateOptions::new(spec, stage.tags("made"))).await;
    let error = refused.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::NotFound, Outcome::NotStarted), "{error}");
}

/// What does not exist need not be deleted.
pub async fn delete_of_an_unknown_snapshot_is_already_gone(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let outcome = stage.provider().delete_snapshot(&unknown_snapshot()).await.unwrap();
    assert_eq!(outcome, DestroyOutcome::AlreadyGone);
}

/// There is nothing to take it of.
pub async fn snapshot_of_an_unknown_sandbox_is_gone(stage: &Stage) {
    if !can_snapshot(stage) {
        return;
    }
    let error = stage.provider().snapshot(&unknown_id(), SnapshotOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// A provider that cannot says so.
pub async fn snapshots_without_the_capability_are_unsupported(stage: &Stage) {
    if !stage.needs(!stage.capabilities().snapshot, "a provider without snapshots") {
        return;
    }
    let handle = stage.create("one").await;
    let provider = stage.provider();
    let errors = [
        provider.snapshot(handle.id(), SnapshotOptions::default()).await.map(drop).unwrap_err(),
        provider.list_snapshots(SnapshotFilter::default()).await.map(drop).unwrap_err(),
        provider.delete_snapshot(&unknown_snapshot()).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

/// It begins where its source is, carries its own tags, and goes its own way.
pub async fn a_fork_has_the_files_of_its_source_and_a_life_of_its_own(stage: &Stage) {
    if !can_fork(stage) {
        return;
    }
    let spec = stage.spec().with_env("FROM", "the source");
    let source = stage.create_with(CreateOptions::new(spec, stage.tags("source"))).await;
    source.write_bytes("mark", "shared").await.unwrap();
    let sleeper = source.start(ProcessSpec::argv("sleep", ["1000"])).await.unwrap();
    let tags = stage.tags("fork");
    let forked = fork(stage, source.id(), tags.clone()).await;
    assert_ne!(forked.id(), source.id());
    assert_eq!(forked.generation(), Some(&tags.generation));
    let info = stage.info(forked.id()).await;
    assert_eq!((info.state, info.tags), (SandboxState::Running, Some(tags)));
    assert_eq!(text(&forked, "mark").await, "shared");
    forked.write_bytes("mark", "fork's").await.unwrap();
    source.write_bytes("mark", "source's").await.unwrap();
    assert_eq!(text(&forked, "mark").await, "fork's");
    assert_eq!(text(&source, "mark").await, "source's");
    let output = forked.exec(ProcessSpec::argv("printenv", ["FROM"])).await.unwrap();
    assert_eq!(output.stdout.text(), "the source\n");
    assert!(sleeper.kill().await.unwrap(), "the source's process runs on");
    let again = fork(stage, forked.id(), stage.tags("again")).await;
    assert_eq!(text(&again, "mark").await, "fork's");
}

/// It needs nothing of its source.
pub async fn a_fork_outlives_its_source(stage: &Stage) {
    if !can_fork(stage) {
        return;
    }
    let source = stage.create("source").await;
    source.write_bytes("mark", "here").await.unwrap();
    let forked = fork(stage, source.id(), stage.tags("fork")).await;
    stage.provider().destroy(source.id()).await.unwrap();
    assert_eq!(text(&forked, "mark").await, "here");
    if stage.capabilities().snapshot {
        let left = listed(stage, SnapshotFilter::default().with_sandbox(source.id().clone())).await;
        assert!(left.is_empty(), "a fork leaves no snapshot behind: {left:?}");
    }
}

/// A fork whose answer was lost can be asked for again where the provider knows attempts.
pub async fn forks_of_one_attempt_are_one_sandbox(stage: &Stage) {
    let can = stage.capabilities();
    if !stage.needs(can.fork && can.idempotent_create, "forks and idempotent creates") {
        return;
    }
    let source = stage.create("source").await;
    let tags = stage.tags("fork");
    let first = fork(stage, source.id(), tags.clone()).await;
    first.write_bytes("mark", "here").await.unwrap();
    let second = fork(stage, source.id(), tags).await;
    assert_eq!(first.id(), second.id());
    assert_eq!(text(&second, "mark").await, "here");
    assert_eq!(stage.find_key("fork").await.len(), 1);
}

/// There is nothing to begin from.
pub async fn fork_of_an_unknown_sandbox_is_gone(stage: &Stage) {
    if !can_fork(stage) {
        return;
    }
    let refused = stage.provider().fork(&unknown_id(), ForkOptions::new(stage.tags("fork"))).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// A provider that cannot says so and makes nothing.
pub async fn fork_without_the_capability_is_unsupported(stage: &Stage) {
    if !stage.needs(!stage.capabilities().fork, "a provider without forks") {
        return;
    }
    let source = stage.create("source").await;
    let refused = stage.provider().fork(source.id(), ForkOptions::new(stage.tags("fork"))).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
