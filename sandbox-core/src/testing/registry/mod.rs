//! The rules that every registry keeps, as test bodies; [`crate::registry_conformance`] makes one named test of each.
//!
//! Rules panic when they are broken. Waits are bounded by a net for what hangs; no rule measures time.

#![allow(clippy::unwrap_used, reason = "rules are test bodies: a broken one panics")]

mod history;
pub mod rules;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use history::{Move, play};

use crate::{Key, Lease, Owner, Record, Registry, SandboxSpec};

/// What the rules are tried on: an empty store of its own for each rule.
#[async_trait]
pub trait RegistryFixture: Send + Sync + 'static {
    /// Returns the registry under test, always the same one.
    fn registry(&self) -> Arc<dyn Registry>;

    /// Opens the same store once more, sharing nothing in memory: what another process would see. A registry in memory
    /// gives a clone.
    async fn reopened(&self) -> Arc<dyn Registry>;

    /// Tells whether a lease ends at its time although its holder lives; default true. Without it a lease ends with its
    /// holder alone.
    fn leases_expire(&self) -> bool {
        true
    }

    /// Removes what the rule leaves; default nothing.
    async fn clean_up(&self) {}
}

/// Makes one test of every rule of [`testing::registry`](crate::testing::registry) for a registry.
///
/// The argument is an `async fn` without arguments that returns `Result<impl RegistryFixture, String>`, see
/// [`RegistryFixture`](crate::testing::registry::RegistryFixture); it is called once for every rule. An `Err` says what
/// this machine lacks: the test then prints `skipped: needs ...` and passes.
///
/// The calling crate needs `tokio` with the features `macros` and `rt-multi-thread`. For several registries in one file
/// put each call into a module of its own.
///
/// ```text
/// sandhold_core::registry_conformance!(my_registry);
/// ```
#[macro_export]
macro_rules! registry_conformance {
    ($fixture:path) => {
        $crate::registry_conformance!(@@ $fixture:
            a_stored_record_is_read_back_with_a_higher_version,
            every_field_of_a_record_survives,
            a_store_over_a_changed_record_is_refused,
            a_store_of_a_version_that_is_not_there_is_refused,
            a_removed_record_is_gone_and_can_be_made_again,
            a_remove_of_a_changed_record_is_refused,
            a_lease_has_one_holder_and_each_holder_a_higher_fence,
            fencing_numbers_grow_over_a_remove,
            fencing_numbers_grow_over_a_restart,
            a_dropped_lease_is_free_at_once,
            a_lapsed_lease_is_taken_over,
            a_lapsed_lease_that_nobody_took_still_stores,
            a_renewed_lease_is_not_taken_over,
            an_overtaken_holder_can_neither_store_nor_remove_nor_renew,
            the_late_drop_of_an_overtaken_lease_takes_nothing,
            a_lease_whose_taker_left_is_given_back,
            two_openings_see_one_store,
            contenders_lose_no_update,
            contenders_in_several_openings_lose_no_update,
            names_that_differ_in_one_byte_are_apart,
            a_listing_is_sorted_and_filtered_by_owner,
            a_listing_is_filtered_by_provider_phase_and_age,
            a_listing_of_many_pages_is_whole,
            any_interleaving_keeps_one_linear_history,
        );
    };
    (@@ $fixture:path: $($rule:ident),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $rule() {
            $crate::testing::registry::run($fixture().await, |fixture| async move {
                $crate::testing::registry::rules::$rule(&*fixture).await;
            })
            .await;
        }
    )+};
}

/// Runs one rule on a fixture and cleans up, whatever the rule did.
///
/// # Panics
/// When the rule is broken or does not end.
#[expect(clippy::print_stdout, reason = "a skipped test says so, to whoever reads the test's output")]
pub async fn run<F>(
    fixture: Result<impl RegistryFixture, String>,
    rule: impl FnOnce(Arc<dyn RegistryFixture>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let fixture: Arc<dyn RegistryFixture> = match fixture {
        Ok(fixture) => Arc::new(fixture),
        Err(lacks) => {
            println!("skipped: needs {lacks}");
            return;
        }
    };
    let patience = Duration::from_secs(120);
    // In a task of its own, so that a panic does not skip the clean-up.
    let outcome = tokio::spawn(tokio::time::timeout(patience, rule(Arc::clone(&fixture)))).await;
    fixture.clean_up().await;
    match outcome {
        Err(error) => std::panic::resume_unwind(error.into_panic()),
        Ok(ended) => ended.expect("the rule ends"),
    }
}

/// The intent to create a sandbox of this key, never stored.
#[must_use]
pub fn record(owner: &str, key: &str) -> Record {
    let (owner, key) = (Owner::new(owner).unwrap(), Key::new(key).unwrap());
    Record::intent(owner, key, "fake", "here".to_owned(), SandboxSpec::default()).unwrap()
}

/// Takes the lease of a record's key, once it is free.
pub async fn lease(registry: &dyn Registry, record: &Record, ttl: Duration) -> Lease {
    super::conformance::within("the lease is free", async {
        loop {
            if let Some(lease) = registry.try_lease(&record.owner, &record.key, ttl).await.unwrap() {
                return lease;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    /// A rule that is written and not listed would never run.
    #[test]
    fn every_rule_is_listed_in_the_macro() {
        let listed = include_str!("mod.rs");
        let rules: Vec<_> = include_str!("rules.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("pub async fn "))
            .filter_map(|line| line.split('(').next())
            .collect();
        assert!(rules.len() > 20);
        for rule in rules {
            assert!(listed.contains(&format!("            {rule},\n")), "{rule} is not listed");
        }
    }
}
