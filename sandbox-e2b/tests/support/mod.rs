//! A control plane that says what a test lets it say, and the provider that asks it.

#![allow(dead_code, reason = "not every test program needs all of it")]

use std::time::Duration;

use sandhold_core::retry::RetryPolicy;
use sandhold_core::{Attempt, CreateOptions, Generation, Key, Owner, SandboxId, SandboxSpec, Tags};
use sandhold_e2b::testing::{Answer, Fault, Proxy, Rule};
use sandhold_e2b::{E2bConfig, E2bProvider};
use serde_json::{Value, json};

pub(crate) const ID: &str = "i0123456789abcdefghij";

pub(crate) async fn alone() -> (Proxy, E2bProvider) {
    let proxy = Proxy::alone().await.unwrap();
    let provider = provider(config(&proxy));
    (proxy, provider)
}

pub(crate) fn config(proxy: &Proxy) -> E2bConfig {
    let retry = RetryPolicy::default().with_max_retries(2).with_initial_backoff(Duration::from_millis(1));
    E2bConfig::new("e2b_key")
        .with_api_url(proxy.url())
        .with_sandbox_url(proxy.url())
        .with_retry(retry)
        .with_request_timeout(Duration::from_secs(20))
}

pub(crate) fn provider(config: E2bConfig) -> E2bProvider {
    E2bProvider::new(config).unwrap()
}

pub(crate) fn id() -> SandboxId {
    SandboxId::new(ID)
}

pub(crate) fn tags() -> Tags {
    Tags {
        owner: Owner::new("o").unwrap(),
        key: Key::new("k").unwrap(),
        generation: Generation::new("g"),
        attempt: Attempt::new("a"),
    }
}

pub(crate) fn options() -> CreateOptions {
    CreateOptions::new(SandboxSpec::default(), tags())
}

pub(crate) fn detail(id: &str, state: &str) -> Value {
    json!({
        "sandboxID": id, "templateID": "t", "alias": "base", "clientID": "c", "state": state,
        "startedAt": "2026-08-01T12:00:00Z", "endAt": "2026-08-01T12:05:00Z", "cpuCount": 2, "memoryMB": 512,
        "diskSizeMB": 1024, "envdVersion": "0.6.4",
        "metadata": {
            "sandhold-owner": "o", "sandhold-key": "k", "sandhold-generation": "g", "sandhold-attempt": "a",
        },
    })
}

pub(crate) fn sandbox() -> Value {
    json!({
        "sandboxID": ID, "templateID": "t", "clientID": "c", "envdVersion": "0.6.4", "envdAccessToken": "token",
        "trafficAccessToken": "traffic", "domain": null,
    })
}

pub(crate) fn answer(answer: Answer) -> Rule {
    Rule::new(Fault::Answer(answer))
}

pub(crate) fn json_answer(status: u16, body: &Value) -> Rule {
    answer(Answer::new(status).with_json(body))
}
