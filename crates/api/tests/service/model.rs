//! Jobs over HTTP against a model: random clients of several frontends on one faulty store, under a paused clock, all drawn
//! from one seed. Frontends are killed in the middle of requests, and requests are repeated, delayed and lost.
//!
//! [`fleet`] has the frontends and the network, [`clients`] what is asked, and [`journal`] what was answered, which it
//! checks. `DAVENPORT_SEEDS` sets the number of seeds, `DAVENPORT_SEED` the first one.

mod clients;
mod fleet;
mod journal;

use std::time::Duration;

use jobs::{Bug, Planted};
use rand::RngExt as _;
use testkit::{Campaign, Report, actor_rng, often, simulated};

/// What a seed means.
#[derive(Debug, Clone)]
struct Plan {
    seed: u64,
    frontends: usize,
    workers: u64,
    producers: u64,
    /// How long there are faults.
    troubled: Duration,
    /// Between two ends of frontends.
    kill_pause: Duration,
    /// A request is sent twice, the second time later and to any frontend.
    twice: f64,
    /// An answer gets lost.
    lost: f64,
    /// A client closes the connection before it has the answer.
    broken: f64,
    /// Commits of the store whose outcome is unknown.
    unknown: f64,
    sealed: bool,
}

impl Plan {
    fn draw(seed: u64) -> Self {
        let rng = &mut actor_rng(seed, &[1]);
        Self {
            seed,
            frontends: rng.random_range(2..=3),
            workers: rng.random_range(2..=5),
            producers: rng.random_range(1..=2),
            troubled: Duration::from_secs(rng.random_range(20..60)),
            kill_pause: Duration::from_secs(rng.random_range(2..20)),
            twice: often(rng, 0.4),
            lost: often(rng, 0.2),
            broken: often(rng, 0.2),
            unknown: often(rng, 0.05),
            sealed: rng.random_bool(0.3),
        }
    }
}

fn simulate(seed: u64, planted: Planted) -> Report {
    simulated(clients::run(Plan::draw(seed), planted))
}

fn campaign(planted: Planted) -> Campaign<impl Fn(u64) -> Report + Sync, fn(u64) -> Plan> {
    Campaign {
        command: "just simulate-jobs",
        seeds: 20,
        simulate: move |seed| simulate(seed, planted),
        plan: Plan::draw,
    }
}

/// No job is lost, no lock is honoured twice, and a repeated end is answered as such.
#[test]
fn no_job_is_lost_and_no_lock_is_honoured_twice() {
    campaign(Planted::default()).run();
}

#[test]
fn planted_bugs_are_found() {
    for bug in [
        Bug::FinishWithoutLock,
        Bug::DeadIsFinished,
        Bug::AddNotIdempotent,
    ] {
        campaign(Planted::bug(bug)).finds(&format!("{bug:?}"), 30);
    }
}
