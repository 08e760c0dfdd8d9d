//! Acquire over registries that several hosts share.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandhold_core::testing::{FakeOptions, FakeProvider};
use sandhold_core::{AcquireOptions, AcquireOutcome, Registry, Sandboxes};
use sandhold_registry::FileRegistry;

fn host(provider: &FakeProvider, registry: Arc<dyn Registry>) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone())).with_registry(registry)
}

async fn a_shared_registry_excludes_where_a_provider_states_no_bound(registry: Arc<dyn Registry>) {
    let mut shape = FakeOptions::default();
    shape.capabilities.list_visibility = None;
    shape.capabilities.create_settle = None;
    let provider = FakeProvider::with_options(shape);
    host(&provider, registry).acquire("k", AcquireOptions::default()).await.unwrap();
}

async fn hosts_create_once_and_take_turns(registries: Vec<Arc<dyn Registry>>) {
    let (provider, runs) = (FakeProvider::new(), Arc::new(AtomicUsize::new(0)));
    let racers: Vec<_> = registries
        .into_iter()
        .map(|registry| {
            let (sandboxes, runs) = (host(&provider, registry), Arc::clone(&runs));
            let options = AcquireOptions::default().with_on_start(move |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                async { Ok(()) }
            });
            tokio::spawn(async move { sandboxes.acquire("k", options).await })
        })
        .collect();
    let mut created = 0;
    for racer in racers {
        created += usize::from(racer.await.unwrap().unwrap().outcome == AcquireOutcome::Created);
    }
    assert_eq!((created, provider.counts().created, runs.load(Ordering::SeqCst)), (1, 1, 1));
}

mod file {
    use super::*;

    #[tokio::test]
    async fn a_shared_registry_excludes_where_a_provider_states_no_bound() {
        let directory = tempfile::tempdir().unwrap();
        super::a_shared_registry_excludes_where_a_provider_states_no_bound(Arc::new(FileRegistry::new(
            directory.path(),
        )))
        .await;
    }

    #[tokio::test]
    async fn hosts_create_once_and_take_turns() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Arc::new(FileRegistry::new(directory.path())) as Arc<dyn Registry>;
        super::hosts_create_once_and_take_turns((0..8).map(|_| open()).collect()).await;
    }
}
