//! Races of those that sleep: acceptors, and notifiers with their subscribers.

use std::time::Duration;

use futures::future::try_join_all;
use store::CommitFate;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{LATE, World};
use crate::model::keys::stamp_template;
use crate::operations::leases::Leases;
use crate::services::duties::Held;
use crate::services::sweep::{BELL_AGE_MAX, Bells};
use crate::{Acceptor, Add, Error, Finish, Holder, JobId, Notice, Notifier, Options, State};

impl World {
    /// A subscriber that ends its subscription and makes a new one gets later changes, although the
    /// notifier is about to clear its earlier notes.
    pub(super) async fn follow(&self) -> Option<String> {
        let id = |n: usize| JobId::try_from(&*format!("{n:02}")).unwrap();
        let ids: Vec<JobId> = (0..12).map(id).collect();
        let all = |data: &'static str| -> Vec<Add> {
            ids.iter().map(|id| Add::new(id.clone(), data)).collect()
        };
        let (calm, ty) = (&self.calm, &self.ty);
        calm.add_many(ty, &all("1")).await.unwrap();
        let options = Options::default();
        let (service, notifier) = Notifier::new(self.jobs.clone(), ty.clone(), options);
        let stop = CancellationToken::new();
        let follow = async {
            let following = ids.iter().map(|id| notifier.subscribe(id));
            let mut following = try_join_all(following).await.unwrap();
            calm.add_many(ty, &all("2")).await.unwrap();
            drop(following.drain(..2));
            sleep(self.late * 3).await;
            let again = &ids[self.either];
            // At once, while the notifier is still busy with the previous changes.
            self.control.set_quiet(true);
            let mut again = notifier.subscribe(again).await.unwrap();
            self.add(again.id(), "3").await;
            self.control.set_quiet(false);
            let newest =
                |notice: &Notice| matches!(notice, Notice::Job(_, data) if **data == *b"3");
            let told = newest(again.now()) || {
                let told = again.wait(Duration::from_mins(1), newest).await;
                told.is_some()
            };
            stop.cancel();
            told
        };
        let (told, ()) = tokio::join!(follow, service.run(stop.clone()));
        (!told).then(|| "a subscriber was not told".into())
    }

    /// An acceptor ends runs while it goes to sleep.
    pub(super) async fn end_asleep(&self) -> Option<String> {
        let (jobs, ty, long) = (&self.jobs, &self.ty, Duration::from_mins(1));
        let me = Holder::new("me").unwrap();
        let (service, acceptor) = Acceptor::new(jobs.clone(), ty.clone(), me);
        let stop = CancellationToken::new();
        let work = async {
            for n in 0..6 {
                self.add(&JobId::try_from(&*format!("{n}")).unwrap(), "")
                    .await;
                let job = acceptor.accept(1, long).await.unwrap().remove(0).job;
                let ended = async {
                    sleep(self.late * n).await;
                    acceptor.finish(&job, Finish::done()).await
                };
                let (ended, none) = tokio::join!(ended, acceptor.accept(1, LATE * 10));
                assert!(!ended.unwrap().again && none.unwrap().is_empty());
            }
            stop.cancel();
        };
        tokio::join!(work, service.run(stop.clone()));
        let counts = self.calm.counts(ty).await.unwrap();
        (counts.finished != 6).then(|| format!("not all runs were ended: {counts:?}"))
    }

    /// A run is notified of a requested run before its acceptor knows that its claim was committed.
    pub(super) async fn interrupt_early(&self) -> Option<String> {
        let (jobs, ty, long) = (&self.jobs, &self.ty, Duration::from_mins(1));
        let [first, second] = ["a", "b"].map(|id| JobId::try_from(id).unwrap());
        let me = Holder::new("me").unwrap();
        let (service, acceptor) = Acceptor::new(jobs.clone(), ty.clone(), me);
        let stop = CancellationToken::new();
        let work = async {
            self.add(&first, "").await;
            let held = acceptor.accept(1, long).await.unwrap();
            self.add(&second, "").await;
            self.control.set_next_commit(CommitFate::UnknownApplied);
            let ask = async {
                let running = || async {
                    let info = self.calm.info(ty, &second).await.unwrap();
                    info.is_some_and(|info| info.state == State::Running)
                };
                while !running().await {
                    sleep(Duration::from_millis(1)).await;
                }
                self.calm.resubmit(ty, &second, None, None).await.unwrap();
            };
            let (accepted, ()) = tokio::join!(acceptor.accept(1, long), ask);
            let job = accepted.unwrap().remove(0).job;
            let told = timeout(Duration::from_secs(1), job.again().cancelled()).await;
            drop(held);
            stop.cancel();
            told.is_ok()
        };
        let (told, ()) = tokio::join!(work, service.run(stop.clone()));
        (!told).then(|| "a holder was not told that its job is wanted again".into())
    }

    /// An acceptor that is woken just as it stops sleeping wakes another one.
    pub(super) async fn wake_another_sleeper(&self) -> Option<String> {
        let (mine, other) = (1, 2);
        let (calm, ty) = (&self.calm, &self.ty);
        let hang = calm.store().transact("hang", |tx| async move {
            calm.add_sleeper_in(&tx, ty, mine, 1);
            calm.add_sleeper_in(&tx, ty, other, 2);
            Ok::<_, Error>(())
        });
        hang.await.unwrap();
        let (mine_key, other_key) = (
            calm.keys().sleeper(ty, mine),
            calm.keys().sleeper(ty, other),
        );
        let ring = async {
            sleep(self.late).await;
            let before = self.value(&mine_key).await;
            self.add(&JobId::try_from("a").unwrap(), "").await;
            before.is_some() && self.value(&mine_key).await.is_none()
        };
        let (taken, rung) = tokio::join!(self.jobs.remove_sleeper(ty, mine), ring);
        taken.unwrap();
        (rung && self.value(&other_key).await.is_some()).then(|| "no sleeper was woken".into())
    }

    /// Of two notifiers, one that returns after a long time keeps its bell and its notes.
    pub(super) async fn clear_bells(&self) -> Option<String> {
        let (nonces, id) = ([7, 8], JobId::try_from("a").unwrap());
        let (calm, jobs, ty) = (&self.calm, &self.jobs, &self.ty);
        let rows = |nonce| {
            let keys = calm.keys();
            (keys.notifier(ty, nonce), keys.note(ty, nonce, &id))
        };
        let touch = |nonce| {
            let (bell, note) = rows(nonce);
            async move {
                let (bell, note) = (&bell, &note);
                let touched = calm.store().transact("touch", |tx| async move {
                    let value = stamp_template(calm.store().incarnation(), &[]);
                    tx.set_versionstamped_value(bell, &value);
                    tx.set(note, &[]);
                    calm.add_sleeper_in(&tx, ty, 3, 3);
                    Ok::<_, Error>(())
                });
                touched.await.unwrap();
            }
        };
        for nonce in nonces {
            touch(nonce).await;
        }
        let nonce = nonces[self.either];
        let mut leases = Leases::new(1);
        let mut bells = Bells::new(jobs, ty, watch::channel(Held::default()).1);
        let expiry = Duration::from_secs(20);
        let order = leases.turn(jobs, ty, expiry).await.unwrap();
        let lease = leases.held()[0];
        bells.clear(&lease, order).await.unwrap();
        sleep(BELL_AGE_MAX).await;
        let order = leases.turn(jobs, ty, expiry).await.unwrap();
        let back = async {
            sleep(self.late).await;
            touch(nonce).await;
        };
        let (cleared, ()) = tokio::join!(bells.clear(&lease, order), back);
        cleared.unwrap();
        let (bell, note) = rows(nonce);
        let (bell, note) = (self.value(&bell).await, self.value(&note).await);
        (bell.is_none() || note.is_none()).then(|| "what a notifier had is gone".into())
    }
}
