//! Starts a child: everything is prepared before `fork`, and the child only makes system calls until `exec`.
//!
//! Not `std::process::Command`: its errors do not say which step failed, and a missing directory, a missing
//! program and a refused identity are different answers to the client.
#![expect(unsafe_code, reason = "fork, and the system calls between it and exec, have no safe form")]

use std::ffi::{CString, c_char, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use tokio::sync::oneshot;

use crate::daemon::process::pty;
use crate::daemon::process::reaper::{Exit, Reaper};
use crate::daemon::state::{ChildSetup, ChildUser, UserMode};

/// As E2B's envd: the kernel kills a command before it kills the daemon.
const OOM_SCORE_ADJ: &[u8] = b"100";

/// What to run.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: PathBuf,
    pub(crate) user: ChildUser,
    pub(crate) mode: UserMode,
    pub(crate) setup: Option<Arc<dyn ChildSetup>>,
    pub(crate) stdio: Stdio,
}

/// What the child's first three descriptors are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stdio {
    /// Pipes; without `stdin` the input is `/dev/null`.
    Pipes { stdin: bool },
    /// A terminal of that size.
    Terminal { cols: u16, rows: u16 },
}

/// A running child and the daemon's ends, all non-blocking and close-on-exec.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) exit: oneshot::Receiver<Exit>,
    pub(crate) io: Io,
}

#[derive(Debug)]
pub(crate) enum Io {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(OwnedFd),
}

/// Why a child could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    #[error("{0}")]
    Invalid(String),
    #[error("cwd '{}' does not exist", .0.display())]
    MissingCwd(PathBuf),
    #[error("cannot enter cwd '{}': {source}", path.display())]
    Cwd { path: PathBuf, source: io::Error },
    #[error("error starting process: exec: {program:?}: executable file not found in $PATH")]
    NotInPath { program: String },
    #[error("error starting process: fork/exec {program}: {source}")]
    Exec { program: String, source: io::Error },
    #[error("cannot become user {user:?}: {source}")]
    Identity { user: String, source: io::Error },
    #[error("cannot prepare the process: {0}")]
    Prepare(#[source] io::Error),
}

/// Starts `command`; blocks until it was executed or failed to be.
pub(crate) fn spawn(command: &Command, reaper: &Reaper) -> Result<Child, SpawnError> {
    let (io, child_ends) = open_stdio(command).map_err(SpawnError::Prepare)?;
    let (pid, exit) = spawn_on(command, child_ends, reaper)?;
    Ok(Child { pid, exit, io })
}

/// Starts `command` on descriptors that the caller has, all above 2; blocks as [`spawn`] does.
pub(crate) fn spawn_on(
    command: &Command,
    child_ends: [OwnedFd; 3],
    reaper: &Reaper,
) -> Result<(Pid, oneshot::Receiver<Exit>), SpawnError> {
    let image = Image::new(command)?;
    let (report, report_child) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(prepare)?;
    let report_child = above_stdio(report_child).map_err(SpawnError::Prepare)?;
    let plan = Plan {
        stdio: child_ends.each_ref().map(AsRawFd::as_raw_fd),
        terminal: matches!(command.stdio, Stdio::Terminal { .. }),
        report: report_child.as_raw_fd(),
        image: &image,
        command,
    };
    let (pid, (), exit) = reaper.adopt(|| fork(&plan)).map_err(SpawnError::Prepare)?;
    drop((child_ends, report_child));
    match read_report(&report).map_err(SpawnError::Prepare)? {
        None => Ok((pid, exit)),
        Some((step, source)) => Err(explain(step, source, command)),
    }
}

fn prepare(error: rustix::io::Errno) -> SpawnError {
    SpawnError::Prepare(error.into())
}

