//! The filesystem service over a real socket: answers and errors are those that E2B's clients expect.

#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use sandhold_envd::UserMode;
use serde_json::{Value, json};
use support::{Answer, Running, ask};

async fn call(running: &Running, method: &str, request: Value) -> Answer {
    call_as(running, method, request, None).await
}

async fn call_as(running: &Running, method: &str, request: Value, user: Option<&str>) -> Answer {
    let basic = user.map(|user| format!("Basic {}", base64(&format!("{user}:"))));
    let mut headers = vec![("Content-Type", "application/json"), ("Connect-Protocol-Version", "1")];
    headers.extend(basic.as_deref().map(|basic| ("Authorization", basic)));
    let line = format!("POST /filesystem.Filesystem/{method}");
    ask(running.address, &line, &headers, request.to_string().as_bytes()).await
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn assert_error(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{}", answer.json());
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

#[tokio::test]
async fn stat_tells_a_file_exactly() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.txt");
    fs::write(&file, "four").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_700_000_000_250))
        .unwrap();
    let answer = call(&running, "Stat", json!({ "path": text(&file) })).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let mut got = answer.json();
    let entry = got["entry"].as_object_mut().unwrap();
    let owner = entry.remove("owner").unwrap();
    assert_eq!(entry.remove("group").is_some(), owner.is_string());
    assert_eq!(
        Value::from(entry.clone()),
        json!({
            "name": "a.txt",
            "type": "FILE_TYPE_FILE",
            "path": text(&file),
            "size": "4",
            "mode": 0o640,
            "permissions": "-rw-r-----",
            "modifiedTime": "2023-11-14T22:13:20.250Z",
        })
    );
}

#[tokio::test]
async fn a_link_has_the_type_and_mode_of_its_target_and_its_own_mode_string() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    fs::create_dir(real.join("d")).unwrap();
    fs::set_permissions(real.join("d"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("d", real.join("one")).unwrap();
    symlink("one", real.join("two")).unwrap();
    symlink("nowhere", real.join("broken")).unwrap();
    symlink("cycle", real.join("cycle")).unwrap();

    let entry = call(&running, "Stat", json!({ "path": text(&real.join("two")) })).await.json();
    assert_eq!(entry["entry"]["type"], "FILE_TYPE_DIRECTORY");
    assert_eq!(entry["entry"]["mode"], 0o750);
    assert_eq!(entry["entry"]["permissions"], "Lrwxrwxrwx");
    assert_eq!(entry["entry"]["symlinkTarget"], text(&real.join("d")));
    assert_eq!(entry["entry"].get("isSymlink"), None);

    for name in ["broken", "cycle"] {
        let entry = call(&running, "Stat", json!({ "path": text(&real.join(name)) })).await.json();
        assert_eq!(entry["entry"].get("type"), None, "unspecified is not written");
        assert_eq!(entry["entry"]["symlinkTarget"], text(&real.join(name)));
    }
}

#[tokio::test]
async fn a_missing_path_is_not_found_and_a_foreign_home_invalid() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let missing = json!({ "path": text(&dir.path().join("no")) });
    assert_error(&call(&running, "Stat", missing.clone()).await, 404, "not_found");
    assert_error(&call(&running, "ListDir", missing).await, 404, "not_found");
    for method in ["Stat", "ListDir", "MakeDir", "Remove", "CreateWatcher"] {
        let answer = call(&running, method, json!({ "path": "~nobody/x" })).await;
        assert_error(&answer, 400, "invalid_argument");
        let answer = call(&running, method, json!({ "path": "/tmp/a\0b" })).await;
        assert_error(&answer, 400, "invalid_argument");
    }
}

#[tokio::test]
async fn an_unknown_user_is_unauthenticated() {
    let running = support::start(|config| config).await;
    let answer = call_as(&running, "Stat", json!({ "path": "/" }), Some("no-such-user")).await;
    assert_error(&answer, 401, "unauthenticated");
}

