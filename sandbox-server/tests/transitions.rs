//! What is answered about a sandbox that is between two states, and when its provider has no answer.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support {
    pub(crate) const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";
}

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Answer, Box, Request};
use sandhold_core::testing::{FakeProvider, Fault, Gate, Verb};
use sandhold_core::{Error, ErrorKind, Outcome};
use sandhold_server::{Server, ServerConfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};

/// A server over a provider whose calls can be held.
struct Stage {
    provider: FakeProvider,
    at: SocketAddr,
    _home: TempDir,
}

impl Stage {
    async fn new() -> Self {
        Self::over(FakeProvider::new(), |config| config).await
    }

    async fn over(provider: FakeProvider, shape: impl FnOnce(ServerConfig) -> ServerConfig) -> Self {
        let home = TempDir::new().unwrap();
        let config = ServerConfig::new()
            .with_listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .with_home(home.path())
            .with_api_key(support::KEY);
        let server = Server::start(Arc::new(provider.clone()), shape(config)).await.unwrap();
        let at = server.local_addr();
        tokio::spawn(server.serve(std::future::pending()));
        Self { provider, at, _home: home }
    }

    async fn send(&self, request: Request) -> Answer {
        self.begin(request).await.unwrap()
    }

    /// Sends a request that may be held.
    fn begin(&self, request: Request) -> JoinHandle<Answer> {
        let at = self.at;
        spawn_blocking(move || request.send(at))
    }

    async fn create(&self, body: Value) -> Box {
        let at = self.at;
        spawn_blocking(move || Box::create(at, body)).await.unwrap()
    }

    /// Sends a request whose call at the provider waits at the gate that is returned.
    async fn hold(&self, verb: Verb, request: Request) -> (Gate, JoinHandle<Answer>) {
        let gate = Gate::new();
        self.provider.script(verb, Fault::HoldBefore(gate.clone()));
        let answer = self.begin(request);
        gate.arrived(1).await;
        (gate, answer)
    }

    async fn state(&self, sandbox: &Box) -> Option<String> {
        let info = self.send(sandbox.control("GET", "")).await;
        (info.status == 200).then(|| info.json()["state"].as_str().unwrap().to_owned())
    }

    async fn is_listed(&self, sandbox: &Box) -> bool {
        let listed = self.send(Request::new("GET", "/v2/sandboxes").key()).await.json();
        listed.as_array().unwrap().iter().any(|one| one["sandboxID"] == json!(sandbox.id))
    }
}

fn post(sandbox: &Box, rest: &str, body: Value) -> Request {
    sandbox.control("POST", rest).json(&body)
}

/// What cannot be done to a sandbox that is brought to another state, and is not waited for either.
fn adjustments(sandbox: &Box) -> [Request; 6] {
    [
        post(sandbox, "/pause", json!({})),
        post(sandbox, "/timeout", json!({ "timeout": 60 })),
        post(sandbox, "/refreshes", json!({ "duration": 60 })),
        post(sandbox, "/fork", json!({})),
        post(sandbox, "/snapshots", json!({})),
        sandbox.control("PUT", "/network").json(&json!({})),
    ]
}

