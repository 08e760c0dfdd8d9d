//! The text before the pack of a bundle (`gitformat-bundle`): prerequisites, refs, and an empty line.

use std::collections::BTreeSet;
use std::io::BufRead;

use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::git::is_ref_name;
use crate::oid::ObjectId;

/// A header above this is refused.
const MAX_HEADER: u64 = 64 << 10;
const MAX_REFS: usize = 1024;

/// What a bundle says of itself. Nothing of it is proven but by its pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BundleHeader {
    /// The refs, each with the commit that it points to.
    pub refs: Vec<(String, ObjectId)>,
    /// Commits that whoever reads the bundle must have already: none in a bundle that is complete.
    pub prerequisites: Vec<ObjectId>,
}

impl BundleHeader {
    /// Writes the header as git reads it.
    pub(crate) fn encode(&self, comment: &str) -> Vec<u8> {
        let mut text = String::from("# v2 git bundle\n");
        for id in &self.prerequisites {
            text.push_str(&format!("-{id} {comment}\n"));
        }
        for (name, id) in &self.refs {
            text.push_str(&format!("{id} {name}\n"));
        }
        text.push('\n');
        text.into_bytes()
    }

    /// Reads a header up to the first byte of the pack, and returns its length.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] with reason `damaged` for what is no bundle; [`ErrorKind::Unsupported`] for a
    /// version, a hash or a filter that is not read here.
    pub(crate) fn read(input: impl BufRead) -> Result<(Self, u64)> {
        let mut input = input.take(MAX_HEADER);
        let mut lines = Lines { input: &mut input, read: 0 };
        let is_third = match &*lines.next()? {
            b"# v2 git bundle" => false,
            b"# v3 git bundle" => true,
            line if line.starts_with(b"# v") && line.ends_with(b" git bundle") => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "bundles of versions 2 and 3 are read, and no others",
                ));
            }
            _ => return Err(bad("does not begin as a bundle does")),
        };
        let mut header = Self::default();
        let mut names = BTreeSet::new();
        let mut may_be_capability = is_third;
        loop {
            let line = lines.next()?;
            if line.is_empty() {
                return match header.refs.is_empty() {
                    true => Err(bad("names no ref")),
                    false => Ok((header, lines.read)),
                };
            }
            if let Some(capability) = line.strip_prefix(b"@").filter(|_| may_be_capability) {
                if capability != b"object-format=sha1" {
                    return Err(Error::new(
                        ErrorKind::Unsupported,
                        format!("a bundle with {:?} is not read", capability.escape_ascii().to_string()),
                    ));
                }
                continue;
            }
            may_be_capability = false;
            if header.refs.len() + header.prerequisites.len() >= MAX_REFS {
                return Err(bad("names more than 1024 refs"));
            }
            match line.strip_prefix(b"-") {
                Some(rest) if header.refs.is_empty() => {
                    let id = rest.split(|byte| *byte == b' ').next().unwrap_or_default();
                    header.prerequisites.push(parse_id(id)?);
                }
                _ => {
                    let (id, name) =
                        line.split_at_checked(40).ok_or_else(|| bad("has a line without a ref"))?;
                    let name = name.strip_prefix(b" ").ok_or_else(|| bad("has a line without a ref"))?;
                    let name = std::str::from_utf8(name).map_err(|_| bad("has a ref that is not UTF-8"))?;
                    if name != "HEAD" && !is_ref_name(name) {
                        return Err(bad(&format!("has the ref {name:?}, which is no name of one")));
                    }
                    if !names.insert(name.to_owned()) {
                        return Err(bad(&format!("has the ref {name:?} twice")));
                    }
                    header.refs.push((name.to_owned(), parse_id(id)?));
                }
            }
        }
    }
}

struct Lines<'a, R> {
    input: &'a mut R,
    read: u64,
}

impl<R: BufRead> Lines<'_, R> {
    fn next(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        self.input.read_until(b'\n', &mut line).map_err(|failure| {
            Error::new(ErrorKind::Unexpected, format!("the bundle cannot be read: {failure}"))
                .with_source(failure)
        })?;
        self.read += line.len() as u64;
        match line.pop() {
            Some(b'\n') => Ok(line),
            _ => Err(bad("ends within its header, or has one above 64 KiB")),
        }
    }
}

fn parse_id(text: &[u8]) -> Result<ObjectId> {
    std::str::from_utf8(text)
        .ok()
        .filter(|text| !text.bytes().any(|byte| byte.is_ascii_uppercase()))
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| bad("has a line without an object id"))
}

fn bad(how: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the bundle {how}")).with_reason("damaged")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    fn read(text: &str) -> Result<(BundleHeader, u64)> {
        BundleHeader::read(text.as_bytes())
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let id: ObjectId = ID.parse().unwrap();
        let header =
            BundleHeader { refs: vec![("refs/sandbox/snapshots/x".to_owned(), id)], prerequisites: vec![id] };
        let text = header.encode("what came before");
        let (read, length) = BundleHeader::read(&[&text[..], b"PACK"].concat()[..]).unwrap();
        assert_eq!((read, length), (header, text.len() as u64));
        assert!(read_ok(&format!("# v3 git bundle\n@object-format=sha1\n{ID} HEAD\n\n")));
    }

    fn read_ok(text: &str) -> bool {
        read(text).is_ok()
    }

    #[test]
    fn a_header_of_another_shape_is_refused() {
        for (text, why) in [
            (String::new(), "ends within"),
            ("PACK".to_owned(), "ends within"),
            ("# v4 git bundle\n\n".to_owned(), "versions 2 and 3"),
            ("# v2 git bundle\n\n".to_owned(), "no ref"),
            (format!("# v2 git bundle\n{ID} HEAD\n"), "ends within"),
            (format!("# v2 git bundle\n{ID}\n\n"), "without a ref"),
            (format!("# v2 git bundle\n@object-format=sha1\n{ID} HEAD\n\n"), "without a ref"),
            (format!("# v3 git bundle\n@object-format=sha256\n{ID} HEAD\n\n"), "object-format=sha256"),
            (format!("# v3 git bundle\n@filter=blob:none\n{ID} HEAD\n\n"), "filter"),
            (format!("# v2 git bundle\n{ID} HEAD\n{ID} HEAD\n\n"), "twice"),
            (format!("# v2 git bundle\n{ID} HEAD\n-{ID} late\n\n"), "without a ref"),
            (format!("# v2 git bundle\n{ID} ../../x\n\n"), "no name"),
            (format!("# v2 git bundle\n{ID} refs/heads/../x\n\n"), "no name"),
            (format!("# v2 git bundle\n{ID} refs/heads/x.lock\n\n"), "no name"),
            (format!("# v2 git bundle\n{ID} refs//x\n\n"), "no name"),
            (format!("# v2 git bundle\n{} refs/heads/x\n\n", ID.to_uppercase()), "object id"),
            (format!("# v2 git bundle\n{ID} refs/{}\n\n", "a".repeat(70_000)), "64 KiB"),
            (
                format!(
                    "# v2 git bundle\n{}\n",
                    (0..1025).map(|at| format!("{ID} refs/{at}\n")).collect::<String>()
                ),
                "1024",
            ),
        ] {
            let failure = read(&text).unwrap_err();
            assert!(failure.message().contains(why), "{text:.60}: {failure}");
        }
    }

    proptest! {
        #[test]
        fn a_header_of_any_bytes_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = BundleHeader::read(&bytes[..]);
            let _ = BundleHeader::read(&[b"# v2 git bundle\n", &bytes[..]].concat()[..]);
        }
    }
}
