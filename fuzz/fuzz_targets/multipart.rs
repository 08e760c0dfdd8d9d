//! Forms with files, which arrive in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandhold_envd::fuzzing::multipart;

fuzz_target!(|input: (&str, Vec<u8>, u8)| {
    let (content_type, body, piece) = input;
    let whole = multipart(content_type, [&body[..]]);
    // Where the pieces end must not matter.
    let pieces = multipart(content_type, body.chunks(usize::from(piece) + 1));
    assert_eq!(whole, pieces);
});
