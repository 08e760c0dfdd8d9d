//! Where measurements happen: a real server with one sandbox, and one of thousands that are only records.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use sandhold_core::testing::FakeProvider;
use sandhold_core::{
    Attempt, CreateOptions, Generation, Key, Owner, ProcessSpec, SandboxHandle, SandboxHandleExt as _,
    SandboxProvider as _, SandboxSpec, Tags,
};
use sandhold_e2b::testing::Proxy;
use sandhold_e2b::{E2bConfig, E2bProvider, PublicTraffic};
use sandhold_server::{Server, ServerConfig};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::packages::Packages;
use crate::peers::{self, KEY};
use crate::{Failure, Result};

/// The name of the server program, and the variable that names another.
const SERVER: &str = "sandhold-server";
const SERVER_VARIABLE: &str = "SANDHOLD_SERVER";

fn provider(server: SocketAddr) -> Result<E2bProvider> {
    let url = format!("http://{server}");
    let config = E2bConfig::new(KEY).with_api_url(&url).with_sandbox_url(url);
    Ok(E2bProvider::new(config.with_public_traffic(PublicTraffic::Everybody))?)
}

fn options() -> Result<CreateOptions> {
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new("bench")?,
        generation: Generation::random()?,
        attempt: Attempt::random()?,
    };
    let lease = std::time::Duration::from_secs(4 * 3600);
    Ok(CreateOptions::new(SandboxSpec::default().with_lease(lease), tags))
}

/// The server program over a home of its own, with one sandbox, and the SDKs.
pub(crate) struct Stage {
    server: Child,
    address: SocketAddr,
    packages: Packages,
    runtime: Runtime,
    sandbox: Option<Arc<dyn SandboxHandle>>,
    _home: TempDir,
}

impl Stage {
    pub(crate) fn open() -> Result<Self> {
        let program = find_server()?;
        let packages = peers::install(&program.with_file_name("e2b_peers-sdk"))?;
        let home = TempDir::new()?;
        let mut server = Command::new(program)
            .args(["--listen", "127.0.0.1:0", "--home"])
            .arg(home.path())
            .env("SANDHOLD_API_KEY", KEY)
            .env("SANDHOLD_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = server.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line.trim().strip_prefix("listening on http://").and_then(|text| text.parse().ok());
        let address = address.ok_or_else(|| format!("the server said {line:?}"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut stage = Self { server, address, packages, runtime, sandbox: None, _home: home };
        stage.sandbox = Some(
            stage
                .runtime
                .block_on(async { Ok::<_, Failure>(provider(address)?.create_opts(options()?).await?) })?,
        );
        Ok(stage)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn packages(&self) -> &Packages {
        &self.packages
    }

    fn handle(&self) -> Result<&Arc<dyn SandboxHandle>> {
        self.sandbox.as_ref().ok_or_else(|| "there is no sandbox".into())
    }

    pub(crate) fn sandbox(&self) -> Result<&str> {
        Ok(self.handle()?.id().as_str())
    }

    /// Runs a line of shell in the sandbox.
    pub(crate) fn run(&self, line: &str) -> Result<()> {
        let output =
            self.runtime.block_on(self.handle()?.exec(ProcessSpec::argv("/bin/sh", ["-c", line])))?;
        if output.exit.success() { Ok(()) } else { Err(format!("{line} ended with {}", output.exit).into()) }
    }

    /// A proxy that counts, in front of the server.
    pub(crate) fn proxy(&self) -> Result<Proxy> {
        Ok(self.runtime.block_on(Proxy::start(self.address))?)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let (Some(sandbox), Ok(provider)) = (self.sandbox.take(), provider(self.address)) {
            // What is left goes at its lease's end.
            let _ = self.runtime.block_on(provider.destroy(sandbox.id()));
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn find_server() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(SERVER_VARIABLE).filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let beside = std::env::current_exe()?.with_file_name(SERVER);
    if beside.is_file() {
        return Ok(beside);
    }
    let build = "cargo build --release -p sandhold-server";
    Err(format!("{} is not there; build it by `{build}`, or set {SERVER_VARIABLE}", beside.display()).into())
}

/// A server over sandboxes that are only records.
pub(crate) struct Crowd {
    address: SocketAddr,
    ids: Vec<String>,
    _runtime: Runtime,
    _home: TempDir,
}

impl Crowd {
    pub(crate) fn open(count: usize) -> Result<Self> {
        let home = TempDir::new()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (address, ids) = runtime.block_on(async {
            let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let config = ServerConfig::new().with_listen(listen).with_api_key(KEY).with_home(home.path());
            let server = Server::start(Arc::new(FakeProvider::new()), config).await?;
            let address = server.local_addr();
            tokio::spawn(server.serve(std::future::pending()));
            let (provider, mut ids) = (provider(address)?, Vec::with_capacity(count));
            for _ in 0..count {
                ids.push(provider.create_opts(options()?).await?.id().to_string());
            }
            Ok::<_, Failure>((address, ids))
        })?;
        Ok(Self { address, ids, _runtime: runtime, _home: home })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn count(&self) -> u64 {
        self.ids.len() as u64
    }

    pub(crate) fn ids(&self, most: usize) -> Vec<String> {
        self.ids.iter().take(most).cloned().collect()
    }
}
