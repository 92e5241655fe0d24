//! Documents of `_users`.

use api::Options;
use aws_lc_rs::hmac;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Setting};

const JOE: &str = "/_users/org.couchdb.user:joe";

fn user(name: &str) -> Value {
    json!({"type": "user", "name": name, "roles": [], "password": "joes password"})
}

#[tokio::test]
async fn passwords_become_hashes() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    root.put(JOE, &user("joe")).await.gives(201);
    let stored = root.get(JOE).await;
    assert!(!stored.text.contains("joes password"));
    let stored = stored.gives(200);
    assert_eq!(stored.get("password"), None);
    let scheme = (
        &stored["password_scheme"],
        &stored["pbkdf2_prf"],
        &stored["iterations"],
    );
    assert_eq!(
        scheme,
        (&json!("pbkdf2"), &json!("sha256"), &json!(600_000))
    );
    let joe = fixture.user("joe", "joes password");
    assert_eq!(
        joe.get("/_session").await.gives(200)["userCtx"]["name"],
        "joe"
    );

    // The own document, and nothing else.
    assert_eq!(joe.get(JOE).await.gives(200)["_rev"], stored["_rev"]);
    root.put("/_users/org.couchdb.user:eve", &user("eve"))
        .await
        .gives(201);
    let eves = "/_users/org.couchdb.user:eve";
    joe.get(eves).await.refuses(404, "not_found", "missing");
    let refused = joe.put(eves, &user("eve")).await;
    refused.refuses(
        403,
        "forbidden",
        "You may only update your own user document.",
    );
    for path in [
        "/_users",
        "/_users/_all_docs",
        "/_users/_changes",
        "/_users/_security",
    ] {
        assert!(
            matches!(joe.get(path).await.status.as_u16(), 401 | 403),
            "{path}"
        );
        assert_eq!(fixture.anonymous().get(path).await.status, 401, "{path}");
    }
    let docs = json!({"docs": [{"id": "org.couchdb.user:eve"}]});
    assert_eq!(joe.post("/_users/_bulk_get", &docs).await.status, 401);
    assert_eq!(joe.post("/_users", &user("x")).await.status, 401);

    // A new password, but no new roles.
    let mut changed = stored.clone();
    changed["roles"] = json!(["boss"]);
    joe.put(JOE, &changed)
        .await
        .refuses(403, "forbidden", "Only _admin may edit roles.");
    changed["roles"] = json!([]);
    changed["password"] = json!("a new one");
    joe.put(JOE, &changed).await.gives(201);
    assert_eq!(joe.get("/_session").await.status, 401);
    let joe = fixture.user("joe", "a new one");
    assert_eq!(joe.get("/_session").await.status, 200);
    let rev = joe.get(JOE).await.json()["_rev"]
        .as_str()
        .unwrap()
        .to_owned();
    joe.delete(&format!("{JOE}?rev={rev}")).await.gives(200);
    assert_eq!(joe.get("/_session").await.status, 401);
}

/// A branch that a user hides in the own document must not come back when an administrator changes or deletes it.
#[tokio::test]
async fn users_keep_no_revision_that_an_administrator_replaced() {
    let secret = b"the proxy's secret".to_vec();
    let signed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), b"anna");
    let setting = Setting {
        proxy_secrets: vec![secret],
        ..Setting::default()
    };
    let fixture = Fixture::with(Options::default(), setting).await;
    fixture.add_user("anna", "password", &["boss"]).await;
    let (anna, root) = (fixture.user("anna", "password"), fixture.root());
    // A proxy logs her in whatever her document says.
    let vouched = (fixture.anonymous().with("x-auth-couchdb-username", "anna"))
        .with("x-auth-couchdb-token", &wire::hex(signed.as_ref()));
    let path = "/_users/org.couchdb.user:anna";
    let mine = anna.get(path).await.gives(200);
    let mut branch = mine.clone();
    branch["_rev"] = json!("1-00000000000000000000000000000000");
    let pushed = anna.put(&format!("{path}?new_edits=false"), &branch).await;
    let reason = "Only _admin may write with `new_edits=false` in `_users`.";
    pushed.refuses(403, "forbidden", reason);
    // Replication by administrators works, and brings conflicts.
    let pushed = root.put(&format!("{path}?new_edits=false"), &branch).await;
    pushed.gives(201);
    let mut demoted = mine.clone();
    demoted["roles"] = json!([]);
    let rev = root.put(path, &demoted).await.gives(201)["rev"].clone();
    let rev = rev.as_str().unwrap();
    let refused = vouched.delete(&format!("{path}?rev={rev}")).await;
    let reason = "Only _admin may make another revision of a user current.";
    refused.refuses(403, "forbidden", reason);
    // A conflict may go, but not come back.
    let losing = branch["_rev"].as_str().unwrap();
    let gone = vouched.delete(&format!("{path}?rev={losing}")).await;
    let mut revived = demoted.clone();
    revived["_rev"] = gone.gives(200)["rev"].clone();
    let reason = "Only _admin may add a conflicting revision of a user.";
    let refused = vouched.put(path, &revived).await;
    refused.refuses(403, "forbidden", reason);
    let session = anna.get("/_session").await.gives(200);
    assert_eq!(session["userCtx"]["roles"], json!([]));
    anna.delete(&format!("{path}?rev={rev}")).await.gives(200);
    assert_eq!(anna.get("/_session").await.status, 401);
}

