use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use crate::beneath;
use crate::oid::ObjectId;
use crate::path;

const SMALL: u64 = 64 << 10;
const MAX_PACKED_REFS: u64 = 64 << 20;

/// Where the repository of a workspace is: its own part, and the part that linked worktrees share.
#[derive(Debug)]
pub(crate) struct GitDir {
    own: OwnedFd,
    common: Option<OwnedFd>,
    common_path: PathBuf,
}

/// What a workspace is at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) branch: Option<String>,
    pub(crate) commit: Option<ObjectId>,
}

impl GitDir {
    /// Finds the `.git` in the directory `at` of the workspace `root`, which is at `path`; `None` where there is none.
    ///
    /// # Errors
    /// Why what is there is not read, for people.
    pub(crate) fn find(root: BorrowedFd<'_>, path: &Path, at: &[u8]) -> Result<Option<Self>, String> {
        let name = path::join(at, b".git");
        let dir = beneath::open_dir(root, at).map_err(|errno| format!("it cannot be opened: {errno}"))?;
        let stat = match rustix::fs::statat(&dir, ".git", AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(format!("it cannot be read: {errno}")),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let own = beneath::open_dir(root, &name)
                    .map_err(|errno| format!("it cannot be opened: {errno}"))?;
                Ok(Some(Self {
                    own,
                    common: None,
                    common_path: path.join(crate::WorkPath::new(&*name).as_path()),
                }))
            }
            FileType::RegularFile => Self::linked(root, path, at, &name).map(Some),
            FileType::Symlink => Err("it is a symlink, which is not followed".to_owned()),
            _ => Err("it is neither a directory nor a file".to_owned()),
        }
    }

    /// A file that says `gitdir: <path>`. What is outside of the workspace must say of itself that it belongs to it.
    fn linked(root: BorrowedFd<'_>, workspace: &Path, at: &[u8], name: &[u8]) -> Result<Self, String> {
        let text = beneath::read_small(root, name, SMALL)
            .map_err(|failure| format!("it cannot be read: {failure}"))?;
        let target =
            std::str::from_utf8(&text).ok().and_then(|text| text.strip_prefix("gitdir:")).map(str::trim);
        let Some(target) = target.filter(|target| !target.is_empty()) else {
            return Err("it is a file that names no directory".to_owned());
        };
        let from = workspace.join(crate::WorkPath::new(at).as_path());
        let admin = from.join(target).canonicalize().map_err(|failure| {
            format!("the directory {target:?} that it names cannot be found: {failure}")
        })?;
        if let Ok(inner) = admin.strip_prefix(workspace) {
            let inner = crate::WorkPath::from(inner);
            let own = beneath::open_dir(root, inner.as_bytes()).map_err(|errno| {
                format!("the directory {target:?} that it names cannot be opened: {errno}")
            })?;
            return Ok(Self { own, common: None, common_path: admin });
        }
        let foreign =
            || format!("it names {target:?} outside of the workspace, which does not name it in turn");
        let back = fs::read_to_string(admin.join("gitdir")).map_err(|_| foreign())?;
        let back = admin.join(back.trim()).canonicalize().map_err(|_| foreign())?;
        if back != from.join(".git") {
            return Err(foreign());
        }
        let common = fs::read_to_string(admin.join("commondir")).map_err(|_| foreign())?;
        let common = admin.join(common.trim()).canonicalize().map_err(|_| foreign())?;
        // Only who may write to that repository can have put it there.
        if admin.parent() != Some(&common.join("worktrees")) {
            return Err(foreign());
        }
        let open = |path: PathBuf| beneath::open_root(&path).map_err(|failure| failure.to_string());
        Ok(Self { common: Some(open(common.clone())?), own: open(admin)?, common_path: common })
    }

    /// Opens the directory that a host has named as one of git.
    pub(super) fn at(path: PathBuf) -> Result<Self, String> {
        let own = beneath::open_root(&path).map_err(|failure| failure.to_string())?;
        Ok(Self { own, common: None, common_path: path })
    }

    /// The part of this working tree alone, which has its `HEAD` and index.
    pub(super) fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    /// The part that holds objects and refs.
    pub(crate) fn common(&self) -> BorrowedFd<'_> {
        self.common.as_ref().unwrap_or(&self.own).as_fd()
    }

    /// Where that part is.
    pub(crate) fn common_path(&self) -> &Path {
        &self.common_path
    }

    /// Reads `HEAD`, and where its branch is.
    ///
    /// # Errors
    /// Why it cannot be told, for people.
    pub(crate) fn head(&self) -> Result<Head, String> {
        let text = read_text(self.own.as_fd(), "HEAD", SMALL)?.ok_or("it has no HEAD")?;
        let text = text.trim_end();
        let Some(name) = text.strip_prefix("ref:").map(str::trim) else {
            return Ok(Head { branch: None, commit: Some(parse(text)?) });
        };
        if name == "refs/heads/.invalid" {
            return Err("its refs are in a reftable, which is not read".to_owned());
        }
        if !is_ref_name(name) {
            return Err("its HEAD names no branch".to_owned());
        }
        let branch = name.strip_prefix("refs/heads/").unwrap_or(name).to_owned();
        Ok(Head { branch: Some(branch), commit: self.resolve(name)? })
    }

    /// Reads where a ref is; `None` for one that is not there.
    ///
    /// # Errors
    /// Why it cannot be told, for people.
    pub(crate) fn resolve(&self, name: &str) -> Result<Option<ObjectId>, String> {
        match read_text(self.common(), name, SMALL)? {
            // Git writes a whole line; nothing at all is what a power cut leaves.
            Some(text) if text.trim().is_empty() => Err(format!("its ref {name} is empty")),
            Some(text) => parse(text.trim_end()).map(Some),
            None => match read_text(self.common(), "packed-refs", MAX_PACKED_REFS)? {
                Some(text) => text
                    .lines()
                    .filter_map(|line| line.split_once(' '))
                    .find(|(_, known)| *known == name)
                    .map(|(id, _)| parse(id))
                    .transpose(),
                None => Ok(None),
            },
        }
    }

    /// Tells whether it holds objects of SHA-1 in packs and refs in files, as what is added to it is.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn takes_files(&self) -> Result<(), String> {
        let config = read_text(self.common(), "config", 1 << 20)?.unwrap_or_default().to_ascii_lowercase();
        for line in config.lines().map(|line| line.split_whitespace().collect::<String>()) {
            if line.starts_with("objectformat=") && !line.ends_with("=sha1") {
                return Err("its ids are SHA-256, which are not held here".to_owned());
            }
            if line.starts_with("refstorage=") && !line.ends_with("=files") {
                return Err("its refs are in a reftable, which is not written".to_owned());
            }
        }
        Ok(())
    }

    /// Tells whether objects are left out that git would fetch when it needs them.
    pub(crate) fn is_partial(&self) -> bool {
        let Ok(packs) = beneath::open_dir(self.common(), b"objects/pack") else { return false };
        rustix::fs::Dir::read_from(packs).is_ok_and(|packs| {
            packs.flatten().any(|entry| entry.file_name().to_bytes().ends_with(b".promisor"))
        })
    }

    /// Tells whether commits are left out at some depth.
    pub(crate) fn is_shallow(&self) -> bool {
        !matches!(beneath::read_small(self.common(), b"shallow", SMALL), Ok(text) if text.is_empty())
            && beneath::open_file(self.common(), b"shallow").is_ok()
    }
}

