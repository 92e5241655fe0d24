//! In front of a cluster: authentication, local responses, and names in place of URLs.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::fixture::{Fixture, Setting, User, replication};
use crate::world::World;

/// Asks until the answer is such.
async fn until(user: &User<'_>, path: &str, such: impl Fn(&Value) -> bool) -> Value {
    let asked = async {
        loop {
            let answer = user.get(path).await;
            if answer.status == StatusCode::OK && such(&answer.json()) {
                return answer.json();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(45), asked)
        .await
        .expect("it never is such")
}

#[tokio::test]
async fn what_is_not_about_replication_passes_through() {
    let world = World::in_front().await;
    let boss = world.fixture.user("boss", "b0ss");
    boss.send(Method::PUT, "/mail", "").await.gives(201);
    assert!(world.peer.contents("mail").is_ok());
    let written = boss.put("/mail/a%2Fb", &json!({"n": 1.0})).await;
    let rev = written.gives(201)["rev"].as_str().unwrap().to_owned();
    assert_eq!(written.header("etag"), format!("\"{rev}\""));
    let bytes = boss.clone().with("content-type", "application/x-thing");
    let path = format!("/mail/a%2Fb/note?rev={rev}");
    let put = bytes.send(Method::PUT, &path, "\u{1}\u{2}").await;
    put.gives(201);
    let note = boss.get("/mail/a%2Fb/note").await;
    assert_eq!(note.text, "\u{1}\u{2}");
    assert_eq!(note.header("content-type"), "application/x-thing");
    let head = boss.head("/mail/a%2Fb/note").await;
    assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""));
    assert_eq!(head.header("content-length"), "2");
    // The cluster's own words, for what it has not as well as for what it has.
    let copy = Method::from_bytes(b"COPY").unwrap();
    let copied = boss.clone().with("destination", "copy");
    let copied = copied.send(copy, "/mail/a%2Fb", "").await;
    assert_eq!(copied.status, StatusCode::CREATED, "{}", copied.text);
    assert_eq!(
        boss.get("/").await.json()["vendor"]["name"],
        "The Apache Software Foundation"
    );
    assert_eq!(
        boss.get("/nothing/x?y=%7B%22z").await.status,
        StatusCode::NOT_FOUND
    );
    let asked = world.peer.requests();
    let last = asked.last().unwrap();
    assert!(format!("{last:?}").contains("%7B%22z"), "{last:?}");
}

#[tokio::test]
async fn the_cluster_says_who_a_caller_is() {
    let world = World::in_front().await;
    let (fixture, peer) = (&world.fixture, &world.peer);
    peer.add_user("anna", "a", &["people"]).unwrap();
    let anonymous = fixture.anonymous().get("/_scheduler/jobs").await;
    anonymous.refuses(401, "unauthorized", "You are not a server admin.");
    assert_eq!(peer.count("GET", "/_session"), 0);
    let (anna, boss) = (fixture.user("anna", "a"), fixture.user("boss", "b0ss"));
    let refused = anna.get("/_scheduler/jobs").await;
    refused.refuses(401, "unauthorized", "You are not a server admin.");
    for _ in 0..3 {
        boss.get("/_scheduler/jobs").await.gives(200);
    }
    // What it said holds for some seconds.
    assert_eq!(peer.count("GET", "/_session"), 2);
    let wrong = fixture.user("boss", "guess").get("/_scheduler/jobs").await;
    wrong.refuses(401, "unauthorized", "Name or password is incorrect.");
    // Administrators of this service are known without the cluster.
    fixture.root().get("/_scheduler/jobs").await.gives(200);
    assert_eq!(peer.count("GET", "/_session"), 3);
    let login = json!({"name": "boss", "password": "b0ss"});
    let session = fixture.anonymous().post("/_session", &login).await;
    session.gives(200);
    let browser = fixture.anonymous().with("cookie", session.cookie());
    browser.get("/_scheduler/jobs").await.gives(200);
    // A page of another site cannot steer replications with it.
    let forged = browser.clone().with("origin", "https://evil.example");
    let forged = forged.post("/_replicate", &replication()).await;
    forged.refuses(403, "forbidden", "The request comes from another site.");
}

#[tokio::test]
async fn a_party_makes_nobody_an_administrator_here() {
    let peer = peer::Peer::start(peer::Options::default()).await.unwrap();
    let setting = Setting {
        upstream: Some(peer.url()),
        ..Setting::default()
    };
    let fixture = Fixture::with(api::Options::default(), setting).await;
    let bogus = fixture.anonymous().with("cookie", "AuthSession=");
    let refused = bogus.get("/_scheduler/jobs").await;
    refused.refuses(401, "unauthorized", "You are not a server admin.");
}

