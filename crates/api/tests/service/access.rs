//! Every route, by every kind of caller, against a table of what they get.

use std::collections::{BTreeMap, BTreeSet};

use api::route::Route;
use aws_lc_rs::hmac;
use http::Method;
use serde_json::json;

use crate::fixture::{Fixture, Setting, User, replication};

const PROXY_SECRET: &[u8] = b"a secret of the proxy";

/// Method and path, then what an anonymous caller, a stranger, one with the role `_metrics`, a member, a database's
/// administrator and the server's get: `.` is let in, `1` and `3` are 401 and 403.
const TABLE: &str = "
GET    /                                       . . . . . .
GET    /_up                                    . . . . . .
GET    /_session                               . . . . . .
DELETE /_session                               . . . . . .
POST   /_session                               . . . . . .
GET    /_openapi.json                          . . . . . .
GET    /_dashboard                             . . . . . .
GET    /_uuids                                 . . . . . .
GET    /_all_dbs                               1 1 1 1 1 .
GET    /_dbs_info                              1 1 1 1 1 .
POST   /_dbs_info                              1 1 1 1 1 .
GET    /_membership                            1 1 1 1 1 .
GET    /_sources                               1 1 1 1 1 .
GET    /_jobs                                  1 . . . . .
GET    /_metrics                               1 1 . 1 1 .
GET    /_node/_local/_prometheus               1 1 . 1 1 .
GET    /_node/_local/_config                   1 1 1 1 1 .
PUT    /_node/_local/_config/a/b               1 1 1 1 1 .
GET    /_active_tasks                          1 1 1 1 1 .
GET    /_scheduler/summary                     1 1 1 1 1 .
GET    /_scheduler/replications                1 1 1 1 1 .
POST   /_scheduler/replications                1 1 1 1 1 .
GET    /_scheduler/causes                      1 1 1 1 1 .
GET    /_scheduler/nodes                       1 1 1 1 1 .
GET    /_scheduler/history                     1 1 1 1 1 .
GET    /_scheduler/shares                      1 1 1 1 1 .
POST   /_replicate                             1 . . . . .
GET    /_scheduler/jobs                        1 1 1 1 1 .
GET    /_scheduler/jobs/x                      1 1 1 1 1 .
DELETE /_scheduler/jobs/x                      1 1 1 1 1 .
POST   /_scheduler/jobs/x/_restart             1 1 1 1 1 .
POST   /_scheduler/jobs/x/_pause               1 1 1 1 1 .
POST   /_scheduler/jobs/x/_resume              1 1 1 1 1 .
GET    /_scheduler/jobs/x/failures             1 1 1 1 1 .
GET    /_schedules                             1 1 1 1 1 .
GET    /_schedules/x                           1 1 1 1 1 .
PUT    /_schedules/x                           1 1 1 1 1 .
DELETE /_schedules/x                           1 1 1 1 1 .
POST   /_schedules/x/_run                      1 1 1 1 1 .
GET    /_tokens                                1 1 1 1 1 .
POST   /_tokens                                1 1 1 1 1 .
DELETE /_tokens/x                              1 1 1 1 1 .
GET    /_remotes                               1 1 1 1 1 .
GET    /_remotes/x                             1 1 1 1 1 .
POST   /_remotes/_start                        1 1 1 1 1 .
GET    /_deliveries                            1 1 1 1 1 .
POST   /_deliveries/_replay                    1 1 1 1 1 .
POST   /_deliveries/_remove                    1 1 1 1 1 .
GET    /_deliveries/x                          1 1 1 1 1 .
DELETE /_deliveries/x                          1 1 1 1 1 .
POST   /_deliveries/x/_replay                  1 1 1 1 1 .
GET    /_scheduler/docs                        1 1 1 1 1 .
GET    /_scheduler/docs/_replicator/x          1 1 1 1 1 .
PUT    /new%2F_replicator                      1 1 1 1 1 .
DELETE /old%2F_replicator                      1 1 1 1 1 .
GET    /_replicator                            1 3 3 . . .
POST   /_replicator                            1 3 3 . . .
GET    /_replicator/_all_docs                  1 3 3 1 . .
POST   /_replicator/_all_docs                  1 3 3 1 . .
POST   /_replicator/_all_docs/queries          1 3 3 1 . .
GET    /_replicator/_design_docs               1 3 3 1 . .
POST   /_replicator/_design_docs               1 3 3 1 . .
GET    /_replicator/_local_docs                1 3 3 1 . .
GET    /_replicator/_changes                   1 3 3 1 . .
POST   /_replicator/_changes                   1 3 3 1 . .
POST   /_replicator/_find                      1 3 3 1 . .
POST   /_replicator/_explain                   1 3 3 . . .
GET    /_replicator/_index                     1 3 3 1 . .
POST   /_replicator/_bulk_docs                 1 3 3 . . .
POST   /_replicator/_bulk_get                  1 3 3 . . .
POST   /_replicator/_revs_diff                 1 3 3 . . .
POST   /_replicator/_missing_revs              1 3 3 . . .
POST   /_replicator/_ensure_full_commit        1 3 3 . . .
GET    /_replicator/_security                  1 3 3 . . .
PUT    /_replicator/_security                  1 3 3 1 . .
GET    /_replicator/_revs_limit                1 3 3 1 . .
PUT    /_replicator/_revs_limit                1 3 3 1 . .
POST   /_replicator/_compact                   1 3 3 1 . .
GET    /_replicator/doc                        1 3 3 . . .
PUT    /_replicator/doc                        1 3 3 . . .
DELETE /_replicator/doc                        1 3 3 . . .
GET    /_replicator/_local/x                   1 3 3 . . .
PUT    /_replicator/_local/x                   1 3 3 . . .
DELETE /_replicator/_local/x                   1 3 3 . . .
GET    /_replicator/_design/x                  1 3 3 . . .
PUT    /_replicator/_design/x                  1 3 3 1 . .
DELETE /_replicator/_design/x                  1 3 3 1 . .
GET    /_replicator/doc/att                    1 3 3 . . .
PUT    /_replicator/doc/att                    1 3 3 . . .
DELETE /_replicator/doc/att                    1 3 3 . . .
GET    /_replicator/_design/x/att              1 3 3 . . .
DELETE /_replicator/_design/x/att              1 3 3 1 . .
PUT    /_replicator/_design/x/att              1 3 3 1 . .
GET    /_rules                                 1 1 1 1 1 .
POST   /_rules                                 1 1 1 1 1 .
PUT    /_rules                                 1 1 1 1 1 .
GET    /_rules/_all_docs                       1 1 1 1 1 .
GET    /_rules/_changes                        1 1 1 1 1 .
POST   /_rules/_find                           1 1 1 1 1 .
POST   /_rules/_bulk_docs                      1 1 1 1 1 .
POST   /_rules/_bulk_get                       1 1 1 1 1 .
POST   /_rules/_revs_diff                      1 1 1 1 1 .
POST   /_rules/_test                           1 1 1 1 1 .
GET    /_rules/_security                       1 1 1 1 1 .
PUT    /_rules/_security                       1 1 1 1 1 .
GET    /_rules/doc                             1 1 1 1 1 .
PUT    /_rules/doc                             1 1 1 1 1 .
DELETE /_rules/doc                             1 1 1 1 1 .
GET    /_rules/_local/x                        1 1 1 1 1 .
PUT    /_rules/_local/x                        1 1 1 1 1 .
GET    /_rules/_design/x                       1 1 1 1 1 .
PUT    /_rules/doc/att                         1 1 1 1 1 .
POST   /_rules/doc/_trigger                    1 1 1 1 1 .
POST   /_rules/doc/_pause                      1 1 1 1 1 .
POST   /_rules/doc/_resume                     1 1 1 1 1 .
POST   /_rules/doc/_rewind                     1 1 1 1 1 .
GET    /_rules/doc/_databases                  1 1 1 1 1 .
GET    /spiegel/doc                            1 1 1 1 1 .
PUT    /spiegel/doc                            1 1 1 1 1 .
GET    /_users                                 1 1 1 1 1 .
POST   /_users                                 1 1 1 1 1 .
PUT    /_users                                 1 1 1 1 1 .
DELETE /_users                                 1 1 1 1 1 .
GET    /_users/_all_docs                       1 1 1 1 1 .
POST   /_users/_all_docs                       1 1 1 1 1 .
POST   /_users/_bulk_docs                      1 1 1 1 1 .
GET    /_users/org.couchdb.user:ada            1 . . . . .
PUT    /_users/org.couchdb.user:x              1 3 3 3 3 .
DELETE /_users/org.couchdb.user:x              1 3 3 3 3 .
";