#[tokio::test]
async fn make_dir_makes_parents_and_says_what_stands_in_the_way() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/b/c");
    let answer = call(&running, "MakeDir", json!({ "path": text(&deep) })).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["entry"]["permissions"], "drwxr-xr-x");
    assert!(deep.is_dir());
    let again = call(&running, "MakeDir", json!({ "path": text(&deep) })).await;
    assert_error(&again, 409, "already_exists");
    fs::write(dir.path().join("f"), "").unwrap();
    let file = call(&running, "MakeDir", json!({ "path": text(&dir.path().join("f")) })).await;
    assert_error(&file, 400, "invalid_argument");
    let below = call(&running, "MakeDir", json!({ "path": text(&dir.path().join("f/x")) })).await;
    assert_error(&below, 500, "internal");
}

#[tokio::test]
async fn what_a_user_makes_belongs_to_the_user() {
    if !is_root() {
        return;
    }
    let running = support::start(|config| config.with_user_mode(UserMode::SetId)).await;
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/b");
    let answer = call_as(&running, "MakeDir", json!({ "path": text(&deep) }), Some("nobody")).await;
    assert_eq!(answer.json()["entry"]["owner"], "nobody");
    assert_eq!(answer.json()["entry"]["group"], "nogroup");
    let parent = call(&running, "Stat", json!({ "path": text(&dir.path().join("a")) })).await;
    assert_eq!(parent.json()["entry"]["owner"], "nobody");
    let kept = call(&running, "Stat", json!({ "path": text(dir.path()) })).await;
    assert_eq!(kept.json()["entry"]["owner"], "root");
}

#[tokio::test]
async fn with_one_id_its_files_are_shown_as_the_requesting_users() {
    if !is_root() {
        return;
    }
    let running = support::start(|config| config.with_user_mode(UserMode::SingleId)).await;
    let dir = tempfile::tempdir().unwrap();
    let made = json!({ "path": text(&dir.path().join("d")) });
    let answer = call_as(&running, "MakeDir", made.clone(), Some("nobody")).await;
    assert_eq!(answer.json()["entry"]["owner"], "nobody");
    assert_eq!(answer.json()["entry"]["group"], "nogroup");
    let answer = call_as(&running, "Stat", made, Some("root")).await;
    assert_eq!(answer.json()["entry"]["owner"], "root");
}

#[tokio::test]
async fn move_makes_parents_and_replaces() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("from"), "new").unwrap();
    let to = dir.path().join("x/y/to");
    let ask = json!({ "source": text(&dir.path().join("from")), "destination": text(&to) });
    let answer = call(&running, "Move", ask.clone()).await;
    assert_eq!(answer.json()["entry"]["path"], text(&to));
    assert_eq!(fs::read_to_string(&to).unwrap(), "new");
    assert_error(&call(&running, "Move", ask).await, 404, "not_found");
    let onto = json!({ "source": text(&to), "destination": text(dir.path()) });
    assert_error(&call(&running, "Move", onto).await, 500, "internal");
}

#[tokio::test]
async fn list_is_depth_first_in_byte_order_and_follows_only_the_root() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("real");
    fs::create_dir_all(real.join("b/c")).unwrap();
    fs::write(real.join("b/c/deep"), "").unwrap();
    for name in ["a", "B", "é", "b.txt"] {
        fs::write(real.join(name), "").unwrap();
    }
    symlink("b", real.join("link")).unwrap();
    symlink("real", dir.path().join("root")).unwrap();
    let root = dir.path().join("root");

    let list = async |depth: Option<u32>| -> Vec<String> {
        let mut request = json!({ "path": text(&root) });
        if let Some(depth) = depth {
            request["depth"] = depth.into();
        }
        let answer = call(&running, "ListDir", request).await.json();
        let entries = answer["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    let at = |names: &[&str]| names.iter().map(|name| text(&root.join(name)).to_owned()).collect::<Vec<_>>();
    assert_eq!(list(None).await, at(&["B", "a", "b", "b.txt", "link", "é"]));
    assert_eq!(list(Some(1)).await, list(None).await);
    assert_eq!(list(Some(2)).await, at(&["B", "a", "b", "b/c", "b.txt", "link", "é"]));
    assert_eq!(list(Some(9)).await, at(&["B", "a", "b", "b/c", "b/c/deep", "b.txt", "link", "é"]));

    let file = call(&running, "ListDir", json!({ "path": text(&real.join("a")) })).await;
    assert_error(&file, 400, "invalid_argument");
    symlink("loop", dir.path().join("loop")).unwrap();
    let cycle = call(&running, "ListDir", json!({ "path": text(&dir.path().join("loop")) })).await;
    assert_error(&cycle, 400, "failed_precondition");
}

#[tokio::test]
async fn an_empty_directory_lists_as_nothing() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let answer = call(&running, "ListDir", json!({ "path": text(dir.path()), "depth": 3 })).await;
    assert_eq!((answer.status, answer.json()), (200, json!({})));
}

