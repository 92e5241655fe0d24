//! Documents, requests and jobs in one store, whatever becomes of commits.

use docstore::{Edit, EditMode};
use document::doc::Doc;
use jobs::Clock;
use serde_json::{Value, json};
use store::{Faults, Store};

use super::*;
use crate::SummaryMemory;
use crate::create::Caller;
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
    let jobs = Jobs::new(
        store.clone(),
        Clock::simulated(1_000_000),
        Entropy::seeded(1),
    );
    let docs = DocStore::new(store.clone(), docstore::Options::default());
    Replications::open(jobs, docs, Setup::default())
        .await
        .unwrap()
}

async fn write(
    of: &Replications,
    db: &Db,
    writer: Writer,
    json: &Value,
) -> Result<docstore::Rev, ServiceError> {
    let text = json.to_string();
    let doc = Doc::parse(&text).unwrap();
    let edit = Edit::new(doc.id.clone().unwrap(), doc)?;
    let edit = of.prepare(db, edit, &writer)?;
    of.docs()
        .put(db, &edit, EditMode::NewEdits, &of.hook(writer))
        .await
}

fn body(id: &str, source: &str) -> Value {
    json!({"_id": id, "source": format!("http://{source}/x"), "target": "http://t/y"})
}

async fn job(of: &Replications, db: &Db, id: &str) -> Option<(JobInfo, JobData)> {
    let job = document_job_id(db.instance(), id);
    let job = &job;
    of.jobs()
        .store()
        .transact("look", |tx| async move { of.job_in(&tx, job).await })
        .await
        .unwrap()
}

/// Rows of the index of active jobs are those of jobs that are not finished.
async fn check(of: &Replications) -> usize {
    let listed = of
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
async fn documents_make_replace_and_remove_jobs_on_a_bad_store() {
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
        let of = open(&store).await;
        let db = of
            .create_database(&format!("s{seed}/_replicator"))
            .await
            .unwrap();
        let rev = write(&of, &db, joe(), &body("d", "a")).await.unwrap();
        let (first, data) = job(&of, &db, "d").await.unwrap();
        assert_eq!(
            (first.state, data.state),
            (State::Pending, JobState::Pending)
        );
        assert_eq!(data.shown.source.as_deref(), Some("http://a/x/"));
        // The same again, with another unknown member, changes nothing.
        let mut same = body("d", "a");
        (same["_rev"], same["note"]) = (json!(rev.to_string()), json!(1));
        let rev = write(&of, &db, joe(), &same).await.unwrap();
        assert_eq!(job(&of, &db, "d").await.unwrap(), (first, data));
        let mut other = body("d", "b");
        other["_rev"] = json!(rev.to_string());
        let rev = write(&of, &db, joe(), &other).await.unwrap();
        let (_, data) = job(&of, &db, "d").await.unwrap();
        assert_eq!(data.shown.source.as_deref(), Some("http://b/x/"));
        assert_eq!(check(&of).await, 1);
        of.docs()
            .delete(&db, "d", Some(&rev), &of.hook(joe()))
            .await
            .unwrap();
        assert!(job(&of, &db, "d").await.is_none());
        assert_eq!(check(&of).await, 0);
        let caller = Caller {
            name: Some("joe".to_owned()),
            is_admin: false,
        };
        let wanted = Json::from(&body("ignored", "a"));
        let Started::Job { job, .. } = of.request(&wanted, &caller).await.unwrap() else {
            panic!("it is no job");
        };
        let cancelled = of
            .cancel(&ReplicationId::from_client(&job), &caller)
            .await
            .unwrap();
        assert_eq!(
            cancelled,
            Started::Cancelled {
                local_id: job.clone()
            }
        );
        let again = of.cancel(&ReplicationId::from_client(&job), &caller).await;
        assert!(matches!(again, Err(ServiceError::Missing)));
        assert_eq!(check(&of).await, 0);
    }
}

