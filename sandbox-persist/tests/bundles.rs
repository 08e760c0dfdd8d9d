//! Snapshots as one file: git reads ours, we read git's, and what strangers send is believed last.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use sandhold_core::ErrorKind;
use sandhold_persist::{
    BundleLimits, BundleOptions, CaptureOptions, ImportOptions, Provenance, RepoKey, RestoreOptions,
    Snapshot, Vault, VaultConfig,
};
use support::{Place, fsck, git, git_output, tree};

async fn repository() -> Place {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "main"]);
    for index in 0..12 {
        place.write("grows", format!("line {index}\n").repeat(100 + index));
        place.write(format!("dir/{index}"), index.to_string());
        place.git(&["add", "-A"]);
        place.git(&["commit", "-qm", &format!("commit {index}")]);
    }
    place.write("not committed", "work");
    fs::create_dir(place.work.join("empty")).unwrap();
    place
}

async fn capture(place: &Place) -> Snapshot {
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap()
}

async fn bundle(place: &Place, snapshot: &Snapshot, name: &str) -> PathBuf {
    let path = place.path(name);
    place.vault.write_bundle(&snapshot.id, &path, BundleOptions::new()).await.unwrap();
    path
}

async fn other_vault(place: &Place, home: &str, key: &str) -> Vault {
    Vault::open(VaultConfig::new(place.path(home), RepoKey::new(key).unwrap())).await.unwrap()
}

/// All that can be seen of a vault: refs, packs, records, and what is left over.
fn state(vault: &Vault) -> Vec<String> {
    let git_dir = vault.git_dir();
    let root = git_dir.parent().unwrap();
    let mut found = Vec::new();
    for dir in ["records", "staging", "journal", "vault.git/objects/pack", "vault.git/refs/sandbox/snapshots"]
    {
        for entry in fs::read_dir(root.join(dir)).unwrap() {
            found.push(format!("{dir}/{}", entry.unwrap().file_name().display()));
        }
    }
    found.sort();
    found
}

/// A bundle by git, of version 3, of what `rev-list` makes of these arguments.
fn git_bundle(git_dir: &Path, path: &Path, args: &[&str]) {
    git(git_dir, &[&["bundle", "create", "-q", "--version=3", path.to_str().unwrap()], args].concat());
}

#[tokio::test]
async fn git_alone_reads_a_bundle_where_nobody_knows_the_repository() {
    let place = repository().await;
    let snapshot = capture(&place).await;
    let path = place.path("x.bundle");
    let written = place.vault.write_bundle(&snapshot.id, &path, BundleOptions::new()).await.unwrap();
    assert_eq!(written.bytes, fs::metadata(&path).unwrap().len());
    let sum = std::process::Command::new("sha256sum").arg(&path).output().unwrap();
    assert!(String::from_utf8_lossy(&sum.stdout).starts_with(&written.sha256));

    let fresh = place.path("fresh");
    fs::create_dir(&fresh).unwrap();
    let file = path.to_str().unwrap();
    git(&fresh, &["init", "-q"]);
    git(&fresh, &["bundle", "verify", "-q", file]);
    let heads = git(&fresh, &["bundle", "list-heads", file]);
    assert_eq!(heads, format!("{} {}", snapshot.commit, snapshot.id.ref_name()));
    git(&fresh, &["fetch", "-q", file, "refs/sandbox/*:refs/sandbox/*"]);
    fsck(&fresh.join(".git"));
    git(&fresh, &["checkout", "-q", &snapshot.commit.to_string()]);
    let mut expected = tree(&place.work);
    assert!(expected.remove(&b"empty"[..]).is_some());
    assert_eq!(tree(&fresh), expected);
    assert_eq!(git(&fresh, &["rev-list", "--count", &snapshot.head.unwrap().to_string()]), "12");
    let objects = git(&fresh, &["rev-list", "--objects", "--count", "HEAD"]);
    assert_eq!(objects, written.objects.to_string());
}

