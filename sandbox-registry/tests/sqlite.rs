//! What is particular to the SQLite file: damage, refusals, reboots, full disks.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use sandhold_core::testing::registry::{lease, record};
use sandhold_core::{ErrorKind, Outcome, RecordFilter, Registry as _, RegistryExt as _, RegistryScope};
use sandhold_registry::SqliteRegistry;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(600);

struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("made/on the way/registry.sqlite")
    }

    async fn open(&self) -> SqliteRegistry {
        SqliteRegistry::open(self.path()).await.unwrap()
    }

    /// Looks into the file as an operator does.
    fn sql(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    async fn refusal(&self) -> (ErrorKind, Option<&'static str>) {
        let error = SqliteRegistry::open(self.path()).await.unwrap_err();
        assert!(error.to_string().contains("registry.sqlite"), "{error}");
        (error.kind(), error.reason())
    }
}

#[tokio::test]
async fn one_machine_meets_in_it_and_nobody_else_may_read_it() {
    let place = Place::new();
    let registry = place.open().await;
    assert_eq!(registry.scope(), RegistryScope::Machine);
    drop(lease(&registry, &record("o", "k"), LONG).await);
    let directory = place.path().parent().unwrap().to_owned();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o077;
    assert_eq!(mode(&directory), 0);
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0, "{}", path.display());
    }
}

#[tokio::test]
async fn a_reboot_ends_every_lease_and_no_record() {
    let place = Place::new();
    let registry = place.open().await;
    let record = record("o", "k");
    let held = lease(&registry, &record, LONG).await;
    let stored = registry.store(record, &held).await.unwrap();
    assert!(registry.try_lease(&stored.owner, &stored.key, LONG).await.unwrap().is_none());
    place.sql().execute("UPDATE leases SET boot_id = 'an earlier one'", []).unwrap();
    let taken = registry.try_lease(&stored.owner, &stored.key, LONG).await.unwrap().unwrap();
    assert!(taken.fence > held.fence);
    assert_eq!(registry.load(&stored.owner, &stored.key).await.unwrap(), Some(stored));
}

