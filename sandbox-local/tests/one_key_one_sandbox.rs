//! One key, one sandbox, over real processes: racing hosts, and hosts that are killed wherever they are.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::{
    AcquireOptions, ErrorKind, FreshFile, Hooks, ListFilter, Memory, OnSpecConflict, Outcome, Resources,
    Result, Sandbox, SandboxHandleExt as _, SandboxProviderExt as _, SandboxSpec, Sandboxes, Start,
};
use sandhold_local::LocalProvider;
use sandhold_registry::SqliteRegistry;

mod support;

/// Names the state directory to a host that this test program plays, and whether it keeps records.
const HOST: &str = "SANDHOLD_TEST_HOST";
const RECORDS: &str = "SANDHOLD_TEST_RECORDS";
/// The environment's name of the start hook's file: one line is added by each run.
const KEY: &str = "one";

async fn sandboxes(provider: &LocalProvider, records: bool) -> Sandboxes {
    let sandboxes = Sandboxes::new(Arc::new(provider.clone()));
    if records {
        let registry = SqliteRegistry::open(provider.home().join("registry.sqlite")).await.unwrap();
        sandboxes.with_registry(Arc::new(registry))
    } else {
        sandboxes
    }
}

fn setup() -> AcquireOptions {
    AcquireOptions::default().with_on_start(|start| async move {
        start.sandbox.shell("echo x >> /home/user/setups").await.map(drop)
    })
}

/// What a host process does; not a test by itself.
#[tokio::test]
async fn host_process() {
    let Some(home) = std::env::var_os(HOST) else { return };
    let config = sandhold_local::LocalConfig::new().with_home(home).with_helper(support::helper());
    let provider = LocalProvider::new(config).unwrap();
    let records = std::env::var_os(RECORDS).is_some();
    let acquired = sandboxes(&provider, records).await.acquire(KEY, setup()).await.unwrap();
    println!("acquired {} {}", acquired.outcome, acquired.sandbox.provider_id().unwrap());
}

fn start_host(home: &Path, records: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "host_process", "--nocapture"]).env(HOST, home).stdout(Stdio::piped());
    if records {
        command.env(RECORDS, "1");
    }
    command.spawn().unwrap()
}

/// The outcome and the id that a host printed; `None` when it was killed before.
fn answer(mut host: Child) -> Option<(String, String)> {
    let mut text = String::new();
    host.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    host.wait().unwrap();
    let line = text.lines().find_map(|line| line.split_once("acquired ").map(|(_, rest)| rest.to_owned()))?;
    let (outcome, id) = line.split_once(' ').unwrap();
    Some((outcome.to_owned(), id.to_owned()))
}