#[tokio::test]
async fn the_table_holds() {
    for (line, method, path) in rows() {
        let words = line.split_whitespace().skip(2);
        let fixture = fixture().await;
        let callers = [
            fixture.anonymous(),
            fixture.user("stranger", "password"),
            metrics(&fixture),
            fixture.user("joe", "password"),
            fixture.user("ada", "password"),
            fixture.root(),
        ];
        for (index, (expected, caller)) in words.zip(callers).enumerate() {
            let body = match path {
                "/_replicator/_security" => {
                    json!({"admins": {"names": ["ada"]}, "members": {"names": ["joe"]}})
                }
                "/_replicator/_revs_limit" => json!(1000),
                "/_session" => json!({"name": "root", "password": "s3cret"}),
                // There is no such replication, so no caller waits for it.
                "/_replicate" => {
                    let mut body = replication();
                    body["cancel"] = json!(true);
                    body
                }
                "/_users/org.couchdb.user:x" => json!({"type": "user", "name": "x", "roles": []}),
                _ => replication(),
            };
            let caller = caller.with("content-type", "application/json");
            let body = if method == Method::GET {
                String::new()
            } else {
                body.to_string()
            };
            let status = caller
                .send(method.clone(), path, body)
                .await
                .status
                .as_u16();
            let got = match status {
                401 => "1",
                403 if path.starts_with("/_users/") || index < 3 => "3",
                _ => ".",
            };
            assert_eq!(got, expected, "{line}: caller {index} got {status}");
            assert!(
                status < 500 || status == 501 || status == 503,
                "{line}: {status}"
            );
        }
    }
}

