//! The last runs whose end deleted their job in this process: the store has nothing left by which a retry after an
//! unknown outcome could recognise that it was done. Runs whose end was not committed are among them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::model::header::Header;
use crate::{Job, JobLock};

/// Maximum runs remembered: more than end during the retries of one call.
const RUNS: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Deleted(Mutex<VecDeque<Run>>);

#[derive(Debug)]
struct Run {
    lock: JobLock,
    /// The operation that created its job.
    born: u64,
}

impl Deleted {
    pub(crate) fn add(&self, lock: JobLock, born: u64) {
        let mut runs = self.runs();
        if runs.len() >= RUNS {
            runs.pop_front();
        }
        runs.push_back(Run { lock, born });
    }

    /// Whether the end of this run deleted its job. It did not if the job is still there `now`.
    pub(crate) fn contains(&self, job: &Job, now: Option<&Header>) -> bool {
        let is_left =
            |born| now.is_some_and(|header| header.born == born && header.attempts >= job.attempt);
        let runs = self.runs();
        let mut of_job = runs.iter().filter(|run| run.lock == job.lock);
        of_job.any(|run| !is_left(run.born))
    }

    fn runs(&self) -> MutexGuard<'_, VecDeque<Run>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use store::Store;

    use crate::model::machine::{Event, Verdict};
    use crate::{Add, Clock, Entropy, Error, Finish, Holder, JobId, JobType, Jobs, TypeConfig};

    /// The monitor takes the job away before the end is committed.
    #[tokio::test]
    async fn a_run_whose_end_was_not_committed_has_not_ended() {
        let store = Store::open("memory:").await.unwrap();
        let jobs = &Jobs::new(store, Clock::simulated(1_000_000), Entropy::seeded(1));
        let (ty, id) = (&JobType::new("t").unwrap(), JobId::try_from("a").unwrap());
        let config = TypeConfig {
            retention_ms: Some(0),
            ..TypeConfig::new(60_000)
        };
        jobs.set_type(ty, config).await.unwrap();
        jobs.add(ty, Add::new(id.clone(), "")).await.unwrap();
        let holder = Holder::new("h").unwrap();
        let claimed = jobs.accept(ty, &holder, 1).await.unwrap().jobs;
        let (job, op) = (&claimed[0].job, &jobs.op());
        let ended = jobs.store().transact("finish", |tx| async move {
            let ends = [(job.clone(), Finish::done())];
            let answers = jobs.finish_many_in(&tx, op, &ends).await?;
            if tx.attempt() == 1 {
                stall(jobs, ty, &job.id).await;
            }
            Ok::<_, Error>(answers)
        });
        let ended = ended.await.unwrap();
        assert!(matches!(ended[..], [Err(Error::Halt)]), "{ended:?}");
        assert!(!jobs.has_ended(job).await.unwrap());
        // The end of the next run is committed.
        let claimed = jobs.accept(ty, &holder, 1).await.unwrap().jobs;
        let job = &claimed[0].job;
        assert!(!jobs.finish(job, Finish::done()).await.unwrap().again);
        assert!(jobs.has_ended(job).await.unwrap());
        jobs.add(ty, Add::new(id, "")).await.unwrap();
        assert!(jobs.has_ended(job).await.unwrap());
    }

    async fn stall(jobs: &Jobs, ty: &JobType, id: &JobId) {
        let op = &jobs.op();
        let stall = jobs.store().transact("stall", |tx| async move {
            let mut header = jobs.header(&tx, ty, id).await?;
            let mut effects = jobs.effects(&tx, op.now_ms).await?;
            let event = Event::Stall {
                verdict: Verdict::Policy,
                policy: TypeConfig::new(1).stalls,
            };
            effects.run(ty, id, &mut header, event)?;
            effects.flush(op).await.map(drop)
        });
        stall.await.unwrap();
    }
}
