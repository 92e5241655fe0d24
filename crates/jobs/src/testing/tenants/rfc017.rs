//! `CouchDB`'s 17 tests of RFC 017 (`couch_replicator_share`), by their names. Ten hold here as well. The others:
//!
//! | case | why |
//! |---|---|
//! | `init_works` | Shares are in the store: nothing is set up or cleared. |
//! | `shares_are_updated_and_reset` | Shares outside the bounds are refused here; the scheduler's settings are clamped, as in `CouchDB`. |
//! | `can_fetch_job_priority` | Jobs have no priority: a tenant has its virtual time. |
//! | `jobs_are_charged` | Runs are charged for all of their time, also beyond one scheduler cycle. |
//! | `usage_is_updated` | Virtual time does not decay, so there is no coefficient of use. |
//! | `priority_coefficient_works` | As above: there is nothing to decay. |
//! | `priority_decays_when_jobs_stop_running` | A tenant that stops is next when the others have used as much, without decay. |
//!
//! Of those, what does hold is tested here under the same name, except `priority_coefficient_works`.

use std::collections::{BTreeMap, VecDeque};

use super::{CYCLE_MS, World, names, of, tenant};
use crate::operations::tenants::cost;
use crate::{Accepted, Error, Finish, SHARES_MAX};

/// Scheduler cycles of a simulation, and the runs that each stops and starts.
const CYCLES: usize = 1_000;
const CHURN: usize = 10;
/// Jobs of each tenant that run at first.
const RUNNING: usize = 25;

/// A tenant: its shares, the number of its jobs that do not run at first, and the part of all runs, in percent, that it
/// gets.
struct Db {
    shares: u32,
    pending: usize,
    part: f64,
}

const fn db(shares: u32, pending: usize, part: f64) -> Db {
    Db {
        shares,
        pending,
        part,
    }
}

/// Counts the runs of each tenant while the oldest stop in each cycle, and as many start.
async fn simulate(dbs: &[Db]) {
    let mut world = World::new().await;
    let names: Vec<String> = (1..=dbs.len()).map(|n| format!("db{n}")).collect();
    for (name, db) in names.iter().zip(dbs) {
        world.shares(name, db.shares).await;
        world.add(name, RUNNING).await;
    }
    let mut running = VecDeque::from(world.claim(RUNNING * dbs.len()).await);
    for (name, db) in names.iter().zip(dbs) {
        let more = RUNNING..RUNNING + db.pending;
        let more: Vec<_> = more.map(|n| super::add(name, n)).collect();
        world.jobs.add_many(&world.ty, &more).await.unwrap();
    }
    let mut runs: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..CYCLES {
        assert_eq!(running.len(), RUNNING * dbs.len());
        for run in &running {
            *runs.entry(of(run)).or_default() += 1;
        }
        world.pass(CYCLE_MS);
        world.beat(running.iter()).await;
        let stopped: Vec<_> = running.drain(..CHURN).collect();
        world.end(&stopped, Finish::again(0)).await;
        running.extend(world.claim(CHURN).await);
    }
    world.check().await;
    let all: u32 = runs.values().sum();
    for (name, db) in names.iter().zip(dbs) {
        let part = 100.0 * f64::from(runs[name]) / f64::from(all);
        assert!(
            (part - db.part).abs() <= 3.0,
            "{name}: {part} instead of {}",
            db.part
        );
    }
}

impl World {
    /// The heartbeats of a node, which charge for the time since the last ones.
    async fn beat(&self, running: impl Iterator<Item = &Accepted> + Clone) {
        let op = self.jobs.op();
        let beat = self.jobs.store().transact("keep", |tx| {
            let (op, running) = (&op, running.clone());
            async move {
                for run in running {
                    let _held = self.jobs.keep_in(&tx, op, &run.job).await?;
                }
                Ok::<_, Error>(())
            }
        });
        beat.await.unwrap();
    }
}

#[tokio::test]
async fn init_works() {
    let world = World::new().await;
    assert!(world.uses().await.is_empty());
    world.shares("db1", 200).await;
    world.add("db1", 1).await;
    assert_eq!(world.uses().await["db1"].shares, 200);
}

#[tokio::test]
async fn shares_are_updated_and_reset() {
    let world = World::new().await;
    world.add("db1", 1).await;
    let _held = world.claim(1).await;
    assert_eq!(world.uses().await["db1"].shares, 100);
    world.shares("db1", 42).await;
    assert_eq!(world.uses().await["db1"].shares, 42);
    let db1 = tenant("db1");
    let set = |shares| world.jobs.set_shares(&world.ty, Some(&db1), shares);
    for shares in [0, SHARES_MAX + 1] {
        assert!(set(Some(shares)).await.is_err(), "{shares}");
    }
    set(None).await.unwrap();
    assert_eq!(world.uses().await["db1"].shares, 100);
}

