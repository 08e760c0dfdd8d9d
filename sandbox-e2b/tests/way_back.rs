//! What the everyday way back to a sandbox costs: counted at the registry, and on the wire to the control plane.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Generation, Key, Lease, MemoryRegistry, Owner, Phase, Record,
    RecordFilter, Registry, RegistryScope, Result, ResultStream, SandboxId, SandboxProvider as _,
    SandboxSpec, Sandboxes,
};
use sandhold_e2b::testing::{Answer, Fault, Proxy, Route, Rule};
use sandhold_e2b::{E2bConfig, E2bProvider};
use serde_json::{Value, json};

const ID: &str = "i0123456789abcdefghij";

/// A registry that counts: reads of a record, and everything else.
#[derive(Debug, Default)]
struct Counted {
    registry: MemoryRegistry,
    reads: AtomicUsize,
    others: AtomicUsize,
}

impl Counted {
    fn asked(&self) -> (usize, usize) {
        (self.reads.load(Ordering::SeqCst), self.others.load(Ordering::SeqCst))
    }

    fn other(&self) -> &MemoryRegistry {
        self.others.fetch_add(1, Ordering::SeqCst);
        &self.registry
    }
}

#[async_trait]
impl Registry for Counted {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Cluster
    }
    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.registry.load(owner, key).await
    }
    async fn store(&self, record: Record, lease: &Lease) -> Result<Record> {
        self.other().store(record, lease).await
    }
    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        self.other().remove(record, lease).await
    }
    async fn try_lease(&self, owner: &Owner, key: &Key, ttl: Duration) -> Result<Option<Lease>> {
        self.other().try_lease(owner, key, ttl).await
    }
    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, ttl: Duration) -> Result<()> {
        self.other().renew(owner, key, lease, ttl).await
    }
    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        self.other().list(filter).await
    }
}

fn answer(body: &Value) -> Rule {
    Rule::new(Fault::Answer(Answer::new(200).with_json(body)))
}

#[tokio::test]
async fn an_acquire_of_a_ready_sandbox_is_one_read_one_find_and_one_connect_and_nothing_else() {
    let proxy = Proxy::alone().await.unwrap();
    let config = E2bConfig::new("e2b_key").with_api_url(proxy.url()).with_sandbox_url(proxy.url());
    let provider = E2bProvider::new(config).unwrap();
    let (owner, key) = (Owner::default(), Key::new("k").unwrap());
    let spec = SandboxSpec::default();
    let mut record =
        Record::intent(owner.clone(), key.clone(), provider.name(), provider.fingerprint(), spec).unwrap();
    record.id = Some(SandboxId::new(ID));
    record.generation = Generation::new("g");
    record.setup_done = Some(0);
    record.enter(Phase::Ready);
    let attempt = record.attempt.to_string();
    let registry = Arc::new(Counted::default());
    let lease = registry.registry.try_lease(&owner, &key, Duration::from_secs(60)).await.unwrap().unwrap();
    registry.registry.store(record, &lease).await.unwrap();
    drop(lease);
    let metadata = json!({
        "sandhold-owner": owner.as_str(), "sandhold-key": "k", "sandhold-generation": "g",
        "sandhold-attempt": attempt,
    });
    let detail = json!({
        "sandboxID": ID, "templateID": "t", "alias": "base", "clientID": "c", "state": "running",
        "startedAt": "2026-08-01T12:00:00Z", "endAt": "2026-08-01T12:05:00Z", "cpuCount": 2, "memoryMB": 512,
        "diskSizeMB": 1024, "envdVersion": "0.6.4", "metadata": metadata,
    });
    let connected = json!({
        "sandboxID": ID, "templateID": "t", "clientID": "c", "envdVersion": "0.6.4",
        "envdAccessToken": "token", "trafficAccessToken": "traffic", "domain": null,
    });
    proxy.add(answer(&detail).with_route(Route::Info));
    proxy.add(answer(&connected).with_route(Route::Connect));
    let sandboxes = Sandboxes::new(Arc::new(provider)).with_registry(registry.clone());
    // Of a fresh process, and of one that has acquired before.
    for times in 1..=3 {
        let acquired = sandboxes.acquire("k", AcquireOptions::default()).await.unwrap();
        assert_eq!(acquired.outcome, AcquireOutcome::Connected);
        assert_eq!(registry.asked(), (times, 0), "the record is read once, and no lease is taken");
        assert_eq!((proxy.asked(Route::Info), proxy.asked(Route::Connect)), (times, times));
        assert_eq!(proxy.exchanges().len(), times * 2, "{:?}", proxy.exchanges());
    }
}
