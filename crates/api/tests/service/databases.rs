//! Databases as a whole.

use http::Method;
use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test]
async fn databases_come_and_go() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let created = root.send(Method::PUT, "/sales%2F_replicator", "").await;
    assert_eq!(created.gives(201), json!({"ok": true}));
    let location = "http://here.example/sales%2F_replicator";
    assert_eq!(created.header("location"), location);
    let again = root.send(Method::PUT, "/sales/_replicator/", "").await;
    let reason = "The database could not be created, the file already exists.";
    again.refuses(412, "file_exists", reason);
    let info = root.get("/sales%2F_replicator").await.gives(200);
    assert_eq!(
        (&info["db_name"], &info["doc_count"]),
        (&json!("sales/_replicator"), &json!(0))
    );
    let with_rev = root.delete("/sales%2F_replicator?rev=1-a").await;
    assert_eq!(with_rev.status, 400);
    assert_eq!(
        root.delete("/sales%2F_replicator").await.gives(200),
        json!({"ok": true})
    );
    for method in [Method::GET, Method::DELETE] {
        let gone = root.send(method, "/sales%2F_replicator", "").await;
        gone.refuses(404, "not_found", "Database does not exist.");
    }
    for name in ["ordinary", "A%2F_replicator", "_other"] {
        let refused = root.send(Method::PUT, &format!("/{name}"), "").await;
        assert!(matches!(refused.status.as_u16(), 400 | 404), "{name}");
    }
    let illegal = root.send(Method::PUT, "/ordinary", "").await.gives(400);
    assert_eq!(illegal["error"], "illegal_database_name");
    let anonymous = fixture.anonymous();
    for method in [Method::PUT, Method::DELETE] {
        let refused = anonymous.send(method, "/_replicator", "").await;
        refused.refuses(401, "unauthorized", "You are not a server admin.");
    }
    assert_eq!(
        root.send(Method::PATCH, "/_replicator", "").await.status,
        405
    );
}

#[tokio::test]
async fn security_says_who_may() {
    let fixture = Fixture::new().await;
    for (name, role) in [("ada", "boss"), ("max", "staff"), ("joe", "guest")] {
        fixture.add_user(name, "password", &[role]).await;
    }
    let (root, anonymous) = (fixture.root(), fixture.anonymous());
    let path = "/_replicator/_security";
    let default = json!({"members": {"roles": ["_admin"]}, "admins": {"roles": ["_admin"]}});
    assert_eq!(root.get(path).await.gives(200), default);
    let ada = fixture.user("ada", "password");
    let not_allowed = "You are not allowed to access this db.";
    ada.get("/_replicator")
        .await
        .refuses(403, "forbidden", not_allowed);
    let not_authorized = "You are not authorized to access this db.";
    anonymous
        .get("/_replicator")
        .await
        .refuses(401, "unauthorized", not_authorized);

    let security = json!({
        "admins": {"names": [], "roles": ["boss"]}, "members": {"names": ["max"]}, "cloudant": {},
    });
    assert_eq!(
        root.put(path, &security).await.gives(200),
        json!({"ok": true})
    );
    assert_eq!(root.get(path).await.gives(200), security);
    let max = fixture.user("max", "password");
    let joe = fixture.user("joe", "password");
    for member in [&ada, &max] {
        assert_eq!(member.get("/_replicator").await.status, 200);
        assert_eq!(member.get(path).await.status, 200);
    }
    joe.get("/_replicator")
        .await
        .refuses(403, "forbidden", not_allowed);
    let not_admin = "You are not a db or server admin.";
    max.put(path, &json!({}))
        .await
        .refuses(401, "unauthorized", not_admin);
    ada.put(path, &security).await.gives(200);
    for bad in [
        json!({"admins": 7}),
        json!({"members": {"names": "max"}}),
        json!({"members": {"roles": [7]}}),
        json!([]),
    ] {
        assert_eq!(root.put(path, &bad).await.status, 400, "{bad}");
    }
    assert_eq!(root.get(path).await.gives(200), security);
    assert_eq!(root.put("/_users/_security", &json!({})).await.status, 403);
    // Without names, everyone is a member, as in CouchDB.
    root.put(path, &json!({})).await.gives(200);
    assert_eq!(anonymous.get("/_replicator").await.status, 200);
}

#[tokio::test]
async fn a_role_of_that_name_makes_no_administrator() {
    let fixture = Fixture::new().await;
    fixture
        .add_user("eve", "password", &["_admin", "_replicator"])
        .await;
    let eve = fixture.user("eve", "password");
    assert_eq!(eve.get("/_replicator").await.status, 403);
    assert_eq!(eve.get("/_all_dbs").await.status, 401);
}

#[tokio::test]
async fn clients_may_ask_for_upkeep() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let full = root
        .post("/_replicator/_ensure_full_commit", &json!({}))
        .await;
    assert_eq!(full.gives(201)["ok"], true);
    root.post("/_replicator/_compact", &json!({}))
        .await
        .gives(202);
    root.post("/_replicator/_view_cleanup", &json!({}))
        .await
        .gives(202);
    assert_eq!(root.get("/_replicator/_revs_limit").await.gives(200), 1000);
    root.put("/_replicator/_revs_limit", &json!(5))
        .await
        .gives(200);
    assert_eq!(root.get("/_replicator/_revs_limit").await.gives(200), 5);
    for bad in [json!(0), json!(-1), json!("x"), json!(1.5)] {
        assert_eq!(root.put("/_replicator/_revs_limit", &bad).await.status, 400);
    }
    let refused = fixture
        .anonymous()
        .put("/_replicator/_revs_limit", &json!(1))
        .await;
    assert_eq!(refused.status, 401);
}

#[tokio::test]
async fn system_databases_are_not_partitioned() {
    let fixture = Fixture::new().await;
    for name in ["_replicator", "x%2f_replicator"] {
        let path = format!("/{name}?partitioned=true");
        let answer = fixture.root().send(Method::PUT, &path, "").await;
        answer.refuses(400, "bad_request", "Cannot partition a system database");
    }
}
