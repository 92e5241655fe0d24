//! Changing keys: on a faulty store, killed halfway, and beside nodes with an older configuration.

use docstore::{Edit, EditMode, ReadOptions};
use document::doc::Doc;
use jobs::{Accepted, Finish, Holder};
use seal::{Sealer, keys_in_use};
use serde_json::{Value, json};
use store::{Faults, Store};

use super::*;
use crate::create::{Caller, Rank, Writer};
use crate::service::{Replications, Setup};

const START_MS: i64 = 1_000_000;

fn clock() -> Clock {
    Clock::standing(START_MS)
}

/// A node with keys of these names. A lower-case letter names a key, its capital a different key of the same name.
async fn node(store: &Store, clock: &Clock, keys: &str) -> Result<Replications, ServiceError> {
    let keys = keys
        .chars()
        .map(|key| (key.to_ascii_lowercase().to_string(), [key as u8; 32]));
    let setup = Setup {
        sealer: Sealer::new(keys.collect()).unwrap(),
        ..Default::default()
    };
    let jobs = Jobs::new(store.clone(), clock.clone(), Entropy::seeded(1));
    let docs = DocStore::new(store.clone(), docstore::Options::default());
    Replications::open(jobs, docs, setup).await
}

fn joe() -> Writer {
    Writer::User {
        name: Some("joe".to_owned()),
        rank: Rank::Member,
    }
}

fn body(id: &str) -> Value {
    json!({"_id": id, "source": format!("http://u:secret-{id}@a/{id}"), "target": "http://t/y"})
}

fn edit(replications: &Replications, db: &Db, doc: &Value) -> Edit {
    let text = doc.to_string();
    let doc = Doc::parse(&text).unwrap();
    let edit = Edit::new(doc.id.clone().unwrap(), doc).unwrap();
    replications.prepare(db, edit, &joe()).unwrap()
}

async fn put(replications: &Replications, db: &Db, doc: &Value) -> docstore::Rev {
    let (edit, hook) = (edit(replications, db, doc), replications.hook(joe()));
    let put = replications
        .docs()
        .put(db, &edit, EditMode::NewEdits, &hook);
    put.await.unwrap()
}

/// Documents with jobs, conflicts, a deletion, and a job created by a request.
async fn fill(replications: &Replications, documents: usize) -> Db {
    let db = replications.create_database("_replicator").await.unwrap();
    let other = replications.create_database("a/_replicator").await.unwrap();
    put(replications, &other, &body("other")).await;
    let edits: Vec<_> = (0..documents)
        .map(|n| edit(replications, &db, &body(&format!("d{n:03}"))))
        .collect();
    let hook = replications.hook(joe());
    let written = replications
        .docs()
        .bulk_docs(&db, &edits, EditMode::NewEdits, &hook);
    assert!(written.await.unwrap().iter().all(Result::is_ok));
    let mut branch = body("d000");
    branch["_rev"] = json!("1-ffffffffffffffffffffffffffffffff");
    let edit = edit(replications, &db, &branch);
    // Members may not add conflicts.
    let hook = replications.hook(Writer::User {
        name: Some("joe".to_owned()),
        rank: Rank::ServerAdmin,
    });
    let put = replications
        .docs()
        .put(&db, &edit, EditMode::Replicated, &hook);
    put.await.unwrap();
    let caller = Caller {
        name: Some("joe".to_owned()),
        is_admin: false,
    };
    let wanted = document::json::Json::from(&body("asked"));
    replications.request(&wanted, &caller).await.unwrap();
    db
}

async fn work(replications: &Replications) {
    while replications.work_a_little().await.unwrap() == Scanned::Some {}
}

async fn counts(store: &Store) -> Vec<(String, u64, u64)> {
    let counts = count_seals(store).await.unwrap().into_iter();
    let row = |(name, count): (String, Sealed)| (name, count.documents, count.jobs);
    counts.map(row).collect()
}

async fn used(store: &Store) -> String {
    keys_in_use(store).await.unwrap().used.concat()
}

