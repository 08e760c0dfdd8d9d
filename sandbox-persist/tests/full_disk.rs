//! A disk that is full costs the snapshot that does not fit, and no other.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::fs;
use std::process::Command;

use sandhold_core::ErrorKind;
use sandhold_persist::{CaptureOptions, RepoKey, RestoreOptions, Vault, VaultConfig};
use support::{Place, fsck, tree};

/// A file system of 4 MiB, which goes away with the test.
struct Small(tempfile::TempDir);

impl Small {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "small"])
            .arg(dir.path())
            .stderr(std::process::Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        mounted.then_some(Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_leaves_what_was_there() {
    let Some(small) = Small::new() else {
        println!("skipped: needs root, for a small file system");
        return;
    };
    let place = Place::new().await;
    let config = VaultConfig::new(small.0.path(), RepoKey::new("small").unwrap());
    let vault = Vault::open(config).await.unwrap();
    place.write("a", "fits");
    let first = vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let then = tree(&place.work);

    let mut random = fastrand::Rng::new();
    for size in [1 << 20, 6 << 20] {
        let name = format!("big{size}");
        let content = |random: &mut fastrand::Rng| (0..size).map(|_| random.u8(..)).collect::<Vec<u8>>();
        for part in 0..(8 << 20) / size {
            place.write(format!("{name}-{part}"), content(&mut random));
        }
        let failed = vault.capture(&place.work, CaptureOptions::new()).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::StorageFull, "{failed}");
        assert_eq!(fs::read_dir(small.0.path().join("small/staging")).unwrap().count(), 0);
        fsck(&vault.git_dir());
    }
    let out = place.path("out");
    vault.restore(&first.id, &out, RestoreOptions::new()).await.unwrap();
    assert!(tree(&out) == then);
    for entry in fs::read_dir(&place.work).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() != "a" {
            fs::remove_file(path).unwrap();
        }
    }
    place.write("b", "fits too");
    vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    fsck(&vault.git_dir());
}
