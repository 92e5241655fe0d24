//! Fleet simulation: nodes with frontends and runs, one faulty store and two faulty servers, under a paused clock, all
//! drawn from one seed. A judge checks the results.
//!
//! [`plan`] draws nodes and faults from the seed, [`fleet`] runs [`process`]es under these faults, [`clients`] request
//! replications between the [`servers`], and [`judge`] checks documents, jobs and databases. Nodes run the production
//! code; only their connections stay within the process. `DAVENPORT_SEEDS` sets the number of seeds, `DAVENPORT_SEED`
//! the first one.
//!
//! One thing does not follow from the seed: which of several tasks that watch one value tokio wakes first. A seed that
//! failed may need several attempts to fail again.

mod clients;
mod fleet;
mod judge;
mod plan;
mod planted;
mod process;
mod servers;

use plan::Plan;
use testkit::{Campaign, Report, simulated};

use crate::testing::Bug;

fn simulate(seed: u64, bug: Option<Bug>) -> Report {
    simulated(fleet::run(Plan::draw(seed), bug))
}

fn campaign(bug: Option<Bug>) -> Campaign<impl Fn(u64) -> Report + Sync, fn(u64) -> Plan> {
    Campaign {
        command: "just simulate-fleet",
        seeds: 12,
        simulate: move |seed| simulate(seed, bug),
        plan: Plan::draw,
    }
}

/// Replications end as they should whatever fails, and two runs never copy for the same job at once.
#[test]
fn replications_end_as_they_should() {
    campaign(None).run();
}
