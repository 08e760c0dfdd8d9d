//! What a file is called and what it contains, as response headers say it.

use std::fmt::Write;
use std::path::Path;

/// Bytes that decide what a file without a known extension contains, as in Go.
const SNIFFED: usize = 512;

/// Media type of a file by its extension, `None` for an unknown one.
pub(super) fn by_extension(path: &Path) -> Option<String> {
    let media = mime_guess::from_path(path).first_raw()?;
    // Text is UTF-8 unless it says otherwise.
    let is_text = media.starts_with("text/");
    Some(if is_text { format!("{media}; charset=utf-8") } else { media.to_owned() })
}

/// Media type of a file by its first bytes: a few well-known signatures (WHATWG MIME Sniffing, section 6), else
/// plain text if there is no binary byte in them.
pub(super) fn by_content(start: &[u8]) -> &'static str {
    const SIGNATURES: [(&[u8], &str); 12] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x1f\x8b\x08", "application/x-gzip"),
        (b"<!DOCTYPE html", "text/html; charset=utf-8"),
        (b"<!doctype html", "text/html; charset=utf-8"),
        (b"<html", "text/html; charset=utf-8"),
        (b"<?xml", "text/xml; charset=utf-8"),
        (b"\0asm", "application/wasm"),
    ];
    let start = &start[..start.len().min(SNIFFED)];
    if let Some((_, media)) = SIGNATURES.iter().find(|(signature, _)| start.starts_with(signature)) {
        return media;
    }
    let binary = |byte: &u8| matches!(byte, 0x00..=0x08 | 0x0B | 0x0E..=0x1A | 0x1C..=0x1F);
    if start.iter().any(binary) { "application/octet-stream" } else { "text/plain; charset=utf-8" }
}

/// `Content-Disposition` that shows the file under its name: a token, a quoted string, or UTF-8 in percent
/// signs, whichever the name needs (RFC 6266).
pub(super) fn disposition(name: &[u8]) -> String {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let mut header = String::from("inline; filename");
    if !name.is_empty() && name.iter().all(is_token) {
        header.push('=');
        header.push_str(&String::from_utf8_lossy(name));
    } else if name.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        header.push_str("=\"");
        for byte in name {
            if matches!(byte, b'"' | b'\\') {
                header.push('\\');
            }
            header.push(char::from(*byte));
        }
        header.push('"');
    } else {
        header.push_str("*=utf-8''");
        for byte in name {
            if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(byte) {
                header.push(char::from(*byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(header, "%{byte:02X}");
            }
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_extensions_decide_and_text_is_utf_8() {
        assert_eq!(by_extension(Path::new("a.txt")).as_deref(), Some("text/plain; charset=utf-8"));
        assert_eq!(by_extension(Path::new("a.PNG")).as_deref(), Some("image/png"));
        assert_eq!(by_extension(Path::new("a.json")).as_deref(), Some("application/json"));
        assert_eq!(by_extension(Path::new("Makefile")), None);
    }

    #[test]
    fn content_decides_where_no_extension_does() {
        assert_eq!(by_content(b""), "text/plain; charset=utf-8");
        assert_eq!(by_content("héllo\n".as_bytes()), "text/plain; charset=utf-8");
        assert_eq!(by_content(b"\x89PNG\r\n\x1a\n..."), "image/png");
        assert_eq!(by_content(b"ab\0c"), "application/octet-stream");
    }

    #[test]
    fn names_are_written_so_that_they_can_be_read_back() {
        for (name, header) in [
            ("a-1.txt", "inline; filename=a-1.txt"),
            ("a b.txt", "inline; filename=\"a b.txt\""),
            ("a\"\\.txt", "inline; filename=\"a\\\"\\\\.txt\""),
            ("é.txt", "inline; filename*=utf-8''%C3%A9.txt"),
            ("a\r\nB: c", "inline; filename*=utf-8''a%0D%0AB%3A%20c"),
            ("", "inline; filename=\"\""),
        ] {
            assert_eq!(disposition(name.as_bytes()), header);
        }
    }
}
