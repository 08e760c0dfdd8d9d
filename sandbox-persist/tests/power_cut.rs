//! What was acknowledged is there after a power cut, which takes whatever no call has made durable.
//!
//! The cut is made on a file system of its own: the disk as it is, without what the kernel has in memory yet.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sandhold_persist::{
    BundleOptions, CaptureOptions, FAILPOINTS, GcOptions, ImportOptions, Label, OnDirty, RepoKey,
    RestoreOptions, Retention, SnapId, Vault, VaultConfig,
};
use support::{fsck, open, tree, write};

/// How many snapshots are kept.
const KEPT: usize = 3;

/// A disk that the power can be cut off from.
struct Disk {
    dir: tempfile::TempDir,
    cuts: u32,
}

impl Disk {
    fn new() -> Option<Self> {
        let disk = Self { dir: tempfile::tempdir().unwrap(), cuts: 0 };
        fs::create_dir(disk.root()).unwrap();
        fs::File::create(disk.image()).unwrap().set_len(48 << 20).unwrap();
        let made = Command::new("mke2fs").args(["-q", "-t", "ext4", "-F"]).arg(disk.image()).status();
        (made.is_ok_and(|status| status.success()) && disk.mount()).then_some(disk)
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join(format!("{}.img", self.cuts))
    }

    /// Nothing is written but what a call asks for, also where one file takes the place of another.
    fn mount(&self) -> bool {
        Command::new("mount")
            .args(["-t", "ext4", "-o", "loop,commit=300,noauto_da_alloc"])
            .args([self.image(), self.root()])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Goes on with what is on the disk, and without what is in memory alone.
    fn cut(&mut self) {
        let before = self.image();
        self.cuts += 1;
        fs::copy(&before, self.image()).unwrap();
        let status = Command::new("umount").arg(self.root()).status().unwrap();
        assert!(status.success(), "somebody is still on the disk");
        fs::remove_file(before).unwrap();
        assert!(self.mount(), "the disk cannot be mounted after the cut");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.root()).stderr(Stdio::null()).status();
    }
}

const NEEDS: &str = "skipped: needs root, mke2fs and a loop device, for a disk to cut the power of";

