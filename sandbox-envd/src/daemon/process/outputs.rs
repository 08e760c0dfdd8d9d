//! Reads the output of one process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::unix::AsyncFd;

use crate::daemon::process::readiness;
use crate::daemon::process::stream::Stream;

/// Read at once from a process that writes little, and from one that writes much.
const SMALL_READ: usize = 32 << 10;
const LARGE_READ: usize = 256 << 10;

/// The least that writers of blocks write at once.
const BLOCK: usize = 4 << 10;

/// What is worth a read from a process that writes much, and how many turns of the runtime it is waited for: a turn is a
/// microsecond or two.
const ENOUGH: u64 = 128 << 10;
const PATIENCE: usize = 32;

/// Moved at once: all that a pipe can hold.
const MOVED: usize = 1 << 20;

/// The daemon's ends of the output pipes, or the terminal.
#[derive(Debug)]
pub(crate) struct Outputs {
    open: Vec<(Stream, Arc<AsyncFd<OwnedFd>>)>,
    buffer: Vec<u8>,
    next_size: usize,
    /// Whether the last read got as much as only a writer of blocks leaves.
    much: bool,
    /// Whether the pipe that turned out to carry much was made larger.
    enlarged: bool,
    aside: Option<Aside>,
    /// Whose turn it is, so that a busy stream does not starve the other.
    turn: usize,
}

impl Outputs {
    pub(crate) fn new(open: Vec<(Stream, Arc<AsyncFd<OwnedFd>>)>) -> Self {
        Self {
            open,
            buffer: Vec::new(),
            next_size: SMALL_READ,
            much: false,
            enlarged: false,
            aside: None,
            turn: 0,
        }
    }

