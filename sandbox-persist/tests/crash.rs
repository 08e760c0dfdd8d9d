//! Whatever was acknowledged restores byte for byte, wherever the process was killed.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sandhold_persist::{
    BundleOptions, CaptureOptions, FAILPOINTS, GcOptions, ImportOptions, KeptBecause, Mirror, MirrorConfig,
    MirrorTarget, OnDirty, RepoKey, RestoreOptions, Retention, Vault, VaultConfig, VerifyOptions,
};
use support::{fsck, git, tree, write};

/// How many snapshots are kept.
const KEPT: usize = 4;

/// The workspace after so many steps, as a pure function.
fn files(step: u32) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for index in 0..12 {
        // Some change at every step, some come and go, and one stays.
        let version = step - step % (index % 4 + 1);
        if !(version + index).is_multiple_of(5) {
            files.insert(
                format!("dir{}/file{index}", index % 3),
                format!("{index} of {version}\n").repeat(50),
            );
        }
    }
    files.insert("constant".to_owned(), "the same\n".to_owned());
    files
}

fn make(work: &Path, step: u32) {
    let wanted = files(step);
    for path in tree(work).keys() {
        let path = String::from_utf8(path.clone()).unwrap();
        if work.join(&path).is_file() && !wanted.contains_key(&path) {
            fs::remove_file(work.join(path)).unwrap();
        }
    }
    for (path, content) in wanted {
        if fs::read_to_string(work.join(&path)).ok().as_ref() != Some(&content) {
            write(work, path, content);
        }
    }
}

fn only_files(dir: &Path) -> BTreeMap<String, String> {
    let found = tree(dir).into_iter().filter(|(_, (mode, _))| *mode != 0o40000);
    found
        .map(|(path, (_, text))| (String::from_utf8(path).unwrap(), String::from_utf8(text).unwrap()))
        .collect()
}

/// The vault of a place, which is in the repository of its workspace where there is one.
async fn open(dir: &Path) -> Vault {
    match is_in_repo(dir) {
        true => {
            let key = RepoKey::new("test").unwrap();
            Vault::open(VaultConfig::in_repo(dir.join("work"), key)).await.unwrap()
        }
        false => support::open(dir).await,
    }
}

fn is_in_repo(dir: &Path) -> bool {
    dir.join("work/.git").exists()
}

/// A place for a victim, with a repository for its snapshots where they are to be in one.
fn place(in_repo: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    if in_repo {
        git(&work, &["init", "-q", "-b", "main"]);
        make(&work, 0);
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-q", "-m", "one"]);
        write(&work, "constant", "staged\n");
        git(&work, &["add", "-A"]);
    }
    dir
}

/// What of a repository is its user's: where it is, and what is staged.
fn theirs(work: &Path) -> [String; 3] {
    [
        git(work, &["for-each-ref", "refs/heads", "refs/tags"]),
        git(work, &["symbolic-ref", "HEAD"]),
        git(work, &["ls-files", "--stage"]),
    ]
}

/// The vault that bundles go to.
async fn open_copy(dir: &Path) -> Vault {
    let key = RepoKey::new("copy").unwrap();
    Vault::open(VaultConfig::new(dir.join("vaults"), key)).await.unwrap()
}

/// The vault of another machine, which fetches from the mirror.
async fn open_fetched(dir: &Path) -> Vault {
    open(&dir.join("elsewhere")).await
}

fn mirror(dir: &Path) -> Mirror {
    Mirror::open(MirrorConfig::new(MirrorTarget::File(dir.join("mirror")))).unwrap()
}

