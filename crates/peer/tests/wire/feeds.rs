//! `_changes` through filters, and `_db_updates`.

use peer::{Functions, Options, Peer, sources};
use serde_json::{Value, json};

use crate::faults::client;

async fn json(url: &str) -> Value {
    client()
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap()
}

fn ids(feed: &Value) -> Vec<&str> {
    let rows = feed["results"].as_array().unwrap().iter();
    rows.map(|row| row["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn functions_are_known_by_their_text() {
    let own = "function(doc) { return doc.n > 1; }";
    let functions = Functions::default().filter(own, |doc, _| doc["n"].as_i64() > Some(1));
    let options = Options {
        functions,
        ..Options::default()
    };
    let peer = Peer::start(options).await.unwrap();
    peer.create_database("db").unwrap();
    let design = json!({
        "_id": "_design/f",
        "filters": {"own": own, "starts": sources::FILTER_STARTS, "unknown": "function() {}"},
        "views": {"mammals": {"map": sources::MAP_MAMMAL}},
    });
    peer.put("db", &design.to_string()).unwrap();
    for (id, n, class) in [
        ("ant", 1, "insect"),
        ("ape", 2, "mammal"),
        ("bat", 3, "mammal"),
    ] {
        let doc = json!({"_id": id, "n": n, "class": class});
        peer.put("db", &doc.to_string()).unwrap();
    }
    let feed =
        async |query: &str| json(&format!("{}/_changes?{query}", peer.database_url("db"))).await;
    for (query, expected) in [
        ("filter=f/own", vec!["ape", "bat"]),
        ("filter=f/starts&starts=a", vec!["ant", "ape"]),
        ("filter=_view&view=f/mammals", vec!["ape", "bat"]),
        ("filter=_design", vec!["_design/f"]),
        ("filter=_doc_ids&doc_ids=[\"bat\",\"no\"]", vec!["bat"]),
        ("filter=f/own&limit=1", vec!["ape"]),
        ("filter=f/own&descending=true", vec!["bat", "ape"]),
    ] {
        assert_eq!(ids(&feed(query).await), expected, "{query}");
    }
    for query in ["filter=f/unknown", "filter=f/none", "filter=g/own"] {
        assert!(feed(query).await["error"].is_string(), "{query}");
    }
    let url = format!("{}/_changes?filter=_selector", peer.database_url("db"));
    let selector = json!({"selector": {"n": {"$lte": 2}, "class": {"$ne": "insect"}}});
    let answer = client().post(url).json(&selector).send().await.unwrap();
    assert_eq!(ids(&answer.json().await.unwrap()), ["ape"]);
}

#[tokio::test]
async fn updates_of_databases() {
    let peer = Peer::start(Options::default()).await.unwrap();
    let url = |query: &str| format!("{}/_db_updates?{query}", peer.url());
    peer.create_database("a").unwrap();
    let feed = json(&url("")).await;
    assert_eq!(feed["results"][0]["db_name"], "a");
    assert_eq!(feed["results"][0]["type"], "created");
    let since = feed["last_seq"].as_str().unwrap().to_owned();
    // A waiting client gets the next change.
    let waiting = client()
        .get(url(&format!("feed=longpoll&since={since}")))
        .send();
    let waiting = tokio::spawn(waiting);
    peer.put("a", r#"{"_id":"x"}"#).unwrap();
    let heard: Value = waiting.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(heard["results"][0]["type"], "updated");
    peer.delete_database("a").unwrap();
    let feed = json(&url(&format!("since={since}"))).await;
    let kinds: Vec<_> = feed["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["type"])
        .collect();
    assert_eq!(*kinds.last().unwrap(), "deleted");
    let now = json(&url("since=now")).await;
    assert_eq!(now["results"], json!([]));
    let mut continuous = client()
        .get(url("feed=continuous&since=now"))
        .send()
        .await
        .unwrap();
    peer.create_database("b").unwrap();
    let line = loop {
        let chunk = continuous.chunk().await.unwrap().unwrap();
        if !chunk.trim_ascii().is_empty() {
            break chunk;
        }
    };
    let row: Value = serde_json::from_slice(line.trim_ascii()).unwrap();
    assert_eq!(
        (&row["db_name"], &row["type"]),
        (&json!("b"), &json!("created"))
    );
}

#[tokio::test]
async fn a_deleted_database_ends_its_feeds() {
    let peer = Peer::start(Options::default()).await.unwrap();
    peer.create_database("a").unwrap();
    let url = format!("{}/_changes?feed=longpoll", peer.database_url("a"));
    let waiting = tokio::spawn(client().get(url).send());
    while peer.count("GET", "/a/_changes") == 0 {
        tokio::task::yield_now().await;
    }
    peer.delete_database("a").unwrap();
    let answer = waiting.await.unwrap().unwrap();
    let _ = answer.text().await;
    let gone = client().get(peer.database_url("a")).send().await.unwrap();
    assert_eq!(gone.status().as_u16(), 404);
}
