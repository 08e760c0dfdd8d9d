mod closure;
mod delta;
mod git_lock;
mod in_repo;
mod index;
mod lock;
mod objects;
mod pack;
mod records;
mod refs;
mod store;
mod unpack;

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandhold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

pub(crate) use closure::Closure;
pub(crate) use delta::apply_delta;
pub(crate) use lock::{Lock, Sharing};
pub(crate) use objects::{Objects, commit, tree};
pub(crate) use pack::{Deflater, Kind as ObjectKind, PackWriter, install};
pub(crate) use records::{Records, from_commit, message};
pub(crate) use refs::{Refs, SNAPSHOTS};
pub(crate) use store::{Store, StoredPack, copy_all, list};
pub(crate) use unpack::{Limits as PackLimits, unpack};

use crate::cancel::{Cancel, run_blocking};
use crate::capture::Remembered;
use crate::git::{self, GitDir};
use crate::snapshot::{SnapId, Snapshot};
use crate::{beneath, durable, error};

/// The generation in which nothing was ever deleted.
const FIRST_GENERATION: &str = "first";

/// The name of a vault: one for each repository, or each project of a host; 1 to 128 letters, digits, `.`, `_`, `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepoKey(String);

impl TryFrom<String> for RepoKey {
    type Error = Error;

    fn try_from(key: String) -> Result<Self> {
        Self::new(key)
    }
}

impl From<RepoKey> for String {
    fn from(key: RepoKey) -> Self {
        key.0
    }
}

impl RepoKey {
    /// Checks and wraps a key.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an empty or too long one, one with other letters, or one that begins with a
    /// dot.
    pub fn new(key: impl Into<String>) -> Result<Self> {
        let key = key.into();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if key.is_empty() || key.len() > 128 || key.starts_with('.') || !key.bytes().all(fits) {
            let shown: String = key.chars().take(64).collect();
            return Err(Error::invalid_argument(format!(
                "the repository key {shown:?} is not 1 to 128 letters, digits, `.`, `_` or `-`; the first is no dot"
            )));
        }
        Ok(Self(key))
    }

    /// Makes a key of the commit that the repository of a workspace began with: the first 16 hex digits of the smallest
    /// root commit that `HEAD` goes back to. Every clone has the same. Where there is no repository, or no commit in it
    /// yet, it is [`RepoKey::of_path`], which becomes another with the first commit.
    ///
    /// All commits are read for it; ask once and keep the answer. Whoever may write to the repository decides what it is:
    /// for workspaces of strangers give a key of your own.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where nothing is there, and [`ErrorKind::Unsupported`] with reason `no_root` where it
    /// cannot be told, such as in a shallow clone.
    ///
    /// # Cancellation
    /// Dropping the future stops the reading.
    pub async fn of_workspace(workspace: impl AsRef<Path>) -> Result<Self> {
        let workspace = workspace.as_ref().to_owned();
        run_blocking(None, move |cancel| Self::of_repository(&workspace, cancel)).await
    }

