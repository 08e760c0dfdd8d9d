//! The system calls that have no safe wrapper elsewhere: the one home of `unsafe` in this crate.
#![expect(unsafe_code, reason = "clone3, mount_setattr, seccomp and Landlock have no safe wrapper")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Which of the two processes a call returned in.
#[derive(Debug)]
pub(crate) enum Forked {
    Child,
    Parent(Pid, OwnedFd),
}

/// Starts a copy of this process in new namespaces.
///
/// Must be called while this process has one thread: the copy has only the calling one, and whatever lock another
/// held would stay held in it.
pub(crate) fn clone_into(namespaces: libc::c_int) -> io::Result<Forked> {
    let mut pidfd: RawFd = -1;
    // SAFETY: all zero is a valid `clone_args`: no stack, no settid, no cgroup.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (namespaces | libc::CLONE_PIDFD) as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM this is a fork; `args` outlives the call and its size is given.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) })?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    let pid = Pid::from_raw(pid as i32).ok_or_else(|| io::Error::other("clone3 returned no process id"))?;
    // SAFETY: the kernel stored a new descriptor there, and nobody else owns it.
    Ok(Forked::Parent(pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Goes on in a copy of this process that its parent does not wait for; the original exits at once with 0.
///
/// Must be called while this process has one thread.
pub(crate) fn leave_parent() -> io::Result<()> {
    // SAFETY: one thread, so the child may go on as if nothing had happened.
    match check(libc::c_long::from(unsafe { libc::fork() }))? {
        0 => Ok(()),
        // SAFETY: ends the process without running exit handlers that belong to the child too.
        _ => unsafe { libc::_exit(0) },
    }
}

/// Ends this process without running exit handlers or destructors.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: always allowed; takes no memory.
    unsafe { libc::_exit(code) }
}

/// Fills `bytes` with random numbers, by the system call alone: a library that falls back to `/dev/urandom` keeps its
/// descriptor for ever, and PID 1 closes what the monitor had open.
pub(crate) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let length = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
    if length == bytes.len() { Ok(()) } else { Err(io::Error::other("too few random numbers")) }
}

/// Closes every descriptor from 3 on that is not in `keep`.
pub(crate) fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd() as u32).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut from = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if fd > from {
            // SAFETY: what is closed is owned by nobody: callers pass every descriptor that they still use.
            check(unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) })?;
        }
        from = fd.saturating_add(1);
    }
    Ok(())
}

/// Makes the detached mount `tree` show the ids of the user namespace `users`.
pub(crate) fn idmap_mount(tree: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    // Layout of `struct mount_attr` in linux/mount.h, first version.
    let attr: [u64; 4] = [MOUNT_ATTR_IDMAP, 0, 0, users.as_raw_fd() as u64];
    // SAFETY: both pointers are to live memory of the size that is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    })
    .map(drop)
}

/// Sets the flags of a whole mount tree, for example read-only.
pub(crate) fn set_mount_flags(path: &CStr, set: u64) -> io::Result<()> {
    const AT_RECURSIVE: libc::c_int = 0x8000;
    let attr: [u64; 4] = [set, 0, 0, 0];
    // SAFETY: both pointers are to live memory of the size that is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            AT_RECURSIVE,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    })
    .map(drop)
}

/// Read-only, for [`set_mount_flags`].
pub(crate) const MOUNT_ATTR_RDONLY: u64 = 1;

/// Installs a seccomp filter for this thread and what it starts. Allocates nothing; safe after `fork`.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which outlives the call, and does not write to it.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) })
        .map(drop)
}

/// Removes a capability from the bounding set; one that is not there, or may not be removed, is no error here.
/// Allocates nothing; safe after `fork`.
pub(crate) fn drop_bounding(capability: u32) {
    // SAFETY: takes two integers.
    unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) };
}

/// Landlock rules for TCP came with this version (Linux 6.7).
pub(crate) const LANDLOCK_WITH_NETWORK: u32 = 4;

/// Returns the Landlock version of the kernel, 0 where there is none.
pub(crate) fn landlock_version() -> u32 {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: a null attribute of size 0 with this flag asks for the version only.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Returns a Landlock ruleset that denies every TCP connection.
pub(crate) fn landlock_no_tcp_connect() -> io::Result<OwnedFd> {
    const LANDLOCK_ACCESS_NET_CONNECT_TCP: u64 = 1 << 1;
    // `struct landlock_ruleset_attr`: handled_access_fs, handled_access_net.
    let attr: [u64; 2] = [0, LANDLOCK_ACCESS_NET_CONNECT_TCP];
    // SAFETY: the attribute outlives the call and its size is given.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, attr.as_ptr(), size_of_val(&attr), 0_u32)
    })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Puts this thread and what it starts under a ruleset. Allocates nothing; safe after `fork`.
pub(crate) fn landlock_restrict_self(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a descriptor and a flag.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) }).map(drop)
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an `ifreq`, which outlives the call.
    check(libc::c_long::from(unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request)
    }))
    .map(drop)
}

/// Returns a timer on the clock that also counts while the machine sleeps, due at `deadline_ms` of that clock.
pub(crate) fn boottime_timer() -> io::Result<OwnedFd> {
    // SAFETY: takes two integers.
    let fd = check(libc::c_long::from(unsafe {
        libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
    }))?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Signals that a program is sent to be ended, stopped or told something.
const CAUGHT: [libc::c_int; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
];

/// Blocks the signals that ask something of a program, and returns a descriptor to read them from.
pub(crate) fn catch_signals() -> io::Result<OwnedFd> {
    // SAFETY: all zero is a valid set, and the calls only write to it and read it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in CAUGHT {
            libc::sigaddset(&raw mut set, signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Reads one caught signal, if there is one.
pub(crate) fn next_signal(signals: BorrowedFd<'_>) -> Option<u8> {
    // `struct signalfd_siginfo` is 128 bytes and begins with the number.
    let mut info = [0_u8; 128];
    let length = rustix::io::read(signals, &mut info).ok()?;
    (length == info.len()).then(|| info[0])
}

/// Watches a descriptor for being readable. Must run in a Tokio runtime.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Sets a timer to an absolute time in milliseconds of its clock; `None` disarms it.
pub(crate) fn arm_timer(timer: BorrowedFd<'_>, deadline_ms: Option<u64>) -> io::Result<()> {
    // SAFETY: all zero is a valid, disarmed `itimerspec`.
    let mut spec: libc::itimerspec = unsafe { std::mem::zeroed() };
    if let Some(ms) = deadline_ms {
        spec.it_value.tv_sec = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
        // A value of zero would disarm it.
        spec.it_value.tv_nsec = ((ms % 1000) * 1_000_000).max(1) as libc::c_long;
    }
    // SAFETY: reads `spec`, which outlives the call; the old value is not asked for.
    check(libc::c_long::from(unsafe {
        libc::timerfd_settime(
            timer.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME,
            &raw const spec,
            std::ptr::null_mut(),
        )
    }))
    .map(drop)
}