/// Opens the daemon's ends and the three descriptors of the child, all above 2.
fn open_stdio(command: &Command) -> io::Result<(Io, [OwnedFd; 3])> {
    match command.stdio {
        Stdio::Terminal { cols, rows } => {
            let owner = (command.mode == UserMode::SetId).then_some(command.user.uid);
            let (master, slave) = pty::open(cols, rows, owner)?;
            let slave = above_stdio(slave)?;
            let child = [slave.try_clone()?, slave.try_clone()?, slave];
            Ok((Io::Terminal(above_stdio(master)?), child))
        }
        Stdio::Pipes { stdin } => {
            let (input, child_in) = if stdin {
                let (read, write) = pipe()?;
                rustix::io::ioctl_fionbio(&write, true)?;
                (Some(write), read)
            } else {
                (None, above_stdio(std::fs::File::open("/dev/null")?.into())?)
            };
            let (stdout, child_out) = pipe()?;
            let (stderr, child_err) = pipe()?;
            // Non-blocking belongs to the end, not to the pipe: the child's ends stay as programs expect them.
            rustix::io::ioctl_fionbio(&stdout, true)?;
            rustix::io::ioctl_fionbio(&stderr, true)?;
            Ok((Io::Pipes { stdin: input, stdout, stderr }, [child_in, child_out, child_err]))
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((above_stdio(read)?, above_stdio(write)?))
}

/// Moves a descriptor out of the way of 0, 1 and 2, which are free in a daemon that closed its own.
pub(crate) fn above_stdio(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, 3)?)
}

/// Everything the child hands to the kernel, allocated before `fork`.
struct Image {
    candidates: Vec<CString>,
    _strings: Vec<CString>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    cwd: CString,
    groups: Vec<libc::gid_t>,
    uid_map: Vec<u8>,
    gid_map: Vec<u8>,
}

impl Image {
    fn new(command: &Command) -> Result<Self, SpawnError> {
        let mut strings = Vec::with_capacity(1 + command.args.len() + command.env.len());
        strings.push(c_string("cmd", &command.program)?);
        for (index, arg) in command.args.iter().enumerate() {
            strings.push(CString::new(arg.as_str()).map_err(|_| nul(&format!("args[{index}]"), arg))?);
        }
        let argc = strings.len();
        for (name, value) in &command.env {
            if name.is_empty() || name.contains('=') {
                let text = format!("environment variable name {name:?} is empty or contains '='");
                return Err(SpawnError::Invalid(text));
            }
            if name.contains('\0') {
                return Err(nul("environment variable name", name));
            }
            let pair = CString::new(format!("{name}={value}"));
            // The value may be a secret: only its name is told.
            strings.push(pair.map_err(|_| {
                SpawnError::Invalid(format!("the value of environment variable {name:?} contains a NUL byte"))
            })?);
        }
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
        };
        let user = &command.user;
        Ok(Self {
            candidates: candidates(command)?,
            argv: pointers(&strings[..argc]),
            envp: pointers(&strings[argc..]),
            cwd: CString::new(command.cwd.as_os_str().as_bytes())
                .map_err(|_| nul("cwd", &command.cwd.to_string_lossy()))?,
            groups: user.groups.clone(),
            uid_map: format!("{} 0 1", user.uid).into_bytes(),
            gid_map: format!("{} 0 1", user.gid).into_bytes(),
            _strings: strings,
        })
    }
}

fn c_string(what: &str, text: &str) -> Result<CString, SpawnError> {
    CString::new(text).map_err(|_| nul(what, text))
}

fn nul(what: &str, text: &str) -> SpawnError {
    SpawnError::Invalid(format!("{what} {text:?} contains a NUL byte"))
}

/// The paths to try in turn, as execvp(3): a name without a slash is looked up in the child's own `PATH`.
fn candidates(command: &Command) -> Result<Vec<CString>, SpawnError> {
    let program = command.program.as_str();
    if program.is_empty() {
        return Err(SpawnError::Invalid("cmd is empty".into()));
    }
    if program.contains('/') {
        return Ok(vec![c_string("cmd", program)?]);
    }
    let path = command.env.iter().rev().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
    path.split(':')
        .map(|dir| if dir.is_empty() { Path::new(".") } else { Path::new(dir) }.join(program))
        .map(|file| CString::new(file.as_os_str().as_bytes()).map_err(|_| nul("cmd", program)))
        .collect()
}

