//! What is asked of volumes and their content, and what answers to it mean.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

mod support;

use sandhold_core::{ByteStream, DestroyOutcome, ErrorKind, Outcome};
use sandhold_e2b::testing::{Answer, Fault, Proxy, Rule};
use sandhold_e2b::{E2bProvider, VolumeContent, VolumeOptions};
use serde_json::{Value, json};
use support::{answer, config, json_answer, provider};

async fn opened() -> (Proxy, E2bProvider, VolumeContent) {
    let proxy = Proxy::alone().await.unwrap();
    let provider = provider(config(&proxy).with_volume_url(proxy.url()));
    let volume = json!({"volumeID": "v1", "name": "data", "token": "bearer"});
    proxy.add(json_answer(200, &volume).with_path("/volumes/v1").times(1));
    let content = provider.volumes().open("v1").await.unwrap();
    (proxy, provider, content)
}

fn entry(path: &str) -> Value {
    json!({"name": "x", "type": "file", "path": path, "size": 5, "mode": 0o644, "uid": 1, "gid": 2})
}

fn refusal(status: u16, code: &str) -> Answer {
    Answer::new(status).with_json(&json!({"code": code, "message": "any text"}))
}

#[tokio::test]
async fn content_is_asked_for_with_the_token_of_its_volume_and_never_with_the_key() {
    let (proxy, _, content) = opened().await;
    proxy.add(json_answer(200, &json!([entry("/a b+c")])).with_path("/volumecontent/v1/dir"));
    proxy.add(json_answer(200, &entry("/a b+c")));
    let options = VolumeOptions::default().with_owner(7, 8).with_mode(0o640).with_force();
    content.write("/a b+c", ByteStream::from_bytes("hello"), &options).await.unwrap();
    content.change("/a b+c", &VolumeOptions::default().with_mode(0o600)).await.unwrap();
    content.list("/", 0).await.unwrap();
    assert_eq!(content.stat("/a b+c").await.unwrap().gid, 2);
    let sent = &proxy.exchanges()[1..];
    for sent in sent {
        assert_eq!(sent.headers["authorization"], "Bearer bearer", "{}", sent.target);
        assert!(!sent.headers.contains_key("x-api-key"), "{}", sent.target);
    }
    let asked: Vec<_> = sent.iter().map(|sent| format!("{} {}", sent.method, sent.target)).collect();
    assert_eq!(
        asked,
        [
            "PUT /volumecontent/v1/file?path=%2Fa+b%2Bc&uid=7&gid=8&mode=416&force=true",
            "PATCH /volumecontent/v1/path?path=%2Fa+b%2Bc",
            "GET /volumecontent/v1/dir?path=%2F&depth=1",
            "GET /volumecontent/v1/path?path=%2Fa+b%2Bc",
        ]
    );
    assert_eq!((sent[0].sent, sent[1].json()), (5, Some(json!({"mode": 0o600}))));
}

#[tokio::test]
async fn what_volumes_refuse_by_a_word_is_told_by_kind_and_something_on_the_way_says_nothing() {
    for (refused, kind, reason) in [
        (refusal(404, "not_found"), ErrorKind::NotFound, Some("path_not_found")),
        (refusal(400, "invalid_path"), ErrorKind::InvalidArgument, None),
        (refusal(401, "unauthorized"), ErrorKind::Unauthenticated, None),
        (refusal(409, "exists"), ErrorKind::Conflict, None),
        (refusal(507, "full"), ErrorKind::StorageFull, None),
        (Answer::new(404).with_body("404 page not found"), ErrorKind::Unexpected, Some("foreign_answer")),
    ] {
        let (proxy, _, content) = opened().await;
        proxy.add(answer(refused));
        for error in [
            content.stat("/x").await.unwrap_err(),
            content.read("/x").await.map(drop).unwrap_err(),
            content.remove("/x").await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.reason()), (kind, reason), "{error}");
            assert!(error.context().any(|pair| pair == ("volume", "v1")), "{error}");
        }
    }
    let (proxy, provider, _) = opened().await;
    proxy.add(answer(Answer::error(404, "")));
    assert_eq!(provider.volumes().delete("v1").await.unwrap(), DestroyOutcome::AlreadyGone);
    let missing = provider.volumes().open("v1").await.unwrap_err();
    assert_eq!((missing.kind(), missing.reason()), (ErrorKind::NotFound, Some("volume_not_found")));
}

#[tokio::test]
async fn a_removal_whose_answer_was_lost_is_done_and_what_makes_something_is_sent_once() {
    let (proxy, _, content) = opened().await;
    proxy.add(Rule::new(Fault::ResetBefore).times(1));
    proxy.add(answer(refusal(404, "not_found")));
    content.remove("/x").await.unwrap();
    assert_eq!(content.remove("/x").await.unwrap_err().kind(), ErrorKind::NotFound);

    let (proxy, _, content) = opened().await;
    proxy.add(Rule::new(Fault::ResetBefore));
    let options = VolumeOptions::default();
    for error in [
        content.make_dir("/d", &options).await.unwrap_err(),
        content.write("/f", ByteStream::from_bytes("x"), &options).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown), "{error}");
    }
    assert_eq!(proxy.count(|sent| sent.path().starts_with("/volumecontent/")), 2);
}

#[tokio::test]
async fn content_on_another_machine_is_not_asked_for_in_the_clear() {
    let proxy = Proxy::alone().await.unwrap();
    let volume = json!({"volumeID": "v1", "name": "data", "token": "bearer"});
    proxy.add(json_answer(200, &volume));
    let elsewhere = config(&proxy).with_volume_url("http://volumes.example");
    let error = provider(elsewhere.clone()).volumes().open("v1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("volumes.example"), "{error}");
    provider(elsewhere.with_plaintext_allowed()).volumes().open("v1").await.unwrap();
}
