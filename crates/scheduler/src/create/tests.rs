//! Documents, requests and jobs in one store, while commits fail or have unknown outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use couch::Reach;
use docstore::{Db, DocStore, Edit, EditMode, ReadOptions};
use document::doc::Doc;
use jobs::{Clock, Entropy, JobInfo, Jobs, State};
use seal::Sealer;
use serde_json::{Value, json};
use store::{Faults, Store};

use super::*;
use crate::bulk::{Action, Chosen};
use crate::create::ruled::Ruled;
use crate::data::{JobData, JobState, Origin, document_job_id, tenant_named};
use crate::fault::ServiceError;
use crate::service::{Replications, Scanned, Setup};
use crate::snapshot::RowState;
use crate::view::{Column, TableQuery};
use crate::writeback::{self, Patch};
use replication::id::ReplicationId;

fn joe() -> Writer {
    user("joe", false)
}

fn user(name: &str, is_admin: bool) -> Writer {
    let name = Some(name.to_owned());
    let rank = if is_admin {
        Rank::ServerAdmin
    } else {
        Rank::Member
    };
    Writer::User { name, rank }
}

async fn open(store: &Store) -> Replications {
    open_with(store, Sealer::plain()).await
}

async fn open_with(store: &Store, sealer: Sealer) -> Replications {
    let jobs = Jobs::new(
        store.clone(),
        Clock::simulated(1_000_000),
        Entropy::seeded(1),
    );
    let docs = DocStore::new(store.clone(), docstore::Options::default());
    let setup = Setup {
        sealer,
        ..Setup::default()
    };
    Replications::open(jobs, docs, setup).await.unwrap()
}

async fn write(
    replications: &Replications,
    db: &Db,
    writer: Writer,
    json: &Value,
) -> Result<docstore::Rev, ServiceError> {
    let text = json.to_string();
    let doc = Doc::parse(&text).unwrap();
    let edit = Edit::new(doc.id.clone().unwrap(), doc)?;
    let edit = replications.prepare(db, edit, &writer)?;
    replications
        .docs()
        .put(db, &edit, EditMode::NewEdits, &replications.hook(writer))
        .await
}

fn body(id: &str, source: &str) -> Value {
    json!({"_id": id, "source": format!("http://{source}/x"), "target": "http://t/y"})
}

async fn job(replications: &Replications, db: &Db, id: &str) -> Option<(JobInfo, JobData)> {
    let job = document_job_id(db.instance(), id);
    let job = &job;
    replications
        .jobs()
        .store()
        .transact(
            "look",
            |tx| async move { replications.job_in(&tx, job).await },
        )
        .await
        .unwrap()
}

