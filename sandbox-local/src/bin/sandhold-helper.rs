//! The program that runs local sandboxes: their monitor, their PID 1, and what finishes their work.

use std::process::ExitCode;

// That of musl maps and unmaps each buffer of the size that output is read in.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    sandhold_local::helper_main(std::env::args_os().skip(1))
}