#[tokio::test]
async fn a_cluster_that_is_down_is_said_to_be() {
    let world = World::in_front().await;
    let url = world.peer.url();
    let World { fixture, peer, .. } = world;
    peer.stop().await;
    let boss = fixture.user("boss", "b0ss");
    for path in ["/mail", "/_scheduler/jobs"] {
        let answer = boss.get(path).await;
        let reason = "The CouchDB cluster behind this service does not respond.";
        answer.refuses(502, "bad_gateway", reason);
        assert!(!answer.text.contains(&url));
    }
    fixture.root().get("/_scheduler/jobs").await.gives(200);
    fixture.anonymous().get("/_up").await.gives(200);
}

#[tokio::test]
async fn names_are_databases_of_the_cluster_with_the_callers_rights() {
    let world = World::in_front().await;
    let (fixture, peer) = (&world.fixture, &world.peer);
    let boss = fixture.user("boss", "b0ss");
    let body = json!({"source": "a", "target": "b", "create_target": true});
    let answer = boss.post("/_replicate", &body).await;
    assert_eq!(answer.gives(200)["history"][0]["docs_written"], 3);
    assert!(peer.get("b", "3").unwrap().is_some());
    // Who may not read there may not here.
    peer.add_user("anna", "a", &[]).unwrap();
    let anna = fixture.user("anna", "a");
    let refused = anna.post("/_replicate", &body).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text);
    // Writing another user's document does not grant it the writer's rights.
    let others = json!({"source": "a", "target": "b", "owner": "anna"});
    let lent = boss.put("/_replicator/lent", &others).await;
    lent.refuses(403, "forbidden", LENT);
}

const LENT: &str = "A plain name in `source` or `target` is copied with the rights of the document's owner, so only the owner \
                    may write it: give URLs in its place.";

#[tokio::test]
async fn names_stay_names_in_documents_and_what_is_added_is_never_shown() {
    let world = World::in_front().await;
    let (fixture, peer) = (&world.fixture, &world.peer);
    let boss = fixture.user("boss", "b0ss");
    let open = json!({"members": {}, "admins": {}});
    boss.put("/_replicator/_security", &open).await.gives(200);
    for (name, password) in [("anna", "anna-secret"), ("berta", "b")] {
        peer.add_user(name, password, &[]).unwrap();
    }
    let (anna, berta) = (
        fixture.user("anna", "anna-secret"),
        fixture.user("berta", "b"),
    );
    peer.set_security("a", &open).unwrap();
    // The continuous one keeps its target to itself for a while.
    for target in ["copy", "other"] {
        peer.create_database(target).unwrap();
        peer.set_security(target, &open).unwrap();
    }
    for (id, source) in [("text", json!("a")), ("object", json!({"url": "a"}))] {
        let path = format!("/_replicator/{id}");
        let body = json!({"source": source, "target": "copy", "continuous": id == "object"});
        anna.put(&path, &body).await.gives(201);
        let row = format!("/_scheduler/docs/_replicator/{id}");
        let row = until(&boss, &row, |row| row["info"]["docs_read"].is_u64()).await;
        assert_eq!(row["source"], format!("{}/a/", peer.url()));
        for reader in [&anna, &boss, &berta, &fixture.root()] {
            for query in ["", "?open_revs=all", "?revs=true&meta=true"] {
                let seen = reader.get(&format!("{path}{query}")).await;
                assert!(!seen.text.contains("YW5uY"), "{}", seen.text);
                assert!(!seen.text.contains("grant"), "{}", seen.text);
            }
            let seen = reader.get(&path).await.gives(200);
            assert_eq!(
                (&seen["source"], &seen["target"]),
                (&source, &json!("copy"))
            );
            assert_eq!(seen["owner"], "anna");
        }
    }
    assert!(peer.get("copy", "3").unwrap().is_some());
    // Written back by its owner it is the same replication.
    let mut mine = anna.get("/_replicator/object").await.gives(200);
    mine["note"] = json!(1);
    anna.put("/_replicator/object", &mine).await.gives(201);
    // Credentials of one's own are used in place of the caller's.
    let own = json!({"url": "a", "auth": {"basic": {"username": "boss", "password": "b0ss"}}});
    peer.set_security("a", &json!({"members": {"names": ["boss"]}, "admins": {}}))
        .unwrap();
    let body = json!({"source": own, "target": "other"});
    let copied = anna.post("/_replicate", &body).await.gives(200);
    assert_eq!(copied["ok"], true);
    // This service's own URL, as Fauxton writes it, means the same as the name.
    let front = boss.clone().with("host", "front.example:5985");
    for source in [
        json!("http://front.example:5985/a"),
        json!("http://boss:b0ss@front.example:5985/a"),
    ] {
        let body = json!({"source": source, "target": "http://front.example:5985/other"});
        let copied = front.post("/_replicate", &body).await.gives(200);
        assert_eq!(copied["ok"], true);
    }
    let body = json!({"source": "http://front.example:5985/a", "target": "other"});
    front.put("/_replicator/own-url", &body).await.gives(201);
    let kept = front.get("/_replicator/own-url").await.gives(200);
    assert_eq!(kept["source"], body["source"]);
    until(&boss, "/_scheduler/docs/_replicator/own-url", |row| {
        row["state"] == "completed"
    })
    .await;
    // Rights that are taken away are gone: the document holds none.
    let body = json!({"source": "a", "target": "other"});
    anna.put("/_replicator/revoked", &body).await.gives(201);
    let row = "/_scheduler/docs/_replicator/revoked";
    let fails = |row: &Value| row["state"] == "crashing" || row["state"] == "failed";
    until(&boss, row, fails).await;
}

