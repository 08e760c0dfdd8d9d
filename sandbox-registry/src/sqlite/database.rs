//! The open file: one thread that writes, and connections that read.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use sandhold_core::{Error, ErrorKind, Outcome, Result};
use tokio::sync::oneshot;

use super::clock::BootClock;
use super::error::lift;
use super::holder::{Holder, Holders};
use super::schema;

/// Connections that are kept for the next reads.
const IDLE_READERS: usize = 4;

/// How often a locked file is tried again, with pauses of 1 to 15 ms: half a minute in all.
const BUSY_TRIES: i32 = 3_750;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// An open registry file.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    identity: (u64, u64),
    readers: Mutex<Vec<Connection>>,
    jobs: mpsc::Sender<Job>,
    pub(super) clock: BootClock,
    pub(super) holders: Holders,
    pub(super) me: Arc<Holder>,
}

impl Database {
    /// Opens or makes the file; blocks.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).map_err(|error| {
            Error::invalid_argument("the registry's path is no path of a file").with_source(error)
        })?;
        let clock = BootClock::new()?;
        make_private(&path)?;
        let holders = Holders::beside(&path)?;
        let alone = holders.open_alone()?;
        let mut writer = connect(&path)?;
        schema::migrate(&mut writer, schema::MIGRATIONS)?;
        sweep(&mut writer, &holders, &clock)?;
        let me = Arc::new(holders.enter()?);
        drop(alone);
        let identity = identity(&path)?;
        let (jobs, inbox) = mpsc::channel::<Job>();
        let thread_holder = Arc::clone(&me);
        let run = move || {
            for job in inbox {
                job(&mut writer);
            }
            // The last lease was given back before the holder is said to be gone.
            drop(thread_holder);
        };
        thread::Builder::new().name("sandhold-registry".to_owned()).spawn(run).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the registry's thread cannot be started").with_source(error)
        })?;
        Ok(Self { path, identity, readers: Mutex::default(), jobs, clock, holders, me })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads off the async threads.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection, &Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let this = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            this.check_identity()?;
            let idle = this.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match idle {
                Some(connection) => connection,
                None => connect(&this.path)?,
            };
            let done = work(&connection, &this);
            let mut readers = this.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < IDLE_READERS {
                readers.push(connection);
            }
            done
        });
        read.await.map_err(|error| ended().with_source(error))?
    }

    /// Writes in the order of the calls, durable when it returns. `work` decides by its answer: what is an error is
    /// rolled back.
    ///
    /// # Cancellation
    /// The write is done all the same, and its answer dropped.
    pub(super) async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Transaction<'_>, &Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.in_order(|connection, this| this.transact(connection, work)).await
    }

    /// Does something on the writing thread, after what was asked for before.
    ///
    /// # Cancellation
    /// As [`Database::write`].
    pub(super) async fn in_order<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Connection, &Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let this = Arc::clone(self);
        self.send(Box::new(move |connection| {
            let done = this.check_identity().and_then(|()| work(connection, &this));
            // Nobody may be waiting any more: what the answer holds is dropped then.
            drop(answer.send(done));
        }))?;
        answered.await.map_err(|error| ended().with_source(error))?
    }

    /// Writes without waiting for it; a failure is traced.
    pub(super) fn write_later(
        self: &Arc<Self>,
        what: &'static str,
        work: impl FnOnce(&Transaction<'_>, &Self) -> Result<()> + Send + 'static,
    ) {
        let this = Arc::clone(self);
        let sent = self.send(Box::new(move |connection| {
            if let Err(error) = this.check_identity().and_then(|()| this.transact(connection, work)) {
                tracing::warn!(%error, what, "a write of the registry failed in the background");
            }
        }));
        if let Err(error) = sent {
            tracing::warn!(%error, what, "a write of the registry could not begin");
        }
    }

    fn send(&self, job: Job) -> Result<()> {
        self.jobs.send(job).map_err(|_| ended())
    }

    /// Runs one transaction, on the writing thread.
    pub(super) fn transact<T>(
        &self,
        connection: &mut Connection,
        work: impl FnOnce(&Transaction<'_>, &Self) -> Result<T>,
    ) -> Result<T> {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| lift(&error))?;
        let done = work(&transaction, self)?;
        transaction.commit().map_err(|error| {
            let lifted = lift(&error);
            // Nothing was written where there was no room for it. After another failure the disk knows.
            match lifted.kind() {
                ErrorKind::StorageFull => lifted,
                _ => lifted.with_outcome(Outcome::Unknown).not_retryable(),
            }
        })?;
        Ok(done)
    }

    /// A file that was removed or replaced while it is open would split the hosts into two worlds.
    fn check_identity(&self) -> Result<()> {
        match identity(&self.path) {
            Ok(found) if found == self.identity => Ok(()),
            Ok(_) => Err("another file has its name"),
            Err(_) => Err("it is not there any more"),
        }
        .map_err(|what| {
            Error::new(
                ErrorKind::Unavailable,
                "the registry's file was removed or replaced while it was open; open the registry again",
            )
            .with_reason("replaced")
            .with_context("found", what)
        })
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Unexpected, "the registry's thread has ended; open the registry again")
        .with_outcome(Outcome::Unknown)
}

fn identity(path: &Path) -> Result<(u64, u64)> {
    let found = fs::metadata(path).map_err(|error| unusable(path, error))?;
    Ok((found.dev(), found.ino()))
}

fn unusable(path: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        IoErrorKind::PermissionDenied | IoErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "the registry's file cannot be made or opened")
        .with_context("path", path.display())
        .with_source(error)
}

/// Makes the file and its directory, readable by this user only.
fn make_private(path: &Path) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| unusable(directory, error))?;
    }
    let made = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(path);
    made.map(drop).map_err(|error| unusable(path, error))
}

fn connect(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.busy_handler(Some(|tries| {
            thread::sleep(Duration::from_micros(fastrand::u64(1_000..15_000)));
            tries < BUSY_TRIES
        }))?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;",
        )?;
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| lift(&error))
}

/// Forgets the leases of holders that are dead, and of those of earlier boots.
fn sweep(writer: &mut Connection, holders: &Holders, clock: &BootClock) -> Result<()> {
    let dead = holders.all_dead()?;
    let transaction =
        writer.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|error| lift(&error))?;
    for (name, _) in &dead {
        transaction.execute("DELETE FROM leases WHERE holder = ?1", [name]).map_err(|error| lift(&error))?;
    }
    transaction
        .execute("DELETE FROM leases WHERE boot_id != ?1", [clock.boot_id()])
        .map_err(|error| lift(&error))?;
    transaction.commit().map_err(|error| lift(&error))?;
    dead.into_iter().for_each(|(_, dead)| dead.bury());
    Ok(())
}