fn read_text(dir: BorrowedFd<'_>, name: &str, limit: u64) -> Result<Option<String>, String> {
    match beneath::read_small(dir, name.as_bytes(), limit) {
        Ok(text) => String::from_utf8(text).map(Some).map_err(|_| format!("its {name} is no text")),
        Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // A part of the name is a ref itself, or there are refs below it.
        Err(failure) if name.starts_with("refs/") && is_name_clash(&failure) => Ok(None),
        Err(failure) => Err(format!("its {name} cannot be read: {failure}")),
    }
}

fn is_name_clash(failure: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(failure), Some(Errno::NOTDIR | Errno::INVAL))
}

fn parse(id: &str) -> Result<ObjectId, String> {
    match id.len() {
        64 => Err("its ids are SHA-256, which the vault does not hold".to_owned()),
        _ => id.parse().map_err(|_| "it points to what is no id".to_owned()),
    }
}

/// As `git check-ref-format` has it, for names below `refs/`.
pub(crate) fn is_ref_name(name: &str) -> bool {
    let bad = |byte: u8| byte < 0x20 || byte == 0x7f || b" ~^:?*[\\".contains(&byte);
    name.starts_with("refs/")
        && name.len() <= 1024
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && !name.bytes().any(bad)
        && name.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_refs_are_those_that_git_takes() {
        for good in ["refs/heads/main", "refs/heads/a/b-c", "refs/heads/caf\u{e9}"] {
            assert!(is_ref_name(good), "{good}");
        }
        for bad in [
            "main",
            "refs/heads/../x",
            "refs/heads/",
            "refs//x",
            "refs/heads/.x",
            "refs/heads/x.lock",
            "refs/heads/a b",
            "refs/heads/a\nb",
            "refs/heads/x@{1}",
            "refs/heads/x.",
            "refs/heads/a:b",
        ] {
            assert!(!is_ref_name(bad), "{bad}");
        }
    }
}
