//! What a caller or a host can do wrong: a typed error each, and nothing half-made left behind.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a broken rule panics, and what is skipped is said"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{
    Attempt, ConnectOptions, CreateOptions, DestroyOutcome, Error, ErrorKind, FindQuery, Generation, Key,
    ListFilter, Memory, Mount, OnExpiry, Outcome, Owner, ProcessSpec, Resources, SandboxHandle,
    SandboxHandleExt as _, SandboxId, SandboxProvider as _, SandboxProviderExt as _, SandboxSpec,
    SandboxState, Tags,
};
use sandhold_local::{LocalConfig, LocalProvider, Requirement};
use tempfile::TempDir;

#[path = "support/reality.rs"]
mod reality;

use reality::{Part, Reality, eventually, kill, nothing_is_left, parts};

const HELPER: &str = env!("CARGO_BIN_EXE_sandhold-helper");

struct Place {
    home: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { home: TempDir::new().unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.home.path().join("state")
    }

    fn config(&self) -> LocalConfig {
        LocalConfig::new().with_home(self.root()).with_helper(HELPER)
    }

    fn open(&self) -> LocalProvider {
        LocalProvider::new(self.config()).unwrap()
    }

    fn is_empty(&self, attempt: &Attempt) {
        nothing_is_left(&self.root(), &BTreeSet::from([format!("sb-{attempt}")]));
    }

    /// Creates, which must fail, and proves that nothing is left of it.
    async fn refused(&self, provider: &LocalProvider, spec: SandboxSpec) -> Error {
        let tags = tags("refused");
        let attempt = tags.attempt.clone();
        let error = provider.create_opts(CreateOptions::new(spec, tags)).await.unwrap_err();
        self.is_empty(&attempt);
        assert_eq!(error.outcome(), Outcome::NotStarted, "{error}");
        error
    }
}

fn tags(key: &str) -> Tags {
    Tags {
        owner: Owner::new("tests").unwrap(),
        key: Key::new(key).unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    }
}

