//! What is deleted and when, what is found damaged, and what is made whole again.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandhold_persist::{
    BundleOptions, CaptureOptions, Examined, GcOptions, ImportOptions, KeptBecause, Mirror, MirrorConfig,
    MirrorTarget, RestoreOptions, Retention, RunOutcome, Snapshot, Vault, VerifyDepth, VerifyOptions,
};
use support::{Place, git, open, tree};

async fn capture(place: &Place, content: &str) -> Snapshot {
    place.write("file", content);
    place.write(format!("dir/{content}"), content.repeat(100));
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap()
}

async fn captures(place: &Place, count: usize) -> Vec<Snapshot> {
    let mut made = Vec::new();
    for index in 0..count {
        made.push(capture(place, &format!("content {index}")).await);
    }
    made
}

fn at_once() -> GcOptions {
    GcOptions::new().with_min_age(Duration::ZERO)
}

fn files(vault: &Vault, ending: &str) -> Vec<PathBuf> {
    let packs = fs::read_dir(vault.git_dir().join("objects/pack")).unwrap();
    let mut found: Vec<_> = packs.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == ending));
    found.sort();
    found
}

async fn restores(place: &Place, vault: &Vault, snapshot: &Snapshot, content: &str) {
    let target = tempfile::tempdir_in(place.dir.path()).unwrap();
    vault.restore(&snapshot.id, target.path(), RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read_to_string(target.path().join("file")).unwrap(), content);
}

async fn flaws(vault: &Vault, depth: VerifyDepth) -> Vec<Examined> {
    let mut found = vault.verify_all(VerifyOptions::new().with_depth(depth)).await.unwrap();
    found.retain(|examined| !examined.is_good());
    found
}

#[tokio::test]
async fn snapshots_go_by_age_and_the_last_good_one_stays() {
    let place = Place::new().await;
    let made = captures(&place, 3).await;
    let soon = Retention::new().with_manual(Some(Duration::from_nanos(1)));
    let plan = place.vault.prune(soon.clone().with_dry(true)).await.unwrap();
    assert_eq!(place.vault.snapshots().await.unwrap().len(), 3);
    let pruned = place.vault.prune(soon.clone()).await.unwrap();
    assert_eq!(plan, pruned);
    assert_eq!(pruned.removed, [made[0].id.clone(), made[1].id.clone()]);
    assert_eq!(pruned.kept, [(made[2].id.clone(), KeptBecause::LastGood)]);
    assert_eq!(place.vault.snapshots().await.unwrap(), [made[2].clone()]);
    restores(&place, &place.vault, &made[2], "content 2").await;
    // By default nothing of today goes.
    let more = capture(&place, "more").await;
    assert_eq!(place.vault.prune(Retention::new()).await.unwrap().removed, []);
    // Nor what has no copy elsewhere, where that is asked for.
    let pruned = place.vault.prune(soon.with_require_mirror(true)).await.unwrap();
    assert_eq!(
        pruned.kept,
        [(made[2].id.clone(), KeptBecause::NotMirrored), (more.id.clone(), KeptBecause::LastGood)]
    );
    place.fsck();
}

#[tokio::test]
async fn a_rule_of_its_own_wins_over_the_rule_for_all() {
    let place = Place::new().await;
    let made = captures(&place, 4).await;
    place.vault.set_retention(&made[0].id, Some("168h")).await.unwrap();
    place.vault.set_retention(&made[1].id, Some("0s")).await.unwrap();
    let refused = place.vault.set_retention(&made[2].id, Some("a while")).await.unwrap_err();
    assert!(refused.message().contains("a while"));
    // Nor is one taken with the snapshot itself, where it would be kept for ever by mistake.
    place.write("file", "with a rule");
    let options = CaptureOptions::new().with_retention("a week");
    let refused = place.vault.capture(&place.work, options).await.unwrap_err();
    assert!(refused.message().contains("a week"), "{refused}");
    let soon = Retention::new().with_manual(Some(Duration::from_nanos(1))).with_max_count(1);
    let pruned = place.vault.prune(soon.clone()).await.unwrap();
    assert_eq!(pruned.removed, [made[2].id.clone()]);
    place.vault.set_retention(&made[0].id, None).await.unwrap();
    assert_eq!(place.vault.prune(soon).await.unwrap().removed, [made[0].id.clone()]);
}