#[tokio::test]
async fn nobody_takes_a_document_over() {
    let store = Store::open("memory:").await.unwrap();
    let of = open(&store).await;
    let db = of.create_database("_replicator").await.unwrap();
    let rev = write(&of, &db, joe(), &body("d", "a")).await.unwrap();
    let mut hijack = body("d", "evil");
    hijack["_rev"] = json!(rev.to_string());
    let refused = |result: Result<docstore::Rev, ServiceError>| matches!(result, Err(ServiceError::Forbidden(text)) if text == "Can't update replication documents from other users.");
    // With no owner, his own, and joe's; by deletion, and as another branch.
    assert!(refused(write(&of, &db, user("eve", false), &hijack).await));
    hijack["owner"] = json!("eve");
    assert!(refused(write(&of, &db, user("eve", false), &hijack).await));
    hijack["owner"] = json!("joe");
    assert!(refused(write(&of, &db, user("eve", false), &hijack).await));
    let hook = of.hook(user("eve", false));
    assert!(refused(of.docs().delete(&db, "d", Some(&rev), &hook).await));
    hijack["owner"] = json!("eve");
    hijack["_rev"] = json!("9-ffffffffffffffffffffffffffffffff");
    let text = hijack.to_string();
    let edit = Edit::new("d", Doc::parse(&text).unwrap()).unwrap();
    let edit = of.prepare(&db, edit, &user("eve", false)).unwrap();
    assert!(refused(
        of.docs().put(&db, &edit, EditMode::Replicated, &hook).await
    ));
    let (_, data) = job(&of, &db, "d").await.unwrap();
    assert_eq!(data.shown.source.as_deref(), Some("http://a/x/"));
    // An administrator may, and joe stays the owner.
    hijack["_rev"] = json!(rev.to_string());
    hijack["owner"] = json!("joe");
    write(&of, &db, user("adm", true), &hijack).await.unwrap();
}

#[tokio::test]
async fn invalid_documents_are_refused_in_couchdbs_words() {
    let store = Store::open("memory:").await.unwrap();
    let of = open(&store).await;
    let db = of.create_database("_replicator").await.unwrap();
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
        let refused = write(&of, &db, joe(), &body).await.unwrap_err();
        assert!(
            matches!(&refused, ServiceError::Invalid(invalid) if invalid.to_string() == reason),
            "{refused}"
        );
    }
    // One that says that it failed makes no job, and is looked at all the same.
    let refused = json!({"_id": "f", "foo": 1, "_replication_state": "failed"});
    assert!(write(&of, &db, joe(), &refused).await.is_err());
    let failed = json!({"_id": "f", "source": "http://a/x", "target": "http://t/y", "_replication_state": "failed", "_replication_state_reason": "r"});
    write(&of, &db, joe(), &failed).await.unwrap();
    assert!(job(&of, &db, "f").await.is_none());
    let row = of.scheduler_doc(&db, "f").await.unwrap();
    assert_eq!(
        (&row["state"], &row["info"]),
        (&json!("failed"), &json!({"error": "r"}))
    );
    write(&of, &db, joe(), &json!({"_id": "_design/x"}))
        .await
        .unwrap();
    write(&of, &db, joe(), &body("a", "a")).await.unwrap();
    let page = of
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
    let page = of.scheduler_docs(&db, &query).await.unwrap();
    assert_eq!(page.docs[0]["doc_id"], "f");
    let query = crate::DocsQuery {
        states: vec![JobState::Pending],
        ..Default::default()
    };
    let page = of.scheduler_docs(&db, &query).await.unwrap();
    assert_eq!((page.docs.len(), &page.docs[0]["doc_id"]), (1, &json!("a")));
}