async fn create(provider: &LocalProvider) -> Arc<dyn SandboxHandle> {
    provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags("one"))).await.unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn script(place: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = place.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// Runs one test of this program again where the surroundings are different.
fn rerun(program: &Path, test: &str, wrap: &[&str], envs: &[(&str, &str)]) {
    let mut words = wrap.iter().map(|word| (*word).to_owned()).chain([program.display().to_string()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command.envs(envs.iter().copied()).env("SANDHOLD_TEST_HELPER", HELPER);
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    for line in text.lines().filter(|line| line.starts_with("skipped")) {
        println!("{line}");
    }
}

fn can_unshare() -> bool {
    Command::new("unshare").args(["-Urm", "true"]).status().is_ok_and(|status| status.success())
}

#[tokio::test]
async fn a_template_that_is_not_there_is_not_found() {
    let place = Place::new();
    let error = place.refused(&place.open(), SandboxSpec::new("node-22")).await;
    assert_eq!((error.kind(), error.reason()), (ErrorKind::NotFound, Some("template")));
    assert!(error.message().contains("node-22") && error.message().contains("base"), "{error}");
}

#[tokio::test]
async fn a_mount_of_something_that_is_not_there_or_no_directory_is_refused_by_name() {
    let place = Place::new();
    let provider = place.open();
    let file = script(place.home.path(), "file", "text", 0o600);
    for source in [place.home.path().join("missing"), file] {
        let spec = SandboxSpec::default().with_mount(Mount::host_dir("/mnt/data", &source));
        let error = place.refused(&provider, spec).await;
        assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidArgument, Some("mount")));
        assert!(error.message().contains(source.to_str().unwrap()), "{error}");
    }
}

#[tokio::test]
async fn a_mount_that_would_hide_the_system_is_refused_by_name_before_anything_is_made() {
    let place = Place::new();
    let provider = place.open();
    let targets = [
        "mnt",
        "/mnt/../etc",
        "/",
        "//",
        "/proc",
        "/proc/x",
        "/sys",
        "/dev/shm",
        "/etc",
        "/etc/",
        "/usr",
        "/usr/bin",
        "/usr/lib/x",
        "/usr/local",
        "/usr/local/bin",
        "/bin",
        "/lib64",
        "/run",
        "/run/sandhold/x",
        "/var",
        "/var/lib/sandhold",
    ];
    for target in targets {
        let spec = SandboxSpec::default().with_mount(Mount::host_dir(target, place.home.path()));
        let error = place.refused(&provider, spec).await;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{target}: {error}");
        assert!(error.message().contains(target), "{target}: {error}");
    }
}

#[tokio::test]
async fn bad_names_of_users_places_and_variables_are_refused_by_name() {
    let place = Place::new();
    let provider = place.open();
    let spec = SandboxSpec::default;
    let bad = [
        (spec().with_user(""), "\"\""),
        (spec().with_user("-x"), "\"-x\""),
        (spec().with_user("1000"), "\"1000\""),
        (spec().with_user("a:b"), "a:b"),
        (spec().with_user("a b\n"), "a b"),
        (spec().with_user("daemon"), "daemon"),
        (spec().with_user("sudo"), "sudo"),
        (spec().with_home("relative"), "relative"),
        (spec().with_home("/"), "/"),
        (spec().with_home("/etc"), "/etc"),
        (spec().with_home("/home/../root"), "/home/../root"),
        (spec().with_home("/proc/1"), "/proc/1"),
        (spec().with_home("/home/a:b"), "/home/a:b"),
        (spec().with_workdir("work"), "work"),
        (spec().with_workdir("/usr"), "/usr"),
        (spec().with_workdir("/a\nb"), "/a\nb"),
        (spec().with_env("", "x"), "\"\""),
        (spec().with_env("A=B", "x"), "\"A=B\""),
        (spec().with_env("A\0B", "x"), "\"A\\0B\""),
        (spec().with_env("AB", "x\0y"), "\"AB\""),
    ];
    for (spec, named) in bad {
        let error = place.refused(&provider, spec).await;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains(named), "{error} does not name {named}");
    }
}

#[tokio::test]
async fn a_limit_that_cannot_be_enforced_is_unsupported_and_makes_nothing() {
    let place = Place::new();
    let provider = place.open();
    let disk = SandboxSpec::default().with_resources(Resources::default().with_disk(1 << 20));
    let error = place.refused(&provider, disk).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("in_memory"), "{error}");

    if is_root() {
        println!("skipped: needs a user that is not root, for limits that no control group enforces");
        return;
    }
    let limited = SandboxSpec::default().with_resources(Resources::default().with_memory(64 << 20));
    match provider.create_opts(CreateOptions::new(limited.clone(), tags("limited"))).await {
        Ok(handle) => {
            println!("skipped: needs a host where this user has no control group of its own");
            provider.destroy(handle.id()).await.unwrap();
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains("memory"), "{error}");
            place.refused(&provider, limited).await;
        }
    }
}

#[tokio::test]
async fn a_requirement_that_does_not_hold_is_named_before_anything_is_made() {
    let place = Place::new();
    let probe = script(
        place.home.path(),
        "helper",
        "#!/bin/sh\n[ \"$2 $3\" = \"probe --home\" ] && [ -d \"$4\" ] && echo '{\"isolation\":{\"users\":\"single\",\
         \"usr\":\"read_only\",\"network\":\"loopback\",\"seccomp\":true,\"landlock\":0,\"freezer\":\"signals\"},\
         \"refused\":[],\"limits\":{\"cpu\":true,\"memory\":false,\"pids\":true},\"network_none\":false}'\n",
        0o755,
    );
    for (requirement, named) in
        [(Requirement::SeveralUsers, "several_users"), (Requirement::Limits, "limits")]
    {
        let config = place.config().with_helper(&probe).with_requirement(requirement);
        let provider = LocalProvider::new(config).unwrap();
        let error = place.refused(&provider, SandboxSpec::default()).await;
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("requirement")));
        assert!(error.message().contains(named), "{error}");
    }
}

