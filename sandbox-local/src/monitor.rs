//! The process that stays outside: it starts PID 1, waits for it, and removes what is left.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::{env, fs};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::OpenTreeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::channel::Channel;
use crate::cleanup::{Lock, boot_id, kill_leftovers, lock_monitor, settle, started};
use crate::failure::{Doing, Failure, FailureKind};
use crate::init::{self, Inheritance};
use crate::record::{EndReason, IdMap, Network, Phase, Record, Runtime};
use crate::rootfs::View;
use crate::{cgroup, idmap, journal, rootfs, sys};

/// The daemon's socket in the directory of a sandbox.
pub(crate) const SOCKET: &str = "envd.sock";
/// PID 1 exits with this when the lease ran out and the sandbox is to end.
pub(crate) const EXIT_LEASE: i32 = 86;
/// How often, and how long in between, a monitor tries to get the lock of its sandbox.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);
/// What a monitor says on its standard output once the sandbox answers.
pub(crate) const READY: &str = "ready";

/// Runs the sandbox in `dir`: returns in a detached process when the sandbox is over.
///
/// Says `ready` on standard output once commands can run, or a [`Failure`] as JSON.
pub(crate) fn run(dir: &Path) -> Result<(), Failure> {
    sys::close_all_but(&[]).doing("close inherited files")?;
    sys::leave_parent().doing("detach")?;
    let result = start(dir);
    let (init, run) = match result {
        Ok(started) => started,
        Err(error) => {
            let text = serde_json::to_string(&error).unwrap_or_default();
            say(&text);
            return Err(error);
        }
    };
    journal::note(&run.dir, "info", "started");
    say(READY);
    let _ = silence(1);
    let ended = wait(&init, &run.channel, &run.runtime);
    let message = match ended {
        Some(_) => "ended: its lease ran out",
        None => "stopped: its processes ended",
    };
    journal::note(&run.dir, "info", message);
    let result = settle(&run.dir, ended);
    drop(run);
    result.map(drop)
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
}

/// Makes a standard stream lead nowhere.
fn silence(stream: i32) -> Result<(), Failure> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .doing("open /dev/null")?;
    match stream {
        0 => rustix::stdio::dup2_stdin(&null),
        1 => rustix::stdio::dup2_stdout(&null),
        _ => rustix::stdio::dup2_stderr(&null),
    }
    .doing("detach the standard streams")
}

/// A sandbox that runs.
struct Run {
    dir: std::path::PathBuf,
    channel: Channel,
    runtime: Runtime,
    /// What the sandbox wrote, where that is in memory: found here by whoever copies it.
    _memory: Option<OwnedFd>,
    /// Held as long as the monitor lives.
    _lock: OwnedFd,
}

