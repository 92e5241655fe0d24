//! Fencing of writes: 8 to 10 of the further cases.

use std::time::Duration;

use jobs::{Accepted, Add, Entropy, Error, Finish, Job, Jobs, State};
use store::{Faults, Store, Transaction};

use crate::support::{Kind, Queue};

/// The queue on a store with these faults.
fn faulty(queue: &Queue, faults: Faults) -> Jobs {
    let (store, _) = queue.store.with_faults(faults);
    Jobs::new(store, queue.jobs.clock().clone(), Entropy::seeded(11))
}

/// Lets the monitor recover a job, and gives it to another holder.
async fn take_over(queue: &Queue) -> Job {
    (queue.until(20, "the job is brought back", async || {
        queue.state("j").await == Some(State::Pending)
    }))
    .await;
    queue.accept_one().await
}

/// No operation of a holder succeeds with an outdated lock.
pub(crate) async fn stale_holders_are_halted(mut queue: Queue) {
    queue.maintain();
    queue.add("j", "0", 0).await;
    let old = queue.accept_one().await;
    let new = take_over(&queue).await;
    assert_ne!(old.lock, new.lock);
    let jobs = &queue.jobs;
    let update = jobs.update(&old, Some("old".into())).await;
    assert!(matches!(update, Err(Error::Halt)), "{update:?}");
    let again = jobs.run_again(&old, 9, Some("old".into())).await;
    assert!(matches!(again, Err(Error::Halt)), "{again:?}");
    let finish = jobs.finish(&old, Finish::done().data("old")).await;
    assert!(matches!(finish, Err(Error::Halt)), "{finish:?}");
    // Nor with the lock of another job.
    queue.add("k", "", 0).await;
    let other = queue.accept_one().await;
    let forged = Job::new(new.ty.clone(), new.id.clone(), other.lock, new.attempt);
    let update = jobs.update(&forged, None).await;
    assert!(matches!(update, Err(Error::Halt)), "{update:?}");
    assert_eq!(queue.data("j").await, "0");
    assert!(!jobs.finish(&new, Finish::done()).await.unwrap().again);
    queue.stop().await;
    queue.check().await;
}

/// Scenario 10: A holder that is paused beyond its timeout within a transaction does not commit it.
pub(crate) async fn stale_effects_are_rolled_back(mut queue: Queue) {
    queue.maintain();
    queue.add("j", "0", 0).await;
    let old = &queue.accept_one().await;
    let (jobs, ops) = (&queue.jobs, &[queue.jobs.op(), queue.jobs.op()]);
    let (taken, was_taken) = tokio::sync::watch::channel(false);
    let was_taken = &was_taken;
    let slow = (jobs.store()).transact("test", |tx: Transaction| async move {
        let held = jobs.update_in(&tx, &ops[0], old, None).await?;
        if !held.repeated {
            tx.set(b"effect", b"of the old holder");
        }
        // Paused until the job has another holder.
        let _ = was_taken.clone().wait_for(|taken| *taken).await;
        Ok::<_, Error>(())
    });
    let other = async {
        let new = take_over(&queue).await;
        taken.send_replace(true);
        new
    };
    let (written, new) = tokio::join!(slow, other);
    assert!(matches!(written, Err(Error::Halt)), "{written:?}");
    let effect = (queue.store)
        .transact(
            "test",
            |tx: Transaction| async move { tx.get(b"effect").await },
        )
        .await;
    assert_eq!(effect.unwrap(), None);
    let op = jobs.op();
    let new = &new;
    let held = (jobs.store())
        .transact("test", |tx: Transaction| async move {
            tx.set(b"effect", b"of the new holder");
            jobs.finish_in(&tx, &op, new, Finish::done()).await
        })
        .await;
    assert!(!held.unwrap().again);
    queue.stop().await;
    queue.check().await;
}

/// The counter of a case's effects.
async fn effects(store: &Store) -> i64 {
    let value = store
        .transact(
            "test",
            |tx: Transaction| async move { tx.get(b"effects").await },
        )
        .await
        .unwrap();
    value.map_or(0, |value| i64::from_le_bytes((*value).try_into().unwrap()))
}

