//! The helper program: found, and started so that the sandbox outlives this process.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use sandhold_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::Handle;

use crate::cleanup::Found;
use crate::config::LocalConfig;
use crate::failure::Failure;
use crate::monitor::READY;
use crate::packaged;

/// The name of the helper program.
const HELPER: &str = "sandhold-helper";

/// The five ways to name it.
const WAYS: &str = "build it by `make helper`, then name it by LocalConfig::with_helper or SANDHOLD_HELPER, put it \
                    beside this executable or in PATH, or call sandhold_local::init() first thing in main";

/// The reason of an error that is about the helper itself.
pub(crate) const NO_HELPER: &str = "no_helper";

/// What the helper needs of the environment: to find `newuidmap`, and the libraries of a program that is its own helper.
const KEPT_VARIABLES: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// How long the copy of a sandbox's files may take, which may be many.
const LONGEST_COPY: Duration = Duration::from_secs(3600);

/// The most that the helper may say.
const MAX_ANSWER: u64 = 64 * 1024;

/// The helper program and how it is called.
#[derive(Clone, Debug)]
pub(crate) struct Helper {
    program: PathBuf,
    /// The first word for a program that is its own helper.
    prefix: Option<&'static str>,
}

impl Helper {
    /// Finds the helper: the option, `SANDHOLD_HELPER`, the one of a package, this very program when it called `init`,
    /// beside this executable, `PATH`.
    pub(crate) fn find(config: &LocalConfig, state: &Path) -> Result<Self> {
        if let Some(path) = &config.helper {
            return Self::at(path, "LocalConfig::with_helper");
        }
        if let Some(path) = std::env::var_os("SANDHOLD_HELPER").filter(|path| !path.is_empty()) {
            return Self::at(Path::new(&path), "SANDHOLD_HELPER");
        }
        if let Some(path) = &config.packaged_helper {
            return Ok(Self { program: packaged::executable(path, state)?, prefix: None });
        }
        let own = std::env::current_exe().ok();
        if crate::helper::is_own_helper()
            && let Some(program) = own
        {
            return Ok(Self { program, prefix: Some(HELPER) });
        }
        // Test programs and examples are built one directory below the helper.
        let beside =
            own.iter().flat_map(|own| own.ancestors().skip(1).take(2)).map(|place| place.join(HELPER));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let in_path =
            std::env::split_paths(&path).filter(|place| place.is_absolute()).map(|place| place.join(HELPER));
        match beside.chain(in_path).find(|candidate| is_executable(candidate)) {
            Some(program) => Ok(Self { program, prefix: None }),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the program {HELPER} was not found: {WAYS}"),
            )
            .with_reason(NO_HELPER)),
        }
    }

    fn at(path: &Path, named_by: &str) -> Result<Self> {
        if is_executable(path) {
            return Ok(Self { program: path.to_owned(), prefix: None });
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{} named by {named_by} is not a program: {WAYS}", path.display()),
        )
        .with_reason(NO_HELPER))
    }

    /// Starts the sandbox in `directory` and returns once it answers.
    pub(crate) async fn run(&self, directory: &Path, timeout: Duration) -> Result<()> {
        let command = self.run_command(directory);
        self.spawned(command).await?.ready(timeout).await
    }

    /// Begins to start the sandbox in `directory`. Blocks until the helper was executed.
    pub(crate) fn begin(&self, directory: &Path) -> Result<Started> {
        spawn(self.run_command(directory)).map_err(|error| self.not_started(error))
    }

    fn run_command(&self, directory: &Path) -> Command {
        self.command(&["run".as_ref(), "--dir".as_ref(), directory.as_os_str()])
    }

    /// Finishes the work of a monitor that is gone, and says how far the sandbox is.
    pub(crate) async fn recover(&self, directory: &Path, timeout: Duration) -> Result<Found> {
        self.settle("recover", directory, timeout).await
    }

    /// Ends all processes of the sandbox and keeps its files.
    pub(crate) async fn stop(&self, directory: &Path, timeout: Duration) -> Result<Found> {
        self.settle("stop", directory, timeout).await
    }

    /// Decides, durably, that the sandbox ends, and removes everything of it.
    pub(crate) async fn destroy(&self, directory: &Path, timeout: Duration) -> Result<Found> {
        self.settle("destroy", directory, timeout).await
    }

    /// Copies what a sandbox stands on and wrote into a new layer. Takes as long as there is to copy.
    pub(crate) async fn snapshot(&self, directory: &Path, to: &Path) -> Result<()> {
        let args =
            ["snapshot".as_ref(), "--dir".as_ref(), directory.as_os_str(), "--to".as_ref(), to.as_os_str()];
        self.done(&args).await
    }

    /// Copies a plain tree into a new layer. Takes as long as there is to copy.
    pub(crate) async fn import(&self, from: &Path, to: &Path) -> Result<()> {
        let args = ["import".as_ref(), "--from".as_ref(), from.as_os_str(), "--to".as_ref(), to.as_os_str()];
        self.done(&args).await
    }

    /// Removes what is in the way in staging.
    pub(crate) async fn discard(&self, path: &Path) -> Result<()> {
        self.done(&["discard".as_ref(), "--path".as_ref(), path.as_os_str()]).await
    }

    async fn done(&self, args: &[&OsStr]) -> Result<()> {
        let answer = self.call(args, LONGEST_COPY).await?;
        if answer.trim() == "null" { Ok(()) } else { Err(failure(&answer)) }
    }

    async fn settle(&self, what: &'static str, directory: &Path, timeout: Duration) -> Result<Found> {
        let answer = self.call(&[what.as_ref(), "--dir".as_ref(), directory.as_os_str()], timeout).await?;
        serde_json::from_str(answer.trim()).map_err(|_| failure(&answer))
    }

    /// Finds out by doing it what works on this host; returns JSON.
    pub(crate) async fn probe(&self, home: &Path, timeout: Duration) -> Result<String> {
        self.call(&["probe".as_ref(), "--home".as_ref(), home.as_os_str()], timeout).await
    }

    /// Runs `sandhold-helper local …` and returns the line it says.
    async fn call(&self, args: &[&OsStr], timeout: Duration) -> Result<String> {
        let command = self.command(args);
        self.spawned(command).await?.answer(timeout).await
    }

    fn command(&self, args: &[&OsStr]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(self.prefix)
            .arg("local")
            .args(args)
            // Of its own: an interrupt from the terminal is for this program, and a helper that hangs ends with all that
            // it started.
            .process_group(0)
            // The host's variables may hold its secrets, and what is started lives on for long.
            .env_clear()
            .envs(KEPT_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    async fn spawned(&self, command: Command) -> Result<Started> {
        tokio::task::spawn_blocking(move || spawn(command))
            .await
            .map_err(|error| Error::new(ErrorKind::Unexpected, "the start was ended").with_source(error))?
            .map_err(|error| self.not_started(error))
    }
}

fn spawn(mut command: Command) -> io::Result<Started> {
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().map(OwnedFd::from);
    Ok(Started { child: Reaped(Some(child)), stdout })
}

/// A helper that runs. It detaches by itself, so that the process waited for here is short-lived.
pub(crate) struct Started {
    child: Reaped,
    stdout: Option<OwnedFd>,
}

impl Started {
    /// Waits until the sandbox answers.
    pub(crate) async fn ready(self, timeout: Duration) -> Result<()> {
        let answer = self.answer(timeout).await?;
        match answer.trim() {
            READY => Ok(()),
            text => Err(failure(text)),
        }
    }

    async fn answer(self, timeout: Duration) -> Result<String> {
        let Self { mut child, stdout } = self;
        let read = async {
            let mut line = String::new();
            if let Some(stdout) = stdout {
                // One line is all that it says; the end of the stream comes later.
                let stdout = Receiver::from_owned_fd(stdout)?.take(MAX_ANSWER);
                BufReader::new(stdout).read_line(&mut line).await?;
            }
            Ok::<_, io::Error>(line)
        };
        let answer = tokio::time::timeout(timeout, read).await;
        if answer.is_err() {
            child.kill();
        }
        drop(child);
        match answer {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(error)) => {
                Err(Error::new(ErrorKind::Unexpected, "the helper's answer cannot be read")
                    .with_source(error))
            }
            Err(_) => {
                Err(Error::new(ErrorKind::Timeout, format!("the helper did not answer within {timeout:?}"))
                    .with_outcome(sandhold_core::Outcome::Unknown))
            }
        }
    }
}

