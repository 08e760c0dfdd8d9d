//! Snapshots, forks and imported roots, in every tier of users, and what is left when somebody is killed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod inside;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use inside::{Home, Sandbox, Who};
use sandhold_core::testing::conformance::Fixture;
use sandhold_core::{
    Attempt, CreateOptions, ErrorKind, ForkOptions, Generation, Key, Memory, Owner, PauseOptions,
    ProcessSpec, SandboxHandleExt as _, SandboxProvider as _, SandboxProviderExt as _, SandboxSpec,
    SnapshotOptions, Tags,
};
use sandhold_local::{LocalProvider, Origin, Spec, Under, Upper};

fn homes() -> impl Iterator<Item = Home> {
    let all = [Who::Me, Who::Ordinary].into_iter();
    all.filter(|who| *who == Who::Me || inside::is_root()).filter_map(Home::new)
}

/// Takes a snapshot as the provider does, by the helper alone.
fn take(home: &Home, sandbox: &Sandbox<'_>, id: &str) {
    let staged = home.path().join("staging").join(id);
    let output = home.helper(&[
        "local",
        "snapshot",
        "--dir",
        sandbox.dir.to_str().unwrap(),
        "--to",
        staged.join("layer").to_str().unwrap(),
    ]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "null");
    fs::create_dir_all(home.path().join("snapshots")).unwrap();
    fs::rename(staged, home.path().join("snapshots").join(id)).unwrap();
}

fn made_from(home: &Home, snapshot: &str, id: &str) -> Spec {
    let mut spec = home.spec(id);
    let mut origin = Origin::default();
    origin.under = Some(Under::Snapshot(snapshot.to_owned()));
    spec.origin = origin;
    spec
}

#[tokio::test]
async fn system_files_owners_and_links_are_in_a_snapshot_in_every_tier() {
    for home in homes() {
        let source = home.start(home.spec("source"));
        source
            .ok(
                "root",
                "set -e; rm /etc/hosts; rm -r /var/log; mkdir /var/log; echo new > /var/log/new; \
                 echo tool > /usr/local/tool; echo tmp > /tmp/mark; echo secret > /root/key; chmod 600 /root/key; \
                 mkfifo /tmp/pipe; ln /root/key /root/again; rm -r /etc/apt; mkdir /etc/apt",
            )
            .await;
        source.ok("user", "echo mine > mine; ln -s mine link; chmod 750 mine").await;
        take(&home, &source, "first");
        let second = home.start(made_from(&home, "first", "second"));
        second.ok("root", "rm /usr/local/tool; echo more > /var/log/more").await;
        take(&home, &second, "second");
        source.verb("destroy");
        let look = "cd /; ls /etc/hosts 2>/dev/null; ls /var/log /etc/apt /usr/local/tool 2>&1 | grep -v No.such; \
            cat /tmp/mark; test -p /tmp/pipe && echo pipe; stat -c '%U %a' /root/key; test /root/key -ef /root/again && echo same; \
            stat -c '%U %a' /home/user/mine; readlink /home/user/link";
        // A name for whoever looks: in the single tier root is shown as owner of everything.
        let seen = second.ok("root", look).await;
        for id in ["second", "first"] {
            let made = home.start(made_from(&home, id, &format!("made-{id}")));
            let text = made.ok("root", look).await;
            assert!(!text.contains("/etc/hosts"), "what was removed stays removed: {text}");
            assert!(!text.contains("sources.list"), "what was replaced stays replaced: {text}");
            assert!(text.contains("tmp\npipe\n"), "{text}");
            assert!(text.contains("root 600\nsame\n"), "{text}");
            if id == "second" {
                assert_eq!(text, seen);
            } else {
                assert!(text.contains("/usr/local/tool") && !text.contains("more"), "{text}");
            }
            assert_eq!(made.ok("user", "cat mine; echo more >> mine; id -un").await, "mine\nuser\n");
        }
    }
}

#[tokio::test]
async fn what_is_in_memory_is_in_a_snapshot() {
    for home in homes() {
        let mut spec = home.spec("memory");
        spec.upper = Upper::Tmpfs { bytes: 8 << 20 };
        let source = home.start(spec);
        source.ok("user", "echo kept > mark").await;
        source.ok("root", "rm -r /var/log").await;
        take(&home, &source, "of-memory");
        let mut spec = made_from(&home, "of-memory", "made");
        spec.upper = Upper::Tmpfs { bytes: 8 << 20 };
        let made = home.start(spec);
        assert_eq!(made.ok("user", "cat mark; ls /var | grep -c log || true").await, "kept\n0\n");
    }
}

