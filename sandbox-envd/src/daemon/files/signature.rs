//! Signed URLs: reading or writing one file without the access token.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

use crate::daemon::auth::same_secret;

/// What a signature allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    /// Downloading the file.
    Read,
    /// Uploading it.
    Write,
}

/// Who asks for a file: the parts of a `/files` query that say so, and that a signature covers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileAccess {
    /// The path exactly as in the query; empty where it has none.
    pub path: Option<String>,
    /// The user.
    pub username: Option<String>,
    signature: Option<String>,
    expiration: Option<String>,
}

impl FileAccess {
    /// Reads a query string. The first of several values counts, as in Go.
    #[must_use]
    pub fn from_query(query: &str) -> Self {
        let mut access = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let slot = match name.as_ref() {
                "path" => &mut access.path,
                "username" => &mut access.username,
                "signature" => &mut access.signature,
                "signature_expiration" => &mut access.expiration,
                _ => continue,
            };
            slot.get_or_insert_with(|| value.into_owned());
        }
        access
    }

    /// Tells whether the query carries a signature.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        self.signature.is_some()
    }

    /// Checks who asks, in the order of E2B's envd: a token in the header decides alone; else the signature must
    /// be there, be right, and not be expired at `now` (Unix seconds). Without a `token` of the sandbox everyone may.
    ///
    /// # Errors
    /// The message of the 401 answer.
    pub fn authorize(
        &self,
        token: Option<&str>,
        header: Option<&[u8]>,
        operation: FileOperation,
        now: i64,
    ) -> Result<(), &'static str> {
        let Some(token) = token else { return Ok(()) };
        if let Some(header) = header {
            let right = same_secret(header, token.as_bytes());
            return if right { Ok(()) } else { Err("access token present in header but does not match") };
        }
        if self.signature.is_none() {
            return Err("missing signature query parameter");
        }
        let expiration = self.expiration()?;
        if !self.is_signed_by(token, operation) {
            return Err("invalid signature");
        }
        match expiration {
            Some(expiration) if expiration < now => Err("signature is already expired"),
            _ => Ok(()),
        }
    }

    /// Tells whether the signature was made with this token, expired or not.
    #[must_use]
    pub fn is_signed_by(&self, token: &str, operation: FileOperation) -> bool {
        let (Some(signature), Ok(expiration)) = (&self.signature, self.expiration()) else { return false };
        same_secret(signature.as_bytes(), self.sign(token, operation, expiration).as_bytes())
    }

    fn expiration(&self) -> Result<Option<i64>, &'static str> {
        let parsed = self.expiration.as_deref().map(str::parse);
        parsed.transpose().map_err(|_| "invalid signature expiration")
    }

    /// Signature version 1: `v1_` and the unpadded base64 of
    /// `sha256(path ":" operation ":" user ":" token [":" expiration])`.
    fn sign(&self, token: &str, operation: FileOperation, expiration: Option<i64>) -> String {
        let operation = match operation {
            FileOperation::Read => "read",
            FileOperation::Write => "write",
        };
        let (path, user) = (self.path.as_deref(), self.username.as_deref());
        let mut text =
            format!("{}:{operation}:{}:{token}", path.unwrap_or_default(), user.unwrap_or_default());
        if let Some(expiration) = expiration {
            // Writing to a string cannot fail.
            let _ = write!(text, ":{expiration}");
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::FileOperation::Read;
    use super::*;

    const TOKEN: &str = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
    const VECTOR: &str = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";

    fn request(signature: Option<&str>, expiration: Option<&str>) -> FileAccess {
        FileAccess {
            path: Some("hello.txt".to_owned()),
            username: Some("user".to_owned()),
            signature: signature.map(str::to_owned),
            expiration: expiration.map(str::to_owned),
        }
    }

    #[test]
    fn the_published_vector_signs_and_authorizes() {
        assert_eq!(request(None, None).sign(TOKEN, Read, None), VECTOR);
        assert_eq!(request(Some(VECTOR), None).authorize(Some(TOKEN), None, Read, 0), Ok(()));
    }

    #[test]
    fn a_query_is_read_with_the_first_of_several_values() {
        let query =
            "path=hello.txt&username=user&signature=v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E&path=x";
        assert_eq!(FileAccess::from_query(query), request(Some(VECTOR), None));
        assert!(!FileAccess::from_query("path=a").is_signed());
    }

    #[test]
    fn checks_follow_the_order_header_then_missing_then_mismatch_then_expired() {
        let ask = |header: Option<&[u8]>, signature, expiration| {
            request(signature, expiration).authorize(Some(TOKEN), header, Read, 100)
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
    fn a_right_signature_ends_after_its_second_and_stays_the_tokens() {
        let signature = request(None, None).sign(TOKEN, Read, Some(100));
        let signed = request(Some(&signature), Some("100"));
        assert_eq!(signed.authorize(Some(TOKEN), None, Read, 100), Ok(()));
        assert_eq!(signed.authorize(Some(TOKEN), None, Read, 101), Err("signature is already expired"));
        assert!(signed.is_signed_by(TOKEN, Read));
        assert!(!signed.is_signed_by("other", Read) && !signed.is_signed_by(TOKEN, FileOperation::Write));
    }

    #[test]
    fn without_a_token_everyone_is_let_in() {
        assert_eq!(request(None, None).authorize(None, Some(b"anything"), Read, 0), Ok(()));
    }
}
