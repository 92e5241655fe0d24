//! What a document may contain, by who writes it and on which path it comes.

use couch::{NamedSecret, NetworkOptions, Policy};
use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Answer, Fixture, Setting, User, replication};
use crate::world::World;

/// Members put over those of a good replication, then what a member of the database, its administrator and a server
/// administrator get: `.` is accepted, `x` is refused. `*` at the end of a line: means nothing in `_replicate`.
const TABLE: &str = r#"
{}                                                                              . . .
{"owner":"OWN"}                                                                 . . . *
{"owner":"eve"}                                                                 x . . *
{"owner":["OWN"]}                                                               x . . *
{"user_ctx":{"name":"OWN","roles":[]}}                                          . . . *
{"user_ctx":{"name":"root","roles":[]}}                                         x x . *
{"user_ctx":{"name":"OWN","roles":["_admin"]}}                                  x x . *
{"user_ctx":7}                                                                  x x . *
{"source":{"url":"http://s.example/a","auth":{"basic":{"username":"u","password":"p"}}}}  . . .
{"source":{"url":"http://s.example/a","auth":{"bearer":"token"}}}               . . .
{"source":{"url":"http://s.example/a","auth":{"jwt":{"file":"token"}}}}         x x .
{"target":{"url":"http://s.example/a","auth":{"jwt":{"file":"token"}}}}         x x .
{"source":{"url":"http://s.example/a","auth":{"secret_ref":"backup"}}}          x x .
{"target":{"url":"http://s.example/a","auth":{"secret_ref":"backup"}}}          x x .
{"source":{"url":"http://other.example/a","auth":{"secret_ref":"backup"}}}      x x x
{"source":{"url":"https://s.example/a","auth":{"secret_ref":"backup"}}}         x x x
{"source":{"url":"http://s.example:81/a","auth":{"secret_ref":"backup"}}}       x x x
{"source":{"url":"http://s.example/a","auth":{"secret_ref":7}}}                 x x x
{"source":{"url":"http://s.example/a","tls":{"verify":false}}}                  x x .
{"target":{"url":"http://s.example/a","tls":{"ca":"pem"}}}                      x x .
{"source":{"url":"http://s.example/a","headers":{"X-Mine":"1"}}}                . . .
{"source":{"url":"http://s.example/a","headers":{"Authorization":"Bearer x"}}}  . . .
{"source":{"url":"http://s.example/a","headers":{"Cookie":"AuthSession=x"}}}    . . .
{"source":{"url":"http://u:p@s.example/a","headers":{"Cookie":"sticky=1"}}}     . . .
{"source":{"url":"http://u:p@s.example/a","headers":{"cookie":"a=1; AuthSession=x"}}}     x x x
{"source":{"url":"http://s.example/a","headers":{"X-Auth-CouchDB-UserName":"root"}}}      x x x
{"source":{"url":"http://s.example/a","headers":{"X-Auth-CouchDB-Roles":"_admin"}}}       x x x
{"target":{"url":"http://s.example/a","headers":{"x-auth-couchdb-token":"00"}}} x x x
{"source":{"url":"http://s.example/a","headers":{"Host":"other.example"}}}      x x x
{"source":{"url":"http://s.example/a","headers":{"Connection":"x-mine"}}}       x x x
{"source":{"url":"http://s.example/a","headers":{"Transfer-Encoding":"chunked"}}}         x x x
{"source":{"url":"http://s.example/a","headers":{"Content-Length":"1"}}}        x x x
{"source":{"url":"http://s.example/a","headers":{"TE":"trailers"}}}             x x x
{"source":{"url":"http://s.example/a","headers":{"Upgrade":"h2c"}}}             x x x
{"source":{"url":"http://s.example/a","headers":{"Keep-Alive":"1"}}}            x x x
{"source":{"url":"http://s.example/a","headers":{"Proxy-Authorization":"Basic eA=="}}}    x x x
{"source":"http://127.0.0.1:5984/a"}                                            x x .
{"target":{"url":"http://[fd00::1]/a"}}                                         x x .
{"source":"http://169.254.169.254/a"}                                           x x x
{"proxy":"http://10.0.0.1:3128"}                                                x x x
{"source":{"url":"http://s.example/a","auth":{"iam":{"api_key":"k","token_url":"http://10.0.0.1/"}}}}  x x x
{"proxy":"http://u:p@proxy.example"}                                            . . .
{"paused":true}                                                                 . . . *
{"_replication_state":"failed"}                                                 . . . *
{"_replication_state":"failed","source":7}                                      x x x *
{"_replication_state":"failed","target":{"url":"http://s.example/a","tls":{"verify":false}}}      x x . *
{"_replication_state":"completed","source":{"url":"http://s.example/a","auth":{"secret_ref":"backup"}}}   x x . *
{"_replication_state":"failed","source":{"url":"http://s.example/a","headers":{"X-Auth-CouchDB-Roles":"_admin"}}} x x x *
{"_replication_state":"failed","owner":"eve"}                                   x . . *
{"_sealed":"v1.k.AAAA"}                                                         x x x *
{"_grant":{"base":"http://s.example"}}                                          x x x *
"#;

