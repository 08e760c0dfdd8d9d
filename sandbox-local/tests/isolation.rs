//! What the inside cannot do, tried from the inside.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod inside;

use inside::{Home, Who};

/// Everybody that can be tried here.
fn everybody() -> impl Iterator<Item = Home> {
    [Who::Me, Who::Ordinary]
        .into_iter()
        .filter(|who| *who == Who::Me || inside::is_root())
        .filter_map(Home::new)
}

#[tokio::test]
async fn root_inside_is_nobody_outside() {
    for home in everybody() {
        let sandbox = home.start(home.spec("nobody"));
        assert_eq!(sandbox.ok("root", "id -u").await.trim(), "0");
        let (_, init) = sandbox.pids();
        let map = std::fs::read_to_string(format!("/proc/{init}/uid_map")).unwrap();
        let outside: u32 = map.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert_ne!(outside, 0, "{map}");
    }
}

#[tokio::test]
async fn files_of_the_host_cannot_be_read_or_changed() {
    for home in everybody() {
        let secret = home.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        let sandbox = home.start(home.spec("files"));
        for path in ["/etc/shadow", "/etc/gshadow", "/root/.ssh", "/proc/1/root", secret.to_str().unwrap()] {
            let (code, text) = sandbox.shell("root", &format!("ls -d {path}/. || cat {path}")).await;
            assert_ne!(code, 0, "{path}: {text}");
        }
        // Changes are the sandbox's own.
        let marker = format!("sandhold-test-{}", std::process::id());
        let (code, text) =
            sandbox.shell("root", &format!("echo x > /usr/{marker} && cat /usr/{marker}")).await;
        assert_eq!((code, text.as_str()), (0, "x\n"));
        assert!(!std::path::Path::new("/usr").join(&marker).exists());
        sandbox
            .ok("root", &format!("echo x > /{marker}; echo x > /etc/{marker}; echo x > /tmp/{marker}"))
            .await;
        for dir in ["/", "/etc", "/tmp"] {
            assert!(!std::path::Path::new(dir).join(&marker).exists());
        }
    }
}

#[tokio::test]
async fn processes_of_the_host_are_not_there() {
    for home in everybody() {
        let sandbox = home.start(home.spec("processes"));
        let pids = sandbox.ok("root", "ls /proc | grep -E '^[0-9]+$'").await;
        assert!(pids.lines().count() < 10, "{pids}");
        let (code, _) = sandbox.shell("root", &format!("kill -0 {}", std::process::id().max(1000))).await;
        assert_ne!(code, 0);
    }
}

#[tokio::test]
async fn children_have_no_new_privileges_a_filter_and_few_capabilities() {
    for home in everybody() {
        let sandbox = home.start(home.spec("rights"));
        for user in ["root", "user"] {
            let status = sandbox.ok(user, "cat /proc/self/status").await;
            let field = |name: &str| {
                status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .map(|value| value.trim().to_owned())
                    .unwrap()
            };
            assert_eq!(field("NoNewPrivs:"), "1", "{user}");
            assert_eq!(field("Seccomp:"), "2", "{user}");
            let bounding = u64::from_str_radix(&field("CapBnd:"), 16).unwrap();
            // From linux/capability.h: NET_ADMIN, SYS_MODULE, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, SYS_TIME, BPF.
            for forbidden in [12, 16, 19, 21, 22, 25, 39] {
                assert_eq!(bounding >> forbidden & 1, 0, "{user}: capability {forbidden} in {bounding:x}");
            }
            assert_eq!(field("CapAmb:"), "0000000000000000", "{user}");
            if user == "user" {
                assert_eq!(field("CapEff:"), "0000000000000000");
            }
        }
    }
}

#[tokio::test]
async fn children_have_no_descriptor_of_the_host() {
    for home in everybody() {
        let sandbox = home.start(home.spec("descriptors"));
        let fds = sandbox.ok("root", "for fd in /proc/self/fd/*; do readlink $fd || true; done").await;
        for fd in fds.lines() {
            assert!(fd.starts_with("pipe:") || fd == "/dev/null" || fd.contains("/proc/"), "{fds}");
        }
        let (code, text) = sandbox.shell("root", "ls /proc/1/fd").await;
        assert_ne!(code, 0, "the daemon's descriptors can be seen: {text}");
    }
}

#[tokio::test]
async fn the_daemon_cannot_be_attached_to_and_no_new_namespace_can_be_made() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        println!("skipped: needs /usr/bin/python3");
        return;
    }
    for home in everybody() {
        let sandbox = home.start(home.spec("attach"));
        let script = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, result):
    print(name, "worked" if result != -1 else os.strerror(ctypes.get_errno()))
tried("attach", libc.ptrace(16, 1, 0, 0))
tried("seize", libc.ptrace(0x4206, 1, 0, 0))
tried("mount", libc.mount(b"none", b"/mnt", b"tmpfs", 0, b""))
for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000):
    tried("unshare", libc.unshare(flag))
tried("setns", libc.setns(0, 0))
try:
    open("/proc/1/mem", "rb").read(1); print("mem worked")
except OSError as error:
    print("mem", error.strerror)
"#;
        let (_, text) = sandbox.shell("root", &format!("/usr/bin/python3 -c '{script}'")).await;
        assert_eq!(text.lines().count(), 9, "{text}");
        for line in text.lines() {
            let refused = line.ends_with("Operation not permitted") || line.ends_with("Permission denied");
            assert!(refused, "{text}");
        }
    }
}

#[tokio::test]
async fn a_debugger_works_inside() {
    if !std::path::Path::new("/usr/bin/strace").exists() {
        println!("skipped: needs strace");
        return;
    }
    for home in everybody() {
        let sandbox = home.start(home.spec("debugger"));
        sandbox.ok("user", "strace -f -o /dev/null true").await;
    }
}

#[tokio::test]
async fn what_one_sandbox_writes_another_does_not_see() {
    for home in everybody() {
        let (one, other) = (home.start(home.spec("one")), home.start(home.spec("other")));
        one.ok("user", "echo x > ~/mine; echo x > /tmp/mine").await;
        let (code, _) = other.shell("user", "ls ~/mine /tmp/mine").await;
        assert_ne!(code, 0);
    }
}
