//! The program that runs local sandboxes: their monitor, their PID 1, and what finishes their work.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandhold_local::helper_main(std::env::args_os().skip(1))
}
