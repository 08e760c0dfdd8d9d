//! Retained output: the tail of every stream in files, and how the process ended.
//!
//! One folder a process: `process.json` says what ran, `stdout.OFFSET` and the like hold the bytes from that
//! offset on, `exit.json` the end. A stream has at most two files of `max_bytes` each: when the newer is full the
//! older goes. A reader sees exactly the last `max_bytes` bytes. The folder outlives the daemon.
//!
//! Appending is a plain write to the page cache from the task that reads the pipe: handing every chunk to
//! another thread costs more than the write.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::daemon::fs::remove_tree;
use crate::daemon::process::stream::{STREAMS, Stream};
use crate::messages::process::ProcessConfig;
use crate::messages::process::process_event::EndEvent;

/// Kept of each stream when a client names no cap.
const DEFAULT_MAX_BYTES: u64 = 1 << 20;

/// What is known about a retained process beside its output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) pid: u32,
    pub(crate) tag: Option<String>,
    /// Without the environment, whose values may be secrets.
    pub(crate) config: ProcessConfig,
    pub(crate) terminal: bool,
    pub(crate) max_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Log {
    dir: PathBuf,
    max_bytes: u64,
    streams: [Segments; STREAMS],
}

/// The files of one stream, oldest first; the last one is written to.
#[derive(Debug, Default)]
struct Segments {
    files: VecDeque<Segment>,
    end: u64,
}

#[derive(Debug)]
struct Segment {
    start: u64,
    path: PathBuf,
    /// Open while the process runs.
    file: Option<Arc<File>>,
}

/// A piece of retained output that a reader still has to fetch.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(crate) stream: Stream,
    /// Where the piece begins in its stream.
    pub(crate) offset: u64,
    pub(crate) end: u64,
    /// Bytes asked for that are not kept any more, right before this piece.
    pub(crate) dropped: u64,
    file: Arc<File>,
    file_start: u64,
}

impl Slice {
    /// Reads at most `limit` bytes from the front of the piece and moves past them; blocks.
    pub(crate) fn read(&mut self, limit: usize) -> io::Result<Bytes> {
        let want = usize::try_from(self.end - self.offset).unwrap_or(limit).min(limit);
        let mut bytes = vec![0; want];
        self.file.read_exact_at(&mut bytes, self.offset - self.file_start)?;
        self.offset += want as u64;
        self.dropped = 0;
        Ok(bytes.into())
    }
}

