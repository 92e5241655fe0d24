//! Commands that talk to a frontend about rules, sources and calls.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use e2e::{ADMIN, Node, Start};
use peer::{Options, Peer};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A node in a directory, and the command line for it.
pub(crate) struct Commands {
    pub(crate) node: Node,
    directory: TempDir,
}

impl Commands {
    pub(crate) async fn start(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config).await
    }

    async fn start_in(directory: TempDir, config: &str) -> Self {
        let file = directory.path().join("davenport.toml");
        std::fs::write(&file, config).unwrap();
        let start = Start::node("davenport", directory.path()).admin();
        let start = start.args(&["--config", &file.display().to_string()]);
        let node = start.start().await.unwrap();
        Self { node, directory }
    }

    pub(crate) async fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        run(&self.node.url, args).await
    }

    pub(crate) async fn succeed(&self, args: &[&str]) -> String {
        let (code, out, error) = self.run(args).await;
        assert_eq!(code, Some(0), "{out}{error}");
        out
    }

    /// The path of a file with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let file = self.directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }
}

pub(crate) async fn run(url: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let start = Start::new("davenport", args);
    let start = start
        .variable("DAVENPORT_URL", url)
        .variable("DAVENPORT_USER", &format!("{}:{}", ADMIN.0, ADMIN.1));
    start.output().await.unwrap()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[tokio::test]
async fn sources_are_listed() {
    let peer = Peer::start(Options::default()).await.unwrap();
    let config = format!("[sources.couch]\nurl = \"{}\"\n", peer.url());
    let commands = Commands::start(&config).await;
    let followed = |all: &Value| all["sources"][0]["followed"] == true;
    let root = commands.node.root();
    root.until("/_sources", followed).await.unwrap();
    let out = commands.succeed(&["sources"]).await;
    let line = words(out.lines().nth(1).unwrap());
    assert_eq!((line[0], line[2], line[3]), ("couch", "yes", "db_updates"));
    let out = commands.succeed(&["sources", "--json"]).await;
    let all: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(all["sources"][0]["name"], "couch");
    commands.node.stop().await.unwrap();
}

/// Metrics say so after a restart, too.
#[tokio::test]
async fn a_source_that_refuses_is_not_followed() {
    let peer = Peer::start(Options::default()).await.unwrap();
    peer.set_admin("boss", "b0ss");
    let url = peer.url().replace("http://", "http://boss:wrong@");
    let config = format!("[sources.couch]\nurl = \"{url}\"\n");
    let is_refused = async |commands: &Commands| {
        let root = commands.node.root();
        let refused = |all: &Value| all["sources"][0]["reason"].is_string();
        root.until("/_sources", refused).await.unwrap();
        let not_followed = |metrics: &Value| {
            let series = r#"davenport_source_followed{source="couch",feed="db_updates"} 0"#;
            metrics.as_str().is_some_and(|text| text.contains(series))
        };
        root.until("/_metrics", not_followed).await.unwrap();
    };
    let commands = Commands::start(&config).await;
    is_refused(&commands).await;
    commands.node.stop().await.unwrap();
    let commands = Commands::start_in(commands.directory, &config).await;
    is_refused(&commands).await;
    commands.node.stop().await.unwrap();
}

/// A node with a rule of each type.
async fn with_rules() -> Commands {
    let commands = Commands::start("").await;
    let (code, _, error) = commands.run(&["rules", "list"]).await;
    assert_eq!(code, Some(1));
    assert!(
        error.contains("choose another database with --db") && error.contains("404"),
        "{error}"
    );
    let root = commands.node.root();
    for (path, doc) in [
        ("/_rules", json!({})),
        (
            "/_rules/hook",
            json!({"type": "on_change", "db_name": "^user_", "url": "http://bob:s3cret@h.example/${db_name}?k=1",
                "method": "post", "params": {"id": "$change.id"}, "if": {"type": "^order$"}}),
        ),
        (
            "/_rules/copy",
            json!({"type": "replicator", "source": "http://u:s3cret@s.example/a",
                "target": "http://u:s3cret@t.example/b"}),
        ),
    ] {
        let (status, answer) = root.put(path, &doc).await.unwrap();
        assert_eq!(status, 201, "{answer}");
    }
    commands
}

#[tokio::test]
async fn rules_are_listed_and_shown_without_credentials() {
    let commands = with_rules().await;
    let list = commands.succeed(&["rules", "list"]).await;
    let lines: Vec<_> = list.lines().map(words).collect();
    let head = ["ID", "TYPE", "ENABLED", "DATABASES", "TARGET", "STATE"];
    assert_eq!(lines[0], head);
    let copy = [
        "copy",
        "replicator",
        "yes",
        "http://s.example/a",
        "http://t.example/b",
    ];
    assert_eq!(lines[1][..5], copy);
    let hook = [
        "hook",
        "on_change",
        "yes",
        "^user_",
        "POST",
        "http://h.example/${db_name}",
        "running",
    ];
    assert_eq!(lines[2], hook);

    for id in ["hook", "copy"] {
        let shown = commands.succeed(&["rules", "show", id]).await;
        assert!(
            shown.contains(".example/") && !shown.contains("s3cret"),
            "{shown}"
        );
    }
    let shown = commands.succeed(&["rules", "show", "hook", "--json"]).await;
    assert!(shown.contains("s3cret"), "{shown}");
    let (code, _, error) = commands.run(&["rules", "show", "hok"]).await;
    let reason = "there is no rule hok in the database _rules; `davenport rules list --db _rules` lists its rules";
    assert!(code == Some(1) && error.contains(reason), "{error}");
    let (code, _, error) = commands
        .run(&["rules", "--db", "spiegel", "show", "hook"])
        .await;
    assert!(
        code == Some(1) && error.contains("Database does not exist."),
        "{error}"
    );
    commands.node.stop().await.unwrap();
}

/// Documents that had ended when they were written have no job, and those of rules are in other databases.
#[tokio::test]
async fn all_that_failed_is_listed_and_restarted() {
    let commands = with_rules().await;
    let root = commands.node.root();
    let peer = Peer::start(Options::default()).await.unwrap();
    for id in ["a", "b"] {
        let doc = json!({"source": peer.database_url("none"), "target": peer.database_url("copy"),
            "_replication_state": "failed", "_replication_state_reason": "db_not_found: it was missing"});
        let path = format!("/_replicator/{id}");
        let (status, answer) = root.put(&path, &doc).await.unwrap();
        assert_eq!(status, 201, "{answer}");
    }
    let failed = ["jobs", "list", "--states", "failed", "--endpoint", "/none"];
    let list = commands.succeed(&failed).await;
    for (id, line) in ["a", "b"].iter().zip(list.lines().skip(1)) {
        let words = words(line);
        assert_eq!(words[..3], ["failed", "-", &format!("_replicator/{id}")]);
        assert!(line.ends_with("db_not_found: it was missing"), "{list}");
    }
    let shown = commands.succeed(&["jobs", "show", "_rules/copy"]).await;
    assert!(shown.contains("http://t.example/b"), "{shown}");
    let one = ["jobs", "restart", "--error", "db_not_found"];
    let (code, out, error) = commands.run(&one).await;
    assert_eq!((code, out.lines().count()), (Some(0), 2), "{error}");
    assert!(error.contains("2 jobs restarted"), "{error}");
    for id in ["a", "b"] {
        let path = format!("/_scheduler/docs/_replicator/{id}");
        let has_job = |doc: &Value| doc["job_id"].is_string();
        root.until(&path, has_job).await.unwrap();
    }
    commands.node.stop().await.unwrap();
}

/// 2 means that nothing was started.
#[tokio::test]
async fn commands_that_cannot_be_used_change_nothing() {
    let commands = Commands::start("").await;
    let root = commands.node.root();
    let (status, answer) = root.put("/_jobs/mail", &json!({})).await.unwrap();
    assert_eq!(status, 201, "{answer}");
    for args in [
        &["jobs", "--type", "mail", "cancel", ""][..],
        &["jobs", "--type", "mail", "show", "."],
        &["jobs", "--type", "mail", "restart"],
        &["jobs", "restart"],
        &["deliveries", "replay"],
        &["deliveries", "replay", ""],
        &["deliveries", "remove"],
        &["deliveries", "remove", ""],
        &["schedules", "remove", ""],
        &["rules", "show", ".."],
        &["jobs", "--type", "mail", "types"],
        &["jobs", "--user", "nocolon", "list"],
        &["jobs", "--url", "ftp://x", "list"],
    ] {
        let (code, out, error) = commands.run(args).await;
        assert_eq!((code, &*out), (Some(2), ""), "{args:?}: {error}");
        assert!(error.contains("nothing was done: "), "{error}");
    }
    let types = commands.succeed(&["jobs", "types"]).await;
    assert!(types.contains("mail"), "{types}");
    commands.node.stop().await.unwrap();
}

/// What had no effect is not reported as done.
#[tokio::test]
async fn commands_tell_what_they_did_not_do() {
    let commands = Commands::start("").await;
    let root = commands.node.root();
    root.put("/_jobs/mail", &json!({})).await.unwrap();
    let job = json!({"id": "a", "data": 1});
    let (status, answer) = root.post("/_jobs/mail", &job).await.unwrap();
    assert_eq!(status, 201, "{answer}");
    let mail = ["jobs", "--type", "mail"];
    let out = commands
        .succeed(&[&mail[..], &["restart", "a"]].concat())
        .await;
    assert_eq!(out, "already pending: a\n");
    for action in ["show", "restart", "cancel"] {
        let args = [&mail[..], &[action, "b"]].concat();
        let (code, _, error) = commands.run(&args).await;
        let told = "there is no job b; `davenport jobs --type mail list` shows";
        assert!(code == Some(1) && error.contains(told), "{error}");
    }
    for action in ["show", "restart", "pause", "resume", "cancel"] {
        let (code, _, error) = commands.run(&["jobs", action, "b"]).await;
        let told = "there is no job b; `davenport jobs list` shows";
        assert!(code == Some(1) && error.contains(told), "{error}");
    }
    let args = ["deliveries", "replay", "--rule", "nope"];
    let (code, out, error) = commands.run(&args).await;
    assert_eq!((code, &*out), (Some(1), ""), "{error}");
    assert!(error.contains("`davenport rules list`"), "{error}");
    let store = format!("lmdb:{}", commands.directory.path().join("data").display());
    let stats = commands
        .succeed(&["store", "stats", "--store", &store])
        .await;
    let node = stats.lines().find(|line| line.contains("last seen at"));
    let (_, seen) = node.unwrap().rsplit_once("last seen at ").unwrap();
    assert!(seen.starts_with("20") && seen.ends_with('Z'), "{seen}");
    let checked = commands
        .succeed(&["store", "check", "--store", &store])
        .await;
    assert!(
        checked.contains("checked 1 job of type api/mail"),
        "{checked}"
    );
    commands.node.stop().await.unwrap();
}

/// A proxy, or another service.
#[tokio::test]
async fn errors_that_are_not_json_are_explained() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let missing = async || (axum::http::StatusCode::NOT_FOUND, "no such page");
    let router = Router::new().fallback(missing);
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let (code, _, error) = run(&url, &["jobs", "list"]).await;
    assert_eq!(code, Some(1));
    let told = "404 Not Found: the response is not JSON; check that --url is a Davenport frontend";
    assert!(error.contains(told), "{error}");
    server.abort();
}

