//! Work on files that belong to ids of the inside, by a process of the same id map.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Gid, Signal, Uid, WaitOptions, waitpid};

use crate::failure::{Doing, Failure, FailureKind};
use crate::record::IdMap;
use crate::{idmap, sys};

/// Runs `work` as root of a user namespace with this map, and waits for its end.
///
/// With a full map the caller is root of the machine, and works as that. The caller must have one thread.
pub(crate) fn as_root(ids: &IdMap, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    if let IdMap::Full { .. } = ids {
        return work();
    }
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).doing("make a pipe");
    let ((ready, go), (answer, said)) = (pipe()?, pipe()?);
    match sys::clone_into(libc::CLONE_NEWUSER).doing("make a user namespace")? {
        sys::Forked::Child => {
            drop((go, answer));
            let mut byte = [0];
            // Without the byte the map was not written.
            let done = match rustix::io::read(&ready, &mut byte) {
                Ok(1) => become_root().and_then(|()| follow_parent(said.as_fd())).and_then(|()| work()),
                _ => Err(Failure::new(FailureKind::Unexpected, "the helper ended early")),
            };
            if let Err(error) = &done {
                let text = serde_json::to_vec(error).unwrap_or_default();
                let _ = rustix::io::write(&said, &text);
            }
            sys::exit_now(i32::from(done.is_err()));
        }
        sys::Forked::Parent(pid, _) => {
            drop((ready, said));
            let mapped = idmap::write(ids, pid);
            if mapped.is_ok() {
                rustix::io::write(&go, b"1").doing("start the work inside")?;
            }
            drop(go);
            let mut text = Vec::new();
            let heard = std::fs::File::from(answer).read_to_end(&mut text);
            let status = waitpid(Some(pid), WaitOptions::empty());
            mapped?;
            heard.doing("hear from the work inside")?;
            match status {
                Ok(Some((_, status))) if status.exit_status() == Some(0) => Ok(()),
                _ => Err(serde_json::from_slice(&text).unwrap_or_else(|_| {
                    Failure::new(FailureKind::Unexpected, "the work on the files of the sandbox broke off")
                })),
            }
        }
    }
}

fn become_root() -> Result<(), Failure> {
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)
        .and_then(|()| rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT))
        .doing("become root inside")
}

/// Ends with the helper, which nobody else waits for: its work would go on in secret, and keep what it holds.
fn follow_parent(said: BorrowedFd<'_>) -> Result<(), Failure> {
    // Asked for after the ids changed, which clears it. If the helper died before, nobody hears what is said.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).doing("follow the helper")?;
    let mut unheard = [PollFd::from_borrowed_fd(said, PollFlags::empty())];
    match poll(&mut unheard, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).doing("look for the helper")? {
        0 => Ok(()),
        _ => Err(Failure::new(FailureKind::Unexpected, "the helper ended early")),
    }
}
