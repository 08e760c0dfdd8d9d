//! Files of a vault that a disk has damaged: none of them stops the vault, or hides another snapshot.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sandhold_persist::{
    CaptureOptions, RepoKey, Retention, SnapId, Vault, VaultConfig, VerifyDepth, VerifyOptions,
};
use tokio::runtime::Runtime;

#[derive(Arbitrary, Debug)]
enum Torn {
    Record,
    Ref,
    PackedRefs,
    Index,
    Pack,
    Journal,
    Cache,
    Generation,
}

struct Stage {
    runtime: Runtime,
    home: PathBuf,
    /// A vault as it was before anything happened to it, by its files.
    files: Vec<(PathBuf, Vec<u8>)>,
    ids: Vec<SnapId>,
}

fn open(runtime: &Runtime, home: &Path) -> Vault {
    let config = VaultConfig::new(home, RepoKey::new("fuzz").expect("a key"));
    runtime.block_on(Vault::open(config)).expect("a vault")
}

fn gather(root: &Path, dir: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => gather(root, &path, files),
            false => files.push((
                path.strip_prefix(root).expect("below").to_owned(),
                std::fs::read(&path).expect("a file"),
            )),
        }
    }
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let home = tempfile::tempdir_in("/dev/shm").expect("a directory").keep();
        let (first, work) = (home.join("first"), home.join("work"));
        std::fs::create_dir(&work).expect("a directory");
        let vault = open(&runtime, &first);
        let mut ids = Vec::new();
        for content in ["one", "two"] {
            std::fs::write(work.join("file"), content).expect("a file");
            let captured = runtime.block_on(vault.capture(&work, CaptureOptions::new()));
            ids.push(captured.expect("a snapshot").id);
        }
        let mut files = Vec::new();
        gather(&first, &first, &mut files);
        Stage { runtime, home, files, ids }
    })
}

fuzz_target!(|input: (Torn, &[u8])| {
    let stage = stage();
    let (torn, bytes) = input;
    let dir = tempfile::tempdir_in(&stage.home).expect("a directory");
    for (path, content) in &stage.files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, content).expect("a file");
    }
    for empty in ["fuzz/staging", "fuzz/journal"] {
        std::fs::create_dir_all(dir.path().join(empty)).expect("a directory");
    }
    let root = dir.path().join("fuzz");
    let with_ending = |dir: &str, ending: &str| {
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(root.join(dir)).expect("files").flatten().map(|entry| entry.path()).collect();
        found.retain(|path| path.extension().is_some_and(|is| is == ending));
        found.sort();
        found.remove(0)
    };
    let victim = match torn {
        Torn::Record => root.join(format!("records/{}.json", stage.ids[0])),
        Torn::Ref => root.join("vault.git").join(stage.ids[0].ref_name()),
        Torn::PackedRefs => root.join("vault.git/packed-refs"),
        Torn::Index => with_ending("vault.git/objects/pack", "idx"),
        Torn::Pack => with_ending("vault.git/objects/pack", "pack"),
        Torn::Journal => root.join("journal/restore-000000000000.json"),
        Torn::Cache => with_ending("cache", "scan"),
        Torn::Generation => root.join("generation"),
    };
    std::fs::write(victim, bytes).expect("a file");

    let vault = open(&stage.runtime, dir.path());
    stage.runtime.block_on(async {
        let known = vault.snapshots().await.expect("a list");
        if !matches!(torn, Torn::Index | Torn::Pack) {
            assert!(known.iter().any(|snapshot| snapshot.id == stage.ids[1]), "another snapshot is hidden");
        }
        let _ = vault.unfinished_restores().await;
        let _ = vault.verify_all(VerifyOptions::new().with_depth(VerifyDepth::Content)).await;
        let _ = vault.prune(Retention::new().with_max_count(1).with_dry(true)).await;
        vault.repair(None).await.expect("a repair");
        if !matches!(torn, Torn::Index | Torn::Pack | Torn::PackedRefs) {
            let good = vault.verify(&stage.ids[1], VerifyOptions::new()).await.expect("a look");
            assert!(good.is_good(), "{good:?}");
            vault.capture(stage.home.join("work"), CaptureOptions::new()).await.expect_err("nothing changed");
        }
    });
});
