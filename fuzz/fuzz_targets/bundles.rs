//! Files that say that they are bundles.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sandhold_persist::{ImportOptions, RepoKey, Vault, VaultConfig};
use tokio::runtime::Runtime;

struct Stage {
    runtime: Runtime,
    vault: Vault,
    file: PathBuf,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let home = tempfile::tempdir_in("/dev/shm").expect("a directory").keep();
        let file = home.join("x.bundle");
        let config = VaultConfig::new(home, RepoKey::new("fuzz").expect("a key"));
        let vault = runtime.block_on(Vault::open(config)).expect("a vault");
        Stage { runtime, vault, file }
    })
}

fuzz_target!(|input: (bool, &[u8])| {
    let stage = stage();
    let (is_headed, bytes) = input;
    let head: &[u8] = if is_headed {
        b"# v2 git bundle\n0123456789abcdef0123456789abcdef01234567 refs/sandbox/snapshots/20200101-000000-000000\n\n"
    } else {
        b""
    };
    std::fs::write(&stage.file, [head, bytes].concat()).expect("a file");
    stage.runtime.block_on(async {
        let header = Vault::bundle_header(&stage.file).await;
        let options = ImportOptions::new().with_any_repository(true).with_incremental(true);
        let imported = stage.vault.import_bundle(&stage.file, options).await;
        // No bytes have the commit that the header promises.
        let refused = imported.expect_err("taken");
        assert!(header.is_ok() || refused.reason() == Some("damaged") || refused.reason().is_none());
        assert!(stage.vault.snapshots().await.expect("a list").is_empty());
    });
});
