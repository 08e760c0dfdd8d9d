//! Listening, connections, and how both end.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use crate::daemon::http::Service;
use crate::daemon::linger::Lingering;
use crate::daemon::process::{Guest, GuestCommand};
use crate::daemon::state::{DaemonConfig, State};

/// How long requests in flight may go on after [`Daemon::stop`]; then their connections are dropped.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Bytes on their way to a client on this machine.
const SEND_BUFFER: usize = 1 << 20;

/// How long to wait before accepting again when accepting failed, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a daemon listens.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// What connections are told; each holds a receiver, so that their number is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Orders {
    stopping: bool,
    /// Rises whenever all connections of the moment are to be dropped.
    aborts: u64,
}

/// An envd that serves any number of listeners.
///
/// Clones are handles to the same daemon.
#[derive(Clone)]
pub struct Daemon {
    service: Arc<Service>,
    orders: Arc<watch::Sender<Orders>>,
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Daemon")
            .field("connections", &self.orders.receiver_count())
            .field("orders", &*self.orders.borrow())
            .finish_non_exhaustive()
    }
}

impl Daemon {
    /// Makes a daemon that serves nothing yet.
    ///
    /// # Errors
    ///
    /// Fails when what earlier daemons retained under `retain_dir` cannot be read.
    pub fn new(config: DaemonConfig) -> io::Result<Self> {
        let state = State::new(config)?;
        let orders = Arc::new(watch::Sender::new(Orders::default()));
        Ok(Self { service: Arc::new(Service::new(state, Arc::clone(&orders))), orders })
    }

    /// Serves HTTP/1.1 on `listener` until [`stop`](Self::stop); must run in a Tokio runtime of any flavor.
    ///
    /// It returns when the connections have ended, at the latest five seconds after the stop.
    ///
    /// # Cancellation
    ///
    /// Dropping the future closes the listener; connections go on until they end by themselves or are aborted.
    pub async fn serve(&self, listener: impl Into<Listener>) {
        let listener = listener.into();
        if let Err(error) = self.service.start() {
            tracing::error!(%error, "orphans are not collected");
        }
        let mut orders = self.orders.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&listener) => accepted,
                _ = orders.wait_for(|orders| orders.stopping) => break,
            };
            if let Err(error) = accepted {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        drop((listener, orders));
        if tokio::time::timeout(STOP_GRACE, self.orders.closed()).await.is_err() {
            self.abort_connections();
        }
    }

    /// Starts a process that is not a client's, for the embedding program; blocks until it runs.
    ///
    /// # Errors
    /// Those of the start, which name what was wrong.
    pub fn start_guest(&self, command: GuestCommand) -> io::Result<Guest> {
        Guest::start(self.service.state(), command)
    }

    /// Ends all `serve` calls: nothing new is accepted, requests in flight may finish within the grace.
    pub fn stop(&self) {
        self.orders.send_modify(|orders| orders.stopping = true);
    }

    /// Drops all connections at once, without the chunk that would make a stream look complete.
    pub fn abort_connections(&self) {
        self.orders.send_modify(|orders| orders.aborts += 1);
    }

    async fn accept(&self, listener: &Listener) -> io::Result<()> {
        match listener {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are small and awaited: they must not wait for acknowledgements.
                stream.set_nodelay(true)?;
                self.spawn(stream);
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                // The other side is woken once a quarter of this is free: with the default of 208 KiB both sides
                // take turns for each chunk. The kernel cuts it down to its limit.
                rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER)?;
                self.spawn(stream);
            }
        }
        Ok(())
    }

    fn spawn<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S) {
        let service = Arc::clone(&self.service);
        let mut orders = self.orders.subscribe();
        tokio::spawn(async move {
            let upgraded = Arc::new(AtomicBool::new(false));
            let stream = Lingering::new(stream, Arc::clone(&upgraded));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(
                    TokioIo::new(stream),
                    service_fn(move |request| {
                        let (service, upgraded) = (Arc::clone(&service), Arc::clone(&upgraded));
                        async move {
                            let response = service.answer(request).await;
                            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                                upgraded.store(true, Ordering::Relaxed);
                            }
                            Ok::<_, std::convert::Infallible>(response)
                        }
                    }),
                )
                .with_upgrades();
            let mut connection = std::pin::pin!(connection);
            let seen = orders.borrow_and_update().aborts;
            let ended = loop {
                tokio::select! {
                    ended = connection.as_mut() => break ended,
                    Ok(()) = orders.changed() => {
                        let now = *orders.borrow_and_update();
                        if now.aborts != seen {
                            return;
                        }
                        if now.stopping {
                            connection.as_mut().graceful_shutdown();
                        }
                    }
                    else => return,
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
}

/// Waits until connections are dropped or the daemon stops.
pub(crate) async fn ended(mut orders: watch::Receiver<Orders>) {
    let seen = orders.borrow_and_update().aborts;
    // An error means that the daemon itself is gone.
    let _ = orders.wait_for(|now| now.stopping || now.aborts != seen).await;
}
