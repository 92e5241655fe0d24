//! Test vectors of the specification: the first two are CouchDB's own, the others were computed by an independent
//! encoder that reproduces those two.

use document::json::Json;
use serde_json::{Value, json};

use super::*;
use crate::params::Defaults;

const UUID: &str = "0123456789abcdef0123456789abcdef";

fn service() -> Service {
    Service {
        uuid: UUID.to_owned(),
        legacy_host: None,
    }
}

fn replication(body: &Value) -> Replication {
    Replication::from_document(
        &Json::parse(&body.to_string()).unwrap(),
        &Defaults::default(),
    )
    .unwrap()
}

/// The usual source and target with these members added or changed.
fn with(members: &Value) -> Replication {
    let mut body =
        json!({"source": "http://src.example.com/a", "target": "http://tgt.example.com/b"});
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    replication(&body)
}

fn id(members: &Value, code: Option<&str>) -> String {
    Identity::of(&with(members), &service(), code)
        .replication
        .to_string()
}

fn of_uuid(uuid: Term, replication: &Replication) -> String {
    let head = vec![
        uuid,
        endpoint_v4(&replication.source),
        endpoint_v4(&replication.target),
    ];
    suffixed(
        &base_id(head, replication, None, Form::Current).unwrap(),
        replication,
    )
    .to_string()
}

#[test]
fn upstream_vectors() {
    let first = replication(&json!({
        "source": "http://adm:pass@127.0.0.1/abc", "target": "http://adm:pass@127.0.0.1/xyz",
        "continuous": true, "create_target": true,
    }));
    assert_eq!(
        of_uuid(Term::chars("somefixedid"), &first),
        "ff71e1208f93ba054eb60e7ca8683fe4+continuous+create_target"
    );
    let second = replication(
        &json!({"source": "http://srchost.local/src", "target": "http://tgthost.local/tgt"}),
    );
    assert_eq!(
        of_uuid(Term::Atom("this_is_snek"), &second),
        "ad08e05057046eabe898a2572bbfb573"
    );
}

#[test]
fn version_4_vectors() {
    for (members, expected) in [
        (json!({}), "d217b67c91b2ac311613b2df39f48112"),
        (
            json!({"source": "http://adm:x@src.example.com:1234/a"}),
            "c330e79f4030fae9a8b3112059621095",
        ),
        (
            json!({"source": {"url": "http://src.example.com/a", "headers": {"X-Foo": "bar"}}}),
            "f9cd2ec26107286824af49383ce56bc1",
        ),
        (
            json!({"doc_ids": ["c", "a", "b"]}),
            "d263dc7b976dd0c693248f75697ee970",
        ),
        (
            json!({"filter": "_view", "query_params": {"view": "dd/v"}}),
            "2cc1e5a3fa5b84a334b965d5624ec4ac",
        ),
        (
            json!({"filter": "_design"}),
            "c44c627d42edfdf3721f52f5c15d846e",
        ),
        (
            json!({"selector": {"class": "mammal"}}),
            "a4ae250002823e9f2be41c8c5f3d989d",
        ),
        (
            json!({"winning_revs_only": true}),
            "e017e9de900cd28be6a0b84891530611",
        ),
        (
            json!({"since_seq": "12-abc"}),
            "0bae55e078cfc630224143c8399806a5",
        ),
    ] {
        assert_eq!(id(&members, None), expected, "{members}");
    }
}

#[test]
fn filter_code_vectors() {
    let code = "function(doc, req) { return true; }";
    let plain = json!({"filter": "dd/f"});
    assert_eq!(id(&plain, Some(code)), "8329b194c4bf08e8cb0aaacd776b969d");
    assert_eq!(
        id(&plain, Some(&format!("  {code}   "))),
        "8329b194c4bf08e8cb0aaacd776b969d"
    );
    let params = json!({"filter": "dd/f", "query_params": {"k": "v"}});
    assert_eq!(id(&params, Some(code)), "c3d8a268638be4aaead1adde793da081");
}

#[test]
fn version_3_vector() {
    let older = Identity::of(&with(&json!({})), &service(), None).older;
    assert_eq!(
        older,
        [BaseId::new("cae4cbd4fecdffe1f8622e2947a67f26".to_owned())]
    );
}

