//! The way into a sandbox: who is let in, what is answered instead, and what happens to those who are inside.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use std::io::{Read as _, Write as _};

use http::{Box, Request, read, read_head, until};
use serde_json::json;
use support::Served;

/// Answers every request with what it was asked, and echoes after an upgrade.
const ECHO: &str = r#"
import http.server, json
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade"):
            self.send_response(101)
            self.send_header("Upgrade", "echo")
            self.send_header("Connection", "Upgrade")
            self.end_headers()
            while data := self.connection.recv(65536):
                self.connection.sendall(data)
            self.close_connection = True
            return
        body = json.dumps({"path": self.path, "names": list(self.headers.keys()), "headers": {k.lower(): v for k, v in self.headers.items()}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Echo).serve_forever()
"#;

#[test]
fn a_sandbox_that_does_not_run_is_not_found_in_the_words_that_the_sdks_look_for() {
    let server = Served::start(&[]);
    let at = server.address();
    let unknown =
        |request: Request| request.header("E2b-Sandbox-Id", "i0").header("E2b-Sandbox-Port", "80").send(at);
    let answer = unknown(Request::new("GET", "/"));
    assert_eq!(answer.status, 502);
    assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"));
    assert_eq!(answer.text(), r#"{"sandboxId":"i0","message":"The sandbox was not found","code":502}"#);
    let page =
        unknown(Request::new("GET", "/").header("User-Agent", "Mozilla/5.0").header("Accept", "text/html"));
    assert_eq!((page.status, page.header("content-type")), (502, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("The sandbox was not found"));

    let sandbox = Box::create(at, json!({}));
    assert_eq!(sandbox.health(), 204);
    assert_eq!(sandbox.control("POST", "/pause").send(at).status, 204);
    assert_eq!(sandbox.health(), 502);
    assert_eq!(sandbox.control("DELETE", "").send(at).status, 204);
    let gone = sandbox.daemon("GET", "/health").send(at);
    let said =
        format!(r#"{{"sandboxId":"{}","message":"The sandbox was not found","code":502}}"#, sandbox.id);
    assert_eq!((gone.status, gone.text()), (502, said.as_str()));
    assert_eq!(sandbox.control("DELETE", "").send(at).status, 404);
}

#[test]
fn a_port_where_nothing_listens_is_said_to_be_closed() {
    let server = Served::start(&[]);
    let sandbox = Box::create(server.address(), json!({}));
    let answer = sandbox.port(8000, "GET", "/").send(server.address());
    let said = format!(
        r#"{{"sandboxId":"{}","message":"The sandbox is running but port is not open","port":8000,"code":502}}"#,
        sandbox.id
    );
    assert_eq!((answer.status, answer.text()), (502, said.as_str()));
}

#[test]
fn what_names_no_sandbox_is_refused_as_plain_text() {
    let server = Served::start(&[]);
    let at = server.address();
    for (id, port) in [
        (Some("i0"), None),
        (None, Some("80")),
        (Some("i0"), Some("0")),
        (Some("i0"), Some("65536")),
        (Some("i0"), Some("80x")),
        (Some("../../etc"), Some("80")),
        (Some("I0"), Some("80")),
        (Some(""), Some("80")),
    ] {
        let mut request = Request::new("GET", "/");
        for (name, value) in [("E2b-Sandbox-Id", id), ("E2b-Sandbox-Port", port)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let answer = request.send(at);
        let media = answer.header("content-type");
        assert_eq!((answer.status, media), (400, Some("text/plain; charset=utf-8")), "{id:?} {port:?}");
    }
    for host in ["0-i0.localhost", "99999-i0.e2b.example", "80-i_0.e2b.example"] {
        assert_eq!(Request::new("GET", "/").header("Host", host).send(at).status, 400, "{host}");
    }
    assert_eq!(Request::new("GET", "/").header("Host", "80-i0.e2b.example").send(at).status, 502);
}

#[test]
fn the_daemon_answers_to_its_token_only() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({}));
    let other = Box::create(at, json!({}));
    sandbox.write("a.txt", "hello");
    let unauthorized =
        "unauthorized access, please provide a valid access token or method signing if supported";
    for path in ["/envs", "/metrics", "/files/compose", "/process.Process/List", "/nothing"] {
        for token in [None, Some("wrong"), Some(other.token.as_str()), Some("")] {
            let mut request = sandbox.port(49983, "POST", path);
            if let Some(token) = token {
                request = request.header("X-Access-Token", token);
            }
            let answer = request.send(at);
            assert_eq!(
                (answer.status, &answer.json()["message"]),
                (401, &json!(unauthorized)),
                "{path} {token:?}"
            );
            assert_eq!(answer.json()["code"], 401);
        }
    }
    let messages = [
        ("/files?path=a.txt", None, "missing signature query parameter"),
        ("/files?path=a.txt&signature=v1_x", None, "invalid signature"),
        ("/files?path=a.txt", Some("wrong"), "access token present in header but does not match"),
    ];
    for (path, token, message) in messages {
        let mut request = sandbox.port(49983, "GET", path);
        if let Some(token) = token {
            request = request.header("X-Access-Token", token);
        }
        assert_eq!(request.send(at).text(), format!(r#"{{"code":401,"message":"{message}"}}"#), "{path}");
    }
    assert_eq!(sandbox.port(49983, "GET", "/health").send(at).status, 204);
    assert_eq!(sandbox.read("a.txt").text(), "hello");
    let unsigned = Request::new("GET", "/files?path=a.txt&signature=v1_none").send(at);
    assert_eq!(unsigned.text(), r#"{"code":401,"message":"invalid signature"}"#);
}

#[test]
fn what_only_the_provider_may_do_is_no_route() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({}));
    for path in [
        "/init",
        "/freeze",
        "/unfreeze",
        "/collapse",
        "/fsfreeze",
        "/fsthaw",
        "/upgrade",
        "/sandhold/freeze",
        "/sandhold/stop",
        "/sandhold/lease",
        "/sandhold/ports/22",
    ] {
        let answer = sandbox.daemon("POST", path).send(at);
        let body = answer.json();
        assert_eq!((answer.status, &body["code"], &body["path"]), (404, &json!(404), &json!(path)));
    }
    assert_eq!(sandbox.health(), 204);
}

#[test]
fn a_port_is_reached_by_host_and_by_headers_and_sees_what_was_sent() {
    let server = Served::start(&[]);
    let at = server.address();
    let mask = json!({ "network": { "maskRequestHost": "inside:${PORT}" } });
    for (fields, seen) in [(json!({}), "8000-{}.sandbox.example"), (mask, "inside:8000")] {
        let sandbox = Box::create(at, fields);
        let _running = sandbox.serve(8000, ECHO);
        let host = format!("8000-{}.sandbox.example", sandbox.id);
        let answer =
            Request::new("GET", "/a/../b?c=%20d").header("Host", &host).header("X-Mine", "1").send(at);
        let body = answer.json();
        assert_eq!((answer.status, &body["path"]), (200, &json!("/a/../b?c=%20d")));
        let seen = seen.replace("{}", &sandbox.id);
        assert_eq!((&body["headers"]["host"], &body["headers"]["x-mine"]), (&json!(seen), &json!("1")));
        // In the letters of E2B's proxy: programs inside may compare them.
        assert!(
            ["Host", "X-Mine"].iter().all(|name| body["names"].as_array().unwrap().contains(&json!(name)))
        );
        assert_eq!(sandbox.port(8000, "GET", "/").send(at).status, 200);
    }
}

#[test]
fn a_connection_that_becomes_another_protocol_carries_both_ways_and_ends_with_the_sandbox() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({}));
    let _running = sandbox.serve(8000, ECHO);
    let mut stream =
        sandbox.port(8000, "GET", "/").header("Connection", "Upgrade").header("Upgrade", "echo").open(at);
    let (head, _) = read_head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for word in ["hello", "again"] {
        stream.write_all(word.as_bytes()).unwrap();
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, word.as_bytes());
    }
    assert_eq!(sandbox.control("DELETE", "").send(at).status, 204);
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    assert!(rest.is_empty() && ended.map_or(true, |count| count == 0));
}

#[test]
fn ports_that_are_not_public_ask_for_the_traffic_token() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({ "network": { "allowPublicTraffic": false } }));
    let _running = sandbox.serve(8000, ECHO);
    for token in [None, Some("wrong"), Some(sandbox.token.as_str())] {
        let mut request = sandbox.port(8000, "GET", "/");
        if let Some(token) = token {
            request = request.header("e2b-traffic-access-token", token);
        }
        let answer = request.send(at);
        let body = answer.json();
        assert_eq!(
            (answer.status, &body["code"], &body["sandboxId"]),
            (403, &json!(403), &json!(sandbox.id))
        );
    }
    // The daemon has a token of its own.
    assert_eq!(sandbox.health(), 204);
    let open = sandbox.port(8000, "GET", "/").header("e2b-traffic-access-token", &sandbox.traffic()).send(at);
    assert_eq!(open.status, 200);
    assert_eq!(open.json()["headers"]["e2b-traffic-access-token"], json!(null));
}

