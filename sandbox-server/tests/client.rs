//! What the E2B provider offers beside sandboxes, against the real server: volumes, secrets, templates and signed links.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

#[path = "support/http.rs"]
mod http;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Answer, Request};
use sandhold_core::testing::conformance::within;
use sandhold_core::{
    Attempt, ByteStream, CreateOptions, DestroyOutcome, ErrorKind, Generation, Key, Mount, Network, Owner,
    ProcessSpec, SandboxHandle, SandboxHandleExt as _, SandboxProvider, SandboxProviderExt as _, SandboxSpec,
    Tags,
};
use sandhold_e2b::wire::{NetworkUpdate, Secret, VolumeEntryKind};
use sandhold_e2b::{
    BuildOptions, DefaultTemplate, E2bConfig, E2bProvider, Recipe, SignOptions, VolumeContent, VolumeOptions,
};
use support::{KEY, Served};

async fn served() -> Served {
    tokio::task::spawn_blocking(|| Served::start(&[])).await.unwrap()
}

fn config(served: &Served) -> E2bConfig {
    let url = format!("http://{}", served.address());
    E2bConfig::new(KEY)
        .with_api_url(url.clone())
        .with_sandbox_url(url.clone())
        .with_volume_url(url)
        .with_list_visibility(Duration::ZERO)
}

fn provider(served: &Served) -> E2bProvider {
    E2bProvider::new(config(served)).unwrap()
}

async fn create(provider: &E2bProvider, spec: SandboxSpec) -> Arc<dyn SandboxHandle> {
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new("client").unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    };
    provider.create_opts(CreateOptions::new(spec, tags)).await.unwrap()
}

async fn sh(handle: &Arc<dyn SandboxHandle>, line: &str) -> String {
    let output = handle.exec(ProcessSpec::argv("/bin/sh", ["-c", line])).await.unwrap();
    assert!(output.exit.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout.bytes).unwrap()
}

