//! Snapshots in the repository of the workspace itself: seen by git, and nothing of the user's touched.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sandhold_core::ErrorKind;
use sandhold_persist::{
    BundleOptions, CaptureOptions, GcOptions, ImportOptions, RepoKey, RestoreOptions, Retention, Vault,
    VaultConfig, VerifyDepth, VerifyOptions,
};
use support::{fsck, git, git_output, open, tree, write};

async fn in_repo(work: &Path) -> Vault {
    Vault::open(VaultConfig::in_repo(work, RepoKey::new("test").unwrap())).await.unwrap()
}

/// A repository with a commit, something staged, something changed and something new.
fn repository() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    git(&work, &["init", "-q", "-b", "main"]);
    for name in ["a", "b", "c/d"] {
        write(&work, name, name.repeat(100));
    }
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-q", "-m", "one"]);
    git(&work, &["tag", "-a", "-m", "a tag", "v1"]);
    write(&work, "b", "staged");
    git(&work, &["add", "b"]);
    write(&work, "a", "changed");
    write(&work, "new", "new");
    (dir, work)
}

/// All of `.git` that is not ours.
fn theirs(work: &Path) -> BTreeMap<Vec<u8>, (u32, Vec<u8>)> {
    let mut all = tree(&work.join(".git"));
    all.retain(|path, _| {
        let ours = [&b"sandhold"[..], b"refs/sandbox", b"objects/pack"];
        !ours.iter().any(|ours| path.starts_with(ours))
    });
    all
}

/// What a restore of it elsewhere gives.
async fn restored(vault: &Vault, id: &sandhold_persist::SnapId) -> BTreeMap<Vec<u8>, (u32, Vec<u8>)> {
    let out = tempfile::tempdir().unwrap();
    vault.restore(id, out.path(), RestoreOptions::new()).await.unwrap();
    tree(out.path())
}

fn files(work: &Path) -> BTreeMap<Vec<u8>, (u32, Vec<u8>)> {
    let mut all = tree(work);
    all.retain(|path, _| path != b".git" && !path.starts_with(b".git/"));
    all
}

#[tokio::test]
async fn a_snapshot_touches_neither_index_nor_head_nor_branches_nor_files() {
    let (_dir, work) = repository();
    let status = git(&work, &["status", "--porcelain=v2", "--branch"]);
    let before = theirs(&work);
    let seen = files(&work);
    let vault = in_repo(&work).await;
    let snapshot = vault.capture(&work, CaptureOptions::new()).await.unwrap();
    assert!(snapshot.has_history);
    assert_eq!(
        vault.capture(&work, CaptureOptions::new()).await.unwrap_err().reason(),
        Some("nothing_to_snapshot")
    );
    assert!(theirs(&work) == before, "something of the repository has changed");
    assert!(files(&work) == seen);
    assert_eq!(git(&work, &["status", "--porcelain=v2", "--branch"]), status);
    fsck(&vault.git_dir());
    // Git sees it.
    assert_eq!(git(&work, &["show", &format!("{}:a", snapshot.id.ref_name())]), "changed");
    let parents = git(&work, &["log", "-1", "--format=%P", snapshot.commit.to_string().as_str()]);
    assert!(parents.contains(git(&work, &["rev-parse", "HEAD"]).trim()), "{parents}");
    assert!(restored(&vault, &snapshot.id).await == seen);
    // Over the workspace, too.
    write(&work, "a", "lost");
    git(&work, &["rm", "-q", "--cached", "c/d"]);
    let options = RestoreOptions::new().with_on_dirty(sandhold_persist::OnDirty::Capture);
    let before = theirs(&work);
    assert_eq!(vault.restore(&snapshot.id, &work, options).await.unwrap().written, 1);
    assert!(files(&work) == seen);
    assert!(theirs(&work) == before);
}