/// The workspace after so many steps, as a pure function.
fn make(work: &Path, step: u32) {
    for file in 0..6 {
        let version = step - step % (file + 1);
        write(work, format!("dir{}/file{file}", file % 2), format!("{file} of {version}\n").repeat(400));
    }
    for entry in fs::read_dir(work).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_name().to_string_lossy().starts_with("only-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    write(work, format!("only-{step}"), "goes with this step");
}

async fn copies(disk: &Path) -> Vault {
    let key = RepoKey::new("copies").unwrap();
    Vault::open(VaultConfig::new(disk.join("vaults"), key)).await.unwrap()
}

#[tokio::test]
async fn a_manifest_that_a_power_cut_takes_is_made_again_from_its_commit() {
    let Some(mut disk) = Disk::new() else {
        println!("{NEEDS}");
        return;
    };
    let outside = tempfile::tempdir().unwrap();
    let work = outside.path();
    let mut lost = 0;
    for step in 0..3 {
        let vault = open(&disk.root()).await;
        make(work, step);
        let options = CaptureOptions::new().with_label(Label::new(format!("step {step}")).unwrap());
        let snapshot = vault.capture(work, options).await.unwrap();
        let record = disk.root().join(format!("vaults/test/records/{}.json", snapshot.id));
        let written = fs::read(&record).unwrap();
        // What nobody has synced is a proof that the power was cut.
        fs::write(disk.root().join("control"), "not durable").unwrap();
        drop(vault);
        disk.cut();
        assert_ne!(fs::read(disk.root().join("control")).unwrap_or_default(), b"not durable");
        lost += u32::from(fs::read(&record).ok() != Some(written));
        let vault = open(&disk.root()).await;
        assert_eq!(vault.snapshot(snapshot.id.as_str()).await.unwrap(), snapshot);
        let target = tempfile::tempdir().unwrap();
        vault.restore(&snapshot.id, target.path(), RestoreOptions::new()).await.unwrap();
        assert!(tree(target.path()) == tree(work), "step {step}");
        fsck(&vault.git_dir());
        assert_eq!(vault.snapshots().await.unwrap().len() as u32, step + 1);
    }
    assert!(lost > 0, "every manifest was durable: the rule was not tried");
}

/// Captures, copies, restores, prunes and collects until it is killed, and tells outside of the disk what is safe.
#[tokio::test]
#[ignore = "is what another test kills, in a process of its own"]
async fn victim() {
    let (Some(disk), Some(outside)) =
        (std::env::var_os("SANDHOLD_TEST_DISK"), std::env::var_os("SANDHOLD_TEST_DIR"))
    else {
        return;
    };
    let (disk, outside) = (Path::new(&disk), Path::new(&outside));
    let vault = open(disk).await;
    let work = outside.join("work");
    let tell = |name: &str, id: &SnapId, step: u32| {
        let mut acks = OpenOptions::new().append(true).create(true).open(outside.join(name)).unwrap();
        writeln!(acks, "{id} {step}").unwrap();
    };
    let first = fs::read_to_string(outside.join("acks")).unwrap_or_default().lines().count() as u32;
    for step in first..first + 4 {
        make(&work, step);
        let id = match vault.capture(&work, CaptureOptions::new()).await {
            Ok(snapshot) => snapshot.id,
            // It was there before it could be told.
            Err(failure) => {
                assert_eq!(failure.reason(), Some("nothing_to_snapshot"), "{failure}");
                vault.snapshots().await.unwrap().pop().unwrap().id
            }
        };
        tell("acks", &id, step);
        if step % 2 == 0 {
            let bundle = disk.join(format!("{id}.bundle"));
            let written = vault.write_bundle(&id, &bundle, BundleOptions::new()).await.unwrap();
            let options = ImportOptions::new().with_any_repository(true).with_expected(written.commit);
            copies(disk).await.import_bundle(&bundle, options).await.unwrap();
            tell("copied", &id, step);
        } else {
            vault
                .restore(
                    &id,
                    disk.join("out"),
                    RestoreOptions::new().with_on_dirty(OnDirty::Capture).with_sync(),
                )
                .await
                .unwrap();
        }
        if step % 2 == 1 {
            vault.prune(Retention::new().with_max_count(KEPT)).await.unwrap();
            vault.gc(GcOptions::new().with_min_age(Duration::ZERO).with_max_packs(2)).await.unwrap();
        }
    }
}

/// Everything that was told to be safe, of the last ones that retention keeps, is there.
async fn check(outside: &Path, name: &str, vault: &Vault, when: &str) {
    let acks = fs::read_to_string(outside.join(name)).unwrap_or_default();
    let present = vault.snapshots().await.unwrap();
    for ack in acks.lines() {
        let (id, step) = ack.split_once(' ').unwrap();
        // What was pruned had so many after it.
        let later = present.iter().filter(|snapshot| snapshot.id.as_str() > id).count();
        if later >= KEPT && !present.iter().any(|snapshot| snapshot.id.as_str() == id) {
            continue;
        }
        let (target, wanted) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let restored = vault.restore(&id.parse().unwrap(), target.path(), RestoreOptions::new()).await;
        restored.unwrap_or_else(|failure| panic!("{when}: {id} of {name} is lost: {failure}"));
        make(wanted.path(), step.parse().unwrap());
        assert!(tree(target.path()) == tree(wanted.path()), "{when}: {id} has other bytes");
    }
    fsck(&vault.git_dir());
}

#[tokio::test]
async fn a_power_cut_at_any_failpoint_loses_nothing_that_was_acknowledged() {
    let Some(mut disk) = Disk::new() else {
        println!("{NEEDS}");
        return;
    };
    // Mirrors are killed elsewhere: what they have is not on this disk.
    for failpoint in FAILPOINTS.iter().filter(|point| !point.starts_with("mirror.")) {
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(outside.path().join("work")).unwrap();
        let _ = fs::remove_dir_all(disk.root().join("vaults"));
        let _ = fs::remove_dir_all(disk.root().join("out"));
        for nth in [1, 3] {
            let when = format!("{failpoint}:{nth}");
            let died = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "victim", "--ignored", "--nocapture"])
                .env("SANDHOLD_TEST_DISK", disk.root())
                .env("SANDHOLD_TEST_DIR", outside.path())
                .env("SANDHOLD_FAILPOINT", &when)
                .stdout(Stdio::null())
                .status()
                .unwrap();
            assert!(died.signal() == Some(9) || (nth > 1 && died.success()), "{when}: {died:?}");
            disk.cut();
            let vault = open(&disk.root()).await;
            for begun in vault.unfinished_restores().await.unwrap() {
                let again = vault.restore(&begun.id, &begun.target, RestoreOptions::new().with_sync()).await;
                again.unwrap_or_else(|failure| panic!("{when}: a restore cannot be run again: {failure:?}"));
                let whole = tempfile::tempdir().unwrap();
                vault.restore(&begun.id, whole.path(), RestoreOptions::new()).await.unwrap();
                assert!(tree(&begun.target) == tree(whole.path()), "{when}: a restore was not completed");
            }
            check(outside.path(), "acks", &vault, &when).await;
            check(outside.path(), "copied", &copies(&disk.root()).await, &when).await;
        }
    }
}
