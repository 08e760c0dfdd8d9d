//! HTTP as it stands on the wire, for what no client library would send.

#![allow(dead_code, reason = "not every test program needs all of it")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A connection that does not answer for so long is a broken server, not a slow one.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the body ended as it had been announced.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Returns a header by its lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Request {
    head: String,
    body: Vec<u8>,
    hosted: bool,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        let head = format!("{method} {path} HTTP/1.1\r\n");
        Self { head, body: Vec::new(), hosted: false }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.hosted |= name.eq_ignore_ascii_case("host");
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn key(self) -> Self {
        self.header("X-API-KEY", crate::support::KEY)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.body(body.to_string())
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it and leaves the connection to the caller.
    pub(crate) fn open(self, to: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = if self.hosted { String::new() } else { format!("Host: {to}\r\n") };
        let length = if self.body.is_empty() && self.head.starts_with("GET") {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", self.body.len())
        };
        stream.write_all(format!("{}{host}{length}\r\n", self.head).as_bytes()).unwrap();
        // A server that refuses need not read it all.
        let _ = stream.write_all(&self.body);
        stream
    }

    /// Sends it and reads the answer to its end.
    pub(crate) fn send(self, to: SocketAddr) -> Answer {
        let what = self.head.lines().next().unwrap_or_default().to_owned();
        read_of(&mut self.header("Connection", "close").open(to), &what)
    }
}

/// Reads up to the end of the head of an answer; what came of the body is returned too.
pub(crate) fn read_head(stream: &mut TcpStream) -> (String, Vec<u8>) {
    read_head_of(stream, "a request")
}

fn read_head_of(stream: &mut TcpStream, what: &str) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return (String::from_utf8(bytes).unwrap(), body);
        }
        let mut more = [0; 4096];
        let count = stream.read(&mut more).unwrap_or_else(|error| panic!("no answer to {what}: {error}"));
        assert!(count > 0, "the connection ended in the head: {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&more[..count]);
    }
}

/// Reads a whole answer from a connection that the server closes.
pub(crate) fn read(stream: &mut TcpStream) -> Answer {
    read_of(stream, "a request")
}

fn read_of(stream: &mut TcpStream, what: &str) -> Answer {
    let (head, mut raw) = read_head_of(stream, what);
    // A connection that is reset says the same as one that is closed.
    let _ = stream.read_to_end(&mut raw);
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    let head = head.lines().map(|line| match line.split_once(':') {
        Some((name, value)) => format!("{}:{value}\n", name.to_ascii_lowercase()),
        None => format!("{line}\n"),
    });
    let head: String = head.collect();
    let chunked = head.contains("transfer-encoding: chunked");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let (body, whole) =
        if chunked { unchunk(&raw) } else { (raw.clone(), length.is_none_or(|length| length == raw.len())) };
    Answer { status, head, body, whole }
}

fn unchunk(mut raw: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = raw.windows(2).position(|two| two == b"\r\n") else { return (body, false) };
        let size =
            std::str::from_utf8(&raw[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size else { return (body, false) };
        raw = &raw[end + 2..];
        if size == 0 {
            return (body, true);
        }
        if raw.len() < size + 2 {
            body.extend_from_slice(&raw[..size.min(raw.len())]);
            return (body, false);
        }
        body.extend_from_slice(&raw[..size]);
        raw = &raw[size + 2..];
    }
}

/// A sandbox of a server under test.
#[derive(Debug, Clone)]
pub(crate) struct Box {
    pub(crate) at: SocketAddr,
    pub(crate) id: String,
    pub(crate) token: String,
    pub(crate) created: Value,
}

impl Box {
    /// Makes one; `body` holds fields beside the template.
    pub(crate) fn create(at: SocketAddr, mut body: Value) -> Self {
        body["templateID"] = "base".into();
        let answer = Request::new("POST", "/v2/sandboxes").key().json(&body).send(at);
        assert_eq!(answer.status, 201, "{answer:?}");
        Self::of(at, answer.json())
    }

    pub(crate) fn of(at: SocketAddr, created: Value) -> Self {
        let text = |name: &str| created[name].as_str().unwrap_or_default().to_owned();
        Self { at, id: text("sandboxID"), token: text("envdAccessToken"), created }
    }

    /// A request of the control plane about it.
    pub(crate) fn control(&self, method: &str, rest: &str) -> Request {
        Request::new(method, &format!("/sandboxes/{}{rest}", self.id)).key()
    }

    /// A request for a port of it.
    pub(crate) fn port(&self, port: u16, method: &str, path: &str) -> Request {
        Request::new(method, path)
            .header("E2b-Sandbox-Id", &self.id)
            .header("E2b-Sandbox-Port", &port.to_string())
    }

    /// A request for its daemon, with its token.
    pub(crate) fn daemon(&self, method: &str, path: &str) -> Request {
        self.port(49983, method, path).header("X-Access-Token", &self.token)
    }

    /// Begins to run a command; the stream of its events is on the connection.
    pub(crate) fn start(&self, command: &str) -> TcpStream {
        let message = serde_json::json!({
            "process": { "cmd": "/bin/bash", "args": ["-c", command] }, "stdin": false,
        });
        let message = message.to_string();
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend_from_slice(message.as_bytes());
        self.daemon("POST", "/process.Process/Start")
            .header("Content-Type", "application/connect+json")
            .header("Connect-Protocol-Version", "1")
            .body(body)
            .open(self.at)
    }

    /// Writes a file as the user `user`.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let answer = self
            .daemon("POST", &format!("/files?path={path}"))
            .header("Content-Type", "application/octet-stream")
            .body(content)
            .send(self.at);
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    pub(crate) fn read(&self, path: &str) -> Answer {
        self.daemon("GET", &format!("/files?path={path}")).send(self.at)
    }

    pub(crate) fn info(&self) -> Answer {
        self.control("GET", "").send(self.at)
    }

    pub(crate) fn health(&self) -> u16 {
        self.daemon("GET", "/health").send(self.at).status
    }

    /// Runs a program that serves a port, and waits until it does.
    pub(crate) fn serve(&self, port: u16, program: &str) -> TcpStream {
        self.write("served.py", program);
        let running = self.start("exec python3 served.py");
        until("the program serves its port", || {
            self.port(port, "GET", "/ready")
                .header("E2b-Traffic-Access-Token", &self.traffic())
                .send(self.at)
                .status
                == 200
        });
        running
    }

    pub(crate) fn traffic(&self) -> String {
        self.created["trafficAccessToken"].as_str().unwrap_or_default().to_owned()
    }
}

/// Waits for something that comes true by itself; a server that never gets there fails.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !happened() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
