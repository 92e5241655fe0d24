//! Races for the slots of limits: transactions that free one, and transactions that want one.

use std::time::Duration;

use futures::FutureExt;
use tokio::time::sleep;

use super::World;
use crate::operations::leases::Leases;
use crate::services::monitor::TypeMonitor;
use crate::{
    Add, ByPolicy, Class, Finish, Holder, Job, JobId, JobLock, Jobs, Limit, LimitName, Options,
    Signal, TypeConfig,
};

/// How a job that has a slot loses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freeing {
    Finish,
    /// The same, in the transaction of a claim.
    FinishAndClaim,
    Remove,
    Stall,
    /// The job waits for its other limit, and is postponed.
    Add,
    Resubmit,
    /// The same of a job that was claimed before it was due, by a signal.
    Signal,
    /// It goes on without.
    Release,
}

const FREEING: [Freeing; 8] = [
    Freeing::Finish,
    Freeing::FinishAndClaim,
    Freeing::Remove,
    Freeing::Stall,
    Freeing::Add,
    Freeing::Resubmit,
    Freeing::Release,
    Freeing::Signal,
];

/// Longer than any race.
const SOON_MS: i64 = 3_600_000;

fn limit() -> LimitName {
    LimitName::new("k").unwrap()
}

fn closed_pool() -> LimitName {
    LimitName::new("closed").unwrap()
}

/// A job that gets its key, and not its pool.
fn postponable(id: &JobId) -> Add {
    Add::new(id.clone(), "").key(limit()).pool(closed_pool())
}

impl World {
    async fn add_limited(&self, id: &str) {
        let id = JobId::new(id.to_owned()).unwrap();
        let add = Add::new(id, "").key(limit());
        self.calm.add(&self.ty, add).await.unwrap();
    }

    async fn set_limit(&self, max: u32) {
        let limited = Some(Limit::at_once(max));
        let set = self.calm.set_limit(&self.ty, &limit(), limited).await;
        set.unwrap();
    }

    /// A job with the last slot: running, or waiting for its other limit.
    async fn holder(&self, freeing: Freeing) -> (Job, Option<Job>) {
        let id = JobId::new("a").unwrap();
        let waits = matches!(freeing, Freeing::Add | Freeing::Resubmit | Freeing::Signal);
        let due_ms = match freeing {
            Freeing::Signal => self.calm.clock().now_ms() + 2 * SOON_MS,
            _ => 0,
        };
        if waits {
            let closed = Some(Limit::at_once(0));
            let set = self.calm.set_limit(&self.ty, &closed_pool(), closed).await;
            set.unwrap();
            let add = postponable(&id).due_ms(due_ms);
            self.calm.add(&self.ty, add).await.unwrap();
            let me = Holder::new("me").unwrap();
            let early = self.calm.claim_by(&self.ty, &me, 1, due_ms);
            self.calm.accept_claim(&early).await.unwrap();
        } else {
            self.add_limited("a").await;
        }
        let job = match self.accept_all().await.pop() {
            Some(job) => job,
            None => Job::new(self.ty.clone(), id, JobLock::from_bits(0), 0),
        };
        let other = match freeing {
            Freeing::Finish => self.other_run().await,
            _ => None,
        };
        (job, other)
    }

    /// A run with another limit.
    async fn other_run(&self) -> Option<Job> {
        let id = JobId::new("other").unwrap();
        let add = Add::new(id.clone(), "").key(self.other_limit());
        self.calm.add(&self.ty, add).await.unwrap();
        let runs = self.accept_all().await;
        runs.into_iter().find(|job| job.id == id)
    }

    /// A limit before or after the one that races are for.
    fn other_limit(&self) -> LimitName {
        LimitName::new(["a", "z"][self.either]).unwrap()
    }

