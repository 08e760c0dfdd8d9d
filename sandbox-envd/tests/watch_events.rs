//! Watching directories over a real socket.

#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Answer, Running, Wire, ask, envelope};

const JSON: (&str, &str) = ("Content-Type", "application/json");

async fn call(running: &Running, method: &str, request: Value) -> Answer {
    let line = format!("POST /filesystem.Filesystem/{method}");
    ask(running.address, &line, &[JSON], request.to_string().as_bytes()).await
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A `WatchDir` stream.
struct Stream {
    wire: Wire,
    buffer: Vec<u8>,
}

impl Stream {
    /// Opens a stream and waits until it started.
    async fn open(running: &Running, request: Value) -> Self {
        let mut stream = Self::send(running, request, &[]).await;
        assert_eq!(stream.message().await, (0, json!({ "start": {} })));
        stream
    }

    async fn send(running: &Running, request: Value, headers: &[(&str, &str)]) -> Self {
        let mut wire = Wire::open(running.address).await;
        let headers: Vec<_> =
            headers.iter().copied().chain([("Content-Type", "application/connect+json")]).collect();
        let body = envelope(request.to_string().as_bytes());
        wire.send(support::request("POST /filesystem.Filesystem/WatchDir", &headers, &body)).await;
        let head = wire.head().await;
        assert_eq!(head.status, 200);
        assert_eq!(head.header("content-type"), Some("application/connect+json"));
        Self { wire, buffer: Vec::new() }
    }

    async fn message(&mut self) -> (u8, Value) {
        let reading = async {
            loop {
                if self.buffer.len() >= 5 {
                    let length = u32::from_be_bytes(self.buffer[1..5].try_into().unwrap()) as usize;
                    if self.buffer.len() >= 5 + length {
                        let message: Vec<u8> = self.buffer.drain(..5 + length).collect();
                        return (message[0], serde_json::from_slice(&message[5..]).unwrap());
                    }
                }
                let chunk = self.wire.chunk().await.expect("the stream was cut");
                self.buffer.extend(chunk.expect("the stream ended without an end"));
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reading).await.expect("no event for 30 seconds")
    }

    /// Reads the next event: its type without prefix, and its name.
    async fn event(&mut self) -> (String, String) {
        let (flags, message) = self.message().await;
        assert_eq!(flags, 0, "{message}");
        told(&message["filesystem"])
    }

    /// Reads events up to and including one.
    async fn until(&mut self, kind: &str, name: &str) -> Vec<(String, String)> {
        let mut events = Vec::new();
        loop {
            events.push(self.event().await);
            if events.last().is_some_and(|event| event.0 == kind && event.1 == name) {
                return events;
            }
        }
    }
}

fn told(event: &Value) -> (String, String) {
    let kind = event["type"].as_str().unwrap_or("UNSPECIFIED");
    let kind = kind.strip_prefix("EVENT_TYPE_").unwrap_or(kind);
    (kind.to_owned(), event["name"].as_str().unwrap_or_default().to_owned())
}

fn pairs(events: &[(&str, &str)]) -> Vec<(String, String)> {
    events.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
}

/// Distinct events in the order in which each first came: how often one write is told is the kernel's choice.
fn distinct(events: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut seen = BTreeSet::new();
    events.into_iter().filter(|event| seen.insert(event.clone())).collect()
}

#[tokio::test]
async fn a_watch_tells_creates_writes_modes_renames_and_removes_by_relative_name() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(&running, json!({ "path": text(dir.path()) })).await;
    let file = dir.path().join("f");
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&file, dir.path().join("g")).unwrap();
    fs::remove_file(dir.path().join("g")).unwrap();
    let events = stream.until("REMOVE", "g").await;
    assert_eq!(
        distinct(events),
        pairs(&[
            ("CREATE", "f"),
            ("WRITE", "f"),
            ("CHMOD", "f"),
            ("RENAME", "f"),
            ("CREATE", "g"),
            ("REMOVE", "g"),
        ])
    );
}

