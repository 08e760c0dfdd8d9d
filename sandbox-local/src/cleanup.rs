//! Removing what a sandbox leaves behind, also after its monitor was killed.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Failure, FailureKind};
use crate::journal::{LOG, OLD_LOG};
use crate::record::{
    DESTROYING, ENDED, EndReason, Ended, IdMap, Phase, RECORD, RUNTIME, Record, Runtime, read_json,
    write_durable,
};
use crate::{cgroup, idmap, inside, rootfs};

/// What in the directory of a sandbox may belong to ids of the inside.
const INSIDE: [&str; 3] = ["upper", "work", rootfs::OWN_LAYER];

/// How long a killed sandbox may take to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the monitor of a sandbox whose processes are gone may take to remove its files, which may be millions.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(280);

/// How far a sandbox is, found out by looking.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// A monitor runs it.
    Running,
    /// Nothing runs and its files are there.
    Stopped,
    /// It ended, and only the reason is left.
    Ended(EndReason),
    /// Nothing is left.
    Gone,
}

/// The answer to who runs a sandbox.
#[derive(Debug)]
pub(crate) enum Lock {
    /// Nobody: the lock is the caller's as long as it keeps this.
    Taken(OwnedFd),
    /// A monitor, or another caller that finishes the work of one.
    Busy,
    /// There is no such sandbox.
    Missing,
}

/// Tries to take the lock of the monitor: the directory itself, so that nothing has to be made or left for it.
pub(crate) fn lock_monitor(dir: &Path) -> Result<Lock, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    loop {
        let file = match rustix::fs::open(dir, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(Lock::Missing),
            other => other.doing("open the sandbox")?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                // Whoever only looks shares the lock for a moment: that is no monitor.
                match flock(&file, FlockOperation::NonBlockingLockShared) {
                    Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Lock::Busy),
                    other => other.doing("lock the sandbox")?,
                }
                drop(file);
                std::thread::yield_now();
                continue;
            }
            other => other.doing("lock the sandbox")?,
        }
        // It may have been removed, and another one made, before the lock was ours.
        let locked = rustix::fs::fstat(&file).doing("look at the sandbox")?;
        match rustix::fs::stat(dir) {
            Ok(there) if (there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino) => {
                return Ok(Lock::Taken(file));
            }
            Ok(_) => {}
            Err(rustix::io::Errno::NOENT) => return Ok(Lock::Missing),
            Err(error) => return Err(Failure::os("look at the sandbox", error)),
        }
    }
}

/// Says whether a monitor runs the sandbox in `dir`, or another process finishes its work right now.
pub(crate) fn is_monitored(dir: &Path) -> Result<bool, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(dir, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(error) => return Err(Failure::os("open the sandbox", error)),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(Failure::os("look at the lock of the sandbox", error)),
    }
}

/// Finishes the work of a monitor that is gone, and says how far the sandbox in `dir` is.
///
/// Does nothing while a monitor runs. Kills what is left of a sandbox whose monitor was killed, removes its control
/// groups, and its files too if its end was decided. Blocks; may be called at any time and any number of times. Files
/// that belong to ids of the inside are removed by a process of the same id map, so that the caller must have one
/// thread: from other programs run `sandhold-helper local recover --dir DIR`.
///
/// # Errors
/// Those of the file system, and [`FailureKind::Unexpected`] if processes do not die.
pub fn recover(dir: &Path) -> Result<Found, Failure> {
    match lock_monitor(dir)? {
        Lock::Taken(_lock) => settle(dir, None),
        Lock::Busy => Ok(Found::Running),
        Lock::Missing => Ok(Found::Gone),
    }
}

