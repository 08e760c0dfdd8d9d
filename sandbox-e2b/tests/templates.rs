//! How templates are asked for, fed and followed, and when the default one is built.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

use std::time::Duration;

use sandhold_core::retry::RetryPolicy;
use sandhold_core::testing::Gate;
use sandhold_core::{
    Attempt, CreateOptions, Error, ErrorKind, Generation, Key, Owner, SandboxHandle, SandboxProvider,
    SandboxSpec, Tags,
};
use sandhold_e2b::testing::{Answer, Fault, Proxy, Route, Rule};
use sandhold_e2b::{BuildOptions, DefaultTemplate, E2bConfig, E2bProvider, Recipe};
use serde_json::{Value, json};

fn provider(proxy: &Proxy, default: Option<DefaultTemplate>) -> E2bProvider {
    let retry = RetryPolicy::default().with_max_retries(1).with_initial_backoff(Duration::from_millis(1));
    let config =
        E2bConfig::new("e2b_key").with_api_url(proxy.url()).with_sandbox_url(proxy.url()).with_retry(retry);
    let config = match default {
        Some(template) => config.with_default_template(template),
        None => config,
    };
    E2bProvider::new(config).unwrap()
}

fn answers(status: u16, body: &Value) -> Rule {
    Rule::new(Fault::Answer(Answer::new(status).with_json(body)))
}

fn context() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("app.txt"), "hello").unwrap();
    directory
}

fn recipe(context: &tempfile::TempDir) -> Recipe {
    Recipe::from_image("debian:12")
        .with_context(context.path())
        .copy("app.txt", "/srv/")
        .run("cat /srv/app.txt")
        .env("A", "b")
        .start_command("serve")
}

/// Answers of a server that builds.
fn add_build(proxy: &Proxy, status: &Value) {
    let created = json!({"templateID": "t1", "buildID": "b1", "public": false, "names": ["me/mine"], "tags": [], "aliases": []});
    proxy.add(answers(202, &created).with_path("/v3/templates"));
    let link = json!({"present": false, "url": format!("{}/upload?signature=hush%2B&expires=1", proxy.url()), "headers": {"x-meta": "1"}});
    proxy.add(answers(201, &link).with_path("/templates/t1/files/*"));
    proxy.add(Rule::new(Fault::Answer(Answer::new(200))).with_path("/upload"));
    proxy.add(Rule::new(Fault::Answer(Answer::new(202))).with_path("/v2/templates/t1/builds/b1"));
    proxy.add(answers(200, status).with_path("/templates/t1/builds/b1/status"));
}

fn ready() -> Value {
    json!({"templateID": "t1", "buildID": "b1", "status": "ready", "logEntries": [], "logs": []})
}

fn options(template: &str) -> CreateOptions {
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new("k").unwrap(),
        generation: Generation::new("g"),
        attempt: Attempt::new("a"),
    };
    CreateOptions::new(SandboxSpec::new(template), tags)
}

fn sandbox() -> Value {
    json!({
        "sandboxID": "i1", "templateID": "t1", "clientID": "c", "envdVersion": "0.6.4", "envdAccessToken": "x",
        "trafficAccessToken": "y",
    })
}

#[tokio::test]
async fn a_build_uploads_what_the_server_has_not_with_an_exact_length_and_starts_once() {
    let (proxy, context) = (Proxy::alone().await.unwrap(), context());
    add_build(&proxy, &ready());
    let options = BuildOptions::new("mine").with_tag("v1").with_memory_mb(512);
    let build = provider(&proxy, None).templates().build(&recipe(&context), &options).await.unwrap();
    assert_eq!((build.template_id(), build.build_id()), ("t1", "b1"));
    let sent = proxy.exchanges();
    let at = |path: &str| sent.iter().find(|sent| sent.path() == path).unwrap();
    assert_eq!(at("/v3/templates").json().unwrap(), json!({"name": "mine", "tags": ["v1"], "memoryMB": 512}));
    let upload = at("/upload");
    assert_eq!(upload.headers["content-length"], upload.sent.to_string());
    assert_eq!(upload.headers["x-meta"], "1");
    assert_eq!(upload.target, "/upload?signature=hush%2B&expires=1");
    assert!(!upload.headers.contains_key("transfer-encoding") && !upload.headers.contains_key("x-api-key"));
    let body = at("/v2/templates/t1/builds/b1").json().unwrap();
    assert_eq!((&body["fromImage"], &body["startCmd"]), (&json!("debian:12"), &json!("serve")));
    let copy = &body["steps"][0];
    assert_eq!((&copy["type"], &copy["args"]), (&json!("COPY"), &json!(["app.txt", "/srv/", "", ""])));
    let hash = copy["filesHash"].as_str().unwrap();
    assert!(sent.iter().any(|sent| sent.path() == format!("/templates/t1/files/{hash}")));
}

