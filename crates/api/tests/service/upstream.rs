//! In front of a cluster: who callers are, what is answered here, and names in place of URLs.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};

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
    let (of, peer) = (&world.fixture, &world.peer);
    peer.add_user("anna", "a", &["people"]).unwrap();
    let nobody = of.nobody().get("/_scheduler/jobs").await;
    nobody.refuses(401, "unauthorized", "You are not a server admin.");
    assert_eq!(peer.count("GET", "/_session"), 0);
    let (anna, boss) = (of.user("anna", "a"), of.user("boss", "b0ss"));
    let refused = anna.get("/_scheduler/jobs").await;
    refused.refuses(401, "unauthorized", "You are not a server admin.");
    for _ in 0..3 {
        boss.get("/_scheduler/jobs").await.gives(200);
    }
    // What it said holds for some seconds.
    assert_eq!(peer.count("GET", "/_session"), 2);
    let wrong = of.user("boss", "guess").get("/_scheduler/jobs").await;
    wrong.refuses(401, "unauthorized", "Name or password is incorrect.");
    // Administrators of this service are known without the cluster.
    of.root().get("/_scheduler/jobs").await.gives(200);
    assert_eq!(peer.count("GET", "/_session"), 3);
    let login = json!({"name": "boss", "password": "b0ss"});
    let session = of.nobody().post("/_session", &login).await;
    session.gives(200);
    let browser = of.nobody().with("cookie", session.cookie());
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
    let of = Fixture::with(api::Options::default(), setting).await;
    let bogus = of.nobody().with("cookie", "AuthSession=");
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
        let reason = "The CouchDB behind this service does not answer.";
        answer.refuses(502, "bad_gateway", reason);
        assert!(!answer.text.contains(&url));
    }
    fixture.root().get("/_scheduler/jobs").await.gives(200);
    fixture.nobody().get("/_up").await.gives(200);
}

#[tokio::test]
async fn names_are_databases_of_the_cluster_with_the_callers_rights() {
    let world = World::in_front().await;
    let (of, peer) = (&world.fixture, &world.peer);
    let boss = of.user("boss", "b0ss");
    let body = json!({"source": "a", "target": "b", "create_target": true});
    let answer = boss.post("/_replicate", &body).await;
    assert_eq!(answer.gives(200)["history"][0]["docs_written"], 3);
    assert!(peer.get("b", "3").unwrap().is_some());
    // Who may not read there may not here.
    peer.add_user("anna", "a", &[]).unwrap();
    let anna = of.user("anna", "a");
    let refused = anna.post("/_replicate", &body).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text);
    // In a document, too; and nobody but its owner and administrators sees whose rights they are.
    let open = json!({"members": {}, "admins": {}});
    boss.put("/_replicator/_security", &open).await.gives(200);
    peer.set_security("a", &open).unwrap();
    let body = json!({"source": "a", "target": "http://other.example/b", "continuous": true});
    anna.put("/_replicator/mine", &body).await.gives(201);
    let mine = anna.get("/_replicator/mine").await.gives(200);
    let rights =
        json!({"url": format!("{}/a", peer.url()), "headers": {"Authorization": "Basic YW5uYTph"}});
    assert_eq!(mine["source"], rights);
    peer.add_user("berta", "b", &[]).unwrap();
    let berta = of.user("berta", "b");
    let seen = berta.get("/_replicator/mine").await;
    assert!(!seen.text.contains("YW5uYTph"), "{}", seen.text);
    // Whoever writes somebody else's document does not lend it the own rights.
    let others = json!({"source": "a", "target": "b", "owner": "anna"});
    let lent = boss.put("/_replicator/lent", &others).await;
    lent.refuses(403, "forbidden", "local_endpoints_not_supported");
}

#[tokio::test]
async fn a_session_is_not_good_for_a_replication_that_outlives_it() {
    let world = World::in_front().await;
    let of = &world.fixture;
    let login = json!({"name": "boss", "password": "b0ss"});
    let session = of.nobody().post("/_session", &login).await;
    let browser = of.nobody().with("cookie", session.cookie());
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
    let (of, peer) = (&world.fixture, &world.peer);
    let (boss, wrong) = (of.user("boss", "b0ss"), of.user("boss", "guess"));
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