/// Where a child failed; the number travels through the report pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Session = 1,
    Setup = 2,
    Identity = 3,
    Cwd = 4,
    Exec = 5,
}

fn explain(step: Step, source: io::Error, command: &Command) -> SpawnError {
    let missing = source.kind() == io::ErrorKind::NotFound;
    match step {
        Step::Session | Step::Setup => SpawnError::Prepare(source),
        Step::Identity => SpawnError::Identity { user: command.user.name.clone(), source },
        Step::Cwd if missing => SpawnError::MissingCwd(command.cwd.clone()),
        Step::Cwd => SpawnError::Cwd { path: command.cwd.clone(), source },
        Step::Exec if missing && !command.program.contains('/') => {
            SpawnError::NotInPath { program: command.program.clone() }
        }
        Step::Exec => SpawnError::Exec { program: command.program.clone(), source },
    }
}

/// Reads the child's report; end-of-file without one means that `exec` closed the pipe.
fn read_report(report: &OwnedFd) -> io::Result<Option<(Step, io::Error)>> {
    let mut bytes = [0; 5];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::read(report, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let [step, code @ ..] = bytes;
    if filled == 0 {
        return Ok(None);
    }
    let step = match step {
        1 => Step::Session,
        2 => Step::Setup,
        3 => Step::Identity,
        4 => Step::Cwd,
        _ => Step::Exec,
    };
    Ok(Some((step, io::Error::from_raw_os_error(i32::from_ne_bytes(code)))))
}

struct Plan<'a> {
    stdio: [RawFd; 3],
    terminal: bool,
    report: RawFd,
    image: &'a Image,
    command: &'a Command,
}

/// Forks with every signal blocked, so that no handler of the daemon ever runs in the child.
fn fork(plan: &Plan<'_>) -> io::Result<(Pid, ())> {
    // SAFETY: both sets are plain memory that sigfillset and pthread_sigmask initialise before use.
    let (pid, error) = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        // SAFETY: the child leaves through `_exit` or `exec` and makes only async-signal-safe calls before.
        let pid = libc::fork();
        if pid == 0 {
            run_child(plan);
        }
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        (pid, error)
    };
    Pid::from_raw(pid).filter(|_| pid > 0).map(|pid| (pid, ())).ok_or(error)
}

/// The child: ends in `exec`, or reports its step and errno and exits.
fn run_child(plan: &Plan<'_>) -> ! {
    let (step, code) = match become_program(plan) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    let mut report = [step as u8; 5];
    report[1..].copy_from_slice(&code.to_ne_bytes());
    // SAFETY: the buffer outlives the call; `_exit` runs no handler of the parent's.
    unsafe {
        libc::write(plan.report, report.as_ptr().cast(), report.len());
        libc::_exit(127)
    }
}

