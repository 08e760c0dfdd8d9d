//! The official E2B SDKs, and what others built on them, unchanged, judge the server.
//!
//! One server serves all suites at the same time. The suites of the daemon run through it once more: what is inside
//! a sandbox must be the same behind a server.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests: a broken rule panics")]

#[path = "../../sandbox-envd/tests/sdk/packages.rs"]
mod packages;
mod support;

use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use packages::Packages;
use support::Served;

/// How many files of JavaScript tests run at a time.
const AT_ONCE: usize = 3;

/// The server of all suites that run now, and the suites of the server and of the daemon with their packages.
struct Court {
    served: Served,
    server: Packages,
    daemon: Packages,
}

impl Court {
    /// Returns the one that is in session, or opens one.
    fn open() -> Result<Arc<Self>, String> {
        static SESSION: Mutex<Weak<Court>> = Mutex::new(Weak::new());
        let mut session = SESSION.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(court) = session.upgrade() {
            return Ok(court);
        }
        let (tests, target) = (Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(env!("CARGO_TARGET_TMPDIR")));
        let court = Arc::new(Self {
            server: Packages::install(&tests.join("tests/sdk"), &target.join("sdk-server"))?,
            daemon: Packages::install(&tests.join("../sandbox-envd/tests/sdk"), &target.join("sdk"))?,
            served: Served::start(&[]),
        });
        *session = Arc::downgrade(&court);
        Ok(court)
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        Served::variables(self.served.address())
    }
}

/// Judges the server by one suite.
fn judged(judge: impl FnOnce(&Court)) {
    match Court::open() {
        Ok(court) => judge(&court),
        Err(missing) => println!("skipped: needs {missing}"),
    }
}

#[test]
fn the_javascript_sdk_finds_the_server_as_it_expects() {
    judged(|court| court.server.javascript(".", AT_ONCE, &court.variables()));
}

#[test]
fn the_javascript_sdk_finds_a_sandbox_behind_the_server_as_it_expects() {
    judged(|court| court.daemon.javascript(".", AT_ONCE, &court.variables()));
}

/// One test for each file of Python tests, so that they run side by side.
macro_rules! python {
    ($($suite:ident $name:ident $file:literal;)*) => {$(
        #[test]
        fn $name() {
            judged(|court| court.$suite.python(".", $file, &court.variables()));
        }
    )*};
}

python! {
    server the_python_sdk_creates_and_finds_sandboxes "test_sandbox.py";
    server the_python_sdk_lists_sandboxes "test_listing.py";
    server the_python_sdk_pauses_and_resumes "test_pause.py";
    server the_python_sdk_forks_and_takes_snapshots "test_snapshots.py";
    server the_python_sdk_hears_of_the_end_of_a_sandbox "test_killed.py";
    server the_python_sdk_uses_tokens_and_signatures "test_secure.py";
    server the_python_sdk_uses_git "test_git.py";
    server the_python_interpreter_finds_a_sandbox "test_interpreter.py";
    server the_python_sdk_builds_templates "test_templates.py";
    server the_python_sdk_keeps_volumes_and_secrets "test_volumes.py";
    server the_python_sdk_reaches_ports "test_ports.py";
    daemon the_python_sdk_runs_commands_behind_the_server "test_commands.py";
    daemon the_python_sdk_reads_and_writes_behind_the_server "test_files.py";
    daemon the_python_sdk_has_terminals_behind_the_server "test_pty.py";
    daemon the_python_sdk_watches_behind_the_server "test_watch.py";
}

/// A file of tests that no test runs would never run.
#[test]
fn every_python_file_is_listed() {
    let listed = include_str!("sdk.rs");
    for suite in ["tests/sdk/python", "../sandbox-envd/tests/sdk/python"] {
        for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(suite)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!name.starts_with("test_") || listed.contains(&format!("\"{name}\"")), "{suite}/{name}");
        }
    }
}
