//! Runs the official SDKs, as their registries publish them, against whatever envd a test starts.
//!
//! In their debug mode (`E2B_DEBUG=true`) the SDKs talk to one fixed address and need no control plane. So one
//! envd is judged at a time, and a lock keeps other test programs of this machine waiting.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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

/// The SDKs, installed, and the one right to the address.
pub(crate) struct Judge {
    packages: PathBuf,
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
        let judge = Self { packages: target.join("sdk"), _turn: turn };
        judge.install_javascript()?;
        judge.install_python()?;
        Ok(judge)
    }

    /// Runs the JavaScript tests in a folder of the suite against the envd that listens now.
    pub(crate) fn javascript(&self, folder: &str, users: Users) {
        let dir = self.packages.join("js").join(folder);
        let mut command = Command::new("node");
        command.args(["--test", "--test-reporter=tap", "--test-concurrency=1", "--test-timeout=240000"]);
        command.args(files(&dir).filter(|path| path.to_string_lossy().ends_with(".test.mjs")));
        let (output, text) = self.run(command.current_dir(&dir), users);
        let count = |what: &str| {
            let line = text.lines().rev().find_map(|line| line.strip_prefix(&format!("# {what} ")));
            line.and_then(|number| number.parse::<usize>().ok())
        };
        let held = count("pass").unwrap_or(0);
        assert!(output.status.success() && count("fail") == Some(0) && held > 0, "{text}");
        println!("{folder}: {held} JavaScript tests held, {} left out", count("skipped").unwrap_or(0));
        for line in text.lines().filter(|line| line.contains("# SKIP")) {
            println!("left out: {}", line.trim());
        }
    }

    /// Runs the Python tests in a folder of the suite against the envd that listens now.
    pub(crate) fn python(&self, folder: &str, users: Users) {
        let dir = self.packages.join("python").join(folder);
        let mut command = Command::new(self.packages.join("venv/bin/python"));
        command.args(["-B", "-X", "faulthandler", "-m", "unittest", "discover", "--start-directory", "."]);
        let (output, text) = self.run(command.current_dir(&dir), users);
        let held = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<usize>().ok());
        let ended_well = text.lines().any(|line| line == "OK");
        assert!(output.status.success() && ended_well && held.is_some_and(|held| held > 0), "{text}");
        println!("{folder}: {} Python tests held", held.unwrap_or(0));
    }

    fn run(&self, command: &mut Command, users: Users) -> (Output, String) {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().to_ascii_lowercase();
            if text.starts_with("e2b_") || text.ends_with("_proxy") {
                command.env_remove(name);
            }
        }
        command.env("E2B_DEBUG", "true").stdin(Stdio::null());
        command.env("SANDHOLD_SDK_USERS", if users == Users::One { "single" } else { "many" });
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        (output, String::from_utf8_lossy(&text).into_owned())
    }

    fn install_javascript(&self) -> Result<(), String> {
        let modern = "const [a, b] = process.versions.node.split('.'); process.exit(a > 20 || (a == 20 && b >= 18) ? 0 : 1)";
        if !succeeds(Command::new("node").args(["-e", modern])) {
            return Err("node 20.18 or newer".to_owned());
        }
        let dir = self.packages.join("js");
        copy_tests(&sources().join("js"), &dir);
        let lock = fs::read(dir.join("package-lock.json")).unwrap();
        let stamp = dir.join("node_modules/.sandhold-installed");
        if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
            return Ok(());
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&dir);
        installed(&mut npm, "npm and the package e2b from its registry")?;
        fs::write(stamp, lock).unwrap();
        Ok(())
    }

    fn install_python(&self) -> Result<(), String> {
        let modern =
            "import sys, venv, ensurepip; print(sys.executable); sys.exit(sys.version_info < (3, 11))";
        let found = Command::new("python3").args(["-c", modern]).output();
        let Some(found) = found.ok().filter(|found| found.status.success()) else {
            return Err("python3 3.11 or newer with venv".to_owned());
        };
        copy_tests(&sources().join("python"), &self.packages.join("python"));
        let requirements = self.packages.join("python/requirements.txt");
        let wanted = [found.stdout, fs::read(&requirements).unwrap()].concat();
        let venv = self.packages.join("venv");
        let stamp = venv.join(".sandhold-installed");
        if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        let what = "pip and the package e2b from its registry";
        installed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv), what)?;
        let mut pip = Command::new(venv.join("bin/pip"));
        installed(pip.args(["install", "--quiet", "--requirement"]).arg(&requirements), what)?;
        fs::write(stamp, wanted).unwrap();
        Ok(())
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

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sandbox-envd/tests/sdk")
}

fn files(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter()
}

/// Lays the tests beside the installed packages, so that they are found; what is no longer a test goes.
fn copy_tests(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for old in files(to).filter(|path| path.is_file()) {
        fs::remove_file(old).unwrap();
    }
    for path in files(from) {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tests(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn installed(command: &mut Command, what: &str) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{what} ({})", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{what} ({error})")),
    }
}
