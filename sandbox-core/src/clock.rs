//! Time that no setting of a clock can move, to measure how old a record is across processes of one machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment since the machine's boot, and which boot that was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootTime {
    boot_id: String,
    since_boot: Duration,
}

impl BootTime {
    /// Reads the present moment; `None` on systems that do not tell.
    #[must_use]
    pub fn now() -> Option<Self> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
        let seconds: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let since_boot = Duration::try_from_secs_f64(seconds).ok()?;
        Some(Self { boot_id: boot_id.trim().to_owned(), since_boot })
    }

    /// Returns how long ago this was; `None` when the machine was booted since, or is another one.
    #[must_use]
    pub fn elapsed(&self) -> Option<Duration> {
        let now = Self::now()?;
        (now.boot_id == self.boot_id).then(|| now.since_boot.saturating_sub(self.since_boot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_another_boot_is_not_known() {
        let Some(now) = BootTime::now() else {
            println!("skipped: needs /proc/uptime");
            return;
        };
        assert!(now.elapsed().is_some());
        assert_eq!(BootTime { boot_id: "another".to_owned(), ..now }.elapsed(), None);
    }
}
