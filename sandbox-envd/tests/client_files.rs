//! The client against the daemon: files, watches, ports.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![cfg(all(feature = "client", feature = "daemon"))]

#[path = "support/handle.rs"]
mod handles;
mod support;

use handles::{Plane, handle};
use sandhold_core::{
    ByteStream, ErrorKind, FileOptions, FileType, ListOptions, ReadOptions, SandboxHandle, WatchEventKind,
    WatchOptions, WriteOptions,
};
use sandhold_envd::{Daemon, DaemonConfig, EnvdClient, EnvdConfig, EnvdHandle, UnixTransport};
use support::start;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_file_goes_up_and_comes_down_byte_for_byte() {
    let running = start(|config| config.with_access_token("secret")).await;
    let handle = handle(running.address, EnvdConfig::new().with_access_token("secret"), Plane::Running);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/a file & more?.bin").to_str().unwrap().to_owned();
    let content: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    for options in [WriteOptions::default(), WriteOptions::default().with_size(content.len() as u64)] {
        let entry = handle.write(&path, ByteStream::from_bytes(content.clone()), options).await.unwrap();
        assert_eq!((entry.path.as_str(), entry.size, entry.mode), (path.as_str(), 12_000_000, 0o644));
        assert_eq!(entry.file_type, FileType::File);
        assert!(entry.modified_at.is_some());
    }
    let download = handle.read(&path, ReadOptions::default()).await.unwrap();
    assert_eq!(download.size, Some(12_000_000));
    assert!(download.body.into_bytes(usize::MAX).await.unwrap() == content);
    let part = ReadOptions::default().with_offset(11_999_990).with_length(100);
    let part = handle.read(&path, part).await.unwrap();
    assert_eq!(part.body.into_bytes(100).await.unwrap(), content[11_999_990..]);
    let behind = handle.read(&path, ReadOptions::default().with_offset(12_000_000)).await.unwrap();
    assert_eq!(behind.body.into_bytes(100).await.unwrap(), b"");
}

#[tokio::test]
async fn directories_are_made_listed_moved_and_removed() {
    let running = start(|config| config).await;
    let handle = handle(running.address, EnvdConfig::new(), Plane::Running);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let options = FileOptions::default;
    assert_eq!(handle.make_dir(&at("a/b"), options()).await.unwrap().file_type, FileType::Directory);
    let again = handle.make_dir(&at("a/b"), options()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    handle.write(&at("a/f"), ByteStream::from_bytes("1"), WriteOptions::default()).await.unwrap();
    let names = |depth| {
        let handle = handle.clone();
        let path = at("a");
        async move {
            let entries = handle.list(&path, ListOptions::default().with_depth(depth)).await.unwrap();
            entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        }
    };
    assert_eq!(names(1).await, ["b", "f"]);
    assert_eq!(handle.rename(&at("a/f"), &at("a/b/g"), options()).await.unwrap().name, "g");
    assert_eq!(names(2).await, ["b", "g"]);
    handle.remove(&at("a"), options()).await.unwrap();
    handle.remove(&at("a"), options()).await.unwrap();
    for error in [
        handle.stat(&at("a"), options()).await.map(drop).unwrap_err(),
        handle.list(&at("a"), ListOptions::default()).await.map(drop).unwrap_err(),
        handle.rename(&at("a"), &at("b"), options()).await.map(drop).unwrap_err(),
        handle.read(&at("a"), ReadOptions::default()).await.map(drop).unwrap_err(),
        handle.watch(&at("a"), WatchOptions::default()).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    let dir_as_file = handle.read(&at(""), ReadOptions::default()).await.unwrap_err();
    assert_eq!(dir_as_file.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn an_unknown_user_is_unauthenticated_everywhere() {
    let running = start(|config| config).await;
    let handle = handle(running.address, EnvdConfig::new().with_user("nobody-at-all"), Plane::Running);
    let body = ByteStream::from_bytes("");
    for error in [
        handle.stat("/", FileOptions::default()).await.map(drop).unwrap_err(),
        handle.read("/etc/hostname", ReadOptions::default()).await.map(drop).unwrap_err(),
        handle.write("/tmp/x", body, WriteOptions::default()).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    }
}

#[tokio::test]
async fn a_watch_is_in_force_when_it_returns_and_ends_when_dropped() {
    let running = start(|config| config).await;
    let handle = handle(running.address, EnvdConfig::new(), Plane::Running);
    let dir = tempfile::tempdir().unwrap();
    let mut events = handle.watch(dir.path().to_str().unwrap(), WatchOptions::default()).await.unwrap();
    std::fs::write(dir.path().join("seen"), "x").unwrap();
    let event = events.next().await.unwrap().unwrap();
    assert_eq!((event.name.as_str(), event.kind), ("seen", WatchEventKind::Create));
    running.daemon.abort_connections();
    let error = loop {
        match events.next().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.context().any(|pair| pair == ("sandbox", "alive")), "{error}");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_port_inside_is_dialed_through_the_daemon() {
    let running = start(|config| config).await;
    let handle = handle(running.address, EnvdConfig::new(), Plane::Running);
    let inside = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = inside.local_addr().unwrap().port();
    let mut stream = handle.dial(port).await.unwrap();
    let (mut peer, _) = inside.accept().await.unwrap();
    stream.write_all(b"ping").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = String::new();
    peer.read_to_string(&mut received).await.unwrap();
    peer.write_all(b"pong").await.unwrap();
    drop(peer);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!((received.as_str(), answer.as_str()), ("ping", "pong"));
    drop(inside);
    let error = handle.dial(port).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::NotFound, Some("port_closed")));
}

#[tokio::test]
async fn the_same_daemon_is_reached_by_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("envd.sock");
    let daemon = Daemon::new(DaemonConfig::new().with_retain_dir(dir.path().join("kept"))).unwrap();
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let serving = tokio::spawn({
        let daemon = daemon.clone();
        async move { daemon.serve(listener).await }
    });
    let client =
        EnvdClient::new(std::sync::Arc::new(UnixTransport::new(&socket)), EnvdConfig::new()).unwrap();
    client.health().await.unwrap();
    let id = sandhold_core::SandboxId::new("box");
    let handle = EnvdHandle::new(client, "test", id, None, std::sync::Arc::new(Plane::Running));
    let entry = handle.stat(dir.path().to_str().unwrap(), FileOptions::default()).await.unwrap();
    assert_eq!(entry.file_type, FileType::Directory);
    daemon.stop();
    serving.await.unwrap();
    let error = handle.stat("/", FileOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
