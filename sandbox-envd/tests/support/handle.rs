//! Handles over daemons and over answers written out by hand.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![allow(dead_code, reason = "each test program uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use sandhold_core::{Error, ErrorKind, Result, SandboxId, SandboxInfo, SandboxState};
use sandhold_envd::{ControlPlane, EnvdClient, EnvdConfig, EnvdHandle, TcpTransport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A provider that says one thing about every sandbox.
#[derive(Debug)]
pub(crate) enum Plane {
    Running,
    Gone,
    Broken,
}

#[async_trait]
impl ControlPlane for Plane {
    async fn info(&self, id: &SandboxId) -> Result<SandboxInfo> {
        match self {
            Self::Running => {
                Ok(SandboxInfo::new(id.clone(), SandboxState::Running, "base", SystemTime::UNIX_EPOCH))
            }
            Self::Gone => Err(Error::new(ErrorKind::Gone, "no such sandbox")),
            Self::Broken => Err(Error::new(ErrorKind::NotFound, "a page that says not found")),
        }
    }
}

pub(crate) fn handle(address: SocketAddr, config: EnvdConfig, plane: Plane) -> EnvdHandle {
    let transport = TcpTransport::new(address.ip().to_string(), address.port());
    let client = EnvdClient::new(Arc::new(transport), config).unwrap();
    EnvdHandle::new(client, "test", SandboxId::new("box"), None, Arc::new(plane))
}

/// What a scripted server does with a connection, after it has read the request head and what came with it.
pub(crate) enum Reply {
    /// Sends these bytes and keeps the connection open.
    Bytes(Vec<u8>),
    /// Sends these bytes and closes.
    ThenClose(Vec<u8>),
}

/// Starts a server that answers each request by its first line and the number of its connection.
pub(crate) async fn scripted(reply: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let reply = Arc::new(reply);
    tokio::spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let reply = Arc::clone(&reply);
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 16];
                loop {
                    let read = stream.read(&mut buffer).await.unwrap_or(0);
                    if read == 0 {
                        return;
                    }
                    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    // A body that came on its own belongs to the request before.
                    let Some((line, _)) = text.split_once(" HTTP/1.1\r\n") else { continue };
                    match reply(line, number) {
                        Reply::Bytes(bytes) => stream.write_all(&bytes).await.unwrap(),
                        Reply::ThenClose(bytes) => {
                            let _ = stream.write_all(&bytes).await;
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}

/// Writes an answer with a length.
pub(crate) fn answer(status: &str, content_type: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Writes the head of an answer in chunks, and these chunks, without the last one.
pub(crate) fn chunks(content_type: &str, chunks: &[Vec<u8>]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut bytes = head.into_bytes();
    for chunk in chunks {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
