//! What the provider asks of a sandbox's daemon, over its socket.

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use sandhold_core::{Error, ErrorKind, PortStream, Result};
use sandhold_envd::{EnvdClient, EnvdConfig, Transport};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::control::{Changed, Info, LeaseRequest};
use crate::monitor::SOCKET;
use crate::provider::NAME;
use crate::usage::Usage;

/// Bytes on their way to a daemon. The kernel cuts it down to its limit.
const SEND_BUFFER: usize = 1 << 20;

/// Reaches the daemon of the sandbox in a directory, however long its path is.
#[derive(Debug)]
struct DirectoryTransport(PathBuf);

#[async_trait]
impl Transport for DirectoryTransport {
    async fn open(&self) -> std::io::Result<Box<dyn PortStream>> {
        // The address of a socket holds 107 bytes, and a path may be longer: it is named through its open directory.
        let directory = std::fs::File::open(&self.0)?;
        let address = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        let stream = UnixStream::connect(address).await?;
        // As the daemon does: with the default both sides take turns for each chunk.
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER)?;
        Ok(Box::new(stream))
    }

    fn authority(&self) -> &str {
        "localhost"
    }

    fn is_private(&self) -> bool {
        true
    }
}

pub(crate) fn client(directory: &Path, user: &str) -> Result<EnvdClient> {
    let transport = Arc::new(DirectoryTransport(directory.to_owned()));
    EnvdClient::new(transport, EnvdConfig::new().with_user(user).with_connect_timeout(Duration::from_secs(5)))
}

/// Asks a running daemon how its sandbox is.
pub(crate) async fn info(client: &EnvdClient) -> Result<Info> {
    ask(client, "info", Method::GET, "/sandhold/info", None::<&()>).await
}

/// Asks a running daemon what its processes use.
pub(crate) async fn usage(client: &EnvdClient) -> Result<Usage> {
    ask(client, "metrics", Method::GET, "/sandhold/usage", None::<&()>).await
}

/// Freezes all processes; false when they were frozen before.
pub(crate) async fn freeze(client: &EnvdClient) -> Result<bool> {
    let changed: Changed = ask(client, "pause", Method::POST, "/sandhold/freeze", None::<&()>).await?;
    Ok(changed.changed)
}

/// Lets the processes go on; false when they ran.
pub(crate) async fn thaw(client: &EnvdClient, lease: Option<Duration>) -> Result<bool> {
    let lease = LeaseRequest::new(lease.map(milliseconds));
    let changed: Changed = ask(client, "resume", Method::POST, "/sandhold/thaw", Some(&lease)).await?;
    Ok(changed.changed)
}

/// Lets the lease end so long from now; with `extend_only` a later end stays.
pub(crate) async fn lease(client: &EnvdClient, lease: Duration, extend_only: bool) -> Result<()> {
    let request = LeaseRequest::new(Some(milliseconds(lease))).with_extend_only(extend_only);
    ask::<Info>(client, "set_lease", Method::POST, "/sandhold/lease", Some(&request)).await.map(drop)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn ask<A: DeserializeOwned>(
    client: &EnvdClient,
    operation: &'static str,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<A> {
    let unclear = |error: serde_json::Error| {
        Error::new(ErrorKind::Unexpected, "the daemon's answer cannot be understood")
            .at(NAME, operation)
            .with_source(error)
    };
    let body = body.map(serde_json::to_value).transpose().map_err(unclear)?;
    // Each of these can be asked for twice without harm.
    let answer = client.route(operation, method, path, body.as_ref(), true).await?;
    serde_json::from_value(answer).map_err(unclear)
}
