//! A daemon in the test's own process, and HTTP by hand.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![allow(dead_code, reason = "each test program uses its own part")]

use std::net::SocketAddr;

use sandhold_envd::{Daemon, DaemonConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Running {
    pub(crate) daemon: Daemon,
    pub(crate) address: SocketAddr,
    pub(crate) task: tokio::task::JoinHandle<()>,
    _retained: tempfile::TempDir,
}

/// Starts a daemon on a free port.
pub(crate) async fn start(configure: impl FnOnce(DaemonConfig) -> DaemonConfig) -> Running {
    let retained = tempfile::tempdir().unwrap();
    let config = configure(DaemonConfig::new().with_retain_dir(retained.path()));
    let daemon = Daemon::new(config).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = daemon.clone();
    let task = tokio::spawn(async move { serving.serve(listener).await });
    Running { daemon, address, task, _retained: retained }
}

/// An answer as it came over the wire, chunks joined.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The body came whole: all of its length, or the last chunk.
    pub(crate) complete: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Splits a stream's body into its envelopes: flags and message.
    pub(crate) fn envelopes(&self) -> Vec<(u8, serde_json::Value)> {
        let mut rest = &self.body[..];
        let mut envelopes = Vec::new();
        while !rest.is_empty() {
            let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
            envelopes.push((rest[0], serde_json::from_slice(&rest[5..5 + length]).unwrap()));
            rest = &rest[5 + length..];
        }
        envelopes
    }
}

/// One connection that sends and reads bytes as they are.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    async fn more(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(read) if read > 0)
    }

    /// Reads the head of an answer.
    pub(crate) async fn head(&mut self) -> Answer {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            assert!(self.more().await, "the connection ended before an answer: {:?}", self.buffer);
        };
        let head = String::from_utf8(self.buffer[..end].to_vec()).unwrap();
        self.buffer.drain(..end + 4);
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: Vec::new(), complete: false }
    }

    /// Reads exactly this many bytes as they come.
    pub(crate) async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert!(self.more().await, "the connection ended early");
        }
        self.buffer.drain(..length).collect()
    }

    /// Reads a chunk of a chunked body; none after the last one, an error when the connection ended before it.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, ()> {
        let end = loop {
            if let Some(end) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                break end;
            }
            if !self.more().await {
                return Err(());
            }
        };
        let size = usize::from_str_radix(std::str::from_utf8(&self.buffer[..end]).unwrap(), 16).unwrap();
        self.buffer.drain(..end + 2);
        while self.buffer.len() < size + 2 {
            if !self.more().await {
                return Err(());
            }
        }
        let chunk: Vec<u8> = self.buffer.drain(..size + 2).take(size).collect();
        Ok((size > 0).then_some(chunk))
    }

    /// Reads a whole answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        if let Some(length) = answer.header("content-length") {
            let length = length.parse().unwrap();
            answer.body = self.take(length).await;
            answer.complete = true;
        } else if answer.header("transfer-encoding").is_some() {
            answer.complete = loop {
                match self.chunk().await {
                    Ok(Some(chunk)) => answer.body.extend(chunk),
                    Ok(None) => break true,
                    Err(()) => break false,
                }
            };
        } else {
            answer.complete = true;
        }
        answer
    }
}

/// Sends one request on a connection of its own and reads the answer.
pub(crate) async fn ask(address: SocketAddr, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut wire = Wire::open(address).await;
    wire.send(request(line, headers, body)).await;
    wire.answer().await
}

/// Writes a request with a length.
pub(crate) fn request(line: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{line} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text.push_str("Host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Puts a message into an envelope.
pub(crate) fn envelope(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}
