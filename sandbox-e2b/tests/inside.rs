//! What is sent to the inside of a sandbox, and what its absence means there.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

use std::collections::BTreeSet;
use std::time::Duration;

use sandhold_core::retry::RetryPolicy;
use sandhold_core::{
    AttachOptions, ByteStream, Error, ErrorKind, FileOptions, ListOptions, ProcessSelector, ProcessSpec,
    ReadOptions, SandboxHandle, SandboxId, SandboxProviderExt, Signal, WatchOptions, WriteOptions,
};
use sandhold_e2b::testing::{Answer, Fault, Proxy, Route, Rule};
use sandhold_e2b::{E2bConfig, E2bProvider};
use serde_json::{Value, json};

const ID: &str = "i0123456789abcdefghij";

fn json_answer(route: Route, status: u16, body: &Value) -> Rule {
    Rule::new(Fault::Answer(Answer::new(status).with_json(body))).with_route(route)
}

fn info() -> Value {
    json!({
        "sandboxID": ID, "templateID": "t", "clientID": "c", "state": "running", "envdVersion": "0.6.4",
        "startedAt": "2026-08-01T12:00:00Z", "endAt": "2026-08-01T12:05:00Z", "cpuCount": 2, "memoryMB": 512,
        "diskSizeMB": 1024, "metadata": {},
    })
}

async fn connected(proxy: &Proxy) -> std::sync::Arc<dyn SandboxHandle> {
    let retry = RetryPolicy::default().with_max_retries(2).with_initial_backoff(Duration::from_millis(1));
    let config =
        E2bConfig::new("e2b_key").with_api_url(proxy.url()).with_sandbox_url(proxy.url()).with_retry(retry);
    let made = json!({
        "sandboxID": ID, "templateID": "t", "clientID": "c", "envdVersion": "0.6.4", "envdAccessToken": "token",
    });
    proxy.add(json_answer(Route::Info, 200, &info()).times(1));
    proxy.add(json_answer(Route::Connect, 200, &made).times(1));
    let provider = E2bProvider::new(config).unwrap();
    provider.connect(&SandboxId::new(ID)).await.unwrap().handle
}

/// Makes every call there is, and returns how each failed.
async fn all_calls(handle: &dyn SandboxHandle) -> Vec<(&'static str, Error)> {
    let pid = || ProcessSelector::Pid(7);
    let files = FileOptions::default;
    let body = ByteStream::from_bytes("text");
    let mut failed = Vec::new();
    let mut note = |name, error: Option<Error>| failed.push((name, error.unwrap()));
    note("start", handle.start(ProcessSpec::argv("true", [""; 0])).await.err());
    note("attach", handle.attach(pid(), AttachOptions::default()).await.err());
    note("processes", handle.processes().await.err());
    note("signal", handle.signal(pid(), Signal::KILL).await.err());
    note("read", handle.read("file", ReadOptions::default()).await.err());
    note("write", handle.write("file", body, WriteOptions::default()).await.err());
    note("stat", handle.stat("file", files()).await.err());
    note("list", handle.list("directory", ListOptions::default()).await.err());
    note("make_dir", handle.make_dir("directory", files()).await.err());
    note("rename", handle.rename("file", "other", files()).await.err());
    note("remove", handle.remove("file", files()).await.err());
    note("watch", handle.watch("directory", WatchOptions::default()).await.err());
    failed
}

#[tokio::test]
async fn every_call_to_a_daemon_names_its_sandbox_and_has_its_token_and_no_key() {
    let proxy = Proxy::alone().await.unwrap();
    let handle = connected(&proxy).await;
    let not_found = json!({ "sandboxId": ID, "message": "The sandbox was not found", "code": 502 });
    proxy.add(json_answer(Route::Inside, 502, &not_found));
    // Who makes the sandboxes says that it is there: then nothing in between makes it gone.
    proxy.add(json_answer(Route::Info, 200, &info()));
    for (name, error) in all_calls(handle.as_ref()).await {
        assert_ne!(error.kind(), ErrorKind::Gone, "{name}: {error}");
    }
    let sent: Vec<_> = proxy.exchanges().into_iter().filter(|sent| sent.route == Route::Inside).collect();
    for sent in &sent {
        let header = |name: &str| sent.headers.get(name).map(|value| value.to_str().unwrap());
        let named = (header("e2b-sandbox-id"), header("e2b-sandbox-port"));
        assert_eq!(named, (Some(ID), Some("49983")), "{}", sent.target);
        assert_eq!((header("x-access-token"), header("x-api-key")), (Some("token"), None), "{}", sent.target);
    }
    let paths: BTreeSet<_> = sent.iter().map(|sent| sent.path().to_owned()).collect();
    assert!(paths.len() >= 11, "{paths:?}");
}

#[tokio::test]
async fn a_process_has_no_deadline_unless_it_is_given_one() {
    let proxy = Proxy::alone().await.unwrap();
    let handle = connected(&proxy).await;
    proxy.add(Rule::new(Fault::Answer(Answer::new(401))).with_route(Route::Inside));
    let background = || ProcessSpec::argv("sleep", ["1000"]);
    assert!(handle.start(background()).await.is_err());
    let limited =
        background().with_deadline(Duration::from_millis(61_500)).with_grace(Duration::from_secs(2));
    assert!(handle.start(limited).await.is_err());
    assert!(handle.attach(ProcessSelector::Pid(7), AttachOptions::default()).await.is_err());
    let sent: Vec<_> = proxy
        .exchanges()
        .into_iter()
        .filter(|sent| sent.route == Route::Inside)
        .map(|sent| (sent.path().to_owned(), sent.headers.get("connect-timeout-ms").cloned()))
        .collect();
    // E2B's daemon kills a process at the end of the stream's time, which its SDKs set to a minute. Here that is the last
    // resort, ten seconds after the process was asked to end and had its grace.
    assert_eq!(
        sent,
        [
            ("/process.Process/Start".to_owned(), None),
            ("/process.Process/Start".to_owned(), Some("73500".parse().unwrap())),
            ("/process.Process/Connect".to_owned(), None),
        ]
    );
}

#[tokio::test]
async fn what_the_provider_says_is_gone_is_gone_for_every_call() {
    let proxy = Proxy::alone().await.unwrap();
    let handle = connected(&proxy).await;
    let not_found = json!({ "sandboxId": ID, "message": "The sandbox was not found", "code": 502 });
    proxy.add(json_answer(Route::Inside, 502, &not_found));
    let gone = json!({ "code": 404, "message": format!("Sandbox {ID} not found") });
    proxy.add(json_answer(Route::Info, 404, &gone));
    for (name, error) in all_calls(handle.as_ref()).await {
        assert_eq!(error.kind(), ErrorKind::Gone, "{name}: {error}");
    }
}
