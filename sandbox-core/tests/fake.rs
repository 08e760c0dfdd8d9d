//! The fake keeps its script, and counts what happened at its side.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Reply, Verb};
use sandhold_core::{
    Attempt, CreateOptions, Error, ErrorKind, ExecOptions, FindQuery, Generation, Key, ListFilter, Memory,
    OnExpiry, Outcome, Owner, ProcessSpec, SandboxHandleExt, SandboxProvider, SandboxProviderExt,
    SandboxSpec, SandboxState, Tags,
};
use tokio::time::{Instant, advance, timeout};

fn tags(key: &str) -> Tags {
    Tags {
        owner: Owner::default(),
        key: Key::new(key).unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    }
}

fn create(key: &str) -> CreateOptions {
    CreateOptions::new(SandboxSpec::default(), tags(key))
}

fn by_key(key: &str) -> FindQuery {
    FindQuery::Key { owner: Owner::default(), key: Key::new(key).unwrap(), attempt: None }
}

fn unauthenticated() -> Error {
    Error::new(ErrorKind::Unauthenticated, "the token is not known")
}

#[tokio::test]
async fn a_fault_before_the_commit_makes_nothing() {
    let fake = FakeProvider::new();
    fake.script(Verb::Create, Fault::Before(unauthenticated()));
    let error = fake.create_opts(create("one")).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unauthenticated, "create"));
    assert_eq!((fake.counts().created, fake.counts().of(Verb::Create)), (0, 1));
    fake.create_opts(create("one")).await.unwrap();
    assert_eq!(fake.counts().created, 1);
}

