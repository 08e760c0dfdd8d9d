//! A proxy in front of a database that loses commits, or their answers.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// What happens to the next commit, and then to whoever connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is lost.
    None,
    /// The commit is done, its answer is lost with the connection.
    LoseAnswer,
    /// The commit is lost with the connection.
    LoseCommit,
    /// The commit is done, its answer is lost, and nobody gets through any more.
    LoseAnswerAndDoor,
    /// Nobody gets through.
    Shut,
}

pub(crate) struct Proxy {
    directory: TempDir,
    fault: Arc<Mutex<Fault>>,
}

const SOCKET: &str = ".s.PGSQL.5432";

impl Proxy {
    pub(crate) fn before(database: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(SOCKET)).unwrap();
        let fault = Arc::new(Mutex::new(Fault::None));
        let (database, faults) = (database.join(SOCKET), Arc::clone(&fault));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *faults.lock().unwrap() != Fault::Shut {
                    tokio::spawn(carry(client, database.clone(), Arc::clone(&faults)));
                }
            }
        });
        Self { directory, fault }
    }

    pub(crate) fn url(&self) -> String {
        super::url(self.directory.path())
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Tells whether the fault has happened.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.fault.lock().unwrap(), Fault::None | Fault::Shut)
    }
}

async fn carry(mut client: UnixStream, database: PathBuf, fault: Arc<Mutex<Fault>>) {
    let Ok(mut server) = UnixStream::connect(database).await else { return };
    let (mut asked, mut answered) = (vec![0; 65536], vec![0; 65536]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(count @ 1..) = read else { return };
                let commits = asked[..count].windows(7).any(|window| window == b"COMMIT\0");
                let now = if commits { *fault.lock().unwrap() } else { Fault::None };
                if now == Fault::LoseCommit {
                    *fault.lock().unwrap() = Fault::None;
                    return;
                }
                if server.write_all(&asked[..count]).await.is_err() {
                    return;
                }
                if matches!(now, Fault::LoseAnswer | Fault::LoseAnswerAndDoor) {
                    // The server has answered, so it is done.
                    let _ = server.read(&mut answered).await;
                    let next = if now == Fault::LoseAnswer { Fault::None } else { Fault::Shut };
                    *fault.lock().unwrap() = next;
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&answered[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