#[tokio::test]
async fn git_clones_a_bundle_that_names_a_branch() {
    let place = repository().await;
    let snapshot = capture(&place).await;
    let path = place.path("x.bundle");
    let options = BundleOptions::new().with_branch("main");
    place.vault.write_bundle(&snapshot.id, &path, options).await.unwrap();
    git(place.dir.path(), &["clone", "-q", "x.bundle", "cloned"]);
    let cloned = place.path("cloned");
    assert_eq!(git(&cloned, &["rev-parse", "--abbrev-ref", "HEAD"]), "main");
    assert_eq!(fs::read(cloned.join("not committed")).unwrap(), b"work");
    fsck(&cloned.join(".git"));
    // It is one of ours all the same.
    let other = other_vault(&place, "others", "test").await;
    other.import_bundle(&path, ImportOptions::new()).await.unwrap();

    let options = BundleOptions::new().with_branch("../main");
    let refused = place.vault.write_bundle(&snapshot.id, place.path("y"), options).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(!place.path("y").exists());
}

#[tokio::test]
async fn a_snapshot_goes_to_another_machine_with_all_that_it_has() {
    let place = repository().await;
    let session = place.vault.begin(&place.work, CaptureOptions::new());
    let first = session.capture().await.unwrap().unwrap();
    place.write("later", "more");
    let snapshot = session.capture().await.unwrap().unwrap();
    let path = bundle(&place, &snapshot, "x.bundle").await;

    let other = other_vault(&place, "others", "test").await;
    let imported = other.import_bundle(&path, ImportOptions::new()).await.unwrap();
    assert_eq!(imported.snapshot, snapshot);
    assert_eq!((imported.provenance, imported.was_here), (Provenance::BundleAlone, false));
    assert_eq!(other.snapshots().await.unwrap(), std::slice::from_ref(&snapshot));
    let target = place.path("out");
    other.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(tree(&target), tree(&place.work));
    git(&other.git_dir(), &["cat-file", "-e", &format!("{}:not committed", first.commit)]);
    fsck(&other.git_dir());
    assert!(state(&other).iter().all(|name| !name.starts_with("staging")));

    let again = other.import_bundle(&path, ImportOptions::new()).await.unwrap();
    assert_eq!((again.provenance, again.was_here, again.objects), (Provenance::Known, true, 0));
    let known = ImportOptions::new().with_expected(snapshot.commit);
    let third = other_vault(&place, "third", "test").await;
    assert_eq!(third.import_bundle(&path, known).await.unwrap().provenance, Provenance::Known);

    let stranger = other_vault(&place, "others", "stranger").await;
    let refused = stranger.import_bundle(&path, ImportOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("other_repository"));
    assert!(state(&stranger).is_empty());
    let allowed = ImportOptions::new().with_any_repository(true);
    assert_eq!(stranger.import_bundle(&path, allowed).await.unwrap().snapshot.repo, "stranger");
}

