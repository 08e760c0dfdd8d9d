//! Limits of a whole sandbox, enforced by control groups where this user may make them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

use sandhold_core::{
    Attempt, CreateOptions, ErrorKind, Generation, Key, ListFilter, Owner, ProcessSpec, Resources,
    SandboxHandleExt as _, SandboxProvider as _, SandboxProviderExt as _, SandboxSpec, Tags,
};

mod support;

fn options(resources: Resources) -> CreateOptions {
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new("limits").unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    };
    CreateOptions::new(SandboxSpec::default().with_resources(resources), tags)
}

/// Whether this user may limit memory and processes here, as the helper's probe finds by doing it.
async fn limits_work(fixture: &support::LocalFixture) -> bool {
    let probe: serde_json::Value = serde_json::from_str(&fixture.open().probe().await.unwrap()).unwrap();
    let works = probe["limits"]["memory"] == true && probe["limits"]["pids"] == true;
    if !works {
        println!("skipped: needs control groups that this user may make");
    }
    works
}

#[tokio::test]
async fn an_out_of_memory_kill_is_a_fact_of_its_own() {
    let fixture = support::LocalFixture::new();
    if !limits_work(&fixture).await {
        return;
    }
    let provider = fixture.open();
    let resources = Resources::default().with_memory(64 * 1024 * 1024);
    let handle = provider.create_opts(options(resources)).await.unwrap();
    // Twice the limit, touched page by page; the shell's own code tells of its child.
    let hungry = "x = bytearray(128 * 1024 * 1024)";
    for spec in [
        ProcessSpec::argv("python3", ["-c", hungry]),
        ProcessSpec::argv("/bin/sh", ["-c", &format!("python3 -c '{hungry}'; exit $?")]),
    ] {
        let output = handle.exec(spec).await.unwrap();
        assert!(output.exit.oom_killed, "{}: {}", output.exit, output.stderr.text());
        assert!(!output.exit.success());
    }
    let killed = handle.exec(ProcessSpec::argv("/bin/sh", ["-c", "kill -9 $$"])).await.unwrap();
    assert_eq!((killed.exit.signal, killed.exit.oom_killed), (Some(9), false));
    provider.destroy(handle.id()).await.unwrap();
}

#[tokio::test]
async fn a_limit_of_processes_stops_a_fork_bomb_and_nothing_else() {
    let fixture = support::LocalFixture::new();
    if !limits_work(&fixture).await {
        return;
    }
    let provider = fixture.open();
    let handle = provider.create_opts(options(Resources::default().with_pids(20))).await.unwrap();
    let bomb = "for i in $(seq 100); do sleep 100 & done; exit 0";
    let output = handle.exec(ProcessSpec::argv("/bin/bash", ["-c", bomb])).await.unwrap();
    assert!(output.stderr.text().contains("fork"), "{:?}", output.stderr.text());
    provider.destroy(handle.id()).await.unwrap();
}

#[tokio::test]
async fn a_limit_that_cannot_be_enforced_is_refused_before_anything_is_made() {
    let fixture = support::LocalFixture::new();
    let provider = fixture.open();
    let error = provider.create_opts(options(Resources::default().with_disk(1 << 30))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(provider.list_all(ListFilter::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_disk_limit_is_enforced_in_memory() {
    let fixture = support::LocalFixture::new();
    let provider = sandhold_local::LocalProvider::new(fixture.config().in_memory()).unwrap();
    let resources = Resources::default().with_disk(32 * 1024 * 1024);
    let handle = provider.create_opts(options(resources)).await.unwrap();
    let error = handle.write_bytes("/home/user/big", vec![1; 64 * 1024 * 1024]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    handle.write_bytes("/home/user/small", vec![1; 1024 * 1024]).await.unwrap();
    provider.destroy(handle.id()).await.unwrap();
}