#[tokio::test]
async fn an_upload_is_a_create_and_a_write_and_an_overwrite_a_write_without_create() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(&running, json!({ "path": text(dir.path()) })).await;
    let upload = async |name: &str, length: usize| {
        let line = format!("POST /files?path={}", text(&dir.path().join(name)));
        let headers = [("Content-Type", "application/octet-stream")];
        assert_eq!(ask(running.address, &line, &headers, &vec![1; length]).await.status, 200);
    };
    for (name, length) in [("short", 3), ("long", 1_000_000)] {
        upload(name, length).await;
        let events = stream.until("WRITE", name).await;
        assert_eq!(events.first(), Some(&("CREATE".into(), name.into())));
        upload(name, length).await;
        fs::remove_file(dir.path().join(name)).unwrap();
        let events = distinct(stream.until("REMOVE", name).await);
        assert!(events.iter().all(|(kind, told)| told == name && kind != "CREATE"), "{events:?}");
        assert!(events.contains(&("WRITE".into(), name.into())), "{events:?}");
    }
}

#[tokio::test]
async fn a_plain_watch_is_silent_about_what_is_deeper() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    let mut stream = Stream::open(&running, json!({ "path": text(dir.path()) })).await;
    fs::write(dir.path().join("sub/deep"), "x").unwrap();
    fs::create_dir(dir.path().join("new")).unwrap();
    fs::write(dir.path().join("new/deep"), "x").unwrap();
    fs::create_dir(dir.path().join("end")).unwrap();
    assert_eq!(stream.until("CREATE", "end").await, pairs(&[("CREATE", "new"), ("CREATE", "end")]));
}

#[tokio::test]
async fn a_recursive_watch_loses_no_file_of_a_storm_of_new_directories() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(&running, json!({ "path": text(dir.path()), "recursive": true })).await;
    let root = dir.path().to_owned();
    let made = tokio::task::spawn_blocking(move || {
        let mut made = BTreeSet::new();
        // Deep and wide: 50 towers of ten directories each, a file in every one as soon as it is there.
        for tower in 0..50 {
            let mut path = format!("t{tower}");
            for level in 0..10 {
                fs::create_dir(root.join(&path)).unwrap();
                let file = format!("{path}/f{level}");
                fs::write(root.join(&file), "content").unwrap();
                made.insert(path.clone());
                made.insert(file);
                path = format!("{path}/d{level}");
            }
        }
        fs::write(root.join("last"), "x").unwrap();
        made
    });
    let mut created: BTreeMap<String, usize> = BTreeMap::new();
    let mut written = BTreeSet::new();
    let made = made.await.unwrap();
    // The events of one new directory are told when it is scanned, so all are there when no file is missing.
    while created.len() < made.len() + 1 || written.len() < made.len() / 2 + 1 {
        let (kind, name) = stream.event().await;
        assert_ne!(kind, "UNSPECIFIED", "events were lost");
        match kind.as_str() {
            "CREATE" => *created.entry(name).or_default() += 1,
            "WRITE" => {
                assert!(created.contains_key(&name), "{name} is written before it is there");
                written.insert(name);
            }
            _ => {}
        }
    }
    assert!(made.iter().all(|name| created.contains_key(name)));
    let twice: Vec<_> = created.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "told twice: {twice:?}");
}

