//! The same scripts of requests against three servers: the peer, PouchDB Server and Apache CouchDB.
//!
//! The expected answers are CouchDB's. Where another server answers otherwise, [`differences::DIFFERENCES`] says so and why; an entry that no
//! longer holds fails the test, as does a difference without an entry. PouchDB Server takes part when `TEST_POUCHDB_SERVER` names its script,
//! CouchDB when `TEST_COUCHDB_URL` names it with an administrator's name and password.

#![cfg(test)]

mod answers;
mod differences;
mod scripts;
mod servers;
mod session;

use futures::future::LocalBoxFuture;

use differences::SPARED;
use servers::{Kind, Server};
use session::Session;

type Script = for<'a> fn(&'a Session) -> LocalBoxFuture<'a, ()>;

const SCRIPTS: &[(&str, Script)] = &[
    ("databases", |s| Box::pin(scripts::databases::databases(s))),
    ("site", |s| Box::pin(scripts::databases::site(s))),
    ("security", |s| Box::pin(scripts::databases::security(s))),
    ("sessions", |s| Box::pin(scripts::databases::sessions(s))),
    ("documents", |s| Box::pin(scripts::documents::documents(s))),
    ("refusals", |s| Box::pin(scripts::documents::refusals(s))),
    ("deletions", |s| Box::pin(scripts::documents::deletions(s))),
    ("odd_values", |s| {
        Box::pin(scripts::documents::odd_values(s))
    }),
    ("locals", |s| Box::pin(scripts::documents::locals(s))),
    ("conflicts", |s| Box::pin(scripts::revisions::conflicts(s))),
    ("open_revs", |s| Box::pin(scripts::revisions::open_revs(s))),
    ("revs_diff", |s| Box::pin(scripts::revisions::revs_diff(s))),
    ("stemming", |s| Box::pin(scripts::revisions::stemming(s))),
    ("bulk_docs", |s| Box::pin(scripts::bulk::bulk_docs(s))),
    ("bulk_get", |s| Box::pin(scripts::bulk::bulk_get(s))),
    ("all_docs", |s| Box::pin(scripts::bulk::all_docs(s))),
    ("changes", |s| Box::pin(scripts::changes::changes(s))),
    ("filters", |s| Box::pin(scripts::changes::filters(s))),
    ("waiting", |s| Box::pin(scripts::changes::waiting(s))),
    ("attachments", |s| {
        Box::pin(scripts::attachments::attachments(s))
    }),
    ("inline", |s| Box::pin(scripts::attachments::inline(s))),
    ("multipart", |s| {
        Box::pin(scripts::attachments::multipart(s))
    }),
];

async fn run(kind: Kind) {
    let Some(server) = Server::start(kind).await else {
        return;
    };
    let mut failures = Vec::new();
    for (name, script) in SCRIPTS {
        let spared = SPARED
            .iter()
            .find(|spared| spared.server == kind && spared.step == *name);
        if let Some(spared) = spared {
            println!("skipped {name} for {kind:?}: {}", spared.why);
            continue;
        }
        let session = Session::begin(&server, name).await;
        script(&session).await;
        failures.extend(session.end().await);
        server.wait_until_ready().await;
    }
    assert!(
        failures.is_empty(),
        "{kind:?} answers otherwise:\n{}",
        failures.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn peer() {
    run(Kind::Peer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pouchdb_server() {
    run(Kind::PouchDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_couchdb() {
    run(Kind::CouchDb).await;
}
