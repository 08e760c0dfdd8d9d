//! What the provider makes of every answer that a control plane, or something before it, can give.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

mod support;

use std::time::{Duration, SystemTime};

use sandhold_core::{
    Attempt, DestroyOutcome, Error, ErrorKind, FindQuery, ListFilter, LogOptions, Outcome, PauseOutcome,
    SandboxId, SandboxProvider, SandboxProviderExt, SnapshotFilter,
};
use sandhold_e2b::testing::{Answer, Fault, Proxy, RetryAfter, Route, Rule};
use sandhold_e2b::wire::ListQuery;
use sandhold_e2b::{E2bConfig, E2bProvider};
use serde_json::{Value, json};
use support::{ID, alone, answer, config, detail, id, json_answer, options, provider, tags};

/// Answers that say nothing about whether a sandbox exists, and the kind that each must have.
fn doubtful() -> Vec<(Fault, Option<ErrorKind>)> {
    let html = |status| Answer::new(status).with_header("content-type", "text/html").with_body("not found");
    let mut faults = vec![
        (Fault::ResetBefore, Some(ErrorKind::Unavailable)),
        (Fault::Answer(html(404)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(404)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(200)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(204)), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(200).with_body("{")), Some(ErrorKind::Unexpected)),
        (Fault::Answer(Answer::new(410)), Some(ErrorKind::Unexpected)),
    ];
    for (status, kind) in [
        (401, ErrorKind::Unauthenticated),
        (403, ErrorKind::PermissionDenied),
        (408, ErrorKind::Timeout),
        (409, ErrorKind::Conflict),
        (429, ErrorKind::RateLimited),
        (500, ErrorKind::Unexpected),
        (502, ErrorKind::Unavailable),
        (503, ErrorKind::Unavailable),
        (504, ErrorKind::Unavailable),
    ] {
        faults.push((Fault::Answer(Answer::error(status, "was not found")), Some(kind)));
        faults.push((Fault::Answer(Answer::new(status)), None));
    }
    faults
}

#[tokio::test]
async fn only_the_providers_own_404_says_that_a_sandbox_is_gone() {
    for (fault, kind) in doubtful() {
        let (proxy, provider) = alone().await;
        proxy.add(Rule::new(fault.clone()));
        let mut errors = vec![
            provider.find_id(&id()).await.unwrap_err(),
            provider
                .find(FindQuery::Key { owner: tags().owner, key: tags().key, attempt: None })
                .await
                .unwrap_err(),
            provider.list_all(ListFilter::default()).await.unwrap_err(),
            provider.connect(&id()).await.map(drop).unwrap_err(),
        ];
        // What has no answer of its own is done when the status says so.
        let succeeds =
            matches!(&fault, Fault::Answer(answer) if format!("{answer:?}").contains("status: 20"));
        if !succeeds {
            errors.push(provider.set_lease(&id(), Duration::from_secs(60)).await.unwrap_err());
            errors.push(provider.destroy(&id()).await.map(drop).unwrap_err());
            errors.push(provider.pause(&id()).await.map(drop).unwrap_err());
        }
        for error in errors {
            assert_ne!(error.kind(), ErrorKind::Gone, "{fault:?}: {error}");
            if let Some(kind) = kind {
                assert_eq!(error.kind(), kind, "{fault:?}: {error}");
            }
        }
        assert_eq!(proxy.asked(Route::Create), 0);
    }
    let (proxy, provider) = alone().await;
    proxy.add(answer(Answer::error(404, "")));
    assert_eq!(provider.find_id(&id()).await.unwrap(), None);
    assert_eq!(provider.destroy(&id()).await.unwrap(), DestroyOutcome::AlreadyGone);
    assert_eq!(provider.connect(&id()).await.map(drop).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(provider.pause(&id()).await.unwrap_err().kind(), ErrorKind::Gone);
}

#[tokio::test]
async fn retry_after_is_read_in_every_form_and_slept_only_within_the_deadline() {
    let junk = |text: &str| RetryAfter::Text(text.to_owned());
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    for (when, delay) in [
        (Some(RetryAfter::Seconds(3600)), Some(3600)),
        // A moment that is over says: at once.
        (Some(RetryAfter::At(past)), Some(0)),
        (Some(junk("-1")), None),
        (Some(junk("junk")), None),
        (None, None),
    ] {
        let (proxy, provider) = alone().await;
        let limited = Answer::error(429, "slow down");
        let limited = when.as_ref().map_or(limited.clone(), |when| limited.with_retry_after(when));
        proxy.add(answer(limited));
        for error in [
            provider.find_id(&id()).await.unwrap_err(),
            provider.create_opts(options()).await.map(drop).unwrap_err(),
            provider.destroy(&id()).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
            assert_eq!(
                (error.retry_after().map(|delay| delay.as_secs()), error.outcome()),
                (delay, Outcome::NotStarted)
            );
        }
    }
    let (proxy, provider) = alone().await;
    let later = RetryAfter::At(SystemTime::now() + Duration::from_secs(3600));
    proxy.add(answer(Answer::error(503, "busy").with_retry_after(&later)));
    let error = provider.find_id(&id()).await.unwrap_err();
    let delay = error.retry_after().unwrap().as_secs();
    assert!((3500..=3600).contains(&delay), "{delay}");
    assert_eq!(proxy.asked(Route::Info), 1, "nobody waits for longer than the call may take");
}

#[tokio::test]
async fn what_the_plan_allows_is_known_and_nothing_longer_is_asked_for() {
    let proxy = Proxy::alone().await.unwrap();
    let hour = Duration::from_secs(3600);
    let provider = provider(config(&proxy).with_max_run(hour));
    assert_eq!(provider.capabilities().max_lease, Some(hour));
    let longer = hour + Duration::from_secs(1);
    let mut create = options();
    create.spec = create.spec.with_lease(longer);
    for error in [
        provider.create_opts(create).await.map(drop).unwrap_err(),
        provider.set_lease(&id(), longer).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("3601s") && error.message().contains("max_run"), "{error}");
    }
    assert!(proxy.exchanges().is_empty());
}

