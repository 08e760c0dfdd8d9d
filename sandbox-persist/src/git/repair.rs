//! What a crash, or git's own tidying, does to the repository of a workspace, and putting it right as files: no
//! configuration of it is read, no hook runs, and no ref is moved.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;

use super::dir::{GitDir, is_ref_name};
use crate::cancel::{Cancel, run_blocking};
use crate::capture::Workspace;
use crate::oid::ObjectId;
use crate::vault::{self, Inner, Lock, Sharing, Vault};
use crate::{beneath, durable, error};

/// A lock of git's that is older counts as one of a process that died.
pub const DEFAULT_LOCK_AGE: Duration = Duration::from_secs(5 * 60);

/// How the repository of a workspace is put right.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepositoryRepairOptions {
    /// The repository that a linked worktree belongs to: its main working tree, or its directory of git. What the
    /// workspace says of that is not believed, as anybody may have written it. Default none: only locks are looked for.
    pub main: Option<PathBuf>,
    /// The branch, or the commit, that a linked worktree is to be at. Default what its newest snapshot was at.
    pub head: Option<String>,
    /// How old a lock must be. Default [`DEFAULT_LOCK_AGE`].
    pub lock_age: Duration,
}

impl Default for RepositoryRepairOptions {
    fn default() -> Self {
        Self { main: None, head: None, lock_age: DEFAULT_LOCK_AGE }
    }
}

impl RepositoryRepairOptions {
    /// Removes old locks alone.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the repository that a linked worktree belongs to.
    #[must_use]
    pub fn with_main(mut self, main: impl Into<PathBuf>) -> Self {
        self.main = Some(main.into());
        self
    }

    /// Chooses the branch, or the commit, that a linked worktree is to be at.
    #[must_use]
    pub fn with_head(mut self, head: impl Into<String>) -> Self {
        self.head = Some(head.into());
        self
    }

    /// Sets how old a lock must be.
    #[must_use]
    pub fn with_lock_age(mut self, age: Duration) -> Self {
        self.lock_age = age;
        self
    }
}

/// Something that git is in the middle of, and that only its user ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InProgress {
    /// `git merge`.
    Merge,
    /// `git rebase`, or `git am`.
    Rebase,
    /// `git cherry-pick`.
    CherryPick,
    /// `git revert`.
    Revert,
    /// `git bisect`.
    Bisect,
}

/// What was done to the repository of a workspace, and what was left to its user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RepositoryRepaired {
    /// The administrative directory of a linked worktree, where it was gone and was made again.
    pub worktree: Option<PathBuf>,
    /// Locks that were removed, by their names.
    pub locks: Vec<String>,
    /// Locks that are too young: somebody may be at work.
    pub held: Vec<String>,
    /// What is going on there. It is never touched.
    pub in_progress: Vec<InProgress>,
}

impl Vault {
    /// Puts right what keeps git from working in a workspace: locks of git processes that died, and the administrative
    /// directory of a linked worktree that `git worktree prune` has removed.
    ///
    /// Such a directory is made only as `<repository>/worktrees/<name>` of the repository that the options name, with the
    /// `HEAD` that the newest snapshot of the workspace was at (detached where its branch is checked out elsewhere by
    /// now) and an index of that commit. Files of the workspace are not touched, and no ref is moved.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] with reason `no_repository` where there is none that is read here, `not_its_worktree` where
    /// the workspace names another place than one of the repository's worktrees, and `unknown_head` where no snapshot
    /// tells what it was at.
    ///
    /// # Cancellation
    /// Dropping the future stops the work. Running it again completes it.
    pub async fn repair_repository(
        &self,
        workspace: impl AsRef<Path>,
        options: RepositoryRepairOptions,
    ) -> Result<RepositoryRepaired> {
        let (inner, workspace) = (Arc::clone(&self.0), workspace.as_ref().to_owned());
        run_blocking(None, move |cancel| {
            let _held = inner.hold(cancel)?;
            let workspace = Workspace::open(&workspace, false, inner.root())?;
            let _alone = Lock::take(&inner.lock_path(&workspace.key()), Sharing::Exclusive, cancel)?;
            inner.repair_repository(&workspace, &options, cancel)
        })
        .await
    }
}

impl Inner {
    fn repair_repository(
        &self,
        workspace: &Workspace,
        options: &RepositoryRepairOptions,
        cancel: &Cancel,
    ) -> Result<RepositoryRepaired> {
        use std::os::fd::AsFd;
        let mut repaired = RepositoryRepaired::default();
        if let Some(main) = &options.main {
            repaired.worktree = self.repair_worktree(workspace, main, options.head.as_deref())?;
        }
        cancel.check()?;
        let git = GitDir::find(workspace.root.as_fd(), &workspace.path, &[])
            .map_err(|why| no_repository(workspace, &why))?
            .ok_or_else(|| no_repository(workspace, "there is no .git"))?;
        for (dir, names) in
            [(git.own(), ["index.lock", "HEAD.lock"]), (git.common(), ["packed-refs.lock", "config.lock"])]
        {
            for name in names {
                match lock_age(dir, name).map_err(|errno| failed("look at", workspace, name, errno))? {
                    Some(age) if age >= options.lock_age => {
                        rustix::fs::unlinkat(dir, name, AtFlags::empty())
                            .map_err(|errno| failed("remove", workspace, name, errno))?;
                        repaired.locks.push(name.to_owned());
                    }
                    Some(_) => repaired.held.push(name.to_owned()),
                    None => {}
                }
            }
        }
        repaired.in_progress = in_progress(git.own());
        Ok(repaired)
    }

