//! How sandboxes are made: once for each attempt, on servers with and without idempotency keys.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

mod support;

use std::collections::BTreeMap;

use sandhold_core::{
    Attempt, ErrorKind, ForkOptions, Generation, Outcome, SandboxId, SandboxProvider, SandboxProviderExt,
};
use sandhold_e2b::PublicTraffic;
use sandhold_e2b::testing::{Answer, Fault, Route, Rule};
use serde_json::{Value, json};
use support::{ID, alone, answer, config, detail, id, json_answer, options, sandbox, tags};

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
async fn which_routes_a_server_has_is_decided_once_and_only_by_the_server() {
    let missing = || answer(Answer::new(404).with_body("404 page not found"));
    // Something on the way that lacks both routes decides nothing: v2 is tried again.
    let (proxy, provider) = alone().await;
    proxy.add(missing().times(1));
    proxy.add(json_answer(200, &json!([])).with_route(Route::List));
    proxy.add(missing().with_path("/sandboxes").times(1));
    proxy.add(json_answer(201, &sandbox()).with_path("/v2/sandboxes"));
    let error = provider.create_opts(options()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(provider.capabilities().idempotent_create);
    provider.create_opts(options()).await.unwrap();
    assert_eq!(proxy.count(|sent| sent.path() == "/sandboxes"), 1);

    // A server that had the route has it, whatever comes in between later.
    proxy.clear_rules();
    proxy.add(missing().with_path("/v2/sandboxes"));
    proxy.add(json_answer(201, &sandbox()).with_path("/sandboxes"));
    let error = provider.create_opts(options()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert_eq!(proxy.count(|sent| sent.path() == "/sandboxes"), 1);

    // A connect decides for creates too.
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "running")).with_route(Route::Info));
    proxy.add(missing().with_path("/v2/*/connect"));
    proxy.add(json_answer(200, &sandbox()).with_path("/sandboxes/*/connect"));
    for _ in 0..2 {
        provider.connect(&id()).await.unwrap();
    }
    assert_eq!(proxy.count(|sent| sent.path().starts_with("/v2/")), 1);
    assert!(!provider.capabilities().idempotent_create);
}

#[tokio::test]
async fn a_server_without_keys_is_sent_each_create_once_whatever_comes_of_it() {
    for fault in
        [Fault::ResetBefore, Fault::Answer(Answer::error(503, "busy")), Fault::Answer(Answer::new(201))]
    {
        let (proxy, provider) = alone().await;
        proxy.add(answer(Answer::new(405)).with_path("/v2/sandboxes").with_route(Route::Create));
        proxy.add(json_answer(200, &json!([])).with_route(Route::List));
        proxy.add(Rule::new(fault.clone()).with_path("/sandboxes"));
        let error = provider.create_opts(options()).await.map(drop).unwrap_err();
        assert_eq!((error.outcome(), error.is_retryable()), (Outcome::Unknown, false), "{fault:?}: {error}");
        assert_eq!(proxy.count(|sent| sent.path() == "/sandboxes"), 1, "{fault:?}");
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
    provider = support::provider(config(&proxy).with_public_traffic(PublicTraffic::Everybody));
    provider.create_opts(options()).await.unwrap();
    assert_eq!(proxy.asked(Route::Destroy), 1);
    // One that cannot be destroyed is named, so that it can be later.
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(201, &open).with_route(Route::Create));
    proxy.add(answer(Answer::error(403, "no")).with_route(Route::Destroy));
    let error = provider.create_opts(options()).await.map(drop).unwrap_err();
    assert_eq!((error.reason(), error.outcome()), (Some("no_traffic_token"), Outcome::Done), "{error}");
    let context: BTreeMap<_, _> = error.context().collect();
    assert_eq!(context["id"], ID);
    assert!(context.contains_key("cleanup"), "{context:?}");
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