#[tokio::test]
async fn a_directory_moved_in_is_told_with_its_content_and_followed() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir_all(outside.join("d/e")).unwrap();
    fs::write(outside.join("d/e/f"), "x").unwrap();
    symlink("/", outside.join("d/link")).unwrap();
    let mut stream = Stream::open(&running, json!({ "path": text(&inside), "recursive": true })).await;
    fs::rename(outside.join("d"), inside.join("d")).unwrap();
    let events: BTreeSet<_> = stream.until("WRITE", "d/e/f").await.into_iter().collect();
    let mut right = pairs(&[
        ("CREATE", "d"),
        ("CREATE", "d/e"),
        ("CREATE", "d/e/f"),
        ("CREATE", "d/link"),
        ("WRITE", "d/e/f"),
    ]);
    right.sort();
    assert_eq!(events.into_iter().collect::<Vec<_>>(), right);
    fs::write(inside.join("d/e/g"), "").unwrap();
    assert_eq!(stream.event().await, ("CREATE".into(), "d/e/g".into()));
}

#[tokio::test]
async fn a_directory_moved_out_is_followed_no_longer_and_one_moved_within_by_its_new_name() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
    fs::create_dir_all(inside.join("a/b")).unwrap();
    fs::create_dir_all(inside.join("x/y")).unwrap();
    fs::create_dir(&outside).unwrap();
    let mut stream = Stream::open(&running, json!({ "path": text(&inside), "recursive": true })).await;
    fs::rename(inside.join("a"), outside.join("a")).unwrap();
    assert_eq!(stream.event().await, ("RENAME".into(), "a".into()));
    fs::write(outside.join("a/b/unseen"), "").unwrap();
    fs::rename(inside.join("x"), inside.join("z")).unwrap();
    let events = stream.until("CREATE", "z/y").await;
    assert_eq!(events, pairs(&[("RENAME", "x"), ("CREATE", "z"), ("CREATE", "z/y")]));
    fs::write(inside.join("z/y/f"), "").unwrap();
    assert_eq!(stream.event().await, ("CREATE".into(), "z/y/f".into()));
}

#[tokio::test]
async fn a_directory_made_again_under_its_name_is_followed_again() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let mut stream = Stream::open(&running, json!({ "path": text(dir.path()), "recursive": true })).await;
    for round in 0..20 {
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join(format!("d/f{round}")), "x").unwrap();
        stream.until("CREATE", &format!("d/f{round}")).await;
        fs::remove_dir_all(dir.path().join("d")).unwrap();
        stream.until("REMOVE", "d").await;
    }
}

#[tokio::test]
async fn the_end_of_the_watched_directory_itself_is_told() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let mut stream = Stream::open(&running, json!({ "path": text(&root) })).await;
    fs::remove_dir(&root).unwrap();
    stream.until("REMOVE", ".").await;
}

#[tokio::test]
async fn an_entry_goes_along_with_what_is_still_there() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let request = json!({ "path": text(dir.path()), "recursive": true, "includeEntry": true });
    let mut stream = Stream::open(&running, request).await;
    fs::create_dir(dir.path().join("d")).unwrap();
    let (_, message) = stream.message().await;
    assert_eq!(message["filesystem"]["entry"]["path"], text(&dir.path().join("d")));
    assert_eq!(message["filesystem"]["entry"]["type"], "FILE_TYPE_DIRECTORY");
    fs::remove_dir(dir.path().join("d")).unwrap();
    let (_, message) = stream.message().await;
    assert_eq!(told(&message["filesystem"]), ("REMOVE".into(), "d".into()));
    assert_eq!(message["filesystem"].get("entry"), None);
}

#[tokio::test]
async fn errors_of_a_stream_come_in_its_end_and_those_of_a_watcher_as_status() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "").unwrap();
    for (path, code, status) in [
        (dir.path().join("no"), "not_found", 404),
        (file.clone(), "invalid_argument", 400),
        ("~nobody/x".into(), "invalid_argument", 400),
    ] {
        let mut stream = Stream::send(&running, json!({ "path": text(&path) }), &[]).await;
        let (flags, end) = stream.message().await;
        assert_eq!((flags, end["error"]["code"].as_str()), (2, Some(code)));
        let answer = call(&running, "CreateWatcher", json!({ "path": text(&path) })).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)));
    }
}