#[tokio::test]
async fn files_go_to_no_other_machine_in_the_clear_and_the_link_is_not_told() {
    let context = context();
    for link in
        ["http://files.example/up?signature=hush", "ftp://files.example/up?signature=hush", "signature=hush"]
    {
        let proxy = Proxy::alone().await.unwrap();
        proxy.add(answers(201, &json!({"present": false, "url": link})).with_path("/templates/t1/files/*"));
        add_build(&proxy, &ready());
        let build =
            provider(&proxy, None).templates().build(&recipe(&context), &BuildOptions::new("mine")).await;
        let error = build.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{link}: {error}");
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        assert_eq!(
            proxy.count(|sent| sent.path().starts_with("/v2/templates")),
            0,
            "nothing is built without them"
        );
    }
}

#[tokio::test]
async fn a_build_that_fails_says_which_step_and_its_log_is_told_before() {
    let (proxy, context) = (Proxy::alone().await.unwrap(), context());
    let line = |text| json!({"timestamp": "2026-08-01T12:00:00Z", "message": text, "level": "info"});
    let failed = json!({
        "status": "error", "logEntries": [], "reason": {"message": "exit 1", "step": "2"},
    });
    let running = json!({"status": "building", "logEntries": [line("one"), line("two")]});
    proxy.add(answers(200, &running).with_path("*/status").times(1));
    add_build(&proxy, &failed);
    let templates = provider(&proxy, None).templates();
    let build = templates.start(&recipe(&context), &BuildOptions::new("mine")).await.unwrap();
    let mut logs = build.logs();
    for text in ["one", "two"] {
        assert_eq!(logs.next().await.unwrap().unwrap().message, text);
    }
    let error = logs.next().await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidState, Some("build_failed")));
    assert!(error.context().any(|pair| pair == ("step", "2")), "{error}");
    let asked: Vec<_> = proxy
        .exchanges()
        .iter()
        .filter(|sent| sent.path().ends_with("/status"))
        .map(|sent| sent.target.clone())
        .collect();
    assert!(asked[0].ends_with("logsOffset=0") && asked[1].ends_with("logsOffset=2"), "{asked:?}");
}

#[tokio::test]
async fn a_name_exists_when_it_is_ours_or_forbidden_and_nothing_foreign_says_that_it_does_not() {
    let known = json!({"templateID": "t1", "public": false});
    let cases = [
        (Answer::new(200).with_json(&known), Ok(true)),
        (Answer::error(403, ""), Ok(true)),
        (Answer::error(404, ""), Ok(false)),
        (Answer::new(404), Err(ErrorKind::Unexpected)),
        (Answer::new(403), Err(ErrorKind::PermissionDenied)),
        (Answer::error(500, "not found"), Err(ErrorKind::Unexpected)),
    ];
    for (answer, expected) in cases {
        let proxy = Proxy::alone().await.unwrap();
        proxy.add(Rule::new(Fault::Answer(answer)));
        let exists = provider(&proxy, None).templates().exists("a/b").await;
        assert_eq!(exists.map_err(|error| error.kind()), expected);
        assert_eq!(proxy.exchanges()[0].path(), "/templates/aliases/a%2Fb");
    }
}

async fn create(provider: &E2bProvider, template: &str) -> Result<std::sync::Arc<dyn SandboxHandle>, Error> {
    provider.create_opts(options(template)).await
}

#[tokio::test]
async fn the_default_template_is_named_by_its_content_and_built_only_when_it_is_not_there() {
    let (proxy, context) = (Proxy::alone().await.unwrap(), context());
    let default = DefaultTemplate::new(recipe(&context), BuildOptions::new("mine"));
    let provider = provider(&proxy, Some(default));
    let missing = Rule::new(Fault::Answer(Answer::error(404, "any text"))).with_route(Route::Create).times(1);
    proxy.add(missing);
    proxy.add(answers(201, &sandbox()).with_route(Route::Create));
    proxy.add(Rule::new(Fault::Answer(Answer::error(404, ""))).with_path("/templates/mine/tags"));
    add_build(&proxy, &ready());
    create(&provider, "base").await.unwrap();
    create(&provider, "base").await.unwrap();
    let sent = proxy.exchanges();
    let builds: Vec<_> = sent.iter().filter(|sent| sent.path() == "/v3/templates").collect();
    assert_eq!(builds.len(), 1);
    let creates: Vec<_> = sent
        .iter()
        .filter(|sent| sent.route == Route::Create)
        .map(|sent| sent.json().unwrap()["templateID"].clone())
        .collect();
    let tags = builds[0].json().unwrap()["tags"].clone();
    assert_eq!(tags[1], "default");
    assert_eq!(creates, vec![json!(format!("mine:{}", tags[0].as_str().unwrap())); 3]);
    // Other files are another template.
    std::fs::write(context.path().join("app.txt"), "other").unwrap();
    create(&provider, "base").await.unwrap();
    let last = proxy.exchanges().pop().unwrap().json().unwrap()["templateID"].clone();
    assert_ne!(last, creates[0]);
}

