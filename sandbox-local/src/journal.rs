//! The log of a sandbox: what became of it, one line of JSON each, in its directory.
//!
//! Written by whoever does something with it. A line that cannot be written is left out: no call fails for it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandhold_core::{LogLine, LogOptions};
use serde::{Deserialize, Serialize};

/// The lines, and the older half of them.
pub(crate) const LOG: &str = "log.jsonl";
pub(crate) const OLD_LOG: &str = "log.old.jsonl";
/// Each of the two holds so many bytes at most; then the older one is given up.
const MOST: u64 = 64 * 1024;

#[derive(Serialize, Deserialize)]
struct Line {
    /// Milliseconds since 1970.
    at_ms: u64,
    level: String,
    message: String,
}

/// Adds a line to the log of the sandbox in `dir`.
pub(crate) fn note(dir: &Path, level: &str, message: &str) {
    let path = dir.join(LOG);
    if fs::metadata(&path).is_ok_and(|meta| meta.len() >= MOST) {
        let _ = fs::rename(&path, dir.join(OLD_LOG));
    }
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = Line {
        at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
        level: level.to_owned(),
        message: message.to_owned(),
    };
    if let Ok(mut text) = serde_json::to_vec(&line)
        && let Ok(mut file) = OpenOptions::new().append(true).create(true).mode(0o600).open(path)
    {
        text.push(b'\n');
        // One call: lines of several writers do not mix.
        let _ = file.write_all(&text);
    }
}

/// Reads the log of the sandbox in `dir`, oldest first. Damaged lines are left out.
pub(crate) fn read(dir: &Path, options: &LogOptions) -> Vec<LogLine> {
    let texts = [OLD_LOG, LOG].map(|name| fs::read_to_string(dir.join(name)).unwrap_or_default());
    let lines = texts.iter().flat_map(|text| text.lines()).filter_map(|line| serde_json::from_str(line).ok());
    let mut lines: Vec<_> = lines
        .map(|line: Line| {
            LogLine::new(UNIX_EPOCH + Duration::from_millis(line.at_ms), line.level, line.message)
        })
        .filter(|line| options.since.is_none_or(|since| line.at >= since))
        .collect();
    lines.truncate(options.limit.unwrap_or(usize::MAX));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_keeps_the_newest_lines() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..4000 {
            note(dir.path(), "info", &format!("line {number}"));
        }
        let size = |name| fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size(LOG) + size(OLD_LOG) <= 2 * (MOST + 200));
        let lines = read(dir.path(), &LogOptions::default());
        assert_eq!(lines.last().unwrap().message, "line 3999");
        assert!(lines.len() > 500, "{}", lines.len());
        fs::write(dir.path().join(LOG), "{\"at_ms\":1,\"level\":\"in").unwrap();
        assert!(!read(dir.path(), &LogOptions::default().with_limit(3)).is_empty());
    }
}
