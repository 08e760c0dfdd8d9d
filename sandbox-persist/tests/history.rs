//! The commits of a workspace, and everything odd that its `.git` can be.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;

use sandhold_persist::{CaptureOptions, RestoreOptions, RunOutcome, SkipReason, Status};
use support::{Place, git, git_output, tree};

async fn repository() -> Place {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "main"]);
    place.write("a", "one");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "first"]);
    place
}

#[tokio::test]
async fn a_commit_survives_a_hard_reset_and_the_loss_of_the_repository() {
    let place = repository().await;
    let session = place.vault.begin(&place.work, CaptureOptions::new());
    session.capture().await.unwrap().unwrap();
    place.write("a", "two");
    place.git(&["commit", "-qam", "second"]);
    let commit = place.git(&["rev-parse", "HEAD"]);
    let snapshot = session.capture().await.unwrap().unwrap();
    assert_eq!(snapshot.branch.as_deref(), Some("main"));
    assert_eq!(snapshot.head.map(|id| id.to_string()), Some(commit.clone()));
    assert!(snapshot.has_history);

    place.git(&["reset", "-q", "--hard", "HEAD~1"]);
    place.git(&["reflog", "expire", "--expire=now", "--all"]);
    place.git(&["gc", "-q", "--prune=now"]);
    let last = session.capture().await.unwrap().unwrap();
    fs::remove_dir_all(place.work.join(".git")).unwrap();
    let reached = git(&place.vault.git_dir(), &["rev-list", &last.id.ref_name()]);
    assert!(reached.contains(&commit));
    assert_eq!(git(&place.vault.git_dir(), &["show", &format!("{commit}:a")]), "two");
    place.fsck();

    let ended = session.end(RunOutcome::Signalled, None).await.unwrap().unwrap();
    assert_eq!(ended.status(), Status::Interrupted);
    assert_eq!(place.vault.snapshots().await.unwrap(), [ended]);
}

#[tokio::test]
async fn a_commit_of_what_was_captured_already_is_captured_too() {
    let place = repository().await;
    let session = place.vault.begin(&place.work, CaptureOptions::new());
    place.write("b", "b");
    session.capture().await.unwrap().unwrap();
    assert!(session.capture().await.unwrap().is_none());
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "the same files"]);
    let snapshot = session.capture().await.unwrap().unwrap();
    let commit = place.git(&["rev-parse", "HEAD"]);
    git(&place.vault.git_dir(), &["merge-base", "--is-ancestor", &commit, &snapshot.id.ref_name()]);
    place.fsck();
}

#[tokio::test]
async fn history_is_copied_out_of_packs_and_packed_refs() {
    let place = repository().await;
    for index in 0..30 {
        place.write(format!("dir/{}", index % 5), format!("line {index}\n").repeat(200));
        place.git(&["add", "-A"]);
        place.git(&["commit", "-qm", &format!("commit {index}")]);
    }
    place.git(&["gc", "-q"]);
    place.git(&["pack-refs", "--all"]);
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert!(snapshot.has_history);
    let count = |dir, name: &str| git(dir, &["rev-list", "--count", name]);
    assert_eq!(count(&place.vault.git_dir(), snapshot.head.unwrap().to_string().as_str()), "31");
    assert_eq!(fs::read_dir(place.path("vaults/test/staging")).unwrap().count(), 0);
    place.fsck();
}

#[tokio::test]
async fn what_head_has_is_captured_though_it_is_ignored() {
    let place = repository().await;
    place.write("logs/kept.log", "kept");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "a log"]);
    place.write(".gitignore", "logs/\n");
    place.write("logs/other.log", "other");
    place.write("logs/kept.log", "changed");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read(target.join("logs/kept.log")).unwrap(), b"changed");
    assert!(!target.join("logs/other.log").exists());
}

#[tokio::test]
async fn nested_repositories_are_captured_as_files_and_their_git_is_not() {
    let place = repository().await;
    place.git(&["init", "-q", "unborn"]);
    place.write("unborn/file", "no commits");
    place.git(&["init", "-q", "born"]);
    place.write("born/file", "a commit");
    git(&place.work.join("born"), &["add", "-A"]);
    git(&place.work.join("born"), &["commit", "-qm", "x"]);
    let inner = git(&place.work.join("born"), &["rev-parse", "HEAD"]);
    place.git(&["add", "born"]);
    place.git(&["commit", "-qm", "a gitlink"]);
    let pipe = place.work.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(place.work.join("socket")).unwrap();
    place.write(OsStr::from_bytes(b"caf\xe9.txt"), "latin");
    place.write("*", "star");

    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let side = place.vault.side_manifest(&snapshot).await.unwrap();
    let nested: Vec<_> = side
        .nested
        .iter()
        .map(|nested| (nested.path.to_string(), nested.head.map(|id| id.to_string()), nested.submodule))
        .collect();
    assert_eq!(nested, [("born".to_owned(), Some(inner), true), ("unborn".to_owned(), None, false)]);
    let special: Vec<_> =
        side.skipped.iter().map(|skipped| (skipped.path.to_string(), skipped.reason)).collect();
    assert_eq!(
        special,
        [("pipe".to_owned(), SkipReason::Special), ("socket".to_owned(), SkipReason::Special)]
    );
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    let found = tree(&target);
    for (path, content) in [
        (&b"unborn/file"[..], "no commits"),
        (b"born/file", "a commit"),
        (b"caf\xe9.txt", "latin"),
        (b"*", "star"),
    ] {
        assert_eq!(found[path].1, content.as_bytes());
    }
    assert!(!target.join("born/.git").exists());
    place.fsck();
}

