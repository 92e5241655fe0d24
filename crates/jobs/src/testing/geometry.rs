//! Contention between many nodes: the rows written most, and how often concurrent claims choose the
//! same jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::try_join_all;
use store::{Counting, Faults, Store};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::keys::Table;
use crate::testing::mistake::PREFIXES;
use crate::{
    Add, Clock, Entropy, Error, Finish, Holder, JobId, JobType, Jobs, Options, TypeConfig,
    TypeWatcher,
};

const NOW_MS: i64 = 1_700_000_000_000;
const NODES: u64 = 50;
/// Claims that each node has in flight.
const CLAIMS: usize = 20;
/// The maximum duration of a read or commit.
const DELAY: Duration = Duration::from_millis(3);

fn ty(name: &str) -> JobType {
    JobType::new(name).unwrap()
}

fn me() -> Holder {
    Holder::new("me").unwrap()
}

/// Adds due jobs with increasing ids.
async fn fill(jobs: &Jobs, ty: &JobType, count: usize, scheduled: bool) {
    let adds = (0..count).map(|number| {
        let add = Add::new(JobId::new(format!("{number:08}")).unwrap(), "data");
        let due_ms = NOW_MS - 60_000 + i64::try_from(number % 50_000).unwrap();
        if scheduled { add.due_ms(due_ms) } else { add }
    });
    let adds: Vec<Add> = adds.collect();
    jobs.add_many(ty, &adds).await.unwrap();
}

async fn queue(seed: u64) -> Jobs {
    let store = Store::open("memory:").await.unwrap();
    Jobs::new(store, Clock::simulated(NOW_MS), Entropy::seeded(seed))
}

/// The fraction of 1,000 concurrent claims that has to choose again; all read before the first
/// commits.
async fn collisions(scheduled: bool, wanted: usize) -> f64 {
    const ALL: usize = 1_000;
    let (jobs, ty) = (&queue(7).await, &ty("mail"));
    jobs.set_type(ty, TypeConfig::new(60_000)).await.unwrap();
    fill(jobs, ty, 40_000, scheduled).await;
    let (me, barrier) = (me(), &Barrier::new(ALL));
    let claims: Vec<_> = (0..ALL).map(|_| jobs.claim(ty, &me, wanted)).collect();
    let accepted = claims.iter().map(|claim| {
        jobs.transact_claim(claim, move |tx| async move {
            let claimed = jobs.accept_in(&tx, claim).await?;
            if tx.attempt() == 1 {
                barrier.wait().await;
            }
            Ok(claimed.jobs.len())
        })
    });
    let taken = try_join_all(accepted).await.unwrap().into_iter();
    let taken: usize = taken.map(|(jobs, _)| jobs).sum();
    assert_eq!(taken, ALL * wanted);
    let conflicts = jobs.store().stats()["accept"].conflicts;
    f64::from(u32::try_from(conflicts).unwrap()) / 1_000.0
}

#[test]
fn concurrent_claims_seldom_collide() {
    for (scheduled, wanted) in [(true, 1), (true, 4), (false, 1)] {
        let part = crate::testing::mistake::paused().block_on(collisions(scheduled, wanted));
        println!("scheduled {scheduled}, {wanted} jobs: {part}");
        assert!(part < 0.1, "scheduled {scheduled}, {wanted} jobs: {part}");
    }
}

