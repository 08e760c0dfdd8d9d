//! A short run of the harness that kills hosts, with every kind of registry; long ones are started by hand.

#![allow(clippy::print_stdout, reason = "what the run says and skips is to be seen")]

use std::process::Command;

/// Acquires of the short run: enough that each kind of registry sees hosts killed at work.
const ACQUISITIONS: &str = "240";

#[test]
fn killed_hosts_and_a_broken_line_leave_one_sandbox_a_key() {
    let run = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["--acquisitions", ACQUISITIONS, "--processes", "1,8", "--keys", "6"])
        .output()
        .expect("the program runs");
    let (said, progress) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    print!("{said}");
    assert!(run.status.success(), "{said}{progress}");
    let last = said.lines().last().unwrap_or_default();
    let count = |name: &str| {
        let mut pairs = last.split(' ').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(known, _)| *known == name).expect("the last line has it");
        value.parse::<u64>().expect("it is a number")
    };
    assert!(count("acquisitions") >= 240, "{last}");
    assert!(count("keys") > 0 && count("sandboxes") == count("keys"), "{last}");
    assert_eq!([count("unmanaged"), count("lost_setups"), count("stale_writes")], [0; 3], "{last}");
}