#[tokio::test]
async fn a_linked_worktree_has_its_history_and_a_file_that_names_anothers_repository_has_none() {
    let place = repository().await;
    let linked = place.path("linked");
    place.git(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    let snapshot = place.vault.capture(&linked, CaptureOptions::new()).await.unwrap();
    assert_eq!(snapshot.branch.as_deref(), Some("side"));
    assert!(snapshot.has_history);

    // Whoever is in a sandbox must not get at a repository of the host by naming it.
    let thief = place.path("thief");
    fs::create_dir(&thief).unwrap();
    for (index, target) in
        [place.work.join(".git"), place.work.join(".git/worktrees/linked")].into_iter().enumerate()
    {
        fs::write(thief.join(".git"), format!("gitdir: {}\n", target.display())).unwrap();
        fs::write(thief.join("file"), index.to_string()).unwrap();
        let snapshot = place.vault.capture(&thief, CaptureOptions::new()).await.unwrap();
        assert_eq!((snapshot.head, snapshot.has_history), (None, false));
        let side = place.vault.side_manifest(&snapshot).await.unwrap();
        assert!(side.warnings[0].contains("outside of the workspace"), "{:?}", side.warnings);
    }
}

#[tokio::test]
async fn a_repository_that_is_broken_costs_its_history_and_not_the_snapshot() {
    type Breakage = fn(&std::path::Path);
    let breakages: [(&str, Breakage); 9] = [
        ("empty HEAD", |git| fs::write(git.join("HEAD"), "").unwrap()),
        ("no HEAD", |git| fs::remove_file(git.join("HEAD")).unwrap()),
        ("empty ref", |git| fs::write(git.join("refs/heads/main"), "").unwrap()),
        ("torn ref", |git| fs::write(git.join("refs/heads/main"), "0123").unwrap()),
        ("ref outside", |git| fs::write(git.join("HEAD"), "ref: ../../outside\n").unwrap()),
        ("empty object", |git| {
            let dir = fs::read_dir(git.join("objects")).unwrap().map(|dir| dir.unwrap().path());
            for dir in dir.filter(|dir| dir.file_name().unwrap().len() == 2) {
                for object in fs::read_dir(dir).unwrap() {
                    let path = object.unwrap().path();
                    fs::remove_file(&path).unwrap();
                    fs::write(path, "").unwrap();
                }
            }
        }),
        ("shallow", |git| fs::write(git.join("shallow"), "0".repeat(40)).unwrap()),
        ("a symlink", |git| {
            fs::rename(git, git.with_file_name("moved")).unwrap();
            std::os::unix::fs::symlink("moved", git).unwrap();
        }),
        ("no repository", |git| {
            fs::remove_dir_all(git).unwrap();
            fs::write(git, "gitdir: nowhere\n").unwrap();
        }),
    ];
    for (name, broken) in breakages {
        let place = repository().await;
        broken(&place.work.join(".git"));
        // Where git refuses to work at all, this is no matter.
        place.write(".git-config", "");
        let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
        assert!(!snapshot.has_history, "{name}");
        let side = place.vault.side_manifest(&snapshot).await.unwrap();
        assert_eq!(side.warnings.len(), 1, "{name}: {:?}", side.warnings);
        let target = place.path("out");
        place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
        assert!(tree(&target) == tree(&place.work), "{name}");
        place.fsck();
    }
}

#[tokio::test]
async fn a_configuration_that_git_refuses_is_not_even_read() {
    let place = repository().await;
    for config in ["[broken", "[include]\n\tpath = /nonexistent/\0\n"] {
        fs::write(place.work.join(".git/config"), config).unwrap();
        fs::write(place.work.join(".git/index.lock"), "").unwrap();
        place.write("a", config);
        assert!(!git_output(&place.work, &["status"]).status.success() || config.contains("include"));
        let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
        assert!(snapshot.has_history);
    }
    place.fsck();
}

#[tokio::test]
async fn a_snapshot_leaves_the_repository_as_it_was() {
    let place = repository().await;
    place.write("b", "staged");
    place.git(&["add", "b"]);
    place.write("b", "changed after");
    let state = || {
        let git = place.work.join(".git");
        let mut files = Vec::new();
        for name in ["HEAD", "index", "config", "refs/heads/main"] {
            files.push(fs::read(git.join(name)).unwrap());
        }
        (files, place.git(&["--no-optional-locks", "status", "--porcelain"]))
    };
    let before = state();
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    place.write("b", "changed again");
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    place.vault.restore(&snapshot.id, &place.work, RestoreOptions::new()).await.unwrap();
    assert_eq!(state(), before);
}
