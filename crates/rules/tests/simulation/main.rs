//! Simulation of work that follows changes: nodes on one faulty store that follow a faulty server, under a paused clock, all
//! drawn from one seed. A judge checks that every change was dealt with in time.
//!
//! [`plan`] draws nodes, rules and faults from the seed, [`fleet`] runs [`process`]es under these faults while [`servers`]
//! change, and [`journal`] has what happened, which [`judge`] checks. Nodes run the production code; only their connections
//! stay within the process. `DAVENPORT_SEEDS` sets the number of seeds, `DAVENPORT_SEED` the first one.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod endpoint;
mod fleet;
mod journal;
mod judge;
mod plan;
mod process;
mod servers;

use jobs::Planted;
use plan::Plan;
use testkit::{Campaign, Report};

fn simulate(seed: u64, planted: Planted) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let report = runtime.block_on(Box::pin(fleet::run(Plan::draw(seed), planted)));
    runtime.shutdown_background();
    report
}

fn campaign(planted: Planted) -> Campaign<impl Fn(u64) -> Report + Sync, fn(u64) -> Plan> {
    Campaign {
        command: "just simulate-changes",
        seeds: 6,
        simulate: move |seed| simulate(seed, planted),
        plan: Plan::draw,
    }
}

/// Each change is followed by a run that began after it, whatever fails; rules that block keep the order of changes; and no
/// signal shortens a back-off.
#[test]
fn every_change_is_dealt_with() {
    campaign(Planted::default()).run();
}

/// Shows that the simulation finds each planted bug within few seeds.
#[cfg(debug_assertions)]
mod planted {
    use jobs::{Bug, Planted};

    use super::campaign;

    /// How many seeds a bug may survive.
    const SEEDS: u64 = 60;

    macro_rules! planted {
        ($($test:ident: $bug:ident,)*) => {
            $(#[test]
            fn $test() {
                campaign(Planted::bug(Bug::$bug)).finds(stringify!($bug), SEEDS);
            })*
        };
    }

    planted! {
        cursor_saved_first: CursorSavedFirst,
        wake_written_late: WakeWrittenLate,
        signal_merge_lost: SignalMergeLost,
        signal_forgotten: SignalForgotten,
        signal_cuts_back_off: SignalCutsBackOff,
    }
}
