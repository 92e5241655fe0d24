//! Draws the nodes, replications and faults of a run from a seed.

use std::time::Duration;

use peer::Profile;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::Faults;
use testkit::{Fault, Schedule, often};

use crate::options::Options;

/// One run, drawn from a seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// How long faults last.
    pub(super) troubled: Duration,
    pub(super) nodes: Vec<NodePlan>,
    pub(super) goals: Vec<Goal>,
    pub(super) options: Options,
    pub(super) faults: Faults,
    /// Faults of the servers.
    pub(super) profile: Profile,
    /// Mean time between two edits of one frontend.
    pub(super) edits_gap: Duration,
    /// Mean time between two writes to the sources.
    pub(super) writes_gap: Duration,
    /// Faults of the nodes.
    pub(super) schedule: Vec<(Duration, (usize, Fault))>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NodePlan {
    pub(super) replicates: bool,
    /// Clients that edit documents through this node.
    pub(super) clients: usize,
}

/// A replication that clients request.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub(super) source: String,
    pub(super) target: String,
    pub(super) continuous: bool,
    /// Documents that request it; 0 if it is requested without a document.
    pub(super) documents: usize,
    /// Its source does not exist.
    pub(super) invalid: bool,
}

/// Databases that change all the time.
pub(super) const LIVE: [&str; 2] = ["live-0", "live-1"];
/// Databases that do not change.
pub(super) const STILL: [&str; 2] = ["still-0", "still-1"];

impl Plan {
    pub(super) fn draw(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let rng = &mut rng;
        let troubled = Duration::from_secs(rng.random_range(240..900));
        let mut nodes: Vec<_> = (0..rng.random_range(2..=4))
            .map(|_| NodePlan {
                replicates: rng.random_bool(0.8),
                clients: usize::from(rng.random_bool(0.6)),
            })
            .collect();
        // At least one frontend and one replication node.
        nodes[0].clients = 1;
        nodes[1].replicates = true;
        let goals = (0..rng.random_range(3..=7))
            .map(|number| Goal::draw(rng, number))
            .collect();
        let mut plan = Self {
            seed,
            troubled,
            nodes,
            goals,
            options: options(rng),
            faults: faults(rng),
            profile: profile(rng),
            edits_gap: Duration::from_secs(rng.random_range(8..60)),
            writes_gap: Duration::from_secs(rng.random_range(1..15)),
            schedule: Vec::new(),
        };
        plan.draw_schedule(rng);
        plan
    }

    fn draw_schedule(&mut self, rng: &mut SmallRng) {
        let mut schedule = Schedule::new(self.troubled, rng);
        for node in 0..self.nodes.len() {
            let mut some = |most, longest_s, begin, end| {
                let longest = Duration::from_secs(longest_s);
                schedule.some(most, longest, (node, begin), (node, end));
            };
            some(2, 120, Fault::Outage(true), Fault::Outage(false));
            some(2, 200, Fault::Pause(true), Fault::Pause(false));
            some(2, 150, Fault::Crash, Fault::Start);
            some(1, 150, Fault::Stop, Fault::Start);
            if schedule.rng.random_bool(0.3) {
                let skew_ms = schedule.rng.random_range(-600_000..600_000);
                let at = schedule.moment();
                schedule.add(at, (node, Fault::Skew(skew_ms)));
            }
        }
        let longest = Duration::from_secs(100);
        schedule.store_outage(0.3, longest, self.nodes.len(), |node, fault| (node, fault));
        self.schedule = schedule.finish();
    }
}

impl Goal {
    fn draw(rng: &mut SmallRng, number: usize) -> Self {
        let continuous = rng.random_bool(0.6);
        // A one-shot replication has to end up equal to a source that does not change.
        let sources = if continuous { LIVE } else { STILL };
        Self {
            source: sources[rng.random_range(0..2)].to_owned(),
            target: format!("target-{number}"),
            continuous,
            documents: match rng.random_range(0..10) {
                0..2 => 0,
                2..7 => 1,
                _ => 2,
            },
            invalid: rng.random_bool(0.1),
        }
    }
}

fn options(rng: &mut SmallRng) -> Options {
    Options {
        max_jobs: rng.random_range(1..=6),
        max_churn: rng.random_range(1..=3),
        interval_sec: rng.random_range(2..=10),
        min_run_time_sec: rng.random_range(0..=10),
        park_after_sec: if rng.random_bool(0.2) {
            0
        } else {
            rng.random_range(2..=20)
        },
        // Nodes are stopped at random, often enough to make any job a suspect.
        set_aside_after: 0,
        health_threshold_sec: 30,
        min_backoff_penalty_sec: 2,
        max_backoff_penalty_sec: 60,
        stats_update_interval_sec: rng.random_range(1..=10),
        worker_batch_size: rng.random_range(1..=12),
        worker_processes: rng.random_range(1..=4),
        checkpoint_interval: rng.random_range(1_000..=10_000),
        connection_timeout: 10_000,
        retries_per_request: rng.random_range(1..=4),
        no_progress_timeout_sec: 120,
        ..Options::default()
    }
}

fn profile(rng: &mut SmallRng) -> Profile {
    let profile = match rng.random_range(0..4) {
        0 => Profile::default(),
        1 => Profile::network(),
        2 => Profile::overload(),
        _ => Profile::chaos(),
    };
    Profile {
        latency_ms_max: *[20, 200, 3_000].get(rng.random_range(0..3)).unwrap_or(&20),
        faults_max: 20_000,
        ..profile
    }
}

fn faults(rng: &mut SmallRng) -> Faults {
    Faults {
        seed: 0,
        conflict: often(rng, 0.2),
        unknown_applied: often(rng, 0.15),
        unknown_lost: often(rng, 0.15),
        too_old: often(rng, 0.001),
        unavailable: often(rng, 0.001),
        delay: often(rng, 0.1),
        delay_max: Duration::from_millis(*[3, 30, 300].get(rng.random_range(0..3)).unwrap_or(&3)),
        watch_lost: often(rng, 0.5),
        watch_spurious: often(rng, 0.3),
        ..Faults::default()
    }
}
