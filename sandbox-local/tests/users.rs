//! Users inside: who they are, what belongs to them, and how the ordinary one becomes root.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod inside;

use inside::{Home, Who};
use serde_json::json;

fn everybody() -> impl Iterator<Item = Home> {
    [Who::Me, Who::Ordinary]
        .into_iter()
        .filter(|who| *who == Who::Me || inside::is_root())
        .filter_map(Home::new)
}

#[tokio::test]
async fn both_users_are_who_they_say_and_own_their_homes() {
    for home in everybody() {
        let sandbox = home.start(home.spec("users"));
        let user = sandbox.ok("user", "echo $(id -u) $(id -un) $HOME $PWD $(stat -c %U ~)").await;
        assert_eq!(user, "1000 user /home/user /home/user user\n");
        let root = sandbox.ok("root", "echo $(id -u) $(id -un) $HOME $PWD $(stat -c %U ~)").await;
        assert_eq!(root, "0 root /root /root root\n");
    }
}

#[tokio::test]
async fn names_of_user_home_and_workspace_are_options() {
    for home in everybody() {
        let mut spec = home.spec("names");
        spec.user = serde_json::from_value(json!({"name": "ada", "id": 1234, "home": "/srv/ada"})).unwrap();
        spec.workspace = Some("/data/space".into());
        spec.hostname = Some("engine".into());
        let sandbox = home.start(spec);
        let text = sandbox.ok("ada", "echo $(id -u) $HOME $PWD $(hostname); touch x ~/x").await;
        assert_eq!(text, "1234 /srv/ada /data/space engine\n");
    }
}

#[tokio::test]
async fn sudo_asks_no_password_and_behaves_as_sudo() {
    for home in everybody() {
        let sandbox = home.start(home.spec("sudo"));
        assert_eq!(sandbox.ok("user", "sudo id -u").await, "0\n");
        assert_eq!(sandbox.ok("user", "sudo -n -u user id -un").await, "user\n");
        assert_eq!(sandbox.ok("user", "echo in | sudo tee /etc/proof && cat /etc/proof").await, "in\nin\n");
        assert_eq!(sandbox.ok("user", "cd /tmp && sudo pwd && sudo -i pwd").await, "/tmp\n/root\n");
        assert_eq!(
            sandbox.ok("user", "export A=1; sudo -E sh -c 'echo $A' && sudo B=2 sh -c 'echo $A$B'").await,
            "1\n2\n"
        );
        assert_eq!(sandbox.shell("user", "sudo sh -c 'exit 7'").await.0, 7);
        assert_eq!(sandbox.shell("user", "sudo sh -c 'kill -9 $$'").await.0, 137);
        assert_eq!(sandbox.ok("user", "sudo -i echo \"it's\" '$HOME'").await, "it's $HOME\n");
        let (code, text) = sandbox.shell("user", "sudo -u nobody-such true").await;
        assert_eq!((code, text.as_str()), (1, "sudo: unknown user nobody-such\n"));
        // No right outside comes with it.
        let status = sandbox.ok("user", "sudo grep -E 'NoNewPrivs|Seccomp:' /proc/self/status").await;
        assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    }
}

#[tokio::test]
async fn sudo_passes_signals_on_and_does_not_outlive_its_shim() {
    for home in everybody() {
        let sandbox = home.start(home.spec("sudo-signals"));
        let trap = "trap \"echo got; exit 3\" TERM; echo ready > /tmp/ready; while :; do sleep 0.01; done";
        let line = format!(
            "sudo sh -c '{trap}' & until [ -e /tmp/ready ]; do sleep 0.01; done; kill -TERM $!; wait $!; echo $?"
        );
        assert_eq!(sandbox.ok("user", &line).await, "got\n3\n");
        let line = "sudo sh -c 'echo $$ > /tmp/pid.new; mv /tmp/pid.new /tmp/pid; exec sleep 1000' & \
            until [ -e /tmp/pid ]; do sleep 0.01; done; kill -KILL $!; wait $!; \
            while sudo kill -0 $(cat /tmp/pid) 2>/dev/null; do sleep 0.01; done; echo gone";
        assert!(sandbox.ok("user", line).await.contains("gone\n"));
    }
}

#[tokio::test]
async fn root_paths_can_be_written_and_kept_over_a_stop() {
    for home in everybody() {
        let sandbox = home.start(home.spec("kept"));
        sandbox
            .ok("root", "mkdir /data && echo x > /data/x && echo y > /usr/local/bin/y && rm /usr/bin/awk")
            .await;
        assert_eq!(sandbox.verb("stop"), json!("stopped"));
        sandbox.run().unwrap();
        assert_eq!(
            sandbox.ok("user", "cat /data/x /usr/local/bin/y; ls /usr/bin/awk 2>&1 | wc -l").await,
            "x\ny\n1\n"
        );
    }
}

#[tokio::test]
async fn files_in_memory_are_bounded_and_gone_after_a_stop() {
    for home in everybody() {
        let mut spec = home.spec("memory");
        spec.upper = serde_json::from_value(json!({"tmpfs": {"bytes": 1 << 20}})).unwrap();
        let sandbox = home.start(spec);
        let (code, text) = sandbox.shell("user", "echo x > ~/x; head -c 2M /dev/zero > ~/big").await;
        assert!(code != 0 && text.contains("No space left on device"), "{text}");
        assert_eq!(sandbox.verb("stop"), json!("stopped"));
        sandbox.run().unwrap();
        assert_ne!(sandbox.shell("user", "cat ~/x").await.0, 0);
    }
}

#[tokio::test]
async fn a_directory_of_the_host_is_shown_as_asked() {
    for home in everybody() {
        let shown = tempfile::tempdir().unwrap();
        std::fs::write(shown.path().join("file"), "from outside").unwrap();
        std::process::Command::new("chmod").arg("-R").arg("a+rX").arg(shown.path()).status().unwrap();
        let mut spec = home.spec("bind");
        let bind = json!({"source": shown.path(), "target": "/mnt/shown", "writable": false});
        spec.binds = vec![serde_json::from_value(bind).unwrap()];
        let sandbox = home.start(spec);
        assert_eq!(sandbox.ok("user", "cat /mnt/shown/file").await, "from outside");
        let (code, text) = sandbox.shell("root", "echo x > /mnt/shown/new").await;
        assert!(code != 0 && text.contains("Read-only file system"), "{text}");
    }
}
