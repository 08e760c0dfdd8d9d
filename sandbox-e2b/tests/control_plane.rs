//! What the provider makes of every answer that a control plane, or something before it, can give.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

use std::time::Duration;

use sandhold_core::retry::RetryPolicy;
use sandhold_core::{
    Attempt, ConnectOptions, CreateOptions, DestroyOutcome, Error, ErrorKind, FindQuery, ForkOptions,
    Generation, Key, ListFilter, Memory, Outcome, Owner, PauseOutcome, SandboxId, SandboxProvider,
    SandboxProviderExt, SandboxSpec, SnapshotFilter, Tags,
};
use sandhold_e2b::testing::{Answer, Fault, Proxy, RetryAfter, Route, Rule};
use sandhold_e2b::wire::ListQuery;
use sandhold_e2b::{E2bConfig, E2bProvider, PublicTraffic};
use serde_json::{Value, json};

const ID: &str = "i0123456789abcdefghij";

async fn alone() -> (Proxy, E2bProvider) {
    let proxy = Proxy::alone().await.unwrap();
    let provider = provider(config(&proxy));
    (proxy, provider)
}

fn config(proxy: &Proxy) -> E2bConfig {
    let retry = RetryPolicy::default().with_max_retries(2).with_initial_backoff(Duration::from_millis(1));
    E2bConfig::new("e2b_key")
        .with_api_url(proxy.url())
        .with_sandbox_url(proxy.url())
        .with_retry(retry)
        .with_request_timeout(Duration::from_secs(20))
}

fn provider(config: E2bConfig) -> E2bProvider {
    E2bProvider::new(config).unwrap()
}

fn id() -> SandboxId {
    SandboxId::new(ID)
}

fn tags() -> Tags {
    Tags {
        owner: Owner::new("o").unwrap(),
        key: Key::new("k").unwrap(),
        generation: Generation::new("g"),
        attempt: Attempt::new("a"),
    }
}

fn options() -> CreateOptions {
    CreateOptions::new(SandboxSpec::default(), tags())
}

fn detail(id: &str, state: &str) -> Value {
    json!({
        "sandboxID": id, "templateID": "t", "alias": "base", "clientID": "c", "state": state,
        "startedAt": "2026-08-01T12:00:00Z", "endAt": "2026-08-01T12:05:00Z", "cpuCount": 2, "memoryMB": 512,
        "diskSizeMB": 1024, "envdVersion": "0.6.4",
        "metadata": {
            "sandhold-owner": "o", "sandhold-key": "k", "sandhold-generation": "g", "sandhold-attempt": "a",
        },
    })
}

fn sandbox() -> Value {
    json!({
        "sandboxID": ID, "templateID": "t", "clientID": "c", "envdVersion": "0.6.4", "envdAccessToken": "token",
        "trafficAccessToken": "traffic", "domain": null,
    })
}

fn answer(answer: Answer) -> Rule {
    Rule::new(Fault::Answer(answer))
}

fn json_answer(status: u16, body: &Value) -> Rule {
    answer(Answer::new(status).with_json(body))
}

/// Answers that say nothing about whether a sandbox exists, and the kind that each must have.
fn doubtful() -> Vec<(Fault, Option<ErrorKind>)> {
    let html = |status| Answer::new(status).with_header("content-type", "text/html").with_body("not found");
    let mut faults = vec![
        (Fault::ResetBefore, Some(ErrorKind::Unavailable)),
        (Fault::Answer(html(404)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(404)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(200)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(204)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(200).with_body("{")), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(410)), Some(ErrorKind::Unexpected)),
    ];
    for (status, kind) in [
        (401, ErrorKind::Unauthenticated),
        (403, ErrorKind::PermissionDenied),
        (408, ErrorKind::Timeout),
        (409, ErrorKind::Conflict),
        (429, ErrorKind::RateLimited),
        (500, ErrorKind::Unexpected),
        (502, ErrorKind::Unavailable),
        (503, ErrorKind::Unavailable),
        (504, ErrorKind::Unavailable),
    ] {
        faults.push((Fault::Answer(Answer::error(status, "was not found")), Some(kind)));
        faults.push((Fault::Answer(Answer::new(status)), None));
    }
    faults
}

