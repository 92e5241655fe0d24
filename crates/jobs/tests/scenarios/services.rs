//! The tests of `couch_jobs` for its processes, and for the timing of its monitors.
//!
//! 8 to 16 of the original send nonsense to processes and expect them to die and be restarted. Services here
//! have typed handles, which take no nonsense; what remains of these tests is that a failed service is
//! restarted (`a_panicking_hook_is_restarted`), and that callers learn that a service stopped
//! (`a_stopped_notifier_ends_subscriptions`, `a_stopped_acceptor_returns_an_error`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobs::{
    Acceptor, Add, Error, Finish, JobInfo, JobType, Jobs, Maintenance, Notice, Notifier, Outcome,
    Retention, StallHook, StallPolicy, State, TypeConfig, TypeWatcher, Verdict,
};
use store::{CommitFate, Faults, Transaction};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::Queue;

/// 6 and 37. A watcher follows the registered types. 37 requires of the metadata version that a change is
/// noticed without polling, which is the watch's purpose.
pub(crate) async fn registered_types_are_followed(mut queue: Queue) {
    let (watcher, mut types) = TypeWatcher::new(queue.jobs.clone(), queue.options());
    let token = queue.token();
    queue.spawn(watcher.run(token));
    assert_eq!(types.changed().await.unwrap().len(), 1);
    let (third, config) = (JobType::new("t3").unwrap(), TypeConfig::new(8_000));
    queue.jobs.set_type(&third, config).await.unwrap();
    assert_eq!(types.changed().await.unwrap().get(&third), Some(&config));
    assert_eq!(queue.jobs.type_config(&third).await.unwrap(), Some(config));
    queue.jobs.clear_type(&third).await.unwrap();
    assert_eq!(types.changed().await.unwrap().len(), 1);
    assert_eq!(queue.jobs.type_config(&third).await.unwrap(), None);
    assert_eq!(types.current().len(), 1);
}

/// A node takes no lease on a type that it does not serve, and each type has its own hook.
pub(crate) async fn only_served_types_are_monitored(mut queue: Queue) {
    let other = JobType::new("t2").unwrap();
    queue.jobs.set_type(&other, queue.config()).await.unwrap();
    let add = Add::new(queue.id("j"), "");
    queue.jobs.add(&other, add).await.unwrap();
    queue.add("j", "", 0).await;
    queue.accept_one().await;
    let claimed = queue.jobs.accept(&other, &queue.me, 1).await.unwrap();
    assert_eq!(claimed.jobs.len(), 1);
    queue.maintain();
    (queue.until(20, "the job is brought back", async || {
        queue.state("j").await == Some(State::Pending)
    }))
    .await;
    sleep(queue.timeout() * 4).await;
    let counts = queue.jobs.counts(&other).await.unwrap();
    assert_eq!((counts.running, counts.again_total), (1, 0));
    let service = Maintenance::new(queue.jobs.clone(), queue.options());
    let asked = Arc::new(AtomicU32::new(0));
    let service = service
        .serve(queue.ty.clone())
        .serve_with(other.clone(), ByName(Arc::clone(&asked)));
    let token = queue.token();
    queue.spawn(service.run(token));
    (queue.until(20, "the other is, too", async || {
        queue.jobs.counts(&other).await.unwrap().running == 0
    }))
    .await;
    assert!(asked.load(Ordering::Relaxed) >= 1);
    queue.stop().await;
    queue.check().await;
}

/// Panics on its first call.
struct Breaks(AtomicU32);

impl StallHook for Breaks {
    async fn stalled(&self, _: &Transaction, _: &JobType, _: &JobInfo) -> jobs::Result<Verdict> {
        let nth = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(nth > 0, "the hook breaks");
        if nth == 1 {
            return Err(Error::Invalid("the hook cannot decide"));
        }
        Ok(Verdict::Policy)
    }
}

/// 14 to 16.
pub(crate) async fn a_panicking_hook_is_restarted(mut queue: Queue) {
    let hook = Breaks(AtomicU32::new(0));
    let service = Maintenance::new(queue.jobs.clone(), queue.options());
    let service = service.serve_with(queue.ty.clone(), hook);
    let token = queue.token();
    queue.spawn(service.run(token));
    queue.add("j", "", 0).await;
    queue.accept_one().await;
    (queue.until(20, "the job is brought back", async || {
        queue.state("j").await == Some(State::Pending)
    }))
    .await;
    queue.check().await;
}

