//! Workspaces inside sandboxes, reached through their handles alone.

mod command;
mod listing;
mod select;
mod shadow;
mod transfer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{Error, ErrorKind, FileOptions, Result, SandboxHandle};
use sha1::{Digest, Sha1};

use crate::cancel::run_blocking;
use crate::capture::{CaptureOptions, Purpose};
use crate::restore::{RestoreOptions, Restored};
use crate::snapshot::{RunOutcome, SnapId, Snapshot, Source};
use crate::vault::Vault;
use shadow::Shadow;

/// A workspace inside a sandbox: whose, and where.
///
/// The name is the host's and outlives the sandbox, such as its key: by it the next sandbox, of whatever provider, gets
/// the work of this one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RemoteWorkspace {
    /// The name of the work.
    pub name: String,
    /// The absolute path of the workspace inside.
    pub path: String,
}

impl RemoteWorkspace {
    /// Names a workspace.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an empty name, and for a path that is not absolute or is `/`.
    pub fn new(name: impl Into<String>, path: impl Into<String>) -> Result<Self> {
        let (name, path) = (name.into(), path.into());
        if name.is_empty() || name.len() > 256 || name.contains('\0') {
            return Err(Error::invalid_argument("a workspace of a sandbox needs a name of 1 to 256 bytes"));
        }
        let is_plain = path.starts_with('/')
            && !path.contains('\0')
            && path.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
        if !is_plain {
            return Err(Error::invalid_argument(format!(
                "{path:?} is no absolute path of a workspace inside a sandbox, such as /home/user/project"
            )));
        }
        Ok(Self { name, path })
    }

    /// What snapshots of it have as [`Snapshot::sandbox`].
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}:{}", self.name, self.path)
    }
}

impl Vault {
    /// Captures a workspace inside a sandbox; `None` where nothing has changed since its last snapshot.
    ///
    /// Inside, `find`, `tar`, `gzip` and a shell are needed, as GNU has them, and no git. What is there is listed once, and
    /// only contents that have changed since the last look at this sandbox travel, compressed, into a copy on this
    /// machine beside the vaults; the copy is captured as any directory, its commits too. What `.gitignore` files
    /// ignore and what the rules leave out does not travel.
    ///
    /// # Errors
    /// As [`Vault::capture`]; [`ErrorKind::NotFound`] where the workspace is not there; [`ErrorKind::Unsupported`] where
    /// the sandbox has not what is needed; and whatever the handle answers.
    ///
    /// # Cancellation
    /// Dropping the future kills what runs inside. Either the whole snapshot is there, or nothing of it.
    pub async fn capture_sandbox(
        &self,
        handle: &dyn SandboxHandle,
        workspace: &RemoteWorkspace,
        options: CaptureOptions,
    ) -> Result<Option<Snapshot>> {
        let shadow = self.shadow(handle, workspace).await?;
        let (shadow, pulled) = transfer::pull(handle, &workspace.path, shadow, &options.rules).await?;
        let (sandbox, older) = (Some(workspace.label()), pulled.older);
        let options = CaptureOptions { sandbox, older, ..options };
        let purpose = Purpose { id: None, source: Source::Run, outcome: Some(RunOutcome::Clean) };
        let snapshot = self.capture_for(shadow.tree(), options, purpose).await?;
        drop(shadow);
        Ok(snapshot)
    }

    /// Makes a workspace inside a sandbox what a snapshot has; it is made where it is not there.
    ///
    /// Only what differs travels, and every byte that was sent is read again inside, by its SHA-256. What the sandbox has
    /// of its own is treated as by [`Vault::restore`], a receipt too.
    ///
    /// # Errors
    /// As [`Vault::restore`] and [`Vault::capture_sandbox`]; [`ErrorKind::InvalidState`] with reason `restore_incomplete`
    /// names what did not arrive, or what was to survive and is not in the snapshot; all else is there then.
    ///
    /// # Cancellation
    /// Dropping the future leaves the workspace between what it was and what it was to be; another restore completes it.
    pub async fn restore_sandbox(
        &self,
        handle: &dyn SandboxHandle,
        workspace: &RemoteWorkspace,
        id: &SnapId,
        options: RestoreOptions,
    ) -> Result<Restored> {
        let snapshot = self.snapshot(id.as_str()).await?;
        match handle.make_dir(&workspace.path, FileOptions::default()).await {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let shadow = self.shadow(handle, workspace).await?;
        let (shadow, pulled) = transfer::pull(handle, &workspace.path, shadow, &snapshot.rules).await?;
        let (shadow, before) = run_blocking(None, move |_| {
            let before = shadow.state()?;
            // From here on the copy is not what the sandbox is, until all has arrived there.
            shadow.forget()?;
            Ok((shadow, before))
        })
        .await?;
        let restored = match self.restore(id, shadow.tree(), options).await {
            // All that there is of it was written, and is to arrive too.
            Err(failure) if failure.reason() == Some("restore_incomplete") => Err(failure),
            restored => Ok(restored?),
        };
        let shadow = transfer::push(handle, &workspace.path, shadow, &before, &pulled.listing).await?;
        let tree = shadow.tree();
        if snapshot.sandbox.as_ref() == Some(&workspace.label()) && snapshot.workspace != tree {
            // It came from another machine: from here on the work goes on from it in the copy of this one.
            self.update(id.clone(), |snapshot| snapshot.workspace = tree).await?;
        }
        restored.map(|restored| Restored { target: PathBuf::from(&workspace.path), ..restored })
    }

    /// The newest snapshot of a workspace of sandboxes, whichever sandbox it was captured in.
    ///
    /// # Errors
    /// As [`Vault::snapshots`].
    pub async fn newest_of_sandbox(&self, workspace: &RemoteWorkspace) -> Result<Option<Snapshot>> {
        let label = workspace.label();
        let found = self.snapshots().await?.into_iter().rev();
        Ok(found.into_iter().find(|snapshot| snapshot.sandbox.as_ref() == Some(&label)))
    }

    async fn shadow(&self, handle: &dyn SandboxHandle, workspace: &RemoteWorkspace) -> Result<Shadow> {
        let inner = Arc::clone(&self.0);
        let hash: [u8; 20] = Sha1::digest(workspace.label().as_bytes()).into();
        let name: String = hash[..10].iter().map(|byte| format!("{byte:02x}")).collect();
        let sandbox = format!("{}/{}", handle.provider(), handle.id());
        run_blocking(Some(Duration::from_secs(600)), move |cancel| {
            let home = inner.root().parent().unwrap_or(inner.root());
            // No repository key begins with a dot.
            Shadow::open(&home.join(".sandboxes").join(inner.key.as_str()).join(name), &sandbox, cancel)
        })
        .await
    }
}
