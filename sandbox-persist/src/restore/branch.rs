use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::cancel::{Cancel, run_blocking};
use crate::capture::Workspace;
use crate::git::{ForeignStore, GitDir, is_ref_name};
use crate::oid::ObjectId;
use crate::snapshot::{SnapId, Snapshot};
use crate::vault::{self, Inner, Vault};
use crate::{beneath, error};

/// A branch that a snapshot was restored as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RestoredBranch {
    /// Its name, without `refs/heads/`.
    pub name: String,
    /// The commit that it is at.
    pub commit: ObjectId,
    /// Whether it was there before, at this commit.
    pub was_there: bool,
    /// How many files the snapshot has.
    pub files: u64,
    /// Whether the workspace has just what the snapshot has.
    pub matches_workspace: bool,
}

impl Vault {
    /// Adds a branch at a snapshot to the repository of a workspace, and changes nothing else in it.
    ///
    /// One pack and one ref are added, as files: the repository is not opened with its configuration, and no hook runs.
    /// `None` names the branch `sandbox-recover/<branch>-<id>`.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] where the branch is at another commit; [`ErrorKind::InvalidState`] with reason
    /// `no_repository` where there is none that can be written to in this way; [`ErrorKind::InvalidArgument`] for what
    /// is no name of a branch; [`ErrorKind::Conflict`] where git is writing that branch right now.
    pub async fn restore_branch(
        &self,
        id: &SnapId,
        workspace: impl AsRef<Path>,
        name: Option<&str>,
    ) -> Result<RestoredBranch> {
        let (inner, id, name) = (Arc::clone(&self.0), id.clone(), name.map(str::to_owned));
        let workspace = workspace.as_ref().to_owned();
        run_blocking(None, move |cancel| {
            let _held = inner.hold(cancel)?;
            let workspace = Workspace::open(&workspace, false, inner.root())?;
            inner.restore_branch(&id, &workspace, name, cancel)
        })
        .await
    }
}

impl Inner {
    fn restore_branch(
        &self,
        id: &SnapId,
        workspace: &Workspace,
        name: Option<String>,
        cancel: &Cancel,
    ) -> Result<RestoredBranch> {
        let snapshot = self.find(id.as_str())?;
        let name = name.unwrap_or_else(|| default_name(&snapshot));
        let full = format!("refs/heads/{name}");
        if !is_ref_name(&full) {
            return Err(Error::invalid_argument(format!("{name:?} is no name that git takes for a branch")));
        }
        let refused = |why: String| {
            let path = workspace.path.display();
            Error::new(ErrorKind::InvalidState, format!("{path} has no repository for a branch: {why}"))
                .with_reason("no_repository")
        };
        let git = GitDir::find(workspace.root.as_fd(), &workspace.path, &[])
            .map_err(refused)?
            .ok_or_else(|| refused("there is no .git".to_owned()))?;
        git.takes_files().map_err(refused)?;

        let was_there = match git.resolve(&full).map_err(refused)? {
            Some(there) if there == snapshot.commit => true,
            Some(there) => {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("the branch {name} is at {there}")));
            }
            None => {
                self.add_objects(&git, &snapshot, cancel)?;
                add_ref(git.common(), &full, snapshot.commit)?;
                false
            }
        };
        let present = self.look(workspace, &snapshot.rules, None, None, cancel)?;
        Ok(RestoredBranch {
            name,
            commit: snapshot.commit,
            was_there,
            files: snapshot.files,
            matches_workspace: present.root_tree() == snapshot.tree,
        })
    }

    /// Adds what the repository has not: one pack.
    fn add_objects(&self, git: &GitDir, snapshot: &Snapshot, cancel: &Cancel) -> Result<()> {
        let repository = self.objects.open()?;
        let mut store = ForeignStore::new(git.common(), &self.objects)?;
        let failed = |failure| error::git(format_args!("pack {}", snapshot.id), failure);
        let mut walk = repository.revwalk().map_err(failed)?;
        walk.push(snapshot.commit.into()).map_err(failed)?;
        // A commit that the repository has is there with all that it refers to.
        let mut seen = HashSet::new();
        let mut todo = vec![snapshot.commit];
        while let Some(id) = todo.pop() {
            cancel.check()?;
            if seen.insert(id) {
                match store.has(id) {
                    true => walk.hide(id.into()).map_err(failed)?,
                    false => {
                        let commit = vault::commit(&repository, id)?;
                        todo.extend(commit.parent_ids().map(ObjectId::from));
                    }
                }
            }
        }
        let mut builder = repository.packbuilder().map_err(failed)?;
        builder.insert_walk(&mut walk).map_err(failed)?;
        if builder.object_count() == 0 {
            return Ok(());
        }
        let staging = self.objects.staged("branch")?;
        crate::durable::create_dir(&staging)?;
        let mut packed = || -> Result<()> {
            let mut indexer = git2::Indexer::new(None, &staging, 0o444, false).map_err(failed)?;
            let mut broken = None;
            builder
                .foreach(|part| match indexer.write_all(part) {
                    Ok(()) => cancel.check().is_ok(),
                    Err(failure) => {
                        broken = Some(failure);
                        false
                    }
                })
                .map_err(failed)?;
            cancel.check()?;
            if let Some(failure) = broken {
                return Err(error::io("write a pack in", &staging, failure));
            }
            let digest = indexer.commit().map_err(failed)?;
            let packs = beneath::open_dir(git.common(), b"objects/pack")
                .map_err(|errno| error::io("open the packs of", &staging, errno))?;
            for ending in ["pack", "idx"] {
                let name = format!("pack-{digest}.{ending}");
                add_file(&packs, &name, &staging.join(&name))?;
            }
            rustix::fs::fsync(&packs).map_err(|errno| error::io("sync the packs of", &staging, errno))
        };
        let done = packed();
        // What stays is swept with the staging directory.
        let _ = fs::remove_dir_all(&staging);
        done
    }
}

