//! Kills a host, a daemon, a monitor or a copier at as many random moments as asked, and compares what is left with what is said.
//!
//! `cargo run --release -p sandhold-benches --bin chaos-local [-- --moments N] [--seed N] [--quiet]`
#![expect(clippy::print_stdout, reason = "the report is what this program is for")]

#[path = "../../../sandbox-local/tests/support/chaos.rs"]
mod chaos;
#[path = "../helper.rs"]
mod helper;
#[path = "../../../sandbox-local/tests/support/reality.rs"]
mod reality;
#[path = "../../../sandbox-local/tests/support/verdict.rs"]
mod verdict;

use std::error::Error;
use std::process::ExitCode;

use chaos::{Chaos, HOST_VARIABLE};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const USAGE: &str = "usage: chaos-local [--moments N] [--seed N] [--quiet]";

fn options(mut args: impl Iterator<Item = String>) -> Result<Chaos> {
    let mut chaos = Chaos {
        moments: 200,
        seed: fastrand::u64(..),
        helper: helper::find()?,
        host_args: Vec::new(),
        verbose: true,
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--moments" => chaos.moments = args.next().ok_or(USAGE)?.parse()?,
            "--seed" => chaos.seed = args.next().ok_or(USAGE)?.parse()?,
            "--quiet" => chaos.verbose = false,
            _ => return Err(format!("{arg:?} is not known; {USAGE}").into()),
        }
    }
    Ok(chaos)
}

fn main() -> ExitCode {
    let done = if std::env::var_os(HOST_VARIABLE).is_some() {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map(|runtime| runtime.block_on(chaos::host()))
            .map_err(Into::into)
    } else {
        options(std::env::args().skip(1)).map(|options| println!("{}", chaos::run(&options)))
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}
