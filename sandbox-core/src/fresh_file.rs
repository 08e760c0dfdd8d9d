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

/// Makes the empty file `$1` of mode `$2`. Whatever else has the name, such as a link that was put back with the work, is
/// taken away and not followed.
const MAKE_PRIVATE: &str = r#"umask 077 && rm -rf -- "$1" && set -C && : > "$1" && chmod -- "$2" "$1""#;

/// Puts the files of a hook in place, each whole or not at all.
pub(crate) async fn put_in_place(handle: &dyn SandboxHandle, files: Vec<FreshFile>) -> Result<()> {
    for file in files {
        let owner = file.owner.clone();
        // Staged beside the target, so that the rename is on one file system; private before it has its content.
        let staged = format!("{}.sandhold-new", file.path);
        let as_owner = |path: &str| -> ProcessSpec {
            let argv = ["-c", MAKE_PRIVATE, "sh", path, &format!("{:o}", file.mode)];
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

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_secret_goes_neither_through_a_link_nor_into_a_directory_that_has_the_name_of_its_stage() {
        let dir = std::env::temp_dir().join(format!("sandhold-fresh-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&dir).unwrap();
        let (stage, open) = (dir.join("token.sandhold-new"), dir.join("open"));
        std::fs::write(&open, "work").unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o666)).unwrap();
        for at_its_place in ["link", "directory", "file", "nothing"] {
            match at_its_place {
                "link" => symlink(&open, &stage).unwrap(),
                "directory" => std::fs::create_dir_all(stage.join("deep")).unwrap(),
                "file" => std::fs::write(&stage, "left").unwrap(),
                _ => {}
            }
            let made =
                Command::new("/bin/sh").args(["-c", MAKE_PRIVATE, "sh"]).arg(&stage).arg("600").status();
            assert!(made.unwrap().success(), "{at_its_place}");
            let meta = std::fs::symlink_metadata(&stage).unwrap();
            assert!(meta.is_file() && meta.len() == 0, "{at_its_place}");
            assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{at_its_place}");
            std::fs::remove_file(&stage).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&open).unwrap(), "work");
        assert_eq!(std::fs::metadata(&open).unwrap().permissions().mode() & 0o777, 0o666);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
