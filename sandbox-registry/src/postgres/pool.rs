//! A few connections, and the one loop that settles what a lost connection leaves open.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandhold_core::{Error, ErrorKind, Outcome, Result};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::config::PostgresConfig;
use super::error::{Broken, lift};

/// Pauses between two such looks: the first, and the longest.
const SETTLE_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What each session is told. A client that vanished in the middle must not hold a row for long, and a commit is
/// acknowledged when it is on disk, whatever the server's default is.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '10s'; SET lock_timeout = '10s'; \
    SET statement_timeout = '30s'; SET default_transaction_isolation = 'read committed'; \
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

#[derive(Debug)]
pub(super) struct Pool {
    config: PostgresConfig,
    tls: TlsConnect,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Client>>,
    pub(super) runtime: Handle,
}

struct TlsConnect(MakeRustlsConnect);

impl std::fmt::Debug for TlsConnect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConnect")
    }
}

/// A connection in use. It goes back when it is dropped, unless it is broken.
pub(super) struct Connection {
    client: Option<Client>,
    pool: Arc<Pool>,
    /// It was open before: it may have been lost since without anybody noticing.
    used_before: bool,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(super) fn client(&mut self) -> Result<&mut Client> {
        self.client.as_mut().ok_or_else(|| Error::new(ErrorKind::Unexpected, "the connection was given back"))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(client) = self.client.take().filter(|client| !client.is_closed()) {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        }
    }
}

impl Pool {
    pub(super) fn new(config: PostgresConfig) -> Result<Arc<Self>> {
        let runtime = Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::InvalidState, "a Postgres registry is opened inside a tokio runtime")
                .with_source(error)
        })?;
        let (tls, permits) = (TlsConnect(config.tls()?), Arc::new(Semaphore::new(config.connections)));
        Ok(Arc::new(Self { config, tls, permits, idle: Mutex::default(), runtime }))
    }

    async fn get(self: &Arc<Self>) -> Result<Connection> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the registry's connections are closed").with_source(error)
        })?;
        let mut used_before = true;
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let client = loop {
            match idle() {
                Some(client) if client.is_closed() => {}
                Some(client) => break client,
                None => {
                    used_before = false;
                    break self.connect().await?;
                }
            }
        };
        Ok(Connection { client: Some(client), pool: Arc::clone(self), used_before, _permit: permit })
    }

    async fn connect(&self) -> Result<Client> {
        let (client, connection) = self.config.database.connect(self.tls.0.clone()).await.map_err(lift)?;
        self.runtime.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of the registry ended");
            }
        });
        client.batch_execute(SESSION).await.map_err(lift)?;
        Ok(client)
    }

    /// Does something on a connection, and again on another one when that was lost.
    ///
    /// `work` must see what an earlier run of itself did: its second argument says that there may have been one. So a
    /// commit whose answer was lost is settled by doing it again.
    ///
    /// # Errors
    /// [`ErrorKind::OutcomeUnknown`] when a commit's answer was lost and the database could not be asked in time.
    ///
    /// # Cancellation
    /// The work goes on, in a task of its own, and its answer is dropped.
    pub(super) async fn run<T, F>(
        self: &Arc<Self>,
        work: impl FnMut(Connection, bool) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, Broken>> + Send + 'static,
    {
        let task = self.runtime.spawn(settled(Arc::clone(self), work));
        task.await.map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the registry's task was ended")
                .with_outcome(Outcome::Unknown)
                .with_source(error)
        })?
    }
}

async fn settled<T, F>(pool: Arc<Pool>, mut work: impl FnMut(Connection, bool) -> F) -> Result<T>
where
    F: Future<Output = std::result::Result<T, Broken>>,
{
    let (mut unknown, mut since, mut pause) = (false, Instant::now(), SETTLE_PAUSE.0);
    loop {
        let (broken, stale) = match pool.get().await {
            Ok(connection) => {
                let stale = connection.used_before;
                match work(connection, unknown).await {
                    Ok(done) => return Ok(done),
                    Err(broken) => (broken, stale),
                }
            }
            Err(error) => (Broken { error, unknown: false, disconnected: true }, false),
        };
        if broken.unknown && !unknown {
            tracing::warn!(error = %broken.error, "the answer of a commit was lost; looking for what it did");
            (unknown, since) = (true, Instant::now());
        }
        if !unknown {
            // Nothing has happened. A connection that was lost while it was idle says nothing about the database.
            if stale && broken.disconnected {
                continue;
            }
            return Err(broken.error);
        }
        let asks_again = broken.error.kind() == ErrorKind::Unavailable;
        if !asks_again {
            return Err(broken.error.with_outcome(Outcome::Unknown).not_retryable());
        }
        if since.elapsed() > pool.config.settle_limit {
            return Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "the answer of a change was lost, and the registry's database could not be asked for it in time",
            )
            .with_source(broken.error));
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(SETTLE_PAUSE.1);
    }
}
