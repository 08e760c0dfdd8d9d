//! Repositories of workspaces that are put right: what crashes and git's own tidying leave, and nothing else.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sandhold_persist::{CaptureOptions, InProgress, RepositoryRepairOptions, RepositoryRepaired};
use support::{Place, git, git_output, tree};

async fn repository() -> Place {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "main"]);
    place.write("a", "one");
    place.write("b", "committed");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "first"]);
    place
}

/// A linked worktree with work in it, which git has forgotten.
async fn pruned(place: &Place) -> PathBuf {
    let linked = place.path("linked");
    place.git(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    support::write(&linked, "a", "two");
    git(&linked, &["commit", "-qam", "second"]);
    support::write(&linked, "b", "not committed");
    support::write(&linked, "new", "untracked");
    place.vault.capture(&linked, CaptureOptions::new()).await.unwrap();
    // Git sees nothing there for a moment, such as a disk that is not mounted.
    let away = place.path("away");
    fs::rename(&linked, &away).unwrap();
    place.git(&["worktree", "prune"]);
    fs::rename(&away, &linked).unwrap();
    assert!(!git_output(&linked, &["status"]).status.success());
    linked
}

async fn repair(place: &Place, work: &Path, main: &Path) -> sandhold_core::Result<RepositoryRepaired> {
    place.vault.repair_repository(work, RepositoryRepairOptions::new().with_main(main)).await
}

fn refs(work: &Path) -> String {
    git(work, &["for-each-ref", "--format=%(refname) %(objectname)"])
}

#[tokio::test]
async fn a_worktree_that_git_has_pruned_is_at_its_branch_again_with_all_its_work() {
    let place = repository().await;
    let linked = pruned(&place).await;
    let (before, files) = (refs(&place.work), tree(&linked));
    let admin = place.work.canonicalize().unwrap().join(".git/worktrees/linked");
    let repaired = repair(&place, &linked, &place.work).await.unwrap();
    assert_eq!(repaired.worktree, Some(admin));
    assert_eq!(git(&linked, &["symbolic-ref", "HEAD"]), "refs/heads/side");
    assert_eq!(git(&linked, &["status", "--porcelain"]), " M b\n?? new");
    assert!(place.git(&["worktree", "list"]).contains("[side]"));
    assert!(git(&linked, &["log", "--format=%s"]).contains("second"));
    assert!(refs(&place.work) == before && tree(&linked) == files);
    place.git(&["fsck", "--strict"]);
    place.git(&["worktree", "prune"]);
    git(&linked, &["commit", "-qam", "it works"]);
    let snapshot = place.vault.capture(&linked, CaptureOptions::new()).await.unwrap();
    assert!(snapshot.has_history);
    // Whole already.
    assert_eq!(repair(&place, &linked, &place.work).await.unwrap(), RepositoryRepaired::default());
}

#[tokio::test]
async fn a_worktree_whose_branch_is_elsewhere_by_now_is_at_its_commit() {
    let place = repository().await;
    let linked = pruned(&place).await;
    let commit = place.git(&["rev-parse", "side"]);
    place.git(&["checkout", "-q", "side"]);
    repair(&place, &linked, &place.work).await.unwrap();
    assert_eq!(git(&linked, &["rev-parse", "HEAD"]), commit);
    assert!(!git_output(&linked, &["symbolic-ref", "-q", "HEAD"]).status.success());

    // Nor is it guessed where nothing tells.
    let other = repository().await;
    let linked = pruned(&other).await;
    let elsewhere = Place::new().await;
    let refused = repair(&elsewhere, &linked, &other.work).await.unwrap_err();
    assert_eq!(refused.reason(), Some("unknown_head"), "{refused}");
    let options = RepositoryRepairOptions::new().with_main(&other.work);
    for wrong in ["nowhere", "0123456789012345678901234567890123456789"] {
        let named = options.clone().with_head(wrong);
        elsewhere.vault.repair_repository(&linked, named).await.unwrap_err();
        assert!(!other.work.join(".git/worktrees").exists(), "{wrong}");
    }
    let named = options.with_head("side");
    let repaired = elsewhere.vault.repair_repository(&linked, named).await.unwrap();
    assert!(repaired.worktree.is_some());
    assert_eq!(git(&linked, &["status", "--porcelain"]), " M b\n?? new");
}

#[tokio::test]
async fn nothing_is_made_anywhere_but_among_the_worktrees_of_the_named_repository() {
    let (place, victim) = (repository().await, repository().await);
    let linked = pruned(&place).await;
    let main = place.work.canonicalize().unwrap();
    let theirs = victim.work.canonicalize().unwrap();
    let state = || (tree(&theirs.join(".git")), tree(&main.join(".git")));
    let before = state();
    let named = [
        format!("gitdir: {}/.git/worktrees/linked", theirs.display()),
        format!("gitdir: {}/.git", main.display()),
        format!("gitdir: {}/.git/hooks/linked", main.display()),
        format!("gitdir: {}/.git/worktrees/../hooks/linked", main.display()),
        format!("gitdir: {}/.git/worktrees/deep/linked", main.display()),
        format!("gitdir: {}/.git/worktrees/..", main.display()),
        "gitdir: ../work/.git/worktrees/linked".to_owned(),
        "gitdir:".to_owned(),
        String::new(),
    ];
    for text in named {
        fs::write(linked.join(".git"), &text).unwrap();
        let refused = repair(&place, &linked, &main).await.unwrap_err();
        assert_eq!(refused.reason(), Some("not_its_worktree"), "{text}: {refused}");
        assert!(state() == before, "{text}");
    }
    fs::write(linked.join(".git"), format!("gitdir: {}/.git/worktrees/linked\n", main.display())).unwrap();
    let refused = repair(&place, &linked, place.dir.path()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("no_repository"));
    // A symlink on the way leads into somebody else's.
    symlink(theirs.join(".git"), main.join(".git/worktrees")).unwrap();
    let refused = repair(&place, &linked, &main).await.unwrap_err();
    assert_eq!(refused.reason(), Some("not_its_worktree"));
    fs::remove_file(main.join(".git/worktrees")).unwrap();
    // A name that another worktree has by now is its own.
    let other = place.path("other/linked");
    place.git(&["worktree", "add", "-q", "--detach", other.to_str().unwrap()]);
    let refused = repair(&place, &linked, &main).await.unwrap_err();
    assert_eq!(refused.reason(), Some("not_its_worktree"));
    git(&other, &["status"]);
    assert!(tree(&theirs.join(".git")) == before.0);
}

#[tokio::test]
async fn locks_of_the_dead_go_and_what_is_going_on_is_told_and_left_alone() {
    let place = repository().await;
    let dir = place.work.join(".git");
    let old = SystemTime::now() - Duration::from_secs(301);
    for name in ["index.lock", "packed-refs.lock", "refs/heads/main.lock"] {
        fs::File::create(dir.join(name)).unwrap().set_modified(old).unwrap();
    }
    fs::File::create(dir.join("HEAD.lock")).unwrap();
    symlink("/etc/passwd", dir.join("config.lock")).unwrap();
    for (name, content) in [("MERGE_HEAD", "x"), ("REVERT_HEAD", "x"), ("BISECT_LOG", "x")] {
        fs::write(dir.join(name), content).unwrap();
    }
    fs::create_dir(dir.join("rebase-merge")).unwrap();
    let repaired = place.vault.repair_repository(&place.work, RepositoryRepairOptions::new()).await.unwrap();
    assert_eq!(repaired.locks, ["index.lock", "packed-refs.lock"]);
    assert_eq!(repaired.held, ["HEAD.lock"]);
    let going_on = [InProgress::Merge, InProgress::Rebase, InProgress::Revert, InProgress::Bisect];
    assert_eq!(repaired.in_progress, going_on);
    for kept in ["HEAD.lock", "refs/heads/main.lock", "MERGE_HEAD", "rebase-merge"] {
        assert!(dir.join(kept).exists(), "{kept}");
    }
    assert!(!dir.join("index.lock").exists());
    let options = RepositoryRepairOptions::new().with_lock_age(Duration::ZERO);
    let repaired = place.vault.repair_repository(&place.work, options).await.unwrap();
    assert_eq!(repaired.locks, ["HEAD.lock"]);
    assert!(dir.join("config.lock").is_symlink());

    let none = Place::new().await;
    let refused = none.vault.repair_repository(&none.work, RepositoryRepairOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("no_repository"));
}
