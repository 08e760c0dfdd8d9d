//! Connections to the inside of one sandbox.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use sandhold_core::{ConnectOptions, DAEMON_PORT, Error, ErrorKind, PortStream, SandboxHandle};
use tokio::time::Instant;

use super::forward::cut_off;
use super::reply::Refusal;
use crate::app::App;
use crate::inflow::Inflow;
use crate::sandboxes::{Phase, Sandbox};

/// A connection that was not used for so long may be closed by the other side at any moment.
const IDLE: Duration = Duration::from_secs(15);

/// So many connections wait for the next request.
const MOST_IDLE: usize = 16;

/// So often a port is tried before it counts as closed, with a longer pause each time: a second in all, so that a
/// program that just starts is found.
const TRIES: u32 = 5;
const TRY_PAUSE: Duration = Duration::from_millis(100);

/// Most bytes that one connection keeps of a body on its way through.
const BUFFER: usize = 256 * 1024;

/// The connections of one sandbox to its daemon that wait for a request, and what makes new ones.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    handle: Option<Arc<dyn SandboxHandle>>,
    idle: Vec<(SendRequest<Inflow>, Instant)>,
    /// Rises when the connections of the moment are of no more use.
    cleared: u64,
}

/// A connection, and when it was made.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) request: SendRequest<Inflow>,
    cleared: u64,
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_handle(&self, handle: Arc<dyn SandboxHandle>) {
        self.state().handle = Some(handle);
    }

    /// Drops the connections that wait, and those that come back.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        state.cleared += 1;
        state.idle.clear();
    }

    /// Takes a connection that can be used at once.
    pub(super) fn take(&self) -> Option<Sender> {
        let mut state = self.state();
        let now = Instant::now();
        state.idle.retain(|(request, since)| !request.is_closed() && now - *since < IDLE);
        let ready = state.idle.iter().rposition(|(request, _)| request.is_ready())?;
        let (request, _) = state.idle.swap_remove(ready);
        Some(Sender { request, cleared: state.cleared })
    }

    /// Gives a connection back whose answer was read to its end.
    pub(super) fn put(&self, sender: Sender) {
        let mut state = self.state();
        if !sender.request.is_closed() && sender.cleared == state.cleared && state.idle.len() < MOST_IDLE {
            state.idle.push((sender.request, Instant::now()));
        }
    }

    /// Makes a connection.
    pub(super) async fn connect(
        &self,
        app: &Arc<App>,
        sandbox: &Arc<Sandbox>,
        port: u16,
    ) -> Result<Sender, Refusal> {
        let cleared = self.state().cleared;
        let stream = self.dial(app, sandbox, port).await?;
        let request = if sandbox.made.speaks_tls(port) {
            match app.tls.handshake(stream).await {
                Ok(stream) => converse(stream).await?,
                Err(error) => {
                    tracing::debug!(%error, id = sandbox.id, port, "a port of a sandbox speaks no TLS");
                    return Err(cut_off(app, sandbox).await);
                }
            }
        } else {
            converse(stream).await?
        };
        Ok(Sender { request, cleared })
    }

    async fn dial(
        &self,
        app: &Arc<App>,
        sandbox: &Arc<Sandbox>,
        port: u16,
    ) -> Result<Box<dyn PortStream>, Refusal> {
        let mut tries = 0;
        loop {
            let error = match self.handle(app, sandbox).await {
                Ok(handle) => match handle.dial(port).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            tries += 1;
            let closed = error.kind() == ErrorKind::NotFound && port != DAEMON_PORT;
            if !closed {
                // The daemon itself does not answer: the provider knows why.
                match app.check(sandbox).await {
                    Ok(true) if sandbox.phase() == Phase::Running => {}
                    Ok(_) => return Err(Refusal::NotFound),
                    Err(_) => return Err(Refusal::Unknown),
                }
            }
            if tries == TRIES {
                tracing::debug!(%error, id = sandbox.id, port, "a port of a sandbox cannot be reached");
                return Err(Refusal::PortClosed);
            }
            tokio::time::sleep(TRY_PAUSE * tries).await;
            if sandbox.phase() != Phase::Running {
                return Err(Refusal::NotFound);
            }
        }
    }

    /// Returns what connections are made with. Finding it must not wake a sandbox that was just paused for ever: the
    /// lease that is left goes along.
    pub(crate) async fn handle(&self, app: &App, sandbox: &Sandbox) -> Result<Arc<dyn SandboxHandle>, Error> {
        if let Some(handle) = self.state().handle.clone() {
            return Ok(handle);
        }
        let left = sandbox.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let lease = left.unwrap_or_default().max(Duration::from_secs(1));
        let options = ConnectOptions::default().with_lease(lease);
        let connection = app.provider.connect_opts(&sandbox.provided, options).await?;
        self.set_handle(Arc::clone(&connection.handle));
        Ok(connection.handle)
    }
}

/// Speaks HTTP on a connection, for as long as somebody may send on it.
async fn converse(stream: impl PortStream + 'static) -> Result<SendRequest<Inflow>, Refusal> {
    let (request, connection) = http1::Builder::new()
        .max_buf_size(BUFFER)
        // As E2B's proxy writes them, and programs inside compare.
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| Refusal::PortClosed)?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection into a sandbox ended early");
        }
    });
    Ok(request)
}