#[tokio::test]
async fn a_server_that_forbids_another_try_is_asked_once() {
    let (proxy, provider) = alone().await;
    proxy.add(answer(Answer::error(503, "no").with_header("should-retry", "false")));
    assert_eq!(provider.find_id(&id()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(proxy.asked(Route::Info), 1);
    proxy.clear_rules();
    proxy.add(answer(Answer::error(503, "busy")).times(2));
    proxy.add(json_answer(200, &detail(ID, "running")));
    assert!(provider.find_id(&id()).await.unwrap().is_some());
    assert_eq!(proxy.asked(Route::Info), 4);
}

#[tokio::test]
async fn a_page_of_something_on_the_way_is_no_answer_to_a_change() {
    let page = Answer::new(200).with_header("content-type", "text/html; charset=utf-8").with_body("<html>");
    let (proxy, provider) = alone().await;
    proxy.add(answer(page));
    let errors = [
        provider.destroy(&id()).await.map(drop).unwrap_err(),
        provider.pause(&id()).await.map(drop).unwrap_err(),
        provider.set_lease(&id(), Duration::from_secs(60)).await.unwrap_err(),
        provider.update_network(&id(), sandhold_core::Network::Loopback).await.unwrap_err(),
        provider.delete_snapshot(&sandhold_core::SnapshotId::new("s")).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unexpected, Outcome::Unknown), "{error}");
    }
}

#[tokio::test]
async fn a_refused_pause_is_looked_into() {
    for (state, outcome) in
        [("paused", Ok(PauseOutcome::AlreadyPaused)), ("running", Err(ErrorKind::Conflict))]
    {
        let (proxy, provider) = alone().await;
        proxy.add(answer(Answer::error(409, "")).with_route(Route::Pause));
        proxy.add(json_answer(200, &detail(ID, state)).with_route(Route::Info));
        assert_eq!(provider.pause(&id()).await.map_err(|error| error.kind()), outcome);
    }
    // The first send was heard, and its answer lost.
    let (proxy, provider) = alone().await;
    proxy.add(Rule::new(Fault::ResetBefore).with_route(Route::Pause).times(1));
    proxy.add(answer(Answer::error(409, "")).with_route(Route::Pause));
    proxy.add(json_answer(200, &detail(ID, "paused")).with_route(Route::Info));
    assert_eq!(provider.pause(&id()).await.unwrap(), PauseOutcome::Paused);
}

