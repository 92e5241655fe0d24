//! What happens in time and under load: 18, 20 to 22 and 25 to 28 of the further cases.

use std::collections::BTreeSet;
use std::time::Duration;

use jobs::{Add, Clock, Entropy, Finish, Jobs, Outcome, StallPolicy, State, TypeConfig};
use store::TransactionStats;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{Kind, Queue};

fn stats(jobs: &Jobs, name: &str) -> TransactionStats {
    jobs.store().stats().get(name).copied().unwrap_or_default()
}

/// All transactions that were tried.
fn attempts(jobs: &Jobs) -> u64 {
    jobs.store()
        .stats()
        .values()
        .map(|stats| stats.attempts)
        .sum()
}

/// Scenario 20: A thousand wait in ten processes; one job wakes one process, not all who wait.
pub(crate) async fn idle_acceptors_are_woken_one_by_one(mut queue: Queue) {
    let mut waiting = JoinSet::new();
    let nodes: Vec<Jobs> = (0..10)
        .map(|seed| {
            let (store, _) = queue.store.with_faults(store::Faults::default());
            Jobs::new(store, queue.jobs.clock().clone(), Entropy::seeded(seed))
        })
        .collect();
    let mut acceptors = Vec::new();
    for node in &nodes {
        let acceptor = queue.acceptor_of(node.clone());
        for _ in 0..100 {
            let acceptor = acceptor.clone();
            waiting.spawn(async move { acceptor.accept(1, Duration::from_hours(1)).await });
        }
        acceptors.push(acceptor);
    }
    // They fall asleep, and have looked again for the last time before the long wait.
    sleep(Duration::from_millis(1_000)).await;
    let before: u64 = nodes.iter().map(attempts).sum();
    queue.add("j", "", 0).await;
    let accepted = waiting.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(accepted[0].job.id, queue.id("j"));
    sleep(Duration::from_millis(100)).await;
    let tried = nodes.iter().map(attempts).sum::<u64>() - before;
    if queue.exact() {
        assert!(tried <= 15, "{tried} transactions for one job");
    }
    assert_eq!(waiting.len(), 999);
    waiting.shutdown().await;
    queue.stop().await;
    queue.check().await;
}

/// Scenario 21: Many acceptors drain a backlog: every job once, few conflicts.
pub(crate) async fn many_acceptors_drain_a_backlog(queue: Queue) {
    let total = match queue.kind {
        Kind::memory | Kind::lmdb => 20_000,
        Kind::faulty => 2_000,
        Kind::fdb => 100_000,
    };
    let adds: Vec<Add> = (0..total)
        .map(|n| Add::new(queue.id(&format!("job-{n}")), ""))
        .collect();
    queue.jobs.add_many(&queue.ty, &adds).await.unwrap();
    let mut acceptors = JoinSet::new();
    for _ in 0..64 {
        let (jobs, ty, me) = (queue.jobs.clone(), queue.ty.clone(), queue.me.clone());
        acceptors.spawn(async move {
            let mut seen = Vec::new();
            loop {
                let claimed = jobs.accept(&ty, &me, 8).await.unwrap();
                if claimed.jobs.is_empty() {
                    return seen;
                }
                seen.extend(claimed.jobs.into_iter().map(|accepted| accepted.job.id));
            }
        });
    }
    let mut seen = BTreeSet::new();
    while let Some(ids) = acceptors.join_next().await {
        for id in ids.unwrap() {
            assert!(seen.insert(id.clone()), "{id} was accepted twice");
        }
    }
    assert_eq!(seen.len(), total);
    let accepts = stats(&queue.jobs, "accept");
    // Where time is real, how many meet is a matter of luck.
    if queue.exact() && queue.paused() {
        let ratio = (accepts.conflicts as f64) / (accepts.calls as f64);
        assert!(ratio < 0.05, "{ratio}: {accepts:?}");
    }
    queue.check().await;
}

