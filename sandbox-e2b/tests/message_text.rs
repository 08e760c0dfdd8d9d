//! What a server says in words changes nothing: an answer is told by its status, its code and its form.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

use std::time::Duration;

use sandhold_core::retry::RetryPolicy;
use sandhold_core::{
    Attempt, ConnectOptions, CreateOptions, Error, Generation, Key, ListFilter, Owner, ProcessSpec,
    SandboxHandle, SandboxHandleExt as _, SandboxId, SandboxProvider as _, SandboxProviderExt as _,
    SandboxSpec, Tags,
};
use sandhold_e2b::testing::{Answer, Fault, Proxy, Route, Rule};
use sandhold_e2b::{E2bConfig, E2bProvider};
use serde_json::json;

const ID: &str = "i0123456789abcdefghij";

/// Texts of which each would lead who reads them somewhere else.
const TEXTS: &[&str] = &[
    "",
    "sandbox not found: it does not exist any more",
    "sandbox is paused",
    "rate limit exceeded, please retry after 3 seconds",
    "unauthorized; timeout: deadline exceeded; No space left on device; already exists",
    "ĸ¶ħłŧ \u{0} {\"code\": 404}",
];

const STATUSES: &[u16] =
    &[400, 401, 403, 404, 405, 408, 409, 413, 418, 422, 429, 500, 501, 502, 503, 504, 507];

/// What a caller may act on.
fn facts(error: &Error) -> String {
    format!(
        "{} {:?} {} {:?} {:?}",
        error.kind(),
        error.reason(),
        error.is_retryable(),
        error.retry_after(),
        error.outcome()
    )
}

async fn alone() -> (Proxy, E2bProvider) {
    let proxy = Proxy::alone().await.unwrap();
    let config = E2bConfig::new("e2b_key")
        .with_api_url(proxy.url())
        .with_sandbox_url(proxy.url())
        .with_retry(RetryPolicy::never())
        .with_request_timeout(Duration::from_secs(20));
    let provider = E2bProvider::new(config).unwrap();
    (proxy, provider)
}

fn create_options() -> CreateOptions {
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new("k").unwrap(),
        generation: Generation::new("g"),
        attempt: Attempt::new("a"),
    };
    CreateOptions::new(SandboxSpec::default(), tags)
}

/// Every verb, and what each answers; `Ok` is an answer too.
async fn control_plane(answer: &Answer) -> Vec<String> {
    let (proxy, provider) = alone().await;
    proxy.add(Rule::new(Fault::Answer(answer.clone())));
    let id = SandboxId::new(ID);
    let told =
        |answered: Result<(), Error>| answered.map_or_else(|error| facts(&error), |()| "fine".to_owned());
    vec![
        told(provider.find_id(&id).await.map(drop)),
        told(provider.list_all(ListFilter::default()).await.map(drop)),
        told(provider.connect_opts(&id, ConnectOptions::default()).await.map(drop)),
        told(provider.pause(&id).await.map(drop)),
        told(provider.set_lease(&id, Duration::from_secs(60)).await),
        told(provider.destroy(&id).await.map(drop)),
        told(provider.create_opts(create_options()).await.map(drop)),
    ]
}

#[tokio::test]
async fn the_words_of_the_control_plane_change_nothing() {
    for status in STATUSES {
        for code in [None, Some("idempotency_request_mismatch"), Some("idempotency_in_progress"), Some("x")] {
            let mut expected = None;
            for text in TEXTS {
                let mut body = json!({ "code": status, "message": text });
                if let Some(code) = code {
                    body["error_code"] = code.into();
                }
                let told = control_plane(&Answer::new(*status).with_json(&body)).await;
                let expected = expected.get_or_insert_with(|| told.clone());
                assert_eq!(*expected, told, "HTTP {status} {code:?} with {text:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_words_of_something_on_the_way_change_nothing() {
    for status in STATUSES {
        let mut expected = None;
        for text in TEXTS {
            let page = Answer::new(*status).with_header("content-type", "text/html").with_body(*text);
            let told = control_plane(&page).await;
            let expected = expected.get_or_insert_with(|| told.clone());
            assert_eq!(*expected, told, "HTTP {status} with {text:?}");
        }
    }
}

/// A handle whose daemon answers this.
async fn daemon(answer: Answer) -> (Proxy, std::sync::Arc<dyn SandboxHandle>) {
    let (proxy, provider) = alone().await;
    let sandbox = json!({
        "sandboxID": ID, "templateID": "t", "clientID": "c", "envdVersion": "0.6.4", "envdAccessToken": "token",
        "trafficAccessToken": "traffic", "domain": null,
    });
    proxy.add(Rule::new(Fault::Answer(Answer::new(201).with_json(&sandbox))).with_route(Route::Create));
    let handle = provider.create_opts(create_options()).await.unwrap();
    // Whoever asks the control plane what became of the sandbox is told that it runs.
    let detail = json!({
        "sandboxID": ID, "templateID": "t", "clientID": "c", "state": "running", "envdVersion": "0.6.4",
        "startedAt": "2026-08-01T12:00:00Z", "endAt": "2026-08-01T12:05:00Z",
    });
    proxy.add(Rule::new(Fault::Answer(Answer::new(200).with_json(&detail))).with_route(Route::Info));
    proxy.add(Rule::new(Fault::Answer(answer)).with_route(Route::Inside));
    (proxy, handle)
}

#[tokio::test]
async fn the_words_of_the_daemon_change_nothing() {
    let codes = [
        "canceled",
        "unknown",
        "invalid_argument",
        "deadline_exceeded",
        "not_found",
        "already_exists",
        "permission_denied",
        "resource_exhausted",
        "failed_precondition",
        "aborted",
        "out_of_range",
        "unimplemented",
        "internal",
        "unavailable",
        "data_loss",
        "unauthenticated",
    ];
    for (status, code) in
        [400, 401, 404, 409, 502, 507].into_iter().flat_map(|status| codes.map(|code| (status, code)))
    {
        let mut expected = None;
        for text in TEXTS {
            let body = json!({ "code": code, "message": text });
            let (_proxy, handle) = daemon(Answer::new(status).with_json(&body)).await;
            let told = vec![
                facts(&handle.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap_err()),
                facts(&handle.processes().await.unwrap_err()),
                facts(&handle.read_bytes("/f").await.unwrap_err()),
                facts(&handle.write_bytes("/f", "x").await.map(drop).unwrap_err()),
                facts(&handle.make_dir("/d", Default::default()).await.map(drop).unwrap_err()),
            ];
            let expected = expected.get_or_insert_with(|| told.clone());
            assert_eq!(*expected, told, "{code} with {text:?}");
        }
    }
}