#[tokio::test]
async fn a_destroy_whose_first_answer_was_lost_says_that_it_did_it() {
    let (proxy, provider) = alone().await;
    proxy.add(Rule::new(Fault::ResetBefore).times(1));
    proxy.add(answer(Answer::error(404, "")));
    assert_eq!(provider.destroy(&id()).await.unwrap(), DestroyOutcome::Destroyed);
}

#[tokio::test]
async fn a_404_to_a_call_on_a_paused_sandbox_does_not_say_that_it_is_gone() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "paused")).with_route(Route::Info));
    proxy.add(answer(Answer::error(404, "")));
    let error = provider.set_lease(&id(), Duration::from_secs(60)).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidState, Some(sandhold_core::REASON_PAUSED)));
}

/// Adds the pages of a list of so many sandboxes, one hundred a page, the last one paused.
fn add_pages(proxy: &Proxy, count: usize) {
    let all: Vec<_> = (0..count)
        .map(|n| detail(&format!("i{n:020}"), if n + 1 == count { "paused" } else { "running" }))
        .collect();
    let pages = all.chunks(100).count();
    for (number, page) in all.chunks(100).enumerate() {
        let mut page = Answer::new(200).with_json(&json!(page));
        if number + 1 < pages {
            page = page.with_header("x-next-token", &format!("page {}", number + 1));
        }
        proxy.add(answer(page).with_route(Route::List).times(1));
    }
}

#[tokio::test]
async fn every_page_is_read_and_every_cursor_sent_back_as_it_came() {
    let (proxy, provider) = alone().await;
    add_pages(&proxy, 1_237);
    let found =
        provider.find(FindQuery::Key { owner: tags().owner, key: tags().key, attempt: None }).await.unwrap();
    assert_eq!(found.len(), 1_237);
    assert_eq!(found[1_236].state, sandhold_core::SandboxState::Paused);
    let asked = proxy.exchanges();
    assert_eq!(asked.len(), 13);
    for (number, asked) in asked.iter().enumerate() {
        let query = ListQuery::from_query(asked.target.split_once('?').unwrap().1).unwrap();
        assert_eq!(query.next_token, (number > 0).then(|| format!("page {number}")));
        assert_eq!((query.state.len(), query.metadata["sandhold-key"].as_str()), (2, "k"));
    }
}

#[tokio::test]
async fn a_list_that_breaks_or_goes_round_is_an_error_and_never_a_part() {
    let (proxy, provider) = alone().await;
    proxy.add(answer(Answer::error(500, "")).with_route(Route::List).skip(6));
    add_pages(&proxy, 1_237);
    assert_eq!(provider.list_all(ListFilter::default()).await.unwrap_err().kind(), ErrorKind::Unexpected);

    let (proxy, provider) = alone().await;
    let page =
        Answer::new(200).with_json(&json!([detail(ID, "running")])).with_header("x-next-token", "again");
    proxy.add(answer(page));
    let error: Error = provider.list_all(ListFilter::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some("repeated_cursor")));
    assert_eq!(proxy.asked(Route::List), 2);
}