#[test]
fn a_kill_a_pause_and_an_end_cut_streams_off_after_health_says_so() {
    let server = Served::start(&[]);
    let at = server.address();
    for (method, rest, body, fields) in [
        ("DELETE", "", json!({}), json!({})),
        ("POST", "/pause", json!({}), json!({})),
        ("POST", "/timeout", json!({ "timeout": 0 }), json!({})),
        ("POST", "/timeout", json!({ "timeout": 0 }), json!({ "autoPause": true })),
    ] {
        let sandbox = Box::create(at, fields);
        let mut stream = sandbox.start("sleep 1000");
        let (head, _) = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let watcher = {
            let sandbox = sandbox.clone();
            std::thread::spawn(move || {
                // To the end of the connection, which the server must not make look complete.
                let mut rest = Vec::new();
                let ended = stream.read_to_end(&mut rest).map_err(|error| error.kind());
                // No mere end: clients ask what became of the sandbox where the transport failed.
                assert_eq!(ended, Err(std::io::ErrorKind::ConnectionReset));
                assert!(!rest.ends_with(b"0\r\n\r\n"), "the stream ended as if it were whole");
                sandbox.health()
            })
        };
        let answer = sandbox.control(method, rest).json(&body).send(at);
        assert_eq!(answer.status, 204, "{answer:?}");
        assert_eq!(watcher.join().unwrap(), 502, "{method} {rest}");
    }
}

