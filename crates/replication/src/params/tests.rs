//! Accepted bodies, and the errors of rejected ones.

use serde_json::{Value, json};

use std::time::Duration;

use super::*;

fn body(members: &Value) -> Json {
    let mut body = json!({"source": "http://s.example/a", "target": "http://t.example/b"});
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    Json::parse(&body.to_string()).unwrap()
}

fn document(members: &Value) -> Result<Replication, Invalid> {
    Replication::from_document(&body(members), &Defaults::default())
}

fn options(members: &Value) -> Options {
    document(members)
        .unwrap_or_else(|error| panic!("{members}: {error}"))
        .options
}

fn refusal(members: &Value) -> String {
    document(members)
        .expect_err(&members.to_string())
        .to_string()
}

#[test]
fn defaults() {
    let options =
        options(&json!({"unknown": {"a": 1}, "_id": "x", "user_ctx": {"name": null, "roles": []}}));
    assert!(
        !options.continuous
            && !options.create_target
            && options.use_checkpoints
            && options.use_bulk_get
    );
    assert_eq!(options.filter, Filter::None);
    assert_eq!(
        (
            options.worker_processes,
            options.worker_batch_size,
            options.http_connections
        ),
        (4, 500, 20)
    );
    assert_eq!(options.connection_timeout, Duration::from_secs(30));
    assert_eq!(options.checkpoint_interval, Duration::from_secs(30));
    assert_eq!(options.retries_per_request, 5);
    assert_eq!(
        options.socket_options,
        SocketOptions {
            keepalive: true,
            nodelay: false
        }
    );
    assert_eq!(options.since_seq, None);
}

#[test]
fn numbers_may_be_strings_and_are_capped() {
    let options = options(&json!({
        "worker_processes": "3", "worker_batch_size": 1_000_000, "http_connections": "1",
        "connection_timeout": 1500, "checkpoint_interval": "1", "retries_per_request": 0,
    }));
    assert_eq!(
        (
            options.worker_processes,
            options.worker_batch_size,
            options.http_connections
        ),
        (3, 10_000, 1)
    );
    assert_eq!(options.connection_timeout, Duration::from_millis(1500));
    assert_eq!(options.checkpoint_interval, Duration::from_millis(1));
    assert_eq!(options.retries_per_request, 0);
}

#[test]
fn enormous_numbers_are_a_lot() {
    let body = r#"{"source": "http://s/a", "target": "http://t/b", "worker_processes": 99999999999999999999999,
        "http_connections": "99999999999999999999999", "connection_timeout": 18446744073709551615,
        "checkpoint_interval": 99999999999999999999999, "retries_per_request": 99999999999999999999999}"#;
    let body = Json::parse(body).unwrap();
    let replication = Replication::from_document(&body, &Defaults::default()).unwrap();
    let options = replication.options;
    assert_eq!(
        (options.worker_processes, options.http_connections),
        (32, 100)
    );
    assert_eq!(options.retries_per_request, u32::MAX);
    // Adding it to the current time, or taking a fraction, must not overflow.
    for interval in [options.connection_timeout, options.checkpoint_interval] {
        assert_eq!(interval, Duration::from_hours(366 * 24));
    }
}

