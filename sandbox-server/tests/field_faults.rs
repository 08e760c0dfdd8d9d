//! Bugs that users of other sandbox SDKs reported, tried on the E2B provider and acquire against the real server.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::retry::RetryPolicy;
use sandhold_core::testing::conformance::within;
use sandhold_core::{
    AcquireOptions, Attempt, CreateOptions, Error, ErrorKind, FindQuery, Generation, Key, ListFilter, Memory,
    OnExpiry, Owner, PauseOutcome, ProcessSpec, SandboxHandle, SandboxHandleExt as _, SandboxId,
    SandboxProvider, SandboxProviderExt as _, SandboxSpec, SandboxState, Sandboxes, Tags,
};
use sandhold_e2b::testing::{Answer, Fault, Proxy, Route, Rule};
use sandhold_e2b::{E2bConfig, E2bProvider};
use sandhold_registry::FileRegistry;
use support::{KEY, Served};

/// The real server behind a proxy.
async fn stage() -> (Served, Proxy) {
    let served = tokio::task::spawn_blocking(|| Served::start(&[])).await.unwrap();
    let proxy = Proxy::start(served.address()).await.unwrap();
    (served, proxy)
}

fn config(url: &str) -> E2bConfig {
    let retry = RetryPolicy::default().with_max_retries(2).with_initial_backoff(Duration::from_millis(5));
    E2bConfig::new(KEY)
        .with_api_url(url)
        .with_sandbox_url(url)
        .with_list_visibility(Duration::ZERO)
        .with_request_timeout(Duration::from_secs(20))
        .with_retry(retry)
}

fn provider(proxy: &Proxy) -> E2bProvider {
    E2bProvider::new(config(&proxy.url())).unwrap()
}

fn host(proxy: &Proxy, registry: &Path) -> Sandboxes {
    Sandboxes::new(Arc::new(provider(proxy))).with_registry(Arc::new(FileRegistry::new(registry)))
}

fn tags() -> Tags {
    Tags {
        owner: Owner::new("faults").unwrap(),
        key: Key::new("k").unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    }
}

/// What the server itself has, past the proxy.
async fn there(served: &Served) -> Vec<SandboxId> {
    let provider = E2bProvider::new(config(&format!("http://{}", served.address()))).unwrap();
    let listed = provider.list_all(ListFilter::default()).await.unwrap();
    listed.into_iter().map(|info| info.id).collect()
}

