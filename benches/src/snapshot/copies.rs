//! Bundles and looks at a vault, against git on a repository with the same files.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandhold_persist::{BundleOptions, GcOptions, ImportOptions, SnapId, Vault, VerifyOptions};

use crate::{Failure, open, remove, sync};

/// How long each side took, run by run.
#[derive(Default)]
pub(crate) struct Times {
    pub(crate) write: [Vec<Duration>; 2],
    pub(crate) read: [Vec<Duration>; 2],
    pub(crate) verify: [Vec<Duration>; 2],
    pub(crate) gc: [Vec<Duration>; 2],
}

pub(crate) async fn measure(
    vault: &Vault,
    id: &SnapId,
    theirs: &Path,
    dir: &Path,
    runs: usize,
) -> Result<Times, Failure> {
    let mut times = Times::default();
    let (ours_file, their_file) = (dir.join("ours.bundle"), dir.join("theirs.bundle"));
    let git_file = their_file.to_str().ok_or("not UTF-8")?;
    for run in 0..runs {
        let begun = start()?;
        vault.write_bundle(id, &ours_file, BundleOptions::new()).await?;
        times.write[0].push(begun.elapsed());
        let begun = start()?;
        git(theirs, &["bundle", "create", "-q", git_file, "HEAD"])?;
        times.write[1].push(begun.elapsed());

        let other = open(dir, &format!("copy{run}")).await?;
        let begun = start()?;
        other.import_bundle(&ours_file, ImportOptions::new().with_any_repository(true)).await?;
        times.read[0].push(begun.elapsed());
        let fetched = dir.join("fetched.git");
        git(dir, &["init", "-q", "--bare", "fetched.git"])?;
        let begun = start()?;
        // Git checks as much as we do only where it is told to.
        git(&fetched, &["-c", "fetch.fsckObjects=true", "fetch", "-q", git_file, "HEAD:refs/heads/x"])?;
        times.read[1].push(begun.elapsed());

        let begun = start()?;
        other.verify(id, VerifyOptions::new()).await?;
        times.verify[0].push(begun.elapsed());
        let begun = start()?;
        git(&fetched, &["fsck", "--full"])?;
        times.verify[1].push(begun.elapsed());
        // All packs become one, as git's do.
        let begun = start()?;
        other.gc(GcOptions::new().with_min_age(Duration::ZERO).with_max_packs(0)).await?;
        times.gc[0].push(begun.elapsed());
        let begun = start()?;
        git(&fetched, &["gc", "-q", "--prune=now"])?;
        times.gc[1].push(begun.elapsed());
        drop(other);
        for path in [dir.join("vaults").join(format!("copy{run}")), fetched] {
            remove(&path)?;
        }
        std::fs::remove_file(&ours_file)?;
        std::fs::remove_file(&their_file)?;
    }
    Ok(times)
}

fn start() -> Result<Instant, Failure> {
    sync()?;
    Ok(Instant::now())
}

fn git(dir: &Path, args: &[&str]) -> Result<(), Failure> {
    let status = Command::new("git")
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("git {args:?} failed").into()) }
}
