//! Faults that users of other sandboxes met, tried on this one.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a broken rule panics, and what is skipped is said"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{
    ByteStream, ConnectOptions, Error, ErrorKind, ExecOptions, FileOptions, ProcessSpec, ReadOptions,
    SandboxHandleExt as _, SandboxId, SandboxProvider as _, WatchOptions, WriteOptions,
};

#[path = "support/reality.rs"]
mod reality;
#[path = "support/rig.rs"]
mod rig;

use reality::{Reality, descriptors, eventually, nothing_is_left};
use rig::{PATIENCE, Rig, alone, open};

const STUBBORN: &str = "trap '' TERM; sleep 300.25 & sleep 300.25 & setsid sleep 300.75 & wait";

/// A kill reaches the whole tree; what left it by `setsid` is gone with the sandbox at the latest.
#[tokio::test]
async fn a_kill_leaves_no_survivor() {
    let rig = Rig::new().await;
    let mut process = rig.handle.start(ProcessSpec::argv("sh", ["-c", STUBBORN])).await.unwrap();
    assert!(eventually(PATIENCE, || rig.survivors("sleep 300.") == 3));
    process.kill().await.unwrap();
    tokio::time::timeout(PATIENCE, process.wait()).await.unwrap().unwrap();
    assert!(eventually(Duration::from_secs(20), || rig.survivors("sleep 300.25") == 0));
    let home = rig.home();
    let known = BTreeSet::from([rig.handle.id().to_string()]);
    rig.end().await;
    assert!(Reality::of(&home, &known).is_nothing());
}

#[tokio::test]
async fn a_timeout_leaves_no_survivor() {
    let rig = Rig::new().await;
    let spec = ProcessSpec::argv("sh", ["-c", STUBBORN]).with_grace(Duration::from_millis(200));
    let options = ExecOptions::default().with_timeout(Duration::from_millis(700));
    let ended = tokio::time::timeout(PATIENCE, rig.handle.exec_opts(spec, options)).await.unwrap();
    match ended {
        Ok(output) => assert!(output.exit.timed_out, "{:?}", output.exit),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Timeout, "{error}"),
    }
    assert!(eventually(Duration::from_secs(20), || rig.survivors("sleep 300.25") == 0));
    rig.end().await;
}

#[test]
fn ten_thousand_execs_and_watches_leave_nothing_open() {
    alone("alone_ten_thousand_execs_and_watches", &[]);
}

