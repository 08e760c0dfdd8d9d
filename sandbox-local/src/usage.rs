//! What the processes of a sandbox use, counted from inside, where all of them and nobody else can be seen.

use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Clock ticks a second in `/proc`: `USER_HZ`, which is 100 on every architecture that this runs on.
const TICKS: f64 = 100.0;

/// What is used at a moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Per cent of one processor since the last question; since the start for the first.
    pub(crate) cpu_percent: f64,
    /// Bytes of memory that processes have of their own.
    pub(crate) memory: u64,
    /// Bytes of memory of the machine.
    pub(crate) memory_of_host: u64,
    /// Bytes used and there in the file system that is written to.
    pub(crate) disk_used: u64,
    pub(crate) disk_total: u64,
}

/// Remembers from when the load is counted.
#[derive(Debug)]
pub(crate) struct Meter(Mutex<(Instant, u64)>);

impl Meter {
    pub(crate) fn new() -> Self {
        Self(Mutex::new((Instant::now(), 0)))
    }

    /// Counts. The files are the kernel's own: reading them does not wait for a disk.
    pub(crate) fn read(&self) -> io::Result<Usage> {
        let (mut ticks, mut pages) = (0, 0);
        for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
            if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            // One that just ended counts with its parent.
            ticks +=
                fs::read_to_string(entry.path().join("stat")).ok().and_then(|text| cpu(&text)).unwrap_or(0);
            pages +=
                fs::read_to_string(entry.path().join("statm")).ok().and_then(|text| own(&text)).unwrap_or(0);
        }
        let now = Instant::now();
        let (since, before) = {
            let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *last, (now, ticks))
        };
        let seconds = now.duration_since(since).as_secs_f64();
        // What a process used that nobody waited for is forgotten with it.
        let used = ticks.saturating_sub(before) as f64 / TICKS;
        let disk = rustix::fs::statvfs("/")?;
        Ok(Usage {
            cpu_percent: if seconds > 0.0 { (used / seconds * 10_000.0).round() / 100.0 } else { 0.0 },
            memory: pages * rustix::param::page_size() as u64,
            memory_of_host: total_memory(&fs::read_to_string("/proc/meminfo")?),
            disk_used: disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize,
            disk_total: disk.f_blocks * disk.f_frsize,
        })
    }
}

/// The ticks of a process and of the children that it waited for: fields 14 to 17 of `/proc/PID/stat`.
fn cpu(stat: &str) -> Option<u64> {
    // The name, in parentheses, may itself hold spaces and parentheses.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    Some(fields.filter_map(|field| field.parse::<u64>().ok()).sum())
}

/// The pages of a process that no file stands behind: resident less shared of `/proc/PID/statm`.
fn own(statm: &str) -> Option<u64> {
    let mut fields = statm.split_whitespace().skip(1).map(|field| field.parse::<u64>().ok());
    let (resident, shared) = (fields.next()??, fields.next()??);
    Some(resident.saturating_sub(shared))
}

fn total_memory(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_with_the_children_it_waited_for() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 10 5 3 2 20 0 1 0 100 1000 10";
        assert_eq!(cpu(stat), Some(20));
        assert_eq!(cpu("7"), None);
        assert_eq!(own("1000 300 200 1 0 50 0"), Some(100));
        assert_eq!(total_memory("MemTotal:   16 kB\n"), 16 << 10);
    }
}