async fn are_in_conflict(stage: &Stage, sandbox: &Box) {
    for request in adjustments(sandbox) {
        let shown = format!("{request:?}");
        let answer = stage.send(request).await;
        let said = format!(r#"{{"code":409,"message":"Sandbox {} is in transition"}}"#, sandbox.id);
        assert_eq!((answer.status, answer.text()), (409, said.as_str()), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_port_of_a_sandbox_that_is_being_woken_is_a_conflict() {
    let stage = Stage::new().await;
    let sandbox = stage.create(json!({ "timeout": 600 })).await;
    assert_eq!(stage.send(post(&sandbox, "/pause", json!({}))).await.status, 204);
    let connect = post(&sandbox, "/connect", json!({ "timeout": 600 }));
    let (gate, connected) = stage.hold(Verb::Connect, connect).await;
    let said =
        format!(r#"{{"sandboxId":"{}","message":"The sandbox is in transition","code":409}}"#, sandbox.id);
    for request in [
        sandbox.port(8000, "GET", "/"),
        sandbox.daemon("GET", "/health"),
        sandbox.daemon("GET", "/files?path=a.txt"),
        Request::new("GET", "/").header("Host", &format!("8000-{}.localhost", sandbox.id)),
    ] {
        let answer = stage.send(request).await;
        assert_eq!((answer.status, answer.text()), (409, said.as_str()));
        assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"));
    }
    let page =
        sandbox.port(8000, "GET", "/").header("User-Agent", "Mozilla/5.0").header("Accept", "text/html");
    let page = stage.send(page).await;
    assert_eq!((page.status, page.header("content-type")), (409, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("The sandbox is in transition"), "{page:?}");
    // To the control plane it is paused until it runs.
    assert_eq!(stage.state(&sandbox).await.as_deref(), Some("paused"));
    are_in_conflict(&stage, &sandbox).await;
    gate.open();
    assert_eq!(connected.await.unwrap().status, 201);
    assert_eq!(stage.state(&sandbox).await.as_deref(), Some("running"));
    assert_ne!(stage.send(sandbox.port(8000, "GET", "/")).await.status, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_being_paused_is_shown_as_paused_and_a_connect_waits_for_it() {
    let stage = Stage::new().await;
    let sandbox = stage.create(json!({ "timeout": 600 })).await;
    let (gate, paused) = stage.hold(Verb::Pause, post(&sandbox, "/pause", json!({}))).await;
    assert_eq!(stage.state(&sandbox).await.as_deref(), Some("paused"));
    assert!(stage.is_listed(&sandbox).await);
    // Health says so before the connections of the sandbox are dropped.
    assert_eq!(stage.send(sandbox.daemon("GET", "/health")).await.status, 502);
    are_in_conflict(&stage, &sandbox).await;
    let connected = stage.begin(post(&sandbox, "/connect", json!({ "timeout": 600 })));
    gate.open();
    assert_eq!((paused.await.unwrap().status, connected.await.unwrap().status), (204, 201));
    assert_eq!(stage.state(&sandbox).await.as_deref(), Some("running"));
    // A kill waits as well, and ends whatever it finds.
    let (gate, paused) = stage.hold(Verb::Pause, post(&sandbox, "/pause", json!({}))).await;
    let killed = stage.begin(sandbox.control("DELETE", ""));
    gate.open();
    assert_eq!((paused.await.unwrap().status, killed.await.unwrap().status), (204, 204));
    assert_eq!(stage.state(&sandbox).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_a_snapshot_is_taken_of_runs_on() {
    let stage = Stage::new().await;
    let sandbox = stage.create(json!({ "timeout": 600 })).await;
    for (verb, rest) in [(Verb::Snapshot, "/snapshots"), (Verb::Fork, "/fork")] {
        let (gate, taken) = stage.hold(verb, post(&sandbox, rest, json!({}))).await;
        assert_eq!(stage.state(&sandbox).await.as_deref(), Some("running"), "{rest}");
        are_in_conflict(&stage, &sandbox).await;
        let connected = stage.begin(post(&sandbox, "/connect", json!({ "timeout": 600 })));
        gate.open();
        assert_eq!((taken.await.unwrap().status, connected.await.unwrap().status), (201, 200), "{rest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_being_killed_is_as_good_as_gone() {
    let stage = Stage::new().await;
    let sandbox = stage.create(json!({ "timeout": 600 })).await;
    let (gate, killed) = stage.hold(Verb::Destroy, sandbox.control("DELETE", "")).await;
    assert_eq!((stage.state(&sandbox).await, stage.is_listed(&sandbox).await), (None, false));
    let gone = format!(r#"{{"code":404,"message":"Sandbox \"{}\" not found"}}"#, sandbox.id);
    let mut requests = Vec::from(adjustments(&sandbox));
    requests.push(post(&sandbox, "/resume", json!({})));
    // E2B says 409 to a connect for as long as the kill takes; whoever connects finds nothing in either case.
    requests.push(post(&sandbox, "/connect", json!({ "timeout": 60 })));
    requests.push(sandbox.control("DELETE", ""));
    requests.push(sandbox.control("GET", "/metrics"));
    for request in requests {
        let shown = format!("{request:?}");
        let answer = stage.send(request).await;
        assert_eq!((answer.status, answer.text()), (404, gone.as_str()), "{shown}");
    }
    let port = stage.send(sandbox.port(8000, "GET", "/")).await;
    let said =
        format!(r#"{{"sandboxId":"{}","message":"The sandbox was not found","code":502}}"#, sandbox.id);
    assert_eq!((port.status, port.text()), (502, said.as_str()));
    gate.open();
    assert_eq!(killed.await.unwrap().status, 204);
    // One that its provider does not end is there again, and says so.
    let other = stage.create(json!({ "timeout": 600 })).await;
    stage.provider.script(Verb::Destroy, Fault::Before(Error::new(ErrorKind::Unavailable, "not now")));
    assert_eq!(stage.send(other.control("DELETE", "")).await.status, 503);
    assert_eq!(stage.state(&other).await.as_deref(), Some("running"));
    assert_eq!(stage.send(other.control("DELETE", "")).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_cannot_is_told_by_status_with_what_may_be_done_about_it() {
    let stage = Stage::new().await;
    let later = Some(Duration::from_secs(7));
    for (error, status, should_retry, retry_after) in [
        (Error::new(ErrorKind::QuotaExceeded, "no more sandboxes"), 429, None, None),
        (Error::new(ErrorKind::RateLimited, "slowly").retryable(later), 429, Some("true"), Some("7")),
        (Error::new(ErrorKind::Unavailable, "busy").retryable(None), 503, Some("true"), Some("1")),
        (Error::new(ErrorKind::Timeout, "late").with_outcome(Outcome::Unknown), 504, Some("false"), None),
        (Error::new(ErrorKind::Unexpected, "broken"), 500, Some("false"), None),
        // Not even a sandbox that is not there makes a create a 404, which only a missing template is.
        (Error::new(ErrorKind::StorageFull, "full"), 507, Some("false"), None),
    ] {
        let message = error.message().to_owned();
        stage.provider.script(Verb::Create, Fault::Before(error));
        let create = Request::new("POST", "/v2/sandboxes").key().json(&json!({ "templateID": "base" }));
        let answer = stage.send(create).await;
        let said = format!(r#"{{"code":{status},"message":"{message}"}}"#);
        assert_eq!((answer.status, answer.text()), (status, said.as_str()));
        let told = (answer.header("should-retry"), answer.header("retry-after"));
        assert_eq!(told, (should_retry, retry_after), "{message}");
    }
    assert!(stage.provider.alive().is_empty());
    // Traffic that would wake a sandbox where no more can run, and one whose provider is not there.
    let asked = json!({ "timeout": 600, "autoPause": true, "autoResume": { "enabled": true } });
    let sandbox = stage.create(asked).await;
    assert_eq!(stage.send(post(&sandbox, "/pause", json!({}))).await.status, 204);
    for (kind, status) in [(ErrorKind::QuotaExceeded, 429), (ErrorKind::Unavailable, 503)] {
        stage.provider.script(Verb::Connect, Fault::Before(Error::new(kind, "no")));
        let answer = stage.send(sandbox.port(8000, "GET", "/")).await;
        let body = answer.json();
        assert_eq!(
            (answer.status, &body["code"], &body["sandboxId"]),
            (status, &json!(status), &json!(sandbox.id))
        );
        assert_eq!(stage.state(&sandbox).await.as_deref(), Some("paused"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_past_its_longest_time_gets_no_more() {
    let before = Stage::new().await;
    let sandbox = before.create(json!({ "timeout": 600 })).await;
    let end = before.send(sandbox.control("GET", "")).await.json()["endAt"].clone();
    // Another server over the same sandboxes lets none run as long as this one did already.
    let shorter = |config: ServerConfig| config.with_max_run(Duration::from_millis(1));
    let stage = Stage::over(before.provider.clone(), shorter).await;
    for request in
        [post(&sandbox, "/timeout", json!({ "timeout": 0 })), post(&sandbox, "/refreshes", json!({}))]
    {
        let answer = stage.send(request).await;
        let said = r#"{"code":400,"message":"the sandbox has reached its maximum length"}"#;
        assert_eq!((answer.status, answer.text()), (400, said));
    }
    let connect = stage.send(post(&sandbox, "/connect", json!({ "timeout": 1 }))).await;
    assert_eq!(connect.status, 400, "{connect:?}");
    assert_eq!(stage.send(sandbox.control("GET", "")).await.json()["endAt"], end);
}
