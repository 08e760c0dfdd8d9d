use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path within a workspace: bytes with `/` between names, relative, as the file system and git have it.
///
/// As JSON it is text where it is UTF-8, and `{"bytes": [..]}` where it is not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkPath(Box<[u8]>);

impl WorkPath {
    /// Wraps bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into().into_boxed_slice())
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns it as a path of this machine.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl From<&str> for WorkPath {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<&Path> for WorkPath {
    fn from(path: &Path) -> Self {
        Self::new(path.as_os_str().as_bytes())
    }
}

/// Text for people; bytes that a terminal would take for something else are escaped.
impl fmt::Display for WorkPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match letter.is_control() {
                    true => write!(f, "{}", letter.escape_default())?,
                    false => write!(f, "{letter}")?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for WorkPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes { bytes: Vec<u8> },
}

impl Serialize for WorkPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Written::Bytes { bytes: self.0.to_vec() }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WorkPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Written::deserialize(deserializer)? {
            Written::Text(text) => Self::new(text),
            Written::Bytes { bytes } => Self::new(bytes),
        })
    }
}

/// Joins a directory of the workspace, empty for its root, and a name.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Splits a path into its directory, empty for the root, and its name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// Tells whether some git, on some file system, would take this name for `.git`, or for no single name.
///
/// NTFS has the short name `git~1`, drops trailing dots and blanks and reads `.git::$INDEX_ALLOCATION`; HFS+ leaves
/// out a few invisible letters. What is refused here is neither captured nor restored.
pub(crate) fn is_forbidden_name(name: &[u8]) -> bool {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return true;
    }
    // All disguises but those with invisible letters begin as they do.
    if !matches!(name[0], b'.' | b'g' | b'G') && name.is_ascii() {
        return false;
    }
    let visible: Vec<u8> = String::from_utf8_lossy(name)
        .chars()
        .filter(|letter| {
            !matches!(letter, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
        })
        .collect::<String>()
        .to_ascii_lowercase()
        .into_bytes();
    let end = visible.iter().position(|byte| matches!(byte, b':' | b'\\')).unwrap_or(visible.len());
    let stem = visible[..end].trim_ascii_end();
    let kept = stem.iter().rposition(|byte| !matches!(byte, b'.' | b' ')).map_or(0, |last| last + 1);
    matches!(&stem[..kept], b".git" | b"git~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disguise_of_dot_git_is_known() {
        for bad in [
            ".git",
            ".GIT",
            ".Git. .",
            "git~1",
            "GIT~1 ",
            ".g\u{200c}it",
            ".git::$INDEX_ALLOCATION",
            ".git\\x",
            "..",
            "",
        ] {
            assert!(is_forbidden_name(bad.as_bytes()), "{bad:?}");
        }
        for good in
            [".gitignore", ".github", "git", "git~2", "a\\b", "...", "x.git", "caf\u{e9}", "CON", "-rf", "*"]
        {
            assert!(!is_forbidden_name(good.as_bytes()), "{good:?}");
        }
        assert!(!is_forbidden_name(b"caf\xe9.txt"));
    }

    #[test]
    fn paths_keep_their_bytes_through_json() {
        for path in [&b"plain/name"[..], b"caf\xe9\n*", b"\xff\xfe"] {
            let path = WorkPath::new(path);
            let json = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<WorkPath>(&json).unwrap(), path);
        }
        assert_eq!(WorkPath::new(&b"a\x1b[31m\xe9"[..]).to_string(), "a\\u{1b}[31m\\xe9");
    }
}