fn become_program(plan: &Plan<'_>) -> Result<std::convert::Infallible, (Step, c_int)> {
    let Plan { image, command, .. } = plan;
    reset_signals();
    check(Step::Session, || {
        // SAFETY: plain system calls on descriptors that the parent keeps open over the fork.
        unsafe {
            ok(libc::setsid())?;
            if plan.terminal {
                ok(libc::ioctl(plan.stdio[0], libc::TIOCSCTTY, 0))?;
            }
            for (target, fd) in (0..).zip(plan.stdio) {
                ok(libc::dup2(fd, target))?;
            }
            // Also what foreign code in this process opened without close-on-exec; old kernels lack the call.
            libc::syscall(libc::SYS_close_range, 3, c_int::MAX, libc::CLOSE_RANGE_CLOEXEC);
            libc::umask(0o022);
            // Both best effort: neither is worth refusing to run a command.
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
            let _ = write_file(c"/proc/self/oom_score_adj", OOM_SCORE_ADJ);
            Ok(())
        }
    })?;
    if let Some(setup) = &command.setup {
        check(Step::Setup, || hook(|| setup.before_identity()))?;
    }
    check(Step::Identity, || take_identity(plan))?;
    // SAFETY: `cwd` is a C string that lives until exec.
    check(Step::Cwd, || unsafe { ok(libc::chdir(image.cwd.as_ptr())).map(drop) })?;
    if let Some(setup) = &command.setup {
        check(Step::Setup, || hook(|| setup.before_exec(&command.user)))?;
    }
    Err((Step::Exec, execute(image)))
}

/// Tries every candidate; returns the error that says most, as execvp(3) does.
fn execute(image: &Image) -> c_int {
    let mut denied = false;
    for path in &image.candidates {
        // SAFETY: both vectors end with a null pointer, and their strings live in `image`.
        unsafe { libc::execve(path.as_ptr(), image.argv.as_ptr(), image.envp.as_ptr()) };
        match errno() {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR => {}
            other => return other,
        }
    }
    match (denied, image.candidates.len()) {
        (true, _) => libc::EACCES,
        (false, 1) => errno(),
        (false, _) => libc::ENOENT,
    }
}

/// Gives the child every signal's default action and an empty mask; `exec` would keep what is ignored.
fn reset_signals() {
    // The kernel's own structure (action, flags, restorer, 64-bit mask): libc hides two signals from its callers.
    let default = [0_u64; 4];
    // SAFETY: all zero is SIG_DFL without flags, and as large as the kernel reads; KILL and STOP are refused.
    unsafe {
        for number in 1..=64 {
            let old = ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, number, default.as_ptr(), old, size_of::<u64>());
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

fn take_identity(plan: &Plan<'_>) -> Result<(), c_int> {
    let (image, user) = (plan.image, &plan.command.user);
    match plan.command.mode {
        UserMode::OwnUser => Ok(()),
        // System calls and not libc's wrappers, which signal the threads that the parent had.
        // SAFETY: plain system calls; the group list outlives them.
        UserMode::SetId => unsafe {
            let groups = &image.groups;
            ok_long(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
            ok_long(libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid))?;
            ok_long(libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid))?;
            Ok(())
        },
        UserMode::SingleId if user.uid == 0 => Ok(()),
        UserMode::SingleId => {
            // SAFETY: a plain system call; the child has one thread.
            unsafe { ok(libc::unshare(libc::CLONE_NEWUSER))? };
            // Without this the kernel lets no unprivileged process map a group.
            write_file(c"/proc/self/setgroups", b"deny")?;
            write_file(c"/proc/self/uid_map", &image.uid_map)?;
            write_file(c"/proc/self/gid_map", &image.gid_map)
        }
    }
}

fn write_file(path: &std::ffi::CStr, bytes: &[u8]) -> Result<(), c_int> {
    // SAFETY: `path` and `bytes` outlive the calls; the descriptor is owned at once.
    unsafe {
        let fd = OwnedFd::from_raw_fd(ok(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC))?);
        ok_long(libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) as c_long)
    }
}

/// Runs the embedding program's code; a panic must not unwind into the parent's frames.
fn hook(run: impl FnOnce() -> io::Result<()>) -> Result<(), c_int> {
    match std::panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.raw_os_error().unwrap_or(libc::EIO)),
        Err(_) => Err(libc::EIO),
    }
}

fn check(step: Step, run: impl FnOnce() -> Result<(), c_int>) -> Result<(), (Step, c_int)> {
    run().map_err(|code| (step, code))
}

fn ok(result: c_int) -> Result<c_int, c_int> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

fn ok_long(result: c_long) -> Result<(), c_int> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