#[tokio::test]
async fn a_session_that_goes_on_stays_and_a_baseline_is_no_last_good_one() {
    let place = Place::new().await;
    place.write("file", "before");
    let baseline = place.vault.capture_baseline(&place.work, CaptureOptions::new()).await.unwrap().unwrap();
    let session = place.vault.begin(&place.work, CaptureOptions::new());
    place.write("file", "during");
    let live = session.capture().await.unwrap().unwrap();
    let soon = Retention::new().with_runs(Some(Duration::from_nanos(1)));
    let pruned = place.vault.prune(soon.clone()).await.unwrap();
    assert_eq!(pruned.removed, [baseline.id]);
    assert_eq!(pruned.kept, [(live.id.clone(), KeptBecause::Live)]);
    session.end(RunOutcome::Clean, Some(0)).await.unwrap();
    let pruned = place.vault.prune(soon).await.unwrap();
    assert_eq!(pruned.kept, [(live.id, KeptBecause::LastGood)]);
}

#[tokio::test]
async fn the_oldest_go_where_there_are_too_many_or_they_take_too_much() {
    let place = Place::new().await;
    let made = captures(&place, 5).await;
    let keep = Retention::new().with_manual(None);
    let pruned = place.vault.prune(keep.clone().with_max_count(3)).await.unwrap();
    assert_eq!(pruned.removed, [made[0].id.clone(), made[1].id.clone()]);
    let all = place.vault.prune(keep.clone().with_max_bytes(u64::MAX).with_dry(true)).await.unwrap();
    assert_eq!(all.removed, []);
    let none = place.vault.prune(keep.clone().with_max_bytes(0).with_dry(true)).await.unwrap();
    assert_eq!((none.removed.len(), none.kept[0].1), (2, KeptBecause::LastGood));
    // With room for the newest alone.
    place.vault.gc(at_once().with_max_packs(0)).await.unwrap();
    let bytes: u64 = files(&place.vault, "pack").iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let some = place.vault.prune(keep.with_max_bytes(bytes - 40)).await.unwrap();
    assert_eq!(some.removed, [made[2].id.clone()]);
}

#[tokio::test]
async fn a_collection_deletes_what_no_snapshot_needs_and_nothing_else() {
    let place = Place::new().await;
    let made = captures(&place, 6).await;
    place.vault.prune(Retention::new().with_max_count(2)).await.unwrap();
    // What is not a day old is left as it is.
    let collected = place.vault.gc(GcOptions::new()).await.unwrap();
    assert_eq!((collected.deleted, collected.packs), (0, 6));
    let collected = place.vault.gc(at_once()).await.unwrap();
    assert!(collected.deleted >= 3 && collected.freed > 0, "{collected:?}");
    place.fsck();
    for (index, snapshot) in made.iter().enumerate().skip(4) {
        restores(&place, &place.vault, snapshot, &format!("content {index}")).await;
    }
    let gone = git(&place.vault.git_dir(), &["count-objects", "-v"]);
    assert!(gone.contains("garbage: 0"), "{gone}");
    let reachable = git(&place.vault.git_dir(), &["rev-list", "--objects", "--all", "--count"]);
    // What is needed of a pack that is needed for the most part stays with the rest of it.
    let again = place.vault.gc(at_once().with_max_packs(0)).await.unwrap();
    assert_eq!(again.packs, 1);
    let stored = git(&place.vault.git_dir(), &["cat-file", "--batch-all-objects", "--batch-check"]);
    assert_eq!(stored.lines().count().to_string(), reachable);
    assert_eq!(place.vault.gc(at_once()).await.unwrap().deleted, 0);
    place.fsck();
}