#[tokio::test]
async fn the_end_of_a_lease_is_told_by_the_boots_clock_alone() {
    let place = Place::new();
    let registry = place.open().await;
    let uptime = || -> f64 {
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    let before = uptime();
    let _held = lease(&registry, &record("o", "k"), LONG).await;
    let after = uptime();
    let (boot, ends): (String, i64) = place
        .sql()
        .query_row("SELECT boot_id, ends_ns FROM leases", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(boot, std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
    let ends = Duration::from_nanos(ends.try_into().unwrap()).as_secs_f64() - LONG.as_secs_f64();
    // A hundredth of a second is what the file tells.
    assert!(before - 0.01 <= ends && ends <= after + 0.01, "{before} <= {ends} <= {after}");
    // And nothing else in the row is a time.
    let columns: Vec<String> = {
        let sql = place.sql();
        let mut select = sql.prepare("SELECT name FROM pragma_table_info('leases')").unwrap();
        let names = select.query_map([], |row| row.get(0)).unwrap();
        names.collect::<rusqlite::Result<_>>().unwrap()
    };
    assert_eq!(columns, ["owner", "key", "fence", "holder", "boot_id", "ends_ns"]);
}

#[tokio::test]
async fn a_store_of_a_later_version_is_refused_and_left_alone() {
    let place = Place::new();
    drop(place.open().await);
    place.sql().execute("INSERT INTO sandhold_migrations VALUES (99, 'tomorrow')", []).unwrap();
    assert_eq!(place.refusal().await, (ErrorKind::Unsupported, Some("newer_schema")));
    place.sql().execute("DELETE FROM sandhold_migrations WHERE version = 99", []).unwrap();
    place.open().await;
}

#[tokio::test]
async fn another_programs_database_is_refused_and_left_alone() {
    let place = Place::new();
    std::fs::create_dir_all(place.path().parent().unwrap()).unwrap();
    place.sql().execute_batch("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)").unwrap();
    assert_eq!(place.refusal().await, (ErrorKind::Conflict, Some("foreign_database")));
    let tables: i64 =
        place.sql().query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_an_error_and_not_a_new_registry() {
    let place = Place::new();
    std::fs::create_dir_all(place.path().parent().unwrap()).unwrap();
    std::fs::write(place.path(), b"not a database, but long enough to have a header".repeat(200)).unwrap();
    assert_eq!(place.refusal().await, (ErrorKind::Unexpected, Some("corrupt")));
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_never_none() {
    let place = Place::new();
    let names: Vec<_> = (0..200).map(|index| record("o", &format!("k{index}"))).collect();
    {
        let registry = place.open().await;
        for record in &names {
            let held = lease(&registry, record, LONG).await;
            registry.store(record.clone(), &held).await.unwrap();
        }
    }
    place.sql().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    // Every page but the first is torn: the header is whole, and the tables are not.
    let mut file = std::fs::OpenOptions::new().write(true).open(place.path()).unwrap();
    let length = file.metadata().unwrap().len();
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&vec![0; usize::try_from(length).unwrap() - 4096]).unwrap();
    file.sync_all().unwrap();
    match SqliteRegistry::open(place.path()).await {
        Err(error) => assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some("corrupt"))),
        Ok(registry) => {
            for record in &names {
                let error = registry.load(&record.owner, &record.key).await.unwrap_err();
                assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some("corrupt")));
            }
        }
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_understood_is_an_error_and_not_none() {
    let place = Place::new();
    let (registry, record) = (place.open().await, record("o", "k"));
    let held = lease(&registry, &record, LONG).await;
    registry.store(record.clone(), &held).await.unwrap();
    let another = serde_json::to_string(&sandhold_core::testing::registry::record("o", "another")).unwrap();
    for text in ["{", "{}", &another] {
        place.sql().execute("UPDATE records SET record = ?1", [text]).unwrap();
        for error in [
            registry.load(&record.owner, &record.key).await.unwrap_err(),
            registry.list_all(RecordFilter::default()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
            assert!(error.context().any(|pair| pair == ("key", "k")), "{error}");
        }
    }
}

#[tokio::test]
async fn a_file_that_is_replaced_while_it_is_open_ends_the_work_on_it() {
    let place = Place::new();
    let (registry, record) = (place.open().await, record("o", "k"));
    let held = lease(&registry, &record, LONG).await;
    std::fs::rename(place.path(), place.path().with_extension("old")).unwrap();
    for _ in 0..2 {
        for error in [
            registry.load(&record.owner, &record.key).await.unwrap_err(),
            registry.store(record.clone(), &held).await.unwrap_err(),
            registry.try_lease(&record.owner, &record.key, LONG).await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.reason()), (ErrorKind::Unavailable, Some("replaced")));
        }
        std::fs::copy(place.path().with_extension("old"), place.path()).unwrap();
    }
}

/// Runs one test of this program in a mount namespace of its own after `script`, with the directory as `$1`; false when
/// this machine has no such namespaces.
fn in_namespace(name: &str, script: &str, directory: &Path) -> bool {
    let script = format!("{script}\nexec \"$0\" --exact {name} --nocapture --include-ignored");
    let run = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-ec", &script])
        .arg(std::env::current_exe().unwrap())
        .arg(directory)
        .env("SANDHOLD_TEST_PLACE", directory)
        .output();
    let Ok(output) = run else { return false };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains("running 1 test") {
        return false;
    }
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    true
}

#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    let place = Place::new();
    let mount = "mount -t tmpfs -o size=600k tmpfs \"$1\"";
    if !in_namespace("on_a_small_disk", mount, place.directory.path()) {
        println!("skipped: needs unshare with a user and a mount namespace");
    }
}

/// What the full disk looks like from inside.
#[tokio::test]
#[ignore = "runs inside a namespace that another test makes"]
async fn on_a_small_disk() {
    let Some(place) = std::env::var_os("SANDHOLD_TEST_PLACE").map(PathBuf::from) else { return };
    let registry = SqliteRegistry::open(place.join("registry.sqlite")).await.unwrap();
    let first = record("o", "first");
    let held = lease(&registry, &first, LONG).await;
    let first = registry.store(first, &held).await.unwrap();
    let filler = place.join("filler");
    let mut fill = std::fs::File::create(&filler).unwrap();
    while fill.write_all(&[1; 512]).is_ok() {}
    // There may be room for a few stores in what SQLite has set aside.
    let mut stored = first;
    let error = loop {
        match registry.store(stored.clone(), &held).await {
            Ok(next) => stored = next,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::StorageFull, Outcome::NotStarted), "{error}");
    assert_eq!(registry.load(&stored.owner, &stored.key).await.unwrap(), Some(stored.clone()));
    drop(fill);
    std::fs::remove_file(filler).unwrap();
    let next = registry.store(stored.clone(), &held).await.unwrap();
    assert_eq!(next.version, stored.version + 1);
}

#[test]
fn a_disk_that_cannot_be_written_is_permission_denied() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { drop(place.open().await) });
    let mount = "mount --bind \"$1\" \"$1\"; mount -o remount,bind,ro \"$1\"";
    if !in_namespace("on_a_read_only_disk", mount, place.directory.path()) {
        println!("skipped: needs unshare with a user and a mount namespace");
    }
}

/// What a disk that is mounted read-only looks like.
#[tokio::test]
#[ignore = "runs inside a namespace that another test makes"]
async fn on_a_read_only_disk() {
    let Some(place) = std::env::var_os("SANDHOLD_TEST_PLACE").map(PathBuf::from) else { return };
    let error = SqliteRegistry::open(place.join("made/on the way/registry.sqlite")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}