#[test]
fn refusals() {
    let table = r#"
        {"target":null}                        Missing replication endpoint
        {"source":{"junk":42}}                 endpoint has an invalid url
        {"source":"httpx://a"}                 local_endpoints_not_supported
        {"source":"abc"}                       local_endpoints_not_supported
        {"source":5}                           endpoint has an invalid url
        {"source":{"url":"http://a","auth":1}} if defined, `auth` must be an object
        {"source":{"url":"http://a","headers":[]}} if defined `headers` must be an object
        {"proxy":"http://p","source_proxy":"http://q"} `proxy` is mutually exclusive with `source_proxy`
        {"proxy":"http://p","target_proxy":"http://q"} `proxy` is mutually exclusive with `target_proxy`
        {"proxy":"ftp://p"}                    Unsupported proxy protocol
        {"proxy":5}                            Invalid proxy url
        {"cancel":1}                           `cancel` must be a boolean
        {"create_target":"bad"}                `create_target` must be a boolean
        {"create_target_params":[]}            `create_target_params` must be an object
        {"continuous":"true"}                  `continuous` must be a boolean
        {"winning_revs_only":null}             `winning_revs_only` must be a boolean
        {"use_bulk_get":0}                     `use_bulk_get` must be a boolean
        {"use_checkpoints":"no"}               `use_checkpoints` must be a boolean
        {"skip_deleted":1}                     `skip_deleted` must be a boolean
        {"filter":["a"]}                       `filter` must be a string
        {"filter":"a"}                         `filter` must be a string
        {"query_params":"a"}                   `query_params` is not `null` or object
        {"doc_ids":42}                         `doc_ids` must be an array
        {"doc_ids":["a",1]}                    `doc_ids` array must contain strings
        {"doc_ids":[""]}                       `doc_ids` array must contain strings
        {"selector":[]}                        `selector` must be a JSON object
        {"selector":{"a":{"$in":1}}}           Bad argument for operator $in: 1
        {"selector":{"$text":"a"}}             Unsupported operator: $text
        {"doc_ids":[],"selector":{}}           `doc_ids`,`filter`,`selector` are mutually  exclusive
        {"doc_ids":[],"filter":"a/b"}          `doc_ids`,`filter`,`selector` are mutually  exclusive
        {"selector":{},"filter":"a/b"}         `doc_ids`,`filter`,`selector` are mutually  exclusive
        {"filter":"ab"}                        Invalid filter. Must match `ddocname/filtername`.
        {"filter":"_view"}                     Invalid `view` parameter.
        {"filter":"_view","query_params":{"view":"a/b/c"}} Invalid `view` parameter.
        {"worker_processes":"x"}               `worker_processes` must be an integer
        {"worker_batch_size":1.5}              `worker_batch_size` must be an integer
        {"http_connections":0}                 `http_connections` must be an integer of 1 or more
        {"connection_timeout":-1}              `connection_timeout` must be an integer of 1 or more
        {"retries_per_request":"-1"}           `retries_per_request` must be an integer of 0 or more
        {"checkpoint_interval":null}           `checkpoint_interval` must be an integer
        {"socket_options":"junk"}              `socket_options` must be a list of `{name, value}` pairs
        {"socket_options":"[{a,1}{b,2}]"}      `socket_options` must be a list of `{name, value}` pairs
        {"on_write_failure":"explode"}         `on_write_failure` must be `skip` or `stop`
        {"filter_where":1}                     `filter_where` must be `source` or `replicator`
        {"checkpoints":"source"}               `checkpoints` must be `both` or `target`
    "#;
    for line in table.trim().lines() {
        let split = line.rfind("} ").unwrap() + 1;
        // A reason may contain braces.
        let split = line.find("}  ").map_or(split, |at| at + 1);
        let split = if line.contains("pairs") {
            line.find("\"} ").unwrap() + 2
        } else {
            split
        };
        let (members, reason) = line.split_at(split);
        assert_eq!(
            refusal(&serde_json::from_str(members).unwrap()),
            reason.trim()
        );
    }
}

