//! Servers, databases, and who may use them.

use serde_json::{Value, json};

use crate::answers::{Answer, pick};
use crate::session::Session;

pub(crate) async fn databases(s: &Session) {
    let other = format!("/{}_other", s.db);
    s.delete(&other).await;
    let created = s.put(&other, None).await;
    s.check("create", &created.whole(), &json!([201, {"ok": true}]));
    let again = s.put(&other, None).await;
    let exists = "The database could not be created, the file already exists.";
    s.check(
        "create again",
        &again.outcome(),
        &json!([412, "file_exists", exists]),
    );
    let info = s.get(&other).await;
    let counts = pick(&info.json(), &["db_name", "doc_count", "doc_del_count"]);
    s.check(
        "info",
        &counts,
        &json!({"db_name": &other[1..], "doc_count": 0, "doc_del_count": 0}),
    );
    let kinds: Vec<bool> = ["update_seq", "instance_start_time"]
        .map(|name| info.member(name).is_string())
        .into();
    s.check(
        "info has a sequence and a creation time",
        &json!(kinds),
        &json!([true, true]),
    );
    let head = Answer::read(s.request("HEAD", &other)).await;
    s.check(
        "head",
        &json!([head.status, head.text()]),
        &json!([200, ""]),
    );
    s.check(
        "delete",
        &s.delete(&other).await.whole(),
        &json!([200, {"ok": true}]),
    );
    s.check(
        "delete again",
        &s.delete(&other).await.kind(),
        &json!([404, "not_found"]),
    );
    let gone = s.get(&other).await;
    s.check(
        "gone",
        &gone.outcome(),
        &json!([404, "not_found", "Database does not exist."]),
    );
    let head = Answer::read(s.request("HEAD", &other)).await;
    s.check("head of none", &json!(head.status), &json!(404));
    s.check(
        "bad name",
        &s.put("/Bad", None).await.kind(),
        &json!([400, "illegal_database_name"]),
    );
    let slash = format!("/{}%2Fb", &other[1..]);
    s.delete(&slash).await;
    s.check(
        "name with a slash",
        &s.put(&slash, None).await.kind(),
        &json!(201),
    );
    let name = s.get(&slash).await.member("db_name");
    s.check(
        "name with a slash comes back",
        &name,
        &json!(format!("{}/b", &other[1..])),
    );
    s.delete(&slash).await;
    let committed = Answer::read(
        s.request("POST", "_ensure_full_commit")
            .header("Content-Type", "application/json"),
    )
    .await;
    let same =
        committed.member("instance_start_time") == s.get("").await.member("instance_start_time");
    s.check(
        "full commit",
        &json!([committed.status, committed.member("ok"), same]),
        &json!([201, true, true]),
    );
    let listed = s.get("/_all_dbs").await.json();
    let listed = listed
        .as_array()
        .is_some_and(|names| names.contains(&json!(s.db)));
    s.check("listed", &json!(listed), &json!(true));
    let info = s
        .post("/_dbs_info", &json!({"keys": [s.db, "no_such_db"]}))
        .await;
    let rows: Vec<Value> = info
        .json()
        .as_array()
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let shape: Vec<Value> = rows
        .iter()
        .map(|row| json!([row["key"], row["info"]["db_name"], row["error"]]))
        .collect();
    let expected = json!([[s.db, s.db, null], ["no_such_db", null, "not_found"]]);
    s.check("information of several", &json!(shape), &expected);
}

pub(crate) async fn site(s: &Session) {
    let welcome = s.get("/").await;
    s.check(
        "welcome",
        &json!([welcome.status, welcome.member("couchdb")]),
        &json!([200, "Welcome"]),
    );
    let server = welcome.header("server");
    s.check(
        "server",
        &json!(server.as_str().is_some_and(|it| it.starts_with("CouchDB/"))),
        &json!(true),
    );
    s.check(
        "content type",
        &welcome.header("content-type"),
        &json!("application/json"),
    );
    s.check(
        "cache control",
        &welcome.header("cache-control"),
        &json!("must-revalidate"),
    );
    let uuids = s.get("/_uuids?count=3").await.member("uuids");
    let lengths: Vec<usize> = uuids
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::len)
        .collect();
    s.check("uuids", &json!(lengths), &json!([32, 32, 32]));
    s.check(
        "up",
        &json!(s.get("/_up").await.member("status")),
        &json!("ok"),
    );
    let refused = Answer::read(s.request("DELETE", "/_uuids")).await;
    s.check(
        "method not allowed",
        &json!([refused.status, refused.header("allow")]),
        &json!([405, "GET"]),
    );
    let refused = Answer::read(s.request("PUT", "_revs_diff").json(&json!({}))).await;
    s.check(
        "method of a database",
        &json!([refused.status, refused.header("allow")]),
        &json!([405, "POST"]),
    );
    let plain = Answer::read(s.accepting("GET", "/", "text/html")).await;
    s.check(
        "without JSON",
        &plain.header("content-type"),
        &json!("application/json"),
    );
    let refused = Answer::read(s.request("POST", "_bulk_docs").body("{}")).await;
    let reason = "Content-Type must be application/json";
    s.check(
        "content type of a body",
        &refused.outcome(),
        &json!([415, "bad_content_type", reason]),
    );
    let bad = s.get("/%zz").await;
    s.check("bad encoding", &bad.kind(), &json!([400, "bad_request"]));
}

