//! What a mirror has is a snapshot again, on whatever it is kept.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

#[path = "support/remote.rs"]
mod remote;
mod support;

use std::fs;
#[cfg(all(feature = "s3", feature = "testing"))]
use std::path::Path;

use remote::Remote;
#[cfg(all(feature = "s3", feature = "testing"))]
use remote::lookup;
use sandhold_core::ErrorKind;
use sandhold_persist::{
    CaptureOptions, Mirror, MirrorConfig, MirrorMode, MirrorTarget, Provenance, RestoreOptions, SnapId,
    Snapshot, VerifyLevel,
};
use support::{Place, tree};

/// Every case over every kind of mirror.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        cases! { @ file $($case),+ }
        #[cfg(feature = "s3")]
        cases! { @ moto $($case),+ }
        #[cfg(feature = "s3")]
        cases! { @ rclone $($case),+ }
        #[cfg(feature = "gcs")]
        cases! { @ gcs $($case),+ }
        #[cfg(feature = "azure")]
        cases! { @ azurite $($case),+ }
    };
    (@ $kind:ident $($case:ident),+) => {
        mod $kind {
            $(
                #[tokio::test]
                async fn $case() {
                    match super::Remote::$kind() {
                        Ok(remote) => super::$case(remote).await,
                        Err(missing) => println!("skipped: needs {missing}"),
                    }
                }
            )+
        }
    };
}

cases! {
    a_snapshot_comes_back_on_a_machine_that_never_saw_it,
    what_is_gone_here_is_fetched_before_it_is_restored,
    another_commit_than_is_known_here_is_refused,
    a_state_is_sent_once_and_the_next_one_replaces_its_manifest,
    what_is_there_is_listed_and_what_nobody_names_is_an_orphan,
    a_copy_that_was_touched_is_told_by_its_digest,
    an_upload_of_many_parts_is_whole,
    a_mirror_that_is_not_there_fails_and_the_snapshot_stays,
}

async fn captured(place: &Place) -> Snapshot {
    place.write("README.md", "hello\n");
    place.write("src/main.rs", "fn main() {}\n");
    place.write("a\\b \n.txt", b"\xff\x00");
    place.link("link", "README.md");
    fs::create_dir_all(place.work.join("hollow")).unwrap();
    place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap()
}

async fn a_snapshot_comes_back_on_a_machine_that_never_saw_it(remote: Remote) {
    let (here, there) = (Place::new().await, Place::new().await);
    let snapshot = captured(&here).await;
    let mirror = remote.open();
    mirror.check().await.unwrap();
    let uploaded = mirror.upload(&here.vault, &snapshot.id).await.unwrap();
    assert!(uploaded.is_mirrored());
    let full = mirror.verify(&there.vault, &snapshot.id, VerifyLevel::Full).await.unwrap();
    assert_eq!(full.provenance, Provenance::BundleAlone);
    let full = mirror.verify(&here.vault, &snapshot.id, VerifyLevel::Full).await.unwrap();
    assert_eq!(full.provenance, Provenance::Known);
    assert!(there.vault.snapshots().await.unwrap().is_empty());

    let ambiguous = mirror.fetch(&there.vault, "1999").await.unwrap_err();
    assert_eq!(ambiguous.kind(), ErrorKind::NotFound);
    let fetched = mirror.fetch(&there.vault, &snapshot.id.as_str()[..18]).await.unwrap();
    assert_eq!((fetched.provenance, fetched.was_here), (Provenance::BundleAlone, false));
    assert_eq!(fetched.snapshot.commit, snapshot.commit);
    assert!(fetched.snapshot.is_mirrored());
    assert!(mirror.fetch(&there.vault, snapshot.id.as_str()).await.unwrap().was_here);
    let target = there.path("out");
    there.vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert!(tree(&target) == tree(&here.work));
    there.fsck();
    let staging = there.path("vaults/test/staging");
    assert_eq!(fs::read_dir(staging).unwrap().count(), 0);

    // Git alone does with what the bucket has.
    let Some(_) = &remote.objects else { return };
    let bundle = remote.bundle();
    let clone = there.path("clone");
    fs::create_dir(&clone).unwrap();
    support::git(&clone, &["init", "-q", "."]);
    support::git(&clone, &["fetch", "-q", bundle.to_str().unwrap(), "refs/sandbox/*:refs/sandbox/*"]);
    support::git(&clone, &["checkout", "-q", &snapshot.id.ref_name()]);
    assert_eq!(fs::read(clone.join("a\\b \n.txt")).unwrap(), b"\xff\x00");
}

