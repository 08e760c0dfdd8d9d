//! Manifests that strangers put into a mirror, and that a disk has damaged: none is believed, and none hides another.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sandhold_persist::{
    CaptureOptions, Mirror, MirrorConfig, MirrorTarget, RepoKey, Snapshot, Vault, VaultConfig, VerifyLevel,
};
use tokio::runtime::Runtime;

struct Stage {
    runtime: Runtime,
    mirror: Mirror,
    /// A snapshot that is in the mirror, and another one whose manifest is written over.
    good: Snapshot,
    victim: Snapshot,
    manifest: PathBuf,
    home: PathBuf,
}

fn key() -> RepoKey {
    RepoKey::new("fuzz").expect("a key")
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let home = tempfile::tempdir_in("/dev/shm").expect("a directory").keep();
        let (work, bucket) = (home.join("work"), home.join("mirror"));
        std::fs::create_dir(&work).expect("a directory");
        let mirror = Mirror::open(MirrorConfig::new(MirrorTarget::File(bucket.clone()))).expect("a mirror");
        let mut made = runtime.block_on(async {
            let vault = Vault::open(VaultConfig::new(home.join("first"), key())).await.expect("a vault");
            let mut made = Vec::new();
            for content in ["one", "two"] {
                std::fs::write(work.join("file"), content).expect("a file");
                let snapshot = vault.capture(&work, CaptureOptions::new()).await.expect("a snapshot");
                made.push(mirror.upload(&vault, &snapshot.id).await.expect("an upload"));
            }
            made
        });
        let (victim, good) = (made.pop().expect("two"), made.pop().expect("two"));
        let manifest = bucket.join(format!("snapshots/fuzz/{}.json", victim.id));
        assert!(manifest.exists());
        Stage { runtime, mirror, good, victim, manifest, home }
    })
}

fuzz_target!(|bytes: &[u8]| {
    let stage = stage();
    if let Ok(snapshot) = serde_json::from_slice::<Snapshot>(bytes) {
        let text = serde_json::to_vec(&snapshot).expect("a manifest");
        assert_eq!(serde_json::from_slice::<Snapshot>(&text).expect("a manifest"), snapshot);
        let _ = (snapshot.status(), snapshot.is_mirrored(), snapshot.active_at());
    }
    std::fs::write(&stage.manifest, bytes).expect("a file");
    let fresh = tempfile::tempdir_in(&stage.home).expect("a directory");
    stage.runtime.block_on(async {
        let listed = stage.mirror.snapshots(&key()).await.expect("a list");
        assert!(listed.snapshots.iter().any(|found| found.snapshot.id == stage.good.id), "another is hidden");
        let _ = stage.mirror.orphans(&key()).await;
        let vault = Vault::open(VaultConfig::new(fresh.path(), key())).await.expect("a vault");
        let _ = stage.mirror.verify(&vault, &stage.victim.id, VerifyLevel::Digest).await;
        if let Ok(fetched) = stage.mirror.fetch(&vault, stage.victim.id.as_str()).await {
            // Whatever the manifest says, the files are those of a bundle whose sum it names.
            assert_eq!(fetched.snapshot.id, stage.victim.id);
            assert!([stage.victim.tree, stage.good.tree].contains(&fetched.snapshot.tree));
        }
    });
});