#[tokio::test]
async fn only_the_providers_own_404_says_that_a_sandbox_is_gone() {
    for (fault, kind) in doubtful() {
        let (proxy, provider) = alone().await;
        proxy.add(Rule::new(fault.clone()));
        let mut errors = vec![
            provider.find_id(&id()).await.unwrap_err(),
            provider
                .find(FindQuery::Key { owner: tags().owner, key: tags().key, attempt: None })
                .await
                .unwrap_err(),
            provider.list_all(ListFilter::default()).await.unwrap_err(),
            provider.connect(&id()).await.map(drop).unwrap_err(),
        ];
        // What has no answer of its own is done when the status says so.
        let succeeds =
            matches!(&fault, Fault::Answer(answer) if format!("{answer:?}").contains("status: 20"));
        if !succeeds {
            errors.push(provider.set_lease(&id(), Duration::from_secs(60)).await.unwrap_err());
            errors.push(provider.destroy(&id()).await.map(drop).unwrap_err());
            errors.push(provider.pause(&id()).await.map(drop).unwrap_err());
        }
        for error in errors {
            assert_ne!(error.kind(), ErrorKind::Gone, "{fault:?}: {error}");
            if let Some(kind) = kind {
                assert_eq!(error.kind(), kind, "{fault:?}: {error}");
            }
        }
        assert_eq!(proxy.asked(Route::Create), 0);
    }
    let (proxy, provider) = alone().await;
    proxy.add(answer(Answer::error(404, "")));
    assert_eq!(provider.find_id(&id()).await.unwrap(), None);
    assert_eq!(provider.destroy(&id()).await.unwrap(), DestroyOutcome::AlreadyGone);
    assert_eq!(provider.connect(&id()).await.map(drop).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(provider.pause(&id()).await.unwrap_err().kind(), ErrorKind::Gone);
}

#[tokio::test]
async fn retry_after_is_read_in_every_form_and_slept_only_within_the_deadline() {
    let junk = |text: &str| RetryAfter::Text(text.to_owned());
    for (when, delay) in [
        (Some(RetryAfter::Seconds(3600)), Some(3600)),
        (Some(junk("-1")), None),
        (Some(junk("junk")), None),
        (None, None),
    ] {
        let (proxy, provider) = alone().await;
        let limited = Answer::error(429, "slow down");
        let limited = when.as_ref().map_or(limited.clone(), |when| limited.with_retry_after(when));
        proxy.add(answer(limited));
        for error in [
            provider.find_id(&id()).await.unwrap_err(),
            provider.create_opts(options()).await.map(drop).unwrap_err(),
            provider.destroy(&id()).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
            assert_eq!(
                (error.retry_after().map(|delay| delay.as_secs()), error.outcome()),
                (delay, Outcome::NotStarted)
            );
        }
    }
}

#[tokio::test]
async fn a_server_that_forbids_another_try_is_asked_once() {
    let (proxy, provider) = alone().await;
    proxy.add(answer(Answer::error(503, "no").with_header("should-retry", "false")));
    assert_eq!(provider.find_id(&id()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(proxy.asked(Route::Info), 1);
    proxy.clear_rules();
    proxy.add(answer(Answer::error(503, "busy")).times(2));
    proxy.add(json_answer(200, &detail(ID, "running")));
    assert!(provider.find_id(&id()).await.unwrap().is_some());
    assert_eq!(proxy.asked(Route::Info), 4);
}

#[tokio::test]
async fn a_create_is_sent_again_with_the_same_key_and_the_same_bytes_only() {
    let (proxy, provider) = alone().await;
    proxy.add(answer(Answer::error(502, "broken")).with_route(Route::Create).times(1));
    proxy.add(answer(Answer::error(503, "busy")).with_route(Route::Create).times(1));
    proxy.add(json_answer(201, &sandbox()).with_route(Route::Create));
    let handle = provider.create_opts(options()).await.unwrap();
    assert_eq!(handle.id(), &id());
    let sent = proxy.exchanges();
    assert_eq!(sent.len(), 3);
    for exchange in &sent {
        assert_eq!(
            (exchange.path(), &exchange.headers["idempotency-key"]),
            ("/v2/sandboxes", &"a".parse().unwrap())
        );
        assert_eq!(exchange.body, sent[0].body);
        assert_eq!(exchange.json().unwrap()["timeout"], 300);
    }
}

#[tokio::test]
async fn a_create_whose_answer_is_doubtful_says_that_its_outcome_is_unknown() {
    let empty = Fault::Answer(Answer::new(201));
    for fault in [
        Fault::ResetBefore,
        Fault::Answer(Answer::error(504, "late")),
        Fault::Answer(Answer::error(500, "")),
        empty,
    ] {
        let (proxy, provider) = alone().await;
        proxy.add(Rule::new(fault.clone()));
        let error = provider.create_opts(options()).await.map(drop).unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{fault:?}: {error}");
        assert!(error.context().any(|pair| pair == ("attempt", "a")), "{error}");
    }
    // A refusal after a doubtful answer says nothing about what that one did.
    let (proxy, provider) = alone().await;
    proxy.add(Rule::new(Fault::ResetBefore).times(1));
    proxy.add(answer(Answer::error(401, "no")));
    let error = provider.create_opts(options()).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unauthenticated, Outcome::Unknown));
}

#[tokio::test]
async fn a_server_without_v2_is_recognised_once_and_asked_for_the_attempt_before_each_create() {
    for missing in [Answer::new(404).with_body("404 page not found"), Answer::new(405)] {
        let (proxy, provider) = alone().await;
        proxy.add(answer(missing).with_path("/v2/sandboxes").with_route(Route::Create));
        proxy.add(json_answer(200, &json!([])).with_route(Route::List));
        proxy.add(json_answer(201, &sandbox()).with_path("/sandboxes"));
        assert!(provider.capabilities().idempotent_create);
        for _ in 0..2 {
            provider.create_opts(options()).await.unwrap();
        }
        assert!(!provider.capabilities().idempotent_create);
        let paths: Vec<_> =
            proxy.exchanges().iter().map(|sent| format!("{} {}", sent.method, sent.path())).collect();
        assert_eq!(
            paths,
            [
                "POST /v2/sandboxes",
                "GET /v2/sandboxes",
                "POST /sandboxes",
                "GET /v2/sandboxes",
                "POST /sandboxes"
            ]
        );
        let v1 = &proxy.exchanges()[2];
        assert_eq!(v1.json().unwrap()["secure"], true);
        assert!(!v1.headers.contains_key("idempotency-key"));
    }
}

#[tokio::test]
async fn a_server_without_v2_is_never_sent_a_second_create_for_an_attempt_that_is_there() {
    let (proxy, provider) = alone().await;
    proxy.add(answer(Answer::new(404)).with_path("/v2/sandboxes").with_route(Route::Create));
    proxy.add(answer(Answer::new(404)).with_path("/v2/*/connect"));
    proxy.add(json_answer(200, &json!([detail(ID, "running")])).with_route(Route::List));
    proxy.add(json_answer(200, &sandbox()).with_path("/sandboxes/*/connect"));
    let handle = provider.create_opts(options()).await.unwrap();
    assert_eq!(handle.id(), &id());
    assert_eq!(proxy.count(|sent| sent.path() == "/sandboxes"), 0);
}

#[tokio::test]
async fn nothing_but_a_missing_route_leads_to_v1() {
    for (first, kind) in [
        (vec![Fault::Answer(Answer::error(404, "template 'base' not found"))], ErrorKind::NotFound),
        (vec![Fault::Answer(Answer::error(405, ""))], ErrorKind::Unsupported),
        (vec![Fault::Answer(Answer::new(400))], ErrorKind::Unexpected),
        // After a lost answer not even a missing route does.
        (vec![Fault::ResetBefore, Fault::Answer(Answer::new(404))], ErrorKind::Unexpected),
    ] {
        let (proxy, provider) = alone().await;
        for fault in first {
            proxy.add(Rule::new(fault).with_path("/v2/sandboxes").times(1));
        }
        proxy.add(json_answer(201, &sandbox()).with_path("/sandboxes"));
        let error = provider.create_opts(options()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(proxy.count(|sent| sent.path() == "/sandboxes"), 0);
    }
}

#[tokio::test]
async fn a_page_of_something_on_the_way_is_no_answer_to_a_change() {
    let page = Answer::new(200).with_header("content-type", "text/html; charset=utf-8").with_body("<html>");
    let (proxy, provider) = alone().await;
    proxy.add(answer(page));
    let errors = [
        provider.destroy(&id()).await.map(drop).unwrap_err(),
        provider.pause(&id()).await.map(drop).unwrap_err(),
        provider.set_lease(&id(), Duration::from_secs(60)).await.unwrap_err(),
        provider.update_network(&id(), sandhold_core::Network::Loopback).await.unwrap_err(),
        provider.delete_snapshot(&sandhold_core::SnapshotId::new("s")).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unexpected, Outcome::Unknown), "{error}");
    }
}

