//! The engine with servers that others have written: PouchDB Server when `TEST_POUCHDB_SERVER` names its script, Apache
//! CouchDB when `TEST_COUCHDB_URL` names it with an administrator's name and password. A peer takes part always.

use std::time::Duration;

use peer::{Contents, Difference, Options, Peer, compare};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use replication::Stats;
use replication::engine::{Gate, Handles, Phase, Report, StartedFrom, run};
use replication::id::{Identity, Service};
use serde_json::{Value, json};
use testkit::{CouchDb, PouchDb};

use crate::fixture::{World, counts};
use crate::seeds::edit;

/// A server, and its address with credentials.
struct Server {
    url: String,
    client: reqwest::Client,
    _running: Running,
}

#[expect(
    dead_code,
    reason = "they are kept for what happens when they are dropped"
)]
enum Running {
    Peer(Peer),
    PouchDb(PouchDb),
    External,
}

impl Server {
    fn new(url: String, running: Running) -> Self {
        Self {
            url,
            client: reqwest::Client::new(),
            _running: running,
        }
    }

    async fn peer() -> Self {
        let peer = Peer::start(Options::default()).await.unwrap();
        Self::new(peer.url(), Running::Peer(peer))
    }

    fn couchdb() -> Option<Self> {
        CouchDb::find().map(|couchdb| Self::new(couchdb.url, Running::External))
    }

    async fn pouchdb() -> Option<Self> {
        let server = PouchDb::start().await?;
        Some(Self::new(server.url(), Running::PouchDb(server)))
    }

    fn database(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }

    async fn call(&self, method: reqwest::Method, path: &str, body: Option<&Value>) -> Value {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        request.send().await.unwrap().json().await.unwrap()
    }

    /// Makes sure that the databases are not there.
    async fn forget(&self, names: &[&str]) {
        for name in names {
            self.call(reqwest::Method::DELETE, &format!("/{name}"), None)
                .await;
        }
    }

    async fn contents(&self, name: &str) -> Contents {
        Contents::fetch(&self.database(name), &[]).await.unwrap()
    }
}

#[tokio::test]
async fn there_and_back_peer() {
    there_and_back(&Server::peer().await, |_| false).await;
}

#[tokio::test]
async fn there_and_back_couchdb() {
    if let Some(server) = Server::couchdb() {
        there_and_back(&server, |_| false).await;
    }
}

/// PouchDB Server does not keep the generation that an attachment came with.
#[tokio::test]
async fn there_and_back_pouchdb() {
    if let Some(server) = Server::pouchdb().await {
        there_and_back(&server, |difference| {
            matches!(difference, Difference::Attachment(..))
        })
        .await;
    }
}

/// A random history goes to the server and from there to another peer, in several rounds, the last of them while changes
/// come in.
async fn there_and_back(server: &Server, known: impl Fn(&Difference) -> bool) {
    let world = World::new().await;
    let db = "davenport_there_and_back";
    server.forget(&[db]).await;
    let there = json!({"target": server.database(db), "create_target": true});
    let back = json!({"source": server.database(db)});
    let same = async |what: &str| {
        let source = world.source.contents("a").unwrap().without_locals();
        let differences = compare(&source, &server.contents(db).await.without_locals());
        assert!(
            differences.iter().all(&known),
            "{what}, there: {differences:?}"
        );
        let differences = compare(
            &source,
            &world.target().contents("b").unwrap().without_locals(),
        );
        assert!(
            differences.iter().all(&known),
            "{what}, back: {differences:?}"
        );
    };
    let mut last: Option<[Report; 2]> = None;
    for seed in 0..6 {
        edit(&world, &mut StdRng::seed_from_u64(seed));
        if seed == 4 {
            // Recreated with the next run.
            server.forget(&[db]).await;
        }
        last = Some(match last {
            None => [
                world.replicate(there.clone()).await,
                world.replicate(back.clone()).await,
            ],
            Some([went, came]) => [
                world.repeat(there.clone(), &went).await,
                world.repeat(back.clone(), &came).await,
            ],
        });
        same(&format!("round {seed}")).await;
    }
    let continuous = |mut options: Value| {
        options["continuous"] = json!(true);
        options
    };
    let (going, coming) = (
        world.start(continuous(there)).await,
        world.start(continuous(back)).await,
    );
    going
        .until(|progress| progress.phase == Phase::CaughtUp)
        .await;
    coming
        .until(|progress| progress.phase == Phase::CaughtUp)
        .await;
    for seed in 10..13 {
        edit(&world, &mut StdRng::seed_from_u64(seed));
    }
    // Servers with several shards tell changes in any order, so there is no last one to wait for.
    let expected = world.source.contents("a").unwrap().without_locals();
    let mut progress = coming.control.progress();
    let arrival = async {
        while !compare(
            &expected,
            &world.target().contents("b").unwrap().without_locals(),
        )
        .iter()
        .all(&known)
        {
            progress.changed().await.unwrap();
        }
    };
    let arrived = tokio::time::timeout(Duration::from_secs(30), arrival).await;
    going.stop().await;
    coming.stop().await;
    same("continuous").await;
    assert!(arrived.is_ok());
    server.forget(&[db]).await;
}

