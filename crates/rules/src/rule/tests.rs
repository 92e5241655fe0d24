mod refused;

use std::sync::Arc;

use docstore::InstanceId;
use document::json::Json;
use serde_json::{Value, json};

use super::call::{Call, Hidden, Sign};
use super::javascript::string_of;
use super::{Captures, Change, Compiled, Invalid, Rule, RuleId, Set, Since, Task, Webhook};
use crate::source::{Source, SourceOptions};

pub(super) const NO_CAPTURES: Captures = Captures::new();

pub(super) fn json_of(text: &str) -> Json {
    Json::parse(text).unwrap()
}

fn parse(body: &Value) -> Result<Rule, Invalid> {
    Rule::parse(&json_of(&body.to_string())).map(Option::unwrap)
}

pub(super) fn rule(body: &Value) -> Rule {
    parse(body).unwrap()
}

/// An `on_change` rule with these members.
pub(super) fn webhook(body: &Value) -> Webhook {
    let mut body = body.clone();
    body["type"] = json!("on_change");
    match rule(&body).task {
        Task::Call(webhook) => *webhook,
        Task::Replicate(_) | Task::Copy(_) => panic!("a replication"),
    }
}

pub(super) fn call_of(rule: &Webhook, db: &str, doc: &str, seq: &str, captures: &Captures) -> Call {
    try_call(rule, db, doc, seq, captures).unwrap()
}

fn try_call(
    rule: &Webhook,
    db: &str,
    doc: &str,
    seq: &str,
    captures: &Captures,
) -> Result<Call, super::Unsendable> {
    let (doc, seq) = (json_of(doc), json_of(seq));
    let text = |name| doc.get(name).and_then(Json::as_str).unwrap_or_default();
    let change = Change {
        source: "main",
        db,
        captures,
        doc_id: text("_id"),
        rev: text("_rev"),
        doc: &doc,
        seq: &seq,
    };
    rule.call("_rules", "rule", &change)
}

pub(super) fn set(bodies: &[Value]) -> Set {
    let compiled = bodies.iter().enumerate().map(|(nth, body)| {
        Arc::new(Compiled {
            id: RuleId {
                instance: InstanceId([0; 16]),
                doc: format!("r{nth:05}"),
            },
            db: "_rules".to_owned(),
            rev: "1-a".to_owned(),
            ended: None,
            rule: Rule::accepted(&json_of(&body.to_string()))
                .unwrap()
                .unwrap(),
        })
    });
    Set::new(compiled)
}

pub(super) fn source(url: &str) -> Source {
    let options = SourceOptions {
        url: url.to_owned(),
        ..SourceOptions::default()
    };
    options.source("main", |_| None).unwrap()
}