/// Ways to write a document. Each has an id of its own, which is free.
const PATHS: [&str; 7] = [
    "put",
    "post",
    "bulk",
    "pushed",
    "multipart",
    "attachment",
    "edit",
];

/// Whether the document was accepted.
async fn write(path: &str, writer: &User<'_>, fixture: &Fixture, doc: &Value, id: &str) -> Answer {
    let mut row = doc.clone();
    row["_id"] = json!(id);
    let docs = |row: Value, new_edits: bool| json!({"docs": [row], "new_edits": new_edits});
    match path {
        "put" => writer.put(&format!("/_replicator/{id}"), doc).await,
        "post" => writer.post("/_replicator", &row).await,
        "bulk" => {
            writer
                .post("/_replicator/_bulk_docs", &docs(row, true))
                .await
        }
        "pushed" => {
            row["_rev"] = json!("1-a");
            // What a replicator brings has its owner already.
            if row.get("owner").is_none() {
                row["owner"] = json!(name_of(writer).await);
            }
            writer
                .post("/_replicator/_bulk_docs", &docs(row, false))
                .await
        }
        "multipart" => {
            let mut doc = doc.clone();
            doc["_attachments"] =
                json!({"a": {"follows": true, "length": 1, "content_type": "text/plain"}});
            let body = format!(
                "--b\r\ncontent-type: application/json\r\n\r\n{doc}\r\n--b\r\n\r\nx\r\n--b--"
            );
            let writer = (writer.clone()).with("content-type", "multipart/related; boundary=b");
            let path = format!("/_replicator/{id}");
            writer.send(Method::PUT, &path, body).await
        }
        // A good document of one's own becomes another.
        "edit" => {
            let path = format!("/_replicator/{id}");
            let first = writer.put(&path, &replication()).await.gives(201);
            let mut doc = doc.clone();
            doc["_rev"] = first["rev"].clone();
            writer.put(&path, &doc).await
        }
        // What an administrator has written for the caller.
        "attachment" => {
            let mut doc = doc.clone();
            if doc.get("owner").is_none() {
                doc["owner"] = json!(name_of(writer).await);
            }
            let path = format!("/_replicator/{id}");
            let first = fixture.root().put(&path, &doc).await;
            if first.status != 201 {
                return first;
            }
            let rev = first.json()["rev"].as_str().unwrap().to_owned();
            let path = format!("{path}/a.txt?rev={rev}");
            writer.send(Method::PUT, &path, "x").await
        }
        _ => unreachable!(),
    }
}

async fn name_of(user: &User<'_>) -> String {
    let session = user.get("/_session").await.gives(200);
    session["userCtx"]["name"].as_str().unwrap().to_owned()
}

fn is_accepted(answer: &Answer) -> bool {
    let json = answer.json();
    match answer.status.as_u16() {
        201 | 202 => json.get(0).is_none_or(|row| row.get("error").is_none()),
        _ => {
            let status = answer.status.as_u16();
            assert!(matches!(status, 400 | 403), "{status} {}", answer.text);
            false
        }
    }
}

fn lines() -> impl Iterator<Item = (Value, Vec<&'static str>, bool)> {
    TABLE.lines().filter(|line| !line.is_empty()).map(|line| {
        let documents_only = line.ends_with('*');
        let words: Vec<_> = line.trim_end_matches(['*', ' ']).rsplitn(4, ' ').collect();
        let patch = serde_json::from_str(words[3].trim()).unwrap();
        let expected = words[..3].iter().rev().copied().collect();
        (patch, expected, documents_only)
    })
}

