//! One listing of a workspace inside a sandbox: what `find` of GNU says of every name, compressed on its way.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use rustix::fs::FileType;
use sandhold_core::{Error, ErrorKind, Result, SandboxHandle};
use serde::{Deserialize, Serialize};

use super::command::{self, Input};
use crate::path::WorkPath;

/// A listing above this is given up, inflated.
const MAX_LISTING: u64 = 2 << 30;

/// What is listed. Of the repository at the root, what history is made of; of others, that they are there.
/// What may not be read is told by letters of its own, and one that only seems not to be there is told from one that is not.
const SCRIPT: &str = r#"p=$1
while [ ! -e "$p" ] && [ ! -L "$p" ] && [ -n "$p" ]; do p=${p%/*}; done
[ -x "${p:-/}" ] || exit 42
[ -d "$1" ] || exit 40
cd -- "$1" && [ -r . ] || exit 42
find . -maxdepth 0 -printf '' || exit 41
{ date +%s.%N | tr '\n' '\0'
find . -mindepth 1 \
  \( -type d \( ! -readable -o ! -executable \) -prune -printf 'U %m %s %T@ %C@ %i %p\0%l\0' \) \
  -o \( -type f ! -readable -printf 'u %m %s %T@ %C@ %i %p\0%l\0' \) \
  -o \( -path ./.git/hooks -o -path ./.git/logs -o -path ./.git/modules -o -path ./.git/worktrees \) -prune \
  -o \( -path './*/.git' -prune -printf '%y %m %s %T@ %C@ %i %p\0%l\0' \) \
  -o -printf '%y %m %s %T@ %C@ %i %p\0%l\0'; } | gzip -1"#;

/// What tells whether a file is still the one that was fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    /// `f`, `d`, `l`, or another letter of `find`; `u` and `U` are a file and a directory that may not be read.
    pub(super) kind: char,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) modified: String,
    pub(super) changed: String,
    pub(super) inode: u64,
    /// The target of a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<WorkPath>,
}

impl Found {
    pub(super) fn file_type(&self) -> FileType {
        match self.kind {
            'f' | 'u' => FileType::RegularFile,
            'd' | 'U' => FileType::Directory,
            'l' => FileType::Symlink,
            _ => FileType::Fifo,
        }
    }

    pub(super) fn is_executable(&self) -> bool {
        self.mode & 0o100 != 0
    }

    /// When it was modified: seconds since 1970 and nanoseconds.
    pub(super) fn modified_at(&self) -> (i64, u32) {
        moment(&self.modified).unwrap_or_default()
    }

    /// Tells whether a write after the listing might have left these very times.
    pub(super) fn is_racy(&self, listed_at: (i64, u32)) -> bool {
        let nanos = |(seconds, nanos): (i64, u32)| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let changed = nanos(moment(&self.changed).unwrap_or_default()).max(nanos(self.modified_at()));
        let is_coarse = changed % 1_000_000_000 == 0;
        changed + if is_coarse { 2_000_000_000 } else { 20_000_000 } >= nanos(listed_at)
    }
}

/// All names of a workspace, by the clock of its sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) at: (i64, u32),
    pub(super) entries: BTreeMap<Box<[u8]>, Found>,
}

impl Listing {
    pub(super) async fn take(handle: &dyn SandboxHandle, dir: &str) -> Result<Self> {
        let (ended, packed) = command::collect(handle, SCRIPT, &[dir], Input::None).await?;
        match ended.code {
            Some(0) => {}
            Some(40) => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("there is no directory {dir:?} in the sandbox: {}", ended.said),
                )
                .with_reason("no_workspace"));
            }
            Some(42) => {
                return Err(Error::new(
                    ErrorKind::PermissionDenied,
                    format!("the user of the sandbox may not look at {dir:?}; let that user read it"),
                ));
            }
            Some(41) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the sandbox has no `find` that knows -printf; install GNU findutils, gzip and tar in its template",
                ));
            }
            _ => return Err(ended.failed("list the workspace")),
        }
        crate::cancel::run_blocking(None, move |_| {
            let mut text = Vec::new();
            GzDecoder::new(&packed[..]).take(MAX_LISTING).read_to_end(&mut text).map_err(|failure| {
                Error::new(ErrorKind::Unexpected, "the listing of the sandbox came damaged")
                    .with_source(failure)
            })?;
            Self::parse(&text)
        })
        .await
    }

    /// Reads records of the sandbox, which may say anything.
    fn parse(text: &[u8]) -> Result<Self> {
        let bad =
            || Error::new(ErrorKind::Unexpected, "the listing of the sandbox is not as `find` writes it");
        let text = text.strip_suffix(b"\0").ok_or_else(bad)?;
        let mut parts = text.split(|byte| *byte == 0);
        let at = parts.next().and_then(|text| moment(std::str::from_utf8(text).ok()?)).ok_or_else(bad)?;
        let mut entries = BTreeMap::new();
        while let Some(record) = parts.next() {
            let target = parts.next().ok_or_else(bad)?;
            let (path, found) = Self::entry(record, target).ok_or_else(bad)?;
            let is_safe = path.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."));
            if !is_safe {
                return Err(bad());
            }
            entries.insert(path.into(), found);
        }
        Ok(Self { at, entries })
    }

    fn entry<'a>(record: &'a [u8], target: &[u8]) -> Option<(&'a [u8], Found)> {
        let mut fields = record.splitn(7, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let kind = text()?.chars().next()?;
        let mode = u32::from_str_radix(text()?, 8).ok()?;
        let size = text()?.parse().ok()?;
        let (modified, changed) = (text()?.to_owned(), text()?.to_owned());
        let inode = text()?.parse().ok()?;
        let path = fields.next()?.strip_prefix(b"./")?;
        let target = (kind == 'l').then(|| WorkPath::new(target));
        Some((path, Found { kind, mode, size, modified, changed, inode, target }))
    }
}

/// `1764464461.1234567890`, as `find` has moments.
fn moment(text: &str) -> Option<(i64, u32)> {
    let (seconds, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    Some((seconds.parse().ok()?, digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_are_read_with_any_name_and_refused_with_any_way_out() {
        let text = b"100.5\0f 644 3 99.9999999990 100.25 7 ./a b\nc\0\0l 777 4 1.0 1.0 8 ./d/l\0../x\0";
        let listing = Listing::parse(text).unwrap();
        assert_eq!(listing.at, (100, 500_000_000));
        let file = &listing.entries[&b"a b\nc"[..]];
        assert_eq!((file.kind, file.mode, file.size, file.modified_at()), ('f', 0o644, 3, (99, 999_999_999)));
        assert!(!file.is_racy(listing.at) && file.is_racy((100, 255_000_000)));
        assert_eq!(listing.entries[&b"d/l"[..]].target, Some("../x".into()));
        for bad in ["../x", "./../x", "/x", "./a//b", "./", "."] {
            let text = format!("1.0\0f 644 0 1 1 1 {bad}\0\0");
            assert!(Listing::parse(text.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_listing_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Listing::parse(&bytes);
            let _ = Listing::parse(&[b"1.0\0f 644 0 1 1 1 ./", &bytes[..], b"\0\0"].concat());
        }
    }
}
