use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What the SDKs leave as it is in keys and values: the unreserved characters.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A metadata filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError(String);

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the metadata filter is no list of key=value pairs: {}", self.0)
    }
}

impl std::error::Error for FilterError {}

/// Writes a metadata filter as the value of the query parameter `metadata`, not yet encoded for the query itself.
///
/// E2B reads it three times over: each key and value is percent-encoded, the pairs are form-encoded as a whole, and the
/// client encodes the result as one query value. This does the first two.
#[must_use]
pub fn encode_metadata(metadata: &BTreeMap<String, String>) -> String {
    let once = |text: &str| utf8_percent_encode(text, KEPT).to_string();
    let mut pairs = form_urlencoded::Serializer::new(String::new());
    for (key, value) in metadata {
        pairs.append_pair(&once(key), &once(value));
    }
    pairs.finish()
}

/// Reads the value of the query parameter `metadata` after the query was decoded: the other way round of
/// [`encode_metadata`], as E2B's server does it.
///
/// The text as a whole is unescaped, split at `&` and at the only `=` of each pair, and each side is unescaped again. A
/// plus stands for a space both times.
///
/// # Errors
/// [`FilterError`] for a pair without exactly one `=`, a broken escape, or bytes that are no UTF-8.
pub fn decode_metadata(value: &str) -> Result<BTreeMap<String, String>, FilterError> {
    let whole = unescape(value)?;
    if whole.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut metadata = BTreeMap::new();
    for pair in whole.split('&') {
        let mut sides = pair.split('=');
        let (Some(key), Some(value), None) = (sides.next(), sides.next(), sides.next()) else {
            return Err(FilterError(format!("{:?} is no pair", clipped(pair))));
        };
        metadata.insert(unescape(key)?, unescape(value)?);
    }
    Ok(metadata)
}

fn unescape(text: &str) -> Result<String, FilterError> {
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('%') {
        let escape = bytes.get(at + 1..at + 3);
        if !escape.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(FilterError(format!("{:?} has a broken escape", clipped(text))));
        }
    }
    let spaced: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    match percent_decode_str(&spaced).decode_utf8() {
        Ok(plain) => Ok(plain.into_owned()),
        Err(_) => Err(FilterError(format!("{:?} is no UTF-8", clipped(text)))),
    }
}

fn clipped(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_filter_is_written_as_the_official_sdks_write_it() {
        let metadata = BTreeMap::from([("a b".to_owned(), "c&d=é".to_owned())]);
        let value = encode_metadata(&metadata);
        let query = form_urlencoded::Serializer::new(String::new()).append_pair("metadata", &value).finish();
        // Seen on the wire from the official JavaScript SDK.
        assert_eq!(query, "metadata=a%252520b%3Dc%252526d%25253D%2525C3%2525A9");
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for bad in ["a", "a=b=c", "a=b&", "&", "a=%", "a=%2", "a=%zz", "a=%25zz", "a=%25ff", "%ff=b"] {
            assert!(decode_metadata(bad).is_err(), "{bad}");
        }
        assert_eq!(decode_metadata(""), Ok(BTreeMap::new()));
        assert_eq!(decode_metadata("="), Ok(BTreeMap::from([(String::new(), String::new())])));
        assert_eq!(decode_metadata("a+b=c%2Bd"), Ok(BTreeMap::from([("a b".to_owned(), "c d".to_owned())])));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(metadata in prop::collection::btree_map("\\PC{0,12}", "\\PC{0,12}", 0..5)) {
            prop_assert_eq!(decode_metadata(&encode_metadata(&metadata)), Ok(metadata));
        }

        #[test]
        fn no_text_breaks_the_reader(text in "\\PC*") {
            let _ = decode_metadata(&text);
        }
    }
}