pub(super) fn matching(set: &Set, name: &str) -> Vec<String> {
    let source = source("http://admin:x@h:5984/");
    let found = set.matching(&source, name).into_iter();
    found
        .map(|(rule, captures)| {
            let captures = captures
                .iter()
                .map(|(name, text)| format!(" {name}={text}"));
            format!("{}{}", rule.id.doc, captures.collect::<String>())
        })
        .collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn mistakes_are_named_with_their_place() {
    let on = |members: Value| {
        let mut body = json!({"type": "on_change", "url": "http://h/"});
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        body
    };
    let replicator = |members: Value| {
        let mut body =
            json!({"type": "replicator", "source": "http://h/a", "target": "http://h/b"});
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        body
    };
    let secret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for (body, expected) in [
        (json!({}), "`type`: is missing"),
        (json!({"type": "user"}), "`type`: must be"),
        (json!({"type": "on_change"}), "`url`: is missing"),
        (on(json!({"url": 7})), "`url`: must be a string"),
        (on(json!({"url": "api/x"})), "`url`: must be a URL"),
        (on(json!({"url": "ftp://h/"})), "`url`: must be a URL"),
        (
            on(json!({"url": "${db_name}://h/"})),
            "`${db_name}` at character 1 could change the server",
        ),
        (
            on(json!({"url": "http://${db_name}/"})),
            "at character 8 could change the server",
        ),
        (
            on(json!({"url": "http://h${seq}"})),
            "at character 9 could change the server",
        ),
        (
            on(json!({"url": "http://h\\${seq}/"})),
            "could change the server",
        ),
        (
            on(json!({"url": "http://h/${x}"})),
            "`${x}` at character 10 is unknown; use `${db_name}`",
        ),
        (
            on(json!({"url": "http://h/é${seq"})),
            "at character 11 is not closed",
        ),
        (
            on(json!({"url": "http://h/${change}"})),
            "use `${change.id}`",
        ),
        (
            on(json!({"db_name": "a("})),
            "`db_name`: the regular expression cannot be used at character 2:",
        ),
        (
            on(json!({"match": {"database": "[b-a]"}})),
            "`match.database`: the regular expression",
        ),
        (
            on(json!({"match": {"databases": "a"}})),
            "`match.databases`: is unknown; use `database`, `events`",
        ),
        (
            on(json!({"match": {"events": ["created", "changed"]}})),
            "`match.events`: must be `[\"created\"]` for databases that are created from now on",
        ),
        (
            on(json!({"match": {"events": ["deleted"]}})),
            "`match.events`: must be",
        ),
        (on(json!({"match": "a"})), "`match`: must be an object"),
        (
            on(json!({"match": {"database": "a"}, "db_name": "b"})),
            "`db_name`: names the databases twice",
        ),
        (
            on(json!({"db_name": "(?<seq>a)"})),
            "`match`: the name `seq` of a group is that of a variable",
        ),
        (
            on(json!({"if": {"type": "*"}})),
            "`if.type`: the regular expression cannot be used at character 1",
        ),
        (
            on(json!({"if": {"n": 7}})),
            "`if.n`: must be a regular expression, as a string, or null",
        ),
        (on(json!({"if": "x"})), "`if`: must be an object"),
        (
            on(json!({"selector": {"a": {"$no": 1}}})),
            "`selector`: Invalid operator: $no",
        ),
        (
            on(json!({"params": "x"})),
            "`params`: must be an object, because a GET request",
        ),
        (
            on(json!({"method": "BREW"})),
            "`method`: must be one of GET",
        ),
        (
            on(json!({"block": "yes"})),
            "`block`: must be true or false",
        ),
        (on(json!({"since": true})), "`since`: must be"),
        (on(json!({"since": 1.5})), "`since`: must be"),
        (
            on(json!({"timeout_sec": "7"})),
            "`timeout_sec`: must be a number from 0",
        ),
        (
            on(json!({"headers": {"a b": "c"}})),
            "`headers.a b`: is not the name of a header",
        ),
        (
            on(json!({"headers": {"X": "a\r\nb: c"}})),
            "`headers.X`: must be a string of printable",
        ),
        (
            on(json!({"headers": {"Webhook-Id": "a"}})),
            "`headers.Webhook-Id`: is set by the service",
        ),
        (
            on(json!({"secret": "hunter2"})),
            "`secret`: must be `whsec_`",
        ),
        (on(json!({"sign": "v1"})), "`sign`: needs a secret"),
        (
            on(json!({"sign": "none", "secret": secret})),
            "`sign`: leaves the secret unused",
        ),
        (
            on(json!({"secret": secret, "secret_ref": "x"})),
            "`secret_ref`: names a second secret",
        ),
        (
            on(json!({"retry": {"limit": -1}})),
            "`retry.limit`: must be a whole number",
        ),
        (
            on(json!({"retry": {"times": 1}})),
            "`retry.times`: is unknown",
        ),
        (
            on(json!({"retry": {"multiplier": 0.5}})),
            "`retry.multiplier`: must be a number from 1 to 100",
        ),
        (
            on(json!({"trigger": {"min_changes": 1}})),
            "`trigger.min_changes`: is unknown",
        ),
        (
            on(json!({"trigger": {"delay_sec": 1}, "dirty_after_milliseconds": 1})),
            "`dirty_after_milliseconds`: is `trigger.delay_sec`",
        ),
        (
            json!({"type": "replicator", "source": "http://h/a"}),
            "`target`: is missing",
        ),
        (
            replicator(json!({"source": "a"})),
            "`source`: must be a URL",
        ),
        (
            replicator(json!({"source": {"auth": {}}})),
            "`source.url`: is missing",
        ),
        (
            replicator(json!({"source": "http://h/${seq}"})),
            "`${seq}` at character 10 is unknown",
        ),
        (
            replicator(json!({"source": "http://h/${db_name}/b"})),
            "`source`: may have variables only in the name",
        ),
        (
            replicator(json!({"target": {"url": "http://${db_name}/b"}})),
            "`target.url`: `${db_name}` at character 8",
        ),
        (
            replicator(json!({"db_name": "a"})),
            "`db_name`: is of documents of type `on_change`",
        ),
        (replicator(json!({"filter": 7})), "`filter` "),
    ] {
        let refused = parse(&body).unwrap_err().to_string();
        assert!(refused.contains(expected), "{body}: {refused}");
    }
    let refused = parse(&on(json!({"db_name": "é(b"}))).unwrap_err();
    assert_eq!((&*refused.path, refused.at), ("db_name", Some(1)));
}

#[test]
fn members_of_calls_are_read() {
    let secret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let rule = webhook(&json!({
        "url": "https://u:p%40ss@h/${name}", "method": "patch", "db_name": "^user_(?<name>.*)$",
        "headers": {"X-Team": "shop"}, "secret": secret, "timeout_sec": 2.5, "since": 0,
        "retry": {"delay_sec": 0.5, "multiplier": 3, "max_delay_sec": 60, "limit": 7},
        "trigger": {"delay_sec": 1.5, "min_interval_sec": 9},
    }));
    let captures = Captures::from([("name".to_owned(), "joe".to_owned())]);
    let call = call_of(
        &rule,
        "user_joe",
        r#"{"_id":"a","_rev":"1-b"}"#,
        "[7,\"x\"]",
        &captures,
    );
    let target = call.target.as_ref().unwrap();
    assert_eq!(call.url, "https://h/joe");
    assert_eq!(target.url.as_str(), "https://u:p%40ss@h/joe");
    assert_eq!(call.method, "PATCH");
    assert_eq!(target.headers, [("X-Team".to_owned(), "shop".to_owned())]);
    assert_eq!(call.body.as_deref(), Some("{}"));
    assert_eq!(target.sign, Some(Sign::Secret(Hidden(secret.to_owned()))));
    assert_eq!(
        (call.timeout_sec, call.seq.as_str()),
        (Some(2.5), "[7,\"x\"]")
    );
    assert_eq!((call.retry.multiplier, call.retry.limit), (3.0, Some(7)));
    assert_eq!(
        (rule.pace.delay_sec, rule.pace.min_interval_sec),
        (1.5, 9.0)
    );
    assert_eq!(rule.since, Since::Seq("0".to_owned()));
    let kept: Call = serde_json::from_str(&serde_json::to_string(&call).unwrap()).unwrap();
    let stored = Call {
        target: None,
        ..call.clone()
    };
    assert_eq!(kept, stored);
    let shown = format!("{call:?} {rule:?}");
    assert!(
        !shown.contains("p%40ss") && !shown.contains("whsec_AAA"),
        "{shown}"
    );
}

#[test]
fn values_change_no_server_and_no_path() {
    let rule = webhook(&json!({"url": "http://h/x/${change.id}/y"}));
    for id in [".", "..", ""] {
        let doc = json!({"_id": id, "_rev": "1-a"}).to_string();
        let call = try_call(&rule, "db", &doc, "1", &NO_CAPTURES);
        assert_eq!(call.is_err(), !id.is_empty(), "{id:?}");
    }
    for url in [
        "http://h/x/.${change.id}",
        "http://h/x/${change.id}",
        "http://h/x/${change.id}?a=b",
        "http://h/${change.id}",
    ] {
        let dots = webhook(&json!({"url": url}));
        let call = try_call(&dots, "db", r#"{"_id":"."}"#, "1", &NO_CAPTURES);
        assert!(call.is_err(), "{url}");
    }
    for url in ["http://h?${change.id}", "http://h/x/?${change.id}"] {
        let dots = webhook(&json!({"url": url}));
        let call = try_call(&dots, "db", r#"{"_id":"."}"#, "1", &NO_CAPTURES);
        assert!(call.is_ok(), "{url}");
    }
}

#[test]
fn one_rule_is_about_many_databases() {
    let body = json!({
        "type": "replicator", "source": "http://app@h:5984/user_${name}",
        "target": {"url": "http://app@t/all_${name}", "auth": {"bearer": "x"}},
        "match": {"database": "^user_(?<name>.+)$", "events": ["created"]}, "filter": "a/b",
    });
    let set = set(&[body]);
    assert_eq!(matching(&set, "user_a/b"), ["r00000 name=a/b"]);
    assert!(matching(&set, "other").is_empty());
    let captures = Captures::from([("name".to_owned(), "a/b".to_owned())]);
    let rule = set.iter().next().unwrap();
    let ruled = rule.replications("user_a/b", &captures).remove(0).unwrap();
    assert_eq!(
        (&*ruled.doc_id, ruled.database.as_deref()),
        ("r00000", Some("user_a/b"))
    );
    assert_eq!(
        ruled.body.to_string(),
        r#"{"source":"http://app:@h:5984/user_a%2Fb","target":{"url":"http://app@t/all_a%2Fb","auth":{"bearer":"x"}},"filter":"a/b","trigger":"changes"}"#
    );
}

#[test]
fn long_ids_are_hashed() {
    let id = |doc: &str| {
        let (instance, doc) = (InstanceId([1; 16]), doc.to_owned());
        RuleId { instance, doc }.job(&["main", &"é".repeat(100)], None)
    };
    assert!(id("r").to_string().ends_with("|r"));
    let (one, two) = (id(&"é".repeat(200)), id(&"é".repeat(201)));
    assert!(one.as_bytes().len() <= jobs::ID_BYTES_MAX && one != two);
}

#[test]
fn replications_follow_their_own_server() {
    let to = |source: &str| json!({"type": "replicator", "source": source, "target": "http://t/b"});
    let mut anywhere = to("http://elsewhere/a");
    anywhere["match"] = json!("name_only");
    let set = set(&[
        to("http://user@h:5984/a"),
        to("http://h:5984/a/"),
        to("http://h/a"),
        to("http://h:5984/below/a"),
        anywhere,
        to("http://h:5984/b"),
        to("http://h:5984/x%2Fy"),
    ]);
    assert_eq!(matching(&set, "a"), ["r00000", "r00001", "r00004"]);
    assert_eq!(matching(&set, "x/y"), ["r00006"]);
}

#[test]
fn names_match_as_they_are_and_as_they_stand_in_urls() {
    let on = |pattern: &str| json!({"type": "on_change", "db_name": pattern, "url": "http://h/"});
    let own = json!({"type": "on_change", "match": {"database": "^a%2Fb$"}, "url": "http://h/"});
    let set = set(&[
        on("^a%2Fb$"),
        on("^a/b$"),
        on("%2F(?<rest>.)$"),
        own,
        on("^a%"),
        json!({"type": "on_change", "url": "http://h/"}),
    ]);
    assert_eq!(
        matching(&set, "a/b"),
        ["r00000", "r00001", "r00002 rest=b", "r00004", "r00005"]
    );
}

#[test]
fn disabled_rules_match_nothing() {
    let set = set(&[json!({"type": "on_change", "url": "http://h/", "enabled": false})]);
    assert!(matching(&set, "a").is_empty());
}

#[test]
fn rules_about_other_names_are_not_tested() {
    let bodies: Vec<_> = (0..10_000)
        .map(|nth| {
            let pattern = if nth % 2 == 0 {
                format!("^db_{nth}$")
            } else {
                format!("^db_{nth}_.*$")
            };
            json!({"type": "on_change", "db_name": pattern, "url": "http://h/"})
        })
        .collect();
    let set = set(&bodies);
    assert_eq!(matching(&set, "db_4242"), ["r04242"]);
    assert_eq!(matching(&set, "db_4243_x"), ["r04243"]);
}

#[test]
fn members_are_tested_as_javascript_prints_them() {
    let doc = r#"{"n":1.0,"big":123456789012345678901234,"small":1e-7,"tiny":0.000001,"neg":-0,"half":-1.5e3,"f":0.1,
        "e21":1e21,"e20":100000000000000000000,"max":1e999,"l":[1,null,"a",[true,{}]],"o":{"a":[5,{"b/c":"deep"}]},
        "/n":"slash","t":true,"z":null,"s":"é"}"#;
    let doc = json_of(doc);
    for (name, expected) in [
        ("n", "1"),
        ("big", "1.2345678901234569e+23"),
        ("small", "1e-7"),
        ("tiny", "0.000001"),
        ("neg", "0"),
        ("half", "-1500"),
        ("f", "0.1"),
        ("e21", "1e+21"),
        ("e20", "100000000000000000000"),
        ("max", "Infinity"),
        ("l", "1,,a,true,[object Object]"),
        ("o", "[object Object]"),
        ("/n", "slash"),
        ("/o/a/0", "5"),
        ("/o/a/1/b~1c", "deep"),
        ("/o/a/2", "undefined"),
        ("t", "true"),
        ("z", "null"),
        ("s", "é"),
        ("_deleted", "undefined"),
    ] {
        let value = super::javascript::property(&doc, name);
        assert_eq!(string_of(value), expected, "{name}");
    }
    let rule =
        webhook(&json!({"url": "http://h/", "if": {"_deleted": "undefined", "/o/a/0": "^5$"}}));
    assert!(rule.accepts(&doc).unwrap());
}
