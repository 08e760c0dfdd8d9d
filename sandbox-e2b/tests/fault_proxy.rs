//! What the fault proxy does to connections, seen from both of its sides as bytes.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use sandhold_core::testing::Gate;
use sandhold_core::testing::conformance::within;
use sandhold_e2b::testing::{Answer, Fault, Proxy, RetryAfter, Route, Rule};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A server that answers every request with its number, and counts them.
async fn counting(answer: fn(usize) -> Vec<u8>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                    match stream.read(&mut buffer).await {
                        Ok(read) if read > 0 => request.extend_from_slice(&buffer[..read]),
                        _ => return,
                    }
                }
                let number = seen.fetch_add(1, Ordering::SeqCst);
                stream.write_all(&answer(number)).await.unwrap();
                // An upgraded connection echoes.
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    stream.write_all(&buffer[..read]).await.unwrap();
                }
            });
        }
    });
    (address, count)
}

fn numbered(number: usize) -> Vec<u8> {
    let body = format!("answer {number}");
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Next-Token: {number}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// Sends one request and returns all that comes until the end of the connection, and how it ended.
async fn ask(proxy: &Proxy, line: &str) -> (String, std::io::Result<()>) {
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let ended = within("the connection ends", stream.read_to_end(&mut answer)).await;
    (String::from_utf8(answer).unwrap(), ended.map(|_| ()))
}

fn is_reset(ended: &std::io::Result<()>) -> bool {
    ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn what_no_rule_is_for_passes_and_is_written_down() {
    let (server, count) = counting(numbered).await;
    let proxy = Proxy::start(server).await.unwrap();
    let (answer, ended) = ask(&proxy, "GET /v2/sandboxes?limit=2").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nanswer 0"), "{answer}");
    assert!(ended.is_ok() && count.load(Ordering::SeqCst) == 1);
    let exchanges = proxy.exchanges();
    let [exchange] = &exchanges[..] else { panic!("{exchanges:?}") };
    assert_eq!((exchange.route, exchange.path()), (Route::List, "/v2/sandboxes"));
    assert_eq!(exchange.target, "/v2/sandboxes?limit=2");
    assert_eq!(exchange.status.map(|status| status.as_u16()), Some(200));
    assert_eq!((&exchange.answer_body[..], exchange.received), (&b"answer 0"[..], 8));
    assert!(exchange.forwarded && exchange.complete);
}

#[tokio::test]
async fn a_reset_before_keeps_the_request_from_the_server() {
    let (server, count) = counting(numbered).await;
    let proxy = Proxy::start(server).await.unwrap();
    proxy.add(Rule::new(Fault::ResetBefore).times(1));
    let (answer, ended) = ask(&proxy, "POST /v2/sandboxes").await;
    assert!(answer.is_empty() && is_reset(&ended), "{answer} {ended:?}");
    assert_eq!(count.load(Ordering::SeqCst), 0);
    assert_eq!((proxy.asked(Route::Create), proxy.forwarded(Route::Create)), (1, 0));
    assert!(ask(&proxy, "POST /v2/sandboxes").await.0.ends_with("answer 0"));
}

#[tokio::test]
async fn a_lost_answer_is_a_reset_after_the_server_carried_it_out() {
    let (server, count) = counting(numbered).await;
    let proxy = Proxy::start(server).await.unwrap();
    proxy.add(Rule::new(Fault::LoseAnswer).with_route(Route::Create));
    let (answer, ended) = ask(&proxy, "POST /v2/sandboxes").await;
    assert!(answer.is_empty() && is_reset(&ended), "{answer} {ended:?}");
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!((proxy.asked(Route::Create), proxy.forwarded(Route::Create)), (1, 1));
}

#[tokio::test]
async fn a_truncated_answer_keeps_its_head_and_ends_early() {
    let (server, _) = counting(numbered).await;
    let proxy = Proxy::start(server).await.unwrap();
    proxy.add(Rule::new(Fault::Truncate(3)));
    let (answer, ended) = ask(&proxy, "GET /x").await;
    let lowered = answer.to_ascii_lowercase();
    assert!(lowered.contains("\r\ncontent-length: 8\r\n") && answer.ends_with("\r\n\r\nans"), "{answer}");
    assert!(ended.is_ok());
    let exchange = &proxy.exchanges()[0];
    assert_eq!((&exchange.answer_body[..], exchange.complete), (&b"ans"[..], false));
}

#[tokio::test]
async fn made_up_answers_say_when_to_come_again_in_every_form() {
    let proxy = Proxy::alone().await.unwrap();
    let date = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    let forms = [
        (Some(RetryAfter::Seconds(2)), Some("2")),
        (Some(RetryAfter::At(date)), Some("Sun, 06 Nov 1994 08:49:37 GMT")),
        (Some(RetryAfter::Text("-1".into())), Some("-1")),
        (Some(RetryAfter::Text("junk".into())), Some("junk")),
        (None, None),
    ];
    for (form, sent) in forms {
        let mut answer = Answer::error(429, "slow down");
        if let Some(form) = &form {
            answer = answer.with_retry_after(form);
        }
        proxy.clear_rules();
        proxy.add(Rule::new(Fault::Answer(answer)));
        let (answer, _) = ask(&proxy, "POST /sandboxes/x/pause").await;
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
        assert!(answer.ends_with(r#"{"code":429,"message":"slow down"}"#), "{answer}");
        let line = answer.lines().find_map(|line| line.strip_prefix("retry-after: "));
        assert_eq!(line, sent, "{answer}");
    }
    assert_eq!((proxy.asked(Route::Pause), proxy.forwarded(Route::Pause)), (5, 0));
}

#[tokio::test]
async fn the_first_rule_that_fits_decides_by_method_path_and_turn() {
    let (server, _) = counting(numbered).await;
    let proxy = Proxy::start(server).await.unwrap();
    let say = |status| Fault::Answer(Answer::new(status));
    proxy.add(Rule::new(say(501)).with_method(http::Method::DELETE).with_path("/sandboxes/*"));
    proxy.add(Rule::new(say(502)).with_path("/sandboxes/*").skip(1).times(2));
    let mut statuses = Vec::new();
    for line in [
        "GET /sandboxes/a",
        "DELETE /sandboxes/a",
        "GET /sandboxes/a",
        "GET /b",
        "GET /sandboxes/b",
        "GET /sandboxes/b",
    ] {
        statuses.push(ask(&proxy, line).await.0[9..12].to_owned());
    }
    assert_eq!(statuses, ["200", "501", "502", "200", "502", "200"]);
}

#[tokio::test]
async fn a_cursor_repeats_itself() {
    let (server, count) = counting(numbered).await;
    let proxy = Proxy::start(server).await.unwrap();
    proxy.add(Rule::new(Fault::RepeatedCursor).with_route(Route::List));
    for number in 0..3 {
        let (answer, _) = ask(&proxy, "GET /v2/sandboxes").await;
        assert!(answer.to_ascii_lowercase().contains("\r\nx-next-token: 0\r\n"), "{answer}");
        assert!(answer.ends_with(&format!("answer {number}")), "{answer}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn what_is_held_after_reaches_the_server_though_its_client_has_gone() {
    let (server, count) = counting(numbered).await;
    let proxy = Proxy::start(server).await.unwrap();
    let gate = Gate::new();
    proxy.add(Rule::new(Fault::HoldAfter(gate.clone())));
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    stream.write_all(b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    within("the answer arrives at the gate", gate.arrived(1)).await;
    drop(stream);
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!(proxy.exchanges()[0].status, None);
}

#[tokio::test]
async fn a_stream_passes_while_it_comes_and_its_abort_is_passed_on() {
    let (server, _) =
        counting(|_| b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n".to_vec()).await;
    let proxy = Proxy::start(server).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    stream.write_all(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut seen = String::new();
    while !seen.ends_with("5\r\nfirst\r\n") {
        let mut buffer = [0; 1024];
        let read = within("the first chunk comes", stream.read(&mut buffer)).await.unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    proxy.cut_connections();
    let mut rest = Vec::new();
    let ended = within("the cut is seen", stream.read_to_end(&mut rest)).await;
    assert!(ended.is_err() || rest.is_empty(), "{rest:?}");
}

#[tokio::test]
async fn an_upgraded_connection_is_passed_on_as_bytes() {
    let (server, _) = counting(|_| {
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n".to_vec()
    })
    .await;
    let proxy = Proxy::start(server).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let request = b"GET /port HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("the head comes", stream.read_u8()).await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    stream.write_all(b"over and back").await.unwrap();
    let mut echoed = [0; 13];
    within("the echo comes", stream.read_exact(&mut echoed)).await.unwrap();
    assert_eq!(&echoed, b"over and back");
}

#[tokio::test]
async fn keys_and_tokens_are_not_shown() {
    let proxy = Proxy::alone().await.unwrap();
    proxy.add(Rule::new(Fault::Answer(Answer::new(204))));
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let request = b"GET /x HTTP/1.1\r\nHost: x\r\nX-API-KEY: e2b_5ec7e7\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    within("the answer ends", stream.read_to_end(&mut answer)).await.unwrap();
    let exchanges = proxy.exchanges();
    assert_eq!(exchanges[0].headers["x-api-key"], "e2b_5ec7e7");
    assert!(!format!("{exchanges:?}").contains("5ec7e7"));
}