async fn races(records: bool) {
    let fixture = support::LocalFixture::new();
    let provider = fixture.open();
    let hosts: Vec<_> = (0..8).map(|_| start_host(provider.home(), records)).collect();
    let answers: Vec<_> =
        hosts.into_iter().map(|host| answer(host).expect("every host gets the sandbox")).collect();
    let ids: std::collections::BTreeSet<_> = answers.iter().map(|(_, id)| id).collect();
    assert_eq!(ids.len(), 1, "{answers:?}");
    assert_eq!(provider.list_all(ListFilter::default()).await.unwrap().len(), 1);
    if records {
        let created = answers.iter().filter(|(outcome, _)| outcome == "created").count();
        assert_eq!(created, 1, "{answers:?}");
        let sandbox = sandboxes(&provider, records).await.acquire(KEY, setup()).await.unwrap().sandbox;
        assert_eq!(sandbox.read_text("/home/user/setups").await.unwrap(), "x\n");
    }
    sandboxes(&provider, records).await.destroy(KEY).await.unwrap();
    assert!(provider.list_all(ListFilter::default()).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_processes_with_records_get_one_sandbox_set_up_once() {
    races(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_processes_without_records_get_one_sandbox() {
    races(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_killed_at_any_moment_leave_one_sandbox_that_the_next_host_gets() {
    let fixture = support::LocalFixture::new();
    let provider = fixture.open();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..12 {
        let mut host = start_host(provider.home(), true);
        // Anywhere between its first step and its last: the moment is the subject, not a wait for anything.
        let moment = Duration::from_micros(random.u64(0..120_000));
        tokio::time::sleep(moment).await;
        host.kill().unwrap();
        let answered = answer(host);
        let listed = provider.list_all(ListFilter::default()).await.unwrap();
        assert!(listed.len() <= 1, "round {round}: {listed:?}");
        if let Some((_, id)) = answered {
            assert_eq!(listed[0].id.as_str(), id, "round {round}");
        }
        if round % 3 == 2 {
            let acquired = sandboxes(&provider, true).await.acquire(KEY, setup()).await.unwrap();
            let listed = provider.list_all(ListFilter::default()).await.unwrap();
            assert_eq!(listed.len(), 1, "round {round}: {listed:?}");
            assert_eq!(listed[0].id, *acquired.sandbox.provider_id().unwrap());
            acquired.sandbox.destroy().await.unwrap();
            assert!(provider.list_all(ListFilter::default()).await.unwrap().is_empty());
        }
    }
}

/// Secrets at a start, and fresh ones after each resume.
#[derive(Debug, Default)]
struct Tokens(AtomicUsize);

impl Tokens {
    fn next(&self) -> Vec<FreshFile> {
        let number = self.0.fetch_add(1, Ordering::SeqCst);
        let mut of_root = FreshFile::new("/etc/secrets/token", format!("root {number}"));
        (of_root.owner, of_root.mode) = (Some("root".to_owned()), 0o640);
        vec![FreshFile::new("/home/user/.token", format!("user {number}")), of_root]
    }
}

#[async_trait]
impl Hooks for Tokens {
    async fn secrets(&self, _: &Sandbox) -> Result<Vec<FreshFile>> {
        Ok(self.next())
    }

    async fn on_start(&self, start: Start) -> Result<()> {
        assert_eq!(start.sandbox.read_text("/home/user/.token").await?, "user 0");
        Ok(())
    }

    async fn on_resume(&self, _: &Sandbox, _: Memory) -> Result<Vec<FreshFile>> {
        Ok(self.next())
    }
}

#[tokio::test]
async fn secrets_of_hooks_are_files_of_their_owner_and_mode_and_leave_nothing_beside_them() {
    let fixture = support::LocalFixture::new();
    let hosts = Sandboxes::new(Arc::new(fixture.open())).with_hooks(Arc::new(Tokens::default()));
    let sandbox = hosts.acquire(KEY, AcquireOptions::default()).await.unwrap().sandbox;
    let show = "cd /etc/secrets && stat -c '%n %U %a' * /home/user/.token* && cat /home/user/.token && \
                sudo -n cat token";
    for number in 0..2 {
        let shown = sandbox.shell(show).await.unwrap();
        let expected = format!("token root 640\n/home/user/.token user 600\nuser {number}root {number}");
        assert_eq!(shown.stdout.text(), expected, "{}", shown.stderr.text());
        sandbox.pause().await.unwrap();
    }
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_replacement_that_this_host_cannot_make_ends_nothing() {
    let fixture = support::LocalFixture::new();
    let hosts = Sandboxes::new(Arc::new(fixture.open()));
    let sandbox = hosts.acquire(KEY, AcquireOptions::default()).await.unwrap().sandbox;
    // A sandbox on a disk has no limit of its own there.
    let limited = SandboxSpec::default().with_resources(Resources::default().with_disk(1 << 20));
    let replacing = AcquireOptions::new(limited).with_on_spec_conflict(OnSpecConflict::Replace);
    let error = hosts.acquire(KEY, replacing).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotStarted), "{error}");
    assert!(sandbox.shell("true").await.unwrap().exit.success());
    sandbox.destroy().await.unwrap();
}