async fn what_is_gone_here_is_fetched_before_it_is_restored(remote: Remote) {
    let place = Place::new().await;
    let mirror = remote.open();
    let snapshot = captured(&place).await;
    mirror.upload(&place.vault, &snapshot.id).await.unwrap();
    // What retention leaves of it: the record, and neither ref nor objects.
    let git_dir = place.vault.git_dir();
    fs::remove_file(git_dir.join(snapshot.id.ref_name())).unwrap();
    for entry in fs::read_dir(git_dir.join("objects/pack")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let vault = support::open(place.dir.path()).await;
    let target = place.path("out");
    let gone = vault.restore(&snapshot.id, &target, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(gone.reason(), Some("snapshot_gone"));
    // What another mirror has never had cannot be sent there any more.
    let other = remote.open_as(remote.config.clone().with_prefix("other"));
    let nothing = other.upload(&vault, &snapshot.id).await.unwrap_err();
    assert_eq!(nothing.reason(), Some("snapshot_gone"));
    assert!(nothing.message().contains("no objects left to upload"), "{nothing}");
    mirror.upload(&vault, &snapshot.id).await.unwrap();
    mirror.restore(&vault, &snapshot.id, &target, RestoreOptions::new()).await.unwrap();
    assert!(tree(&target) == tree(&place.work));
    let back = vault.snapshot(snapshot.id.as_str()).await.unwrap();
    assert_eq!((back.commit, back.is_mirrored()), (snapshot.commit, true));
    place.fsck();
}

async fn another_commit_than_is_known_here_is_refused(remote: Remote) {
    let (place, forger) = (Place::new().await, Place::new().await);
    let mirror = remote.open();
    let snapshot = captured(&place).await;
    let known = mirror.upload(&place.vault, &snapshot.id).await.unwrap();
    let Some(_) = &remote.objects else { return };
    // A stranger with access to the bucket puts a bundle and a manifest of their own there, under this id.
    forger.write("README.md", "forged\n");
    let forged = forger.vault.capture(&forger.work, CaptureOptions::new()).await.unwrap();
    mirror.upload(&forger.vault, &forged.id).await.unwrap();
    let manifests = remote.manifests();
    let of = |id: &SnapId| {
        manifests.iter().find(|path| path.to_string_lossy().contains(id.as_str())).unwrap().clone()
    };
    let text = fs::read_to_string(of(&forged.id)).unwrap();
    let renamed = text.replace(forged.id.as_str(), snapshot.id.as_str());
    fs::write(of(&snapshot.id), renamed).unwrap();
    fs::remove_file(place.vault.git_dir().join(snapshot.id.ref_name())).unwrap();
    let vault = support::open(place.dir.path()).await;
    let refused = mirror.fetch(&vault, snapshot.id.as_str()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("substituted"), "{refused}");
    let kept = vault.snapshot(snapshot.id.as_str()).await.unwrap();
    assert_eq!((kept.commit, kept.remote), (snapshot.commit, known.remote));
    // Nor is it taken where nothing is known: the commit says which snapshot it is.
    let elsewhere = Place::new().await;
    let refused = mirror.fetch(&elsewhere.vault, snapshot.id.as_str()).await.unwrap_err();
    assert!(elsewhere.vault.snapshots().await.unwrap().is_empty(), "{refused}");
}

async fn a_state_is_sent_once_and_the_next_one_replaces_its_manifest(remote: Remote) {
    let place = Place::new().await;
    let mirror = remote.open();
    let session = place.vault.begin(&place.work, CaptureOptions::new());
    place.write("a", "1");
    let first = session.capture().await.unwrap().unwrap();
    let sent = mirror.upload(&place.vault, &first.id).await.unwrap().remote.unwrap();
    let again = mirror.upload(&place.vault, &first.id).await.unwrap().remote.unwrap();
    assert_eq!((&again.key, &again.sha256), (&sent.key, &sent.sha256));

    place.write("a", "2");
    let second = session.capture().await.unwrap().unwrap();
    assert_eq!(second.id, first.id);
    let moved = mirror.upload(&place.vault, &first.id).await.unwrap();
    assert_ne!(moved.remote.as_ref().unwrap().key, sent.key);
    let listed = mirror.snapshots(place.vault.key()).await.unwrap();
    assert_eq!((listed.total, listed.snapshots.len()), (1, 1));
    assert_eq!(listed.snapshots[0].snapshot.commit, second.commit);
    assert!(listed.snapshots[0].is_whole);
    // The state before is kept, and nothing but a call deletes it.
    let orphans = mirror.orphans(place.vault.key()).await.unwrap();
    assert_eq!(orphans.len(), 1);
    assert!(orphans[0].is_superseded);
    assert_eq!((&orphans[0].key, orphans[0].commit), (&sent.key, first.commit));
    mirror.delete_orphan(&orphans[0]).await.unwrap();
    assert!(mirror.orphans(place.vault.key()).await.unwrap().is_empty());
    mirror.verify(&place.vault, &first.id, VerifyLevel::Digest).await.unwrap();
}

async fn what_is_there_is_listed_and_what_nobody_names_is_an_orphan(remote: Remote) {
    let place = Place::new().await;
    let mirror = remote.open();
    assert!(mirror.repos().await.unwrap().is_empty());
    let mut ids: Vec<SnapId> = Vec::new();
    for index in 0..3 {
        place.write("a", format!("{index}"));
        let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
        mirror.upload(&place.vault, &snapshot.id).await.unwrap();
        ids.push(snapshot.id);
    }
    let listed = mirror.snapshots(place.vault.key()).await.unwrap();
    let newest: Vec<_> = listed.snapshots.iter().map(|found| found.snapshot.id.clone()).collect();
    ids.reverse();
    assert_eq!((newest, listed.total), (ids.clone(), 3));
    let repos = mirror.repos().await.unwrap();
    assert_eq!(repos.len(), 1);
    assert_eq!((&repos[0].key, repos[0].snapshots), (place.vault.key(), 3));
    assert_eq!(repos[0].newest, ids[0]);

    // A prefix of another team sees nothing of it.
    let other = remote.open_as(remote.config.clone().with_prefix("team"));
    assert!(other.repos().await.unwrap().is_empty());

    let Some(_) = &remote.objects else { return };
    let manifests = remote.manifests();
    fs::write(&manifests[1], "no manifest").unwrap();
    fs::remove_file(&manifests[0]).unwrap();
    let listed = mirror.snapshots(place.vault.key()).await.unwrap();
    assert_eq!((listed.total, listed.snapshots.len()), (2, 1));
    assert_eq!(listed.unreadable, [ids[1].clone()]);
    // While it is not known what a manifest names, nothing is called an orphan.
    assert_eq!(mirror.orphans(place.vault.key()).await.unwrap_err().reason(), Some("mirror_manifest"));
    fs::remove_file(&manifests[1]).unwrap();
    let orphans = mirror.orphans(place.vault.key()).await.unwrap();
    assert_eq!(orphans.len(), 2);
    assert!(orphans.iter().all(|orphan| !orphan.is_superseded));
}

async fn a_copy_that_was_touched_is_told_by_its_digest(remote: Remote) {
    let place = Place::new().await;
    let mirror = remote.open();
    let snapshot = captured(&place).await;
    mirror.upload(&place.vault, &snapshot.id).await.unwrap();
    for level in [VerifyLevel::Head, VerifyLevel::Digest, VerifyLevel::Full] {
        let verified = mirror.verify(&place.vault, &snapshot.id, level).await.unwrap();
        assert_eq!(verified.level, level);
        assert_eq!(verified.sha256.is_some(), level >= VerifyLevel::Digest);
    }
    let Some(_) = &remote.objects else { return };
    let bundle = remote.bundle();
    let mut bytes = fs::read(&bundle).unwrap();
    let last = bytes.len() - 30;
    bytes[last] ^= 1;
    fs::write(&bundle, &bytes).unwrap();
    mirror.verify(&place.vault, &snapshot.id, VerifyLevel::Head).await.unwrap();
    for level in [VerifyLevel::Digest, VerifyLevel::Full] {
        let refused = mirror.verify(&place.vault, &snapshot.id, level).await.unwrap_err();
        assert_eq!(refused.reason(), Some("mirror_damaged"), "{refused}");
    }
    let elsewhere = Place::new().await;
    let refused = mirror.fetch(&elsewhere.vault, snapshot.id.as_str()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("mirror_damaged"), "{refused}");
    fs::write(&bundle, &bytes[1..]).unwrap();
    let refused = mirror.verify(&place.vault, &snapshot.id, VerifyLevel::Head).await.unwrap_err();
    assert_eq!(refused.reason(), Some("mirror_damaged"), "{refused}");
    fs::remove_file(&bundle).unwrap();
    let refused = mirror.verify(&place.vault, &snapshot.id, VerifyLevel::Head).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert!(refused.to_string().contains("team/a/snapshots/test/"), "{refused}");
}

async fn an_upload_of_many_parts_is_whole(remote: Remote) {
    let place = Place::new().await;
    let mut random = fastrand::Rng::with_seed(3);
    for index in 0..2 {
        let mut content = vec![0; 8 << 20];
        random.fill(&mut content);
        place.write(format!("file{index}"), content);
    }
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    // Three parts and a short one.
    let mirror = remote.open_as(remote.config.clone().with_multipart_above_mb(5));
    let copy = mirror.upload(&place.vault, &snapshot.id).await.unwrap().remote.unwrap();
    assert!(copy.bytes.unwrap() > 16 << 20);
    mirror.verify(&place.vault, &snapshot.id, VerifyLevel::Digest).await.unwrap();
    let small = remote.open_as(remote.config.clone().with_max_object_mb(16));
    place.write("one more", "x");
    let larger = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let refused = small.upload(&place.vault, &larger.id).await.unwrap_err();
    assert_eq!(refused.reason(), Some("too_large"));
    assert!(refused.to_string().contains("17 MiB") && refused.to_string().contains("of 16"), "{refused}");
    assert!(small.queued(&place.vault).await.unwrap().is_empty());
    assert_eq!(mirror.snapshots(place.vault.key()).await.unwrap().total, 1);
}

async fn a_mirror_that_is_not_there_fails_and_the_snapshot_stays(remote: Remote) {
    let place = Place::new().await;
    let snapshot = captured(&place).await;
    let off = remote.open_as(remote.config.clone().with_mode(MirrorMode::Off));
    let refused = off.upload(&place.vault, &snapshot.id).await.unwrap_err();
    assert_eq!(refused.reason(), Some("mirror_off"));

    let nowhere = remote.dir.path().join("a file");
    fs::write(&nowhere, "").unwrap();
    let mut config = remote.config.clone();
    match &mut config.target {
        #[cfg(feature = "s3")]
        MirrorTarget::S3(target) => target.bucket = "another-bucket".to_owned(),
        #[cfg(feature = "gcs")]
        MirrorTarget::Gcs(target) => target.bucket = "another-bucket".to_owned(),
        #[cfg(feature = "azure")]
        MirrorTarget::Azure(target) => target.container = "another-bucket".to_owned(),
        target => {
            *target = MirrorTarget::File(nowhere.join("below"));
            Mirror::open(config).unwrap_err();
            return;
        }
    }
    let mirror = remote.open_as(config);
    let refused = mirror.upload(&place.vault, &snapshot.id).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
    let kept = place.vault.snapshot(snapshot.id.as_str()).await.unwrap();
    let copy = kept.remote.as_ref().unwrap();
    assert!(copy.error.as_ref().unwrap().contains("another-bucket"), "{copy:?}");
    assert!(!kept.is_mirrored());
    assert_eq!(mirror.queued(&place.vault).await.unwrap(), std::slice::from_ref(&snapshot.id));
    // The right one takes it from the queue.
    let answers = remote.open().resume(&place.vault).await.unwrap();
    assert_eq!(answers.len(), 1);
    assert!(answers[0].1.as_ref().unwrap().is_mirrored());
    assert!(mirror.queued(&place.vault).await.unwrap().is_empty());
    assert!(tree(&place.work).len() > 4);
}

#[tokio::test]
async fn an_upload_that_has_no_time_left_says_so_and_stays_in_the_queue() {
    let (place, remote) = (Place::new().await, Remote::file().unwrap());
    let mirror = remote.open();
    let snapshot = captured(&place).await;
    let late = mirror.upload_within(&place.vault, &snapshot.id, std::time::Duration::ZERO).await.unwrap_err();
    assert_eq!((late.kind(), late.reason()), (ErrorKind::Timeout, Some("budget")), "{late}");
    let kept = place.vault.snapshot(snapshot.id.as_str()).await.unwrap();
    assert_eq!(kept.remote.unwrap().error.as_deref(), Some("budget"));
    assert_eq!(mirror.queued(&place.vault).await.unwrap(), std::slice::from_ref(&snapshot.id));
    let answers = mirror.resume(&place.vault).await.unwrap();
    assert!(answers[0].1.as_ref().unwrap().is_mirrored());
}

/// Uploads in a process of its own, which is killed after its second part.
#[cfg(all(feature = "s3", feature = "testing"))]
#[tokio::test]
#[ignore = "is what another test kills, in a process of its own"]
async fn victim() {
    let Some(config) = std::env::var_os("SANDHOLD_TEST_MIRROR") else { return };
    let config: MirrorConfig = serde_json::from_str(config.to_str().unwrap()).unwrap();
    let dir = std::env::var_os("SANDHOLD_TEST_DIR").unwrap();
    let vault = support::open(Path::new(&dir)).await;
    let id = vault.snapshots().await.unwrap().remove(0).id;
    Mirror::open_with(config, lookup).unwrap().upload(&vault, &id).await.unwrap();
}

#[cfg(all(feature = "s3", feature = "testing"))]
async fn parts_that_have_arrived_are_not_sent_again(remote: Remote) {
    use std::os::unix::process::ExitStatusExt;
    let place = Place::new().await;
    let mut random = fastrand::Rng::with_seed(4);
    for index in 0..2 {
        let mut content = vec![0; 8 << 20];
        random.fill(&mut content);
        place.write(format!("file{index}"), content);
    }
    let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
    let config = remote.config.clone().with_multipart_above_mb(5);
    let died = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--ignored", "--nocapture"])
        .env("SANDHOLD_TEST_DIR", place.dir.path())
        .env("SANDHOLD_TEST_MIRROR", serde_json::to_string(&config).unwrap())
        .env("SANDHOLD_FAILPOINT", "mirror.part:2")
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(died.signal(), Some(9));
    let mirror = remote.open_as(config);
    assert_eq!(mirror.queued(&place.vault).await.unwrap(), std::slice::from_ref(&snapshot.id));
    assert_eq!(mirror.snapshots(place.vault.key()).await.unwrap().total, 0);
    // Were they sent once more, these bytes would be seen.
    let file = place.path(&format!("vaults/test/uploads/{}.bundle", snapshot.id));
    let mut bundle = fs::OpenOptions::new().write(true).open(&file).unwrap();
    std::io::Write::write_all(&mut bundle, &vec![0; 10 << 20]).unwrap();
    let uploaded = mirror.upload(&place.vault, &snapshot.id).await.unwrap();
    assert!(uploaded.is_mirrored());
    assert!(!file.exists());
    mirror.verify(&place.vault, &snapshot.id, VerifyLevel::Digest).await.unwrap();
}

#[cfg(all(feature = "s3", feature = "testing"))]
mod parts {
    #[tokio::test]
    async fn that_have_arrived_at_moto_are_not_sent_again() {
        match super::Remote::moto() {
            Ok(remote) => super::parts_that_have_arrived_are_not_sent_again(remote).await,
            Err(missing) => println!("skipped: needs {missing}"),
        }
    }

    #[tokio::test]
    async fn that_have_arrived_at_rclone_are_not_sent_again() {
        match super::Remote::rclone() {
            Ok(remote) => super::parts_that_have_arrived_are_not_sent_again(remote).await,
            Err(missing) => println!("skipped: needs {missing}"),
        }
    }
}
