//! Between the messages of the wire and the types of the contract.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use buffa::EnumValue;
use buffa_types::google::protobuf::Timestamp;
use sandhold_core::{EntryInfo, ExitStatus, FileType, ProcessInfo, ProcessSelector, PtySize, WatchEventKind};

use crate::messages::filesystem::{self, EventType};
use crate::messages::process::__buffa::oneof::process_selector::Selector;
use crate::messages::process::{self, PTY};

pub(crate) fn selector(process: &ProcessSelector) -> Option<process::ProcessSelector> {
    let selector = match process {
        ProcessSelector::Pid(pid) => Selector::Pid(*pid),
        ProcessSelector::Tag(tag) => Selector::Tag(tag.clone()),
        _ => return None,
    };
    Some(process::ProcessSelector { selector: Some(selector) })
}

pub(crate) fn pty(size: PtySize) -> PTY {
    let size = process::pty::Size { cols: size.cols.into(), rows: size.rows.into() };
    PTY { size: size.into() }
}

pub(crate) fn process_info(info: process::ProcessInfo) -> ProcessInfo {
    let config = info.config.into_option().unwrap_or_default();
    let mut argv = vec![config.cmd];
    argv.extend(config.args);
    let mut facts = ProcessInfo::new(info.pid, argv);
    facts.tag = info.tag;
    facts.cwd = config.cwd;
    facts.exit = info.exit.as_option().map(|end| {
        exit_status(&Ending {
            exit_code: end.exit_code,
            exited: end.exited,
            status: &end.status,
            signal: end.signal,
            oom_killed: end.oom_killed,
            timed_out: end.timed_out,
        })
    });
    facts
}

/// The fields of an end event.
pub(crate) struct Ending<'a> {
    pub(crate) exit_code: i32,
    pub(crate) exited: bool,
    pub(crate) status: &'a str,
    pub(crate) signal: Option<i32>,
    pub(crate) oom_killed: bool,
    pub(crate) timed_out: bool,
}

pub(crate) fn exit_status(end: &Ending<'_>) -> ExitStatus {
    let mut status = if end.exited {
        ExitStatus::exited(end.exit_code)
    } else {
        match end.signal.or_else(|| signal_of(end.status)) {
            Some(signal) => ExitStatus::signaled(signal),
            None => ExitStatus::default(),
        }
    };
    status.oom_killed = end.oom_killed;
    status.timed_out = end.timed_out;
    status
}

/// Reads the signal out of the words of Go's `ProcessState`, in which alone E2B's envd tells it.
fn signal_of(status: &str) -> Option<i32> {
    let words = status.strip_prefix("signal: ")?.trim_end_matches(" (core dumped)");
    let known = [
        ("hangup", 1),
        ("interrupt", 2),
        ("quit", 3),
        ("illegal instruction", 4),
        ("trace/breakpoint trap", 5),
        ("aborted", 6),
        ("bus error", 7),
        ("floating point exception", 8),
        ("killed", 9),
        ("user defined signal 1", 10),
        ("segmentation fault", 11),
        ("user defined signal 2", 12),
        ("broken pipe", 13),
        ("alarm clock", 14),
        ("terminated", 15),
    ];
    let known = known.iter().find(|(name, _)| *name == words).map(|(_, number)| *number);
    known.or_else(|| words.strip_prefix("signal ")?.parse().ok())
}

pub(crate) fn entry(entry: filesystem::EntryInfo) -> EntryInfo {
    let mut facts = EntryInfo::new(entry.path, file_type(entry.r#type));
    facts.name = entry.name;
    facts.size = u64::try_from(entry.size).unwrap_or(0);
    // Bits above the permissions would say the type again.
    facts.mode = entry.mode & 0o7777;
    facts.owner = entry.owner;
    facts.group = entry.group;
    facts.modified_at = entry.modified_time.into_option().and_then(time);
    facts.symlink_target = entry.symlink_target;
    facts.metadata = entry.metadata.into_iter().collect();
    facts
}

fn file_type(value: EnumValue<filesystem::FileType>) -> FileType {
    match value {
        EnumValue::Known(filesystem::FileType::FILE_TYPE_FILE) => FileType::File,
        EnumValue::Known(filesystem::FileType::FILE_TYPE_DIRECTORY) => FileType::Directory,
        EnumValue::Known(filesystem::FileType::FILE_TYPE_SYMLINK) => FileType::Symlink,
        EnumValue::Known(filesystem::FileType::FILE_TYPE_UNSPECIFIED) | EnumValue::Unknown(_) => {
            FileType::Other
        }
    }
}

fn time(stamp: Timestamp) -> Option<SystemTime> {
    let nanos = Duration::from_nanos(u64::try_from(stamp.nanos).ok()?);
    let seconds = Duration::from_secs(stamp.seconds.unsigned_abs());
    let second =
        if stamp.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    second?.checked_add(nanos)
}

/// Returns none for a kind of another version.
pub(crate) fn watch_kind(kind: EnumValue<EventType>) -> Option<WatchEventKind> {
    match kind {
        EnumValue::Known(EventType::EVENT_TYPE_CREATE) => Some(WatchEventKind::Create),
        EnumValue::Known(EventType::EVENT_TYPE_WRITE) => Some(WatchEventKind::Write),
        EnumValue::Known(EventType::EVENT_TYPE_REMOVE) => Some(WatchEventKind::Remove),
        EnumValue::Known(EventType::EVENT_TYPE_RENAME) => Some(WatchEventKind::Rename),
        EnumValue::Known(EventType::EVENT_TYPE_CHMOD) => Some(WatchEventKind::Chmod),
        EnumValue::Known(EventType::EVENT_TYPE_UNSPECIFIED) | EnumValue::Unknown(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(exited: bool, exit_code: i32, status: &str, signal: Option<i32>) -> ExitStatus {
        exit_status(&Ending { exit_code, exited, status, signal, oom_killed: false, timed_out: false })
    }

    #[test]
    fn a_signal_death_is_never_an_exit_code() {
        assert_eq!(end(false, -1, "signal: killed", None), ExitStatus::signaled(9));
        assert_eq!(
            end(false, -1, "signal: segmentation fault (core dumped)", None),
            ExitStatus::signaled(11)
        );
        assert_eq!(end(false, -1, "signal: signal 34", None), ExitStatus::signaled(34));
        assert_eq!(end(false, -1, "", Some(15)), ExitStatus::signaled(15));
        let unknown = end(false, -1, "something new", None);
        assert_eq!((unknown.code, unknown.signal, unknown.success()), (None, None, false));
    }

    #[test]
    fn an_exit_without_a_code_on_the_wire_is_zero() {
        assert_eq!(end(true, 0, "exit status 0", None), ExitStatus::exited(0));
        assert_eq!(end(true, 7, "exit status 7", None), ExitStatus::exited(7));
    }

    #[test]
    fn times_before_the_epoch_and_broken_ones_do_no_harm() {
        let stamp = |seconds, nanos| Timestamp { seconds, nanos, ..Default::default() };
        assert_eq!(
            time(stamp(-2, 500)),
            Some(UNIX_EPOCH - Duration::from_secs(2) + Duration::from_nanos(500))
        );
        assert_eq!(time(stamp(1, -1)), None);
        let _ = time(stamp(i64::MIN, 0));
        let _ = time(stamp(i64::MAX, i32::MAX));
    }
}