/// Ends all processes of the sandbox in `dir` and keeps its files.
///
/// Blocks; the same holds for the caller as for [`recover`].
///
/// # Errors
/// Those of [`recover`].
pub(crate) fn stop(dir: &Path) -> Result<Found, Failure> {
    let since = Instant::now();
    loop {
        let mut patience = REMOVAL_PATIENCE;
        match lock_monitor(dir)? {
            Lock::Taken(_lock) => return settle(dir, None),
            Lock::Missing => return Ok(Found::Gone),
            Lock::Busy => {}
        }
        // The monitor takes it from here; a sandbox that is only being started has nothing to kill yet.
        if let Ok(runtime) = Runtime::load(dir)
            && runtime.boot_id == boot_id()
        {
            if let Some(init) = init_of(&runtime) {
                patience = PATIENCE;
                let _ = pidfd_send_signal(&init, Signal::KILL);
                // A monitor that somebody stopped would never see that end.
                if let Some(monitor) = parent(runtime.init) {
                    let _ = kill_process(monitor, Signal::CONT);
                }
            }
            cgroup::thaw_and_kill(&runtime.cgroups);
        }
        if since.elapsed() > patience {
            return Err(Failure::new(
                FailureKind::Unexpected,
                "the monitor of the sandbox does not end; try again",
            ));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Decides that the sandbox in `dir` ends, ends it, and removes everything of it.
///
/// Blocks; the same holds for the caller as for [`recover`]. Once the decision is on disk, any later call finishes it.
///
/// # Errors
/// Those of [`recover`].
pub(crate) fn destroy(dir: &Path) -> Result<Found, Failure> {
    match Record::load(dir) {
        Ok(mut record) if record.phase != Phase::Destroying => {
            record.phase = Phase::Destroying;
            match record.save(dir) {
                Err(error) if error.kind == FailureKind::StorageFull => mark_destroying(dir)?,
                // It is being removed right now, by its monitor or another caller, whose end is waited for.
                Err(error) if error.kind == FailureKind::NotFound => {}
                other => other?,
            }
        }
        Err(error) if error.kind != FailureKind::NotFound => return Err(error),
        _ => {}
    }
    let found = stop(dir)?;
    if let Found::Ended(_) = found {
        // The reason of an end that came before: nobody is to be told any more.
        remove_tree(dir).doing(format_args!("remove {}", dir.display()))?;
    }
    Ok(found)
}

/// Decides the end of a sandbox where there is no room for words: an empty file takes none.
fn mark_destroying(dir: &Path) -> Result<(), Failure> {
    fs::File::create(dir.join(DESTROYING))
        .and_then(|_| fs::File::open(dir)?.sync_all())
        .doing(format_args!("mark {} as destroyed", dir.display()))
}

/// Kills, removes and records whatever the state of `dir` asks for. The caller holds the lock of the monitor.
pub(crate) fn settle(dir: &Path, ended: Option<EndReason>) -> Result<Found, Failure> {
    kill_leftovers(dir)?;
    if let Ok(ended) = read_json::<Ended>(&dir.join(ENDED)) {
        remove_files(dir, ended.reason)?;
        return Ok(Found::Ended(ended.reason));
    }
    let record = match Record::load(dir) {
        Ok(record) => record,
        // A directory without a record was never acknowledged to anybody.
        Err(error) if error.kind == FailureKind::NotFound => {
            remove_tree(dir).doing(format_args!("remove {}", dir.display()))?;
            return Ok(Found::Gone);
        }
        Err(error) => return Err(error),
    };
    let reason = match (ended, record.phase) {
        (_, Phase::Destroying) => EndReason::Destroyed,
        (Some(reason), Phase::Live) => reason,
        (None, Phase::Live) => return Ok(Found::Stopped),
    };
    let reason = match write_durable(&dir.join(ENDED), &Ended { reason }) {
        // Room comes first, the reason second.
        Err(error) if error.kind == FailureKind::StorageFull => {
            mark_destroying(dir)?;
            EndReason::Destroyed
        }
        other => other.map(|()| reason)?,
    };
    remove_files(dir, reason)?;
    Ok(Found::Ended(reason))
}

/// Kills the processes of an earlier run and removes its control groups.
pub(crate) fn kill_leftovers(dir: &Path) -> Result<(), Failure> {
    let path = dir.join(RUNTIME);
    let runtime = match Runtime::load(dir) {
        Ok(runtime) => runtime,
        Err(error) if error.kind == FailureKind::NotFound => return Ok(()),
        // It was being written when the machine went down: nothing of it runs.
        Err(_) => Runtime::default(),
    };
    if runtime.boot_id == boot_id() {
        let init = init_of(&runtime);
        if let Some(init) = &init {
            let _ = pidfd_send_signal(init, Signal::KILL);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Again and again: what was frozen between fork and exec may only now be there to be killed.
            cgroup::thaw_and_kill(&runtime.cgroups);
            let init_gone = match &init {
                Some(init) => wait_readable(init, Duration::from_millis(2))?,
                None => true,
            };
            if init_gone && cgroup::remove(&runtime.cgroups) {
                break;
            }
            if Instant::now() > deadline {
                return Err(Failure::new(
                    FailureKind::Unexpected,
                    "processes of the sandbox do not die; try again",
                ));
            }
            if init_gone {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    fs::remove_file(&path).doing("remove the record of the run")
}

/// Opens PID 1 of a run, if it is still that one.
fn init_of(runtime: &Runtime) -> Option<OwnedFd> {
    let pid = Pid::from_raw(runtime.init)?;
    let init = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // The start time is compared after the descriptor was opened, so it is that of the process behind it.
    (started(pid) == Some(runtime.init_started)).then_some(init)
}

/// Returns the start time of a process in clock ticks since boot.
pub(crate) fn started(pid: Pid) -> Option<u64> {
    stat(pid.as_raw_nonzero().get(), 19)?.parse().ok()
}

/// Returns the parent of a process.
fn parent(pid: i32) -> Option<Pid> {
    stat(pid, 1)?.parse().ok().and_then(Pid::from_raw)
}

/// Returns a field of `/proc/PID/stat`; number 0 is the state, which is field 3 of proc(5).
fn stat(pid: i32, field: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may itself hold spaces and parentheses.
    text.rsplit_once(')')?.1.split_whitespace().nth(field).map(str::to_owned)
}

/// Returns the id of this boot of the host.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Waits until a descriptor is readable; false at the end of `patience`.
pub(crate) fn wait_readable(fd: &OwnedFd, patience: Duration) -> Result<bool, Failure> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let patience =
        rustix::time::Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    match poll(&mut fds, Some(&patience)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(Failure::os("wait", error)),
    }
}

/// Removes the files of a sandbox that ended. After its lease ran out the reason stays behind.
fn remove_files(dir: &Path, reason: EndReason) -> Result<(), Failure> {
    if let Ok(record) = Record::load(dir) {
        if let IdMap::Ranges { .. } = record.spec.ids {
            remove_inside(dir, &record.spec.ids)?;
        }
        for entry in fs::read_dir(dir).doing("list the sandbox")? {
            let entry = entry.doing("list the sandbox")?;
            let name = entry.file_name();
            let kept: [&str; 5] = [ENDED, RECORD, DESTROYING, LOG, OLD_LOG];
            if !kept.iter().any(|kept| name == *kept) {
                remove_tree(&entry.path()).doing(format_args!("remove {}", entry.path().display()))?;
            }
        }
        if let Some(home) = dir.parent().and_then(Path::parent) {
            idmap::release(home, &record.spec.ids, &record.spec.id);
        }
        fs::remove_file(dir.join(RECORD)).doing("remove the record")?;
    }
    if reason == EndReason::Destroyed {
        // A new name first: whoever looks for the sandbox finds all of it or nothing.
        remove_tree(dir).doing(format_args!("remove {}", dir.display()))?;
    }
    Ok(())
}

/// Removes the files that belong to ids of the inside, by a process of the same id map.
fn remove_inside(dir: &Path, ids: &IdMap) -> Result<(), Failure> {
    let present: Vec<_> = INSIDE.iter().map(|name| dir.join(name)).filter(|path| path.exists()).collect();
    if present.is_empty() {
        return Ok(());
    }
    inside::as_root(ids, || {
        present.iter().try_for_each(|path| remove_tree(path).doing(format_args!("remove {}", path.display())))
    })
}

/// Removes a file or a tree, also one whose directories forbid it to their owner. Follows no link.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !meta.is_dir() {
        return gone(fs::remove_file(path));
    }
    // However deep it is: whoever ran inside decided that.
    gone(sandhold_envd::remove_tree(path, true))
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
