//! The bounds of the program `acquire`: what 10,000 idle handles take, and what an acquire on a warm record costs this process.

#![allow(clippy::print_stdout, reason = "what the run says is to be seen")]

use std::process::Command;

/// Processor time and pages, not the time of day: what else the machine does changes neither.
#[test]
fn idle_handles_and_acquires_on_warm_records_keep_to_their_bounds() {
    let run = Command::new(env!("CARGO_BIN_EXE_acquire")).arg("10000").output().expect("the program runs");
    let (said, failure) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    print!("{said}");
    assert!(run.status.success(), "{said}{failure}");
    assert_eq!(said.lines().count(), 3, "{said}");
}
