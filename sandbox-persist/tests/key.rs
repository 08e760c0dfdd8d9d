//! The key of a repository: the commit that it began with, which every clone has, and the path where there is none.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::fs;
use std::path::Path;

use sandhold_core::ErrorKind;
use sandhold_persist::{CaptureOptions, RepoKey};
use support::{Place, git, write};

/// Two histories that were merged, with more commits on one side, and messages that git keeps as deltas.
fn repository(work: &Path) {
    git(work, &["init", "-q", "-b", "main"]);
    let long: String = (0..200).map(|line| format!("line {line} of what every message says\n")).collect();
    for index in 0..20 {
        write(work, "a", format!("{index}"));
        git(work, &["add", "-A"]);
        git(work, &["commit", "-q", "-m", &format!("commit {index}\n\n{long}{index}")]);
    }
    git(work, &["checkout", "-q", "--orphan", "other"]);
    write(work, "b", "other");
    git(work, &["add", "-A"]);
    git(work, &["commit", "-q", "-m", "another beginning"]);
    git(work, &["checkout", "-q", "main"]);
    git(work, &["merge", "-q", "--allow-unrelated-histories", "-X", "ours", "-m", "both", "other"]);
}

/// What git says is the smallest root.
fn smallest(work: &Path) -> String {
    let roots = git(work, &["rev-list", "--max-parents=0", "HEAD"]);
    assert_eq!(roots.lines().count(), 2, "{roots}");
    roots.lines().min().unwrap().to_owned()
}

async fn key(work: &Path) -> String {
    RepoKey::of_workspace(work).await.unwrap().to_string()
}

#[tokio::test]
async fn every_clone_has_the_key_of_the_smallest_root_commit() {
    let place = Place::new().await;
    repository(&place.work);
    let root = smallest(&place.work);
    assert_eq!(key(&place.work).await, root[..16]);

    let (packed, partial) = (place.path("packed"), place.path("partial"));
    git(place.dir.path(), &["clone", "-q", "--no-local", "work", "packed"]);
    git(&packed, &["repack", "-q", "-adf", "--depth=50", "--window=50"]);
    let packs = fs::read_dir(packed.join(".git/objects/pack")).unwrap().map(|entry| entry.unwrap().path());
    let index = packs.into_iter().find(|path| path.extension().is_some_and(|end| end == "idx")).unwrap();
    let listed = git(&packed, &["verify-pack", "-v", index.to_str().unwrap()]);
    let deltas = listed.lines().filter(|line| line.contains(" commit ") && line.split(' ').count() == 7);
    assert!(deltas.count() > 5, "git keeps no commit as a delta: {listed}");
    assert_eq!(key(&packed).await, root[..16]);

    git(&place.work, &["config", "uploadpack.allowFilter", "true"]);
    let from = format!("file://{}", place.work.display());
    git(place.dir.path(), &["clone", "-q", "--filter=blob:none", "--no-checkout", &from, "partial"]);
    assert_eq!(key(&partial).await, root[..16]);
    let linked = place.path("linked");
    git(&place.work, &["worktree", "add", "-q", linked.to_str().unwrap(), "other"]);
    assert_eq!(key(&linked).await, git(&linked, &["rev-parse", "HEAD"])[..16]);
}

#[tokio::test]
async fn what_has_no_commit_has_the_key_of_its_path_and_what_was_cut_off_has_none() {
    let place = Place::new().await;
    let by_path = RepoKey::of_path(&place.work).unwrap().to_string();
    assert_eq!(key(&place.work).await, by_path);
    git(&place.work, &["init", "-q", "-b", "main"]);
    assert_eq!(key(&place.work).await, by_path);

    repository(&place.work);
    let shallow = place.path("shallow");
    let from = format!("file://{}", place.work.display());
    git(place.dir.path(), &["clone", "-q", "--depth=3", &from, "shallow"]);
    let refused = RepoKey::of_workspace(&shallow).await.unwrap_err();
    assert_eq!((refused.kind(), refused.reason()), (ErrorKind::Unsupported, Some("no_root")), "{refused}");

    // Damage anywhere on the way is told, and changes no key.
    let parent = git(&place.work, &["rev-parse", "main~5"]);
    let object = place.work.join(format!(".git/objects/{}/{}", &parent[..2], &parent[2..]));
    let content = fs::read(&object).unwrap();
    fs::remove_file(&object).unwrap();
    for damage in [None, Some(Vec::new()), Some(content[..content.len() / 2].to_vec())] {
        if let Some(bytes) = damage {
            fs::write(&object, bytes).unwrap();
        }
        assert_eq!(RepoKey::of_workspace(&place.work).await.unwrap_err().reason(), Some("no_root"));
    }
    fs::write(&object, content).unwrap();
    assert_eq!(key(&place.work).await, smallest(&place.work)[..16]);
    assert_eq!(RepoKey::of_workspace(place.path("nowhere")).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_manifest_tells_the_key_the_root_commit_and_the_path() {
    let place = Place::new().await;
    place.write("a", "1");
    let plain = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let by_path = RepoKey::of_path(&place.work).unwrap().to_string();
    assert_eq!((plain.repo.as_str(), plain.root, plain.path_key.as_str()), ("test", None, by_path.as_str()));

    repository(&place.work);
    let root = Some(smallest(&place.work).parse().unwrap());
    for step in 0..3 {
        place.write("a", format!("step {step}"));
        place.git(&["commit", "-qam", "more"]);
        let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
        assert_eq!(snapshot.root, root);
        // Its commit says so too, for whom the manifest is lost.
        fs::remove_file(place.path(&format!("vaults/test/records/{}.json", snapshot.id))).unwrap();
        assert_eq!(place.vault.snapshot(snapshot.id.as_str()).await.unwrap(), snapshot);
    }
    // Another beginning is another root, without the copy of the history too.
    place.git(&["checkout", "-qf", "other"]);
    let other = place.vault.capture(&place.work, CaptureOptions::new().with_history(false)).await.unwrap();
    assert_eq!(other.root.unwrap().to_string(), place.git(&["rev-parse", "HEAD"]));
}

#[tokio::test]
async fn a_damaged_pack_gives_the_right_key_or_none() {
    let place = Place::new().await;
    repository(&place.work);
    let root = smallest(&place.work);
    place.git(&["repack", "-q", "-adf", "--depth=50"]);
    let packs =
        fs::read_dir(place.work.join(".git/objects/pack")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> =
        packs.filter(|path| path.extension().is_some_and(|end| end == "pack" || end == "idx")).collect();
    assert_eq!(files.len(), 2);
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let mut told = 0;
    for _ in 0..200 {
        let file = &files[random.usize(0..2)];
        let whole = fs::read(file).unwrap();
        let mut bytes = whole.clone();
        match random.bool() {
            true => bytes[random.usize(0..whole.len())] ^= 1 << random.u8(0..8),
            false => bytes.truncate(random.usize(0..whole.len())),
        }
        fs::remove_file(file).unwrap();
        fs::write(file, bytes).unwrap();
        match RepoKey::of_workspace(&place.work).await {
            Ok(key) => assert_eq!(key.as_str(), &root[..16]),
            Err(refused) => {
                assert_eq!(refused.reason(), Some("no_root"), "{refused}");
                told += 1;
            }
        }
        fs::write(file, whole).unwrap();
    }
    assert!(told > 20, "{told}");
}
