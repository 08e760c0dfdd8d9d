//! What uploads wait for: their turn at a file, and readers of pipes.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How many uploads may wait for readers of pipes at once: each keeps a thread that everybody else needs too.
const MOST_WAITING: usize = 16;

/// Held by whoever is at a file.
type Turn = Arc<Mutex<()>>;

/// Who is at which file (by its device and number), and how many wait for readers.
#[derive(Default)]
pub(crate) struct Turns {
    files: Mutex<HashMap<(u64, u64), Turn>>,
    waiting: AtomicUsize,
}

impl Turns {
    /// Replaces the content of one file at a time: two uploads at once never mix.
    pub(super) fn at<T>(&self, file: &Metadata, work: impl FnOnce() -> T) -> T {
        let key = (file.dev(), file.ino());
        let files = || self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = Arc::clone(files().entry(key).or_default());
        let held = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work();
        drop(held);
        let mut files = files();
        // The map's own and this one: nobody else wants it.
        if Arc::strong_count(&turn) == 2 {
            files.remove(&key);
        }
        done
    }

    /// Writes everything to a pipe or device that was opened not to block, if somebody takes it: a reader may be
    /// silent for as long as `patience`.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] for a reader that is silent for longer, [`ErrorKind::WouldBlock`] when too many are
    /// waited for already.
    pub(super) fn pour(&self, mut into: &File, mut data: &[u8], patience: Duration) -> io::Result<()> {
        while !data.is_empty() {
            match into.write(data) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(taken) => data = &data[taken..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.await_reader(into, patience)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn await_reader(&self, of: &File, patience: Duration) -> io::Result<()> {
        let waiting = Waiting::new(&self.waiting);
        if waiting.others >= MOST_WAITING {
            return Err(ErrorKind::WouldBlock.into());
        }
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(of, PollFlags::OUT)];
        match poll(&mut fds, Some(&patience)) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// One who waits; counted as long as it lives.
struct Waiting<'a> {
    count: &'a AtomicUsize,
    others: usize,
}

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        Self { count, others: count.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_of_a_file_that_nobody_is_at() {
        let turns = Turns::default();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(turns.at(&file.metadata().unwrap(), || 1), 1);
        assert!(turns.files.lock().unwrap().is_empty());
    }
}
