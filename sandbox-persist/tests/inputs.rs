//! What a workspace can be made of, each kind with its one right outcome. The other kinds are with what they are about:
//! links, modes, sizes and permissions in `restore`, names and empty directories in `round_trip`, repositories in
//! `history` and `hostile`, a full disk in `full_disk`, names that a target has not beside the code that tries them out.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sandhold_persist::{
    CaptureOptions, OnDirty, Phase, ProgressFn, RestoreOptions, SideManifest, SkipReason, Snapshot, Survive,
};
use support::{Place, git, tree};

async fn side(place: &Place, snapshot: &Snapshot) -> SideManifest {
    place.vault.side_manifest(snapshot).await.unwrap()
}

fn told(side: &SideManifest) -> Vec<(String, SkipReason)> {
    side.skipped.iter().map(|skipped| (skipped.path.to_string(), skipped.reason)).collect()
}

#[tokio::test]
async fn bytes_are_stored_whatever_attributes_and_autocrlf_say() {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "main"]);
    place.git(&["config", "core.autocrlf", "true"]);
    place.write(".gitattributes", "*.txt text eol=lf\n");
    place.write("a.txt", "x\r\ny\r\n");
    place.git(&["-c", "core.safecrlf=false", "add", "-A"]);
    place.git(&["commit", "-qm", "git has it with other ends of lines"]);
    assert_eq!(place.git(&["cat-file", "-s", "HEAD:a.txt"]), "4");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let blob = format!("{}:a.txt", snapshot.tree);
    assert_eq!(git(&place.vault.git_dir(), &["cat-file", "-s", &blob]), "6");
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read(target.join("a.txt")).unwrap(), b"x\r\ny\r\n");
}

#[tokio::test]
async fn a_pointer_to_a_large_file_is_stored_as_it_is_and_told() {
    let place = Place::new().await;
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    place.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    place.write("model.bin", pointer);
    place.write("here.bin", "the large file itself");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let pointers = side(&place, &snapshot).await.lfs_pointers;
    assert_eq!(pointers.iter().map(ToString::to_string).collect::<Vec<_>>(), ["model.bin"]);
    // Also where it was not read again.
    place.write("other", "1");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert_eq!(side(&place, &snapshot).await.lfs_pointers, pointers);
    let target = place.path("out");
    let restored = place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert!(tree(&target) == tree(&place.work));
    assert!(restored.warnings.iter().any(|warning| warning.starts_with("model.bin ")), "{restored:?}");
}

#[tokio::test]
async fn a_device_is_left_out_and_told() {
    let place = Place::new().await;
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        place.work.join("null"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
        rustix::fs::makedev(1, 3),
    );
    if made.is_err() {
        println!("skipped: needs root, for a device in a workspace");
        return;
    }
    place.write("a", "1");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert_eq!(told(&side(&place, &snapshot).await), [("null".to_owned(), SkipReason::Special)]);
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
}

#[tokio::test]
async fn what_was_changed_in_a_submodule_is_in_the_snapshot_and_its_git_is_not() {
    let place = Place::new().await;
    let (library, url) = (place.path("library"), place.path("library").display().to_string());
    git(place.dir.path(), &["init", "-q", "-b", "main", "library"]);
    support::write(&library, "lib.c", "committed");
    git(&library, &["add", "-A"]);
    git(&library, &["commit", "-qm", "x"]);
    place.git(&["init", "-q", "-b", "main"]);
    place.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "vendor/lib"]);
    place.git(&["commit", "-qm", "a submodule"]);
    place.write("vendor/lib/lib.c", "changed");
    place.write("vendor/lib/new.c", "never added");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert!(snapshot.has_history);
    let nested = side(&place, &snapshot).await.nested;
    assert_eq!(
        (nested.len(), nested[0].path.to_string().as_str(), nested[0].submodule),
        (1, "vendor/lib", true)
    );
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert!(!target.join("vendor/lib/.git").exists());
    for (name, content) in [("lib.c", "changed"), ("new.c", "never added")] {
        assert_eq!(fs::read_to_string(target.join("vendor/lib").join(name)).unwrap(), content);
    }
    place.fsck();
}

#[tokio::test]
async fn a_file_that_is_another_one_at_every_look_is_captured_as_it_was_last_and_told() {
    // Each look at `uuid` has other bytes, and none is of the length that is said of it.
    let random = Path::new("/proc/sys/kernel/random");
    if fs::read(random.join("uuid")).is_err() {
        println!("skipped: needs /proc/sys/kernel/random");
        return;
    }
    let place = Place::new().await;
    let options = CaptureOptions::new().with_survive(Survive::new().with_path("uuid"));
    let snapshot = place.vault.capture(random, options).await.unwrap();
    let side = side(&place, &snapshot).await;
    assert!(told(&side).contains(&("uuid".to_owned(), SkipReason::Unstable)), "{side:?}");
    let missing = &snapshot.receipt.as_ref().unwrap().missing;
    assert_eq!((missing[0].what.as_str(), missing[0].why.as_str()), ("uuid", "unstable"));
    let content = git(&place.vault.git_dir(), &["cat-file", "blob", &format!("{}:uuid", snapshot.tree)]);
    assert_eq!((content.len(), content.matches('-').count()), (36, 4), "{content}");
    place.fsck();
}

