//! Writers, followers, hooks and databases over a store on a bad day: everything happens once.

use std::collections::BTreeSet;
use std::time::Duration;

use docstore::{ChangesQuery, Db, EditMode, Error, NoHook, ReadOptions, Seq, WriteHook};
use futures::future::join_all;
use store::Faults;

use super::support::{Fixture, edit, instance, open};

/// Commits that fail, or seem to.
pub(super) fn bad_day(seed: u64) -> Faults {
    Faults {
        seed,
        conflict: 0.1,
        unknown_applied: 0.15,
        unknown_lost: 0.15,
        too_old: 0.001,
        unavailable: 0.0005,
        delay: 0.1,
        delay_max: Duration::from_millis(20),
        ..Faults::default()
    }
}

/// Counts a document's number up, again and again until it is done. Each writer signs, for two that
/// make the same edit make the same revision, and both have done so.
async fn count_up(fixture: &Fixture, id: &str, writer: usize) {
    loop {
        let read = fixture.get(id).await.unwrap();
        let body = format!(r#"{{"n":{},"by":{writer}}}"#, number(&read.body) + 1);
        match fixture.put(id, Some(&read.rev), &body).await {
            Ok(_) => return,
            Err(Error::Conflict) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn number(body: &str) -> usize {
    let digits = body.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit());
    digits[..end.unwrap()].parse().unwrap()
}

/// Twenty writers and a follower of the feed: no write is lost or repeated, and the follower gets the last
/// one of each document.
#[tokio::test(start_paused = true)]
async fn writers_and_a_follower_on_a_bad_day() {
    const ROUNDS: usize = 10;
    const WRITERS: usize = 20;
    for seed in 0..20 {
        let base = Fixture::memory().await;
        let (store, control) = base.docstore.store().with_faults(Faults {
            watch_lost: 0.2,
            watch_spurious: 0.2,
            ..bad_day(seed)
        });
        let fixture = Fixture {
            docstore: open(store),
            db: base.db.clone(),
            _place: None,
        };
        for id in ["a", "b"] {
            fixture.put(id, None, r#"{"n":0}"#).await.unwrap();
        }
        let writers = join_all((0..WRITERS).map(async |writer| {
            for _ in 0..ROUNDS {
                count_up(&fixture, ["a", "b"][writer % 2], writer).await;
            }
        }));
        let (_, told) =
            futures::future::join(writers, follow(&fixture, ROUNDS * WRITERS / 2)).await;
        control.set_quiet(true);
        assert_eq!(told, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        fixture.check().await;
    }
}

/// Follows the feed until it has returned `last` in each of two documents.
async fn follow(fixture: &Fixture, last: usize) -> BTreeSet<String> {
    let mut listener = fixture.docstore.listen(&fixture.db);
    let mut since = Seq::ZERO;
    let mut done = BTreeSet::new();
    while done.len() < 2 {
        listener.changed_since(since).await.unwrap();
        let query = ChangesQuery {
            since: since.into(),
            include_docs: Some(ReadOptions::default()),
            ..ChangesQuery::default()
        };
        let (rows, last_seq) = fixture.changes(query).await;
        assert!(last_seq >= since);
        since = last_seq;
        for row in rows {
            if number(&row.doc.unwrap().body) == last {
                done.insert(row.id);
            }
        }
    }
    done
}

/// Counts its calls, in the transaction of the write.
struct Tally;

impl WriteHook for Tally {
    type Error = Error;

    fn watches(&self, _: &Db, _: &str) -> bool {
        true
    }

    async fn changed(
        &self,
        tx: &store::Transaction,
        _: &docstore::Change<'_>,
    ) -> Result<(), Error> {
        tx.add(b"tally", 1);
        Ok(())
    }

    async fn dropped(&self, tx: &store::Transaction, _: &Db, _: &str) -> Result<(), Error> {
        tx.add(b"tally", -1);
        Ok(())
    }
}

/// What hooks write happens once for each write, whatever becomes of the commits' answers.
#[tokio::test(start_paused = true)]
async fn a_hook_runs_once_for_each_write() {
    for seed in 0..30 {
        let base = Fixture::memory().await;
        let (store, _) = base.docstore.store().with_faults(bad_day(seed));
        let (docstore, db) = (open(store), &base.db);
        let read = async || {
            let read = |tx: store::Transaction| async move { tx.get(b"tally").await };
            let tally = base.docstore.store().transact("tally", read).await.unwrap();
            tally.map_or(0, |tally| i64::from_le_bytes((*tally).try_into().unwrap()))
        };
        let mut last = None;
        for number in 0..20 {
            let edit = edit("a", last.as_ref(), &format!(r#"{{"n":{number}}}"#));
            let put = docstore.put(db, &edit, EditMode::NewEdits, &Tally).await;
            last = Some(put.unwrap());
            assert_eq!(read().await, number + 1);
        }
        let deleted = docstore
            .delete(db, "a", last.as_ref(), &Tally)
            .await
            .unwrap();
        assert_eq!(deleted.generation, 21);
        assert_eq!(read().await, 21);
        let edits: Vec<_> = (0..250)
            .map(|number| edit(&format!("d{number}"), None, "{}"))
            .collect();
        let bulk = docstore
            .bulk_docs(db, &edits, EditMode::NewEdits, &Tally)
            .await;
        assert!(bulk.unwrap().iter().all(Result::is_ok));
        assert_eq!(read().await, 271);
        docstore.delete_database(db).await.unwrap();
        while docstore.sweep(&Tally).await.unwrap() != docstore::Swept::Nothing {}
        assert_eq!(read().await, 21);
    }
}

/// A database is created and deleted once, whatever becomes of the commits' answers.
#[tokio::test(start_paused = true)]
async fn databases_come_and_go_on_a_bad_day() {
    for seed in 0..50 {
        let base = Fixture::memory().await;
        let (store, _) = base.docstore.store().with_faults(bad_day(seed));
        let docstore = open(store);
        let name = docstore.name("x/_replicator").unwrap();
        for number in 10..20 {
            let db = docstore.create(&name, instance(number)).await.unwrap();
            let again = docstore.create(&name, instance(99)).await;
            assert!(matches!(again, Err(Error::DatabaseExists)));
            let put = edit("a", None, "{}");
            docstore
                .put(&db, &put, EditMode::NewEdits, &NoHook)
                .await
                .unwrap();
            docstore.delete_database(&db).await.unwrap();
            assert!(matches!(docstore.open(&name).await, Err(Error::NoDatabase)));
        }
        while docstore.sweep(&NoHook).await.unwrap() != docstore::Swept::Nothing {}
        assert_eq!(base.rows().await, 1, "only the first database is left");
    }
}
