//! The clock of a host, set wrong.
//!
//! The program brings a `clock_gettime` of its own, which stands before that of the C library: so every reading of the time
//! of day in a host is off, in whatever crate. Clocks that count from the boot are left alone, as nobody can set them.
#![expect(unsafe_code, reason = "a function of the C library is replaced")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, Timespec, clock_gettime as real};

static SKEW_SECONDS: AtomicI64 = AtomicI64::new(0);

/// `CLOCK_REALTIME` of Linux.
const REALTIME: c_int = 0;

/// Sets the time of day of this process off by so many seconds.
pub(crate) fn set_skew(seconds: i64) {
    SKEW_SECONDS.store(seconds, Ordering::Relaxed);
}

/// Nanoseconds since the boot: one clock for all processes of this machine.
pub(crate) fn since_boot() -> u64 {
    let now = real(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000
        + u64::try_from(now.tv_nsec).unwrap_or_default()
}

// SAFETY: the name and the signature are those of POSIX, and it does what POSIX asks for.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: c_int, into: *mut Timespec) -> c_int {
    let id = match clock {
        REALTIME => ClockId::Realtime,
        2 => ClockId::ProcessCPUTime,
        3 => ClockId::ThreadCPUTime,
        5 => ClockId::RealtimeCoarse,
        6 => ClockId::MonotonicCoarse,
        7 => ClockId::Boottime,
        // What is left are kinds of the monotonic one.
        _ => ClockId::Monotonic,
    };
    let mut now = real(id);
    if clock == REALTIME {
        now.tv_sec += SKEW_SECONDS.load(Ordering::Relaxed);
    }
    // SAFETY: the caller gives a place for a time, as POSIX asks of it.
    unsafe { into.write(now) };
    0
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use super::*;

    #[test]
    fn the_time_of_day_of_the_standard_library_is_off_by_the_skew_and_nothing_else_is() {
        let (day, steady) = (SystemTime::now(), Instant::now());
        set_skew(3600);
        let ahead = SystemTime::now().duration_since(day).unwrap_or_default();
        assert!(ahead >= Duration::from_secs(3600) && ahead < Duration::from_secs(3700), "{ahead:?}");
        assert!(steady.elapsed() < Duration::from_secs(100));
        set_skew(0);
    }
}
