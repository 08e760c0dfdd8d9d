//! What the key has, where answers disagree: a find and a connect, a listing and an id, two hosts without a registry.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Gate, Verb};
use sandhold_core::{
    AcquireOptions, Attempt, CreateOptions, ErrorKind, Generation, How, Key, MemoryRegistry, Owner, Phase,
    Registry as _, ReplaceWhenGone, SandboxId, SandboxProvider as _, SandboxProviderExt as _, SandboxSpec,
    SandboxState, Sandboxes,
};

fn host(provider: &FakeProvider, registry: &MemoryRegistry) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry.clone()))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

#[tokio::test]
async fn a_connect_that_answers_gone_after_a_find_is_as_a_find_that_does() {
    // By the record alone, under its lease, and where it rests.
    for (phase, rests) in [(Phase::Ready, false), (Phase::Resuming, false), (Phase::Paused, true)] {
        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new());
        let sandboxes = host(&provider, &registry);
        let old = sandboxes.acquire("k", options()).await.unwrap().sandbox;
        let id = old.provider_id().unwrap().clone();
        if rests {
            old.pause().await.unwrap();
        } else {
            let (owner, key) = (Owner::default(), Key::new("k").unwrap());
            let mut record = registry.load(&owner, &key).await.unwrap().unwrap();
            record.enter(phase);
            let lease = registry.try_lease(&owner, &key, Duration::from_secs(60)).await.unwrap().unwrap();
            registry.store(record, &lease).await.unwrap();
        }
        let gate = Gate::new();
        provider.script(Verb::Connect, Fault::HoldBefore(gate.clone()));
        let acquire = tokio::spawn(async move { sandboxes.acquire("k", options()).await });
        gate.arrived(1).await;
        provider.vanish(&id);
        gate.open();
        let next = acquire.await.unwrap().unwrap();
        assert_eq!(next.facts.how, How::Replaced { old: id }, "{phase}");
        assert_eq!((provider.counts().created, provider.alive().len()), (2, 1));
    }
}

