//! Repositories that are armed against whoever opens them: nothing of theirs runs, and nothing outside is touched.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandhold_persist::{
    AdoptOptions, BundleOptions, CaptureOptions, Examined, GcOptions, ImportOptions, Mirror, MirrorConfig,
    MirrorTarget, OnDirty, OnUnfit, PersistConfig, RepoKey, RepositoryRepairOptions, RestoreOptions,
    Retention, RunOutcome, Snapshot, Survive, Vault, VaultConfig, VerifyLevel, VerifyOptions,
};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use support::{fsck_but, git, open, tree, write};

const HOOKS: &[&str] = &[
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-rewrite",
    "pre-auto-gc",
    "pre-commit",
    "pre-push",
    "pre-receive",
    "prepare-commit-msg",
    "reference-transaction",
    "update",
];

/// A repository in which everything that git may run makes a file in `markers`, or overwrites `outside`.
fn arm(work: &Path, markers: &Path, outside: &Path) {
    git(work, &["init", "-q", "-b", "main"]);
    write(work, "a.txt", "one\r\n");
    write(work, "b.bin", "bytes");
    write(work, ".gitattributes", "*.txt filter=evil text eol=lf\n*.bin filter=a=b diff=evil merge=evil\n");
    git(work, &["-c", "core.attributesFile=/dev/null", "add", "-A"]);
    git(work, &["commit", "-qm", "first"]);

    let touch = |name: &str| format!("touch {}/{name}", markers.display());
    let dir = work.join(".git");
    for hook in HOOKS {
        let path = dir.join("hooks").join(hook);
        fs::create_dir_all(dir.join("hooks")).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{}\n", touch(hook))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut config = fs::read_to_string(dir.join("config")).unwrap();
    for key in ["fsmonitor", "sshCommand", "askPass", "pager", "editor", "alternateRefsCommand", "gitProxy"] {
        config += &format!("[core]\n\t{key} = {}\n", touch(key));
    }
    for driver in ["evil", "a=b"] {
        for key in ["clean", "smudge", "process"] {
            config += &format!("[filter \"{driver}\"]\n\t{key} = {}\n\trequired = true\n", touch(key));
        }
        config += &format!("[diff \"{driver}\"]\n\ttextconv = {0}\n\tcommand = {0}\n", touch("diff"));
        config += &format!("[merge \"{driver}\"]\n\tdriver = {}\n", touch("merge"));
    }
    config += &format!("[credential]\n\thelper = !{}\n", touch("credential"));
    config += &format!("[core]\n\tworktree = {}\n\tautocrlf = true\n", outside.display());
    config += &format!("[include]\n\tpath = {}/included\n", outside.display());
    config += &format!("[core]\n\thooksPath = {}\n", dir.join("hooks").display());
    config += "[remote \"origin\"]\n\turl = ext::sh -c touch% markers\n\tpromisor = true\n";
    config += "[extensions]\n\tworktreeConfig = true\n\tpartialClone = origin\n";
    fs::write(dir.join("config"), config).unwrap();
    fs::write(dir.join("config.worktree"), format!("[core]\n\tfsmonitor = {}\n", touch("worktree"))).unwrap();
    fs::create_dir_all(dir.join("info")).unwrap();
    fs::write(dir.join("info/attributes"), "* filter=a=b\n").unwrap();
    fs::write(dir.join("objects/info/alternates"), format!("{}/other/.git/objects\n", outside.display()))
        .unwrap();
    fs::write(dir.join("commondir"), format!("{}/other/.git\n", outside.display())).unwrap();

    // In the tree: links out of it, a submodule that points back, and names that mean something to somebody.
    symlink(outside, work.join("way out")).unwrap();
    symlink("/etc", work.join("etc")).unwrap();
    write(work, ".gitmodules", "[submodule \"x\"]\n\tpath = sub\n\turl = -u./payload\n");
    write(work, "sub/.git", format!("gitdir: {}/other/.git\n", outside.display()));
    write(work, "sub/file", "inner");
    for name in
        ["--upload-pack=x", "$(touch x)", ";touch x", "GIT~1", ".Git", ".g\u{200c}it", "%s%n", "\u{202e}txt"]
    {
        write(work, name, "odd name");
    }
}

/// What is done to an armed repository: every public call.
#[test]
#[ignore = "is run by the other test, in a process that may start no other"]
fn guest() {
    let Some(dir) = std::env::var_os("SANDHOLD_TEST_DIR") else { return };
    let dir = Path::new(&dir);
    forbid_children();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let work = dir.join("work");
        let vault = open(dir).await;
        let options = || {
            CaptureOptions::new()
                .with_mtimes()
                .with_xattrs()
                .with_survive(Survive::new().with_path("a.txt").with_glob("*.bin"))
        };
        vault.capture_baseline(&work, options()).await.unwrap().unwrap();
        write(&work, "a.txt", "two\r\n");
        let first = vault.capture(&work, options()).await.unwrap();
        assert!(first.has_history && first.receipt.as_ref().unwrap().is_complete(), "{first:?}");
        let session = vault.begin(&work, options());
        write(&work, "a.txt", "three\r\n");
        session.capture().await.unwrap().unwrap();
        session.end(RunOutcome::Clean, Some(0)).await.unwrap().unwrap();
        vault.side_manifest(&first).await.unwrap();
        assert_eq!(vault.snapshots().await.unwrap().len(), 3);
        vault.snapshot(first.id.as_str()).await.unwrap();
        vault.restore(&first.id, dir.join("out"), RestoreOptions::new()).await.unwrap();
        let over = RestoreOptions::new().with_on_dirty(OnDirty::Capture).with_sync();
        vault.restore(&first.id, &work, over).await.unwrap();
        assert!(vault.unfinished_restores().await.unwrap().is_empty());
        let bundle = dir.join("x.bundle");
        vault.write_bundle(&first.id, &bundle, BundleOptions::new().with_branch("main")).await.unwrap();
        Vault::bundle_header(&bundle).await.unwrap();
        let copy = Vault::open(VaultConfig::new(dir.join("vaults"), RepoKey::new("copy").unwrap()));
        let allowed = ImportOptions::new().with_any_repository(true);
        copy.await.unwrap().import_bundle(&bundle, allowed).await.unwrap();
        vault.set_retention(&first.id, Some("0s")).await.unwrap();
        vault.prune(Retention::new().with_max_count(1)).await.unwrap();
        vault.gc(GcOptions::new().with_min_age(Duration::ZERO).with_max_packs(0)).await.unwrap();
        vault.verify(&first.id, VerifyOptions::new()).await.unwrap();
        let verified = vault.verify_all(VerifyOptions::new()).await.unwrap();
        assert!(verified.iter().all(Examined::is_good));
        vault.repair(None).await.unwrap();
        assert_eq!(fs::read(work.join("a.txt")).unwrap(), b"two\r\n");
        assert_eq!(fs::read(dir.join("out/a.txt")).unwrap(), b"two\r\n");
        ways_out(dir, &work, &vault, &first).await;
        in_its_repository(&work).await;
    });
}