#[tokio::test]
async fn rules_are_tried_and_paused() {
    let commands = with_rules().await;
    let root = commands.node.root();
    let change = commands.file("change", r#"{"_id": "7", "type": "order"}"#);
    let test = ["rules", "test", "hook", "--database", "user_joe"];
    let out = commands
        .succeed(&[&test[..], &["--database", "x", "--change", &change]].concat())
        .await;
    assert!(
        out.contains("h.example/user_joe?*** {\"id\":\"7\"}"),
        "{out}"
    );
    assert!(out.contains("does not match"), "{out}");
    let out = commands.succeed(&test).await;
    assert!(out.contains("`if` or `selector` does not match"), "{out}");
    let bad = commands.file(
        "bad",
        r#"{"type": "on_change", "db_name": "(", "url": "http://h/"}"#,
    );
    let (code, _, error) = commands
        .run(&["rules", "test", &bad, "--database", "x"])
        .await;
    assert_eq!(code, Some(1));
    assert!(
        error.contains("the rule is invalid: `db_name`: "),
        "{error}"
    );

    for (args, told) in [
        (&["trigger", "copy"][..], "triggered 0 of copy\n"),
        (&["rewind", "hook", "--since", "now"], "rewound 0 of hook\n"),
    ] {
        assert_eq!(commands.succeed(&[&["rules"], args].concat()).await, told);
    }
    for (action, told, enabled) in [
        ("pause", "paused hook\n", false),
        ("pause", "paused hook\n", false),
        ("resume", "resumed hook\n", true),
    ] {
        assert_eq!(commands.succeed(&["rules", action, "hook"]).await, told);
        let (_, doc) = root.get("/_rules/hook").await.unwrap();
        assert_eq!(doc["enabled"], enabled);
        let rev = if enabled { "3-" } else { "2-" };
        assert!(doc["_rev"].as_str().unwrap().starts_with(rev), "{doc}");
    }
    commands.node.stop().await.unwrap();
}

/// What a frontend was asked for.
type Asked = Arc<Mutex<Vec<String>>>;

async fn deliveries(State(asked): State<Asked>, request: Request) -> axum::Json<Value> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1_000).await.unwrap();
    let body = String::from_utf8_lossy(&body);
    let line = format!("{} {} {body}", parts.method, parts.uri);
    asked.lock().unwrap().push(line.trim().to_owned());
    let call = json!({
        "id": "a1", "state": "dead", "rule": "hook", "rule_database": "spiegel", "db": "shop", "doc_id": "7", "attempts": 3,
        "method": "POST", "url": "http://h.example/x", "reason": "503", "last": {"status": 503, "error": null, "body": "busy"},
    });
    let mut shown = call.clone();
    shown["runs"] =
        json!([{"number": 3, "node": "n1", "started": "T", "ended": "U", "reason": "503"}]);
    axum::Json(match (parts.uri.path(), parts.uri.query()) {
        ("/_deliveries", Some(query)) if query.contains("after=") => json!({"deliveries": [call]}),
        ("/_deliveries", _) => json!({"deliveries": [call], "after": "next"}),
        ("/_deliveries/a1", _) => shown,
        ("/_deliveries/_replay", _) => json!({"ok": true, "replayed": 1200}),
        ("/_deliveries/_remove", _) => json!({"ok": true, "removed": 1200}),
        _ => json!({"ok": true}),
    })
}

