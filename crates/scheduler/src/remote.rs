//! Remotes: rules that copy each database to one URL or several, with a limit of runs, delays and retries of their own.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::PoisonError;
use std::time::Duration;

use jobs::{JobId, Limit, LimitName, Op};
use store::Transaction;

use crate::data::{remote_of, remote_pool};
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::wake::after_ms;
use replication::params::Trigger;

const TOO_MANY: &str = "Too many remotes (about 1,000 is the maximum); combine several URLs or patterns in one remote.";

/// A time of up to `max` that is the same whenever a transaction is repeated.
pub(crate) fn jitter_ms(op: &Op, job: &JobId, max: Duration) -> i64 {
    let mut hasher = DefaultHasher::new();
    (op.bits, job.as_bytes()).hash(&mut hasher);
    let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX - 1);
    i64::try_from(hasher.finish() % max_ms.saturating_add(1)).unwrap_or(i64::MAX)
}

/// When a run that is asked for now is due.
pub(crate) fn delayed_ms(op: &Op, job: &JobId, trigger: Option<&Trigger>) -> i64 {
    let Some(trigger) = trigger else {
        return 0;
    };
    let due_ms = after_ms(op.now_ms, trigger.delay);
    due_ms.saturating_add(jitter_ms(op, job, trigger.random_delay))
}

impl Replications {
    /// Sets how many runs of a remote there may be at once on all nodes; `None` if there is no remote of this name any more.
    /// `op` must not be that of another call.
    pub async fn limit_remote_in(
        &self,
        tx: &Transaction,
        op: &Op,
        name: &str,
        threads: Option<u32>,
    ) -> Result<(), ServiceError> {
        let limit = threads.map(Limit::at_once);
        let (jobs, ty) = (&self.0.jobs, &self.0.ty);
        match jobs
            .set_limit_in(tx, op, ty, &remote_pool(name)?, limit)
            .await
        {
            Err(jobs::Error::Invalid(_)) => Err(ServiceError::Forbidden(TOO_MANY)),
            set => Ok(set?),
        }
    }

    /// Starts runs of a remote that wait although its limit was raised.
    pub async fn serve_remote(&self, name: &str) -> Result<(), ServiceError> {
        Ok(self
            .0
            .jobs
            .serve_limit(&self.0.ty, &remote_pool(name)?)
            .await?)
    }

    /// The names of all remotes in order, and how many runs each may have at once.
    pub async fn remotes(&self) -> Result<Vec<(String, u32)>, ServiceError> {
        let limits = self.0.jobs.limits(&self.0.ty).await?;
        let named =
            |(name, limit): (LimitName, Limit)| Some((remote_of(&name)?.to_owned(), limit.max));
        Ok(limits.into_iter().filter_map(named).collect())
    }

    /// Updates the metrics of remotes: runs, and jobs that wait for one. Those of remotes that are gone become 0.
    pub(crate) async fn count_remotes(&self) -> Result<(), ServiceError> {
        let remotes = self.remotes().await?;
        let names = remotes.iter().map(|(name, _)| name.clone()).collect();
        let before = {
            let mut counted = self
                .0
                .counted
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *counted, names)
        };
        let is_there = |name: &str| remotes.iter().any(|(known, _)| known == name);
        for name in before.iter().filter(|name| !is_there(name)) {
            crate::metrics::remote(name, 0, 0, 0);
        }
        for (name, threads) in remotes {
            let uses = self
                .0
                .jobs
                .limit_use(&self.0.ty, &remote_pool(&name)?)
                .await?;
            crate::metrics::remote(&name, threads, uses.jobs.len(), uses.waiting);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a remote that is gone would stay for as long as the node runs.
    #[tokio::test]
    async fn a_remote_that_is_gone_has_no_threads() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let store = store::Store::open("memory:").await.unwrap();
        let jobs = jobs::Jobs::new(
            store.clone(),
            jobs::Clock::simulated(1_000_000),
            jobs::Entropy::seeded(1),
        );
        let docs = docstore::DocStore::new(store, docstore::Options::default());
        let setup = crate::Setup::default();
        let replications = &Replications::open(jobs, docs, setup).await.unwrap();
        for threads in [Some(3), None] {
            let op = replications.0.jobs.op();
            let limit = |tx: Transaction| async move {
                replications.limit_remote_in(&tx, &op, "eu", threads).await
            };
            let store = replications.0.jobs.store();
            store.transact("limit", limit).await.unwrap();
            replications.count_remotes().await.unwrap();
            let shown = recorder.handle().render();
            let threads = threads.unwrap_or(0);
            let line = format!("davenport_remote_threads{{remote=\"eu\"}} {threads}");
            assert!(shown.contains(&line), "{shown}");
        }
    }

    #[test]
    fn jitter_is_repeatable_and_bounded() {
        let op = |bits| Op { now_ms: 0, bits };
        let job: JobId = "j".try_into().unwrap();
        let draw = |bits| jitter_ms(&op(bits), &job, Duration::from_secs(1));
        assert_eq!(draw(7), draw(7));
        let drawn: std::collections::BTreeSet<i64> = (0..2_000).map(draw).collect();
        assert!(drawn.len() > 800 && drawn.iter().all(|ms| (0..=1_000).contains(ms)));
        assert_eq!(jitter_ms(&op(7), &job, Duration::ZERO), 0);
    }
}
