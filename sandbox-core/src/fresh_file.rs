//! Files that hooks bring into a sandbox, each whole or not at all.

use std::fmt;

use bytes::Bytes;

use crate::files::{FileOptions, WriteOptions};
use crate::process::ProcessSpec;
use crate::stream::ByteStream;
use crate::{Error, ErrorKind, Result, SandboxHandle, SandboxHandleExt as _};

/// A file that a hook wants fresh inside the sandbox, such as a token.
///
/// It is written to a private place, given its mode and owner there, and then renamed over the target.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreshFile {
    /// The absolute path inside.
    pub path: String,
    /// Its content; never logged.
    pub content: Vec<u8>,
    /// Its permission bits; default `0o600`.
    pub mode: u32,
    /// Its owner; default the sandbox's user.
    pub owner: Option<String>,
}

impl FreshFile {
    /// A file of mode `0o600` that belongs to the sandbox's user.
    pub fn new(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), content: content.into(), mode: 0o600, owner: None }
    }
}

impl fmt::Debug for FreshFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreshFile")
            .field("path", &self.path)
            .field("content", &format_args!("{} bytes", self.content.len()))
            .field("mode", &self.mode)
            .field("owner", &self.owner)
            .finish()
    }
}

/// Puts the files of a hook in place, each whole or not at all.
pub(crate) async fn put_in_place(handle: &dyn SandboxHandle, files: Vec<FreshFile>) -> Result<()> {
    for file in files {
        let owner = file.owner.clone();
        // Staged beside the target, so that the rename is on one file system; private before it has its content.
        let staged = format!("{}.sandhold-new", file.path);
        let as_owner = |path: &str| -> ProcessSpec {
            let argv = [
                "-c",
                r#"umask 077 && : > "$1" && chmod "$2" "$1""#,
                "sh",
                path,
                &format!("{:o}", file.mode),
            ];
            let spec = ProcessSpec::argv("/bin/sh", argv);
            match &owner {
                Some(owner) => spec.with_user(owner.clone()),
                None => spec,
            }
        };
        let options = FileOptions { user: owner.clone() };
        if let Some((parent, _)) = file.path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty())
            && !handle.exists(parent).await?
        {
            handle.make_dir(parent, options.clone()).await?;
        }
        let made = handle.exec(as_owner(&staged)).await?;
        if !made.exit.success() {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                format!("the file {:?} of a hook could not be put in place", file.path),
            )
            .with_context("exit", made.exit));
        }
        let body = ByteStream::from_bytes(Bytes::from(file.content));
        handle.write(&staged, body, WriteOptions { user: owner, ..WriteOptions::default() }).await?;
        handle.rename(&staged, &file.path, options).await?;
    }
    Ok(())
}
