//! The official SDKs, as their registries publish them, installed beside a suite of tests that use them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A suite with folders `js` and `python`, beside the packages that it needs.
#[derive(Debug)]
pub(crate) struct Packages(PathBuf);

impl Packages {
    /// Copies a suite to `dir` and installs what is not installed yet.
    ///
    /// # Errors
    ///
    /// What is missing on this machine.
    pub(crate) fn install(suite: &Path, dir: &Path) -> Result<Self, String> {
        let packages = Self(dir.to_owned());
        packages.install_javascript(&suite.join("js"))?;
        packages.install_python(&suite.join("python"))?;
        Ok(packages)
    }

    /// Where they are installed.
    #[allow(dead_code, reason = "tests run them where they are")]
    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    /// Runs the JavaScript tests in a folder of the suite, so many files at a time.
    pub(crate) fn javascript(&self, folder: &str, at_once: usize, variables: &[(&str, String)]) {
        let dir = self.0.join("js").join(folder);
        let mut command = Command::new("node");
        command.args(["--test", "--test-reporter=tap", "--test-timeout=240000"]);
        command.arg(format!("--test-concurrency={at_once}"));
        command.args(files(&dir).filter(|path| path.to_string_lossy().ends_with(".test.mjs")));
        let (output, text) = run(command.current_dir(&dir), variables);
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

    /// Runs the Python tests in the files of this name in a folder of the suite.
    pub(crate) fn python(&self, folder: &str, name: &str, variables: &[(&str, String)]) {
        let dir = self.0.join("python").join(folder);
        let mut command = Command::new(self.0.join("venv/bin/python"));
        command.args(["-B", "-X", "faulthandler", "-m", "unittest", "discover", "--start-directory", "."]);
        let (output, text) = run(command.args(["--pattern", name]).current_dir(&dir), variables);
        let held = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<usize>().ok());
        let ended = text.lines().rev().find(|line| line.starts_with("OK"));
        assert!(output.status.success() && ended.is_some() && held.is_some_and(|held| held > 0), "{text}");
        println!("{folder}/{name}: {} Python tests held, {}", held.unwrap_or(0), ended.unwrap_or_default());
    }

    fn install_javascript(&self, suite: &Path) -> Result<(), String> {
        let modern = "const [a, b] = process.versions.node.split('.'); process.exit(a > 20 || (a == 20 && b >= 18) ? 0 : 1)";
        if !succeeds(Command::new("node").args(["-e", modern])) {
            return Err("node 20.18 or newer".to_owned());
        }
        let dir = self.0.join("js");
        copy_tests(suite, &dir);
        let lock = fs::read(dir.join("package-lock.json")).unwrap();
        let stamp = dir.join("node_modules/.sandhold-installed");
        if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
            return Ok(());
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&dir);
        installed(&mut npm, "npm and the packages of the suite from its registry")?;
        fs::write(stamp, lock).unwrap();
        Ok(())
    }

    fn install_python(&self, suite: &Path) -> Result<(), String> {
        let modern =
            "import sys, venv, ensurepip; print(sys.executable); sys.exit(sys.version_info < (3, 11))";
        let found = Command::new("python3").args(["-c", modern]).output();
        let Some(found) = found.ok().filter(|found| found.status.success()) else {
            return Err("python3 3.11 or newer with venv".to_owned());
        };
        copy_tests(suite, &self.0.join("python"));
        let requirements = self.0.join("python/requirements.txt");
        let wanted = [found.stdout, fs::read(&requirements).unwrap()].concat();
        let venv = self.0.join("venv");
        let stamp = venv.join(".sandhold-installed");
        if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        let what = "pip and the packages of the suite from its registry";
        installed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv), what)?;
        let mut pip = Command::new(venv.join("bin/pip"));
        installed(pip.args(["install", "--quiet", "--requirement"]).arg(&requirements), what)?;
        fs::write(stamp, wanted).unwrap();
        Ok(())
    }
}

/// Runs a program of a suite with nothing in its environment that would lead the SDKs elsewhere.
fn run(command: &mut Command, variables: &[(&str, String)]) -> (Output, String) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_ascii_lowercase();
        if text.starts_with("e2b_") || text.ends_with("_proxy") {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8_lossy(&text).into_owned())
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
