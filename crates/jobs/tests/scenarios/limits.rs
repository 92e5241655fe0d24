//! Extreme values: 11 to 13 and 23 of the further cases.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use jobs::{
    Add, Cursor, DATA_BYTES_MAX, Entropy, Error, Finish, ID_BYTES_MAX, JobId, JobType, Jobs, Query,
    State, TYPE_BYTES_MAX,
};

use store::{Faults, KeyRange, RangeOptions, Transaction};
use tokio::time::Instant;

use crate::support::Queue;

/// Scenario 11: Any bytes are a valid id, and an id of one type is not found under another.
pub(crate) async fn ids_of_any_bytes(queue: Queue) {
    let ids: Vec<Vec<u8>> = vec![
        vec![],
        vec![0],
        vec![0, 0xff],
        vec![0xff],
        vec![0xff; ID_BYTES_MAX],
        vec![0; ID_BYTES_MAX],
        b"plain".to_vec(),
        (0..=255).collect(),
    ];
    let long = JobType::new(&"\u{0}".repeat(TYPE_BYTES_MAX)).unwrap();
    let types = [queue.ty.clone(), JobType::new("t").unwrap(), long];
    for ty in &types {
        queue.jobs.set_type(ty, queue.config()).await.unwrap();
        for id in &ids {
            let add = Add::new(JobId::new(id.clone()).unwrap(), id.clone());
            queue.jobs.add(ty, add).await.unwrap();
        }
    }
    for ty in &types {
        let query = Query::default();
        let listed = queue.jobs.list(ty, &query, None, 100).await.unwrap();
        let listed: Vec<_> = (listed.jobs.iter())
            .map(|job| job.info.id.as_bytes().to_vec())
            .collect();
        let mut sorted = ids.clone();
        sorted.sort();
        assert_eq!(listed, sorted);
        let claimed = queue.jobs.accept(ty, &queue.me, 100).await.unwrap();
        assert_eq!(claimed.jobs.len(), ids.len());
        for accepted in claimed.jobs {
            assert_eq!(accepted.job.id.as_bytes(), &*accepted.data);
            // The longest value of every key element.
            for due_ms in [i64::MAX, 0] {
                let held = queue.jobs.run_again(&accepted.job, due_ms, None).await;
                assert!(held.unwrap().again);
            }
            let held = queue.jobs.finish(&accepted.job, Finish::done()).await;
            assert!(held.unwrap().again);
            let large = Add::new(accepted.job.id.clone(), vec![0; 100_000]).due_ms(i64::MAX);
            queue.jobs.add(ty, large).await.unwrap();
        }
        let report = queue.jobs.check(ty).await.unwrap();
        assert_eq!((report.jobs, report.problems), (8, vec![]));
    }
    queue.check().await;
}

