//! Workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobs::{
    Error, Failure, Finish, Outcome, Query, Retry, State, Task, TypeConfig, Worker, WorkerOptions,
    encode,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Queue;

fn options() -> WorkerOptions {
    WorkerOptions {
        concurrency: 4,
        retry: Retry {
            retries_max: Some(2),
            delay: Duration::from_millis(20),
            delay_max: Duration::from_millis(50),
            jitter: 0.5,
        },
        drain: Duration::from_secs(5),
    }
}

/// A worker whose timeout even slow claims do not reach: these tests run no maintenance, which would recover the jobs that it
/// loses.
async fn worker(queue: &Queue) -> Worker {
    let (jobs, ty, me) = (queue.jobs.clone(), queue.ty.clone(), queue.me.clone());
    jobs.set_type(&ty, TypeConfig::new(60_000)).await.unwrap();
    Worker::new(jobs, ty, me, options())
}

async fn add(queue: &Queue, id: &str, data: &str) {
    let data = encode(&data).unwrap();
    queue.add(id, std::str::from_utf8(&data).unwrap(), 0).await;
}

async fn until_over(queue: &Queue, id: &str) -> jobs::JobInfo {
    loop {
        let info = queue.jobs.info(&queue.ty, &queue.id(id)).await.unwrap();
        match info {
            Some(info) if info.state.is_over() => return info,
            _ => sleep(Duration::from_millis(5)).await,
        }
    }
}

fn outcome(info: &jobs::JobInfo) -> (State, Outcome, u32) {
    let end = info.last.as_ref().and_then(|last| last.end.clone());
    (info.state, end.unwrap().outcome, info.attempts)
}

/// Failed jobs are retried up to the limit; dead ones and those with unreadable data are not.
pub(crate) async fn failures_are_retried(queue: Queue) {
    for what in ["well", "late", "never", "dead", "panic"] {
        add(&queue, what, what).await;
    }
    queue.add("unreadable", "{", 0).await;
    let stop = CancellationToken::new();
    let handler = |task: Task<String>| async move {
        match &*task.data {
            "late" if task.failures >= 2 => Ok(Finish::done()),
            "late" | "never" => Err("x".parse::<u32>().unwrap_err().into()),
            "dead" => Err(Failure::Dead("it is dead".into())),
            "panic" if task.failures == 0 => panic!("as the test wants it"),
            _ => Ok(Finish::done()),
        }
    };
    let working = tokio::spawn(worker(&queue).await.run(stop.clone(), handler));
    for (id, expected) in [
        ("well", (State::Finished, Outcome::Done, 1)),
        ("late", (State::Finished, Outcome::Done, 3)),
        ("never", (State::Dead, Outcome::Failed, 3)),
        ("dead", (State::Dead, Outcome::Failed, 1)),
        ("panic", (State::Finished, Outcome::Done, 2)),
        ("unreadable", (State::Dead, Outcome::Failed, 1)),
    ] {
        // A claim whose answer was lost is a run, but not a failed one.
        let seen = outcome(&until_over(&queue, id).await);
        assert_eq!((seen.0, seen.1), (expected.0, expected.1), "{id}");
        assert!(seen.2 >= expected.2, "{id}: {seen:?}");
    }
    stop.cancel();
    working.await.unwrap();
    queue.check().await;
}

/// Dead letters are kept and counted however long finished jobs are, until they are retried or removed.
pub(crate) async fn dead_letters_are_retried(queue: Queue) {
    let (jobs, ty) = (&queue.jobs, &queue.ty);
    let config = TypeConfig {
        retention_ms: Some(0),
        ..queue.config()
    };
    jobs.set_type(ty, config).await.unwrap();
    let ids = (0..250).map(|n| n.to_string());
    for id in ids.clone() {
        queue.add(&id, "kept", 0).await;
    }
    let mut left = 250;
    while left > 0 {
        for accepted in jobs.accept(ty, &queue.me, 100).await.unwrap().jobs {
            let reason = if accepted.job.id.to_string().len() < 3 {
                "short"
            } else {
                "long"
            };
            let held = jobs.finish(&accepted.job, Finish::dead(reason)).await;
            assert!(!held.unwrap().again);
            left -= 1;
        }
    }
    queue.check().await;
    let counts = jobs.counts(ty).await.unwrap();
    assert_eq!((counts.dead, counts.dead_total), (250, 250));
    let short = |info: &jobs::JobInfo| {
        let end = info.last.as_ref().and_then(|last| last.end.as_ref());
        end.is_some_and(|end| end.reason.as_deref() == Some("short"))
    };
    assert_eq!(jobs.retry_all(ty, short).await.unwrap(), 100);
    assert_eq!(queue.state("7").await, Some(State::Pending));
    assert_eq!(queue.data("7").await, "kept");
    assert!(!jobs.retry(ty, &queue.id("7")).await.unwrap());
    assert!(jobs.retry(ty, &queue.id("123")).await.unwrap());
    jobs.remove(ty, &queue.id("124")).await.unwrap();
    let absent = jobs.retry(ty, &queue.id("124")).await;
    assert!(matches!(absent, Err(Error::NotFound)), "{absent:?}");
    assert_eq!(jobs.retry_all(ty, |_| true).await.unwrap(), 148);
    let counts = jobs.counts(ty).await.unwrap();
    assert_eq!((counts.pending, counts.dead), (249, 0));
    assert_eq!((counts.revived_total, counts.removed_total), (249, 1));
    let dead = Query {
        state: Some(State::Dead),
        ..Query::default()
    };
    assert_eq!(jobs.list(ty, &dead, None, 10).await.unwrap().jobs, []);
    queue.check().await;
}

/// A worker that is to stop takes no more jobs, and ends those that it has.
pub(crate) async fn runs_are_drained(queue: Queue) {
    for n in 0..8 {
        add(&queue, &n.to_string(), "").await;
    }
    let (begun, stop) = (Arc::new(AtomicU32::new(0)), CancellationToken::new());
    let (counter, go) = (Arc::clone(&begun), CancellationToken::new());
    let gone = go.clone();
    let handler = move |_: Task<String>| {
        counter.fetch_add(1, Ordering::Relaxed);
        let go = gone.clone();
        async move {
            go.cancelled().await;
            Ok(Finish::done())
        }
    };
    let working = tokio::spawn(worker(&queue).await.run(stop.clone(), handler));
    while begun.load(Ordering::Relaxed) < 4 {
        sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    go.cancel();
    working.await.unwrap();
    let counts = queue.jobs.counts(&queue.ty).await.unwrap();
    assert_eq!((counts.finished, counts.running), (4, 0), "{counts:?}");
    queue.check().await;
}

/// The handler of a removed job is dropped.
pub(crate) async fn removed_jobs_stop(queue: Queue) {
    struct Dropped(CancellationToken);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    add(&queue, "j", "").await;
    let (begun, dropped, stop) = (
        CancellationToken::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    let (begins, drops) = (begun.clone(), dropped.clone());
    let handler = move |_: Task<String>| {
        let held = Dropped(drops.clone());
        begins.cancel();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(Finish::done())
        }
    };
    let working = tokio::spawn(worker(&queue).await.run(stop.clone(), handler));
    begun.cancelled().await;
    (queue.jobs.remove(&queue.ty, &queue.id("j")))
        .await
        .unwrap();
    dropped.cancelled().await;
    stop.cancel();
    working.await.unwrap();
    queue.check().await;
}