    /// Makes the administrative directory of a linked worktree again, as far as something of it is missing.
    fn repair_worktree(
        &self,
        workspace: &Workspace,
        main: &Path,
        wanted: Option<&str>,
    ) -> Result<Option<PathBuf>> {
        use std::os::fd::AsFd;
        let text = match beneath::read_small(workspace.root.as_fd(), b".git", 64 << 10) {
            Ok(text) => text,
            // A repository of its own, which is no linked worktree.
            Err(failure) if Errno::from_io_error(&failure) == Some(Errno::INVAL) => return Ok(None),
            Err(failure) => return Err(no_repository(workspace, &format!("its .git: {failure}"))),
        };
        let common = common_dir(main)?;
        let admin = admin_dir(&text, &common).map_err(|why| {
            Error::new(
                ErrorKind::InvalidState,
                format!("{} is no worktree of {}: {why}", workspace.path.display(), common.display()),
            )
            .with_reason("not_its_worktree")
        })?;
        let back = format!("{}\n", workspace.path.join(".git").display());
        match fs::read_to_string(admin.join("gitdir")) {
            Ok(there) if there == back && admin.join("HEAD").exists() => return Ok(None),
            Ok(there) if there.trim_end() != back.trim_end() && Path::new(there.trim_end()).exists() => {
                return Err(Error::new(
                    ErrorKind::InvalidState,
                    format!("{} is of the worktree {}", admin.display(), there.trim_end()),
                )
                .with_reason("not_its_worktree"));
            }
            _ => {}
        }
        let git = GitDir::at(common.clone()).map_err(|why| no_repository(workspace, &why))?;
        let head = self.head_of(workspace, &git, &common, &admin, wanted)?;
        let repository = open(&common)?;
        let tree = match head.commit {
            Some(commit) => Some(vault::commit(&repository, commit)?.tree_id().into()),
            None => None,
        };
        durable::create_dir(&admin)?;
        if let Some(tree) = tree {
            write_index(&repository, &admin, tree)?;
        }
        // The last of them says that it is whole.
        let head = format!("{}\n", head.text);
        for (name, text) in [("commondir", "../..\n"), ("gitdir", &back), ("HEAD", &head)] {
            let (staged, path) = (admin.join(format!("{name}.sandhold")), admin.join(name));
            let _ = fs::remove_file(&staged);
            durable::replace(&staged, &path, text.as_bytes())?;
        }
        Ok(Some(admin))
    }

    /// What a worktree is to be at: the branch, where nobody else has it, else the commit.
    fn head_of(
        &self,
        workspace: &Workspace,
        git: &GitDir,
        common: &Path,
        admin: &Path,
        wanted: Option<&str>,
    ) -> Result<NewHead> {
        let unknown = |why: String| {
            Error::new(
                ErrorKind::InvalidState,
                format!(
                    "what {} was at is not known: {why}; name it by `with_head`",
                    workspace.path.display()
                ),
            )
            .with_reason("unknown_head")
        };
        let (branch, commit) = match wanted.map(|wanted| (wanted, wanted.parse::<ObjectId>())) {
            Some((_, Ok(commit))) => (None, Some(commit)),
            Some((branch, Err(_))) => (Some(branch.to_owned()), None),
            None => {
                let last = self.last_snapshot(workspace)?;
                let last = last.ok_or_else(|| unknown("no snapshot of it is here".to_owned()))?;
                (last.branch, last.head)
            }
        };
        if let Some(branch) = &branch {
            let name = format!("refs/heads/{branch}");
            if !is_ref_name(&name) {
                return Err(Error::invalid_argument(format!("{branch:?} is no name of a branch")));
            }
            let at = git.resolve(&name).map_err(unknown)?;
            let text = format!("ref: {name}");
            let is_there = at.is_some() || commit.is_none() && wanted.is_none();
            if is_there && !is_checked_out(common, admin, &text) {
                return Ok(NewHead { text, commit: at });
            }
            if let (Some(at), Some(_)) = (at, wanted) {
                return Ok(NewHead { text: at.to_string(), commit: Some(at) });
            }
        }
        match commit {
            Some(commit) => Ok(NewHead { text: commit.to_string(), commit: Some(commit) }),
            None => Err(unknown(format!("{} is not there", branch.unwrap_or_default()))),
        }
    }
}

/// What a `HEAD` is to say, and the commit that it is at.
struct NewHead {
    text: String,
    commit: Option<ObjectId>,
}