impl Log {
    /// Creates the folder of a process under `parent`.
    pub(crate) fn create(parent: &Path, name: &str, description: &Description) -> io::Result<Self> {
        let dir = parent.join(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        write_whole(&dir, "process.json", description)?;
        Ok(Self { dir, max_bytes: cap(description.max_bytes), streams: Default::default() })
    }

    /// Opens what an earlier daemon left; the end is `None` if that daemon did not see it.
    pub(crate) fn open(dir: &Path) -> io::Result<(Self, Description, Option<EndEvent>)> {
        let description: Description = serde_json::from_slice(&fs::read(dir.join("process.json"))?)?;
        let end = match fs::read(dir.join("exit.json")) {
            Ok(bytes) => Some(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut log =
            Self { dir: dir.into(), max_bytes: cap(description.max_bytes), streams: Default::default() };
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some((stream, start)) = name.to_str().and_then(parse_name) else { continue };
            let segments = &mut log.streams[stream as usize];
            segments.end = segments.end.max(start + entry.metadata()?.len());
            segments.files.push_back(Segment { start, path: entry.path(), file: None });
        }
        for segments in &mut log.streams {
            segments.files.make_contiguous().sort_by_key(|segment| segment.start);
        }
        Ok((log, description, end))
    }

    /// Adds a chunk; what cannot be written counts as dropped, together with everything before it.
    pub(crate) fn append(&mut self, stream: Stream, bytes: &[u8]) {
        if let Err(error) = self.try_append(stream, bytes) {
            tracing::warn!(%error, dir = %self.dir.display(), "retained output is lost");
            let segments = &mut self.streams[stream as usize];
            for lost in segments.files.drain(..) {
                let _ = fs::remove_file(lost.path);
            }
        }
        self.streams[stream as usize].end += bytes.len() as u64;
    }

    fn try_append(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let segments = &mut self.streams[stream as usize];
        let full = segments.files.back().is_none_or(|last| segments.end - last.start >= self.max_bytes);
        if full {
            let path = self.dir.join(format!("{}.{}", stream.name(), segments.end));
            let file = OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&path)?;
            let file = Some(Arc::new(file));
            segments.files.push_back(Segment { start: segments.end, path, file });
            while segments.files.len() > 2 {
                if let Some(oldest) = segments.files.pop_front() {
                    fs::remove_file(oldest.path)?;
                }
            }
        }
        match segments.files.back().and_then(|last| last.file.as_deref()) {
            Some(mut file) => file.write_all(bytes),
            None => Err(io::Error::other("the log is closed")),
        }
    }

    /// Records the end.
    pub(crate) fn finish(&mut self, end: &EndEvent) -> io::Result<()> {
        write_whole(&self.dir, "exit.json", end)
    }

    /// Closes the files; nothing is appended after.
    pub(crate) fn close(&mut self) {
        for segment in self.streams.iter_mut().flat_map(|segments| &mut segments.files) {
            segment.file = None;
        }
    }

    /// Returns how many bytes the stream had in all.
    pub(crate) fn end(&self, stream: Stream) -> u64 {
        self.streams[stream as usize].end
    }

    /// Returns what is kept of a stream from `offset` on, as it stands now.
    pub(crate) fn kept_from(&self, stream: Stream, offset: u64) -> io::Result<Vec<Slice>> {
        let segments = &self.streams[stream as usize];
        let first = segments.files.front().map_or(segments.end, |segment| segment.start);
        let mut at = offset.max(first).max(segments.end.saturating_sub(self.max_bytes));
        let mut dropped = at.min(segments.end).saturating_sub(offset);
        let mut slices = Vec::new();
        for (index, segment) in segments.files.iter().enumerate() {
            let end = segments.files.get(index + 1).map_or(segments.end, |next| next.start);
            if at >= end {
                continue;
            }
            let file = match &segment.file {
                Some(file) => Arc::clone(file),
                None => Arc::new(File::open(&segment.path)?),
            };
            slices.push(Slice { stream, offset: at, end, dropped, file, file_start: segment.start });
            (at, dropped) = (end, 0);
        }
        Ok(slices)
    }

    /// Removes everything.
    pub(crate) fn remove(&self) -> io::Result<()> {
        remove_tree(&self.dir, false)
    }
}

fn cap(max_bytes: u64) -> u64 {
    if max_bytes == 0 { DEFAULT_MAX_BYTES } else { max_bytes }
}

fn parse_name(name: &str) -> Option<(Stream, u64)> {
    let (stream, start) = name.split_once('.')?;
    Some((Stream::ALL.into_iter().find(|known| known.name() == stream)?, start.parse().ok()?))
}

/// Writes a file that is there as a whole or not at all.
fn write_whole(dir: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let draft = dir.join(format!("{name}.new"));
    fs::write(&draft, serde_json::to_vec(value)?)?;
    fs::rename(draft, dir.join(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn description(max_bytes: u64) -> Description {
        Description {
            pid: 7,
            tag: Some("t".into()),
            config: ProcessConfig::default(),
            terminal: false,
            max_bytes,
        }
    }

    /// Joins what `log` has from `offset`: the first offset that is kept, and the bytes.
    fn joined(log: &Log, offset: u64) -> (u64, Vec<u8>) {
        let mut bytes = Vec::new();
        let mut dropped = 0;
        for mut slice in log.kept_from(Stream::Stdout, offset).unwrap() {
            dropped += slice.dropped;
            while slice.offset < slice.end {
                bytes.extend_from_slice(&slice.read(7).unwrap());
            }
        }
        (offset + dropped, bytes)
    }

    proptest! {
        #[test]
        fn a_reader_gets_exactly_the_kept_tail_from_its_offset(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..60), 0..40),
            max_bytes in 1_u64..120,
            asked in 0_u64..2500,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut log = Log::create(dir.path(), "p", &description(max_bytes)).unwrap();
            let mut all = Vec::new();
            for chunk in &chunks {
                log.append(Stream::Stdout, chunk);
                all.extend_from_slice(chunk);
            }
            let offset = asked.min(all.len() as u64);
            let first = offset.max((all.len() as u64).saturating_sub(max_bytes));
            let expected = all[usize::try_from(first).unwrap()..].to_vec();
            let whole = (if expected.is_empty() { offset } else { first }, expected);
            prop_assert_eq!(&joined(&log, offset), &whole);
            let (reopened, ..) = Log::open(&dir.path().join("p")).unwrap();
            prop_assert_eq!(reopened.end(Stream::Stdout), all.len() as u64);
            prop_assert_eq!(&joined(&reopened, offset), &whole);
        }
    }

    #[test]
    fn an_end_that_was_not_recorded_is_unknown_and_a_recorded_one_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path(), "p", &description(0)).unwrap();
        assert_eq!(Log::open(&dir.path().join("p")).unwrap().2, None);
        let end =
            EndEvent { exit_code: 7, exited: true, status: "exit status 7".into(), ..Default::default() };
        log.finish(&end).unwrap();
        assert_eq!(Log::open(&dir.path().join("p")).unwrap().2, Some(end));
    }

    #[test]
    fn a_slice_taken_before_its_file_was_rotated_away_still_reads() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path(), "p", &description(4)).unwrap();
        log.append(Stream::Stdout, b"abcd");
        let mut slice = log.kept_from(Stream::Stdout, 0).unwrap().remove(0);
        for _ in 0..4 {
            log.append(Stream::Stdout, b"efgh");
        }
        assert_eq!(&slice.read(10).unwrap()[..], b"abcd");
    }
}
