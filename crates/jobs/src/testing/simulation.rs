//! Fleet simulation: many nodes on one store on a bad day, under a paused clock, everything from one
//! seed, and a judge who has seen it all.
//!
//! [`plan`] draws from the seed who is there and what befalls them, [`fleet`] lets it happen to
//! [`creators`], [`workers`], [`followers`] and the services of the queue, [`history`] notes what
//! was done, and [`judge`] follows each job through [`model`]. `DAVENPORT_SEEDS` says how many seeds
//! are run, `DAVENPORT_SEED` which is the first.

mod aftermath;
mod answers;
mod creators;
mod fleet;
mod followers;
mod history;
mod judge;
mod leases;
mod mistakes;
mod model;
mod node;
mod plan;
mod process;
mod workers;

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aftermath::Outcome;
use plan::Plan;

use crate::testing::bites::Mistake;

pub(crate) use mistakes::{log, weakened};
pub(crate) use node::actor_rng;

/// How many seeds are run when nobody says otherwise.
const SEEDS: u64 = 120;

/// Runs a seed.
fn simulate(seed: u64, mistake: &Mistake) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(fleet::run(Plan::draw(seed), mistake))
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().unwrap())
}

/// What went wrong, and how to see it again.
fn report(seed: u64, outcome: &Outcome) -> String {
    let mut report = format!("{:#?}\n", Plan::draw(seed));
    for problem in &outcome.problems {
        writeln!(report, "  {problem}").unwrap();
    }
    for line in &outcome.story {
        writeln!(report, "    {line}").unwrap();
    }
    writeln!(report, "to run it again: just simulate 1 {seed}").unwrap();
    report
}

/// Whatever goes wrong around it, the queue keeps its promises.
#[test]
fn promises_are_kept() {
    let first = number("DAVENPORT_SEED", 1);
    let end = first + number("DAVENPORT_SEEDS", SEEDS);
    let (next, failed) = (AtomicU64::new(first), AtomicU64::new(u64::MAX));
    let sums = Mutex::new((0, 0, Duration::ZERO));
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end || failed.load(Ordering::Relaxed) != u64::MAX {
                return;
            }
            let outcome = simulate(seed, &Mistake::default());
            let mut sums = sums.lock().unwrap();
            sums.0 += outcome.transactions;
            sums.1 += outcome.runs;
            sums.2 += outcome.lasted;
            if !outcome.problems.is_empty() {
                failed.fetch_min(seed, Ordering::Relaxed);
                println!("{}", report(seed, &outcome));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(run);
        }
    });
    let (transactions, runs, lasted) = *sums.lock().unwrap();
    println!(
        "seeds {first} to {}: {transactions} transactions, {runs} runs, {} simulated hours",
        end - 1,
        lasted.as_secs() / 3_600
    );
    let failed = failed.into_inner();
    assert_eq!(
        failed,
        u64::MAX,
        "see above; to run it again: just simulate 1 {failed}"
    );
}

/// Everything follows from the seed.
#[test]
fn a_seed_is_a_run() {
    for seed in 1..4 {
        let [once, again] = [(); 2].map(|()| simulate(seed, &Mistake::default()));
        assert_eq!(once.digest, again.digest, "seed {seed}");
        assert!(once.transactions > 100, "{once:?}");
    }
    let other = simulate(5, &Mistake::default());
    assert_ne!(simulate(4, &Mistake::default()).digest, other.digest);
}
