//! Packages are installed inside, from the registries that the host reaches, in every tier of users.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod inside;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use inside::{Home, Sandbox, Who};
use sandhold_core::{ExecOptions, ProcessSpec, SandboxHandleExt as _};
use sandhold_local::{IdMap, Network, Spec, choose_ids};

/// More than a registry takes to answer on a bad day.
const PATIENCE: Duration = Duration::from_secs(300);

/// Whether the host itself gets something from a registry by this line of shell, in a directory made for it.
fn host_reaches(registry: &str, line: &str) -> bool {
    let place = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-ec", line])
        .current_dir(place.path())
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", place.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        println!("skipped: needs a package registry: {registry} on the host: {}", text.trim_end());
    }
    output.status.success()
}

/// Every home and tier that this user can have.
fn tiers(id: &str) -> Vec<(Home, IdMap)> {
    let best = Home::new(Who::Me).map(|home| {
        let ids = choose_ids(home.path(), id).unwrap();
        (home, ids)
    });
    let least = match &best {
        Some((_, IdMap::Single)) => None,
        _ => Home::new(Who::Ordinary).map(|home| (home, IdMap::Single)),
    };
    best.into_iter().chain(least).collect()
}

fn start<'a>(home: &'a Home, id: &str, ids: IdMap) -> Sandbox<'a> {
    let mut spec = Spec::new(id, ids);
    spec.network = Network::Host;
    home.start(spec)
}

/// Runs a line that must succeed, however slow the registry is, as the ordinary user.
async fn ok(sandbox: &Sandbox<'_>, tier: &IdMap, line: &str) -> String {
    let options = ExecOptions::default().with_timeout(PATIENCE);
    let output = sandbox.handle().exec_opts(ProcessSpec::shell(line), options).await.unwrap();
    let text = format!("{}{}", output.stdout.text(), output.stderr.text());
    assert!(output.exit.success(), "{tier:?}: {line}: {}: {text}", output.exit);
    output.stdout.text().into_owned()
}

#[tokio::test]
async fn apt_get_installs_a_package_that_runs_and_stays_inside() {
    const HELLO: &str = "/usr/bin/hello";
    if Path::new(HELLO).exists() {
        println!("skipped: needs a host without {HELLO}, the package that is installed");
        return;
    }
    let fetch = "mkdir -p lists/partial cache/archives/partial; apt-get -qq update -o Dir::State::Lists=$PWD/lists \
        -o Dir::Cache=$PWD/cache -o APT::Sandbox::User= -o APT::Update::Error-Mode=any";
    if !host_reaches("apt-get update", fetch) {
        return;
    }
    for (home, ids) in tiers("apt") {
        let sandbox = start(&home, "apt", ids.clone());
        ok(&sandbox, &ids, "sudo apt-get -qq update -o Acquire::Retries=3 -o APT::Update::Error-Mode=any")
            .await;
        let install = "sudo DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::Retries=3 --no-install-recommends install hello";
        ok(&sandbox, &ids, install).await;
        assert_eq!(ok(&sandbox, &ids, "hello --greeting=inside").await, "inside\n");
        assert!(ok(&sandbox, &ids, "dpkg-query -W -f '${Status}' hello").await.contains("ok installed"));
        // It is the sandbox's own, and survives a stop with it.
        assert!(!Path::new(HELLO).exists());
        sandbox.verb("stop");
        sandbox.run().unwrap();
        assert_eq!(ok(&sandbox, &ids, "hello --greeting=again").await, "again\n");
        ok(&sandbox, &ids, "sudo apt-get -qq -y remove hello && ! command -v hello").await;
    }
}

#[tokio::test]
async fn pip_installs_a_package_that_can_be_imported() {
    let venv = "/usr/bin/python3 -m venv v && v/bin/pip -q --no-cache-dir install six==1.17.0";
    if !host_reaches("pip install", venv) {
        return;
    }
    let import = "v/bin/python -c 'import six; print(six.__version__)'";
    for (home, ids) in tiers("pip") {
        let sandbox = start(&home, "pip", ids.clone());
        ok(&sandbox, &ids, venv).await;
        assert_eq!(ok(&sandbox, &ids, import).await, "1.17.0\n");
        // The system's own, as root: into a place that every user inside imports from.
        let system = "sudo v/bin/pip -q --no-cache-dir install --target /usr/local/lib/extra six==1.17.0";
        ok(&sandbox, &ids, system).await;
        let import = "PYTHONPATH=/usr/local/lib/extra /usr/bin/python3 -c 'import six; print(six.__file__)'";
        assert_eq!(ok(&sandbox, &ids, import).await, "/usr/local/lib/extra/six.py\n");
        assert!(!Path::new("/usr/local/lib/extra").exists());
    }
}