#[tokio::test]
async fn what_was_collected_is_stored_again_when_it_comes_back() {
    let place = Place::new().await;
    let first = capture(&place, "one").await;
    fs::remove_dir_all(place.work.join("dir")).unwrap();
    capture(&place, "two").await;
    place.vault.prune(Retention::new().with_max_count(1)).await.unwrap();
    place.vault.gc(at_once()).await.unwrap();
    assert!(place.vault.snapshot(first.id.as_str()).await.is_err());
    fs::remove_dir_all(place.work.join("dir")).unwrap();
    // The same files as at first, by the vault that remembers them and by one that was opened anew.
    let third = capture(&place, "one").await;
    assert_eq!(third.tree, first.tree);
    restores(&place, &place.vault, &third, "one").await;
    assert!(flaws(&place.vault, VerifyDepth::Content).await.is_empty());
    place.fsck();
}

#[tokio::test]
async fn many_packs_become_one() {
    let place = Place::new().await;
    let made = captures(&place, 8).await;
    assert_eq!(files(&place.vault, "pack").len(), 8);
    let collected = place.vault.gc(GcOptions::new().with_max_packs(7)).await.unwrap();
    assert_eq!((collected.packs, collected.deleted), (1, 8));
    for (index, snapshot) in made.iter().enumerate() {
        restores(&place, &place.vault, snapshot, &format!("content {index}")).await;
    }
    place.fsck();
    let last = capture(&place, "after").await;
    restores(&place, &place.vault, &last, "after").await;
}

#[tokio::test]
async fn objects_that_git_made_deltas_of_are_read_and_copied_too() {
    let place = Place::new().await;
    let mut made = Vec::new();
    for index in 0..5 {
        place.write("file", "a line that stays\n".repeat(2000) + &index.to_string());
        made.push(place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap());
    }
    git(&place.vault.git_dir(), &["repack", "-adfq"]);
    git(&place.vault.git_dir(), &["pack-refs", "--all"]);
    assert!(flaws(&place.vault, VerifyDepth::Content).await.is_empty());
    let repaired = place.vault.repair(None).await.unwrap();
    assert_eq!((repaired.packs, repaired.lost.len(), repaired.incomplete.len()), (0, 0, 0));
    let path = place.path("x.bundle");
    place.vault.write_bundle(&made[4].id, &path, BundleOptions::new()).await.unwrap();
    git(&place.vault.git_dir(), &["bundle", "verify", "-q", path.to_str().unwrap()]);
    capture(&place, "more").await;
    place.vault.gc(at_once().with_max_packs(1)).await.unwrap();
    place.fsck();
    for snapshot in made {
        let target = tempfile::tempdir_in(place.dir.path()).unwrap();
        place.vault.restore(&snapshot.id, target.path(), RestoreOptions::new()).await.unwrap();
    }
}

#[tokio::test]
async fn a_snapshot_whose_objects_are_gone_is_no_reason_to_skip_or_to_overwrite() {
    let place = Place::new().await;
    let other = capture(&place, "other").await;
    let lost = capture(&place, "kept nowhere else").await;
    // As after a prune of what has a copy elsewhere: the manifest stays.
    fs::remove_file(place.vault.git_dir().join(lost.id.ref_name())).unwrap();
    let refused = place.vault.restore(&other.id, &place.work, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("dirty"));
    let again = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    assert_eq!(again.tree, lost.tree);
    let gone = place.vault.verify(&lost.id, VerifyOptions::new()).await.unwrap_err();
    assert_eq!(gone.reason(), Some("snapshot_gone"));
}

#[tokio::test]
async fn a_manifest_that_a_killed_prune_left_goes_with_the_next_one() {
    let place = Place::new().await;
    let made = captures(&place, 3).await;
    fs::remove_file(place.vault.git_dir().join(made[0].id.ref_name())).unwrap();
    assert_eq!(place.vault.prune(Retention::new()).await.unwrap().removed, []);
    let pruned = place.vault.prune(Retention::new().with_max_count(2)).await.unwrap();
    assert_eq!(pruned.removed, std::slice::from_ref(&made[0].id));
    assert_eq!(place.vault.snapshots().await.unwrap(), made[1..]);
}

fn flip(path: &Path, at: usize) {
    let mut content = fs::read(path).unwrap();
    content[at] ^= 0x10;
    fs::write(path, content).unwrap();
}

fn pack_with(place: &Place, object: &str) -> PathBuf {
    let has = |index: &PathBuf| {
        git(&place.vault.git_dir(), &["verify-pack", "-v", index.to_str().unwrap()]).contains(object)
    };
    files(&place.vault, "idx").into_iter().find(has).unwrap().with_extension("pack")
}

