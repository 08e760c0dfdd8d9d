//! Providers that keep no tags: what cannot be looked for is never taken for absent.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, ErrorKind,
    Exclusion, FindQuery, How, ListFilter, MemoryRegistry, Outcome, PauseOptions, PauseOutcome, Result,
    ResultStream, SandboxHandle, SandboxId, SandboxInfo, SandboxProvider, Sandboxes,
};

/// The fake, as one that takes tags and shows none.
#[derive(Clone, Debug)]
struct Tagless(FakeProvider);

impl Tagless {
    fn new() -> Self {
        Self(FakeProvider::with_options(FakeOptions::default().with_capabilities(|can| can.tags = false)))
    }
}

#[async_trait]
impl SandboxProvider for Tagless {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
        if !matches!(query, FindQuery::Id(_)) {
            return Ok(Vec::new());
        }
        let mut found = self.0.find(query).await?;
        found.iter_mut().for_each(|info| info.tags = None);
        Ok(found)
    }

    async fn connect_opts(&self, id: &SandboxId, mut options: ConnectOptions) -> Result<Connection> {
        options.generation = None;
        self.0.connect_opts(id, options).await
    }

    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        self.0.create_opts(options).await
    }

    async fn list(&self, _: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        Ok(ResultStream::from_items(Vec::new()))
    }

    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        self.0.pause_opts(id, options).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        self.0.destroy(id).await
    }
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_is_lost_stays_open_until_its_sandbox_is_named() {
    let (provider, registry) = (Tagless::new(), MemoryRegistry::new().as_shared());
    let host = || Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(registry.clone()));
    provider.0.script(Verb::Create, Fault::reset_after());
    for _ in 0..2 {
        let error = host().acquire("k", options()).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown));
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    assert_eq!(provider.0.counts().created, 1);
    let made = provider.0.alive().pop().unwrap().id;
    let acquired = host().acquire("k", options().with_provider_id(made.clone())).await.unwrap();
    assert_eq!(acquired.sandbox.provider_id(), Some(&made));
    let again = host().acquire("k", options()).await.unwrap();
    assert_eq!((again.sandbox.provider_id(), again.facts.how), (Some(&made), How::Attached));
}

#[tokio::test]
async fn hosts_without_a_common_registry_have_no_listing_to_meet_in() {
    let provider = Tagless::new();
    let host = || Sandboxes::new(Arc::new(provider.clone()));
    let error = host().acquire("k", options()).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("exclusion")));
    host().acquire("k", options().with_exclusion(Exclusion::BestEffort)).await.unwrap();
    assert_eq!(provider.0.counts().created, 1);
}