/// A holder's own writes take effect once per heartbeat and finish, however often the store loses the
/// answer.
pub(crate) async fn effects_happen_exactly_once(queue: Queue) {
    let jobs = &faulty(
        &queue,
        Faults {
            seed: 3,
            unknown_applied: 0.3,
            unknown_lost: 0.2,
            conflict: 0.1,
            ..Faults::default()
        },
    );
    queue.add("j", "", 0).await;
    let mut job = queue.accept_one().await;
    for n in 1..=40 {
        let (op, held) = (jobs.op(), &job);
        (jobs.store())
            .transact("test", |tx: Transaction| async move {
                if !jobs.update_in(&tx, &op, held, None).await?.repeated {
                    tx.add(b"effects", 1);
                }
                Ok::<_, Error>(())
            })
            .await
            .unwrap();
        assert_eq!(effects(&queue.store).await, 2 * n - 1);
        let op = jobs.op();
        (jobs.store())
            .transact("test", |tx: Transaction| async move {
                let finish = Finish::again(0);
                if !jobs.finish_in(&tx, &op, held, finish).await?.repeated {
                    tx.add(b"effects", 1);
                }
                Ok::<_, Error>(())
            })
            .await
            .unwrap();
        assert_eq!(effects(&queue.store).await, 2 * n);
        job = queue.accept_one().await;
    }
    queue.check().await;
}

/// A transaction of several steps that ends a run is committed without an answer, and the job has another
/// holder before the retry: every step recognises its success.
pub(crate) async fn every_step_recognises_its_success(queue: Queue) {
    let (store, control) = queue.store.with_faults(no_answers(true));
    let jobs = &Jobs::new(store, queue.jobs.clock().clone(), Entropy::seeded(11));
    queue.add("j", "", 0).await;
    let job = &queue.accept_one().await;
    let (ops, queue_ref, control) = (&[jobs.op(), jobs.op(), jobs.op()], &queue, &control);
    let held = (jobs.store())
        .transact("test", |tx: Transaction| async move {
            if tx.attempt() == 2 {
                control.set_quiet(true);
                queue_ref.accept_one().await;
            }
            let beat = jobs.update_in(&tx, &ops[0], job, None).await?;
            let again = jobs.run_again_in(&tx, &ops[1], job, 0, None).await?;
            let finish = jobs.finish_in(&tx, &ops[2], job, Finish::done()).await?;
            Ok::<_, Error>([beat, again, finish])
        })
        .await;
    let held = held.unwrap();
    assert!(
        held.iter().all(|held| held.again && held.repeated),
        "{held:?}"
    );
    queue.check().await;
}

