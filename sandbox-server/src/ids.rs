//! Ids of sandboxes: `i` and 20 letters or digits.

use sandhold_core::{Error, ErrorKind, Result};

use crate::error::{ApiError, ApiResult};

/// The constant that older clients want to see as `clientID`.
pub(crate) const CLIENT_ID: &str = "sandhold";

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Draws a new id.
pub(crate) fn random() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unexpected, "the system gave no random bytes").with_source(error.to_string())
    })?;
    Ok(from_bytes(&bytes))
}

/// Makes an id of bytes that are random, or derived from a secret.
pub(crate) fn from_bytes(bytes: &[u8; 32]) -> String {
    // The remainder favours some letters by a hundredth; 20 of them still hold 100 bits.
    let letters = bytes[..20].iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]));
    std::iter::once('i').chain(letters).collect()
}

/// Reads an id of a path: older ones carry `-` and the id of a client, which counts for nothing.
pub(crate) fn of_path(text: &str) -> ApiResult<&str> {
    let (id, client) = text.split_once('-').unwrap_or((text, ""));
    if !is_plain(id) || client.contains('-') {
        return Err(ApiError::bad_request("Invalid sandbox ID"));
    }
    Ok(id)
}

/// Tells whether a text can be an id at all.
pub(crate) fn is_plain(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_of_e2b_and_differ() {
        let (one, other) = (random().unwrap(), random().unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 21 && one.starts_with('i') && is_plain(&one), "{one}");
    }

    #[test]
    fn the_id_of_a_path_stands_before_the_first_dash() {
        assert_eq!(of_path("i1a"), Ok("i1a"));
        assert_eq!(of_path("i1a-client"), Ok("i1a"));
        for bad in ["", "-x", "i1-a-b", "I1", "i 1", "../etc", "i%00", "ä", &"a".repeat(65)] {
            assert!(of_path(bad).is_err(), "{bad:?}");
        }
    }
}