#[tokio::test]
async fn each_depth_finds_what_the_one_before_does_not() {
    let place = Place::new().await;
    let mut noise = vec![0; 50_000];
    fastrand::Rng::with_seed(3).fill(&mut noise);
    place.write("noise", noise);
    let snapshot = capture(&place, "x").await;
    let depths = [VerifyDepth::Reachable, VerifyDepth::Sums, VerifyDepth::Content];
    for depth in depths {
        let verified =
            place.vault.verify(&snapshot.id, VerifyOptions::new().with_depth(depth)).await.unwrap();
        assert!(verified.is_good() && verified.objects > 4);
    }
    let noise = git(&place.vault.git_dir(), &["rev-parse", &format!("{}:noise", snapshot.commit)]);
    let pack = pack_with(&place, &noise);
    flip(&pack, 25_000);
    assert!(flaws(&place.vault, VerifyDepth::Reachable).await.is_empty());
    for depth in &depths[1..] {
        let found = flaws(&place.vault, *depth).await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].flaws.len(), 1);
        assert_eq!(found[0].flaws[0].object.unwrap().to_string(), noise);
    }
    // Nothing is deleted as long as something is missing.
    fs::remove_file(pack.with_extension("idx")).unwrap();
    assert!(!flaws(&place.vault, VerifyDepth::Reachable).await.is_empty());
    let refused = place.vault.gc(at_once()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("damaged"));
    assert!(pack.exists());
}

#[tokio::test]
async fn a_repair_makes_indexes_refs_and_manifests_again() {
    let place = Place::new().await;
    let made = captures(&place, 4).await;
    let root = place.path("vaults/test");
    let indexes = files(&place.vault, "idx");
    fs::remove_file(&indexes[0]).unwrap();
    fs::write(&indexes[1], "torn").unwrap();
    fs::write(place.vault.git_dir().join(made[2].id.ref_name()), "").unwrap();
    fs::remove_file(root.join(format!("records/{}.json", made[3].id))).unwrap();
    fs::write(root.join(format!("records/{}.json", made[0].id)), "{").unwrap();

    let vault = open(place.dir.path()).await;
    assert!(!flaws(&vault, VerifyDepth::Reachable).await.is_empty());
    let repaired = vault.repair(None).await.unwrap();
    assert_eq!((repaired.indexes, repaired.packs), (2, 0));
    assert_eq!(repaired.refs, [made[2].id.clone()]);
    assert_eq!(repaired.records, [made[0].id.clone(), made[3].id.clone()]);
    assert!(repaired.lost.is_empty() && repaired.incomplete.is_empty());
    assert!(flaws(&vault, VerifyDepth::Content).await.is_empty());
    assert_eq!(vault.snapshots().await.unwrap(), made);
    for (index, snapshot) in made.iter().enumerate() {
        restores(&place, &vault, snapshot, &format!("content {index}")).await;
    }
    place.fsck();
    let again = vault.repair(None).await.unwrap();
    assert_eq!((again.indexes, again.refs.len(), again.records.len()), (0, 0, 0));
}

