//! Documents of remotes.

use serde_json::{Value, json};

use super::super::tests::{json_of, rule};
use super::super::{Captures, Compiled, Rule, RuleId, Set};
use super::*;

fn eu() -> Value {
    json!({
        "type": "remote", "source": "http://repl@us:5984/${name}",
        "url": ["https://repl@eu1/${name}", {"url": "https://eu2/x_${name}", "auth": {"bearer": "t"}}],
        "databases": ["^app_.*", "shared", "tenant/*"], "exclude_databases": ["^app_tmp_"],
        "replication_delay_sec": 15, "random_delay_sec": 0.5, "threads": 8,
        "retry": {"delay_sec": 30, "limit": 3}, "create_missing": true, "copy_security": true,
    })
}

/// The remote with one member replaced, or removed.
fn with(name: &str, value: &Value) -> Value {
    let mut body = eu();
    if value.is_null() {
        body.as_object_mut().unwrap().remove(name);
    } else {
        body[name] = value.clone();
    }
    body
}

fn refusal(body: &Value) -> String {
    Rule::parse(&json_of(&body.to_string()))
        .unwrap_err()
        .to_string()
}

fn compiled(body: &Value) -> Compiled {
    Compiled {
        id: RuleId {
            instance: docstore::InstanceId([0; 16]),
            doc: "eu".to_owned(),
        },
        db: "_rules".to_owned(),
        rev: "1-a".to_owned(),
        ended: None,
        rule: rule(body),
    }
}

#[test]
fn each_url_is_a_replication() {
    let remote = compiled(&eu());
    let set = Set::new([std::sync::Arc::new(remote)]);
    let source = super::super::tests::source("http://us:5984");
    let found = set.matching(&source, "app_a/b");
    let (remote, captures) = &found[0];
    let ruled = remote.replications("app_a/b", captures);
    let ruled: Vec<_> = ruled.into_iter().map(Result::unwrap).collect();
    assert_eq!(
        ruled[0].body.to_string(),
        r#"{"source":"http://repl:@us:5984/app_a%2Fb","target":"https://repl:@eu1/app_a%2Fb","create_target":true,"trigger":{"delay_sec":15,"random_delay_sec":0.5}}"#
    );
    let second = &ruled[1];
    assert_eq!(
        second
            .body
            .get("target")
            .unwrap()
            .get("url")
            .unwrap()
            .as_str(),
        Some("https://eu2/x_app_a%2Fb")
    );
    let job = second.remote.as_ref().unwrap();
    assert_eq!(
        (&*job.name, job.retry_ms, job.retries_max, job.copy_security),
        ("eu", 30_000, 3, true)
    );
    assert_ne!(job.url, ruled[0].remote.as_ref().unwrap().url);
    assert_eq!(second.database.as_deref(), Some("app_a/b"));
    assert!(set.matching(&source, "other").is_empty());
    let elsewhere = super::super::tests::source("http://us:5985");
    assert!(set.matching(&elsewhere, "app_a").is_empty());
}

#[test]
fn urls_are_told_apart_by_what_they_name() {
    let keys = |body: &Value| {
        let remote = compiled(body);
        let ruled = remote.replications("app_a", &Captures::new());
        ruled
            .into_iter()
            .map(|ruled| ruled.unwrap().remote.unwrap().url)
            .collect::<Vec<_>>()
    };
    let both = keys(&eu());
    let swapped = with(
        "url",
        &json!(["https://eu2/x_${name}", "https://other:pw@eu1/${name}"]),
    );
    assert_eq!(keys(&swapped), [both[1].clone(), both[0].clone()]);
}