    /// Takes the slot away from its job.
    async fn free(&self, freeing: Freeing, (job, other): (Job, Option<Job>)) {
        let (jobs, ty, job, id) = (&self.jobs, &self.ty, &job, &job.id);
        match freeing {
            Freeing::Finish => {
                let mut ended = vec![job.clone()];
                ended.extend(other);
                let first = self.either % ended.len();
                ended.rotate_left(first);
                let ended: Vec<_> = (ended.into_iter())
                    .map(|job| (job, Finish::done()))
                    .collect();
                jobs.finish_many(&ended).await.unwrap();
            }
            Freeing::FinishAndClaim => {
                let (op, claim) = (&jobs.op(), &jobs.claim(ty, &Holder::new("me").unwrap(), 0));
                let ended = &[(job.clone(), Finish::done())];
                let ended = jobs.transact_claim(claim, |tx| async move {
                    let ended = jobs.finish_many_in(&tx, op, ended).await?;
                    jobs.accept_in(&tx, claim).await.map(|_| drop(ended))
                });
                let ((), _) = ended.await.unwrap();
            }
            Freeing::Remove => jobs.remove(ty, id).await.unwrap(),
            Freeing::Release => drop(jobs.release_limits(job).await.unwrap()),
            Freeing::Add => {
                jobs.add(ty, postponable(id).due_ms(i64::MAX))
                    .await
                    .unwrap();
            }
            Freeing::Resubmit => {
                let asked = jobs.resubmit(ty, id, Some(i64::MAX), None).await;
                asked.unwrap();
            }
            Freeing::Signal => {
                let due_ms = jobs.clock().now_ms() + SOON_MS;
                let signal = Signal::new(id.clone()).due_ms(due_ms);
                jobs.signal(ty, signal).await.unwrap();
            }
            Freeing::Stall => {
                let mut leases = Leases::new(1);
                let timeout = Duration::from_secs(20);
                let before = leases.turn(jobs, ty, timeout).await.unwrap();
                let (options, config) = (Options::default(), TypeConfig::new(60_000));
                let monitor = TypeMonitor::new(jobs, ty, &ByPolicy, &options);
                let all = leases.held();
                let lease = all.iter().find(|lease| {
                    crate::operations::leases::buckets(lease.partition)
                        .any(|bucket| bucket == id.bucket())
                });
                let silent = [id.clone()];
                let stalled = monitor.stall(lease.unwrap(), &silent, before, &config);
                assert!(stalled.await.unwrap(), "the lease is held");
            }
        }
    }

    /// Jobs have waited for the limits, and do not any more. The process that frees slots remembers it.
    async fn mark(&self) {
        self.jobs.known_limits().wait(&self.ty);
        for name in [limit(), self.other_limit()] {
            let id = JobId::new("marks").unwrap();
            let add = Add::new(id.clone(), "").key(name);
            self.calm.add(&self.ty, add).await.unwrap();
            self.accept_all().await;
            self.calm.remove(&self.ty, &id).await.unwrap();
        }
    }

    /// A job that finds no slot just as one is freed gets it, whether jobs have waited before or not.
    pub(super) async fn hand_over(&self) -> Option<String> {
        for (freeing, marked) in FREEING
            .map(|freeing| [(freeing, false), (freeing, true)])
            .concat()
        {
            let world = self.again().await;
            world.set_limit(1).await;
            let job = world.holder(freeing).await;
            if marked {
                world.mark().await;
            }
            world.add_limited("c").await;
            let me = Holder::new("other").unwrap();
            let claim = async {
                sleep(world.late).await;
                world.calm.accept(&world.ty, &me, 10).await.unwrap();
            };
            tokio::join!(world.free(freeing, job), claim);
            let problem = world.problems().await;
            if problem.is_some() {
                return problem;
            }
        }
        None
    }

    /// A waiting job that is removed just as it gets a slot is gone, and the slot is free.
    pub(super) async fn leave(&self) -> Option<String> {
        for freeing in FREEING {
            let world = self.again().await;
            world.set_limit(1).await;
            let job = world.holder(freeing).await;
            world.add_limited("c").await;
            assert!(world.accept_all().await.is_empty());
            let remove = async {
                sleep(world.late).await;
                let id = JobId::new("c").unwrap();
                world.calm.remove(&world.ty, &id).await.unwrap();
            };
            tokio::join!(world.free(freeing, job), remove);
            let problem = world.problems().await;
            if problem.is_some() {
                return problem;
            }
        }
        None
    }

