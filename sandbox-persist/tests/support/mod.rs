//! What the tests of this crate share: a vault, a workspace, real git, and a way to compare trees byte for byte.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part, and a failure here fails the test"
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sandhold_persist::{RepoKey, Vault, VaultConfig};

/// A vault and a workspace that go away with the test.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub vault: Vault,
    pub work: PathBuf,
}

impl Place {
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        fs::create_dir(&work).unwrap();
        let vault = open(dir.path()).await;
        Self { dir, vault, work }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file of the workspace, and the directories above it.
    pub fn write(&self, name: impl AsRef<OsStr>, content: impl AsRef<[u8]>) {
        write(&self.work, name, content);
    }

    pub fn link(&self, name: &str, target: &str) {
        symlink(target, self.work.join(name)).unwrap();
    }

    pub fn make_executable(&self, name: &str) {
        fs::set_permissions(self.work.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Fails where real git finds anything wrong with the vault.
    pub fn fsck(&self) {
        fsck(&self.vault.git_dir());
    }

    /// Runs git in the workspace.
    pub fn git(&self, args: &[&str]) -> String {
        git(&self.work, args)
    }
}

pub async fn open(dir: &Path) -> Vault {
    Vault::open(VaultConfig::new(dir.join("vaults"), RepoKey::new("test").unwrap())).await.unwrap()
}

pub fn write(dir: &Path, name: impl AsRef<OsStr>, content: impl AsRef<[u8]>) {
    let path = dir.join(Path::new(name.as_ref()));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

pub fn git_output(dir: &Path, args: &[&str]) -> Output {
    Command::new("git")
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@localhost")
        .env("GIT_COMMITTER_NAME", "A")
        .env("GIT_COMMITTER_EMAIL", "a@localhost")
        .output()
        .unwrap()
}

pub fn git(dir: &Path, args: &[&str]) -> String {
    let output = git_output(dir, args);
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

pub fn fsck(git_dir: &Path) {
    fsck_but(git_dir, &[]);
}

/// As [`fsck`], with settings, such as those that let content be what a workspace is free to hold.
pub fn fsck_but(git_dir: &Path, settings: &[&str]) {
    let settings = settings.iter().flat_map(|setting| ["-c", *setting]);
    let args: Vec<_> = settings.chain(["fsck", "--full", "--strict", "--no-dangling"]).collect();
    let output = git_output(git_dir, &args);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let said: Vec<_> = said.lines().filter(|line| !line.starts_with("notice: ")).collect();
    assert!(output.status.success() && said.is_empty(), "git fsck: {said:?}");
}

/// Everything below a directory but `.git`: mode and content, or the target of a symlink.
pub fn tree(dir: &Path) -> BTreeMap<Vec<u8>, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    gather(dir, Path::new(""), &mut found);
    found
}

fn gather(dir: &Path, at: &Path, found: &mut BTreeMap<Vec<u8>, (u32, Vec<u8>)>) {
    for entry in fs::read_dir(dir.join(at)).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() == ".git" {
            continue;
        }
        let path = at.join(entry.file_name());
        let stat = entry.path().symlink_metadata().unwrap();
        let key = path.as_os_str().as_bytes().to_vec();
        if stat.is_dir() {
            found.insert(key, (0o40000, Vec::new()));
            gather(dir, &path, found);
        } else if stat.is_symlink() {
            let target = fs::read_link(entry.path()).unwrap();
            found.insert(key, (0o120000, target.as_os_str().as_bytes().to_vec()));
        } else if stat.is_file() {
            let mode = if stat.mode() & 0o100 != 0 { 0o100755 } else { 0o100644 };
            found.insert(key, (mode, fs::read(entry.path()).unwrap()));
        }
    }
}
