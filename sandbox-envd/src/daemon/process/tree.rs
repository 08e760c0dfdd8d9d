//! Everything a command left running, and how to end all of it.
//!
//! A process belongs to a command if it descends from the command's own process, shares its session or
//! process group, or carries the command's marker in its environment: the last finds those that forked twice
//! and made a session of their own. Every look is a whole snapshot, taken before anything is signalled, because
//! whoever loses its parent is a descendant no more.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::time::Instant;

/// The variable that marks a command's processes; its value is unique to the command.
pub(crate) const MARKER: &str = "SANDHOLD_EXEC";

/// How long killing may take before what is left (frozen, or stuck in the kernel) is reported.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// What identifies a command's processes.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// The direct child, which leads its session and process group.
    pub(crate) leader: Pid,
    /// Value of [`MARKER`].
    pub(crate) nonce: String,
    /// When the command was started, in ticks since boot: nothing older belongs to it.
    pub(crate) started: u64,
    /// When the leader was collected: from then on its number may be another process'.
    pub(crate) collected: Option<u64>,
}

/// Looks that must find nothing in a row where a process shows no environment: it may be executing its program.
const DOUBTFUL_LOOKS: u32 = 3;

/// What one look at all processes found.
#[derive(Debug, Default)]
struct Look {
    members: Vec<Member>,
    /// Whether there was a process that cannot be told from a stranger at this moment.
    doubtful: bool,
}

/// One process, told apart from a later one of the same number by its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    pid: Pid,
    start: u64,
}

/// Returns the time in the kernel's clock ticks since boot, as `/proc/PID/stat` counts them (100 a second).
pub(crate) fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 100 + now.tv_nsec.unsigned_abs() / 10_000_000
}

impl Tree {
    /// Sends `signal` to every process of the command that lives now; returns how many there were.
    pub(crate) async fn signal(&self, signal: Signal) -> io::Result<usize> {
        Ok(self.look_and_signal(signal).await?.members.len())
    }

    /// Kills until nothing is left; returns how many the looks found at most.
    ///
    /// # Errors
    ///
    /// `TimedOut` if processes are left after five seconds.
    pub(crate) async fn kill(&self) -> io::Result<usize> {
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        let (mut found, mut empty_looks) = (0, 0);
        loop {
            let Look { members, doubtful } = self.look_and_signal(Signal::KILL).await?;
            found = found.max(members.len());
            empty_looks = if members.is_empty() { empty_looks + 1 } else { 0 };
            if empty_looks >= if doubtful { DOUBTFUL_LOOKS } else { 1 } {
                return Ok(found);
            }
            if started.elapsed() > KILL_LIMIT {
                let text = format!("{} processes of the command do not end after SIGKILL", members.len());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            // A killed process needs a moment to die, and may have forked before it did.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    async fn look_and_signal(&self, signal: Signal) -> io::Result<Look> {
        let tree = self.clone();
        tokio::task::spawn_blocking(move || {
            let look = tree.look()?;
            look.members.iter().try_for_each(|member| member.signal(signal))?;
            Ok(look)
        })
        .await
        .map_err(io::Error::other)?
    }

    fn look(&self) -> io::Result<Look> {
        let own = rustix::process::getpid();
        let all: Vec<Stat> = processes()?.collect();
        let mut children: HashMap<i32, Vec<&Stat>> = HashMap::new();
        for stat in &all {
            children.entry(stat.parent).or_default().push(stat);
        }
        let mut seen: HashSet<i32> = HashSet::new();
        let mut members = Vec::new();
        let mut doubtful = false;
        let mut open: Vec<&Stat> = all.iter().filter(|stat| self.is_root(stat, &mut doubtful)).collect();
        while let Some(stat) = open.pop() {
            if stat.pid == own || stat.pid.is_init() || !seen.insert(stat.pid.as_raw_nonzero().get()) {
                continue;
            }
            open.extend(children.get(&stat.pid.as_raw_nonzero().get()).into_iter().flatten());
            if !stat.dead {
                members.push(Member { pid: stat.pid, start: stat.start });
            }
        }
        // Parents first: a shell whose child dies before it would exit by itself, and its end be misread.
        members.sort_by_key(|member| (member.pid != self.leader, member.start, member.pid.as_raw_nonzero()));
        Ok(Look { members, doubtful })
    }

    fn is_root(&self, stat: &Stat, doubtful: &mut bool) -> bool {
        if stat.dead || stat.start < self.started {
            return false;
        }
        let leader = self.leader.as_raw_nonzero().get();
        // A number is not given away while it still names a session or group, so older users of it are ours.
        let numbers_hold = self.collected.is_none_or(|collected| stat.start <= collected);
        if numbers_hold && (stat.session == leader || stat.group == leader) {
            return true;
        }
        let environ = environ(stat.pid).unwrap_or_default();
        *doubtful |= environ.is_empty();
        let marker = format!("{MARKER}={}", self.nonce);
        environ.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
    }
}

impl Member {
    /// Signals this very process: the descriptor is opened first, then its start compared.
    fn signal(self, signal: Signal) -> io::Result<()> {
        let sent = match rustix::process::pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(fd) if Stat::of(self.pid).is_some_and(|stat| stat.start == self.start) => {
                rustix::process::pidfd_send_signal(fd, signal)
            }
            Ok(_) => return Ok(()),
            Err(Errno::NOSYS) => rustix::process::kill_process(self.pid, signal),
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

struct Stat {
    pid: Pid,
    dead: bool,
    parent: i32,
    group: i32,
    session: i32,
    start: u64,
}

impl Stat {
    fn of(pid: Pid) -> Option<Self> {
        parse(pid, &fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
    }
}

fn processes() -> io::Result<impl Iterator<Item = Stat>> {
    let pids = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // One that ended since is simply not there any more.
    Ok(pids.filter_map(Pid::from_raw).filter_map(Stat::of))
}

/// Parses proc_pid_stat(5); the second field may itself hold spaces and parentheses.
fn parse(pid: Pid, line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse().ok();
    Some(Stat {
        pid,
        dead: matches!(*fields.first()?, "Z" | "X"),
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        start: fields.get(19)?.parse().ok()?,
    })
}

fn environ(pid: Pid) -> io::Result<Vec<u8>> {
    let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let owner = fs::metadata(format!("/proc/{}", pid.as_raw_nonzero()))?;
            as_owner(owner.uid(), owner.gid(), || fs::read(&path))
        }
        result => result,
    }
}

/// Runs `read` with another user's file identity: root without `CAP_SYS_PTRACE` may not read the environment
/// of other users' processes, but those users may.
#[expect(unsafe_code, reason = "the file identity of one thread can be set by system call only")]
fn as_owner<T>(uid: u32, gid: u32, read: impl FnOnce() -> T) -> T {
    // SAFETY: both calls change this thread alone, cannot touch memory, and are undone before it returns.
    let (old_gid, old_uid) =
        unsafe { (libc::syscall(libc::SYS_setfsgid, gid), libc::syscall(libc::SYS_setfsuid, uid)) };
    let result = read();
    // SAFETY: as above.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, old_uid);
        libc::syscall(libc::SYS_setfsgid, old_gid);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let line = "7 (a) b (c) S 3 5 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let stat = parse(Pid::from_raw(7).unwrap(), line).unwrap();
        assert_eq!((stat.parent, stat.group, stat.session, stat.start), (3, 5, 6, 4711));
        assert!(!stat.dead);
    }

    #[test]
    fn this_process_is_found_with_a_start_before_now() {
        let stat = Stat::of(rustix::process::getpid()).unwrap();
        assert!(stat.start <= ticks_since_boot());
    }
}