    /// A job that finds another one waiting gets the slot that is freed when that one is gone.
    pub(super) async fn wait_behind(&self) -> Option<String> {
        let world = self.again().await;
        world.set_limit(1).await;
        let (job, other) = world.holder(Freeing::Finish).await;
        world.add_limited("b").await;
        assert!(world.accept_all().await.is_empty());
        world.add_limited("c").await;
        // Until jobs that have waited are forgotten: the ends look whether any job of the type waits.
        sleep(Duration::from_secs(10)).await;
        let me = Holder::new("me").unwrap();
        let free = async {
            sleep(world.late).await;
            let waits = JobId::new("b").unwrap();
            world.calm.remove(&world.ty, &waits).await.unwrap();
            let ended = [job].into_iter().chain(other);
            let ended: Vec<_> = ended.map(|job| (job, Finish::done())).collect();
            world.calm.finish_many(&ended).await.unwrap();
        };
        let (claimed, ()) = tokio::join!(world.jobs.accept(&world.ty, &me, 1), free);
        claimed.unwrap();
        world.problems().await
    }

    /// A job that begins to wait just as a slot is freed gets it, and not one of a later class that has waited longer.
    pub(super) async fn outrank(&self) -> Option<String> {
        for ends_late in [false, true] {
            let world = self.again().await;
            world.set_limit(1).await;
            let (ends, _) = world.holder(Freeing::Finish).await;
            let (bulk, normal) = (Class::Bulk, Class::Normal);
            for (id, class) in [("first", bulk), ("second", bulk), ("normal", normal)] {
                assert!(world.accept_all().await.is_empty());
                let add = Add::new(id.try_into().unwrap(), "").key(limit());
                world.calm.add(&world.ty, add.class(class)).await.unwrap();
            }
            let me = Holder::new("me").unwrap();
            let claim = async |jobs: &Jobs| jobs.accept(&world.ty, &me, 1).await.unwrap();
            let end = async |jobs: &Jobs| jobs.finish(&ends, Finish::done()).await.unwrap();
            let late = sleep(world.late);
            let (claimed, _held) = if ends_late {
                tokio::join!(claim(&world.jobs), late.then(|()| end(&world.calm)))
            } else {
                tokio::join!(late.then(|()| claim(&world.calm)), end(&world.jobs))
            };
            let claimed = claimed.jobs.into_iter().map(|accepted| accepted.job);
            let started = claimed.chain(world.accept_all().await);
            let started: Vec<JobId> = started.map(|job| job.id).collect();
            if *started != ["normal".try_into().unwrap()] {
                return Some(format!("other jobs start first: {started:?}"));
            }
        }
        None
    }

    /// A claim just as there are more slots, and a job that loses its slot then, leave no free slot and waiting job.
    pub(super) async fn raise(&self) -> Option<String> {
        for freeing in FREEING {
            let world = self.again().await;
            world.set_limit(1).await;
            let job = world.holder(freeing).await;
            world.add_limited("c").await;
            assert!(world.accept_all().await.len() <= 1);
            world.set_limit(0).await;
            let raise = async {
                sleep(world.late).await;
                world.set_limit(1).await;
            };
            tokio::join!(world.free(freeing, job), raise);
            let problem = world.problems().await;
            if problem.is_some() {
                return problem;
            }
        }
        self.set_limit(0).await;
        self.add_limited("a").await;
        let me = Holder::new("me").unwrap();
        let raise = async {
            sleep(self.late).await;
            self.set_limit(1).await;
        };
        let (claimed, ()) = tokio::join!(self.jobs.accept(&self.ty, &me, 1), raise);
        claimed.unwrap();
        self.problems().await
    }

    /// Two jobs lose their slots when the limit has been lowered: the last of them is followed by a job that waits.
    pub(super) async fn lower(&self) -> Option<String> {
        for freeing in FREEING {
            let world = self.again().await;
            world.set_limit(3).await;
            for id in ["x", "y"] {
                world.add_limited(id).await;
            }
            let others = world.accept_all().await;
            let job = world.holder(freeing).await;
            world.add_limited("c").await;
            assert!(world.accept_all().await.len() <= 1);
            world.set_limit(2).await;
            let finish = async {
                sleep(world.late).await;
                let _ = world.calm.finish(&others[0], Finish::done()).await.unwrap();
            };
            tokio::join!(world.free(freeing, job), finish);
            let problem = world.problems().await;
            if problem.is_some() {
                return problem;
            }
        }
        None
    }

