//! The real program, on a free port and with a home of its own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// The key that the server asks for; it is one to E2B's own rules, too.
pub(crate) const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// A server that runs until this is dropped, then ends with all its sandboxes.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    address: SocketAddr,
    home: TempDir,
    options: Vec<String>,
}

impl Served {
    /// Starts a server, with these options beside its address, key and home.
    pub(crate) fn start(options: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let state = home.path().join("state");
        fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
        // Base trees are read-only and named by their content: all tests of one user share them, and build them once.
        let bases = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("bases-{}", rustix::process::geteuid().as_raw()));
        fs::create_dir_all(&bases).unwrap();
        std::os::unix::fs::symlink(bases, state.join("base")).unwrap();
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        let (child, address) = run(&state, "127.0.0.1:0", &options);
        Self { child, address, home, options }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The variables that lead an SDK to this server, or to what stands in front of it.
    #[allow(dead_code, reason = "not every test program runs an SDK")]
    pub(crate) fn variables(address: SocketAddr) -> Vec<(&'static str, String)> {
        let url = format!("http://{address}");
        vec![("E2B_API_KEY", KEY.to_owned()), ("E2B_API_URL", url.clone()), ("E2B_SANDBOX_URL", url)]
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    /// Kills the server as a crash does, and starts another over the same home at another address.
    #[allow(dead_code, reason = "not every test program restarts it")]
    pub(crate) fn crash_and_restart(&mut self) {
        self.crash_and_restart_after(|| ());
    }

    /// As [`crash_and_restart`](Self::crash_and_restart), with something done while no server runs.
    #[allow(dead_code, reason = "not every test program restarts it")]
    pub(crate) fn crash_and_restart_after(&mut self, meanwhile: impl FnOnce()) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        meanwhile();
        (self.child, self.address) = run(&self.state(), "127.0.0.1:0", &self.options);
    }

    /// Asks the server to stop, waits until it did, and starts another over the same home at another address.
    #[allow(dead_code, reason = "not every test program stops it")]
    pub(crate) fn stop_and_restart(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        (self.child, self.address) = run(&self.state(), "127.0.0.1:0", &self.options);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its sandboxes outlive the server, as they are to.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for sandbox in fs::read_dir(self.state().join("sandboxes")).into_iter().flatten().flatten() {
            let mut destroy = program();
            destroy
                .args(["sandhold-helper", "local", "destroy", "--dir"])
                .arg(sandbox.path())
                .stderr(Stdio::null());
            let _ = destroy.stdin(Stdio::null()).stdout(Stdio::null()).status();
        }
    }
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sandhold-server"))
}

/// Runs the program until it says where it listens.
fn run(home: &Path, listen: &str, options: &[String]) -> (Child, SocketAddr) {
    let mut command = program();
    command.args(["--listen", listen, "--home"]).arg(home).args(options);
    command.env("SANDHOLD_API_KEY", KEY).env("SANDHOLD_LOG", "warn");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said = line.trim().strip_prefix("listening on http://").and_then(|address| address.parse().ok());
    let address = said.unwrap_or_else(|| panic!("the first line is {line:?}"));
    (child, address)
}