#[tokio::test]
#[ignore = "run by another test, in a process of its own: it counts what the whole process has open"]
async fn alone_ten_thousand_execs_and_watches() {
    let rig = Rig::new().await;
    rig.handle.make_dir("/tmp/watched", FileOptions::default()).await.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (me, daemon) = (i32::try_from(std::process::id()).unwrap(), rig.daemon());
    let both = async |rounds: usize| {
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let handle = Arc::clone(&rig.handle);
                tokio::spawn(async move {
                    for _ in 0..rounds / 8 {
                        let output = handle.exec(ProcessSpec::argv("/bin/true", [""; 0])).await.unwrap();
                        assert_eq!(output.exit.code, Some(0));
                        drop(handle.watch("/tmp/watched", WatchOptions::default()).await.unwrap());
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
    };
    // Whatever is opened once and kept is open after these.
    both(80).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = (descriptors(me), descriptors(daemon), tasks());
    both(10_000).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let near = |a: usize, b: usize| a <= b + 5;
    loop {
        let after = (descriptors(me), descriptors(daemon), tasks());
        let settled = near(after.0.all, before.0.all)
            && near(after.1.all, before.1.all)
            && near(after.1.inotify, before.1.inotify)
            && near(after.1.threads, before.1.threads)
            && near(after.2, before.2);
        if settled || tokio::time::Instant::now() > deadline {
            println!(
                "measured host: {} and {} tasks, then {} and {} tasks",
                before.0, before.2, after.0, after.2
            );
            println!("measured daemon: {}, then {}", before.1, after.1);
            assert!(settled, "{before:?} became {after:?}");
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = rig.ok("ls /proc | grep -c '^[0-9]'").await;
    assert!(left.trim().parse::<usize>().unwrap() < 10, "processes are left inside: {left}");
    rig.end().await;
}

// ---- nothing is written outside ----

/// Names and contents below a directory, so that any change is seen.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(snapshot(&path));
        } else if kind.is_file() {
            found.insert(path.clone(), fs::read(&path).unwrap_or_default());
            continue;
        }
        found.insert(path, Vec::new());
    }
    found
}

/// A member of an archive, with whatever name and kind.
fn member(archive: &mut Vec<u8>, name: &str, kind: u8, link: &str, content: &[u8]) {
    let mut header = [0_u8; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000666\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, link.as_bytes());
    put(257, b"ustar\x0000");
    if matches!(kind, b'3' | b'4') {
        // The first memory device.
        put(329, b"0000001\0");
        put(337, b"0000001\0");
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

#[tokio::test]
async fn no_link_name_or_archive_writes_outside() {
    let rig = Rig::new().await;
    let mark = format!("escape-{}", fastrand::u64(..));
    let outside = rig.place.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "untouched").unwrap();
    let shared = rig.home().join("base");
    let look = || {
        let own: Vec<Vec<u8>> = ["/etc/passwd", "/etc/hosts", "/etc/hostname"]
            .iter()
            .map(|path| fs::read(path).unwrap_or_default())
            .collect();
        (own, snapshot(&outside), snapshot(&shared))
    };
    let before = look();
    let file = outside.join("file").display().to_string();

    // What is written is good as a list of users too: the sandbox has to go on when its own one is hit.
    let content = format!("{}#{mark}\n", rig.handle.read_text("/etc/passwd").await.unwrap());

    // Through the calls of the handle.
    rig.ok(&format!(
        "mkdir -p in; ln -s /etc/passwd l1; ln -s ../../{mark} l2; ln -s {} l3; ln -s / l4; ln -s {file} l5",
        outside.display()
    ))
    .await;
    let users: [Option<&str>; 2] = [None, Some("root")];
    for user in users {
        let targets = [
            "l1".to_owned(),
            "l2".to_owned(),
            format!("l3/{mark}"),
            format!("l4/tmp/{mark}"),
            "l5".to_owned(),
            format!("../../../../../../tmp/{mark}-dots"),
            format!("/../../../{file}"),
            file.clone(),
            format!("/proc/1/root/tmp/{mark}-proc"),
            format!("/proc/self/cwd/../../../../tmp/{mark}-cwd"),
            format!("/proc/1/cwd/{mark}-cwd"),
            "/etc/hosts".to_owned(),
        ];
        for target in targets {
            let mut options = WriteOptions::default();
            options.user = user.map(str::to_owned);
            // Whether it is allowed inside does not matter here.
            let _ = rig.handle.write(&target, ByteStream::from_bytes(content.clone()), options).await;
            let mut options = FileOptions::default();
            options.user = user.map(str::to_owned);
            let _ = rig.handle.make_dir(&format!("{target}-dir"), options.clone()).await;
            let _ = rig.handle.rename("in", &format!("{target}-moved"), options.clone()).await;
            let _ = rig.handle.remove(&format!("{target}-dir"), options).await;
        }
    }
    // A link is a link of the sandbox: what is behind it is the sandbox's own file.
    rig.ok("rm -f l5x; ln -s inside-target l5x").await;
    rig.handle.write_bytes("l5x", "kept").await.unwrap();
    assert_eq!(rig.handle.read_text("inside-target").await.unwrap(), "kept");

    // Through an archive, by both users, with every protection of `tar` off.
    let mut archive = Vec::new();
    member(&mut archive, "kept", b'2', "inside-target", b"");
    member(&mut archive, "la", b'2', "/etc/passwd", b"");
    member(&mut archive, "lb", b'2', &format!("../../{mark}-x"), b"");
    member(&mut archive, "lc", b'2', outside.to_str().unwrap(), b"");
    member(&mut archive, &format!("lc/{mark}"), b'0', "", content.as_bytes());
    member(&mut archive, "lc/file", b'0', "", content.as_bytes());
    member(&mut archive, "la", b'0', "", content.as_bytes());
    member(&mut archive, &file, b'0', "", content.as_bytes());
    member(&mut archive, &format!("/tmp/{mark}-absolute"), b'0', "", content.as_bytes());
    member(&mut archive, &format!("../../../../tmp/{mark}-up"), b'0', "", content.as_bytes());
    member(&mut archive, "hard", b'1', &file, b"");
    member(&mut archive, "hard", b'0', "", content.as_bytes());
    member(&mut archive, "harder", b'1', "/etc/passwd", b"");
    member(&mut archive, "device", b'3', "", b"");
    archive.resize(archive.len() + 1024, 0);
    rig.handle.write_bytes("bad.tar", archive).await.unwrap();
    for user in ["user", "root"] {
        for flags in ["-xf", "-xPf", "-x --overwrite --keep-directory-symlink -P -f"] {
            let line =
                format!("mkdir -p /tmp/{user} && cd /tmp/{user} && tar {flags} /home/user/bad.tar; true");
            rig.handle.exec(ProcessSpec::shell(line).with_user(user)).await.unwrap();
        }
        // A device that could be made would be the machine's memory.
        let line = format!("cd /tmp/{user}; mknod m c 1 1; head -c 1 m; head -c 1 device");
        let output = rig.handle.exec(ProcessSpec::shell(line).with_user(user)).await.unwrap();
        assert!(output.stdout.text().is_empty(), "{user} reads a device of the machine");
        let kept =
            rig.handle.exec(ProcessSpec::argv("readlink", [format!("/tmp/{user}/kept")])).await.unwrap();
        assert_eq!(kept.stdout.text(), "inside-target\n", "an ordinary link was not kept");
    }

    assert!(before == look(), "something outside changed");
    for place in ["/", "/tmp", "/etc", "/home", "/home/user", "/root"] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            assert!(!name.contains(&mark), "{place}/{name} was written outside");
        }
    }
    // And nothing of it can be read inside.
    let read = rig.handle.read_text(&file).await;
    assert!(!read.is_ok_and(|text| text == "untouched"), "a file of the host can be read inside");
    rig.provider.destroy(rig.handle.id()).await.unwrap();
    assert!(before == look(), "the destroy changed something outside");
    rig.end().await;
}

// ---- a destroy in the middle of work ----

async fn fifty_pending_calls_end_with_gone(destroy: impl AsyncFnOnce(&Rig)) {
    let rig = Rig::new().await;
    rig.ok("mkdir watched; truncate -s 256M big; mkfifo pipe").await;
    let mut calls: Vec<(&str, tokio::task::JoinHandle<Error>)> = Vec::new();
    let mut begun = Vec::new();
    for number in 0..50 {
        let handle = Arc::clone(&rig.handle);
        let (send, ready) = tokio::sync::oneshot::channel();
        begun.push(ready);
        calls.push(match number % 3 {
            0 => (
                "exec",
                tokio::spawn(async move {
                    let options = ExecOptions::default().with_timeout(Duration::ZERO);
                    let spec = ProcessSpec::argv("sh", ["-c", "echo here; exec sleep 1000"]);
                    let mut send = Some(send);
                    handle
                        .exec_streaming(spec, options, move |_, _| {
                            if let Some(send) = send.take() {
                                let _ = send.send(());
                            }
                        })
                        .await
                        .unwrap_err()
                }),
            ),
            1 => (
                "read",
                tokio::spawn(async move {
                    let mut download = handle.read("big", ReadOptions::default()).await.unwrap();
                    download.body.next().await.unwrap().unwrap();
                    let _ = send.send(());
                    // Slower than the destroy: the connection is full of what was not taken.
                    loop {
                        match download
                            .body
                            .next()
                            .await
                            .expect("a broken read does not end as if it was whole")
                        {
                            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                            Err(error) => return error,
                        }
                    }
                }),
            ),
            _ => (
                "watch",
                tokio::spawn(async move {
                    let mut events = handle.watch("watched", WatchOptions::default()).await.unwrap();
                    let _ = send.send(());
                    loop {
                        if let Err(error) = events.next().await.expect("a watch does not end without a word")
                        {
                            return error;
                        }
                    }
                }),
            ),
        });
    }
    for ready in begun {
        tokio::time::timeout(PATIENCE, ready).await.unwrap().unwrap();
    }
    destroy(&rig).await;
    for (what, call) in calls {
        let error = tokio::time::timeout(PATIENCE, call).await.expect("it ends").expect("it does not panic");
        assert_eq!(error.kind(), ErrorKind::Gone, "{what}: {error}");
    }
    for error in [
        rig.handle.shell("true").await.unwrap_err(),
        rig.handle.read_text("big").await.unwrap_err(),
        rig.handle.info().await.unwrap_err(),
        rig.provider.connect_opts(rig.handle.id(), ConnectOptions::default()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    }
    nothing_is_left(&rig.home(), &BTreeSet::from([rig.handle.id().to_string()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destroy_by_another_task_ends_fifty_pending_calls_with_gone() {
    fifty_pending_calls_end_with_gone(async |rig| {
        let (provider, id) = (rig.provider.clone(), rig.handle.id().clone());
        tokio::spawn(async move { provider.destroy(&id).await }).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destroy_by_another_process_ends_fifty_pending_calls_with_gone() {
    fifty_pending_calls_end_with_gone(async |rig| {
        let (home, id) = (rig.home().display().to_string(), rig.handle.id().to_string());
        let elsewhere = move || {
            alone("elsewhere_it_is_destroyed", &[("SANDHOLD_TEST_STATE", &home), ("SANDHOLD_TEST_ID", &id)]);
        };
        tokio::task::spawn_blocking(elsewhere).await.unwrap();
    })
    .await;
}

#[tokio::test]
#[ignore = "run by another test, in another process"]
async fn elsewhere_it_is_destroyed() {
    let provider = open(Path::new(&std::env::var_os("SANDHOLD_TEST_STATE").unwrap()));
    let id = SandboxId::new(std::env::var("SANDHOLD_TEST_ID").unwrap());
    provider.destroy(&id).await.unwrap();
}
