//! What a client asks for besides the content: an encoding, a part, or only what changed.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{
    ACCEPT_ENCODING, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    RANGE,
};

/// The encoding of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
}

/// Chooses the encoding; `None` when the client accepts neither of the two.
///
/// Identity is what a request for a part, or one with a condition, gets in any case.
pub(super) fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    let plain = [RANGE, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_MATCH, IF_UNMODIFIED_SINCE];
    if plain.iter().any(|name| headers.contains_key(name)) {
        return Some(Encoding::Identity);
    }
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut wishes: Vec<(String, f32)> = values.flat_map(|value| value.split(',')).map(wish).collect();
    // Equal wishes stay in the order they were said.
    wishes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let quality = |name: &str| wishes.iter().find(|(wish, _)| wish == name).map(|(_, quality)| *quality);
    let identity_refused = match quality("identity") {
        Some(quality) => quality <= 0.0,
        None => quality("*").is_some_and(|quality| quality <= 0.0),
    };
    for (name, _) in wishes.iter().filter(|(_, quality)| *quality > 0.0) {
        match name.as_str() {
            "gzip" | "x-gzip" => return Some(Encoding::Gzip),
            "identity" => return Some(Encoding::Identity),
            "*" if identity_refused => return Some(Encoding::Gzip),
            "*" => return Some(Encoding::Identity),
            _ => {}
        }
    }
    (!identity_refused).then_some(Encoding::Identity)
}

fn wish(text: &str) -> (String, f32) {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    (name, quality.map_or(1.0, |quality| quality.trim().parse().unwrap_or(0.0)))
}

/// What the conditions of a request come to. Files have no entity tag, so only `*` matches one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// Send it; a part of it only if `range` still holds.
    Send {
        range: bool,
    },
    NotModified,
    Failed,
}

/// Evaluates the conditions (RFC 9110 section 13.2.2) for a file of that age.
pub(super) fn condition(headers: &HeaderMap, modified: SystemTime) -> Condition {
    // HTTP dates have whole seconds.
    let modified = whole_seconds(modified);
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let date = |name| text(name).and_then(|value| httpdate::parse_http_date(value).ok());
    let precondition = match text(IF_MATCH) {
        Some(tags) => tags == "*",
        None => date(IF_UNMODIFIED_SINCE).is_none_or(|since| modified <= since),
    };
    if !precondition {
        return Condition::Failed;
    }
    let unchanged = match text(IF_NONE_MATCH) {
        Some(tags) => tags == "*",
        None => date(IF_MODIFIED_SINCE).is_some_and(|since| modified <= since),
    };
    if unchanged {
        return Condition::NotModified;
    }
    let range = headers.get(IF_RANGE).is_none() || date(IF_RANGE) == Some(modified);
    Condition::Send { range }
}

/// Cuts a time to whole seconds.
pub(super) fn whole_seconds(time: SystemTime) -> SystemTime {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(age) => SystemTime::UNIX_EPOCH + Duration::from_secs(age.as_secs()),
        Err(_) => SystemTime::UNIX_EPOCH,
    }
}

/// What a `Range` header asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Bytes(Range<u64>),
    /// Nothing the file has, or nothing that can be read.
    Unsatisfiable,
}

