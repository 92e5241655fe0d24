//! Spiegel's own tests by the numbers of the specification, those of its change processor and its rules cache here, and
//! which test guards against each of its defects.
//!
//! | scenarios | about | here |
//! |---|---|---|
//! | T001–T005 | back-off | kept: `deliver/delivery.rs`. A limit leads to a dead letter |
//! | T010–T015, T160–T164, T174, T175 | making documents dirty in bulk, and conflicts of that | left out: a signal is a transaction, in which nothing conflicts with what was read before. What is to hold, one run after any number of changes and none lost, is in the `jobs` tests of signals |
//! | T020, T021, T024–T026, T028, T030 | reading changes | kept: `listen/tests.rs` |
//! | T022, T023, T142, T143, T151, T153 | a database that is gone | kept: `listen/tests.rs`, `a_database_may_go_and_come_back` |
//! | T027, T031–T033 | failed calls | kept: `listen/tests.rs`, and `tests/deliver/suite/retries.rs`. All errors are retried; the limit leads to a dead letter |
//! | T029 | names in a list of retries | left out: there is no such list |
//! | T040, T041, T043, T044, T047–T049 | calls | kept |
//! | T042, T100 | passwords | kept: `deliver/credentials.rs` |
//! | T045, T046 | debouncing | kept: `deliver/identity.rs`, `tests/deliver/suite/jobs.rs`. Method and body count, too |
//! | T050, T051 | `block` | kept: `listen/tests.rs`. It is true unless the rule says otherwise (the design document, not the code) |
//! | T052, T053 | several rules | changed: each has a place of its own, so they do not wait for each other |
//! | T054, T056, T057, T059, T061 | responses | kept: `deliver/delivery.rs`, `tests/deliver/suite/requests.rs`. An invalid scheme is refused when the rule is written |
//! | T055, T058 | redirects | changed: they are failures |
//! | T060 | requests in flight | left out: it pins an implementation |
//! | T070–T077, T182–T187 | command line and kinds of processes | left out: there is one program; its options are tested in `node` |
//! | T080 | stored values | left out: it pins an implementation |
//! | T090–T093 | rules and conditions | kept |
//! | T094 | errors of the rules cache | kept: `store/tests.rs`, `a_watcher_follows_the_rules` |
//! | T110–T122, T128–T132, T135–T137, T154, T155 | locks and stalled work | changed: locks are those of jobs, with heartbeats; `jobs` tests them with simulations and golden scripts. `a_killed_node_repeats_its_call` in `tests/deliver/suite/jobs.rs` |
//! | T123, T124, T139 | work at the start | kept: `tests/sources/main.rs`, `another_node_goes_on_where_the_last_one_stopped` |
//! | T125–T127, T140, T141 | conflicts of Spiegel's own documents | left out: the state is not in documents |
//! | T133, T138, T197, T198 | errors of the feed | changed: they are retried. `what_cannot_be_followed_lets_nothing_sleep` |
//! | T134, T199 | stop before start | left out: it pins an implementation |
//! | T144–T150, T176, T177 | `dirty_after_milliseconds` | kept as `trigger.delay_sec`: `spiegels_own_members_mean_nothing`; due times are those of jobs |
//! | T152 | other errors | kept: `listen/tests.rs`, `nothing_is_missed_while_commits_fail_or_have_unknown_outcomes` |
//! | T170, T171, T173 | replications | kept: `tests.rs`, `replications_follow_their_own_server`, and `spiegels_own_members_mean_nothing`. A bare name is refused |
//! | T172 | a missing URL in the log | left out: a rule without URL is refused |
//! | T180 | anonymous access | kept: `api`'s table of routes and roles |
//! | T181 | not installed | left out: nothing is installed |
//! | T190–T192, T194, T195 | batches of the feed | kept: `tests/sources`, and `names_match_as_they_are_and_as_they_stand_in_urls` |
//! | T193, T196 | the position in the feed | changed: it is saved with each batch |
//! | T200 | names that match no rule | kept: `t200_names_that_match_no_rule_wake_nothing` |
//! | T201, T202 | closing a batch while a row arrives | left out: one task does both, so they cannot meet |
//! | T203 | the base of delays | kept: `a_trigger_delays_runs` in `tests/machine/sleep.rs` of `scheduler`; a rule's delay is its trigger's |
//! | I01 | all parts together | kept, with two nodes: `tests/sources/spiegel.rs`. The password goes into the call later: `deliver/credentials.rs` |
//! | S01, S02 | a thousand databases | kept with 30: `tests/sources/spiegel.rs`. `benches/spiegel/stress.mjs` is S01 in its full size |
//! | B01, B02 | looking up rules | kept with 10,000 rules, as what is found, not how fast: `tests.rs`, `rules_about_other_names_are_not_tested` |
//!
//! | defect | guarded by |
//! |---|---|
//! | D1 no back-off with `block` | `listen/tests.rs`, `d1_a_call_that_blocks_and_fails_waits` |
//! | D2 numbers in `params` | `d2_params_are_any_json` |
//! | D3 debouncing by the template | `d3_debounced_calls_have_their_own_url`; `deliver/identity.rs` |
//! | D4 debouncing per process | `tests/deliver/suite/jobs.rs`, `equal_debounced_calls_are_two`; `retries.rs`, `a_failed_call_is_repeated` |
//! | D5 calls skipped at the limit | `tests/deliver/suite/retries.rs`, `calls_can_be_limited`; `listen/tests.rs`, `a_call_that_fails_too_often_becomes_a_delivery` |
//! | D6 the query lost with a password | `deliver/credentials.rs`, `d6_sp_t042_…` |
//! | D7 the position saved past what was handled | `tests/sources/main.rs`, `another_node_goes_on_where_the_last_one_stopped` |
//! | D8 a failed dispatch stops the feed | `listen/tests.rs`, `nothing_is_missed_while_commits_fail_or_have_unknown_outcomes`, for listening; `tests/sources/rules_of_sources.rs`, `d8_work_that_failed_is_done_again`, for feeds |
//! | D9 replications without back-off | `tests/sources/spiegel.rs`, `d9_replications_that_fail_back_off` |
//! | D10 retries by accident of a conflict | `listen/tests.rs`, `calls_that_do_not_block_are_enqueued_once`, with more than a page of changes |
//! | D11 the host ignored | `tests.rs`, `replications_follow_their_own_server` |
//! | D12 the default of `block` | `d12_rules_block_unless_they_say_otherwise` |
//! | D13 values not encoded | `d13_values_are_encoded_in_urls` |
//! | D14 no time-out, redirects | `tests/deliver/suite/requests.rs`, `silence_ends`, `redirects_are_not_followed` |
//! | D15 all changes of all time | `listen/tests.rs`, `d15_rules_begin_now_unless_they_say_otherwise` |

