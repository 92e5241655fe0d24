//! Every route, by every kind of caller, against a table of what they get.

use api::route::Route;
use http::Method;
use serde_json::json;

use crate::fixture::{Fixture, replication};

/// Method and path, then what nobody, a stranger, a member, a database's administrator and the server's get:
/// `.` is let in, `1` and `3` are 401 and 403.
const TABLE: &str = "
GET    /                                       . . . . .
GET    /_up                                    . . . . .
GET    /_session                               . . . . .
DELETE /_session                               . . . . .
GET    /_openapi.json                          . . . . .
GET    /_dashboard                             . . . . .
GET    /_uuids                                 . . . . .
GET    /_all_dbs                               1 1 1 1 .
GET    /_dbs_info                              1 1 1 1 .
POST   /_dbs_info                              1 1 1 1 .
GET    /_membership                            1 1 1 1 .
GET    /_metrics                               1 1 1 1 .
GET    /_node/_local/_prometheus               1 1 1 1 .
GET    /_node/_local/_config                   1 1 1 1 .
PUT    /_node/_local/_config/a/b               1 1 1 1 .
GET    /_active_tasks                          1 1 1 1 .
GET    /_scheduler/summary                     1 1 1 1 .
POST   /_replicate                             1 . . . .
GET    /_scheduler/jobs                        1 1 1 1 .
GET    /_scheduler/jobs/x                      1 1 1 1 .
POST   /_scheduler/jobs/x/_restart             1 1 1 1 .
GET    /_scheduler/jobs/x/failures             1 1 1 1 .
GET    /_scheduler/docs                        1 1 1 1 .
GET    /_scheduler/docs/_replicator/x          1 1 1 1 .
PUT    /new%2F_replicator                      1 1 1 1 .
DELETE /old%2F_replicator                      1 1 1 1 .
GET    /_replicator                            1 3 . . .
POST   /_replicator                            1 3 . . .
GET    /_replicator/_all_docs                  1 3 1 . .
POST   /_replicator/_all_docs                  1 3 1 . .
POST   /_replicator/_all_docs/queries          1 3 1 . .
GET    /_replicator/_design_docs               1 3 1 . .
GET    /_replicator/_local_docs                1 3 1 . .
GET    /_replicator/_changes                   1 3 1 . .
POST   /_replicator/_changes                   1 3 1 . .
POST   /_replicator/_find                      1 3 1 . .
POST   /_replicator/_explain                   1 3 . . .
GET    /_replicator/_index                     1 3 1 . .
POST   /_replicator/_bulk_docs                 1 3 . . .
POST   /_replicator/_bulk_get                  1 3 . . .
POST   /_replicator/_revs_diff                 1 3 . . .
POST   /_replicator/_missing_revs              1 3 . . .
POST   /_replicator/_ensure_full_commit        1 3 . . .
GET    /_replicator/_security                  1 3 . . .
PUT    /_replicator/_security                  1 3 1 . .
GET    /_replicator/_revs_limit                1 3 1 . .
PUT    /_replicator/_revs_limit                1 3 1 . .
POST   /_replicator/_compact                   1 3 1 . .
GET    /_replicator/doc                        1 3 . . .
PUT    /_replicator/doc                        1 3 . . .
DELETE /_replicator/doc                        1 3 . . .
GET    /_replicator/_local/x                   1 3 . . .
PUT    /_replicator/_local/x                   1 3 . . .
GET    /_replicator/_design/x                  1 3 . . .
PUT    /_replicator/_design/x                  1 3 1 . .
DELETE /_replicator/_design/x                  1 3 1 . .
GET    /_replicator/doc/att                    1 3 . . .
PUT    /_replicator/doc/att                    1 3 . . .
PUT    /_replicator/_design/x/att              1 3 1 . .
GET    /_users                                 1 1 1 1 .
GET    /_users/_all_docs                       1 1 1 1 .
POST   /_users/_bulk_docs                      1 1 1 1 .
GET    /_users/org.couchdb.user:ada            1 . . . .
PUT    /_users/org.couchdb.user:x              1 3 3 3 .
";

#[tokio::test]
async fn the_table_holds() {
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let method: Method = words.next().unwrap().parse().unwrap();
        let path = words.next().unwrap();
        let fixture = fixture().await;
        let callers = [
            fixture.nobody(),
            fixture.user("stranger", "password"),
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
                // There is no such replication, so nobody waits for it.
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
                403 if path.starts_with("/_users/") || index < 2 => "3",
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

async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    for name in ["stranger", "joe", "ada"] {
        fixture.add_user(name, "password", &[]).await;
    }
    fixture
        .replications
        .create_database("old/_replicator")
        .await
        .unwrap();
    let security = json!({"members": {"names": ["joe"]}, "admins": {"names": ["ada"]}});
    fixture
        .root()
        .put("/_replicator/_security", &security)
        .await
        .gives(200);
    fixture
}

/// A route that the table does not know does not pass.
#[test]
fn the_table_is_complete() {
    let mut known = std::collections::BTreeSet::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let path = line.split_whitespace().nth(1).unwrap();
        known.insert(name(&Route::parse(path).unwrap()));
    }
    let all = [
        "Welcome",
        "Up",
        "Uuids",
        "Session",
        "AllDbs",
        "DbsInfo",
        "Membership",
        "Metrics",
        "OpenApi",
        "Dashboard",
        "Config",
        "ActiveTasks",
        "Summary",
        "Replicate",
        "Jobs",
        "Job",
        "JobAction",
        "Docs",
        "Doc",
        "Db",
        "DbPart",
        "Document",
        "Attachment",
    ];
    assert_eq!(known, all.into_iter().collect());
}

/// The compiler asks for a name of each new route, and [`the_table_is_complete`] for a row.
fn name(route: &Route) -> &'static str {
    match route {
        Route::Welcome => "Welcome",
        Route::Up => "Up",
        Route::Uuids => "Uuids",
        Route::Session => "Session",
        Route::AllDbs => "AllDbs",
        Route::DbsInfo => "DbsInfo",
        Route::Membership => "Membership",
        Route::Metrics => "Metrics",
        Route::OpenApi => "OpenApi",
        Route::Dashboard(_) => "Dashboard",
        Route::Config(_) => "Config",
        Route::ActiveTasks => "ActiveTasks",
        Route::Summary => "Summary",
        Route::Replicate => "Replicate",
        Route::Jobs => "Jobs",
        Route::Job(_) => "Job",
        Route::JobAction(..) => "JobAction",
        Route::Docs(_) => "Docs",
        Route::Doc(..) => "Doc",
        Route::Db(_) => "Db",
        Route::DbPart(..) => "DbPart",
        Route::Document(..) => "Document",
        Route::Attachment(..) => "Attachment",
    }
}