#[tokio::test]
async fn a_sandbox_without_a_traffic_token_is_destroyed_and_the_create_fails() {
    let (proxy, mut provider) = alone().await;
    let mut open = sandbox();
    open["trafficAccessToken"] = Value::Null;
    proxy.add(json_answer(201, &open).with_route(Route::Create));
    proxy.add(answer(Answer::new(204)).with_route(Route::Destroy));
    let error = provider.create_opts(options()).await.map(drop).unwrap_err();
    assert_eq!(error.reason(), Some("no_traffic_token"), "{error}");
    assert_eq!(proxy.asked(Route::Destroy), 1);
    provider = self::provider(config(&proxy).with_public_traffic(PublicTraffic::Everybody));
    provider.create_opts(options()).await.unwrap();
    assert_eq!(proxy.asked(Route::Destroy), 1);
}

#[tokio::test]
async fn a_connect_is_a_look_and_a_connect_and_after_a_find_the_connect_alone() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "running")).with_route(Route::Info));
    proxy.add(json_answer(200, &sandbox()).with_route(Route::Connect));
    let connection = provider.connect(&id()).await.unwrap();
    assert_eq!((connection.resumed, connection.handle.generation()), (None, Some(&Generation::new("g"))));
    assert_eq!((proxy.asked(Route::Info), proxy.asked(Route::Connect)), (1, 1));
    provider.find_id(&id()).await.unwrap();
    provider
        .connect_opts(&id(), ConnectOptions::default().with_generation(Generation::new("g")))
        .await
        .unwrap();
    assert_eq!((proxy.asked(Route::Info), proxy.asked(Route::Connect)), (2, 2));
    let other = ConnectOptions::default().with_generation(Generation::new("other"));
    let error = provider.connect_opts(&id(), other).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), proxy.asked(Route::Connect)), (ErrorKind::Stale, 2));
}

