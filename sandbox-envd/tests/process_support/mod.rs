//! A daemon on a Unix socket, and a client that writes Connect RPC by hand, so that the tests judge the bytes on
//! the wire and not one half of this crate by the other.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use sandhold_envd::{Daemon, DaemonConfig};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};

pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) daemon: Daemon,
    pub(crate) socket: PathBuf,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(DaemonConfig::new())
    }

    pub(crate) fn with(config: DaemonConfig) -> Self {
        Self::at(tempfile::tempdir().unwrap(), config)
    }

    /// Serves on a folder that may hold what an earlier daemon left.
    pub(crate) fn at(dir: tempfile::TempDir, config: DaemonConfig) -> Self {
        let socket = dir.path().join("envd.sock");
        let _ = std::fs::remove_file(&socket);
        let daemon = Daemon::new(config.with_retain_dir(dir.path().join("retained"))).unwrap();
        let (serving, listener) = (daemon.clone(), UnixListener::bind(&socket).unwrap());
        tokio::spawn(async move { serving.serve(listener).await });
        Self { dir, daemon, socket }
    }

    async fn send(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> http::Response<Incoming> {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request =
            Request::post(path).header("host", "sandbox").header("connect-protocol-version", "1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap()
    }

    /// Calls a unary method; returns the answer, or the error's code and message.
    pub(crate) async fn call(&self, method: &str, message: Value) -> Result<Value, (String, String)> {
        let body = serde_json::to_vec(&message).unwrap();
        let headers = [("content-type", "application/json")];
        let response = self.send(&format!("/process.Process/{method}"), &headers, body).await;
        let status = response.status();
        assert_eq!(response.headers()["content-type"], "application/json");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        if status == StatusCode::OK { Ok(answer) } else { Err(code_and_message(&answer)) }
    }

    /// Calls a client-streaming method with all its messages.
    pub(crate) async fn call_with_stream(
        &self,
        method: &str,
        messages: &[Value],
    ) -> Result<Value, (String, String)> {
        let body =
            messages.iter().flat_map(|message| envelope(&serde_json::to_vec(message).unwrap())).collect();
        let headers = [("content-type", "application/connect+json")];
        let response = self.send(&format!("/process.Process/{method}"), &headers, body).await;
        let mut events = Events { body: response.into_body(), buffer: BytesMut::new() };
        let mut answer = None;
        while let Some((flags, payload)) = events.envelope().await {
            let payload: Value = serde_json::from_slice(&payload).unwrap();
            match (flags, payload.get("error")) {
                (2, Some(error)) => return Err(code_and_message(error)),
                (2, None) => return Ok(answer.unwrap()),
                _ => answer = Some(payload),
            }
        }
        panic!("the stream ended without its last envelope")
    }

    pub(crate) async fn stream_with(&self, method: &str, headers: &[(&str, &str)], message: Value) -> Events {
        let mut all = vec![("content-type", "application/connect+json")];
        all.extend_from_slice(headers);
        let body = envelope(&serde_json::to_vec(&message).unwrap());
        let response = self.send(&format!("/process.Process/{method}"), &all, body).await;
        assert_eq!(response.status(), StatusCode::OK, "a stream always answers 200");
        assert_eq!(response.headers()["content-type"], "application/connect+json");
        Events { body: response.into_body(), buffer: BytesMut::new() }
    }

    /// Starts a stream in the binary codec.
    pub(crate) async fn binary_stream(&self, method: &str, message: &[u8]) -> Events {
        let headers = [("content-type", "application/connect+proto")];
        let response = self.send(&format!("/process.Process/{method}"), &headers, envelope(message)).await;
        Events { body: response.into_body(), buffer: BytesMut::new() }
    }

    pub(crate) async fn connect(&self, message: Value) -> Events {
        self.stream_with("Connect", &[], message).await
    }

    pub(crate) async fn start(&self, message: Value) -> Events {
        self.stream_with("Start", &[], message).await
    }

    /// Starts a program and returns its number and the rest of its events.
    pub(crate) async fn started(&self, message: Value) -> (u64, Events) {
        let mut events = self.start(message).await;
        let first = events.next().await.expect("start comes first");
        (first["event"]["start"]["pid"].as_u64().expect("start has the pid"), events)
    }

    pub(crate) async fn run(&self, cmd: &str, args: &[&str]) -> Output {
        self.run_with(program(cmd, args)).await
    }

    pub(crate) async fn run_with(&self, message: Value) -> Output {
        let (_, events) = self.started(message).await;
        events.output().await
    }

    /// Starts something and returns why that failed.
    pub(crate) async fn refused(&self, headers: &[(&str, &str)], message: Value) -> (String, String) {
        let mut events = self.stream_with("Start", headers, message).await;
        match events.next().await {
            Err(Some(error)) => error,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> StatusCode {
        self.send(path, &[("content-type", "application/json")], serde_json::to_vec(&body).unwrap())
            .await
            .status()
    }
}

/// One field of a binary message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Varint(u64),
    Bytes(Bytes),
}

impl Field {
    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Varint(_) => panic!("{self:?} is not bytes"),
        }
    }
}

/// Takes a protobuf message apart; a repeated field keeps its last value.
fn fields(mut message: Bytes) -> BTreeMap<u64, Field> {
    fn varint(message: &mut Bytes) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = message.split_to(1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut fields = BTreeMap::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let value = varint(&mut message);
        let field = match key & 7 {
            0 => Field::Varint(value),
            2 => Field::Bytes(message.split_to(usize::try_from(value).unwrap())),
            other => panic!("wire type {other}"),
        };
        fields.insert(key >> 3, field);
    }
    fields
}

