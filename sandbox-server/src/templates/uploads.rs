//! Files that COPY steps bring: uploaded once as a tar, found again by their hash.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt;
use sandhold_core::{Error, ErrorKind, Result};
use tokio::io::AsyncWriteExt;

use crate::app::blocking;
use crate::error::{ApiError, ApiResult};
use crate::store::Store;
use crate::tokens::{Tokens, same_secret};

use super::ids;

/// Largest upload.
const MAX_UPLOAD: u64 = 20 << 30;
/// How long a link for an upload is good, as long as the SDKs go on trying.
const LINK_LIFE: Duration = Duration::from_secs(3600);
/// How long a body may bring nothing.
const IDLE: Duration = Duration::from_secs(120);

/// Uploaded files.
#[derive(Debug)]
pub(crate) struct Uploads {
    directory: PathBuf,
}

impl Uploads {
    /// Opens the directory of uploads, and removes those that never became whole. Blocks.
    pub(crate) fn open(store: &Store) -> Result<Self> {
        let directory = store.make_dir("files")?;
        for name in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if name.file_name().to_string_lossy().starts_with('.') {
                let _ = std::fs::remove_file(name.path());
            }
        }
        Ok(Self { directory })
    }

    /// Returns where the files with a hash are, if they are there.
    pub(crate) async fn find(&self, hash: &str) -> Option<PathBuf> {
        let path = self.path(hash)?;
        tokio::fs::try_exists(&path).await.is_ok_and(|exists| exists).then_some(path)
    }

    fn path(&self, hash: &str) -> Option<PathBuf> {
        is_hash(hash).then(|| self.directory.join(format!("{hash}.tar")))
    }

    /// Stores an upload of exactly so many bytes; it is on disk when this returns.
    pub(crate) async fn store(&self, hash: &str, length: u64, body: axum::body::Body) -> ApiResult<()> {
        let path = self.path(hash).ok_or_else(|| ApiError::bad_request("the hash is not one of files"))?;
        if length > MAX_UPLOAD {
            let message = format!("the upload is larger than {MAX_UPLOAD} bytes");
            return Err(ApiError::new(http::StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        let staged = Staged(self.directory.join(format!(".{}", ids::build()?)));
        let received = receive(&staged.0, body).await?;
        if received != length {
            return Err(ApiError::bad_request(format!("{received} bytes came, the header says {length}")));
        }
        let (from, directory) = (staged.0.clone(), self.directory.clone());
        blocking(move || {
            let renamed =
                std::fs::rename(&from, &path).and_then(|()| std::fs::File::open(&directory)?.sync_all());
            renamed.map_err(|error| failed(&path, error))
        })
        .await?;
        Ok(())
    }
}

/// A file that is removed unless it got its name.
struct Staged(PathBuf);

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn receive(path: &Path, body: axum::body::Body) -> ApiResult<u64> {
    let mut options = tokio::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .await
        .map_err(|error| ApiError::from(failed(path, error)))?;
    let mut stream = body.into_data_stream();
    let mut received = 0;
    loop {
        let next = tokio::time::timeout(IDLE, stream.next()).await;
        let next =
            next.map_err(|_| ApiError::new(http::StatusCode::REQUEST_TIMEOUT, "the upload stalled"))?;
        let Some(chunk) = next else { break };
        let chunk = chunk
            .map_err(|error| ApiError::bad_request(format!("the upload did not arrive whole: {error}")))?;
        received += chunk.len() as u64;
        file.write_all(&chunk).await.map_err(|error| ApiError::from(failed(path, error)))?;
    }
    file.sync_all().await.map_err(|error| ApiError::from(failed(path, error)))?;
    Ok(received)
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "cannot keep the upload").with_source(error).with_context("path", path.display())
}

/// Says whether a text is what the SDKs name files by: a SHA-256 in hex.
pub(crate) fn is_hash(hash: &str) -> bool {
    hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Writes the query of a link that lets its holder upload the files with this hash, for a while.
pub(crate) fn link(tokens: &Tokens, template: &str, hash: &str) -> String {
    let expires = seconds(SystemTime::now() + LINK_LIFE);
    format!("expires={expires}&signature={}", sign(tokens, template, hash, expires))
}

/// Checks what [`link`] wrote.
pub(crate) fn check_link(
    tokens: &Tokens,
    template: &str,
    hash: &str,
    expires: u64,
    signature: &str,
) -> ApiResult<()> {
    let refused = |message| Err(ApiError::new(http::StatusCode::FORBIDDEN, message));
    if !same_secret(signature.as_bytes(), sign(tokens, template, hash, expires).as_bytes()) {
        return refused("the link was not made by this server for these files");
    }
    if expires < seconds(SystemTime::now()) {
        return refused("the link has expired; ask for another");
    }
    Ok(())
}

fn sign(tokens: &Tokens, template: &str, hash: &str, expires: u64) -> String {
    URL_SAFE_NO_PAD.encode(tokens.derive("files", &format!("{template}\n{hash}\n{expires}")))
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_good_for_its_files_alone_and_for_a_while() {
        let tokens = Tokens::new(&[7; 32]);
        let hash = "a".repeat(64);
        let query = link(&tokens, "t", &hash);
        let (expires, signature) = query.split_once("&signature=").unwrap();
        let expires: u64 = expires.trim_start_matches("expires=").parse().unwrap();
        check_link(&tokens, "t", &hash, expires, signature).unwrap();
        for (template, hash, expires) in
            [("u", &hash, expires), ("t", &"b".repeat(64), expires), ("t", &hash, expires + 1)]
        {
            assert!(check_link(&tokens, template, hash, expires, signature).is_err());
        }
        let past = 1;
        let expired = sign(&tokens, "t", &hash, past);
        assert!(check_link(&tokens, "t", &hash, past, &expired).unwrap_err().message.contains("expired"));
    }

    #[test]
    fn only_hashes_become_paths() {
        for bad in ["", "../../etc/passwd", &"A".repeat(64), &"a".repeat(63), &format!("{}/", "a".repeat(63))]
        {
            assert!(!is_hash(bad), "{bad}");
        }
        assert!(is_hash(&"0f".repeat(32)));
    }
}
