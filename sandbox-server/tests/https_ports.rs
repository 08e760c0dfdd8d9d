//! Ports whose programs speak TLS themselves: `httpsPorts` of the network at the create.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use http::{Box, Request, read_head};
use serde_json::{Value, json};
use support::Served;

/// Answers over TLS with what it was asked, without a length, and closes without saying so; echoes after an upgrade.
const ECHO: &str = r#"
import http.server, json, ssl
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Upgrade"):
            self.protocol_version = "HTTP/1.1"
            self.send_response(101)
            self.send_header("Upgrade", "echo")
            self.send_header("Connection", "Upgrade")
            self.end_headers()
            while data := self.connection.recv(65536):
                self.connection.sendall(data)
            return
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"path": self.path, "tls": self.connection.version(), "name": self.server.asked,
            "host": self.headers["Host"], "sent": len(sent)}).encode())
    do_POST = do_GET
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    asked = None
server = Server(("127.0.0.1", PORT), Echo)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
context.maximum_version = ssl.TLSVersion.MOST
def asked(_, name, __): server.asked = name
context.sni_callback = asked
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

/// Speaks plain HTTP on all of its ports, and listens on each before the first one answers.
const PLAIN: &str = r#"
import http.server, threading
class Plain(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
servers = [http.server.ThreadingHTTPServer(("127.0.0.1", port), Plain) for port in (8443, 8000)]
threading.Thread(target=servers[0].serve_forever, daemon=True).start()
servers[1].serve_forever()
"#;

fn pem(kind: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
}

/// Makes a sandbox with a certificate for some name that nobody uses, and these ports for TLS.
fn certified(server: &Served, network: &Value) -> Box {
    let sandbox = Box::create(server.address(), json!({ "network": network }));
    let made = rcgen::generate_simple_self_signed(vec!["inside.invalid".to_owned()]).unwrap();
    sandbox.write("cert.pem", &pem("CERTIFICATE", made.cert.der()));
    sandbox.write("key.pem", &pem("PRIVATE KEY", &made.signing_key.serialize_der()));
    sandbox
}

/// The program for one port, which speaks that version of TLS at most.
fn echo(port: u16, most: &str) -> String {
    ECHO.replace("PORT", &port.to_string()).replace("MOST", most)
}

#[test]
fn a_port_for_tls_is_reached_by_tls_whatever_its_certificate() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = certified(&server, &json!({ "httpsPorts": [8443, 9443] }));
    for (port, most, version) in [(8443, "TLSv1_3", "TLSv1.3"), (9443, "TLSv1_2", "TLSv1.2")] {
        let _running = sandbox.serve(port, &echo(port, most));
        let host = format!("{port}-{}.sandbox.example", sandbox.id);
        let answer = Request::new("GET", "/a?b=c").header("Host", &host).send(at);
        let said = json!({ "path": "/a?b=c", "tls": version, "name": null, "host": host, "sent": 0 });
        assert_eq!((answer.status, answer.whole, answer.json()), (200, true, said));
        let sent = sandbox.port(port, "POST", "/up").body(vec![7; 3_000_000]).send(at);
        assert_eq!((sent.status, &sent.json()["sent"]), (200, &json!(3_000_000)));
    }
    assert_eq!(sandbox.info().json()["network"]["httpsPorts"], json!([8443, 9443]));
}

#[test]
fn a_port_for_tls_becomes_another_protocol_as_any_other_one() {
    let server = Served::start(&[]);
    let sandbox = certified(&server, &json!({ "httpsPorts": [8443] }));
    let _running = sandbox.serve(8443, &echo(8443, "TLSv1_3"));
    let request = sandbox.port(8443, "GET", "/").header("Connection", "Upgrade").header("Upgrade", "echo");
    let mut stream = request.open(server.address());
    let (head, _) = read_head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for word in ["hello", "again"] {
        stream.write_all(word.as_bytes()).unwrap();
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, word.as_bytes());
    }
    assert_eq!(sandbox.control("DELETE", "").send(server.address()).status, 204);
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    assert!(rest.is_empty() && ended.map_or(true, |count| count == 0));
}

#[test]
fn a_port_for_tls_where_no_tls_is_spoken_is_said_to_be_closed() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = certified(&server, &json!({ "httpsPorts": [8443] }));
    let said = format!(
        r#"{{"sandboxId":"{}","message":"The sandbox is running but port is not open","port":8443,"code":502}}"#,
        sandbox.id
    );
    let closed = sandbox.port(8443, "GET", "/").send(at);
    assert_eq!((closed.status, closed.text()), (502, said.as_str()));
    let _running = sandbox.serve(8000, PLAIN);
    let plain = sandbox.port(8443, "GET", "/").send(at);
    assert_eq!((plain.status, plain.text()), (502, said.as_str()));
}

#[test]
fn a_port_for_tls_asks_for_the_traffic_token_as_any_other_one() {
    let server = Served::start(&[]);
    let at = server.address();
    let sandbox = certified(&server, &json!({ "httpsPorts": [8443], "allowPublicTraffic": false }));
    let _running = sandbox.serve(8443, &echo(8443, "TLSv1_3"));
    assert_eq!(sandbox.port(8443, "GET", "/").send(at).status, 403);
    let open = sandbox.port(8443, "GET", "/").header("e2b-traffic-access-token", &sandbox.traffic()).send(at);
    assert_eq!((open.status, &open.json()["tls"]), (200, &json!("TLSv1.3")));
}

#[test]
fn ports_for_tls_outlive_the_server_the_memory_and_another_policy_and_go_with_a_fork() {
    let mut server = Served::start(&[]);
    let mut sandbox = certified(&server, &json!({ "httpsPorts": [8443] }));
    let _running = sandbox.serve(8443, &echo(8443, "TLSv1_3"));
    // An update replaces what goes out, and is not about what comes in.
    let update = sandbox.control("PUT", "/network").json(&json!({ "denyOut": ["0.0.0.0/0"] }));
    assert_eq!(update.send(server.address()).status, 204);
    assert_eq!(sandbox.info().json()["network"]["httpsPorts"], json!([8443]));
    server.crash_and_restart();
    sandbox.at = server.address();
    let tls = |sandbox: &Box| sandbox.port(8443, "GET", "/").send(sandbox.at).json()["tls"].clone();
    assert_eq!(tls(&sandbox), json!("TLSv1.3"));

    let forked = sandbox.control("POST", "/fork").json(&json!({ "timeout": 300 })).send(server.address());
    let fork = Box::of(server.address(), forked.json()[0]["sandbox"].clone());
    let _running = fork.serve(8443, &echo(8443, "TLSv1_3"));
    assert_eq!(tls(&fork), json!("TLSv1.3"));
    assert_eq!(fork.info().json()["network"]["httpsPorts"], json!([8443]));
}
