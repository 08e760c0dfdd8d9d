//! The one place that waits for children.
//!
//! A child is entered in the table under the same lock that a sweep takes, so no exit is ever seen for a
//! process that nobody waits for yet. Wake-ups by `SIGCHLD` may be merged: every sweep asks until nothing more
//! has ended, and the listener is installed before the first child exists, so none is lost. `tokio::process`
//! is not used anywhere in the daemon: two waiters in one process steal each other's exits.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal { number: i32, core_dumped: bool },
}

/// Which children a sweep may collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Only those started here: the rest of the program may have children of its own.
    Own,
    /// All of them, as PID 1 and a child subreaper must: orphans of others end up here too.
    All,
}

#[derive(Debug)]
pub(crate) struct Reaper {
    scope: Scope,
    waiting: Mutex<HashMap<Pid, oneshot::Sender<Exit>>>,
    listener: Mutex<Option<AbortHandle>>,
}

impl Reaper {
    /// Starts listening for ended children on the current runtime.
    pub(crate) fn start(scope: Scope) -> io::Result<Arc<Self>> {
        let mut ended = signal(SignalKind::child())?;
        let reaper = Arc::new(Self { scope, waiting: Mutex::default(), listener: Mutex::default() });
        let weak = Arc::downgrade(&reaper);
        let task = tokio::spawn(async move {
            while let Some(reaper) = Weak::upgrade(&weak) {
                reaper.sweep();
                drop(reaper);
                if ended.recv().await.is_none() {
                    return;
                }
            }
        });
        *reaper.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        Ok(reaper)
    }

    /// Runs `fork` and waits for the child it made.
    ///
    /// The receiver fails only if somebody else collected the child.
    pub(crate) fn adopt<T>(
        &self,
        fork: impl FnOnce() -> io::Result<(Pid, T)>,
    ) -> io::Result<(Pid, T, oneshot::Receiver<Exit>)> {
        let mut waiting = self.waiting();
        let (pid, rest) = fork()?;
        let (sender, receiver) = oneshot::channel();
        waiting.insert(pid, sender);
        Ok((pid, rest, receiver))
    }

    /// Runs `act` while the child `pid` has not been collected, and so keeps its number; false if it has.
    pub(crate) fn while_waited_for(
        &self,
        pid: Pid,
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<bool> {
        let waiting = self.waiting();
        if !waiting.contains_key(&pid) {
            return Ok(false);
        }
        act().map(|()| true)
    }

    /// Sends a signal to a child that has not been collected yet; false if it has.
    ///
    /// The lock keeps the number from being given to another process in between.
    pub(crate) fn signal(&self, pid: Pid, signal: Signal) -> io::Result<bool> {
        let waiting = self.waiting();
        if !waiting.contains_key(&pid) {
            return Ok(false);
        }
        rustix::process::kill_process(pid, signal)?;
        Ok(true)
    }

    fn sweep(&self) {
        let mut waiting = self.waiting();
        match self.scope {
            Scope::Own => waiting_for_own(&mut waiting),
            Scope::All => waiting_for_all(&mut waiting),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Pid, oneshot::Sender<Exit>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            listener.abort();
        }
    }
}

fn waiting_for_own(waiting: &mut HashMap<Pid, oneshot::Sender<Exit>>) {
    let ended: Vec<(Pid, Option<Exit>)> = waiting
        .keys()
        .filter_map(|&pid| match wait(|| rustix::process::waitpid(Some(pid), WaitOptions::NOHANG)) {
            Ok(Some((_, status))) => Some((pid, exit(status))),
            Ok(None) => None,
            // Somebody else collected it: the receiver learns that the end is unknown.
            Err(_) => Some((pid, None)),
        })
        .collect();
    for (pid, exit) in ended {
        if let (Some(sender), Some(exit)) = (waiting.remove(&pid), exit) {
            // A receiver that is gone has no use for the exit.
            let _ = sender.send(exit);
        }
    }
}

fn waiting_for_all(waiting: &mut HashMap<Pid, oneshot::Sender<Exit>>) {
    loop {
        match wait(|| rustix::process::wait(WaitOptions::NOHANG)) {
            Ok(Some((pid, status))) => {
                if let (Some(sender), Some(exit)) = (waiting.remove(&pid), exit(status)) {
                    let _ = sender.send(exit);
                }
            }
            Ok(None) => return,
            // No child is left at all, so whoever is still waited for was collected by somebody else.
            Err(_) => return waiting.clear(),
        }
    }
}

fn wait<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn exit(status: WaitStatus) -> Option<Exit> {
    if let Some(number) = status.terminating_signal() {
        let core_dumped = libc::WCOREDUMP(status.as_raw());
        return Some(Exit::Signal { number, core_dumped });
    }
    status.exit_status().map(Exit::Code)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn sh(reaper: &Reaper, script: &str) -> oneshot::Receiver<Exit> {
        let fork = || {
            let child = Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::null()).spawn()?;
            Ok((Pid::from_child(&child), ()))
        };
        reaper.adopt(fork).unwrap().2
    }

    async fn five_hundred_that_exit_at_once() {
        let reaper = Reaper::start(Scope::Own).unwrap();
        let exits: Vec<_> = (0..500).map(|n| (n, sh(&reaper, &format!("exit {}", n % 256)))).collect();
        for (n, exit) in exits {
            assert_eq!(exit.await, Ok(Exit::Code(n % 256)));
        }
        assert!(reaper.waiting().is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn no_exit_of_500_children_is_lost_on_one_thread() {
        five_hundred_that_exit_at_once().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_exit_of_500_children_is_lost_on_many_threads() {
        five_hundred_that_exit_at_once().await;
    }

    #[tokio::test]
    async fn a_death_by_signal_is_not_an_exit_code() {
        let reaper = Reaper::start(Scope::Own).unwrap();
        let exit = sh(&reaper, "kill -9 $$").await.unwrap();
        assert_eq!(exit, Exit::Signal { number: 9, core_dumped: false });
    }

    #[tokio::test]
    async fn a_child_collected_by_somebody_else_has_no_made_up_exit() {
        let reaper = Reaper::start(Scope::Own).unwrap();
        let (_, (), exit) = reaper
            .adopt(|| {
                let mut child = Command::new("/bin/sh").args(["-c", "exit 0"]).spawn()?;
                let pid = Pid::from_child(&child);
                child.wait()?;
                Ok((pid, ()))
            })
            .unwrap();
        // The signal of that child came before it was entered; any later one makes the sweep look.
        let later = sh(&reaper, "exit 3");
        assert_eq!(later.await, Ok(Exit::Code(3)));
        assert!(exit.await.is_err());
    }

    #[tokio::test]
    async fn a_collected_process_gets_no_signal() {
        let reaper = Reaper::start(Scope::Own).unwrap();
        let (pid, (), exit) = reaper
            .adopt(|| {
                let child = Command::new("/bin/sh").args(["-c", "exit 0"]).spawn()?;
                Ok((Pid::from_child(&child), ()))
            })
            .unwrap();
        exit.await.unwrap();
        assert!(!reaper.signal(pid, Signal::KILL).unwrap());
    }
}