/// Scenario 22: Many holders die at once, one does not: all the jobs come back but its own, in transactions
/// of bounded size, and several nodes share the work.
pub(crate) async fn many_silent_holders(mut queue: Queue) {
    let total = if queue.kind == Kind::faulty {
        1_000
    } else {
        10_000
    };
    // Enough to beat in time on a machine that is busy with all this.
    let config = TypeConfig::new(3_000);
    queue.jobs.set_type(&queue.ty, config).await.unwrap();
    let timeout = Duration::from_millis(config.timeout_ms);
    let adds: Vec<Add> = (0..total)
        .map(|n| Add::new(queue.id(&format!("job-{n}")), ""))
        .collect();
    queue.jobs.add_many(&queue.ty, &adds).await.unwrap();
    let mut alive = None;
    loop {
        let claimed = queue.jobs.accept(&queue.ty, &queue.me, 250).await.unwrap();
        let Some(first) = claimed.jobs.into_iter().next() else {
            break;
        };
        alive = Some(first);
    }
    let alive = alive.unwrap();
    let nodes: Vec<Jobs> = (0..4)
        .map(|seed| {
            let (store, _) = queue.store.with_faults(store::Faults::default());
            Jobs::new(store, queue.jobs.clock().clone(), Entropy::seeded(seed))
        })
        .collect();
    for node in &nodes {
        let service = jobs::Maintenance::new(node.clone(), queue.options());
        let token = queue.token();
        queue.spawn(service.run(token));
    }
    let kept = queue.jobs.keep_alive(&alive, timeout, |_| {});
    let back = queue.until(20, "all come back", async || {
        queue.counts().await.pending == total as u64 - 1
    });
    tokio::select! {
        lost = kept => panic!("the job of a live holder is not touched: {lost}"),
        () = back => {}
    }
    assert_eq!(queue.counts().await.again_total, total as u64 - 1);
    let shared = nodes.iter().map(|node| stats(node, "stall"));
    let shared: Vec<TransactionStats> = shared.filter(|stats| stats.calls > 0).collect();
    if queue.paused() {
        assert!(shared.len() >= 2, "{shared:?}");
    }
    for stats in shared {
        assert!(stats.bytes / stats.calls < 1_000_000, "{stats:?}");
    }
    queue.stop().await;
    queue.check().await;
}

/// Scenario 25: A creator's clock is half a minute off: what is to be done at once is done at once, and what
/// has a time is done when it comes by the acceptor's clock.
pub(crate) async fn skewed_clocks(mut queue: Queue) {
    if !queue.paused() {
        return;
    }
    let acceptor = queue.acceptor();
    for skew_ms in [-30_000, 30_000] {
        let clock = Clock::simulated(queue.jobs.clock().now_ms() + skew_ms);
        let creator = Jobs::new(queue.jobs.store().clone(), clock, Entropy::seeded(5));
        let started = Instant::now();
        let add = Add::new(queue.id("now"), "");
        creator.add(&queue.ty, add).await.unwrap();
        let accepted = acceptor.accept(1, Duration::from_hours(1)).await.unwrap();
        assert!(
            started.elapsed() <= Duration::from_secs(6),
            "{:?}",
            started.elapsed()
        );
        queue
            .jobs
            .remove(&queue.ty, &accepted[0].job.id)
            .await
            .unwrap();

        let due_ms = creator.clock().now_ms() + 60_000;
        let add = Add::new(queue.id("later"), "").due_ms(due_ms);
        creator.add(&queue.ty, add).await.unwrap();
        let accepted = acceptor.accept(1, Duration::from_hours(1)).await.unwrap();
        let late_ms = queue.jobs.clock().now_ms() - due_ms;
        assert!((0..=6_000).contains(&late_ms), "{late_ms}");
        queue
            .jobs
            .remove(&queue.ty, &accepted[0].job.id)
            .await
            .unwrap();
    }
    queue.stop().await;
    queue.check().await;
}

/// Scenario 26: A job that kills its holders is given up, with its reasons, and can be seen.
pub(crate) async fn poison_is_given_up(mut queue: Queue) {
    let config = TypeConfig {
        stalls: StallPolicy {
            stalls_max: Some(2),
            backoff_ms: 100,
            backoff_ms_max: 150,
            healthy_ms: 0,
        },
        ..queue.config()
    };
    queue.jobs.set_type(&queue.ty, config).await.unwrap();
    queue.maintain();
    let acceptor = queue.acceptor();
    queue.add("j", "", 0).await;
    for n in 1..=3 {
        let accepted = acceptor.accept(1, Duration::from_hours(1)).await.unwrap();
        assert_eq!((accepted[0].job.attempt, accepted[0].stalls), (n, n - 1));
    }
    (queue.until(20, "it is given up", async || {
        queue.state("j").await == Some(State::Finished)
    }))
    .await;
    let history = (queue.jobs.history(&queue.ty, &queue.id("j")))
        .await
        .unwrap();
    let ends: Vec<_> = (history.iter())
        .map(|attempt| attempt.end.as_ref().unwrap().outcome)
        .collect();
    assert_eq!(ends, [Outcome::Stalled, Outcome::Stalled, Outcome::GaveUp]);
    assert!(history[2].end.as_ref().unwrap().reason.is_some());
    // Whoever adds it again gives it another chance.
    queue.add("j", "better", 0).await;
    let info = (queue.jobs.info(&queue.ty, &queue.id("j")))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((info.state, info.stalls), (State::Pending, 0));
    queue.stop().await;
    queue.check().await;
}

