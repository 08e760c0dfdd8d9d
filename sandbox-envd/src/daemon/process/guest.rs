//! Processes that the embedding program starts on descriptors of its own, next to those that clients start.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::oneshot;

use crate::daemon::process::reaper::{Exit, Reaper};
use crate::daemon::process::signal::by_number;
use crate::daemon::process::spawn::{self, Command, Stdio};
use crate::daemon::state::State;

/// What to start.
#[non_exhaustive]
#[derive(Debug)]
pub struct GuestCommand {
    /// The program, looked up in the `PATH` of `env` when it has no slash.
    pub program: String,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// Where it starts.
    pub cwd: PathBuf,
    /// As whom, by name.
    pub user: String,
    /// Its standard input, output and error.
    pub stdio: [OwnedFd; 3],
}

impl GuestCommand {
    /// Returns a command with these descriptors, no arguments and an empty environment, in `/` as `root`.
    pub fn new(program: impl Into<String>, stdio: [OwnedFd; 3]) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            user: "root".to_owned(),
            stdio,
        }
    }
}

/// How a guest ended.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestExit {
    /// By itself.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Nobody knows.
    Unknown,
}

/// A guest that runs; it goes on when this is dropped.
#[derive(Debug)]
pub struct Guest {
    pid: Pid,
    exit: oneshot::Receiver<Exit>,
    reaper: Arc<Reaper>,
}

impl Guest {
    /// Starts `command`; blocks until it runs or failed to.
    pub(crate) fn start(state: &State, command: GuestCommand) -> io::Result<Self> {
        let user = state.users.by_name(&command.user)?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("there is no user {:?}", command.user))
        })?;
        let reaper = state.processes.reaper()?;
        let [stdin, stdout, stderr] = command.stdio;
        let stdio = [spawn::above_stdio(stdin)?, spawn::above_stdio(stdout)?, spawn::above_stdio(stderr)?];
        let command = Command {
            program: command.program,
            args: command.args,
            env: command.env,
            cwd: command.cwd,
            user,
            mode: state.config.user_mode,
            setup: state.config.child_setup.clone(),
            stdio: Stdio::Pipes { stdin: true },
        };
        let (pid, exit) = spawn::spawn_on(&command, stdio, &reaper).map_err(io::Error::other)?;
        Ok(Self { pid, exit, reaper })
    }

    /// Sends a signal to the guest alone; false if it ended.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn signal(&self, number: i32) -> io::Result<bool> {
        self.reaper.signal(self.pid, known(number)?)
    }

    /// Sends a signal to the guest and the rest of its process group, as a terminal does; false if it ended.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn signal_group(&self, number: i32) -> io::Result<bool> {
        let signal = known(number)?;
        self.reaper
            .while_waited_for(self.pid, || kill_process_group(self.pid, signal).map_err(io::Error::from))
    }

    /// Waits until the guest ends.
    ///
    /// # Cancellation
    /// Can be asked again.
    pub async fn exited(&mut self) -> GuestExit {
        match (&mut self.exit).await {
            Ok(Exit::Code(code)) => GuestExit::Code(code),
            Ok(Exit::Signal { number, .. }) => GuestExit::Signal(number),
            Err(_) => GuestExit::Unknown,
        }
    }
}

fn known(number: i32) -> io::Result<Signal> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidInput, format!("no signal {number}"));
    by_number(number).ok_or_else(unknown)
}
