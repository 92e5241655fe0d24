//! Guarantees for a holder without faults: it learns at once that its job was removed or requested again, and keeps its
//! job when the timeout of the type changes.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::fleet::Fleet;
use crate::{
    Accepted, Acceptor, AcceptorHandle, Add, Holder, Job, JobId, JobType, Jobs, Maintenance, State,
    TypeConfig,
};

/// Long before the next heartbeat.
const AT_ONCE: Duration = Duration::from_secs(3);
const LONG_MS: u64 = 60_000;
const SHORT_MS: u64 = 6_000;

struct Held<'a> {
    fleet: &'a Fleet,
    ty: JobType,
    id: JobId,
    acceptor: AcceptorHandle,
}

impl Fleet {
    pub(super) async fn hold(&mut self) {
        let ty = JobType::new("held").unwrap();
        let (jobs, _) = self.queue(0, 2);
        let holder = Holder::new("holder").unwrap();
        let (service, acceptor) = Acceptor::new(jobs.clone(), ty.clone(), holder);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(service.run(stop.clone()));
        let options = self.world.plan.options.clone();
        let maintenance = Maintenance::new(jobs.clone(), options).serve(ty.clone());
        let maintaining = tokio::spawn(maintenance.run(stop.clone()));
        let held = Held {
            fleet: self,
            ty: ty.clone(),
            id: JobId::try_from("a").unwrap(),
            acceptor,
        };
        held.set_timeout(LONG_MS).await;
        held.signals(&jobs).await;
        held.paces(&jobs).await;
        stop.cancel();
        serving.await.unwrap();
        maintaining.await.unwrap();
        self.calm.clear_type(&ty).await.unwrap();
    }
}

impl Held<'_> {
    async fn set_timeout(&self, timeout_ms: u64) {
        let config = TypeConfig::new(timeout_ms);
        let set = self.fleet.calm.set_type(&self.ty, config);
        set.await.unwrap();
    }

    async fn begin(&self) -> Accepted {
        let add = Add::new(self.id.clone(), "");
        self.fleet.calm.add(&self.ty, add).await.unwrap();
        let accepted = self.acceptor.accept(1, Duration::from_mins(1)).await;
        accepted.unwrap().remove(0)
    }

    /// Of two held jobs, one is requested again, and then removed.
    async fn signals(&self, jobs: &Jobs) {
        let calm = &self.fleet.calm;
        let other = Add::new(JobId::try_from("b").unwrap(), "");
        calm.add(&self.ty, other).await.unwrap();
        let other = self.acceptor.accept(1, Duration::from_mins(1)).await;
        let other = other.unwrap().remove(0).job;
        let job = self.begin().await.job;
        let asked = jobs.resubmit(&self.ty, &self.id, None, None);
        asked.await.unwrap();
        self.is_told(job.again(), "wanted again").await;
        if job.lost().is_cancelled() {
            self.problem("a job that is only wanted again was said to be lost");
        }
        jobs.remove(&self.ty, &self.id).await.unwrap();
        self.is_told(job.lost(), "removed").await;
        if other.again().is_cancelled() || other.lost().is_cancelled() {
            self.problem("the holder of another job was told");
        }
        calm.remove(&self.ty, &other.id).await.unwrap();
    }

    async fn is_told(&self, signal: &CancellationToken, what: &str) {
        if timeout(AT_ONCE, signal.cancelled()).await.is_err() {
            self.problem(&format!(
                "the holder of a job was not told that it is {what}"
            ));
        }
    }

    /// A job is kept alive while its type's timeout drops to a tenth, and rises again.
    async fn paces(&self, jobs: &Jobs) {
        let accepted = self.begin().await;
        let begun = Instant::now();
        let changes = async {
            for (wait_s, timeout_ms) in [(20, SHORT_MS), (120, LONG_MS), (100, SHORT_MS)] {
                sleep(Duration::from_secs(wait_s)).await;
                self.set_timeout(timeout_ms).await;
            }
            sleep(Duration::from_mins(2)).await;
        };
        tokio::select! {
            biased;
            () = changes => {}
            _ = jobs.keep_alive(&accepted, |_| {}) => {
                self.problem(&format!("a job that was kept alive was lost after {:?}", begun.elapsed()));
            }
        }
        let Job {
            ty, id, attempt, ..
        } = &accepted.job;
        let info = self.fleet.calm.info(ty, id).await.unwrap();
        let still =
            info.is_some_and(|info| info.state == State::Running && info.attempts == *attempt);
        if !still {
            self.problem("a job that was kept alive was given to another holder");
        }
    }

    fn problem(&self, problem: &str) {
        self.fleet.world.history.problem(problem);
    }
}