#[tokio::test]
async fn no_configuration_or_hook_of_the_repository_has_a_say() {
    let (dir, work) = repository();
    let marker = dir.path().join("marker");
    let hook = format!("#!/bin/sh\ntouch {}\n", marker.display());
    for name in ["reference-transaction", "pre-commit", "post-index-change", "post-rewrite"] {
        let path = work.join(".git/hooks").join(name);
        write(&work, format!(".git/hooks/{name}"), &hook);
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    write(&work, ".gitattributes", "* text=auto eol=lf filter=mark\n");
    write(&work, "crlf", "x\r\ny\r\n");
    let config = fs::read_to_string(work.join(".git/config")).unwrap();
    for armed in [
        format!(
            "[core]\n\tautocrlf = true\n\tfsmonitor = touch {0}\n[filter \"mark\"]\n\tclean = touch {0}\n",
            marker.display()
        ),
        "[include]\n\tpath = /does/not/exist\n[broken\n".to_owned(),
    ] {
        fs::write(work.join(".git/config"), format!("{config}{armed}")).unwrap();
        write(&work, "step", &armed);
        let vault = in_repo(&work).await;
        let snapshot = vault.capture(&work, CaptureOptions::new()).await.unwrap();
        assert!(restored(&vault, &snapshot.id).await == files(&work));
    }
    assert!(!marker.exists());
}

#[tokio::test]
async fn snapshots_outlive_a_reset_and_the_collection_of_git() {
    let (_dir, work) = repository();
    let vault = in_repo(&work).await;
    let mut ids = Vec::new();
    for step in 0..3 {
        write(&work, "a", format!("step {step}"));
        write(&work, format!("only-{step}"), "x".repeat(step + 1));
        ids.push((vault.capture(&work, CaptureOptions::new()).await.unwrap().id, files(&work)));
    }
    git(&work, &["commit", "-q", "-am", "two"]);
    git(&work, &["reset", "-q", "--hard", "HEAD~1"]);
    git(&work, &["reflog", "expire", "--expire=now", "--all"]);
    git(&work, &["gc", "-q", "--prune=now"]);
    assert!(!work.join(".git").join(ids[0].0.ref_name()).exists(), "git has packed the refs");
    let found: Vec<_> = vault.snapshots().await.unwrap().into_iter().map(|found| found.id).collect();
    assert_eq!(found, ids.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
    for (id, files) in &ids {
        assert!(restored(&vault, id).await == *files);
    }
    for examined in vault.verify_all(VerifyOptions::new().with_depth(VerifyDepth::Content)).await.unwrap() {
        assert!(examined.is_good(), "{examined:?}");
    }

    // Packed refs go like others, and what git deletes then is stored anew.
    let (tag, branch) = (git(&work, &["rev-parse", "v1^{}"]), git(&work, &["rev-parse", "main"]));
    let pruned = vault.prune(Retention::new().with_max_count(1)).await.unwrap();
    assert_eq!(pruned.removed, [ids[0].0.clone(), ids[1].0.clone()]);
    assert_eq!((git(&work, &["rev-parse", "v1^{}"]), git(&work, &["rev-parse", "main"])), (tag, branch));
    git(&work, &["gc", "-q", "--prune=now"]);
    fsck(&vault.git_dir());
    write(&work, "a", "step 0");
    write(&work, "only-1", "xx");
    let again = vault.capture(&work, CaptureOptions::new()).await.unwrap();
    assert!(restored(&vault, &again.id).await == files(&work));
    fsck(&vault.git_dir());
    assert!(work.join(".git").join(again.id.ref_name()).exists());
}

#[tokio::test]
async fn what_the_stat_cache_knows_is_stored_again_where_git_has_deleted_it() {
    let (_dir, work) = repository();
    let vault = in_repo(&work).await;
    let first = vault.capture(&work, CaptureOptions::new()).await.unwrap();
    git(&work, &["update-ref", "-d", &first.id.ref_name()]);
    git(&work, &["gc", "-q", "--prune=now"]);
    let again = vault.capture(&work, CaptureOptions::new()).await.unwrap();
    assert_eq!(again.tree, first.tree);
    assert!(restored(&vault, &again.id).await == files(&work));
}

#[tokio::test]
async fn a_lock_of_git_is_heeded_and_one_of_the_dead_is_not() {
    let (_dir, work) = repository();
    let vault = in_repo(&work).await;
    let mut ids = Vec::new();
    for step in 0..2 {
        write(&work, "a", format!("step {step}"));
        ids.push(vault.capture(&work, CaptureOptions::new()).await.unwrap().id);
    }
    git(&work, &["pack-refs", "--all"]);
    let lock = work.join(".git/packed-refs.lock");
    fs::write(&lock, "").unwrap();
    let refused = vault.prune(Retention::new().with_max_count(1)).await.unwrap_err();
    assert_eq!((refused.kind(), refused.reason()), (ErrorKind::Conflict, Some("ref_locked")), "{refused}");
    assert!(lock.exists());
    assert_eq!(vault.snapshots().await.unwrap().len(), 2);
    fs::remove_file(&lock).unwrap();
    // A second name of a file in staging is what a death leaves.
    let staged = work.join(".git/sandhold/staging/dead.lock");
    fs::write(&staged, "").unwrap();
    fs::hard_link(&staged, &lock).unwrap();
    assert_eq!(vault.prune(Retention::new().with_max_count(1)).await.unwrap().removed, ids[..1]);
    assert!(!lock.exists());
    let lock = work.join(".git").join(format!("{}.lock", ids[1].ref_name()));
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    fs::hard_link(&staged, &lock).unwrap();
    drop(vault);
    in_repo(&work).await;
    assert!(!lock.exists() && !staged.exists(), "it is swept where nobody works");
}

#[tokio::test]
async fn a_linked_worktree_shares_the_snapshots_of_its_repository() {
    let (dir, work) = repository();
    let linked = dir.path().join("linked");
    git(&work, &["worktree", "add", "-q", linked.to_str().unwrap(), "-b", "other"]);
    write(&linked, "here", "only");
    let vault = in_repo(&linked).await;
    assert_eq!(vault.git_dir(), work.canonicalize().unwrap().join(".git"));
    let snapshot = vault.capture(&linked, CaptureOptions::new()).await.unwrap();
    assert_eq!(snapshot.branch.as_deref(), Some("other"));
    let main = in_repo(&work).await;
    assert_eq!(main.snapshots().await.unwrap(), std::slice::from_ref(&snapshot));
    assert!(restored(&main, &snapshot.id).await == files(&linked));
}

#[tokio::test]
async fn a_snapshot_goes_to_a_vault_and_back_by_bundle() {
    let (dir, work) = repository();
    git(&work, &["gc", "-q"]);
    let vault = in_repo(&work).await;
    let snapshot = vault.capture(&work, CaptureOptions::new()).await.unwrap();
    let bundle = dir.path().join("x.bundle");
    vault.write_bundle(&snapshot.id, &bundle, BundleOptions::new()).await.unwrap();
    let other = open(dir.path()).await;
    other.import_bundle(&bundle, ImportOptions::new()).await.unwrap();
    assert!(restored(&other, &snapshot.id).await == files(&work));
    git(&work, &["update-ref", "-d", &snapshot.id.ref_name()]);
    git(&work, &["gc", "-q", "--prune=now"]);
    vault.import_bundle(&bundle, ImportOptions::new()).await.unwrap();
    assert!(restored(&vault, &snapshot.id).await == files(&work));
    fsck(&vault.git_dir());
}

#[tokio::test]
async fn a_repository_that_cannot_hold_snapshots_is_refused_and_nothing_in_it_is_collected() {
    let (dir, work) = repository();
    let refused = |work: PathBuf| async move {
        Vault::open(VaultConfig::in_repo(work, RepoKey::new("test").unwrap())).await.unwrap_err()
    };
    let plain = dir.path().join("plain");
    fs::create_dir(&plain).unwrap();
    assert_eq!(refused(plain).await.reason(), Some("no_repository"));
    for format in ["--object-format=sha256", "--ref-format=reftable"] {
        let path = dir.path().join(format);
        if !git_output(dir.path(), &["init", "-q", format, "--", path.to_str().unwrap()]).status.success() {
            println!("this git does not know {format}");
            continue;
        }
        let error = refused(path).await;
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("in_repo")), "{error}");
    }
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, work.join(".git/sandhold")).unwrap();
    assert_eq!(refused(work.clone()).await.reason(), Some("in_repo"));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    fs::remove_file(work.join(".git/sandhold")).unwrap();

    let vault = in_repo(&work).await;
    assert_eq!(vault.gc(GcOptions::new()).await.unwrap_err().reason(), Some("in_repo"));
    assert_eq!(vault.repair(None).await.unwrap_err().reason(), Some("in_repo"));
}