async fn sh(handle: &Arc<dyn SandboxHandle>, line: &str) -> Result<String, Error> {
    let output = handle.exec(ProcessSpec::argv("/bin/sh", ["-c", line])).await?;
    assert!(output.exit.success(), "{line}: {output:?}");
    Ok(String::from_utf8(output.stdout.bytes).unwrap())
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_is_made_once_however_often_it_is_sent() {
    let (served, proxy) = stage().await;
    let provider = provider(&proxy);
    let options = CreateOptions::new(SandboxSpec::default(), tags());
    // More often than it is tried: the first call ends without knowing.
    proxy.add(Rule::new(Fault::LoseAnswer).with_route(Route::Create).times(3));
    let error = provider.create_opts(options.clone()).await.map(drop).unwrap_err();
    assert_eq!(error.outcome(), sandhold_core::Outcome::Unknown, "{error}");
    let made = there(&served).await;
    assert_eq!(made.len(), 1);
    let again = provider.create_opts(options.clone()).await.unwrap();
    assert_eq!(*again.id(), made[0]);
    let fresh = E2bProvider::new(config(&proxy.url())).unwrap();
    assert_eq!(fresh.create_opts(options.clone()).await.unwrap().id(), &made[0]);
    let mut other = options;
    other.spec = other.spec.with_env("OTHER", "spec");
    assert_eq!(provider.create_opts(other).await.map(drop).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(there(&served).await, made);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_creates_at_once_of_one_attempt_are_one_sandbox_though_answers_are_lost() {
    let (served, proxy) = stage().await;
    let provider = provider(&proxy);
    proxy.add(Rule::new(Fault::LoseAnswer).with_route(Route::Create).skip(1).times(5));
    let options = CreateOptions::new(SandboxSpec::default(), tags());
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (provider, options) = (provider.clone(), options.clone());
            tokio::spawn(async move { provider.create_opts(options).await.map(|handle| handle.id().clone()) })
        })
        .collect();
    let mut ids = Vec::new();
    for call in calls {
        match within("the create ends", call).await.unwrap() {
            Ok(id) => ids.push(id),
            Err(error) => assert_eq!(error.outcome(), sandhold_core::Outcome::Unknown, "{error}"),
        }
    }
    ids.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    ids.dedup();
    assert_eq!(ids, there(&served).await);
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn a_lost_create_is_found_again_by_the_next_process_after_a_crash_of_the_server() {
    let (mut served, proxy) = stage().await;
    let registry = tempfile::tempdir().unwrap();
    // The look for what became of it fails as well.
    proxy.add(Rule::new(Fault::LoseAnswer).with_route(Route::Create));
    proxy.add(Rule::new(Fault::ResetBefore).with_route(Route::List).skip(1));
    let options = || AcquireOptions::default().with_deadline(Duration::from_secs(3));
    let lost = host(&proxy, registry.path()).acquire("k", options()).await.map(drop).unwrap_err();
    assert!(matches!(lost.kind(), ErrorKind::OutcomeUnknown | ErrorKind::Timeout), "{lost}");
    proxy.clear_rules();
    served.crash_and_restart();
    proxy.set_upstream(served.address());
    let made = there(&served).await;
    assert_eq!(made.len(), 1);
    let found = host(&proxy, registry.path()).acquire("k", AcquireOptions::default()).await.unwrap();
    assert_eq!(found.sandbox.provider_id().unwrap(), &made[0]);
    assert_eq!(there(&served).await, made);
}

#[tokio::test]
async fn nothing_but_gone_makes_an_acquire_create() {
    let (served, proxy) = stage().await;
    let registry = tempfile::tempdir().unwrap();
    let made = host(&proxy, registry.path()).acquire("k", AcquireOptions::default()).await.unwrap();
    let id = made.sandbox.provider_id().unwrap().clone();
    made.sandbox.detach();
    let creates = proxy.asked(Route::Create);
    let html = |status| {
        Fault::Answer(Answer::new(status).with_header("content-type", "text/html").with_body("not found"))
    };
    let mut faults = vec![
        (Fault::ResetBefore, Some(ErrorKind::Unavailable)),
        (Fault::LoseAnswer, None),
        (Fault::Truncate(9), None),
        (html(404), Some(ErrorKind::Unexpected)),
        (html(502), None),
        (Fault::Answer(Answer::new(200).with_body("{\"sandb")), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(204)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::error(500, "sandbox was not found")), Some(ErrorKind::Unexpected)),
    ];
    for (status, kind) in [
        (401, ErrorKind::Unauthenticated),
        (403, ErrorKind::PermissionDenied),
        (408, ErrorKind::Timeout),
        (409, ErrorKind::Conflict),
        (429, ErrorKind::RateLimited),
        (502, ErrorKind::Unavailable),
        (503, ErrorKind::Unavailable),
        (504, ErrorKind::Unavailable),
    ] {
        faults.push((Fault::Answer(Answer::error(status, "not found")), Some(kind)));
    }
    for (fault, kind) in faults {
        proxy.clear_rules();
        proxy.add(Rule::new(fault.clone()));
        let error = host(&proxy, registry.path()).acquire("k", AcquireOptions::default()).await;
        let error = error.map(drop).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::Gone, "{fault:?}: {error}");
        if let Some(kind) = kind {
            assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        }
    }
    // No line at all: no TLS on the other side, no such host, and nobody who answers in time.
    let registry_of = || Arc::new(FileRegistry::new(registry.path()));
    for url in [format!("https://{}", proxy.address()), "https://no-such-host.invalid".to_owned()] {
        proxy.clear_rules();
        let broken = Arc::new(E2bProvider::new(config(&url)).unwrap());
        let error = broken.connect(&id).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
        let host = Sandboxes::new(broken).with_registry(registry_of());
        let error = host.acquire("k", AcquireOptions::default()).await.map(drop).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::Gone, "{url}: {error}");
    }
    proxy.add(Rule::new(Fault::HangBefore));
    let hasty =
        E2bProvider::new(config(&proxy.url()).with_request_timeout(Duration::from_millis(300))).unwrap();
    let error = within("the hang is given up", hasty.connect(&id)).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let options = AcquireOptions::default().with_deadline(Duration::from_millis(500));
    let error = host(&proxy, registry.path()).acquire("k", options).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");

    assert_eq!(proxy.asked(Route::Create), creates, "no fault made a create");
    assert_eq!(proxy.asked(Route::Destroy), 0);
    proxy.clear_rules();
    assert_eq!(there(&served).await, std::slice::from_ref(&id));
    // And gone is gone: then there is a new one.
    provider(&proxy).destroy(&id).await.unwrap();
    let replaced = host(&proxy, registry.path()).acquire("k", AcquireOptions::default()).await.unwrap();
    assert_ne!(replaced.sandbox.provider_id().unwrap(), &id);
    assert_eq!(proxy.asked(Route::Create), creates + 1);
}

