//! The output streams of a process.

use bytes::Bytes;

/// How many there are; terminals use one, all others two.
pub(crate) const STREAMS: usize = 3;

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout = 0,
    Stderr = 1,
    Pty = 2,
}

impl Stream {
    pub(crate) const ALL: [Self; STREAMS] = [Self::Stdout, Self::Stderr, Self::Pty];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }

    /// Field number in `DataEvent`.
    pub(crate) const fn field(self) -> u32 {
        self as u32 + 1
    }
}

/// Bytes read at once, and where they stand in their stream.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) stream: Stream,
    pub(crate) offset: u64,
    pub(crate) dropped: u64,
    pub(crate) bytes: Bytes,
}

impl Chunk {
    /// Cuts at most `limit` bytes off the front.
    pub(crate) fn split_to(&mut self, limit: usize) -> Self {
        let bytes = self.bytes.split_to(limit.min(self.bytes.len()));
        let front = Self { stream: self.stream, offset: self.offset, dropped: self.dropped, bytes };
        self.offset += front.bytes.len() as u64;
        self.dropped = 0;
        front
    }
}
