//! Any interleaving of what contenders do keeps one linear history; a broken one is shrunk to its shortest.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;

use proptest::prelude::*;
use sandhold_core::testing::registry::{Move, play};
use sandhold_core::{MemoryRegistry, Registry};
use sandhold_registry::FileRegistry;

#[cfg(feature = "postgres")]
mod support;

fn moves() -> impl Strategy<Value = Vec<Move>> {
    prop::collection::vec(any::<u32>().prop_map(Move::from_number), 1..60)
}

fn run(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_memory(moves in moves()) {
        let registry: Arc<dyn Registry> = Arc::new(MemoryRegistry::new());
        run(play(&[registry], true, &moves));
    }

    #[test]
    fn in_files(moves in moves()) {
        let directory = tempfile::tempdir().unwrap();
        let open = || Arc::new(FileRegistry::new(directory.path())) as Arc<dyn Registry>;
        run(play(&[open(), open(), open()], false, &moves));
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn in_sqlite(moves in moves()) {
        let directory = tempfile::tempdir().unwrap();
        run(async {
            let mut registries: Vec<Arc<dyn Registry>> = Vec::new();
            for _ in 0..3 {
                let path = directory.path().join("registry.sqlite");
                registries.push(Arc::new(sandhold_registry::SqliteRegistry::open(path).await.unwrap()));
            }
            play(&registries, true, &moves).await;
        });
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn in_postgres(moves in moves()) {
        run(async {
            let schema = match support::Schema::new().await {
                Ok(schema) => schema,
                Err(lacks) => return println!("skipped: needs {lacks}"),
            };
            let (first, second) = (schema.open().await, schema.open().await);
            play(&[Arc::new(first), Arc::new(second)], true, &moves).await;
        });
    }
}
