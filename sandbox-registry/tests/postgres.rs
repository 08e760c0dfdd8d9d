//! What is particular to Postgres: lost answers, lost connections, crashes, refusals.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::time::Duration;

use sandhold_core::testing::registry::{lease, record};
use sandhold_core::{ErrorKind, Outcome, Record, Registry as _, RegistryScope};
use sandhold_registry::{PostgresConfig, PostgresRegistry};

mod support;

use support::proxy::{Fault, Proxy};
use support::{Cluster, Schema};

const LONG: Duration = Duration::from_secs(600);

/// Gives a rule what it needs, or says what this machine lacks.
macro_rules! or_skip {
    ($start:expr) => {
        match $start.await {
            Ok(started) => started,
            Err(lacks) => {
                println!("skipped: needs {lacks}");
                return;
            }
        }
    };
}

/// A registry behind a proxy, and one that sees what is true.
struct Lossy {
    proxy: Proxy,
    registry: PostgresRegistry,
    truth: PostgresRegistry,
}

impl Lossy {
    async fn new() -> Result<Self, String> {
        let schema = Schema::new().await?;
        let truth = schema.open().await;
        let proxy = Proxy::before(schema.socket());
        let config = PostgresConfig::new(&proxy.url()).unwrap().with_schema(&schema.name);
        let registry =
            PostgresRegistry::open(config.with_settle_limit(Duration::from_millis(500))).await.unwrap();
        Ok(Self { proxy, registry, truth })
    }

    async fn stored(&self, record: &Record) -> Option<Record> {
        self.truth.load(&record.owner, &record.key).await.unwrap()
    }
}

#[tokio::test]
async fn a_store_whose_commit_or_answer_was_lost_happens_once() {
    let lossy = or_skip!(Lossy::new());
    assert_eq!(lossy.registry.scope(), RegistryScope::Cluster);
    let mut record = record("o", "k");
    let held = lease(&lossy.registry, &record, LONG).await;
    for fault in [Fault::LoseAnswer, Fault::LoseCommit, Fault::LoseAnswer] {
        lossy.proxy.set(fault);
        let version = record.version + 1;
        record = lossy.registry.store(record, &held).await.unwrap();
        assert!(lossy.proxy.is_over(), "{fault:?}");
        assert_eq!(record.version, version);
        assert_eq!(lossy.stored(&record).await, Some(record.clone()));
    }
}

#[tokio::test]
async fn a_remove_whose_commit_or_answer_was_lost_happens() {
    let lossy = or_skip!(Lossy::new());
    for fault in [Fault::LoseAnswer, Fault::LoseCommit] {
        let record = record("o", "k");
        let held = lease(&lossy.registry, &record, LONG).await;
        let record = lossy.registry.store(record, &held).await.unwrap();
        lossy.proxy.set(fault);
        lossy.registry.remove(&record, &held).await.unwrap();
        assert!(lossy.proxy.is_over(), "{fault:?}");
        assert_eq!(lossy.stored(&record).await, None);
    }
}

#[tokio::test]
async fn a_lease_whose_commit_or_answer_was_lost_is_held_once() {
    let lossy = or_skip!(Lossy::new());
    let mut last = 0;
    for fault in [Fault::LoseAnswer, Fault::LoseCommit] {
        let record = record("o", &format!("{fault:?}"));
        lossy.proxy.set(fault);
        let held = lossy.registry.try_lease(&record.owner, &record.key, LONG).await.unwrap().unwrap();
        assert!(lossy.proxy.is_over(), "{fault:?}");
        assert!(held.fence > last);
        last = held.fence;
        assert!(lossy.truth.try_lease(&record.owner, &record.key, LONG).await.unwrap().is_none());
        lossy.registry.store(record.clone(), &held).await.unwrap();
        drop(held);
        drop(lease(&lossy.truth, &record, LONG).await);
    }
}

#[tokio::test]
async fn what_cannot_be_settled_is_said_to_be_unknown_and_read_later() {
    let lossy = or_skip!(Lossy::new());
    let record = record("o", "k");
    let held = lease(&lossy.registry, &record, LONG).await;
    lossy.proxy.set(Fault::LoseAnswerAndDoor);
    let error = lossy.registry.store(record.clone(), &held).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown), "{error}");
    assert!(!error.is_retryable());
    let error = lossy.registry.load(&record.owner, &record.key).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotStarted), "{error}");
    assert!(error.is_retryable());
    lossy.proxy.set(Fault::None);
    let read = lossy.registry.load(&record.owner, &record.key).await.unwrap();
    assert_eq!(read.map(|record| record.version), Some(1));
}

#[tokio::test]
async fn a_lost_answer_under_a_lease_that_was_taken_over_is_not_said_to_be_nothing() {
    let lossy = or_skip!(Lossy::new());
    let record = record("o", "k");
    let held = lease(&lossy.registry, &record, Duration::from_millis(1)).await;
    lossy.proxy.set(Fault::LoseAnswerAndDoor);
    let storing = {
        let (registry, record) = (lossy.registry.clone(), record.clone());
        tokio::spawn(async move { registry.store(record, &held).await })
    };
    // The store is done at the database's side; another contender goes on from there before it can be asked for.
    let first = sandhold_core::testing::conformance::eventually("the store", || lossy.stored(&record)).await;
    let taken = lease(&lossy.truth, &record, LONG).await;
    lossy.truth.store(first, &taken).await.unwrap();
    lossy.proxy.set(Fault::None);
    let error = storing.await.unwrap().unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
}