/// Copies a file below an opened directory, where it gets its name once it is whole and on the disk.
fn add_file(dir: &OwnedFd, name: &str, from: &Path) -> Result<()> {
    let mut content = Vec::new();
    fs::File::open(from)
        .and_then(|mut file| file.read_to_end(&mut content))
        .map_err(|failure| error::io("read", from, failure))?;
    let staged = format!("tmp_{name}");
    let write = || -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = fs::File::from(rustix::fs::openat(dir, &*staged, flags, Mode::from_raw_mode(0o444))?);
        file.write_all(&content)
            .and_then(|()| file.sync_all())
            .map_err(|failure| Errno::from_io_error(&failure).unwrap_or(Errno::IO))?;
        rustix::fs::renameat(dir, &*staged, dir, name)
    };
    write().map_err(|errno| {
        let _ = rustix::fs::unlinkat(dir, &*staged, AtFlags::empty());
        error::io("add the file", Path::new(name), errno)
    })
}

/// Writes a ref as git does: into a lock file, which then gets its name.
fn add_ref(common: BorrowedFd<'_>, name: &str, id: ObjectId) -> Result<()> {
    let failed = |errno: Errno| match errno {
        Errno::EXIST => {
            Error::new(ErrorKind::Conflict, format!("git is writing {name}, or died at it; see {name}.lock"))
                .with_reason("ref_locked")
        }
        Errno::NOTDIR => {
            Error::new(ErrorKind::AlreadyExists, format!("a branch has the name of a directory of {name}"))
        }
        errno => error::io("write the ref", Path::new(name), errno),
    };
    let (mut at, mut dir) = (Vec::new(), rustix::io::fcntl_dupfd_cloexec(common, 0).map_err(failed)?);
    let mut parts = name.split('/').peekable();
    let mut leaf = "";
    while let Some(part) = parts.next() {
        leaf = part;
        if parts.peek().is_some() {
            match rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            at = crate::path::join(&at, part.as_bytes());
            dir = beneath::open_dir(common, &at).map_err(failed)?;
        }
    }
    let lock = format!("{leaf}.lock");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&dir, &*lock, flags, Mode::from_raw_mode(0o666)).map_err(failed)?;
    let mut file = fs::File::from(file);
    let written = file
        .write_all(format!("{id}\n").as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|failure| Errno::from_io_error(&failure).unwrap_or(Errno::IO))
        .and_then(|()| rustix::fs::renameat(&dir, &*lock, &dir, leaf));
    if let Err(errno) = written {
        let _ = rustix::fs::unlinkat(&dir, &*lock, AtFlags::empty());
        return Err(match errno {
            Errno::ISDIR => Error::new(ErrorKind::AlreadyExists, format!("there are branches below {name}")),
            errno => failed(errno),
        });
    }
    rustix::fs::fsync(&dir).map_err(failed)
}

fn default_name(snapshot: &Snapshot) -> String {
    let branch = snapshot.branch.as_deref().unwrap_or("detached");
    let sane: String = branch
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_".contains(letter) { letter } else { '-' })
        .take(100)
        .collect();
    format!("sandbox-recover/{sane}-{}", snapshot.id)
}
