//! The rules that every provider keeps, as test bodies; [`crate::provider_conformance`] makes one named test of each.
//!
//! Rules panic when they are broken. What a provider says that it cannot ([`crate::Capabilities`]) is not asked of it,
//! except that it says `unsupported`. Waits are bounded by a net for what hangs; no rule measures time.

#![allow(clippy::unwrap_used, reason = "rules are test bodies: a broken one panics")]

mod stage;
pub mod verbs;

pub use stage::{Fixture, Stage, eventually, run, within};

/// Makes one test of every rule of [`testing::conformance`](crate::testing::conformance) for a provider.
///
/// The first argument is an `async fn` without arguments that returns a
/// [`Fixture`](crate::testing::conformance::Fixture); it is called once for every rule. Groups may follow it, the default
/// is all of them:
///
/// | group | what the rules are about | what they need in the sandbox |
/// |---|---|---|
/// | `verbs` | find, connect, create, list, pause, destroy, leases | `true`, `sleep` |
///
/// The calling crate needs `tokio` with the features `macros` and `rt-multi-thread`. For several fixtures in one file put
/// each call into a module of its own.
///
/// ```text
/// sandhold_core::provider_conformance!(my_provider);
/// sandhold_core::provider_conformance!(my_provider, verbs, files);
/// ```
#[macro_export]
macro_rules! provider_conformance {
    ($fixture:path) => {
        $crate::provider_conformance!($fixture, verbs);
    };
    ($fixture:path, $($group:ident),+ $(,)?) => {
        $($crate::provider_conformance!(@ $group $fixture);)+
    };
    (@ verbs $fixture:path) => {
        $crate::provider_conformance!(@@ verbs $fixture:
            a_created_sandbox_is_usable_and_carries_its_tags,
            two_creates_of_one_key_are_two_sandboxes,
            metadata_is_kept_with_the_sandbox,
            a_kind_that_is_not_there_is_unsupported_and_makes_nothing,
            a_mount_that_is_not_supported_makes_nothing,
            find_by_id_tells_state_tags_and_times,
            find_by_key_sees_only_that_owner_and_key,
            find_by_attempt_sees_only_that_create,
            find_of_an_unknown_id_is_empty_and_no_error,
            find_of_an_unknown_key_is_empty_and_no_error,
            an_id_that_looks_like_a_path_reaches_nothing,
            find_and_list_do_not_wake_a_paused_sandbox,
            connect_to_an_unknown_id_is_gone,
            connect_returns_the_same_sandbox,
            connect_resumes_a_paused_sandbox_and_says_what_was_kept,
            concurrent_connects_to_a_paused_sandbox_all_succeed,
            connect_to_another_generation_is_stale_and_does_not_wake,
            connect_never_shortens_the_lease,
            connect_extends_the_lease,
            list_streams_every_sandbox_once_in_a_stable_order,
            list_filters_by_owner_key_and_metadata,
            list_filters_by_state,
            pause_is_idempotent_and_says_which,
            pause_of_an_unknown_id_is_gone,
            pause_without_the_capability_is_unsupported_and_changes_nothing,
            destroy_is_idempotent_and_says_which,
            destroy_of_an_unknown_id_is_already_gone,
            destroy_ends_a_paused_sandbox,
            a_destroyed_sandbox_is_gone_on_every_verb,
            set_lease_takes_a_shorter_value,
            set_lease_zero_kills_a_sandbox_that_dies_at_its_end,
            set_lease_zero_pauses_a_sandbox_that_is_kept_at_its_end,
            set_lease_of_an_unknown_id_is_gone,
            set_lease_without_the_capability_is_unsupported,
            metrics_match_the_capabilities,
            creates_of_one_attempt_yield_one_sandbox,
            concurrent_creates_of_one_attempt_yield_one_sandbox,
            a_fresh_provider_value_sees_what_another_made,
            dropping_a_handle_leaves_the_sandbox_alone,
        );
    };
    (@@ $group:ident $fixture:path: $($rule:ident),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $rule() {
            let fixture = $fixture().await;
            $crate::testing::conformance::run(stringify!($rule), fixture, |stage| async move {
                $crate::testing::conformance::$group::$rule(&stage).await;
            })
            .await;
        }
    )+};
}

#[cfg(test)]
mod tests {
    /// A rule that is written and not listed would never run.
    #[test]
    fn every_rule_is_listed_in_the_macro() {
        let listed = include_str!("mod.rs");
        for source in [include_str!("verbs.rs")] {
            let rules: Vec<_> = source
                .lines()
                .filter_map(|line| line.strip_prefix("pub async fn "))
                .filter_map(|line| line.split('(').next())
                .collect();
            assert!(!rules.is_empty());
            for rule in rules {
                assert!(listed.contains(&format!("            {rule},\n")), "{rule} is not listed");
            }
        }
    }
}