/// A cluster that trusts the proxy in front of it: it returns who the caller is, and nothing else.
async fn believing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let session = json!({"ok": true, "userCtx": {"name": "anna", "roles": []}, "info": {"authenticated": "proxy"}});
    let session = session.to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else {
                    break;
                };
                read.push(byte);
            }
            let (status, body) = if read.starts_with(b"GET /_session ") {
                ("200 OK", session.as_str())
            } else {
                ("404 Not Found", "{}")
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    url
}

/// A proxy signs only the name, without expiry: anyone who sees the signature once can use it.
#[tokio::test]
async fn the_word_of_a_proxy_is_good_for_one_request_and_never_shown() {
    let world = World::in_front_of(&believing().await).await;
    let fixture = &world.fixture;
    let security = json!({"members": {"names": ["anna"]}});
    fixture
        .root()
        .put("/_replicator/_security", &security)
        .await
        .gives(200);
    let anna = (fixture.anonymous())
        .with("x-auth-couchdb-username", "anna")
        .with("x-auth-couchdb-roles", "people")
        .with("x-auth-couchdb-token", "5ec4e7");
    let names = json!({"source": "mydb", "target": "b"});
    let lasting = json!({"source": "mydb", "target": "b", "continuous": true});
    for answer in [
        anna.put("/_replicator/x", &names).await,
        anna.post("/_replicate?async=true", &lasting).await,
    ] {
        assert!(answer.status.is_client_error(), "{}", answer.text);
        let reason = answer.json()["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains("`source` and `target` as URLs"), "{reason}");
    }
    let once = anna.post("/_replicate?async=true", &names).await.gives(202);
    let job = format!("/_scheduler/jobs/{}", once["job_id"].as_str().unwrap());
    let shown = fixture.root().get(&job).await;
    assert!(
        shown.status == 200 && !shown.text.contains("5ec4e7"),
        "{}",
        shown.text
    );
    // A proxy of the caller's own choice would see them.
    for member in ["proxy", "source_proxy"] {
        let mut seen = json!({"source": "mydb", "target": "http://t.example/b"});
        seen[member] = "http://proxy.example".into();
        let refused = anna.post("/_replicate?async=true", &seen).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
        assert!(
            refused.text.contains("is reached directly"),
            "{}",
            refused.text
        );
    }
    // Such headers are for proxies to send, not for documents.
    for name in [
        "X-Auth-CouchDB-UserName",
        "X-Auth-CouchDB-Roles",
        "X-Auth-CouchDB-Token",
    ] {
        let forged = json!({"source": {"url": "http://s.example/a", "headers": {name: "_admin"}},
            "target": "http://t.example/b"});
        let answer = anna.put("/_replicator/forged", &forged).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.text);
        let answer = anna.post("/_replicate", &forged).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    }
}

