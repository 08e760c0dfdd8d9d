//! The plain HTTP side of the daemon, by requests written out by hand.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![cfg(feature = "daemon")]

mod support;

use support::{Wire, ask, request, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const TOKEN: (&str, &str) = ("X-Access-Token", "secret");

#[tokio::test]
async fn health_needs_no_token_and_is_never_cached() {
    let running = start(|config| config.with_access_token("secret")).await;
    let answer = ask(running.address, "GET /health", &[], b"").await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert!(answer.body.is_empty());
}

#[tokio::test]
async fn everything_but_health_asks_for_the_token() {
    let running = start(|config| config.with_access_token("secret")).await;
    for line in ["GET /metrics", "GET /envs", "POST /process.Process/List", "GET /sandhold/ports/1", "GET /x"]
    {
        for headers in [&[][..], &[("X-Access-Token", "secreT")], &[("X-Access-Token", "")]] {
            let answer = ask(running.address, line, headers, b"").await;
            assert_eq!(answer.status, 401, "{line}");
            assert_eq!(answer.json()["code"], 401);
            assert!(answer.json()["message"].is_string());
        }
    }
    assert_eq!(ask(running.address, "GET /envs", &[TOKEN], b"").await.status, 200);
}

#[tokio::test]
async fn an_unknown_route_is_a_json_404() {
    let running = start(|config| config).await;
    for line in ["GET /nothing", "DELETE /health", "GET /sandhold/nothing"] {
        let answer = ask(running.address, line, &[], b"").await;
        assert_eq!(answer.status, 404, "{line}");
        assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"));
        assert_eq!(answer.json()["code"], 404);
    }
}

#[tokio::test]
async fn metrics_tell_memory_disk_and_load() {
    let running = start(|config| config).await;
    let metrics = ask(running.address, "GET /metrics", &[], b"").await.json();
    let number = |name: &str| metrics[name].as_f64().unwrap_or_else(|| panic!("{name} in {metrics}"));
    assert!(number("mem_used") > 0.0 && number("mem_used") <= number("mem_total"));
    assert!(number("disk_used") > 0.0 && number("disk_used") <= number("disk_total"));
    assert!(number("cpu_count") >= 1.0 && (0.0..=100.0).contains(&number("cpu_used_pct")));
    assert_eq!(number("mem_total_mib"), (number("mem_total") / 1048576.0).floor());
    assert!(number("ts") > 1.7e9 && metrics["mem_cache"].is_u64());
}

#[tokio::test]
async fn init_sets_variables_and_the_token_once() {
    let running = start(|config| config).await;
    let body = br#"{"envVars":{"A":"1"},"accessToken":"secret","defaultUser":"user","lifecycleID":"x"}"#;
    let answer = ask(running.address, "POST /init", &[], body).await;
    assert_eq!((answer.status, answer.header("x-envd-version")), (204, Some("0.6.13")));
    assert_eq!(ask(running.address, "GET /envs", &[], b"").await.status, 401);
    assert_eq!(ask(running.address, "GET /envs", &[TOKEN], b"").await.json(), serde_json::json!({"A": "1"}));
    for other in [&b""[..], br#"{"accessToken":"other"}"#, br#"{"accessToken":""}"#] {
        assert_eq!(ask(running.address, "POST /init", &[], other).await.status, 401);
    }
    let again = br#"{"accessToken":"secret","envVars":{"B":"2"}}"#;
    assert_eq!(ask(running.address, "POST /init", &[], again).await.status, 204);
    let envs = ask(running.address, "GET /envs", &[TOKEN], b"").await.json();
    assert_eq!(envs, serde_json::json!({"A": "1", "B": "2"}));
}

#[tokio::test]
async fn an_init_that_was_written_earlier_changes_nothing() {
    let running = start(|config| config).await;
    for (time, value) in [("2026-01-01T00:00:02.5Z", "new"), ("2026-01-01T00:00:02Z", "old")] {
        let body = format!(r#"{{"timestamp":"{time}","envVars":{{"A":"{value}"}}}}"#);
        assert_eq!(ask(running.address, "POST /init", &[], body.as_bytes()).await.status, 204);
    }
    assert_eq!(ask(running.address, "GET /envs", &[], b"").await.json()["A"], "new");
    assert_eq!(ask(running.address, "POST /init", &[], b"{").await.status, 400);
}

#[tokio::test]
async fn web_pages_are_let_in_only_where_a_token_is_asked_for() {
    let page = ("Origin", "https://example.com");
    let open = start(|config| config).await;
    for line in ["OPTIONS /process.Process/Start", "GET /envs", "POST /files?path=x"] {
        let answer = ask(open.address, line, &[page], b"").await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None), "{line}");
    }
    // A name that was pointed at this machine makes a page's requests its own, without an origin.
    for (host, status) in
        [("evil.example", 403), ("evil.example:49983", 403), ("127.0.0.1:49983", 200), ("[::1]", 200)]
    {
        let answer = ask(open.address, "GET /envs", &[("Host", host)], b"").await;
        assert_eq!(answer.status, status, "{host}");
    }
    let closed = start(|config| config.with_access_token("secret")).await;
    let asked = ("Access-Control-Request-Headers", "x-access-token");
    let answer = ask(closed.address, "OPTIONS /process.Process/Start", &[page, asked], b"").await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("x-access-token"));
    assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
    let answer = ask(closed.address, "GET /envs", &[page, TOKEN], b"").await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
}