#[tokio::test]
async fn a_summary_counts_all_and_looks_at_some() {
    let store = Store::open("memory:").await.unwrap();
    let of = open(&store).await;
    let db = of.create_database("_replicator").await.unwrap();
    for n in 0..210 {
        let doc = body(&format!("d{n}"), &format!("h{n}"));
        write(&of, &db, joe(), &doc).await.unwrap();
    }
    let mut parked = body("parked", "p");
    parked["paused"] = true.into();
    write(&of, &db, joe(), &parked).await.unwrap();
    let memory = &mut SummaryMemory::default();
    let all = of.summary(memory).await.unwrap();
    let jobs = json!({
        "pending": 211, "running": 0, "crashing": 0, "completed": 0, "failed": 0, "idle": 0, "paused": 1,
    });
    assert_eq!(
        (&all["exact"], &all["jobs"], &all["nodes"]),
        (&json!(true), &jobs, &json!([]))
    );
    assert_eq!(
        (&all["docs_per_second"], &all["lag_seconds_max"]),
        (&json!(0.0), &json!(0))
    );
    // Looking at a part of them, it knows how many there are all the same.
    let some = of.summary_of(memory, 1).await.unwrap();
    assert_eq!(
        (&some["exact"], &some["sampled"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(some["jobs"], jobs);
}

/// Every state, as listings and counters have it, and none left when the jobs are gone.
#[tokio::test]
async fn states_are_counted_as_they_are_listed() {
    let store = Store::open("memory:").await.unwrap();
    let of = open(&store).await;
    let db = of.create_database("_replicator").await.unwrap();
    let me = jobs::Holder::new("me").unwrap();
    let ids = ["a", "b", "c", "d", "e", "f"];
    for id in ids {
        write(&of, &db, joe(), &body(id, id)).await.unwrap();
    }
    let held = of.jobs().accept(&of.0.ty, &me, 6).await.unwrap().jobs;
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
            JobState::Running => of.jobs().update(job, Some(bytes.into())).await,
            JobState::Crashing | JobState::Pending => {
                let finish = jobs::Finish::again(5_000_000).data(bytes);
                of.jobs().finish(job, finish).await
            }
            _ => {
                of.jobs()
                    .finish(job, jobs::Finish::done().data(bytes))
                    .await
            }
        };
        assert!(!done.unwrap().repeated);
    }
    let mut parked = body("parked", "p");
    parked["paused"] = true.into();
    write(&of, &db, joe(), &parked).await.unwrap();
    let memory = &mut SummaryMemory::default();
    let jobs = json!({
        "pending": 2, "running": 2, "crashing": 1, "completed": 1, "failed": 1, "idle": 1, "paused": 1,
    });
    let all = of.summary(memory).await.unwrap();
    assert_eq!((&all["jobs"], &all["sampled"]), (&jobs, &json!(false)));
    let problems = of.jobs().check(&of.0.ty).await.unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    // What a node that died has left waits, whatever its data says.
    let labels = of.jobs().counts_by_label(&of.0.ty).await.unwrap();
    let died = labels
        .into_iter()
        .map(|((state, label), count)| match state {
            State::Running => ((State::Pending, label), count),
            state => ((state, label), count),
        });
    let census = data::Census::of(&died.collect()).unwrap();
    assert_eq!((census.pending, census.running, census.idle), (4, 0, 0));
    of.delete_database(&db).await.unwrap();
    while of.work_a_little().await.unwrap() == Scanned::Some {}
    assert_eq!(
        of.jobs().counts_by_label(&of.0.ty).await.unwrap(),
        std::collections::BTreeMap::new()
    );
}

#[tokio::test]
async fn a_deleted_database_takes_its_jobs_with_it() {
    let quiet = Store::open("memory:").await.unwrap();
    let faults = Faults {
        seed: 5,
        unknown_applied: 0.2,
        unknown_lost: 0.2,
        ..Faults::default()
    };
    let (store, _) = quiet.with_faults(faults);
    let of = open(&store).await;
    let db = of.create_database("_replicator").await.unwrap();
    let edits = (0..250).map(|n| {
        let text = body("d", &format!("h{n}")).to_string();
        let edit = Edit::new(format!("d{n:03}"), Doc::parse(&text).unwrap()).unwrap();
        of.prepare(&db, edit, &joe()).unwrap()
    });
    let edits: Vec<_> = edits.collect();
    let written = of
        .docs()
        .bulk_docs(&db, &edits, EditMode::NewEdits, &of.hook(joe()))
        .await;
    assert!(written.unwrap().iter().all(Result::is_ok));
    assert_eq!(check(&of).await, 250);
    // Looking at all documents again changes nothing, and brings back what is missing.
    let lost = document_job_id(db.instance(), "d200");
    let (op, lost) = (of.jobs().op(), &lost);
    let of_ref = &of;
    (of.jobs().store())
        .transact("lose", |tx| async move {
            of_ref.drop_job_in(&tx, &op, lost).await
        })
        .await
        .unwrap();
    assert_eq!(check(&of).await, 249);
    of.rescan(&db).await.unwrap();
    while of.work_a_little().await.unwrap() == Scanned::Some {}
    assert_eq!(check(&of).await, 250);
    of.delete_database(&db).await.unwrap();
    let again = of.create_database("_replicator").await.unwrap();
    assert_ne!(again.instance(), db.instance());
    write(&of, &again, joe(), &body("d000", "a")).await.unwrap();
    while of.work_a_little().await.unwrap() == Scanned::Some {}
    assert_eq!(check(&of).await, 1);
    assert!(job(&of, &again, "d000").await.is_some());
}

#[tokio::test]
async fn the_services_uuid_stays_unless_it_is_set() {
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
