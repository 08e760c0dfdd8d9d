//! Queries that are to be signed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandhold_envd::{FileAccess, FileOperation};

fuzz_target!(|input: (&str, &str, i64)| {
    let (query, token, now) = input;
    let access = FileAccess::from_query(query);
    for operation in [FileOperation::Read, FileOperation::Write] {
        let right = access.is_signed_by(token, operation);
        let let_in = access.authorize(Some(token), None, operation, now).is_ok();
        assert!(!let_in || right, "let in without a signature");
        assert!(!right || access.is_signed(), "signed without a signature");
        // The token itself opens everything, and nothing else does in its place.
        assert!(access.authorize(Some(token), Some(token.as_bytes()), operation, now).is_ok());
        let other = format!("{token}x");
        assert!(access.authorize(Some(token), Some(other.as_bytes()), operation, now).is_err());
        assert!(!right || !access.is_signed_by(&other, operation), "two tokens have one signature");
    }
});
