//! Ordinary git bundles as snapshots: what git made of any repository, believed no more than any stranger's.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use sandhold_core::ErrorKind;
use sandhold_persist::{
    AdoptOptions, BundleLimits, BundleOptions, CaptureOptions, ImportOptions, Label, ObjectId, Provenance,
    RestoreOptions, SnapId, Vault,
};
use support::{Place, fsck, git, tree};

/// A repository with two branches, a tag, deltas, and names that are none of everyday's.
async fn repository() -> Place {
    let place = Place::new().await;
    place.git(&["init", "-q", "-b", "main"]);
    for index in 0..10 {
        place.write("grows", format!("line {index}\n").repeat(200 + index));
        place.write(format!("dir/{index}"), index.to_string());
        place.git(&["add", "-A"]);
        place.git(&["commit", "-qm", &format!("commit {index}")]);
    }
    place.git(&["branch", "old", "HEAD~5"]);
    place.git(&["tag", "-a", "-m", "a tag", "v1", "HEAD~2"]);
    place.write("run.sh", "#!/bin/sh\r\n");
    place.make_executable("run.sh");
    place.link("link", "dir/0");
    place.write("caf\u{e9} *\n-", "odd");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "odd"]);
    place.git(&["repack", "-adfq", "--depth=50"]);
    place
}

fn git_bundle(place: &Place, name: &str, args: &[&str]) -> PathBuf {
    let path = place.path(name);
    place.git(&[&["bundle", "create", "-q", path.to_str().unwrap()], args].concat());
    path
}

async fn files(vault: &Vault, id: &SnapId) -> BTreeMap<Vec<u8>, (u32, Vec<u8>)> {
    let out = tempfile::tempdir().unwrap();
    vault.restore(id, out.path(), RestoreOptions::new()).await.unwrap();
    tree(out.path())
}

#[tokio::test]
async fn a_bundle_that_git_made_becomes_a_snapshot_with_its_history() {
    let place = repository().await;
    let path = git_bundle(&place, "x.bundle", &["--all", "HEAD"]);
    let head = place.git(&["rev-parse", "HEAD"]);
    let options = AdoptOptions::new().with_label(Label::new("from git").unwrap());
    let adopted = place.vault.adopt_bundle(&path, options.clone()).await.unwrap();
    let snapshot = &adopted.snapshot;
    assert_eq!(adopted.provenance, Provenance::BundleAlone);
    assert_eq!((snapshot.branch.as_deref(), snapshot.has_history), (Some("main"), true));
    assert_eq!(snapshot.head.unwrap().to_string(), head);
    let began = place.git(&["rev-list", "--max-parents=0", "HEAD"]);
    assert_eq!(snapshot.root.map(|id| id.to_string()), Some(began));
    assert_eq!(snapshot.workspace, path.canonicalize().unwrap());
    assert_eq!(snapshot.label.as_ref().unwrap().as_str(), "from git");
    assert!(files(&place.vault, &snapshot.id).await == tree(&place.work));
    assert_eq!((snapshot.files, snapshot.skipped), (tree(&place.work).len() as u64 - 1, 0));
    fsck(&place.vault.git_dir());
    let log = git(&place.vault.git_dir(), &["log", "--format=%s", &snapshot.commit.to_string()]);
    assert!(log.contains("commit 0") && log.contains("odd"), "{log}");
    // The manifest is in the commit, as that of any snapshot.
    let record = place.vault.git_dir().with_file_name("records").join(format!("{}.json", snapshot.id));
    fs::remove_file(record).unwrap();
    assert_eq!(place.vault.snapshot(snapshot.id.as_str()).await.unwrap(), *snapshot);

    let again = place.vault.adopt_bundle(&path, options).await.unwrap();
    assert_eq!((again.was_here, again.objects, &again.snapshot.id), (true, 0, &snapshot.id));
    let other = place.vault.adopt_bundle(&path, AdoptOptions::new().with_reference("old")).await.unwrap();
    assert_eq!(other.snapshot.head.unwrap().to_string(), place.git(&["rev-parse", "old"]));
    assert!(other.objects < 10, "what is here is not stored again: {}", other.objects);
    // From here on it is a snapshot like any other.
    let ours = place.path("ours.bundle");
    place.vault.write_bundle(&snapshot.id, &ours, BundleOptions::new()).await.unwrap();
    let vault = support::open(&place.path("elsewhere")).await;
    vault.import_bundle(&ours, ImportOptions::new()).await.unwrap();
    assert!(files(&vault, &snapshot.id).await == tree(&place.work));
}

