//! Databases on every backend of the store.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and says what it skips"
)]

mod suite {
    pub(crate) mod attachments;
    pub(crate) mod changes;
    pub(crate) mod databases;
    pub(crate) mod documents;
    mod faults;
    pub(crate) mod finding;
    pub(crate) mod hooks;
    pub(crate) mod large;
    pub(crate) mod listing;
    pub(crate) mod local_docs;
    mod moving;
    mod replicas;
    pub(crate) mod replication;
    pub(crate) mod support;
    pub(crate) mod waiting;
}

use suite::support::Fixture;

testkit::on_every_backend! {
    databases: a_name_is_one_database, names_are_checked, a_deleted_database_is_gone_at_once,
        a_database_made_again_is_another, databases_are_listed_by_name, security_is_what_was_set,
        info_counts, info_is_couchdbs_json, deletion_leaves_nothing;
    documents: revisions_are_named_as_couchdb_names_them, an_edit_needs_the_revision, a_deletion_hides_the_document,
        a_deleted_document_can_be_made_again, only_leaves_have_bodies, bad_documents_are_refused,
        history_is_told, old_history_is_forgotten, an_edit_of_a_conflict_is_none,
        a_sealed_body_keeps_its_name, answers_are_in_order, several_writes_meet_in_one_transaction,
        rewriting_bodies_changes_nothing_else, rewriting_bodies_is_bounded;
    attachments: attachments_come_back, stubs_stand_for_what_is_there, stubs_count_towards_the_limit,
        attachments_go_with_their_revisions, newer_attachments_can_be_asked_for, what_is_no_attachment_is_refused;
    replication: histories_merge, the_winner_is_the_same_everywhere, deleting_the_winner_uncovers_another,
        missing_revisions_are_told, revisions_are_opened, many_revisions_are_opened_in_pages,
        many_requests_are_answered_in_pages;
    local_docs: local_documents_count_their_writes, local_documents_are_in_no_listing;
    listing: ids_are_in_order, bounds_hold, pages_are_resumed, keys_are_answered_in_their_order,
        listed_documents_are_bounded_in_bytes, offsets_are_counted, ids_are_bytes;
    changes: each_document_is_told_once, limits_and_pages, descending_feeds, filters, all_leaves_are_told,
        sequences_are_kept_exactly, documents_are_seen_through_the_view, pending_changes_are_counted;
    waiting: waiters_share_one_watch, a_waiter_sees_what_came_before, a_waiter_hears_of_the_deletion;
    finding: documents_that_match, pages_and_bookmarks, bad_queries_are_refused;
    hooks: a_hook_sees_both_winners, a_refusal_concerns_one_document, a_hook_writes_with_the_document,
        a_hook_hears_of_dropped_documents;
    large: the_largest_document_works, bulk_writes_are_cut, fifty_thousand_documents;
}
