//! A Postgres cluster of a test program's own.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

pub(crate) mod proxy;

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandhold_registry::{PostgresConfig, PostgresRegistry};
use tempfile::TempDir;

/// Who runs the programs when the tests are root's: they refuse root.
const NOBODY: u32 = 65534;

/// A cluster on a Unix socket in a directory of its own. It ends with the process that made it, however that ends.
pub(crate) struct Cluster {
    directory: TempDir,
    programs: PathBuf,
    server: Child,
}

/// The programs of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|versions| versions.filter_map(|version| Some(version.ok()?.path().join("bin"))).collect())
        .unwrap_or_default();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = found.into_iter().rev().chain(std::env::split_paths(&path));
    all.find(|directory| directory.join("initdb").exists() && directory.join("postgres").exists())
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

fn command(program: &Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            &NOBODY.to_string(),
            "--regid",
            &NOBODY.to_string(),
            "--clear-groups",
            "--",
        ]);
        command.arg(program);
        command
    } else {
        Command::new(program)
    };
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

impl Cluster {
    /// Starts one; `Err` says what this machine lacks.
    pub(crate) async fn start() -> Result<Self, String> {
        let programs = programs().ok_or("postgres")?;
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        if is_root() {
            chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let made = command(&programs.join("initdb"))
            .args([
                "--auth=trust",
                "--username=sandhold",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
                "-D",
            ])
            .arg(directory.path().join("data"))
            .output()
            .map_err(|error| format!("a user who may run postgres ({error})"))?;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let server = serve(&programs, directory.path());
        let cluster = Self { directory, programs, server };
        cluster.answers().await;
        Ok(cluster)
    }

    /// The directory of its socket.
    pub(crate) fn socket(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn url(&self) -> String {
        url(self.socket())
    }

    /// Looks into the database as an operator does.
    pub(crate) async fn sql(&self) -> tokio_postgres::Client {
        connect(&self.url()).await.unwrap()
    }

    /// Ends the server without a chance to put anything in order, and starts it again on what it had written.
    pub(crate) async fn crash(&mut self) {
        let pid = std::fs::read_to_string(self.directory.path().join("data/postmaster.pid")).unwrap();
        let pid = pid.lines().next().unwrap().to_owned();
        assert!(Command::new("kill").args(["-QUIT", &pid]).status().unwrap().success());
        // The pipe stays open: it is the server that ends, not the test.
        let pipe = self.server.stdin.take();
        self.server.wait().unwrap();
        drop(pipe);
        self.server = serve(&self.programs, self.directory.path());
        self.answers().await;
    }

    async fn answers(&self) {
        sandhold_core::testing::conformance::eventually("the database answers", async || {
            connect(&self.url()).await.ok()
        })
        .await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) fn url(socket: &Path) -> String {
    format!("host={} user=sandhold dbname=postgres", socket.display())
}

/// The server under a shell that ends it, and removes its files, when the test program has ended and so closed the pipe.
fn serve(programs: &Path, directory: &Path) -> Child {
    let script = "exec 3<&0
        \"$0\" -D \"$1/data\" -k \"$1\" -c listen_addresses= -c fsync=off -c max_connections=200 2>>\"$1/log\" &
        server=$!
        { cat >/dev/null <&3; : >\"$1/over\"; kill -INT $server; } &
        wait $server
        kill $! 2>/dev/null
        [ ! -e \"$1/over\" ] || rm -rf \"$1\"";
    let mut command = command(Path::new("/bin/sh"));
    command.args(["-c", script]).arg(programs.join("postgres")).arg(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// One cluster for all tests of a program: each has a schema of its own.
static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
static SCHEMAS: AtomicUsize = AtomicUsize::new(0);

fn shared() -> Result<&'static Cluster, String> {
    let shared = SHARED.get_or_init(|| {
        // In a runtime of its own, as each test has its own too.
        let start = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(Cluster::start())
        };
        std::thread::spawn(start).join().unwrap()
    });
    shared.as_ref().map_err(Clone::clone)
}

/// A schema of the shared cluster that nobody else uses.
pub(crate) struct Schema {
    cluster: &'static Cluster,
    pub(crate) name: String,
}

impl Schema {
    pub(crate) async fn new() -> Result<Self, String> {
        let cluster = tokio::task::spawn_blocking(shared).await.unwrap()?;
        let name = format!("s{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
        Ok(Self { cluster, name })
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        PostgresConfig::new(&self.cluster.url()).unwrap().with_schema(&self.name).with_connections(4)
    }

    pub(crate) async fn open(&self) -> PostgresRegistry {
        PostgresRegistry::open(self.config()).await.unwrap()
    }

    pub(crate) fn socket(&self) -> &Path {
        self.cluster.socket()
    }

    pub(crate) async fn sql(&self) -> tokio_postgres::Client {
        self.cluster.sql().await
    }
}
