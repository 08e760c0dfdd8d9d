//! The program `sandhold-helper`, as a function that other programs can be too.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::cleanup;
use crate::failure::{Failure, FailureKind};
use crate::{monitor, probe, snapshot, sudo};

const USAGE: &str = "usage: sandhold-helper local (run | recover | stop | destroy) --dir DIR | local probe --home DIR | \
     local snapshot --dir DIR --to DIR | local import --from DIR --to DIR | local discard --path DIR";

/// Whether this program called [`init`], and so can be started as the helper.
static IS_OWN_HELPER: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_own_helper() -> bool {
    IS_OWN_HELPER.load(Ordering::Relaxed)
}

/// Becomes the helper if this process was started as one; otherwise returns at once.
///
/// A program that calls this first thing in `main`, before it starts a thread, can be its own helper.
pub fn init() {
    IS_OWN_HELPER.store(true, Ordering::Relaxed);
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    if is_sudo(&name) {
        crate::sys::exit_now(i32::from(sudo::run(&args.collect::<Vec<_>>())));
    }
    if args.next().is_some_and(|first| first == "sandhold-helper") {
        let code = run(&args.collect::<Vec<_>>());
        crate::sys::exit_now(i32::from(code));
    }
}

/// Runs the helper with these arguments, which do not include the name of the program.
///
/// Under the name `sudo` it is the one inside a sandbox.
pub fn helper_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if is_sudo(&std::env::args_os().next().unwrap_or_default()) {
        return ExitCode::from(sudo::run(&args));
    }
    ExitCode::from(run(&args))
}

fn is_sudo(name: &OsString) -> bool {
    Path::new(name).file_name().is_some_and(|name| name == "sudo")
}

fn run(args: &[OsString]) -> u8 {
    let words: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap_or_default()).collect();
    let found = match words.as_slice() {
        ["local", "run", "--dir", _] => return u8::from(monitor::run(&PathBuf::from(&args[3])).is_err()),
        ["local", "recover", "--dir", _] => cleanup::recover(Path::new(&args[3])),
        ["local", "stop", "--dir", _] => cleanup::stop(Path::new(&args[3])),
        ["local", "snapshot", "--dir", _, "--to", _] => {
            return answer(snapshot::take(Path::new(&args[3]), Path::new(&args[5])));
        }
        ["local", "import", "--from", _, "--to", _] => {
            return answer(snapshot::import(Path::new(&args[3]), Path::new(&args[5])));
        }
        ["local", "discard", "--path", _] => return answer(snapshot::discard(Path::new(&args[3]))),
        ["local", "destroy", "--dir", _] => cleanup::destroy(Path::new(&args[3])),
        ["sudo", ..] => return sudo::run(&args[1..]),
        ["local", "probe", "--home", _] => return answer(probe::probe(Path::new(&args[3]))),
        _ => Err(Failure::new(FailureKind::InvalidArgument, USAGE)),
    };
    answer(found)
}

/// Writes the result as one line of JSON and returns the exit code.
fn answer(result: Result<impl Serialize, Failure>) -> u8 {
    let text = match &result {
        Ok(found) => serde_json::to_string(found),
        Err(error) => serde_json::to_string(error),
    };
    let written = writeln!(std::io::stdout(), "{}", text.unwrap_or_default());
    u8::from(result.is_err() || written.is_err())
}
