//! Rules about how a sandbox rests and ends: pauses, leases, destroys.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::verbs::unknown_id;
use super::{Stage, eventually};
use crate::{
    ConnectOptions, CreateOptions, DestroyOutcome, ErrorKind, FileOptions, OnExpiry, Outcome, PauseOutcome,
    ProcessSpec, REASON_PAUSED, SandboxHandle, SandboxHandleExt, SandboxProviderExt, SandboxState,
    WatchOptions,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A lease that the provider allows, at most this long.
fn lease(stage: &Stage, wanted: Duration) -> Duration {
    stage.capabilities().max_lease.map_or(wanted, |max| wanted.min(max))
}

async fn leased(stage: &Stage, lease: Duration, on_expiry: OnExpiry) -> Arc<dyn SandboxHandle> {
    let spec = stage.spec().with_lease(lease).with_on_expiry(on_expiry);
    stage.create_with(CreateOptions::new(spec, stage.tags("one"))).await
}

async fn expiry(stage: &Stage, handle: &Arc<dyn SandboxHandle>) -> SystemTime {
    stage.info(handle.id()).await.expires_at.expect("a sandbox with a lease tells its end")
}

/// A connect that asks for a short lease leaves a longer one alone.
pub async fn connect_never_shortens_the_lease(stage: &Stage) {
    if !stage.needs(stage.capabilities().lease, "leases") {
        return;
    }
    let handle = leased(stage, lease(stage, 50 * MINUTE), OnExpiry::Kill).await;
    let before = expiry(stage, &handle).await;
    for options in [ConnectOptions::default().with_lease(MINUTE), ConnectOptions::default()] {
        stage.provider().connect_opts(handle.id(), options).await.unwrap();
        // A provider may keep whole seconds.
        assert!(expiry(stage, &handle).await >= before - Duration::from_secs(1));
    }
}

/// A connect that asks for a longer lease gets it.
pub async fn connect_extends_the_lease(stage: &Stage) {
    if !stage.needs(stage.capabilities().lease, "leases") {
        return;
    }
    let handle = leased(stage, lease(stage, 50 * MINUTE) / 2, OnExpiry::Kill).await;
    let before = expiry(stage, &handle).await;
    let longer = lease(stage, 50 * MINUTE);
    let options = ConnectOptions::default().with_lease(longer);
    stage.provider().connect_opts(handle.id(), options).await.unwrap();
    assert!(expiry(stage, &handle).await >= before + longer / 4);
}

/// The second pause changes nothing and says so.
pub async fn pause_is_idempotent_and_says_which(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause, "pause") {
        return;
    }
    let handle = stage.create("one").await;
    assert_eq!(stage.provider().pause(handle.id()).await.unwrap(), PauseOutcome::Paused);
    assert_eq!(stage.info(handle.id()).await.state, SandboxState::Paused);
    assert_eq!(stage.provider().pause(handle.id()).await.unwrap(), PauseOutcome::AlreadyPaused);
    stage.provider().connect(handle.id()).await.unwrap();
    assert_eq!(stage.provider().pause(handle.id()).await.unwrap(), PauseOutcome::Paused);
}

/// What does not exist cannot be paused.
pub async fn pause_of_an_unknown_id_is_gone(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause, "pause") {
        return;
    }
    let error = stage.provider().pause(&unknown_id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// While a sandbox is paused every call on an old handle says so and does nothing; a new connect is the way on.
pub async fn calls_on_a_paused_sandbox_say_so_and_do_nothing(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause, "pause") {
        return;
    }
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/before", "1").await.unwrap();
    stage.provider().pause(handle.id()).await.unwrap();
    let errors = [
        handle.start(ProcessSpec::argv("true", [""; 0])).await.unwrap_err(),
        handle.write_bytes("/tmp/while", "2").await.unwrap_err(),
        handle.read_bytes("/tmp/before").await.unwrap_err(),
        handle.stat("/tmp/before", FileOptions::default()).await.unwrap_err(),
        handle.watch("/tmp", WatchOptions::default()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidState, Some(REASON_PAUSED)), "{error}");
        assert_eq!(error.outcome(), Outcome::NotStarted, "{error}");
    }
    assert_eq!(stage.info(handle.id()).await.state, SandboxState::Paused);
    let again = stage.provider().connect(handle.id()).await.unwrap().handle;
    assert_eq!(again.read_bytes("/tmp/before").await.unwrap(), b"1");
    assert!(!again.exists("/tmp/while").await.unwrap());
}