#[tokio::test]
async fn gone_is_told_by_the_code_whatever_the_message_says() {
    let proxy = Proxy::alone().await.unwrap();
    let provider = provider(&proxy);
    let id = SandboxId::new("i0123456789abcdefghij");
    for message in [
        "",
        " ",
        "gone",
        "GONE",
        "not found",
        "sandbox was not found",
        "nicht gefunden",
        "404",
        "{}",
        "null",
        "error",
        "The sandbox is running",
        "try again",
        "\n",
        "é",
        "<html>",
        "expired",
        "killed",
        "unknown",
        "ok",
    ] {
        proxy.clear_rules();
        proxy.add(Rule::new(Fault::Answer(Answer::error(404, message))));
        assert!(provider.find_id(&id).await.unwrap().is_none(), "{message:?}");
        for status in [400, 500, 502] {
            proxy.clear_rules();
            proxy.add(Rule::new(Fault::Answer(Answer::error(status, "sandbox was not found"))));
            let error = provider.find_id(&id).await.unwrap_err();
            assert_ne!(error.kind(), ErrorKind::Gone, "{status}: {error}");
        }
    }
}

#[tokio::test]
async fn a_broken_path_into_a_sandbox_destroys_and_creates_nothing() {
    let (served, proxy) = stage().await;
    let registry = tempfile::tempdir().unwrap();
    let acquired = host(&proxy, registry.path()).acquire("k", AcquireOptions::default()).await.unwrap();
    let sandbox = acquired.sandbox;
    let id = sandbox.provider_id().unwrap().clone();
    let line = |text: &str| ProcessSpec::argv("/bin/sh", ["-c".to_owned(), text.to_owned()]);
    sandbox.exec(line("echo forty minutes of work > /home/user/work")).await.unwrap();
    let creates = proxy.asked(Route::Create);
    let page = Answer::new(502).with_header("content-type", "text/html").with_body("<h1>Bad Gateway</h1>");
    for broken in
        [page, Answer::new(502), Answer::error(502, "was not found"), Answer::new(503), Answer::new(504)]
    {
        proxy.clear_rules();
        proxy.add(Rule::new(Fault::Answer(broken.clone())).with_route(Route::Inside));
        for _ in 0..4 {
            // Whether the command ran is not known; that the way there is broken is.
            let error = sandbox.exec(line("true")).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{broken:?}: {error}");
            assert!(error.context().any(|pair| pair == ("sandbox", "running")), "{broken:?}: {error}");
            let error = sandbox.stat("/", Default::default()).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{broken:?}: {error}");
        }
    }
    proxy.clear_rules();
    let output =
        sandbox.exec(line("cat /home/user/work; echo 'sandbox not found' >&2; exit 44")).await.unwrap();
    assert_eq!((&output.stdout.bytes[..], output.exit.code), (&b"forty minutes of work\n"[..], Some(44)));
    assert_eq!(sandbox.provider_id().unwrap(), &id);
    assert_eq!((proxy.asked(Route::Create), proxy.asked(Route::Destroy)), (creates, 0));
    assert_eq!(there(&served).await, [id]);
}

