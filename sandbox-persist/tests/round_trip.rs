//! What goes into the vault comes out of it, byte for byte.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use sandhold_core::ErrorKind;
use sandhold_persist::{
    CaptureOptions, OnDirty, RepoKey, RestoreOptions, SkipReason, Vault, VaultConfig, WorkPath,
};
use support::{Place, tree};

#[tokio::test]
async fn a_restored_tree_has_every_byte_mode_link_and_empty_directory() {
    let place = Place::new().await;
    place.write("README.md", "hello\n");
    place.write("crlf.txt", "x\r\ny\r\n");
    place.write(".gitattributes", "*.txt text eol=lf\n*.bin filter=lfs\n");
    place.write("src/deep/er/main.rs", "fn main() {}\n");
    place.write("empty", "");
    place.write("*", "a star");
    place.write("-rf", "a dash");
    place.write("new\nline", "a line");
    place.write(OsStr::from_bytes(b"caf\xe9.txt"), "latin");
    place.write("x".repeat(255), "long");
    place.write("CON", "dos");
    place.write("a\\b", "backslash");
    place.write("run.sh", "#!/bin/sh\n");
    place.make_executable("run.sh");
    place.link("dangling", "nowhere");
    place.link("absolute", "/etc/passwd");
    fs::create_dir_all(place.work.join("hollow/inner")).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let big: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(6 << 20).collect();
    place.write("big.bin", &big);
    place.write("big.txt", "all the same\n".repeat(600_000));

    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert_eq!((snapshot.files, snapshot.skipped), (17, 0));
    let target = place.path("out/there");
    let restored = place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(restored.written, 17);
    assert!(tree(&target) == tree(&place.work));
    place.fsck();
}

#[tokio::test]
async fn one_pack_is_added_by_a_snapshot_and_unchanged_files_are_not_in_it() {
    let place = Place::new().await;
    for index in 0..300 {
        place.write(format!("dir{}/file{index}", index % 7), format!("content {index}"));
    }
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let packs = || {
        let dir = fs::read_dir(place.vault.git_dir().join("objects/pack")).unwrap();
        dir.filter(|entry| entry.as_ref().unwrap().path().extension() == Some(OsStr::new("pack"))).count()
    };
    assert_eq!(packs(), 1);
    place.write("dir3/file3", "other");
    let second = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert_eq!(packs(), 2);
    let objects = support::git(
        &place.vault.git_dir(),
        &["rev-list", "--objects", "--no-object-names", "--all", "--count"],
    );
    // 300 files and one more, 7 directories and one more, two roots, two commits.
    assert_eq!(objects, "313");
    let target = place.path("out");
    place.vault.restore(&second.id, &target, RestoreOptions::new()).await.unwrap();
    assert!(tree(&target) == tree(&place.work));
    place.fsck();
}

#[tokio::test]
async fn the_same_tree_twice_is_refused_and_leaves_nothing() {
    let place = Place::new().await;
    place.write("a", "1");
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    for _ in 0..2 {
        // Another inode and other times, and the same content.
        fs::remove_file(place.work.join("a")).unwrap();
        place.write("a", "1");
        let refused = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidState);
        assert_eq!(refused.reason(), Some("nothing_to_snapshot"));
    }
    assert_eq!(place.vault.snapshots().await.unwrap().len(), 1);
    assert_eq!(fs::read_dir(place.path("vaults/test/staging")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(place.path("vaults/test/records")).unwrap().count(), 1);
}

#[tokio::test]
async fn what_is_never_captured_is_told_and_what_is_ignored_is_not() {
    let place = Place::new().await;
    place.write(".env", "SECRET=1");
    place.write("app/.env.local", "SECRET=2");
    place.write(".env.example", "SECRET=");
    place.write("id_rsa", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n");
    place.write("huge", vec![0; 11 << 20]);
    place.write("notes/private.md", "host rule");
    place.write(".gitignore", "target/\n*.log\n");
    place.write("target/debug/x", "built");
    place.write("sub/y.log", "log");
    place.write("kept", "kept");
    let options = CaptureOptions::new().with_never("notes/private.*");
    let snapshot = place.vault.capture(&place.work, options).await.unwrap();
    let side = place.vault.side_manifest(&snapshot).await.unwrap();
    let mut skipped: Vec<_> =
        side.skipped.iter().map(|skipped| (skipped.path.to_string(), skipped.reason)).collect();
    skipped.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        (".env", SkipReason::EnvFile),
        ("app/.env.local", SkipReason::EnvFile),
        ("huge", SkipReason::TooLarge),
        ("id_rsa", SkipReason::PrivateKey),
        ("notes/private.md", SkipReason::HostRule),
    ];
    assert_eq!(skipped, expected.map(|(path, reason)| (path.to_owned(), reason)));
    let target = place.path("out");
    place.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    let files: Vec<_> = tree(&target)
        .into_iter()
        .filter(|(_, (mode, _))| *mode != 0o40000)
        .map(|(path, _)| String::from_utf8(path).unwrap())
        .collect();
    assert_eq!(files, [".env.example", ".gitignore", "kept"]);
}

