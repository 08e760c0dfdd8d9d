//! Acquire over registries that several hosts share.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandhold_core::testing::{FakeOptions, FakeProvider};
use sandhold_core::{AcquireOptions, AcquireOutcome, Registry, Sandboxes};
use sandhold_registry::{FileRegistry, SqliteRegistry};

fn host(provider: &FakeProvider, registry: Arc<dyn Registry>) -> Sandboxes {
    Sandboxes::new(Arc::new(provider.clone())).with_registry(registry)
}

/// Opens registries that share one store and nothing in memory.
macro_rules! over {
    ($($kind:ident: $open:expr;)+) => {$(
        mod $kind {
            use super::*;

            async fn open(directory: &Path) -> Arc<dyn Registry> {
                Arc::new($open(directory).await)
            }

            #[tokio::test]
            async fn a_shared_registry_excludes_where_a_provider_states_no_bound() {
                let directory = tempfile::tempdir().unwrap();
                let mut shape = FakeOptions::default();
                shape.capabilities.list_visibility = None;
                shape.capabilities.create_settle = None;
                let provider = FakeProvider::with_options(shape);
                let host = host(&provider, open(directory.path()).await);
                host.acquire("k", AcquireOptions::default()).await.unwrap();
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn hosts_create_once_and_take_turns() {
                let directory = tempfile::tempdir().unwrap();
                let mut registries = Vec::new();
                for _ in 0..8 {
                    registries.push(open(directory.path()).await);
                }
                super::hosts_create_once_and_take_turns(registries).await;
            }
        }
    )+};
}

over! {
    file: async |directory: &Path| FileRegistry::new(directory);
    sqlite: async |directory: &Path| SqliteRegistry::open(directory.join("registry.sqlite")).await.unwrap();
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