/// The other calls of a vault, and those of a mirror.
async fn ways_out(dir: &Path, work: &Path, vault: &Vault, first: &Snapshot) {
    let branch = vault.restore_branch(&first.id, work, None).await.unwrap();
    assert!(branch.matches_workspace, "{branch:?}");
    vault.restore_patch(&first.id, dir.join("x.patch")).await.unwrap();
    RepoKey::of_workspace(work).await.unwrap();
    let session = vault.resume(&first.id, CaptureOptions::new()).await.unwrap();
    write(work, "b.bin", "other bytes");
    assert!(session.capture().await.unwrap().is_some());
    let pattern = RepositoryRepairOptions::new().with_lock_age(Duration::ZERO);
    vault.repair_repository(work, pattern.clone()).await.unwrap();
    // It says of itself that it is a worktree of the one outside, whatever is in it.
    let thief = dir.join("thief");
    fs::create_dir(&thief).unwrap();
    let outside = dir.join("outside/other/.git/worktrees/thief");
    fs::write(thief.join(".git"), format!("gitdir: {}\n", outside.display())).unwrap();
    vault.repair_repository(&thief, pattern.with_main(work)).await.unwrap_err();

    let bundle = dir.join("y.bundle");
    let with_branch = BundleOptions::new().with_branch("main");
    vault.write_bundle(&first.id, &bundle, with_branch).await.unwrap();
    vault.adopt_bundle(&bundle, AdoptOptions::new()).await.unwrap();
    let mirror = Mirror::open(MirrorConfig::new(MirrorTarget::File(dir.join("mirror")))).unwrap();
    mirror.check().await.unwrap();
    mirror.upload(vault, &first.id).await.unwrap();
    for level in [VerifyLevel::Head, VerifyLevel::Digest, VerifyLevel::Full] {
        mirror.verify(vault, &first.id, level).await.unwrap();
    }
    assert_eq!(mirror.repos().await.unwrap()[0].snapshots, 1);
    assert_eq!(mirror.snapshots(vault.key()).await.unwrap().total, 1);
    assert!(mirror.orphans(vault.key()).await.unwrap().is_empty());
    assert!(mirror.queued(vault).await.unwrap().is_empty());
    assert!(mirror.resume(vault).await.unwrap().is_empty());
    let again = Vault::open(VaultConfig::new(dir.join("again"), vault.key().clone())).await.unwrap();
    mirror.fetch(&again, first.id.as_str()).await.unwrap();
    mirror.restore(&again, &first.id, dir.join("back"), RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read(dir.join("back/a.txt")).unwrap(), b"two\r\n");
    PersistConfig::load(None, Some(&work.join("a.txt"))).unwrap_err();
}

