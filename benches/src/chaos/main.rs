//! Kills, freezes and misleads hosts that acquire sandboxes over a line that breaks, and counts what the server then has.
//!
//! `cargo run --release -p sandhold-benches --bin chaos -- [--acquisitions N] [--seed S] [--processes N,N] [--keys M]
//! [--registry sqlite|postgres|none]`
//!
//! Hosts are processes of this program, each with a registry and a clock of its own, and the server is one too: over the
//! provider of this machine, so with real sandboxes. See `docs/acquisition.md`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the report is what this program is for")]

mod clock;
#[path = "../../../sandbox-registry/tests/support/mod.rs"]
mod cluster;
mod host;
mod judge;
mod run;
mod stage;
mod store;
mod words;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use self::cluster::Cluster;
use self::judge::Counts;
use self::run::Run;
use self::stage::Stage;
use self::store::Place;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "usage: chaos [--acquisitions N] [--seed S] [--processes N,N...] [--keys M] \
                     [--registry sqlite|postgres|none]";

/// Acquires between two quiet points.
const A_ROUND: u64 = 250;

struct Options {
    acquisitions: u64,
    seed: u64,
    processes: Vec<usize>,
    keys: usize,
    registries: Vec<String>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut options = Self {
            acquisitions: 600,
            seed: fastrand::u64(..),
            processes: vec![1, 2, 8, 32],
            keys: 12,
            registries: ["sqlite", "postgres", "none"].map(str::to_owned).into(),
        };
        while let Some(arg) = args.next() {
            let value = args.next().ok_or(USAGE)?;
            match arg.as_str() {
                "--acquisitions" => options.acquisitions = value.parse()?,
                "--seed" => options.seed = value.parse()?,
                "--processes" => {
                    options.processes = value.split(',').map(str::parse).collect::<Result<_, _>>()?
                }
                "--keys" => options.keys = value.parse()?,
                "--registry" if options.registries.contains(&value) => options.registries = vec![value],
                _ => return Err(format!("{arg} {value} is not known; {USAGE}").into()),
            }
        }
        if options.keys == 0 || options.processes.is_empty() || options.processes.contains(&0) {
            return Err(format!("there must be a key and a process; {USAGE}").into());
        }
        Ok(options)
    }
}

async fn all(options: &Options) -> Outcome<Counts> {
    println!("seed {}", options.seed);
    let mut stage = Stage::start().await?;
    let counts = runs(options, &mut stage).await;
    // Also after a failure: sandboxes outlive whoever made them.
    stage.end().await?;
    counts
}

/// Every kind of registry with every number of hosts.
async fn runs(options: &Options, stage: &mut Stage) -> Outcome<Counts> {
    let mut cluster = None;
    if options.registries.iter().any(|registry| registry == "postgres") {
        match Cluster::start().await {
            Ok(started) => cluster = Some(started),
            Err(lacks) => println!("skipped: needs {lacks}: nothing is kept in Postgres in this run"),
        }
    }
    let registries: Vec<_> =
        options.registries.iter().filter(|registry| *registry != "postgres" || cluster.is_some()).collect();
    let combinations = (registries.len() * options.processes.len()) as u64;
    if combinations == 0 {
        return Err("there is no registry to run with".into());
    }
    let (mut counts, mut number) = (Counts::default(), 0);
    for registry in registries {
        for &processes in &options.processes {
            // What does not divide goes to the first ones.
            let acquisitions =
                options.acquisitions / combinations + u64::from(number < options.acquisitions % combinations);
            let place = match (registry.as_str(), &cluster) {
                ("sqlite", _) => Place::Sqlite(stage.directory().join(format!("registry-{number}.sqlite"))),
                ("postgres", Some(cluster)) => {
                    Place::Postgres { url: cluster.url(), schema: format!("run_{number}") }
                }
                _ => Place::None,
            };
            let run = Run {
                place,
                owner: format!("chaos-{number}"),
                processes,
                keys: options.keys,
                acquisitions,
                seed: options.seed.wrapping_add(number),
            };
            counts += run::run(stage, &run, (acquisitions / A_ROUND).max(1)).await?;
            number += 1;
        }
    }
    Ok(counts)
}

fn main() -> ExitCode {
    // This program is the helper of its own sandboxes.
    sandhold_local::init();
    let runtime = if std::env::var_os(run::HOST_VARIABLE).is_some() {
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    } else {
        tokio::runtime::Builder::new_multi_thread().enable_all().build()
    };
    let done = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(play()));
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
    }
}

async fn play() -> Outcome<ExitCode> {
    if let Ok(host) = std::env::var(run::HOST_VARIABLE) {
        host::live(serde_json::from_str(&host)?).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(home) = std::env::var_os(stage::SERVER_VARIABLE) {
        stage::serve(home.into()).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse(std::env::args().skip(1))?;
    let begun = Instant::now();
    let counts = all(&options).await?;
    eprintln!("all of it took {:.1} s: {counts:?}", begun.elapsed().as_secs_f64());
    println!("{counts}");
    Ok(if counts.are_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
