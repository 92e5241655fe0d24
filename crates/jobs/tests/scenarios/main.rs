//! The required behaviour of the queue, case by case, on every store: the tests of `couch_jobs`, and
//! further cases that they miss.
//!
//! On memory the clock is paused, so an hour of it costs nothing; `faulty` is memory behind a
//! wrapper with conflicts, lost answers, lost watches and delays. On other stores time is real, and
//! every duration is a multiple of [`Queue::timeout`].

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::duration_suboptimal_units,
    reason = "a test may fail, says what it skips, and counts in small numbers"
)]

mod basics;
mod correctness;
mod fencing;
mod lanes;
mod limits;
mod liveness;
mod outage;
mod services;
mod signals;
mod subscriptions;
mod support;
mod workers;

use support::{Kind, Queue};

/// Makes a module of tests for every store from one list of cases.
macro_rules! scenarios {
    ($($area:ident: $($case:ident),* $(,)?;)*) => {
        scenarios!(@store memory, start_paused = true; $($area: $($case),*;)*);
        scenarios!(@store faulty, start_paused = true; $($area: $($case),*;)*);
        scenarios!(@store lmdb, start_paused = false; $($area: $($case),*;)*);
        scenarios!(@store fdb, start_paused = false; $($area: $($case),*;)*);
    };
    (@store $kind:ident, $paused:ident = $value:literal; $($area:ident: $($case:ident),*;)*) => {
        mod $kind {
            $(mod $area {
                $(#[tokio::test($paused = $value)]
                async fn $case() {
                    if let Some(queue) = crate::Queue::open(crate::Kind::$kind).await {
                        crate::$area::$case(queue).await;
                    }
                })*
            })*
        }
    };
}

scenarios! {
    basics: add_and_remove_pending, add_and_remove_errors, add_again_unchanged_writes_nothing, get_data_and_state,
        add_again_moves_in_time, accept_and_finish, update_keeps_and_replaces_data, run_again_then_finish,
        resubmit_finished_with_data, resubmit_running_delivers_data_next, run_again_at_another_time,
        add_pending_replaces_data, add_finished_replaces_data, add_running_delivers_data_next,
        accept_up_to_a_horizon, accept_each_of_many_once, list_jobs, take_part_in_transactions, remove_running_job;
    services: registered_types_are_followed, only_served_types_are_monitored, a_panicking_hook_is_restarted, a_stopped_notifier_ends_subscriptions, a_stopped_acceptor_returns_an_error, short_waits_get_jobs_of_slow_claims, scheduled_jobs_find_free_workers,
        acceptors_block, acceptors_end_runs, silent_holders_lose_their_job, types_change_live, finished_jobs_expire,
        finished_jobs_can_be_deleted_at_once, history_is_bounded,
        hooks_decide, keep_alive_keeps_and_loses;
    subscriptions: subscribe_and_follow, removed_while_pending, removed_while_running, follow_several,
        clearing_a_type_ends_subscriptions, dropped_subscriptions_get_nothing, waiting_has_a_deadline,
        subscribing_races_with_finishing;
    correctness: two_in_one_transaction, many_steps_in_one_transaction, add_again_pending_same_time,
        newer_data_is_never_lost, resubmit_in_every_state, remove_and_add_while_running, finish_twice,
        orphan_rows_are_repaired, batches_have_duplicates, a_worker_cannot_delay_a_creators_run,
        rewriting_data_changes_nothing_else, rewriting_is_bounded, labels_are_counted;
    fencing: stale_holders_are_halted, stale_effects_are_rolled_back, effects_happen_exactly_once,
        unknown_commits_of_every_operation, every_step_recognises_its_success, heartbeats_do_not_hide_a_commit, the_job_of_a_lost_claim_is_recovered, an_unsure_claim_is_recalled;
    limits: ids_of_any_bytes, data_of_every_size, times_of_every_size, ids_at_the_boundary_of_a_horizon,
        pages_follow_each_other, listings_are_fast, pages_with_data_are_bounded,
        claims_are_bounded, counts_and_backlog, no_row_is_written_by_every_operation;
    workers: failures_are_retried, dead_letters_are_retried, runs_are_drained, removed_jobs_stop;
    signals: signals_are_merged, signals_do_not_disturb_a_run, signals_do_not_shorten_a_back_off,
        signals_revive_dead_jobs, signals_end_back_offs, signals_join_a_transaction;
    lanes: ready_jobs_of_owners_take_turns, scheduled_jobs_of_owners_take_turns, owners_take_turns_with_jobs_without_a_lane;
    liveness: idle_acceptors_are_woken_one_by_one, many_acceptors_drain_a_backlog, many_silent_holders,
        a_dead_monitor_is_replaced,
        skewed_clocks, poison_jobs_are_given_up, an_outage_is_survived, services_poll_without_watches, a_scheduled_job_wakes_its_sleeper,
        idle_nodes_do_nothing;
}
