//! Anything at all, sent to every route: no server error, no panic, no hang.

use std::time::Duration;

use http::Method;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tokio::time::timeout;

use crate::fixture::{Fixture, User, replication};

const METHODS: [&str; 8] = [
    "GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "COPY",
];
const PATHS: [&str; 40] = [
    "/",
    "/_up",
    "/_uuids",
    "/_session",
    "/_all_dbs",
    "/_dbs_info",
    "/_membership",
    "/_metrics",
    "/_openapi.json",
    "/_dashboard/x",
    "/_node/_local/_config",
    "/_node/x/_config/a/b",
    "/_active_tasks",
    "/_replicate",
    "/_scheduler/jobs",
    "/_scheduler/jobs/x",
    "/_scheduler/jobs/x/_restart",
    "/_scheduler/jobs/x/failures",
    "/_scheduler/docs",
    "/_scheduler/docs/_replicator/x",
    "/_replicator",
    "/other%2F_replicator",
    "/_replicator/_all_docs",
    "/_replicator/_all_docs/queries",
    "/_replicator/_design_docs",
    "/_replicator/_bulk_docs",
    "/_replicator/_bulk_get",
    "/_replicator/_changes",
    "/_replicator/_revs_diff",
    "/_replicator/_missing_revs",
    "/_replicator/_security",
    "/_replicator/_revs_limit",
    "/_replicator/_find",
    "/_replicator/_explain",
    "/_replicator/_index",
    "/_replicator/doc",
    "/_replicator/_local/doc",
    "/_replicator/_design/doc",
    "/_replicator/doc/att",
    "/_users/org.couchdb.user:x",
];
const NAMES: [&str; 40] = [
    "rev",
    "revs",
    "revs_info",
    "open_revs",
    "latest",
    "meta",
    "conflicts",
    "attachments",
    "atts_since",
    "local_seq",
    "new_edits",
    "batch",
    "limit",
    "skip",
    "startkey",
    "endkey",
    "key",
    "keys",
    "descending",
    "inclusive_end",
    "include_docs",
    "update_seq",
    "feed",
    "since",
    "style",
    "heartbeat",
    "filter",
    "doc_ids",
    "view",
    "count",
    "next",
    "basic",
    "partitioned",
    "states",
    "bookmark",
    "_id",
    "source",
    "target",
    "selector",
    "docs",
];
const VALUES: [&str; 34] = [
    "",
    "0",
    "1",
    "-1",
    "true",
    "false",
    "null",
    "x",
    "now",
    "\"a\"",
    "\"\\u0000\"",
    "{}",
    "[]",
    "[7]",
    "[\"1-a\"]",
    "[{\"id\":\"doc\"}]",
    "{\"a\":{\"$gt\":null}}",
    "1-a",
    "1-zz",
    "99999999999999999999",
    "18446744073709551615",
    "1e999",
    "\u{fffd}",
    "\u{0}",
    "_doc_ids",
    "_selector",
    "_design",
    "a/b",
    "all",
    "normal",
    "eventsource",
    "longpoll",
    "http://a.b/c",
    "{\"$and\":[{\"$not\":{\"a\":{\"$regex\":\"(\"}}}]}",
];

