//! How sandboxes that are there are found and connected to.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use sandhold_core::{
    ConnectOptions, ErrorKind, FindQuery, Generation, Memory, Owner, SandboxProvider, SandboxProviderExt,
};
use sandhold_e2b::testing::{Answer, Fault, Proxy, Route, Rule};
use sandhold_e2b::wire::Timestamp;
use serde_json::json;
use support::{ID, alone, answer, config, detail, id, json_answer, provider, sandbox, tags};

#[tokio::test]
async fn a_connect_is_a_look_and_a_connect_and_after_a_find_the_connect_alone() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "running")).with_route(Route::Info));
    proxy.add(json_answer(200, &sandbox()).with_route(Route::Connect));
    let connection = provider.connect(&id()).await.unwrap();
    assert_eq!((connection.resumed, connection.handle.generation()), (None, Some(&Generation::new("g"))));
    assert_eq!((proxy.asked(Route::Info), proxy.asked(Route::Connect)), (1, 1));
    provider.find_id(&id()).await.unwrap();
    provider
        .connect_opts(&id(), ConnectOptions::default().with_generation(Generation::new("g")))
        .await
        .unwrap();
    assert_eq!((proxy.asked(Route::Info), proxy.asked(Route::Connect)), (2, 2));
    let other = ConnectOptions::default().with_generation(Generation::new("other"));
    let error = provider.connect_opts(&id(), other).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), proxy.asked(Route::Connect)), (ErrorKind::Stale, 2));
}

#[tokio::test]
async fn a_sandbox_that_was_paused_after_the_look_gets_its_whole_lease() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "running")).with_route(Route::Info));
    proxy.add(json_answer(201, &sandbox()).with_route(Route::Connect));
    proxy.add(answer(Answer::new(204)).with_route(Route::SetLease));
    assert_eq!(provider.connect(&id()).await.unwrap().resumed, Some(Memory::Kept));
    let sent = proxy.exchanges();
    let timeout =
        |route| sent.iter().find(|sent| sent.route == route).unwrap().json().unwrap()["timeout"].clone();
    assert_eq!((timeout(Route::Connect), timeout(Route::SetLease)), (json!(15), json!(300)));
}

#[tokio::test]
async fn a_resume_whose_answer_was_lost_is_still_a_resume() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "paused")).with_route(Route::Info));
    proxy.add(Rule::new(Fault::ResetBefore).with_route(Route::Connect).times(1));
    proxy.add(json_answer(200, &sandbox()).with_route(Route::Connect));
    assert_eq!(provider.connect(&id()).await.unwrap().resumed, Some(Memory::Kept));
}

#[tokio::test]
async fn a_sandbox_that_somebody_else_woke_was_not_resumed_by_this_connect() {
    let (proxy, provider) = alone().await;
    proxy.add(json_answer(200, &detail(ID, "paused")).with_route(Route::Info));
    proxy.add(json_answer(200, &sandbox()).with_route(Route::Connect));
    assert_eq!(provider.connect(&id()).await.unwrap().resumed, None);
}

#[tokio::test]
async fn sandboxes_of_mastra_are_found_by_their_own_id_when_told_so() {
    let mut theirs = detail(ID, "running");
    theirs["metadata"] = json!({"mastra-sandbox-id": "k"});
    let query = || FindQuery::Key { owner: tags().owner, key: tags().key, attempt: None };
    for (owner, found) in [(None, 0), (Some("another"), 0), (Some("o"), 1)] {
        let proxy = Proxy::alone().await.unwrap();
        let mut config = config(&proxy);
        if let Some(owner) = owner {
            config = config.with_mastra_owner(Owner::new(owner).unwrap());
        }
        proxy.add(json_answer(200, &json!([theirs])).with_route(Route::List));
        proxy.add(json_answer(200, &theirs).with_route(Route::Info));
        let provider = provider(config);
        assert_eq!(provider.find(query()).await.unwrap().len(), found, "{owner:?}");
        let tags = provider.find_id(&id()).await.unwrap().unwrap().tags;
        assert_eq!(tags.map(|tags| tags.key.as_str().to_owned()), owner.map(|_| "k".to_owned()));
    }
}

#[tokio::test]
async fn a_run_that_the_plan_ends_before_its_lease_is_warned_of() {
    let ago = |seconds: u64| SystemTime::now() - Duration::from_secs(seconds);
    // What runs for 23 h 55 min of a day, what has just begun, and what begins anew with this connect.
    for (started, woken, warned) in [(86_100, false, true), (60, false, false), (86_100, true, false)] {
        let (proxy, provider) = alone().await;
        let mut running = detail(ID, if woken { "paused" } else { "running" });
        running["startedAt"] = json!(Timestamp(ago(started)));
        proxy.add(json_answer(200, &running).with_route(Route::Info));
        proxy.add(json_answer(if woken { 201 } else { 200 }, &sandbox()).with_route(Route::Connect));
        let log = Log::default();
        let written = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || written.clone()).finish();
        let listening = tracing::subscriber::set_default(subscriber);
        provider.connect(&id()).await.unwrap();
        drop(listening);
        let log = log.text();
        assert_eq!(log.contains("the plan's longest run ends before the lease does"), warned, "{log}");
        assert_eq!(log.contains(ID) && log.contains("WARN"), warned, "{log}");
    }
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
