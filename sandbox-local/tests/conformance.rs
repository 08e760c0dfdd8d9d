//! The contract's rules over the local provider.

use sandhold_core::testing::conformance::Fixture;

mod support;

async fn local() -> impl Fixture {
    support::LocalFixture::new()
}

sandhold_core::provider_conformance!(local);
