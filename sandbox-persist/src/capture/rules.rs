//! What is never captured, whatever the workspace says.

use sandhold_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::options::DEFAULT_MAX_FILE;
use crate::ignore::Patterns;
use crate::side::SkipReason;

/// What the host lets a capture take. Each snapshot says by which rules it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CaptureRules {
    /// Files above this many bytes are left out, and told.
    pub max_file: Option<u64>,
    /// Whether a file that has grown above that is kept as an earlier snapshot has it.
    #[serde(default)]
    pub keep_last: bool,
    /// Patterns as in `.gitignore` of what is never captured.
    pub never: Vec<String>,
    /// Whether `.env` and `.env.*`, but for examples, are left out.
    pub skip_env_files: bool,
    /// Whether files that begin as private keys do are left out.
    pub skip_private_keys: bool,
}

impl Default for CaptureRules {
    fn default() -> Self {
        Self {
            max_file: Some(DEFAULT_MAX_FILE),
            keep_last: false,
            never: Vec::new(),
            skip_env_files: true,
            skip_private_keys: true,
        }
    }
}

/// The rules of one capture, ready to be asked.
#[derive(Debug)]
pub(crate) struct Rules {
    max_file: Option<u64>,
    pub(crate) keep_last: bool,
    env_files: bool,
    pub(crate) private_keys: bool,
    never: Patterns,
}

impl Rules {
    pub(crate) fn new(rules: &CaptureRules) -> Result<Self> {
        for glob in &rules.never {
            if glob.contains('\n') || Patterns::parse(glob.as_bytes()).is_empty() {
                return Err(Error::invalid_argument(format!(
                    "{glob:?} is no pattern that can match a file; write it as in a .gitignore"
                )));
            }
        }
        Ok(Self {
            max_file: rules.max_file,
            keep_last: rules.keep_last,
            env_files: rules.skip_env_files,
            private_keys: rules.skip_private_keys,
            never: Patterns::parse(rules.never.join("\n").as_bytes()),
        })
    }

    pub(crate) fn is_too_large(&self, size: u64) -> bool {
        self.max_file.is_some_and(|max| size > max)
    }

    /// Tells by its name that a path is not to be captured.
    pub(crate) fn refuses(&self, path: &[u8], name: &[u8], is_dir: bool) -> Option<SkipReason> {
        if self.env_files && !is_dir && is_env_file(name) {
            return Some(SkipReason::EnvFile);
        }
        if !self.never.is_empty() && self.never.verdict(path, is_dir) == Some(true) {
            return Some(SkipReason::HostRule);
        }
        None
    }
}

/// `.env` and `.env.*`, but for the examples that are made to be shared.
fn is_env_file(name: &[u8]) -> bool {
    match name.strip_prefix(b".env") {
        Some(b"") => true,
        Some(rest) => rest.starts_with(b".") && !matches!(rest, b".example" | b".sample" | b".template"),
        None => false,
    }
}

/// How much of a file is looked at.
const HEAD: usize = 4096;

/// Tells whether a file begins as a private key does: PEM, OpenSSH and PuTTY.
pub(crate) fn is_private_key(content: &[u8]) -> bool {
    let head = content[..content.len().min(HEAD)].trim_ascii_start();
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    if head.starts_with(b"PuTTY-User-Key-File-") {
        return true;
    }
    // Before the header a PEM file may have lines of text, as openssl writes them.
    head.split(|byte| *byte == b'\n').take(40).any(|line| {
        let line = line.trim_ascii_end();
        line.strip_prefix(b"-----BEGIN ")
            .and_then(|rest| rest.strip_suffix(b"-----"))
            .is_some_and(|kind| kind.ends_with(b"PRIVATE KEY") || kind.ends_with(b"PRIVATE KEY BLOCK"))
    })
}

/// Tells whether a file is a Git LFS pointer: text that stands for a large file elsewhere.
pub(crate) fn is_lfs_pointer(content: &[u8]) -> bool {
    content.len() < 1024 && content.starts_with(b"version https://git-lfs.github.com/spec/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_how_they_begin() {
        for key in [
            "-----BEGIN PRIVATE KEY-----\nMII",
            "-----BEGIN RSA PRIVATE KEY-----\r\nMII",
            "-----BEGIN OPENSSH PRIVATE KEY-----\n",
            "Bag Attributes\n  friendlyName: x\n-----BEGIN ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\n",
            "PuTTY-User-Key-File-3: ssh-ed25519\n",
        ] {
            assert!(is_private_key(key.as_bytes()), "{key}");
        }
        for other in
            ["-----BEGIN PUBLIC KEY-----\n", "-----BEGIN CERTIFICATE-----\n", "say BEGIN PRIVATE KEY", ""]
        {
            assert!(!is_private_key(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn env_files_are_kept_out_and_their_examples_are_not() {
        for name in [".env", ".env.local", ".env.production", ".env.example.local"] {
            assert!(is_env_file(name.as_bytes()), "{name}");
        }
        for name in [".env.example", ".envrc", "x.env", ".environment"] {
            assert!(!is_env_file(name.as_bytes()), "{name}");
        }
    }
}
