//! What could never work is refused when it is written. What is stored already goes on as before.

use serde_json::{Value, json};

use super::{Rule, json_of, parse};

fn with(mut rule: Value, members: &Value) -> Value {
    for (name, value) in members.as_object().unwrap() {
        rule[name] = value.clone();
    }
    rule
}

fn on(members: &Value) -> Value {
    with(json!({"type": "on_change", "url": "http://h/"}), members)
}

fn replicator(members: &Value) -> Value {
    let rule = json!({"type": "replicator", "source": "http://h/a", "target": "http://h/b"});
    with(rule, members)
}

#[test]
fn what_cannot_work_is_refused_only_when_it_is_written() {
    let since = "`since`: must be \"now\", 0, or an update sequence";
    let source = "`${db_name}` stands for no database; add `match.database`";
    let url = "`url`: must be a URL that starts with `http://` or `https://`";
    for (body, expected) in [
        (on(&json!({"since": -1})), since),
        (on(&json!({"since": "-1"})), since),
        (
            on(&json!({"headers": {"Webhook-Replay": "1"}})),
            "`headers.Webhook-Replay`: is set by the service",
        ),
        (
            on(&json!({"headers": {"x-couch-seq": "1"}})),
            "`headers.x-couch-seq`: is set by the service",
        ),
        (on(&json!({"since": "latest"})), since),
        (on(&json!({"since": "NOW"})), since),
        (
            on(&json!({"timeout_sec": 0})),
            "`timeout_sec`: must be above 0",
        ),
        (on(&json!({"url": "https:///bob:pw@h/x"})), url),
        (on(&json!({"url": "https://\\bob:pw@h/x"})), url),
        (on(&json!({"url": "https://\t/bob:pw@h/x"})), url),
        (on(&json!({"url": "https:/bob:pw@h/x?y=http://z"})), url),
        (
            replicator(&json!({"source": "http://h/${db_name}"})),
            &format!("`source`: {source}"),
        ),
        (
            replicator(&json!({"source": {"url": "http://h/a_${db_name}"}})),
            &format!("`source.url`: {source}"),
        ),
        (
            replicator(&json!({"source": "http://h/${db_name}", "match": "name_only"})),
            &format!("`source`: {source}"),
        ),
        (
            json!({"type": "remote", "source": "http://us/${name}", "url": "http://eu/${name}",
                "databases": ["b*", "a*b"]}),
            "`databases[1]`: `*` is allowed only at the end; use a regular expression that begins with `^`",
        ),
        (
            json!({"type": "remote", "source": "http://us/${name}", "url": "http://eu/${name}",
                "exclude_databases": ["*b*"]}),
            "`exclude_databases[0]`: `*` is allowed only at the end",
        ),
    ] {
        let refused = parse(&body).unwrap_err().to_string();
        assert!(refused.starts_with(expected), "{body}: {refused}");
        let stored = Rule::accepted(&json_of(&body.to_string()));
        assert!(stored.is_ok_and(|rule| rule.is_some()), "{body}");
    }
    for body in [
        on(&json!({"since": "42-g1AAAA"})),
        // Of servers that count changes: CouchDB 1 and PouchDB.
        on(&json!({"since": 42})),
        on(&json!({"since": "42"})),
        on(&json!({"timeout_sec": 0.5})),
        replicator(&json!({"source": "http://h/${db_name}", "match": {"database": "^a"}})),
        replicator(&json!({"target": "http://h/copy_of_${db_name}"})),
    ] {
        assert!(parse(&body).is_ok(), "{body}");
    }
}

#[test]
fn a_group_is_proposed_only_for_names_that_groups_can_have() {
    for (url, proposed) in [
        ("http://h/${user}", true),
        ("http://h/${changes.id}", false),
        ("http://h/${}", false),
        ("http://h/${1}", false),
    ] {
        let refused = parse(&on(&json!({"url": url}))).unwrap_err().to_string();
        assert!(
            refused.contains("is unknown; use `${db_name}`"),
            "{refused}"
        );
        assert_eq!(refused.contains("(?<"), proposed, "{refused}");
    }
    let replicator = replicator(&json!({"target": "http://h/${seq}"}));
    let refused = parse(&replicator).unwrap_err().to_string();
    assert!(!refused.contains("(?<"), "{refused}");
}
