//! Fleet simulation: many nodes on one faulty store, under a paused clock, all drawn from one seed. A
//! judge then checks the whole history.
//!
//! [`plan`] draws nodes and faults from the seed, [`fleet`] runs [`creators`], [`workers`],
//! [`followers`] and the services of the queue under these faults, [`history`] records what they did,
//! and [`judge`] checks each job's part of it against the [rules](super::rules). [`admission`] checks who runs at once behind
//! limits, by what each commit [changes](super::moves). `DAVENPORT_SEEDS` sets the number of seeds, `DAVENPORT_SEED` the first.

mod admission;
mod aftermath;
mod answers;
mod creators;
mod damage;
mod fleet;
mod followers;
mod history;
mod hold;
mod judge;
mod leases;
mod node;
mod plan;
pub(crate) mod planted;
mod process;
mod slow;
mod workers;

use plan::Plan;
use testkit::{Campaign, Report};

use crate::testing::mistake::{self, Mistake};

/// Runs a seed; also returns a digest of the run.
fn simulate(seed: u64, mistake: &Mistake) -> (Report, u64) {
    run(Plan::draw(seed), mistake)
}

fn run(plan: Plan, mistake: &Mistake) -> (Report, u64) {
    mistake::paused().block_on(fleet::run(plan, mistake))
}

fn campaign<S: Fn(u64) -> Report + Sync>(simulate: S) -> Campaign<S, fn(u64) -> Plan> {
    Campaign {
        command: "just simulate",
        seeds: 120,
        simulate,
        plan: Plan::draw,
    }
}

/// The queue keeps its guarantees whatever fails.
#[test]
fn guarantees_hold() {
    campaign(|seed| simulate(seed, &Mistake::default()).0).run();
}

/// The same of many jobs behind limits.
#[test]
fn guarantees_hold_in_a_crowd() {
    let campaign = Campaign {
        command: "just simulate",
        seeds: 1,
        simulate: |seed| run(Plan::crowded(seed), &Mistake::default()).0,
        plan: Plan::crowded,
    };
    campaign.run();
}

/// A repeated claim that has lost all jobs of its first commit takes others, or new ones of the same ids. Campaigns found
/// these seeds.
#[test]
fn repeated_claims_start_over() {
    for seed in [102_400, 104_528, 111_931] {
        let (report, _) = simulate(seed, &Mistake::default());
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

/// Everything follows from the seed.
#[test]
fn a_seed_determines_its_run() {
    let run = |seed| simulate(seed, &Mistake::default());
    for seed in 1..4 {
        let [(report, once), (_, again)] = [(); 2].map(|()| run(seed));
        assert_eq!(once, again, "seed {seed}");
        assert!(report.counts[1].1 > 50, "{report:?}");
    }
    assert_ne!(run(4).1, run(5).1);
}