#[tokio::test]
async fn a_lost_answer_leaves_a_sandbox_that_its_attempt_finds() {
    let fake = FakeProvider::new();
    fake.script(Verb::Create, Fault::reset_after());
    let options = create("one");
    let error = fake.create_opts(options.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown));
    let Tags { owner, key, attempt, .. } = options.tags;
    assert_eq!(fake.counts().created_for(&owner, &key), 1);
    // Another process asks.
    let query = FindQuery::Key { owner, key, attempt: Some(attempt) };
    assert_eq!(fake.clone().find(query).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_create_ends_at_its_deadline_with_an_unknown_outcome() {
    for (fault, made) in [(Fault::HangBefore, 0), (Fault::HangAfter, 1)] {
        let fake = FakeProvider::new();
        fake.script(Verb::Create, fault);
        let started = Instant::now();
        let options = create("one").with_deadline(Duration::from_secs(7));
        let error = fake.create_opts(options).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::Unknown));
        assert_eq!((started.elapsed().as_secs(), fake.counts().created), (7, made));
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_commit_happens_after_its_caller_has_left() {
    let fake = FakeProvider::new();
    fake.script(Verb::Create, Fault::CommitLate(Duration::from_secs(20)));
    let left = timeout(Duration::from_secs(5), fake.create_opts(create("one"))).await;
    assert!(left.is_err());
    assert_eq!(fake.find(by_key("one")).await.unwrap().len(), 0);
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert_eq!(fake.find(by_key("one")).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_gate_holds_a_call_until_it_is_opened() {
    let fake = FakeProvider::new();
    let (before, after) = (Gate::new(), Gate::new());
    fake.script(Verb::Create, Fault::HoldBefore(before.clone()));
    fake.script(Verb::Create, Fault::HoldAfter(after.clone()));
    let spawn = |key: &'static str| {
        let fake = fake.clone();
        tokio::spawn(async move { fake.create_opts(create(key)).await })
    };
    let first = spawn("one");
    before.arrived(1).await;
    assert_eq!(fake.counts().created, 0);
    let second = spawn("two");
    after.arrived(1).await;
    assert_eq!(fake.counts().created, 1);
    before.open();
    after.open();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(fake.alive().len(), 2);
}

#[tokio::test]
async fn every_page_is_read_and_a_paused_target_on_the_last_one_is_found() {
    let fake = FakeProvider::new();
    for number in 0..1236 {
        fake.create_opts(create(&format!("key-{number}"))).await.unwrap();
    }
    let target = fake.create_opts(create("target")).await.unwrap();
    fake.pause(target.id()).await.unwrap();
    let found = fake.find(by_key("target")).await.unwrap();
    assert_eq!((found.len(), found[0].state), (1, SandboxState::Paused));
    let pages = fake.counts().pages;
    assert_eq!(fake.list_all(ListFilter::default()).await.unwrap().len(), 1237);
    assert_eq!(fake.counts().pages - pages, 13);
    assert_eq!(fake.counts().resumed, 0);
}

#[tokio::test]
async fn a_repeated_cursor_and_a_failing_page_are_errors_and_no_partial_lists() {
    let fake = FakeProvider::with_options(FakeOptions::default().with_page_size(2));
    for number in 0..20 {
        fake.create_opts(create(&format!("key-{}", number % 2))).await.unwrap();
    }
    for verb in [Verb::List, Verb::Find] {
        fake.script(verb, Fault::RepeatedCursor);
        fake.script(verb, Fault::ErrorOnPage(3, unauthenticated()));
        for (kind, reason) in
            [(ErrorKind::Unexpected, Some("repeated_cursor")), (ErrorKind::Unauthenticated, None)]
        {
            let error = match verb {
                Verb::List => fake.list_all(ListFilter::default()).await.unwrap_err(),
                _ => fake.find(by_key("key-1")).await.unwrap_err(),
            };
            assert_eq!((error.kind(), error.reason()), (kind, reason), "{verb:?}");
        }
    }
    // What came before the failing page is streamed, then the error, then nothing.
    fake.script(Verb::List, Fault::ErrorOnPage(3, unauthenticated()));
    let mut listing = fake.list(ListFilter::default()).await.unwrap();
    for _ in 0..4 {
        listing.next().await.unwrap().unwrap();
    }
    assert_eq!(listing.next().await.unwrap().unwrap_err().kind(), ErrorKind::Unauthenticated);
    assert!(listing.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_by_the_clock_and_nothing_else() {
    let fake = FakeProvider::new();
    let lease = Duration::from_secs(600);
    let mut made = Vec::new();
    for on_expiry in [OnExpiry::Pause, OnExpiry::Kill] {
        let mut options = create("one");
        options.spec = options.spec.with_lease(lease).with_on_expiry(on_expiry);
        made.push(fake.create_opts(options).await.unwrap());
    }
    let following = tokio::spawn({
        let handle = made[1].clone();
        let forever = ExecOptions::default().with_timeout(Duration::ZERO);
        async move { handle.exec_opts(ProcessSpec::argv("sleep", ["100000"]), forever).await }
    });
    advance(lease - Duration::from_secs(1)).await;
    assert_eq!(fake.alive().len(), 2);
    advance(Duration::from_secs(1)).await;
    let alive = fake.alive();
    assert_eq!((alive.len(), &alive[0].id, alive[0].state), (1, made[0].id(), SandboxState::Paused));
    assert_eq!(fake.find_id(made[1].id()).await.unwrap(), None);
    assert_eq!(following.await.unwrap().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(fake.connect(made[0].id()).await.unwrap().resumed, Some(Memory::Kept));
}

#[tokio::test]
async fn destroy_of_a_paused_sandbox_does_not_wake_it() {
    let fake = FakeProvider::new();
    let handle = fake.create_opts(create("one")).await.unwrap();
    fake.pause(handle.id()).await.unwrap();
    fake.destroy(handle.id()).await.unwrap();
    let counts = fake.counts();
    assert_eq!((counts.paused, counts.resumed, counts.destroyed), (1, 0, 1));
}

#[tokio::test]
async fn a_path_that_fails_four_times_destroys_nothing_and_works_again() {
    let fake = FakeProvider::new();
    let handle = fake.create_opts(create("one")).await.unwrap();
    for _ in 0..4 {
        fake.script(Verb::Inside, Fault::refused());
        let error = handle.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert!(handle.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap().exit.success());
    assert_eq!((fake.counts().created, fake.counts().destroyed), (1, 0));
}

#[tokio::test]
async fn a_sandbox_of_another_generation_is_stale() {
    let fake = FakeProvider::new();
    let options = create("one");
    let generation = options.tags.generation.clone();
    let id = fake.create_opts(options).await.unwrap().id().clone();
    fake.script(Verb::Connect, Fault::WrongGeneration);
    let mut connect = sandhold_core::ConnectOptions::default();
    connect.generation = Some(generation.clone());
    assert_eq!(fake.connect_opts(&id, connect.clone()).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(fake.connect_opts(&id, connect).await.unwrap().handle.generation(), Some(&generation));
}

#[tokio::test]
async fn an_attempt_with_another_spec_is_a_conflict() {
    let fake = FakeProvider::with_options(FakeOptions::default().with_idempotent_create());
    let mut options = create("one");
    fake.create_opts(options.clone()).await.unwrap();
    fake.create_opts(options.clone()).await.unwrap();
    options.spec = options.spec.with_env("OTHER", "spec");
    assert_eq!(fake.create_opts(options).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!((fake.counts().created, fake.counts().deduplicated), (1, 1));
}

#[tokio::test]
async fn a_reboot_keeps_files_and_loses_processes() {
    let fake = FakeProvider::new();
    let handle = fake.create_opts(create("one")).await.unwrap();
    handle.write_bytes("mark", "here").await.unwrap();
    let mut process = handle.start(ProcessSpec::argv("sleep", ["1000"])).await.unwrap();
    fake.reboot(handle.id()).unwrap();
    assert!(!process.wait().await.unwrap().success());
    assert_eq!(fake.alive()[0].state, SandboxState::Stopped);
    assert_eq!(fake.connect(handle.id()).await.unwrap().resumed, Some(Memory::Lost));
    assert_eq!(handle.read_text("mark").await.unwrap(), "here");
    assert_eq!(handle.processes().await.unwrap(), []);
}

#[tokio::test]
async fn a_hook_and_a_line_of_shell_say_what_commands_do() {
    let fake = FakeProvider::new();
    fake.on_command(|spec| (spec.program == "git").then(|| Reply::stdout("done\n").with_stderr("hint\n")));
    let handle = fake.create_opts(create("one")).await.unwrap();
    let output = handle.exec(ProcessSpec::argv("git", ["status"])).await.unwrap();
    assert_eq!((output.stdout.text().as_ref(), output.stderr.text().as_ref()), ("done\n", "hint\n"));
    let line = "echo 'a  b' > /tmp/f && cat /tmp/f; false && echo no; nonsense; exit 9";
    let output = handle.shell(line).await.unwrap();
    assert_eq!((output.stdout.text().as_ref(), output.exit.code), ("a  b\n", Some(9)));
    assert!(output.stderr.text().contains("nonsense: not found"));
}
