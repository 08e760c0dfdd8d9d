//! The Connect side of the daemon, by frames written out by hand.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![cfg(feature = "daemon")]

mod support;

use serde_json::json;
use support::{Answer, Running, Wire, ask, envelope, request, start};

const UNARY: (&str, &str) = ("Content-Type", "application/json");
const STREAM: (&str, &str) = ("Content-Type", "application/connect+json");
const START: &str = "POST /process.Process/Start";

fn shell(line: &str) -> Vec<u8> {
    envelope(json!({"process": {"cmd": "/bin/sh", "args": ["-c", line]}}).to_string().as_bytes())
}

async fn stream(running: &Running, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let answer = ask(running.address, line, &[&[STREAM], headers].concat(), body).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/connect+json")));
    answer
}

#[tokio::test]
async fn a_stream_is_envelopes_and_one_end_envelope() {
    let running = start(|config| config).await;
    let identity = ("Connect-Content-Encoding", "identity");
    let answer =
        stream(&running, START, &[identity, ("Connect-Accept-Encoding", "identity")], &shell("exit 3")).await;
    assert!(answer.complete);
    let envelopes = answer.envelopes();
    let (last, messages) = envelopes.split_last().unwrap();
    assert_eq!(*last, (2, json!({})));
    assert!(messages.iter().all(|(flags, _)| *flags == 0));
    assert!(messages[0].1["event"]["start"]["pid"].is_u64());
    let end = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
    assert_eq!(messages.last().unwrap().1["event"]["end"], end);
}

