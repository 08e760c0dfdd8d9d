//! Signed URLs: reading or writing one file without the access token.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

/// What a signature allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
}

/// The parts of a request that a signature covers, as they stand in its query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signed<'a> {
    pub(super) path: &'a str,
    pub(super) operation: Operation,
    pub(super) username: &'a str,
    pub(super) signature: Option<&'a str>,
    pub(super) expiration: Option<&'a str>,
}

/// Checks who asks, in the order of E2B's envd: a token in the header decides alone; else the signature must
/// be there, be right, and not be expired at `now` (Unix seconds).
///
/// The error is the message of the 401 answer.
pub(super) fn authorize(
    token: Option<&str>,
    header: Option<&[u8]>,
    request: &Signed<'_>,
    now: i64,
) -> Result<(), &'static str> {
    let Some(token) = token else { return Ok(()) };
    if let Some(header) = header {
        let right = same(header, token.as_bytes());
        return if right { Ok(()) } else { Err("access token present in header but does not match") };
    }
    let Some(signature) = request.signature else {
        return Err("missing signature query parameter");
    };
    let expiration = match request.expiration {
        None => None,
        Some(text) => Some(text.parse::<i64>().map_err(|_| "invalid signature expiration")?),
    };
    if !same(signature.as_bytes(), sign(token, request, expiration).as_bytes()) {
        return Err("invalid signature");
    }
    match expiration {
        Some(expiration) if expiration < now => Err("signature is already expired"),
        _ => Ok(()),
    }
}

/// Signature version 1: `v1_` and the unpadded base64 of
/// `sha256(path ":" operation ":" user ":" token [":" expiration])`.
fn sign(token: &str, request: &Signed<'_>, expiration: Option<i64>) -> String {
    let operation = match request.operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let mut text = format!("{}:{operation}:{}:{token}", request.path, request.username);
    if let Some(expiration) = expiration {
        // Writing to a string cannot fail.
        let _ = write!(text, ":{expiration}");
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

/// Compares secrets in a time that does not tell how much of them agrees.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
    const VECTOR: &str = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";

    fn request(signature: Option<&'static str>, expiration: Option<&'static str>) -> Signed<'static> {
        let operation = Operation::Read;
        Signed { path: "hello.txt", operation, username: "user", signature, expiration }
    }

    #[test]
    fn the_published_vector_signs_and_authorizes() {
        assert_eq!(sign(TOKEN, &request(None, None), None), VECTOR);
        assert_eq!(authorize(Some(TOKEN), None, &request(Some(VECTOR), None), 0), Ok(()));
    }

    #[test]
    fn checks_follow_the_order_header_then_missing_then_mismatch_then_expired() {
        let ask = |header: Option<&[u8]>, signature, expiration| {
            authorize(Some(TOKEN), header, &request(signature, expiration), 100)
        };
        assert_eq!(ask(Some(TOKEN.as_bytes()), None, None), Ok(()));
        let wrong = Err("access token present in header but does not match");
        assert_eq!(ask(Some(b"x"), Some(VECTOR), None), wrong);
        assert_eq!(ask(None, None, Some("50")), Err("missing signature query parameter"));
        assert_eq!(ask(None, Some(VECTOR), Some("50")), Err("invalid signature"));
        assert_eq!(ask(None, Some("v1_"), None), Err("invalid signature"));
        assert_eq!(ask(None, Some(VECTOR), Some("soon")), Err("invalid signature expiration"));
    }

    #[test]
    fn a_right_signature_ends_after_its_second() {
        let expired = Box::leak(sign(TOKEN, &request(None, None), Some(100)).into_boxed_str());
        let at = |now| authorize(Some(TOKEN), None, &request(Some(expired), Some("100")), now);
        assert_eq!(at(100), Ok(()));
        assert_eq!(at(101), Err("signature is already expired"));
    }

    #[test]
    fn without_a_token_everyone_is_let_in() {
        assert_eq!(authorize(None, Some(b"anything"), &request(None, None), 0), Ok(()));
    }
}