#[tokio::test]
async fn requirements_that_hold_are_found_out_by_the_real_helper() {
    let place = Place::new();
    let config = place.config().with_requirement(Requirement::Seccomp);
    let config = if is_root() { config.with_requirement(Requirement::SeveralUsers) } else { config };
    let provider = LocalProvider::new(config).unwrap();
    let handle = create(&provider).await;
    provider.destroy(handle.id()).await.unwrap();
    nothing_is_left(&place.root(), &BTreeSet::from([handle.id().to_string()]));
}

#[test]
fn a_missing_helper_is_an_error_that_names_the_ways_to_give_one() {
    let place = Place::new();
    let error =
        LocalProvider::new(place.config().with_helper(place.home.path().join("nowhere"))).unwrap_err();
    assert_names_the_ways(&error);
    assert!(error.message().contains("nowhere"), "{error}");

    // Beside a test program there is a helper: only a copy of it elsewhere finds none.
    let alone = place.home.path().join("alone");
    fs::copy(std::env::current_exe().unwrap(), &alone).unwrap();
    let home = place.root();
    let envs = [("PATH", "/nonexistent"), ("SANDHOLD_HELPER", ""), ("SANDHOLD_HOME", home.to_str().unwrap())];
    rerun(&alone, "elsewhere_no_helper_is_found", &[], &envs);
}

#[test]
#[ignore = "run by another test, where no helper is"]
fn elsewhere_no_helper_is_found() {
    assert_names_the_ways(&LocalProvider::new(LocalConfig::new()).unwrap_err());
}

fn assert_names_the_ways(error: &Error) {
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidArgument, Some("no_helper")));
    for way in
        ["LocalConfig::with_helper", "SANDHOLD_HELPER", "beside this", "PATH", "sandhold_local::init()"]
    {
        assert!(error.message().contains(way), "{error} does not name {way}");
    }
}

#[tokio::test]
async fn a_helper_that_is_no_program_crashes_babbles_or_hangs_leaves_nothing() {
    let place = Place::new();
    let at = place.home.path();
    let plain = script(at, "plain", "not a program", 0o644);
    let error = LocalProvider::new(place.config().with_helper(&plain)).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidArgument, Some("no_helper")));

    let cases = [
        (script(at, "garbage", "\u{7f}ELF but not really", 0o755), ErrorKind::InvalidArgument),
        (script(at, "crash", "#!/bin/sh\nkill -SEGV $$\n", 0o755), ErrorKind::Unexpected),
        (script(at, "babble", "#!/bin/sh\necho hello\n", 0o755), ErrorKind::Unexpected),
        (script(at, "hang", "#!/bin/sh\nsleep 987654 & wait\n", 0o755), ErrorKind::Timeout),
    ];
    for (helper, kind) in cases {
        let config = place.config().with_helper(&helper).with_start_timeout(Duration::from_millis(300));
        let provider = LocalProvider::new(config).unwrap();
        let error = place.refused(&provider, SandboxSpec::default()).await;
        assert_eq!(error.kind(), kind, "{}: {error}", helper.display());
    }
    let sleeps =
        |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words == b"sleep\x00987654\0");
    let gone = eventually(Duration::from_secs(10), || !reality::pids().iter().any(sleeps));
    assert!(gone, "what a hanging helper started runs on");
}