#[tokio::test]
async fn the_sandbox_of_another_key_or_owner_is_refused_and_not_woken() {
    for other_owner in [false, true] {
        let provider = FakeProvider::new();
        let theirs = host(&provider, &MemoryRegistry::new());
        let sandbox = theirs.acquire("theirs", options()).await.unwrap().sandbox;
        sandbox.pause().await.unwrap();
        let id = sandbox.provider_id().unwrap().clone();
        let ours = host(&provider, &MemoryRegistry::new());
        let (ours, key) = match other_owner {
            true => (ours.with_owner(Owner::new("other").unwrap()), "theirs"),
            false => (ours, "ours"),
        };
        let connects = provider.counts().of(Verb::Connect);
        let named = options().with_provider_id(id.clone());
        assert_eq!(ours.acquire(key, named).await.unwrap_err().kind(), ErrorKind::Ownership);
        assert_eq!(provider.counts().of(Verb::Connect), connects);
        assert_eq!(provider.find_id(&id).await.unwrap().unwrap().state, SandboxState::Paused);
        assert_eq!(provider.counts().created, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_discovered_sandbox_that_is_young_is_attached_after_a_second_list_alone() {
    let visible = Duration::from_secs(10);
    let provider = FakeProvider::with_options(FakeOptions::default().with_list_visibility(visible));
    let first = host(&provider, &MemoryRegistry::new()).acquire("k", options()).await.unwrap();
    // The clock of its maker is not the one that the test moves: by it, the sandbox is young.
    let lists = provider.counts().pages;
    let second = host(&provider, &MemoryRegistry::new()).acquire("k", options()).await.unwrap();
    assert_eq!(second.sandbox.provider_id(), first.sandbox.provider_id());
    assert_eq!(provider.counts().pages - lists, 2);
}

#[tokio::test]
async fn a_sandbox_that_was_resumed_holds_work_and_is_chosen_before_an_elder_one() {
    let provider = FakeProvider::new();
    let registry = MemoryRegistry::new();
    let elder = host(&provider, &registry).acquire("k", options()).await.unwrap().sandbox;
    // Another program makes a younger one of the key, works in it and lets it rest.
    let mut tags = provider.alive()[0].tags.clone().unwrap();
    tags.generation = Generation::random().unwrap();
    tags.attempt = Attempt::random().unwrap();
    let made = CreateOptions::new(SandboxSpec::default(), tags);
    let younger = provider.create_opts(made).await.unwrap().id().clone();
    provider.pause(&younger).await.unwrap();
    provider.connect(&younger).await.unwrap();
    let found = host(&provider, &MemoryRegistry::new()).acquire("k", options()).await.unwrap();
    assert_eq!(found.sandbox.provider_id(), Some(&younger));
    assert_eq!(found.facts.duplicates, [elder.provider_id().unwrap().clone()]);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_too_young_to_be_shown_is_asked_for_again_and_not_replaced() {
    let visible = Duration::from_secs(10);
    let hiding = FakeOptions::default().with_list_visibility(visible).with_hidden_new_ids();
    let (provider, registry) = (FakeProvider::with_options(hiding), MemoryRegistry::new().as_shared());
    let sandboxes = host(&provider, &registry);
    let first = sandboxes.acquire("k", options()).await.unwrap();
    let finds = provider.counts().of(Verb::Find);
    let second = sandboxes.acquire("k", options()).await.unwrap();
    assert_eq!(second.sandbox.provider_id(), first.sandbox.provider_id());
    assert_eq!((second.facts.how, provider.counts().created), (How::Attached, 1));
    // Without the lease, under it, and once more when it must be visible.
    assert_eq!(provider.counts().of(Verb::Find), finds + 3);
    // What is as old as that and not shown is gone.
    provider.vanish(first.sandbox.provider_id().unwrap());
    let third = sandboxes.acquire("k", options()).await.unwrap();
    assert!(matches!(third.facts.how, How::Replaced { .. }), "{:?}", third.facts.how);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_no_record_names_may_be_too_young_to_be_shown_too() {
    let visible = Duration::from_secs(10);
    let hiding = FakeOptions::default().with_list_visibility(visible).with_hidden_new_ids();
    let (provider, registry) = (FakeProvider::with_options(hiding), MemoryRegistry::new().as_shared());
    let id = provider.make_untagged(SandboxSpec::default());
    let named = options().with_provider_id(id.clone());
    let acquired = host(&provider, &registry).acquire("k", named).await.unwrap();
    assert_eq!((acquired.sandbox.provider_id(), provider.counts().created), (Some(&id), 1));
}

/// One that another host has made, found by its key alone.
async fn of_another_host(provider: &FakeProvider) -> SandboxId {
    let made = host(provider, &MemoryRegistry::new()).acquire("k", options()).await.unwrap();
    made.sandbox.provider_id().unwrap().clone()
}

#[tokio::test]
async fn what_was_listed_and_is_gone_at_the_connect_is_replaced_or_said_as_the_caller_wishes() {
    for policy in [ReplaceWhenGone::Create, ReplaceWhenGone::Fail] {
        let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new().as_shared());
        let old = of_another_host(&provider).await;
        let gate = Gate::new();
        provider.script(Verb::Connect, Fault::HoldBefore(gate.clone()));
        let sandboxes = host(&provider, &registry);
        let wish = options().with_replace_when_gone(policy);
        let acquire = tokio::spawn(async move { sandboxes.acquire("k", wish).await });
        gate.arrived(1).await;
        provider.vanish(&old);
        gate.open();
        match (acquire.await.unwrap(), policy) {
            (Ok(next), ReplaceWhenGone::Create) => assert_eq!(next.facts.how, How::Replaced { old }),
            (Err(error), _) => assert_eq!((error.kind(), policy), (ErrorKind::Gone, ReplaceWhenGone::Fail)),
            (Ok(next), _) => panic!("{:?}", next.facts),
        }
    }
}

#[tokio::test]
async fn what_is_gone_between_the_connect_and_the_look_for_its_setup_is_replaced() {
    let (provider, registry) = (FakeProvider::new(), MemoryRegistry::new().as_shared());
    let old = of_another_host(&provider).await;
    let gate = Gate::new();
    provider.script(Verb::Inside, Fault::HoldBefore(gate.clone()));
    let sandboxes = host(&provider, &registry);
    let acquire = tokio::spawn(async move { sandboxes.acquire("k", options()).await });
    gate.arrived(1).await;
    provider.vanish(&old);
    gate.open();
    let next = acquire.await.unwrap().unwrap();
    assert_ne!(next.sandbox.provider_id(), Some(&old));
    assert_eq!(provider.alive().len(), 1);
}

#[tokio::test]
async fn a_record_lease_of_no_time_is_named_as_the_mistake_that_it_is() {
    let sandboxes = host(&FakeProvider::new(), &MemoryRegistry::new()).with_record_lease(Duration::ZERO);
    let error = sandboxes.acquire("k", options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("record_lease"), "{error}");
}