#[tokio::test]
async fn calls_are_listed_replayed_and_removed() {
    let asked = Asked::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new()
        .fallback(deliveries)
        .with_state(Arc::clone(&asked));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let succeed = async |args: &[&str]| {
        let args = [&["deliveries"], args].concat();
        let (code, out, error) = run(&url, &args).await;
        assert_eq!(code, Some(0), "{out}{error}");
        (out, std::mem::take(&mut *asked.lock().unwrap()))
    };
    let (out, requests) = succeed(&["list", "--rule", "hook", "--state", "dead"]).await;
    let first = "GET /_deliveries?rule=hook&state=dead&limit=100";
    let second = "GET /_deliveries?rule=hook&state=dead&limit=99&after=next";
    assert_eq!(requests, [first, second]);
    let row = [
        "dead",
        "a1",
        "spiegel/hook",
        "shop",
        "7",
        "3",
        "POST",
        "http://h.example/x",
        "503",
    ];
    assert_eq!(words(out.lines().nth(2).unwrap()), row);
    let (out, _) = succeed(&["show", "a1"]).await;
    assert!(
        out.contains("last.body") && out.contains("run 3 on n1: 503"),
        "{out}"
    );
    let (out, requests) = succeed(&["replay", "a1"]).await;
    assert_eq!(
        (&*out, &*requests[0]),
        ("replayed a1\n", "POST /_deliveries/a1/_replay")
    );
    let (out, requests) = succeed(&["replay", "--rule", "hook"]).await;
    let expected = r#"POST /_deliveries/_replay {"state":"dead","rule":"hook"}"#;
    assert_eq!((&*out, &*requests[0]), ("replayed 1,200 calls\n", expected));
    let (out, requests) = succeed(&["remove", "a1"]).await;
    assert_eq!(
        (&*out, &*requests[0]),
        ("removed a1\n", "DELETE /_deliveries/a1")
    );
    let (out, requests) = succeed(&["remove", "--rule", "hook"]).await;
    let expected = r#"POST /_deliveries/_remove {"state":"dead","rule":"hook"}"#;
    assert_eq!((&*out, &*requests[0]), ("removed 1,200 calls\n", expected));
    let of_one = ["--db", "spiegel", "--rule", "hook"];
    let (_, requests) = succeed(&[&["list", "--limit", "1"], &of_one[..]].concat()).await;
    let expected = "GET /_deliveries?rule=hook&rule_database=spiegel&limit=1";
    assert_eq!(requests, [expected]);
    let (_, requests) = succeed(&[&["replay"], &of_one[..]].concat()).await;
    let expected =
        r#"POST /_deliveries/_replay {"state":"dead","rule":"hook","rule_database":"spiegel"}"#;
    assert_eq!(requests, [expected]);
    let (code, ..) = run(&url, &["deliveries", "replay"]).await;
    assert_eq!(code, Some(2));
    server.abort();
}