/// 7, 11 to 13. However the notifier ends, its subscribers are notified.
pub(crate) async fn a_stopped_notifier_ends_subscriptions(mut queue: Queue) {
    queue.add("j", "", 0).await;
    let stop = CancellationToken::new();
    let make = || Notifier::new(queue.jobs.clone(), queue.ty.clone(), queue.options());
    let (service, handle) = make();
    let (killed, killed_handle) = make();
    let (running, killed) = (
        service.run(stop.clone()),
        tokio::spawn(killed.run(stop.clone())),
    );
    queue.spawn(running);
    let mut subscription = handle.subscribe(&queue.id("j")).await.unwrap();
    let mut other = killed_handle.subscribe(&queue.id("j")).await.unwrap();
    killed.abort();
    assert_eq!(other.next().await, Some(Notice::Stopped));
    stop.cancel();
    assert_eq!(subscription.next().await, Some(Notice::Stopped));
    assert_eq!(subscription.next().await, None);
    let refused = handle.subscribe(&queue.id("j")).await;
    assert!(matches!(refused, Err(Error::Stopped)));
    // Another one takes over.
    let handle = queue.notifier();
    let mut subscription = handle.subscribe(&queue.id("j")).await.unwrap();
    queue.accept_one().await;
    let told = subscription.next().await.unwrap();
    assert_eq!(told.state(), Some(State::Running));
}

/// 8 to 10.
pub(crate) async fn a_stopped_acceptor_returns_an_error(mut queue: Queue) {
    let stop = CancellationToken::new();
    let (service, handle) = Acceptor::new(queue.jobs.clone(), queue.ty.clone(), queue.me.clone());
    let running = service.run(stop.clone());
    queue.spawn(running);
    let (answer, ()) = tokio::join!(handle.accept(1, Duration::from_mins(1)), async {
        sleep(queue.timeout() / 10).await;
        stop.cancel();
    });
    assert!(matches!(answer, Err(Error::Stopped)), "{answer:?}");
    let answer = handle.accept(1, Duration::ZERO).await;
    assert!(matches!(answer, Err(Error::Stopped)) || answer.unwrap().is_empty());
    // Runs can still be ended.
    queue.add("j", "", 0).await;
    let job = queue.accept_one().await;
    assert!(!handle.finish(&job, Finish::done()).await.unwrap().again);
    assert_eq!(queue.state("j").await, Some(State::Finished));
}

/// A worker gets its job even if the claim takes longer than it was going to wait. If workers left before, an acceptor on a
/// slow store would claim jobs and give them back for ever.
pub(crate) async fn short_waits_get_jobs_of_slow_claims(mut queue: Queue) {
    let slow = Faults {
        read_latency: Duration::from_millis(20),
        ..Faults::default()
    };
    let (store, _control) = queue.store.with_faults(slow);
    let (clock, entropy) = (queue.jobs.clock().clone(), queue.jobs.entropy().clone());
    let acceptor = queue.acceptor_of(Jobs::new(store, clock, entropy));
    for name in ["a", "b", "c"] {
        queue.add(name, "", 0).await;
    }
    let wait = Duration::from_millis(5);
    for _ in 0..3 {
        let accepted = acceptor.accept(1, wait).await.unwrap();
        assert_eq!(accepted.len(), 1, "a job is due");
    }
    assert_eq!(acceptor.accept(1, wait).await.unwrap(), []);
    queue.stop().await;
    queue.check().await;
}

