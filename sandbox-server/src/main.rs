//! The program `sandhold-server`: an E2B-compatible server over sandboxes of this machine.

mod args;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use sandhold_local::{LocalConfig, LocalProvider};
use sandhold_server::{RootImporter, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::args::{Args, Wish};

fn main() -> ExitCode {
    // This program is its own helper: nothing else has to be installed.
    sandhold_local::init();
    let args = match Args::parse(std::env::args_os().skip(1), |name| std::env::var(name).ok()) {
        Ok(Wish::Serve(args)) => args,
        Ok(Wish::Show(text)) => return say(&mut std::io::stdout(), text, ExitCode::SUCCESS),
        Err(problem) => return say(&mut std::io::stderr(), &format!("sandhold-server: {problem}"), 2.into()),
    };
    let filter = EnvFilter::try_from_env("SANDHOLD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    let run = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))
        .and_then(|runtime| runtime.block_on(serve(*args)));
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(&mut std::io::stderr(), &format!("sandhold-server: {problem}"), ExitCode::FAILURE)
        }
    }
}

async fn serve(args: Args) -> Result<(), String> {
    let mut local = LocalConfig::new();
    if let Some(home) = args.home {
        local = local.with_home(home);
    }
    let provider = LocalProvider::new(local).map_err(|error| error.to_string())?;
    let home = provider.home().join("server");
    let wait = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
    let (mut terminate, mut interrupt) = (wait(SignalKind::terminate())?, wait(SignalKind::interrupt())?);
    let provider = Arc::new(provider);
    let config = args.server.with_home(home).with_importer(Arc::clone(&provider) as Arc<dyn RootImporter>);
    let server = Server::start(provider, config).await.map_err(|error| error.to_string())?;
    // The promise of the first line: whoever reads it may connect.
    say(&mut std::io::stdout(), &format!("listening on http://{}", server.local_addr()), ExitCode::SUCCESS);
    server
        .serve(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await;
    Ok(())
}

/// Writes one line for a person or a program that started this one; one that is gone does not matter.
fn say(to: &mut impl Write, text: &str, code: ExitCode) -> ExitCode {
    let _ = writeln!(to, "{text}");
    let _ = to.flush();
    code
}
