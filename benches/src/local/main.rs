//! Measures the local provider: each promise with its bound beside it, in one run.
//!
//! `cargo run --release -p sandhold-benches --bin local [-- --json] [--quick] [--only NAME]... [--home DIR]`
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is what this program is for; progress goes beside it"
)]

#[path = "../helper.rs"]
mod helper;
mod latency;
mod memory;
mod report;
mod stage;
mod throughput;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::report::Report;
use crate::stage::Stage;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const USAGE: &str = "usage: local [--json] [--quick] [--only NAME]... [--home DIR]
NAME is one of create, exec, connect, pause, acquire, stdout, files, memory";

/// What this program was asked for.
#[derive(Debug, Default)]
struct Options {
    json: bool,
    quick: bool,
    only: Vec<String>,
    /// Where the state directory is made; default the directory for temporary files.
    home: Option<PathBuf>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => options.json = true,
                "--quick" => options.quick = true,
                "--only" => options.only.push(args.next().ok_or(USAGE)?),
                "--home" => options.home = Some(args.next().ok_or(USAGE)?.into()),
                _ => return Err(format!("{arg:?} is not known; {USAGE}").into()),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.split_first() {
        Some((first, rest)) if first == latency::CONNECT_CHILD => latency::connect_child(rest),
        _ => Options::parse(args.into_iter()).and_then(|options| measure(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    // One thread for calls and streams: a hop between threads would cost more than what is measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stage = Stage::open(options.home.as_deref(), options.quick)?;
        let mut report = Report::new(&stage);
        // The first start builds the base tree, which later ones share.
        stage.create().await?.destroy().await?;
        for name in ["create", "exec", "connect", "pause", "acquire", "stdout", "files", "memory"] {
            if !options.wants(name) {
                continue;
            }
            eprintln!("measuring {name}");
            match name {
                "create" => latency::create(&stage, &mut report).await?,
                "exec" => latency::exec(&stage, &mut report).await?,
                "connect" => latency::connect(&stage, &mut report).await?,
                "pause" => latency::pause(&stage, &mut report).await?,
                "acquire" => latency::acquire(&stage, &mut report).await?,
                "stdout" => throughput::stdout(&stage, &mut report).await?,
                "files" => throughput::files(&stage, &mut report).await?,
                _ => memory::alive(&stage, &mut report).await?,
            }
        }
        report.finish();
        if options.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            println!("{report}");
        }
        Ok(())
    })
}
