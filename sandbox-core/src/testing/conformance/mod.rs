//! The rules that every provider keeps, as test bodies; [`crate::provider_conformance`] makes one named test of each.
//!
//! Rules panic when they are broken. What a provider says that it cannot ([`crate::Capabilities`]) is not asked of it,
//! except that it says `unsupported`. Waits are bounded by a net for what hangs; no rule measures time.

#![allow(clippy::unwrap_used, reason = "rules are test bodies: a broken one panics")]

pub mod acquire;
pub mod commands;
pub mod ending;
pub mod files;
pub mod life;
mod matrix;
pub mod memory;
pub mod ports;
pub mod processes;
pub mod snapshots;
mod stage;
pub mod verbs;
pub mod watch;

pub use stage::{Fixture, Stage, eventually, run, within};

/// Makes one test of every rule of [`testing::conformance`](crate::testing::conformance) for a provider.
///
/// The first argument is an `async fn` without arguments that returns a
/// [`Fixture`](crate::testing::conformance::Fixture); it is called once for every rule. Groups may follow it, the default
/// is all of them:
///
/// | group | what the rules are about | what they need in the sandbox |
/// |---|---|---|
/// | `verbs` | find, connect, create, list | `true`, `sleep` |
/// | `life` | pauses, leases, destroys | `true`, `sleep` |
/// | `memory` | pauses and connects that keep files only | `sleep` |
/// | `snapshots` | snapshots, forks and what is made from them | `sleep` |
/// | `commands` | exits, input, variables, attach, kept output | `cat`, `echo`, `printenv`, `sleep`, `sh` |
/// | `processes` | exact bytes, trees, deadlines, terminals | a real `/bin/sh`, `/proc`, the usual programs |
/// | `files` | read, write, list, rename, remove, metadata | |
/// | `watch` | events of directories | |
/// | `ports` | `dial` | an echo server, see [`Fixture::echo_server`](crate::testing::conformance::Fixture::echo_server) |
/// | `ending` | what callers hear when a sandbox is destroyed under them | `sleep` |
/// | `acquire` | what hosts and their hooks rely on: one key, one sandbox | `true`, `printenv` |
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
        $crate::provider_conformance!($fixture, verbs, life, memory, snapshots, commands, processes, files, watch, ports, ending, acquire);
    };
    ($fixture:path, $($group:ident),+ $(,)?) => {
        $($crate::provider_conformance!(@ $group $fixture);)+
    };
    (@ acquire $fixture:path) => {
        $crate::provider_conformance!(@@ acquire $fixture:
            the_first_acquire_creates_and_the_next_ones_connect,
            callers_at_the_same_time_get_one_sandbox,
            a_host_without_records_finds_the_sandbox_of_its_key,
            the_provider_id_alone_leads_back,
            the_sandbox_of_another_key_is_refused,
            what_is_gone_is_replaced_unless_the_caller_says_no,
            a_value_of_a_killed_sandbox_fails_or_goes_on_as_asked,
            hooks_run_in_their_order,
            a_failed_setup_runs_again_in_the_same_sandbox,
            an_acquire_of_its_own_key_in_a_hook_is_reentrant,
            three_rounds_of_stop_and_acquire_keep_the_sandbox,
            commands_on_a_paused_sandbox_resume_it_once,
            variables_of_spec_clone_and_command_lie_over_each_other,
            a_lazy_value_makes_nothing_before_its_first_call,
            a_fresh_host_stops_and_destroys_by_key,
            letting_go_of_a_value_ends_nothing,
            a_caller_that_leaves_during_its_acquire_leaves_one_sandbox_at_most,
            events_tell_what_happened_in_order,
        );
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
            three_rounds_of_pause_and_connect_keep_the_id_and_the_files,
            a_command_after_another_host_destroyed_the_sandbox_is_gone,
            concurrent_connects_to_a_paused_sandbox_all_succeed,
            connect_to_another_generation_is_stale_and_does_not_wake,
            list_streams_every_sandbox_once_in_a_stable_order,
            list_filters_by_owner_key_and_metadata,
            list_filters_by_state,
            metrics_match_the_capabilities,
            logs_match_the_capabilities,
            a_create_that_is_cut_short_and_sent_again_is_one_sandbox,
            creates_of_one_attempt_yield_one_sandbox,
            concurrent_creates_of_one_attempt_yield_one_sandbox,
            a_create_of_a_destroyed_attempt_makes_nothing,
            a_fresh_provider_value_sees_what_another_made,
            dropping_a_handle_leaves_the_sandbox_alone,
        );
    };
    (@ life $fixture:path) => {
        $crate::provider_conformance!(@@ life $fixture:
            connect_never_shortens_the_lease,
            connect_extends_the_lease,
            pause_is_idempotent_and_says_which,
            pause_of_an_unknown_id_is_gone,
            calls_on_a_paused_sandbox_say_so_and_do_nothing,
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
        );
    };
    (@ memory $fixture:path) => {
        $crate::provider_conformance!(@@ memory $fixture:
            a_pause_without_memory_keeps_the_files_and_ends_the_processes,
            a_connect_without_memory_starts_a_paused_sandbox_anew,
            a_connect_without_memory_leaves_a_running_sandbox_alone,
            memory_cannot_be_given_up_without_the_capability,
        );
    };
    (@ snapshots $fixture:path) => {
        $crate::provider_conformance!(@@ snapshots $fixture:
            a_sandbox_made_from_a_snapshot_has_its_files,
            a_snapshot_stays_as_it_was,
            a_snapshot_outlives_its_sandbox,
            the_source_of_a_snapshot_goes_on,
            a_snapshot_holds_the_whole_chain_that_it_stands_on,
            snapshots_are_listed_by_sandbox_and_name,
            deleting_a_snapshot_harms_no_sandbox,
            a_deleted_snapshot_is_no_template,
            delete_of_an_unknown_snapshot_is_already_gone,
            snapshot_of_an_unknown_sandbox_is_gone,
            snapshots_without_the_capability_are_unsupported,
            a_fork_has_the_files_of_its_source_and_a_life_of_its_own,
            a_fork_outlives_its_source,
            forks_of_one_attempt_are_one_sandbox,
            fork_of_an_unknown_sandbox_is_gone,
            fork_without_the_capability_is_unsupported,
        );
    };
    (@ commands $fixture:path) => {
        $crate::provider_conformance!(@@ commands $fixture:
            an_exit_code_is_a_result,
            a_death_by_signal_has_its_own_field,
            stdin_is_closed_unless_asked_for,
            stdin_stays_open_until_it_is_closed,
            large_input_arrives_whole,
            a_missing_working_directory_is_invalid_argument,
            an_unknown_program_is_invalid_argument,
            nul_and_equals_are_refused_and_named,
            a_command_as_an_unknown_user_is_unauthenticated,
            variables_of_a_process_win_over_those_of_the_sandbox,
            a_foreground_deadline_is_a_result,
            a_cancelled_foreground_command_is_killed,
            a_dropped_process_runs_on_and_is_attached_by_pid_and_tag,
            attach_to_an_unknown_process_is_not_found,
            attach_to_an_ended_process_tells_its_exit_or_is_not_found,
            processes_lists_what_runs,
            kept_output_is_replayed_after_the_exit,
            a_running_process_is_not_released,
            replay_without_the_capability_is_unsupported,
        );
    };
    (@ ending $fixture:path) => {
        $crate::provider_conformance!(@@ ending $fixture:
            destroy_ends_foreground_commands_with_gone,
            destroy_ends_followed_processes_with_gone,
            destroy_ends_a_watch_with_gone,
            destroy_never_shortens_a_read,
            concurrent_destroys_all_succeed,
        );
    };
    (@ files $fixture:path) => {
        $crate::provider_conformance!(@@ files $fixture:
            a_file_is_read_as_it_was_written,
            a_large_file_is_exact,
            ranges_are_exact,
            a_write_makes_its_parents,
            an_overwrite_leaves_nothing_of_the_old_content,
            a_body_that_breaks_fails_the_write_with_its_own_error,
            relative_paths_start_at_the_home,
            strange_names_are_kept,
            a_path_with_a_nul_byte_is_invalid_argument,
            a_listing_is_depth_first_and_sorted,
            stat_tells_the_facts,
            a_rename_moves_files_and_directories,
            a_remove_takes_everything_and_a_missing_one_is_fine,
            make_dir_makes_parents_and_says_when_it_is_there,
            a_missing_path_is_not_found,
            a_path_of_the_wrong_type_is_invalid_argument,
            file_metadata_is_kept_until_the_next_write,
            a_file_call_as_an_unknown_user_is_unauthenticated,
        );
    };
    (@ ports $fixture:path) => {
        $crate::provider_conformance!(@@ ports $fixture:
            a_port_inside_is_reached_from_outside,
            a_closed_port_is_not_found_with_a_reason,
            dial_without_the_capability_is_unsupported,
        );
    };
    (@ processes $fixture:path) => {
        $crate::provider_conformance!(@@ processes $fixture:
            arguments_arrive_byte_for_byte,
            variables_arrive_byte_for_byte,
            the_two_output_streams_are_told_apart,
            a_process_that_kills_itself_died_by_that_signal,
            output_is_complete_before_the_exit,
            multibyte_output_is_exact,
            output_that_is_no_text_is_exact,
            a_background_child_does_not_delay_the_exit,
            a_background_child_is_not_killed_by_its_output,
            a_kill_reaches_the_whole_tree,
            a_deadline_kills_the_tree_and_keeps_the_output,
            a_deadline_asks_politely_first,
            a_deadline_holds_without_its_caller,
            a_replay_that_follows_has_no_gap,
            kept_output_has_a_cap_and_counts_what_it_dropped,
            a_terminal_echoes_and_is_resized,
            an_interrupt_typed_into_a_terminal_arrives,
            a_signal_by_pid_or_tag_ends_the_tree,
        );
    };
    (@ watch $fixture:path) => {
        $crate::provider_conformance!(@@ watch $fixture:
            a_watch_sees_creates_writes_renames_and_removes,
            a_plain_watch_does_not_see_what_is_below,
            a_recursive_watch_sees_new_directories,
            a_recursive_watch_sees_files_made_at_once_with_their_directory,
            events_carry_entries_where_asked_for,
            a_watch_of_a_missing_or_wrong_path_is_refused,
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
    /// A rule that is written and not listed would never run, and one that is not on the page be unknown to who meets it.
    #[test]
    fn every_rule_is_listed_in_the_macro_and_on_the_page_for_providers() {
        let listed = include_str!("mod.rs");
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/adding-a-provider.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut written = 0;
        for source in [
            include_str!("acquire.rs"),
            include_str!("commands.rs"),
            include_str!("ending.rs"),
            include_str!("files.rs"),
            include_str!("life.rs"),
            include_str!("memory.rs"),
            include_str!("ports.rs"),
            include_str!("processes.rs"),
            include_str!("snapshots.rs"),
            include_str!("verbs.rs"),
            include_str!("watch.rs"),
        ] {
            let rules: Vec<_> = source
                .lines()
                .filter_map(|line| line.strip_prefix("pub async fn "))
                .filter_map(|line| line.split('(').next())
                .collect();
            assert!(!rules.is_empty());
            for rule in &rules {
                assert!(listed.contains(&format!("            {rule},\n")), "{rule} is not listed");
                assert!(page.contains(&format!("\n- `{rule}`\n")), "{rule} is not on the page");
            }
            written += rules.len();
        }
        let shown = page.lines().filter(|line| line.starts_with("- `") && !line[2..].contains(' '));
        assert_eq!(shown.count(), written, "the page has rules that are not there any more");
    }
}
