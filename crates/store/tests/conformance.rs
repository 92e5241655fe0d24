//! The contract of a store, one suite for every backend.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and says what it skips"
)]

mod support;

mod suite {
    pub(crate) mod atomics;
    mod fdb_agrees;
    pub(crate) mod isolation;
    pub(crate) mod limits;
    mod model;
    pub(crate) mod ranges;
    pub(crate) mod rows;
    pub(crate) mod stamps;
    pub(crate) mod transact;
    pub(crate) mod watches;
}

use support::Fixture;

testkit::on_every_backend! {
    rows: a_missing_key_has_no_value, what_was_set_is_read, the_empty_key_is_a_key, keys_are_bytes_in_order,
        a_cleared_key_is_gone, a_range_is_cleared_up_to_its_end, a_transaction_sees_its_own_writes,
        the_last_write_wins, an_aborted_body_writes_nothing;
    ranges: rows_come_in_order_both_ways, a_limit_takes_the_first_rows, bounds_are_half_open, own_writes_are_in_the_range,
        a_limit_counts_what_is_left, a_large_range_comes_in_pages, an_inverted_range_is_refused, a_prefix_is_a_range;
    atomics: a_missing_number_is_zero, numbers_wrap_and_are_eight_bytes, own_adds_are_read, adds_do_not_conflict;
    stamps: stamped_keys_are_in_commit_order, stamped_values_hold_the_commits_stamp, one_transaction_makes_many_keys,
        a_stamp_cannot_be_read_before, a_read_only_transaction_has_no_stamp, a_wrong_offset_is_refused;
    isolation: no_update_is_lost, no_write_skew, no_phantom, no_read_only_anomaly, reads_repeat,
        snapshot_reads_conflict_with_nobody, explicit_conflicts_count, blind_writes_do_not_conflict,
        a_limited_read_conflicts_only_where_it_read, own_writes_are_no_reads, counters_under_contention;
    limits: a_key_at_its_limit, a_value_at_its_limit, a_transaction_at_its_limit, an_old_snapshot_is_gone, reserved_keys_are_refused;
    transact: a_conflict_is_retried, retries_end, a_deadline_ends_the_call, the_callers_error_comes_through, a_kept_handle_is_refused,
        a_dropped_call_leaves_all_or_nothing, what_it_cost_is_counted, handles_share_rows;
    watches: a_watch_fires_on_a_change, a_watch_is_quiet_without_one, a_change_before_the_commit_counts, changes_coalesce,
        an_uncommitted_watch_says_so, there_is_a_most, a_watch_reads_its_key;
}
