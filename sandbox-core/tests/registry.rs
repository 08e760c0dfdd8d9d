//! The rules of every registry, over each of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{
    ErrorKind, FileRegistry, Key, MemoryRegistry, Owner, Phase, Record, Registry, RegistryScope, SandboxSpec,
};

const TTL: Duration = Duration::from_secs(60);

fn record(key: &str) -> Record {
    let owner = Owner::default();
    let key = Key::new(key).unwrap();
    Record::intent(owner, key, "fake", "here".to_owned(), SandboxSpec::default()).unwrap()
}

async fn a_stored_record_is_read_back_with_a_higher_version(registry: Arc<dyn Registry>) {
    let record = record("k");
    assert_eq!(registry.load(&record.owner, &record.key).await.unwrap(), None);
    let lease = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap();
    let stored = registry.store(record.clone(), &lease).await.unwrap();
    assert_eq!((stored.version, stored.fence), (1, lease.fence));
    assert_eq!(registry.load(&record.owner, &record.key).await.unwrap(), Some(stored.clone()));
    let again = registry.store(stored, &lease).await.unwrap();
    assert_eq!(again.version, 2);
}

async fn a_store_over_a_changed_record_is_refused(registry: Arc<dyn Registry>) {
    let record = record("k");
    let lease = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap();
    let stored = registry.store(record.clone(), &lease).await.unwrap();
    let error = registry.store(record, &lease).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some("record_changed")));
    assert_eq!(registry.load(&stored.owner, &stored.key).await.unwrap(), Some(stored));
}

async fn a_lease_has_one_holder_and_each_holder_a_higher_fence(registry: Arc<dyn Registry>) {
    let record = record("k");
    let (owner, key) = (record.owner.clone(), record.key.clone());
    let first = registry.try_lease(&owner, &key, TTL).await.unwrap().unwrap();
    assert!(registry.try_lease(&owner, &key, TTL).await.unwrap().is_none());
    let other = Key::new("other").unwrap();
    assert!(registry.try_lease(&owner, &other, TTL).await.unwrap().is_some());
    let fence = first.fence;
    drop(first);
    let second = registry.try_lease(&owner, &key, TTL).await.unwrap().unwrap();
    assert!(second.fence > fence);
}

async fn a_removed_record_is_gone_and_can_be_made_again(registry: Arc<dyn Registry>) {
    let record = record("k");
    let lease = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap();
    let stored = registry.store(record.clone(), &lease).await.unwrap();
    registry.remove(&stored, &lease).await.unwrap();
    assert_eq!(registry.load(&record.owner, &record.key).await.unwrap(), None);
    assert!(registry.remove(&stored, &lease).await.is_err());
    registry.store(record, &lease).await.unwrap();
}

async fn a_listing_is_whole_sorted_and_filtered_by_owner(registry: Arc<dyn Registry>) {
    let long = "k/".repeat(128);
    let names = [
        ("a", "z"),
        ("a", "k"),
        ("a", "k/../x"),
        ("a", long.as_str()),
        ("a/k", "#"),
        ("b", "k"),
        (".", ".."),
    ];
    for (owner, key) in names {
        let mut record = record(key);
        record.owner = Owner::new(owner).unwrap();
        record.enter(Phase::Ready);
        let lease = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap();
        registry.store(record, &lease).await.unwrap();
    }
    let pairs = |records: Vec<Record>| -> Vec<(String, String)> {
        records.into_iter().map(|r| (r.owner.to_string(), r.key.to_string())).collect()
    };
    let mut expected: Vec<_> = names.iter().map(|(o, k)| ((*o).to_owned(), (*k).to_owned())).collect();
    expected.sort();
    assert_eq!(pairs(registry.list(None).await.unwrap()), expected);
    let only = registry.list(Some(&Owner::new("a").unwrap())).await.unwrap();
    assert_eq!(only.len(), 4);
}

