use std::path::Path;
use std::sync::Arc;

use sandhold_core::{Error, ErrorKind, Result};

use crate::cancel::run_blocking;
use crate::snapshot::{SnapId, Snapshot};
use crate::vault::{self, Inner, Vault};
use crate::{durable, error};

impl Vault {
    /// Writes what a snapshot changed as a patch for `git apply`, into a new file that its owner alone may read.
    ///
    /// It is the difference from the commit that the session began at; where that is not known, from the state before,
    /// and from nothing where there is none. Every byte is as it was, those of binary files too. Returns its length.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] with reason `empty_patch` where there is no difference; [`ErrorKind::AlreadyExists`];
    /// [`ErrorKind::NotFound`] where the vault has no such snapshot.
    pub async fn restore_patch(&self, id: &SnapId, file: impl AsRef<Path>) -> Result<u64> {
        let (inner, id, file) = (Arc::clone(&self.0), id.clone(), file.as_ref().to_owned());
        run_blocking(None, move |cancel| {
            let _held = inner.hold(cancel)?;
            let snapshot = inner.find(id.as_str())?;
            let patch = inner.patch(&snapshot)?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let staged = file.with_file_name(format!(".{name}.{}", snapshot.id));
            if file.symlink_metadata().is_ok() {
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!("{} is there already", file.display()),
                ));
            }
            durable::replace(&staged, &file, &patch)?;
            Ok(patch.len() as u64)
        })
        .await
    }
}

impl Inner {
    fn patch(&self, snapshot: &Snapshot) -> Result<Vec<u8>> {
        let repository = self.objects.open()?;
        let commit = vault::commit(&repository, snapshot.commit)?;
        let before = match snapshot.head_at_start.map(|head| repository.find_commit(head.into())) {
            Some(Ok(head)) => Some(head),
            // The side commit is a parent that holds no state.
            _ => commit.parents().next().filter(|parent| Some(parent.id().into()) != snapshot.side),
        };
        let failed =
            |failure| error::git(format_args!("compare {} with what was before", snapshot.id), failure);
        let from = before.map(|before| before.tree()).transpose().map_err(failed)?;
        let to = commit.tree().map_err(failed)?;
        let mut options = git2::DiffOptions::new();
        options.show_binary(true).id_abbrev(40).context_lines(3);
        let diff =
            repository.diff_tree_to_tree(from.as_ref(), Some(&to), Some(&mut options)).map_err(failed)?;
        let mut patch = Vec::new();
        diff.print(git2::DiffFormat::Patch, |_, _, line| {
            if matches!(line.origin(), '+' | '-' | ' ') {
                patch.push(line.origin() as u8);
            }
            patch.extend_from_slice(line.content());
            true
        })
        .map_err(failed)?;
        if patch.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidState,
                format!("{} has no file that differs from where it began", snapshot.id),
            )
            .with_reason("empty_patch"));
        }
        Ok(patch)
    }
}