/// Scenario 12: Data up to its limit round-trips; larger data changes nothing.
pub(crate) async fn data_of_every_size(queue: Queue) {
    let sizes = [
        0,
        1,
        511,
        512,
        513,
        89_999,
        90_000,
        90_001,
        99_990,
        100_001,
        180_000,
        DATA_BYTES_MAX,
    ];
    for (n, size) in sizes.into_iter().enumerate() {
        let data: Vec<u8> = (0..size)
            .map(|i| u8::try_from((i / 7 + n) % 256).unwrap())
            .collect();
        let add = Add::new(queue.id("j"), data.clone());
        queue.jobs.add(&queue.ty, add).await.unwrap();
        assert!(queue.data("j").await == data, "{size} bytes");
        let accepted = queue.accept().await.unwrap();
        assert!(accepted.data == data, "{size} bytes");
        let backwards: Vec<u8> = data.iter().rev().copied().collect();
        let finish = Finish::done().data(backwards.clone());
        assert!(
            !queue
                .jobs
                .finish(&accepted.job, finish)
                .await
                .unwrap()
                .again
        );
        assert!(queue.data("j").await == backwards, "{size} bytes");
        if size < DATA_BYTES_MAX {
            queue.check().await;
        }
    }
    let too_long = Add::new(queue.id("j"), vec![0; DATA_BYTES_MAX + 1]);
    match queue.jobs.add(&queue.ty, too_long).await {
        Err(Error::TooLarge { size, max, .. }) => {
            assert_eq!((size, max), (DATA_BYTES_MAX + 1, DATA_BYTES_MAX));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(queue.state("j").await, Some(State::Finished));
    // Several large jobs are not accepted at once: the data of one claim is bounded.
    for name in ["a", "b", "c"] {
        let add = Add::new(queue.id(name), vec![7; 5 * 1024 * 1024]);
        queue.jobs.add(&queue.ty, add).await.unwrap();
    }
    for left in [2, 1, 0] {
        let claimed = queue.jobs.accept(&queue.ty, &queue.me, 10).await.unwrap();
        assert_eq!(claimed.jobs.len(), 1);
        assert_eq!(queue.counts().await.pending, left);
    }
    queue.check().await;
}

/// Scenario 13: Negative times mean as soon as possible; the end of time never comes.
pub(crate) async fn times_of_every_size(queue: Queue) {
    queue.add("min", "", i64::MIN).await;
    queue.add("negative", "", -5).await;
    queue.add("one", "", 1).await;
    queue.add("max", "", i64::MAX).await;
    assert_eq!(queue.due_ms("min").await, 0);
    assert_eq!(queue.due_ms("negative").await, 0);
    let claimed = queue.jobs.accept(&queue.ty, &queue.me, 10).await.unwrap();
    assert_eq!(claimed.jobs.len(), 3);
    let nothing = queue.jobs.accept(&queue.ty, &queue.me, 10).await.unwrap();
    assert_eq!(nothing.next_due_ms, Some(i64::MAX));
    let claim = queue.jobs.claim_by(&queue.ty, &queue.me, 1, i64::MAX);
    assert_eq!(queue.jobs.accept_claim(&claim).await.unwrap().jobs.len(), 1);
    queue.check().await;
}

/// Scenario 13: The horizon is inclusive for every id.
pub(crate) async fn ids_at_the_boundary_of_a_horizon(queue: Queue) {
    for id in [&b""[..], b"\x00", b"m", b"\xff", b"\xff\xff\xff"] {
        let add = Add::new(JobId::new(id).unwrap(), "").due_ms(1_000);
        queue.jobs.add(&queue.ty, add).await.unwrap();
    }
    let claim = queue.jobs.claim_by(&queue.ty, &queue.me, 9, 999);
    assert_eq!(queue.jobs.accept_claim(&claim).await.unwrap().jobs, []);
    let claim = queue.jobs.claim_by(&queue.ty, &queue.me, 9, 1_000);
    assert_eq!(queue.jobs.accept_claim(&claim).await.unwrap().jobs.len(), 5);
}

/// Scenario 23: Pages follow each other without gap or repetition, whatever their size, both ways.
pub(crate) async fn pages_follow_each_other(queue: Queue) {
    let total = 700;
    let adds: Vec<Add> = (0..total)
        .map(|n: i64| Add::new(queue.id(&format!("{n:03}")), "").due_ms(n % 3 * 1_000))
        .collect();
    queue.jobs.add_many(&queue.ty, &adds).await.unwrap();
    for (state, size, reverse) in [
        (None, 1_000, false),
        (None, 33, true),
        (Some(State::Pending), 1, false),
        (Some(State::Pending), 97, true),
        (Some(State::Pending), 1_000, false),
    ] {
        let query = Query {
            state,
            reverse,
            ..Query::default()
        };
        let mut listed = Vec::new();
        let mut cursor: Option<Cursor> = None;
        loop {
            let page = (queue.jobs.list(&queue.ty, &query, cursor.as_ref(), size)).await;
            let page = page.unwrap();
            assert!(page.jobs.len() <= size);
            listed.extend(
                page.jobs
                    .into_iter()
                    .map(|job| (job.info.due_ms, job.info.id)),
            );
            // A cursor can be passed as a token.
            cursor = page
                .cursor
                .map(|cursor| Cursor::from_bytes(cursor.as_bytes().to_vec()));
            if cursor.is_none() {
                break;
            }
        }
        let distinct: BTreeSet<_> = listed.iter().cloned().collect();
        assert_eq!((listed.len(), distinct.len()), (700, 700));
        if reverse {
            listed.reverse();
        }
        if state.is_none() {
            assert!(listed.is_sorted_by_key(|(_, id)| id.clone()));
        }
    }
    let range = Query {
        from: Some(queue.id("100")),
        to: Some(queue.id("200")),
        ..Query::default()
    };
    let page = queue
        .jobs
        .list(&queue.ty, &range, None, 1_000)
        .await
        .unwrap();
    assert_eq!(page.jobs.len(), 100);
    assert_eq!(page.jobs[0].info.id, queue.id("100"));
    let both = Query {
        state: Some(State::Pending),
        ..range
    };
    let refused = queue.jobs.list(&queue.ty, &both, None, 1).await;
    assert!(matches!(refused, Err(Error::Invalid(_))));
}

/// Scenario 23: Listing and counting do not depend on the number of jobs, and continue where they
/// were while jobs come and go. Ten million jobs would take too long for a test, and the time of a
/// page depends on the machine. Its bound is the number of sequential reads, which a store with
/// reads of up to a millisecond on a paused clock measures exactly: no more with many jobs than
/// with few.
pub(crate) async fn listings_are_fast(queue: Queue) {
    let (few, many) = (1_000, if queue.exact() { 100_000 } else { 10_000 });
    for (from, to) in [(0, few), (few, many)] {
        let adds: Vec<Add> = (from..to)
            .map(|n: i64| Add::new(queue.id(&format!("{n:06}")), "").due_ms(n % 2))
            .collect();
        queue.jobs.add_many(&queue.ty, &adds).await.unwrap();
        let claimed = queue.jobs.accept(&queue.ty, &queue.me, 300).await.unwrap();
        let ends: Vec<_> = (claimed.jobs.into_iter().take(150))
            .map(|accepted| (accepted.job, Finish::done()))
            .collect();
        for ended in queue.jobs.finish_many(&ends).await.unwrap() {
            assert!(!ended.unwrap().again);
        }
        if queue.paused() {
            reads_are_fast(&queue).await;
        }
    }
    let (mut seen, mut cursor) = (BTreeMap::<JobId, u32>::new(), None);
    let query = Query::default();
    for nth in 0.. {
        let page = queue
            .jobs
            .list(&queue.ty, &query, cursor.as_ref(), 1_000)
            .await;
        let page = page.unwrap();
        for job in page.jobs {
            *seen.entry(job.info.id).or_default() += 1;
        }
        // The process that listed is gone, jobs were removed, and there are new ones.
        cursor = (page.cursor).map(|cursor| Cursor::from_bytes(cursor.as_bytes().to_vec()));
        if cursor.is_none() {
            break;
        }
        queue.add(&format!("{:06}-new", nth * 900), "", 0).await;
        let gone = queue.id(&format!("{:06}", (nth + 1) * 997));
        queue.jobs.remove(&queue.ty, &gone).await.unwrap();
    }
    assert!(seen.values().all(|times| *times == 1), "no job twice");
    let stayed = |n: &i64| n % 997 != 0;
    for n in (0..many).filter(stayed) {
        assert!(seen.contains_key(&queue.id(&format!("{n:06}"))), "{n}");
    }
    queue.check().await;
}

/// Reads pages, counts and single jobs through a slow store.
async fn reads_are_fast(queue: &Queue) {
    const READ: Duration = Duration::from_millis(1);
    let (slow, _) = queue.store.with_faults(Faults {
        seed: 1,
        delay: 1.0,
        delay_max: READ,
        ..Faults::default()
    });
    let (jobs, ty) = (
        Jobs::new(slow, queue.jobs.clock().clone(), Entropy::seeded(1)),
        &queue.ty,
    );
    let quick = async |what: &str, reads: u32, look: Pin<Box<dyn Future<Output = ()>>>| {
        let began = Instant::now();
        look.await;
        let took = began.elapsed();
        assert!(took <= READ * (reads + 2), "{what} took {took:?}");
    };
    let states = [State::Pending, State::Running, State::Finished].map(Some);
    for state in states.into_iter().chain([None]) {
        let query = Query {
            state,
            ..Query::default()
        };
        for limit in [1, 100] {
            let (jobs, ty, query) = (jobs.clone(), ty.clone(), query.clone());
            let look = async move {
                let page = jobs.list(&ty, &query, None, limit).await.unwrap();
                assert_eq!(page.jobs.len(), limit);
            };
            quick("a page", 2, Box::pin(look)).await;
        }
    }
    let (counting, of) = (jobs.clone(), ty.clone());
    let counts = async move { assert!(counting.counts(&of).await.unwrap().finished >= 150) };
    quick("counting", 4, Box::pin(counts)).await;
    let (waiting, of) = (jobs.clone(), ty.clone());
    let now_ms = jobs.clock().now_ms();
    let backlog = async move {
        let backlog = waiting.backlog(&of, now_ms, 100).await.unwrap();
        assert!(backlog.due_at_least);
    };
    quick("the backlog", 4, Box::pin(backlog)).await;
}

/// A page with data holds no more than one transaction can read, and the next continues.
pub(crate) async fn pages_with_data_are_bounded(queue: Queue) {
    let size = 3 * 1024 * 1024;
    for n in 0..6 {
        let add = Add::new(queue.id(&format!("{n}")), vec![n; size]);
        queue.jobs.add(&queue.ty, add).await.unwrap();
    }
    for (state, reverse) in [(None, false), (None, true), (Some(State::Pending), false)] {
        let query = Query {
            state,
            reverse,
            data: true,
            ..Query::default()
        };
        let (mut seen, mut cursor) = (BTreeSet::new(), None);
        loop {
            let page = queue
                .jobs
                .list(&queue.ty, &query, cursor.as_ref(), 1_000)
                .await;
            let page = page.unwrap();
            assert!((1..=2).contains(&page.jobs.len()), "{}", page.jobs.len());
            for job in page.jobs {
                let data = job.data.unwrap();
                assert!(data.len() == size && job.info.id.as_bytes()[0] == b'0' + data[0]);
                assert!(seen.insert(job.info.id));
            }
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen.len(), 6);
    }
}

/// Counters and the backlog.
pub(crate) async fn counts_and_backlog(queue: Queue) {
    let now_ms = queue.jobs.clock().now_ms();
    for n in 0..40 {
        queue.add(&format!("ready {n}"), "", 0).await;
        queue.add(&format!("due {n}"), "", now_ms - 5_000 + n).await;
        queue
            .add(&format!("future {n}"), "", now_ms + 1_000_000 + n)
            .await;
    }
    let backlog = queue.jobs.backlog(&queue.ty, now_ms, 10_000).await.unwrap();
    assert_eq!((backlog.due, backlog.future), (80, 40));
    assert!(!backlog.due_at_least);
    assert_eq!(backlog.oldest_due_ms, Some(now_ms - 5_000));
    let some = queue.jobs.backlog(&queue.ty, now_ms, 32).await.unwrap();
    assert!(some.due_at_least && some.due < 80);
    // More than are read at once.
    for n in 0..300 {
        queue
            .add(&format!("far {n}"), "", now_ms + 2_000_000 + n)
            .await;
    }
    let backlog = queue.jobs.backlog(&queue.ty, now_ms, 10_000).await.unwrap();
    assert_eq!((backlog.due, backlog.future), (80, 340));
    assert!(!backlog.due_at_least);
    assert_eq!(backlog.oldest_due_ms, Some(now_ms - 5_000));
    let some = queue.jobs.backlog(&queue.ty, now_ms, 32).await.unwrap();
    assert!(some.due_at_least && some.due < 80);
    let claimed = queue.jobs.accept(&queue.ty, &queue.me, 30).await.unwrap();
    for accepted in &claimed.jobs[..10] {
        let held = queue.jobs.finish(&accepted.job, Finish::done()).await;
        assert!(!held.unwrap().again);
    }
    let held = queue
        .jobs
        .finish(&claimed.jobs[10].job, Finish::again(0))
        .await;
    assert!(held.unwrap().again);
    queue
        .jobs
        .remove(&queue.ty, &claimed.jobs[0].job.id)
        .await
        .unwrap();
    let counts = queue.counts().await;
    assert_eq!(
        (counts.pending, counts.running, counts.finished),
        (391, 19, 9)
    );
    assert_eq!((counts.created_total, counts.accepted_total), (420, 30));
    assert_eq!((counts.finished_total, counts.again_total), (10, 1));
    assert_eq!((counts.removed_total, counts.revived_total), (1, 0));
    let running = Query {
        state: Some(State::Running),
        ..Query::default()
    };
    let page = queue
        .jobs
        .list(&queue.ty, &running, None, 100)
        .await
        .unwrap();
    assert_eq!(page.jobs.len(), 19);
    for job in &page.jobs {
        assert!(job.beat_ms.unwrap() >= now_ms);
        assert_eq!(job.info.last.as_ref().unwrap().holder, queue.me);
    }
    queue.check().await;
}

/// One transaction claims a limited number of jobs, however many are requested.
pub(crate) async fn claims_are_bounded(mut queue: Queue) {
    let adds: Vec<Add> = (0..600)
        .map(|n| Add::new(queue.id(&format!("{n}")), ""))
        .collect();
    queue.jobs.add_many(&queue.ty, &adds).await.unwrap();
    let claimed = queue
        .jobs
        .accept(&queue.ty, &queue.me, usize::MAX)
        .await
        .unwrap();
    assert_eq!(claimed.jobs.len(), 500);
    let acceptor = queue.acceptor();
    let wait = queue.timeout() * 50;
    let (one, other) = tokio::join!(
        acceptor.accept(usize::MAX, wait),
        acceptor.accept(usize::MAX, queue.timeout()),
    );
    assert_eq!(one.unwrap().len() + other.unwrap().len(), 100);
    queue.stop().await;
    queue.check().await;
}

/// Concurrent operations on different jobs share no row: none is written by every call.
pub(crate) async fn no_row_is_written_by_every_operation(queue: Queue) {
    let mut written: [Vec<BTreeSet<Bytes>>; 4] = Default::default();
    let mut rows = all_rows(&queue).await;
    for number in 0..40 {
        queue.add(&format!("job-{number}"), "", 0).await;
        written[0].push(changed(&queue, &mut rows).await);
    }
    for _ in 0..40 {
        let job = queue.accept_one().await;
        written[1].push(changed(&queue, &mut rows).await);
        let _ = queue.jobs.update(&job, Some("more".into())).await.unwrap();
        written[2].push(changed(&queue, &mut rows).await);
        let _ = queue.jobs.finish(&job, Finish::done()).await.unwrap();
        written[3].push(changed(&queue, &mut rows).await);
    }
    for (what, calls) in ["add", "accept", "update", "finish"].iter().zip(written) {
        let all = calls.into_iter().reduce(|all, call| &all & &call).unwrap();
        assert!(all.is_empty(), "every {what} writes {all:?}");
    }
}

async fn all_rows(queue: &Queue) -> BTreeMap<Bytes, Bytes> {
    let rows = (queue.store)
        .transact("test", |tx: Transaction| async move {
            let rows = (tx.snapshot()).get_range(KeyRange::all(), RangeOptions::default());
            rows.collect().await
        })
        .await
        .unwrap();
    rows.into_iter().map(|row| (row.key, row.value)).collect()
}

/// The rows written since the last call.
async fn changed(queue: &Queue, rows: &mut BTreeMap<Bytes, Bytes>) -> BTreeSet<Bytes> {
    let before = std::mem::replace(rows, all_rows(queue).await);
    let keys = before.keys().chain(rows.keys());
    let changed = keys.filter(|key| before.get(*key) != rows.get(*key));
    changed.cloned().collect()
}