const UPGRADE: [(&str, &str); 2] = [("Connection", "Upgrade"), ("Upgrade", "tcp")];

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways_and_closes_one_side_at_a_time() {
    let running = start(|config| config).await;
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = inside.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = inside.accept().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        stream.write_all(b"got ").await.unwrap();
        stream.write_all(&received).await.unwrap();
    });
    let mut wire = Wire::open(running.address).await;
    let mut opening = request(&format!("GET /sandhold/ports/{port}"), &UPGRADE, b"");
    opening.extend_from_slice(b"early ");
    wire.send(opening).await;
    let head = wire.head().await;
    assert_eq!((head.status, head.header("upgrade")), (101, Some("tcp")));
    wire.send(b"late").await;
    wire.stream.shutdown().await.unwrap();
    assert_eq!(wire.take(14).await, b"got early late");
    assert_eq!(wire.stream.read(&mut [0; 1]).await.unwrap(), 0);
    server.await.unwrap();
}

#[tokio::test]
async fn a_tunnel_reaches_a_port_that_listens_on_ipv6_only() {
    let Ok(inside) = TcpListener::bind("[::1]:0").await else {
        println!("skipped: needs IPv6 on the loopback interface");
        return;
    };
    let running = start(|config| config).await;
    let line = format!("GET /sandhold/ports/{}", inside.local_addr().unwrap().port());
    let mut wire = Wire::open(running.address).await;
    wire.send(request(&line, &UPGRADE, b"")).await;
    assert_eq!(wire.head().await.status, 101);
    inside.accept().await.unwrap().0.write_all(b"six").await.unwrap();
    assert_eq!(wire.take(3).await, b"six");
}

#[tokio::test]
async fn a_closed_port_is_the_502_that_e2b_clients_know() {
    let running =
        start(|config| config.with_envs([("SANDHOLD_SANDBOX_ID".to_owned(), "box".to_owned())].into())).await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let answer = ask(running.address, &format!("GET /sandhold/ports/{free}"), &UPGRADE, b"").await;
    assert_eq!(answer.status, 502);
    let expected = serde_json::json!({
        "sandboxId": "box", "message": "The sandbox is running but port is not open", "port": free, "code": 502
    });
    assert_eq!(answer.json(), expected);
    for text in ["0", "65536", "x", ""] {
        let answer = ask(running.address, &format!("GET /sandhold/ports/{text}"), &UPGRADE, b"").await;
        assert_eq!(answer.status, 400, "{text}");
    }
    assert_eq!(ask(running.address, &format!("GET /sandhold/ports/{free}"), &[], b"").await.status, 426);
}

#[tokio::test]
async fn aborting_drops_tunnels_and_idle_connections_but_keeps_listening() {
    let running = start(|config| config).await;
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let line = format!("GET /sandhold/ports/{}", inside.local_addr().unwrap().port());
    let mut tunnel = Wire::open(running.address).await;
    tunnel.send(request(&line, &UPGRADE, b"")).await;
    assert_eq!(tunnel.head().await.status, 101);
    let mut idle = Wire::open(running.address).await;
    idle.send(request("GET /health", &[], b"")).await;
    assert_eq!(idle.answer().await.status, 204);
    running.daemon.abort_connections();
    for wire in [&mut tunnel, &mut idle] {
        assert!(matches!(wire.stream.read(&mut [0; 1]).await, Ok(0) | Err(_)));
    }
    assert_eq!(ask(running.address, "GET /health", &[], b"").await.status, 204);
}

#[tokio::test]
async fn stopping_ends_idle_connections_and_the_listener() {
    let running = start(|config| config).await;
    let mut idle = Wire::open(running.address).await;
    idle.send(request("GET /health", &[], b"")).await;
    assert_eq!(idle.answer().await.status, 204);
    running.daemon.stop();
    running.task.await.unwrap();
    assert_eq!(idle.stream.read(&mut [0; 1]).await.unwrap(), 0);
    assert!(tokio::net::TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_was_read_is_not_lost() {
    let running = start(|config| config.with_access_token("secret")).await;
    let body = vec![b'x'; 32 << 20];
    for line in ["POST /files?path=/never", "POST /process.Process/List", "POST /nowhere"] {
        let mut wire = Wire::open(running.address).await;
        wire.send(request(line, &[("Content-Type", "application/octet-stream")], &body)).await;
        let answer = wire.answer().await;
        assert_eq!((answer.status, answer.header("connection")), (401, Some("close")), "{line}");
    }
}

#[tokio::test]
async fn a_request_that_stalls_fails_at_the_idle_limit() {
    let idle = std::time::Duration::from_millis(100);
    let running = start(|config| config.with_access_token("secret").with_upload_idle(idle)).await;
    for (line, status) in [("POST /init", 408), ("POST /process.Process/List", 499)] {
        let mut wire = Wire::open(running.address).await;
        let head = format!(
            "{line} HTTP/1.1\r\nHost: x\r\nX-Access-Token: secret\r\nContent-Type: application/json\r\n\
             Content-Length: 1000\r\n\r\n{{"
        );
        wire.send(head).await;
        assert_eq!(wire.answer().await.status, status, "{line}");
    }
}