/// A heartbeat between a commit without an answer and its retry: the worker's own writes still happen
/// once.
pub(crate) async fn heartbeats_do_not_hide_a_commit(queue: Queue) {
    let (store, control) = queue.store.with_faults(no_answers(true));
    let jobs = &Jobs::new(store, queue.jobs.clock().clone(), Entropy::seeded(11));
    queue.add("j", "", 0).await;
    let accepted = &queue.accept().await.unwrap();
    let (op, queue_ref, control) = (&jobs.op(), &queue, &control);
    (jobs.store())
        .transact("test", |tx: Transaction| async move {
            if tx.attempt() == 2 {
                control.set_quiet(true);
                let (told, mut beat) = tokio::sync::watch::channel(false);
                let told = move |_| {
                    told.send_replace(true);
                };
                tokio::select! {
                    lost = queue_ref.jobs.keep_alive(accepted, told) => return Err(lost),
                    _ = beat.wait_for(|told| *told) => {}
                }
            }
            if !(jobs.update_in(&tx, op, &accepted.job, None).await?).repeated {
                tx.add(b"effects", 1);
            }
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    assert_eq!(effects(&queue.store).await, 1);
    queue.check().await;
}

/// Scenario 8: Each operation happens once, whether its commit without an answer was applied or lost.
pub(crate) async fn unknown_commits_of_every_operation(queue: Queue) {
    for (seed, (applied, lost)) in (0..).zip([(0.7, 0.0), (0.0, 0.7), (0.4, 0.4)].repeat(4)) {
        let jobs = &faulty(
            &queue,
            Faults {
                seed,
                unknown_applied: applied,
                unknown_lost: lost,
                ..Faults::default()
            },
        );
        let (ty, me, id) = (&queue.ty, &queue.me, &queue.id("j"));
        let before = queue.counts().await;
        jobs.add(ty, Add::new(id.clone(), "0")).await.unwrap();
        let one = async || {
            let mut claimed = jobs.accept(ty, me, 1).await.unwrap();
            claimed.jobs.remove(0)
        };
        let Accepted { job, data, .. } = one().await;
        assert_eq!(data, "0");
        assert!(!jobs.update(&job, Some("1".into())).await.unwrap().again);
        jobs.add(ty, Add::new(id.clone(), "2")).await.unwrap();
        assert!(jobs.run_again(&job, 0, None).await.unwrap().again);
        assert!(jobs.finish(&job, Finish::done()).await.unwrap().again);
        let Accepted { job, data, .. } = one().await;
        assert_eq!(data, "2");
        assert!(!jobs.finish(&job, Finish::done()).await.unwrap().again);
        jobs.resubmit(ty, id, None, Some("3".into())).await.unwrap();
        let Accepted { job, data, .. } = one().await;
        assert_eq!(data, "3");
        jobs.remove(ty, id).await.unwrap();
        let halted = jobs.update(&job, None).await;
        assert!(matches!(halted, Err(Error::Halt)), "{halted:?}");
        let counts = queue.counts().await;
        assert_eq!(counts.created_total, before.created_total + 1);
        assert_eq!(counts.accepted_total, before.accepted_total + 3);
        assert_eq!(counts.again_total, before.again_total + 1);
        assert_eq!(counts.finished_total, before.finished_total + 1);
        assert_eq!(counts.revived_total, before.revived_total + 1);
        assert_eq!(counts.removed_total, before.removed_total + 1);
        queue.check().await;
    }
}

/// Always loses the answer, before or after the commit.
fn no_answers(applied: bool) -> Faults {
    Faults {
        seed: 1,
        unknown_applied: f64::from(u8::from(applied)),
        unknown_lost: f64::from(u8::from(!applied)),
        ..Faults::default()
    }
}

/// Scenario 9: The job of a claim whose answer is lost for good is recovered.
pub(crate) async fn the_job_of_a_lost_claim_is_recovered(mut queue: Queue) {
    queue.maintain();
    queue.add("j", "", 0).await;
    let jobs = faulty(&queue, no_answers(true));
    let claim = jobs.claim(&queue.ty, &queue.me, 1);
    let accept = jobs.accept_claim(&claim);
    // Dropped as soon as it is committed, so that the answer is lost.
    let committed = queue.until(3, "the claim is committed", async || {
        queue.counts().await.accepted_total == 1
    });
    tokio::select! {
        _ = accept => {}
        () = committed => {}
    }
    (queue.until(3, "the job is brought back", async || {
        queue.state("j").await == Some(State::Pending)
    }))
    .await;
    assert_eq!(queue.counts().await.pending, 1);
    queue.stop().await;
    queue.check().await;
}

/// A caller that kept its claim recalls it, although the store gave no answer until the call timed out.
pub(crate) async fn an_unsure_claim_is_recalled(queue: Queue) {
    if queue.kind != Kind::memory {
        // The call ends after half a minute, which only a paused clock waits out.
        return;
    }
    for applied in [true, false] {
        queue.add("j", "", 0).await;
        let (store, control) = queue.store.with_faults(no_answers(applied));
        let jobs = Jobs::new(store, queue.jobs.clock().clone(), Entropy::seeded(11));
        let claim = jobs.claim(&queue.ty, &queue.me, 1);
        let mut accept = Box::pin(jobs.accept_claim(&claim));
        while (jobs.store().stats().get("accept")).is_none_or(|stats| stats.maybe_committed == 0) {
            let first = tokio::time::timeout(Duration::ZERO, &mut accept).await;
            assert!(first.is_err(), "it is being tried");
        }
        // The store is unreachable from now on.
        control.set_outage(true);
        let unsure = accept.await;
        assert!(
            matches!(&unsure, Err(Error::Store(store::Error::MaybeCommitted))),
            "{unsure:?}"
        );
        control.set_outage(false);
        control.set_quiet(true);
        let recalled = jobs.recall_claim(&claim).await.unwrap();
        assert_eq!(recalled.len(), usize::from(applied));
        let job = match recalled.into_iter().next() {
            Some(accepted) => accepted.job,
            None => jobs.accept_claim(&claim).await.unwrap().jobs.remove(0).job,
        };
        assert!(!queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
    }
    queue.check().await;
}