/// A caller who may read metrics. Stored users cannot have that role; a proxy sets it.
fn metrics(fixture: &Fixture) -> User<'_> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, PROXY_SECRET);
    let token = hmac::sign(&key, b"mia");
    let token = token.as_ref().iter().map(|byte| format!("{byte:02x}"));
    (fixture.anonymous())
        .with("x-auth-couchdb-username", "mia")
        .with("x-auth-couchdb-roles", "_metrics")
        .with("x-auth-couchdb-token", &token.collect::<String>())
}

async fn fixture() -> Fixture {
    let setting = Setting {
        proxy_secrets: vec![PROXY_SECRET.to_vec()],
        ..Setting::default()
    };
    let fixture = Fixture::with(api::Options::default(), setting).await;
    for name in ["stranger", "joe", "ada"] {
        fixture.add_user(name, "password", &[]).await;
    }
    for name in ["old/_replicator", "_rules", "spiegel"] {
        fixture.replications.create_database(name).await.unwrap();
    }
    let security = json!({"members": {"names": ["joe"]}, "admins": {"names": ["ada"]}});
    fixture
        .root()
        .put("/_replicator/_security", &security)
        .await
        .gives(200);
    fixture
}

fn rows() -> impl Iterator<Item = (&'static str, Method, &'static str)> {
    TABLE.lines().filter(|line| !line.is_empty()).map(|line| {
        let mut words = line.split_whitespace();
        let method = words.next().unwrap().parse().unwrap();
        (line, method, words.next().unwrap())
    })
}

/// The variants of an enumeration in the source of the router.
fn variants(name: &str) -> BTreeSet<String> {
    let source = include_str!("../../src/route.rs");
    let (_, body) = source.split_once(&format!("pub enum {name} {{")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let lines = body.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    let name = |line: &str| line.split(['(', ',', ' ']).next().unwrap().to_owned();
    lines.map(name).collect()
}

/// A route that the table does not know does not pass, nor a part of a database or something to do with a job.
#[test]
fn the_table_is_complete() {
    let mut known = BTreeMap::from([("Route", BTreeSet::new())]);
    let mut note = |name: &'static str, shown: String| {
        let variant = shown.split('(').next().unwrap().to_owned();
        known.entry(name).or_default().insert(variant);
    };
    for (_, _, path) in rows() {
        let route = Route::parse(path).unwrap();
        note("Route", format!("{route:?}"));
        match route {
            Route::DbPart(_, part) => note("DbPart", format!("{part:?}")),
            Route::JobAction(_, action) => note("JobAction", format!("{action:?}")),
            _ => {}
        }
    }
    for name in ["Route", "DbPart", "JobAction"] {
        assert_eq!(known[name], variants(name), "rows of {name}");
    }
}

/// What a path is about, as far as rights go: the route, and the part of it that decides.
fn kind(path: &str) -> String {
    let route = Route::parse(path).unwrap();
    let shown = format!("{route:?}");
    let variant = shown.split('(').next().unwrap();
    let of_users = if path.starts_with("/_users") {
        "_users "
    } else {
        ""
    };
    let class = |id: &str| match id.split_once('/') {
        Some((class @ ("_design" | "_local"), _)) => class.to_owned(),
        _ => String::new(),
    };
    let part = match &route {
        Route::DbPart(_, part) => format!("{part:?}"),
        Route::JobAction(_, action) => format!("{action:?}"),
        Route::Document(_, id) | Route::Attachment(_, id, _) => class(id),
        _ => String::new(),
    };
    format!("{of_users}{variant} {part}")
}

/// Whatever a server administrator is answered, by any method, has a row.
#[tokio::test]
async fn every_method_has_a_row() {
    let known: BTreeSet<_> = rows()
        .map(|(_, method, path)| (method.to_string(), kind(path)))
        .collect();
    // A database that is not there answers nothing.
    let paths = rows().map(|(_, _, path)| path);
    let paths: BTreeSet<_> = paths.filter(|path| !path.starts_with("/new")).collect();
    let mut missing = Vec::new();
    for path in paths {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "COPY", "HEAD"] {
            // Who may read may ask for the head.
            let row = if method == "HEAD" { "GET" } else { method };
            if known.contains(&(row.to_owned(), kind(path))) {
                continue;
            }
            let fixture = fixture().await;
            let root = fixture.root().with("content-type", "application/json");
            let answer = root.send(method.parse().unwrap(), path, "{}").await;
            if !matches!(answer.status.as_u16(), 405 | 501) {
                missing.push(format!("{method} {path}: {}", answer.status));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
