//! Inboxes: what collects beside a job until its next run takes it.
//!
//! A signal has no data. Its sender writes what it is about into the inbox of the job, in the same transaction.
//! A run takes all of it into the job's data. So nothing changes what a run is about, a run that fails or dies leaves it to
//! the next one, and what arrives during a run waits for the run that the signal causes.

use bytes::Bytes;
use store::{Transaction, tuple};

use crate::{Error, Finish, Job, JobId, Jobs, Result};

/// The inboxes of the jobs of one type: one row per job, in a format that the application chooses.
#[derive(Debug, Clone)]
pub struct Inbox {
    jobs: Jobs,
    prefix: Vec<u8>,
}

impl Inbox {
    /// The inboxes under a key prefix that nothing else uses.
    pub fn new(jobs: Jobs, prefix: Vec<u8>) -> Self {
        Self { jobs, prefix }
    }

    fn key(&self, id: &JobId) -> Vec<u8> {
        [&*self.prefix, &tuple::pack(&id.as_bytes())].concat()
    }

    /// What has arrived for a job and has not been taken.
    pub async fn get(&self, id: &JobId) -> Result<Option<Bytes>> {
        let get = |tx| async move { self.get_in(&tx, id).await };
        self.jobs.read("inbox", get).await
    }

    /// [`Self::get`] in the caller's transaction.
    pub async fn get_in(&self, tx: &Transaction, id: &JobId) -> Result<Option<Bytes>> {
        Ok(tx.get(&self.key(id)).await?)
    }

    /// Replaces what has arrived for a job, in the transaction that read it and that signals the job.
    pub fn put_in(&self, tx: &Transaction, id: &JobId, arrived: &[u8]) {
        tx.set(&self.key(id), arrived);
    }

    /// Moves what has arrived for a running job into its data, and returns the data: what `merge` makes of the data and what
    /// has arrived. A holder that repeats this after a failure loses nothing.
    pub async fn take(
        &self,
        job: &Job,
        merge: impl Fn(&Bytes, &Bytes) -> Result<Bytes>,
    ) -> Result<Bytes> {
        let (op, merge) = (self.jobs.op(), &merge);
        let take = self.jobs.store().transact("take", |tx| async move {
            // As stored: an earlier try of this transaction may have been committed.
            let stored = self.jobs.get_in(&tx, &job.ty, &job.id).await?;
            let (_, stored) = stored.ok_or(Error::Halt)?;
            let Some(arrived) = self.get_in(&tx, &job.id).await? else {
                return Ok(stored);
            };
            let merged = merge(&stored, &arrived)?;
            let data = Some(merged.clone());
            if self.jobs.update_in(&tx, &op, job, data).await?.repeated {
                // This has arrived since then, with a signal: the next run takes it.
                return Ok(stored);
            }
            tx.clear(&self.key(&job.id));
            Ok(merged)
        });
        Box::pin(take).await
    }

    /// Ends a run as a [dead letter](crate::State::Dead). If something has arrived since it began, ends it as failed
    /// instead: the signal that came with it makes the job run again. Returns how it ended.
    pub async fn finish_dead(&self, job: &Job, finish: Finish) -> Result<Finish> {
        let (op, finish) = (&self.jobs.op(), &finish);
        let end = self.jobs.store().transact("finish", |tx| async move {
            let dead = self.get_in(&tx, &job.id).await?.is_none();
            let finish = Finish {
                dead,
                failed: true,
                ..finish.clone()
            };
            let _held = self.jobs.finish_in(&tx, op, job, finish.clone()).await?;
            Ok::<_, Error>(finish)
        });
        Box::pin(end).await
    }
}

#[cfg(test)]
mod tests {
    use store::{CommitFate, Faults, Store};

    use super::*;
    use crate::{Added, Clock, Entropy, Holder, JobType, Signal, State, TypeConfig};

    struct World {
        jobs: Jobs,
        ty: JobType,
        id: JobId,
    }

    impl World {
        async fn new() -> Self {
            let store = Store::open("memory:").await.unwrap();
            let jobs = Jobs::new(store, Clock::standing(1_000), Entropy::seeded(1));
            let ty = JobType::new("t").unwrap();
            jobs.set_type(&ty, TypeConfig::new(60_000)).await.unwrap();
            let id = JobId::new("a").unwrap();
            Self { jobs, ty, id }
        }