#[test]
fn traffic_wakes_a_paused_sandbox_that_was_made_so() {
    let server = Served::start(&[]);
    let at = server.address();
    let asleep = |fields| {
        let sandbox = Box::create(at, fields);
        let running = sandbox.serve(8000, ECHO);
        assert_eq!(sandbox.control("POST", "/pause").send(at).status, 204);
        (sandbox, running)
    };
    let (sandbox, _running) =
        asleep(json!({ "autoPause": true, "autoResume": { "enabled": true }, "timeout": 60 }));
    assert_eq!(sandbox.info().json()["state"], "paused");
    let wrong = sandbox.port(49983, "GET", "/health").send(at);
    assert_eq!((wrong.status, &wrong.json()["code"]), (403, &json!(403)));
    assert_eq!(sandbox.info().json()["state"], "paused");
    assert_eq!(sandbox.port(8000, "GET", "/").send(at).status, 200);
    assert_eq!(sandbox.info().json()["state"], "running");

    let (other, _running) = asleep(json!({ "autoPause": true }));
    assert_eq!(other.port(8000, "GET", "/").send(at).status, 502);
    assert_eq!(other.info().json()["state"], "paused");
}

#[test]
fn pages_may_use_a_daemon_with_its_token() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({}));
    let asked = sandbox
        .port(49983, "OPTIONS", "/files")
        .header("Origin", "https://page.example")
        .header("Access-Control-Request-Headers", "x-access-token")
        .send(at);
    assert_eq!((asked.status, asked.header("access-control-allow-headers")), (204, Some("x-access-token")));
    let signed =
        Request::new("OPTIONS", "/files?path=a&signature=v1_x").header("Origin", "https://page.example");
    assert_eq!(signed.send(at).status, 204);
    let answer = sandbox.daemon("GET", "/envs").header("Origin", "https://page.example").send(at);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
}

#[test]
fn a_name_that_no_file_can_have_is_refused_and_named() {
    let server = Served::start(&[]);
    let sandbox = Box::create(server.address(), json!({}));
    let long = "n".repeat(256);
    sandbox.write("file", "kept");
    for method in ["GET", "POST"] {
        let request = sandbox.daemon(method, &format!("/files?path={long}"));
        let answer = request.header("Content-Type", "application/octet-stream").body("x").send(sandbox.at);
        let why = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && why.contains(&long), "{method} {answer:?}");
    }
    for (name, asked) in [
        ("Stat", json!({ "path": long })),
        ("MakeDir", json!({ "path": long })),
        ("ListDir", json!({ "path": long })),
        ("Remove", json!({ "path": long })),
        ("Move", json!({ "source": "file", "destination": long })),
        ("Move", json!({ "source": long, "destination": "other" })),
        ("CreateWatcher", json!({ "path": long })),
    ] {
        let request = sandbox.daemon("POST", &format!("/filesystem.Filesystem/{name}"));
        let answer = request.header("Content-Type", "application/json").json(&asked).send(sandbox.at);
        let body = answer.json();
        let why = body["message"].as_str().unwrap();
        assert!(answer.status == 400 && why.contains(&long), "{name} {answer:?}");
        assert_eq!(body["code"], "invalid_argument", "{name}");
    }
    assert_eq!(sandbox.read("file").text(), "kept");
    // One byte less is a name.
    sandbox.write(&long[1..], "x");
}

#[test]
fn an_upload_to_a_device_goes_through_and_leaves_the_device_as_it_was() {
    let server = Served::start(&[]);
    let sandbox = Box::create(server.address(), json!({}));
    let look = || {
        let stat = sandbox.daemon("POST", "/filesystem.Filesystem/Stat");
        let stat = stat.header("Content-Type", "application/json").body(r#"{"path":"/dev/null"}"#);
        let entry = &stat.send(sandbox.at).json()["entry"];
        (entry["owner"].clone(), entry["permissions"].clone())
    };
    let before = look();
    for size in [3, 1_000_000] {
        sandbox.write("/dev/null", &"x".repeat(size));
    }
    assert_eq!(look(), before);
}

#[test]
fn streams_of_any_length_pass_whole_in_both_directions() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = Box::create(at, json!({}));
    let content: Vec<u8> = (0..8_u32 << 20).map(|index| (index % 251) as u8).collect();
    let written = sandbox
        .daemon("POST", "/files?path=large.bin")
        .header("Content-Type", "application/octet-stream")
        .body(content.clone())
        .send(at);
    assert_eq!(written.status, 200, "{:?}", written.text());
    let answer =
        read(&mut sandbox.daemon("GET", "/files?path=large.bin").header("Connection", "close").open(at));
    assert!(answer.whole && answer.body == content);
    // A connection that was used before is used again.
    until("many requests on few connections", || (0..200).all(|_| sandbox.health() == 204));
}