#[tokio::test]
async fn the_ref_that_is_meant_is_head_or_the_only_one_or_the_one_that_was_asked_for() {
    let place = repository().await;
    let adopt = async |path: &PathBuf, options: AdoptOptions| place.vault.adopt_bundle(path, options).await;
    let both = git_bundle(&place, "both.bundle", &["main", "old"]);
    let refused = adopt(&both, AdoptOptions::new()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.reason()), (ErrorKind::InvalidArgument, Some("ambiguous")));
    let refused = adopt(&both, AdoptOptions::new().with_reference("none")).await.unwrap_err();
    assert_eq!(refused.reason(), Some("no_such_ref"), "{refused}");
    let only = git_bundle(&place, "only.bundle", &["old"]);
    assert_eq!(adopt(&only, AdoptOptions::new()).await.unwrap().snapshot.branch.as_deref(), Some("old"));
    let tag = git_bundle(&place, "tag.bundle", &["v1", "main"]);
    let refused = adopt(&tag, AdoptOptions::new().with_reference("refs/tags/v1")).await.unwrap_err();
    assert_eq!(refused.reason(), Some("not_a_commit"), "{refused}");
    let head: ObjectId = place.git(&["rev-parse", "main"]).parse().unwrap();
    let known = AdoptOptions::new().with_reference("main").with_expected(head);
    assert_eq!(adopt(&tag, known).await.unwrap().provenance, Provenance::Known);
    let other: ObjectId = place.git(&["rev-parse", "old"]).parse().unwrap();
    let refused =
        adopt(&tag, AdoptOptions::new().with_reference("main").with_expected(other)).await.unwrap_err();
    assert_eq!((refused.kind(), refused.reason()), (ErrorKind::Conflict, Some("substituted")));
    // One of snapshots is for another call.
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let ours = place.path("ours.bundle");
    place.vault.write_bundle(&snapshot.id, &ours, BundleOptions::new()).await.unwrap();
    assert_eq!(adopt(&ours, AdoptOptions::new()).await.unwrap_err().reason(), Some("no_such_ref"));
}

#[tokio::test]
async fn an_incremental_bundle_is_adopted_where_that_is_allowed_and_what_it_needs_is_here() {
    let place = repository().await;
    let part = git_bundle(&place, "part.bundle", &["old..main"]);
    let refused = place.vault.adopt_bundle(&part, AdoptOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("incremental"));
    let allowed = || AdoptOptions::new().with_incremental(true);
    let refused = place.vault.adopt_bundle(&part, allowed()).await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.reason()),
        (ErrorKind::NotFound, Some("missing_objects")),
        "{refused}"
    );
    let base = git_bundle(&place, "base.bundle", &["old"]);
    place.vault.adopt_bundle(&base, AdoptOptions::new()).await.unwrap();
    let adopted = place.vault.adopt_bundle(&part, allowed()).await.unwrap();
    assert!(files(&place.vault, &adopted.snapshot.id).await == tree(&place.work));
    fsck(&place.vault.git_dir());
}

#[tokio::test]
async fn a_damaged_hostile_or_too_large_bundle_leaves_nothing() {
    let place = repository().await;
    let good = git_bundle(&place, "good.bundle", &["main"]);
    let vault = support::open(&place.path("strict")).await;
    let packs = vault.git_dir().join("objects/pack");
    let nothing = async |why: &str| {
        assert_eq!(fs::read_dir(&packs).unwrap().count(), 0, "{why}");
        assert!(vault.snapshots().await.unwrap().is_empty(), "{why}");
        let staging = vault.git_dir().with_file_name("staging");
        assert_eq!(fs::read_dir(staging).unwrap().count(), 0, "{why}");
    };
    let bytes = fs::read(&good).unwrap();
    let bad = place.path("bad.bundle");
    for at in (0..bytes.len()).step_by(bytes.len() / 23) {
        fs::write(&bad, &bytes[..at]).unwrap();
        vault.adopt_bundle(&bad, AdoptOptions::new()).await.unwrap_err();
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        fs::write(&bad, flipped).unwrap();
        // Some bits of a header are only names.
        if at > 100 {
            vault.adopt_bundle(&bad, AdoptOptions::new()).await.unwrap_err();
        }
        nothing(&format!("byte {at}")).await;
    }
    let mut limits = BundleLimits::default();
    limits.objects = 5;
    let refused = vault.adopt_bundle(&good, AdoptOptions::new().with_limits(limits)).await.unwrap_err();
    assert_eq!(refused.reason(), Some("too_large"));
    nothing("limits").await;

    // A tree that git makes only when it is told to look away.
    let blob = place.git(&["rev-parse", "HEAD:dir/0"]);
    let raw: Vec<u8> = (0..20).map(|at| u8::from_str_radix(&blob[at * 2..at * 2 + 2], 16).unwrap()).collect();
    let blob_entries = [&b"100644 ..\0"[..], b"100644 .GIT\0", b"104755 setuid\0", b"120000 .gitmodules\0"];
    for (index, entry) in blob_entries.iter().enumerate() {
        let file = place.path("tree");
        fs::write(&file, [entry, &raw[..]].concat()).unwrap();
        let made = place.git(&["hash-object", "-t", "tree", "--literally", "-w", file.to_str().unwrap()]);
        let commit = place.git(&["commit-tree", "-m", "hostile", &made]);
        place.git(&["update-ref", "refs/heads/hostile", &commit]);
        let path = git_bundle(&place, &format!("hostile-{index}.bundle"), &["hostile"]);
        let refused = vault.adopt_bundle(&path, AdoptOptions::new()).await.unwrap_err();
        assert!(matches!(refused.reason(), Some("hostile_tree" | "missing_objects")), "{entry:?}: {refused}");
        nothing(&format!("{entry:?}")).await;
    }
}