#[tokio::test]
async fn a_watcher_outlives_its_request_and_its_events_are_drained() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let answer = call(&running, "CreateWatcher", json!({ "path": text(dir.path()) })).await;
    let id = answer.json()["watcherId"].as_str().unwrap().to_owned();
    assert!(id.len() == 21 && id.starts_with('w') && id.bytes().all(|c| c.is_ascii_alphanumeric()), "{id}");
    let ask_for = json!({ "watcherId": id });
    assert_eq!(call(&running, "GetWatcherEvents", ask_for.clone()).await.json(), json!({}));
    // What happened before a call is in its answer: clients look once, right after what they did.
    for name in 0..200 {
        let name = name.to_string();
        fs::write(dir.path().join(&name), "f").unwrap();
        let answer = call(&running, "GetWatcherEvents", ask_for.clone()).await.json();
        let events: Vec<_> = answer["events"].as_array().into_iter().flatten().map(told).collect();
        assert_eq!(events, pairs(&[("CREATE", &name), ("WRITE", &name)]));
    }
    assert_eq!(call(&running, "GetWatcherEvents", ask_for.clone()).await.json(), json!({}));
    assert_eq!(call(&running, "RemoveWatcher", ask_for.clone()).await.json(), json!({}));
    for method in ["GetWatcherEvents", "RemoveWatcher"] {
        let answer = call(&running, method, ask_for.clone()).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (404, Some("not_found")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_upload_of_a_new_file_is_written_at_once() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let answer = call(&running, "CreateWatcher", json!({ "path": text(dir.path()) })).await;
    let ask_for = json!({ "watcherId": answer.json()["watcherId"] });
    for name in 0..300 {
        let name = name.to_string();
        let line = format!("POST /files?path={}", text(&dir.path().join(&name)));
        let headers = [("Content-Type", "application/octet-stream")];
        assert_eq!(ask(running.address, &line, &headers, b"short").await.status, 200);
        let answer = call(&running, "GetWatcherEvents", ask_for.clone()).await.json();
        let events = answer["events"].as_array().into_iter().flatten().map(told);
        let written = events.filter(|(kind, _)| kind == "WRITE").collect::<Vec<_>>();
        assert_eq!(written, pairs(&[("WRITE", &name)]));
    }
}

#[tokio::test]
async fn a_watcher_that_nobody_asks_loses_old_events_and_says_so() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let answer = call(&running, "CreateWatcher", json!({ "path": text(dir.path()) })).await;
    let ask_for = json!({ "watcherId": answer.json()["watcherId"] });
    let root = dir.path().to_owned();
    // More events than the queue (and, if it is slow, the kernel's) holds. Two names in turn, since the kernel
    // folds equal events into one.
    tokio::task::spawn_blocking(move || {
        let files = ["a", "b"].map(|name| fs::File::create(root.join(name)).unwrap());
        for turn in 0..40_000 {
            files[turn % 2].set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        }
    })
    .await
    .unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let mut overflowed = false;
    while !overflowed {
        assert!(tokio::time::Instant::now() < deadline, "the loss was not told");
        let answer = call(&running, "GetWatcherEvents", ask_for.clone()).await.json();
        for event in answer["events"].as_array().into_iter().flatten() {
            if event["overflow"] == true {
                assert_eq!(told(event), ("UNSPECIFIED".into(), String::new()));
                overflowed = true;
            }
        }
    }
}

#[tokio::test]
async fn quiet_streams_are_kept_alive() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let request = json!({ "path": text(dir.path()) });
    let mut stream = Stream::send(&running, request, &[("Keepalive-Ping-Interval", "1")]).await;
    assert_eq!(stream.message().await.1, json!({ "start": {} }));
    assert_eq!(stream.message().await.1, json!({ "keepalive": {} }));
}