/// Captures, restores, copies, mirrors, prunes and collects until it is killed; each line of `acks` is a snapshot that it
/// was told is safe, of `mirrored` one that is in the mirror, of `fetched` one that came back from there, and of `copied`
/// one that is in the other vault.
#[tokio::test]
#[ignore = "is what the other tests kill, in a process of its own"]
async fn victim() {
    let Some(dir) = std::env::var_os("SANDHOLD_TEST_DIR") else { return };
    let dir = Path::new(&dir);
    let vault = open(dir).await;
    let (work, out) = (dir.join("work"), dir.join("out"));
    let mut acks = OpenOptions::new().append(true).create(true).open(dir.join("acks")).unwrap();
    let mut copied = OpenOptions::new().append(true).create(true).open(dir.join("copied")).unwrap();
    let mut mirrored = OpenOptions::new().append(true).create(true).open(dir.join("mirrored")).unwrap();
    let mut fetched = OpenOptions::new().append(true).create(true).open(dir.join("fetched")).unwrap();
    let mirror = mirror(dir);
    for (id, answer) in mirror.resume(&vault).await.unwrap() {
        // It may have been pruned meanwhile.
        let failure = answer.err().filter(|failure| failure.reason() != Some("snapshot_gone"));
        assert!(failure.is_none(), "{id} stays in the queue: {failure:?}");
    }
    let first = fs::read_to_string(dir.join("acks")).unwrap().lines().count() as u32;
    let mut ids = Vec::new();
    for step in first..first + 6 {
        make(&work, step);
        match vault.capture(&work, CaptureOptions::new()).await {
            Ok(snapshot) => {
                writeln!(acks, "{} {step}", snapshot.id).unwrap();
                acks.sync_all().unwrap();
                ids.push(snapshot.id);
            }
            // The one before was killed after the snapshot was there and before it was told.
            Err(failure) => assert_eq!(failure.reason(), Some("nothing_to_snapshot"), "{failure}"),
        }
        if step % 2 == 0
            && let Some(id) = ids.last()
        {
            let (bundle, copy) = (dir.join(format!("{id}.bundle")), open_copy(dir).await);
            let written = vault.write_bundle(id, &bundle, BundleOptions::new()).await.unwrap();
            let options = ImportOptions::new().with_any_repository(true).with_expected(written.commit);
            copy.import_bundle(&bundle, options).await.unwrap();
            writeln!(copied, "{id} {step}").unwrap();
            copied.sync_all().unwrap();
            fs::remove_file(bundle).unwrap();
        }
        if step % 3 == 1 {
            vault.prune(Retention::new().with_max_count(KEPT)).await.unwrap();
            // In a repository git does that.
            if !is_in_repo(dir) {
                let all = GcOptions::new().with_min_age(Duration::ZERO).with_max_packs(4);
                vault.gc(all).await.unwrap();
            }
        }
        if step % 3 == 2
            && let Some(id) = ids.last()
        {
            mirror.upload(&vault, id).await.unwrap();
            writeln!(mirrored, "{id} {step}").unwrap();
            mirrored.sync_all().unwrap();
            mirror.fetch(&open_fetched(dir).await, id.as_str()).await.unwrap();
            writeln!(fetched, "{id} {step}").unwrap();
            fetched.sync_all().unwrap();
        }
        if step % 2 == 1
            && let Some(id) = ids.last()
        {
            let options = RestoreOptions::new().with_on_dirty(OnDirty::Capture);
            vault.restore(id, &out, options).await.unwrap();
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().split(' ').next()).unwrap();
    assert!(peak.parse::<u64>().unwrap() < 300 << 10, "a peak of {peak} KiB of memory");
}

/// Prunes, collects and looks at everything, at the same time as the victim works.
#[tokio::test]
#[ignore = "is what another test kills, in a process of its own"]
async fn janitor() {
    let Some(dir) = std::env::var_os("SANDHOLD_TEST_DIR") else { return };
    let vault = open(Path::new(&dir)).await;
    for packs in 0..20 {
        vault.prune(Retention::new().with_max_count(KEPT)).await.unwrap();
        let all = GcOptions::new().with_min_age(Duration::ZERO).with_max_packs(packs % 5);
        vault.gc(all).await.unwrap();
        for verified in vault.verify_all(VerifyOptions::new()).await.unwrap() {
            assert!(verified.is_good(), "{verified:?}");
        }
    }
}

/// Restores the second snapshot over the first, until it is killed.
#[tokio::test]
#[ignore = "is what another test kills, in a process of its own"]
async fn restorer() {
    let Some(dir) = std::env::var_os("SANDHOLD_TEST_DIR") else { return };
    let dir = Path::new(&dir);
    let vault = open(dir).await;
    let (work, out) = (dir.join("work"), dir.join("out"));
    let mut ids = Vec::new();
    for step in [3, 8] {
        make(&work, step);
        ids.push(vault.capture(&work, CaptureOptions::new()).await.unwrap().id);
    }
    for id in ids {
        vault.restore(&id, &out, RestoreOptions::new()).await.unwrap();
    }
}

fn spawn(dir: &Path, failpoint: &str) -> Child {
    spawn_as("victim", dir, failpoint)
}

fn spawn_as(role: &str, dir: &Path, failpoint: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", role, "--ignored", "--nocapture"])
        .env("SANDHOLD_TEST_DIR", dir)
        .env("SANDHOLD_FAILPOINT", failpoint)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// What has to hold after any death, with nothing done by hand.
async fn check(dir: &Path, when: &str) {
    let vault = open(dir).await;
    for begun in vault.unfinished_restores().await.unwrap() {
        let again = vault.restore(&begun.id, &begun.target, RestoreOptions::new()).await;
        again.unwrap_or_else(|failure| panic!("{when}: a restore cannot be run again: {failure:?}"));
        let again = tempfile::tempdir_in(dir).unwrap();
        vault.restore(&begun.id, again.path(), RestoreOptions::new()).await.unwrap();
        assert!(tree(&begun.target) == tree(again.path()), "{when}: a restore was not completed");
    }
    assert!(vault.unfinished_restores().await.unwrap().is_empty());
    check_acks(dir, "acks", &vault, when).await;
    check_acks(dir, "copied", &open_copy(dir).await, when).await;
    check_acks(dir, "fetched", &open_fetched(dir).await, when).await;
    let mirror = mirror(dir);
    let elsewhere = tempfile::tempdir_in(dir).unwrap();
    let fresh = support::open(elsewhere.path()).await;
    let mirrored = fs::read_to_string(dir.join("mirrored")).unwrap_or_default();
    for ack in mirrored.lines().rev().take(2) {
        mirror.fetch(&fresh, ack.split_once(' ').unwrap().0).await.unwrap();
        fs::write(elsewhere.path().join("ack"), ack).unwrap();
        check_acks(elsewhere.path(), "ack", &fresh, when).await;
    }
    let bundles = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    for bundle in bundles.filter(|path| path.extension().is_some_and(|end| end == "bundle")) {
        // One that has its name is whole.
        git(&vault.git_dir(), &["bundle", "verify", "-q", bundle.to_str().unwrap()]);
        fs::remove_file(bundle).unwrap();
    }
}

/// Every snapshot that was acknowledged is there, byte for byte.
async fn check_acks(dir: &Path, name: &str, vault: &Vault, when: &str) {
    let ours = match vault.git_dir().ends_with(".git") {
        true => vault.git_dir().join("sandhold"),
        false => vault.git_dir().parent().unwrap().to_owned(),
    };
    assert_eq!(fs::read_dir(ours.join("staging")).unwrap().count(), 0, "{when}");
    let acks = fs::read_to_string(dir.join(name)).unwrap_or_default();
    let mut present = vault.snapshots().await.unwrap();
    let refs = git(&vault.git_dir(), &["for-each-ref", "--format=%(refname)", "refs/sandbox/snapshots"]);
    present.retain(|snapshot| refs.lines().any(|name| name == snapshot.id.ref_name()));
    for ack in acks.lines() {
        let (id, step) = ack.split_once(' ').unwrap();
        // What was pruned had so many after it, and they stay until others take their place.
        let later = present.iter().filter(|snapshot| snapshot.id.as_str() > id).count();
        if later >= KEPT && !present.iter().any(|snapshot| snapshot.id.as_str() == id) {
            continue;
        }
        let target = tempfile::tempdir_in(dir).unwrap();
        let restored = vault.restore(&id.parse().unwrap(), target.path(), RestoreOptions::new()).await;
        restored.unwrap_or_else(|failure| panic!("{when}: {id} of {name} is lost: {failure}"));
        assert!(only_files(target.path()) == files(step.parse().unwrap()), "{when}: {id} has other bytes");
    }
    fsck(&vault.git_dir());
}

/// Kills a victim at this point, twice, and lets one go on then.
async fn kill_at(failpoint: &str, in_repo: bool) {
    let dir = place(in_repo);
    let work = dir.path().join("work");
    let before = in_repo.then(|| theirs(&work));
    for nth in [1, 4] {
        let when = format!("{failpoint}:{nth}");
        let died = spawn(dir.path(), &when).wait().unwrap();
        // All come by once at least.
        assert!(died.signal() == Some(9) || (nth > 1 && died.success()), "{when}: {died:?}");
        check(dir.path(), &when).await;
        if let Some(before) = &before {
            assert_eq!(theirs(&work), *before, "{when}");
            // What nothing refers to goes at once, and the refs are packed.
            git(&work, &["gc", "-q", "--prune=now"]);
            check(dir.path(), &format!("{when}, and git gc")).await;
        }
    }
    let unharmed = spawn(dir.path(), "").wait().unwrap();
    assert!(unharmed.success(), "{failpoint}: the next process cannot go on");
    check(dir.path(), failpoint).await;
}

#[tokio::test]
async fn a_kill_at_any_failpoint_loses_nothing_that_was_acknowledged() {
    for failpoint in FAILPOINTS {
        kill_at(failpoint, false).await;
    }
}

#[tokio::test]
async fn a_kill_at_any_failpoint_in_a_repository_loses_nothing_and_touches_nothing_of_its_user() {
    // Collecting is git's there.
    for failpoint in FAILPOINTS.iter().filter(|point| !point.starts_with("gc.")) {
        kill_at(failpoint, true).await;
    }
}

#[tokio::test]
async fn what_a_restore_is_written_over_is_kept_until_it_has_ended() {
    let dir = place(false);
    let died = spawn_as("restorer", dir.path(), "restore.replaced:3").wait().unwrap();
    assert_eq!(died.signal(), Some(9), "{died:?}");
    let vault = open(dir.path()).await;
    let begun = vault.unfinished_restores().await.unwrap();
    let over = begun[0].over.clone().unwrap();
    for step in 20..23 {
        make(&dir.path().join("work"), step);
        vault.capture(dir.path().join("work"), CaptureOptions::new()).await.unwrap();
    }
    let only_one = || Retention::new().with_max_count(1);
    let pruned = vault.prune(only_one()).await.unwrap();
    assert!(pruned.kept.contains(&(over.clone(), KeptBecause::Restoring)), "{pruned:?}");
    vault.gc(GcOptions::new().with_min_age(Duration::ZERO)).await.unwrap();
    check(dir.path(), "after a collection").await;
    assert!(vault.prune(only_one()).await.unwrap().removed.contains(&over));
}

#[tokio::test]
async fn a_kill_at_any_time_loses_nothing_that_was_acknowledged() {
    let times = if std::env::var_os("SANDHOLD_LONG_TESTS").is_some() { 200 } else { 20 };
    let dir = place(false);
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    for time in 0..times {
        let mut doomed = vec![spawn(dir.path(), "")];
        if time % 2 == 1 {
            doomed.push(spawn_as("janitor", dir.path(), ""));
        }
        // The time of death is what is drawn here, and nothing waits for anything.
        std::thread::sleep(Duration::from_micros(random.u64(1_000..250_000)));
        random.shuffle(&mut doomed);
        for mut process in doomed {
            process.kill().unwrap();
            let died = process.wait().unwrap();
            assert!(died.signal() == Some(9) || died.success(), "death {time}: {died:?}");
        }
        if time % 10 == 9 {
            check(dir.path(), &format!("death {time}")).await;
        }
    }
    check(dir.path(), "the last death").await;
}
