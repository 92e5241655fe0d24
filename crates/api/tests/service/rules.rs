//! Databases of rules.

use serde_json::{Value, json};

use crate::fixture::{Fixture, Setting, User};

fn rule() -> Value {
    json!({
        "type": "on_change", "db_name": "^user_(?<name>.*)$", "url": "https://u:hunter2@h/${name}/${change.id}",
        "method": "POST", "params": {"doc": "$change", "version": 2}, "headers": {"X-Token": "hunter3"},
        "if": {"type": "^msg$"},
    })
}

async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    for name in ["_rules", "shop%2F_rules", "spiegel"] {
        fixture
            .root()
            .put(&format!("/{name}"), &json!({}))
            .await
            .gives(201);
    }
    fixture
}

#[tokio::test]
async fn rules_are_documents_like_others() {
    let fixture = fixture().await;
    let root = fixture.root();
    for db in ["_rules", "shop/_rules", "spiegel"] {
        let path = format!("/{db}/r");
        let rev = root.put(&path, &rule()).await.gives(201)["rev"].clone();
        let mut read = root.get(&path).await.gives(200);
        assert_eq!(
            (read["_rev"].take(), &read["url"]),
            (rev.clone(), &rule()["url"])
        );
        let listed = root
            .get(&format!("/{db}/_all_docs?include_docs=true"))
            .await
            .gives(200);
        assert_eq!(listed["rows"][0]["doc"]["headers"], rule()["headers"]);
        let changes = root.get(&format!("/{db}/_changes")).await.gives(200);
        assert_eq!(changes["results"][0]["id"], "r");
        let path = format!("{path}?rev={}", rev.as_str().unwrap());
        root.delete(&path).await.gives(200);
    }
    root.put("/a%2Fspiegel", &json!({})).await.refuses(
        400,
        "illegal_database_name",
        "Name: 'a/spiegel'. Only lowercase characters (a-z), digits (0-9), and any of the characters _, $, (, ), +, -, and / are allowed. Must begin with a letter.",
    );
    root.delete("/shop%2F_rules").await.gives(200);
    let names = root.get("/_all_dbs").await.gives(200);
    assert_eq!(names, json!(["_replicator", "_rules", "_users", "spiegel"]));
}

#[tokio::test]
async fn rules_are_checked_on_every_write() {
    let fixture = fixture().await;
    let root = fixture.root();
    let mut bad = rule();
    bad["db_name"] = json!("a(");
    let reason = "`db_name`: the regular expression cannot be used at character 2: the group is not closed; add a `)`";
    root.put("/_rules/r", &bad)
        .await
        .refuses(403, "forbidden", reason);
    root.post("/_rules", &bad)
        .await
        .refuses(403, "forbidden", reason);
    bad["_id"] = json!("r");
    let mut good = rule();
    good["_id"] = json!("g");
    let written = root
        .post("/_rules/_bulk_docs", &json!({"docs": [bad, good]}))
        .await
        .gives(201);
    assert_eq!(
        (&written[0]["reason"], &written[1]["ok"]),
        (&json!(reason), &json!(true))
    );
    bad["_rev"] = json!("1-a");
    let replicated = json!({"docs": [bad], "new_edits": false});
    let written = root
        .post("/_rules/_bulk_docs", &replicated)
        .await
        .gives(201);
    assert_eq!(written[0]["reason"], reason);
    let design = root.put("/_rules/_design/x", &json!({"views": {}})).await;
    assert_eq!(design.gives(403)["error"], "forbidden");
    root.put("/_rules/_local/x", &json!({"a": 1}))
        .await
        .gives(201);
    let security = json!({"admins": {"names": ["joe"]}});
    let refused = root.put("/_rules/_security", &security).await;
    refused.refuses(
        403,
        "forbidden",
        "The security of rules cannot be changed: administrators only.",
    );
}

async fn test(root: &User<'_>, body: &Value) -> Value {
    let answer = root.post("/_rules/_test", body).await;
    assert!(!answer.text.contains("hunter"), "{}", answer.text);
    answer.gives(200)
}

