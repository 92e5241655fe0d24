//! The tests of `couch_jobs` for single operations, under its numbers; each case says where the queue's
//! answer differs from the original's.

use std::collections::BTreeSet;

use jobs::{
    Add, Added, DATA_BYTES_MAX, Error, Finish, JobType, Query, Retention, State, TypeConfig,
};
use store::Transaction;

use crate::support::Queue;

/// Scenario 1: Types are names here, so the second type is a name, too, not a number.
pub(crate) async fn add_and_remove_pending(queue: Queue) {
    queue.add("j1", "", 0).await;
    assert_eq!(queue.state("j1").await, Some(State::Pending));
    queue.jobs.remove(&queue.ty, &queue.id("j1")).await.unwrap();
    assert_eq!(queue.state("j1").await, None);

    let (jobs, other) = (&queue.jobs, &JobType::new("42").unwrap());
    jobs.set_type(other, TypeConfig::new(3_000)).await.unwrap();
    let (op, id) = (jobs.op(), &queue.id("j2"));
    (jobs.store())
        .transact("test", |tx: Transaction| async move {
            jobs.add_in(&tx, &op, other, Add::new(id.clone(), "data"))
                .await
        })
        .await
        .unwrap();
    let (info, data) = jobs.get(other, id).await.unwrap().unwrap();
    assert_eq!((info.state, &*data), (State::Pending, &b"data"[..]));
    jobs.remove(other, id).await.unwrap();
    assert_eq!(jobs.get(other, id).await.unwrap(), None);
    queue.check().await;
}

/// Scenario 2: Data is any bytes here, so the limit is its size, and not whether it is JSON.
pub(crate) async fn add_and_remove_errors(queue: Queue) {
    let (jobs, ty, id) = (&queue.jobs, &queue.ty, queue.id("j"));
    let missing = jobs.remove(ty, &id).await;
    assert!(matches!(missing, Err(Error::NotFound)), "{missing:?}");
    let too_long = Add::new(id.clone(), vec![0; DATA_BYTES_MAX + 1]);
    let refused = jobs.add(ty, too_long).await;
    assert!(
        matches!(refused, Err(Error::TooLarge { .. })),
        "{refused:?}"
    );
    let unknown = JobType::new("unknown").unwrap();
    let refused = jobs.add(&unknown, Add::new(id.clone(), "")).await;
    assert!(matches!(refused, Err(Error::NoTypeTimeout(ty)) if ty == unknown));
    queue.add("j", "1", 0).await;
    queue.add("j", "2", 0).await;
    jobs.remove(ty, &id).await.unwrap();
    assert_eq!(queue.state("j").await, None);
    queue.check().await;
}

/// Scenario 3: An add with the same time and data is unchanged.
pub(crate) async fn add_again_unchanged_writes_nothing(queue: Queue) {
    queue.add("j", "data", 0).await;
    let (jobs, ty, op) = (&queue.jobs, &queue.ty, queue.jobs.op());
    let add = &Add::new(queue.id("j"), "data");
    let stamp = (jobs.store())
        .transact("test", |tx: Transaction| async move {
            let added = jobs.add_in(&tx, &op, ty, add.clone()).await?;
            assert_eq!(added, Added::Unchanged);
            Ok::<_, Error>(tx.commit_stamp())
        })
        .await
        .unwrap();
    assert_eq!(stamp.get(), None, "nothing was written");
}

/// 4.
pub(crate) async fn get_data_and_state(queue: Queue) {
    queue.add("j", "data", 0).await;
    assert_eq!(queue.data("j").await, "data");
    assert_eq!(queue.state("j").await, Some(State::Pending));
    queue.jobs.remove(&queue.ty, &queue.id("j")).await.unwrap();
    assert_eq!(queue.state("j").await, None);
    assert_eq!(
        queue.jobs.get(&queue.ty, &queue.id("j")).await.unwrap(),
        None
    );
}