#[tokio::test]
async fn a_sandbox_that_was_paused_after_the_look_gets_its_whole_lease() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "running")).with_route(Route::Info));
    proxy.add(json_answer(201, &sandbox()).with_route(Route::Connect));
    proxy.add(answer(Answer::new(204)).with_route(Route::SetLease));
    assert_eq!(provider.connect(&id()).await.unwrap().resumed, Some(Memory::Kept));
    let sent = proxy.exchanges();
    let timeout =
        |route| sent.iter().find(|sent| sent.route == route).unwrap().json().unwrap()["timeout"].clone();
    assert_eq!((timeout(Route::Connect), timeout(Route::SetLease)), (json!(15), json!(300)));
}

#[tokio::test]
async fn a_refused_pause_is_looked_into() {
    for (state, outcome) in
        [("paused", Ok(PauseOutcome::AlreadyPaused)), ("running", Err(ErrorKind::Conflict))]
    {
        let (proxy, provider) = alone().await;
        proxy.add(answer(Answer::error(409, "")).with_route(Route::Pause));
        proxy.add(json_answer(200, &detail(ID, state)).with_route(Route::Info));
        assert_eq!(provider.pause(&id()).await.map_err(|error| error.kind()), outcome);
    }
    // The first send was heard, and its answer lost.
    let (proxy, provider) = alone().await;
    proxy.add(Rule::new(Fault::ResetBefore).with_route(Route::Pause).times(1));
    proxy.add(answer(Answer::error(409, "")).with_route(Route::Pause));
    proxy.add(json_answer(200, &detail(ID, "paused")).with_route(Route::Info));
    assert_eq!(provider.pause(&id()).await.unwrap(), PauseOutcome::Paused);
}

#[tokio::test]
async fn a_destroy_whose_first_answer_was_lost_says_that_it_did_it() {
    let (proxy, provider) = alone().await;
    proxy.add(Rule::new(Fault::ResetBefore).times(1));
    proxy.add(answer(Answer::error(404, "")));
    assert_eq!(provider.destroy(&id()).await.unwrap(), DestroyOutcome::Destroyed);
}

#[tokio::test]
async fn a_404_to_a_call_on_a_paused_sandbox_does_not_say_that_it_is_gone() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "paused")).with_route(Route::Info));
    proxy.add(answer(Answer::error(404, "")));
    let error = provider.set_lease(&id(), Duration::from_secs(60)).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidState, Some(sandhold_core::REASON_PAUSED)));
}