#[test]
fn a_state_directory_that_cannot_be_written_or_is_of_another_is_refused() {
    let place = Place::new();
    if is_root() {
        let root = place.root();
        fs::create_dir(&root).unwrap();
        std::os::unix::fs::chown(&root, Some(12345), Some(12345)).unwrap();
        let error = LocalProvider::new(place.config()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.message().contains(root.to_str().unwrap()), "{error}");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "something was made in it");
    } else {
        let error = LocalProvider::new(place.config().with_home("/etc/sandhold")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        let error = LocalProvider::new(place.config().with_home("/")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
    // Root writes everywhere but there.
    let error = LocalProvider::new(place.config().with_home("/proc/sandhold")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unavailable), "{error}");
    let file = script(place.home.path(), "file", "", 0o600);
    let error = LocalProvider::new(place.config().with_home(file.join("state"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = LocalProvider::new(place.config().with_home("relative")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_state_directory_of_a_newer_version_is_refused_and_left_alone() {
    let place = Place::new();
    fs::create_dir(place.root()).unwrap();
    fs::write(place.root().join("version"), "2\n").unwrap();
    let error = LocalProvider::new(place.config()).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("newer_version")));
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 1, "something was made in it");
    fs::write(place.root().join("version"), "two").unwrap();
    let error = LocalProvider::new(place.config()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    assert!(error.message().contains("version"), "{error}");
}

/// A full disk needs a file system of its own: in a namespace an ordinary user can mount one too.
#[test]
fn a_full_disk_is_said_and_what_fills_it_can_be_destroyed() {
    if !can_unshare() {
        println!("skipped: needs unshare and user namespaces");
        return;
    }
    let place = Place::new();
    let small = place.home.path().join("small");
    fs::create_dir(&small).unwrap();
    let wrap: &[&str] = if is_root() { &["unshare", "-m"] } else { &["unshare", "-Urm"] };
    let exe = std::env::current_exe().unwrap();
    rerun(&exe, "elsewhere_the_disk_is_full", wrap, &[("SANDHOLD_TEST_SMALL", small.to_str().unwrap())]);
}

fn fill(small: &Path) {
    let mut size = 1 << 20;
    let mut number = 0;
    while size >= 1 {
        number += 1;
        if fs::write(small.join(format!("filler{number}")), vec![7_u8; size]).is_err() {
            size /= 2;
        }
    }
}

#[tokio::test]
#[ignore = "run by another test, in a mount namespace of its own"]
async fn elsewhere_the_disk_is_full() {
    let small = PathBuf::from(std::env::var_os("SANDHOLD_TEST_SMALL").unwrap());
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"]).arg(&small).status();
    assert!(mounted.unwrap().success());
    let home = small.join("state");
    let provider = LocalProvider::new(
        LocalConfig::new().with_home(&home).with_helper(std::env::var_os("SANDHOLD_TEST_HELPER").unwrap()),
    )
    .unwrap();
    fill(&small);
    let refused = tags("full");
    let error =
        provider.create_opts(CreateOptions::new(SandboxSpec::default(), refused.clone())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    let known = BTreeSet::from([format!("sb-{}", refused.attempt)]);
    let left = Reality::of(&home, &known);
    assert!(left.directories.is_empty() && left.ids.is_empty() && left.staged.is_empty(), "{left:#?}");
    assert!(left.fragments.is_empty() && left.cgroups.is_empty(), "{left:#?}");

    // With room for the record and not for what every sandbox shares.
    fs::remove_file(small.join("filler1")).unwrap();
    fs::write(small.join("filler1"), vec![7_u8; (1 << 20) - (96 << 10)]).unwrap();
    let error =
        provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags("full"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    let left = Reality::of(&home, &known);
    assert!(left.directories.is_empty() && left.ids.is_empty() && left.fragments.is_empty(), "{left:#?}");

    for number in 1..=20 {
        let _ = fs::remove_file(small.join(format!("filler{number}")));
    }
    let made = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags("room"))).await;
    let handle = match made {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("skipped: needs sandboxes inside a user namespace, for the second half: {error}");
            return;
        }
        made => made.unwrap(),
    };
    let filled = handle.shell("head -c 64M /dev/zero > big").await.unwrap();
    assert_ne!(filled.exit.code, Some(0));
    assert!(filled.stderr.text().contains("No space left"), "{}", filled.stderr.text());
    let error = handle.write_bytes("more", vec![1_u8; 1 << 20]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    fill(&small);
    assert_eq!(provider.destroy(handle.id()).await.unwrap(), DestroyOutcome::Destroyed);
    nothing_is_left(&home, &BTreeSet::from([handle.id().to_string()]));
}

#[test]
fn a_host_without_user_namespaces_is_unsupported_and_nothing_is_left() {
    if !can_unshare() {
        println!("skipped: needs unshare and user namespaces");
        return;
    }
    let place = Place::new();
    let exe = std::env::current_exe().unwrap();
    let home = place.root();
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut wrap = vec!["unshare", "-Ur", "sh", "-c", script, "sh"];
    if is_root() {
        // As an ordinary user: root of a namespace with root's own id would be root outside.
        std::os::unix::fs::chown(place.home.path(), Some(23456), Some(23456)).unwrap();
        wrap.splice(0..0, ["setpriv", "--reuid", "23456", "--regid", "23456", "--clear-groups"]);
    }
    rerun(
        &exe,
        "elsewhere_there_are_no_user_namespaces",
        &wrap,
        &[("SANDHOLD_TEST_SMALL", home.to_str().unwrap())],
    );
}

#[tokio::test]
#[ignore = "run by another test, where no user namespace can be made"]
async fn elsewhere_there_are_no_user_namespaces() {
    let home = PathBuf::from(std::env::var_os("SANDHOLD_TEST_SMALL").unwrap());
    let helper = std::env::var_os("SANDHOLD_TEST_HELPER").unwrap();
    let provider = LocalProvider::new(LocalConfig::new().with_home(&home).with_helper(helper)).unwrap();
    let tags = tags("none");
    let known = BTreeSet::from([format!("sb-{}", tags.attempt)]);
    let error = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotStarted), "{error}");
    assert!(error.message().contains("user.max_user_namespaces"), "{error}");
    nothing_is_left(&home, &known);
}

async fn memory_lost_and_files_kept(killed: Part) {
    let place = Place::new();
    let provider = place.open();
    let handle = create(&provider).await;
    let id = handle.id().clone();
    handle.write_bytes("work.txt", "precious").await.unwrap();
    handle.shell("echo more >> work.txt; sleep 4321 >/dev/null 2>&1 & echo").await.unwrap();
    // The shell may have ended before what it leaves behind has become `sleep`.
    let sleeps = async {
        let sleeps = |(_, words): &(_, String)| words.contains("sleep 4321");
        while !Reality::of(&place.root(), &BTreeSet::new()).processes.iter().any(sleeps) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), sleeps).await.expect("sleep does not run");

    let (pid, _) = parts(&place.root()).into_iter().find(|(_, part)| *part == killed).unwrap();
    kill(pid);
    let stopped = async {
        loop {
            let found = provider.find(FindQuery::Id(id.clone())).await.unwrap();
            assert_eq!(found.len(), 1, "killed, and taken for gone");
            match found[0].state {
                SandboxState::Stopped => return,
                SandboxState::Transitioning => tokio::time::sleep(Duration::from_millis(2)).await,
                // It takes the kernel a moment.
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), stopped).await.unwrap();
    let error = handle.read_text("work.txt").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    assert!(handle.info().await.is_ok());

    let connection = provider.connect_opts(&id, ConnectOptions::default()).await.unwrap();
    assert_eq!(connection.resumed, Some(Memory::Lost));
    assert_eq!(connection.handle.read_text("work.txt").await.unwrap(), "preciousmore\n");
    let after = Reality::of(&place.root(), &BTreeSet::new());
    assert!(!after.processes.iter().any(|(_, words)| words.contains("sleep 4321")), "{after:#?}");
    assert_eq!(parts(&place.root()).len(), 2);
    provider.destroy(&id).await.unwrap();
    nothing_is_left(&place.root(), &BTreeSet::from([id.to_string()]));
}

#[tokio::test]
async fn a_sandbox_whose_daemon_was_killed_is_stopped_and_starts_again_on_its_files() {
    memory_lost_and_files_kept(Part::Daemon).await;
}

#[tokio::test]
async fn a_sandbox_whose_monitor_was_killed_is_stopped_and_starts_again_on_its_files() {
    memory_lost_and_files_kept(Part::Monitor).await;
}

#[tokio::test]
async fn a_destroy_after_the_lease_ran_out_leaves_not_even_the_reason() {
    let home = Place::new();
    let provider = home.open();
    let tags = tags("one");
    let attempt = tags.attempt.clone();
    let spec = SandboxSpec::default().with_lease(Duration::from_millis(1)).with_on_expiry(OnExpiry::Kill);
    let handle = provider.create_opts(CreateOptions::new(spec, tags)).await.unwrap();
    while provider.find_id(handle.id()).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(provider.destroy(handle.id()).await.unwrap(), DestroyOutcome::AlreadyGone);
    home.is_empty(&attempt);
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_of_one_attempt_at_once_make_one_sandbox() {
    let place = Place::new();
    let tags = tags("same");
    // Each has a provider of its own, as hosts in different processes do: they meet in the state directory only.
    let creates: Vec<_> = (0..6)
        .map(|_| {
            let (provider, tags) = (place.open(), tags.clone());
            tokio::spawn(async move {
                let options = CreateOptions::new(SandboxSpec::default(), tags);
                provider.create_opts(options).await.map(|handle| handle.id().clone())
            })
        })
        .collect();
    let mut ids = BTreeSet::new();
    for create in creates {
        ids.insert(create.await.unwrap().unwrap());
    }
    assert_eq!(ids.len(), 1);
    let provider = place.open();
    let listed = provider.list(ListFilter::default()).await.unwrap().collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(parts(&place.root()).iter().filter(|(_, part)| *part == Part::Daemon).count(), 1);
    let reality = Reality::of(&place.root(), &BTreeSet::new());
    assert_eq!((reality.directories.len(), reality.ids.len() <= 1, reality.staged.len()), (1, true, 0));
    let id = ids.pop_first().unwrap();
    provider.destroy(&id).await.unwrap();
    nothing_is_left(&place.root(), &BTreeSet::from([id.to_string()]));
}

#[tokio::test]
async fn a_record_that_cannot_be_understood_is_unexpected_and_never_gone() {
    let place = Place::new();
    let provider = place.open();
    let handle = create(&provider).await;
    let record = place.root().join("sandboxes").join(handle.id().as_str()).join("record.json");
    let good = fs::read(&record).unwrap();
    for bad in ["", "{", "[]", "{\"spec\":7}", "\u{0}\u{0}\u{0}"] {
        fs::write(&record, bad).unwrap();
        let id = handle.id();
        let errors = [
            provider.find(FindQuery::Id(id.clone())).await.unwrap_err(),
            provider.list(ListFilter::default()).await.unwrap_err(),
            provider.connect_opts(id, ConnectOptions::default()).await.unwrap_err(),
            provider.pause(id).await.unwrap_err(),
            provider.destroy(id).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unexpected, "{bad:?}: {error}");
            assert!(error.message().contains(record.to_str().unwrap()), "{error}");
        }
    }
    fs::write(&record, good).unwrap();
    provider.destroy(handle.id()).await.unwrap();
    nothing_is_left(&place.root(), &BTreeSet::from([handle.id().to_string()]));
}

#[tokio::test]
async fn a_state_directory_with_a_very_long_path_works() {
    let place = Place::new();
    let mut home = place.root();
    while home.as_os_str().len() < 700 {
        home.push("a-directory-with-a-rather-long-name");
    }
    let provider = LocalProvider::new(place.config().with_home(&home)).unwrap();
    let handle = create(&provider).await;
    assert_eq!(handle.shell("echo here").await.unwrap().stdout.text(), "here\n");
    provider.pause(handle.id()).await.unwrap();
    let connection = provider.connect_opts(handle.id(), ConnectOptions::default()).await.unwrap();
    assert_eq!(connection.resumed, Some(Memory::Kept));
    provider.destroy(handle.id()).await.unwrap();
    nothing_is_left(&home, &BTreeSet::from([handle.id().to_string()]));
}

#[tokio::test]
async fn what_a_dead_creator_left_is_removed_by_the_next_create() {
    let place = Place::new();
    let provider = place.open();
    let create_and_destroy = || async {
        let handle = create(&provider).await;
        provider.destroy(handle.id()).await.unwrap();
        handle.id().to_string()
    };
    let mut known = BTreeSet::from([create_and_destroy().await]);
    // As far as a creator comes before its sandbox has its name, and a remover before it is done.
    let root = place.root();
    fs::create_dir(root.join("staging/sb-dead.1.abc")).unwrap();
    fs::write(root.join("staging/sb-dead.1.abc/record.json.new"), "{").unwrap();
    fs::create_dir_all(root.join("ids")).unwrap();
    fs::write(root.join("ids/1342177280"), "sb-dead").unwrap();
    fs::write(root.join("ids/1342242816"), "").unwrap();
    fs::create_dir(root.join("sandboxes/sb-half")).unwrap();
    fs::write(root.join("sandboxes/sb-half/lock"), "").unwrap();
    known.insert(create_and_destroy().await);
    let listed = provider.list(ListFilter::default()).await.unwrap().collect().await.unwrap();
    assert!(listed.is_empty());
    nothing_is_left(&root, &known);
}

#[tokio::test]
async fn an_exec_with_a_bad_variable_or_user_is_refused_and_the_sandbox_is_fine() {
    let place = Place::new();
    let provider = place.open();
    let handle = create(&provider).await;
    for name in ["", "A=B", "A\0"] {
        let spec = ProcessSpec::argv("true", [""; 0]).with_env(name, "x");
        assert_eq!(handle.exec(spec).await.unwrap_err().kind(), ErrorKind::InvalidArgument, "{name:?}");
    }
    let spec = ProcessSpec::argv("true", [""; 0]).with_user("nobody-knows");
    assert_eq!(handle.exec(spec).await.unwrap_err().kind(), ErrorKind::Unauthenticated);
    assert_eq!(handle.shell("exit 3").await.unwrap().exit.code, Some(3));
    let unknown = SandboxId::new("sb-unknown");
    assert_eq!(provider.destroy(&unknown).await.unwrap(), DestroyOutcome::AlreadyGone);
    provider.destroy(handle.id()).await.unwrap();
}

#[tokio::test]
async fn the_variables_of_the_host_do_not_live_on_in_what_it_starts() {
    // Cargo gives every test program this one, as a service manager gives secrets.
    assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
    let place = Place::new();
    let provider = place.open();
    let handle = create(&provider).await;
    let monitors = parts(&place.root()).into_iter().filter(|(_, part)| *part == Part::Monitor);
    let monitors: Vec<_> = monitors.map(|(pid, _)| pid).collect();
    assert_eq!(monitors.len(), 1);
    for pid in monitors {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(!String::from_utf8_lossy(&environ).contains("CARGO_PKG_NAME"));
    }
    let inside = handle.exec(ProcessSpec::argv("env", [""; 0])).await.unwrap();
    assert!(!inside.stdout.text().contains("CARGO_PKG_NAME"));
    provider.destroy(handle.id()).await.unwrap();
}