#[tokio::test]
async fn bundles_that_git_wrote_are_read_with_their_deltas() {
    let place = repository().await;
    let snapshot = capture(&place).await;
    let copy = place.path("copy.git");
    git(place.dir.path(), &["clone", "-q", "--mirror", place.vault.git_dir().to_str().unwrap(), "copy.git"]);
    git(&copy, &["repack", "-adfq", "--depth=50"]);
    assert!(git(&copy, &["count-objects", "-v"]).contains("in-pack"));
    let path = place.path("git.bundle");
    git_bundle(&copy, &path, &[&snapshot.id.ref_name()]);
    let ours = bundle(&place, &snapshot, "ours.bundle").await;
    assert!(fs::metadata(&path).unwrap().len() < fs::metadata(ours).unwrap().len());

    let other = other_vault(&place, "others", "test").await;
    let imported = other.import_bundle(&path, ImportOptions::new()).await.unwrap();
    assert_eq!(imported.snapshot, snapshot);
    fsck(&other.git_dir());
    let target = place.path("out");
    other.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(tree(&target), tree(&place.work));
    // All of it is whole now, and can go on as it is.
    let listed = git(&other.git_dir(), &["cat-file", "--batch-all-objects", "--batch-check=%(deltabase)"]);
    assert!(listed.lines().all(|base| base == "0".repeat(40)));

    // With tags and branches beside the snapshot, which are not taken.
    git(&copy, &["tag", "-a", "-m", "x", "v1", &snapshot.commit.to_string()]);
    let junk = git(&copy, &["hash-object", "-t", "blob", "-w", "HEAD"]);
    let junk_tree = {
        let list = place.path("list");
        fs::write(&list, format!("100644 blob {junk}\tjunk\n")).unwrap();
        let made = std::process::Command::new("git")
            .args(["mktree"])
            .current_dir(&copy)
            .stdin(fs::File::open(list).unwrap())
            .output()
            .unwrap();
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let junk_commit = git(&copy, &["commit-tree", "-m", "junk", &junk_tree]);
    git(&copy, &["update-ref", "refs/heads/junk", &junk_commit]);
    let third_path = place.path("third.bundle");
    git_bundle(&copy, &third_path, &["--all"]);
    let third = other_vault(&place, "third", "test").await;
    third.import_bundle(&third_path, ImportOptions::new()).await.unwrap();
    assert!(!git_output(&third.git_dir(), &["cat-file", "-e", &junk]).status.success());
    assert!(!git_output(&third.git_dir(), &["cat-file", "-e", &junk_commit]).status.success());
    git(&third.git_dir(), &["cat-file", "-e", &snapshot.commit.to_string()]);
    fsck(&third.git_dir());
}

#[tokio::test]
async fn an_incremental_bundle_needs_what_it_says_and_no_more() {
    let place = repository().await;
    let first = capture(&place).await;
    place.write("grows", "line 0\n".repeat(200) + "and the end");
    let second = capture(&place).await;
    let path = place.path("more.bundle");
    let options = BundleOptions::new().with_since(first.id.clone());
    let written = place.vault.write_bundle(&second.id, &path, options).await.unwrap();
    assert_eq!(written.prerequisites, [first.commit]);
    let whole = bundle(&place, &second, "whole.bundle").await;
    assert!(written.bytes * 3 < fs::metadata(whole).unwrap().len());

    let other = other_vault(&place, "others", "test").await;
    let refused = other.import_bundle(&path, ImportOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("incremental"));
    let allowed = ImportOptions::new().with_incremental(true);
    let refused = other.import_bundle(&path, allowed.clone()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("missing_objects"), "{refused}");
    assert!(state(&other).is_empty());

    let base = bundle(&place, &first, "base.bundle").await;
    other.import_bundle(&base, ImportOptions::new()).await.unwrap();
    let imported = other.import_bundle(&path, allowed.clone()).await.unwrap();
    assert_eq!((imported.objects, imported.snapshot), (written.objects, second.clone()));
    fsck(&other.git_dir());

    // Git takes it too where it has the first, and refuses it where it has not.
    let fresh = place.path("fresh.git");
    git(place.dir.path(), &["init", "-q", "--bare", "fresh.git"]);
    let fetch = |file: &Path| {
        git_output(&fresh, &["fetch", "-q", file.to_str().unwrap(), "refs/sandbox/*:refs/sandbox/*"])
    };
    assert!(!fetch(&path).status.success());
    assert!(fetch(&base).status.success());
    assert!(fetch(&path).status.success());
    fsck(&fresh);

    // A thin bundle of git, whose deltas are of objects that it has not.
    let thin = place.path("thin.bundle");
    git(&fresh, &["repack", "-adfq"]);
    git_bundle(&fresh, &thin, &[&second.id.ref_name(), &format!("^{}", first.commit)]);
    let third = other_vault(&place, "third", "test").await;
    third.import_bundle(&base, ImportOptions::new()).await.unwrap();
    assert_eq!(third.import_bundle(&thin, allowed).await.unwrap().snapshot, second);
    fsck(&third.git_dir());
}

#[tokio::test]
async fn a_bundle_that_is_cut_or_changed_anywhere_leaves_nothing() {
    let place = Place::new().await;
    place.write("a", "some content that is deflated");
    place.write("dir/b", "b".repeat(1000));
    let snapshot = capture(&place).await;
    let path = bundle(&place, &snapshot, "x.bundle").await;
    let good = fs::read(&path).unwrap();
    let other = other_vault(&place, "others", "test").await;
    let bad = place.path("bad.bundle");
    let refuse = async |content: &[u8], what: String| {
        fs::write(&bad, content).unwrap();
        let refused = other.import_bundle(&bad, ImportOptions::new()).await.expect_err(&what);
        assert!(refused.reason().is_some(), "{what}: {refused}");
        assert!(state(&other).is_empty(), "{what}: {:?}", state(&other));
    };
    for end in (0..good.len()).step_by(7) {
        refuse(&good[..end], format!("cut at {end}")).await;
    }
    for at in (0..good.len()).step_by(5) {
        let mut changed = good.clone();
        changed[at] ^= 1 << (at % 8);
        refuse(&changed, format!("changed at {at}")).await;
    }
    refuse(&[&good[..], b"x"].concat(), "longer".to_owned()).await;
    other.import_bundle(&path, ImportOptions::new()).await.unwrap();
}

#[tokio::test]
async fn a_bundle_above_a_limit_is_refused() {
    let place = Place::new().await;
    place.write("zeros", vec![0; 1 << 20]);
    let snapshot = capture(&place).await;
    let path = bundle(&place, &snapshot, "x.bundle").await;
    assert!(fs::metadata(&path).unwrap().len() < 64 << 10);
    let other = other_vault(&place, "others", "test").await;
    type Change = fn(&mut BundleLimits);
    let changes: [Change; 4] = [
        |limits| limits.file = 100,
        |limits| limits.objects = 1,
        |limits| limits.object = 1 << 19,
        |limits| limits.inflated = 1 << 19,
    ];
    for change in changes {
        let mut limits = BundleLimits::default();
        change(&mut limits);
        let refused = other.import_bundle(&path, ImportOptions::new().with_limits(limits)).await.unwrap_err();
        assert_eq!(refused.reason(), Some("too_large"), "{limits:?}");
        assert!(state(&other).is_empty());
    }
}

/// Makes a commit in the repository `git_dir` with this tree, and the message of a snapshot.
fn forge(place: &Place, git_dir: &Path, tree: &str, snapshot: &Snapshot, path: &Path) {
    let message = git(git_dir, &["log", "-1", "--format=%B", &snapshot.commit.to_string()]);
    let side = snapshot.side.unwrap().to_string();
    let file = place.path("message");
    fs::write(&file, message).unwrap();
    let commit = git(git_dir, &["commit-tree", "-F", file.to_str().unwrap(), "-p", &side, tree]);
    git(git_dir, &["update-ref", &snapshot.id.ref_name(), &commit]);
    git_bundle(git_dir, path, &[&snapshot.id.ref_name()]);
}

#[tokio::test]
async fn a_forged_bundle_of_a_hostile_tree_or_another_commit_is_refused() {
    let place = Place::new().await;
    place.write("a", "a");
    fs::create_dir(place.work.join("empty")).unwrap();
    let snapshot = capture(&place).await;
    let forged = place.path("forged.git");
    git(
        place.dir.path(),
        &["clone", "-q", "--mirror", place.vault.git_dir().to_str().unwrap(), "forged.git"],
    );
    let blob = git(&forged, &["rev-parse", &format!("{}:a", snapshot.commit)]);
    let raw: Vec<u8> = (0..20).map(|at| u8::from_str_radix(&blob[at * 2..at * 2 + 2], 16).unwrap()).collect();
    let other = other_vault(&place, "others", "test").await;
    for (index, entry) in
        [&b"100644 .git"[..], b"100644 ..", b"104755 setuid", b"100644 a/b", b"120000 .gitmodules"]
            .iter()
            .enumerate()
    {
        let content = [entry, &b"\0"[..], &raw].concat();
        let file = place.path("tree");
        fs::write(&file, content).unwrap();
        let made = git(&forged, &["hash-object", "-t", "tree", "--literally", "-w", file.to_str().unwrap()]);
        let path = place.path(&format!("{index}.bundle"));
        forge(&place, &forged, &made, &snapshot, &path);
        let refused = other.import_bundle(&path, ImportOptions::new()).await.unwrap_err();
        assert!(matches!(refused.reason(), Some("hostile_tree" | "missing_objects")), "{entry:?}: {refused}");
        assert!(state(&other).is_empty(), "{entry:?}");
    }

    // A good tree that is not the one of the snapshot.
    let path = place.path("good.bundle");
    let tree = git(&forged, &["mktree", "--missing"]);
    forge(&place, &forged, &tree, &snapshot, &path);
    let before = state(&place.vault);
    let refused = place.vault.import_bundle(&path, ImportOptions::new()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.reason()), (ErrorKind::Conflict, Some("substituted")));
    assert_eq!(state(&place.vault), before);
    let expected = ImportOptions::new().with_expected(snapshot.commit);
    let refused = other.import_bundle(&path, expected).await.unwrap_err();
    assert_eq!(refused.reason(), Some("substituted"));
    // Nobody knows better there.
    let imported = other.import_bundle(&path, ImportOptions::new()).await.unwrap();
    assert_eq!(imported.provenance, Provenance::BundleAlone);

    // A branch is no snapshot.
    git(&forged, &["update-ref", "refs/heads/main", &snapshot.commit.to_string()]);
    let path = place.path("branch.bundle");
    git_bundle(&forged, &path, &["refs/heads/main"]);
    let refused = other.import_bundle(&path, ImportOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("not_a_snapshot"));
    // Nor is a commit under the name of another snapshot, or of one to come.
    for id in ["20200101-000000-000000", "99991231-235959-ffffff"] {
        let name = format!("refs/sandbox/snapshots/{id}");
        git(&forged, &["update-ref", &name, &snapshot.commit.to_string()]);
        let path = place.path(&format!("{id}.bundle"));
        git_bundle(&forged, &path, &[&name]);
        let refused = other.import_bundle(&path, ImportOptions::new()).await.unwrap_err();
        assert_eq!(refused.reason(), Some("not_a_snapshot"), "{refused}");
    }
}

