//! What the client makes of answers that are wrong, broken off, or missing.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

#[path = "support/handle.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sandhold_core::{
    ByteStream, Error, ErrorKind, FileOptions, Outcome, ProcessEvent, ProcessSelector, ProcessSpec,
    ReadOptions, Result, ResultStream, SandboxHandle, Signal, WatchOptions, WriteOptions,
};
use sandhold_envd::{Dialect, EnvdClient, EnvdConfig, TcpTransport};
use support::{Plane, Reply, answer, chunks, handle, scripted};

const STREAM: &str = "application/connect+proto";
const JSON: &str = "application/json; charset=utf-8";
const HEALTH: &str = "GET /health";

fn envelope(flags: u8, message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![flags];
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// `{event: {start: {pid: 7}}}`
fn started() -> Vec<u8> {
    envelope(0, &[0x0a, 0x04, 0x0a, 0x02, 0x08, 0x07])
}

/// `{event: {data: {stdout: "hi"}}}`
fn output() -> Vec<u8> {
    envelope(0, &[0x0a, 0x06, 0x12, 0x04, 0x0a, 0x02, b'h', b'i'])
}

/// `{event: {end: {exit_code: 0 (absent), exited: true}}}`
fn ended() -> Vec<u8> {
    envelope(0, &[0x0a, 0x04, 0x1a, 0x02, 0x10, 0x01])
}

fn alive() -> Reply {
    Reply::Bytes(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())
}

fn not_running() -> Vec<u8> {
    answer("502 Bad Gateway", JSON, r#"{"sandboxId":"box","message":"x","code":502}"#)
}

fn sh() -> ProcessSpec {
    ProcessSpec::argv("true", [""; 0])
}

/// Starts a process on a server that sends this after the head, and returns what comes instead of the exit.
async fn broken_stream(rest: Vec<u8>, closed: bool, health: fn() -> Reply, plane: Plane) -> Error {
    let address = scripted(move |line, _| match line {
        HEALTH => health(),
        _ if closed => Reply::ThenClose(rest.clone()),
        _ => Reply::Bytes(rest.clone()),
    })
    .await;
    let config = EnvdConfig::new().with_answer_timeout(Duration::from_secs(2));
    let mut process = handle(address, config, plane).start(sh()).await.unwrap();
    assert_eq!(process.pid(), 7);
    loop {
        match process.next_event().await {
            Ok(Some(ProcessEvent::Output { data, .. })) => assert_eq!(&data[..], b"hi"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => return error,
        }
    }
}

#[tokio::test]
async fn a_stream_without_an_end_event_is_outcome_unknown_however_it_ends() {
    let last_chunk = b"0\r\n\r\n".to_vec();
    let end = |json: &str| envelope(2, json.as_bytes());
    let unavailable = r#"{"error":{"code":"unavailable","message":"exit status 0"}}"#;
    let rests = [
        (chunks(STREAM, &[started(), output()]), true),
        ([chunks(STREAM, &[started()]), last_chunk.clone()].concat(), false),
        ([chunks(STREAM, &[started(), output(), end("{}")]), last_chunk.clone()].concat(), false),
        ([chunks(STREAM, &[started(), end(unavailable)]), last_chunk.clone()].concat(), false),
        ([chunks(STREAM, &[started(), end("{")]), last_chunk.clone()].concat(), false),
        ([chunks(STREAM, &[started(), output()[..4].to_vec()]), last_chunk.clone()].concat(), false),
        ([chunks(STREAM, &[started(), envelope(1, b"zip")]), last_chunk.clone()].concat(), false),
        ([chunks(STREAM, &[started(), envelope(0, &[0xff])]), last_chunk].concat(), false),
    ];
    for (number, (rest, closed)) in rests.into_iter().enumerate() {
        let error = broken_stream(rest, closed, alive, Plane::Gone).await;
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "case {number}: {error}");
        assert_eq!((error.outcome(), error.is_retryable()), (Outcome::Unknown, false));
        assert!(
            error.context().any(|pair| pair == ("pid", "7"))
                && error.context().any(|pair| pair == ("sandbox", "alive"))
        );
    }
}

#[tokio::test]
async fn only_the_provider_makes_a_broken_stream_a_sandbox_that_is_gone() {
    let rest = chunks(STREAM, &[started()]);
    let dead = || Reply::Bytes(not_running());
    let gone = broken_stream(rest.clone(), true, dead, Plane::Gone).await;
    assert_eq!((gone.kind(), gone.outcome()), (ErrorKind::Gone, Outcome::Unknown));
    for plane in [Plane::Running, Plane::Broken] {
        let unknown = broken_stream(rest.clone(), true, dead, plane).await;
        assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{unknown}");
    }
}

#[tokio::test]
async fn an_exit_is_told_once_and_its_connection_serves_the_next_call() {
    let address = scripted(|_, number| {
        assert_eq!(number, 0, "a second connection was opened");
        let end = envelope(2, b"{}");
        let rest = chunks(STREAM, &[started(), output(), ended(), end]);
        Reply::Bytes([rest, b"0\r\n\r\n".to_vec()].concat())
    })
    .await;
    let handle = handle(address, EnvdConfig::new(), Plane::Running);
    for _ in 0..3 {
        let mut process = handle.start(sh()).await.unwrap();
        let status = process.wait().await.unwrap();
        assert_eq!((status.code, status.signal), (Some(0), None));
        assert_eq!(process.next_event().await.unwrap(), None);
        drop(process);
        // The rest of the answer is read by a task of its own.
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lost_answer_is_unknown_only_where_a_second_try_could_do_harm() {
    let address =
        scripted(|line, _| if line == HEALTH { alive() } else { Reply::ThenClose(Vec::new()) }).await;
    let handle = handle(address, EnvdConfig::new(), Plane::Running);
    let options = FileOptions::default;
    let pid = || ProcessSelector::Pid(1);
    let lost = |result: Result<()>| result.unwrap_err();
    for error in [
        lost(handle.start(sh()).await.map(drop)),
        lost(handle.rename("a", "b", options()).await.map(drop)),
        lost(handle.signal(pid(), Signal(10)).await.map(drop)),
    ] {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown), "{error}");
        assert!(!error.is_retryable(), "{error}");
    }
    for error in [
        lost(handle.remove("a", options()).await),
        lost(handle.make_dir("a", options()).await.map(drop)),
        lost(handle.signal(pid(), Signal::KILL).await.map(drop)),
    ] {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error}");
        assert!(error.is_retryable(), "{error}");
    }
    for error in [
        lost(handle.stat("a", options()).await.map(drop)),
        lost(handle.read("a", ReadOptions::default()).await.map(drop)),
        lost(handle.watch("a", WatchOptions::default()).await.map(drop)),
    ] {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotStarted), "{error}");
        assert!(error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn a_daemon_that_cannot_be_reached_had_nothing_done_to_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for (plane, kind) in [(Plane::Running, ErrorKind::Unavailable), (Plane::Gone, ErrorKind::Gone)] {
        let error = handle(address, EnvdConfig::new(), plane).start(sh()).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, Outcome::NotStarted), "{error}");
    }
}

