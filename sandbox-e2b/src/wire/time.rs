use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const DAY: i64 = 86_400;

/// A moment as RFC 3339 text, such as `2026-08-01T12:00:00.5Z`; written in UTC, with as many digits as are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub SystemTime);

/// The text is no RFC 3339 date and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimestampError(String);

impl fmt::Display for TimestampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.0.chars().take(64).collect();
        write!(f, "{shown:?} is no RFC 3339 date and time")
    }
}

impl std::error::Error for TimestampError {}

impl Default for Timestamp {
    fn default() -> Self {
        Self(UNIX_EPOCH)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(at: SystemTime) -> Self {
        Self(at)
    }
}

impl Timestamp {
    /// Returns whole seconds since 1970, rounded down.
    #[must_use]
    pub fn unix_seconds(self) -> i64 {
        self.parts().0
    }

    /// Returns the moment so many milliseconds after 1970; `None` where the system's clock has no such moment.
    #[must_use]
    pub fn from_unix_millis(millis: i64) -> Option<Self> {
        moment(millis.div_euclid(1000), u32::try_from(millis.rem_euclid(1000)).ok()? * 1_000_000).map(Self)
    }

    /// Returns whole milliseconds since 1970, rounded down.
    #[must_use]
    pub fn unix_millis(self) -> i64 {
        let (seconds, nanos) = self.parts();
        seconds.saturating_mul(1000).saturating_add(i64::from(nanos / 1_000_000))
    }

    fn parts(self) -> (i64, u32) {
        match self.0.duration_since(UNIX_EPOCH) {
            Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                let seconds = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => (seconds, 0),
                    nanos => (seconds.saturating_sub(1), 1_000_000_000 - nanos),
                }
            }
        }
    }
}

fn moment(seconds: i64, nanos: u32) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base?.checked_add(Duration::from_nanos(u64::from(nanos)))
}

/// Days since 1970 of a civil date, by the proleptic Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // The year begins in March, so that the leap day is its last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = self.parts();
        let (year, month, day) = date_of(seconds.div_euclid(DAY));
        let of_day = seconds.rem_euclid(DAY);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if nanos != 0 {
            write!(f, ".{}", format!("{nanos:09}").trim_end_matches('0'))?;
        }
        f.write_str("Z")
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self).ok_or_else(|| TimestampError(text.to_owned()))
    }
}

/// Reads so many digits from the front.
fn digits(rest: &mut &[u8], count: usize) -> Option<i64> {
    let (number, after) = rest.split_at_checked(count)?;
    *rest = after;
    number.iter().try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))
}

/// Reads one of these bytes from the front.
fn mark(rest: &mut &[u8], allowed: &[u8]) -> Option<u8> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    allowed.contains(first).then_some(*first)
}

fn parse(text: &str) -> Option<SystemTime> {
    let rest = &mut text.as_bytes();
    let year = digits(rest, 4)?;
    mark(rest, b"-")?;
    let month = digits(rest, 2)?;
    mark(rest, b"-")?;
    let day = digits(rest, 2)?;
    mark(rest, b"Tt ")?;
    let hour = digits(rest, 2)?;
    mark(rest, b":")?;
    let minute = digits(rest, 2)?;
    mark(rest, b":")?;
    let second = digits(rest, 2)?;
    let mut nanos = 0;
    if rest.first() == Some(&b'.') {
        mark(rest, b".")?;
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut scale = 100_000_000;
        // Digits beyond nanoseconds carry nothing that a clock here could hold.
        for digit in &rest[..count] {
            nanos += u32::from(digit - b'0') * scale;
            scale /= 10;
        }
        *rest = &rest[count..];
        if count == 0 {
            return None;
        }
    }
    let offset = match mark(rest, b"Zz+-")? {
        sign @ (b'+' | b'-') => {
            let hours = digits(rest, 2)?;
            mark(rest, b":")?;
            let minutes = digits(rest, 2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = hours * 3600 + minutes * 60;
            if sign == b'-' { -seconds } else { seconds }
        }
        _ => 0,
    };
    let days = days_of(year, month, day);
    // A leap second (60) is taken for the first second of the next minute.
    let in_range = (1..=12).contains(&month) && hour <= 23 && minute <= 59 && second <= 60;
    if !rest.is_empty() || !in_range || date_of(days) != (year, month, day) {
        return None;
    }
    moment(days * DAY + hour * 3600 + minute * 60 + second - offset, nanos)
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().unix_seconds()
    }

    #[test]
    fn moments_are_read_in_every_form_that_the_standard_allows() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), 0);
        assert_eq!(seconds("2026-08-01T12:00:00Z"), 1_785_585_600);
        assert_eq!(seconds("2026-08-01t14:00:00.123456789+02:00"), 1_785_585_600);
        assert_eq!(seconds("2000-02-29 23:59:60-00:30"), seconds("2000-03-01T00:30:00Z"));
        assert_eq!(seconds("1969-12-31T23:59:59.5Z"), -1);
        let fine: Timestamp = "2026-08-01T12:00:00.0501234567Z".parse().unwrap();
        assert_eq!(fine.to_string(), "2026-08-01T12:00:00.050123456Z");
        assert_eq!(fine.unix_millis(), 1_785_585_600_050);
        assert_eq!(Timestamp::from_unix_millis(-1).unwrap().to_string(), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "now",
            "2026-08-01",
            "2026-08-01T12:00:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00Zx",
            "2026-01-01T00:00:00+25:00",
            "２026-01-01T00:00:00Z",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(seconds in -62_135_596_800i64..253_402_300_800, nanos in 0u32..1_000_000_000) {
            let at = Timestamp(moment(seconds, nanos).unwrap());
            prop_assert_eq!(at.to_string().parse::<Timestamp>(), Ok(at));
        }

        #[test]
        fn no_text_breaks_the_reader(text in "\\PC*") {
            let _ = text.parse::<Timestamp>();
        }
    }
}
