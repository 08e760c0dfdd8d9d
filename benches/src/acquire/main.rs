//! What acquiring costs this process: the memory of idle handles, and the processor time of an acquire on a warm record.
//!
//! `acquire [HANDLES]`, by default 10,000. Exits with 1 when a bound is not met.
#![expect(clippy::print_stdout, reason = "the report is what this program is for")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sandhold_core::testing::{FakeOptions, FakeProvider, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Exclusion, MemoryRegistry, Registry, Sandbox, Sandboxes,
};
use sandhold_registry::SqliteRegistry;
use tempfile::TempDir;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Failure>;

/// The most that one idle handle may take.
const MOST_BYTES: u64 = 4 * 1024;

/// The most processor time that one acquire on a warm record may take; of a build that is not optimised, three times that.
const MOST_TIME: Duration = Duration::from_millis(if cfg!(debug_assertions) { 3 } else { 1 });

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<ExitCode> {
    let handles = match std::env::args().nth(1) {
        Some(text) => text.parse().map_err(|error| format!("{text:?} is no number of handles: {error}"))?,
        None => 10_000,
    };
    let mut met = true;

    let mut shape = FakeOptions::default();
    // The fake goes through all its sandboxes to find those of a key, which is no part of what is measured.
    shape.capabilities.tags = false;
    let fake = FakeProvider::with_options(shape);
    let sandboxes = Sandboxes::new(Arc::new(fake.clone()));
    met &= idle(&sandboxes, handles).await?;

    let records = TempDir::new()?;
    let sqlite = SqliteRegistry::open(records.path().join("records.db")).await?;
    met &= warm("a record in memory", &fake, Arc::new(MemoryRegistry::new())).await?;
    met &= warm("a record in SQLite", &fake, Arc::new(sqlite)).await?;
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// This process is the only host there is: nobody is to be excluded, and without tags nobody else could be found.
fn options() -> AcquireOptions {
    AcquireOptions::default().with_exclusion(Exclusion::BestEffort)
}

/// Holds one handle of each key, and shares out by how much the process has grown since it last held none.
async fn idle(sandboxes: &Sandboxes, handles: usize) -> Result<bool> {
    // What the sandboxes and their records take is no part of the handles: they are made, and let go of.
    for index in 0..handles {
        sandboxes.acquire(format!("key-{index}"), options()).await?;
    }
    let before = resident()?;
    let mut held: Vec<Sandbox> = Vec::with_capacity(handles);
    for index in 0..handles {
        held.push(sandboxes.acquire(format!("key-{index}"), options()).await?.sandbox);
    }
    let each = resident()?.saturating_sub(before) / handles as u64;
    let met = each <= MOST_BYTES;
    println!("an idle handle: {each} bytes, the mean of {handles} (at most {MOST_BYTES}: {})", yes(met));
    Ok(met)
}

/// Acquires one key again and again.
async fn warm(name: &str, provider: &FakeProvider, registry: Arc<dyn Registry>) -> Result<bool> {
    const TIMES: u32 = 2_000;
    let sandboxes = Sandboxes::new(Arc::new(provider.clone())).with_registry(registry);
    sandboxes.acquire("warm", options()).await?;
    let (calls, before) = (provider.counts(), processor_time());
    for _ in 0..TIMES {
        let acquired = sandboxes.acquire("warm", options()).await?;
        if acquired.outcome != AcquireOutcome::Connected {
            return Err("a warm record was not attached to".into());
        }
    }
    let each = (processor_time() - before) / TIMES;
    let after = provider.counts();
    let [finds, connects] =
        [Verb::Find, Verb::Connect].map(|verb| (after.of(verb) - calls.of(verb)) as f64 / f64::from(TIMES));
    let met = each <= MOST_TIME && (finds, connects) == (1.0, 1.0);
    println!(
        "acquire on {name}: {each:?} of processor time, {finds} find, {connects} connect (at most {MOST_TIME:?}, 1, 1: {})",
        yes(met)
    );
    Ok(met)
}

fn yes(met: bool) -> &'static str {
    if met { "yes" } else { "NO" }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// What this process has in memory, in bytes.
fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kibibytes.ok_or("/proc/self/smaps_rollup has no Rss")? * 1024)
}
