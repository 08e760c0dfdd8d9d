//! Directories that several sandboxes share, and where commands start in what was made from a template, in every tier of
//! users.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod inside;

use std::os::unix::fs::PermissionsExt as _;

use inside::{Home, Who};
use sandhold_local::Bind;

fn homes() -> impl Iterator<Item = Home> {
    let all = [Who::Me, Who::Ordinary].into_iter();
    all.filter(|who| *who == Who::Me || inside::is_root()).filter_map(Home::new)
}

#[tokio::test]
async fn what_one_sandbox_writes_belongs_to_the_same_user_in_another() {
    for home in homes() {
        let shared = home.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        // As a server does it: everybody inside may write, whoever owns the directory.
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).unwrap();
        let bind =
            serde_json::json!({ "source": shared, "target": "/mnt/data", "writable": true, "shared": true });
        let bind: Bind = serde_json::from_value(bind).unwrap();
        let started = |id: &str| {
            let mut spec = home.spec(id);
            spec.binds.push(bind.clone());
            home.start(spec)
        };
        let (one, other) = (started("one"), started("other"));
        one.ok("user", "umask 022; mkdir /mnt/data/dir; echo one > /mnt/data/dir/file").await;
        one.ok("root", "echo root > /mnt/data/of-root; chmod 600 /mnt/data/of-root").await;
        // Neither the directory nor the file is open to anybody but their owner.
        other.ok("user", "echo other >> /mnt/data/dir/file; echo new > /mnt/data/dir/new").await;
        assert_eq!(
            one.ok("user", "cat /mnt/data/dir/*; stat -c %U /mnt/data/dir/new").await,
            "one\nother\nnew\nuser\n"
        );
        assert_eq!(other.ok("root", "cat /mnt/data/of-root").await, "root\n");
        one.verb("destroy");
        assert_eq!(other.ok("user", "cat /mnt/data/dir/new").await, "new\n");
        assert!(shared.join("dir/new").exists(), "it outlives its sandboxes");
    }
}

#[tokio::test]
async fn commands_start_in_any_directory_and_nobody_gets_it() {
    for home in homes() {
        let mut spec = home.spec("anywhere");
        spec.workdir = Some("/usr".into());
        let sandbox = home.start(spec);
        assert_eq!(sandbox.ok("user", "pwd").await, "/usr\n");
        assert_eq!(sandbox.ok("root", "stat -c %U /usr").await, "root\n");
        sandbox.verb("destroy");
    }
    for bad in ["relative", "/a/../b", "/a:b"] {
        for home in homes() {
            let mut spec = home.spec("bad");
            spec.workdir = Some(bad.into());
            assert!(spec.check().is_err(), "{bad}");
        }
    }
}