/// Adds the pages of a list of so many sandboxes, one hundred a page, the last one paused.
fn add_pages(proxy: &Proxy, count: usize) {
    let all: Vec<_> = (0..count)
        .map(|n| detail(&format!("i{n:020}"), if n + 1 == count { "paused" } else { "running" }))
        .collect();
    let pages = all.chunks(100).count();
    for (number, page) in all.chunks(100).enumerate() {
        let mut page = Answer::new(200).with_json(&json!(page));
        if number + 1 < pages {
            page = page.with_header("x-next-token", &format!("page {}", number + 1));
        }
        proxy.add(answer(page).with_route(Route::List).times(1));
    }
}

#[tokio::test]
async fn every_page_is_read_and_every_cursor_sent_back_as_it_came() {
    let (proxy, provider) = alone().await;
    add_pages(&proxy, 1_237);
    let found =
        provider.find(FindQuery::Key { owner: tags().owner, key: tags().key, attempt: None }).await.unwrap();
    assert_eq!(found.len(), 1_237);
    assert_eq!(found[1_236].state, sandhold_core::SandboxState::Paused);
    let asked = proxy.exchanges();
    assert_eq!(asked.len(), 13);
    for (number, asked) in asked.iter().enumerate() {
        let query = ListQuery::from_query(asked.target.split_once('?').unwrap().1).unwrap();
        assert_eq!(query.next_token, (number > 0).then(|| format!("page {number}")));
        assert_eq!((query.state.len(), query.metadata["sandhold-key"].as_str()), (2, "k"));
    }
}

#[tokio::test]
async fn a_list_that_breaks_or_goes_round_is_an_error_and_never_a_part() {
    let (proxy, provider) = alone().await;
    proxy.add(answer(Answer::error(500, "")).with_route(Route::List).skip(6));
    add_pages(&proxy, 1_237);
    assert_eq!(provider.list_all(ListFilter::default()).await.unwrap_err().kind(), ErrorKind::Unexpected);

    let (proxy, provider) = alone().await;
    let page =
        Answer::new(200).with_json(&json!([detail(ID, "running")])).with_header("x-next-token", "again");
    proxy.add(answer(page));
    let error: Error = provider.list_all(ListFilter::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some("repeated_cursor")));
    assert_eq!(proxy.asked(Route::List), 2);
}