/// The visible state of documents and jobs.
async fn seen(replications: &Replications, db: &Db) -> (Vec<String>, Vec<Value>, String) {
    let query = docstore::AllDocsQuery {
        include_docs: Some(ReadOptions::default()),
        ..Default::default()
    };
    let page = replications.docs().all_docs_page(db, &query).await.unwrap();
    let docs = page.rows.into_iter().map(|row| {
        let doc = row.value.unwrap().doc.unwrap();
        let body = strip::open_body(replications.sealer(), db, &doc.id, &doc.body).unwrap();
        format!("{} {} {body}", doc.id, doc.rev)
    });
    let query = crate::JobsQuery {
        limit: 1000,
        ..Default::default()
    };
    let jobs = replications.scheduler_jobs(&query).await.unwrap().jobs;
    let info = replications.docs().info(db).await.unwrap();
    (docs.collect(), jobs, format!("{:?}", info.update_seq))
}

async fn refused(store: &Store, clock: &Clock, keys: &str) -> Option<String> {
    match node(store, clock, keys).await {
        Err(ServiceError::Unreadable(Unreadable::NoKey(name))) => Some(name),
        Err(ServiceError::Unreadable(Unreadable::OtherKey(name))) => Some(format!("other {name}")),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

async fn keys_change(store: &Store) {
    let clock = clock();
    let old = node(store, &clock, "a").await.unwrap();
    let db = fill(&old, 250).await;
    assert_eq!(counts(store).await, [("a".to_owned(), 252, 252)]);
    work(&old).await;
    let before = seen(&old, &db).await;
    assert_eq!(refused(store, &clock, "b").await.as_deref(), Some("a"));
    let new = node(store, &clock, "ba").await.unwrap();
    // Killed partway: the next node continues, and the old key is still needed.
    for _ in 0..3 {
        assert_eq!(new.reseal_a_little().await.unwrap(), Scanned::Some);
    }
    drop(new);
    let half = counts(store).await;
    assert!(half.len() == 2, "{half:?}");
    assert_eq!(refused(store, &clock, "b").await.as_deref(), Some("a"));
    let began_ms = keys_in_use(store).await.unwrap().pass.unwrap().began_ms;
    clock.set_ms(START_MS + 1_000);
    let new = node(store, &clock, "ba").await.unwrap();
    work(&new).await;
    let known = keys_in_use(store).await.unwrap();
    let pass = known.pass.clone().unwrap();
    assert_eq!((known.old().count(), pass.unreadable), (0, 0));
    assert_eq!(pass.began_ms, began_ms, "it resumed where it was");
    assert_eq!(counts(store).await, [("b".to_owned(), 252, 252)]);
    let last = node(store, &clock, "b").await.unwrap();
    assert_eq!(seen(&last, &db).await, before);
    assert_eq!(refused(store, &clock, "a").await.as_deref(), Some("b"));
    // Jobs can be read, too.
    let ty = last.job_type();
    let me = Holder::new("me").unwrap();
    let accepted = last.jobs().accept(ty, &me, 1).await.unwrap().jobs;
    let data = JobData::decode(&accepted[0].data).unwrap();
    let wanted = data.replication(last.sealer(), &accepted[0].job.id, &last.defaults());
    assert!(wanted.unwrap().is_ok());
    assert!(last.jobs().check(ty).await.unwrap().problems.is_empty());
}

/// Jobs of users' sealed types and sealed values, which this crate cannot read otherwise.
#[tokio::test]
async fn sealed_data_of_other_types_is_resealed() {
    let store = &Store::open("memory:").await.unwrap();
    let clock = clock();
    let old = node(store, &clock, "a").await.unwrap();
    let (jobs, sealer) = (old.jobs(), old.sealer());
    let mut jobs_of_types = Vec::new();
    for ty in ["api/mail", "api/post", "plain"].map(|ty| JobType::new(ty).unwrap()) {
        jobs.set_type(&ty, jobs::TypeConfig::new(1_000))
            .await
            .unwrap();
        for id in 0..250 {
            let id = JobId::new(format!("{id:03}")).unwrap();
            let context = seal::job_context(ty.as_str(), id.as_bytes());
            let data = match ty.as_str() {
                "plain" => "hello".into(),
                _ => sealer.seal_data(&context, b"hello").unwrap(),
            };
            jobs.add(&ty, jobs::Add::new(id.clone(), data))
                .await
                .unwrap();
            jobs_of_types.push((ty.clone(), id, context));
        }
    }
    let write = |tx: Transaction| async move {
        seal::values::write_in(&tx, sealer, "schedule/x", b"hello").await?;
        Ok::<_, ServiceError>(())
    };
    store.transact("write", write).await.unwrap();
    assert_eq!(counts(store).await, [("a".to_owned(), 0, 501)]);
    let new = node(store, &clock, "ba").await.unwrap();
    work(&new).await;
    assert_eq!(used(store).await, "b");
    assert_eq!(counts(store).await, [("b".to_owned(), 0, 501)]);
    let last = &node(store, &clock, "b").await.unwrap();
    for (ty, id, context) in jobs_of_types {
        let (_, data) = last.jobs().get(&ty, &id).await.unwrap().unwrap();
        let data = match ty.as_str() {
            "plain" => data,
            _ => last.sealer().open_data(&context, &data).unwrap(),
        };
        assert_eq!(data, "hello", "{ty} {id}");
    }
    let read = |tx: Transaction| async move {
        Ok::<_, ServiceError>(seal::values::read_in(&tx, last.sealer(), "schedule/x").await?)
    };
    assert_eq!(store.transact("read", read).await.unwrap(), "hello");
}

#[tokio::test]
async fn everything_is_resealed_in_memory() {
    keys_change(&Store::open("memory:").await.unwrap()).await;
}

#[tokio::test]
async fn everything_is_resealed_in_lmdb() {
    let place = testkit::Backend::Lmdb.place().unwrap();
    keys_change(&Store::open(&place.url).await.unwrap()).await;
}

#[tokio::test]
async fn everything_is_resealed_in_foundationdb() {
    let Some(url) = testkit::fdb_url() else {
        return;
    };
    keys_change(&Store::open(&url).await.unwrap()).await;
}

/// Commits fail, get lost, or are applied with an unknown outcome, while several nodes do the same.
#[tokio::test]
async fn everything_is_resealed_on_a_faulty_store() {
    let clock = clock();
    for seed in 0..6 {
        let quiet = Store::open("memory:").await.unwrap();
        let faults = Faults {
            seed,
            conflict: 0.2,
            unknown_applied: 0.2,
            unknown_lost: 0.2,
            ..Faults::default()
        };
        let (store, _) = quiet.with_faults(faults);
        let old = node(&store, &clock, "a").await.unwrap();
        let db = fill(&old, 150).await;
        let before = seen(&old, &db).await;
        let (one, two) = (
            node(&store, &clock, "ba").await,
            node(&store, &clock, "ba").await,
        );
        let (one, two) = (one.unwrap(), two.unwrap());
        tokio::join!(work(&one), work(&two));
        assert_eq!(used(&quiet).await, "b");
        assert_eq!(counts(&quiet).await, [("b".to_owned(), 152, 152)]);
        assert_eq!(seen(&one, &db).await, before);
    }
}

/// A node started before the change of keys seals with the old key again, at any point of a pass.
#[tokio::test]
async fn a_key_is_kept_while_a_node_seals_with_it() {
    for turns in 0..12 {
        let (store, clock) = (Store::open("memory:").await.unwrap(), clock());
        let old = node(&store, &clock, "ab").await.unwrap();
        let db = fill(&old, 250).await;
        let new = node(&store, &clock, "ba").await.unwrap();
        for _ in 0..turns {
            new.reseal_a_little().await.unwrap();
        }
        put(&old, &db, &body("late")).await;
        work(&new).await;
        if used(&store).await == "ab" {
            // The pass had begun, so another one is needed; it does not start at once.
            assert_eq!(refused(&store, &clock, "b").await.as_deref(), Some("a"));
            clock.set_ms(START_MS + 3_600_000);
            work(&new).await;
        }
        assert_eq!(used(&store).await, "b", "{turns}");
        assert_eq!(counts(&store).await, [("b".to_owned(), 253, 253)]);
    }
}

/// A running job is not written back in its earlier state.
#[tokio::test]
async fn a_run_does_not_restore_an_old_key() {
    let (store, clock) = (Store::open("memory:").await.unwrap(), clock());
    let old = node(&store, &clock, "ab").await.unwrap();
    let db = old.create_database("_replicator").await.unwrap();
    put(&old, &db, &body("d")).await;
    let me = Holder::new("me").unwrap();
    let accepted = old.jobs().accept(old.job_type(), &me, 1).await.unwrap();
    let accepted: Accepted = accepted.jobs.into_iter().next().unwrap();
    let new = node(&store, &clock, "ba").await.unwrap();
    work(&new).await;
    assert_eq!(used(&store).await, "b");
    // The holder keeps its job, and its writes record that they need the old key.
    let (op, data) = (&new.jobs().op(), &JobData::decode(&accepted.data).unwrap());
    assert_eq!(data.sealed().and_then(key_of), Some("a"));
    let (new_ref, job) = (&new, &accepted.job);
    (new.jobs().store())
        .transact("end", |tx| async move {
            new_ref.seals_job_in(&tx, data).await?;
            let finish = Finish::again(0).data(data.encode());
            let held = new_ref.jobs().finish_in(&tx, op, job, finish).await?;
            assert!(!held.repeated);
            Ok::<_, ServiceError>(())
        })
        .await
        .unwrap();
    assert_eq!(used(&store).await, "ab");
    clock.set_ms(START_MS + 3_600_000);
    work(&new).await;
    assert_eq!(used(&store).await, "b");
    assert_eq!(counts(&store).await, [("b".to_owned(), 1, 1)]);
}

#[tokio::test]
async fn key_rings_must_overlap() {
    let (store, clock) = (Store::open("memory:").await.unwrap(), clock());
    node(&store, &clock, "a").await.unwrap();
    assert_eq!(refused(&store, &clock, "b").await.as_deref(), Some("a"));
    // First known to all nodes, then first in the file.
    let first = node(&store, &clock, "ab").await.unwrap();
    let second = node(&store, &clock, "ba").await.unwrap();
    work(&first).await;
    assert_eq!(
        used(&store).await,
        "ab",
        "a node with an older configuration does nothing"
    );
    work(&second).await;
    assert_eq!(used(&store).await, "b");
    node(&store, &clock, "b").await.unwrap();
    // And back again.
    node(&store, &clock, "cb").await.unwrap();
    assert_eq!(refused(&store, &clock, "b").await.as_deref(), Some("c"));
    node(&store, &clock, "bc").await.unwrap();
    assert_eq!(
        keys_in_use(&store).await.unwrap().newest.as_deref(),
        Some("b")
    );
    // A service that seals nothing needs no keys.
    node(&store, &clock, "").await.unwrap();
}

/// Two files with different keys of the same name, as if the line was generated on each node and not copied.
#[tokio::test]
async fn a_name_identifies_one_key() {
    let (store, clock) = (Store::open("memory:").await.unwrap(), clock());
    let refused = async |keys: &str| refused(&store, &clock, keys).await;
    let first = node(&store, &clock, "a").await.unwrap();
    let db = fill(&first, 3).await;
    assert_eq!(refused("A").await.as_deref(), Some("other a"));
    assert_eq!(refused("bA").await.as_deref(), Some("other a"));
    let known = keys_in_use(&store).await.unwrap();
    let sealer = |keys: &str| {
        let key = |name: char| {
            let bytes = [name as u8; 32];
            (name.to_ascii_lowercase().to_string(), bytes)
        };
        Sealer::new(keys.chars().map(key).collect()).unwrap()
    };
    assert_eq!(known.others(&sealer("bAC")).collect::<Vec<_>>(), ["a"]);
    assert_eq!(known.others(&sealer("cab")).count(), 0);
    // A rejected node leaves nothing behind, so the name is free.
    node(&store, &clock, "aB").await.unwrap();
    // Before anything is sealed with it.
    assert_eq!(refused("ab").await.as_deref(), Some("other b"));
    let second = node(&store, &clock, "Ba").await.unwrap();
    work(&second).await;
    // Nothing is sealed with the old key: its name can be reused, unless a node continues with it.
    node(&store, &clock, "B").await.unwrap();
    put(&first, &db, &body("late")).await;
    assert_eq!(refused("BA").await.as_deref(), Some("other a"));
    clock.set_ms(START_MS + 3_600_000);
    let third = node(&store, &clock, "Ba").await.unwrap();
    work(&third).await;
    node(&store, &clock, "BA").await.unwrap();
}

/// Rows of keys that an older version did not write.
#[tokio::test]
async fn a_store_without_key_rows_is_resealed() {
    let (store, clock) = (Store::open("memory:").await.unwrap(), clock());
    let old = node(&store, &clock, "a").await.unwrap();
    fill(&old, 3).await;
    let clear = |tx: Transaction| async move {
        tx.clear_range(store::tuple::below(&(52_u16, 9_u16)));
        Ok::<_, ServiceError>(())
    };
    store.transact("forget", clear).await.unwrap();
    let new = node(&store, &clock, "ba").await.unwrap();
    assert_eq!(used(&store).await, "ab");
    work(&new).await;
    assert_eq!(used(&store).await, "b");
    assert_eq!(counts(&store).await, [("b".to_owned(), 5, 5)]);
}
