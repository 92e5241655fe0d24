//! Deliveries to a real HTTP server, on every store.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and says what it skips"
)]

mod endpoint;
mod fixture;
mod suite;

use fixture::Fixture;
use jobs::{Clock, Entropy, Jobs};
use rules::deliver::Deliveries;
use store::Store;

testkit::on_every_backend! {
    requests: what_a_receiver_sees, signatures_are_verified_by_another_library, passwords_are_sent_and_not_shown, credentials_of_rules_are_not_shown, redirects_are_not_followed,
        long_responses_are_cut, loops_end, egress_is_checked, silence_ends;
    retries: a_failed_call_is_repeated, calls_can_be_limited, calls_of_a_paused_rule_do_not_return_together, gone_is_dead, receivers_can_ask_for_a_delay,
        dead_letters_are_replayed, a_changed_call_is_made_after_the_running_one;
    fairness: a_hanging_endpoint_delays_no_other, a_failing_endpoint_is_left_alone;
    blocking: a_hanging_endpoint_keeps_no_listener, an_endpoint_that_asks_is_left_alone_by_all, calls_of_listeners_are_counted;
    events: failed_and_recovered_replications_are_reported, lagging_replications_are_reported;
    jobs: the_same_change_is_one_job, equal_debounced_calls_are_two, documents_with_too_large_calls_have_dead_letters, a_back_off_is_not_cut_short,
        a_looping_call_replaces_no_other, a_looping_call_replaces_none_behind_a_running_one, changes_during_a_call_do_not_cut_its_back_off_short, a_call_behind_one_that_is_given_up_begins_anew,
        an_edited_rule_replaces_calls_that_wait, a_new_rule_of_the_same_id_makes_its_call, a_killed_node_repeats_its_call, a_stopped_node_ends_its_calls, deliveries_are_listed;
}

/// Commands open the store of nodes whose settings they do not know.
#[tokio::test]
async fn reading_deliveries_registers_nothing() {
    let store = Store::open("memory:").await.unwrap();
    let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
    let deliveries = Deliveries::new(jobs.clone());
    let (read, ty) = (&jobs, deliveries.job_type());
    let config = (jobs.store()).transact(
        "look",
        |tx| async move { read.type_config_in(&tx, ty).await },
    );
    assert!(config.await.unwrap().is_none());
}
