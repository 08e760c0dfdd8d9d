//! Lists: filters, order and pages, as they stand on the wire.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use std::net::SocketAddr;

use http::{Answer, Box, Request, until};
use serde_json::json;
use support::Served;

fn list(at: SocketAddr, query: &str) -> Answer {
    let answer = Request::new("GET", &format!("/v2/sandboxes?{query}")).key().send(at);
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    answer
}

fn ids(answer: &Answer) -> Vec<String> {
    let listed = answer.json();
    listed.as_array().unwrap().iter().map(|one| one["sandboxID"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn running_and_paused_are_one_list_in_pages_of_any_size() {
    let server = Served::start(&[]);
    let at = server.address();
    let made: Vec<_> = (0..5).map(|_| Box::create(at, json!({ "timeout": 600 }))).collect();
    for sandbox in [&made[1], &made[3]] {
        assert_eq!(sandbox.control("POST", "/pause").send(at).status, 204);
    }
    let oldest_first: Vec<_> = made.iter().map(|sandbox| sandbox.id.clone()).collect();
    let latest_first: Vec<_> = oldest_first.iter().rev().cloned().collect();
    for (order, expected) in
        [("", &latest_first), ("order=desc&", &latest_first), ("order=asc&", &oldest_first)]
    {
        for limit in [1, 2, 5, 100] {
            let (mut seen, mut token) = (Vec::new(), String::new());
            loop {
                let page = list(at, &format!("{order}limit={limit}&nextToken={token}"));
                assert_eq!(page.header("x-total-running"), Some("3"));
                let ids = ids(&page);
                assert!(ids.len() <= limit && !ids.is_empty());
                seen.extend(ids);
                match page.header("x-next-token") {
                    Some(next) => token = next.to_owned(),
                    None => break,
                }
            }
            assert_eq!(&seen, expected, "{order} {limit}");
        }
    }
    let only = |query: &str| ids(&list(at, query));
    assert_eq!(only("state=paused"), [made[3].id.clone(), made[1].id.clone()]);
    assert_eq!(only("state=running").len(), 3);
    assert_eq!(only("state=running%2Cpaused"), latest_first);
    assert_eq!(only("state=paused&state=running"), latest_first);
    assert_eq!(list(at, "state=paused").header("x-total-running"), None);
    let whole = Request::new("GET", "/sandboxes").key().send(at);
    assert_eq!(ids(&whole), [made[4].id.clone(), made[2].id.clone(), made[0].id.clone()]);
    // A token of one order is none of the other.
    let token = list(at, "limit=1").header("x-next-token").unwrap().to_owned();
    let other = Request::new("GET", &format!("/v2/sandboxes?order=asc&nextToken={token}")).key().send(at);
    assert_eq!(other.status, 400);
}

#[test]
fn a_page_goes_on_where_the_last_one_ended_whatever_was_killed_in_between() {
    let server = Served::start(&[]);
    let at = server.address();
    let made: Vec<_> = (0..4).map(|_| Box::create(at, json!({}))).collect();
    let first = list(at, "limit=2");
    assert_eq!(ids(&first), [made[3].id.clone(), made[2].id.clone()]);
    for sandbox in [&made[2], &made[3]] {
        assert_eq!(sandbox.control("DELETE", "").send(at).status, 204);
    }
    let second = list(at, &format!("limit=2&nextToken={}", first.header("x-next-token").unwrap()));
    assert_eq!(ids(&second), [made[1].id.clone(), made[0].id.clone()]);
    assert_eq!(second.header("x-next-token"), None);
}

#[test]
fn filters_leave_what_was_asked_for() {
    let server = Served::start(&[]);
    let at = server.address();
    let plain = Box::create(at, json!({}));
    let odd = Box::create(at, json!({ "metadata": { "a b": "c&d=é", "n": "1" } }));
    let other = Box::create(at, json!({ "metadata": { "n": "1" } }));
    let only = |query: &str| ids(&list(at, query));
    // As the official SDKs write it: encoded three times over.
    assert_eq!(only("metadata=a%252520b%3Dc%252526d%25253D%2525C3%2525A9"), std::slice::from_ref(&odd.id));
    assert_eq!(only("metadata=n%3D1"), [other.id.clone(), odd.id.clone()]);
    assert_eq!(only("metadata=n%3D1%26a%2520b%3Dx"), [""; 0]);
    let started = odd.info().json()["startedAt"].as_str().unwrap().to_owned();
    assert_eq!(only(&format!("startedAfter={started}")), [other.id.clone(), odd.id.clone()]);
    assert_eq!(only("startedAfter=2100-01-01T00:00:00Z"), [""; 0]);
    assert_eq!(only("template=base").len(), 3);
    assert_eq!(only("template=base&limit=1"), std::slice::from_ref(&other.id));
    let shown = list(at, "limit=3").json();
    let of = |id: &str| shown.as_array().unwrap().iter().find(|one| one["sandboxID"] == id).unwrap().clone();
    assert_eq!(of(&odd.id)["metadata"], json!({ "a b": "c&d=é", "n": "1" }));
    for field in [
        "templateID",
        "clientID",
        "startedAt",
        "endAt",
        "cpuCount",
        "memoryMB",
        "diskSizeMB",
        "state",
        "envdVersion",
    ] {
        assert!(!of(&plain.id)[field].is_null(), "{field}");
    }
}

#[test]
fn a_page_of_snapshots_goes_on_when_all_of_the_last_one_were_deleted() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({ "timeout": 600 }));
    let take = || {
        let taken = sandbox.control("POST", "/snapshots").json(&json!({})).send(at).json();
        taken["snapshotID"].as_str().unwrap().to_owned()
    };
    let mut taken: Vec<_> = (0..5).map(|_| take()).collect();
    taken.reverse();
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let path = format!("/snapshots?limit=2&nextToken={token}");
        let page = Request::new("GET", &path).key().send(at);
        assert_eq!(page.status, 200, "{page:?}");
        for snapshot in page.json().as_array().unwrap() {
            let id = snapshot["snapshotID"].as_str().unwrap().to_owned();
            let delete = Request::new("DELETE", &format!("/templates/{}", id.replace(':', "%3A")));
            assert_eq!(delete.key().send(at).status, 204);
            seen.push(id);
        }
        match page.header("x-next-token") {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, taken);
}

#[test]
fn a_tree_that_is_too_deep_to_be_stored_is_refused_with_the_bound() {
    let server = Served::start(&[]);
    let sandbox = Box::create(server.address(), json!({}));
    let dig = "for i in $(seq 300); do mkdir d && cd d; done; touch bottom; echo dug > /home/user/dug";
    let _digging = sandbox.start(dig);
    until("it is deep", || sandbox.read("dug").status == 200);
    for (path, body) in [("/snapshots", json!({})), ("/fork", json!({ "timeout": 60 }))] {
        let refused = sandbox.control("POST", path).json(&body).send(sandbox.at);
        let text = refused.text();
        assert!(text.contains("deeper than 256 directories") && text.contains("d/d/d"), "{refused:?}");
        if path == "/snapshots" {
            assert_eq!((refused.status, &refused.json()["code"]), (400, &json!(400)));
        }
    }
    // Nobody needs to store it: it runs on, and is stored when it is less deep.
    let _filling = sandbox.start("mv d/d/d/d/d/d/d/d rest; rm -r rest; echo > filled");
    until("it is not deep", || sandbox.read("filled").status == 200);
    assert_eq!(sandbox.control("POST", "/snapshots").json(&json!({})).send(sandbox.at).status, 201);
}