async fn contenders_for_one_lease_never_hold_it_together(registry: Arc<dyn Registry>) {
    let record = record("k");
    let lease = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap();
    let stored = registry.store(record, &lease).await.unwrap();
    drop(lease);
    // Each contender reads, adds one abandoned attempt and stores: a lost update would lose an entry.
    let contenders: Vec<_> = (0..8)
        .map(|_| {
            let (registry, owner, key) = (Arc::clone(&registry), stored.owner.clone(), stored.key.clone());
            tokio::spawn(async move {
                let lease = loop {
                    if let Some(lease) = registry.try_lease(&owner, &key, TTL).await.unwrap() {
                        break lease;
                    }
                    tokio::task::yield_now().await;
                };
                let mut record = registry.load(&owner, &key).await.unwrap().unwrap();
                record.abandon();
                registry.store(record, &lease).await.unwrap();
            })
        })
        .collect();
    for contender in contenders {
        contender.await.unwrap();
    }
    let record = registry.load(&stored.owner, &stored.key).await.unwrap().unwrap();
    assert_eq!((record.version, record.abandoned.len()), (9, 8));
}

macro_rules! rules {
    ($($rule:ident),+ $(,)?) => {
        mod memory { $(
            #[tokio::test]
            async fn $rule() { super::$rule(super::Arc::new(super::MemoryRegistry::new())).await; }
        )+ }
        mod file { $(
            #[tokio::test]
            async fn $rule() {
                let directory = tempfile::tempdir().unwrap();
                super::$rule(super::Arc::new(super::FileRegistry::new(directory.path()))).await;
            }
        )+ }
    };
}

rules!(
    a_stored_record_is_read_back_with_a_higher_version,
    a_store_over_a_changed_record_is_refused,
    a_lease_has_one_holder_and_each_holder_a_higher_fence,
    a_removed_record_is_gone_and_can_be_made_again,
    a_listing_is_whole_sorted_and_filtered_by_owner,
    contenders_for_one_lease_never_hold_it_together,
);

#[tokio::test(start_paused = true)]
async fn an_overtaken_holder_of_the_memory_registry_cannot_store() {
    let registry = MemoryRegistry::new();
    let record = record("k");
    let mut first = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap();
    tokio::time::advance(TTL).await;
    let second = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap();
    let error = registry.store(record.clone(), &first).await.unwrap_err();
    assert_eq!(error.reason(), Some("lease_lost"));
    let error = registry.renew(&record.owner, &record.key, &mut first, TTL).await.unwrap_err();
    assert_eq!(error.reason(), Some("lease_lost"));
    drop(first);
    // The late drop of the first holder takes nothing from the second.
    assert!(registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().is_none());
    registry.store(record, &second).await.unwrap();
}

#[tokio::test]
async fn a_lease_of_the_file_registry_falls_free_when_its_process_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let registry = FileRegistry::new(directory.path());
    assert_eq!(registry.scope(), RegistryScope::Machine);
    let record = record("k");
    drop(registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap());
    let lease_file = find(directory.path(), "lease.lock");
    // `flock` of util-linux takes the same kind of lock, in a process of its own.
    let mut holder = match std::process::Command::new("flock")
        .args(["--exclusive", lease_file.to_str().unwrap(), "sh", "-c", "echo held; exec sleep 600"])
        .stdout(std::process::Stdio::piped())
        .spawn()
    {
        Ok(holder) => holder,
        Err(_) => {
            println!("skipped: needs flock");
            return;
        }
    };
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "held\n");
    assert!(registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().is_none());
    // The lock lives as long as one of the two processes has the file open: both are killed.
    let children = format!("/proc/{0}/task/{0}/children", holder.id());
    for child in std::fs::read_to_string(children).unwrap().split_whitespace() {
        std::process::Command::new("kill").args(["-9", child]).status().unwrap();
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
    let freed = async {
        loop {
            if let Some(lease) = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap() {
                return lease;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), freed).await.unwrap();
}

#[tokio::test]
async fn a_record_that_cannot_be_understood_is_an_error_and_not_none() {
    let directory = tempfile::tempdir().unwrap();
    let registry = FileRegistry::new(directory.path());
    let record = record("k");
    let lease = registry.try_lease(&record.owner, &record.key, TTL).await.unwrap().unwrap();
    registry.store(record.clone(), &lease).await.unwrap();
    std::fs::write(find(directory.path(), "record.json"), b"{").unwrap();
    let error = registry.load(&record.owner, &record.key).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    assert!(error.to_string().contains("record.json"), "{error}");
}

fn find(directory: &std::path::Path, name: &str) -> std::path::PathBuf {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let found = find(&path, name);
            if found.exists() {
                return found;
            }
        } else if path.file_name().unwrap() == name {
            return path;
        }
    }
    directory.join("absent")
}