/// A start request without stdin in the binary codec; all parts are shorter than 128 bytes.
pub(crate) fn binary_program(cmd: &str, args: &[&str]) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).unwrap();
        assert!(length < 128);
        [&[number << 3 | 2, length], bytes].concat()
    };
    let args = args.iter().flat_map(|arg| field(2, arg.as_bytes()));
    let config: Vec<u8> = field(1, cmd.as_bytes()).into_iter().chain(args).collect();
    [field(1, &config), vec![4 << 3, 0]].concat()
}

/// A start request without stdin.
pub(crate) fn program(cmd: &str, args: &[&str]) -> Value {
    json!({ "process": { "cmd": cmd, "args": args }, "stdin": false })
}

pub(crate) fn sh(script: &str) -> Value {
    program("/bin/sh", &["-c", script])
}

pub(crate) fn by_pid(pid: u64) -> Value {
    json!({ "process": { "pid": pid } })
}

fn envelope(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

fn code_and_message(error: &Value) -> (String, String) {
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (text("code"), text("message"))
}

#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    pub(crate) largest: usize,
    pub(crate) end: Value,
    /// The error that ended the stream, if one did.
    pub(crate) error: Option<(String, String)>,
}

pub(crate) struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// Returns the next message; `Err(None)` is the proper end of the stream, `Err(Some)` its error.
    pub(crate) async fn next(&mut self) -> Result<Value, Option<(String, String)>> {
        let (flags, payload) = self.envelope().await.expect("the stream ended without its last envelope");
        let payload: Value = serde_json::from_slice(&payload).unwrap();
        match (flags, payload.get("error")) {
            (0, _) => Ok(payload),
            (2, error) => {
                assert!(self.envelope().await.is_none(), "something follows the last envelope");
                Err(error.map(code_and_message))
            }
            _ => panic!("flags {flags}"),
        }
    }

    pub(crate) async fn envelope(&mut self) -> Option<(u8, Bytes)> {
        loop {
            if self.buffer.len() >= 5 {
                let length = u32::from_be_bytes(self.buffer[1..5].try_into().unwrap()) as usize;
                if self.buffer.len() >= 5 + length {
                    let mut envelope = self.buffer.split_to(5 + length).freeze();
                    let flags = envelope[0];
                    return Some((flags, envelope.split_off(5)));
                }
            }
            let frame = self.body.frame().await?.ok()?;
            self.buffer.extend_from_slice(&frame.into_data().ok()?);
        }
    }

    /// Reads a binary stream to its end: how many bytes of output it carried, and the end event's fields.
    pub(crate) async fn binary_output(mut self) -> (usize, BTreeMap<u64, Field>) {
        let (mut count, mut end) = (0, BTreeMap::new());
        while let Some((flags, payload)) = self.envelope().await {
            if flags != 0 {
                assert_eq!(&payload[..], b"{}", "the stream ended with an error");
                return (count, end);
            }
            let event = fields(fields(payload)[&1].bytes());
            if let Some(data) = event.get(&2) {
                count += fields(data.bytes())[&1].bytes().len();
            }
            if let Some(ended) = event.get(&3) {
                end = fields(ended.bytes());
            }
        }
        panic!("the stream ended without its last envelope")
    }

    /// Reads to the end of the stream.
    pub(crate) async fn output(mut self) -> Output {
        let mut output = Output::default();
        loop {
            match self.next().await {
                Ok(message) => output.take(&message),
                Err(error) => {
                    output.error = error;
                    return output;
                }
            }
        }
    }

    /// Reads until `wanted` is somewhere in the output.
    pub(crate) async fn until(&mut self, wanted: &str) -> Output {
        let mut output = Output::default();
        loop {
            let all = [&output.stdout[..], &output.stderr, &output.pty].concat();
            if String::from_utf8_lossy(&all).contains(wanted) {
                return output;
            }
            // A net for what never comes; what comes late is no fault.
            let next = tokio::time::timeout(Duration::from_secs(60), self.next()).await;
            let next = next.unwrap_or_else(|_| panic!("no {wanted:?} came: {output:?}"));
            let message = next.unwrap_or_else(|error| panic!("no {wanted:?}: {error:?} {output:?}"));
            output.take(&message);
        }
    }
}

impl Output {
    fn take(&mut self, message: &Value) {
        let event = &message["event"];
        for (name, into) in
            [("stdout", &mut self.stdout), ("stderr", &mut self.stderr), ("pty", &mut self.pty)]
        {
            if let Some(text) = event["data"][name].as_str() {
                let bytes = STANDARD.decode(text).unwrap();
                self.largest = self.largest.max(bytes.len());
                into.extend_from_slice(&bytes);
            }
        }
        if let Some(end) = event.get("end") {
            self.end = end.clone();
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Returns the processes whose environment holds `marker`, zombies left out.
pub(crate) fn survivors(marker: &str) -> BTreeMap<i32, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let stat = String::from_utf8_lossy(&read("stat")).into_owned();
        let environ = String::from_utf8_lossy(&read("environ")).into_owned();
        if environ.contains(marker) && !stat.contains(") Z ") {
            found.insert(pid, stat);
        }
    }
    found
}

/// Fails instead of hanging for ever.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(Duration::from_secs(60), future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} takes for ever"),
    }
}
