//! `GET /metrics`: load, memory and disk, as E2B's envd reports them.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use http::{Response, StatusCode};
use serde::Serialize;

use crate::daemon::http::{Body, json, json_error};

#[derive(Serialize)]
struct Sample {
    /// Unix seconds.
    ts: u64,
    cpu_count: usize,
    /// Percent of all CPUs together since the sample before, or since boot for the first.
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Clock ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    total: u64,
}

/// Remembers what the load is counted from.
#[derive(Default)]
pub(crate) struct Metrics {
    last: Mutex<CpuTimes>,
}

impl Metrics {
    pub(crate) fn answer(&self) -> Response<Body> {
        match self.sample() {
            Ok(sample) => json(StatusCode::OK, &sample),
            Err(error) => {
                let message = format!("the metrics cannot be read: {error}");
                json_error(StatusCode::INTERNAL_SERVER_ERROR, &message)
            }
        }
    }

    // The files are the kernel's own: reading them does not wait for a disk.
    fn sample(&self) -> io::Result<Sample> {
        let times = parse_cpu(&std::fs::read_to_string("/proc/stat")?)
            .ok_or_else(|| io::Error::other("/proc/stat has no line for all CPUs"))?;
        let last = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *last, times)
        };
        let memory = std::fs::read_to_string("/proc/meminfo")?;
        let bytes = |name| parse_memory(&memory, name);
        let total = bytes("MemTotal");
        let used = total.saturating_sub(bytes("MemAvailable"));
        let disk = rustix::fs::statvfs("/")?;
        Ok(Sample {
            ts: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_used_pct: used_percent(last, times),
            mem_total: total,
            mem_used: used,
            mem_cache: bytes("Cached"),
            mem_total_mib: total >> 20,
            mem_used_mib: used >> 20,
            disk_used: disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize,
            disk_total: disk.f_blocks * disk.f_frsize,
        })
    }
}

/// Reads the first line of `/proc/stat`: user nice system idle iowait irq softirq steal (guest is in user).
fn parse_cpu(stat: &str) -> Option<CpuTimes> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4).copied().unwrap_or(0);
    let total = ticks.iter().sum::<u64>();
    Some(CpuTimes { busy: total.saturating_sub(idle), total })
}

fn used_percent(last: CpuTimes, now: CpuTimes) -> f64 {
    let total = now.total.saturating_sub(last.total);
    if total == 0 {
        return 0.0;
    }
    let percent = now.busy.saturating_sub(last.busy) as f64 * 100.0 / total as f64;
    (percent.min(100.0) * 100.0).round() / 100.0
}

/// Returns a line of `/proc/meminfo` in bytes; a line that is missing counts nothing.
fn parse_memory(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_the_busy_share_of_the_ticks_between_two_samples() {
        let first = parse_cpu("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 1 1 1\n").unwrap();
        assert_eq!(first, CpuTimes { busy: 20, total: 100 });
        let second = CpuTimes { busy: 45, total: 200 };
        assert_eq!(used_percent(first, second), 25.0);
        assert_eq!(used_percent(second, second), 0.0);
        assert_eq!(parse_cpu("intr 1 2 3\n"), None);
    }

    #[test]
    fn memory_lines_are_kibibytes() {
        let meminfo = "MemTotal:       16 kB\nCached:  2 kB\nSwapCached: 9 kB\n";
        assert_eq!(parse_memory(meminfo, "MemTotal"), 16 << 10);
        assert_eq!(parse_memory(meminfo, "Cached"), 2 << 10);
        assert_eq!(parse_memory(meminfo, "MemAvailable"), 0);
    }
}
