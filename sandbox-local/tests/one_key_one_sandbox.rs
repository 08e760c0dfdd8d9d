//! One key, one sandbox, over real processes: racing hosts, and hosts that are killed wherever they are.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{AcquireOptions, ListFilter, SandboxHandleExt as _, SandboxProviderExt as _, Sandboxes};
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