#[test]
fn endpoints_are_required() {
    let parse =
        |text: &str| Replication::from_document(&Json::parse(text).unwrap(), &Defaults::default());
    let reason = |text: &str| parse(text).unwrap_err().to_string();
    assert_eq!(reason("{}"), "Missing `source` field");
    assert_eq!(reason(r#"{"target":"http://a"}"#), "Missing `source` field");
    assert_eq!(reason(r#"{"source":"http://a"}"#), "Missing `target` field");
    assert_eq!(reason("[]"), "Replication must be a JSON object");
    // Options are validated before endpoints.
    assert_eq!(reason(r#"{"cancel":1}"#), "`cancel` must be a boolean");
}

#[test]
fn filters() {
    let filter = |members| options(&members).filter;
    assert_eq!(
        filter(json!({"doc_ids": null, "query_params": null})),
        Filter::None
    );
    assert_eq!(
        filter(json!({"doc_ids": ["b", "a", "_design%2Ffoo", "b", "100%", "%zz", "a+b", "%ff"]})),
        Filter::DocIds(
            ["%ff", "%zz", "100%", "_design/foo", "a", "a+b", "b"]
                .map(str::to_owned)
                .to_vec()
        )
    );
    let user = filter(json!({"filter": "dd/f/g", "query_params": {"a": 1}}));
    let Filter::User {
        design_doc,
        name,
        query_params,
    } = user
    else {
        panic!("{user:?}")
    };
    assert_eq!(
        (
            design_doc.as_str(),
            name.as_str(),
            query_params.to_string().as_str()
        ),
        ("dd", "f/g", r#"{"a":1}"#)
    );
    assert!(matches!(
        filter(json!({"filter": "_design"})),
        Filter::BuiltIn { .. }
    ));
    assert!(matches!(
        filter(json!({"selector": {}})),
        Filter::Selector(_)
    ));
}

#[test]
fn socket_options() {
    let read = |text: &str| options(&json!({"socket_options": text})).socket_options;
    let on = |keepalive, nodelay| SocketOptions { keepalive, nodelay };
    assert_eq!(
        read("[{keepalive, false}, {nodelay, true}]"),
        on(false, true)
    );
    assert_eq!(read("[]."), on(false, false));
    assert_eq!(
        read("[ {sndbuf,1024} , {keepalive,true} ]"),
        on(true, false)
    );
}

#[test]
fn sameness() {
    let plain = document(&json!({})).unwrap();
    assert_eq!(
        plain,
        document(&json!({"owner": "a", "doc_ids": null, "worker_processes": 4})).unwrap()
    );
    assert_ne!(plain, document(&json!({"worker_processes": 5})).unwrap());
    assert_ne!(
        plain,
        document(&json!({"source": "http://u:p@s.example/a"})).unwrap()
    );
    let ids = |ids: Value| document(&json!({"doc_ids": ids})).unwrap();
    assert_eq!(ids(json!(["a", "b"])), ids(json!(["b", "a", "a"])));
    let selector = |a: Value| document(&json!({"selector": a})).unwrap();
    assert_eq!(selector(json!({"a": 1})), selector(json!({"a": 1})));
    assert_ne!(selector(json!({"a": 1})), selector(json!({"a": 1.0})));
}

#[test]
fn requests() {
    let request = |text: &str| {
        Replication::from_request(&Json::parse(text).unwrap(), None, &Defaults::default())
    };
    for name in ["_local_id", "replication_id", "id"] {
        let given = format!(r#"{{"cancel":true,"{name}":"abc continuous"}}"#);
        let expected = Request::CancelId(ReplicationId::from_client("abc+continuous"));
        assert_eq!(request(&given), Ok(expected));
    }
    let ends = r#""source":"http://s/a","target":"http://t/b""#;
    assert!(matches!(
        request(&format!("{{{ends}}}")),
        Ok(Request::Start(_))
    ));
    assert!(matches!(
        request(&format!(r#"{{{ends},"id":"x"}}"#)),
        Ok(Request::Start(_))
    ));
    assert!(matches!(
        request(&format!(r#"{{{ends},"cancel":true}}"#)),
        Ok(Request::Cancel(_))
    ));
    let reason = |text: &str| request(text).unwrap_err().to_string();
    assert_eq!(reason(r#"{"cancel":true}"#), "Missing `source` field");
    assert_eq!(
        reason(&format!(r#"{{{ends},"query_params":{{"k":1}}}}"#)),
        "k value must be a string."
    );
}