    /// A limit that is changed just as it forgets that it was higher keeps its new setting.
    pub(super) async fn relax(&self) -> Option<String> {
        let world = self.again().await;
        world.set_limit(3).await;
        world.set_limit(1).await;
        let change = async {
            sleep(world.late).await;
            world.set_limit(2).await;
        };
        let (relaxed, ()) = tokio::join!(world.jobs.relax_limits(&world.ty), change);
        relaxed.unwrap();
        let limits = world.calm.limits(&world.ty).await.unwrap();
        let kept = limits.get(&limit()) == Some(&Limit::at_once(2));
        (!kept).then(|| format!("a setting was lost: {limits:?}"))
    }

    /// A claim and a holder that has given its slot back take different slots.
    pub(super) async fn retake(&self) -> Option<String> {
        let world = self.again().await;
        world.set_limit(1).await;
        let (job, _) = world.holder(Freeing::Release).await;
        let _held = world.calm.release_limits(&job).await.unwrap();
        world.add_limited("c").await;
        let claim = async {
            sleep(world.late).await;
            world.accept_all().await
        };
        let (retaken, claimed) = tokio::join!(world.jobs.retake_limits(&job), claim);
        if retaken.unwrap() && !claimed.is_empty() {
            return Some("both have the slot".to_owned());
        }
        world.problems().await
    }

    /// A job that is removed just as its holder gives its slot back is gone.
    pub(super) async fn quit(&self) -> Option<String> {
        let world = self.again().await;
        world.set_limit(1).await;
        let (job, _) = world.holder(Freeing::Release).await;
        let remove = async {
            sleep(world.late).await;
            world.calm.remove(&world.ty, &job.id).await.unwrap();
        };
        let (released, ()) = tokio::join!(world.jobs.release_limits(&job), remove);
        assert!(matches!(released, Ok(_) | Err(crate::Error::Halt)));
        let left = world.calm.info(&world.ty, &job.id).await.unwrap();
        match left {
            Some(_) => Some("the job is there again".to_owned()),
            None => world.problems().await,
        }
    }

    /// Two claims take different slots.
    pub(super) async fn share(&self) -> Option<String> {
        self.set_limit(2).await;
        for id in ["a", "b"] {
            self.add_limited(id).await;
        }
        let other = Add::new(JobId::new("d").unwrap(), "").key(self.other_limit());
        self.calm.add(&self.ty, other).await.unwrap();
        let me = Holder::new("me").unwrap();
        let other = async {
            sleep(self.late).await;
            self.calm.accept(&self.ty, &me, 1).await
        };
        let (mine, other) = tokio::join!(self.jobs.accept(&self.ty, &me, 2), other);
        mine.and(other).unwrap();
        self.problems().await
    }

    /// A slot of a rate that is taken just as its row is cleared is not free again, and a job that begins to wait then is
    /// found.
    pub(super) async fn clear(&self) -> Option<String> {
        for waits in [false, true] {
            let world = self.again().await;
            let problem = world.clear_while(waits).await;
            if problem.is_some() {
                return problem;
            }
        }
        None
    }

    async fn clear_while(&self, waits: bool) -> Option<String> {
        let names = ["a", "z"].map(|name| LimitName::new(name).unwrap());
        let rate = Some(Limit::per(1, 3_600_000));
        let job = |name: &LimitName| {
            let id = JobId::new(name.as_bytes().to_vec()).unwrap();
            Add::new(id, "").key(name.clone())
        };
        for name in &names {
            self.calm.set_limit(&self.ty, name, rate).await.unwrap();
            self.calm.add(&self.ty, job(name)).await.unwrap();
        }
        for job in self.accept_all().await {
            let _ = self.calm.finish(&job, Finish::done()).await.unwrap();
        }
        self.set_limit(1).await;
        self.add_limited("c").await;
        self.accept_all().await;
        self.mark().await;
        sleep(Duration::from_hours(2)).await;
        let name = &names[self.either];
        if waits {
            self.add_limited("d").await;
        } else {
            self.calm.add(&self.ty, job(name)).await.unwrap();
        }
        let claim = async {
            sleep(self.late).await;
            self.accept_all().await.len()
        };
        let (cleared, claimed) = tokio::join!(self.jobs.clear_cold(&self.ty, None), claim);
        cleared.unwrap();
        assert_eq!(claimed, usize::from(!waits));
        let slot = self.calm.keys().slot(&self.ty, name.as_bytes(), 0);
        let forgotten = !waits && self.value(&slot).await.is_none();
        let forgotten = forgotten.then(|| "a slot is free too early".into());
        forgotten.or(self.problems().await)
    }
}
