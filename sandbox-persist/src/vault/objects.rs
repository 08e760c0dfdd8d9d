use std::path::{Path, PathBuf};

use sandhold_core::{Error, ErrorKind, Result};

use super::pack::PackWriter;
use super::store::Store;
use crate::error;
use crate::oid::ObjectId;

/// What names other places for objects, which libgit2 follows.
pub(super) const ALTERNATES: &str = "info/alternates";

/// The objects of the vault, all of them in packs.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    dir: PathBuf,
    staging: PathBuf,
}

impl Objects {
    pub(crate) fn new(dir: PathBuf, staging: PathBuf) -> Self {
        Self { dir, staging }
    }

    /// Opens them for reading, by no configuration of anybody.
    ///
    /// libgit2 gets the objects alone and no directory of a repository, so that neither a system's nor a user's
    /// configuration, nor refs, hooks, attributes or an owner of files matter.
    pub(crate) fn open(&self) -> Result<git2::Repository> {
        self.open_with(None)
    }

    /// Opens them with those of another directory beside them, such as one in quarantine.
    pub(crate) fn open_with(&self, other: Option<&Path>) -> Result<git2::Repository> {
        // Whoever may write to a repository with snapshots in it must not have objects of others taken for its own.
        if std::fs::symlink_metadata(self.dir.join(ALTERNATES)).is_ok() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} borrows objects of another repository by now ({ALTERNATES})", self.dir.display()),
            )
            .with_reason("in_repo"));
        }
        let open = || -> Result<git2::Repository, git2::Error> {
            let odb = git2::Odb::new()?;
            for dir in std::iter::once(&*self.dir).chain(other) {
                odb.add_disk_alternate(dir.to_str().ok_or_else(|| git2::Error::from_str("not UTF-8"))?)?;
            }
            let repository = git2::Repository::from_odb(odb)?;
            repository.set_config(&git2::Config::new()?)?;
            Ok(repository)
        };
        open().map_err(|failure| error::git(format_args!("open the vault {}", self.dir.display()), failure))
    }

    /// Opens the packs for reading and copying objects as they are stored.
    pub(crate) fn store(&self) -> Result<Store> {
        Store::open(&[&self.dir])
    }

    /// The directory of objects, as git has it.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where packs are published.
    pub(crate) fn packs(&self) -> PathBuf {
        self.dir.join("pack")
    }

    /// Tells whether there is no pack yet.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        let dir = self.packs();
        let mut entries = std::fs::read_dir(&dir).map_err(|failure| error::io("list", &dir, failure))?;
        Ok(!entries.any(|entry| {
            entry.is_ok_and(|entry| Path::new(&entry.file_name()).extension().is_some_and(|end| end == "idx"))
        }))
    }

    /// Begins a pack.
    pub(crate) fn pack(&self) -> Result<PackWriter> {
        PackWriter::create(self.staged("pack")?)
    }

    /// A new name in the staging directory, which is in the same file system and is swept when nobody works.
    pub(crate) fn staged(&self, ending: &str) -> Result<PathBuf> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|failure| {
            Error::new(ErrorKind::Unexpected, "the system gave no random bytes")
                .with_source(failure.to_string())
        })?;
        Ok(self.staging.join(format!("{:016x}.{ending}", u64::from_le_bytes(random))))
    }
}

/// Reads an object of the vault, which must be there.
pub(crate) fn commit<'r>(repository: &'r git2::Repository, id: ObjectId) -> Result<git2::Commit<'r>> {
    repository
        .find_commit(id.into())
        .map_err(|failure| error::git(format_args!("read the commit {id} of the vault"), failure))
}

/// Reads a tree of the vault, which must be there.
pub(crate) fn tree<'r>(repository: &'r git2::Repository, id: ObjectId) -> Result<git2::Tree<'r>> {
    repository
        .find_tree(id.into())
        .map_err(|failure| error::git(format_args!("read the tree {id} of the vault"), failure))
}