/// Reads a `Range` header for a body of `size` bytes. Several ranges at once are answered with the whole, which
/// RFC 9110 section 14.2 allows.
pub(super) fn part(header: Option<&str>, size: u64) -> Part {
    let Some(header) = header else { return Part::Whole };
    let Some(ranges) = header.trim().strip_prefix("bytes=") else { return Part::Unsatisfiable };
    let mut wanted = ranges.split(',').map(str::trim).filter(|range| !range.is_empty());
    let (Some(range), None) = (wanted.next(), wanted.next()) else {
        return if ranges.contains(',') { Part::Whole } else { Part::Unsatisfiable };
    };
    if size == 0 {
        return Part::Whole;
    }
    let number = |text: &str| -> Option<u64> {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    };
    let found = range.split_once('-').and_then(|(first, last)| match (first.trim(), last.trim()) {
        ("", last) => {
            let length = number(last)?.min(size);
            (length > 0).then(|| size - length..size)
        }
        (first, "") => Some(number(first)?..size),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| first..last.saturating_add(1).min(size))
        }
    });
    match found {
        Some(range) if range.start < size => Part::Bytes(range),
        _ => Part::Unsatisfiable,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn accept(value: &str) -> Option<Encoding> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_str(value).unwrap());
        encoding(&headers)
    }

    #[test]
    fn gzip_is_used_when_it_is_accepted_and_identity_is_not_liked_better() {
        assert_eq!(encoding(&HeaderMap::new()), Some(Encoding::Identity));
        for (value, chosen) in [
            ("gzip, deflate", Some(Encoding::Gzip)),
            ("GZIP;q=0.1", Some(Encoding::Gzip)),
            ("gzip;q=0", Some(Encoding::Identity)),
            ("gzip;q=0.5, identity", Some(Encoding::Identity)),
            ("br, deflate", Some(Encoding::Identity)),
            ("*", Some(Encoding::Identity)),
            ("identity;q=0, *", Some(Encoding::Gzip)),
            ("identity;q=0", None),
            ("br, identity;q=0", None),
            ("br, *;q=0", None),
            ("*;q=0, identity", Some(Encoding::Identity)),
            ("gzip;q=junk", Some(Encoding::Identity)),
        ] {
            assert_eq!(accept(value), chosen, "{value}");
        }
    }

    #[test]
    fn a_request_for_a_part_or_with_a_condition_gets_identity() {
        for name in [RANGE, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_RANGE] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, identity;q=0"));
            headers.insert(name, HeaderValue::from_static("x"));
            assert_eq!(encoding(&headers), Some(Encoding::Identity));
        }
    }

    #[test]
    fn ranges_mean_what_rfc_9110_says() {
        for (header, part_of_ten) in [
            ("bytes=0-0", Part::Bytes(0..1)),
            ("bytes=2-5", Part::Bytes(2..6)),
            ("bytes=2-", Part::Bytes(2..10)),
            ("bytes=-3", Part::Bytes(7..10)),
            ("bytes=-30", Part::Bytes(0..10)),
            ("bytes=9-99999999999999999999", Part::Unsatisfiable),
            ("bytes=9-18446744073709551615", Part::Bytes(9..10)),
            ("bytes=10-", Part::Unsatisfiable),
            ("bytes=5-2", Part::Unsatisfiable),
            ("bytes=-0", Part::Unsatisfiable),
            ("bytes=", Part::Unsatisfiable),
            ("bytes=+1-2", Part::Unsatisfiable),
            ("lines=1-2", Part::Unsatisfiable),
            ("bytes=0-1,3-4", Part::Whole),
        ] {
            assert_eq!(part(Some(header), 10), part_of_ten, "{header}");
        }
        assert_eq!(part(None, 10), Part::Whole);
        assert_eq!(part(Some("bytes=0-"), 0), Part::Whole);
    }

    #[test]
    fn conditions_are_those_of_a_file_without_a_tag() {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_500);
        let when = |seconds| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            HeaderValue::from_str(&httpdate::fmt_http_date(time)).unwrap()
        };
        let ask = |name: HeaderName, value: HeaderValue| {
            condition(&HeaderMap::from_iter([(name, value)]), modified)
        };
        let send = Condition::Send { range: true };
        assert_eq!(ask(IF_MODIFIED_SINCE, when(1_000_000)), Condition::NotModified);
        assert_eq!(ask(IF_MODIFIED_SINCE, when(999_999)), send);
        assert_eq!(ask(IF_UNMODIFIED_SINCE, when(999_999)), Condition::Failed);
        assert_eq!(ask(IF_UNMODIFIED_SINCE, when(1_000_000)), send);
        assert_eq!(ask(IF_NONE_MATCH, HeaderValue::from_static("*")), Condition::NotModified);
        assert_eq!(ask(IF_NONE_MATCH, HeaderValue::from_static("\"a\"")), send);
        assert_eq!(ask(IF_MATCH, HeaderValue::from_static("\"a\"")), Condition::Failed);
        assert_eq!(ask(IF_RANGE, when(1_000_000)), send);
        assert_eq!(ask(IF_RANGE, when(1_000_001)), Condition::Send { range: false });
        assert_eq!(ask(IF_RANGE, HeaderValue::from_static("\"a\"")), Condition::Send { range: false });
    }

    proptest! {
        #[test]
        fn every_range_lies_within_the_file(header in "bytes=[0-9]{0,21}-[0-9]{0,21}", size in any::<u64>()) {
            if let Part::Bytes(range) = part(Some(&header), size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }

        #[test]
        fn a_valid_range_is_served_exactly(first in 0u64..1000, length in 1u64..1000, size in 1u64..1000) {
            let header = format!("bytes={first}-{}", first + length - 1);
            let right = if first < size { Part::Bytes(first..(first + length).min(size)) } else { Part::Unsatisfiable };
            prop_assert_eq!(part(Some(&header), size), right);
        }

        #[test]
        fn no_header_makes_the_readers_panic(header in "\\PC{0,40}") {
            let _ = part(Some(&header), 10);
            let _ = wish(&header);
        }
    }
}