#[tokio::test]
async fn remove_is_recursive_forgives_absence_and_never_follows_links() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("gone/sub")).unwrap();
    fs::create_dir(dir.path().join("kept")).unwrap();
    fs::write(dir.path().join("kept/f"), "").unwrap();
    symlink("../kept", dir.path().join("gone/link")).unwrap();
    for _ in 0..2 {
        let answer = call(&running, "Remove", json!({ "path": text(&dir.path().join("gone")) })).await;
        assert_eq!((answer.status, answer.json()), (200, json!({})));
    }
    assert!(!dir.path().join("gone").exists());
    assert!(dir.path().join("kept/f").exists());
}

#[tokio::test]
async fn the_root_and_mount_points_are_not_removed() {
    let running = support::start(|config| config).await;
    for path in ["/", "//", "/tmp/..", "/./"] {
        assert_error(&call(&running, "Remove", json!({ "path": path })).await, 400, "invalid_argument");
    }
    assert_error(&call(&running, "Remove", json!({ "path": "/proc" })).await, 500, "internal");
    assert!(Path::new("/proc/self").exists());
}

#[tokio::test]
async fn what_is_mounted_below_a_removed_directory_is_not_emptied() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let mounted = dir.path().join("top/mounted");
    fs::create_dir_all(&mounted).unwrap();
    let mount = |program: &str, args: &[&str]| {
        std::process::Command::new(program).args(args).output().is_ok_and(|done| done.status.success())
    };
    if !mount("mount", &["-t", "tmpfs", "none", text(&mounted)]) {
        println!("skipped: needs the right to mount");
        return;
    }
    fs::write(mounted.join("kept"), "").unwrap();
    let answer = call(&running, "Remove", json!({ "path": dir.path().join("top") })).await;
    let kept = mounted.join("kept").exists();
    assert!(mount("umount", &[text(&mounted)]));
    assert_error(&answer, 500, "internal");
    assert!(kept);
}

#[tokio::test]
async fn metadata_set_from_inside_is_told() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&file, "user.e2b.from", b"inside", flags).is_err() {
        println!("skipped: needs a file system with user attributes");
        return;
    }
    rustix::fs::setxattr(&file, "user.other", b"unseen", flags).unwrap();
    let answer = call(&running, "Stat", json!({ "path": text(&file) })).await.json();
    assert_eq!(answer["entry"]["metadata"], json!({ "from": "inside" }));
}

#[tokio::test]
async fn a_tree_as_deep_as_a_path_can_name_is_listed_and_removed() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    let deepest = format!("{}{}", text(&top), "/d".repeat(1_900));
    assert_eq!(call(&running, "MakeDir", json!({ "path": deepest })).await.status, 200);
    let listed = call(&running, "ListDir", json!({ "path": top, "depth": u32::MAX })).await.json();
    let entries = listed["entries"].as_array().unwrap();
    assert_eq!((entries.len(), entries[1_899]["path"].as_str()), (1_900, Some(deepest.as_str())));
    assert_eq!(call(&running, "Remove", json!({ "path": top })).await.status, 200);
    assert!(!top.exists());
}