/// The directory of git that a host has named, as a path without symlinks.
fn common_dir(main: &Path) -> Result<PathBuf> {
    let refused = |why: &str| {
        Error::new(ErrorKind::InvalidState, format!("{} is no repository: {why}", main.display()))
            .with_reason("no_repository")
    };
    let inner = main.join(".git");
    let dir = if inner.exists() { &inner } else { main };
    let dir = dir.canonicalize().map_err(|failure| refused(&failure.to_string()))?;
    let has = |name: &str| fs::symlink_metadata(dir.join(name));
    match has("HEAD").is_ok_and(|stat| stat.is_file())
        && ["objects", "refs"].iter().all(|name| has(name).is_ok_and(|stat| stat.is_dir()))
    {
        true => Ok(dir),
        false => Err(refused("it has not HEAD, objects and refs")),
    }
}

/// Where the worktree says that its administrative directory is, where that is a place for one of this repository.
fn admin_dir(text: &[u8], common: &Path) -> Result<PathBuf, String> {
    let target = std::str::from_utf8(text).ok().and_then(|text| text.strip_prefix("gitdir:")).map(str::trim);
    let Some(target) = target.filter(|target| !target.is_empty()) else {
        return Err("its .git names no directory".to_owned());
    };
    let target = Path::new(target);
    let elsewhere = || format!("it names {}", target.display());
    let name = target.file_name().ok_or_else(elsewhere)?;
    let worktrees = target.parent().filter(|_| target.is_absolute()).ok_or_else(elsewhere)?;
    let above = worktrees.parent().filter(|_| worktrees.ends_with("worktrees")).ok_or_else(elsewhere)?;
    if above.canonicalize().map_err(|_| elsewhere())? != common {
        return Err(elsewhere());
    }
    let worktrees = common.join("worktrees");
    let admin = worktrees.join(name);
    for dir in [&worktrees, &admin] {
        match fs::symlink_metadata(dir) {
            Ok(stat) if stat.is_dir() => {}
            Ok(_) => return Err(format!("{} is no directory", dir.display())),
            // Git removes it with the last one in it.
            Err(failure) if failure.kind() == io::ErrorKind::NotFound => {}
            Err(failure) => return Err(format!("{}: {failure}", dir.display())),
        }
    }
    Ok(admin)
}

/// Whether the main working tree, or another linked one, has that `HEAD`.
fn is_checked_out(common: &Path, own: &Path, head: &str) -> bool {
    let has = |dir: &Path| fs::read_to_string(dir.join("HEAD")).is_ok_and(|text| text.trim_end() == head);
    let others = fs::read_dir(common.join("worktrees"));
    has(common)
        || others.into_iter().flatten().flatten().any(|other| other.path() != own && has(&other.path()))
}

/// The objects of the named repository, by no configuration of it.
fn open(common: &Path) -> Result<git2::Repository> {
    let open = || -> Result<git2::Repository, git2::Error> {
        let odb = git2::Odb::new()?;
        let objects = common.join("objects");
        let not_text = || git2::Error::from_str("its path is not UTF-8");
        odb.add_disk_alternate(objects.to_str().ok_or_else(not_text)?)?;
        git2::Repository::from_odb(odb)
    };
    open().map_err(|failure| error::git(format_args!("open the objects of {}", common.display()), failure))
}

/// The index of a commit, as a plain `git reset` makes it. What the files are like is for git to find out.
fn write_index(repository: &git2::Repository, admin: &Path, tree: ObjectId) -> Result<()> {
    let failed = |failure| error::git(format_args!("make the index of {}", admin.display()), failure);
    let mut index = git2::Index::open(&admin.join("index")).map_err(failed)?;
    index.read_tree(&vault::tree(repository, tree)?).map_err(failed)?;
    index.write().map_err(failed)
}

/// How old a lock is; `None` where there is none, or something else than a file.
fn lock_age(dir: BorrowedFd<'_>, name: &str) -> Result<Option<Duration>, Errno> {
    let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
    Ok(Some(SystemTime::now().duration_since(modified).unwrap_or_default()))
}

fn in_progress(own: BorrowedFd<'_>) -> Vec<InProgress> {
    let has = |name: &str| rustix::fs::statat(own, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    let known = [
        (InProgress::Merge, &["MERGE_HEAD"][..]),
        (InProgress::Rebase, &["rebase-merge", "rebase-apply"]),
        (InProgress::CherryPick, &["CHERRY_PICK_HEAD"]),
        (InProgress::Revert, &["REVERT_HEAD"]),
        (InProgress::Bisect, &["BISECT_LOG"]),
    ];
    known.iter().filter(|(_, names)| names.iter().any(|name| has(name))).map(|(what, _)| *what).collect()
}

fn no_repository(workspace: &Workspace, why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidState,
        format!("{} has no repository to repair: {why}", workspace.path.display()),
    )
    .with_reason("no_repository")
}

fn failed(what: &str, workspace: &Workspace, name: &str, errno: Errno) -> Error {
    error::io(what, &workspace.path.join(".git").join(name), errno)
}