#[tokio::test]
async fn a_list_that_only_ever_names_another_page_ends_with_an_error() {
    let (proxy, provider) = alone().await;
    for page in 0..100 {
        let empty =
            Answer::new(200).with_json(&json!([])).with_header("x-next-token", &format!("page {page}"));
        proxy.add(answer(empty).with_route(Route::List).times(1));
    }
    let error: Error = provider.list_all(ListFilter::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unexpected, Some("endless_list")));
    assert_eq!(proxy.asked(Route::List), 64);

    // A server that finds little in what it reads is no such server.
    let (proxy, provider) = alone().await;
    for page in 0..150 {
        let found =
            if page % 60 == 59 { json!([detail(&format!("i{page:020}"), "running")]) } else { json!([]) };
        let mut some = Answer::new(200).with_json(&found);
        if page < 149 {
            some = some.with_header("x-next-token", &format!("page {page}"));
        }
        proxy.add(answer(some).with_route(Route::List).times(1));
    }
    assert_eq!(provider.list_all(ListFilter::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn ids_that_no_sandbox_can_have_are_refused_and_nothing_is_sent() {
    let (proxy, provider) = alone().await;
    for bad in ["", ".", "../x", "a/b", "a?b", "a\nb", "%2e", "é"] {
        let error = provider.find_id(&SandboxId::new(bad)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad}");
        assert_eq!(
            provider.destroy(&SandboxId::new(bad)).await.unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
    let mut options = options();
    options.tags.attempt = Attempt::new("A b");
    assert_eq!(provider.create_opts(options).await.map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(proxy.exchanges().is_empty());
}

#[tokio::test]
async fn a_key_does_not_travel_in_the_clear_to_another_machine() {
    let config = || E2bConfig::new("k").with_api_url("http://e2b.example");
    let error = E2bProvider::new(config()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("e2b.example"));
    E2bProvider::new(config().with_plaintext_allowed()).unwrap();
}

#[tokio::test]
async fn snapshots_are_told_oldest_first_without_those_that_carry_forks() {
    let (proxy, provider) = alone().await;
    let named = |id: &str, name: &str| json!({"snapshotID": id, "names": [name]});
    let carrier = named("t:fork", &format!("team/sandhold-fork-{}", Attempt::random().unwrap()));
    let newest = Answer::new(200).with_json(&json!([named("t:c", "team/c"), carrier]));
    proxy.add(answer(newest.with_header("x-next-token", "2")).times(1));
    proxy.add(json_answer(200, &json!([named("t:a", "team/a")])));
    let listed = provider.list_snapshots(SnapshotFilter::default().with_sandbox(id())).await.unwrap();
    let listed = listed.collect().await.unwrap();
    let ids: Vec<_> = listed.iter().map(|info| info.id.as_str()).collect();
    assert_eq!(ids, ["t:a", "t:c"]);
    assert_eq!(listed[0].sandbox, Some(id()));
}

/// The time of a line, so many milliseconds after 1970.
fn line(millis: usize, text: &str) -> Value {
    let at = format!("1970-01-01T00:00:{:02}.{:03}Z", millis / 1000, millis % 1000);
    json!({ "timestamp": at, "message": text, "level": "info", "fields": {} })
}

async fn log_of(pages: &[Vec<Value>]) -> (Proxy, Vec<String>) {
    let (proxy, provider) = alone().await;
    for page in pages {
        proxy.add(json_answer(200, &json!({ "logs": page })).with_path("/v2/sandboxes/*/logs").times(1));
    }
    let lines = provider.logs(&id(), LogOptions::default()).await.unwrap().collect().await.unwrap();
    (proxy, lines.into_iter().map(|line| line.message).collect())
}

#[tokio::test]
async fn a_log_goes_on_at_the_millisecond_where_its_last_page_ended_and_tells_each_line_once() {
    let first: Vec<_> = (0..1000).map(|n| line(n, &format!("line {n}"))).collect();
    // The last line comes again; one of the same text and time was written after it.
    let second = vec![line(999, "line 999"), line(999, "line 999"), line(1000, "end")];
    let (proxy, lines) = log_of(&[first, second]).await;
    let mut expected: Vec<_> = (0..1000).map(|n| format!("line {n}")).collect();
    expected.extend(["line 999".to_owned(), "end".to_owned()]);
    assert!(lines == expected, "{:?}", &lines[995..]);
    let asked: Vec<_> = proxy.exchanges().iter().map(|sent| sent.target.clone()).collect();
    let path = format!("/v2/sandboxes/{ID}/logs?");
    let cursor = |target: &str| {
        let query = target.strip_prefix(&path).unwrap_or_else(|| panic!("{target}"));
        assert!(query.contains("limit=1000") && query.contains("direction=forward"), "{target}");
        query.split('&').find_map(|pair| pair.strip_prefix("cursor=")).map(str::to_owned)
    };
    let cursors: Vec<_> = asked.iter().filter_map(|target| cursor(target)).collect();
    assert_eq!(cursors, ["0", "999"]);
}

#[tokio::test]
async fn a_log_with_more_lines_in_one_millisecond_than_an_answer_holds_goes_on_after_it() {
    let crowd: Vec<_> = (0..1000).map(|n| line(5, &format!("line {n}"))).collect();
    let (proxy, lines) = log_of(&[crowd.clone(), crowd, vec![line(7, "end")]]).await;
    assert_eq!((lines.len(), lines.last().map(String::as_str)), (1001, Some("end")));
    assert_eq!(proxy.exchanges().len(), 3);
}