#[tokio::test]
async fn nothing_written_before_a_pause_is_missing_after_it_in_any_round() {
    let (_served, proxy) = stage().await;
    let provider = provider(&proxy);
    let spec = SandboxSpec::default().with_on_expiry(OnExpiry::Pause).with_lease(Duration::from_secs(600));
    let mut handle = provider.create_opts(CreateOptions::new(spec, tags())).await.unwrap();
    let id = handle.id().clone();
    let tree = "cd /home/user && find . -printf '%p %y %m %s\\n' | grep -v '^\\. ' | sort \
        && find . -type f | sort | xargs sha256sum";
    for round in 0..6 {
        let work = format!(
            "cd /home/user && mkdir -p dir && echo {round} > new-{round} && echo {round} > same && echo {round} >> log \
             && head -c 300000 /dev/urandom > dir/blob-{round} && mv new-{round} dir/moved-{round} \
             && chmod 64{round} dir/moved-{round} && rm -f dir/blob-{gone}",
            gone = round - 1
        );
        sh(&handle, &work).await.unwrap();
        let before = sh(&handle, tree).await.unwrap();
        if round % 2 == 0 {
            assert_eq!(provider.pause(&id).await.unwrap(), PauseOutcome::Paused);
        } else {
            provider.set_lease(&id, Duration::ZERO).await.unwrap();
            sandhold_core::testing::conformance::eventually("it pauses at its end", || async {
                let info = provider.find_id(&id).await.unwrap().unwrap();
                (info.state == SandboxState::Paused).then_some(())
            })
            .await;
        }
        let connection = provider.connect(&id).await.unwrap();
        assert_eq!(connection.resumed, Some(Memory::Kept), "round {round}");
        handle = connection.handle;
        assert_eq!(sh(&handle, tree).await.unwrap(), before, "round {round}");
    }
}

#[tokio::test]
async fn an_empty_body_where_one_is_due_is_an_error_on_every_call() {
    let (_served, proxy) = stage().await;
    let provider = provider(&proxy);
    let handle = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags())).await.unwrap();
    let id = handle.id().clone();
    for status in [500, 502, 204, 200] {
        proxy.clear_rules();
        proxy.add(Rule::new(Fault::Answer(Answer::new(status))));
        let mut errors = vec![
            ("find", provider.find_id(&id).await.map(drop)),
            ("list", provider.list_all(ListFilter::default()).await.map(drop)),
            ("connect", provider.connect(&id).await.map(drop)),
            (
                "create",
                provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags())).await.map(drop),
            ),
            ("metrics", provider.metrics(&id).await.map(drop)),
            ("info", handle.info().await.map(drop)),
            ("exec", handle.exec(ProcessSpec::argv("true", [""; 0])).await.map(drop)),
            ("stat", handle.stat("/", Default::default()).await.map(drop)),
            ("list inside", handle.processes().await.map(drop)),
        ];
        if status >= 500 {
            errors.extend([
                ("pause", provider.pause(&id).await.map(drop)),
                ("set_lease", provider.set_lease(&id, Duration::from_secs(60)).await),
                ("destroy", provider.destroy(&id).await.map(drop)),
                ("read", handle.read_bytes("/etc/hostname").await.map(drop)),
            ]);
        }
        for (call, answer) in errors {
            let error = answer.expect_err(call);
            assert_ne!(error.kind(), ErrorKind::Gone, "{status} {call}: {error}");
        }
    }
    proxy.clear_rules();
    assert_eq!(sh(&handle, "echo still here").await.unwrap(), "still here\n");
}

/// A page as E2B sends it.
fn page(first: usize, count: usize, next: Option<&str>, target: &str) -> Fault {
    let rows: Vec<_> = (first..first + count)
        .map(|at| {
            let last = at == 1236;
            let key = if last { target.to_owned() } else { format!("other-{at}") };
            serde_json::json!({
                "sandboxID": format!("i{at:020}"), "templateID": "t", "clientID": "c", "cpuCount": 1, "memoryMB": 1,
                "diskSizeMB": 1, "envdVersion": "0.6.4", "startedAt": "2026-08-01T12:00:00Z",
                "endAt": "2026-08-01T12:05:00Z", "state": if last { "paused" } else { "running" },
                "metadata": {
                    "sandhold-owner": "faults", "sandhold-key": key, "sandhold-generation": "g",
                    "sandhold-attempt": "a",
                },
            })
        })
        .collect();
    let answer = Answer::new(200).with_json(&rows.into());
    Fault::Answer(match next {
        Some(next) => answer.with_header("x-next-token", next),
        None => answer,
    })
}