/// The process of a helper: waited for once it is not needed any more, also when the call was cancelled.
struct Reaped(Option<Child>);

impl Reaped {
    /// Kills it and all that it started, apart from a monitor that is on its own by then.
    fn kill(&mut self) {
        // It was not waited for, so that its id still is its own.
        let group = self.0.as_ref().and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        // It ends at once: the helper detaches by itself. A host that reaps every child itself leaves nothing to wait
        // for, which is fine.
        let wait = move || drop(child.wait());
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(wait)),
            Err(_) => drop(std::thread::Builder::new().spawn(wait)),
        }
    }
}

fn failure(text: &str) -> Error {
    match serde_json::from_str::<Failure>(text.trim()) {
        Ok(failed) => failed.into(),
        Err(_) => Error::new(ErrorKind::Unexpected, format!("the helper ended without an answer: {text:?}"))
            .with_outcome(sandhold_core::Outcome::Unknown),
    }
}

impl Helper {
    fn not_started(&self, error: io::Error) -> Error {
        let message = format!("{} cannot be started", self.program.display());
        // These say that the file is no program for this machine, the others that the machine is short of something.
        let (kind, ours) = match error.raw_os_error() {
            Some(libc::ENOEXEC | libc::EACCES | libc::ENOENT | libc::ENOTDIR) => {
                (ErrorKind::InvalidArgument, format!("{message}: {WAYS}"))
            }
            _ => (ErrorKind::Unavailable, message),
        };
        let error = Error::new(kind, ours).with_source(error);
        if kind == ErrorKind::InvalidArgument { error.with_reason(NO_HELPER) } else { error.retryable(None) }
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}