/// A provider that cannot pause says so and leaves the sandbox running.
pub async fn pause_without_the_capability_is_unsupported_and_changes_nothing(stage: &Stage) {
    if !stage.needs(!stage.capabilities().pause, "a provider without pause") {
        return;
    }
    let handle = stage.create("one").await;
    let error = stage.provider().pause(handle.id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(stage.info(handle.id()).await.state, SandboxState::Running);
}

/// The second destroy finds nothing and says so.
pub async fn destroy_is_idempotent_and_says_which(stage: &Stage) {
    let handle = stage.create("one").await;
    assert_eq!(stage.provider().destroy(handle.id()).await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!(stage.provider().destroy(handle.id()).await.unwrap(), DestroyOutcome::AlreadyGone);
}

/// What does not exist need not be destroyed.
pub async fn destroy_of_an_unknown_id_is_already_gone(stage: &Stage) {
    assert_eq!(stage.provider().destroy(&unknown_id()).await.unwrap(), DestroyOutcome::AlreadyGone);
}

/// A paused sandbox is destroyed by its id.
pub async fn destroy_ends_a_paused_sandbox(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause, "pause") {
        return;
    }
    let handle = stage.create("one").await;
    stage.provider().pause(handle.id()).await.unwrap();
    assert_eq!(stage.provider().destroy(handle.id()).await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!(stage.provider().find_id(handle.id()).await.unwrap(), None);
}

/// After a destroy every verb and every handle says so in the same word.
pub async fn a_destroyed_sandbox_is_gone_on_every_verb(stage: &Stage) {
    let can = stage.capabilities();
    let handle = stage.create("one").await;
    stage.provider().destroy(handle.id()).await.unwrap();
    let id = handle.id();
    assert_eq!(stage.provider().find_id(id).await.unwrap(), None);
    let mut errors = vec![
        ("connect", stage.provider().connect(id).await.map(drop).unwrap_err()),
        ("info", handle.info().await.map(drop).unwrap_err()),
        ("exec", handle.exec(ProcessSpec::argv("true", [""; 0])).await.map(drop).unwrap_err()),
        ("read", handle.read_bytes("/etc/passwd").await.map(drop).unwrap_err()),
        ("write", handle.write_bytes("/tmp/x", "x").await.map(drop).unwrap_err()),
        ("list", handle.list_dir("/").await.map(drop).unwrap_err()),
    ];
    if can.pause {
        errors.push(("pause", stage.provider().pause(id).await.map(drop).unwrap_err()));
    }
    if can.lease {
        errors.push(("set_lease", stage.provider().set_lease(id, MINUTE).await.unwrap_err()));
    }
    for (verb, error) in errors {
        assert_eq!(error.kind(), ErrorKind::Gone, "{verb}: {error}");
    }
}

/// A lease can be cut short, unlike by connect.
pub async fn set_lease_takes_a_shorter_value(stage: &Stage) {
    if !stage.needs(stage.capabilities().lease, "leases") {
        return;
    }
    let long = lease(stage, 50 * MINUTE);
    let handle = leased(stage, long, OnExpiry::Kill).await;
    let before = expiry(stage, &handle).await;
    stage.provider().set_lease(handle.id(), long / 2).await.unwrap();
    assert!(expiry(stage, &handle).await <= before - long / 4);
    stage.provider().set_lease(handle.id(), long).await.unwrap();
    assert!(expiry(stage, &handle).await >= before - Duration::from_secs(1));
}

/// A lease of zero ends a sandbox that is to die with it.
pub async fn set_lease_zero_kills_a_sandbox_that_dies_at_its_end(stage: &Stage) {
    if !stage.needs(stage.capabilities().lease, "leases") {
        return;
    }
    let handle = leased(stage, lease(stage, 50 * MINUTE), OnExpiry::Kill).await;
    stage.provider().set_lease(handle.id(), Duration::ZERO).await.unwrap();
    eventually("the sandbox dies", || async {
        stage.provider().find_id(handle.id()).await.unwrap().is_none().then_some(())
    })
    .await;
}

/// A lease of zero pauses a sandbox that is to be kept, and a connect brings it back with its files.
pub async fn set_lease_zero_pauses_a_sandbox_that_is_kept_at_its_end(stage: &Stage) {
    let can = stage.capabilities();
    if !stage.needs(can.lease && can.pause, "leases and pause") {
        return;
    }
    let handle = leased(stage, lease(stage, 50 * MINUTE), OnExpiry::Pause).await;
    handle.write_bytes("mark", "here").await.unwrap();
    stage.provider().set_lease(handle.id(), Duration::ZERO).await.unwrap();
    eventually("the sandbox is paused", || async {
        (stage.info(handle.id()).await.state == SandboxState::Paused).then_some(())
    })
    .await;
    let options = ConnectOptions::default().with_lease(lease(stage, 50 * MINUTE));
    let connection = stage.provider().connect_opts(handle.id(), options).await.unwrap();
    assert!(connection.resumed.is_some());
    assert_eq!(connection.handle.read_text("mark").await.unwrap(), "here");
}

/// What does not exist has no lease.
pub async fn set_lease_of_an_unknown_id_is_gone(stage: &Stage) {
    if !stage.needs(stage.capabilities().lease, "leases") {
        return;
    }
    let error = stage.provider().set_lease(&unknown_id(), MINUTE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// A provider without leases says so.
pub async fn set_lease_without_the_capability_is_unsupported(stage: &Stage) {
    if !stage.needs(!stage.capabilities().lease, "a provider without leases") {
        return;
    }
    let handle = stage.create("one").await;
    let error = stage.provider().set_lease(handle.id(), MINUTE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
