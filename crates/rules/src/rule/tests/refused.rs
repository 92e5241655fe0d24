//! Why rules are refused.

use serde_json::{Value, json};

use super::parse;

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
