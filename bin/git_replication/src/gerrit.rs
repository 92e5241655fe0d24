//! The scenarios of the tests of Gerrit's replication plugin, by the numbers of the specification.
//!
//! | scenarios | about | here |
//! |---|---|---|
//! | T001–T009, T011–T015 | the store of tasks | changed: a task is a job, and refs that meet are one. `jobs` tests adding, claiming and ending with golden scripts; `gr_t146_sets_merge_and_all_refs_are_one_mark` |
//! | T010 | targets with unusual characters | kept: `jobs` tests how texts become parts of names |
//! | T016–T034, T036–T051 | moving tasks between directories | changed: states of a job, which only its holder can end. `jobs` |
//! | T035 | a task that is created while it runs | changed: signals of `jobs`; `gr_s06_events_of_a_target_meet_in_one_push` |
//! | T052–T056 | the format of a task | left out: there are no files. Events are tested in `events_of_gerrit` |
//! | T060–T076 | tasks of several nodes | changed, and stricter: what a node does after it lost a job is refused. `a_push_of_a_hanging_node_ends_before_another_begins`, and the simulation of `jobs` |
//! | T080 | tasks of another node are seen | kept: any node takes any job. `gr_s05_every_ref_arrives_while_nodes_are_killed` |
//! | T081, T082 | tasks done elsewhere leave the queue | left out: no node has a queue of its own |
//! | T090–T094 | one task for each target, which survives restarts | kept: `gr_t110_to_t120_a_new_project_gets_where_it_belongs`, `gr_t123_to_t125_a_push_that_a_stopped_node_leaves_is_done_by_another` |
//! | T095 | threads | kept, for all nodes together: `gr_t095_and_s01_threads_count_all_nodes` |
//! | T096, T097, T116–T118, T127, T128 | `start` | kept: `gr_t116_to_t128_start_chooses_and_waits` |
//! | T098, T099, T121, T122 | deletions | kept: `gr_t098_t121_t122_only_mirrors_delete` |
//! | T100, T101, T110, T111, T120 | missing targets | kept: `gr_t100_repositories_are_created_and_filled_over_ssh`, `missing_targets_are_given_up_unless_they_may_be_created`. `HEAD` is set when a target is created, and not followed |
//! | T102 | retries are exhausted | changed: what is left is a dead letter. `gr_t102_retries_end_in_a_dead_letter_that_start_restarts` |
//! | T112 | projects are deleted at targets | left out: nothing here deletes repositories |
//! | T113–T115 | refs arrive | kept: `gr_t113_a_push_notifies_through_the_hook`, `gr_t110_to_t120_a_new_project_gets_where_it_belongs` |
//! | T119 | waiting for a cancelled task ends | changed: nothing is cancelled; a failure ends the wait. `gr_t102_retries_end_in_a_dead_letter_that_start_restarts` |
//! | T123–T125 | stopping | kept: `gr_t123_to_t125_a_push_that_a_stopped_node_leaves_is_done_by_another`. Without draining, nothing is lost either |
//! | T126, T132, T147–T149, T209–T212 | batches of refs | left out: a job is one `git push` |
//! | T129–T131 | projects | kept: `gr_t129_to_t131_patterns`, `gr_t129_to_t131_exclusion_wins` |
//! | T135–T139, T213–T220 | files of remotes | kept, but an invalid one is refused instead of ignored: `gr_t135_and_t213_to_t220_remotes_in_files_of_their_own`, `gr_t217_a_url_without_name_is_for_one_project` |
//! | T140–T145 | filters of refs | changed: those of the configuration are refspecs, `refspecs_map_refs`; settings that withhold refs are refused, `settings_that_withhold_are_not_ignored`; `refs/cache-automerge/*` is skipped. Filters of other plugins are left out |
//! | T146 | the same ref twice | kept: `gr_t146_sets_merge_and_all_refs_are_one_mark` |
//! | T150 | the project is gone | kept: `gr_t150_a_project_without_a_repository_is_not_retried` |
//! | T155–T164 | scheduling of a backlog in memory | left out: a backlog is in the store, and remotes take turns by lanes of `jobs` |
//! | T170–T177 | waiting for all targets | changed: `start --wait` looks at the jobs. `gr_t116_to_t128_start_chooses_and_waits` |
//! | T178, T180–T193, T255–T257 | events about pushes | left out: there are no such events; `queue` and the log tell |
//! | T200–T206 | following the configuration | kept: `gr_t200_to_t206_the_configuration_is_followed` |
//! | T207, T208 | credentials in `secure.config` | left out: git and ssh have their own |
//! | T221–T234, T238–T244 | versions of the configuration, and changing it over HTTP | left out: files are edited |
//! | T235, T236 | remotes without URL | changed: they are refused, `bad_files_are_refused_with_advice` |
//! | T237 | remotes that only fetch | kept: `gr_t237_a_remote_that_only_fetches_is_no_target` |
//! | T250–T252 | escaping in URLs | kept: `gr_t250_to_t252_names_are_escaped_in_http_urls_only` |
//! | S01, S02 | the same service by more nodes | kept: `gr_t095_and_s01_threads_count_all_nodes` |
//! | S03, S04 | nodes share the work | simulated with the queue alone, in `testing/distribution.rs` of `jobs` |
//! | S05 | restarts of all nodes | kept: `gr_s05_every_ref_arrives_while_nodes_are_killed` |
//! | S06 | events of one target | kept, from two nodes, with a shorter delay: `gr_s06_events_of_a_target_meet_in_one_push` |

use std::fs;
use std::path::Path;

fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn tests_that_the_table_names_exist() {
    let mut text = String::new();
    for directory in ["src", "tests"] {
        sources(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(directory),
            &mut text,
        );
    }
    let rows = include_str!("gerrit.rs")
        .lines()
        .filter(|line| line.starts_with("//! | T") || line.starts_with("//! | S"));
    let mut named = 0;
    for name in rows.flat_map(|row| row.split('`').skip(1).step_by(2)) {
        if name.contains('_') {
            assert!(text.contains(&format!("fn {name}()")), "{name}");
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}
