//! Real processes that race on one file, and holders that are killed.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::testing::registry::{lease, record};
use sandhold_core::{Phase, Registry, RegistryExt as _};
use sandhold_registry::{FileRegistry, SqliteRegistry};

/// Far beyond what any test lasts: a lease that falls free did not do so by its end.
const LONG: Duration = Duration::from_secs(3600);
/// Where the death of a holder is not seen, the end of its lease is waited for.
const SHORT: Duration = Duration::from_secs(2);
const KEYS: usize = 3;
const ROUNDS: usize = 12;
/// Says to this program that it plays a contender: what it does, which registry, and where.
const PART: &str = "SANDHOLD_TEST_PART";

async fn open(kind: &str, directory: &Path) -> Arc<dyn Registry> {
    match kind {
        "sqlite" => Arc::new(SqliteRegistry::open(directory.join("registry.sqlite")).await.unwrap()),
        "file" => Arc::new(FileRegistry::new(directory)),
        // The directory is the one of the socket.
        #[cfg(feature = "postgres")]
        "postgres" => {
            let config = sandhold_registry::PostgresConfig::new(&support::url(directory)).unwrap();
            Arc::new(sandhold_registry::PostgresRegistry::open(config).await.unwrap())
        }
        other => panic!("no registry {other}"),
    }
}

fn ttl(kind: &str) -> Duration {
    if kind == "postgres" { SHORT } else { LONG }
}

fn start(part: &str, kind: &str, directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "contender", "--nocapture", "--include-ignored"])
        .env(PART, format!("{part} {kind} {}", directory.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What a process of its own does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is a process that other tests start"]
async fn contender() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut part = part.splitn(3, ' ');
    let (does, kind) = (part.next().unwrap(), part.next().unwrap());
    let registry = open(kind, Path::new(part.next().unwrap())).await;
    match does {
        "count" => {
            for round in 0..ROUNDS {
                count(&*registry, round % KEYS, ttl(kind)).await;
            }
        }
        "count-for-ever" => {
            for round in 0.. {
                println!("acknowledged {}", count(&*registry, round % KEYS, ttl(kind)).await);
            }
        }
        "hold" => {
            let _held = lease(&*registry, &record("o", "k0"), LONG).await;
            println!("held");
            std::future::pending::<()>().await;
        }
        other => panic!("no part {other}"),
    }
}

/// Adds one to the counter of a key, under its lease and by compare-and-swap; returns what was stored.
async fn count(registry: &dyn Registry, key: usize, ttl: Duration) -> String {
    let blank = record("o", &format!("k{key}"));
    let held = lease(registry, &blank, ttl).await;
    let found = registry.load(&blank.owner, &blank.key).await.unwrap();
    let mut next = found.unwrap_or(blank);
    next.enter(Phase::Ready);
    next.setup_done = Some(next.setup_done.unwrap_or(0) + 1);
    let stored = registry.store(next, &held).await.unwrap();
    format!("{} {}", key, stored.setup_done.unwrap())
}

async fn counters(registry: &dyn Registry) -> Vec<(u64, u64)> {
    let records = registry.list_all(Default::default()).await.unwrap();
    records.iter().map(|record| (record.setup_done.unwrap(), record.version)).collect()
}

async fn races(kind: &str, directory: &Path) {
    let contenders: Vec<_> = (0..6).map(|_| start("count", kind, directory)).collect();
    for mut contender in contenders {
        assert!(contender.wait().unwrap().success());
    }
    let expected = u64::try_from(6 * ROUNDS / KEYS).unwrap();
    let registry = open(kind, directory).await;
    assert_eq!(counters(&*registry).await, vec![(expected, expected); KEYS]);
}

async fn kills(kind: &str, directory: &Path) {
    let registry = open(kind, directory).await;
    let mut contenders: Vec<_> = (0..4).map(|_| start("count-for-ever", kind, directory)).collect();
    let mut acknowledged = [0; KEYS];
    let mut seen = |line: &str| {
        if let Some((key, value)) = line.strip_prefix("acknowledged ").and_then(|rest| rest.split_once(' ')) {
            let (key, value): (usize, u64) = (key.parse().unwrap(), value.parse().unwrap());
            acknowledged[key] = acknowledged[key].max(value);
        }
    };
    for contender in &mut contenders {
        // Each is in the middle of its work when it is killed, and holds a lease or is about to.
        let mut output = BufReader::new(contender.stdout.take().unwrap());
        let mut line = String::new();
        for _ in 0..4 {
            line.clear();
            while !line.starts_with("acknowledged") {
                line.clear();
                assert_ne!(output.read_line(&mut line).unwrap(), 0, "it ended by itself");
            }
            seen(line.trim());
        }
        contender.kill().unwrap();
        contender.wait().unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        // The last line may be torn.
        let whole = rest.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().for_each(&mut seen);
    }
    // All holders are dead: every key falls free, and nothing that was acknowledged is lost.
    for (key, acknowledged) in acknowledged.into_iter().enumerate() {
        let blank = record("o", &format!("k{key}"));
        drop(lease(&*registry, &blank, LONG).await);
        let counted = registry.load(&blank.owner, &blank.key).await.unwrap().unwrap().setup_done.unwrap();
        assert!(counted >= acknowledged, "key {key}: {counted} of {acknowledged}");
    }
    assert!(counters(&*registry).await.iter().all(|(counted, version)| counted == version));
}

/// A holder that was killed is known to be dead; one that only stands still is not.
async fn takes_over(kind: &str) {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(kind, directory.path()).await;
    let mut holder = start("hold", kind, directory.path());
    let mut output = BufReader::new(holder.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("held") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "it ended by itself");
    }
    let record = record("o", "k0");
    Command::new("kill").args(["-STOP", &holder.id().to_string()]).status().unwrap();
    assert!(registry.try_lease(&record.owner, &record.key, LONG).await.unwrap().is_none());
    holder.kill().unwrap();
    holder.wait().unwrap();
    drop(lease(&*registry, &record, LONG).await);
}

macro_rules! over {
    ($($kind:ident),+) => {$(
        mod $kind {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn processes_that_race_lose_no_update() {
                let directory = tempfile::tempdir().unwrap();
                super::races(stringify!($kind), directory.path()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn killed_processes_lose_nothing_that_was_acknowledged() {
                let directory = tempfile::tempdir().unwrap();
                super::kills(stringify!($kind), directory.path()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_killed_holder_is_taken_over_at_once_and_a_stopped_one_is_not() {
                super::takes_over(stringify!($kind)).await;
            }
        }
    )+};
}

over!(sqlite, file);

#[cfg(feature = "postgres")]
mod support;

#[cfg(feature = "postgres")]
mod postgres {
    use super::support::Cluster;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn processes_that_race_lose_no_update() {
        match Cluster::start().await {
            Ok(cluster) => super::races("postgres", cluster.socket()).await,
            Err(lacks) => println!("skipped: needs {lacks}"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn killed_processes_lose_nothing_that_was_acknowledged() {
        match Cluster::start().await {
            Ok(cluster) => super::kills("postgres", cluster.socket()).await,
            Err(lacks) => println!("skipped: needs {lacks}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dead_holders_left_beside_the_file_is_swept() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let mut holder = start("hold", "sqlite", directory.path());
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("held")));
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
    let registry = open("sqlite", directory.path()).await;
    let left = directory.path().join("registry.sqlite-holders").read_dir().unwrap();
    // Its own, and the lock of openings.
    assert_eq!(left.count(), 2);
    drop(lease(&*registry, &record("o", "k0"), LONG).await);
}
