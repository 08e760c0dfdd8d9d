//! Snapshots against the git program on the same trees, interleaved, in one run.
//!
//! `cargo run --release -p sandhold-benches --bin snapshot -- --files 100000 [--runs 5] [--json] [--dir PATH]`

mod copies;
mod trees;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use sandhold_persist::{CaptureOptions, RepoKey, RestoreOptions, Vault, VaultConfig};

type Failure = Box<dyn std::error::Error>;

struct Args {
    files: usize,
    big: usize,
    runs: usize,
    json: bool,
    dirs: Vec<PathBuf>,
}

/// One line of the report.
struct Row {
    what: String,
    ours: Duration,
    theirs: Duration,
    /// The bound of ours divided by theirs.
    bound: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours.as_secs_f64() / self.theirs.as_secs_f64()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("{failure}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn say(line: &str) {
    println!("{line}");
}

fn args() -> Result<Args, Failure> {
    let mut args = Args { files: 100_000, big: 2048, runs: 5, json: false, dirs: Vec::new() };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{name} needs a value"));
        match name.as_str() {
            "--files" => args.files = value()?.parse()?,
            "--big-mib" => args.big = value()?.parse()?,
            "--runs" => args.runs = value()?.parse()?,
            "--dir" => args.dirs.push(value()?.into()),
            "--json" => args.json = true,
            other => return Err(format!("{other} is not known; see the head of the source").into()),
        }
    }
    if args.dirs.is_empty() {
        args.dirs = ["/dev/shm", "/var/tmp"].map(PathBuf::from).into();
    }
    Ok(args)
}

async fn run() -> Result<(), Failure> {
    let args = args()?;
    let mut report = Report { rows: Vec::new(), json: args.json };
    for base in &args.dirs {
        let dir = tempfile::tempdir_in(base)?;
        let name = base.display().to_string();
        small(&args, dir.path(), &name, &mut report).await?;
    }
    if args.big > 0 {
        let base = args.dirs.last().ok_or("no directory")?;
        let dir = tempfile::tempdir_in(base)?;
        big(&args, dir.path(), &base.display().to_string(), &mut report).await?;
    }
    let memory = peak_memory_mib()?;
    if args.json {
        let rows: Vec<_> = report
            .rows
            .iter()
            .map(|row| {
                serde_json::json!({
                    "what": row.what,
                    "ours_s": row.ours.as_secs_f64(),
                    "theirs_s": row.theirs.as_secs_f64(),
                    "ratio": row.ratio(),
                    "bound": row.bound,
                })
            })
            .collect();
        say(&serde_json::json!({ "rows": rows, "peak_memory_mib": memory }).to_string());
    } else {
        say(&format!("peak memory {memory} MiB (bound 300)"));
    }
    Ok(())
}

/// The rows so far; each is shown as soon as it is known, unless all are asked for at once.
struct Report {
    rows: Vec<Row>,
    json: bool,
}

impl Report {
    fn row(&mut self, what: String, ours: &[Duration], theirs: &[Duration], bound: f64) {
        let row = Row { what, ours: median(ours), theirs: median(theirs), bound };
        if !self.json {
            if self.rows.is_empty() {
                say(&format!("{:<62} {:>9} {:>9} {:>7} {:>7}", "", "ours", "theirs", "ratio", "bound"));
            }
            let (ours, theirs) = (row.ours.as_secs_f64(), row.theirs.as_secs_f64());
            let (what, ratio) = (&row.what, row.ratio());
            say(&format!("{what:<62} {ours:>8.3}s {theirs:>8.3}s {ratio:>7.2} {bound:>7.2}"));
        }
        self.rows.push(row);
    }
}

async fn open(dir: &Path, name: &str) -> Result<Vault, Failure> {
    Ok(Vault::open(VaultConfig::new(dir.join("vaults"), RepoKey::new(name)?)).await?)
}