#[tokio::test]
async fn connections_that_were_lost_while_idle_are_not_noticed() {
    let schema = or_skip!(Schema::new());
    let url = format!("{} application_name=disturbed", support::url(schema.socket()));
    let config = PostgresConfig::new(&url).unwrap().with_schema(&schema.name);
    let registry = PostgresRegistry::open(config).await.unwrap();
    let record = record("o", "k");
    let mut held = lease(&registry, &record, LONG).await;
    let mut stored = registry.store(record, &held).await.unwrap();
    let sql = schema.sql().await;
    let end_all =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'disturbed'";
    for _ in 0..3 {
        sql.batch_execute(end_all).await.unwrap();
        assert_eq!(registry.load(&stored.owner, &stored.key).await.unwrap(), Some(stored.clone()));
        sql.batch_execute(end_all).await.unwrap();
        stored = registry.store(stored, &held).await.unwrap();
        sql.batch_execute(end_all).await.unwrap();
        registry.renew(&stored.owner, &stored.key, &mut held, LONG).await.unwrap();
    }
}

#[tokio::test]
async fn a_crash_of_the_server_loses_nothing_that_was_acknowledged() {
    let mut cluster = or_skip!(Cluster::start());
    let config = PostgresConfig::new(&cluster.url()).unwrap();
    let registry = PostgresRegistry::open(config).await.unwrap();
    let first = record("o", "k");
    let held = lease(&registry, &first, LONG).await;
    let stored = registry.store(first, &held).await.unwrap();
    let fence = lease(&registry, &record("o", "other"), LONG).await.fence;
    cluster.crash().await;
    assert_eq!(registry.load(&stored.owner, &stored.key).await.unwrap(), Some(stored.clone()));
    // The holder lives, and so does its lease.
    assert!(registry.try_lease(&stored.owner, &stored.key, LONG).await.unwrap().is_none());
    registry.store(stored, &held).await.unwrap();
    assert!(lease(&registry, &record("o", "third"), LONG).await.fence > fence);
}

#[tokio::test]
async fn the_end_of_a_lease_is_told_by_the_databases_clock_alone() {
    let schema = or_skip!(Schema::new());
    let registry = schema.open().await;
    let record = record("o", "k");
    let held = lease(&registry, &record, LONG).await;
    let sql = schema.sql().await;
    let left =
        format!("SELECT extract(epoch FROM ends - clock_timestamp())::float8 FROM {}.leases", schema.name);
    let left: f64 = sql.query_one(&left, &[]).await.unwrap().get(0);
    assert!(left <= LONG.as_secs_f64(), "{left}");
    assert!(registry.try_lease(&record.owner, &record.key, LONG).await.unwrap().is_none());
    let end = format!("UPDATE {}.leases SET ends = clock_timestamp()", schema.name);
    sql.batch_execute(&end).await.unwrap();
    let taken = registry.try_lease(&record.owner, &record.key, LONG).await.unwrap().unwrap();
    assert!(taken.fence > held.fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_that_open_at_the_same_time_make_the_tables_once() {
    let schema = or_skip!(Schema::new());
    let opening: Vec<_> = (0..8).map(|_| tokio::spawn(PostgresRegistry::open(schema.config()))).collect();
    for opened in opening {
        opened.await.unwrap().unwrap();
    }
    let versions = format!("SELECT count(*) FROM {}.migrations", schema.name);
    let versions: i64 = schema.sql().await.query_one(&versions, &[]).await.unwrap().get(0);
    assert_eq!(versions, 1);
}

#[tokio::test]
async fn a_schema_of_a_later_version_is_refused_and_left_alone() {
    let schema = or_skip!(Schema::new());
    drop(schema.open().await);
    let sql = schema.sql().await;
    let name = &schema.name;
    sql.batch_execute(&format!("INSERT INTO {name}.migrations VALUES (99)")).await.unwrap();
    let error = PostgresRegistry::open(schema.config()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("newer_schema")));
    sql.batch_execute(&format!("DELETE FROM {name}.migrations WHERE version = 99")).await.unwrap();
    schema.open().await;
}

#[tokio::test]
async fn a_schema_with_tables_of_another_program_is_refused() {
    let schema = or_skip!(Schema::new());
    let name = &schema.name;
    let theirs = format!("CREATE SCHEMA {name}; CREATE TABLE {name}.theirs (a int)");
    schema.sql().await.batch_execute(&theirs).await.unwrap();
    let error = PostgresRegistry::open(schema.config()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("foreign_database")));
}

#[tokio::test]
async fn who_and_where_are_refused_by_kind() {
    let schema = or_skip!(Schema::new());
    let socket = schema.socket().display().to_string();
    for (url, kind) in [
        (format!("host={socket} user=nobody_here dbname=postgres"), ErrorKind::Unauthenticated),
        (format!("host={socket} user=sandhold dbname=nothing_here"), ErrorKind::InvalidArgument),
        ("host=/nowhere user=sandhold".to_owned(), ErrorKind::Unavailable),
    ] {
        let error = PostgresRegistry::open(PostgresConfig::new(&url).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    // One who may read and not make tables.
    let sql = schema.sql().await;
    sql.batch_execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN").await.unwrap();
    let config = PostgresConfig::new(&format!("host={socket} user=reader dbname=postgres")).unwrap();
    let error = PostgresRegistry::open(config.with_schema("not_made")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}
