//! Runs the official SDKs, as their registries publish them, against whatever envd a test starts.
//!
//! In their debug mode (`E2B_DEBUG=true`) the SDKs talk to one fixed address and need no control plane. So one
//! envd is judged at a time, and a lock keeps other test programs of this machine waiting.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::packages::Packages;

/// Where the SDKs look for envd in debug mode.
pub(crate) const ADDRESS: &str = "127.0.0.1:49983";

/// How long an envd may take until it answers.
const START: Duration = Duration::from_secs(30);

/// Whom the sandbox tells apart; tests that need more say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// `root` and `user` own different files.
    Many,
    /// `root` and `user` are two names of one id.
    #[allow(dead_code, reason = "only some sandboxes are like this")]
    One,
}

impl Users {
    fn variables(self) -> [(&'static str, String); 2] {
        let users = if self == Self::One { "single" } else { "many" };
        [("E2B_DEBUG", "true".to_owned()), ("SANDHOLD_SDK_USERS", users.to_owned())]
    }
}

/// The SDKs, installed, and the one right to the address.
pub(crate) struct Judge {
    packages: Packages,
    _turn: File,
}

impl Judge {
    /// Waits for the address and installs what is not installed yet below `target`.
    ///
    /// # Errors
    ///
    /// What is missing on this machine.
    pub(crate) fn new(target: &Path) -> Result<Self, String> {
        let turn = turn();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sandbox-envd/tests/sdk");
        Ok(Self { packages: Packages::install(&sources, &target.join("sdk"))?, _turn: turn })
    }

    /// Runs the JavaScript tests in a folder of the suite against the envd that listens now.
    pub(crate) fn javascript(&self, folder: &str, users: Users) {
        self.packages.javascript(folder, 1, &users.variables());
    }

    /// Runs the Python tests in a folder of the suite against the envd that listens now.
    pub(crate) fn python(&self, folder: &str, users: Users) {
        self.packages.python(folder, "test*.py", &users.variables());
    }
}

/// An envd that a command runs at [`ADDRESS`] until this is dropped.
pub(crate) struct Envd(Child);

impl Envd {
    /// Starts the command and waits until it answers.
    pub(crate) fn start(command: &mut Command) -> Self {
        let free = TcpListener::bind(ADDRESS);
        drop(free.unwrap_or_else(|error| {
            panic!("{ADDRESS} must be free for the SDKs to be told from others: {error}")
        }));
        let child = command.stdin(Stdio::null()).spawn();
        let mut envd = Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let limit = Instant::now() + START;
        while !answers() {
            if let Some(status) = envd.0.try_wait().unwrap() {
                panic!("{command:?} ended before it answered: {status}");
            }
            assert!(Instant::now() < limit, "{command:?} does not answer at {ADDRESS}");
            thread::sleep(Duration::from_millis(20));
        }
        envd
    }
}

impl Drop for Envd {
    fn drop(&mut self) {
        // A failure means that it is gone already, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says whether something healthy listens at [`ADDRESS`].
fn answers() -> bool {
    let ask = || -> io::Result<bool> {
        let mut stream = TcpStream::connect(ADDRESS)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 204"))
    };
    ask().unwrap_or(false)
}

/// Waits until no other test program of this machine uses the address.
fn turn() -> File {
    let path = std::env::temp_dir().join("sandhold-sdk-49983.lock");
    // Whoever made it, anybody may lock it: a lock needs no right to write.
    let made = File::options().write(true).create_new(true).mode(0o644).open(&path);
    assert!(made.is_ok() || path.exists(), "{}: {made:?}", path.display());
    let file = File::open(&path).unwrap();
    file.lock().unwrap();
    file
}