async fn small(args: &Args, dir: &Path, name: &str, report: &mut Report) -> Result<(), Failure> {
    let work = dir.join("work");
    trees::small(&work, args.files)?;
    let git_dir = dir.join("theirs.git");
    let mut times = [const { Vec::new() }; 9];
    let [cold, git_cold, warm, git_warm, process, restore, clone, nothing, watched] = &mut times;
    let options = || CaptureOptions::new().with_max_file(None);

    for run in 0..args.runs {
        let vault = open(dir, &format!("cold{run}")).await?;
        sync()?;
        let begun = Instant::now();
        vault.capture(&work, options()).await?;
        cold.push(begun.elapsed());
        remove(&dir.join(format!("vaults/cold{run}")))?;

        remove(&git_dir)?;
        git(&work, &git_dir, &["init", "-q"])?;
        sync()?;
        let begun = Instant::now();
        git(&work, &git_dir, &["add", "-A"])?;
        git(&work, &git_dir, &["commit", "-qm", "x"])?;
        git_cold.push(begun.elapsed());
    }
    let files = args.files;
    report.row(format!("{name}: {files} files, cold capture / add + commit"), cold, git_cold, 0.35);

    let vault = open(dir, "warm").await?;
    vault.capture(&work, options()).await?;
    // Long enough that no file counts as just written.
    tokio::time::sleep(Duration::from_millis(100)).await;
    vault.capture(&work, options()).await.err().ok_or("something has changed")?;
    for run in 0..args.runs * 2 {
        trees::change(&work, args.files, run)?;
        sync()?;
        let begun = Instant::now();
        vault.capture(&work, options()).await?;
        warm.push(begun.elapsed());
        let begun = Instant::now();
        vault.capture(&work, options()).await.err().ok_or("something has changed")?;
        nothing.push(begun.elapsed());

        let path = trees::change(&work, args.files, run + 500)?;
        sync()?;
        let begun = Instant::now();
        vault.capture(&work, options().with_dirty([path])).await?;
        watched.push(begun.elapsed());

        sync()?;
        let begun = Instant::now();
        git(&work, &git_dir, &["add", "-A"])?;
        git(&work, &git_dir, &["commit", "-qm", "x"])?;
        git_warm.push(begun.elapsed());

        trees::change(&work, args.files, run + 1000)?;
        sync()?;
        let begun = Instant::now();
        let other = open(dir, "warm").await?;
        other.capture(&work, options()).await?;
        process.push(begun.elapsed());
    }

    report.row(format!("{name}: one file changed / add + commit"), warm, git_warm, 0.35);
    report.row(format!("{name}: one file changed, new process / add + commit"), process, git_warm, 0.35);
    report.row(format!("{name}: nothing changed / add + commit of one"), nothing, git_warm, 0.35);
    let limit = [Duration::from_millis(30)];
    report.row(format!("{name}: one file changed, told by a watcher / 30 ms"), watched, &limit, 1.0);

    let last = vault.snapshots().await?.pop().ok_or("no snapshot")?;
    git(&work, &git_dir, &["add", "-A"])?;
    git(&work, &git_dir, &["commit", "-qm", "x"])?;
    for run in 0..args.runs {
        let target = dir.join(format!("restored{run}"));
        sync()?;
        let begun = Instant::now();
        vault.restore(&last.id, &target, RestoreOptions::new()).await?;
        restore.push(begun.elapsed());
        remove(&target)?;

        let target = dir.join(format!("cloned{run}"));
        sync()?;
        let begun = Instant::now();
        let cloned = Command::new("git")
            .args(["clone", "-q", "--local"])
            .args([&git_dir, &target])
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .status()?;
        clone.push(begun.elapsed());
        if !cloned.success() {
            return Err("git clone failed".into());
        }
        remove(&target)?;
    }
    report.row(format!("{name}: restore / clone --local and checkout"), restore, clone, 0.6);
    let copies = copies::measure(&vault, &last.id, &git_dir, dir, args.runs).await?;
    for (what, [ours, theirs]) in [
        ("write a bundle / bundle create", &copies.write),
        ("import a bundle / fetch it, checked", &copies.read),
        ("verify all content / fsck --full", &copies.verify),
        ("gather all packs / gc --prune=now", &copies.gc),
    ] {
        report.row(format!("{name}: {what}"), ours, theirs, 1.0);
    }
    Ok(())
}

/// Big files against what `sha1sum` takes for them: bytes that cannot be deflated, and text.
async fn big(args: &Args, dir: &Path, name: &str, report: &mut Report) -> Result<(), Failure> {
    for (kind, fill) in [("random", trees::random as trees::Fill), ("text", trees::text)] {
        let work = dir.join(kind);
        trees::big(&work, args.big, fill)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for run in 0..args.runs.min(3) {
            let vault = open(dir, &format!("{kind}{run}")).await?;
            sync()?;
            let begun = Instant::now();
            vault.capture(&work, CaptureOptions::new().with_max_file(None)).await?;
            ours.push(begun.elapsed());
            remove(&dir.join("vaults"))?;
            sync()?;
            let begun = Instant::now();
            let summed = Command::new("sh")
                .args(["-c", "sha1sum -- *"])
                .current_dir(&work)
                .stdout(Stdio::null())
                .status()?;
            theirs.push(begun.elapsed());
            if !summed.success() {
                return Err("sha1sum failed".into());
            }
        }
        remove(&work)?;
        let what = format!("{name}: {} MiB {kind} in 20 files / sha1sum", args.big);
        report.row(what, &ours, &theirs, 1.25);
    }
    Ok(())
}

fn git(work: &Path, git_dir: &Path, args: &[&str]) -> Result<(), Failure> {
    let status = Command::new("git")
        .args(["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "gc.auto=0"])
        .args(args)
        .env("GIT_DIR", git_dir)
        .env("GIT_WORK_TREE", work)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdout(Stdio::null())
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("git {args:?} failed").into()) }
}

fn sync() -> Result<(), Failure> {
    Command::new("sync").status()?;
    Ok(())
}

fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(path) {
        Err(failure) if failure.kind() != std::io::ErrorKind::NotFound => Err(failure.into()),
        _ => Ok(()),
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn peak_memory_mib() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? / 1024)
}
