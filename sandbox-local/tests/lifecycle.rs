//! How sandboxes start, stop, freeze, end, and what is left when their processes are killed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod inside;

use std::time::Duration;

use inside::{Home, Sandbox, Who, eventually, is_alive, kill};
use sandhold_core::{FileOptions, ListOptions, SandboxHandle as _, SandboxHandleExt as _};
use sandhold_local::{Expiry, IdMap, State};
use serde_json::json;

fn everybody() -> impl Iterator<Item = Home> {
    [Who::Me, Who::Ordinary]
        .into_iter()
        .filter(|who| *who == Who::Me || inside::is_root())
        .filter_map(Home::new)
}

fn nothing_is_left(sandbox: &Sandbox<'_>, pids: (i32, i32)) {
    eventually("its processes are gone", || !is_alive(pids.0) && !is_alive(pids.1));
    assert!(!sandbox.dir.exists(), "{:?}", std::fs::read_dir(&sandbox.dir).unwrap().collect::<Vec<_>>());
    assert_eq!(sandbox.cgroups(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn destroy_leaves_nothing() {
    for home in everybody() {
        let sandbox = home.start(home.spec("destroy"));
        // Directories that their owner may not enter are in the way of a simple removal.
        sandbox.ok("user", "mkdir -p ~/a/b && touch ~/a/b/c && chmod 000 ~/a/b ~/a").await;
        sandbox.ok("root", "echo x > /usr/local/x; sleep 1000 >/dev/null 2>&1 & disown").await;
        let pids = sandbox.pids();
        sandbox.verb("destroy");
        nothing_is_left(&sandbox, pids);
        assert_eq!(sandbox.verb("destroy"), json!("gone"));
        let ids: Vec<_> = std::fs::read_dir(home.path().join("ids")).into_iter().flatten().collect();
        assert!(ids.is_empty(), "{ids:?}");
    }
}

#[tokio::test]
async fn a_tree_deeper_than_descriptors_reach_is_no_way_to_stay() {
    for home in everybody() {
        let sandbox = home.start(home.spec("deep"));
        // Two chains, as no path names all of it.
        let dig = "p=$(printf 'd/%.0s' $(seq 1500)); mkdir -p /tmp/$p /tmp/b/$p && mv /tmp/b /tmp/$p";
        sandbox.ok("user", dig).await;
        let pids = sandbox.pids();
        sandbox.verb("destroy");
        nothing_is_left(&sandbox, pids);
    }
}

#[tokio::test]
async fn a_tree_deeper_than_a_stack_is_listed_and_removed_and_the_daemon_lives() {
    for home in everybody() {
        let sandbox = home.start(home.spec("deep-files"));
        sandbox.ok("user", "mkdir -p /tmp/deep/$(printf 'd/%.0s' $(seq 900))").await;
        let handle = sandbox.handle();
        let listed = handle.list("/tmp/deep", ListOptions::default().with_depth(100_000)).await.unwrap();
        assert_eq!(listed.len(), 900);
        handle.remove("/tmp/deep", FileOptions::default()).await.unwrap();
        assert!(!handle.exists("/tmp/deep").await.unwrap());
    }
}

#[tokio::test]
async fn a_stopped_monitor_does_not_keep_a_destroy_from_its_end() {
    for home in everybody() {
        let sandbox = home.start(home.spec("stopped-monitor"));
        let pids = sandbox.pids();
        let monitor = rustix::process::Pid::from_raw(pids.0).unwrap();
        rustix::process::kill_process(monitor, rustix::process::Signal::STOP).unwrap();
        sandbox.verb("destroy");
        nothing_is_left(&sandbox, pids);
    }
}

#[tokio::test]
async fn a_frozen_sandbox_answers_and_can_be_destroyed() {
    for home in everybody() {
        let sandbox = home.start(home.spec("frozen"));
        sandbox
            .ok("user", "(while :; do echo x >> ~/ticks; sleep 0.01; done) >/dev/null 2>&1 & disown")
            .await;
        let ticks = || async { sandbox.handle_read("/home/user/ticks").await };
        assert_eq!(sandbox.post("/sandhold/freeze", json!(null)).await.unwrap(), json!({"changed": true}));
        assert_eq!(sandbox.post("/sandhold/freeze", json!(null)).await.unwrap(), json!({"changed": false}));
        assert_eq!(sandbox.info().await.state, State::Paused);
        let before = ticks().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(ticks().await, before);
        assert_eq!(sandbox.post("/sandhold/thaw", json!({})).await.unwrap(), json!({"changed": true}));
        assert_eq!(sandbox.info().await.state, State::Running);
        let mut after = before;
        while after == before {
            after = ticks().await;
        }
        sandbox.post("/sandhold/freeze", json!(null)).await.unwrap();
        let pids = sandbox.pids();
        sandbox.verb("destroy");
        nothing_is_left(&sandbox, pids);
    }
}

#[tokio::test]
async fn a_process_that_was_stopped_before_a_pause_stays_stopped_after_it() {
    for home in everybody() {
        let sandbox = home.start(home.spec("stopped-before"));
        let pid = sandbox.ok("user", "sleep 1000 >/dev/null 2>&1 & kill -STOP $!; echo $!").await;
        let state = format!("awk '/^State/ {{print $2}}' /proc/{}/status", pid.trim());
        assert_eq!(sandbox.ok("user", &state).await.trim(), "T");
        sandbox.post("/sandhold/freeze", json!(null)).await.unwrap();
        sandbox.post("/sandhold/thaw", json!({})).await.unwrap();
        assert_eq!(sandbox.ok("user", &state).await.trim(), "T");
    }
}

#[tokio::test]
async fn a_killed_daemon_or_monitor_leaves_a_stopped_sandbox_with_its_files() {
    for home in everybody() {
        for victim in ["monitor", "daemon"] {
            for frozen in [false, true] {
                let sandbox = home.start(home.spec(&format!("killed-{victim}-{frozen}")));
                sandbox.ok("user", "echo work > ~/work; sleep 1000 >/dev/null 2>&1 & disown").await;
                if frozen {
                    sandbox.post("/sandhold/freeze", json!(null)).await.unwrap();
                }
                let (monitor, init) = sandbox.pids();
                kill(if victim == "monitor" { monitor } else { init });
                let mut found = sandbox.verb("recover");
                eventually("the sandbox is stopped", || {
                    found = sandbox.verb("recover");
                    found == json!("stopped")
                });
                assert!(!is_alive(init), "{victim} {frozen}");
                // It gives up its lock, which `recover` looks at, a moment before it exits.
                eventually("the monitor is gone", || !is_alive(monitor));
                assert_eq!(sandbox.cgroups(), Vec::<std::path::PathBuf>::new());
                sandbox.run().unwrap();
                assert_eq!(sandbox.ok("user", "cat ~/work").await, "work\n");
                sandbox.verb("destroy");
            }
        }
    }
}

#[tokio::test]
async fn a_lease_that_kills_removes_the_files_and_keeps_the_reason() {
    for home in everybody() {
        let mut spec = home.spec("lease-kill");
        spec.lease_ms = Some(60_000);
        let sandbox = home.start(spec);
        let pids = sandbox.pids();
        let left = sandbox.info().await.lease_ms.unwrap();
        assert!(left > 0 && left <= 60_000, "{left}");
        sandbox.post("/sandhold/lease", json!({"ms": 1, "extend_only": true})).await.unwrap();
        assert!(sandbox.info().await.lease_ms.unwrap() > 1000, "an extension never shortens");
        let _ = sandbox.post("/sandhold/lease", json!({"ms": 0})).await;
        eventually("its processes are gone", || !is_alive(pids.0) && !is_alive(pids.1));
        assert_eq!(sandbox.verb("recover"), json!({"ended": "lease_expired"}));
        let mut left: Vec<_> =
            std::fs::read_dir(&sandbox.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["ended.json", "log.jsonl"]);
        assert_eq!(sandbox.run().unwrap_err()["kind"], "not_found");
        sandbox.verb("destroy");
        assert!(!sandbox.dir.exists());
    }
}

#[tokio::test]
async fn a_lease_that_pauses_freezes_and_keeps_everything() {
    for home in everybody() {
        let mut spec = home.spec("lease-pause");
        spec.on_expiry = Expiry::Pause;
        let sandbox = home.start(spec);
        assert_eq!(sandbox.info().await.lease_ms, None);
        let pid = sandbox.ok("user", "sleep 1000 >/dev/null 2>&1 & echo $!").await;
        sandbox.post("/sandhold/lease", json!({"ms": 0})).await.unwrap();
        while sandbox.info().await.state != State::Paused {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let thawed = sandbox.post("/sandhold/thaw", json!({"ms": 50_000})).await.unwrap();
        assert_eq!(thawed, json!({"changed": true}));
        assert!(sandbox.info().await.lease_ms.unwrap() > 40_000);
        sandbox.ok("user", &format!("kill -0 {}", pid.trim())).await;
    }
}

#[tokio::test]
async fn a_second_monitor_is_refused_and_the_first_goes_on() {
    for home in everybody() {
        let sandbox = home.start(home.spec("second"));
        assert_eq!(sandbox.run().unwrap_err()["kind"], "conflict");
        assert_eq!(sandbox.verb("recover"), json!("running"));
        sandbox.ok("user", "true").await;
    }
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing_running_and_says_why() {
    for home in everybody() {
        let mut spec = home.spec("bad-bind");
        spec.binds = vec![bind("/nowhere-at-all", "/mnt/x")];
        let sandbox = home.create(spec);
        let error = sandbox.run().unwrap_err();
        assert!(error["message"].as_str().unwrap().contains("/nowhere-at-all"), "{error}");
        assert_eq!(sandbox.verb("recover"), json!("stopped"));
        assert_eq!(sandbox.cgroups(), Vec::<std::path::PathBuf>::new());
        assert!(!sandbox.dir.join("runtime.jsonl").exists());
    }
}

fn bind(source: &str, target: &str) -> sandhold_local::Bind {
    serde_json::from_value(json!({"source": source, "target": target, "writable": false})).unwrap()
}

#[tokio::test]
async fn a_host_without_user_namespaces_is_a_typed_refusal() {
    let Some(home) = Home::new(Who::Me) else { return };
    let ids = if inside::is_root() { IdMap::Full { start: 0x5000_0000 } } else { IdMap::Single };
    let sandbox = home.create(sandhold_local::Spec::new("refused", ids));
    let line = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec {} local run --dir {}",
        inside::HELPER,
        sandbox.dir.display()
    );
    let output = std::process::Command::new("unshare").args(["-Ur", "sh", "-c", &line]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error: serde_json::Value = serde_json::from_str(&text).expect(&text);
    assert_eq!(error["kind"], "unsupported", "{text}");
    assert!(error["message"].as_str().unwrap().contains("user namespaces"), "{text}");
    assert!(!sandbox.dir.join("runtime.jsonl").exists());
}

#[tokio::test]
async fn limits_are_enforced_where_they_are_accepted() {
    let Some(home) = Home::new(Who::Me) else { return };
    let mut spec = home.spec("limits");
    spec.limits = serde_json::from_value(json!({"pids": 20, "memory_bytes": 67_108_864})).unwrap();
    let sandbox = home.create(spec);
    match sandbox.run() {
        Ok(()) => {}
        Err(error) => {
            assert_eq!(error["kind"], "unsupported");
            println!("skipped: needs control groups: {error}");
            return;
        }
    }
    let (code, text) = sandbox.shell("user", "for i in $(seq 40); do sleep 5 & done; wait").await;
    assert!(text.contains("Resource temporarily unavailable"), "{code}: {text}");
    let (code, _) = sandbox.shell("user", "head -c 200M /dev/zero | tail -c 200M > /dev/null").await;
    assert_ne!(code, 0);
}

impl Sandbox<'_> {
    async fn handle_read(&self, path: &str) -> usize {
        use sandhold_core::SandboxHandleExt;
        self.handle().read_bytes(path).await.map_or(0, |bytes| bytes.len())
    }
}