#[tokio::test]
async fn a_restore_over_a_workspace_changes_what_differs_and_leaves_what_was_never_captured() {
    let place = Place::new().await;
    place.write(".gitignore", "cache/\n");
    place.write("same", "same");
    place.write("changed", "before");
    place.write("becomes_dir", "a file");
    place.write("becomes_file/inner", "a directory");
    let first = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let then = tree(&place.work);

    place.write("changed", "after");
    place.write("added/deep/file", "new");
    place.write("cache/big", "ignored");
    place.write(".env", "SECRET=1");
    fs::remove_file(place.work.join("becomes_dir")).unwrap();
    place.write("becomes_dir/x", "now a directory");
    fs::remove_dir_all(place.work.join("becomes_file")).unwrap();
    place.write("becomes_file", "now a file");

    let refused = place.vault.restore(&first.id, &place.work, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("dirty"), "{refused}");
    assert!(refused.to_string().contains("added/deep/file"), "{refused}");
    assert_eq!(fs::read(place.work.join("changed")).unwrap(), b"after");

    use std::os::unix::fs::MetadataExt;
    let before = fs::metadata(place.work.join("same")).unwrap();
    let options = RestoreOptions::new().with_on_dirty(OnDirty::Capture);
    let restored = place.vault.restore(&first.id, &place.work, options).await.unwrap();
    let after = fs::metadata(place.work.join("same")).unwrap();
    assert_eq!((before.ctime_nsec(), before.ino()), (after.ctime_nsec(), after.ino()));
    assert_eq!((restored.untouched, restored.written), (2, 3));

    let mut now = tree(&place.work);
    assert_eq!(now.remove(&b"cache/big"[..]).unwrap().1, b"ignored");
    assert_eq!(now.remove(&b".env"[..]).unwrap().1, b"SECRET=1");
    now.remove(&b"cache"[..]);
    assert!(now == then, "{:?}", now.keys().map(|key| String::from_utf8_lossy(key)).collect::<Vec<_>>());

    // What was there before is a snapshot, and comes back.
    let saved = restored.saved.unwrap();
    place.vault.restore(&saved, &place.work, RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read(place.work.join("added/deep/file")).unwrap(), b"new");
    assert_eq!(fs::read(place.work.join("becomes_dir/x")).unwrap(), b"now a directory");
    assert!(place.vault.unfinished_restores().await.unwrap().is_empty());
    place.fsck();
}

#[tokio::test]
async fn a_capture_of_what_a_watcher_saw_finds_what_a_whole_look_finds() {
    let place = Place::new().await;
    for index in 0..40 {
        place.write(format!("d{}/e{}/f{index}", index % 4, index % 2), format!("{index}"));
    }
    place.write("d1/.gitignore", "*.log\n");
    let full = place.path("full");
    let other = Vault::open(VaultConfig::new(&full, RepoKey::new("whole").unwrap())).await.unwrap();
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for step in 0..60 {
        let dir = format!("d{}/e{}", random.u8(..5), random.u8(..3));
        let name = format!("{dir}/f{}", random.u8(..12));
        let path = place.work.join(&name);
        let mut dirty = vec![name.clone()];
        match random.u8(..6) {
            0 => drop(fs::remove_file(&path)),
            1 => {
                let _ = fs::remove_dir_all(place.work.join(&dir));
                dirty = vec![dir];
            }
            2 => {
                // A directory that is moved in says its own name alone.
                let moved = place.path("moved");
                support::write(&moved, "in/ner", format!("{step}"));
                let to = format!("d{}", random.u8(5..9));
                let _ = fs::remove_dir_all(place.work.join(&to));
                fs::rename(&moved, place.work.join(&to)).unwrap();
                dirty = vec![to];
            }
            3 => {
                place.write("d1/.gitignore", ["*.log\n", "e0/\n", "f1*\n"][step % 3]);
                dirty = vec!["d1/.gitignore".to_owned()];
            }
            _ => place.write(&name, format!("step {step}")),
        }
        let options =
            CaptureOptions::new().with_dirty(dirty.iter().map(|path| WorkPath::from(path.as_str())));
        let tree = match place.vault.capture(&place.work, options).await {
            Ok(snapshot) => snapshot.tree,
            Err(_) => place.vault.snapshots().await.unwrap().last().unwrap().tree,
        };
        let whole = match other.capture(&place.work, CaptureOptions::new()).await {
            Ok(snapshot) => snapshot.tree,
            Err(_) => other.snapshots().await.unwrap().last().unwrap().tree,
        };
        assert_eq!(tree, whole, "step {step}: {dirty:?}");
    }
    place.fsck();
}
