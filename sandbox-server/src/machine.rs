//! The machine that sandboxes run on, as far as clients are told.

/// What every sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cpu_count: u32,
    /// In MiB; 0 where the system does not tell.
    pub(crate) memory_mb: u64,
}

impl Machine {
    /// Looks at this machine.
    pub(crate) fn look() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self { cpu_count: u32::try_from(cores).unwrap_or(u32::MAX), memory_mb: memory_mb(&memory) }
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