#[test]
fn transient_job_vectors() {
    for (members, user, expected) in [
        (json!({}), None, "ee57b5b6ecb32e133513c35a0b516c5e"),
        (
            json!({"continuous": true}),
            Some("adm"),
            "7bab6825097a74a80c42a5d29c1b3d23",
        ),
        (
            json!({"continuous": true, "create_target": true}),
            Some("adm"),
            "ce598eb499ef66bb11833663725a69d0",
        ),
    ] {
        assert_eq!(
            transient_job_id(&with(&members), &service(), user),
            expected,
            "{members}"
        );
    }
    let filtered = |name| transient_job_id(&with(&json!({"filter": name})), &service(), None);
    assert_ne!(filtered("dd/f"), filtered("dd/g"));
}

#[test]
fn only_lines_are_trimmed() {
    for (code, trimmed) in [
        ("  a b  ", "a b"),
        (" a \n", "a\n"),
        ("\ta ", "\ta"),
        (" a\n b ", " a\n b "),
        (" a\n\n", " a\n\n"),
        ("", ""),
    ] {
        assert_eq!(trim_code(code), trimmed, "{code:?}");
    }
}

#[test]
fn what_does_not_matter() {
    let plain = id(&json!({}), None);
    for members in [
        json!({"source": "http://src.example.com:5984/a/"}),
        json!({"source": "http://src.example.com:80/a"}),
        json!({"winning_revs_only": false, "query_params": {"unused": "1"}, "since_seq": null}),
        json!({"source": {"url": "http://src.example.com/a", "headers": {"Accept": "application/json"}}}),
        json!({"filter_where": "replicator", "checkpoints": "target", "on_write_failure": "stop", "owner": "x"}),
        json!({"create_target_params": {"q": "2"}, "proxy": "http://p"}),
    ] {
        assert_eq!(id(&members, None), plain, "{members}");
    }
    let password = |password| {
        id(
            &json!({"target": format!("http://u:{password}@tgt.example.com/b")}),
            None,
        )
    };
    assert_eq!(password("one"), password("two"));
    assert_ne!(password("one"), plain);
    assert_eq!(
        id(&json!({"doc_ids": ["a%2Fb", "a/b"]}), None),
        id(&json!({"doc_ids": ["a/b"]}), None)
    );
}

#[test]
fn what_matters() {
    let mut seen = vec![id(&json!({}), None)];
    for members in [
        json!({"skip_deleted": true}),
        json!({"skip_design_docs": true}),
        json!({"selector": {"a": 1, "b": 2}}),
        json!({"selector": {"b": 2, "a": 1}}),
        json!({"source": "https://src.example.com:5984/a"}),
        json!({"source": "http://src.example.com/a?x=1"}),
        json!({"filter": "_view", "query_params": {"view": "dd/v", "b": "1", "a": "2"}}),
        json!({"filter": "_view", "query_params": {"view": "dd/v", "a": "2", "b": "1"}}),
        json!({"since_seq": 12}),
        json!({"since_seq": 12.0}),
    ] {
        let id = id(&members, None);
        assert!(!seen.contains(&id), "{members}");
        seen.push(id);
    }
    let https = id(&json!({"source": "https://src.example.com/a"}), None);
    assert_eq!(
        https,
        id(&json!({"source": "https://src.example.com:443/a"}), None)
    );
}

#[test]
fn older_forms_are_tried_only_when_they_differ() {
    let service = Service {
        uuid: UUID.to_owned(),
        legacy_host: Some(("couch".to_owned(), 5984)),
    };
    let older = |members: &Value| Identity::of(&with(members), &service, None).older;
    assert_eq!(older(&json!({})).len(), 3);
    assert_eq!(older(&json!({"filter": "_design"})).len(), 4);
    assert_eq!(older(&json!({"selector": {"a": 1}})).len(), 4);
    assert_eq!(older(&json!({"selector": {"a\\.b": 1}})).len(), 5);
    assert_eq!(ReplicationId::from_client("abc x y").as_str(), "abc+x+y");
    assert_eq!(ReplicationId::from_client("db|a b").as_str(), "db|a b");
}
