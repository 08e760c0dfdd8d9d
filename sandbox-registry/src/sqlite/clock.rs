//! The clock of leases: it counts from the machine's boot, and no setting of the time of day moves it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sandhold_core::{Error, ErrorKind, Result};

/// The clock of this boot, which every process of the machine reads alike.
#[derive(Clone, Debug)]
pub(super) struct BootClock {
    boot_id: String,
}

impl BootClock {
    pub(super) fn new() -> Result<Self> {
        const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
        let boot_id = std::fs::read_to_string(BOOT_ID).map_err(|error| {
            Error::new(ErrorKind::Unsupported, "this system does not tell its boots apart, which leases need")
                .with_context("path", BOOT_ID)
                .with_source(error)
        })?;
        Ok(Self { boot_id: boot_id.trim().to_owned() })
    }

    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Nanoseconds since the boot, the time asleep included.
    pub(super) fn now(&self) -> i64 {
        let now = clock_gettime(ClockId::Boottime);
        now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
    }

    /// The moment so long from now.
    pub(super) fn after(&self, time: Duration) -> i64 {
        self.now().saturating_add(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
    }
}