#[tokio::test]
async fn silence_ends_at_the_answer_timeout() {
    let address = scripted(|line, _| if line == HEALTH { alive() } else { Reply::Bytes(Vec::new()) }).await;
    let config = EnvdConfig::new().with_answer_timeout(Duration::from_millis(50));
    let handle = handle(address, config, Plane::Running);
    let error = handle.stat("a", FileOptions::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true));
    let error = handle.rename("a", "b", FileOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
}

#[tokio::test]
async fn a_download_that_is_cut_off_ends_with_an_error() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfour".to_vec();
    for reply in [head, chunks("text/plain", &[b"four".to_vec()])] {
        let address = scripted(move |_, _| Reply::ThenClose(reply.clone())).await;
        let handle = handle(address, EnvdConfig::new(), Plane::Running);
        let mut body = handle.read("a", ReadOptions::default()).await.unwrap().body;
        assert_eq!(body.next().await.unwrap().unwrap(), "four");
        let error = body.next().await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
        assert!(body.next().await.is_none());
    }
    let endless = b"HTTP/1.1 200 OK\r\n\r\nno length".to_vec();
    let address = scripted(move |_, _| Reply::ThenClose(endless.clone())).await;
    let error = handle(address, EnvdConfig::new(), Plane::Running).read("a", ReadOptions::default()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unexpected);
}

#[tokio::test]
async fn a_server_that_knows_no_ranges_still_gives_the_part_asked_for() {
    let address = scripted(|_, _| Reply::Bytes(answer("200 OK", "text/plain", "0123456789"))).await;
    let handle = handle(address, EnvdConfig::new(), Plane::Running);
    for (offset, length, expected) in
        [(0, None, "0123456789"), (3, None, "3456789"), (3, Some(4), "3456"), (0, Some(0), "")]
    {
        let mut options = ReadOptions::default().with_offset(offset);
        options.length = length;
        let download = handle.read("a", options).await.unwrap();
        assert_eq!(download.size, Some(expected.len() as u64));
        assert_eq!(download.body.into_bytes(100).await.unwrap(), expected.as_bytes());
    }
}

#[tokio::test]
async fn an_upload_reports_the_error_of_its_own_body() {
    let address = scripted(|line, _| if line == HEALTH { alive() } else { Reply::Bytes(Vec::new()) }).await;
    let handle = handle(address, EnvdConfig::new(), Plane::Running);
    let mine = || Error::new(ErrorKind::StorageFull, "the source broke");
    let mut items = vec![Ok("first".into()), Err(mine())].into_iter();
    let body = ResultStream::new(futures_util::stream::iter(std::iter::from_fn(move || items.next())));
    let error = handle.write("a", body, WriteOptions::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::StorageFull, "the source broke"));
    for size in [3, 9] {
        let body = ByteStream::from_bytes("12345");
        let error = handle.write("a", body, WriteOptions::default().with_size(size)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[tokio::test]
async fn what_e2b_s_daemon_has_not_is_refused_before_anything_is_sent() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let address = scripted(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Reply::ThenClose(Vec::new())
    })
    .await;
    let handle = handle(address, EnvdConfig::new().with_dialect(Dialect::E2b), Plane::Running);
    let pid = || ProcessSelector::Pid(1);
    let replay = sandhold_core::AttachOptions::default().with_replay(sandhold_core::ReplayFrom::start());
    for error in [
        handle.start(sh().with_retain(1)).await.map(drop).unwrap_err(),
        handle.attach(pid(), replay).await.map(drop).unwrap_err(),
        handle.release(pid()).await.map(drop).unwrap_err(),
        handle.signal(pid(), Signal::INT).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[test]
fn a_token_travels_in_the_clear_only_where_that_was_allowed() {
    let to = |host: &str, config: EnvdConfig| EnvdClient::new(Arc::new(TcpTransport::new(host, 80)), config);
    let config = || EnvdConfig::new().with_access_token("secret");
    let error = to("sandbox.example", config()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(to("sandbox.example", config().with_plaintext_allowed()).is_ok());
    assert!(to("127.0.0.1", config()).is_ok());
    let shown = format!("{:?} {error}", config());
    assert!(!shown.contains("secret\""), "{shown}");
}