#[tokio::test]
async fn a_hold_ends_with_whoever_asked_for_it() {
    for home in homes() {
        let sandbox = home.start(home.spec("held"));
        let mut line = UnixStream::connect(sandbox.dir.join("envd.sock")).unwrap();
        line.write_all(
            b"POST /sandhold/hold HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: hold\r\n\r\n",
        )
        .unwrap();
        let mut said = [0; 12];
        line.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"HTTP/1.1 101");
        let handle = sandbox.handle();
        let mut waiting = tokio::spawn(async move { handle.exec(ProcessSpec::shell("echo on")).await });
        // The daemon answers what asks it about itself, and lets nothing change.
        assert_eq!(sandbox.info().await.state, sandhold_local::State::Running);
        tokio::select! {
            _ = &mut waiting => panic!("a command ran while the sandbox was held"),
            _ = sandbox.info() => {}
        }
        drop(line);
        assert_eq!(waiting.await.unwrap().unwrap().stdout.text(), "on\n");
    }
}

fn tags(key: &str) -> Tags {
    Tags {
        owner: Owner::default(),
        key: Key::new(key).unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    }
}

fn from(template: &str, key: &str) -> CreateOptions {
    CreateOptions::new(SandboxSpec::new(template), tags(key))
}

fn state(provider: &LocalProvider, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(provider.home().join(name)).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_or_stopped_sandbox_is_snapshotted_and_forked_as_it_is() {
    if Home::new(Who::Me).is_none() {
        return;
    }
    let fixture = support::LocalFixture::new();
    let provider = fixture.open();
    for (key, memory) in [("frozen", Memory::Kept), ("stopped", Memory::Lost)] {
        let source = provider.create_opts(from("base", key)).await.unwrap();
        source.write_bytes("mark", key).await.unwrap();
        provider.pause_opts(source.id(), PauseOptions::default().with_memory(memory)).await.unwrap();
        let snapshot = provider.snapshot(source.id(), SnapshotOptions::default()).await.unwrap();
        let forked = provider.fork(source.id(), ForkOptions::new(tags("fork"))).await.unwrap();
        assert_eq!(forked.read_text("mark").await.unwrap(), key);
        let made = provider.create_opts(from(snapshot.id.as_str(), "made")).await.unwrap();
        assert_eq!(made.read_text("mark").await.unwrap(), key);
        let back = provider.connect(source.id()).await.unwrap();
        assert_eq!(back.resumed, Some(memory));
        for id in [source.id(), forked.id(), made.id()] {
            provider.destroy(id).await.unwrap();
        }
        provider.delete_snapshot(&snapshot.id).await.unwrap();
    }
    for place in ["sandboxes", "snapshots", "staging", "ids"] {
        assert_eq!(state(&provider, place), Vec::<PathBuf>::new(), "{place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_given_once_and_is_a_template_too() {
    if Home::new(Who::Me).is_none() {
        return;
    }
    let fixture = support::LocalFixture::new();
    let provider = fixture.open();
    let source = provider.create_opts(from("base", "source")).await.unwrap();
    source.write_bytes("mark", "here").await.unwrap();
    let named = || SnapshotOptions::default().with_name("golden");
    provider.snapshot(source.id(), named()).await.unwrap();
    let error = provider.snapshot(source.id(), named()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Conflict, Some("name_taken")), "{error}");
    let made = provider.create_opts(from("golden", "made")).await.unwrap();
    assert_eq!(made.read_text("mark").await.unwrap(), "here");
    for id in [source.id(), made.id()] {
        provider.destroy(id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_helper_that_is_killed_in_the_middle_of_a_snapshot_leaves_nothing() {
    if Home::new(Who::Me).is_none() {
        return;
    }
    let fixture = support::LocalFixture::new();
    let provider = fixture.open();
    let source = provider.create_opts(from("base", "source")).await.unwrap();
    let many = "for i in $(seq 400); do head -c 100000 /dev/urandom > f$i; done";
    assert!(source.exec(ProcessSpec::shell(many)).await.unwrap().exit.success());
    let staged = provider.home().join("staging/half");
    fs::create_dir(&staged).unwrap();
    let mut helper = Command::new(support::helper())
        .args(["local", "snapshot", "--dir"])
        .arg(provider.home().join("sandboxes").join(source.id().as_str()))
        .arg("--to")
        .arg(staged.join("layer"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = staged.join("layer/root/home/user/f1");
    inside::eventually("the copy begins", || begun.parent().is_some_and(Path::exists));
    // Who copies for it is not to go on in secret: one that stands still can only end by another's hand.
    let copiers = || {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let call = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&call).contains(staged.to_str().unwrap())
        })
        .collect::<Vec<_>>()
    };
    for copier in copiers().into_iter().filter(|pid| u32::try_from(*pid) != Ok(helper.id())) {
        let copier = rustix::process::Pid::from_raw(copier).unwrap();
        let _ = rustix::process::kill_process(copier, rustix::process::Signal::STOP);
    }
    helper.kill().unwrap();
    helper.wait().unwrap();
    inside::eventually("all who copy end", || copiers().is_empty());
    // Nothing is held any more.
    assert!(source.exec(ProcessSpec::shell("true")).await.unwrap().exit.success());
    let snapshot = provider.snapshot(source.id(), SnapshotOptions::default()).await.unwrap();
    assert_eq!(state(&provider, "staging"), Vec::<PathBuf>::new());
    assert_eq!(state(&provider, "snapshots").len(), 1);
    provider.destroy(source.id()).await.unwrap();
    provider.delete_snapshot(&snapshot.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_root_is_a_template_and_shows_nothing_of_this_machine() {
    if Home::new(Who::Me).is_none() {
        return;
    }
    let Some(busybox) =
        ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists())
    else {
        println!("skipped: needs a static busybox");
        return;
    };
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir_all(tree.path().join("bin")).unwrap();
    fs::copy(busybox, tree.path().join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "ls", "id", "true", "echo", "rm"] {
        std::os::unix::fs::symlink("busybox", tree.path().join("bin").join(name)).unwrap();
    }
    fs::write(tree.path().join("only-here"), "image\n").unwrap();
    let fixture = support::LocalFixture::new();
    let provider = fixture.open();
    let template = provider.import_template(tree.path(), ["mini"]).await.unwrap();
    drop(tree);
    let made = provider.create_opts(from("mini", "made")).await.unwrap();
    let run = async |handle: &std::sync::Arc<dyn sandhold_core::SandboxHandle>, line: &str| {
        let output = handle.exec(ProcessSpec::argv("/bin/sh", ["-c", line])).await.unwrap();
        format!("{}{}", output.stdout.text(), output.stderr.text())
    };
    assert_eq!(
        run(&made, "cat /only-here; id -un; echo ~; ls /usr").await,
        "image\nuser\n/home/user\nlocal\n"
    );
    assert_eq!(run(&made, "echo x > mark; cat mark").await, "x\n");
    let removed = ProcessSpec::argv("/bin/rm", ["/only-here"]).with_user("root");
    assert!(made.exec(removed).await.unwrap().exit.success());
    let forked = provider.fork(made.id(), ForkOptions::new(tags("fork"))).await.unwrap();
    let snapshot = provider.snapshot(made.id(), SnapshotOptions::default()).await.unwrap();
    provider.destroy(made.id()).await.unwrap();
    assert_eq!(run(&forked, "cat mark").await, "x\n");
    for needed_by in ["a fork", "a snapshot"] {
        let error = provider.delete_snapshot(&template.id).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Conflict, Some("in_use")),
            "{needed_by}: {error}"
        );
        provider.destroy(forked.id()).await.unwrap();
    }
    let again = provider.create_opts(from(snapshot.id.as_str(), "again")).await.unwrap();
    assert_eq!(run(&again, "cat mark; ls / | cat").await.lines().next(), Some("x"));
    assert!(!run(&again, "ls /").await.contains("only-here"));
    provider.destroy(again.id()).await.unwrap();
    for id in [&snapshot.id, &template.id] {
        provider.delete_snapshot(id).await.unwrap();
    }
    fixture.clean_up().await;
    assert_eq!(state(&provider, "snapshots"), Vec::<PathBuf>::new());
}