/// Nodes on one store, each with its own queue.
struct Fleet {
    nodes: Vec<Jobs>,
    counting: Counting,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Fleet {
    async fn start(types: &[JobType]) -> Self {
        let calm = queue(1).await;
        for ty in types {
            calm.set_type(ty, TypeConfig::new(60_000)).await.unwrap();
        }
        let (counted, counting) = calm.store().counted(|key| key);
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let nodes = (0..NODES).map(|seed| {
            let delays = Faults {
                seed,
                delay: 1.0,
                delay_max: DELAY,
                ..Faults::default()
            };
            let (store, _) = counted.with_faults(delays);
            let jobs = Jobs::new(store, calm.clock().clone(), Entropy::seeded(seed));
            let (watcher, _) = TypeWatcher::new(jobs.clone(), Options::default());
            tasks.spawn(watcher.run(stop.clone()));
            jobs
        });
        Self {
            nodes: nodes.collect(),
            counting,
            stop,
            tasks,
        }
    }

    /// Every node adds its part of the jobs one by one, with increasing ids.
    async fn add(&self, ty: &JobType, count: usize, scheduled: bool) {
        let added = self
            .nodes
            .iter()
            .enumerate()
            .map(|(node, jobs)| async move {
                for number in (node..count).step_by(self.nodes.len()) {
                    let id = JobId::new(format!("{number:08}")).unwrap();
                    let due_ms = if scheduled { NOW_MS - 1_000 } else { 0 };
                    jobs.add(ty, Add::new(id, "data").due_ms(due_ms)).await?;
                }
                Ok::<_, Error>(())
            });
        try_join_all(added).await.unwrap();
    }

    /// Claims and finishes this many jobs; returns how long it took.
    async fn drain(&self, ty: &JobType, count: usize) -> Duration {
        let (begun, left) = (Instant::now(), &std::cell::Cell::new(count));
        let me = &me();
        let workers = self.nodes.iter().flat_map(|jobs| [jobs; CLAIMS]);
        let workers = workers.map(|jobs| async move {
            while left.get() > 0 {
                for accepted in jobs.accept(ty, me, 1).await?.jobs {
                    let _ = jobs.finish(&accepted.job, Finish::done()).await?;
                    left.set(left.get().saturating_sub(1));
                }
            }
            Ok::<_, Error>(())
        });
        try_join_all(workers).await.unwrap();
        begun.elapsed()
    }
}

#[test]
fn no_row_is_hot_and_scheduled_jobs_are_fast() {
    crate::testing::mistake::paused().block_on(async {
        let types = [ty("ready"), ty("scheduled")];
        let mut fleet = Fleet::start(&types).await;
        // Wait until every node has read the types.
        tokio::time::sleep(Duration::from_secs(1)).await;
        fleet.counting.take();
        let mut took = Vec::new();
        for (ty, scheduled) in types.iter().zip([false, true]) {
            // Some jobs are left over: finding none would add searches.
            fleet.add(ty, 8_000, scheduled).await;
            took.push(fleet.drain(ty, 5_000).await);
        }
        let ratio = took[0].div_duration_f64(took[1]);
        let traffic = fleet.counting.take();
        let table = |table: Table| PREFIXES[table as usize];
        let all = |of: fn(&store::Traffic) -> u64| traffic.values().map(of).sum::<u64>();
        let (writes, reads) = (all(|row| row.writes), all(|row| row.reads));
        let (hottest, most) = traffic.iter().max_by_key(|(_, row)| row.writes).unwrap();
        let mut tables: BTreeMap<[u8; 4], [u64; 3]> = BTreeMap::new();
        for (key, row) in &traffic {
            let table = tables.entry(*key.first_chunk().unwrap()).or_default();
            *table = [
                table[0] + row.reads,
                table[1] + row.writes,
                table[2] + row.conflicts,
            ];
        }
        println!(
            "ready to scheduled {ratio}, of {writes} writes {} to {}, {tables:?}",
            most.writes,
            hottest.escape_ascii()
        );
        assert!(most.writes * 100 <= writes, "{} of {writes}", most.writes);
        let types_read = tables.get(&table(Table::Type)).map_or(0, |of| of[0]);
        assert!(types_read * 100 <= reads, "{types_read} of {reads}");
        assert!(ratio >= 0.8, "{ratio}");
        fleet.stop.cancel();
        while fleet.tasks.join_next().await.is_some() {}
    });
}

/// A process that knows the types does not read them to add a job, and learns of changes at once.
#[test]
fn cached_types_are_not_read_until_they_change() {
    crate::testing::mistake::paused().block_on(async {
        let (jobs, ty) = (queue(3).await, ty("mail"));
        let (counted, counting) = jobs.store().counted(|key| &key[..4]);
        let node = Jobs::new(counted, jobs.clock().clone(), Entropy::seeded(4));
        jobs.set_type(&ty, TypeConfig::new(60_000)).await.unwrap();
        let (watcher, _) = TypeWatcher::new(node.clone(), Options::default());
        let stop = CancellationToken::new();
        let watching = tokio::spawn(watcher.run(stop.clone()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let prefix = &PREFIXES[Table::Type as usize][..];
        counting.take();
        let add = |id: &str| node.add(&ty, Add::new(JobId::new(id.to_owned()).unwrap(), "data"));
        for id in ["a", "b", "c"] {
            add(id).await.unwrap();
        }
        assert!(!counting.take().contains_key(prefix));
        jobs.clear_type(&ty).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(matches!(add("d").await, Err(Error::NoTypeTimeout(_))));
        jobs.set_type(&ty, TypeConfig::new(1_000)).await.unwrap();
        add("e").await.unwrap();
        // The process that changes types needs no notification.
        node.clear_type(&ty).await.unwrap();
        assert!(matches!(add("f").await, Err(Error::NoTypeTimeout(_))));
        stop.cancel();
        watching.await.unwrap();
    });
}