/// Scenario 5: Times are milliseconds.
pub(crate) async fn add_again_moves_in_time(queue: Queue) {
    queue.add("j", "", 15).await;
    assert_eq!(queue.due_ms("j").await, 15);
    queue.add("j", "", 16).await;
    assert_eq!(queue.due_ms("j").await, 16);
    queue.check().await;
    let job = queue.accept_one().await;
    queue.add("j", "", 17).await;
    let info = queue.jobs.info(&queue.ty, &job.id).await.unwrap().unwrap();
    assert_eq!((info.state, info.next_due_ms), (State::Running, Some(17)));
    let held = queue.jobs.finish(&job, Finish::done()).await.unwrap();
    assert!(held.again);
    assert_eq!(queue.state("j").await, Some(State::Pending));
    assert_eq!(queue.due_ms("j").await, 17);
    let job = queue.accept_one().await;
    let held = queue.jobs.finish(&job, Finish::done()).await.unwrap();
    assert!(!held.again);
    assert_eq!(queue.state("j").await, Some(State::Finished));
    assert_eq!(queue.due_ms("j").await, 17);
    queue.add("j", "", 18).await;
    assert_eq!(queue.state("j").await, Some(State::Pending));
    assert_eq!(queue.due_ms("j").await, 18);
    queue.check().await;
}

/// 17.
pub(crate) async fn accept_and_finish(queue: Queue) {
    queue.add("j", "1", 0).await;
    let accepted = queue.accept().await.unwrap();
    assert_eq!(accepted.data, "1");
    assert_eq!(queue.state("j").await, Some(State::Running));
    let too_long = Finish::done().data(vec![0; DATA_BYTES_MAX + 1]);
    let refused = queue.jobs.finish(&accepted.job, too_long).await;
    assert!(
        matches!(refused, Err(Error::TooLarge { .. })),
        "{refused:?}"
    );
    assert_eq!(queue.state("j").await, Some(State::Running));
    let (jobs, op) = (&queue.jobs, queue.jobs.op());
    let job = &accepted.job;
    (jobs.store())
        .transact("test", |tx: Transaction| async move {
            jobs.finish_in(&tx, &op, job, Finish::done().data("2"))
                .await
        })
        .await
        .map(|held| assert!(!held.again))
        .unwrap();
    assert_eq!(queue.state("j").await, Some(State::Finished));
    assert_eq!(queue.data("j").await, "2");
    queue.check().await;
}

/// 19.
pub(crate) async fn update_keeps_and_replaces_data(queue: Queue) {
    queue.add("j", "0", 0).await;
    let job = queue.accept_one().await;
    let update = async |data: Option<&'static str>| {
        let held = queue.jobs.update(&job, data.map(Into::into)).await.unwrap();
        assert!(!held.again);
    };
    update(Some("1")).await;
    assert_eq!(queue.data("j").await, "1");
    update(None).await;
    assert_eq!(queue.data("j").await, "1");
    update(Some("2")).await;
    assert_eq!(queue.data("j").await, "2");
    let too_long = vec![0; DATA_BYTES_MAX + 1];
    let refused = queue.jobs.update(&job, Some(too_long.into())).await;
    assert!(
        matches!(refused, Err(Error::TooLarge { .. })),
        "{refused:?}"
    );
    assert_eq!(queue.data("j").await, "2");
    let finish = Finish::done().data("3");
    assert!(!queue.jobs.finish(&job, finish).await.unwrap().again);
    assert_eq!(queue.data("j").await, "3");
    assert_eq!(queue.state("j").await, Some(State::Finished));
    queue.check().await;
}

