//! The server as a process of its own, and the line to it that breaks.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use sandhold_core::{ListFilter, SandboxProvider as _, SandboxProviderExt as _};
use sandhold_e2b::testing::{Answer, Fault, Proxy, RetryAfter, Route, Rule};
use sandhold_local::{LocalConfig, LocalProvider};
use sandhold_server::{Server, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::Outcome;
use crate::host::API_KEY;

/// Says to this program that it is the server, and over which state directory.
pub(crate) const SERVER_VARIABLE: &str = "SANDHOLD_CHAOS_SERVER";

/// Serves until standard input ends or the process is killed.
pub(crate) async fn serve(home: PathBuf) -> Outcome<()> {
    let provider = LocalProvider::new(LocalConfig::new().with_home(&home))?;
    let config = ServerConfig::new()
        .with_listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .with_home(home.join("server"))
        .with_api_key(API_KEY);
    let server = Server::start(Arc::new(provider), config).await?;
    println!("{}", server.local_addr());
    server
        .serve(async {
            let mut input = BufReader::new(tokio::io::stdin()).lines();
            while let Ok(Some(_)) = input.next_line().await {}
        })
        .await;
    Ok(())
}

/// The state directory, the server over it, and the proxy before it.
pub(crate) struct Stage {
    home: TempDir,
    server: Child,
    address: SocketAddr,
    pub(crate) proxy: Proxy,
}

impl Stage {
    pub(crate) async fn start() -> Outcome<Self> {
        let home = tempfile::Builder::new().prefix("sandhold-chaos-").tempdir()?;
        std::fs::DirBuilder::new().mode(0o700).create(home.path().join("state"))?;
        let (server, address) = run(&home.path().join("state")).await?;
        let proxy = Proxy::start(address).await?;
        Ok(Self { home, server, address, proxy })
    }

    /// Where a run may keep files.
    pub(crate) fn directory(&self) -> &Path {
        self.home.path()
    }

    /// Where the server is without the proxy.
    pub(crate) fn direct(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Kills the server, and starts another over what it left.
    pub(crate) async fn kill_server(&mut self) -> Outcome<()> {
        self.server.kill().await?;
        (self.server, self.address) = run(&self.home.path().join("state")).await?;
        self.proxy.set_upstream(self.address);
        Ok(())
    }

    /// Another line to the same server, without what the old one remembers of all that passed.
    pub(crate) async fn renew_line(&mut self) -> Outcome<()> {
        self.proxy = Proxy::start(self.address).await?;
        Ok(())
    }

    /// Ends the server and all its sandboxes.
    pub(crate) async fn end(mut self) -> Outcome<()> {
        self.server.kill().await?;
        let provider = LocalProvider::new(LocalConfig::new().with_home(self.home.path().join("state")))?;
        for sandbox in provider.list_all(ListFilter::default()).await? {
            provider.destroy(&sandbox.id).await?;
        }
        Ok(())
    }
}

async fn run(home: &Path) -> Outcome<(Child, SocketAddr)> {
    let mut server = Command::new(std::env::current_exe()?)
        .env(SERVER_VARIABLE, home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = server.stdout.take().ok_or("the server has no output")?;
    let line = BufReader::new(output).lines().next_line().await?.ok_or("the server did not start")?;
    Ok((server, line.parse()?))
}

/// One fault for the next request that it is for.
pub(crate) fn fault(rng: &mut Rng) -> Rule {
    let route = [
        Route::Create,
        Route::Create,
        Route::Connect,
        Route::Info,
        Route::List,
        Route::Destroy,
        Route::Pause,
        Route::Inside,
    ];
    let route = route[rng.usize(..route.len())];
    let some_time = Duration::from_millis(rng.u64(1..400));
    let busy = |status| Answer::error(status, "come again").with_retry_after(&RetryAfter::Seconds(0));
    let statuses = [408, 429, 500, 502, 503, 504];
    let status = statuses[rng.usize(..statuses.len())];
    let fault = match rng.u32(..12) {
        0 => Fault::ResetBefore,
        1 | 2 => Fault::LoseAnswer,
        3 => Fault::Truncate(rng.u64(..40)),
        4 => Fault::Answer(busy(status)),
        5 => Fault::AnswerAfter(busy(status)),
        // What something on the way says that knows no sandboxes.
        6 => Fault::Answer(Answer::new(404)),
        7 => Fault::HangBefore,
        8 => Fault::HangAfter,
        9 | 10 => Fault::Delay(some_time),
        _ => Fault::DelayAnswer(some_time),
    };
    // A bare 404 to a create would make an old server of this one, whose creates are told apart by nothing.
    let fault = match (fault, route) {
        (Fault::Answer(_), Route::Create) => Fault::Answer(busy(503)),
        (fault, _) => fault,
    };
    Rule::new(fault).with_route(route).times(1)
}
