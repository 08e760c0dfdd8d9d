//! Hosts without a common registry, which meet in the provider's listing only: whoever creates compares before anybody is
//! handed the sandbox, however often it is cut short in between.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Acquired, ErrorKind, MemoryRegistry, Outcome, SandboxId, Sandboxes,
    StopOutcome,
};
use tokio::task::JoinHandle;

const VISIBLE: Duration = Duration::from_secs(2);

fn lagging() -> FakeProvider {
    FakeProvider::with_options(FakeOptions::default().with_list_visibility(VISIBLE))
}

fn host(provider: &FakeProvider) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone()))
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn id(acquired: &Acquired) -> SandboxId {
    acquired.sandbox.provider_id().unwrap().clone()
}

/// Begins an acquire, and returns once its create is answered.
async fn begun(
    host: &Sandboxes,
    provider: &FakeProvider,
    options: AcquireOptions,
) -> JoinHandle<sandhold_core::Result<Acquired>> {
    let made = provider.counts().created + 1;
    let host = host.clone();
    let flight = tokio::spawn(async move { host.acquire("k", options).await });
    while provider.counts().created < made {
        tokio::task::yield_now().await;
    }
    // The provider's clock goes on: the next create is a later one.
    tokio::time::sleep(Duration::from_millis(10)).await;
    flight
}

/// Acquires again where a contender was cut short, and sees that the winner's sandbox is the only one.
async fn assert_it_compares_at_last(host: &Sandboxes, provider: &FakeProvider, won: &SandboxId) {
    let mine = host.acquire("k", options()).await.unwrap();
    assert_eq!(id(&mine), *won);
    assert_eq!(
        provider.alive().into_iter().map(|info| info.id).collect::<Vec<_>>(),
        std::slice::from_ref(won)
    );
}

#[tokio::test(start_paused = true)]
async fn a_contender_that_was_cut_short_by_its_deadline_compares_at_the_next_acquire() {
    let provider = lagging();
    let (first, second) = (host(&provider), host(&provider));
    let other = begun(&first, &provider, options()).await;
    let cut = second.acquire("k", options().with_deadline(VISIBLE / 2)).await.unwrap_err();
    assert_eq!((cut.kind(), cut.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown));
    let won = id(&other.await.unwrap().unwrap());
    assert_it_compares_at_last(&second, &provider, &won).await;
}

#[tokio::test(start_paused = true)]
async fn a_contender_whose_listing_failed_compares_at_the_next_acquire() {
    let provider = lagging();
    let (first, second) = (host(&provider), host(&provider));
    let other = begun(&first, &provider, options()).await;
    let cut = begun(&second, &provider, options()).await;
    provider.script_honest(Verb::Find, 1);
    provider.script(Verb::Find, Fault::refused());
    let won = id(&other.await.unwrap().unwrap());
    let cut = cut.await.unwrap().unwrap_err();
    assert_eq!((cut.kind(), cut.outcome()), (ErrorKind::Unavailable, Outcome::Done));
    assert_it_compares_at_last(&second, &provider, &won).await;
}

#[tokio::test(start_paused = true)]
async fn a_contender_that_could_not_end_its_own_does_so_at_the_next_acquire() {
    let provider = lagging();
    let (first, second) = (host(&provider), host(&provider));
    let other = begun(&first, &provider, options()).await;
    let cut = begun(&second, &provider, options()).await;
    provider.script(Verb::Destroy, Fault::refused());
    let won = id(&other.await.unwrap().unwrap());
    assert_eq!(cut.await.unwrap().unwrap_err().outcome(), Outcome::Done);
    assert_it_compares_at_last(&second, &provider, &won).await;
}

#[tokio::test(start_paused = true)]
async fn an_elder_one_whose_contender_was_cut_short_is_everybodys() {
    let provider = lagging();
    let (first, second) = (host(&provider), host(&provider));
    let cut = begun(&first, &provider, options().with_deadline(VISIBLE / 2)).await;
    let other = begun(&second, &provider, options()).await;
    cut.await.unwrap().unwrap_err();
    let won = id(&other.await.unwrap().unwrap());
    // The one that was cut short made it, and another host was handed it meanwhile.
    assert_it_compares_at_last(&first, &provider, &won).await;
    assert_eq!(provider.counts().destroyed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_by_key_of_a_contender_that_was_cut_short_rests_the_winner() {
    let provider = lagging();
    let registry = MemoryRegistry::new();
    let (first, second) = (host(&provider), host(&provider).with_registry(Arc::new(registry)));
    let other = begun(&first, &provider, options()).await;
    second.acquire("k", options().with_deadline(VISIBLE / 2)).await.unwrap_err();
    let won = id(&other.await.unwrap().unwrap());
    tokio::time::sleep(VISIBLE).await;
    assert_eq!(second.stop("k").await.unwrap(), StopOutcome::Paused);
    assert_it_compares_at_last(&second, &provider, &won).await;
}

/// The listing is waited for longer than a lease on the record lasts.
#[tokio::test(start_paused = true)]
async fn a_contender_keeps_its_lease_while_it_compares() {
    let provider = lagging();
    let registry = Arc::new(MemoryRegistry::new());
    let of_one_registry = || host(&provider).with_registry(registry.clone()).with_record_lease(VISIBLE / 4);
    let (first, second) = (of_one_registry(), of_one_registry());
    let flight = begun(&first, &provider, options()).await;
    let other = second.acquire("k", options()).await.unwrap();
    let made = flight.await.unwrap().unwrap();
    assert_eq!((id(&other), provider.counts().created), (id(&made), 1));
    assert_eq!((made.outcome, other.outcome), (AcquireOutcome::Created, AcquireOutcome::Connected));
}