#[tokio::test]
async fn jobs_are_added_and_removed() {
    let world = World::new().await;
    world.add("db1", 2).await;
    world.add("db2", 1).await;
    let pending = async || world.jobs.counts(&world.ty).await.unwrap().pending;
    assert_eq!(pending().await, 3);
    for (name, n, left) in [("db1", 0, 2), ("db2", 0, 1), ("db1", 1, 0)] {
        let id = super::add(name, n).id;
        world.jobs.remove(&world.ty, &id).await.unwrap();
        assert_eq!(pending().await, left);
        world.check().await;
    }
    assert!(world.claim(3).await.is_empty());
}

#[tokio::test]
async fn can_fetch_job_priority() {
    let mut world = World::new().await;
    world.add("db1", 1).await;
    world.add("db2", 1).await;
    assert!(world.uses().await.values().all(|of| of.vtime == 0));
    let run = world.claim(1).await;
    world.pass(CYCLE_MS);
    world.end(&run, Finish::done()).await;
    assert_eq!(world.uses().await[&of(&run[0])].vtime, cost(CYCLE_MS, 100));
}

#[tokio::test]
async fn jobs_are_charged() {
    let mut world = World::new().await;
    world.add("db1", 2).await;
    let mut held = world.claim(2).await;
    world.pass(1_000);
    let first = [held.remove(0)];
    world.end(&first, Finish::again(0)).await;
    let vtime = async |world: &World| world.uses().await["db1"].vtime;
    // The other one has paid for its start.
    let expected = cost(1_000, 100) + cost(super::START_MS, 100);
    assert_eq!(vtime(&world).await, expected);
    // Stopped jobs are not charged.
    world.pass(1_000);
    assert_eq!(vtime(&world).await, expected);
    // Charges of jobs of one tenant add up, and stay when the jobs are removed.
    world.end(&held, Finish::done()).await;
    for job in [&first[0].job, &held[0].job] {
        let _gone = world.jobs.remove(&world.ty, &job.id).await;
    }
    assert_eq!(vtime(&world).await, cost(3_000, 100));
}

#[tokio::test]
async fn usage_is_updated() {
    let mut world = World::new().await;
    world.add("db1", 1).await;
    for n in 1..=3 {
        let run = world.claim(1).await;
        world.pass(CYCLE_MS);
        world.end(&run, Finish::again(0)).await;
        assert_eq!(world.uses().await["db1"].vtime, cost(n * CYCLE_MS, 100));
    }
}

#[tokio::test]
async fn priority_decays_when_jobs_stop_running() {
    let mut world = World::new().await;
    world.add("db1", 1).await;
    world.add("db2", 1).await;
    let run = world.claim(1).await;
    world.pass(CYCLE_MS);
    world.end(&run, Finish::again(0)).await;
    // Its job is behind that of the other one, until that one has run for as long.
    let other = world.claim(1).await;
    assert_ne!(names(&other), names(&run));
    world.pass(CYCLE_MS + 1);
    world.end(&other, Finish::again(0)).await;
    assert_eq!(names(&world.claim(1).await), names(&run));
}

#[tokio::test]
async fn priority_increases_when_jobs_run() {
    let mut world = World::new().await;
    world.add("db1", 1).await;
    let held = world.claim(1).await;
    let mut before = world.uses().await["db1"].vtime;
    for _ in 0..3 {
        world.pass(CYCLE_MS);
        let _held = world.jobs.update(&held[0].job, None).await.unwrap();
        let after = world.uses().await["db1"].vtime;
        assert!(after > before);
        before = after;
    }
}

#[tokio::test]
async fn two_dbs_equal_shares_equal_number_of_jobs() {
    simulate(&[db(100, 75, 50.0), db(100, 75, 50.0)]).await;
}

#[tokio::test]
async fn two_dbs_unequal_shares_equal_number_of_jobs() {
    simulate(&[db(100, 75, 10.0), db(900, 75, 90.0)]).await;
}

#[tokio::test]
async fn two_dbs_equal_shares_unequal_number_of_jobs() {
    simulate(&[db(100, 25, 50.0), db(100, 125, 50.0)]).await;
}

#[tokio::test]
async fn two_dbs_unequal_shares_unequal_number_of_jobs() {
    simulate(&[db(1, 25, 1.0), db(100, 125, 99.0)]).await;
}

#[tokio::test]
async fn three_dbs_equal_shares_equal_number_of_jobs() {
    simulate(&[db(100, 75, 33.0), db(100, 75, 33.0), db(100, 75, 33.0)]).await;
}

#[tokio::test]
async fn three_dbs_unequal_shares_equal_number_of_jobs() {
    simulate(&[db(100, 75, 10.0), db(700, 75, 70.0), db(200, 75, 20.0)]).await;
}

#[tokio::test]
async fn three_dbs_equal_shares_unequal_number_of_jobs() {
    simulate(&[db(100, 25, 33.0), db(100, 100, 33.0), db(100, 75, 33.0)]).await;
}

#[tokio::test]
async fn three_dbs_unequal_shares_unequal_number_of_jobs() {
    simulate(&[db(1_000, 100, 88.0), db(100, 125, 10.0), db(1, 875, 3.0)]).await;
}