/// The index of active jobs has exactly the jobs that are not finished.
async fn check(replications: &Replications) -> usize {
    let listed = replications
        .scheduler_jobs(&crate::JobsQuery {
            limit: 1000,
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!(listed.total_rows, listed.jobs.len() as u64);
    listed.jobs.len()
}

#[tokio::test]
async fn documents_create_replace_and_remove_jobs_on_a_faulty_store() {
    let quiet = Store::open("memory:").await.unwrap();
    for seed in 0..8 {
        let faults = Faults {
            seed,
            conflict: 0.1,
            unknown_applied: 0.25,
            unknown_lost: 0.25,
            ..Faults::default()
        };
        let (store, _) = quiet.with_faults(faults);
        let replications = open(&store).await;
        let db = replications
            .create_database(&format!("s{seed}/_replicator"))
            .await
            .unwrap();
        let rev = write(&replications, &db, joe(), &body("d", "a"))
            .await
            .unwrap();
        let (first, data) = job(&replications, &db, "d").await.unwrap();
        assert_eq!(
            (first.state, data.state),
            (State::Pending, JobState::Pending)
        );
        assert_eq!(data.shown.source.as_deref(), Some("http://a/x/"));
        // The same replication with another unknown member changes nothing.
        let mut same = body("d", "a");
        (same["_rev"], same["note"]) = (json!(rev.to_string()), json!(1));
        let rev = write(&replications, &db, joe(), &same).await.unwrap();
        assert_eq!(job(&replications, &db, "d").await.unwrap(), (first, data));
        let mut other = body("d", "b");
        other["_rev"] = json!(rev.to_string());
        let rev = write(&replications, &db, joe(), &other).await.unwrap();
        let (_, data) = job(&replications, &db, "d").await.unwrap();
        assert_eq!(data.shown.source.as_deref(), Some("http://b/x/"));
        assert_eq!(check(&replications).await, 1);
        replications
            .docs()
            .delete(&db, "d", Some(&rev), &replications.hook(joe()))
            .await
            .unwrap();
        assert!(job(&replications, &db, "d").await.is_none());
        assert_eq!(check(&replications).await, 0);
        let caller = Caller {
            name: Some("joe".to_owned()),
            is_admin: false,
        };
        let wanted = document::json::Json::from(&body("ignored", "a"));
        let Started::Job { job, .. } = replications.request(&wanted, &caller).await.unwrap() else {
            panic!("it is no job");
        };
        let cancelled = replications
            .cancel(&ReplicationId::from_client(&job), &caller)
            .await
            .unwrap();
        assert_eq!(
            cancelled,
            Started::Cancelled {
                local_id: job.clone()
            }
        );
        let again = replications
            .cancel(&ReplicationId::from_client(&job), &caller)
            .await;
        assert!(matches!(again, Err(ServiceError::Missing)));
        assert_eq!(check(&replications).await, 0);
    }
}

#[tokio::test]
async fn other_users_cannot_take_over_a_document() {
    let store = Store::open("memory:").await.unwrap();
    let replications = open(&store).await;
    let db = replications.create_database("_replicator").await.unwrap();
    let rev = write(&replications, &db, joe(), &body("d", "a"))
        .await
        .unwrap();
    let mut hijack = body("d", "evil");
    hijack["_rev"] = json!(rev.to_string());
    let refused = |result: Result<docstore::Rev, ServiceError>| matches!(result, Err(ServiceError::Forbidden(text)) if text == "Can't update replication documents from other users.");
    // With no owner, with eve's, and with joe's; by deletion, and as another branch.
    assert!(refused(
        write(&replications, &db, user("eve", false), &hijack).await
    ));
    hijack["owner"] = json!("eve");
    assert!(refused(
        write(&replications, &db, user("eve", false), &hijack).await
    ));
    hijack["owner"] = json!("joe");
    assert!(refused(
        write(&replications, &db, user("eve", false), &hijack).await
    ));
    let hook = replications.hook(user("eve", false));
    assert!(refused(
        replications
            .docs()
            .delete(&db, "d", Some(&rev), &hook)
            .await
    ));
    hijack["owner"] = json!("eve");
    hijack["_rev"] = json!("9-ffffffffffffffffffffffffffffffff");
    let text = hijack.to_string();
    let edit = Edit::new("d", Doc::parse(&text).unwrap()).unwrap();
    let edit = replications
        .prepare(&db, edit, &user("eve", false))
        .unwrap();
    assert!(refused(
        replications
            .docs()
            .put(&db, &edit, EditMode::Replicated, &hook)
            .await
    ));
    let (_, data) = job(&replications, &db, "d").await.unwrap();
    assert_eq!(data.shown.source.as_deref(), Some("http://a/x/"));
    // An administrator may, and joe stays the owner.
    hijack["_rev"] = json!(rev.to_string());
    hijack["owner"] = json!("joe");
    write(&replications, &db, user("adm", true), &hijack)
        .await
        .unwrap();
}

#[tokio::test]
async fn invalid_documents_are_rejected_with_couchdbs_reasons() {
    let store = Store::open("memory:").await.unwrap();
    let replications = open(&store).await;
    let db = replications.create_database("_replicator").await.unwrap();
    for (body, reason) in [
        (
            json!({"_id": "d", "source": "http://a/x"}),
            "Missing `target` field",
        ),
        (json!({"_id": "d", "foo": "bar"}), "Missing `source` field"),
        (
            json!({"_id": "d", "source": "x", "target": "http://t/y"}),
            "local_endpoints_not_supported",
        ),
        (
            json!({"_id": "d", "source": "http://a/x", "target": "http://t/y", "paused": 1}),
            "`paused` must be a boolean",
        ),
    ] {
        let refused = write(&replications, &db, joe(), &body).await.unwrap_err();
        assert!(
            matches!(&refused, ServiceError::Invalid(invalid) if invalid.to_string() == reason),
            "{refused}"
        );
    }
    // A document that claims to have failed creates no job, but is still validated.
    let refused = json!({"_id": "f", "foo": 1, "_replication_state": "failed"});
    assert!(write(&replications, &db, joe(), &refused).await.is_err());
    let failed = json!({"_id": "f", "source": "http://a/x", "target": "http://t/y", "_replication_state": "failed", "_replication_state_reason": "r"});
    write(&replications, &db, joe(), &failed).await.unwrap();
    assert!(job(&replications, &db, "f").await.is_none());
    let row = replications.scheduler_doc(&db, "f").await.unwrap();
    assert_eq!(
        (&row["state"], &row["info"]),
        (&json!("failed"), &json!({"error": "r"}))
    );
    write(&replications, &db, joe(), &json!({"_id": "_design/x"}))
        .await
        .unwrap();
    write(&replications, &db, joe(), &body("a", "a"))
        .await
        .unwrap();
    let page = replications
        .scheduler_docs(&db, &crate::DocsQuery::default())
        .await
        .unwrap();
    let ids: Vec<_> = page.docs.iter().map(|row| row["doc_id"].clone()).collect();
    assert_eq!(
        (page.total_rows, page.offset, ids),
        (2, Some(0), vec![json!("a"), json!("f")])
    );
    let mut query = crate::DocsQuery::default();
    (query.range.descending, query.range.limit) = (true, Some(1));
    let page = replications.scheduler_docs(&db, &query).await.unwrap();
    assert_eq!(page.docs[0]["doc_id"], "f");
    let query = crate::DocsQuery {
        states: vec![JobState::Pending],
        ..Default::default()
    };
    let page = replications.scheduler_docs(&db, &query).await.unwrap();
    assert_eq!((page.docs.len(), &page.docs[0]["doc_id"]), (1, &json!("a")));
}

#[tokio::test]
async fn a_summary_counts_all() {
    let store = Store::open("memory:").await.unwrap();
    let replications = open(&store).await;
    let db = replications.create_database("_replicator").await.unwrap();
    for n in 0..210 {
        let doc = body(&format!("d{n}"), &format!("h{n}"));
        write(&replications, &db, joe(), &doc).await.unwrap();
    }
    let mut parked = body("parked", "p");
    parked["paused"] = true.into();
    write(&replications, &db, joe(), &parked).await.unwrap();
    let all = replications.summary().await.unwrap();
    let jobs = json!({
        "pending": 211, "running": 0, "crashing": 0, "completed": 0, "failed": 0, "idle": 0, "paused": 1,
        "unreachable": 0,
    });
    assert_eq!(
        (&all["exact"], &all["jobs"], &all["nodes"]),
        (&json!(true), &jobs, &json!([]))
    );
    assert_eq!(
        (&all["docs_per_second"], &all["lag_seconds_max"]),
        (&json!(0.0), &json!(0))
    );
}

/// Listings and counters agree on every state, and counters are zero once the jobs are gone.
#[tokio::test]
async fn counters_agree_with_listings() {
    let store = Store::open("memory:").await.unwrap();
    let replications = open(&store).await;
    let db = replications.create_database("_replicator").await.unwrap();
    let (queue, ty) = (replications.jobs(), &replications.0.ty);
    let me = jobs::Holder::new("me").unwrap();
    let ids = ["a", "b", "c", "d", "e", "f"];
    for id in ids {
        let mut body = body(id, id);
        // A target has one run at a time.
        body["target"] = format!("http://t/{id}").into();
        write(&replications, &db, joe(), &body).await.unwrap();
    }
    let held = queue.accept(ty, &me, 6).await.unwrap().jobs;
    let states = [
        (JobState::Running, false),
        (JobState::Running, true),
        (JobState::Crashing, false),
        (JobState::Completed, false),
        (JobState::Failed, false),
        (JobState::Pending, false),
    ];
    for (accepted, (state, idle)) in held.iter().zip(states) {
        let mut data = JobData::decode(&accepted.data).unwrap();
        (data.state, data.idle) = (state, idle);
        let (job, bytes) = (&accepted.job, data.encode());
        let done = match state {
            JobState::Running => queue.update(job, Some(bytes.into())).await,
            JobState::Crashing | JobState::Pending => {
                let finish = jobs::Finish::again(5_000_000).data(bytes);
                queue.finish(job, finish).await
            }
            _ => queue.finish(job, jobs::Finish::done().data(bytes)).await,
        };
        assert!(!done.unwrap().repeated);
    }
    let mut parked = body("parked", "p");
    parked["paused"] = true.into();
    write(&replications, &db, joe(), &parked).await.unwrap();
    let jobs = json!({
        "pending": 2, "running": 2, "crashing": 1, "completed": 1, "failed": 1, "idle": 1, "paused": 1,
        "unreachable": 0,
    });
    let all = replications.summary().await.unwrap();
    assert_eq!((&all["jobs"], &all["sampled"]), (&jobs, &json!(false)));
    let problems = queue.check(ty).await.unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    // A job whose node died is pending, whatever its data says.
    let labels = queue.counts_by_label(ty).await.unwrap();
    let died = labels
        .into_iter()
        .map(|((state, label), count)| match state {
            State::Running => ((State::Pending, label), count),
            state => ((state, label), count),
        });
    let census = crate::data::Census::of(&died.collect()).unwrap();
    assert_eq!((census.pending, census.running, census.idle), (4, 0, 0));
    replications.delete_database(&db).await.unwrap();
    while replications.work_a_little().await.unwrap() == Scanned::Some {}
    assert!(queue.counts_by_label(ty).await.unwrap().is_empty());
}

#[tokio::test]
async fn deleting_a_database_removes_its_jobs() {
    let quiet = Store::open("memory:").await.unwrap();
    let faults = Faults {
        seed: 5,
        unknown_applied: 0.2,
        unknown_lost: 0.2,
        ..Faults::default()
    };
    let (store, _) = quiet.with_faults(faults);
    let replications = open(&store).await;
    let db = replications.create_database("_replicator").await.unwrap();
    let edits = (0..250).map(|n| {
        let text = body("d", &format!("h{n}")).to_string();
        let edit = Edit::new(format!("d{n:03}"), Doc::parse(&text).unwrap()).unwrap();
        replications.prepare(&db, edit, &joe()).unwrap()
    });
    let edits: Vec<_> = edits.collect();
    let written = replications
        .docs()
        .bulk_docs(&db, &edits, EditMode::NewEdits, &replications.hook(joe()))
        .await;
    assert!(written.unwrap().iter().all(Result::is_ok));
    assert_eq!(check(&replications).await, 250);
    // A scan changes no job, and recreates missing ones.
    let lost = document_job_id(db.instance(), "d200");
    let (op, lost) = (replications.jobs().op(), &lost);
    let of_ref = &replications;
    (replications.jobs().store())
        .transact("lose", |tx| async move {
            of_ref.drop_job_in(&tx, &op, lost).await
        })
        .await
        .unwrap();
    assert_eq!(check(&replications).await, 249);
    replications.rescan(&db).await.unwrap();
    while replications.work_a_little().await.unwrap() == Scanned::Some {}
    assert_eq!(check(&replications).await, 250);
    replications.delete_database(&db).await.unwrap();
    let again = replications.create_database("_replicator").await.unwrap();
    assert_ne!(again.instance(), db.instance());
    write(&replications, &again, joe(), &body("d000", "a"))
        .await
        .unwrap();
    while replications.work_a_little().await.unwrap() == Scanned::Some {}
    assert_eq!(check(&replications).await, 1);
    assert!(job(&replications, &again, "d000").await.is_some());
}

#[tokio::test]
async fn the_uuid_is_kept_unless_it_is_configured() {
    let store = Store::open("memory:").await.unwrap();
    let drawn = open(&store).await.service().uuid.clone();
    assert_eq!(drawn.len(), 32);
    assert_eq!(open(&store).await.service().uuid, drawn);
    let jobs = open(&store).await.jobs().clone();
    let docs = DocStore::new(store.clone(), docstore::Options::default());
    let setup = Setup {
        uuid: Some("mine".to_owned()),
        ..Setup::default()
    };
    Replications::open(jobs, docs, setup).await.unwrap();
    assert_eq!(open(&store).await.service().uuid, "mine");
}

#[tokio::test]
async fn writing_a_result_creates_no_job() {
    let store = Store::open("memory:").await.unwrap();
    let replications = &open(&store).await;
    let db = &replications.create_database("_replicator").await.unwrap();
    let mut stale = body("d", "a");
    stale["_replication_state"] = json!("triggered");
    write(replications, db, joe(), &stale).await.unwrap();
    let (op, origin) = (replications.jobs().op(), Origin::document(db, "d"));
    let (id, origin) = (&document_job_id(db.instance(), "d"), &origin);
    store
        .transact("end", |tx| async move {
            replications.drop_job_in(&tx, &op, id).await?;
            writeback::write_in(replications, &tx, &op, origin, &Patch::Started).await
        })
        .await
        .unwrap();
    assert_eq!(job(replications, db, "d").await, None);
    let options = ReadOptions::default();
    let written = replications.docs().get(db, "d", &options);
    assert!(!written.await.unwrap().body.contains("triggered"));
}

#[tokio::test]
async fn a_parsed_body_is_not_parsed_again_in_the_transaction() {
    let store = Store::open("memory:").await.unwrap();
    // `plain` cannot open what `sealing` seals.
    let (plain, sealing) = (
        open(&store).await,
        Sealer::new(vec![("k".to_owned(), [3; 32])]).unwrap(),
    );
    let sealing = open_with(&store, sealing).await;
    let db = plain.create_database("_replicator").await.unwrap();
    let text = json!({"source": "http://u:secret@a/x", "target": "http://t/y"}).to_string();
    let edit = Edit::new("d", Doc::parse(&text).unwrap()).unwrap();
    let prepared = sealing.prepare_granted(&db, edit, &joe(), None).unwrap();
    let (edits, meanings) = ([prepared.edit], [prepared.meaning]);
    let put = async |hook: &DocumentHook<'_>| {
        let docs = plain.docs();
        docs.put(&db, &edits[0], EditMode::NewEdits, hook).await
    };
    let refused = put(&plain.hook(joe())).await;
    assert!(matches!(refused, Err(ServiceError::Unreadable(_))));
    let hook = plain.hook(joe());
    put(&hook.knowing(&edits, &meanings)).await.unwrap();
    let (_, data) = job(&plain, &db, "d").await.unwrap();
    assert_eq!(data.shown.source.as_deref(), Some("http://a/x/"));
}

#[test]
fn large_bodies_are_parsed_on_another_thread() {
    let threads = |bytes: usize| {
        let started = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&started);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_start(move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .build()
            .unwrap();
        runtime.block_on(async {
            let replications = open(&Store::open("memory:").await.unwrap()).await;
            let db = replications.create_database("_replicator").await.unwrap();
            let mut doc = body("d", "a");
            doc["note"] = json!("x".repeat(bytes));
            write(&replications, &db, Writer::Replicator, &doc)
                .await
                .unwrap();
            assert!(job(&replications, &db, "d").await.is_some());
        });
        drop(runtime);
        started.load(Ordering::Relaxed)
    };
    assert_eq!(threads(1_000), 0);
    assert!(threads(200_000) > 0);
}

#[tokio::test]
async fn the_writers_reach_is_kept_with_the_document() {
    let sealer = Sealer::new(vec![("k".into(), [1; 32])]).unwrap();
    for sealer in [Sealer::plain(), sealer] {
        let store = Store::open("memory:").await.unwrap();
        let replications = open_with(&store, sealer.clone()).await;
        let name = format!(
            "{}/_replicator",
            if sealer.seals() { "sealed" } else { "plain" }
        );
        let db = replications.create_database(&name).await.unwrap();
        let reach = async |id: &str| {
            let (_, data) = job(&replications, &db, id).await.unwrap();
            let job = document_job_id(db.instance(), id);
            let wanted = data.replication(&sealer, &job, &replications.defaults());
            wanted.unwrap().unwrap().source.reach()
        };
        for (id, source) in [("plain", "a"), ("secret", "u:p@a")] {
            let by_root = user("root", true);
            let rev = write(&replications, &db, by_root, &body(id, source))
                .await
                .unwrap();
            assert_eq!(reach(id).await, Reach::Private);
            // The replicator itself rewrites the document.
            let job = document_job_id(db.instance(), id);
            replications.set_paused(&job, true).await.unwrap();
            replications.set_paused(&job, false).await.unwrap();
            assert_eq!(reach(id).await, Reach::Private);
            let doc = replications
                .docs()
                .get(&db, id, &ReadOptions::default())
                .await
                .unwrap();
            assert_ne!(doc.rev, rev);
            let mut again = body(id, source);
            again["_rev"] = json!(doc.rev.to_string());
            again["owner"] = json!("root");
            let by_admin = Writer::User {
                name: Some("ada".to_owned()),
                rank: Rank::DatabaseAdmin,
            };
            write(&replications, &db, by_admin, &again).await.unwrap();
            assert_eq!(reach(id).await, Reach::Public);
        }
        write(&replications, &db, joe(), &body("his", "a"))
            .await
            .unwrap();
        assert_eq!(reach("his").await, Reach::Public);
    }
}

/// Three documents that have completed and three that wait, in one database; three that have failed in another.
async fn nine_replications() -> (Replications, Db) {
    let store = Store::open("memory:").await.unwrap();
    let replications = open(&store).await;
    let db = replications.create_database("_replicator").await.unwrap();
    let other = (replications.create_database("other/_replicator").await).unwrap();
    for n in 0..3 {
        let mut doc = body(&format!("done{n}"), "a");
        doc["_replication_state"] = "completed".into();
        write(&replications, &db, joe(), &doc).await.unwrap();
        let mut doc = body(&format!("lost{n}"), "a");
        doc["_replication_state"] = "failed".into();
        doc["_replication_state_reason"] =
            format!("db_not_found: could not open http://gone/db{n}/").into();
        write(&replications, &other, joe(), &doc).await.unwrap();
        let mut doc = body(&format!("runs{n}"), &format!("s{n}"));
        doc["continuous"] = (n > 0).into();
        write(&replications, &db, joe(), &doc).await.unwrap();
    }
    (replications, db)
}

/// Documents that had ended when they were written have no job, and are counted, listed and acted on all the same.
#[tokio::test]
async fn every_replication_is_counted_listed_and_grouped() {
    let (replications, db) = nine_replications().await;
    let summary = replications.summary().await.unwrap();
    let jobs = |name: &str| summary["jobs"][name].clone();
    let counts = ["completed", "failed", "pending"].map(jobs);
    assert_eq!(counts, [3, 3, 3]);
    // One line for one cause, and its link leads to as many.
    let causes = replications.causes(10).await.unwrap();
    assert_eq!(causes["total_causes"], 1, "{causes:#}");
    let cause = &causes["causes"][0];
    assert_eq!(
        (
            &cause["state"],
            &cause["error"],
            &cause["server"],
            &cause["replications"]
        ),
        (
            &json!("failed"),
            &json!("db_not_found"),
            &json!("http://gone"),
            &json!(3)
        )
    );
    assert!(cause["hint"].as_str().unwrap().starts_with("Create the"));
    let mut query = TableQuery {
        cause: cause["cause"].as_str().map(str::to_owned),
        limit: 10,
        ..TableQuery::default()
    };
    let of_cause = replications.table(&query).await.unwrap();
    assert_eq!(
        (&of_cause["matching"], &of_cause["total_rows"]),
        (&json!(3), &json!(9))
    );
    assert_eq!(of_cause["states"]["failed"], 3);
    assert_eq!(of_cause["databases"], json!({"other/_replicator": 3}));
    // Restarting them makes jobs of them.
    query.limit = 0;
    let matching = Chosen::Matching(query);
    let acted = replications.act(Action::Restart, &matching).await.unwrap();
    assert_eq!((acted.done, acted.failed.len(), acted.left), (3, 0, 0));
    let causes = replications.causes(10).await.unwrap();
    assert_eq!(
        (&causes["total_causes"], &causes["states"]["pending"]),
        (&json!(0), &json!(6))
    );
    // By key, of both kinds; one key is unknown.
    let key = |id: &str| crate::data::job_text(&document_job_id(db.instance(), id));
    let keys = vec![key("done0"), key("runs0"), "nothing".to_owned()];
    let keys = Chosen::Keys(keys);
    let acted = replications.act(Action::Delete, &keys).await.unwrap();
    assert_eq!((acted.done, acted.failed.len()), (2, 1));
    let left = replications.table(&TableQuery::default()).await.unwrap();
    assert_eq!(
        (&left["total_rows"], &left["states"]["completed"]),
        (&json!(7), &json!(2))
    );
    let all = Chosen::Matching(TableQuery::default());
    let acted = replications.act(Action::Pause, &all).await.unwrap();
    assert_eq!(acted.done, 7);
    let paused = replications.table(&TableQuery::default()).await.unwrap();
    assert_eq!(
        (&paused["states"]["paused"], &paused["states"]["completed"]),
        (&json!(5), &json!(2))
    );
}

#[tokio::test]
async fn listings_are_in_any_order_and_page_by_page() {
    let store = Store::open("memory:").await.unwrap();
    let replications = open(&store).await;
    let db = replications.create_database("_replicator").await.unwrap();
    for n in 0..25 {
        let mut doc = body(&format!("d{n:02}"), &format!("h{:02}", 99 - n));
        doc["continuous"] = (n % 2 == 0).into();
        doc["paused"] = (n % 5 == 0).into();
        write(&replications, &db, joe(), &doc).await.unwrap();
    }
    let all = async |query: &TableQuery| {
        let mut query = TableQuery {
            limit: 7,
            ..query.clone()
        };
        let mut ids = Vec::new();
        loop {
            let page = replications.table(&query).await.unwrap();
            let rows = page["replications"].as_array().unwrap();
            ids.extend(
                rows.iter()
                    .map(|row| row["doc_id"].as_str().unwrap().to_owned()),
            );
            match page["bookmark"].as_str() {
                Some(next) => query.bookmark = Some(next.to_owned()),
                None => return ids,
            }
        }
    };
    let sorted: Vec<_> = (0..25).map(|n| format!("d{n:02}")).collect();
    let query = |sort, descending| TableQuery {
        sort,
        descending,
        ..TableQuery::default()
    };
    assert_eq!(all(&query(Column::Id, false)).await, sorted);
    let reversed: Vec<_> = sorted.iter().rev().cloned().collect();
    assert_eq!(all(&query(Column::Id, true)).await, reversed);
    assert_eq!(all(&query(Column::Source, false)).await, reversed);
    for column in [
        Column::Type,
        Column::Lag,
        Column::Rate,
        Column::NextTry,
        Column::LastUpdated,
    ] {
        let mut ids = all(&query(column, true)).await;
        ids.sort();
        assert_eq!(ids, sorted, "{column:?}");
    }
    // What needs someone comes first.
    let by_state = all(&query(Column::State, false)).await;
    assert_eq!(by_state[..5], ["d00", "d05", "d10", "d15", "d20"]);
    let searched = TableQuery {
        text: Some("H9".to_owned()),
        states: vec![RowState::Paused],
        ..TableQuery::default()
    };
    assert_eq!(all(&searched).await, ["d00", "d05"]);
    let counts = replications.table(&searched).await.unwrap();
    assert_eq!(
        (&counts["matching"], &counts["states"]["pending"]),
        (&json!(2), &json!(8))
    );
    let wrong = TableQuery {
        bookmark: Some("x".to_owned()),
        ..TableQuery::default()
    };
    assert!(replications.table(&wrong).await.is_err());
}

/// Jobs of one transaction, whose reads all take their time, return the turn of their tenant once.
#[tokio::test(start_paused = true)]
async fn rules_ask_for_jobs_at_once_on_a_slow_store() {
    let quiet = Store::open("memory:").await.unwrap();
    let (slow, _) = quiet.with_faults(Faults {
        delay: 1.0,
        delay_max: std::time::Duration::from_millis(400),
        ..Faults::default()
    });
    let (calm, replications) = (open(&quiet).await, open(&slow).await);
    let db = calm.create_database("_replicator").await.unwrap();
    write(&calm, &db, joe(), &body("a", "a")).await.unwrap();
    let (ty, holder) = (calm.job_type(), jobs::Holder::new("me").unwrap());
    let first = calm.jobs().accept(ty, &holder, 200).await.unwrap().jobs;
    assert_eq!(first.len(), 1);
    let copy =
        |nth| json!({"source": format!("http://s/{nth}"), "target": format!("http://t/{nth}")});
    let ruled = |nth: usize, rev: &str| Ruled {
        db: "shop/_replicator".to_owned(),
        instance: db.instance(),
        doc_id: "all".to_owned(),
        rev: rev.to_owned(),
        database: Some(format!("app-{nth}")),
        remote: None,
        is_bulk: false,
        body: document::json::Json::from(&copy(nth)),
    };
    for (rev, asked, created) in [("1-a", 60, 60), ("1-a", 100, 40), ("2-b", 5, 5)] {
        let all: Vec<_> = (0..asked).map(|nth| ruled(nth, rev)).collect();
        let all: Vec<_> = all.iter().collect();
        let (op, all, replications) = (replications.jobs().op(), &all, &replications);
        let ask = |tx| async move { replications.rule_in(&tx, &op, all).await };
        let asked = replications.jobs().store().transact("rules", ask).await;
        assert_eq!(asked.unwrap(), created);
    }
    let tenants = ["shop/_replicator", "_replicator"].map(|name| Some(tenant_named(name)));
    let vtimes = calm.jobs().vtimes(ty, &tenants).await.unwrap();
    assert!(vtimes[0] > 0 && vtimes[0] <= vtimes[1], "{vtimes:?}");
    let claimed = calm.jobs().accept(ty, &holder, 200).await.unwrap().jobs;
    assert_eq!(claimed.len(), 100);
    let found = calm.jobs().check(ty).await.unwrap();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
}

/// A node that read the rule before it was edited asks for its job after one that read it later.
#[tokio::test]
async fn a_late_request_of_an_earlier_revision_replaces_no_job() {
    let store = Store::open("memory:").await.unwrap();
    let replications = &open(&store).await;
    let db = replications.create_database("_replicator").await.unwrap();
    let mut revs: Vec<docstore::Rev> = Vec::new();
    for target in ["b", "c"] {
        let rule = json!({"target": target}).to_string();
        let mut edit = Edit::new("all", Doc::parse(&rule).unwrap()).unwrap();
        edit.revisions = revs.last().cloned().map(docstore::Revisions::from);
        let (docs, hook) = (replications.docs(), &docstore::NoHook);
        revs.push(
            docs.put(&db, &edit, EditMode::NewEdits, hook)
                .await
                .unwrap(),
        );
    }
    let body = json!({"source": "http://s/a", "target": "http://t/a"});
    let ruled = |rev: usize| Ruled {
        db: "_replicator".to_owned(),
        instance: db.instance(),
        doc_id: "all".to_owned(),
        rev: revs[rev].to_string(),
        database: Some("app".to_owned()),
        remote: None,
        is_bulk: false,
        body: document::json::Json::from(&body),
    };
    let mut asked = Vec::new();
    for rev in [0, 1, 0] {
        let (op, ruled) = (replications.jobs().op(), &ruled(rev));
        let ask = |tx| async move { replications.rule_in(&tx, &op, &[ruled]).await };
        asked.push(store.transact("rules", ask).await.unwrap());
    }
    let (_, data) = job(replications, &db, "all|app").await.unwrap();
    let Origin::Rule { rev, .. } = &data.origin else {
        panic!("{:?}", data.origin);
    };
    assert_eq!((asked, rev), (vec![1, 1, 0], &revs[1].to_string()));
}
