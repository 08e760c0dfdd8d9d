//! The daemon as a program of its own, for containers and machines that have no other way to start it.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program speaks to its terminal")]

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::Mode;
use sandhold_envd::{Daemon, DaemonConfig, ENVD_VERSION, Listener, UserMode};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "\
Serves processes, files and ports of this machine to a sandbox client.

usage: sandhold-envd [OPTIONS]

  --listen ADDR:PORT         TCP address; default 127.0.0.1:49983; port 0 takes a free one
  --unix PATH                listen on a Unix socket instead, for this user alone
  --user NAME                user of calls that name none; default root
  --workdir DIR              directory of calls that name none; default the user's home
  --env NAME=VALUE           environment of every process; may be given again
  --access-token-file PATH   ask for the token in this file
  --retain-dir DIR           where kept output lives; default /var/lib/sandhold/processes
  --allow-unauthenticated    listen beyond this machine without a token
  --version, --help
";

/// The address at which clients of E2B's envd look for it.
const DEFAULT_LISTEN: &str = "127.0.0.1:49983";

enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

enum Asked {
    Serve { place: Place, config: Box<DaemonConfig> },
    Say(String),
}

#[derive(Debug)]
struct Problem(String);

impl Problem {
    fn new(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self(format!("{what}: {error}"))
    }
}

fn main() -> ExitCode {
    let result = match parse(std::env::args().skip(1)) {
        Ok(Asked::Say(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Serve { place, config }) => serve(place, *config),
        Err(problem) => Err(problem),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Problem(message)) => {
            eprintln!("sandhold-envd: {message}");
            ExitCode::from(2)
        }
    }
}

fn parse(args: impl Iterator<Item = String>) -> Result<Asked, Problem> {
    let mut args = args;
    let mut listen = None;
    let mut unix = None;
    let mut open = false;
    let mut envs = std::collections::BTreeMap::new();
    let mode = if rustix::process::geteuid().is_root() { UserMode::SetId } else { UserMode::OwnUser };
    let mut config = DaemonConfig::new().with_user_mode(mode).with_init_reaps_all(true);
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| Problem(format!("{flag} needs a value; see --help")));
        match flag.as_str() {
            "--listen" => {
                let text = value()?;
                let parsed =
                    text.parse().map_err(|error| Problem::new(format!("--listen {text:?}"), error))?;
                listen = Some(parsed);
            }
            "--unix" => unix = Some(PathBuf::from(value()?)),
            "--user" => config = config.with_default_user(value()?),
            "--workdir" => config = config.with_default_workdir(value()?),
            "--env" => {
                let text = value()?;
                let (name, value) = text
                    .split_once('=')
                    .filter(|(name, _)| !name.is_empty())
                    .ok_or_else(|| Problem(format!("--env {text:?} is not NAME=VALUE")))?;
                envs.insert(name.to_owned(), value.to_owned());
            }
            "--access-token-file" => config = config.with_access_token(read_token(Path::new(&value()?))?),
            "--retain-dir" => config = config.with_retain_dir(value()?),
            "--allow-unauthenticated" => open = true,
            "--version" => {
                let version = env!("CARGO_PKG_VERSION");
                return Ok(Asked::Say(format!("sandhold-envd {version} (as envd {ENVD_VERSION})")));
            }
            "--help" => return Ok(Asked::Say(USAGE.trim_end().to_owned())),
            other => return Err(Problem(format!("unknown option {other:?}; see --help"))),
        }
    }
    let place = match (listen, unix) {
        (Some(_), Some(_)) => return Err(Problem("give --listen or --unix, not both".to_owned())),
        (None, Some(path)) => Place::Unix(path),
        (Some(address), None) => Place::Tcp(address),
        (None, None) => {
            Place::Tcp(DEFAULT_LISTEN.parse().map_err(|error| Problem::new(DEFAULT_LISTEN, error))?)
        }
    };
    if let Place::Tcp(address) = &place
        && !address.ip().is_loopback()
        && config.access_token.is_none()
        && !open
    {
        return Err(Problem(format!(
            "whoever reaches {address} could run anything here: give --access-token-file, or --allow-unauthenticated"
        )));
    }
    Ok(Asked::Serve { place, config: Box::new(config.with_envs(envs)) })
}

fn read_token(path: &Path) -> Result<String, Problem> {
    let text = std::fs::read_to_string(path).map_err(|error| Problem::new(path.display(), error))?;
    match text.trim() {
        "" => Err(Problem(format!("{}: the token is empty", path.display()))),
        token => Ok(token.to_owned()),
    }
}

fn serve(place: Place, config: DaemonConfig) -> Result<(), Problem> {
    if !rustix::process::getpid().is_init() {
        // What a command leaves behind comes to us to reap, and is found again when its tree is ended.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| Problem::new("becoming the reaper of orphans", error))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Problem::new("starting the runtime", error))?;
    runtime.block_on(async {
        let (listener, name) = listen(&place).await?;
        let daemon = Daemon::new(config).map_err(|error| Problem::new("starting the daemon", error))?;
        // PID 1 gets no signal that it has not asked for.
        let mut terminate =
            signal(SignalKind::terminate()).map_err(|error| Problem::new("SIGTERM", error))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| Problem::new("SIGINT", error))?;
        println!("listening on {name}");
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            daemon.stop();
        };
        tokio::join!(daemon.serve(listener), stop);
        if let Place::Unix(path) = &place {
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    })
}

async fn listen(place: &Place) -> Result<(Listener, String), Problem> {
    match place {
        Place::Tcp(address) => {
            let bound = TcpListener::bind(address).await.map_err(|error| Problem::new(address, error))?;
            let name = bound.local_addr().map_err(|error| Problem::new(address, error))?;
            Ok((bound.into(), format!("http://{name}")))
        }
        Place::Unix(path) => {
            let bound = bind_unix(path).map_err(|error| Problem::new(path.display(), error))?;
            Ok((bound.into(), format!("unix:{}", path.display())))
        }
    }
}

/// Binds a socket that only this user can connect to, in place of one that nobody serves any more.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let stale = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if stale {
        std::fs::remove_file(path)?;
    }
    // Set before the bind, so that there is no moment in which others could connect.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound
}
