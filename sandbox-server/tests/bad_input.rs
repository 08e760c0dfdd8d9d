//! What the control plane answers to what no client should send: E2B's statuses, always with E2B's error body.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use std::net::SocketAddr;

use http::{Answer, Box, Request};
use serde_json::{Value, json};
use support::Served;

/// Asserts the status, and that the body is an error of E2B's form that says the same.
fn refused(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    let body = answer.json();
    assert_eq!(body["code"], json!(status), "{answer:?}");
    let message = body["message"].as_str().unwrap();
    assert!(!message.is_empty());
    message.to_owned()
}

fn create(at: SocketAddr, version: &str, body: &Value) -> Answer {
    Request::new("POST", &format!("{version}/sandboxes")).key().json(body).send(at)
}

#[test]
fn every_error_has_a_body_that_the_sdks_can_read() {
    let server = Served::start(&[]);
    let at = server.address();
    for (method, path, status) in [
        ("GET", "/nothing", 404),
        ("GET", "/", 404),
        ("PATCH", "/sandboxes", 405),
        ("GET", "/sandboxes/i0/pause", 405),
        ("GET", "/sandboxes/i0", 404),
        ("DELETE", "/sandboxes/i0", 404),
        ("POST", "/sandboxes/i0/pause", 404),
        ("POST", "/v2/sandboxes/i0/connect", 404),
        ("POST", "/sandboxes/i0/resume", 404),
        ("POST", "/sandboxes/i0/refreshes", 404),
        ("POST", "/sandboxes/i0/fork", 404),
        ("PUT", "/sandboxes/i0/network", 404),
        ("GET", "/sandboxes/i0/metrics", 404),
        ("GET", "/sandboxes/i0/logs", 404),
        ("GET", "/v2/sandboxes/i0/logs", 404),
        // No id: odd characters, other sandboxes' places, more than one client.
        ("GET", "/sandboxes/I0", 400),
        ("GET", "/sandboxes/i0-a-b", 400),
        ("GET", "/sandboxes/i%200", 400),
        ("GET", "/sandboxes/..%2F..%2Fetc", 400),
        ("DELETE", "/sandboxes/%2e%2e", 400),
        ("DELETE", "/sandboxes/i0%00", 400),
        ("GET", "/sandboxes/%FF", 400),
        ("POST", "/sandboxes/i_0/pause", 400),
    ] {
        let answer = Request::new(method, path).key().send(at);
        assert!(!refused(&answer, status).is_empty(), "{method} {path}");
    }
    let unknown = Request::new("GET", "/sandboxes/i0").key().send(at);
    assert_eq!(unknown.text(), r#"{"code":404,"message":"Sandbox \"i0\" not found"}"#);
}

#[test]
fn what_is_no_request_is_refused_with_an_error_of_e2b_too() {
    let server = Served::start(&[]);
    let at = server.address();
    let long = format!("/v2/sandboxes?metadata={}", "a".repeat(70_000));
    assert!(refused(&Request::new("GET", &long).key().send(at), 414).contains("address"));
    let large = Request::new("GET", "/v2/sandboxes").header("X-Large", &"a".repeat(1 << 20)).key().send(at);
    assert!(refused(&large, 431).contains("head"));
    let many =
        (0..200).fold(Request::new("GET", "/v2/sandboxes"), |many, n| many.header(&format!("x-{n}"), "a"));
    refused(&many.key().send(at), 431);
    refused(&Request::new("GET sandboxes", "/v2").key().send(at), 400);
    // After a request that was one, on the same connection.
    let mut kept = Request::new("GET", "/health").open(at);
    let (head, body) = http::read_head(&mut kept);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let left = length.unwrap_or(0) - body.len();
    std::io::Read::read_exact(&mut kept, &mut vec![0; left]).unwrap();
    std::io::Write::write_all(&mut kept, b"GET\r\n\r\n").unwrap();
    refused(&http::read(&mut kept), 400);
}

#[test]
fn without_the_right_key_nothing_is_told() {
    let server = Served::start(&[]);
    let at = server.address();
    for path in ["/sandboxes", "/v2/sandboxes", "/sandboxes/i0", "/sandboxes/i0/metrics"] {
        refused(&Request::new("GET", path).send(at), 401);
        refused(&Request::new("GET", path).header("X-API-KEY", "").send(at), 401);
        refused(&Request::new("GET", path).header("X-API-KEY", "e2b_wrong").send(at), 401);
        refused(&Request::new("GET", path).header("Authorization", "Bearer e2b_x").send(at), 401);
    }
    assert_eq!(Request::new("GET", "/health").send(at).status, 200);
}

#[test]
fn names_that_are_not_the_servers_and_pages_of_others_are_refused() {
    let server = Served::start(&["--allow-host", "box.example"]);
    let at = server.address();
    for host in ["evil.example", "localhost.evil.example", "203.0.113.77", "box.example.evil"] {
        let answer = Request::new("GET", "/health").header("Host", host).send(at);
        refused(&answer, 421);
    }
    for host in ["localhost:1", "127.0.0.1", "[::1]:3000", "box.example", "a.localhost"] {
        assert_eq!(Request::new("GET", "/health").header("Host", host).send(at).status, 200, "{host}");
    }
    for origin in ["https://evil.example", "null"] {
        let answer = Request::new("POST", "/v2/sandboxes").key().header("Origin", origin).send(at);
        refused(&answer, 403);
    }
}

#[test]
fn a_create_that_cannot_be_is_refused_before_anything_is_made() {
    let server = Served::start(&[]);
    let at = server.address();
    let base = |fields: Value| {
        let mut body = json!({ "templateID": "base" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let volume = Request::new("POST", "/volumes").key().json(&json!({ "name": "data" })).send(at);
    assert_eq!(volume.status, 201, "{volume:?}");
    for body in [
        json!({}),
        json!([]),
        json!({ "templateID": 1 }),
        json!({ "templateID": "" }),
        json!({ "templateID": "../base" }),
        json!({ "templateID": "a/b/c" }),
        base(json!({ "timeout": 0 })),
        base(json!({ "timeout": -1 })),
        base(json!({ "timeout": 86401 })),
        base(json!({ "timeout": 9_223_372_036_854_775_807_i64 })),
        base(json!({ "timeout": "300" })),
        base(json!({ "timeout": 1.5 })),
        base(json!({ "metadata": { "a": 1 } })),
        base(json!({ "metadata": "a" })),
        base(json!({ "metadata": { "sandhold.server/made": "{}" } })),
        base(json!({ "envVars": { "A=B": "c" } })),
        base(json!({ "envVars": { "": "c" } })),
        base(json!({ "envVars": { "A": "b\u{0}c" } })),
        base(json!({ "autoPauseMemory": false })),
        base(json!({ "autoResume": { "enabled": true } })),
        base(json!({ "autoResume": true, "autoPause": true })),
        base(json!({ "autoPause": true, "autoPauseMemory": false, "autoResume": { "enabled": true } })),
        base(json!({ "network": { "denyOut": ["example.com"] } })),
        base(json!({ "network": { "allowOut": ["example.com"] } })),
        base(json!({ "network": { "allowOut": ["exa mple"], "denyOut": ["0.0.0.0/0"] } })),
        base(json!({ "network": { "httpsPorts": [49983] } })),
        base(json!({ "network": { "maskRequestHost": "a\r\nX: y" } })),
        base(json!({ "iam": { "tokens": {} } })),
        base(json!({ "volumeMounts": [{ "name": "none", "path": "/data" }] })),
        base(json!({ "volumeMounts": [{ "name": "none", "path": "data" }] })),
        base(json!({ "volumeMounts": [{ "name": "none", "path": "/a/../b" }] })),
        base(json!({ "volumeMounts": [{ "name": "data", "path": "/x".repeat(3000) }] })),
        base(json!({ "volumeMounts": [{ "name": "data", "path": format!("/{}", "x".repeat(256)) }] })),
    ] {
        assert_ne!(refused(&create(at, "/v2", &body), 400), "", "{body}");
    }
    refused(&create(at, "/v2", &base(json!({ "network": { "egressProxy": { "address": "a:1" } } }))), 403);
    refused(&create(at, "", &base(json!({ "network": { "allowPublicTraffic": false } }))), 400);
    for text in ["{", "[\"base\"]", "[]", "{\"templateID\":\"base\"} x", "\u{0}", "nul"] {
        refused(&Request::new("POST", "/v2/sandboxes").key().body(text).send(at), 400);
    }
    let unknown = create(at, "/v2", &json!({ "templateID": "no-such" }));
    assert_eq!(unknown.text(), r#"{"code":404,"message":"template 'no-such' not found"}"#);
    for key in ["", "A", "a_b", "a b", &"k".repeat(256), "k/../k"] {
        let answer =
            Request::new("POST", "/v2/sandboxes").key().header("Idempotency-Key", key).json(&base(json!({})));
        refused(&answer.send(at), 400);
    }
    let listed = Request::new("GET", "/v2/sandboxes").key().send(at);
    assert_eq!(listed.text(), "[]");
}

#[test]
fn a_body_that_is_too_large_is_refused_and_not_kept() {
    let server = Served::start(&[]);
    let body = format!("{{\"templateID\":\"base\",\"metadata\":{{\"a\":\"{}\"}}}}", "x".repeat(5 << 20));
    refused(&Request::new("POST", "/v2/sandboxes").key().body(body).send(server.address()), 413);
}

#[test]
fn a_list_that_cannot_be_is_refused() {
    let server = Served::start(&[]);
    let at = server.address();
    for query in [
        "limit=0",
        "limit=101",
        "limit=-1",
        "limit=x",
        "state=gone",
        "state=running,gone",
        "order=up",
        "startedAfter=yesterday",
        "metadata=a",
        "metadata=a%3Db%3Dc",
        "metadata=%25zz%3Da",
        "nextToken=x",
        "nextToken=Li4vLi4v",
        "template=base%3Alatest",
    ] {
        let answer = Request::new("GET", &format!("/v2/sandboxes?{query}")).key().send(at);
        assert_ne!(refused(&answer, 400), "", "{query}");
    }
    let answer = Request::new("GET", "/v2/sandboxes?template=no-such&unknown=1").key().send(at);
    assert_eq!((answer.status, answer.text()), (200, "[]"));
    let ids = vec!["i0"; 101].join(",");
    refused(&Request::new("GET", &format!("/sandboxes/metrics?sandbox_ids={ids}")).key().send(at), 400);
    refused(&Request::new("GET", "/sandboxes/metrics?sandbox_ids=../x").key().send(at), 400);
}

#[test]
fn a_change_that_cannot_be_changes_nothing() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({ "timeout": 600 }));
    let before = sandbox.info().json();
    for (rest, body, status) in [
        ("/timeout", json!({}), 400),
        ("/timeout", json!([60]), 400),
        ("/timeout", json!({ "timeout": -1 }), 400),
        ("/timeout", json!({ "timeout": 86401 }), 400),
        ("/connect", json!({}), 400),
        ("/connect", json!({ "timeout": 0 }), 400),
        ("/connect", json!({ "timeout": 86401 }), 400),
        ("/resume", json!({}), 409),
        ("/refreshes", json!({ "duration": 3601 }), 400),
        ("/refreshes", json!({ "duration": -1 }), 400),
        ("/fork", json!({ "count": 0 }), 400),
        ("/fork", json!({ "count": 101 }), 400),
        ("/fork", json!({ "timeout": 0 }), 400),
        ("/pause", json!({ "memory": "no" }), 400),
        ("/snapshots", json!({ "name": "other/name" }), 400),
        ("/snapshots", json!({ "name": "a b" }), 400),
        ("/snapshots", json!({ "name": "base" }), 400),
    ] {
        let answer = sandbox.control("POST", rest).json(&body).send(at);
        assert_ne!(refused(&answer, status), "", "{rest} {body}");
    }
    refused(&sandbox.control("PUT", "/network").json(&json!({ "denyOut": ["a.b"] })).send(at), 400);
    refused(&sandbox.control("GET", "/metrics?start=2&end=1").send(at), 400);
    refused(&sandbox.control("GET", "/metrics?start=x").send(at), 400);
    assert_eq!(sandbox.info().json(), before);
}

#[test]
fn a_policy_that_needs_another_network_is_refused_whole() {
    let server = Served::start(&["--egress", "host"]);
    let at = server.address();
    let sandbox = Box::create(at, json!({ "timeout": 600 }));
    let before = sandbox.info().json();
    let put = |policy: Value| sandbox.control("PUT", "/network").json(&policy).send(at);
    let refusal = put(json!({ "allow_internet_access": false }));
    assert_ne!(refused(&refusal, 501), "");
    assert_eq!(refusal.header("should-retry"), Some("false"));
    // Some traffic and not all is nothing that this machine can sort.
    refused(&put(json!({ "denyOut": ["10.0.0.0/8"] })), 400);
    assert_eq!(sandbox.info().json(), before);
    assert_eq!(put(json!({ "allow_internet_access": true })).status, 204);
    assert_eq!(sandbox.info().json()["allowInternetAccess"], true);
}

#[test]
fn a_body_that_is_no_plain_json_is_refused_as_e2b_refuses_it() {
    let server = Served::start(&[]);
    let at = server.address();
    // E2B's control plane decodes no encoding: gzip is no JSON to it.
    let gzip = [31_u8, 139, 8, 0, 0, 0, 0, 0, 0, 3, 171, 174, 5, 0, 67, 191, 166, 163, 2, 0, 0, 0];
    let packed = Request::new("POST", "/v2/sandboxes").key().header("Content-Encoding", "gzip").body(gzip);
    refused(&packed.send(at), 400);
    // A type is not asked for, and an absent body is an empty object.
    let sandbox = Box::create(at, json!({}));
    for media in ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"] {
        let typed = |rest: &str| sandbox.control("POST", rest).header("Content-Type", media);
        assert_eq!(typed("/refreshes").send(at).status, 204, "{media:?}");
        assert_eq!(typed("/timeout").body(r#"{"timeout":60}"#).send(at).status, 204, "{media:?}");
    }
}

#[test]
fn the_same_idempotency_key_makes_one_sandbox() {
    let server = Served::start(&[]);
    let at = server.address();
    let ask = |body: Value| {
        Request::new("POST", "/v2/sandboxes")
            .key()
            .header("Idempotency-Key", "one-and-only")
            .json(&body)
            .send(at)
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked = [(); 4].map(|()| scope.spawn(|| ask(json!({ "templateID": "base", "timeout": 60 }))));
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    for answer in &answers {
        assert_eq!((answer.status, answer.text()), (201, answers[0].text()));
    }
    // The order of fields is not another request.
    let same = Request::new("POST", "/v2/sandboxes").key().header("Idempotency-Key", "one-and-only");
    assert_eq!(same.body(r#"{"timeout":60,"templateID":"base"}"#).send(at).text(), answers[0].text());
    let other = ask(json!({ "templateID": "base", "timeout": 61 }));
    refused(&other, 422);
    assert_eq!(other.json()["error_code"], "idempotency_request_mismatch");
    let listed = || Request::new("GET", "/v2/sandboxes").key().send(at).json().as_array().unwrap().len();
    assert_eq!(listed(), 1);
    // A copy of the create that comes after the end of its sandbox makes no other one.
    let id = answers[0].json()["sandboxID"].as_str().unwrap().to_owned();
    assert_eq!(Request::new("DELETE", &format!("/sandboxes/{id}")).key().send(at).status, 204);
    let late = ask(json!({ "templateID": "base", "timeout": 60 }));
    refused(&late, 409);
    assert_eq!((late.json()["error_code"].as_str(), listed()), (Some("idempotency_sandbox_ended"), 0));
}

#[test]
fn what_can_only_go_wrong_later_is_refused_at_once() {
    let server = Served::start(&[]);
    let at = server.address();
    let create = |mut body: Value| {
        body["templateID"] = "base".into();
        let answer = create(at, "/v2", &body);
        refused(&answer, 400);
        answer.json()["message"].as_str().unwrap().to_owned()
    };
    for path in ["/run/e2b", "/run/e2b/inner", "/run"] {
        let message = create(json!({ "volumeMounts": [{ "name": "v", "path": path }] }));
        assert!(message.contains(path), "{message}");
    }
    let message = create(json!({ "envVars": { "LONG": "x".repeat(128 * 1024) } }));
    assert!(message.contains("LONG"), "{message}");
    let many: std::collections::BTreeMap<_, _> =
        (0..20).map(|number| (format!("V{number}"), "x".repeat(100 * 1024))).collect();
    create(json!({ "envVars": many }));
    for tag in [".", ".."] {
        let named = json!({ "name": format!("x:{tag}") });
        refused(&Request::new("POST", "/v3/templates").key().json(&named).send(at), 400);
    }
    let own = at.to_string();
    let twice =
        Request::new("GET", "/v2/sandboxes").key().header("Host", &own).header("Host", "other.example");
    refused(&twice.send(at), 400);
}
