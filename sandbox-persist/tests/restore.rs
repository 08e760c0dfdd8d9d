//! The other ways back: a branch, a patch, and being held to a receipt.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use sandhold_core::ErrorKind;
use sandhold_persist::{CaptureOptions, RestoreOptions, SkipReason, Survive};
use support::{Place, git, tree};

async fn repository() -> Place {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "feat/x"]);
    place.write("a", "one\n");
    place.write("gone", "to be removed\n");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "first"]);
    place
}

#[tokio::test]
async fn a_branch_brings_a_snapshot_into_the_repository_and_changes_nothing_else() {
    let place = repository().await;
    place.write("a", "two\n");
    place.write("dir/new", vec![7; 100_000]);
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let state = || {
        let files = ["HEAD", "index", "config", "refs/heads/feat/x"];
        let files = files.map(|name| fs::read(place.work.join(".git").join(name)).unwrap());
        (files, place.git(&["--no-optional-locks", "status", "--porcelain"]), tree(&place.work))
    };
    let before = state();
    let branch = place.vault.restore_branch(&snapshot.id, &place.work, None).await.unwrap();
    assert_eq!(branch.name, format!("sandbox-recover/feat-x-{}", snapshot.id));
    assert!(!branch.was_there && branch.matches_workspace);
    assert_eq!(branch.files, 3);
    assert_eq!(state(), before);
    place.git(&["fsck", "--full", "--strict"]);
    assert_eq!(place.git(&["show", &format!("{}:a", branch.name)]), "two");
    assert_eq!(place.git(&["merge-base", "HEAD", &branch.name]), place.git(&["rev-parse", "HEAD"]));

    let again = place.vault.restore_branch(&snapshot.id, &place.work, None).await.unwrap();
    assert!(again.was_there);
    place.write("a", "three\n");
    let again = place.vault.restore_branch(&snapshot.id, &place.work, Some("mine")).await.unwrap();
    assert!(!again.matches_workspace);
    for (name, kind) in [
        ("feat/x", ErrorKind::AlreadyExists),
        ("mine/below", ErrorKind::AlreadyExists),
        ("feat", ErrorKind::AlreadyExists),
        ("../../HEAD", ErrorKind::InvalidArgument),
        ("x.lock", ErrorKind::InvalidArgument),
    ] {
        let refused = place.vault.restore_branch(&snapshot.id, &place.work, Some(name)).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{name}: {refused}");
    }
    place.git(&["pack-refs", "--all"]);
    let refused = place.vault.restore_branch(&snapshot.id, &place.work, Some("feat/x")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_dir(place.path("vaults/test/staging")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_branch_is_refused_where_the_repository_could_not_hold_it() {
    let place = Place::new().await;
    place.write("a", "1");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let refused = place.vault.restore_branch(&snapshot.id, &place.work, None).await.unwrap_err();
    assert_eq!(refused.reason(), Some("no_repository"));
    let other = place.path("sha256");
    git(place.dir.path(), &["init", "-q", "--object-format=sha256", "sha256"]);
    let refused = place.vault.restore_branch(&snapshot.id, &other, None).await.unwrap_err();
    assert_eq!(refused.reason(), Some("no_repository"), "{refused}");
}

#[tokio::test]
async fn a_patch_applies_to_the_byte() {
    let place = repository().await;
    let fresh = place.path("fresh");
    git(place.dir.path(), &["clone", "-q", "work", "fresh"]);
    place.write("a", "one\r\ntwo with a blank \nno newline at the end");
    place.write("binary", (0..=255).cycle().take(5000).collect::<Vec<u8>>());
    place.write("na me\t\"x\"", "odd\n");
    place.write("tool", "#!/bin/sh\n");
    place.make_executable("tool");
    place.link("link", "a");
    fs::remove_file(place.work.join("gone")).unwrap();
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let file = place.path("out.patch");
    let length = place.vault.restore_patch(&snapshot.id, &file).await.unwrap();
    let stat = fs::metadata(&file).unwrap();
    assert_eq!((stat.len(), stat.permissions().mode() & 0o777), (length, 0o600));
    git(&fresh, &["apply", "--index", "--whitespace=nowarn", file.to_str().unwrap()]);
    assert!(tree(&fresh) == tree(&place.work));
    let refused = place.vault.restore_patch(&snapshot.id, &file).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn a_patch_of_what_has_no_commit_makes_everything_and_an_empty_one_is_refused() {
    let place = Place::new().await;
    let fresh = place.path("fresh");
    git(place.dir.path(), &["init", "-q", "fresh"]);
    place.write("a/b", "1\n");
    fs::create_dir(place.work.join("hollow")).unwrap();
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    place.vault.restore_patch(&snapshot.id, place.path("p")).await.unwrap();
    git(&fresh, &["apply", place.path("p").to_str().unwrap()]);
    assert_eq!(fs::read(fresh.join("a/b")).unwrap(), b"1\n");

    let clean = repository().await;
    let snapshot = clean.vault.capture(&clean.work, CaptureOptions::new()).await.unwrap();
    let refused = clean.vault.restore_patch(&snapshot.id, clean.path("p")).await.unwrap_err();
    assert_eq!(refused.reason(), Some("empty_patch"));
}

#[tokio::test]
async fn a_receipt_tells_what_will_survive_and_a_restore_is_held_to_it() {
    let place = repository().await;
    place.write("src/lib.rs", "pub fn x() {}\n");
    place.write(".env", "KEY=1\n");
    let survive = Survive::new().with_path("src").with_path("a").with_glob("*.rs").with_git();
    let options = CaptureOptions::new().with_survive(survive.clone());
    let snapshot = place.vault.capture(&place.work, options).await.unwrap();
    let receipt = snapshot.receipt.clone().unwrap();
    assert!(receipt.is_complete());
    assert_eq!(receipt.head.unwrap().to_string(), place.git(&["rev-parse", "HEAD"]));
    let paths: Vec<_> = receipt.promised.iter().map(|promise| promise.path.to_string()).collect();
    assert_eq!(paths, ["a", "src", "src/lib.rs"]);
    place.vault.restore(&snapshot.id, place.path("out"), RestoreOptions::new()).await.unwrap();

    // What cannot survive is said at once, and again by the restore.
    place.write("a", "changed\n");
    let survive = survive.with_path(".env").with_path("nowhere").with_glob("*.nothing");
    let options = CaptureOptions::new().with_survive(survive);
    let snapshot = place.vault.capture(&place.work, options).await.unwrap();
    let missing: Vec<_> = snapshot
        .receipt
        .as_ref()
        .unwrap()
        .missing
        .iter()
        .map(|missing| (missing.what.as_str(), missing.why.as_str()))
        .collect();
    assert_eq!(
        missing,
        [(".env", "env_file"), ("nowhere", "not_found_or_ignored"), ("*.nothing", "nothing_matches")]
    );
    let target = place.path("incomplete");
    let refused = place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("restore_incomplete"));
    assert!(refused.to_string().contains(".env (env_file)"), "{refused}");
    assert_eq!(fs::read(target.join("a")).unwrap(), b"changed\n");

    // The receipt is in the snapshot itself, and not in the manifest alone.
    fs::remove_file(place.path("vaults/test/records").join(format!("{}.json", snapshot.id))).unwrap();
    assert_eq!(place.vault.snapshot(snapshot.id.as_str()).await.unwrap(), snapshot);
}

#[tokio::test]
async fn a_directory_that_must_survive_is_one_with_all_that_is_in_it() {
    let place = Place::new().await;
    place.write("src/a", "1");
    place.write("src/deep/.env", "KEY=1");
    place.write("src/deep/big", vec![0; 100]);
    place.write("srcs/big", vec![0; 100]);
    std::os::unix::net::UnixListener::bind(place.work.join("src/socket")).unwrap();
    let options = CaptureOptions::new().with_max_file(Some(50));
    let options = options.with_survive(Survive::new().with_path("src"));
    let snapshot = place.vault.capture(&place.work, options).await.unwrap();
    let receipt = snapshot.receipt.as_ref().unwrap();
    let missing: Vec<_> =
        receipt.missing.iter().map(|missing| (missing.what.as_str(), missing.why.as_str())).collect();
    // No snapshot has a socket, and nobody expects one.
    assert_eq!(missing, [("src/deep/.env", "env_file"), ("src/deep/big", "too_large")]);
    let refused =
        place.vault.restore(&snapshot.id, place.path("out"), RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("restore_incomplete"));
    assert_eq!(fs::read(place.path("out/src/a")).unwrap(), b"1");
}

#[tokio::test]
async fn times_and_attributes_come_back_where_they_were_asked_for() {
    let place = Place::new().await;
    place.write("dir/a", "1");
    let path = place.work.join("dir/a");
    let then = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
    let has_xattrs =
        rustix::fs::setxattr(&path, "user.origin", b"here\0and there", rustix::fs::XattrFlags::empty())
            .is_ok();
    let options = CaptureOptions::new().with_mtimes().with_xattrs();
    let snapshot = place.vault.capture(&place.work, options).await.unwrap();
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    let stat = fs::metadata(target.join("dir/a")).unwrap();
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_000_000_000, 123_456_789));
    let dirs = [&place.work, &target].map(|dir| fs::metadata(dir.join("dir")).unwrap().modified().unwrap());
    assert_eq!(dirs[0], dirs[1]);
    if has_xattrs {
        let mut value = [0; 64];
        let length = rustix::fs::getxattr(target.join("dir/a"), "user.origin", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"here\0and there");
    } else {
        println!("skipped: needs a file system with user attributes");
    }
}

#[tokio::test]
async fn an_ignored_file_in_the_place_of_a_captured_one_is_not_overwritten() {
    let place = Place::new().await;
    place.write("build/out", "captured");
    place.write("link/x", "a directory");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    place.write(".gitignore", "build/\n");
    place.write("build/out", "precious");
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let refused = place.vault.restore(&snapshot.id, &place.work, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("in_the_way"), "{refused}");
    assert_eq!(fs::read(place.work.join("build/out")).unwrap(), b"precious");
    assert_eq!(fs::read(place.work.join(".gitignore")).unwrap(), b"build/\n");
    // The same content is in nobody's way.
    place.write("build/out", "captured");
    place.vault.restore(&snapshot.id, &place.work, RestoreOptions::new()).await.unwrap();
    assert!(!place.work.join(".gitignore").exists());
}

#[tokio::test]
async fn nothing_is_written_through_a_symlink() {
    let place = Place::new().await;
    place.write("dir/file", "inside");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let outside = place.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::remove_dir_all(place.work.join("dir")).unwrap();
    symlink(&outside, place.work.join("dir")).unwrap();
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    place.vault.restore(&snapshot.id, &place.work, RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read(place.work.join("dir/file")).unwrap(), b"inside");
    assert!(fs::symlink_metadata(place.work.join("dir")).unwrap().is_dir());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[tokio::test]
async fn setuid_is_not_restored_and_a_hard_link_and_a_sparse_file_are_content() {
    let place = Place::new().await;
    place.write("tool", "x");
    fs::set_permissions(place.work.join("tool"), fs::Permissions::from_mode(0o6755)).unwrap();
    place.write("one", "linked");
    fs::hard_link(place.work.join("one"), place.work.join("two")).unwrap();
    let sparse = fs::File::create(place.work.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert_eq!(snapshot.bytes, 1 + 6 + 6 + (1 << 20));
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::metadata(target.join("tool")).unwrap().mode() & 0o7111, 0o111);
    assert_eq!(fs::read(target.join("two")).unwrap(), b"linked");
    assert_eq!(fs::metadata(target.join("sparse")).unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn what_may_not_be_read_keeps_what_an_earlier_snapshot_has() {
    let place = Place::new().await;
    place.write("secret", "known");
    place.write("locked/in", "known too");
    place.write("b", "1");
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    for (name, mode) in [("secret", 0o000), ("locked", 0o000)] {
        fs::set_permissions(place.work.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    if fs::read(place.work.join("secret")).is_ok() {
        println!("skipped: needs a user whom permissions hold");
        return;
    }
    place.write("b", "2");
    place.write("never", "x");
    fs::set_permissions(place.work.join("never"), fs::Permissions::from_mode(0o000)).unwrap();
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    fs::set_permissions(place.work.join("locked"), fs::Permissions::from_mode(0o755)).unwrap();
    let side = place.vault.side_manifest(&snapshot).await.unwrap();
    let told: Vec<_> =
        side.skipped.iter().map(|skipped| (skipped.path.to_string(), skipped.reason)).collect();
    for name in ["secret", "locked", "never"] {
        assert!(told.contains(&(name.to_owned(), SkipReason::Unreadable)), "{told:?}");
    }
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read(target.join("secret")).unwrap(), b"known");
    assert_eq!(fs::read(target.join("locked/in")).unwrap(), b"known too");
    assert!(!target.join("never").exists());
}

#[tokio::test]
async fn homes_and_the_root_and_the_vault_itself_are_refused() {
    let place = Place::new().await;
    for path in [std::path::Path::new("/"), &std::env::home_dir().unwrap()] {
        let refused = place.vault.capture(path, CaptureOptions::new()).await.unwrap_err();
        assert_eq!(refused.reason(), Some("too_wide"), "{refused}");
    }
    let refused = place.vault.capture(place.dir.path(), CaptureOptions::new()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    // A root that is a symlink is resolved once.
    place.write("a", "1");
    symlink(&place.work, place.path("link")).unwrap();
    let snapshot = place.vault.capture(place.path("link"), CaptureOptions::new()).await.unwrap();
    assert_eq!(snapshot.workspace, place.work.canonicalize().unwrap());
}

#[tokio::test]
async fn a_budget_that_is_used_up_leaves_nothing_and_the_next_capture_has_all() {
    let place = Place::new().await;
    for index in 0..200 {
        place.write(format!("{index}"), format!("{index}"));
    }
    let options = CaptureOptions::new().with_budget(Duration::ZERO);
    let failed = place.vault.capture(&place.work, options).await.unwrap_err();
    assert_eq!((failed.kind(), failed.reason()), (ErrorKind::Timeout, Some("budget")));
    assert!(place.vault.snapshots().await.unwrap().is_empty());
    assert_eq!(fs::read_dir(place.path("vaults/test/staging")).unwrap().count(), 0);
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    place.fsck();
}

#[tokio::test]
async fn two_captures_at_once_are_one_after_the_other_and_both_are_kept() {
    let place = Place::new().await;
    place.write("a", "1");
    let others = [support::open(place.dir.path()).await, support::open(place.dir.path()).await];
    let captures = others.map(|vault| {
        let work = place.work.clone();
        tokio::spawn(async move {
            let mut taken = 0;
            for step in 0..10 {
                fs::write(work.join("a"), format!("{step} {:?}", std::thread::current().id())).unwrap();
                taken += usize::from(vault.capture(&work, CaptureOptions::new()).await.is_ok());
            }
            taken
        })
    });
    let mut taken = 0;
    for capture in captures {
        taken += capture.await.unwrap();
    }
    let snapshots = place.vault.snapshots().await.unwrap();
    assert_eq!(snapshots.len(), taken);
    assert!(snapshots.is_sorted_by(|a, b| a.id < b.id));
    place.fsck();
}

#[tokio::test]
async fn a_file_that_has_grown_above_the_cap_is_kept_as_it_was_where_that_is_asked_for() {
    for keep in [false, true] {
        let place = Place::new().await;
        let options = || {
            let options = CaptureOptions::new().with_max_file(Some(10));
            if keep { options.with_keep_last() } else { options }
        };
        place.write("grows", "small");
        place.write("a", "1");
        place.vault.capture(&place.work, options()).await.unwrap();
        place.write("grows", "above the cap");
        place.write("a", "2");
        let snapshot = place.vault.capture(&place.work, options()).await.unwrap();
        let side = place.vault.side_manifest(&snapshot).await.unwrap();
        let told: Vec<_> = side.skipped.iter().map(|it| (it.path.to_string(), it.reason, it.size)).collect();
        assert_eq!(told, [("grows".to_owned(), SkipReason::TooLarge, Some(13))]);
        let target = place.path("out");
        place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
        assert_eq!(fs::read(target.join("grows")).ok(), keep.then(|| b"small".to_vec()));
    }
}

#[tokio::test]
async fn a_workspace_that_is_written_to_all_the_time_is_captured_as_it_was_at_some_time() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let place = Place::new().await;
    let done = Arc::new(AtomicBool::new(false));
    for index in 0..50 {
        place.write(format!("still{index}"), index.to_string());
    }
    let writers: Vec<_> = (0..2u8)
        .map(|writer| {
            let (work, done) = (place.work.clone(), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut turn = 0u32;
                while !done.load(Ordering::Relaxed) {
                    turn += 1;
                    // One is written to in place, grows and shrinks; others come and go.
                    let length = 1000 + (turn % 7) as usize * 100_000;
                    fs::write(work.join(format!("busy{writer}")), vec![writer; length]).unwrap();
                    let passing = work.join(format!("passing{writer}/{}", turn % 5));
                    let _ = fs::create_dir_all(&passing);
                    fs::write(passing.join("file"), turn.to_string()).unwrap();
                    let _ = fs::remove_dir_all(work.join(format!("passing{writer}/{}", (turn + 2) % 5)));
                }
            })
        })
        .collect();
    let mut taken = Vec::new();
    while taken.len() < 15 {
        match place.vault.capture(&place.work, CaptureOptions::new()).await {
            Ok(snapshot) => taken.push(snapshot),
            Err(failure) => assert_eq!(failure.reason(), Some("nothing_to_snapshot"), "{failure}"),
        }
    }
    done.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for (index, snapshot) in taken.iter().enumerate() {
        let target = place.path(&format!("out{index}"));
        place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
        for index in 0..50 {
            let text = fs::read_to_string(target.join(format!("still{index}"))).unwrap();
            assert_eq!(text, index.to_string());
        }
        for writer in 0..2u8 {
            let busy = fs::read(target.join(format!("busy{writer}"))).unwrap_or_default();
            assert!(busy.iter().all(|byte| *byte == writer));
        }
    }
    place.fsck();
}
