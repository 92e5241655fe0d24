//! What a seed decides: who is there, what is to be replicated, and what befalls them.

use std::time::Duration;

use peer::Profile;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::Faults;

use crate::options::Options;

/// One run, drawn from a seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// How long things go wrong.
    pub(super) troubled: Duration,
    pub(super) nodes: Vec<NodePlan>,
    pub(super) wishes: Vec<Wish>,
    pub(super) options: Options,
    pub(super) faults: Faults,
    /// What goes wrong at the servers.
    pub(super) profile: Profile,
    /// Between two edits of one frontend, on average.
    pub(super) edits_gap: Duration,
    /// Between two writes to the sources, on average.
    pub(super) writes_gap: Duration,
    pub(super) schedule: Vec<(Duration, Act)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NodePlan {
    pub(super) replicates: bool,
    /// How many clients edit documents by it.
    pub(super) clients: usize,
}

/// A replication that somebody wants.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) source: String,
    pub(super) target: String,
    pub(super) continuous: bool,
    /// Documents that ask for it; none for one that is asked for by requests.
    pub(super) documents: usize,
    /// It cannot be read.
    pub(super) invalid: bool,
}

/// Something that befalls a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// The store cannot be reached, or can again.
    Outage(usize, bool),
    /// The process gets no processor, or does again.
    Pause(usize, bool),
    Crash(usize),
    Stop(usize),
    Start(usize),
    Skew(usize, i64),
}

/// Databases that are written to all the time.
pub(super) const LIVE: [&str; 2] = ["live-0", "live-1"];
/// Databases that stay as they are.
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
        // Somebody has to do everything.
        nodes[0].clients = 1;
        nodes[1].replicates = true;
        let wishes = (0..rng.random_range(3..=7))
            .map(|number| Wish::draw(rng, number))
            .collect();
        let mut plan = Self {
            seed,
            troubled,
            nodes,
            wishes,
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
        let mut acts = Vec::new();
        let moment = |rng: &mut SmallRng| self.troubled.mul_f64(rng.random());
        let length =
            |rng: &mut SmallRng, most_s: u64| Duration::from_secs(rng.random_range(1..most_s));
        for node in 0..self.nodes.len() {
            for _ in 0..rng.random_range(0..=2) {
                let at = moment(rng);
                acts.push((at, Act::Outage(node, true)));
                acts.push((at + length(rng, 120), Act::Outage(node, false)));
            }
            for _ in 0..rng.random_range(0..=2) {
                let at = moment(rng);
                acts.push((at, Act::Pause(node, true)));
                acts.push((at + length(rng, 200), Act::Pause(node, false)));
            }
            for _ in 0..rng.random_range(0..=2) {
                let at = moment(rng);
                let end = if rng.random_bool(0.6) {
                    Act::Crash(node)
                } else {
                    Act::Stop(node)
                };
                acts.push((at, end));
                acts.push((at + length(rng, 150), Act::Start(node)));
            }
            if rng.random_bool(0.3) {
                let skew_ms = rng.random_range(-600_000..600_000);
                acts.push((moment(rng), Act::Skew(node, skew_ms)));
            }
        }
        if rng.random_bool(0.3) {
            // The whole store is away.
            let (at, length) = (moment(rng), length(rng, 100));
            for node in 0..self.nodes.len() {
                acts.push((at, Act::Outage(node, true)));
                acts.push((at + length, Act::Outage(node, false)));
            }
        }
        acts.retain(|(at, _)| *at < self.troubled);
        acts.sort_by_key(|(at, _)| *at);
        self.schedule = acts;
    }
}

impl Wish {
    fn draw(rng: &mut SmallRng, number: usize) -> Self {
        let continuous = rng.random_bool(0.6);
        // What ends is to be equal to what does not change.
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
        // Nodes are stopped by chance, and often enough to make any job look guilty.
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
    let often = |rng: &mut SmallRng, most: f64| {
        if rng.random_bool(0.3) {
            0.0
        } else {
            rng.random_range(0.0..most)
        }
    };
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
        weaken: None,
        log: None,
    }
}

/// Random numbers for one actor.
pub(super) fn actor_rng(seed: u64, parts: &[u64]) -> SmallRng {
    let mixed = parts.iter().fold(seed, |mixed, part| {
        (mixed ^ part)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    });
    SmallRng::seed_from_u64(mixed)
}

/// A random time, often short, on average `mean`.
pub(super) fn some_time(rng: &mut SmallRng, mean: Duration) -> Duration {
    let uniform: f64 = rng.random_range(1e-6..1.0);
    mean.mul_f64((-uniform.ln()).min(5.0))
}
