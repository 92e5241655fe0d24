//! Paths and their access.

use http::Method;

use super::{Access, DbPart, JobAction, Route, RuleAction};

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn paths_name_routes() {
    let text = str::to_owned;
    let docs = |db: &str| Route::Docs(text(db));
    let doc = |db: &str, id: &str| Route::Doc(text(db), text(id));
    let document = |db: &str, id: &str| Route::Document(text(db), text(id));
    let (own, other) = ("_replicator", "other/_replicator");
    let job = |id: &str| Route::Job(text(id));
    let cases = [
        ("/", Route::Welcome),
        ("//", Route::Welcome),
        ("/_up", Route::Up),
        ("/_node/_local/_prometheus", Route::Metrics),
        (
            "/_node/_local/_config/couchdb",
            Route::Config(vec![text("couchdb")]),
        ),
        ("/_dashboard", Route::Dashboard(String::new())),
        ("/_dashboard/", Route::Dashboard(text("index.html"))),
        ("/_dashboard/app.js", Route::Dashboard(text("app.js"))),
        ("/_scheduler/summary", Route::Summary),
        ("/_scheduler/docs/_rules/a", doc("_rules", "a")),
        ("/_scheduler/docs/shop/_rules/a", doc("shop/_rules", "a")),
        ("/_scheduler/docs/spiegel", docs("spiegel")),
        ("/_scheduler/docs/spiegel/a", doc("spiegel", "a")),
        ("/_scheduler/jobs/", Route::Jobs),
        ("/_scheduler/jobs/ab+continuous", job("ab continuous")),
        ("/_scheduler/jobs/ab%2Bcontinuous", job("ab+continuous")),
        (
            "/_scheduler/jobs/ab/_restart",
            Route::JobAction(text("ab"), JobAction::Restart),
        ),
        ("/_deliveries/msg_a", Route::Delivery(text("msg_a"))),
        ("/_deliveries/_replay", Route::DeliveryReplays),
        ("/_deliveries/_remove", Route::DeliveryRemovals),
        ("/_remotes", Route::Remotes),
        ("/_remotes/_start", Route::RemoteStart),
        (
            "/_remotes/team/_rules/eu",
            Route::Remote(text("team/_rules/eu")),
        ),
        (
            "/_deliveries/msg_a/_replay",
            Route::DeliveryReplay(text("msg_a")),
        ),
        ("/_scheduler/docs", docs(own)),
        ("/_scheduler/docs/other%2F_replicator", docs(other)),
        ("/_scheduler/docs/other/_replicator", docs(other)),
        ("/_scheduler/docs/_replicator/a%2Fb", doc(own, "a/b")),
        ("/_scheduler/docs/other/_replicator/x", doc(other, "x")),
        ("/_replicator", Route::Db(text(own))),
        ("/other%2f_replicator/x", document(other, "x")),
        (
            "/other/_replicator/_changes",
            Route::DbPart(text(other), DbPart::Changes),
        ),
        ("/_replicator/_design/a", document(own, "_design/a")),
        ("/_replicator/_design%2Fa", document(own, "_design/a")),
        ("/_replicator/_local/a", document(own, "_local/a")),
        ("/other%2F_replicator/_replicator", document(other, own)),
        ("/_replicator/_nothing", document(own, "_nothing")),
        ("/_rules/a", document("_rules", "a")),
        (
            "/spiegel/_test",
            Route::DbPart(text("spiegel"), DbPart::Test),
        ),
        (
            "/shop%2F_rules/a/_rewind",
            Route::RuleAction(text("shop/_rules"), text("a"), RuleAction::Rewind),
        ),
        (
            "/spiegel/a%2Fb/_trigger",
            Route::RuleAction(text("spiegel"), text("a/b"), RuleAction::Trigger),
        ),
        (
            "/_replicator/a/_pause",
            Route::Attachment(text(own), text("a"), text("_pause")),
        ),
        ("/shop/_rules/a", document("shop/_rules", "a")),
        ("/shop%2F_rules/a", document("shop/_rules", "a")),
        ("/spiegel/a", document("spiegel", "a")),
        ("/_replicator/a+b%2Bc", document(own, "a b+c")),
        (
            "/_replicator/a/b/c",
            Route::Attachment(text(own), text("a"), text("b/c")),
        ),
    ];
    for (path, route) in cases {
        assert_eq!(Route::parse(path).unwrap(), route, "{path}");
    }
}

#[test]
fn what_is_nothing_is_said_so() {
    for path in [
        "/_nothing",
        "/_scheduler/jobs/a/b",
        "/%ff",
        "/_scheduler/docs/x",
    ] {
        assert!(Route::parse(path).is_err(), "{path}");
    }
    let invalid = Route::parse("/_scheduler/docs/_replicator/a/b").unwrap_err();
    assert_eq!(invalid.to_json()["reason"], "Invalid path");
}

#[test]
fn what_shows_or_changes_replications_is_guarded() {
    for (path, method, access) in [
        ("/_up", Method::GET, Access::Public),
        ("/_replicate", Method::POST, Access::Authenticated),
        ("/_scheduler/jobs", Method::GET, Access::Admin),
        ("/_remotes", Method::GET, Access::Admin),
        ("/_remotes/eu", Method::GET, Access::Admin),
        ("/_remotes/_start", Method::POST, Access::Admin),
        ("/_replicator", Method::PUT, Access::Admin),
        ("/_replicator", Method::GET, Access::Member),
        ("/_replicator/x", Method::PUT, Access::Member),
        ("/_replicator/_design/x", Method::PUT, Access::DbAdmin),
        ("/_replicator/_design/x", Method::GET, Access::Member),
        ("/other/_replicator/_all_docs", Method::GET, Access::DbAdmin),
        ("/_replicator/_security", Method::PUT, Access::DbAdmin),
    ] {
        assert_eq!(
            Route::parse(path).unwrap().access(&method),
            access,
            "{method} {path}"
        );
    }
}
