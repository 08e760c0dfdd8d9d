//! What each decorator adds, proven over the fake.
#![allow(clippy::unwrap_used)]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandhold_core::testing::{FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    Attempt, CreateOptions, Error, ErrorKind, FindQuery, Generation, Key, Limited, ListFilter, Outcome,
    Owner, SandboxId, SandboxProvider, SandboxProviderExt, SandboxSpec, Tags, Traced, WithTimeout,
};
use tracing::field::{Field, Visit};
use tracing::span;

fn create(key: &str) -> CreateOptions {
    let tags = Tags {
        owner: Owner::default(),
        key: Key::new(key).unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    };
    CreateOptions::new(SandboxSpec::default(), tags)
}

fn some_id() -> SandboxId {
    SandboxId::new("fake-1")
}

#[tokio::test]
async fn at_most_so_many_calls_are_under_way() {
    let fake = FakeProvider::new();
    let gate = Gate::new();
    for _ in 0..20 {
        fake.script(Verb::Create, Fault::HoldBefore(gate.clone()));
    }
    let limited = Arc::new(Limited::new(fake.clone(), 3).unwrap());
    let calls: Vec<_> = (0..20)
        .map(|number| {
            let limited = Arc::clone(&limited);
            tokio::spawn(async move { limited.create_opts(create(&format!("key-{number}"))).await })
        })
        .collect();
    gate.arrived(3).await;
    // Everybody who could have come further has had many turns on this one thread.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fake.counts().of(Verb::Create), 3);
    gate.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(fake.counts().created, 20);
}

#[tokio::test]
async fn a_cancelled_call_gives_its_turn_back() {
    let fake = FakeProvider::new();
    let gate = Gate::new();
    fake.script(Verb::Find, Fault::HoldBefore(gate.clone()));
    let limited = Arc::new(Limited::new(fake, 1).unwrap());
    let held = tokio::spawn({
        let limited = Arc::clone(&limited);
        async move { limited.find_id(&some_id()).await }
    });
    gate.arrived(1).await;
    held.abort();
    assert_eq!(limited.find_id(&some_id()).await.unwrap(), None);
}

#[tokio::test]
async fn the_reader_of_a_listing_may_call_the_provider() {
    let limited = Limited::new(FakeProvider::new(), 1).unwrap();
    for number in 0..5 {
        limited.create_opts(create(&format!("key-{number}"))).await.unwrap();
    }
    let mut listing = limited.list(ListFilter::default()).await.unwrap();
    while let Some(info) = listing.next().await {
        limited.destroy(&info.unwrap().id).await.unwrap();
    }
    assert_eq!(limited.list_all(ListFilter::default()).await.unwrap(), []);
}

#[test]
fn a_limit_that_lets_nothing_through_is_refused() {
    let error = Limited::new(FakeProvider::new(), 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_create_that_is_given_up_is_unknown_and_never_retryable() {
    let fake = FakeProvider::new();
    fake.script(Verb::Create, Fault::HangAfter);
    let options = create("one");
    let attempt = options.tags.attempt.clone();
    let error = WithTimeout::new(fake, Duration::from_secs(3)).create_opts(options).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::Unknown));
    assert!(!error.is_retryable());
    assert!(error.context().any(|(name, value)| name == "attempt" && value == attempt.as_str()), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_given_up_had_no_effect_and_may_be_asked_again() {
    let fake = FakeProvider::new();
    fake.script_always(Verb::Find, Fault::HangBefore);
    fake.script_always(Verb::List, Fault::HangBefore);
    fake.script_always(Verb::Destroy, Fault::HangBefore);
    let bounded = WithTimeout::new(fake, Duration::from_secs(3));
    let id = some_id();
    for (error, outcome) in [
        (bounded.find(FindQuery::Id(id.clone())).await.unwrap_err(), Outcome::NotStarted),
        (bounded.list(ListFilter::default()).await.unwrap_err(), Outcome::NotStarted),
        (bounded.destroy(&id).await.unwrap_err(), Outcome::Unknown),
    ] {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, outcome), "{error}");
        assert!(error.is_retryable(), "{error}");
    }
}

/// Writes every span with its fields into one text.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn text(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl tracing::Subscriber for Recorder {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut line = span.metadata().name().to_owned();
        span.record(&mut Fields(&mut line));
        let mut lines = self.0.lock().unwrap();
        lines.push(line);
        span::Id::from_u64(lines.len() as u64)
    }

    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        let mut lines = self.0.lock().unwrap();
        values.record(&mut Fields(&mut lines[id.into_u64() as usize - 1]));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn spans_carry_ids_counts_and_codes_and_nothing_else() {
    let recorder = Recorder::default();
    let _guard = tracing::subscriber::set_default(recorder.clone());
    let fake = FakeProvider::new();
    let traced = Traced::new(fake.clone());
    let mut options = create("the-secret-key");
    options.spec =
        options.spec.with_env("TOKEN", "the-secret-value").with_metadata("note", "the-secret-note");
    let id = traced.create_opts(options).await.unwrap().id().clone();
    traced.list_all(ListFilter::default()).await.unwrap();
    traced
        .find(FindQuery::Key {
            owner: Owner::default(),
            key: Key::new("the-secret-key").unwrap(),
            attempt: None,
        })
        .await
        .unwrap();
    fake.script(Verb::Destroy, Fault::Before(Error::new(ErrorKind::RateLimited, "the-secret-message")));
    traced.destroy(&id).await.unwrap_err();
    let text = recorder.text();
    for wanted in [
        "sandbox.create sandbox.provider=\"fake\" sandbox.attempt=",
        "sandbox.id=fake-1",
        "sandbox.list sandbox.provider=\"fake\" sandbox.count=1",
        "sandbox.find sandbox.provider=\"fake\" sandbox.count=1",
        "sandbox.destroy sandbox.provider=\"fake\" sandbox.id=fake-1 error.kind=\"rate_limited\"",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    }
    assert!(!text.contains("secret"), "{text}");
}
