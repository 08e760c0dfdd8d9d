//! The seccomp filter of everything that runs inside.
//!
//! A list of what is refused: what is left is enough for compilers, package managers, interpreters, git and
//! debuggers. What is refused opens ways into the kernel that a sandbox does not need, or makes new namespaces, in
//! which a process would have rights again that it was not given.
//!
//! Written out here rather than by a filter compiler, because three answers are needed in one program and calls of
//! the x32 table must not slip past a list of numbers.

use libc::sock_filter;

use crate::record::Network;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn low_half_of_argument(index: u32) -> u32 {
    16 + 8 * index
}

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const fn fails_with(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

/// Refused with EPERM.
const REFUSED: &[libc::c_long] = &[
    // Mounts.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // Namespaces: entering one; making one is looked at below.
    libc::SYS_setns,
    // Keys are shared by user id, across namespaces.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Wide ways into the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    // The machine itself.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// Answered as by a kernel that does not have them, so that programs take their other way. The flags of `clone3` are
/// in memory, where a filter cannot look.
const MISSING: &[libc::c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Flags that make a namespace.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
/// CLONE_NEWTIME: for `unshare` only; in `clone` the same bit is part of the signal.
const NEW_TIME: u32 = 0x80;

/// `ioctl`s that type into a terminal for whoever reads it next.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;

/// `sendto` with this flag connects without `connect`, where Landlock looks.
const MSG_FASTOPEN: u32 = 0x2000_0000;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// A test that skips as many instructions when it holds, or when it does not.
fn test(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Returns the program; it is made once and installed in each child.
pub(crate) fn compile(network: Network) -> Vec<sock_filter> {
    let refuse = fails_with(libc::EPERM);
    let missing = fails_with(libc::ENOSYS);
    let mut program = vec![op(LOAD, ARCH), test(EQUAL, NATIVE, 1, 0), op(RETURN, KILL), op(LOAD, NUMBER)];
    // The x32 table has the same calls under other numbers.
    if cfg!(target_arch = "x86_64") {
        program.extend([test(AT_LEAST, 0x4000_0000, 0, 1), op(RETURN, missing)]);
    }
    for (calls, answer) in [(REFUSED, refuse), (MISSING, missing)] {
        for call in calls {
            program.extend([test(EQUAL, *call as u32, 0, 1), op(RETURN, answer)]);
        }
    }
    // Each of these: if it is the call, look at an argument and answer; the number is then no longer loaded.
    program.extend(look(libc::SYS_clone, 0, ANY_BIT, NEW_NAMESPACES, refuse));
    program.extend(look(libc::SYS_unshare, 0, ANY_BIT, NEW_NAMESPACES | NEW_TIME, refuse));
    program.extend([
        test(EQUAL, libc::SYS_ioctl as u32, 0, 5),
        op(LOAD, low_half_of_argument(1)),
        test(EQUAL, TIOCSTI, 1, 0),
        test(EQUAL, TIOCLINUX, 0, 1),
        op(RETURN, refuse),
        op(RETURN, ALLOW),
    ]);
    if network == Network::None {
        program.extend(only_tcp(refuse));
        program.extend(look(libc::SYS_sendto, 3, ANY_BIT, MSG_FASTOPEN, refuse));
        program.extend(look(libc::SYS_sendmsg, 2, ANY_BIT, MSG_FASTOPEN, refuse));
        program.extend(look(libc::SYS_sendmmsg, 3, ANY_BIT, MSG_FASTOPEN, refuse));
    } else {
        program.extend(no_odd_sockets(refuse));
    }
    program.push(op(RETURN, ALLOW));
    program
}

fn look(call: libc::c_long, argument: u32, code: u16, value: u32, answer: u32) -> [sock_filter; 5] {
    [
        test(EQUAL, call as u32, 0, 4),
        op(LOAD, low_half_of_argument(argument)),
        test(code, value, 0, 1),
        op(RETURN, answer),
        op(RETURN, ALLOW),
    ]
}

/// Of internet sockets allows plain TCP, whose connections Landlock then refuses.
fn only_tcp(refuse: u32) -> [sock_filter; 14] {
    [
        test(EQUAL, libc::SYS_socket as u32, 0, 13),
        op(LOAD, low_half_of_argument(0)),
        test(EQUAL, libc::AF_UNIX as u32, 10, 0),
        test(EQUAL, libc::AF_NETLINK as u32, 9, 0),
        test(EQUAL, libc::AF_INET as u32, 1, 0),
        test(EQUAL, libc::AF_INET6 as u32, 0, 6),
        op(LOAD, low_half_of_argument(1)),
        op(AND, 0xf),
        test(EQUAL, libc::SOCK_STREAM as u32, 0, 3),
        op(LOAD, low_half_of_argument(2)),
        test(EQUAL, 0, 2, 0),
        test(EQUAL, libc::IPPROTO_TCP as u32, 1, 0),
        op(RETURN, refuse),
        op(RETURN, ALLOW),
    ]
}

/// Refuses the socket families that reach past the network: the hypervisor, and the kernel's cryptography.
fn no_odd_sockets(refuse: u32) -> [sock_filter; 6] {
    [
        test(EQUAL, libc::SYS_socket as u32, 0, 5),
        op(LOAD, low_half_of_argument(0)),
        test(EQUAL, libc::AF_VSOCK as u32, 1, 0),
        test(EQUAL, libc::AF_ALG as u32, 0, 1),
        op(RETURN, refuse),
        op(RETURN, ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn answer(program: &[sock_filter], arch: u32, number: u32, arguments: [u32; 4]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            match code {
                LOAD => {
                    value = match k {
                        NUMBER => number,
                        ARCH => arch,
                        offset => arguments[(offset as usize - 16) / 8],
                    }
                }
                AND => value &= k,
                EQUAL => at += jump(value == k),
                AT_LEAST => at += jump(value >= k),
                ANY_BIT => at += jump(value & k != 0),
                RETURN => return k,
                other => panic!("unknown instruction {other}"),
            }
        }
    }

    fn call(network: Network, number: libc::c_long, arguments: [u32; 4]) -> u32 {
        answer(&compile(network), NATIVE, number as u32, arguments)
    }

    const REFUSE: u32 = fails_with(libc::EPERM);
    const ENOSYS: u32 = fails_with(libc::ENOSYS);

    #[test]
    fn refused_and_missing_calls_are_answered_as_listed_in_every_network() {
        for network in [Network::None, Network::Loopback, Network::Host] {
            for number in REFUSED {
                assert_eq!(call(network, *number, [0; 4]), REFUSE, "call {number}");
            }
            for number in MISSING {
                assert_eq!(call(network, *number, [0; 4]), ENOSYS, "call {number}");
            }
            for number in
                [libc::SYS_read, libc::SYS_execve, libc::SYS_ptrace, libc::SYS_chroot, libc::SYS_mknodat]
            {
                assert_eq!(call(network, number, [0; 4]), ALLOW, "call {number}");
            }
        }
    }

    #[test]
    fn processes_and_threads_can_be_made_but_no_namespaces() {
        let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_SETTLS) as u32;
        assert_eq!(call(Network::Host, libc::SYS_clone, [thread, 0, 0, 0]), ALLOW);
        assert_eq!(call(Network::Host, libc::SYS_clone, [libc::SIGCHLD as u32, 0, 0, 0]), ALLOW);
        assert_eq!(call(Network::Host, libc::SYS_unshare, [libc::CLONE_FILES as u32, 0, 0, 0]), ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            assert_eq!(call(Network::Host, libc::SYS_clone, [flag as u32 | 17, 0, 0, 0]), REFUSE);
            assert_eq!(call(Network::Host, libc::SYS_unshare, [flag as u32, 0, 0, 0]), REFUSE);
        }
        assert_eq!(call(Network::Host, libc::SYS_unshare, [NEW_TIME, 0, 0, 0]), REFUSE);
    }

    #[test]
    fn calls_of_other_tables_do_not_slip_past() {
        let program = compile(Network::Loopback);
        assert_eq!(answer(&program, 0x4000_0003, libc::SYS_read as u32, [0; 4]), KILL);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(answer(&program, NATIVE, 0x4000_0000 | libc::SYS_mount as u32, [0; 4]), ENOSYS);
        }
    }

    #[test]
    fn nobody_types_into_a_terminal_for_another() {
        assert_eq!(call(Network::Loopback, libc::SYS_ioctl, [0, TIOCSTI, 0, 0]), REFUSE);
        assert_eq!(call(Network::Loopback, libc::SYS_ioctl, [0, TIOCLINUX, 0, 0]), REFUSE);
        assert_eq!(call(Network::Loopback, libc::SYS_ioctl, [0, libc::TIOCGWINSZ as u32, 0, 0]), ALLOW);
    }

    #[test]
    fn without_a_network_only_unix_sockets_and_tcp_listeners_can_be_made() {
        let socket = |network, domain: i32, kind: i32, protocol: i32| {
            call(network, libc::SYS_socket, [domain as u32, kind as u32, protocol as u32, 0])
        };
        let tcp = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        for domain in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(Network::None, domain, tcp, 0), ALLOW);
            assert_eq!(socket(Network::None, domain, tcp, libc::IPPROTO_TCP), ALLOW);
            assert_eq!(socket(Network::None, domain, tcp, libc::IPPROTO_MPTCP), REFUSE);
            assert_eq!(socket(Network::None, domain, libc::SOCK_DGRAM, 0), REFUSE);
            assert_eq!(socket(Network::None, domain, libc::SOCK_RAW, 1), REFUSE);
            assert_eq!(socket(Network::Loopback, domain, libc::SOCK_DGRAM, 0), ALLOW);
        }
        for network in [Network::None, Network::Loopback, Network::Host] {
            assert_eq!(socket(network, libc::AF_UNIX, libc::SOCK_DGRAM, 0), ALLOW);
            assert_eq!(socket(network, libc::AF_NETLINK, libc::SOCK_RAW, 0), ALLOW);
            assert_eq!(socket(network, libc::AF_VSOCK, libc::SOCK_STREAM, 0), REFUSE);
            assert_eq!(socket(network, libc::AF_ALG, libc::SOCK_SEQPACKET, 0), REFUSE);
        }
        assert_eq!(call(Network::None, libc::SYS_sendto, [0, 0, 0, MSG_FASTOPEN]), REFUSE);
        assert_eq!(call(Network::None, libc::SYS_sendmsg, [0, 0, MSG_FASTOPEN, 0]), REFUSE);
        assert_eq!(call(Network::Loopback, libc::SYS_sendto, [0, 0, 0, MSG_FASTOPEN]), ALLOW);
    }
}