/// 20.
pub(crate) async fn run_again_then_finish(queue: Queue) {
    queue.add("j", "", 0).await;
    let job = queue.accept_one().await;
    let held = queue.jobs.run_again(&job, 6, None).await.unwrap();
    assert!(held.again);
    assert!(queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
    assert_eq!(queue.state("j").await, Some(State::Pending));
    assert_eq!(queue.due_ms("j").await, 6);
    let job = queue.accept_one().await;
    assert!(!queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
    assert_eq!(queue.state("j").await, Some(State::Finished));
    queue.check().await;
}

/// 21.
pub(crate) async fn resubmit_finished_with_data(queue: Queue) {
    queue.add("j", "old", 0).await;
    let job = queue.accept_one().await;
    assert!(!queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
    let data = Some("new".into());
    (queue.jobs)
        .resubmit(&queue.ty, &job.id, Some(6), data)
        .await
        .unwrap();
    let accepted = queue.accept().await.unwrap();
    assert_eq!((accepted.due_ms, accepted.data), (6, "new".into()));
}

/// Scenario 22: The original drops the new data; here the next run gets it.
pub(crate) async fn resubmit_running_delivers_data_next(queue: Queue) {
    queue.add("j", "old", 0).await;
    let job = queue.accept_one().await;
    let data = Some("new".into());
    (queue.jobs)
        .resubmit(&queue.ty, &job.id, Some(6), data)
        .await
        .unwrap();
    assert_eq!(queue.data("j").await, "old", "this run keeps its data");
    assert!(queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
    let accepted = queue.accept().await.unwrap();
    assert_eq!((accepted.due_ms, accepted.data), (6, "new".into()));
    queue.check().await;
}

/// 23.
pub(crate) async fn run_again_at_another_time(queue: Queue) {
    queue.add("j", "", 7).await;
    let job = queue.accept_one().await;
    assert!(
        queue
            .jobs
            .finish(&job, Finish::again(9))
            .await
            .unwrap()
            .again
    );
    assert_eq!(queue.state("j").await, Some(State::Pending));
    assert_eq!(queue.due_ms("j").await, 9);
}

/// 24.
pub(crate) async fn add_pending_replaces_data(queue: Queue) {
    queue.add("j", "old", 0).await;
    queue.add("j", "new", 6).await;
    assert_eq!(queue.accept().await.unwrap().data, "new");
}

/// 25.
pub(crate) async fn add_finished_replaces_data(queue: Queue) {
    queue.add("j", "old", 0).await;
    let job = queue.accept_one().await;
    assert!(!queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
    queue.add("j", "new", 6).await;
    assert_eq!(queue.accept().await.unwrap().data, "new");
    queue.check().await;
}

/// Scenario 26: The original drops the new data; here the next run gets it.
pub(crate) async fn add_running_delivers_data_next(queue: Queue) {
    queue.add("j", "old", 0).await;
    let job = queue.accept_one().await;
    queue.add("j", "new", 6).await;
    let finish = Finish::done().data("the holder's, which is older");
    assert!(queue.jobs.finish(&job, finish).await.unwrap().again);
    assert_eq!(queue.accept().await.unwrap().data, "new");
    queue.check().await;
}

/// 27, in milliseconds.
pub(crate) async fn accept_up_to_a_horizon(queue: Queue) {
    let now_ms = queue.jobs.clock().now_ms();
    queue.add("late", "", now_ms + 5_000_000).await;
    queue.add("soon", "", now_ms + 3_000_000).await;
    let accept = async |horizon_ms| {
        let claim = (queue.jobs).claim_by(&queue.ty, &queue.me, 1, now_ms + horizon_ms);
        queue.jobs.accept_claim(&claim).await.unwrap()
    };
    let nothing = accept(1_000_000).await;
    assert_eq!(nothing.jobs, []);
    assert_eq!(nothing.next_due_ms, Some(now_ms + 3_000_000));
    assert_eq!(accept(2_999_999).await.jobs, []);
    let soon = accept(3_000_000).await.jobs;
    assert_eq!(soon[0].job.id, queue.id("soon"));
    let late = accept(9_000_000).await.jobs;
    assert_eq!(late[0].job.id, queue.id("late"));
    queue.check().await;
}

/// Scenario 28: There is no mode without a schedule, since ids need not be random: a hash of the id chooses
/// the bucket. Every job is accepted exactly once, whatever the ids.
pub(crate) async fn accept_each_of_many_once(queue: Queue) {
    for n in 0..25 {
        queue.add(&format!("{n:08}"), "", 0).await;
    }
    let mut seen = BTreeSet::new();
    while let Some(accepted) = queue.accept().await {
        assert!(seen.insert(accepted.job.id));
    }
    assert_eq!(seen.len(), 25);
    queue.check().await;
}

/// 35.
pub(crate) async fn list_jobs(queue: Queue) {
    queue.add("a", "1", 0).await;
    queue.add("b", "2", 5).await;
    let list = async |state| {
        let query = Query {
            state,
            data: true,
            ..Query::default()
        };
        let page = queue.jobs.list(&queue.ty, &query, None, 10).await.unwrap();
        assert_eq!(page.cursor, None);
        (page.jobs.into_iter())
            .map(|job| (job.info.id.to_string(), job.info.state, job.data.unwrap()))
            .collect::<Vec<_>>()
    };
    let (a, b) = (("a".to_owned(), "1".into()), ("b".to_owned(), "2".into()));
    let of = |(id, data): &(String, bytes::Bytes), state| (id.clone(), state, data.clone());
    let both = [of(&a, State::Pending), of(&b, State::Pending)];
    assert_eq!(list(None).await, both);
    assert_eq!(list(Some(State::Pending)).await, both);
    let first = queue.accept_one().await;
    let (held, left) = if first.id == queue.id("a") {
        (a, b)
    } else {
        (b, a)
    };
    assert_eq!(
        list(Some(State::Running)).await,
        [of(&held, State::Running)]
    );
    assert_eq!(
        list(Some(State::Pending)).await,
        [of(&left, State::Pending)]
    );
    assert_eq!(list(Some(State::Finished)).await, []);
}

/// Scenario 36: Adding, finishing and the caller's own rows are committed together.
pub(crate) async fn take_part_in_transactions(queue: Queue) {
    let (jobs, ty, op) = (&queue.jobs, &queue.ty, queue.jobs.op());
    let add = &Add::new(queue.id("j"), "data").retention(Retention::Forever);
    (jobs.store())
        .transact("test", |tx: Transaction| async move {
            tx.set(b"document", b"scheduled");
            jobs.add_in(&tx, &op, ty, add.clone()).await
        })
        .await
        .unwrap();
    let job = &queue.accept_one().await;
    let op = jobs.op();
    let held = (jobs.store())
        .transact("test", |tx: Transaction| async move {
            let (_, data) = jobs.get_in(&tx, ty, &job.id).await?.unwrap();
            tx.set(b"document", &data);
            tx.set(b"another document", b"");
            jobs.finish_in(&tx, &op, job, Finish::done()).await
        })
        .await
        .unwrap();
    assert!(!held.again);
    let rows = (queue.store)
        .transact("test", |tx: Transaction| async move {
            Ok::<_, store::Error>((
                tx.get(b"document").await?,
                tx.get(b"another document").await?,
            ))
        })
        .await
        .unwrap();
    assert_eq!(rows, (Some("data".into()), Some("".into())));
    assert_eq!(queue.state("j").await, Some(State::Finished));

    // An error of the caller rolls everything back.
    let op = jobs.op();
    let refused = (jobs.store())
        .transact("test", |tx: Transaction| async move {
            jobs.remove_in(&tx, &op, ty, &job.id).await?;
            Err::<(), _>(Error::Invalid("the caller thinks better of it"))
        })
        .await;
    assert!(matches!(refused, Err(Error::Invalid(_))));
    assert_eq!(queue.state("j").await, Some(State::Finished));
    jobs.remove(ty, &job.id).await.unwrap();
    queue.check().await;
}

/// 34.
pub(crate) async fn remove_running_job(queue: Queue) {
    queue.add("j", "", 0).await;
    let job = queue.accept_one().await;
    queue.jobs.remove(&queue.ty, &job.id).await.unwrap();
    let again = queue.jobs.remove(&queue.ty, &job.id).await;
    assert!(matches!(again, Err(Error::NotFound)), "{again:?}");
    let update = queue.jobs.update(&job, None).await;
    assert!(matches!(update, Err(Error::Halt)), "{update:?}");
    let finish = queue.jobs.finish(&job, Finish::done()).await;
    assert!(matches!(finish, Err(Error::Halt)), "{finish:?}");
    queue.check().await;
}
