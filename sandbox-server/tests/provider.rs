//! The contract's rules over the E2B provider, against the real server: directly, and over a line that breaks.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a broken rule panics")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::SandboxProvider;
use sandhold_core::retry::RetryPolicy;
use sandhold_core::testing::conformance::Fixture;
use sandhold_e2b::testing::{Answer, Fault, Proxy, RetryAfter, Route, Rule};
use sandhold_e2b::{E2bConfig, E2bProvider};
use support::{KEY, Served};

/// A server of its own, and a proxy in front of it that may break what passes.
struct OverE2b {
    _served: Served,
    proxy: Proxy,
}

impl OverE2b {
    async fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let served = tokio::task::spawn_blocking(|| Served::start(&[])).await.unwrap();
        let proxy = Proxy::start(served.address()).await.unwrap();
        for rule in rules {
            proxy.add(rule);
        }
        Self { _served: served, proxy }
    }

    fn open(&self) -> Arc<dyn SandboxProvider> {
        let retry = RetryPolicy::default().with_initial_backoff(Duration::from_millis(5));
        let config = E2bConfig::new(KEY)
            .with_api_url(self.proxy.url())
            .with_sandbox_url(self.proxy.url())
            .with_list_visibility(Duration::ZERO)
            .with_retry(retry);
        Arc::new(E2bProvider::new(config).unwrap())
    }
}

#[async_trait]
impl Fixture for OverE2b {
    fn provider(&self) -> Arc<dyn SandboxProvider> {
        self.open()
    }

    async fn fresh_provider(&self) -> Arc<dyn SandboxProvider> {
        self.open()
    }
}

mod directly {
    use super::*;

    async fn over_e2b() -> impl Fixture {
        OverE2b::new([]).await
    }

    sandhold_core::provider_conformance!(over_e2b);
}

/// What any network and any server do now and then. None of it may be seen by who uses the provider.
mod over_a_line_that_breaks {
    use super::*;

    async fn over_a_broken_line() -> impl Fixture {
        let busy = |status| {
            Fault::Answer(Answer::error(status, "come again").with_retry_after(&RetryAfter::Seconds(0)))
        };
        let once = |fault, route| Rule::new(fault).with_route(route).times(1);
        OverE2b::new([
            // The server makes it, and the answer never comes: the next try must find the same one.
            once(Fault::LoseAnswer, Route::Create),
            once(busy(503), Route::Create),
            once(Fault::ResetBefore, Route::Info),
            once(busy(502), Route::Info),
            once(Fault::LoseAnswer, Route::Info),
            once(Fault::Truncate(20), Route::Info),
            once(busy(429), Route::Connect),
            once(Fault::LoseAnswer, Route::Connect),
            once(Fault::ResetBefore, Route::List),
            once(Fault::Truncate(1), Route::List),
            once(busy(504), Route::List),
            once(Fault::ResetBefore, Route::Pause),
            once(busy(503), Route::Pause),
            once(busy(503), Route::SetLease),
            once(busy(429), Route::SetLease),
            // Anything else leaves open whether the first try destroyed it, and so which of the outcomes is right.
            once(busy(429), Route::Destroy),
            once(busy(429), Route::Observe),
            Rule::new(Fault::Delay(Duration::from_millis(3))).with_route(Route::Inside),
        ])
        .await
    }

    sandhold_core::provider_conformance!(over_a_broken_line);
}
