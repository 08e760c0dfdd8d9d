//! A daemon on a Unix socket, and a client that writes Connect RPC by hand, so that the tests judge the bytes on
//! the wire and not one half of this crate by the other.
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

pub struct Rig {
    pub dir: tempfile::TempDir,
    pub daemon: Daemon,
    pub socket: PathBuf,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(DaemonConfig::new())
    }

    pub fn with(config: DaemonConfig) -> Self {
        Self::at(tempfile::tempdir().unwrap(), config)
    }

    /// Serves on a folder that may hold what an earlier daemon left.
    pub fn at(dir: tempfile::TempDir, config: DaemonConfig) -> Self {
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
    pub async fn call(&self, method: &str, message: Value) -> Result<Value, (String, String)> {
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
    pub async fn call_with_stream(
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

    pub async fn stream_with(&self, method: &str, headers: &[(&str, &str)], message: Value) -> Events {
        let mut all = vec![("content-type", "application/connect+json")];
        all.extend_from_slice(headers);
        let body = envelope(&serde_json::to_vec(&message).unwrap());
        let response = self.send(&format!("/process.Process/{method}"), &all, body).await;
        assert_eq!(response.status(), StatusCode::OK, "a stream always answers 200");
        assert_eq!(response.headers()["content-type"], "application/connect+json");
        Events { body: response.into_body(), buffer: BytesMut::new() }
    }

    /// Starts a stream in the binary codec.
    pub async fn binary_stream(&self, method: &str, message: &[u8]) -> Events {
        let headers = [("content-type", "application/connect+proto")];
        let response = self.send(&format!("/process.Process/{method}"), &headers, envelope(message)).await;
        Events { body: response.into_body(), buffer: BytesMut::new() }
    }

    pub async fn connect(&self, message: Value) -> Events {
        self.stream_with("Connect", &[], message).await
    }

    pub async fn start(&self, message: Value) -> Events {
        self.stream_with("Start", &[], message).await
    }

    /// Starts a program and returns its number and the rest of its events.
    pub async fn started(&self, message: Value) -> (u64, Events) {
        let mut events = self.start(message).await;
        let first = events.next().await.expect("start comes first");
        (first["event"]["start"]["pid"].as_u64().expect("start has the pid"), events)
    }

    pub async fn run(&self, cmd: &str, args: &[&str]) -> Output {
        self.run_with(program(cmd, args)).await
    }

    pub async fn run_with(&self, message: Value) -> Output {
        let (_, events) = self.started(message).await;
        events.output().await
    }

    /// Starts something and returns why that failed.
    pub async fn refused(&self, headers: &[(&str, &str)], message: Value) -> (String, String) {
        let mut events = self.stream_with("Start", headers, message).await;
        match events.next().await {
            Err(Some(error)) => error,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    pub async fn post(&self, path: &str, body: Value) -> StatusCode {
        self.send(path, &[("content-type", "application/json")], serde_json::to_vec(&body).unwrap())
            .await
            .status()
    }
}

/// A start request without stdin.
pub fn program(cmd: &str, args: &[&str]) -> Value {
    json!({ "process": { "cmd": cmd, "args": args }, "stdin": false })
}

pub fn sh(script: &str) -> Value {
    program("/bin/sh", &["-c", script])
}

pub fn by_pid(pid: u64) -> Value {
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
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub pty: Vec<u8>,
    pub largest: usize,
    pub end: Value,
    /// The error that ended the stream, if one did.
    pub error: Option<(String, String)>,
}

pub struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// Returns the next message; `Err(None)` is the proper end of the stream, `Err(Some)` its error.
    pub async fn next(&mut self) -> Result<Value, Option<(String, String)>> {
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

    pub async fn envelope(&mut self) -> Option<(u8, Bytes)> {
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

    /// Counts the bytes that come and returns once there are none.
    pub async fn count(mut self) -> usize {
        let mut count = self.buffer.len();
        while let Some(Ok(frame)) = self.body.frame().await {
            count += frame.data_ref().map_or(0, Bytes::len);
        }
        count
    }

    /// Reads to the end of the stream.
    pub async fn output(mut self) -> Output {
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
    pub async fn until(&mut self, wanted: &str) -> Output {
        let mut output = Output::default();
        loop {
            let all = [&output.stdout[..], &output.stderr, &output.pty].concat();
            if String::from_utf8_lossy(&all).contains(wanted) {
                return output;
            }
            let message =
                self.next().await.unwrap_or_else(|error| panic!("no {wanted:?}: {error:?} {output:?}"));
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

    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Returns the processes whose environment holds `marker`, zombies left out.
pub fn survivors(marker: &str) -> BTreeMap<i32, String> {
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
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(Duration::from_secs(60), future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} takes for ever"),
    }
}
