use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The parts of a moment in UTC: year, month, day, hour, minute, second.
fn civil(seconds: u64) -> (u64, u64, u64, u64, u64, u64) {
    // The year begins in March, so that the leap day is its last; the Gregorian calendar repeats after 400 years.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let of_day = seconds % 86_400;
    (year + era * 400 + u64::from(month <= 2), month, day, of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// `20260131-235959`, as ids begin.
pub(crate) fn compact(ms: u64) -> String {
    let (year, month, day, hour, minute, second) = civil(ms / 1000);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// The seconds since 1970 of `20260131-235959`.
pub(crate) fn of_compact(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(4..6)?, number(6..8)?);
    let (hour, minute, second) = (number(9..11)?, number(11..13)?, number(13..15)?);
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let of_era = year % 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    let days =
        (year / 400 * 146_097 + of_era * 365 + of_era / 4 + of_year).checked_sub(of_era / 100 + 719_468)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// `2026-01-31T23:59:59Z`.
pub(crate) fn rfc3339(ms: u64) -> String {
    let (year, month, day, hour, minute, second) = civil(ms / 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_as_the_calendar_has_them() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399_999), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(compact(1_709_251_199_000), "20240229-235959");
        assert_eq!(of_compact("20240229-235959"), Some(1_709_251_199));
        assert_eq!(of_compact("19700101-000000"), Some(0));
        assert_eq!(compact(4_107_542_400_000), "21000301-000000");
    }
}