#[tokio::test]
async fn a_paused_sandbox_on_the_last_of_thirteen_pages_is_found_and_a_part_is_never_the_whole() {
    let proxy = Proxy::alone().await.unwrap();
    let provider = provider(&proxy);
    let pages = |proxy: &Proxy, until: usize| {
        proxy.clear_rules();
        for at in 0..until {
            let next = format!("token-{}", at + 1);
            let (count, next) = if at == 12 { (37, None) } else { (100, Some(&next[..])) };
            proxy.add(Rule::new(page(at * 100, count, next, "k")).with_route(Route::List).times(1));
        }
    };
    pages(&proxy, 13);
    let query = || FindQuery::Key { owner: tags().owner, key: tags().key, attempt: None };
    let found = provider.find(query()).await.unwrap();
    let [info] = &found[..] else { panic!("{found:?}") };
    assert_eq!((info.id.as_str(), info.state), ("i00000000000000001236", SandboxState::Paused));
    assert_eq!(proxy.asked(Route::List), 13);
    pages(&proxy, 13);
    assert_eq!(provider.list_all(ListFilter::default()).await.unwrap().len(), 1237);

    pages(&proxy, 6);
    proxy.add(Rule::new(Fault::Answer(Answer::error(500, "page seven"))).with_route(Route::List));
    let error = provider.find(query()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");

    proxy.clear_rules();
    proxy.add(Rule::new(page(0, 100, Some("again"), "k")).with_route(Route::List));
    let asked = proxy.asked(Route::List);
    let error = within("the repeated cursor is noticed", provider.find(query())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert_eq!(proxy.asked(Route::List), asked + 2, "it is noticed when it comes the second time");
}

#[tokio::test]
async fn the_same_rules_hold_for_pages_of_the_real_server() {
    let (_served, proxy) = stage().await;
    let provider = provider(&proxy);
    proxy.add(Rule::new(Fault::RepeatedCursor).with_route(Route::List));
    for _ in 0..2 {
        provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags())).await.unwrap();
    }
    // Two fit on one page, so that no cursor comes; it is the server's own list that passes.
    assert_eq!(provider.list_all(ListFilter::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn being_told_to_slow_down_is_one_kind_on_every_call_and_never_waited_for_past_the_deadline() {
    let (_served, proxy) = stage().await;
    let hasty = config(&proxy.url()).with_request_timeout(Duration::from_millis(500));
    let provider = E2bProvider::new(hasty).unwrap();
    let handle = E2bProvider::new(config(&proxy.url()))
        .unwrap()
        .create_opts(CreateOptions::new(SandboxSpec::default(), tags()))
        .await
        .unwrap();
    let id = handle.id().clone();
    let limited = Answer::error(429, "slow down").with_header("retry-after", "3600");
    proxy.add(Rule::new(Fault::Answer(limited)));
    let calls = async {
        [
            ("find", provider.find_id(&id).await.map(drop)),
            ("list", provider.list_all(ListFilter::default()).await.map(drop)),
            ("connect", provider.connect(&id).await.map(drop)),
            (
                "create",
                provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags())).await.map(drop),
            ),
            ("pause", provider.pause(&id).await.map(drop)),
            ("set_lease", provider.set_lease(&id, Duration::from_secs(60)).await),
            ("destroy", provider.destroy(&id).await.map(drop)),
            ("metrics", provider.metrics(&id).await.map(drop)),
            ("exec", handle.exec(ProcessSpec::argv("true", [""; 0])).await.map(drop)),
            ("stat", handle.stat("/", Default::default()).await.map(drop)),
            ("read", handle.read_bytes("/etc/hostname").await.map(drop)),
            ("write", handle.write_bytes("/home/user/x", "x").await.map(drop)),
        ]
    };
    for (call, answer) in within("an hour is not waited for", calls).await {
        let error = answer.expect_err(call);
        assert_eq!(error.kind(), ErrorKind::RateLimited, "{call}: {error}");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)), "{call}: {error}");
    }
    // A body that was streamed is sent once, whatever the answer is.
    let writes = proxy.count(|exchange| {
        exchange.route == Route::Inside && exchange.path() == "/files" && exchange.method == "POST"
    });
    assert_eq!(writes, 1);
}
