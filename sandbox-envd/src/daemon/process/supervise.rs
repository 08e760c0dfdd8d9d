//! Watches over one process from its start to its last byte.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::daemon::process::readiness;
use crate::daemon::process::reaper::Exit;
use crate::daemon::process::running::Process;
use crate::daemon::process::stream::Stream;

/// How long late writers are waited for after the process itself ended.
const LATE_WRITERS: Duration = Duration::from_millis(100);

/// Read at once from a process that writes little, and from one that writes much.
const SMALL_READ: usize = 32 << 10;
const LARGE_READ: usize = 256 << 10;

/// When a process is to end at the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// `Connect-Timeout-Ms`: killed at once, as E2B's envd does.
    Kill(Instant),
    /// Our own: `SIGTERM` first, then `SIGKILL` after the grace.
    Terminate(Instant, Duration),
}

/// The daemon's ends of the output pipes, or the terminal.
#[derive(Debug)]
pub(crate) struct Outputs {
    open: Vec<(Stream, Arc<AsyncFd<OwnedFd>>)>,
    buffer: Vec<u8>,
    next_size: usize,
    /// Whether the pipe that turned out to carry much was made larger.
    enlarged: bool,
    /// Whose turn it is, so that a busy stream does not starve the other.
    turn: usize,
}

impl Outputs {
    pub(crate) fn new(open: Vec<(Stream, Arc<AsyncFd<OwnedFd>>)>) -> Self {
        Self { open, buffer: Vec::new(), next_size: SMALL_READ, enlarged: false, turn: 0 }
    }

    /// Waits for output; `None` once every stream ended.
    async fn next(&mut self) -> Option<(Stream, Bytes)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Stream, Bytes)>> {
        'streams: loop {
            let count = self.open.len();
            for step in 0..count {
                let index = (self.turn + step) % count;
                let (stream, fd) = self.open[index].clone();
                while let Poll::Ready(ready) = fd.poll_read_ready(cx) {
                    let result = match ready {
                        Ok(mut ready) => match ready.try_io(|fd| self.read(fd.get_ref())) {
                            Ok(result) => result,
                            Err(_would_block) => continue,
                        },
                        Err(error) => Err(error),
                    };
                    match result {
                        Ok(bytes) if !bytes.is_empty() => {
                            self.turn = index + 1;
                            return Poll::Ready(Some((stream, bytes)));
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        // A terminal without processes answers EIO. Nothing more can come either way.
                        Ok(_) | Err(_) => {
                            self.open.remove(index);
                            continue 'streams;
                        }
                    }
                }
            }
            return if self.open.is_empty() { Poll::Ready(None) } else { Poll::Pending };
        }
    }

    /// Reads what is there now; `None` if every stream is empty or ended.
    fn next_buffered(&mut self) -> Option<(Stream, Bytes)> {
        let mut index = 0;
        while let Some((stream, fd)) = self.open.get(index).cloned() {
            match self.read(fd.get_ref()) {
                Ok(bytes) if !bytes.is_empty() => return Some((stream, bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => index += 1,
                Ok(_) | Err(_) => drop(self.open.remove(index)),
            }
        }
        None
    }

    /// Returns how many bytes wait to be read.
    fn buffered(&self) -> u64 {
        self.open.iter().filter_map(|(_, fd)| rustix::io::ioctl_fionread(fd.get_ref()).ok()).sum()
    }

    /// Reads once. A full buffer is handed over as it is and the next one is larger; a few bytes are copied out.
    fn read(&mut self, fd: &OwnedFd) -> io::Result<Bytes> {
        self.buffer.clear();
        self.buffer.reserve_exact(self.next_size);
        let count = match rustix::io::read(fd, rustix::buffer::spare_capacity(&mut self.buffer)) {
            Ok(count) => count,
            Err(Errno::IO) => 0,
            Err(error) => return Err(error.into()),
        };
        if count >= SMALL_READ && !self.enlarged {
            readiness::enlarge(fd);
            self.enlarged = true;
        }
        self.next_size = if count >= SMALL_READ { LARGE_READ } else { SMALL_READ };
        if count * 2 >= self.buffer.capacity() {
            return Ok(std::mem::take(&mut self.buffer).into());
        }
        Ok(Bytes::copy_from_slice(&self.buffer))
    }
}

/// Forwards output, tells the end once it is complete, and drains whatever comes later.
pub(crate) async fn supervise(
    process: Arc<Process>,
    mut outputs: Outputs,
    mut exit: oneshot::Receiver<Exit>,
) {
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut exit => break ended,
            output = outputs.next() => match output {
                Some((stream, bytes)) => {
                    if let Some(ended) = process.publish(stream, bytes, &mut exit).await {
                        break ended;
                    }
                }
                None => break (&mut exit).await,
            },
        }
    };
    process.collected();
    process.release_all_followers();
    drain(&process, &mut outputs).await;
    process.finish(ended.ok()).await;
    // A grandchild that still writes must not be ended by SIGPIPE.
    while let Some((stream, bytes)) = outputs.next().await {
        process.publish(stream, bytes, pending()).await;
    }
    process.close_log();
}

/// Reads everything the process itself wrote, then waits a moment for its children.
async fn drain(process: &Process, outputs: &mut Outputs) {
    // Bounded by what was there at the end: a grandchild may write for ever.
    let mut left = outputs.buffered();
    while let Some((stream, bytes)) = outputs.next_buffered() {
        left = left.saturating_sub(bytes.len() as u64);
        process.publish(stream, bytes, pending()).await;
        if left == 0 {
            break;
        }
    }
    let late = Instant::now() + LATE_WRITERS;
    while Instant::now() < late {
        match tokio::time::timeout_at(late, outputs.next()).await {
            Ok(Some((stream, bytes))) => {
                process.publish(stream, bytes, pending()).await;
            }
            Ok(None) | Err(_) => return,
        }
    }
}

/// Ends the process and everything it started at its deadline; returns when the process has ended.
pub(crate) async fn enforce(process: Arc<Process>, deadline: Deadline) {
    let at = match deadline {
        Deadline::Kill(at) | Deadline::Terminate(at, _) => at,
    };
    tokio::select! {
        biased;
        () = process.wait() => return,
        () = tokio::time::sleep_until(at) => {}
    }
    process.time_out();
    if let Deadline::Terminate(_, grace) = deadline {
        if let Err(error) = process.signal_tree(Signal::TERM).await {
            tracing::warn!(%error, pid = process.pid, "a timed out process could not be asked to end");
        }
        // Whatever outlives the process itself has nobody to work for: it does not get the rest of the grace.
        let _ = tokio::time::timeout(grace, process.wait()).await;
    }
    if let Err(error) = process.signal_tree(Signal::KILL).await {
        tracing::warn!(%error, pid = process.pid, "a timed out process is not gone");
    }
}