/// Snapshots in the armed repository itself.
async fn in_its_repository(work: &Path) {
    let open = || Vault::open(VaultConfig::in_repo(work, RepoKey::new("armed").unwrap()));
    // Objects and refs are said to be elsewhere, where nothing is to be written or read.
    let elsewhere = ["commondir", "objects/info/alternates"].map(|name| work.join(".git").join(name));
    let said = fs::read(&elsewhere[1]).unwrap();
    for path in &elsewhere {
        let refused = open().await.unwrap_err();
        assert_eq!(refused.reason(), Some("in_repo"), "{refused}");
        fs::remove_file(path).unwrap();
    }
    let vault = open().await.unwrap();
    write(work, "c", "more");
    let snapshot = vault.capture(work, CaptureOptions::new()).await.unwrap();
    vault.restore_branch(&snapshot.id, work, Some("in-repo")).await.unwrap();
    write(work, "c", "still more");
    let over = RestoreOptions::new().with_on_dirty(OnDirty::Capture);
    vault.restore(&snapshot.id, work, over).await.unwrap();
    vault.prune(Retention::new().with_max_count(1)).await.unwrap();
    assert!(vault.verify_all(VerifyOptions::new()).await.unwrap().iter().all(Examined::is_good));
    // Nor is it believed where it is said later.
    fs::write(&elsewhere[1], said).unwrap();
    write(work, "c", "the last");
    let refused = vault.capture(work, CaptureOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("in_repo"), "{refused}");
}

/// From here on, whatever begins another process ends this one.
fn forbid_children() {
    const CLONE_THREAD: u64 = 0x10000;
    let kill = |calls: &[(i64, Vec<SeccompRule>)], action| {
        let rules: BTreeMap<i64, Vec<SeccompRule>> = calls.iter().cloned().collect();
        let filter = SeccompFilter::new(
            rules,
            SeccompAction::Allow,
            action,
            std::env::consts::ARCH.try_into().unwrap(),
        );
        let program: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
        seccompiler::apply_filter(&program).unwrap();
    };
    let no_thread =
        SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(CLONE_THREAD), 0);
    let forking = vec![SeccompRule::new(vec![no_thread.unwrap()]).unwrap()];
    // Its arguments cannot be seen; without it threads are made by clone.
    kill(&[(libc::SYS_clone3, vec![])], SeccompAction::Errno(libc::ENOSYS as u32));
    kill(
        &[
            (libc::SYS_clone, forking),
            (libc::SYS_execve, vec![]),
            (libc::SYS_execveat, vec![]),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_fork, vec![]),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_vfork, vec![]),
        ],
        SeccompAction::KillProcess,
    );
}

#[test]
fn nothing_of_an_armed_repository_runs_and_nothing_outside_of_it_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (work, markers, outside) =
        (dir.path().join("work"), dir.path().join("markers"), dir.path().join("outside"));
    for path in [&work, &markers, &outside, &outside.join("other")] {
        fs::create_dir(path).unwrap();
    }
    write(&outside, "a.txt", "not to be overwritten");
    git(&outside.join("other"), &["init", "-q"]);
    write(&outside, "other/secret", "of the host");
    git(&outside.join("other"), &["add", "-A"]);
    git(&outside.join("other"), &["commit", "-qm", "secret"]);
    let secret = git(&outside.join("other"), &["rev-parse", "HEAD"]);
    arm(&work, &markers, &outside);
    let (before, config) = (tree(&outside), fs::read(work.join(".git/config")).unwrap());

    let guest = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "guest", "--ignored", "--nocapture", "--test-threads=1"])
        .env("SANDHOLD_TEST_DIR", dir.path())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(guest.success(), "{guest:?}");
    assert_eq!(fs::read_dir(&markers).unwrap().count(), 0, "something ran");
    assert!(tree(&outside) == before, "something outside was touched");
    assert_eq!(fs::read(work.join(".git/config")).unwrap(), config);

    let vault = dir.path().join("vaults/test/vault.git");
    // What a `.gitmodules` says is the workspace's own matter.
    fsck_but(&vault, &["fsck.gitmodulesUrl=ignore"]);
    let stolen = support::git_output(&vault, &["cat-file", "-e", &secret]);
    assert!(!stolen.status.success(), "a repository of the host got into the vault");
    let out = dir.path().join("out");
    assert_eq!(fs::read_link(out.join("etc")).unwrap(), Path::new("/etc"));
    assert_eq!(fs::read(out.join("$(touch x)")).unwrap(), b"odd name");
    for refused in ["GIT~1", ".Git", ".g\u{200c}it", ".git", "sub/.git"] {
        assert!(!out.join(refused).exists(), "{refused}");
    }
}