#[tokio::test]
async fn a_default_template_that_is_missing_right_after_its_build_is_an_error_and_not_built_again() {
    let (proxy, context) = (Proxy::alone().await.unwrap(), context());
    let default = DefaultTemplate::new(recipe(&context), BuildOptions::new("vanishing"));
    proxy.add(Rule::new(Fault::Answer(Answer::error(404, ""))).with_route(Route::Create));
    proxy.add(Rule::new(Fault::Answer(Answer::error(404, ""))).with_path("/templates/vanishing/tags"));
    add_build(&proxy, &ready());
    let error = create(&provider(&proxy, Some(default)), "base").await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::NotFound, Some("template_not_found")));
    assert_eq!((proxy.asked(Route::Create), proxy.count(|sent| sent.path() == "/v3/templates")), (2, 1));
}

#[tokio::test]
async fn an_explicit_template_that_is_missing_is_an_error_and_nothing_is_built() {
    let (proxy, context) = (Proxy::alone().await.unwrap(), context());
    let default = DefaultTemplate::new(recipe(&context), BuildOptions::new("mine"));
    proxy.add(Rule::new(Fault::Answer(Answer::error(404, ""))).with_route(Route::Create));
    let error = create(&provider(&proxy, Some(default)), "theirs").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::NotFound, Some("template_not_found")));
    assert_eq!(proxy.exchanges().len(), 1);
}

#[tokio::test]
async fn a_build_that_failed_is_not_remembered_and_one_of_another_process_is_not_repeated() {
    let (proxy, context) = (Proxy::alone().await.unwrap(), context());
    let default = DefaultTemplate::new(recipe(&context), BuildOptions::new("mine"));
    let provider = provider(&proxy, Some(default));
    proxy.add(Rule::new(Fault::Answer(Answer::error(404, ""))).with_route(Route::Create).times(2));
    proxy.add(answers(201, &sandbox()).with_route(Route::Create));
    proxy.add(Rule::new(Fault::Answer(Answer::error(404, ""))).with_path("/templates/mine/tags").times(1));
    proxy.add(Rule::new(Fault::Answer(Answer::error(400, "no"))).with_path("/v3/templates").times(1));
    assert_eq!(create(&provider, "base").await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    // Meanwhile another process has built it: its tag is there.
    let named = proxy.exchanges()[0].json().unwrap()["templateID"].as_str().unwrap().to_owned();
    let tag = named.split_once(':').unwrap().1;
    let tags = json!([{"tag": tag, "buildID": "b", "createdAt": "2026-08-01T12:00:00Z"}]);
    proxy.add(answers(200, &tags).with_path("/templates/mine/tags"));
    create(&provider, "base").await.unwrap();
    assert_eq!(proxy.count(|sent| sent.path() == "/v3/templates"), 1);
}

#[tokio::test]
async fn two_who_miss_the_default_template_at_once_build_it_once() {
    let (proxy, context) = (Proxy::alone().await.unwrap(), context());
    // Another name than the other tests have, as the lock is one of the whole machine.
    let default = DefaultTemplate::new(recipe(&context), BuildOptions::new("raced"));
    // As two processes: they share nothing but the server and the machine.
    let (one, other) = (provider(&proxy, Some(default.clone())), provider(&proxy, Some(default)));
    proxy.add(Rule::new(Fault::Answer(Answer::error(404, ""))).with_route(Route::Create).times(2));
    proxy.add(answers(201, &sandbox()).with_route(Route::Create));
    let tags = |found: &Value| answers(200, found).with_path("/templates/raced/tags");
    proxy.add(tags(&json!([])).times(1));
    let building = json!({"status": "building", "logEntries": [], "logs": []});
    let gate = Gate::new();
    proxy.add(Rule::new(Fault::HoldBefore(gate.clone())).with_path("*/status").times(1));
    add_build(&proxy, &building);
    let creates = tokio::spawn(async move {
        let (one, other) = tokio::join!(create(&one, "base"), create(&other, "base"));
        (one.map(drop), other.map(drop))
    });
    // Both were told that it is not there, and one of them builds.
    gate.arrived(1).await;
    proxy.until(2, |sent| sent.route == Route::Create).await;
    let named = proxy.exchanges()[0].json().unwrap()["templateID"].as_str().unwrap().to_owned();
    let tag = named.split_once(':').unwrap().1;
    assert_eq!(proxy.count(|sent| sent.path() == "/templates/raced/tags"), 1, "the other waits for the lock");
    // The build ends, and its tag is there.
    proxy.clear_rules();
    proxy.add(answers(201, &sandbox()).with_route(Route::Create));
    proxy.add(tags(&json!([{"tag": tag, "buildID": "b1", "createdAt": "2026-08-01T12:00:00Z"}])));
    add_build(&proxy, &ready());
    gate.open();
    let (one, other) = creates.await.unwrap();
    one.unwrap();
    other.unwrap();
    assert_eq!(proxy.count(|sent| sent.path() == "/v3/templates"), 1);
}
