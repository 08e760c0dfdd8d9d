//! What is particular to plain files.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::time::Duration;

use sandhold_core::testing::registry::{lease, record};
use sandhold_core::{ErrorKind, RecordFilter, Registry as _, RegistryExt as _, RegistryScope};
use sandhold_registry::FileRegistry;

const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_lease_falls_free_when_its_process_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let registry = FileRegistry::new(directory.path());
    assert_eq!(registry.scope(), RegistryScope::Machine);
    let record = record("o", "k");
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
    drop(lease(&registry, &record, TTL).await);
}

#[tokio::test]
async fn a_record_that_cannot_be_understood_is_an_error_and_not_none() {
    let directory = tempfile::tempdir().unwrap();
    let registry = FileRegistry::new(directory.path());
    let record = record("o", "k");
    let lease = lease(&registry, &record, TTL).await;
    registry.store(record.clone(), &lease).await.unwrap();
    std::fs::write(find(directory.path(), "record.json"), b"{").unwrap();
    for error in [
        registry.load(&record.owner, &record.key).await.unwrap_err(),
        registry.store(record.clone(), &lease).await.unwrap_err(),
        registry.list_all(RecordFilter::default()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unexpected);
        assert!(error.to_string().contains("record.json"), "{error}");
    }
    // A torn number would let an overtaken holder pass.
    std::fs::write(find(directory.path(), "fence"), b"").unwrap();
    let error = registry.store(record.clone(), &lease).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    assert!(error.to_string().contains("fence"), "{error}");
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
