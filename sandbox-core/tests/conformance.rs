//! The suite over the fake: plain, behind pointers, behind each decorator, and in its other shapes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::testing::conformance::Fixture;
use sandhold_core::testing::{FakeOptions, FakeProvider, Fault, Verb};
use sandhold_core::{Limited, ProcessSpec, SandboxProvider, Traced, WithTimeout};

type Wrap = fn(FakeProvider) -> Arc<dyn SandboxProvider>;

struct Fake {
    cloud: FakeProvider,
    wrap: Wrap,
}

impl Fake {
    fn new(options: FakeOptions, wrap: Wrap) -> Self {
        Self { cloud: FakeProvider::with_options(options), wrap }
    }
}

#[async_trait]
impl Fixture for Fake {
    fn provider(&self) -> Arc<dyn SandboxProvider> {
        (self.wrap)(self.cloud.clone())
    }

    async fn fresh_provider(&self) -> Arc<dyn SandboxProvider> {
        (self.wrap)(self.cloud.clone())
    }

    fn echo_server(&self, port: u16) -> ProcessSpec {
        ProcessSpec::argv("listen", [port.to_string()])
    }
}

macro_rules! over {
    ($($name:ident: $options:expr, $wrap:expr;)+) => {$(
        mod $name {
            use super::*;

            async fn fixture() -> Fake {
                Fake::new($options, $wrap)
            }

            sandhold_core::provider_conformance!(fixture, verbs, life, memory, snapshots, commands, files, watch, ports, ending, acquire);
        }
    )+};
}

over! {
    fake: FakeOptions::default(), |fake| Arc::new(fake);
    arc_dyn: FakeOptions::default(), |fake| Arc::new(Arc::new(fake) as Arc<dyn SandboxProvider>);
    box_dyn: FakeOptions::default(), |fake| Arc::new(Box::new(fake) as Box<dyn SandboxProvider>);
    limited: FakeOptions::default(), |fake| Arc::new(Limited::new(fake, 1).expect("one is a limit"));
    with_timeout: FakeOptions::default(), |fake| Arc::new(WithTimeout::new(fake, Duration::from_secs(30)));
    traced: FakeOptions::default(), |fake| Arc::new(Traced::new(fake));
    small_pages: FakeOptions::default().with_page_size(1), |fake| Arc::new(fake);
    idempotent: FakeOptions::default().with_idempotent_create(), |fake| Arc::new(fake);
    slow_creates: FakeOptions::default().with_idempotent_create(), |fake| {
        fake.script_always(Verb::Create, Fault::CommitLate(Duration::from_millis(5)));
        Arc::new(fake)
    };
    late_listing: FakeOptions::default().with_list_visibility(Duration::from_millis(100)), |fake| Arc::new(fake);
    without_memory: FakeOptions::default().without_memory(), |fake| Arc::new(fake);
    bare: FakeOptions::default().with_capabilities(|can| {
        can.pause = false;
        can.pause_without_memory = false;
        can.snapshot = false;
        can.fork = false;
        can.logs = false;
        can.lease = false;
        can.dial = false;
        can.retained_output = false;
        can.metrics = true;
    }), |fake| Arc::new(fake);
}
