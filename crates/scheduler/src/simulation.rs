//! Fleet simulation: nodes with frontends and runs, one store on a bad day, and two servers that have one, too. The clock is
//! paused, everything is drawn from one seed, and a judge says whether what came of it may be.
//!
//! [`plan`] draws from the seed who is there and what befalls them, [`fleet`] lets it happen to [`process`]es, whose
//! [`clients`] want replications between the [`servers`], and [`judge`] looks at documents, jobs and databases. Nodes run
//! the code that real ones do; only their connections do not leave the process. `DAVENPORT_SEEDS` says how many seeds are
//! run, `DAVENPORT_SEED` which is the first.
//!
//! One thing does not follow from the seed: whom tokio wakes first of many who watch one value. A seed that failed may need
//! several tries to fail again.

mod clients;
mod fleet;
mod judge;
mod mistakes;
mod plan;
mod process;
mod servers;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fleet::Outcome;
use plan::Plan;

use crate::witness::Bug;

/// How many seeds are run when nobody says otherwise.
const SEEDS: u64 = 12;

fn simulate(seed: u64, bug: Option<Bug>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let outcome = runtime.block_on(Box::pin(fleet::run(Plan::draw(seed), bug)));
    runtime.shutdown_background();
    outcome
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().unwrap())
}

/// What went wrong, and how to see it again.
fn report(seed: u64, outcome: &Outcome) -> String {
    let mut report = format!("{:#?}\n", Plan::draw(seed));
    for line in &outcome.story {
        writeln!(report, "    {line}").unwrap();
    }
    for problem in &outcome.problems {
        writeln!(report, "  {problem}").unwrap();
    }
    writeln!(report, "to run it again: just simulate-fleet 1 {seed}").unwrap();
    report
}

/// Whatever goes wrong around them, replications end as they should, and nobody copies for another one's job.
#[test]
fn replications_end_as_they_should() {
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
            let outcome = simulate(seed, None);
            let mut sums = sums.lock().unwrap();
            sums.0 += outcome.runs;
            sums.1 += outcome.checkpoints;
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
    let (runs, checkpoints, lasted) = *sums.lock().unwrap();
    println!(
        "seeds {first} to {}: {runs} runs, {checkpoints} checkpoints, {} simulated hours",
        end - 1,
        lasted.as_secs() / 3_600
    );
    let failed = failed.into_inner();
    assert_eq!(
        failed,
        u64::MAX,
        "see above; to run it again: just simulate-fleet 1 {failed}"
    );
}
