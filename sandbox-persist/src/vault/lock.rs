//! Locks between processes. The kernel frees them when their holder dies, so that none is ever stale.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};

use crate::{cancel::Cancel, error};

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing the file lets go of the lock")] File);

/// With whom a lock may be held together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// With others that share it.
    Shared,
    /// With nobody.
    Exclusive,
}

impl Lock {
    /// Takes the lock, or returns `None` where somebody else is in the way.
    pub(crate) fn try_take(path: &Path, sharing: Sharing) -> Result<Option<Self>> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .read(true)
            .mode(0o600)
            .open(path)
            .map_err(|failure| error::io("open the lock", path, failure))?;
        let operation = match sharing {
            Sharing::Shared => FlockOperation::NonBlockingLockShared,
            Sharing::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&file, operation) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(error::io("take the lock", path, errno)),
        }
    }

    /// Waits for the lock, until the work is cancelled or out of time.
    pub(crate) fn take(path: &Path, sharing: Sharing, cancel: &Cancel) -> Result<Self> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(lock) = Self::try_take(path, sharing)? {
                return Ok(lock);
            }
            cancel.check().map_err(|stopped| match stopped.kind() {
                ErrorKind::Timeout => Error::new(
                    ErrorKind::Timeout,
                    format!("another process works on {} all the time", path.display()),
                )
                .with_reason("busy")
                .retryable(None),
                _ => stopped,
            })?;
            // A lock that blocks could not be given up; holders keep it for one operation.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}