    /// Waits for output; `None` once every stream ended.
    pub(crate) async fn next(&mut self) -> Option<(Stream, Bytes)> {
        self.gather().await;
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Lets a process that writes much go on for a moment, so that much is read at once.
    ///
    /// Whoever reads as fast as it writes, in blocks of some kilobytes, spends more on wakeups than on the bytes.
    async fn gather(&mut self) {
        if !self.much {
            return;
        }
        for _ in 0..PATIENCE {
            if self.buffered() >= ENOUGH {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Stream, Bytes)>> {
        if let Some(moved) = self.next_moved() {
            return Poll::Ready(Some(moved));
        }
        'streams: loop {
            let count = self.open.len();
            for step in 0..count {
                let index = (self.turn + step) % count;
                let (stream, fd) = self.open[index].clone();
                while let Poll::Ready(ready) = fd.poll_read_ready(cx) {
                    let result = match ready {
                        Ok(mut ready) => match ready.try_io(|fd| self.read(stream, fd.get_ref())) {
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
    pub(crate) fn next_buffered(&mut self) -> Option<(Stream, Bytes)> {
        if let Some(moved) = self.next_moved() {
            return Some(moved);
        }
        let mut index = 0;
        while let Some((stream, fd)) = self.open.get(index).cloned() {
            match self.read(stream, fd.get_ref()) {
                Ok(bytes) if !bytes.is_empty() => return Some((stream, bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => index += 1,
                Ok(_) | Err(_) => drop(self.open.remove(index)),
            }
        }
        None
    }

    /// Returns how many bytes wait to be read.
    pub(crate) fn buffered(&self) -> u64 {
        let waiting = self.open.iter().filter_map(|(_, fd)| rustix::io::ioctl_fionread(fd.get_ref()).ok());
        waiting.sum::<u64>() + self.aside.as_ref().map_or(0, |aside| aside.held as u64)
    }

    /// Reads once.
    fn read(&mut self, stream: Stream, fd: &OwnedFd) -> io::Result<Bytes> {
        if self.next_size == LARGE_READ
            && let Some(aside) = &mut self.aside
        {
            aside.fill(stream, fd)?;
            return Ok(self.next_moved().map_or_else(Bytes::new, |(_, bytes)| bytes));
        }
        let count = read_into(&mut self.buffer, self.next_size, fd)?;
        if count >= SMALL_READ && !self.enlarged {
            self.enlarged = true;
            self.aside = readiness::enlarge(fd).then(Aside::new).and_then(Result::ok);
        }
        Ok(self.take())
    }

    /// Reads of what was moved aside, which is older than what is in the pipes.
    fn next_moved(&mut self) -> Option<(Stream, Bytes)> {
        let aside = self.aside.as_mut().filter(|aside| aside.held > 0)?;
        let stream = aside.stream;
        if let Err(error) = aside.read(&mut self.buffer) {
            tracing::error!(%error, bytes = aside.held, "output that was there cannot be read");
            self.aside = None;
            return None;
        }
        Some((stream, self.take()))
    }

    /// Hands over a buffer that was filled as it is; a few bytes are copied out. Much is followed by much.
    fn take(&mut self) -> Bytes {
        let count = self.buffer.len();
        self.next_size = if count >= SMALL_READ { LARGE_READ } else { SMALL_READ };
        self.much = self.enlarged && count >= BLOCK;
        if count * 2 >= self.buffer.capacity() {
            return std::mem::take(&mut self.buffer).into();
        }
        Bytes::copy_from_slice(&self.buffer)
    }
}

/// A pipe of our own that takes what a writer's pipe holds, without a copy.
///
/// A read holds the lock of its pipe for as long as it copies, and the writer burns a processor waiting for it. The move
/// takes a moment, and nobody waits for this pipe.
#[derive(Debug)]
struct Aside {
    from: OwnedFd,
    to: OwnedFd,
    /// Where the content came from: of one stream at a time.
    stream: Stream,
    held: usize,
}

impl Aside {
    fn new() -> io::Result<Self> {
        let (from, to) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if !readiness::enlarge(&from) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(Self { from, to, stream: Stream::Stdout, held: 0 })
    }

    /// Takes what is there; nothing at the end. Only for an empty one, so that the order stays.
    fn fill(&mut self, stream: Stream, fd: &OwnedFd) -> io::Result<()> {
        self.stream = stream;
        self.held = rustix::pipe::splice(fd, None, &self.to, None, MOVED, SpliceFlags::NONBLOCK)?;
        Ok(())
    }

    fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.held -= rustix::io::retry_on_intr(|| read_into(buffer, LARGE_READ, &self.from))?;
        Ok(())
    }
}

/// Reads once into an empty buffer.
fn read_into(buffer: &mut Vec<u8>, size: usize, fd: &OwnedFd) -> rustix::io::Result<usize> {
    buffer.clear();
    buffer.reserve_exact(size);
    match rustix::io::read(fd, rustix::buffer::spare_capacity(buffer)) {
        // A terminal without processes.
        Err(Errno::IO) => Ok(0),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::io::Interest;

    use super::*;

    /// Both ends of a pipe, of which ours is watched.
    fn pipe(stream: Stream) -> ((Stream, Arc<AsyncFd<OwnedFd>>), std::fs::File) {
        let (from, to) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&from, true).unwrap();
        ((stream, Arc::new(readiness::watch(from, Interest::READABLE).unwrap())), to.into())
    }

    fn pattern(length: usize, seed: u8) -> Vec<u8> {
        (0..length).map(|at| (at / 251) as u8 ^ at as u8 ^ seed).collect()
    }

    fn write_in_blocks(mut to: std::fs::File, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            for block in bytes.chunks(8 << 10) {
                to.write_all(block).unwrap();
            }
        })
    }

    #[tokio::test]
    async fn much_output_of_two_streams_is_complete_and_in_order() {
        let (out, out_to) = pipe(Stream::Stdout);
        let (err, err_to) = pipe(Stream::Stderr);
        let (said, complained) = (pattern(5_000_003, 1), pattern(3_000_001, 2));
        let writers = [write_in_blocks(out_to, said.clone()), write_in_blocks(err_to, complained.clone())];
        let mut outputs = Outputs::new(vec![out, err]);
        let mut got = [Vec::new(), Vec::new()];
        while let Some((stream, bytes)) = outputs.next().await {
            assert!(!bytes.is_empty());
            got[stream as usize].extend_from_slice(&bytes);
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert!(outputs.aside.is_some(), "nothing was moved aside");
        assert!(got[0] == said && got[1] == complained);
    }

    #[tokio::test]
    async fn what_was_moved_aside_counts_as_waiting_and_is_read_first() {
        let (out, mut to) = pipe(Stream::Stdout);
        let said = pattern(900 << 10, 3);
        let mut outputs = Outputs::new(vec![out]);
        // The first read enlarges the pipe, the second moves all that is there aside.
        let (first, rest) = said.split_at(64 << 10);
        to.write_all(first).unwrap();
        let mut got = outputs.next().await.unwrap().1.to_vec();
        got.extend_from_slice(&outputs.next().await.unwrap().1);
        to.write_all(rest).unwrap();
        got.extend_from_slice(&outputs.next().await.unwrap().1);
        assert_eq!(outputs.buffered() as usize, said.len() - got.len());
        to.write_all(b"the end").unwrap();
        while let Some((_, bytes)) = outputs.next_buffered() {
            got.extend_from_slice(&bytes);
        }
        assert_eq!(outputs.buffered(), 0);
        assert!(got == [&said[..], b"the end"].concat());
    }
}