        fn inbox(&self) -> Inbox {
            Inbox::new(self.jobs.clone(), tuple::pack(&("app", "inbox")))
        }

        async fn arrive(&self, text: &str) -> Added {
            let (inbox, op) = (self.inbox(), self.jobs.op());
            let (inbox, op) = (&inbox, &op);
            let send = self.jobs.store().transact("arrive", |tx| async move {
                let before = inbox.get_in(&tx, &self.id).await?.unwrap_or_default();
                inbox.put_in(&tx, &self.id, &[&before, text.as_bytes()].concat());
                let add = crate::Add::new(self.id.clone(), "data:");
                let signals = &[Signal::from(add)];
                self.jobs.signal_many_in(&tx, op, &self.ty, signals).await
            });
            send.await.unwrap()[0]
        }

        async fn claim(&self) -> Job {
            let holder = Holder::new("h").unwrap();
            let claimed = self.jobs.accept(&self.ty, &holder, 1).await.unwrap();
            claimed.jobs[0].job.clone()
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "others may fail")]
    fn merge(data: &Bytes, arrived: &Bytes) -> Result<Bytes> {
        Ok([&**data, arrived].concat().into())
    }

    #[tokio::test]
    async fn a_run_takes_what_has_arrived() {
        let world = World::new().await;
        let inbox = world.inbox();
        for text in ["b", "c"] {
            world.arrive(text).await;
        }
        let key = tuple::pack(&("app", "inbox", world.id.as_bytes()));
        assert_eq!(inbox.key(&world.id), key);
        let job = world.claim().await;
        assert_eq!(inbox.take(&job, merge).await.unwrap(), "data:bc");
        // The next run gets what comes now, and what this one leaves.
        assert_eq!(world.arrive("d").await, Added::Deferred);
        let (_, data) = world.jobs.get(&world.ty, &world.id).await.unwrap().unwrap();
        assert_eq!(data, "data:bc");
        assert!(world.jobs.finish(&job, Finish::done()).await.unwrap().again);
        let job = world.claim().await;
        assert_eq!(inbox.take(&job, merge).await.unwrap(), "data:bcd");
        assert_eq!(inbox.take(&job, merge).await.unwrap(), "data:bcd");
        assert_eq!(inbox.get(&world.id).await.unwrap(), None);
        assert!(!world.jobs.finish(&job, Finish::done()).await.unwrap().again);
        world.arrive("e").await;
        assert!(matches!(inbox.take(&job, merge).await, Err(Error::Halt)));
    }

    #[tokio::test]
    async fn what_arrives_while_a_take_is_repeated_stays() {
        let world = World::new().await;
        world.arrive("b").await;
        let job = world.claim().await;
        let (store, faults) = world.jobs.store().with_faults(Faults::default());
        let jobs = Jobs::new(store, Clock::standing(1_000), Entropy::seeded(2));
        let unsure = Inbox {
            jobs,
            ..world.inbox()
        };
        faults.set_next_commit(CommitFate::UnknownApplied);
        let (taken, ()) = tokio::join!(unsure.take(&job, merge), async {
            while world.inbox().get(&world.id).await.unwrap().is_some() {
                tokio::task::yield_now().await;
            }
            world.arrive("c").await;
        });
        assert_eq!(taken.unwrap(), "data:b");
        assert_eq!(world.inbox().get(&world.id).await.unwrap().unwrap(), "c");
    }

    #[tokio::test]
    async fn a_job_that_something_has_arrived_for_does_not_die() {
        let world = World::new().await;
        let inbox = world.inbox();
        for (arrives, state) in [(true, State::Pending), (false, State::Dead)] {
            world.arrive("b").await;
            let job = world.claim().await;
            inbox.take(&job, merge).await.unwrap();
            if arrives {
                world.arrive("c").await;
            }
            let finish = Finish::dead("no").data("left");
            let finish = inbox.finish_dead(&job, finish).await.unwrap();
            assert_eq!(finish.dead, !arrives);
            // As a worker does with what its handler returns.
            let held = world.jobs.finish(&job, finish).await.unwrap();
            assert!(held.repeated);
            let (info, data) = world.jobs.get(&world.ty, &world.id).await.unwrap().unwrap();
            assert_eq!((info.state, &*data), (state, &b"left"[..]));
        }
    }
}