#[test]
fn databases_are_named_begun_or_matched() {
    let matches = |body: &Value, names: &[&str]| {
        let rule = rule(body);
        let about = |name: &&&str| rule.databases.captures_by_name(name).is_some();
        names
            .iter()
            .filter(about)
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let names = [
        "app_",
        "app_x",
        "app_tmp_x",
        "shared",
        "shared2",
        "tenant/a",
        "tenan",
        "_users",
        "_app_",
    ];
    assert_eq!(
        matches(&eu(), &names),
        ["app_", "app_x", "shared", "tenant/a"]
    );
    let mut all = with("databases", &Value::Null);
    assert_eq!(matches(&all, &["a", "_users", "app_tmp_x"]), ["a"]);
    all["databases"] = json!(["_users", "^_.*"]);
    assert_eq!(matches(&all, &["_users", "_replicator"]), ["_users"]);
    // Copies on the source's own server are not copied.
    all["databases"] = json!(["*"]);
    all["url"] = json!("http://us:5984/copy_${name}_eu");
    assert_eq!(
        matches(&all, &["a", "copy_a_eu", "copy_copy_a_eu_eu", "copy__eu"]),
        ["a", "copy__eu"]
    );
    all["url"] = json!("http://us:5984/backup%2F${name}%2Beu");
    assert_eq!(matches(&all, &["a", "backup/a+eu"]), ["a"]);
}

#[test]
fn a_single_database_needs_no_variable() {
    let mut one = with("databases", &json!(["shop"]));
    (one["source"], one["url"]) = (json!("http://us/shop"), json!("http://eu/shop_copy"));
    let one = rule(&one);
    assert!(one.databases.captures_by_name("shop").is_some());
    assert!(one.databases.captures_by_name("x").is_none());
    let mut defaults =
        json!({"type": "remote", "source": "http://us/${name}", "url": "http://eu/${db_name}"});
    let remote = compiled(&defaults);
    let remote = remote.remote().unwrap();
    assert_eq!((remote.threads, remote.retries_max), (4, 0));
    assert_eq!(
        (remote.delay_sec, remote.random_delay_sec, remote.retry_sec),
        (15.0, 1.0, 60.0)
    );
    assert!(!remote.create_missing && !remote.copy_security);
    assert_eq!(remote.urls().collect::<Vec<_>>(), ["http://eu/${db_name}"]);
    defaults["url"] = json!("http://bob:pw@eu/${name}?x=1");
    let remote = compiled(&defaults);
    assert_eq!(
        remote.remote().unwrap().urls().collect::<Vec<_>>(),
        ["http://eu/${name}"]
    );
}

/// Its changes would start copies of another.
#[test]
fn one_database_is_that_of_the_source() {
    let from = |source: &str| {
        let mut body = eu();
        body["databases"] = json!(["app/a"]);
        body["source"] = json!(source);
        body["url"] = json!("http://eu/b");
        body
    };
    for source in ["http://us/app%2Fa", "http://us/${name}"] {
        rule(&from(source));
    }
    assert_eq!(
        refusal(&from("http://us/c")),
        "`source`: is `c`, but `databases` has only `app/a`; end it with `${name}`"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn what_is_wrong_is_named() {
    for (name, value, told) in [
        ("source", Value::Null, "`source`: is missing"),
        (
            "source",
            json!("http://us/a"),
            "`source`: must contain `${name}`",
        ),
        (
            "source",
            json!("http://us/${name}/x"),
            "`source`: may have variables only in the name",
        ),
        ("url", Value::Null, "`url`: is missing"),
        (
            "url",
            json!([]),
            "`url`: must be a URL or a list of 1 to 100 URLs",
        ),
        (
            "url",
            json!(["http://eu/a"]),
            "`url[0]`: must contain `${name}`",
        ),
        (
            "url",
            json!(["http://eu/${name}", 7]),
            "`url[1]`: must be a URL, or an object",
        ),
        (
            "url",
            json!(["http://a/${name}", "http://b:c@a/${name}"]),
            "`url[1]`: is the source, or is listed twice",
        ),
        (
            "url",
            json!("http://u@us:5984/${name}"),
            "`url`: is the source, or is listed twice",
        ),
        (
            "url",
            json!("http://eu/${other}"),
            "use `${db_name}`, `${name}`",
        ),
        ("url", json!("http://${name}/a"), "could change the server"),
        ("databases", json!("a"), "`databases`: must be a list"),
        ("databases", json!([]), "`databases`: must be a list"),
        (
            "databases",
            json!(["a", 1]),
            "`databases[1]`: must be a string",
        ),
        (
            "exclude_databases",
            json!(["^("]),
            "`exclude_databases[0]`: the regular expression cannot be used at character",
        ),
        (
            "threads",
            json!(0),
            "`threads`: must be a whole number from 1 to 10,000",
        ),
        ("threads", json!("8"), "`threads`: must be a whole number"),
        (
            "retry",
            json!({"max": 1}),
            "`retry.max`: is unknown; use `delay_sec`, `limit`",
        ),
        (
            "replication_delay_sec",
            json!(-1),
            "`replication_delay_sec`: must be a number",
        ),
        (
            "copy_security",
            json!("yes"),
            "`copy_security`: must be true or false",
        ),
        (
            "replicationDelay",
            json!(15),
            "`replicationDelay`: is unknown; use `type`, `enabled`, `source`, `url`",
        ),
    ] {
        let shown = refusal(&with(name, &value));
        assert!(shown.contains(told), "{name} {value}: {shown}");
    }
    let shown = refusal(&with("url", &json!("http://eu/${other}")));
    assert!(!shown.contains("group"), "{shown}");
    assert!(rule(&with("_comment", &json!("x"))).enabled);
}

#[test]
fn names_have_no_slash_and_are_short() {
    assert!(check_id("_rules", "eu").is_ok());
    assert!(
        check_id("_rules", "a/b")
            .unwrap_err()
            .reason
            .contains("must not contain `/`")
    );
    assert!(check_id("_rules", &"x".repeat(200)).is_ok());
    assert!(
        check_id("a/_rules", &"x".repeat(200))
            .unwrap_err()
            .reason
            .contains("200 bytes")
    );
}

#[test]
fn a_request_names_databases_or_none() {
    let one = Names::of(&json_of(r#"["shared"]"#)).unwrap();
    assert_eq!(one.exact(), Some("shared"));
    for given in ["null", "[]", r#""shared""#] {
        let refused = Names::of(&json_of(given)).unwrap_err().to_string();
        assert!(refused.contains("must be a list of names"), "{refused}");
    }
}
