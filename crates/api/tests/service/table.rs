//! All replications at once: `_scheduler/replications`, `causes`, `nodes` and `history`.

use serde_json::{Value, json};

use crate::world::World;

const LIST: &str = "/_scheduler/replications";

fn ids(answer: &Value) -> Vec<&str> {
    let rows = answer["replications"].as_array().unwrap().iter();
    rows.map(|row| row["doc_id"].as_str().unwrap()).collect()
}

/// Documents that wait, and two that had ended when they were written, in two databases.
async fn world() -> World {
    let world = World::idle().await;
    let replications = &world.fixture.replications;
    let other = replications.create_database("other/_replicator").await;
    other.unwrap();
    for n in 0..3 {
        let more = json!({"target": format!("http://t/{n}"), "continuous": n == 0});
        world.write("_replicator", &format!("doc{n}"), &more).await;
    }
    for n in 0..2 {
        let reason = format!("unauthorized: unauthorized to access http://h.example/db{n}/");
        let more = json!({"_replication_state": "failed", "_replication_state_reason": reason});
        let id = format!("old{n}");
        world.write("other/_replicator", &id, &more).await;
    }
    world
}

#[tokio::test]
async fn all_replications_are_listed_counted_and_sorted() {
    let world = world().await;
    let root = world.root();
    let all = root.get(LIST).await.gives(200);
    assert_eq!(ids(&all), ["old0", "old1", "doc0", "doc1", "doc2"]);
    assert_eq!(
        (&all["total_rows"], &all["matching"]),
        (&json!(5), &json!(5))
    );
    assert_eq!(
        (&all["states"]["failed"], &all["states"]["pending"]),
        (&json!(2), &json!(3))
    );
    assert_eq!(
        all["databases"],
        json!({"_replicator": 3, "other/_replicator": 2})
    );
    let old = &all["replications"][0];
    assert_eq!(
        (&old["job_id"], &old["state"], &old["error"], &old["type"]),
        (
            &Value::Null,
            &json!("failed"),
            &json!("unauthorized"),
            &json!("one-shot")
        )
    );
    assert!(old["hint"].as_str().unwrap().starts_with("Check the user"));
    assert_eq!(all["replications"][2]["type"], "continuous");
    for (query, expected) in [
        ("states=failed,crashing", &["old0", "old1"][..]),
        (
            "database=_replicator&sort=id&descending=true",
            &["doc2", "doc1", "doc0"],
        ),
        ("q=T/2", &["doc2"]),
        ("q=old", &["old0", "old1"]),
        (
            "sort=target&limit=2&descending=true&states=pending",
            &["doc2", "doc1"],
        ),
        ("limit=0", &[]),
    ] {
        let answer = root.get(&format!("{LIST}?{query}")).await.gives(200);
        assert_eq!(ids(&answer), expected, "{query}");
    }
    let page = root.get(&format!("{LIST}?limit=2")).await.gives(200);
    let bookmark = page["bookmark"].as_str().unwrap();
    let rest = root.get(&format!("{LIST}?bookmark={bookmark}")).await;
    let rest = rest.gives(200);
    assert_eq!(ids(&rest), ["doc0", "doc1", "doc2"]);
    assert_eq!(rest.get("bookmark"), None);
    for (query, reason) in [
        ("bookmark=x", "`bookmark` is not valid"),
        ("sort=x", "there is no column `x` to sort by"),
        ("limit=x", "limit must be an integer"),
        (
            "states=odd",
            "Unknown state odd. Choose from: [failed,unreachable,crashing,paused,pending,initializing,running,idle,completed]",
        ),
    ] {
        let answer = root.get(&format!("{LIST}?{query}")).await;
        answer.refuses(400, "query_parse_error", reason);
    }
}

