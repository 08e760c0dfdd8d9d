//! Logs of builds: lines with a level, kept beside the templates.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandhold_e2b::wire::{LogEntry, LogLevel};

use super::catalog::now;

/// Most lines of one answer, as E2B has it.
pub(crate) const PAGE: usize = 100;
/// Most lines of one build; what follows is not kept.
const MAX_LINES: usize = 50_000;
/// Longest line, in bytes; what follows is cut.
const MAX_LINE: usize = 4096;

/// The log of a build that runs.
#[derive(Debug)]
pub(crate) struct BuildLog {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    entries: Vec<LogEntry>,
    file: Option<File>,
}

/// Where the log of a build is.
pub(crate) fn path(directory: &Path, build: &str) -> PathBuf {
    directory.join(format!("{build}.jsonl"))
}

impl BuildLog {
    /// Begins a log. Blocks.
    pub(crate) fn create(directory: &Path, build: &str) -> Arc<Self> {
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(0o600).open(path(directory, build));
        if let Err(error) = &file {
            tracing::warn!(%error, build, "the log of a build is kept in memory only");
        }
        Arc::new(Self { inner: Mutex::new(Inner { entries: Vec::new(), file: file.ok() }) })
    }

    /// Adds a line.
    pub(crate) fn say(&self, level: LogLevel, step: &str, message: impl Into<String>) {
        let mut message = message.into();
        if message.len() > MAX_LINE {
            let mut end = MAX_LINE;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push('…');
        }
        let entry = LogEntry {
            timestamp: now(),
            message,
            level,
            fields: BTreeMap::new(),
            step: Some(step.to_owned()),
        };
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.entries.len() >= MAX_LINES {
            return;
        }
        if let Some(file) = &mut inner.file
            && let Ok(mut line) = serde_json::to_vec(&entry)
        {
            line.push(b'\n');
            // Lines of output are for people who watch; the outcome of the build is kept elsewhere.
            let _ = file.write_all(&line);
        }
        inner.entries.push(entry);
    }

    /// Returns the lines from an offset on.
    pub(crate) fn page(&self, offset: usize, limit: usize) -> Vec<LogEntry> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.entries.iter().skip(offset).take(limit).cloned().collect()
    }
}

/// Returns lines of a log that is not written any more; none if there is none. Blocks.
pub(crate) fn read(directory: &Path, build: &str) -> Vec<LogEntry> {
    let Ok(file) = File::open(path(directory, build)) else { return Vec::new() };
    // The last line may be cut short by the death of the server.
    BufReader::new(file)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_str(&line).ok())
        .collect()
}

/// Cuts what a process writes into lines for a log.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Takes bytes and hands out the lines that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8], mut line: impl FnMut(String)) {
        for byte in bytes {
            if matches!(byte, b'\n' | b'\r') {
                self.flush(&mut line);
            } else {
                self.rest.push(*byte);
                if self.rest.len() >= MAX_LINE {
                    self.flush(&mut line);
                }
            }
        }
    }

    /// Hands out what is left.
    pub(crate) fn flush(&mut self, mut line: impl FnMut(String)) {
        let text = String::from_utf8_lossy(&self.rest).trim_end().to_owned();
        self.rest.clear();
        if !text.is_empty() {
            line(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_across_chunks() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for chunk in [&b"a"[..], b"b\ncaf\xc3", b"\xa9\n\n", b"last"] {
            lines.push(chunk, |line| seen.push(line));
        }
        lines.flush(|line| seen.push(line));
        assert_eq!(seen, ["ab", "café", "last"]);
    }

    #[test]
    fn a_log_is_read_back_after_its_writer_died_in_the_middle_of_a_line() {
        let home = tempfile::tempdir().unwrap();
        let log = BuildLog::create(home.path(), "b");
        log.say(LogLevel::Info, "base", "one");
        log.say(LogLevel::Error, "1", "x".repeat(5000));
        std::fs::OpenOptions::new()
            .append(true)
            .open(path(home.path(), "b"))
            .and_then(|mut file| file.write_all(b"{\"timest"))
            .unwrap();
        let read = read(home.path(), "b");
        assert_eq!(read, log.page(0, PAGE));
        assert_eq!((read.len(), read[0].message.as_str(), read[1].level), (2, "one", LogLevel::Error));
        assert!(read[1].message.len() < 4200);
        assert_eq!(log.page(1, PAGE).len(), 1);
    }
}