#[tokio::test]
async fn a_stream_that_fails_says_so_inside_http_200() {
    let running = start(|config| config).await;
    let missing = envelope(br#"{"process":{"pid":999999}}"#);
    let answer = stream(&running, "POST /process.Process/Connect", &[], &missing).await;
    let envelopes = answer.envelopes();
    assert_eq!((envelopes.len(), envelopes[0].0), (1, 2));
    assert_eq!(envelopes[0].1["error"]["code"], "not_found");
    assert!(envelopes[0].1["error"]["message"].is_string());
}

#[tokio::test]
async fn unary_answers_have_the_exact_type_and_errors_their_status() {
    let running = start(|config| config).await;
    let list = "POST /process.Process/List";
    for headers in [&[UNARY][..], &[UNARY, ("Content-Encoding", "identity"), ("Accept-Encoding", "identity")]]
    {
        let answer = ask(running.address, list, headers, br#"{"aFieldOfAnotherVersion":{"x":[1]}}"#).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        assert!(answer.header("content-length").is_some());
        assert_eq!(answer.json(), json!({}));
    }
    let missing = br#"{"process":{"pid":999999},"signal":"SIGNAL_SIGKILL"}"#;
    let answer = ask(running.address, "POST /process.Process/SendSignal", &[UNARY], missing).await;
    assert_eq!((answer.status, answer.header("content-type")), (404, Some("application/json")));
    assert_eq!(answer.json()["code"], "not_found");
    let answer = ask(running.address, list, &[UNARY], b"{").await;
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid_argument")));
    let answer = ask(running.address, "POST /process.Process/Nothing", &[UNARY], b"{}").await;
    assert_eq!(answer.json()["code"], "unimplemented");
    let binary = ask(running.address, list, &[("Content-Type", "application/proto")], b"").await;
    assert_eq!(
        (binary.status, binary.header("content-type"), binary.body.len()),
        (200, Some("application/proto"), 0)
    );
}

#[tokio::test]
async fn a_message_above_the_limit_is_an_invalid_argument() {
    let running = start(|config| config).await;
    let large = vec![b' '; (64 << 20) + 6];
    let answer = ask(running.address, "POST /filesystem.Filesystem/Stat", &[UNARY], &large).await;
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid_argument")));
    let answer = stream(&running, START, &[], &envelope(&large)).await;
    assert_eq!(answer.envelopes()[0].1["error"]["code"], "invalid_argument");
    let fitting = [br#"{"path":"/"}"#.to_vec(), vec![b' '; 63 << 20]].concat();
    assert_eq!(
        ask(running.address, "POST /filesystem.Filesystem/Stat", &[UNARY], &fitting).await.status,
        200
    );
}

fn gzip(data: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn a_message_in_gzip_is_taken_and_what_it_unpacks_to_is_bounded() {
    let running = start(|config| config).await;
    let list = "POST /process.Process/List";
    let packed = [UNARY, ("Content-Encoding", "gzip"), ("Accept-Encoding", "gzip")];
    let answer = ask(running.address, list, &packed, &gzip(b"{}")).await;
    assert_eq!((answer.status, answer.header("content-encoding")), (200, None));
    assert_eq!(answer.json(), json!({}));
    let broken = ask(running.address, list, &packed, b"{}").await;
    assert_eq!((broken.status, broken.json()["code"].as_str()), (400, Some("invalid_argument")));
    let bomb = gzip(&vec![b' '; (64 << 20) + 1]);
    assert!(bomb.len() < 1 << 20);
    let bomb = ask(running.address, list, &packed, &bomb).await;
    assert_eq!((bomb.status, bomb.json()["code"].as_str()), (429, Some("resource_exhausted")));
    let unknown = ask(running.address, list, &[UNARY, ("Content-Encoding", "br")], b"{}").await;
    assert_eq!((unknown.status, unknown.json()["code"].as_str()), (501, Some("unimplemented")));
}

#[tokio::test]
async fn what_is_no_message_of_the_protocol_is_415_also_without_a_body() {
    let running = start(|config| config).await;
    for headers in [&[][..], &[("Content-Type", "text/plain")], &[("Content-Type", "application/xml")]] {
        for body in [&b""[..], b"{}"] {
            let answer = ask(running.address, "POST /process.Process/List", headers, body).await;
            assert_eq!(answer.status, 415, "{headers:?}");
            assert!(answer.header("accept-post").unwrap().contains("application/json"));
        }
    }
    // An empty body is no JSON.
    let empty = ask(running.address, "POST /process.Process/List", &[UNARY], b"").await;
    assert_eq!((empty.status, empty.json()["code"].as_str()), (400, Some("invalid_argument")));
}

#[tokio::test]
async fn chunked_requests_and_envelopes_in_pieces_are_taken() {
    let running = start(|config| config).await;
    let mut wire = Wire::open(running.address).await;
    let head = "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n";
    wire.send(head).await;
    for piece in shell("echo hi").chunks(7) {
        wire.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).await;
    }
    wire.send("0\r\n\r\n").await;
    let answer = wire.answer().await;
    let data = answer
        .envelopes()
        .into_iter()
        .find_map(|(_, message)| message["event"]["data"]["stdout"].as_str().map(str::to_owned));
    assert_eq!(data.as_deref(), Some("aGkK"));
    // The connection serves the next request.
    wire.send(request("GET /health", &[], b"")).await;
    assert_eq!(wire.answer().await.status, 204);
}

#[tokio::test]
async fn a_quiet_stream_pings_as_often_as_asked() {
    let running = start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let watch = envelope(json!({"path": dir.path()}).to_string().as_bytes());
    for (line, body, ping) in [
        (START, shell("sleep 60"), json!({"event": {"keepalive": {}}})),
        ("POST /filesystem.Filesystem/WatchDir", watch, json!({"keepalive": {}})),
    ] {
        let mut wire = Wire::open(running.address).await;
        wire.send(request(line, &[STREAM, ("Keepalive-Ping-Interval", "1")], &body)).await;
        assert_eq!(wire.head().await.status, 200);
        let started = wire.chunk().await.unwrap().unwrap();
        assert!(String::from_utf8_lossy(&started).contains("start"), "{line}");
        for _ in 0..2 {
            let pinged = wire.chunk().await.unwrap().unwrap();
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&pinged[5..]).unwrap(), ping);
        }
    }
}

#[tokio::test]
async fn the_timeout_of_a_stream_ends_it_with_deadline_exceeded_and_the_process_with_it() {
    let running = start(|config| config).await;
    let answer = stream(&running, START, &[("Connect-Timeout-Ms", "300")], &shell("sleep 60")).await;
    assert!(answer.complete);
    let envelopes = answer.envelopes();
    assert_eq!(envelopes.last().unwrap().1["error"]["code"], "deadline_exceeded");
    let pid = &envelopes[0].1["event"]["start"]["pid"];
    let selector = envelope(json!({"process": {"pid": pid}}).to_string().as_bytes());
    let ended = stream(&running, "POST /process.Process/Connect", &[], &selector).await.envelopes();
    let end = ended.iter().find_map(|(_, message)| message["event"].get("end")).unwrap();
    assert_eq!((&end["status"], &end["exitCode"]), (&json!("signal: killed"), &json!(-1)));
}

#[tokio::test]
async fn an_aborted_stream_has_no_last_chunk() {
    let running = start(|config| config).await;
    let mut wire = Wire::open(running.address).await;
    wire.send(request(START, &[STREAM], &shell("sleep 60"))).await;
    assert_eq!(wire.head().await.status, 200);
    let first = wire.chunk().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("start"));
    running.daemon.abort_connections();
    assert_eq!(wire.chunk().await, Err(()));
    // The process was not asked.
    let list = ask(running.address, "POST /process.Process/List", &[UNARY], b"{}").await.json();
    let pid = &list["processes"][0]["pid"];
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}).to_string();
    assert_eq!(
        ask(running.address, "POST /process.Process/SendSignal", &[UNARY], kill.as_bytes()).await.status,
        200
    );
}