#[tokio::test]
async fn one_cause_is_one_line_and_one_request() {
    let world = world().await;
    let root = world.root();
    let causes = root.get("/_scheduler/causes").await.gives(200);
    let cause = &causes["causes"][0];
    assert_eq!(
        (
            &causes["total_causes"],
            &cause["replications"],
            &cause["server"]
        ),
        (&json!(1), &json!(2), &json!("http://h.example"))
    );
    assert_eq!(cause["examples"].as_array().unwrap().len(), 2);
    let matching = json!({"action": "restart", "matching": {"cause": cause["cause"]}});
    let acted = root.post(LIST, &matching).await.gives(200);
    assert_eq!(
        acted,
        json!({"ok": true, "done": 2, "failed": [], "left": 0})
    );
    let causes = root.get("/_scheduler/causes").await.gives(200);
    assert_eq!(
        (&causes["total_causes"], &causes["states"]["pending"]),
        (&json!(0), &json!(5))
    );
    let doc = root.get("/other%2F_replicator/old0").await.gives(200);
    assert_eq!(doc.get("_replication_state"), None);

    let key = |answer: &Value, at: usize| answer["replications"][at]["key"].clone();
    let all = root.get(&format!("{LIST}?sort=id")).await.gives(200);
    let keys = json!([key(&all, 0), key(&all, 1)]);
    let pause = json!({"action": "pause", "keys": keys});
    assert_eq!(root.post(LIST, &pause).await.gives(200)["done"], 2);
    let all = root.get(LIST).await.gives(200);
    assert_eq!(
        (&all["states"]["paused"], &all["states"]["pending"]),
        (&json!(2), &json!(3))
    );
    let keys = json!([key(&all, 0), "none"]);
    let delete = json!({"action": "delete", "keys": keys});
    let acted = root.post(LIST, &delete).await.gives(200);
    assert_eq!((&acted["ok"], &acted["done"]), (&json!(false), &json!(1)));
    let missing = json!([{"key": "none", "error": "not_found", "reason": "missing"}]);
    assert_eq!(acted["failed"], missing);
    assert_eq!(root.get(LIST).await.gives(200)["total_rows"], 4);
    for (body, reason) in [
        (
            json!({"keys": []}),
            "`action` must be restart, pause, resume or delete",
        ),
        (
            json!({"action": "pause"}),
            "give either `keys`, an array, or `matching`, an object",
        ),
        (
            json!({"action": "pause", "keys": [1]}),
            "`keys` must be an array of at most 10000 strings",
        ),
        (
            json!({"action": "pause", "matching": {"state": "x"}}),
            "unknown filter `state`",
        ),
    ] {
        let refused = root.post(LIST, &body).await;
        refused.refuses(400, "bad_request", reason);
    }
}

#[tokio::test]
async fn rows_and_errors_say_what_to_do() {
    let world = world().await;
    let root = world.root();
    let row = root.get("/_scheduler/docs/other%2F_replicator/old0").await;
    let row = row.gives(200);
    assert!(
        row["hint"].as_str().unwrap().starts_with("Check the user"),
        "{row:#}"
    );
    let doc = json!({"source": "x", "target": "http://t/1"});
    let refused = root.put("/_replicator/bare", &doc).await;
    assert_eq!(refused.status.as_u16(), 403);
    let hint = refused.json()["hint"].as_str().unwrap().to_owned();
    assert!(hint.starts_with("Enter a full URL"), "{hint}");
    assert_eq!(
        root.get("/_scheduler/nodes").await.gives(200),
        json!({"nodes": []})
    );
    assert_eq!(
        root.get("/_scheduler/history").await.gives(200),
        json!({"minutes": []})
    );
}

#[tokio::test]
async fn shares_are_listed_in_pages() {
    let world = world().await;
    let root = world.root();
    world.fixture.add_user("joe", "j", &[]).await;
    let joes = world.body(&json!({"continuous": true}));
    let joe = world.fixture.user("joe", "j");
    joe.post("/_replicate?async=true", &joes).await.gives(202);
    let all = root.get("/_scheduler/shares").await.gives(200);
    let row = |name: &str, waiting: u64| json!({"name": name, "shares": 100, "running": 0, "idle": 0, "waiting": waiting, "ahead_sec": 0});
    assert_eq!(all["shares"], json!([row("_replicator", 3), row("joe", 1)]));
    assert_eq!((&all["complete"], all.get("after")), (&json!(true), None));
    let page = root.get("/_scheduler/shares?limit=1").await.gives(200);
    assert_eq!(page["after"], "_replicator");
    let rest = root.get("/_scheduler/shares?after=_replicator").await;
    assert_eq!(rest.gives(200)["shares"], json!([row("joe", 1)]));
}
