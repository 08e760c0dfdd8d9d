//! Credentials or an endpoint that differ from those that a sandbox was made under: what is not found is not gone.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Verb};
use sandhold_core::{
    AcquireOptions, DestroyOutcome, Error, ErrorKind, How, Key, MemoryRegistry, Owner, Phase, REASON_MOVED,
    Record, Registry as _, SandboxHandle as _, SandboxId, Sandboxes, StopOutcome,
};

struct Stage {
    provider: FakeProvider,
    registry: MemoryRegistry,
}

impl Stage {
    fn new() -> Self {
        Self { provider: FakeProvider::new(), registry: MemoryRegistry::new() }
    }

    fn host(&self) -> Sandboxes {
        self.host_at(&self.provider)
    }

    /// A host whose credentials are others.
    fn moved(&self) -> Sandboxes {
        self.host_at(&self.provider.clone().with_fingerprint("elsewhere"))
    }

    fn host_at(&self, provider: &FakeProvider) -> Sandboxes {
        Sandboxes::new(Arc::new(provider.clone())).with_registry(Arc::new(self.registry.clone()))
    }

    async fn record(&self) -> Record {
        self.registry.load(&Owner::default(), &Key::new("k").unwrap()).await.unwrap().unwrap()
    }

    /// A sandbox that is not there any more, where anybody looks.
    async fn lost(&self) -> SandboxId {
        let made = self.host().acquire("k", options()).await.unwrap();
        let id = made.sandbox.provider_id().unwrap().clone();
        self.provider.vanish(&id);
        id
    }
}

fn options() -> AcquireOptions {
    AcquireOptions::default()
}

fn assert_moved(error: &Error) {
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Ownership, Some(REASON_MOVED)), "{error}");
}

#[tokio::test]
async fn gone_under_other_credentials_is_an_ownership_error() {
    let stage = Stage::new();
    stage.lost().await;
    assert_moved(&stage.moved().acquire("k", options()).await.unwrap_err());
    assert_eq!(stage.provider.counts().created, 1);
}

#[tokio::test]
async fn a_move_that_is_confirmed_makes_gone_gone() {
    let stage = Stage::new();
    let old = stage.lost().await;
    let moved = stage.moved();
    moved.acquire("k", options()).await.unwrap_err();
    assert!(moved.confirm_move("k").await.unwrap());
    assert!(!moved.confirm_move("k").await.unwrap(), "once is enough");
    let next = moved.acquire("k", options()).await.unwrap();
    assert_eq!(next.facts.how, How::Replaced { old });
    assert!(!moved.confirm_move("another").await.unwrap(), "there is nothing to confirm");
}

#[tokio::test]
async fn a_sandbox_that_is_found_under_other_credentials_is_theirs_from_then_on() {
    let stage = Stage::new();
    let made = stage.host().acquire("k", options()).await.unwrap().sandbox;
    let moved = stage.moved();
    let again = moved.acquire("k", options()).await.unwrap();
    assert_eq!((again.facts.how, again.sandbox.provider_id()), (How::Attached, made.provider_id()));
    assert_eq!(stage.record().await.fingerprint, "elsewhere");
    // The way back is the everyday one again, and what is gone from there is gone.
    let version = stage.record().await.version;
    moved.acquire("k", options()).await.unwrap();
    assert_eq!(stage.record().await.version, version);
    let old = made.provider_id().unwrap().clone();
    stage.provider.vanish(&old);
    assert_eq!(moved.acquire("k", options()).await.unwrap().facts.how, How::Replaced { old });
}

#[tokio::test]
async fn a_destroy_under_other_credentials_forgets_nothing_that_may_exist() {
    for by_value in [false, true] {
        let stage = Stage::new();
        let value = stage.host().acquire("k", options()).await.unwrap().sandbox;
        let moved = stage.moved();
        let value = if by_value { moved.acquire("k", options()).await.unwrap().sandbox } else { value };
        let id = value.provider_id().unwrap().clone();
        stage.provider.vanish(&id);
        if by_value {
            // It was seen from there.
            value.destroy().await.unwrap();
            continue;
        }
        assert_moved(&moved.destroy("k").await.unwrap_err());
        let left = stage.record().await;
        assert_eq!((left.id, left.phase), (Some(id.clone()), Phase::Ready));
        assert_moved(&moved.acquire("k", options()).await.unwrap_err());
        // Whoever has the credentials goes on.
        let next = stage.host().acquire("k", options()).await.unwrap();
        assert_eq!(next.facts.how, How::Replaced { old: id });
    }
}

#[tokio::test]
async fn what_other_credentials_do_not_show_is_neither_told_as_gone_nor_changed() {
    let (stage, there) = (Stage::new(), FakeProvider::new().with_fingerprint("elsewhere"));
    let mine = stage.host().acquire("k", options()).await.unwrap().sandbox;
    let moved = stage.host_at(&there);
    let before = stage.record().await.version;
    assert_moved(&moved.find("k").await.unwrap_err());
    assert_moved(&moved.lazy("k", options()).unwrap().info().await.unwrap_err());
    assert_moved(&moved.stop("k").await.unwrap_err());
    assert_moved(&moved.destroy("k").await.unwrap_err());
    assert_eq!(stage.record().await.version, before);
    let again = stage.host().acquire("k", options()).await.unwrap();
    assert_eq!((again.facts.how, again.sandbox.provider_id()), (How::Attached, mine.provider_id()));
}

#[tokio::test]
async fn what_other_credentials_show_is_stopped_and_destroyed_under_them() {
    let stage = Stage::new();
    stage.host().acquire("k", options()).await.unwrap();
    assert_eq!(stage.moved().stop("k").await.unwrap(), StopOutcome::Paused);
    assert_eq!(stage.moved().destroy("k").await.unwrap(), DestroyOutcome::Destroyed);
    assert!(stage.provider.alive().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_open_create_is_not_proven_absent_under_other_credentials() {
    for idempotent in [false, true] {
        let shape = FakeOptions::default();
        let shape = if idempotent { shape.with_idempotent_create() } else { shape };
        let stage = Stage { provider: FakeProvider::with_options(shape), registry: MemoryRegistry::new() };
        stage.provider.script(Verb::Create, Fault::HangBefore);
        let left = options().with_deadline(Duration::from_secs(1));
        stage.host().acquire("k", left).await.unwrap_err();
        let patient = options().with_deadline(Duration::from_secs(900));
        assert_moved(&stage.moved().acquire("k", patient.clone()).await.unwrap_err());
        assert_eq!(
            (stage.provider.counts().of(Verb::Create), stage.record().await.phase),
            (1, Phase::Creating)
        );
        assert!(stage.moved().confirm_move("k").await.unwrap());
        let made = stage.moved().acquire("k", patient).await.unwrap();
        assert!(matches!(made.facts.how, How::Fresh | How::Adopted), "{:?}", made.facts.how);
        assert_eq!(stage.provider.alive().len(), 1);
    }
}