pub(crate) async fn security(s: &Session) {
    let anonymous = Answer::read(s.anonymous("GET", "")).await;
    let reason = "You are not authorized to access this db.";
    s.check(
        "databases are closed",
        &anonymous.outcome(),
        &json!([401, "unauthorized", reason]),
    );
    let open = json!({"admins": {"names": [], "roles": []}, "members": {"names": [], "roles": []}});
    s.check(
        "open it",
        &s.put("_security", Some(&open)).await.whole(),
        &json!([200, {"ok": true}]),
    );
    s.check("read it", &s.get("_security").await.json(), &open);
    s.check(
        "anybody reads",
        &Answer::read(s.anonymous("GET", "")).await.kind(),
        &json!(200),
    );
    let wrote = Answer::read(s.anonymous("PUT", "a").json(&json!({"a": 1}))).await;
    s.check("anybody writes", &wrote.kind(), &json!(201));
    let design = Answer::read(s.anonymous("PUT", "_design/a").json(&json!({}))).await;
    s.check(
        "not design documents",
        &design.kind(),
        &json!([401, "unauthorized"]),
    );
    let created = Answer::read(s.anonymous("PUT", "/somebody_elses")).await;
    let reason = "You are not a server admin.";
    s.check(
        "nor databases",
        &created.outcome(),
        &json!([401, "unauthorized", reason]),
    );
    let row = Answer::read(s.anonymous("POST", "_bulk_docs").json(&json!({
        "new_edits": false, "docs": [{"_id": "_design/b", "_rev": "1-a"}, {"_id": "b", "_rev": "1-a"}],
    })))
    .await;
    let rows: Vec<Value> = row
        .json()
        .as_array()
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| pick(row, &["id", "rev", "error"]))
        .collect();
    let expected = json!([201, [{"id": "_design/b", "rev": "1-a", "error": "unauthorized"}]]);
    s.check("nor in bulk", &json!([row.status, rows]), &expected);
    let members = json!({"members": {"names": ["somebody"], "roles": []}});
    s.put("_security", Some(&members)).await;
    s.check(
        "members only",
        &Answer::read(s.anonymous("GET", "a")).await.kind(),
        &json!([401, "unauthorized"]),
    );
    let bad = s
        .put("_security", Some(&json!({"members": {"names": "all"}})))
        .await;
    s.check("nonsense", &json!(bad.status >= 400), &json!(true));
}

pub(crate) async fn sessions(s: &Session) {
    let (name, password) = s.admin();
    let form = |password: &str| format!("name={name}&password={password}");
    let post = |body: String| {
        let request = s.anonymous("POST", "/_session").body(body);
        Answer::read(request.header("Content-Type", "application/x-www-form-urlencoded"))
    };
    let login = post(form(password)).await;
    let body = pick(&login.json(), &["ok", "name", "roles"]);
    s.check(
        "log in",
        &json!([login.status, body]),
        &json!([200, {"ok": true, "name": name, "roles": ["_admin"]}]),
    );
    let cookie = login.header("set-cookie");
    let cookie = cookie.as_str().unwrap_or_default();
    let (value, attributes) = cookie.split_once(';').unwrap_or_default();
    s.check(
        "cookie",
        &json!(value.starts_with("AuthSession=")),
        &json!(true),
    );
    let attributes: Vec<&str> = attributes
        .split("; ")
        .map(|it| it.split('=').next().unwrap_or_default())
        .collect();
    let has = ["Max-Age", "Path", "HttpOnly"]
        .map(|wanted| attributes.iter().any(|it| it.trim() == wanted));
    s.check("its attributes", &json!(has), &json!([true, true, true]));
    let who = Answer::read(s.anonymous("GET", "/_session").header("Cookie", value)).await;
    s.check(
        "who",
        &who.member("userCtx"),
        &json!({"name": name, "roles": ["_admin"]}),
    );
    let nobody = Answer::read(s.anonymous("GET", "/_session")).await;
    s.check(
        "nobody",
        &nobody.member("userCtx"),
        &json!({"name": null, "roles": []}),
    );
    let read = Answer::read(s.anonymous("GET", "").header("Cookie", value)).await;
    s.check("use the cookie", &read.kind(), &json!(200));
    let wrong = post(form("wrong")).await;
    let refused = json!([401, "unauthorized", "Name or password is incorrect."]);
    s.check("wrong password", &wrong.outcome(), &refused);
    let wrong = Answer::read(
        s.anonymous("GET", "/_session")
            .basic_auth(name, Some("wrong")),
    )
    .await;
    s.check("wrong basic password", &wrong.outcome(), &refused);
    let forged = Answer::read(s.anonymous("GET", "").header("Cookie", format!("{value}x"))).await;
    s.check("forged cookie", &json!(forged.status >= 400), &json!(true));
    let out = Answer::read(s.anonymous("DELETE", "/_session").header("Cookie", value)).await;
    let cleared = out.header("set-cookie");
    let cleared = cleared
        .as_str()
        .is_some_and(|cookie| cookie.starts_with("AuthSession=;"));
    s.check(
        "log out",
        &json!([out.status, cleared]),
        &json!([200, true]),
    );
}
