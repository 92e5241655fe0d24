//! Signals merge to the earliest time, and never disturb a run.

use jobs::{Add, Added, Finish, Revive, Signal, State};

use crate::support::Queue;

/// What a signal to run `name` at `due_ms` does.
async fn signal(queue: &Queue, name: &str, due_ms: i64) -> Added {
    let signal = Signal::new(queue.id(name)).due_ms(due_ms);
    queue.jobs.signal(&queue.ty, signal).await.unwrap()
}

pub(crate) async fn signals_are_merged(queue: Queue) {
    let later = queue.jobs.clock().now_ms() + 3_600_000;
    assert_eq!(signal(&queue, "a", 0).await, Added::Ignored);
    assert_eq!(queue.state("a").await, None);
    let add = Add::new(queue.id("a"), "data").due_ms(later);
    queue.jobs.signal(&queue.ty, add.into()).await.unwrap();
    for (due_ms, merged) in [
        (later + 1, later),
        (later - 5, later - 5),
        (later, later - 5),
    ] {
        signal(&queue, "a", due_ms).await;
        assert_eq!(queue.due_ms("a").await, merged);
    }
    assert_eq!(signal(&queue, "a", later).await, Added::Unchanged);
    signal(&queue, "a", -1).await;
    let accepted = queue.accept().await.unwrap();
    assert_eq!(&*accepted.data, b"data");
    let asked_ms = accepted.asked_ms.expect("there was a signal");
    assert!(asked_ms >= accepted.created_ms && asked_ms <= queue.jobs.clock().now_ms());
    let _ = queue
        .jobs
        .finish(&accepted.job, Finish::done())
        .await
        .unwrap();
    assert_eq!(signal(&queue, "a", later).await, Added::Revived);
    assert_eq!(queue.due_ms("a").await, later);
    signal(&queue, "a", 0).await;
    let job = queue.accept_one().await;
    let _ = queue.jobs.finish(&job, Finish::dead("no")).await.unwrap();
    assert_eq!(signal(&queue, "a", 0).await, Added::Ignored);
    assert_eq!(queue.state("a").await, Some(State::Dead));
    queue.check().await;
}

pub(crate) async fn signals_do_not_disturb_a_run(mut queue: Queue) {
    let acceptor = queue.acceptor();
    let mut held = Vec::new();
    for name in ["a", "b"] {
        queue.add(name, "data", 0).await;
        let accepted = acceptor.accept(1, queue.timeout() * 20).await.unwrap();
        held.extend(accepted.into_iter().map(|accepted| accepted.job));
    }
    let [job, other] = &*held else {
        panic!("two jobs are held");
    };
    let (jobs, later) = (queue.jobs.clone(), queue.jobs.clock().now_ms() + 3_600_000);
    signal(&queue, "a", later).await;
    assert!(!jobs.update(job, None).await.unwrap().again);
    // The acceptor takes notes to its runs in one read, so it has told this one, too, if there was a note.
    jobs.resubmit(&queue.ty, &other.id, None, None)
        .await
        .unwrap();
    let told = async || other.again().is_cancelled();
    // If its watch is lost, the acceptor looks after at most a minute.
    queue.until(40, "the other holder is told", told).await;
    assert!(!job.again().is_cancelled());
    let data = Some("newer".into());
    (jobs.resubmit(&queue.ty, &job.id, Some(later), data).await).unwrap();
    assert!(jobs.update(job, None).await.unwrap().again);
    signal(&queue, "a", later - 7).await;
    let ended = jobs.finish(job, Finish::done()).await.unwrap();
    assert!(ended.again && queue.due_ms("a").await == later - 7);
    assert_eq!(&*queue.data("a").await, b"newer");
    queue.stop().await;
    queue.check().await;
}

pub(crate) async fn signals_do_not_shorten_a_back_off(queue: Queue) {
    queue.add("a", "", 0).await;
    let job = queue.accept_one().await;
    let later = queue.jobs.clock().now_ms() + 3_600_000;
    signal(&queue, "a", 0).await;
    let finish = Finish {
        again_ms: Some(later),
        ..Finish::failed("unreachable")
    };
    assert!(queue.jobs.finish(&job, finish).await.unwrap().again);
    assert_eq!(queue.due_ms("a").await, later);
    signal(&queue, "a", 0).await;
    let info = queue.jobs.info(&queue.ty, &queue.id("a")).await.unwrap();
    let info = info.expect("it is there");
    assert_eq!((info.due_ms, info.stalls), (later, 1));
    assert!(info.asked_ms.is_some(), "the signal is not covered yet");
    queue.add("a", "", 0).await;
    assert!(queue.accept().await.unwrap().asked_ms.is_some());
}

