//! Freezing everything inside but the daemon, by the best means that this host has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::{FreezerGroup, FreezerTier};

/// How long processes may take to freeze: one that waits for a disk cannot stop at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// Rounds are quick at first; then they wait.
const PAUSE: Duration = Duration::from_micros(200);

/// Freezes and thaws the processes of a sandbox.
#[derive(Debug)]
pub(crate) struct Freezer {
    means: Means,
}

#[derive(Debug)]
enum Means {
    Group(FreezerGroup),
    /// Signals, and who had been stopped before.
    Signals {
        stopped_before: BTreeSet<i32>,
    },
}

impl Freezer {
    /// Uses the control group, if there is one.
    pub(crate) fn new(group: Option<FreezerGroup>) -> Self {
        let signals = Means::Signals { stopped_before: BTreeSet::new() };
        Self { means: group.map_or(signals, Means::Group) }
    }

    /// Freezes every process and returns once none of them can run. Blocks.
    pub(crate) fn freeze(&mut self) -> io::Result<()> {
        match &mut self.means {
            Means::Group(group) => {
                let frozen = order(group, true).and_then(|()| await_frozen(group));
                if frozen.is_err() {
                    let _ = order(group, false);
                }
                frozen
            }
            Means::Signals { stopped_before } => stop_all(stopped_before),
        }
    }

    /// Lets every process run that ran before. Blocks.
    pub(crate) fn thaw(&mut self) -> io::Result<()> {
        match &mut self.means {
            Means::Group(group) => order(group, false),
            Means::Signals { stopped_before } => continue_all(&std::mem::take(stopped_before)),
        }
    }
}

fn order(group: &FreezerGroup, freeze: bool) -> io::Result<()> {
    let order: &[u8] = match (group.tier, freeze) {
        (FreezerTier::CgroupV1, true) => b"FROZEN",
        (FreezerTier::CgroupV1, false) => b"THAWED",
        (_, true) => b"1",
        (_, false) => b"0",
    };
    rustix::io::write(&group.order, order)?;
    Ok(())
}

fn await_frozen(group: &FreezerGroup) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut text = [0; 256];
        let length = rustix::io::pread(&group.state, &mut text, 0)?;
        let frozen =
            text[..length].split(|byte| *byte == b'\n').any(|line| line == b"FROZEN" || line == b"frozen 1");
        if frozen {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "processes do not freeze"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// A process as `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    parent: i32,
    state: u8,
}

/// Returns the processes of this namespace except PID 1 and those that ended.
fn processes() -> io::Result<BTreeMap<i32, Seen>> {
    let mut seen = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // One that is gone by now needs no stopping.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if let Some(process) = parse_stat(&stat)
            && pid != 1
            && !matches!(process.state, b'Z' | b'X')
        {
            seen.insert(pid, process);
        }
    }
    Ok(seen)
}

fn parse_stat(stat: &str) -> Option<Seen> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some(Seen { state: *fields.next()?.as_bytes().first()?, parent: fields.next()?.parse().ok()? })
}

fn is_stopped(process: Seen) -> bool {
    matches!(process.state, b'T' | b't')
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may be gone by now.
        let _ = kill_process(pid, signal);
    }
}

fn stop_all(stopped_before: &mut BTreeSet<i32>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let first = processes()?;
    stopped_before.extend(first.iter().filter(|(_, process)| is_stopped(**process)).map(|(pid, _)| *pid));
    let mut signalled = BTreeSet::new();
    loop {
        // A process forks until it stops: look again until everything that is there is stopped.
        let running: Vec<i32> =
            processes()?.iter().filter(|(_, process)| !is_stopped(**process)).map(|(pid, _)| *pid).collect();
        if running.is_empty() {
            return Ok(());
        }
        let fresh: Vec<i32> = running.iter().copied().filter(|pid| signalled.insert(*pid)).collect();
        for pid in &fresh {
            signal(*pid, Signal::STOP);
        }
        if Instant::now() > deadline {
            continue_all(stopped_before)?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "processes do not stop"));
        }
        if fresh.is_empty() {
            // Somebody inside may have sent SIGCONT in between.
            for pid in running {
                signal(pid, Signal::STOP);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Continues children before their parents: a shell that sees its job stopped gives up the terminal.
fn continue_all(stopped_before: &BTreeSet<i32>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let seen = processes()?;
    for pid in leaves_first(&seen) {
        if stopped_before.contains(&pid) || !is_stopped(seen[&pid]) {
            continue;
        }
        signal(pid, Signal::CONT);
        while fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|stat| parse_stat(&stat))
            .is_some_and(is_stopped)
        {
            if Instant::now() > deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("process {pid} does not continue"),
                ));
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Orders processes so that each comes after all its descendants.
fn leaves_first(seen: &BTreeMap<i32, Seen>) -> Vec<i32> {
    let depth = |pid: i32| {
        let (mut at, mut depth) = (pid, 0);
        // The second bound ends a ring, which only a snapshot that was taken in pieces can show.
        while let Some(process) = seen.get(&at).filter(|_| depth < seen.len()) {
            at = process.parent;
            depth += 1;
        }
        depth
    };
    let mut order: Vec<i32> = seen.keys().copied().collect();
    order.sort_by_key(|pid| std::cmp::Reverse(depth(*pid)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_come_before_their_parents() {
        let seen = [(10, 1), (11, 10), (5, 11), (12, 1)]
            .into_iter()
            .map(|(pid, parent)| (pid, Seen { parent, state: b'T' }))
            .collect();
        let order = leaves_first(&seen);
        let place = |pid| order.iter().position(|at| *at == pid).unwrap();
        assert!(place(5) < place(11) && place(11) < place(10));
    }

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_state() {
        assert_eq!(parse_stat("7 (a) R (b)) T 3 7 7 0"), Some(Seen { parent: 3, state: b'T' }));
    }
}
