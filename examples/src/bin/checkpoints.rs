//! Keeps the work of a sandbox after each turn of an agent, loses everything but the mirror, and goes on elsewhere.
//!
//! Run it by `make checkpoints`. Copies go to a directory, or to the bucket that `SANDHOLD_BUCKET` names, with the
//! credentials in `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, at the server `SANDHOLD_S3_ENDPOINT` where it is not
//! Amazon's.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandhold_core::{AcquireOptions, MemoryRegistry, Sandbox, SandboxHandleExt as _, Sandboxes};
use sandhold_local::{LocalConfig, LocalProvider};
use sandhold_persist::{
    CaptureOptions, Mirror, MirrorConfig, MirrorMode, MirrorTarget, Phase, ProgressFn, RemoteWorkspace,
    RepoKey, RestoreOptions, S3Target, SnapId, Vault, VaultConfig, VaultHook,
};

/// The caller's own id for the sandbox, which names its work too.
const KEY: &str = "checkpoints";
/// The workspace inside.
const WORK: &str = "/home/user/project";
/// What the agent does, turn by turn. The last one is a mistake.
const TURNS: [&str; 3] = [
    "mkdir -p src && for i in $(seq 2000); do echo \"part $i\" >src/part$i.txt; done && echo draft >plan.md",
    "sed -i s/draft/final/ plan.md && rm src/part1.txt",
    "rm -rf src && echo oops >plan.md",
];

type Done<T> = Result<T, Box<dyn Error>>;

/// One of two hosts, which share the mirror and nothing else.
struct Host {
    vault: Vault,
    mirror: Mirror,
    hook: Arc<VaultHook>,
    sandboxes: Sandboxes,
}

impl Host {
    async fn new(home: &Path) -> Done<Self> {
        let vault = Vault::open(VaultConfig::new(home, RepoKey::new("my-project")?)).await?;
        let mirror = Mirror::open(mirror_config())?;
        // A long capture says how far it is.
        let told = AtomicU64::new(0);
        let progress = ProgressFn::new(move |progress| {
            let so_far = progress.files / 500 * 500;
            if progress.phase == Phase::Storing && told.fetch_max(so_far, Ordering::Relaxed) < so_far {
                println!("     … {so_far} files stored");
            }
        });
        let hook = VaultHook::new(vault.clone(), WORK)
            .with_mirror(mirror.clone())
            .with_capture(CaptureOptions::new().with_progress(progress));
        let hook = Arc::new(hook);
        let sandboxes = Sandboxes::new(Arc::new(LocalProvider::new(LocalConfig::new())?))
            .with_registry(Arc::new(MemoryRegistry::default()))
            .with_persist(hook.clone());
        Ok(Self { vault, mirror, hook, sandboxes })
    }

    async fn acquire(&self) -> Done<Sandbox> {
        Ok(self.sandboxes.acquire(KEY, AcquireOptions::default()).await?.sandbox)
    }
}

/// Every snapshot is copied as soon as it is there.
fn mirror_config() -> MirrorConfig {
    let target = match std::env::var("SANDHOLD_BUCKET") {
        Ok(bucket) => {
            let target = S3Target::new(bucket);
            MirrorTarget::S3(match std::env::var("SANDHOLD_S3_ENDPOINT") {
                Ok(server) => target.with_endpoint(server),
                Err(_) => target,
            })
        }
        Err(_) => {
            MirrorTarget::File(std::env::temp_dir().join(format!("sandhold-mirror-{}", std::process::id())))
        }
    };
    MirrorConfig::new(target).with_mode(MirrorMode::All)
}

#[tokio::main]
async fn main() -> Done<()> {
    let home = std::env::temp_dir().join(format!("sandhold-checkpoints-{}", std::process::id()));
    let done = both(&home).await;
    for left in [home, std::env::temp_dir().join(format!("sandhold-mirror-{}", std::process::id()))] {
        let _ = std::fs::remove_dir_all(left);
    }
    done
}

async fn both(home: &Path) -> Done<()> {
    let good = first_host(&home.join("first")).await?;
    // Whatever the first host had is lost.
    std::fs::remove_dir_all(home.join("first"))?;
    second_host(&home.join("second"), &good).await
}

/// Takes three turns with a checkpoint after each, and returns the last one that is any good.
async fn first_host(home: &Path) -> Done<SnapId> {
    println!("── first host");
    let host = Host::new(home).await?;
    // A sandbox of an earlier run is none of ours.
    host.sandboxes.destroy(KEY).await?;
    let sandbox = host.acquire().await?;
    shell(&sandbox, &format!("mkdir -p {WORK}")).await?;
    let mut ids = Vec::new();
    for (turn, work) in (1..).zip(TURNS) {
        shell(&sandbox, &format!("cd {WORK} && {work}")).await?;
        let snapshot = host.hook.save(&sandbox).await?.ok_or("nothing has changed")?;
        let copy =
            snapshot.remote.as_ref().filter(|_| snapshot.is_mirrored()).ok_or("there is no copy of it")?;
        println!(
            "turn {turn}: {} has {} files, and a copy at {}/{}",
            snapshot.id, snapshot.files, copy.bucket, copy.key
        );
        ids.push(snapshot.id);
    }
    sandbox.destroy().await?;
    println!("the sandbox, and all that this host had, are gone");
    Ok(ids.remove(1))
}

/// Gets the work from the mirror, finds the mistake in it, and goes back to the turn before.
async fn second_host(home: &Path, good: &SnapId) -> Done<()> {
    println!("── second host");
    let host = Host::new(home).await?;
    let sandbox = host.acquire().await?;
    println!("acquired a new sandbox with the newest work, plan.md: {}", plan(&sandbox).await?);
    for found in host.mirror.snapshots(host.vault.key()).await?.snapshots {
        println!("     the mirror has {} of {} files", found.snapshot.id, found.snapshot.files);
    }
    host.mirror.fetch(&host.vault, good.as_str()).await?;
    let workspace = RemoteWorkspace::new(KEY, WORK)?;
    let restored = host.vault.restore_sandbox(&sandbox, &workspace, good, RestoreOptions::new()).await?;
    println!("went back to {good}: {} files written, plan.md: {}", restored.written, plan(&sandbox).await?);
    let whole = plan(&sandbox).await? == "final"
        && shell(&sandbox, &format!("ls {WORK}/src | wc -l")).await? == "1999";
    sandbox.destroy().await?;
    match whole {
        true => Ok(()),
        false => Err("it is not what the second turn had made".into()),
    }
}

async fn plan(sandbox: &Sandbox) -> Done<String> {
    shell(sandbox, &format!("cat {WORK}/plan.md")).await
}

async fn shell(sandbox: &Sandbox, command: &str) -> Done<String> {
    let output = sandbox.shell(command).await?;
    match output.exit.success() {
        true => Ok(output.stdout.text().trim().to_owned()),
        false => Err(format!("{command}: {}", output.stderr.text()).into()),
    }
}