fn start(dir: &Path) -> Result<(OwnedFd, Run), Failure> {
    rustix::process::setsid().doing("start a session")?;
    env::set_current_dir(dir).doing(format_args!("enter {}", dir.display()))?;
    silence(0)?;
    silence(2)?;
    // Paths below are relative to the sandbox: they hold nothing that an option of a mount or the length of a
    // socket address could trip over.
    let here = Path::new(".");
    let dir = env::current_dir().doing("find the sandbox")?;
    let mut patience = LOCK_TRIES;
    let lock = loop {
        match lock_monitor(here)? {
            Lock::Taken(lock) => break lock,
            // Whoever only looks holds the lock for an instant.
            Lock::Busy if patience > 0 => {
                patience -= 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Lock::Busy => {
                let message = "the sandbox runs already, or is being started";
                return Err(Failure::new(FailureKind::Conflict, message));
            }
            Lock::Missing => {
                return Err(Failure::new(FailureKind::NotFound, "the sandbox was just removed"));
            }
        }
    };
    let record = Record::load(here)?;
    record.spec.check()?;
    if record.phase != Phase::Live || here.join(crate::record::ENDED).exists() {
        return Err(Failure::new(
            FailureKind::InvalidState,
            "the sandbox was destroyed or its lease ran out",
        ));
    }
    kill_leftovers(here)?;
    let mut runtime = Runtime { boot_id: boot_id(), ..Runtime::default() };
    match launch(&dir, &record, &mut runtime) {
        Ok(Launched { init, channel, memory }) => {
            Ok((init, Run { dir, channel, runtime, _memory: memory, _lock: lock }))
        }
        Err(error) => match kill_leftovers(here) {
            Ok(()) => Err(error),
            Err(cleanup) => {
                Err(Failure::new(error.kind, format!("{error}; and cleaning up failed: {cleanup}")))
            }
        },
    }
}

/// What a start leaves with its monitor.
struct Launched {
    init: OwnedFd,
    channel: Channel,
    memory: Option<OwnedFd>,
}

fn launch(dir: &Path, record: &Record, runtime: &mut Runtime) -> Result<Launched, Failure> {
    let spec = &record.spec;
    let home = dir.parent().and_then(Path::parent);
    let home =
        home.ok_or_else(|| Failure::new(FailureKind::InvalidArgument, "not the directory of a sandbox"))?;
    let view = View::find(home, dir, spec)?;
    rootfs::prepare(spec)?;
    let groups = cgroup::prepare(&spec.id, &spec.limits, |group| {
        runtime.cgroups.push(group.to_path_buf());
        runtime.note(Path::new("."))
    })?;
    if runtime.cgroups.is_empty() {
        runtime.note(Path::new("."))?;
    }
    let _ = fs::remove_file(SOCKET);
    let listener = UnixListener::bind(SOCKET).doing("make the socket of the daemon")?;
    fs::set_permissions(SOCKET, fs::Permissions::from_mode(0o600))
        .doing("protect the socket of the daemon")?;
    let (ours, theirs) = Channel::pair().doing("make a line to PID 1")?;

    let mut namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if spec.network != Network::Host {
        namespaces |= libc::CLONE_NEWNET;
    }
    let forked = sys::clone_into(namespaces).map_err(|error| {
        Failure::unsupported(format!(
            "this host does not let us make user namespaces: {error}; see user.max_user_namespaces, \
             kernel.unprivileged_userns_clone and the seccomp profile of a surrounding container"
        ))
    })?;
    let (pid, init) = match forked {
        sys::Forked::Child => {
            drop(ours);
            init::run(Inheritance { spec: spec.clone(), view, groups, listener, channel: theirs })
        }
        sys::Forked::Parent(pid, init) => (pid, init),
    };
    drop((theirs, listener));
    let followed = follow(spec, &view, pid, runtime, &ours);
    match followed {
        Ok(memory) => Ok(Launched { init, channel: ours, memory }),
        Err(error) => {
            let _ = pidfd_send_signal(&init, Signal::KILL);
            reap(&init);
            Err(error)
        }
    }
}

/// Gives PID 1 what only the outside can, and waits until it is ready.
fn follow(
    spec: &crate::Spec,
    view: &View,
    pid: Pid,
    runtime: &mut Runtime,
    channel: &Channel,
) -> Result<Option<OwnedFd>, Failure> {
    idmap::write(&spec.ids, pid)?;
    let trees = match spec.ids {
        IdMap::Full { .. } => mapped_trees(pid, spec, view)?,
        IdMap::Ranges { .. } | IdMap::Single => Vec::new(),
    };
    runtime.init = pid.as_raw_nonzero().get();
    runtime.init_started = started(pid).unwrap_or_default();
    runtime.note(Path::new("."))?;
    let fds: Vec<_> = trees.iter().map(AsFd::as_fd).collect();
    channel.send(b"go", &fds).doing("start PID 1")?;
    match channel.receive().doing("hear from PID 1")? {
        Some((message, mut fds)) if message == READY.as_bytes() => {
            let memory = fds.pop();
            if let Some(memory) = &memory {
                runtime.memory = Some((std::process::id(), memory.as_raw_fd()));
                runtime.note(Path::new("."))?;
            }
            Ok(memory)
        }
        Some((message, _)) => Err(serde_json::from_slice(&message)
            .unwrap_or_else(|_| Failure::new(FailureKind::Unexpected, "PID 1 said something unknown"))),
        None => Err(Failure::new(FailureKind::Unexpected, "PID 1 died while it was starting")),
    }
}

/// Returns the parts of [`rootfs::Trees`].
fn mapped_trees(pid: Pid, spec: &crate::Spec, view: &View) -> Result<Vec<OwnedFd>, Failure> {
    let users =
        fs::File::open(format!("/proc/{}/ns/user", pid.as_raw_nonzero())).doing("open a user namespace")?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = |path: &Path| {
        let tree = rustix::mount::open_tree(rustix::fs::CWD, path, flags)?;
        sys::idmap_mount(tree.as_fd(), users.as_fd()).map(|()| tree)
    };
    let program = std::env::current_exe()
        .and_then(|path| Ok(rustix::mount::open_tree(rustix::fs::CWD, path, flags)?))
        .doing("open this program")?;
    let mapped = |path: &Path| {
        tree(path).map_err(|error| {
        Failure::unsupported(format!(
            "the file system of the state directory cannot show files with other ids: {error}; put the state \
             directory (SANDHOLD_HOME) on ext4, xfs, btrfs or tmpfs"
        ))
    })
    };
    let base = mapped(&view.base)?;
    let layer = view.layer.as_deref().map(mapped).transpose()?;
    let shared: Vec<_> = spec
        .binds
        .iter()
        .filter(|bind| bind.shared)
        .map(|bind| mapped(&bind.source))
        .collect::<Result<_, _>>()?;
    // Without it the inside falls back to a read-only view of the host's.
    let usr = if view.whole { None } else { tree(Path::new("/usr")).ok() };
    Ok([program, base].into_iter().chain(layer).chain(shared).chain(usr).collect())
}

/// Waits until PID 1 is gone, and says whether it decided that the sandbox ends.
fn wait(init: &OwnedFd, channel: &Channel, runtime: &Runtime) -> Option<EndReason> {
    let mut hung_up = false;
    loop {
        let mut fds = vec![PollFd::new(init, PollFlags::IN)];
        if !hung_up {
            fds.push(PollFd::new(channel, PollFlags::IN));
        }
        // After its files were closed PID 1 waits for its frozen processes, which no kill reaches.
        let tick = rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        match poll(&mut fds, hung_up.then_some(&tick)) {
            Ok(_) if !fds[0].revents().is_empty() => return reap(init),
            Ok(_) if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) => hung_up = true,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return reap(init),
        }
        if hung_up {
            cgroup::thaw_and_kill(&runtime.cgroups);
        }
    }
}

fn reap(init: &OwnedFd) -> Option<EndReason> {
    loop {
        match waitid(WaitId::PidFd(init.as_fd()), WaitIdOptions::EXITED) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(Some(status)) if status.exit_status() == Some(EXIT_LEASE) => {
                return Some(EndReason::LeaseExpired);
            }
            _ => return None,
        }
    }
}