#[tokio::test]
async fn a_rule_can_be_tried() {
    let fixture = fixture().await;
    let root = fixture.root();
    let change = json!({"doc": {"_id": "a/b", "_rev": "1-x", "type": "msg"}, "seq": "7-z"});
    let mut accepting = rule();
    accepting["headers"]["Accept"] = json!("text/plain");
    let url = accepting["url"].as_str().unwrap();
    accepting["url"] = json!(format!("{url}?token=hunter3"));
    let tried = test(
        &root,
        &json!({"rule": accepting, "databases": ["user_joe", "x"], "change": change}),
    )
    .await;
    let headers = json!({"X-Token": "***", "Accept": "text/plain"});
    let expected = json!({"ok": true, "enabled": true, "warnings": [], "databases": [
        {
            "name": "user_joe", "matches": true, "captures": {"name": "joe"}, "accepts": true,
            "call": {
                "method": "POST", "url": "https://h/joe/a%2Fb?***", "headers": headers,
                "body": {"doc": change["doc"], "version": 2}, "sign": null, "debounce": false,
            },
        },
        {"name": "x", "matches": false},
    ]});
    assert_eq!(tried, expected);
    root.put("/_rules/r", &rule()).await.gives(201);
    let tried = test(&root, &json!({"id": "r", "databases": ["user_joe"]})).await;
    assert_eq!(tried["databases"][0]["accepts"], false);

    let replicator = json!({
        "type": "replicator", "source": "http://u:hunter2@h/user_${name}", "target": {"url": "http://u:hunter2@t/all"},
        "match": {"database": "^user_(?<name>.*)$"},
    });
    let tried = test(
        &root,
        &json!({"rule": replicator, "databases": ["user_joe"]}),
    )
    .await;
    let expected =
        json!({"source": "http://h/user_joe/", "target": "http://t/all/", "trigger": "changes"});
    assert_eq!(tried["databases"][0]["replication"], expected);

    let mut bad = rule();
    bad["if"] = json!({"type": "[b-a]"});
    let tried = test(&root, &json!({"rule": bad})).await;
    assert_eq!(
        (&tried["ok"], &tried["path"], &tried["at"]),
        (&json!(false), &json!("if.type"), &json!(1))
    );

    root.post("/_rules/_test", &json!({"id": "none"}))
        .await
        .gives(404);
    for body in [
        json!({}),
        json!({"id": 7}),
        json!({"id": "r", "x": 1}),
        json!({"id": "r", "databases": "a"}),
    ] {
        root.post("/_rules/_test", &body).await.gives(400);
    }
    root.post("/_replicator/_test", &json!({"id": "r"}))
        .await
        .gives(404);
}

/// The response can have it once for each of them.
#[tokio::test]
async fn a_large_change_is_tried_on_a_few_databases() {
    let fixture = fixture().await;
    let root = fixture.root();
    let rule =
        json!({"type": "on_change", "url": "http://h/", "method": "POST", "params": "$change"});
    let names = |count: usize| (0..count).map(|nth| format!("d{nth}")).collect::<Vec<_>>();
    let change = json!({"doc": {"_id": "a", "text": "x".repeat(100_000)}});
    let body = |count| json!({"rule": rule, "databases": names(count), "change": change});
    let tried = test(&root, &body(10)).await;
    assert_eq!(tried["databases"].as_array().unwrap().len(), 10);
    let refused = root.post("/_rules/_test", &body(300)).await.gives(400);
    let reason = refused["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("`change` is too large for so many `databases`"),
        "{reason}"
    );
}

