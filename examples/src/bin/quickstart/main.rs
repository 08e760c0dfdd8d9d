//! Lets go of a sandbox in the hardest way and gets exactly that one back.
//!
//! A first host acquires a sandbox, puts a git repository in, serves it and begins to edit it. It is killed by SIGKILL in
//! the middle of that. A second host acquires the same key. Run it by `make quickstart [REPO=path]`.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

mod first_host;
mod repository;
mod second_host;
mod traces;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandhold_core::{Result, Sandboxes};
use sandhold_local::{LocalConfig, LocalProvider};
use sandhold_registry::SqliteRegistry;

/// The caller's own id for the sandbox.
const KEY: &str = "quickstart";
/// Where the repository's web server listens inside.
const PORT: u16 = 8000;
/// The user's view of the repository inside.
const REPO: &str = "/home/user/repo";
/// The edits that the work makes, and the one at which the first host is killed.
const EDITS: u32 = 60;
const KILL_AT: u32 = 20;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["first-host", repo] => first_host::run(repo).await.map_err(Into::into),
        ["second-host"] => second_host::run().await.map_err(Into::into),
        [] => tokio::task::block_in_place(|| both(".")),
        [repo] => tokio::task::block_in_place(|| both(repo)),
        _ => Err("usage: quickstart [REPOSITORY]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the first host until it is in the middle of its work, kills it, and runs the second.
fn both(repo: &str) -> std::result::Result<(), Box<dyn Error>> {
    let this = std::env::current_exe()?;
    println!("── first host");
    let mut first = Command::new(&this).args(["first-host", repo]).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(first.stdout.take().ok_or("no output")?).lines();
    for line in lines {
        let line = line?;
        println!("{line}");
        if line.trim() == format!("edit {KILL_AT}") {
            first.kill()?;
            println!(
                "── SIGKILL to the first host, process {}, in the middle of its work: {}",
                first.id(),
                first.wait()?
            );
            println!("── second host");
            let second = Command::new(&this).arg("second-host").status()?;
            return if second.success() { Ok(()) } else { Err("the second host failed".into()) };
        }
    }
    Err(format!("the first host ended before its work began: {}", first.wait()?).into())
}

/// Opens the sandboxes of this machine, with records that outlive this process.
async fn sandboxes() -> Result<(LocalProvider, Sandboxes)> {
    let provider = LocalProvider::new(LocalConfig::new())?;
    let registry = SqliteRegistry::open(provider.home().join("registry.sqlite")).await?;
    let sandboxes = Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry));
    Ok((provider, sandboxes))
}

/// Prints what happened and how long it took.
fn report(since: Instant, what: &str) {
    let took: Duration = since.elapsed();
    println!("[{:>8.1} ms] {what}", took.as_secs_f64() * 1000.0);
}