#[tokio::test]
async fn a_bundle_without_all_its_objects_is_refused() {
    let place = Place::new().await;
    place.write("a", "a");
    place.write("b", "b");
    let snapshot = capture(&place).await;
    let path = bundle(&place, &snapshot, "x.bundle").await;
    let git_dir = place.vault.git_dir();
    let objects = git(&git_dir, &["rev-list", "--objects", "--no-object-names", &snapshot.id.ref_name()]);
    let missing = git(&git_dir, &["rev-parse", &format!("{}:b", snapshot.commit)]);
    let list = place.path("list");
    fs::write(&list, objects.replace(&missing, "")).unwrap();
    let packed = std::process::Command::new("git")
        .args(["pack-objects", "--stdout", "-q"])
        .current_dir(&git_dir)
        .stdin(fs::File::open(list).unwrap())
        .output()
        .unwrap();
    let good = fs::read(&path).unwrap();
    let start = good.windows(6).position(|part| part == b"\n\nPACK").unwrap() + 2;
    let bad = place.path("bad.bundle");
    fs::write(&bad, [&good[..start], &packed.stdout].concat()).unwrap();
    // Git itself says that all is well.
    git(&git_dir, &["bundle", "verify", "-q", bad.to_str().unwrap()]);
    let other = other_vault(&place, "others", "test").await;
    let refused = other.import_bundle(&bad, ImportOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("missing_objects"));
    assert!(refused.message().contains(&missing), "{refused}");
    assert!(state(&other).is_empty());
}