#[tokio::test]
async fn a_list_that_only_ever_names_another_page_ends_with_an_error() {
    let (proxy, provider) = alone().await;
    for page in 0..100 {
        let empty =
            Answer::new(200).with_json(&json!([])).with_header("x-next-token", &format!("page {page}"));
        proxy.add(answer(empty).with_route(Route::List).times(1));
    }
    let error: Error = provider.list_all(ListFilter::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some("endless_list")));
    assert_eq!(proxy.asked(Route::List), 64);

    // A server that finds little in what it reads is no such server.
    let (proxy, provider) = alone().await;
    for page in 0..150 {
        let found =
            if page % 60 == 59 { json!([detail(&format!("i{page:020}"), "running")]) } else { json!([]) };
        let mut some = Answer::new(200).with_json(&found);
        if page < 149 {
            some = some.with_header("x-next-token", &format!("page {page}"));
        }
        proxy.add(answer(some).with_route(Route::List).times(1));
    }
    assert_eq!(provider.list_all(ListFilter::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn ids_that_no_sandbox_can_have_are_refused_and_nothing_is_sent() {
    let (proxy, provider) = alone().await;
    for bad in ["", ".", "../x", "a/b", "a?b", "a\nb", "%2e", "é"] {
        let error = provider.find_id(&SandboxId::new(bad)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad}");
        assert_eq!(
            provider.destroy(&SandboxId::new(bad)).await.unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
    let mut options = options();
    options.tags.attempt = Attempt::new("A b");
    assert_eq!(provider.create_opts(options).await.map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(proxy.exchanges().is_empty());
}

#[tokio::test]
async fn a_key_does_not_travel_in_the_clear_to_another_machine() {
    let config = || E2bConfig::new("k").with_api_url("http://e2b.example");
    let error = E2bProvider::new(config()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("e2b.example"));
    E2bProvider::new(config().with_plaintext_allowed()).unwrap();
}

#[tokio::test]
async fn sandboxes_of_mastra_are_found_by_their_own_id_when_told_so() {
    let mut theirs = detail(ID, "running");
    theirs["metadata"] = json!({"mastra-sandbox-id": "k"});
    let query = || FindQuery::Key { owner: tags().owner, key: tags().key, attempt: None };
    for (owner, found) in [(None, 0), (Some("another"), 0), (Some("o"), 1)] {
        let proxy = Proxy::alone().await.unwrap();
        let mut config = config(&proxy);
        if let Some(owner) = owner {
            config = config.with_mastra_owner(Owner::new(owner).unwrap());
        }
        proxy.add(json_answer(200, &json!([theirs])).with_route(Route::List));
        proxy.add(json_answer(200, &theirs).with_route(Route::Info));
        let provider = provider(config);
        assert_eq!(provider.find(query()).await.unwrap().len(), found, "{owner:?}");
        let tags = provider.find_id(&id()).await.unwrap().unwrap().tags;
        assert_eq!(tags.map(|tags| tags.key.as_str().to_owned()), owner.map(|_| "k".to_owned()));
    }
}

#[tokio::test]
async fn snapshots_are_told_oldest_first_without_those_that_carry_forks() {
    let (proxy, provider) = alone().await;
    let named = |id: &str, name: &str| json!({"snapshotID": id, "names": [name]});
    let carrier = named("t:fork", &format!("team/sandhold-fork-{}", Attempt::random().unwrap()));
    let newest = Answer::new(200).with_json(&json!([named("t:c", "team/c"), carrier]));
    proxy.add(answer(newest.with_header("x-next-token", "2")).times(1));
    proxy.add(json_answer(200, &json!([named("t:a", "team/a")])));
    let listed = provider.list_snapshots(SnapshotFilter::default().with_sandbox(id())).await.unwrap();
    let listed = listed.collect().await.unwrap();
    let ids: Vec<_> = listed.iter().map(|info| info.id.as_str()).collect();
    assert_eq!(ids, ["t:a", "t:c"]);
    assert_eq!(listed[0].sandbox, Some(id()));
}

#[tokio::test]
async fn a_fork_carries_its_own_tags_and_the_ways_of_its_source() {
    let (proxy, provider) = alone().await;
    let mut source = detail("isource", "running");
    source["allowInternetAccess"] = json!(false);
    source["lifecycle"] = json!({"onTimeout": "pause", "autoResume": true});
    source["network"] = json!({"denyOut": ["10.0.0.0/8"], "allowPublicTraffic": true});
    source["metadata"]["free"] = json!("pair");
    proxy.add(json_answer(200, &source).with_route(Route::Info));
    proxy.add(json_answer(200, &json!([])).with_route(Route::List));
    proxy.add(
        json_answer(201, &json!({"snapshotID": "team/x:default", "names": []})).with_route(Route::Snapshot),
    );
    proxy.add(json_answer(201, &sandbox()).with_route(Route::Create));
    let mut tags = tags();
    (tags.generation, tags.attempt) = (Generation::new("g2"), Attempt::new("a2"));
    let forked = provider.fork(&SandboxId::new("isource"), ForkOptions::new(tags)).await.unwrap();
    assert_eq!(forked.generation(), Some(&Generation::new("g2")));
    let sent = proxy.exchanges();
    let create = sent.iter().find(|sent| sent.route == Route::Create).unwrap();
    assert_eq!(create.headers["idempotency-key"], "a2");
    let body = create.json().unwrap();
    assert_eq!((&body["templateID"], &body["metadata"]["free"]), (&json!("team/x:default"), &json!("pair")));
    assert_eq!(
        (&body["metadata"]["sandhold-attempt"], &body["autoResume"]["enabled"]),
        (&json!("a2"), &json!(true))
    );
    // E2B's own default is shorter than anybody expects.
    assert_eq!(body["timeout"], 300);
    assert_eq!(body["allow_internet_access"], false);
    assert_eq!(body["network"], json!({"denyOut": ["10.0.0.0/8"], "allowPublicTraffic": false}));
}

#[tokio::test]
async fn a_resume_whose_answer_was_lost_is_still_a_resume() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "paused")).with_route(Route::Info));
    proxy.add(Rule::new(Fault::ResetBefore).with_route(Route::Connect).times(1));
    proxy.add(json_answer(200, &sandbox()).with_route(Route::Connect));
    assert_eq!(provider.connect(&id()).await.unwrap().resumed, Some(Memory::Kept));
}

#[tokio::test]
async fn a_sandbox_that_somebody_else_woke_was_not_resumed_by_this_connect() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "paused")).with_route(Route::Info));
    proxy.add(json_answer(200, &sandbox()).with_route(Route::Connect));
    assert_eq!(provider.connect(&id()).await.unwrap().resumed, None);
}
