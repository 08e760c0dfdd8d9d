//! The work of a sandbox outlives it, and goes from one provider to another and back.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandhold_core::{
    AcquireOptions, AcquireOutcome, Acquired, ErrorKind, MemoryRegistry, Owner, PersistHook as _,
    ProcessSpec, Sandbox, SandboxHandleExt, SandboxProvider, SandboxSpec, Sandboxes,
};
use sandhold_e2b::{E2bConfig, E2bProvider};
use sandhold_local::{LocalConfig, LocalProvider};
use sandhold_persist::{
    CaptureOptions, Mirror, MirrorConfig, MirrorMode, MirrorTarget, Receipt, RemoteWorkspace, RepoKey,
    RestoreOptions, SkipReason, Survive, Vault, VaultConfig, VaultHook,
};
use serde_json::json;
use support::{KEY, Served};
use tempfile::TempDir;

/// A path that every base has a place for.
const WORK: &str = "/home/user/project";

/// A local provider of its own state.
fn local(dir: &Path, name: &str) -> Arc<dyn SandboxProvider> {
    let state = dir.join(format!("local-{name}"));
    std::fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
    let bases =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bases-{}", rustix::process::geteuid().as_raw()));
    std::fs::create_dir_all(&bases).unwrap();
    std::os::unix::fs::symlink(bases, state.join("base")).unwrap();
    // The server is its own helper, by its first argument.
    let helper = dir.join(format!("helper-{name}"));
    let script =
        format!("#!/bin/sh\nexec {} sandhold-helper \"$@\"\n", env!("CARGO_BIN_EXE_sandhold-server"));
    std::fs::write(&helper, script).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    Arc::new(LocalProvider::new(LocalConfig::new().with_home(state).with_helper(helper)).unwrap())
}

fn e2b(served: &Served) -> Arc<dyn SandboxProvider> {
    e2b_at(format!("http://{}", served.address()))
}

/// Passes everything on to a server, and counts its bytes.
fn counted(served: &Served) -> (String, Arc<AtomicU64>) {
    fn pass(mut from: TcpStream, mut to: TcpStream, count: Arc<AtomicU64>) {
        let mut piece = [0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            count.fetch_add(length as u64, Ordering::Relaxed);
            if to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
    let (at, count) = (served.address(), Arc::new(AtomicU64::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let counting = Arc::clone(&count);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(at).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap(), Arc::clone(&counting));
            let there = (client, server, Arc::clone(&counting));
            for (from, to, count) in [there, back] {
                std::thread::spawn(move || pass(from, to, count));
            }
        }
    });
    (url, count)
}

fn e2b_at(url: String) -> Arc<dyn SandboxProvider> {
    let config = E2bConfig::new(KEY)
        .with_api_url(url.clone())
        .with_sandbox_url(url)
        .with_list_visibility(Duration::ZERO);
    Arc::new(E2bProvider::new(config).unwrap())
}

async fn vault(dir: &Path, name: &str) -> Vault {
    Vault::open(VaultConfig::new(dir.join(name), RepoKey::new("work").unwrap())).await.unwrap()
}

/// What is in the workspace: kinds, modes, links and the sums of all contents.
async fn inside(sandbox: &Sandbox) -> BTreeMap<String, String> {
    let script = r#"cd "$0" && find . -path ./.git -prune -o -mindepth 1 -printf '%p\t%y\t%m\t%l\n' | while IFS="$(printf '\t')" read -r p y m l; do
        s=; [ "$y" = f ] && s=$(sha256sum <"$p"); printf '%s\t%s %s %s %s\n' "$p" "$y" "$m" "$l" "$s"; done"#;
    let found = sandbox.exec(ProcessSpec::argv("/bin/sh", ["-c", script, WORK])).await.unwrap();
    assert!(found.exit.success(), "{}", found.stderr.text());
    let text = found.stdout.text().into_owned();
    text.lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(path, what)| (path.to_owned(), what.to_owned()))
        .collect()
}

async fn run(sandbox: &Sandbox, script: &str) {
    let ran = sandbox.exec(ProcessSpec::argv("/bin/sh", ["-c", script])).await.unwrap();
    assert!(ran.exit.success(), "{script}: {}", ran.stderr.text());
}

