//! `sudo` without a setuid program, which could gain nothing under `no_new_privs`: a program of that name asks the
//! daemon, which is root inside, to start the command on its own descriptors.
//!
//! Over a Unix socket: the shim sends the length of a request, with its standard streams attached, and the request
//! as JSON; then one byte for each signal that it is sent. The daemon answers with one line of JSON. Everybody inside
//! may ask: `sudo` asks for no password, and root inside has no right outside.

mod client;
mod server;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(crate) use self::client::run;
pub(crate) use self::server::serve;

/// Where the daemon listens, inside.
pub(crate) const SOCKET: &str = "/run/sandhold/sudo.sock";

/// Largest request: twice what the kernel passes to a program by default.
const MOST_BYTES: usize = 4 << 20;

/// What to run.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    user: String,
    /// Program and arguments; empty for a shell.
    argv: Vec<String>,
    /// Run it by a login shell, in the user's home.
    login: bool,
    /// Run it by a shell.
    shell: bool,
    cwd: PathBuf,
    /// The environment of whoever asks, as far as it is kept, and what was set on the command line.
    env: Vec<(String, String)>,
    /// Set over everything else.
    set: Vec<(String, String)>,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Exit(i32),
    Signal(i32),
    Failed(String),
}