/// A frontend refuses what it knows to be wrong. Another node may have a secret that it does not know.
#[tokio::test]
async fn secrets_of_rules_are_checked() {
    let secret = json!({"origins": ["https://known.example"], "signing": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"});
    let secret = couch::NamedSecret::parse(secret.as_object().unwrap()).unwrap();
    let setting = Setting {
        replications: scheduler::Setup {
            secrets: [("hook".to_owned(), secret)].into(),
            ..scheduler::Setup::default()
        },
        ..Setting::default()
    };
    let fixture = Fixture::with(api::Options::default(), setting).await;
    let root = fixture.root();
    root.put("/_rules", &json!({})).await.gives(201);
    let rule = |host: &str, name: &str| json!({"type": "on_change", "url": format!("https://{host}/"), "secret_ref": name});
    root.put("/_rules/a", &rule("known.example", "hook"))
        .await
        .gives(201);
    root.put("/_rules/b", &rule("known.example", "none"))
        .await
        .gives(201);
    let wrong = rule("other.example", "hook");
    let refused = root.put("/_rules/c", &wrong).await.gives(403);
    let reason = refused["reason"].as_str().unwrap();
    let expected = "`secret_ref`: the configuration has no valid `signing` in `[secrets.hook]` for this endpoint";
    assert!(reason.starts_with(expected), "{reason}");
    let tried = test(&root, &json!({"rule": wrong})).await;
    assert_eq!(
        (&tried["ok"], &tried["path"]),
        (&json!(false), &json!("secret_ref"))
    );
    let tried = test(&root, &json!({"id": "b"})).await;
    let warning = tried["warnings"][0].as_str().unwrap();
    let expected = "`secret_ref`: this node has no section `[secrets.none]`";
    assert!(
        tried["ok"] == true && warning.starts_with(expected),
        "{tried}"
    );
    let mut off = wrong;
    off["enabled"] = json!(false);
    root.put("/_rules/c", &off).await.gives(201);
}

/// Says how a server is followed, as the node that follows it does.
async fn follow(fixture: &Fixture, server: &str) {
    let following = scheduler::Following {
        source: "main".to_owned(),
        feed: "db_updates".to_owned(),
        since_ms: 0,
        reason: None,
    };
    let (replications, following) = (&fixture.replications, &following);
    let follow = |tx: store::Transaction| async move {
        replications.follow_in(&tx, server, Some(following));
        Ok::<_, scheduler::ServiceError>(())
    };
    let store = replications.docs().store();
    store.transact("follow", follow).await.unwrap();
}

#[tokio::test]
async fn a_rule_whose_server_is_not_followed_says_so() {
    let fixture = fixture().await;
    let root = fixture.root();
    let (source, target) = ("http://u:hunter2@h:5984/${name}", "http://t/b");
    let about = json!({"database": "^(?<name>a)$"});
    let rules = [
        (
            "one",
            json!({"type": "replicator", "source": "http://h:5984/a", "target": target}),
        ),
        (
            "many",
            json!({"type": "replicator", "source": source, "target": target, "match": about}),
        ),
        (
            "object",
            json!({"type": "replicator", "source": {"url": "http://h:5984/a"}, "target": target}),
        ),
        (
            "remote",
            json!({"type": "remote", "source": source, "url": "http://t/${name}"}),
        ),
        (
            "any",
            json!({"type": "replicator", "source": "http://h:5984/a", "target": target, "match": "name_only"}),
        ),
        ("hook", rule()),
    ];
    for (id, rule) in &rules {
        root.put(&format!("/_rules/{id}"), rule).await.gives(201);
    }
    let row = async |id: &str| {
        let path = format!("/_scheduler/docs/_rules/{id}");
        let row = root.get(&path).await.gives(200);
        (row["state"].clone(), row["info"].clone())
    };
    let none = "no node follows a server; add a section `[sources.NAME]` with its `url` to the configuration of all nodes, or \
                see in `davenport sources` why it is not followed";
    let this = none.replace("a server", "the server of `source`, http://h:5984/");
    let (other, own) = ("http://other/", "http://h:5984/");
    let none = json!({"reason": none});
    let this = json!({"reason": this});
    let waits = json!({"waits_for": "its databases, none of which has been found"});
    let calls = json!({"waits_for": "changes of its databases"});
    for (server, of_this, of_any, of_calls) in [
        (None, &this, &none, &none),
        (Some(other), &this, &waits, &calls),
        (Some(own), &waits, &waits, &calls),
    ] {
        if let Some(server) = server {
            follow(&fixture, server).await;
        }
        for id in ["one", "many", "object", "remote"] {
            assert_eq!(
                row(id).await,
                (json!("initializing"), of_this.clone()),
                "{id}"
            );
        }
        assert_eq!(row("any").await, (json!("initializing"), of_any.clone()));
        assert_eq!(row("hook").await, (json!("running"), of_calls.clone()));
    }
    let listed = root.get("/_scheduler/docs/_rules").await.gives(200);
    let many = &listed["docs"][2];
    assert_eq!((&many["doc_id"], &many["info"]), (&json!("many"), &waits));
    root.post("/_rules/one/_pause", &json!({})).await.gives(200);
    assert_eq!(
        row("one").await,
        (json!("pending"), json!({"paused": true}))
    );
}

#[tokio::test]
async fn a_rule_is_paused_and_resumed() {
    let fixture = fixture().await;
    let root = fixture.root();
    for db in ["_rules", "shop%2F_rules", "spiegel"] {
        let path = format!("/{db}/a%2Fb");
        root.put(&path, &rule()).await.gives(201);
        for (action, enabled, generation) in [
            ("_resume", true, "1-"),
            ("_pause", false, "2-"),
            ("_pause", false, "2-"),
            ("_resume", true, "3-"),
        ] {
            let told = root.post(&format!("{path}/{action}"), &json!({})).await;
            let told = told.gives(200);
            assert_eq!(told["enabled"], enabled);
            assert!(
                told["rev"].as_str().unwrap().starts_with(generation),
                "{told}"
            );
            let read = root.get(&path).await.gives(200);
            assert_eq!(read["_rev"], told["rev"]);
            // Credentials stay.
            assert_eq!(
                (&read["url"], &read["headers"]),
                (&rule()["url"], &rule()["headers"])
            );
        }
    }
}

/// It would be refused now, but works.
#[tokio::test]
async fn a_rule_that_an_earlier_version_accepted_is_controlled() {
    let fixture = fixture().await;
    let root = fixture.root();
    let docs = fixture.replications.docs();
    let db = docs.open(&docs.name("_rules").unwrap()).await.unwrap();
    let doc = r#"{"type":"on_change","url":"http://h/","timeout_sec":0}"#;
    let edit = docstore::Edit::new("hook", document::doc::Doc::parse(doc).unwrap()).unwrap();
    let put = docs.put(&db, &edit, docstore::EditMode::NewEdits, &docstore::NoHook);
    put.await.unwrap();
    for action in ["_trigger", "_pause", "_resume", "_rewind"] {
        let path = format!("/_rules/hook/{action}");
        root.post(&path, &json!({})).await.gives(200);
    }
    let doc = root.get("/_rules/hook").await.gives(200);
    assert_eq!(
        (&doc["enabled"], &doc["timeout_sec"]),
        (&json!(true), &json!(0))
    );
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
async fn actions_on_rules_say_what_to_do() {
    let fixture = fixture().await;
    let root = fixture.root();
    root.put("/_rules/hook", &rule()).await.gives(201);
    let copy = json!({"type": "replicator", "source": "http://s/a", "target": "http://t/b"});
    root.put("/_rules/copy", &copy).await.gives(201);
    root.put("/_rules/state", &json!({"type": "global"}))
        .await
        .gives(201);
    let none = json!({});
    for (path, body, expected) in [
        (
            "/_rules/hook/_trigger",
            &none,
            json!({"ok": true, "id": "hook", "triggered": 0}),
        ),
        (
            "/_rules/copy/_trigger",
            &none,
            json!({"ok": true, "id": "copy", "triggered": 0}),
        ),
        (
            "/_rules/hook/_rewind",
            &none,
            json!({"ok": true, "id": "hook", "rewound": 0}),
        ),
        (
            "/_rules/hook/_rewind",
            &json!({"since": "7-x", "database": "a", "source": "s"}),
            json!({"ok": true, "id": "hook", "rewound": 0}),
        ),
    ] {
        assert_eq!(root.post(path, body).await.gives(200), expected, "{path}");
    }
    for (path, body, reason) in [
        (
            "/_rules/state/_pause",
            &none,
            "this document is not a rule; its `type` must be",
        ),
        (
            "/_rules/copy/_rewind",
            &none,
            "a rule of type `replicator` or `remote` has no position to rewind",
        ),
        (
            "/_rules/hook/_rewind",
            &json!({"since": "7-x"}),
            "an update sequence belongs to one database",
        ),
        (
            "/_rules/hook/_rewind",
            &json!({"since": [1]}),
            "`since` must be",
        ),
        (
            "/_rules/hook/_rewind",
            &json!({"since": "latest", "database": "a"}),
            "`since` must be",
        ),
        (
            "/_rules/hook/_rewind",
            &json!({"since": -1, "database": "a"}),
            "`since` must be",
        ),
        (
            "/_rules/hook/_pause",
            &json!({"until": "noon"}),
            "`until` is unknown: this request has no members",
        ),
        (
            "/_rules/hook/_rewind",
            &json!({"seq": 1}),
            "`seq` is unknown; use `since`",
        ),
        (
            "/_rules/hook/_rewind",
            &json!({"source": 1}),
            "`source` must be a string",
        ),
    ] {
        let refused = root.post(path, body).await.gives(400);
        let told = refused["reason"].as_str().unwrap();
        assert!(told.starts_with(reason), "{path} {body}: {told}");
    }
    root.post("/_rules/hook/_pause", &none).await.gives(200);
    let paused = "the rule is paused; resume it first, with `_resume`";
    for action in ["_trigger", "_rewind"] {
        let path = format!("/_rules/hook/{action}");
        root.post(&path, &none)
            .await
            .refuses(400, "bad_request", paused);
        let path = format!("/shop%2F_rules/none/{action}");
        let reason = "there is no rule `none` in the database `shop/_rules`; `davenport rules list --db shop/_rules` lists \
                      its rules";
        root.post(&path, &none)
            .await
            .refuses(404, "not_found", reason);
    }
    root.get("/_rules/hook/_pause").await.gives(405);
    let listed = root.get("/_rules/hook/_databases?limit=1").await.gives(200);
    assert_eq!(listed, json!({"databases": []}));
    root.post("/_rules/hook/_databases", &none).await.gives(405);
}