#[test]
fn the_suite_would_notice_a_child_process() {
    use std::os::unix::process::ExitStatusExt;
    let died = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "forks", "--ignored", "--test-threads=1"])
        .env("SANDHOLD_TEST_FORK", "1")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(died.signal(), Some(libc::SIGSYS), "{died:?}");
}

#[test]
#[ignore = "is run by another test, and dies"]
fn forks() {
    if std::env::var_os("SANDHOLD_TEST_FORK").is_some() {
        forbid_children();
        let _ = Command::new("true").status();
    }
}

/// Stores a tree of these entries in the vault, as another git could, and makes a snapshot of it.
async fn plant(dir: &Path, entries: &[(&str, &str, &str)]) -> sandhold_persist::SnapId {
    let vault = open(dir).await;
    let work = dir.join("plant");
    fs::create_dir_all(&work).unwrap();
    fs::write(work.join("x"), entries.len().to_string() + entries[0].1).unwrap();
    let snapshot = vault.capture(&work, CaptureOptions::new()).await.unwrap();
    let git_dir = vault.git_dir();
    fs::write(work.join("x"), "content").unwrap();
    let path = work.join("x");
    let blob = git(&git_dir, &["hash-object", "-w", path.to_str().unwrap()]);
    let mut raw = Vec::new();
    for (mode, name, kind) in entries {
        let id = match *kind {
            "tree" => git(&git_dir, &["mktree", "--missing"]),
            _ => blob.clone(),
        };
        raw.extend_from_slice(format!("{mode} {name}\0").as_bytes());
        raw.extend((0..20).map(|at| u8::from_str_radix(&id[at * 2..at * 2 + 2], 16).unwrap()));
    }
    fs::write(work.join("raw"), raw).unwrap();
    let raw = work.join("raw");
    let tree = git(&git_dir, &["hash-object", "-w", "-t", "tree", "--literally", raw.to_str().unwrap()]);
    let message = git(&git_dir, &["log", "-1", "--format=%B", &snapshot.id.ref_name()]);
    let commit = git(&git_dir, &["commit-tree", &tree, "-m", &message]);
    git(&git_dir, &["update-ref", &snapshot.id.ref_name(), &commit]);
    fs::remove_dir_all(work).unwrap();
    snapshot.id
}

#[tokio::test]
async fn a_tree_that_reaches_out_is_refused_before_anything_is_written() {
    for entries in [
        &[("100644", ".git", "blob")][..],
        &[("40000", ".GIT", "tree")],
        &[("100644", "git~1", "blob")],
        &[("100644", ".g\u{200c}it", "blob")],
        &[("100644", "..", "blob")],
        &[("100644", "a/b", "blob")],
        &[("104755", "setuid", "blob")],
        &[("120000", ".gitmodules", "blob")],
        &[("120000", "twice", "blob"), ("40000", "twice", "tree")],
        &[("100666", "odd", "blob")],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let id = plant(dir.path(), entries).await;
        let target = dir.path().join("target");
        let vault = open(dir.path()).await;
        let refused = vault.restore(&id, &target, RestoreOptions::new()).await.unwrap_err();
        assert_eq!(refused.reason(), Some("hostile_tree"), "{entries:?}: {refused}");
        assert!(!target.exists(), "{entries:?}");
    }
}

#[tokio::test]
async fn a_name_that_the_target_has_not_is_refused_by_name_or_gets_another() {
    let (dir, long) = (tempfile::tempdir().unwrap(), "x".repeat(300));
    let id = plant(dir.path(), &[("100644", "fine", "blob"), ("100644", &long, "blob")]).await;
    let (vault, target) = (open(dir.path()).await, dir.path().join("target"));
    // As a restore leaves it that was killed while it tried names out.
    fs::create_dir_all(target.join(".sandhold-restore-names")).unwrap();
    fs::write(target.join(".sandhold-restore-names/tried"), "").unwrap();
    let refused = vault.restore(&id, &target, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("unfit_name"), "{refused}");
    assert!(refused.message().contains(&long), "{refused}");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "something was written");

    let options = || RestoreOptions::new().with_on_unfit(OnUnfit::Rename);
    let restored = vault.restore(&id, &target, options()).await.unwrap();
    let [(from, to)] = &restored.renamed[..] else { panic!("{restored:?}") };
    assert_eq!((from.to_string(), restored.written), (long, 2));
    for name in ["fine".to_owned(), to.to_string()] {
        assert_eq!(fs::read(target.join(name)).unwrap(), b"content");
    }
    let again = vault.restore(&id, &target, options()).await.unwrap();
    assert_eq!((again.written, again.untouched, again.deleted), (0, 2, 0));
    assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
}
