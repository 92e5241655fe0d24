//! Which jobs stop for others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use jobs::{LimitName, Limits};

use super::{Server, Worker};

/// Limits per transaction that looks for jobs waiting for them.
const LIMITS_MAX: usize = 500;

impl Server {
    /// Stops continuous jobs, at most `surplus`, and none before `min_run_time`: those of the tenant that has used most of its
    /// share first, and of these the ones that have run longest.
    pub(super) async fn trim(&self, surplus: usize, min_run_time: Duration) -> usize {
        let mut workers: Vec<&Worker> = (self.workers.values())
            .filter(|worker| worker.may_stop(min_run_time))
            .collect();
        if surplus == 0 || workers.is_empty() {
            return 0;
        }
        let tenants = workers.iter().map(|worker| worker.tenant.clone());
        let used = (self.runner.replications).used(tenants.collect()).await;
        let used = used.unwrap_or_else(|error| {
            tracing::warn!(error = %wire::chain(&error), "cannot read the usage of tenants");
            HashMap::new()
        });
        workers.sort_by_key(|worker| {
            let used = used.get(&worker.tenant).copied().unwrap_or_default();
            let since_ms = worker.stops.shown.running_since_ms();
            (Reverse(used), since_ms, &worker.job.id)
        });
        let victims = workers.into_iter().take(surplus);
        victims.filter(|worker| worker.stop()).count()
    }

    /// Stops continuous jobs whose target or server others wait for: of each limit the one that has run longest.
    pub(super) async fn yield_limits(&self) -> jobs::Result<usize> {
        let replications = &self.runner.replications;
        let options = replications.options();
        let (rates, mut longest) = (options.rates(), HashMap::<&LimitName, &Worker>::new());
        let workers = (self.workers.values())
            .filter(|worker| worker.may_yield(&options) && options.restricts(&worker.limits));
        for worker in workers {
            let Limits { key, pool } = &worker.limits;
            let limits = [key, pool].into_iter().flatten();
            for limit in limits.filter(|limit| !rates.contains(*limit)) {
                let first = longest.entry(limit).or_insert(worker);
                let since_ms = |worker: &Worker| worker.stops.shown.running_since_ms();
                if since_ms(worker) < since_ms(first) {
                    *first = worker;
                }
            }
        }
        let names: Vec<LimitName> = longest.keys().map(|name| (*name).clone()).collect();
        let mut stopped = 0;
        for names in names.chunks(LIMITS_MAX) {
            let waits = (replications.0.jobs)
                .limits_waited_for(&replications.0.ty, names)
                .await?;
            let waited_for = names.iter().zip(waits).filter(|(_, waits)| *waits);
            stopped += waited_for.filter(|(name, _)| longest[name].stop()).count();
        }
        Ok(stopped)
    }

    /// With `max_jobs` 0, a node also gives back its idle jobs.
    pub(super) fn trim_parked(&self) -> usize {
        let parked = (self.workers.values()).filter(|worker| worker.stops.shown.is_parked());
        parked.filter(|worker| worker.stop()).count()
    }
}