#[tokio::test]
async fn a_bundle_of_a_shallow_or_partial_clone_is_whole_without_its_history() {
    let place = repository().await;
    git(&place.work, &["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", place.work.display());
    for (name, how) in [("shallow", "--depth=2"), ("partial", "--filter=blob:none")] {
        git(place.dir.path(), &["clone", "-q", how, &url, name]);
        let work = place.path(name);
        let snapshot = place.vault.capture(&work, CaptureOptions::new()).await.unwrap();
        let path = bundle(&place, &snapshot, &format!("{name}.bundle")).await;
        let fresh = place.path(&format!("{name}.git"));
        git(place.dir.path(), &["init", "-q", "--bare", &format!("{name}.git")]);
        git(&fresh, &["fetch", "-q", path.to_str().unwrap(), "refs/sandbox/*:refs/sandbox/*"]);
        fsck(&fresh);
        assert_eq!(git(&fresh, &["rev-list", "--objects", "--missing=print", "--all", "--count"]), {
            git(&place.vault.git_dir(), &["rev-list", "--objects", "--count", &snapshot.id.ref_name()])
        });
        assert!(!snapshot.has_history, "{name}");
    }
}

#[tokio::test]
async fn what_is_damaged_in_the_vault_is_never_bundled() {
    let place = Place::new().await;
    // It does not deflate, so that all of its pack is its content.
    let mut noise = vec![0; 100_000];
    fastrand::Rng::with_seed(7).fill(&mut noise);
    place.write("noise", noise);
    let snapshot = capture(&place).await;
    let packs = place.vault.git_dir().join("objects/pack");
    let pack = fs::read_dir(&packs).unwrap().map(|entry| entry.unwrap().path());
    let pack = pack.into_iter().find(|path| path.extension().is_some_and(|end| end == "pack")).unwrap();
    let mut content = fs::read(&pack).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&pack, content).unwrap();
    let path = place.path("x.bundle");
    let refused = place.vault.write_bundle(&snapshot.id, &path, BundleOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("damaged"));
    assert!(!path.exists());
    assert!(
        fs::read_dir(place.dir.path())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().contains("bundle") })
    );
}