fn patched(patch: &Value, own: &str) -> Value {
    let mut doc = replication();
    for (name, value) in patch.as_object().unwrap() {
        let text = value.to_string().replace("\"OWN\"", &format!("\"{own}\""));
        doc[name] = serde_json::from_str(&text).unwrap();
    }
    doc
}

#[tokio::test]
async fn some_members_of_documents_are_for_some_writers() {
    let fixture = fixture().await;
    let writers = [
        fixture.user("joe", "password"),
        fixture.user("ada", "password"),
        fixture.root(),
    ];
    let mut wrong = Vec::new();
    let mut number = 0;
    for (patch, expected, documents_only) in lines() {
        for (writer, expected) in writers.iter().zip(&expected) {
            let doc = patched(&patch, &name_of(writer).await);
            for path in PATHS {
                number += 1;
                let id = format!("d{number}");
                let answer = write(path, writer, &fixture, &doc, &id).await;
                if is_accepted(&answer) != (*expected == ".") {
                    let name = name_of(writer).await;
                    wrong.push(format!("{path} by {name}: {doc}: {}", answer.text));
                }
            }
            if documents_only {
                continue;
            }
            let answer = writer.post("/_replicate?async=true", &doc).await;
            if is_accepted(&answer) != (*expected == ".") {
                wrong.push(format!("_replicate: {doc}: {}", answer.text));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Neither callers who are no members nor those who may read metrics write anything.
#[tokio::test]
async fn others_write_nothing() {
    let fixture = fixture().await;
    fixture.add_user("mia", "password", &["_metrics"]).await;
    for (caller, status) in [
        (fixture.anonymous(), 401),
        (fixture.user("mia", "password"), 403),
    ] {
        for (patch, ..) in lines() {
            let doc = patched(&patch, "mia");
            let mut row = doc.clone();
            row["_id"] = json!("x");
            for answer in [
                caller.put("/_replicator/x", &doc).await,
                caller.post("/_replicator", &row).await,
                (caller.post("/_replicator/_bulk_docs", &json!({"docs": [row]}))).await,
                caller.send(Method::PUT, "/_replicator/x/a", "x").await,
            ] {
                assert_eq!(answer.status, status, "{doc} {}", answer.text);
            }
        }
    }
    let count = fixture.root().get("/_replicator").await.gives(200);
    assert_eq!(count["doc_count"], 0);
}

/// What is refused names the member and says what to do.
#[tokio::test]
async fn refusals_say_what_to_do() {
    let fixture = fixture().await;
    let ada = fixture.user("ada", "password");
    for (patch, words) in [
        (
            json!({"source": {"url": "http://s.example/a", "headers": {"X-Auth-CouchDB-Roles": "_admin"}}}),
            "header `X-Auth-CouchDB-Roles` cannot be set in `headers`",
        ),
        (
            json!({"source": {"url": "http://s.example/a", "headers": {"hOst": "x"}}}),
            "header `hOst` cannot be set in `headers`",
        ),
        (
            json!({"source": {"url": "http://s.example/a", "tls": {"verify": false}}}),
            "only a server administrator",
        ),
        (
            json!({"source": {"url": "http://s.example/a", "auth": {"secret_ref": "backup"}}}),
            "only a server administrator",
        ),
    ] {
        let doc = patched(&patch, "ada");
        for (answer, error) in [
            (ada.put("/_replicator/x", &doc).await, "forbidden"),
            (ada.post("/_replicate", &doc).await, ""),
        ] {
            let reason = answer.json()["reason"].as_str().unwrap().to_lowercase();
            let said = reason.contains(&words.to_lowercase());
            assert!(said, "{}", answer.text);
            if !error.is_empty() {
                assert_eq!(answer.json()["error"], error);
            }
        }
    }
    let elsewhere = json!({"source": {"url": "http://other.example/a", "auth": {"secret_ref": "backup"}},
        "target": "http://t.example/b"});
    let answer = fixture.root().put("/_replicator/x", &elsewhere).await;
    let reason = "`auth.secret_ref` names a secret that may not be sent to this server: add its origin to `origins` of \
                  the secret in the configuration";
    answer.refuses(403, "forbidden", reason);
}

/// A document that ended without being run has no job, and its checks were made when it was written.
#[tokio::test]
async fn a_document_that_is_written_as_ended_makes_no_job() {
    let fixture = fixture().await;
    let joe = fixture.user("joe", "password");
    for state in ["failed", "completed"] {
        let mut doc = replication();
        doc["_replication_state"] = json!(state);
        joe.put(&format!("/_replicator/{state}"), &doc)
            .await
            .gives(201);
    }
    let jobs = fixture.root().get("/_scheduler/jobs").await.gives(200);
    assert_eq!(jobs["total_rows"], 0);
}

/// Documents that were stored before there was a check are checked when they are run, and nothing is sent.
#[tokio::test]
async fn what_is_stored_already_is_checked_when_it_runs() {
    let mut world = World::set_up(setup()).await;
    world.run_jobs();
    let replications = &world.fixture.replications;
    let docs = replications.docs();
    let db = docs.open(&docs.name("_replicator").unwrap()).await.unwrap();
    let url = world.peer.database_url("a");
    for (id, source, words) in [
        (
            "header",
            json!({"url": url, "headers": {"X-Auth-CouchDB-Roles": "_admin"}}),
            "the header `x-auth-couchdb-roles` cannot be set in `headers`",
        ),
        (
            "secret",
            json!({"url": url, "auth": {"secret_ref": "backup"}}),
            "a secret that may not be sent to this server",
        ),
    ] {
        let doc = json!({"source": source, "target": world.peer.database_url("b")}).to_string();
        let doc = document::doc::Doc::parse(&doc).unwrap();
        let edit = docstore::Edit::new(id, doc).unwrap();
        let hook = replications.hook(scheduler::Writer::Replicator);
        let put = docs.put(&db, &edit, docstore::EditMode::NewEdits, &hook);
        put.await.unwrap();
        let row = format!("/_scheduler/docs/_replicator/{id}");
        let ended = |row: &Value| row["state"] == "failed" || row["state"] == "crashing";
        let row = world.until(&row, ended).await;
        assert!(row["info"].to_string().contains(words), "{row:#}");
    }
    assert_eq!(world.peer.requests(), []);
}

fn setup() -> scheduler::Setup {
    let secret = json!({"bearer": "token", "origins": ["http://s.example"]});
    let secret = NamedSecret::parse(secret.as_object().unwrap()).unwrap();
    scheduler::Setup {
        secrets: [("backup".to_owned(), secret)].into(),
        policy: Some(Policy::new(&NetworkOptions::default()).unwrap()),
        ..scheduler::Setup::default()
    }
}

#[tokio::test]
async fn what_administrators_may_reach_is_kept_apart_from_documents() {
    let fixture = fixture().await;
    let (root, joe) = (fixture.root(), fixture.user("joe", "password"));
    let mut doc = patched(&json!({"source": "http://127.0.0.1:5984/a"}), "root");
    let made = root.put("/_replicator/mine", &doc).await.gives(201);
    let seen = joe.get("/_replicator/mine").await.gives(200);
    assert_eq!(
        seen["_rev"], made["rev"],
        "nothing that joe may not see was taken out"
    );
    assert_eq!(seen.get("_grant"), None);
    assert_eq!(root.get("/_replicator/mine").await.json(), seen);
    let refused = joe.put("/_replicator/his", &doc).await;
    assert_eq!(refused.status, 403);
    let reason = refused.json()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("`network.egress.allow`"), "{reason}");
    // What an administrator has written for joe does not become what joe writes.
    doc["owner"] = json!("joe");
    let made = root.put("/_replicator/his", &doc).await.gives(201);
    doc["_rev"] = made["rev"].clone();
    doc["target"] = json!("http://127.0.0.1:5984/b");
    assert_eq!(joe.put("/_replicator/his", &doc).await.status, 403);
}

async fn fixture() -> Fixture {
    let setting = Setting {
        replications: setup(),
        ..Setting::default()
    };
    let fixture = Fixture::with(api::Options::default(), setting).await;
    fixture.share().await;
    fixture
}