/// Sends two signals in one call, and repeats it, as if the caller had not learned of its success. They are due 10 and 30 ms
/// before the returned time, when a failed run is retried; a running job is to run again 20 ms before it.
async fn revive(queue: &Queue, how: Revive, once: bool) -> (i64, Vec<Added>) {
    let (jobs, ty) = (&queue.jobs, &queue.ty);
    let later = jobs.clock().now_ms() + 3_600_000;
    let signal = |due_ms| Signal {
        rerun_ms: later - 20,
        ..Signal::new(queue.id("a")).due_ms(due_ms).revive(how)
    };
    let (op, signals) = (&jobs.op(), &[signal(later - 10), signal(later - 30)]);
    let mut sent = Vec::new();
    for _ in 0..2 {
        let send = jobs.store().transact("send", |tx| async move {
            if once {
                jobs.signal_many_once_in(&tx, op, ty, signals).await
            } else {
                jobs.signal_many_in(&tx, op, ty, signals).await
            }
        });
        sent.extend(send.await.unwrap());
    }
    (later, sent)
}

pub(crate) async fn signals_revive_dead_jobs(queue: Queue) {
    let jobs = &queue.jobs;
    for (once, again) in [(false, Added::Unchanged), (true, Added::Repeated)] {
        for how in [Revive::None, Revive::Dead, Revive::Failed] {
            queue.add("a", "data", 0).await;
            let job = queue.accept_one().await;
            let _ = jobs.finish(&job, Finish::dead("no")).await.unwrap();
            let (later, sent) = revive(&queue, how, once).await;
            if how == Revive::None {
                assert_eq!(sent, [Added::Ignored; 4]);
                continue;
            }
            assert_eq!(sent[2..], [again; 2]);
            let info = jobs.info(&queue.ty, &queue.id("a")).await.unwrap();
            let info = info.expect("it is there");
            assert_eq!((info.due_ms, info.stalls), (later - 30, 0));
            assert_eq!(&*queue.data("a").await, b"data");
        }
    }
    let absent = Signal::new(queue.id("b")).revive(Revive::Failed);
    let ignored = jobs.signal(&queue.ty, absent).await.unwrap();
    assert_eq!(ignored, Added::Ignored);
    queue.check().await;
}

pub(crate) async fn signals_end_back_offs(queue: Queue) {
    let jobs = &queue.jobs;
    for once in [false, true] {
        for how in [Revive::Dead, Revive::Failed] {
            let revives = how == Revive::Failed;
            queue.add("a", "data", 0).await;
            let job = queue.accept_one().await;
            let (later, _) = revive(&queue, how, once).await;
            let failed = || Finish {
                again_ms: Some(later),
                ..Finish::failed("unreachable")
            };
            let _ = jobs.finish(&job, failed()).await.unwrap();
            let due_ms = if revives { later - 20 } else { later };
            assert_eq!(queue.due_ms("a").await, due_ms);
            queue.add("a", "data", 0).await;
            let job = queue.accept_one().await;
            let _ = jobs.finish(&job, failed()).await.unwrap();
            let (signalled, _) = revive(&queue, how, once).await;
            let due_ms = if revives { signalled - 30 } else { later };
            assert_eq!(queue.due_ms("a").await, due_ms.min(later));
        }
    }
    queue.check().await;
}

/// A feed saves its position together with its signals, and every signal is followed by a run.
pub(crate) async fn signals_join_a_transaction(queue: Queue) {
    let ids: Vec<_> = (0..700).map(|n| queue.id(&format!("{n}"))).collect();
    let adds = ids.iter().map(|id| Add::new(id.clone(), "x"));
    let (all, jobs, ty) = (
        &adds.map(Signal::from).collect::<Vec<_>>(),
        &queue.jobs,
        &queue.ty,
    );
    let added = jobs.signal_many(ty, all).await.unwrap();
    assert_eq!(added.len(), 700);
    for round in 1..=3_u32 {
        let mut runs = 0;
        while runs < 700 {
            let claimed = jobs.accept(ty, &queue.me, 100).await.unwrap();
            // Some are signalled during their runs, the others after.
            let during = claimed.jobs.len() / 2;
            let (op, signals) = (&jobs.op(), claimed.jobs.iter().take(during));
            let signals = &(signals.map(|one| Signal::new(one.job.id.clone()))).collect::<Vec<_>>();
            let fed = jobs.store().transact("feed", |tx| async move {
                tx.set(b"position", &round.to_be_bytes());
                jobs.signal_many_in(&tx, op, ty, signals).await
            });
            fed.await.unwrap();
            runs += claimed.jobs.len();
            let ends = claimed
                .jobs
                .iter()
                .map(|one| (one.job.clone(), Finish::again(i64::MAX)));
            for held in jobs.finish_many(&ends.collect::<Vec<_>>()).await.unwrap() {
                assert!(held.unwrap().again);
            }
        }
        let signals: Vec<_> = ids.iter().cloned().map(Signal::new).collect();
        jobs.signal_many(ty, &signals).await.unwrap();
        let backlog = jobs
            .backlog(ty, jobs.clock().now_ms(), 1_000)
            .await
            .unwrap();
        assert_eq!(backlog.due, 700, "round {round}");
    }
    queue.check().await;
}
