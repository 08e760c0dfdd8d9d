//! User metadata of files, kept as extended attributes `user.e2b.<key>`.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use http::HeaderMap;
use rustix::buffer::spare_capacity;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Prefix of the attributes, as in E2B's envd.
const PREFIX: &str = "user.e2b.";
/// Prefix of the upload headers that carry metadata.
const HEADER_PREFIX: &str = "x-metadata-";
/// Longest key in bytes: Linux allows 255 for a whole attribute name.
const MAX_KEY: usize = 255 - PREFIX.len();
/// Most bytes of keys and values together.
const MAX_TOTAL: usize = 4096;

/// Metadata by key.
pub(crate) type Metadata = BTreeMap<String, String>;

/// Takes the metadata out of an upload's headers, or says which of them breaks a limit.
pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Metadata, String> {
    let mut metadata = Metadata::new();
    let mut total = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(HEADER_PREFIX) else { continue };
        let value = value.as_bytes();
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(format!("metadata key {key:?} must have 1 to {MAX_KEY} bytes"));
        }
        if !value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
            return Err(format!("the value of metadata key {key:?} must be printable ASCII"));
        }
        total += key.len() + value.len();
        if total > MAX_TOTAL {
            return Err(format!("metadata exceeds {MAX_TOTAL} bytes of keys and values together"));
        }
        metadata.insert(key.to_owned(), String::from_utf8_lossy(value).into_owned());
    }
    Ok(metadata)
}

/// Reads the metadata of a file; a file system without attributes has none.
pub(crate) fn read(path: &Path) -> Metadata {
    let mut names = Vec::new();
    if grow(&mut names, |buffer| rustix::fs::listxattr(path, spare_capacity(buffer))).is_err() {
        return Metadata::new();
    }
    let names = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    names
        .filter_map(|name| Some((name, name.strip_prefix(PREFIX)?)))
        .filter_map(|(name, key)| {
            let mut value = Vec::new();
            grow(&mut value, |buffer| rustix::fs::getxattr(path, name, spare_capacity(buffer))).ok()?;
            Some((key.to_owned(), String::from_utf8_lossy(&value).into_owned()))
        })
        .collect()
}

/// Makes `metadata` the whole metadata of an open file; does nothing on a file system without attributes.
pub(crate) fn replace(file: impl AsFd, metadata: &Metadata) -> io::Result<()> {
    let file = file.as_fd();
    let mut names = Vec::new();
    match grow(&mut names, |buffer| rustix::fs::flistxattr(file, spare_capacity(buffer))) {
        Err(Errno::NOTSUP | Errno::PERM | Errno::BADF) => return Ok(()),
        listed => listed?,
    }
    for name in names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
        let stale = name.strip_prefix(PREFIX).is_some_and(|key| !metadata.contains_key(key));
        if stale {
            rustix::fs::fremovexattr(file, name)?;
        }
    }
    for (key, value) in metadata {
        let name = format!("{PREFIX}{key}");
        match rustix::fs::fsetxattr(file, name, value.as_bytes(), XattrFlags::empty()) {
            Err(Errno::NOTSUP | Errno::PERM) => return Ok(()),
            set => set?,
        }
    }
    Ok(())
}

/// Calls `read` with growing room until its answer fits (it may change size between two calls).
fn grow(
    buffer: &mut Vec<u8>,
    mut read: impl FnMut(&mut Vec<u8>) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    // 64 KiB is the kernel's own limit for a list of names and for a value.
    for capacity in [256, 64 * 1024] {
        buffer.clear();
        buffer.reserve(capacity);
        match read(buffer) {
            Err(Errno::RANGE) => {}
            done => return done.map(|_| ()),
        }
    }
    Err(Errno::RANGE)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value).unwrap(),
            );
        }
        map
    }

    #[test]
    fn metadata_headers_give_lower_cased_keys_and_other_headers_none() {
        let found = from_headers(&headers(&[("X-Metadata-Author", b"me too"), ("X-Other", b"no")]));
        assert_eq!(found, Ok(Metadata::from([("author".into(), "me too".into())])));
    }

    #[test]
    fn metadata_beyond_a_limit_or_not_printable_is_refused() {
        let long = format!("x-metadata-{}", "k".repeat(247));
        let fits = format!("x-metadata-{}", "k".repeat(246));
        assert!(from_headers(&headers(&[(&long, b"v")])).is_err());
        assert!(from_headers(&headers(&[(&fits, b"v")])).is_ok());
        assert!(from_headers(&headers(&[("x-metadata-k", "é".as_bytes())])).is_err());
        assert!(from_headers(&headers(&[("x-metadata-k", b"a\tb")])).is_err());
        assert!(from_headers(&headers(&[("x-metadata-k", &[b'v'; 4095])])).is_ok());
        assert!(from_headers(&headers(&[("x-metadata-k", &[b'v'; 4096])])).is_err());
        assert!(from_headers(&headers(&[("x-metadata-", b"v")])).is_err());
    }
}