#[tokio::test]
async fn a_session_is_not_good_for_a_replication_that_outlives_it() {
    let world = World::in_front().await;
    let fixture = &world.fixture;
    let login = json!({"name": "boss", "password": "b0ss"});
    let session = fixture.anonymous().post("/_session", &login).await;
    let browser = fixture.anonymous().with("cookie", session.cookie());
    let once = json!({"source": "a", "target": "b", "create_target": true});
    let answer = browser.post("/_replicate", &once).await;
    assert_eq!(answer.gives(200)["ok"], true);
    let mut lasting = once.clone();
    lasting["continuous"] = true.into();
    for answer in [
        browser.post("/_replicate", &lasting).await,
        browser.put("/_replicator/x", &once).await,
    ] {
        let reason = answer.json()["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains("send name and password"), "{}", answer.text);
        assert!(answer.status.is_client_error());
    }
}

#[tokio::test]
async fn tasks_of_the_cluster_follow_those_of_here() {
    let world = World::in_front().await;
    let boss = world.fixture.user("boss", "b0ss");
    let empty = boss.get("/_active_tasks").await;
    assert_eq!(empty.gives(200), json!([]));
    let body = json!({"source": "a", "target": "b", "create_target": true, "continuous": true});
    boss.post("/_replicate", &body).await.gives(202);
    let tasks = until(&boss, "/_active_tasks", |tasks| {
        tasks[0]["docs_written"] == 3
    })
    .await;
    assert_eq!(tasks.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn many_requests_of_one_caller_ask_the_cluster_once() {
    let world = World::in_front().await;
    let (fixture, peer) = (&world.fixture, &world.peer);
    let (boss, wrong) = (fixture.user("boss", "b0ss"), fixture.user("boss", "guess"));
    let all = (0..40).map(|_| boss.get("/_scheduler/jobs"));
    for answer in futures::future::join_all(all).await {
        answer.gives(200);
    }
    assert_eq!(peer.count("GET", "/_session"), 1);
    // What it says of others is theirs alone, and a refusal is for all that wait for it, and not remembered.
    let all = (0..40).map(|_| wrong.get("/_scheduler/jobs"));
    for answer in futures::future::join_all(all).await {
        answer.refuses(401, "unauthorized", "Name or password is incorrect.");
    }
    assert_eq!(peer.count("GET", "/_session"), 2);
    wrong.get("/_scheduler/jobs").await;
    assert_eq!(peer.count("GET", "/_session"), 3);
}

#[tokio::test]
async fn whoever_asks_first_may_go_away() {
    let world = World::in_front().await;
    let boss = world.fixture.user("boss", "b0ss");
    let mut first = Box::pin(boss.get("/_scheduler/jobs"));
    assert!(futures::poll!(&mut first).is_pending());
    let mut others = Box::pin(futures::future::join_all(
        (0..9).map(|_| boss.get("/_scheduler/jobs")),
    ));
    assert!(futures::poll!(&mut others).is_pending());
    drop(first);
    for answer in others.await {
        answer.gives(200);
    }
    assert_eq!(world.peer.count("GET", "/_session"), 1);
}

#[tokio::test]
async fn databases_are_listed_where_they_are() {
    let world = World::in_front().await;
    let (peer, boss) = (&world.peer, world.fixture.user("boss", "b0ss"));
    for name in ["_replicator", "mail", "old/_replicator"] {
        peer.create_database(name).unwrap();
    }
    boss.send(Method::PUT, "/new%2f_replicator", "")
        .await
        .gives(201);
    let all = ["_replicator", "a", "mail", "new/_replicator"];
    assert_eq!(boss.get("/_all_dbs").await.gives(200), json!(all));
    for name in all {
        let path = format!("/{}", name.replace('/', "%2f"));
        boss.get(&path).await.gives(200);
    }
    for (query, some) in [
        ("descending=true&limit=2", vec!["new/_replicator", "mail"]),
        ("skip=1&limit=2", vec!["a", "mail"]),
        ("startkey=%22b%22&endkey=%22n%22", vec!["mail"]),
    ] {
        let listed = boss.get(&format!("/_all_dbs?{query}")).await;
        assert_eq!(listed.gives(200), json!(some), "{query}");
        let infos = boss.get(&format!("/_dbs_info?{query}")).await.gives(200);
        let keys: Vec<_> = infos
            .as_array()
            .unwrap()
            .iter()
            .map(|info| &info["key"])
            .collect();
        assert_eq!(json!(keys), json!(some), "{query}");
    }
    let keys = json!({"keys": ["mail", "none", "_replicator", "old/_replicator"]});
    let infos = boss.post("/_dbs_info", &keys).await.gives(200);
    assert_eq!(infos[0]["info"]["db_name"], "mail");
    assert_eq!(infos[1], json!({"key": "none", "error": "not_found"}));
    assert_eq!(infos[2]["info"]["db_name"], "_replicator");
    assert_eq!(
        infos[3],
        json!({"key": "old/_replicator", "error": "not_found"})
    );
    peer.add_user("anna", "a", &[]).unwrap();
    let anna = world.fixture.user("anna", "a").get("/_all_dbs").await;
    anna.refuses(401, "unauthorized", "You are not a server admin.");
}
