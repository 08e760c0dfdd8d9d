//! The peers: three programs that carry out the same orders against the same server.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::packages::Packages;

/// The key of every server of this run.
pub(crate) const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// The first argument of this program as a peer.
pub(crate) const OURS: &str = "--peer";

/// One thing to do; all of it is measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Order {
    Connect { id: String },
    Exec { count: u64 },
    Write { count: u64 },
    Read { count: u64 },
    Upload { bytes: u64 },
    Download { bytes: u64 },
    Stdout { bytes: u64 },
    List { count: u64 },
    Hold { ids: Vec<String> },
    Reattach { id: String },
}

/// What became of an order.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Done {
    Well { seconds: f64, loading: f64 },
    Badly { failed: String },
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Ours,
    Js,
    Python,
}

impl Who {
    pub(crate) const ALL: [Self; 3] = [Self::Ours, Self::Js, Self::Python];
}

/// What an order took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// As the peer itself measured it.
    pub(crate) seconds: f64,
    /// From the start of the peer's program until it could begin.
    pub(crate) loading: f64,
    /// Processor time of the peer, in user and kernel, all threads.
    pub(crate) cpu: f64,
}

/// A running peer.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(who: Who, server: SocketAddr, packages: &Packages) -> Result<Self> {
        let mut command = match who {
            Who::Ours => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg(OURS);
                command
            }
            Who::Js => packages.node("peer.mjs"),
            Who::Python => packages.interpreter("peer.py"),
        };
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().to_ascii_lowercase();
            if text.starts_with("e2b_") || text.ends_with("_proxy") {
                command.env_remove(name);
            }
        }
        let url = format!("http://{server}");
        command.env("E2B_API_KEY", KEY).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a peer has no pipes".into());
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    pub(crate) fn carry_out(&mut self, order: &Order) -> Result<Cost> {
        let before = self.cpu()?;
        writeln!(self.input, "{}", serde_json::to_string(order)?)?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match serde_json::from_str(&line).map_err(|error| format!("a peer said {line:?}: {error}"))? {
            Done::Well { seconds, loading } => Ok(Cost { seconds, loading, cpu: self.cpu()? - before }),
            Done::Badly { failed } => Err(failed.into()),
        }
    }

    fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks =
            |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
        // utime and stime, in ticks of 10 ms on every Linux.
        Ok((ticks(11) + ticks(12)) as f64 / 100.0)
    }

    /// Memory that the peer alone takes, in bytes.
    pub(crate) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| "no Pss in smaps_rollup".into())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Installs the SDKs below this directory, once.
pub(crate) fn install(below: &Path) -> Result<Packages> {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/e2b_peers/peers");
    Ok(Packages::install(&suite, below)?)
}