/// A scheduled job wakes one acceptor. If that gives its last worker another job meanwhile, the next one has to know.
pub(crate) async fn scheduled_jobs_find_free_workers(mut queue: Queue) {
    if !queue.paused() {
        return;
    }
    let acceptors = [queue.acceptor(), queue.acceptor()];
    for round in 0..20 {
        let accept = async |nth: usize| {
            let accepted = acceptors[nth].accept(1, Duration::from_mins(1)).await;
            (accepted.unwrap().remove(0).job, queue.jobs.clock().now_ms())
        };
        let add = async {
            // Both poll seldom now.
            sleep(Duration::from_secs(2)).await;
            let due_ms = queue.jobs.clock().now_ms() + 2_000;
            queue.add("soon", "", due_ms).await;
            sleep(Duration::from_millis(500)).await;
            queue.add("now", "", 0).await;
            due_ms
        };
        let (first, second, due_ms) = tokio::join!(accept(0), accept(1), add);
        for (job, at_ms) in [first, second] {
            if job.id == queue.id("soon") {
                let late_ms = at_ms - due_ms;
                assert!(
                    late_ms < 200 || !queue.exact(),
                    "round {round}: {late_ms} ms late"
                );
            }
            assert!(!queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
        }
    }
    queue.stop().await;
    queue.check().await;
}

/// The workers of a process end their runs together, and each gets its own answer.
pub(crate) async fn acceptors_end_runs(mut queue: Queue) {
    let (handle, long) = (queue.acceptor(), queue.timeout() * 100);
    let mut held = Vec::new();
    for name in ["a", "b", "c", "large"] {
        queue.add(name, "", 0).await;
        held.push(handle.accept(1, long).await.unwrap().remove(0).job);
    }
    queue.jobs.remove(&queue.ty, &queue.id("a")).await.unwrap();
    let data = vec![b'.'; 100_000];
    let (lost, done, again, large) = tokio::join!(
        handle.finish(&held[0], Finish::done()),
        handle.finish(&held[1], Finish::done()),
        handle.finish(&held[2], Finish::again(0)),
        handle.finish(&held[3], Finish::done().data(data.clone())),
    );
    assert!(matches!(lost, Err(Error::Halt)), "{lost:?}");
    assert!(!done.unwrap().again);
    assert!(again.unwrap().again);
    assert!(!large.unwrap().again);
    assert!(queue.data("large").await == data);
    // Requested together with the next job.
    let c = handle.accept(1, long).await.unwrap().remove(0).job;
    queue.add("d", "", 0).await;
    let (ended, next) = tokio::join!(
        handle.finish(&c, Finish::failed("why not")),
        handle.accept(1, long),
    );
    assert!(!ended.unwrap().again);
    let d = next.unwrap().remove(0).job;
    // Ending a run makes a job for another worker that waits.
    let (waited, ()) = tokio::join!(handle.accept(1, long), async {
        sleep(queue.timeout() / 4).await;
        assert!(handle.finish(&d, Finish::again(0)).await.unwrap().again);
    });
    let waited = waited.unwrap().remove(0).job;
    assert_eq!((waited.id, waited.attempt), (queue.id("d"), 2));
    queue.stop().await;
    queue.check().await;
}

/// 18. The original waits without a limit by default; a long wait is the same.
pub(crate) async fn acceptors_block(mut queue: Queue) {
    let acceptor = queue.acceptor();
    let long = queue.timeout() * 100;
    let (first, ()) = tokio::join!(acceptor.accept(1, long), async {
        sleep(queue.timeout() / 4).await;
        queue.add("j1", "", 0).await;
    });
    assert_eq!(first.unwrap()[0].job.id, queue.id("j1"));
    let nothing = acceptor.accept(1, queue.timeout() / 4).await.unwrap();
    assert_eq!(nothing, []);
    let (second, ()) = tokio::join!(acceptor.accept(1, Duration::MAX), async {
        sleep(queue.timeout() / 4).await;
        queue.add("j2", "", 0).await;
    });
    assert_eq!(second.unwrap()[0].job.id, queue.id("j2"));
    queue.stop().await;
    queue.check().await;
}

/// 33, and 9 of the further ones: the holder is equivalent to one whose claim was committed without an
/// answer. The original allows three timeouts; here two and the jitter.
pub(crate) async fn silent_holders_lose_their_job(mut queue: Queue) {
    queue.maintain();
    queue.add("j", "data", 0).await;
    let job = queue.accept_one().await;
    let accepted = Instant::now();
    (queue.until(3, "the job is brought back", async || {
        queue.state("j").await == Some(State::Pending)
    }))
    .await;
    if queue.paused() {
        let took = accepted.elapsed();
        assert!(
            took >= queue.timeout(),
            "no job is recovered before the timeout"
        );
        assert!(took <= queue.timeout() * 5 / 2, "{took:?}");
    }
    assert_eq!(queue.data("j").await, "data");
    let update = queue.jobs.update(&job, None).await;
    assert!(matches!(update, Err(Error::Halt)), "{update:?}");
    let finish = queue.jobs.finish(&job, Finish::done()).await;
    assert!(matches!(finish, Err(Error::Halt)), "{finish:?}");
    let info = queue.jobs.info(&queue.ty, &job.id).await.unwrap().unwrap();
    assert_eq!((info.stalls, info.attempts), (1, 1));
    assert_eq!(info.last.unwrap().end.unwrap().outcome, Outcome::Stalled);
    // A holder with heartbeats keeps its job.
    let job = queue.accept_one().await;
    for _ in 0..12 {
        sleep(queue.timeout() / 3).await;
        let held = queue.jobs.update(&job, None).await.unwrap();
        assert!(!held.again);
    }
    assert!(!queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
    let info = queue.jobs.info(&queue.ty, &job.id).await.unwrap().unwrap();
    assert_eq!((info.stalls, info.attempts), (0, 2));
    queue.stop().await;
    queue.check().await;
}

/// Further 15: a timeout is changed while jobs run, cleared, and set again.
pub(crate) async fn types_change_live(mut queue: Queue) {
    queue.maintain();
    let short = queue.config();
    let long = TypeConfig::new(short.timeout_ms * 1_000);
    queue.jobs.set_type(&queue.ty, long).await.unwrap();
    queue.add("j", "", 0).await;
    let job = queue.accept_one().await;
    sleep(queue.timeout() * 4).await;
    assert_eq!(queue.state("j").await, Some(State::Running));
    queue.jobs.clear_type(&queue.ty).await.unwrap();
    let refused = queue.jobs.add(&queue.ty, Add::new(queue.id("k"), "")).await;
    assert!(matches!(refused, Err(Error::NoTypeTimeout(_))));
    sleep(queue.timeout() * 4).await;
    assert_eq!(queue.state("j").await, Some(State::Running));
    queue.jobs.set_type(&queue.ty, short).await.unwrap();
    // Its holder learns the new timeout with a heartbeat, and may use the old one until then.
    sleep(queue.timeout() * 4).await;
    assert_eq!(queue.state("j").await, Some(State::Running));
    assert!(!queue.jobs.update(&job, None).await.unwrap().again);
    (queue.until(20, "the job is brought back", async || {
        queue.state("j").await == Some(State::Pending)
    }))
    .await;
    queue.stop().await;
    queue.check().await;
}

/// Finished jobs are removed after the type's retention or their own.
pub(crate) async fn finished_jobs_expire(mut queue: Queue) {
    let config = TypeConfig {
        retention_ms: Some(queue.config().timeout_ms),
        ..queue.config()
    };
    queue.jobs.set_type(&queue.ty, config).await.unwrap();
    for n in 0..250 {
        queue.add(&format!("short-{n}"), "", 0).await;
    }
    let add = Add::new(queue.id("kept"), "").retention(Retention::Forever);
    queue.jobs.add(&queue.ty, add).await.unwrap();
    let add = Add::new(queue.id("longer"), "").retention(Retention::Ms(1_000_000_000));
    queue.jobs.add(&queue.ty, add).await.unwrap();
    loop {
        let claimed = queue.jobs.accept(&queue.ty, &queue.me, 100).await.unwrap();
        if claimed.jobs.is_empty() {
            break;
        }
        let finishes: Vec<_> = (claimed.jobs.into_iter())
            .map(|accepted| (accepted.job, Finish::done()))
            .collect();
        for answer in queue.jobs.finish_many(&finishes).await.unwrap() {
            assert!(!answer.unwrap().again);
        }
    }
    assert_eq!(queue.counts().await.finished, 252);
    queue.maintain();
    (queue.until(20, "jobs are forgotten", async || {
        queue.counts().await.finished == 2
    }))
    .await;
    assert_eq!(queue.state("kept").await, Some(State::Finished));
    assert_eq!(queue.state("longer").await, Some(State::Finished));
    queue.stop().await;
    queue.check().await;
}

/// A type can have its jobs deleted in the transaction that finishes them. Subscribers get the end, and an
/// unknown outcome is recognised.
pub(crate) async fn finished_jobs_can_be_deleted_at_once(mut queue: Queue) {
    let config = TypeConfig {
        retention_ms: Some(0),
        ..queue.config()
    };
    queue.jobs.set_type(&queue.ty, config).await.unwrap();
    let follow = queue.notifier();
    for name in ["alone", "followed", "unsure", "again"] {
        queue.add(name, "", 0).await;
    }
    let mut subscription = follow.subscribe(&queue.id("followed")).await.unwrap();
    let mut held = queue
        .jobs
        .accept(&queue.ty, &queue.me, 4)
        .await
        .unwrap()
        .jobs;
    held.sort_by_key(|accepted| accepted.job.id.clone());
    let [again, alone, followed, unsure] = <[_; 4]>::try_from(held).unwrap().map(|held| held.job);
    // A change before the end, which the notifier may not have seen yet.
    let data = Some("half".into());
    assert!(!queue.jobs.update(&followed, data).await.unwrap().again);
    for job in [&alone, &followed] {
        assert!(!queue.jobs.finish(job, Finish::done()).await.unwrap().again);
    }
    assert_eq!(queue.state("alone").await, None);
    let done = |notice: &Notice| notice.state() == Some(State::Finished);
    let told = subscription.wait(queue.timeout() * 30, done).await.unwrap();
    assert!(done(&told), "{told:?}");
    let once_more = queue.jobs.finish(&alone, Finish::done()).await;
    assert!(matches!(once_more, Err(Error::Halt)), "{once_more:?}");
    // A job that is to run again is not deleted.
    queue.add("again", "newer", 0).await;
    assert!(
        queue
            .jobs
            .finish(&again, Finish::done())
            .await
            .unwrap()
            .again
    );
    assert_eq!(queue.state("again").await, Some(State::Pending));
    if let Some(faults) = &queue.faults {
        faults.set_next_commit(CommitFate::UnknownApplied);
    }
    let ended = queue.jobs.finish(&unsure, Finish::done()).await.unwrap();
    assert_eq!((ended.again, ended.repeated), (false, !queue.exact()));
    let counts = queue.counts().await;
    assert_eq!((counts.pending, counts.running, counts.finished), (1, 0, 1));
    assert_eq!((counts.finished_total, counts.removed_total), (3, 2));
    queue.stop().await;
    queue.check().await;
}

/// The history holds the last runs.
pub(crate) async fn history_is_bounded(queue: Queue) {
    queue.add("j", "", 0).await;
    for n in 1..=15 {
        let job = queue.accept_one().await;
        assert_eq!(job.attempt, n);
        let finish = Finish {
            reason: Some(format!("run {n}: {}", "ä".repeat(400))),
            ..Finish::again(0)
        };
        assert!(queue.jobs.finish(&job, finish).await.unwrap().again);
    }
    let history = (queue.jobs.history(&queue.ty, &queue.id("j")))
        .await
        .unwrap();
    let numbers: Vec<_> = history.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, (5..=15).collect::<Vec<_>>());
    for attempt in &history {
        let end = attempt.end.as_ref().unwrap();
        let reason = end.reason.as_ref().unwrap();
        assert!(reason.starts_with(&format!("run {}: ä", attempt.number)));
        assert!(reason.len() <= jobs::REASON_BYTES_MAX);
        assert_eq!(
            (end.outcome, attempt.holder.as_str()),
            (Outcome::Again, "me")
        );
        assert!(end.at_ms >= attempt.started_ms);
    }
    queue.jobs.remove(&queue.ty, &queue.id("j")).await.unwrap();
    queue.add("j", "", 0).await;
    let history = (queue.jobs.history(&queue.ty, &queue.id("j")))
        .await
        .unwrap();
    assert_eq!(history, []);
}

/// Decides by the name of the job, and records which it has seen.
struct ByName(Arc<AtomicU32>);

impl StallHook for ByName {
    async fn stalled(&self, tx: &Transaction, _: &JobType, job: &JobInfo) -> jobs::Result<Verdict> {
        self.0.fetch_add(1, Ordering::Relaxed);
        tx.set(&[b"stalled/", job.id.as_bytes()].concat(), b"");
        Ok(match job.id.as_bytes() {
            b"later" => Verdict::Rerun {
                due_ms: Some(i64::MAX),
                data: Some("later".into()),
            },
            b"never" => Verdict::GiveUp {
                data: Some("never".into()),
                reason: "it is of no use".into(),
            },
            _ => Verdict::Policy,
        })
    }
}

/// The type's hook decides about a silent holder's job, in one transaction with its own rows.
pub(crate) async fn hooks_decide(mut queue: Queue) {
    let asked = Arc::new(AtomicU32::new(0));
    let hook = ByName(Arc::clone(&asked));
    let service = Maintenance::new(queue.jobs.clone(), queue.options());
    let service = service.serve_with(queue.ty.clone(), hook);
    let token = queue.token();
    queue.spawn(service.run(token));
    for name in ["later", "never", "policy"] {
        queue.add(name, "", 0).await;
    }
    let claimed = queue.jobs.accept(&queue.ty, &queue.me, 3).await.unwrap();
    assert_eq!(claimed.jobs.len(), 3);
    (queue.until(20, "jobs are brought back", async || {
        queue.counts().await.running == 0
    }))
    .await;
    assert_eq!(queue.due_ms("later").await, i64::MAX);
    assert_eq!(queue.data("later").await, "later");
    assert_eq!(queue.state("policy").await, Some(State::Pending));
    assert_eq!(queue.state("never").await, Some(State::Dead));
    assert_eq!(queue.data("never").await, "never");
    let info = (queue.jobs.info(&queue.ty, &queue.id("never")))
        .await
        .unwrap();
    let end = info.unwrap().last.unwrap().end.unwrap();
    assert_eq!(end.outcome, Outcome::GaveUp);
    assert_eq!(end.reason.as_deref(), Some("it is of no use"));
    let seen = (queue.store)
        .transact("test", |tx: Transaction| async move {
            let range = store::KeyRange::prefix(b"stalled/");
            let rows = tx.get_range(range, store::RangeOptions::default());
            rows.collect().await
        })
        .await
        .unwrap();
    assert_eq!(seen.len(), 3);
    assert!(asked.load(Ordering::Relaxed) >= 3);
    queue.stop().await;
    queue.check().await;
}

/// A holder with heartbeats keeps its job; one that cannot reach the store stops in time.
pub(crate) async fn keep_alive_keeps_and_loses(mut queue: Queue) {
    // On a real clock, a machine busy with other tests gets more time.
    let timeout = queue.timeout() * if queue.paused() { 1 } else { 10 };
    let config = TypeConfig::new(u64::try_from(timeout.as_millis()).unwrap());
    queue.jobs.set_type(&queue.ty, config).await.unwrap();
    queue.maintain();
    queue.add("j", "", 0).await;
    let accepted = queue.accept().await.unwrap();
    let mut told = 0;
    let alive = queue.jobs.keep_alive(&accepted, |held| {
        assert!(!held.again);
        told += 1;
    });
    let long = timeout * if queue.paused() { 5 } else { 2 };
    let lost = tokio::time::timeout(long, alive).await;
    assert!(lost.is_err(), "the job is kept: {lost:?}");
    assert!(told >= 3, "{told}");
    let (lost, ()) = tokio::join!(queue.jobs.keep_alive(&accepted, |_| {}), async {
        sleep(timeout / 10).await;
        queue.jobs.remove(&queue.ty, &queue.id("j")).await.unwrap();
    });
    assert!(matches!(lost, Error::Halt));
    let Some(faults) = queue.faults.clone() else {
        return;
    };
    queue.add("j", "", 0).await;
    let accepted = queue.accept().await.unwrap();
    faults.set_outage(true);
    let lost = queue.jobs.keep_alive(&accepted, |_| {}).await;
    assert!(matches!(lost, Error::Halt));
    let elapsed = accepted.claimed_at.elapsed();
    assert!(
        elapsed < timeout,
        "it stops before another holder may start: {elapsed:?}"
    );
    faults.set_outage(false);
}

/// A policy is plain data of its type.
#[test]
fn policies_are_plain() {
    let config = TypeConfig {
        stalls: StallPolicy {
            stalls_max: Some(1),
            ..TypeConfig::new(1).stalls
        },
        ..TypeConfig::new(1)
    };
    assert_eq!(config.stalls.wait_ms(1), Some(0));
    assert_eq!(config.stalls.wait_ms(2), None);
}