use serde_json::{Value, json};

use super::call::Call;
use super::tests::{NO_CAPTURES, call_of, json_of, matching, rule, set, webhook};

const DOC: &str = r#"{"_id":"1","_rev":"1","thing":"jam"}"#;

fn call(body: &Value) -> Call {
    call_of(&webhook(body), "test_db1", DOC, "\"123-xyz\"", &NO_CAPTURES)
}

/// The whole URL.
fn url_of(call: &Call) -> String {
    let target = call.target.as_ref().unwrap();
    target.with_query(call.query.as_deref()).into()
}

fn body_of(call: &Call) -> Value {
    serde_json::from_str(call.body.as_ref().unwrap()).unwrap()
}

#[test]
fn t040_variables_that_are_whole_values_are_replaced() {
    let call = call(
        &json!({"url": "https://example.com", "method": "POST", "params": {
            "foo": "{{bar}}",
            "badvar": "$unknownvar",
            "change": "${change}",
            "nottokenized": "${db_name}-${seq}",
            "changeid": "$change.id",
            "changerev": "$change.rev",
            "db_name": "$db_name",
            "seq": "$seq",
        }}),
    );
    let expected = json!({
        "foo": "{{bar}}",
        "badvar": "$unknownvar",
        "change": {"_id": "1", "_rev": "1", "thing": "jam"},
        "nottokenized": "${db_name}-${seq}",
        "changeid": "1",
        "changerev": "1",
        "db_name": "test_db1",
        "seq": "123-xyz",
    });
    assert_eq!(body_of(&call), expected);
}