/// Descriptors of this process, kernel watches of its inotify instances, and tasks of the runtime.
fn held() -> (usize, usize, usize) {
    let watches = fs::read_dir("/proc/self/fdinfo")
        .unwrap()
        .flatten()
        .filter_map(|fd| fs::read_to_string(fd.path()).ok())
        .map(|info| info.lines().filter(|line| line.starts_with("inotify wd:")).count())
        .sum();
    let fds = fs::read_dir("/proc/self/fd").unwrap().count();
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    (fds, watches, tasks)
}

const ALONE: &str = "SANDHOLD_TEST_ALONE";

/// Runs a test again, alone in a process that `command` starts; the environment tells it that it is.
fn alone(mut command: std::process::Command, test: &str) -> std::process::Output {
    command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap()
}

fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

fn assert_passed(output: &std::process::Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
}

#[test]
fn limits_of_the_kernel_are_named_and_a_failed_watch_leaves_nothing() {
    if !is_alone() {
        // Limits of its own, in a user namespace of its own.
        let mut command = std::process::Command::new("unshare");
        let script = "echo 3 > /proc/sys/user/max_inotify_watches || exit 77; exec \"$@\"";
        command.args(["-Ur", "sh", "-c", script, "sh"]).arg(std::env::current_exe().unwrap());
        let output = alone(command, "limits_of_the_kernel_are_named_and_a_failed_watch_leaves_nothing");
        let unshared = !String::from_utf8_lossy(&output.stderr).contains("unshare");
        if output.status.code() == Some(77) || !unshared {
            println!("skipped: needs user namespaces with limits of their own");
            return;
        }
        return assert_passed(&output);
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let running = support::start(|config| config).await;
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let all = json!({ "path": text(dir.path()), "recursive": true });
        let answer = call(&running, "CreateWatcher", all.clone()).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (429, Some("resource_exhausted")));
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("fs.inotify.max_user_watches"), "{message}");
        assert_eq!(held().1, 0);
        // What fits is watched, and a directory that comes too late for the limit is a loss that is told.
        fs::remove_dir(dir.path().join("c")).unwrap();
        let mut stream = Stream::open(&running, all).await;
        fs::create_dir(dir.path().join("d")).unwrap();
        // Its own creation may be told before.
        let mut told = stream.message().await.1;
        if told["filesystem"]["name"] == "d" {
            told = stream.message().await.1;
        }
        assert_eq!(told, json!({ "filesystem": { "overflow": true } }));
    });
}

/// Runs alone in its process: it counts what the whole process holds.
#[test]
fn ten_thousand_watches_leave_nothing_behind() {
    if !is_alone() {
        let command = std::process::Command::new(std::env::current_exe().unwrap());
        return assert_passed(&alone(command, "ten_thousand_watches_leave_nothing_behind"));
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let running = support::start(|config| config).await;
        let dir = tempfile::tempdir().unwrap();
        for sub in 0..3 {
            fs::create_dir(dir.path().join(sub.to_string())).unwrap();
        }
        let request = json!({ "path": text(dir.path()), "recursive": true });
        drop(Stream::open(&running, request.clone()).await);
        let mut before = held();
        // The first one may still be on its way out.
        before.1 = 0;
        let mut most = 0;
        for _ in 0..200 {
            let mut open = Vec::new();
            for _ in 0..50 {
                open.push(Stream::open(&running, request.clone()).await);
            }
            most = most.max(held().1);
        }
        assert_eq!(most, 4, "all watchers share one kernel watch for each directory");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let now = held();
            if now.0 <= before.0 + 5 && now.1 == 0 && now.2 <= before.2 + 5 {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "held before: {before:?}, now: {now:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[tokio::test]
async fn streams_end_when_connections_are_aborted() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(Stream::open(&running, json!({ "path": text(dir.path()) })).await);
    }
    running.daemon.abort_connections();
    for mut stream in streams {
        let ended = tokio::time::timeout(Duration::from_secs(20), stream.wire.chunk()).await;
        assert_eq!(ended, Ok(Err(())), "cut, not completed");
    }
}