#[derive(Debug, Clone)]
struct Sent {
    method: Method,
    path: String,
    body: Vec<u8>,
    headers: Vec<(&'static str, String)>,
}

/// A query of known names and odd values. No feed waits longer than a moment.
fn queries() -> impl Strategy<Value = String> {
    let pair = (
        select(&NAMES[..]),
        prop_oneof![select(&VALUES[..]).prop_map(str::to_owned), ".{0,8}"],
    );
    proptest::collection::vec(pair, 0..4).prop_map(|pairs| {
        let mut query = url::form_urlencoded::Serializer::new("timeout=1".to_owned());
        pairs
            .iter()
            .filter(|(name, _)| *name != "heartbeat")
            .for_each(|(name, value)| {
                query.append_pair(name, value);
            });
        query.finish()
    })
}

/// JSON of known names and odd values, and what is no JSON.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        select(&VALUES[..]).prop_map(|text| {
            serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::from(text))
        }),
        ".{0,6}".prop_map(serde_json::Value::from),
        Just(replication()),
    ];
    let json = leaf.prop_recursive(3, 24, 4, |inner| {
        let name = prop_oneof![
            select(&NAMES[..]).prop_map(str::to_owned),
            select(
                &[
                    "_rev",
                    "_deleted",
                    "_revisions",
                    "_attachments",
                    "owner",
                    "id",
                    "queries",
                    "roles",
                    "name",
                    "type",
                    "password",
                    "fields",
                    "sort"
                ][..]
            )
            .prop_map(str::to_owned),
            ".{0,4}",
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            proptest::collection::vec((name, inner), 0..5)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    });
    prop_oneof![
        6 => json.prop_map(|json| json.to_string().into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => Just("[".repeat(100_000).into_bytes()),
        1 => Just(Vec::new()),
    ]
}

fn requests() -> impl Strategy<Value = Sent> {
    let path = prop_oneof![
        8 => select(&PATHS[..]).prop_map(str::to_owned),
        1 => "(/[a-z_%0-9A-F.]{0,6}){0,4}".prop_map(|path| format!("/{path}")),
    ];
    let headers = proptest::collection::vec(
        (
            select(
                &[
                    "accept",
                    "if-match",
                    "if-none-match",
                    "content-encoding",
                    "cookie",
                    "origin",
                    "authorization",
                    "x-couch-request-id",
                    "last-event-id",
                    "range",
                ][..],
            ),
            select(
                &[
                    "*/*",
                    "multipart/mixed",
                    "\"1-a\"",
                    "1-a",
                    "gzip",
                    "AuthSession=junk",
                    "null",
                    "Basic x",
                    "Bearer a.b.c",
                    "bytes=0-1",
                    "",
                ][..],
            )
            .prop_map(str::to_owned),
        ),
        0..2,
    );
    let kind = select(
        &[
            "application/json",
            "multipart/related; boundary=x",
            "text/plain",
        ][..],
    );
    (
        select(&METHODS[..]),
        path,
        queries(),
        bodies(),
        headers,
        kind,
    )
        .prop_map(|(method, path, query, body, mut headers, kind)| {
            headers.push(("content-type", kind.to_owned()));
            // No node runs replications here, so a client that waits for one waits forever.
            let wait = if path == "/_replicate" {
                "&async=true"
            } else {
                ""
            };
            Sent {
                method: method.parse().unwrap(),
                path: format!("{path}?{query}{wait}"),
                body,
                headers,
            }
        })
}

async fn check(user: &User<'_>, sent: &Sent) {
    let mut user = user.clone();
    for (name, value) in &sent.headers {
        user = user.with(name, value);
    }
    let asked = user.ask(sent.method.clone(), &sent.path, sent.body.clone());
    let status = timeout(Duration::from_secs(30), asked)
        .await
        .expect("it hangs")
        .as_u16();
    assert!(
        status < 500 || matches!(status, 501 | 503),
        "{status}: {sent:?}"
    );
}

#[test]
fn nothing_breaks_the_service() {
    let cases = std::env::var("FUZZ_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    let mut runner = TestRunner::new(Config {
        cases: cases.unwrap_or(1500),
        failure_persistence: None,
        ..Config::default()
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let fixture = runtime.block_on(Fixture::new());
    let outcome = runner.run(&requests(), |sent| {
        if sent.path.parse::<http::Uri>().is_ok() {
            runtime.block_on(async {
                // Most requests find what they are about, although some delete it.
                let _ = fixture.replications.create_database("_replicator").await;
                check(&fixture.root(), &sent).await;
                check(&fixture.anonymous(), &sent).await;
            });
        }
        Ok(())
    });
    outcome.unwrap();
}