#[tokio::test]
async fn a_bundle_makes_whole_what_a_repair_cannot() {
    let place = Place::new().await;
    let mut noise = vec![0; 50_000];
    fastrand::Rng::with_seed(3).fill(&mut noise);
    place.write("noise", noise);
    let made = captures(&place, 2).await;
    let path = place.path("x.bundle");
    place.vault.write_bundle(&made[0].id, &path, BundleOptions::new()).await.unwrap();
    let before = tree(&place.work);
    let noise = git(&place.vault.git_dir(), &["rev-parse", &format!("{}:noise", made[0].commit)]);
    let pack = pack_with(&place, &noise);
    flip(&pack, 25_000);

    let repaired = place.vault.repair(None).await.unwrap();
    assert_eq!(repaired.lost.iter().map(ToString::to_string).collect::<Vec<_>>(), [noise]);
    assert_eq!(repaired.packs, 1);
    assert_eq!(repaired.incomplete, [made[0].id.clone(), made[1].id.clone()]);
    // The damaged pack is kept for whoever can read more of it.
    assert!(place.path("vaults/test/damaged").join(pack.file_name().unwrap()).exists());
    assert!(place.vault.restore(&made[1].id, place.path("out"), RestoreOptions::new()).await.is_err());

    let imported = place.vault.import_bundle(&path, ImportOptions::new()).await.unwrap();
    assert_eq!((imported.was_here, imported.objects), (true, 1));
    assert!(flaws(&place.vault, VerifyDepth::Content).await.is_empty());
    place.fsck();
    let target = place.path("out again");
    place.vault.restore(&made[1].id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(tree(&target), before);
}

#[tokio::test]
async fn what_is_left_of_a_pack_that_was_cut_is_saved() {
    let place = Place::new().await;
    captures(&place, 2).await;
    place.vault.gc(GcOptions::new().with_max_packs(0)).await.unwrap();
    let pack = files(&place.vault, "pack").remove(0);
    let content = fs::read(&pack).unwrap();
    fs::write(&pack, &content[..content.len() - 30]).unwrap();
    let repaired = place.vault.repair(None).await.unwrap();
    assert_eq!(repaired.packs, 1);
    // The last object of the pack is cut, and whoever needs it is named.
    assert!(!repaired.incomplete.is_empty());
}

#[tokio::test]
async fn a_snapshot_whose_files_were_committed_since_goes_where_that_is_asked_for() {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "main"]);
    let commit = |message: &str| {
        place.git(&["add", "-A"]);
        place.git(&["commit", "-q", "-m", message]);
    };
    let made = captures(&place, 2).await;
    commit("both");
    let third = capture(&place, "committed").await;
    place.write("file", "never committed");
    let untracked = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    place.write("file", "committed");
    place.vault.set_retention(&made[1].id, Some("9d")).await.unwrap();
    commit("third");
    let last = capture(&place, "last").await;
    let rule = || Retention::new().with_manual(None).with_superseded(true);
    // Its own rule wins; the first one was never committed as it was, nor was the fourth.
    assert_eq!(place.vault.prune(rule()).await.unwrap().removed, std::slice::from_ref(&third.id));
    place.vault.set_retention(&made[1].id, None).await.unwrap();
    let pruned = place.vault.prune(rule()).await.unwrap();
    assert_eq!((pruned.removed, pruned.kept), (vec![made[1].id.clone()], Vec::new()));
    place.vault.gc(at_once()).await.unwrap();
    restores(&place, &place.vault, &made[0], "content 0").await;
    restores(&place, &place.vault, &untracked, "never committed").await;
    restores(&place, &place.vault, &last, "last").await;
    // What has gone is in the history of what stays.
    let tree = third.tree.to_string();
    git(&place.vault.git_dir(), &["cat-file", "-e", &tree]);
    place.fsck();
}

#[tokio::test]
async fn a_newer_state_than_the_one_that_was_mirrored_counts_as_not_mirrored() {
    let place = Place::new().await;
    let session = place.vault.begin(&place.work, CaptureOptions::new());
    place.write("file", "one");
    let first = session.capture().await.unwrap().unwrap();
    let target = MirrorTarget::File(place.path("mirror"));
    let mirror = Mirror::open(MirrorConfig::new(target)).unwrap();
    assert!(mirror.upload(&place.vault, &first.id).await.unwrap().is_mirrored());
    place.write("file", "two");
    session.capture().await.unwrap();
    let ended = session.end(RunOutcome::Clean, None).await.unwrap();
    let id = ended.map_or(first.id, |ended| ended.id);
    // A newer one, so that this is not the last good one.
    capture(&place, "after").await;
    let soon = Retention::new().with_runs(Some(Duration::from_nanos(1))).with_require_mirror(true);
    let pruned = place.vault.prune(soon.clone()).await.unwrap();
    assert_eq!(pruned.kept, [(id.clone(), KeptBecause::NotMirrored)]);
    mirror.upload(&place.vault, &id).await.unwrap();
    assert_eq!(place.vault.prune(soon).await.unwrap().removed, std::slice::from_ref(&id));
    // The manifest stays, and says where the copy is.
    assert!(place.vault.snapshots().await.unwrap().iter().any(|found| found.id == id && found.is_mirrored()));
}