/// Whichever revision wins: each could be one that an administrator has replaced on another server.
#[tokio::test]
async fn a_user_with_conflicts_cannot_log_in() {
    let fixture = Fixture::new().await;
    fixture.add_user("anna", "password", &[]).await;
    let (anna, root) = (fixture.user("anna", "password"), fixture.root());
    let login = json!({"name": "anna", "password": "password"});
    let cookie = fixture.anonymous().post("/_session", &login).await;
    let cookie = cookie.headers["set-cookie"].to_str().unwrap();
    let with_cookie = fixture.anonymous().with("cookie", cookie);
    assert_eq!(
        with_cookie.get("/_session").await.gives(200)["userCtx"]["name"],
        "anna"
    );
    let path = "/_users/org.couchdb.user:anna";
    let mut branch = root.get(path).await.gives(200);
    let losing = "1-00000000000000000000000000000000";
    branch["_rev"] = json!(losing);
    let pushed = root.put(&format!("{path}?new_edits=false"), &branch).await;
    pushed.gives(201);
    let reason = "User document conflicts must be resolved before the document is used for authentication purposes.";
    for refused in [
        anna.get("/_session").await,
        with_cookie.get("/_session").await,
        fixture.anonymous().post("/_session", &login).await,
    ] {
        refused.refuses(401, "unauthorized", reason);
    }
    root.delete(&format!("{path}?rev={losing}"))
        .await
        .gives(200);
    for works in [anna, with_cookie] {
        assert_eq!(
            works.get("/_session").await.gives(200)["userCtx"]["name"],
            "anna"
        );
    }
}

#[tokio::test]
async fn what_describes_no_user_is_forbidden() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let with = |name: &str, value: Value| {
        let mut doc = user("joe");
        doc[name] = value;
        doc
    };
    let without = |name: &str| {
        let mut doc = user("joe");
        doc.as_object_mut().unwrap().remove(name);
        doc
    };
    for (doc, reason) in [
        (without("type"), "doc.type must be user"),
        (without("name"), "doc.name is required"),
        (without("roles"), "doc.roles must exist"),
        (with("roles", json!("x")), "doc.roles must be an array"),
        (
            with("roles", json!([7])),
            "doc.roles can only contain strings",
        ),
        (
            with("roles", json!(["_admin"])),
            "No system roles (starting with underscore) in users db.",
        ),
        (
            with("name", json!("eve")),
            "Doc ID must be of the form org.couchdb.user:name",
        ),
    ] {
        root.put(JOE, &doc).await.refuses(403, "forbidden", reason);
        // Of two members of one name there is but one reading, in every layer.
        let rows = root
            .post("/_users/_bulk_docs", &json!({"docs": [with_id(&doc)]}))
            .await;
        assert_eq!(rows.gives(201)[0]["reason"], reason);
    }
    let twice = "{\"type\":\"user\",\"name\":\"joe\",\"roles\":[\"_admin\"],\"roles\":[]}";
    root.send(http::Method::PUT, JOE, twice).await.gives(201);
    let text = root.get(JOE).await.text;
    let session = fixture.user("joe", "x").get("/_session").await;
    assert_eq!(session.status, 401, "{text}");
}

fn with_id(doc: &Value) -> Value {
    let mut doc = doc.clone();
    doc["_id"] = json!("org.couchdb.user:joe");
    doc
}