/// Runs as the server's own replicator would, with its uuid.
async fn replicate_as(world: &World, server: &Server, options: &Value) -> Report {
    let welcome = server.call(reqwest::Method::GET, "/", None).await;
    let service = Service {
        uuid: welcome["uuid"].as_str().unwrap().to_owned(),
        legacy_host: None,
    };
    let mut prepared = world.prepare(options, Stats::default()).await.unwrap();
    prepared.identity = Identity::of(
        &prepared.replication,
        &service,
        prepared.filter_code.as_deref(),
    );
    let (_control, handles) = Handles::new(Gate::open());
    run(prepared, handles).await.unwrap()
}

/// Checkpoints of CouchDB's replicator are ours, and the other way round.
#[tokio::test]
async fn checkpoints_are_interchangeable_with_couchdb() {
    let Some(server) = Server::couchdb() else {
        return;
    };
    let world = World::new().await;
    let names = ["davenport_from", "davenport_to"];
    let filter = "function(doc, req) { return !doc._deleted; }";
    for extra in [
        json!({}),
        json!({"selector": {"integer": {"$gte": 0}, "$not": {"integer": {"$gt": 1000}}}}),
        json!({"filter": "f/live", "query_params": {"b": "1", "a": "2"}}),
        json!({"doc_ids": (0..40).map(|n| format!("doc{n:04}")).collect::<Vec<_>>()}),
        json!({"since_seq": 0}),
        json!({"winning_revs_only": true}),
    ] {
        server.forget(&names).await;
        let mut options =
            json!({"source": server.database(names[0]), "target": server.database(names[1])});
        for (name, value) in extra.as_object().unwrap() {
            options[name] = value.clone();
        }
        for name in names {
            server
                .call(reqwest::Method::PUT, &format!("/{name}"), None)
                .await;
        }
        let add = async |docs: std::ops::Range<u32>| {
            let docs: Vec<_> = docs
                .map(|n| json!({"_id": format!("doc{n:04}"), "integer": n}))
                .collect();
            server
                .call(
                    reqwest::Method::POST,
                    "/davenport_from/_bulk_docs",
                    Some(&json!({"docs": docs})),
                )
                .await;
        };
        let design = json!({"filters": {"live": filter}});
        server
            .call(
                reqwest::Method::PUT,
                "/davenport_from/_design/f",
                Some(&design),
            )
            .await;
        add(0..10).await;
        // CouchDB, then we.
        let theirs = server
            .call(reqwest::Method::POST, "/_replicate", Some(&options))
            .await;
        assert_eq!(theirs["ok"], true, "{theirs}");
        let ours = replicate_as(&world, &server, &options).await;
        assert_eq!(
            ours.progress.started_from,
            StartedFrom::Checkpoint,
            "{extra}"
        );
        assert_eq!(ours.result["session_id"], theirs["session_id"], "{extra}");
        add(10..15).await;
        let before = counts(&ours);
        let ours = replicate_as(&world, &server, &options).await;
        assert_eq!(counts(&ours)[3], before[3] + 5, "{extra}");
        assert_eq!(ours.result["history"].as_array().unwrap().len(), 2);
        // We, then CouchDB.
        let theirs = server
            .call(reqwest::Method::POST, "/_replicate", Some(&options))
            .await;
        assert_eq!(theirs["no_changes"], true, "{extra} {theirs}");
        assert_eq!(theirs["session_id"], ours.result["session_id"]);
        add(15..18).await;
        let theirs = server
            .call(reqwest::Method::POST, "/_replicate", Some(&options))
            .await;
        assert_eq!(theirs["history"].as_array().unwrap().len(), 3, "{extra}");
        assert_eq!(
            theirs["history"][0]["docs_written"],
            counts(&ours)[3] + 3,
            "{extra}"
        );
        let (source, target) = (
            server.contents(names[0]).await,
            server.contents(names[1]).await,
        );
        assert_eq!(source.locals, target.locals);
    }
    server.forget(&names).await;
}