#[test]
fn t041_methods() {
    let method =
        |method: Value| call(&json!({"url": "https://example.com", "method": method})).method;
    assert_eq!(method(Value::Null), "GET");
    assert_eq!(method(json!("get")), "GET");
    assert_eq!(method(json!("post")), "POST");
    assert_eq!(method(json!("POST")), "POST");
}

#[test]
fn t043_urls_are_expanded() {
    let url = "https://user@example.com/mon_${db_name}/${seq}/${change.id}-${change.rev}";
    let url = url_of(&call(&json!({ "url": url })));
    assert_eq!(url, "https://user@example.com/mon_test_db1/123-xyz/1-1");
}

#[test]
fn t044_params_travel_by_method() {
    let with = |method: &str| {
        let call = call(
            &json!({"url": "https://example.com/x", "method": method, "params": {"foo": "bar"}}),
        );
        (url_of(&call), call.body)
    };
    let body = Some(r#"{"foo":"bar"}"#.to_owned());
    assert_eq!(with("POST"), ("https://example.com/x".to_owned(), body));
    let in_query = ("https://example.com/x?foo=bar".to_owned(), None);
    assert_eq!(with("DELETE"), in_query);
    assert_eq!(with("GET"), in_query);
}

#[test]
fn t047_t048_calls_are_debounced_on_request() {
    let debounce =
        |debounce: Value| call(&json!({"url": "http://h/", "debounce": debounce})).debounce;
    assert!(debounce(json!(true)));
    assert!(!debounce(Value::Null));
}

#[test]
fn t049_the_document_travels_in_a_query() {
    let call = call(
        &json!({"url": "https://user@example.com/foo?a=b", "params": {
            "foo": "bar", "change": "$change", "db_name": "$db_name",
        }}),
    );
    assert_eq!(call.method, "GET");
    assert_eq!(
        url_of(&call),
        "https://user@example.com/foo?a=b&foo=bar&change%5B_id%5D=1&change%5B_rev%5D=1&change%5Bthing%5D=jam\
         &db_name=test_db1"
    );
}

#[test]
fn t090_t091_t092_rules_by_the_names_of_databases() {
    let on = |pattern: &str| json!({"type": "on_change", "db_name": pattern, "url": "http://h/"});
    let three = [on("foo"), on("^test_db1$"), on("test_db_([^_])*")];
    let names = [
        "_test_db0",
        "test_db1",
        "test_db2",
        "test_db_3",
        "test_db_4",
    ];
    let matched = |bodies: &[Value]| {
        let set = set(bodies);
        let found = names
            .into_iter()
            .filter(|name| !matching(&set, name).is_empty());
        (set.len(), found.collect::<Vec<_>>())
    };
    assert_eq!(
        matched(&three),
        (3, vec!["test_db1", "test_db_3", "test_db_4"])
    );
    assert_eq!(matched(&three[..2]), (2, vec!["test_db1"]));
}

#[test]
fn t200_names_that_match_no_rule_wake_nothing() {
    let rule = json!({"type": "on_change", "db_name": "^user_", "url": "http://h/"});
    let set = set(&[rule]);
    assert!(matching(&set, "other").is_empty());
    assert_eq!(matching(&set, "user_1").len(), 1);
}

#[test]
fn t093_conditions() {
    let accepts = |condition: Value, doc: Value| {
        let rule = webhook(&json!({"url": "http://h/", "if": condition}));
        rule.accepts(&json_of(&doc.to_string())).unwrap()
    };
    let docs = [
        json!({"_id": "1", "type": "msg", "thing": "jam", "other": null}),
        json!({"_id": "2", "type": "msg2", "thing": "code"}),
        json!({"_id": "3", "type": "play", "other": "x"}),
    ];
    for (condition, expected) in [
        (json!({"type": "^msg$"}), [true, false, false]),
        (json!({"type": "msg"}), [true, true, false]),
        (
            json!({"type": "^msg$", "thing": "^jam$"}),
            [true, false, false],
        ),
        (json!({"thing": "^(jam|code)$"}), [true, true, false]),
        (json!({"thing": null}), [false, false, true]),
        (json!({"other": null}), [true, true, false]),
        (json!({"_id": "3", "type": null}), [false, false, false]),
        (json!({}), [true, true, true]),
    ] {
        let found = docs.clone().map(|doc| accepts(condition.clone(), doc));
        assert_eq!(found, expected, "{condition}");
    }
}

/// A value that is no string made Spiegel's rule throw for ever.
#[test]
fn d2_params_are_any_json() {
    let params = json!({"n": 1000, "f": 1.5, "t": true, "z": null, "l": ["$seq", 1], "o": {"id": "$change.id"}});
    let post = call(&json!({"url": "http://h/", "method": "POST", "params": params}));
    let expected =
        json!({"n": 1000, "f": 1.5, "t": true, "z": null, "l": ["123-xyz", 1], "o": {"id": "1"}});
    assert_eq!(body_of(&post), expected);
    let get = call(&json!({"url": "http://h/", "params": params}));
    assert_eq!(
        url_of(&get),
        "http://h/?n=1000&f=1.5&t=true&z=&l%5B0%5D=123-xyz&l%5B1%5D=1&o%5Bid%5D=1"
    );
    let list = call(&json!({"url": "http://h/", "method": "PUT", "params": ["$db_name"]}));
    assert_eq!(body_of(&list), json!(["test_db1"]));
}

/// Spiegel took calls about different documents for the same one: it compared the URL before it was expanded.
#[test]
fn d3_debounced_calls_have_their_own_url() {
    let rule = webhook(&json!({"url": "http://h/${change.id}", "debounce": true}));
    let urls = ["1", "2"].map(|id| {
        let doc = json!({"_id": id}).to_string();
        url_of(&call_of(&rule, "db", &doc, "1", &NO_CAPTURES))
    });
    assert_eq!(urls, ["http://h/1", "http://h/2"]);
}

/// Spiegel's documentation says that `block` is true unless it is said; its code took it for false.
#[test]
fn d12_rules_block_unless_they_say_otherwise() {
    let block = |block: Value| webhook(&json!({"url": "http://h/", "block": block})).block;
    assert!(block(Value::Null));
    assert!(block(json!(true)));
    assert!(!block(json!(false)));
}

/// Spiegel put ids of documents into URLs as they are.
#[test]
fn d13_values_are_encoded_in_urls() {
    let doc = r#"{"_id":"../a/b?c=d#e@f g","_rev":"1"}"#;
    let rule = webhook(&json!({"url": "http://h/x/${change.id}/y?db=${db_name}"}));
    let call = call_of(&rule, "a/b&c", doc, "7", &NO_CAPTURES);
    assert_eq!(
        url_of(&call),
        "http://h/x/..%2Fa%2Fb%3Fc%3Dd%23e%40f%20g/y?db=a%2Fb%26c"
    );
    assert_eq!(call.seq, "7");
}

#[test]
fn spiegels_own_members_mean_nothing() {
    let body = json!({
        "type": "replicator", "source": "http://u@h:5984/a%2Fb", "target": "http://h/c", "create_target": true,
        "continuous": true, "cancel": true, "dirty": true, "dirty_at": 1, "locked_at": "x", "updated_at": 3,
        "retries": 4, "possibly_deleted_at": 5, "dirty_after_milliseconds": 200, "owner": null,
    });
    let super::Task::Replicate(replicate) = rule(&body).task else {
        panic!("a replication");
    };
    let expected = json!({
        "source": "http://u:@h:5984/a%2Fb", "target": "http://h/c", "create_target": true, "owner": null,
        "trigger": {"delay_sec": 0.2},
    });
    let body = replicate.body("a/b", &NO_CAPTURES).unwrap();
    assert_eq!(body.to_value(), expected);
    for kind in ["change_listener", "global"] {
        assert!(
            super::Rule::parse(&json_of(&json!({"type": kind, "x": 1}).to_string()))
                .unwrap()
                .is_none()
        );
    }
}