#[tokio::test]
async fn a_clock_that_was_set_back_makes_no_older_id() {
    let place = Place::new().await;
    place.write("a", "1");
    let first = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    // As a snapshot that was taken when the clock said 2099.
    let name = "refs/sandbox/snapshots/20991231-235959-ffffff";
    git(&place.vault.git_dir(), &["update-ref", name, &first.commit.to_string()]);
    place.write("a", "2");
    let second = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert!(second.id.ref_name().as_str() > name, "{}", second.id);
    place.write("a", "3");
    let third = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert!(third.id > second.id);
}

#[tokio::test]
async fn a_repository_of_another_owner_is_captured_with_its_commits() {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "main"]);
    place.write("a", "1");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "x"]);
    let mut all = vec![place.work.clone()];
    while let Some(path) = all.pop() {
        if chown(&path, Some(12_345), Some(12_345)).is_err() {
            println!("skipped: needs root, for files of somebody else");
            return;
        }
        if path.is_dir() {
            all.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    let refused = support::git_output(&place.work, &["status"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("dubious ownership"), "{refused:?}");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert!(snapshot.has_history);
}

#[tokio::test]
async fn a_snapshot_is_restored_over_a_repository_that_git_refuses() {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "main"]);
    place.write("a", "1");
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    fs::write(place.work.join(".git/config"), "[broken").unwrap();
    fs::write(place.work.join(".git/index.lock"), "").unwrap();
    place.write("a", "2");
    let options = RestoreOptions::new().with_on_dirty(OnDirty::Capture);
    place.vault.restore(&snapshot.id, &place.work, options).await.unwrap();
    assert_eq!(fs::read(place.work.join("a")).unwrap(), b"1");
    assert_eq!(fs::read(place.work.join(".git/config")).unwrap(), b"[broken");
}

#[tokio::test]
async fn what_is_torn_beside_the_objects_is_made_again_by_whoever_comes_next() {
    for torn in [&b""[..], b"{\"id\": \"2026", b"\0\0\0\0"] {
        let place = Place::new().await;
        place.write("a", "1");
        let first = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
        place.write("a", "2");
        let second = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
        let root = place.path("vaults/test");
        for dir in ["records", "cache"] {
            for entry in fs::read_dir(root.join(dir)).unwrap() {
                fs::write(entry.unwrap().path(), torn).unwrap();
            }
        }
        fs::write(root.join("generation"), torn).unwrap();
        // As a ref whose name a power cut kept, and whose content it did not.
        fs::write(place.vault.git_dir().join("refs/sandbox/snapshots/20200101-000000-abcdef"), torn).unwrap();
        let vault = support::open(place.dir.path()).await;
        assert_eq!(vault.snapshots().await.unwrap(), [first.clone(), second]);
        place.write("a", "3");
        vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
        let target = place.path("out");
        vault.restore(&first.id, &target, RestoreOptions::new()).await.unwrap();
        assert_eq!(fs::read(target.join("a")).unwrap(), b"1");
    }
}

#[tokio::test]
async fn who_waits_is_told_how_far_it_is() {
    let place = Place::new().await;
    for index in 0..300 {
        place.write(format!("d{}/f{index}", index % 70), format!("{index}"));
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tell = {
        let seen = Arc::clone(&seen);
        ProgressFn::new(move |progress| seen.lock().unwrap().push(progress))
    };
    let options = CaptureOptions::new().with_threads(1).with_progress(tell.clone());
    let snapshot = place.vault.capture(&place.work, options).await.unwrap();
    let options = RestoreOptions::new().with_threads(1).with_progress(tell);
    place.vault.restore(&snapshot.id, place.path("out"), options).await.unwrap();
    let seen = seen.lock().unwrap();
    for phase in [Phase::Scanning, Phase::Storing, Phase::Restoring] {
        let files: Vec<u64> = seen.iter().filter(|told| told.phase == phase).map(|told| told.files).collect();
        assert!(!files.is_empty() && files.is_sorted(), "{phase:?}: {files:?}");
    }
    assert_eq!(seen.last().unwrap().files, 300);
}

#[tokio::test]
async fn a_capture_that_is_given_up_leaves_nothing_behind() {
    let place = Place::new().await;
    for index in 0..2000 {
        place.write(format!("d{}/f{index}", index % 200), format!("{index}"));
    }
    let begun = Arc::new(tokio::sync::Notify::new());
    let tell = {
        let begun = Arc::clone(&begun);
        ProgressFn::new(move |_| begun.notify_one())
    };
    let options = CaptureOptions::new().with_threads(1).with_progress(tell);
    tokio::select! {
        biased;
        () = begun.notified() => {}
        done = place.vault.capture(&place.work, options) => drop(done.unwrap()),
    }
    // Whatever it had come to: all of it is there, or nothing.
    match place.vault.capture(&place.work, CaptureOptions::new()).await {
        Ok(_) => {}
        Err(failure) => assert_eq!(failure.reason(), Some("nothing_to_snapshot")),
    }
    let snapshots = place.vault.snapshots().await.unwrap();
    assert_eq!(snapshots.len(), 1);
    assert_eq!(fs::read_dir(place.path("vaults/test/staging")).unwrap().count(), 0);
    place.vault.restore(&snapshots[0].id, place.path("out"), RestoreOptions::new()).await.unwrap();
    assert!(tree(&place.path("out")) == tree(&place.work));
    place.fsck();
}