    fn of_repository(workspace: &Path, cancel: &Cancel) -> Result<Self> {
        let path = workspace.canonicalize().map_err(|failure| error::io("find", workspace, failure))?;
        let root = beneath::open_root(&path)?;
        let unknown = |why: String| {
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the first commit of {} cannot be told: {why}; give a key of your own, or the one of its path",
                    path.display()
                ),
            )
            .with_reason("no_root")
        };
        let Some(git) = GitDir::find(root.as_fd(), &path, &[]).map_err(&unknown)? else {
            return Self::of_path(&path);
        };
        let Some(head) = git.head().map_err(&unknown)?.commit else { return Self::of_path(&path) };
        match git::smallest_root(&git, head, &HashMap::new(), cancel)? {
            Some(first) => Self::new(&first.to_string()[..16]),
            None => Err(unknown("its history is cut off or damaged".to_owned())),
        }
    }

    /// Makes a key of where a workspace is: its last name, and 12 hex digits of the hash of its path.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where nothing is there.
    pub fn of_path(workspace: &Path) -> Result<Self> {
        let path = workspace.canonicalize().map_err(|failure| error::io("find", workspace, failure))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name: String =
            name.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-').take(64).collect();
        Self::new(format!("{}-{}", if name.is_empty() { "root" } else { &name }, path_hash(&path)))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first 12 hex digits of the hash of a path.
pub(crate) fn path_hash(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hash: [u8; 20] = Sha1::digest(path.as_os_str().as_bytes()).into();
    hash[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where a vault is, and whose.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VaultConfig {
    /// The directory of all vaults. It must not be within a workspace.
    pub home: PathBuf,
    /// Which of them.
    pub key: RepoKey,
    /// The workspace in whose repository the snapshots are kept; `home` is of no use then. `None` by default.
    pub in_repo: Option<PathBuf>,
}

impl VaultConfig {
    /// Names a vault below `home`.
    pub fn new(home: impl Into<PathBuf>, key: RepoKey) -> Self {
        Self { home: home.into(), key, in_repo: None }
    }

    /// Keeps snapshots in the git repository of a workspace, below `refs/sandbox/snapshots/`, where git shows them and a
    /// clone of it has none of them. What git does not hold is in the directory `sandhold` of its `.git`.
    ///
    /// The repository is used without its configuration: no hook, filter or include of it has a say. Index, `HEAD`,
    /// branches and files are never written, and refs are written as git does, so that both may work at the same time.
    /// Whoever deletes the repository deletes the snapshots with it, and its owner can do to them whatever git can.
    pub fn in_repo(workspace: impl Into<PathBuf>, key: RepoKey) -> Self {
        Self { home: PathBuf::new(), key, in_repo: Some(workspace.into()) }
    }
}

/// A store of snapshots, in a bare git repository that is ours alone, outside of every workspace.
///
/// Cheap to clone. Many vaults, and many processes with the same one, may be open at once.
#[derive(Clone, Debug)]
pub struct Vault(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) key: RepoKey,
    root: PathBuf,
    git_dir: PathBuf,
    /// Whether the objects and refs are those of somebody's repository, in which git works too.
    pub(crate) in_repo: bool,
    pub(crate) objects: Objects,
    pub(crate) refs: Refs,
    pub(crate) records: Records,
    /// The last look at each workspace.
    pub(crate) scans: Mutex<HashMap<PathBuf, Remembered>>,
}

impl Vault {
    /// Opens a vault, and makes it where it is not there yet.
    ///
    /// What processes left behind that were killed in the middle of their work is swept, unless some process works on
    /// this vault right now.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a home that is no UTF-8, and whatever the file system says;
    /// [`ErrorKind::Unsupported`] with reason `in_repo` where a repository cannot hold snapshots, and
    /// [`ErrorKind::NotFound`] where there is none.
    ///
    /// # Cancellation
    /// Dropping the future leaves a vault that can be opened again.
    pub async fn open(config: VaultConfig) -> Result<Self> {
        run_blocking(None, move |_| Self::open_now(config)).await
    }

    fn open_now(config: VaultConfig) -> Result<Self> {
        let in_repo = config.in_repo.is_some();
        let (root, git_dir) = match &config.in_repo {
            Some(workspace) => in_repo::find(workspace)?,
            None => {
                let root = home(&config.home)?.join(config.key.as_str());
                (root.clone(), root.join("vault.git"))
            }
        };
        for dir in ["records", "cache", "journal", "locks", "staging", "uploads"] {
            durable::create_dir(&root.join(dir))?;
        }
        let staging = root.join("staging");
        let shared = in_repo.then(|| staging.clone());
        let inner = Inner {
            key: config.key,
            objects: Objects::new(git_dir.join("objects"), staging),
            refs: Refs::new(git_dir.clone(), root.join("locks/refs"), shared),
            records: Records::new(root.join("records")),
            in_repo,
            git_dir,
            root,
            scans: Mutex::default(),
        };
        let lock = inner.lock_path("vault");
        let is_made = inner.git_dir.join("HEAD").exists() && !inner.generation().is_empty();
        let alone = match is_made {
            // Whoever works here needs no sweep now.
            true => Lock::try_take(&lock, Sharing::Exclusive)?,
            false => Some(Lock::take(&lock, Sharing::Exclusive, &Cancel::new(None))?),
        };
        if alone.is_some() {
            if !in_repo {
                make(&inner.git_dir)?;
            }
            inner.sweep()?;
            inner.first_generation()?;
        }
        drop(alone);
        Ok(Self(Arc::new(inner)))
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &RepoKey {
        &self.0.key
    }

    /// Returns the bare repository, for reading with git. Nothing but this library may write to it, unless the vault is
    /// in somebody's repository: then this is its `.git`.
    #[must_use]
    pub fn git_dir(&self) -> PathBuf {
        self.0.git_dir()
    }

    /// Lists the snapshots of the vault, oldest first.
    ///
    /// # Errors
    /// Whatever the file system says. A snapshot that cannot be read is left out, and hides no other.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let inner = Arc::clone(&self.0);
        run_blocking(None, move |_| inner.records.list(&inner.objects, &inner.refs)).await
    }

    /// Finds a snapshot by its id, or by the beginning of one where no other begins so.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and [`ErrorKind::InvalidArgument`] with reason `ambiguous`, which names the candidates.
    pub async fn snapshot(&self, id: &str) -> Result<Snapshot> {
        let (inner, id) = (Arc::clone(&self.0), id.to_owned());
        run_blocking(None, move |_| inner.find(&id)).await
    }
}

impl Inner {
    pub(crate) fn find(&self, id: &str) -> Result<Snapshot> {
        if let Ok(id) = id.parse::<SnapId>()
            && let Some(commit) = self.refs.read(&id.ref_name())?
        {
            return self.records.of_ref(&self.objects.open()?, &id, commit);
        }
        let mut found = self.records.list(&self.objects, &self.refs)?;
        found.retain(|snapshot| !id.is_empty() && snapshot.id.as_str().starts_with(id));
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => {
                Err(Error::new(ErrorKind::NotFound, format!("the vault {} has no snapshot {id:?}", self.key)))
            }
            _ => Err(Error::invalid_argument(format!("{id:?} begins more than one id; give more of it"))
                .with_reason("ambiguous")
                .with_context(
                    "candidates",
                    found.iter().take(10).map(|snapshot| snapshot.id.as_str()).collect::<Vec<_>>().join(" "),
                )),
        }
    }

    pub(crate) fn git_dir(&self) -> PathBuf {
        self.git_dir.clone()
    }

    /// Tells whether this repository is the one that the vault is in.
    pub(crate) fn is_of(&self, git: &GitDir) -> bool {
        self.in_repo && git.common_path() == self.git_dir
    }

    /// Refuses what would delete or move files of somebody's repository.
    pub(crate) fn refuse_in_repo(&self, what: &str, why: &str) -> Result<()> {
        if !self.in_repo {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("{what} is not done in the repository {}: {why}", self.git_dir.display()),
        )
        .with_reason("in_repo"))
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn lock_path(&self, name: &str) -> PathBuf {
        self.root.join("locks").join(name)
    }

    /// Holds the vault against sweeps and collections while something is made in it.
    pub(crate) fn hold(&self, cancel: &Cancel) -> Result<Lock> {
        Lock::take(&self.lock_path("vault"), Sharing::Shared, cancel)
    }

    /// What changes whenever objects are deleted, so that nobody trusts what was there before.
    pub(crate) fn generation(&self) -> String {
        fs::read_to_string(self.root.join("generation")).unwrap_or_default()
    }

    /// Tells whether anything was ever deleted: as long as not, each object has all that it refers to beside it.
    pub(crate) fn was_collected(&self) -> bool {
        self.generation() != FIRST_GENERATION
    }

    fn first_generation(&self) -> Result<()> {
        match self.generation().is_empty() {
            true => self.set_generation(FIRST_GENERATION),
            false => Ok(()),
        }
    }

    /// Must be called, under the exclusive lock of the vault, before any object is deleted.
    pub(crate) fn renew_generation(&self) -> Result<()> {
        self.scans.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let staged = self.objects.staged("generation")?;
        let name = staged.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        self.set_generation(&name)
    }

    fn set_generation(&self, name: &str) -> Result<()> {
        let staged = self.objects.staged("generation")?;
        durable::replace(&staged, &self.root.join("generation"), name.as_bytes())
    }

    /// Removes what was begun and never published. The exclusive lock tells that nobody is at it.
    pub(crate) fn sweep(&self) -> Result<()> {
        self.refs.sweep()?;
        empty(&self.root.join("staging"))
    }
}

fn empty(dir: &Path) -> Result<()> {
    for path in list(dir)? {
        let removed = match path.symlink_metadata().is_ok_and(|stat| stat.is_dir()) {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(|failure| error::io("remove", &path, failure))?;
    }
    Ok(())
}

/// The directory of all vaults, which libgit2 has to be able to name.
fn home(home: &Path) -> Result<PathBuf> {
    let home = std::path::absolute(home).map_err(|failure| error::io("find", home, failure))?;
    match home.to_str() {
        Some(_) => Ok(home),
        None => Err(Error::invalid_argument(format!(
            "the home of vaults {} is not UTF-8; choose another directory",
            home.display()
        ))),
    }
}

/// Makes a bare repository that git can read. `HEAD` comes last: without it there is no repository.
fn make(git_dir: &Path) -> Result<()> {
    if git_dir.join("HEAD").exists() {
        return Ok(());
    }
    for dir in ["objects/info", "objects/pack", "refs/heads", "refs/tags", SNAPSHOTS] {
        durable::create_dir(&git_dir.join(dir))?;
    }
    for dir in ["objects", "refs", "refs/sandbox"] {
        beneath::sync_dir(&git_dir.join(dir))?;
    }
    // For whoever runs git here: nothing is packed anew or deleted behind our back.
    let config = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\
                  [gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n[receive]\n\tautogc = false\n";
    for (name, text) in [("config", config), ("HEAD", "ref: refs/heads/main\n")] {
        let staged = git_dir.join(format!("{name}.new"));
        let _ = fs::remove_file(&staged);
        durable::replace(&staged, &git_dir.join(name), text.as_bytes())?;
    }
    git_dir.parent().map_or(Ok(()), beneath::sync_dir)
}
