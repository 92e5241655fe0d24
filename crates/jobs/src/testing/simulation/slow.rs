//! Background services on a store with reads of 1, 3 or 25 ms and transactions of at most 5 s: held
//! jobs stay held, and work on many jobs is done in time.

use std::time::Duration;

use futures::future::{join_all, try_join_all};
use store::{Faults, Store};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::testing::mistake::{self, Mistake};
use crate::{
    Accepted, Add, Clock, Entropy, Finish, Holder, JobId, JobType, Jobs, Maintenance, Notice,
    Notifier, Options, Retention, TypeConfig,
};

const LATENCIES_MS: [u64; 3] = [1, 3, 25];
pub(super) const SEEDS: u64 = 3;
const TIMEOUT: Duration = Duration::from_secs(12);
/// Jobs held at once, and how many of them are written constantly by a process that does not know
/// their heartbeats.
const HELD: usize = 200;
const HOT: usize = 8;
/// Holders that go silent together.
const SILENT: usize = 600;

struct World {
    /// A queue with slow reads, and one without.
    jobs: Jobs,
    calm: Jobs,
    ty: JobType,
}

impl World {
    async fn open(latency_ms: u64, mistake: &Mistake) -> Self {
        let store = Store::open("memory:").await.unwrap();
        let (slow, _) = store.with_faults(Faults {
            read_latency: Duration::from_millis(latency_ms),
            ..mistake.faults()
        });
        let clock = Clock::simulated(1_700_000_000_000);
        let planted = mistake.planted;
        let jobs = Jobs::planted_with(slow, clock.clone(), Entropy::seeded(latency_ms), planted);
        let calm = Jobs::new(store, clock, Entropy::seeded(0));
        let ty = JobType::new("mail").unwrap();
        let config = TypeConfig::new(u64::try_from(TIMEOUT.as_millis()).unwrap());
        calm.set_type(&ty, config).await.unwrap();
        Self { jobs, calm, ty }
    }

    /// Claims this many jobs.
    async fn accepted(&self, count: usize, retention: Retention) -> Vec<Accepted> {
        let add = |n| Add::new(id(n), "").retention(retention);
        let adds: Vec<Add> = (0..count).map(add).collect();
        self.calm.add_many(&self.ty, &adds).await.unwrap();
        let (me, mut held) = (Holder::new("me").unwrap(), Vec::new());
        while held.len() < count {
            held.extend(self.calm.accept(&self.ty, &me, 500).await.unwrap().jobs);
        }
        held
    }

    async fn finish(&self, held: Vec<Accepted>) {
        let ends: Vec<_> = held.into_iter().map(|a| (a.job, Finish::done())).collect();
        for part in ends.chunks(500) {
            for answer in self.calm.finish_many(part).await.unwrap() {
                assert!(!answer.unwrap().again);
            }
        }
    }

    /// Runs the background services for this long.
    async fn maintain(&self, wait: Duration) {
        let stop = CancellationToken::new();
        let service = Maintenance::new(self.jobs.clone(), Options::default());
        let service = service.serve(self.ty.clone());
        let running = tokio::spawn(service.run(stop.clone()));
        sleep(wait).await;
        stop.cancel();
        running.await.unwrap();
    }
}

fn id(n: usize) -> JobId {
    JobId::new(format!("job-{n}")).unwrap()
}

/// Holders that send heartbeats keep their jobs, while workers write the jobs, some of them
/// constantly.
async fn held(latency_ms: u64, mistake: &Mistake) -> Option<String> {
    let world = World::open(latency_ms, mistake).await;
    let apart = world.jobs.labelled(&world.ty, |_| 0);
    let mut tasks = JoinSet::new();
    let accepted = world.accepted(HELD, Retention::Forever).await;
    for (n, accepted) in accepted.into_iter().enumerate() {
        let (jobs, apart) = (world.jobs.clone(), apart.clone());
        let work = async move {
            let end = Instant::now() + TIMEOUT * 4;
            let job = accepted.job.clone();
            let work = async {
                while Instant::now() < end {
                    if n < HOT {
                        let _ = apart.update(&job, None).await;
                        continue;
                    }
                    if n.is_multiple_of(2) {
                        let _ = jobs.update(&job, None).await;
                    }
                    sleep(TIMEOUT / 10).await;
                }
            };
            tokio::select! {
                biased;
                _ = jobs.keep_alive(&accepted, |_| {}) => true,
                () = work => false,
            }
        };
        tasks.spawn(work);
    }
    let lost = tasks.join_all().await.into_iter().filter(|lost| *lost);
    let lost = lost.count();
    (lost > 0).then(|| format!("{lost} of {HELD} holders lost their job at {latency_ms} ms a read"))
}

pub(super) fn simulate(seed: u64, mistake: &Mistake) -> Option<String> {
    let latency_ms = LATENCIES_MS[usize::try_from(seed % SEEDS).unwrap()];
    mistake::paused().block_on(held(latency_ms, mistake))
}

#[test]
fn holders_with_heartbeats_keep_their_jobs() {
    let lost: Vec<_> = (0..SEEDS)
        .filter_map(|seed| simulate(seed, &Mistake::default()))
        .collect();
    assert_eq!(lost, Vec::<String>::new());
}

/// Runs a test with each latency.
fn at_each_latency<Fut: Future<Output = ()>>(test: impl Fn(u64) -> Fut) {
    for latency_ms in LATENCIES_MS {
        mistake::paused().block_on(test(latency_ms));
    }
}

#[test]
fn silent_holders_lose_their_jobs_in_time() {
    at_each_latency(|latency_ms| async move {
        let world = World::open(latency_ms, &Mistake::default()).await;
        world.accepted(SILENT, Retention::Forever).await;
        world.maintain((TIMEOUT + TIMEOUT / 6) * 2).await;
        let left = world.calm.counts(&world.ty).await.unwrap().running;
        assert_eq!(left, 0, "of {SILENT}, at {latency_ms} ms a read");
    });
}

#[test]
fn expired_jobs_are_removed_in_time() {
    at_each_latency(|latency_ms| async move {
        let world = World::open(latency_ms, &Mistake::default()).await;
        let held = world.accepted(10_000, Retention::Ms(1)).await;
        world.finish(held).await;
        world.maintain(TIMEOUT * 2).await;
        let left = world.calm.counts(&world.ty).await.unwrap().finished;
        assert_eq!(left, 0, "of 10,000, at {latency_ms} ms a read");
    });
}

#[test]
fn subscribers_get_many_changes_in_time() {
    at_each_latency(|latency_ms| async move {
        let world = World::open(latency_ms, &Mistake::default()).await;
        let held = world.accepted(300, Retention::Forever).await;
        let (jobs, ty) = (world.jobs.clone(), world.ty.clone());
        let (notifier, handle) = Notifier::new(jobs, ty, Options::default());
        let stop = CancellationToken::new();
        let running = tokio::spawn(notifier.run(stop.clone()));
        let ids: Vec<_> = held
            .iter()
            .map(|accepted| accepted.job.id.clone())
            .collect();
        let followed = try_join_all(ids.iter().map(|id| handle.subscribe(id)));
        let followed = followed.await.unwrap();
        world.finish(held).await;
        let told = followed.into_iter().map(|mut subscription| async move {
            let told = timeout(Duration::from_secs(20), subscription.next()).await;
            matches!(told, Ok(Some(Notice::Job(..))))
        });
        let told = join_all(told)
            .await
            .into_iter()
            .filter(|told| *told)
            .count();
        assert_eq!(told, ids.len(), "at {latency_ms} ms a read");
        stop.cancel();
        running.await.unwrap();
    });
}
