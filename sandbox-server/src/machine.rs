//! The machine that sandboxes run on, as far as clients are told.

use std::path::Path;

/// What every sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cpu_count: u32,
    /// In MiB; 0 where the system does not tell.
    pub(crate) memory_mb: u64,
    /// The size of the file system that the server's home is on, in MiB; 0 where the system does not tell.
    pub(crate) disk_mb: u64,
}

impl Machine {
    /// Looks at this machine; `home` is on the file system that sandboxes are kept on. Blocks.
    pub(crate) fn look(home: &Path) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let disk = rustix::fs::statvfs(home).map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
        Self {
            cpu_count: u32::try_from(cores).unwrap_or(u32::MAX),
            memory_mb: memory_mb(&memory),
            disk_mb: disk >> 20,
        }
    }
}

fn memory_mb(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_whole_mebibytes() {
        assert_eq!(memory_mb("MemTotal:       2097152 kB\nMemFree: 1 kB\n"), 2048);
        assert_eq!(memory_mb(""), 0);
    }
}
