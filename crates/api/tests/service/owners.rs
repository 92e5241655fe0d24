//! Whose documents these are: rules for writers and readers of replicator databases.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Fixture, User, replication};

const DB: &str = "/_replicator";
const OTHERS: &str = "Can't update replication documents from other users.";

async fn shared() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.share().await;
    fixture
}

fn with_secrets() -> Value {
    json!({
        "source": "http://joe:hidden1@src.example/a",
        "target": {"url": "http://tgt.example/b", "headers": {"Authorization": "hidden2"},
            "auth": {"basic": {"username": "joe", "password": "hidden3"}}},
        "source_proxy": "http://joe:hidden4@proxy.example",
    })
}

async fn put(user: &User<'_>, id: &str, body: &Value) -> String {
    let answer = user.put(&format!("{DB}/{id}"), body).await.gives(201);
    answer["rev"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn owners_are_filled_in_and_kept() {
    let fixture = shared().await;
    let (joe, eve, ada, root) = (
        fixture.user("joe", "password"),
        fixture.user("eve", "password"),
        fixture.user("ada", "password"),
        fixture.root(),
    );
    put(&joe, "a", &replication()).await;
    assert_eq!(joe.get("/_replicator/a").await.json()["owner"], "joe");
    for owner in [json!("joe"), json!(null), json!(7), json!("_admin")] {
        let mut stolen = replication();
        stolen["owner"] = owner;
        eve.put("/_replicator/b", &stolen)
            .await
            .refuses(403, "forbidden", OTHERS);
    }
    // Administrators may write for others.
    for admin in [&ada, &root] {
        let mut given = replication();
        given["owner"] = json!("joe");
        let id = if admin.get("/").await.status == 200 {
            uuid(admin).await
        } else {
            String::new()
        };
        put(admin, &id, &given).await;
        assert_eq!(root.get(&format!("{DB}/{id}")).await.json()["owner"], "joe");
        given["owner"] = json!(null);
        let id = uuid(admin).await;
        put(admin, &id, &given).await;
        let owner = root.get(&format!("{DB}/{id}")).await.json()["owner"].clone();
        assert!(owner == "ada" || owner == "root");
    }
}

async fn uuid(user: &User<'_>) -> String {
    user.get("/_uuids").await.json()["uuids"][0]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Every way in which another user could take over a document.
#[tokio::test]
async fn nobody_hijacks_a_document() {
    let fixture = shared().await;
    let (joe, eve) = (
        fixture.user("joe", "password"),
        fixture.user("eve", "password"),
    );
    let rev = put(&joe, "a", &with_secrets()).await;
    let mut with_rev = replication();
    with_rev["_rev"] = json!(rev);
    let mut as_joe = with_rev.clone();
    as_joe["owner"] = json!("joe");
    let mut as_eve = with_rev.clone();
    as_eve["owner"] = json!("eve");
    let mut state = with_rev.clone();
    state["_replication_state"] = json!("failed");
    for body in [&with_rev, &as_joe, &as_eve, &state] {
        eve.put("/_replicator/a", body)
            .await
            .refuses(403, "forbidden", OTHERS);
        let mut doc = (*body).clone();
        doc["_id"] = json!("a");
        let rows = eve
            .post("/_replicator/_bulk_docs", &json!({"docs": [doc.clone()]}))
            .await;
        let refused = json!([{"id": "a", "error": "forbidden", "reason": OTHERS}]);
        assert_eq!(rows.gives(201), refused);
        eve.post(DB, &doc).await.refuses(403, "forbidden", OTHERS);
        // A branch of one's own that wins would be as good as the document.
        doc["_rev"] = json!("9-f");
        let pushed = json!({"docs": [doc], "new_edits": false});
        let rows = eve
            .post("/_replicator/_bulk_docs", &pushed)
            .await
            .gives(201);
        assert_eq!(rows[0]["error"], "forbidden", "{rows}");
    }
    let path = format!("/_replicator/a?rev={rev}");
    eve.delete(&path).await.refuses(403, "forbidden", OTHERS);
    let mut tombstone = json!({"_id": "a", "_rev": rev, "_deleted": true});
    let rows = eve
        .post(
            "/_replicator/_bulk_docs",
            &json!({"docs": [tombstone.clone()]}),
        )
        .await;
    assert_eq!(rows.gives(201)[0]["error"], "forbidden");
    tombstone["_rev"] = json!("9-f");
    let pushed = json!({"docs": [tombstone], "new_edits": false});
    let rows = eve.post("/_replicator/_bulk_docs", &pushed).await;
    assert_eq!(rows.gives(201)[0]["error"], "forbidden");
    let path = format!("/_replicator/a/x.txt?rev={rev}");
    let attached = eve.send(Method::PUT, &path, "x").await;
    assert_eq!(attached.status, 403);
    // Nor by a proxy of what the reader got: the revision was made up.
    let seen = eve.get("/_replicator/a").await.gives(200);
    let mut edited = seen.clone();
    edited["continuous"] = json!(true);
    assert_ne!(seen["_rev"], json!(rev));
    assert!(matches!(
        eve.put("/_replicator/a", &edited).await.status.as_u16(),
        403 | 409
    ));
    assert_eq!(joe.get("/_replicator/a").await.json()["_rev"], json!(rev));
    joe.delete(&format!("/_replicator/a?rev={rev}"))
        .await
        .gives(200);
}

/// A branch that a member hides in a document must not come back when an administrator deletes it.
#[tokio::test]
async fn members_add_no_conflicts() {
    let fixture = shared().await;
    let (joe, ada) = (
        fixture.user("joe", "password"),
        fixture.user("ada", "password"),
    );
    let reason = "Only an administrator may add a conflicting revision; update the current one.";
    let branch = |rev: &str| {
        let mut doc = replication();
        doc["_id"] = json!("a");
        doc["owner"] = json!("joe");
        doc["_rev"] = json!(rev);
        doc
    };
    let push = async |user: &User<'_>, doc: Value| {
        let docs = json!({"docs": [doc], "new_edits": false});
        let rows = user.post("/_replicator/_bulk_docs", &docs).await;
        rows.gives(201)
    };
    // A replicator may bring a document and its next revisions.
    assert_eq!(push(&joe, branch("1-a")).await, json!([]));
    let mut next = branch("2-b");
    next["_revisions"] = json!({"start": 2, "ids": ["b", "a"]});
    assert_eq!(push(&joe, next).await, json!([]));
    for rev in ["1-0", "9-f"] {
        let rows = push(&joe, branch(rev)).await;
        assert_eq!(rows[0]["reason"], reason, "{rows}");
        let put = joe
            .put("/_replicator/a?new_edits=false", &branch(rev))
            .await;
        put.refuses(403, "forbidden", reason);
    }
    // Nor by continuing a deleted branch.
    let mut tombstone = branch("1-0");
    tombstone["_deleted"] = json!(true);
    assert_eq!(push(&joe, tombstone).await, json!([]));
    let put = joe.put("/_replicator/a", &branch("1-0")).await;
    put.refuses(403, "forbidden", reason);
    assert_eq!(push(&ada, branch("1-1")).await, json!([]));
    for rev in ["1-1", "2-b"] {
        ada.delete(&format!("/_replicator/a?rev={rev}"))
            .await
            .gives(200);
    }
    joe.get("/_replicator/a")
        .await
        .refuses(404, "not_found", "deleted");
    let jobs = fixture.root().get("/_scheduler/docs").await.gives(200);
    assert_eq!(jobs["docs"], json!([]));
}

#[tokio::test]
async fn a_role_named_replicator_is_nothing() {
    let fixture = shared().await;
    fixture
        .add_user(
            "mallory",
            "password",
            &["_replicator", "_admin", "replicator"],
        )
        .await;
    let security = json!({"members": {"names": ["joe", "mallory"]}});
    fixture
        .root()
        .put("/_replicator/_security", &security)
        .await
        .gives(200);
    let joe = fixture.user("joe", "password");
    let rev = put(&joe, "a", &replication()).await;
    let mallory = fixture.user("mallory", "password");
    let refused = mallory.delete(&format!("/_replicator/a?rev={rev}")).await;
    refused.refuses(403, "forbidden", OTHERS);
    let invalid = mallory.put("/_replicator/b", &json!({"source": 7})).await;
    assert_eq!(invalid.status, 403);
}

#[tokio::test]
async fn others_get_documents_without_credentials() {
    let fixture = shared().await;
    let (joe, eve) = (
        fixture.user("joe", "password"),
        fixture.user("eve", "password"),
    );
    let rev = put(&joe, "a", &with_secrets()).await;
    let whole = joe.get("/_replicator/a").await.gives(200);
    assert_eq!(whole["source"], with_secrets()["source"]);
    assert_eq!(whole["target"], with_secrets()["target"]);
    assert_eq!(fixture.root().get("/_replicator/a").await.json(), whole);
    assert_eq!(
        fixture
            .user("ada", "password")
            .get("/_replicator/a")
            .await
            .json(),
        whole
    );

    let bare = eve
        .get("/_replicator/a?revs=true&revs_info=true")
        .await
        .gives(200);
    assert_eq!(bare["source"], "http://src.example/a");
    assert_eq!(bare["target"], json!({"url": "http://tgt.example/b"}));
    assert_eq!(bare["source_proxy"], "http://proxy.example");
    let made_up = bare["_rev"].as_str().unwrap();
    assert!(made_up.starts_with("1-") && made_up != rev);
    assert_eq!(bare["_revisions"]["ids"][0], json!(made_up[2..]));
    assert_eq!(bare["_revs_info"][0]["rev"], json!(made_up));
    assert_eq!(
        eve.get(&format!("/_replicator/a?rev={made_up}"))
            .await
            .status,
        404
    );
    // Whatever way it is read.
    let docs = json!({"docs": [{"id": "a"}, {"id": "a", "rev": rev}]});
    let json_only = eve.clone().with("accept", "application/json");
    for answer in [
        eve.get(&format!("/_replicator/a?rev={rev}")).await,
        eve.get("/_replicator/a?open_revs=all").await,
        json_only
            .get("/_replicator/a?open_revs=all&latest=true")
            .await,
        eve.post("/_replicator/_bulk_get?revs=true&latest=true", &docs)
            .await,
    ] {
        assert_eq!(answer.status, 200);
        assert!(answer.text.contains("src.example"), "{}", answer.text);
        assert!(!answer.text.contains("hidden"), "{}", answer.text);
    }
    // Listings are for administrators.
    let find = json!({"selector": {"target.auth.basic.password": "hidden3"}});
    for answer in [
        eve.get("/_replicator/_all_docs?include_docs=true").await,
        eve.get("/_replicator/_changes?include_docs=true").await,
        eve.post("/_replicator/_find", &find).await,
    ] {
        answer.refuses(401, "unauthorized", "You are not a db or server admin.");
    }
}

#[tokio::test]
async fn members_change_no_design_documents() {
    let fixture = shared().await;
    let eve = fixture.user("eve", "password");
    let reason = "You are not a db or server admin.";
    let answer = eve.put("/_replicator/_design/x", &json!({})).await;
    answer.refuses(401, "unauthorized", reason);
    let docs = json!({"docs": [{"_id": "_design/x"}]});
    let rows = eve.post("/_replicator/_bulk_docs", &docs).await.gives(201);
    assert_eq!(rows[0]["error"], "unauthorized");
    eve.post(DB, &json!({"_id": "_design/x"}))
        .await
        .refuses(401, "unauthorized", reason);
    let attached = eve.send(Method::PUT, "/_replicator/_design/x/y", "x").await;
    attached.refuses(401, "unauthorized", reason);
    fixture
        .user("ada", "password")
        .put("/_replicator/_design/x", &json!({}))
        .await
        .gives(201);
    eve.get("/_replicator/_design/x").await.gives(200);
}