/// Asks as any HTTP client would, at the server and with nothing but the link.
async fn asked(
    served: &Served,
    method: &'static str,
    url: &str,
    headers: Vec<(String, String)>,
    body: &'static str,
) -> Answer {
    let at = served.address();
    let path =
        url.strip_prefix(&format!("http://{at}")).unwrap_or_else(|| panic!("{url} is elsewhere")).to_owned();
    let ask = move || {
        let request = Request::new(method, &path).body(body);
        headers.iter().fold(request, |request, (name, value)| request.header(name, value)).send(at)
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

async fn content(volume: &VolumeContent, path: &str) -> Vec<u8> {
    volume.read(path).await.unwrap().into_bytes(1 << 24).await.unwrap()
}

#[tokio::test]
async fn a_volume_is_made_filled_shared_and_deleted() {
    let served = served().await;
    let provider = provider(&served);
    let volumes = provider.volumes();
    let volume = volumes.create("shared").await.unwrap();
    assert_eq!(volume.name(), "shared");
    let taken = volumes.create("shared").await.unwrap_err();
    assert!(matches!(taken.kind(), ErrorKind::InvalidArgument | ErrorKind::Conflict), "{taken}");
    let names: Vec<_> =
        volumes.list().await.unwrap().into_iter().map(|one| (one.volume_id, one.name)).collect();
    assert_eq!(names, [(volume.id().to_owned(), "shared".to_owned())]);

    let options = VolumeOptions::default();
    let written =
        volume.write("/a/one.txt", ByteStream::from_bytes("hello"), &options.with_mode(0o640)).await.unwrap();
    let facts = (written.name.as_str(), written.kind, written.path.as_str(), written.size, written.mode);
    assert_eq!(facts, ("one.txt", VolumeEntryKind::File, "/a/one.txt", 5, 0o640));
    assert_eq!(volume.stat("/a/one.txt").await.unwrap().mtime, written.mtime);
    let changed = volume.change("/a/one.txt", &options.with_mode(0o644)).await.unwrap();
    assert_eq!((changed.mode, changed.size), (0o644, 5));
    let large = "0123456789abcdef".repeat(200_000).into_bytes();
    volume.write("/large", ByteStream::from_bytes(large.clone()), &options).await.unwrap();
    assert!(content(&volume, "/large").await == large);
    volume.make_dir("/b/c", &options.with_force()).await.unwrap();
    let orphan = volume.make_dir("/none/c", &options).await.unwrap_err();
    assert_eq!((orphan.kind(), orphan.reason()), (ErrorKind::NotFound, Some("path_not_found")));
    let listed: Vec<_> = volume.list("/", 2).await.unwrap().into_iter().map(|entry| entry.path).collect();
    assert_eq!(listed, ["/a", "/a/one.txt", "/b", "/b/c", "/large"]);
    volume.remove("/b").await.unwrap();
    for error in [
        volume.remove("/b").await.unwrap_err(),
        volume.stat("/b").await.unwrap_err(),
        volume.read("/none").await.map(drop).unwrap_err(),
        volume.list("/none", 1).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.reason()), (ErrorKind::NotFound, Some("path_not_found")), "{error}");
    }
    let outside = volume.read("/../up").await.map(drop).unwrap_err();
    assert_eq!(outside.kind(), ErrorKind::InvalidArgument, "{outside}");

    let spec = SandboxSpec::default().with_mount(Mount::volume("/mnt/data", "shared"));
    let sandbox = create(&provider, spec).await;
    assert_eq!(sh(&sandbox, "cat /mnt/data/a/one.txt; echo inside > /mnt/data/made").await, "hello");
    assert_eq!(content(&volume, "/made").await, b"inside\n");
    // It is in use, and then it is not.
    assert!(volumes.delete(volume.id()).await.is_err());
    provider.destroy(sandbox.id()).await.unwrap();
    let again = volumes.open(volume.id()).await.unwrap();
    assert_eq!(content(&again, "/made").await, b"inside\n");
    assert_eq!(volumes.delete(volume.id()).await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!(volumes.delete(volume.id()).await.unwrap(), DestroyOutcome::AlreadyGone);
    let gone = volumes.open(volume.id()).await.unwrap_err();
    assert_eq!((gone.kind(), gone.reason()), (ErrorKind::NotFound, Some("volume_not_found")));
}

#[tokio::test]
async fn secrets_are_kept_by_id_and_name_and_told_in_pages() {
    let served = served().await;
    let secrets = provider(&served).secrets();
    let labels = BTreeMap::from([("for".to_owned(), "tests".to_owned())]);
    for n in 0..105 {
        secrets.create(&format!("secret-{n:03}"), Secret::new("hush"), Some(labels.clone())).await.unwrap();
    }
    let mut names = Vec::new();
    let mut listed = secrets.list();
    while let Some(secret) = listed.next().await {
        names.push(secret.unwrap().name);
    }
    names.sort();
    assert_eq!(names, (0..105).map(|n| format!("secret-{n:03}")).collect::<Vec<_>>());
    let one = secrets.get("secret-007").await.unwrap();
    assert_eq!((one.current_version, one.metadata.clone()), (1, Some(labels)));
    assert_eq!(secrets.update(&one.secret_id, Secret::new("other"), None).await.unwrap().current_version, 2);
    assert!(secrets.create("secret-007", Secret::new("again"), None).await.is_err());
    assert_eq!(secrets.delete(&one.secret_id).await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!(secrets.delete(&one.secret_id).await.unwrap(), DestroyOutcome::AlreadyGone);
    let gone = secrets.get("secret-007").await.unwrap_err();
    assert_eq!((gone.kind(), gone.reason()), (ErrorKind::NotFound, Some("secret_not_found")));
}

const DOCKERFILE: &str = "ARG WORD=plain
FROM e2bdev/base
ARG WORD
ENV PLACE=here
WORKDIR /work
COPY app.txt copied.txt
RUN echo \"$PLACE $WORD\" > made.txt && chown user made.txt copied.txt
USER user
";

#[tokio::test]
async fn a_dockerfile_is_built_cached_tagged_and_deleted() {
    let served = served().await;
    let provider = provider(&served);
    let templates = provider.templates();
    let context = tempfile::tempdir().unwrap();
    std::fs::write(context.path().join("app.txt"), "copied\n").unwrap();
    std::fs::write(context.path().join("Dockerfile"), DOCKERFILE).unwrap();
    let recipe = |word: Option<&str>| {
        let arguments = word.map(|word| ("WORD".to_owned(), word.to_owned())).into_iter().collect();
        let path = context.path().join("Dockerfile");
        async move { Recipe::from_dockerfile(path, &arguments).await.unwrap() }
    };
    assert!(!templates.exists("filed").await.unwrap());
    let options = BuildOptions::new("filed").with_tag("v1");
    let first = templates.build(&recipe(Some("over ridden")).await, &options).await.unwrap();
    assert!(templates.exists("filed").await.unwrap());
    let made = create(&provider, SandboxSpec::new("filed:v1")).await;
    assert_eq!(
        sh(&made, "pwd; whoami; cat made.txt copied.txt").await,
        "/work\nuser\nhere over ridden\ncopied\n"
    );

    // The same again is taken from what is there; another argument is another step.
    let second = BuildOptions::new("filed").with_tag("v2");
    let again = templates.build(&recipe(Some("over ridden")).await, &second).await.unwrap();
    let cached = |log: &[String]| log.iter().filter(|line| line.starts_with("CACHED")).count();
    let steps = cached(&lines(&again).await);
    assert_eq!((cached(&lines(&first).await), steps > 0), (0, true));
    let other =
        templates.build(&recipe(None).await, &BuildOptions::new("filed").with_tag("v3")).await.unwrap();
    assert!(cached(&lines(&other).await) < steps);
    let plain = create(&provider, SandboxSpec::new("filed:v3")).await;
    assert_eq!(sh(&plain, "cat made.txt").await, "here plain\n");

    let mut tags: Vec<_> = templates.tags("filed").await.unwrap().into_iter().map(|tag| tag.tag).collect();
    tags.sort();
    assert_eq!(tags, ["v1", "v2", "v3"]);
    let assigned = templates.assign_tags("filed:v2", &["stable"]).await.unwrap();
    assert_eq!((assigned.build_id.as_str(), assigned.tags), (again.build_id(), vec!["stable".to_owned()]));
    templates.remove_tags("filed", &["v2"]).await.unwrap();
    let detail = templates.get("filed").await.unwrap();
    assert_eq!((detail.build_count, detail.template_id.as_str()), (3, first.template_id()));
    templates.set_public("filed", true).await.unwrap();
    assert!(templates.get("filed").await.unwrap().public);
    let listed = templates.list().collect().await.unwrap();
    assert_eq!(listed.iter().map(|one| one.template_id.as_str()).collect::<Vec<_>>(), [first.template_id()]);

    let failing = Recipe::from_image("e2bdev/base").run("true").run("echo broken >&2; exit 3");
    let failed = templates.build(&failing, &BuildOptions::new("failing")).await.unwrap_err();
    assert_eq!((failed.kind(), failed.reason()), (ErrorKind::InvalidState, Some("build_failed")), "{failed}");
    assert!(failed.context().any(|pair| pair == ("step", "2")), "{failed}");

    assert_eq!(
        templates.delete("filed").await.unwrap_err().kind(),
        ErrorKind::InvalidArgument,
        "it has sandboxes"
    );
    for sandbox in [made, plain] {
        provider.destroy(sandbox.id()).await.unwrap();
    }
    assert_eq!(templates.delete("filed").await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!(templates.delete("filed").await.unwrap(), DestroyOutcome::AlreadyGone);
    let missing = templates.get("filed").await.unwrap_err();
    assert_eq!((missing.kind(), missing.reason()), (ErrorKind::NotFound, Some("template_not_found")));
}

async fn lines(build: &sandhold_e2b::TemplateBuild) -> Vec<String> {
    build.logs().collect().await.unwrap().into_iter().map(|line| line.message).collect()
}

#[tokio::test]
async fn the_default_template_is_built_by_the_first_create_and_once_for_all_processes() {
    let served = served().await;
    let template = DefaultTemplate::new(
        Recipe::from_image("e2bdev/base").run("echo default > /home/user/which"),
        BuildOptions::new("ours"),
    );
    let hosts =
        [(); 3].map(|()| E2bProvider::new(config(&served).with_default_template(template.clone())).unwrap());
    let creates = hosts.map(|host| {
        tokio::spawn(async move {
            let made = create(&host, SandboxSpec::default()).await;
            sh(&made, "cat which").await
        })
    });
    for made in creates {
        assert_eq!(made.await.unwrap(), "default\n");
    }
    let templates = provider(&served).templates();
    assert_eq!(templates.get("ours").await.unwrap().build_count, 1);
    let mut tags: Vec<_> = templates.tags("ours").await.unwrap().into_iter().map(|tag| tag.tag).collect();
    tags.sort();
    assert!(tags.len() == 2 && tags[0] == "default" && tags[1].starts_with("sha-"), "{tags:?}");
}

#[tokio::test]
async fn links_and_ports_are_reached_by_what_the_access_says() {
    let served = served().await;
    let provider = provider(&served);
    let sandbox = create(&provider, SandboxSpec::default()).await;
    let _other = create(&provider, SandboxSpec::default()).await;
    sh(&sandbox, "echo mine > /home/user/a\\ b+c.txt").await;
    let access = provider.access(sandbox.id()).await.unwrap();
    let plain = SignOptions::default();
    for options in [plain.clone(), plain.clone().with_user("user").with_expires(Duration::from_secs(60))] {
        let url = access.download_url("a b+c.txt", &options).unwrap();
        let answer = asked(&served, "GET", &url, Vec::new(), "").await;
        assert_eq!((answer.status, answer.text()), (200, "mine\n"), "{url}");
    }
    let octets = || vec![("Content-Type".to_owned(), "application/octet-stream".to_owned())];
    let url = access.upload_url("up.txt", &plain).unwrap();
    assert_eq!(asked(&served, "POST", &url, octets(), "up").await.status, 200);
    assert_eq!(sh(&sandbox, "cat up.txt").await, "up");
    let late = access.download_url("up.txt", &plain.clone().with_expires(Duration::ZERO)).unwrap();
    // Ends are whole seconds, and this one's is not over yet.
    let over = async {
        loop {
            let answer = asked(&served, "GET", &late, Vec::new(), "").await;
            if answer.status != 200 {
                return answer;
            }
        }
    };
    let late = within("the link ends", over).await;
    assert_eq!((late.status, late.text()), (401, r#"{"code":401,"message":"signature is already expired"}"#));

    let serving = ProcessSpec::argv("python3", ["-m", "http.server", "8000", "--bind", "127.0.0.1"]);
    sandbox.start(serving).await.unwrap();
    let port = access.port(8000);
    let headers: Vec<_> =
        port.headers.iter().map(|(name, value)| ((*name).to_owned(), value.expose().to_owned())).collect();
    let served_at = format!("{}/up.txt", port.url);
    let answers = async {
        loop {
            let answer = asked(&served, "GET", &served_at, headers.clone(), "").await;
            if answer.status != 502 {
                return answer;
            }
        }
    };
    let answer = within("the port is open", answers).await;
    assert_eq!((answer.status, answer.text()), (200, "up"));
    let untold: Vec<_> = headers.into_iter().filter(|(name, _)| !name.contains("traffic")).collect();
    assert_eq!(asked(&served, "GET", &served_at, untold, "").await.status, 403);

    let deny = NetworkUpdate { deny_out: Some(vec!["10.0.0.0/8".to_owned()]), ..NetworkUpdate::default() };
    provider.update_network_policy(sandbox.id(), &deny).await.unwrap();
    let network = provider.detail(sandbox.id()).await.unwrap().network.unwrap();
    assert_eq!((network.deny_out, network.allow_public_traffic), (deny.deny_out, Some(false)));
    provider.update_network(sandbox.id(), Network::Loopback).await.unwrap();
    assert_eq!(provider.detail(sandbox.id()).await.unwrap().allow_internet_access, Some(false));
    provider.pause(sandbox.id()).await.unwrap();
    let paused = provider.update_network(sandbox.id(), Network::Loopback).await.unwrap_err();
    assert_eq!(
        (paused.kind(), paused.reason()),
        (ErrorKind::InvalidState, Some(sandhold_core::REASON_PAUSED))
    );
}