const WORK_DONE: &str = r#"set -e; mkdir -p /home/user/project/src /home/user/project/hollow /home/user/project/node_modules
    cd /home/user/project; printf 'x\r\ny\r\n' >crlf.txt; printf 'fn main() {}\n' >src/main.rs
    printf '#!/bin/sh\n' >run.sh; chmod 755 run.sh; ln -s src/main.rs link; ln -s /etc/passwd out
    printf 'SECRET=1\n' >.env; printf 'node_modules/\n' >.gitignore; head -c 100000 /dev/urandom >node_modules/big
    printf a >'*'; printf b >./-rf; printf c >'sp ace'; head -c 3000000 /dev/urandom >random"#;

async fn acquired(sandboxes: &Sandboxes) -> Sandbox {
    let spec = SandboxSpec::new("base").with_lease(Duration::from_secs(600));
    let acquired = sandboxes.acquire("move-me", AcquireOptions::new(spec)).await.unwrap();
    acquired.sandbox
}

#[tokio::test(flavor = "multi_thread")]
async fn work_moves_from_local_to_an_e2b_server_and_back() {
    let dir = TempDir::new().unwrap();
    let served = tokio::task::spawn_blocking(|| Served::start(&[])).await.unwrap();
    let mirror = || {
        let config =
            MirrorConfig::new(MirrorTarget::File(dir.path().join("mirror"))).with_mode(MirrorMode::All);
        Mirror::open(config).unwrap()
    };
    // Hosts that share nothing but the mirror.
    let mut places = Vec::new();
    let back = local(dir.path(), "back");
    let order = [
        ("first", local(dir.path(), "here")),
        ("second", e2b(&served)),
        ("third", back),
        ("fourth", e2b(&served)),
    ];
    for (name, provider) in order {
        let survive = CaptureOptions::new().with_survive(Survive::new().with_path("src/main.rs"));
        let hook =
            VaultHook::new(vault(dir.path(), name).await, WORK).with_mirror(mirror()).with_capture(survive);
        let hook = Arc::new(hook);
        let sandboxes = Sandboxes::new(provider)
            .with_registry(Arc::new(MemoryRegistry::default()))
            .with_persist(hook.clone());
        places.push((sandboxes, hook));
    }

    let here = acquired(&places[0].0).await;
    run(&here, WORK_DONE).await;
    let expected = {
        let mut all = inside(&here).await;
        // Neither secrets nor what is ignored leave a sandbox.
        all.retain(|path, _| path != "./.env" && !path.starts_with("./node_modules"));
        all
    };
    assert!(expected.len() > 10, "{expected:?}");
    here.destroy().await.unwrap();

    let there = acquired(&places[1].0).await;
    assert_eq!(inside(&there).await, expected);
    // Nothing has changed, and nothing is captured.
    assert!(places[1].1.save(&there).await.unwrap().is_none());
    run(
        &there,
        "cd /home/user/project && printf more >>src/main.rs && rm run.sh && mkdir new && printf n >new/file",
    )
    .await;
    let changed = inside(&there).await;
    let saved = places[1].1.save(&there).await.unwrap().unwrap();
    assert!(saved.is_mirrored());
    there.destroy().await.unwrap();

    // Local again, where there is nothing of the first host, and from there to a server once more.
    let back = acquired(&places[2].0).await;
    assert_eq!(inside(&back).await, changed);
    run(&back, "cd /home/user/project && printf 'again\n' >src/again.rs && chmod 644 new/file && rm link")
        .await;
    let changed = inside(&back).await;
    back.destroy().await.unwrap();

    let spec = SandboxSpec::new("base").with_lease(Duration::from_secs(600));
    let Acquired { sandbox: again, facts, .. } =
        places[3].0.acquire("move-me", AcquireOptions::new(spec)).await.unwrap();
    assert_eq!(inside(&again).await, changed);
    // What had to survive was declared by whoever captured it, and is told to whoever gets it.
    let receipt: Receipt = serde_json::from_value(facts.restored.unwrap().receipt.unwrap()).unwrap();
    assert!(receipt.is_complete());
    assert_eq!(receipt.promised[0].path.to_string(), "src/main.rs");
    again.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_a_sandbox_and_its_receipt_survive_without_git_inside_being_asked() {
    let dir = TempDir::new().unwrap();
    let sandboxes = Sandboxes::new(local(dir.path(), "here"));
    let sandbox = acquired(&sandboxes).await;
    run(
        &sandbox,
        "mkdir -p /home/user/project && cd /home/user/project && git init -q . && printf 1 >a && git add a \
         && git -c user.name=a -c user.email=a@b commit -qm one && printf 2 >a",
    )
    .await;
    let vault = vault(dir.path(), "vaults").await;
    let workspace = RemoteWorkspace::new("w", WORK).unwrap();
    // A git that is called inside would leave a mark.
    run(&sandbox, "mkdir -p /tmp/armed && printf '#!/bin/sh\\ntouch /tmp/marked\\n' >/tmp/armed/git && chmod 755 /tmp/armed/git \
         && cd /home/user/project && git config core.fsmonitor /tmp/armed/git").await;
    let survive = Survive::new().with_path("a").with_git();
    let options = CaptureOptions::new().with_survive(survive);
    let snapshot = vault.capture_sandbox(&sandbox, &workspace, options).await.unwrap().unwrap();
    assert!(snapshot.has_history, "{:?}", vault.side_manifest(&snapshot).await.unwrap().warnings);
    assert!(snapshot.receipt.as_ref().unwrap().is_complete());
    assert_eq!(snapshot.branch.as_deref().map(|branch| branch.is_empty()), Some(false));
    run(&sandbox, "test ! -e /tmp/marked && rm /home/user/project/a").await;
    let restored = vault.restore_sandbox(&sandbox, &workspace, &snapshot.id, RestoreOptions::new()).await;
    // The deletion is a state that no snapshot has, and loses nothing that is not in one.
    let restored = match restored {
        Ok(restored) => restored,
        Err(refused) => {
            assert_eq!(refused.reason(), Some("dirty"), "{refused}");
            let options = RestoreOptions::new().with_on_dirty(sandhold_persist::OnDirty::Capture);
            vault.restore_sandbox(&sandbox, &workspace, &snapshot.id, options).await.unwrap()
        }
    };
    assert_eq!(restored.written, 1);
    // What no snapshot has is named, and all else arrives.
    run(&sandbox, "cd /home/user/project && printf KEY=1 >.env && printf 3 >b").await;
    let options = CaptureOptions::new().with_survive(Survive::new().with_path("b").with_path(".env"));
    let incomplete = vault.capture_sandbox(&sandbox, &workspace, options).await.unwrap().unwrap();
    run(&sandbox, "rm /home/user/project/b /home/user/project/.env").await;
    let options = RestoreOptions::new().with_on_dirty(sandhold_persist::OnDirty::Capture);
    let refused = vault.restore_sandbox(&sandbox, &workspace, &incomplete.id, options).await.unwrap_err();
    assert_eq!(refused.reason(), Some("restore_incomplete"), "{refused}");
    assert!(refused.message().contains(".env (env_file)"), "{refused}");
    run(&sandbox, "test \"$(cat /home/user/project/b)\" = 3").await;
    run(&sandbox, "test \"$(cat /home/user/project/a)\" = 2 && cd /home/user/project && git -c core.fsmonitor= log --oneline | grep -q one").await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_has_changed_travels() {
    let dir = TempDir::new().unwrap();
    let served = tokio::task::spawn_blocking(|| Served::start(&[])).await.unwrap();
    let (url, count) = counted(&served);
    let sandboxes = Sandboxes::new(e2b_at(url));
    let sandbox = acquired(&sandboxes).await;
    run(&sandbox, WORK_DONE).await;
    let vault = vault(dir.path(), "vaults").await;
    let workspace = RemoteWorkspace::new("w", WORK).unwrap();
    let capture = async || {
        let before = count.load(Ordering::Relaxed);
        let options = CaptureOptions::new();
        let snapshot = vault.capture_sandbox(&sandbox, &workspace, options).await.unwrap();
        (snapshot, count.load(Ordering::Relaxed) - before)
    };
    let (first, bytes) = capture().await;
    let first = first.unwrap();
    // Three million bytes that nothing makes shorter.
    assert!(bytes > 3_000_000, "{bytes}");
    // What was written right before the first look is looked at once more.
    assert!(capture().await.0.is_none());
    run(&sandbox, "printf more >>/home/user/project/src/main.rs").await;
    let (second, bytes) = capture().await;
    assert!(second.is_some() && bytes < 100_000, "{bytes}");
    let before = count.load(Ordering::Relaxed);
    let restored = vault.restore_sandbox(&sandbox, &workspace, &first.id, RestoreOptions::new()).await;
    let bytes = count.load(Ordering::Relaxed) - before;
    assert!(restored.unwrap().written == 1 && bytes < 100_000, "{bytes}");
    run(&sandbox, "test \"$(cat /home/user/project/src/main.rs)\" = 'fn main() {}'").await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_read_any_more_stays_as_it_was_and_is_told() {
    let dir = TempDir::new().unwrap();
    let served = tokio::task::spawn_blocking(|| Served::start(&[])).await.unwrap();
    let sandboxes = Sandboxes::new(e2b(&served));
    let sandbox = acquired(&sandboxes).await;
    run(&sandbox, "mkdir -p /home/user/project/locked /home/user/project/open && cd /home/user/project && printf 1 >locked/in && printf 1 >secret && printf 1 >open/a").await;
    let vault = vault(dir.path(), "vaults").await;
    let workspace = RemoteWorkspace::new("w", WORK).unwrap();
    let capture = |survive| {
        let options = CaptureOptions::new().with_survive(survive);
        vault.capture_sandbox(&sandbox, &workspace, options)
    };
    let first = capture(Survive::new().with_path("locked").with_path("secret")).await.unwrap().unwrap();
    assert!(first.receipt.unwrap().is_complete());
    run(&sandbox, "cd /home/user/project && printf 2 >locked/in && printf 2 >secret && printf 2 >open/a && mkdir new && printf 2 >new/x && chmod 000 locked secret new").await;
    let is_held = sandbox.exec(ProcessSpec::argv("/bin/sh", ["-c", "cat /home/user/project/secret"])).await;
    if is_held.unwrap().exit.success() {
        println!("skipped: needs a sandbox whose user is held by permissions");
        return;
    }
    let second = capture(Survive::new().with_path("locked").with_path("secret").with_path("open")).await;
    let second = second.unwrap().unwrap();
    let side = vault.side_manifest(&second).await.unwrap();
    let told: Vec<_> = side.skipped.iter().map(|skipped| skipped.path.to_string()).collect();
    assert_eq!(told, ["locked", "new", "secret"], "{:?}", side.skipped);
    assert!(side.skipped.iter().all(|skipped| skipped.reason == SkipReason::Unreadable));
    let missing: Vec<_> =
        second.receipt.as_ref().unwrap().missing.iter().map(|missing| missing.what.clone()).collect();
    assert_eq!(missing, ["locked", "secret"]);
    let out = dir.path().join("out");
    let refused = vault.restore(&second.id, &out, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.reason(), Some("restore_incomplete"));
    for (name, content) in [("locked/in", "1"), ("secret", "1"), ("open/a", "2")] {
        assert_eq!(std::fs::read_to_string(out.join(name)).unwrap(), content, "{name}");
    }
    // A workspace that may not be looked at is not one that is not there.
    run(
        &sandbox,
        "chmod 700 /home/user/project/locked /home/user/project/new && chmod 000 /home/user/project",
    )
    .await;
    let refused = capture(Survive::new()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    run(&sandbox, "chmod 755 /home/user/project && rm -r /home/user/project").await;
    assert_eq!(capture(Survive::new()).await.unwrap_err().reason(), Some("no_workspace"));
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_saved_before_a_pause_and_a_sleeper_is_not_woken_to_save_it_again() {
    let dir = TempDir::new().unwrap();
    let vault = vault(dir.path(), "vaults").await;
    // A mirror of which nobody said that all goes there gets what is asked for alone.
    let config = MirrorConfig::new(MirrorTarget::File(dir.path().join("mirror")));
    let mirror = Mirror::open(config).unwrap();
    let hook = Arc::new(VaultHook::new(vault.clone(), WORK).with_mirror(mirror.clone()));
    let sandboxes = Sandboxes::new(local(dir.path(), "here")).with_persist(hook.clone());
    let sandbox = acquired(&sandboxes).await;
    // There is no workspace yet, which is no work that is lost.
    hook.tick(&sandbox).await.unwrap();
    run(&sandbox, WORK_DONE).await;
    sandbox.pause().await.unwrap();
    assert_eq!(vault.snapshots().await.unwrap().len(), 1);

    let mut events = sandboxes.events();
    sandbox.destroy().await.unwrap();
    let mut kinds = Vec::new();
    while let Ok(Some(Ok(event))) = tokio::time::timeout(Duration::ZERO, events.next()).await {
        kinds.push(format!("{:?}", event.kind));
    }
    assert!(kinds.iter().any(|kind| kind.starts_with("Destroyed")), "{kinds:?}");
    assert!(!kinds.iter().any(|kind| kind.starts_with("Resumed")), "{kinds:?}");
    assert_eq!(vault.snapshots().await.unwrap().len(), 1);

    let next = acquired(&sandboxes).await;
    run(&next, "test -x /home/user/project/run.sh && test -d /home/user/project/hollow").await;
    run(&next, "printf 3 >/home/user/project/a").await;
    hook.tick(&next).await.unwrap();
    hook.tick(&next).await.unwrap();
    assert_eq!(vault.snapshots().await.unwrap().len(), 2);
    next.destroy().await.unwrap();
    let snapshots = vault.snapshots().await.unwrap();
    assert_eq!(snapshots.len(), 2);
    assert!(mirror.repos().await.unwrap().is_empty());

    // What is gone here comes from there, and a mirror that cannot be asked is no mirror without work.
    let newest = mirror.upload(&vault, &snapshots[1].id).await.unwrap();
    std::fs::remove_file(vault.git_dir().join(newest.id.ref_name())).unwrap();
    let objects = dir.path().join("mirror/snapshots/work");
    let away = dir.path().join("away");
    std::fs::rename(&objects, &away).unwrap();
    std::fs::write(&objects, "in the way").unwrap();
    let spec = SandboxSpec::new("base").with_lease(Duration::from_secs(600));
    let refused = sandboxes.acquire("move-me", AcquireOptions::new(spec)).await;
    assert!(refused.is_err(), "a sandbox without its work");
    std::fs::remove_file(&objects).unwrap();
    std::fs::rename(&away, &objects).unwrap();
    let last = acquired(&sandboxes).await;
    run(&last, "test \"$(cat /home/user/project/a)\" = 3 && test -x /home/user/project/run.sh").await;
    last.destroy().await.unwrap();
}

#[tokio::test]
async fn what_mastra_made_is_taken_over_by_its_own_id_with_its_work_and_nothing_is_created() {
    let served = tokio::task::spawn_blocking(|| Served::start(&[])).await.unwrap();
    let at = served.address();
    let theirs = tokio::task::spawn_blocking(move || {
        let asked =
            json!({ "timeout": 600, "autoPause": true, "metadata": { "mastra-sandbox-id": "thread-7" } });
        let theirs = http::Box::create(at, asked);
        theirs.write("kept.txt", "work of theirs");
        assert_eq!(theirs.control("POST", "/pause").send(at).status, 204);
        theirs
    });
    let theirs = theirs.await.unwrap();
    let url = format!("http://{at}");
    let config = E2bConfig::new(KEY)
        .with_api_url(url.clone())
        .with_sandbox_url(url)
        .with_list_visibility(Duration::ZERO)
        .with_mastra_owner(Owner::default());
    let provider: Arc<dyn SandboxProvider> = Arc::new(E2bProvider::new(config).unwrap());
    // Two hosts one after the other, neither of which knows more than the id. For the first one its own setup is still to
    // be done in there, and so it is said to be new.
    for outcome in [AcquireOutcome::Created, AcquireOutcome::Connected] {
        let registry = Arc::new(MemoryRegistry::default());
        let sandboxes = Sandboxes::new(Arc::clone(&provider)).with_registry(registry);
        let acquired = sandboxes.acquire("thread-7", AcquireOptions::default()).await.unwrap();
        assert_eq!(acquired.outcome, outcome, "{:?}", acquired.facts);
        assert_eq!(acquired.sandbox.provider_id().map(|id| id.as_str()), Some(theirs.id.as_str()));
        assert_eq!(acquired.sandbox.read_text("kept.txt").await.unwrap(), "work of theirs");
    }
    let listed =
        tokio::task::spawn_blocking(move || http::Request::new("GET", "/v2/sandboxes").key().send(at));
    assert_eq!(listed.await.unwrap().json().as_array().unwrap().len(), 1);
}