/// 18 and 27. A minute without a store: nobody spins, subscriptions survive, and everything goes on.
pub(crate) async fn an_outage_is_sat_out(mut queue: Queue) {
    let Some(faults) = queue.faults.clone() else {
        return;
    };
    queue.maintain();
    let (notifier, acceptor) = (queue.notifier(), queue.acceptor());
    queue.add("j", "", i64::MAX).await;
    let mut subscription = notifier.subscribe(&queue.id("j")).await.unwrap();
    let waiting = tokio::spawn(async move { acceptor.accept(1, Duration::from_hours(1)).await });
    sleep(Duration::from_secs(1)).await;
    faults.set_outage(true);
    let before = attempts(&queue.jobs);
    sleep(Duration::from_mins(1)).await;
    let tried = attempts(&queue.jobs) - before;
    assert!(
        tried < 60 * 10,
        "{tried} attempts in a minute without a store"
    );
    faults.set_outage(false);
    queue.add("j", "", 0).await;
    let accepted = waiting.await.unwrap().unwrap();
    // At once: its time runs, and between two looks of the notifier it may be up.
    let finish = queue.jobs.finish(&accepted[0].job, Finish::done()).await;
    assert!(!finish.unwrap().again);
    while subscription.now().state() != Some(State::Finished) {
        subscription.next().await.unwrap();
    }
    queue.stop().await;
    queue.check().await;
}

/// Scenario 28: Where no watch is left, services look by themselves.
pub(crate) async fn no_watch_is_left(mut queue: Queue) {
    let mut watches = Vec::new();
    let call = store::Call::new("test").retries_max(0);
    loop {
        let watch = (queue.jobs.store())
            .transact(call, |tx: store::Transaction| async move {
                let mut watches = Vec::new();
                for _ in 0..1_000 {
                    match tx.watch(b"something").await {
                        Err(store::Error::TooManyWatches { .. }) => return Ok((watches, true)),
                        watch => watches.push(watch?),
                    }
                }
                Ok::<_, store::Error>((watches, false))
            })
            .await;
        if let Ok((more, full)) = watch {
            watches.extend(more);
            if full {
                break;
            }
        }
    }
    let (notifier, acceptor) = (queue.notifier(), queue.acceptor());
    queue.add("j", "", i64::MAX).await;
    let mut subscription = notifier.subscribe(&queue.id("j")).await.unwrap();
    let ((), accepted) = tokio::join!(
        async {
            sleep(queue.timeout() * 2).await;
            queue.add("j", "", 0).await;
        },
        acceptor.accept(1, Duration::from_hours(1))
    );
    assert_eq!(accepted.unwrap().len(), 1);
    while subscription.now().state() != Some(State::Running) {
        subscription.next().await.unwrap();
    }
    drop(watches);
    queue.stop().await;
    queue.check().await;
}

/// A sleeper wakes when the next scheduled job falls due, whether it was there when it fell asleep
/// or not.
pub(crate) async fn a_scheduled_job_wakes_its_sleeper(mut queue: Queue) {
    let acceptor = queue.acceptor();
    let wait = queue.timeout();
    let wait_ms = i64::try_from(wait.as_millis()).unwrap();
    for already_asleep in [false, true] {
        let waiting = {
            let acceptor = acceptor.clone();
            async move { acceptor.accept(1, Duration::from_hours(1)).await.unwrap() }
        };
        let due_ms;
        let accepted = if already_asleep {
            let waiting = tokio::spawn(waiting);
            sleep(wait / 2).await;
            due_ms = queue.jobs.clock().now_ms() + wait_ms;
            queue.add("j", "", due_ms).await;
            waiting.await.unwrap()
        } else {
            due_ms = queue.jobs.clock().now_ms() + wait_ms;
            queue.add("j", "", due_ms).await;
            waiting.await
        };
        let late_ms = queue.jobs.clock().now_ms() - due_ms;
        assert!(late_ms >= 0, "{late_ms}");
        if queue.kind == Kind::memory {
            assert!(late_ms <= 2, "{late_ms} ms late");
        }
        queue
            .jobs
            .remove(&queue.ty, &accepted[0].job.id)
            .await
            .unwrap();
    }
}

/// An idle node costs a few transactions a minute, and scheduled jobs, subscriptions to jobs that
/// nobody touches and finished jobs nothing more.
pub(crate) async fn nobody_works_when_there_is_nothing_to_do(mut queue: Queue) {
    if queue.kind != Kind::memory {
        return;
    }
    let config = TypeConfig::new(60_000);
    queue.jobs.set_type(&queue.ty, config).await.unwrap();
    queue.maintain();
    let (notifier, acceptor) = (queue.notifier(), queue.acceptor());
    let adds: Vec<Add> = (0..1_000)
        .map(|n| Add::new(queue.id(&format!("{n}")), "").due_ms(i64::MAX))
        .collect();
    queue.jobs.add_many(&queue.ty, &adds).await.unwrap();
    let mut subscriptions = Vec::new();
    for add in &adds[..100] {
        subscriptions.push(notifier.subscribe(&add.id).await.unwrap());
    }
    let waiting = tokio::spawn(async move { acceptor.accept(1, Duration::from_hours(10)).await });
    sleep(Duration::from_mins(5)).await;
    let before = queue.jobs.store().stats();
    let count = attempts(&queue.jobs);
    sleep(Duration::from_mins(10)).await;
    let tried = attempts(&queue.jobs) - count;
    assert!(tried < 10 * 120, "{tried} in ten minutes, {before:?}");
    waiting.abort();
    queue.stop().await;
    queue.check().await;
}
