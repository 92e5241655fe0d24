//! Draws the nodes, rules and faults of a run from a seed.

use std::time::Duration;

use peer::{FeedFaults, Profile};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rules::source::{FeedKind, SourceOptions};
use serde_json::{Value, json};
use store::Faults;
use testkit::{Fault, Schedule, often};

use crate::endpoint::Mode;

/// The delay after the first failure of a call, and the maximum. Twice as much jitter as there is.
pub(crate) const BACK_OFF: (f64, f64) = (12.0, 60.0);

/// Reads and commits, one after the other, of the follower, of a run that a change is too late for, and of the next run.
const STEPS: f64 = 400.0;

/// How often all nodes crash at once; so many databases change just before that.
const CUTS: u32 = 5;

/// One run, drawn from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) databases: Vec<Database>,
    pub(crate) ways: Vec<Way>,
    /// How long faults last.
    pub(crate) troubled: Duration,
    pub(crate) source: Sourcing,
    pub(crate) faults: Faults,
    /// Faults of the servers.
    pub(crate) profile: Profile,
    /// Mean time between two changes of a database.
    pub(crate) writes_gap: Duration,
    /// Whether clocks differ.
    pub(crate) skewed: bool,
    pub(crate) schedule: Vec<(Duration, Act)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sourcing {
    pub(crate) feed: FeedKind,
    pub(crate) feed_faults: FeedFaults,
    pub(crate) sweep: Duration,
    /// Whether the server refuses `_dbs_info` once trouble begins. A node that takes over compares all sequences, which hides
    /// what the last one lost; without that, the feed has to do.
    pub(crate) feed_only: bool,
}

/// How a database changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Database {
    pub(crate) pace: Pace,
    /// It is created while there is trouble.
    pub(crate) is_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// All the time: nothing may wait for it to rest.
    Busy,
    /// Several times, and then not for so long that a change that was missed is missed for good.
    Bursts,
    /// Once, just before all nodes crash.
    Rare,
}

/// What follows the databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// A document per database with a continuous replication, which sleeps.
    Continuous,
    /// A document per database with a replication that is triggered, not before this many seconds after a change.
    Triggered(u64),
    /// A rule that replicates all databases.
    Ruled,
    /// A rule that makes calls in order, not before this many seconds after a change.
    InOrder(u64),
    /// A rule that enqueues calls.
    AtOnce,
}

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Node(usize, Fault),
    Endpoint(Mode),
    Create(usize),
    Delete(usize),
    /// The nth rare database changes and all nodes crash, after this time or once the position in the feed has moved.
    PowerCut(usize, Option<Duration>),
}

impl Way {
    /// The start of its targets' names, or the id of its rule.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Continuous => "continuous",
            Self::Triggered(_) => "triggered",
            Self::Ruled => "ruled",
            Self::InOrder(_) => "in-order",
            Self::AtOnce => "at-once",
        }
    }

    pub(crate) fn is_rule(self) -> bool {
        self.calls() || self == Self::Ruled
    }

    pub(crate) fn calls(self) -> bool {
        matches!(self, Self::InOrder(_) | Self::AtOnce)
    }

    /// The document that asks for it; `database` is a name for ways that have a document per database.
    pub(crate) fn document(self, source: &str, target: &str, database: &str) -> Value {
        let name = self.name();
        let copy = json!({
            "source": format!("{source}/{database}"), "target": format!("{target}/{name}-{database}"),
            "create_target": true,
        });
        let with = |mut body: Value, more: Value| {
            let more = more.as_object().unwrap().clone();
            body.as_object_mut().unwrap().extend(more);
            body
        };
        let call = json!({
            "type": "on_change", "db_name": "^app-", "method": "POST", "timeout_sec": 5,
            "url": format!("http://10.0.0.3/{name}"),
            "retry": {"delay_sec": BACK_OFF.0, "max_delay_sec": BACK_OFF.1},
        });
        match self {
            Self::Continuous => with(copy, json!({"continuous": true})),
            Self::Triggered(0) => with(copy, json!({"trigger": "changes"})),
            Self::Triggered(delay_sec) => with(
                copy,
                json!({"trigger": {"delay_sec": delay_sec, "min_interval_sec": 2 * delay_sec}}),
            ),
            Self::Ruled => json!({
                "type": "replicator", "match": {"database": "^app-(?<n>\\d+)$"}, "create_target": true,
                "source": format!("{source}/app-${{n}}"), "target": format!("{target}/{name}-app-${{n}}"),
            }),
            Self::InOrder(0) => call,
            Self::InOrder(delay_sec) => with(call, json!({"trigger": {"delay_sec": delay_sec}})),
            Self::AtOnce => with(call, json!({"block": false})),
        }
    }
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let rng = &mut rng;
        let delay_sec = *[0, 0, 20].get(rng.random_range(0..3)).unwrap_or(&0);
        let all = [
            Way::Continuous,
            Way::Triggered(delay_sec),
            Way::Ruled,
            Way::InOrder(delay_sec),
            Way::AtOnce,
        ];
        let mut ways: Vec<_> = all.into_iter().filter(|_| rng.random_bool(0.5)).collect();
        if ways.is_empty() {
            ways.push(all[rng.random_range(0..5)]);
        }
        let mut plan = Self {
            seed,
            nodes: rng.random_range(2..=3),
            databases: databases(rng),
            ways,
            troubled: Duration::from_secs(rng.random_range(120..300)),
            source: Sourcing::draw(rng),
            faults: faults(rng),
            profile: profile(rng),
            writes_gap: Duration::from_secs(rng.random_range(2..8)),
            skewed: rng.random_bool(0.3),
            schedule: Vec::new(),
        };
        plan.draw_schedule(rng);
        plan.source.draw_feed_only(rng);
        plan
    }

    pub(crate) fn source_options(&self, url: &str) -> SourceOptions {
        SourceOptions {
            url: url.to_owned(),
            feed: self.source.feed,
            sweep_sec: self.source.sweep.as_secs(),
            ..SourceOptions::default()
        }
    }

    /// How a store delays reads and commits, also without faults.
    pub(crate) fn slowness(&self) -> (f64, Duration) {
        (self.faults.delay.max(0.2), self.faults.delay_max)
    }

    /// How long a change may take without faults: the delay and the interval of a trigger, a sweep, and the store.
    pub(crate) fn latest(&self) -> Duration {
        let waits = self
            .ways
            .iter()
            .any(|way| matches!(way, Way::Triggered(1..) | Way::InOrder(1..)));
        let (delay, delay_max) = self.slowness();
        let store = delay_max.mul_f64(0.5 * delay * STEPS);
        let wait = Duration::from_secs(if waits { 90 } else { 30 }) + store;
        let loses = self.source.sweep < Duration::from_hours(1);
        wait + if loses {
            self.source.sweep * 2
        } else {
            Duration::ZERO
        }
    }

    fn draw_schedule(&mut self, rng: &mut SmallRng) {
        let mut schedule = Schedule::new(self.troubled, rng);
        for node in 0..self.nodes {
            let mut some = |most, longest_s, begin, end| {
                let longest = Duration::from_secs(longest_s);
                schedule.some(most, longest, Act::Node(node, begin), Act::Node(node, end));
            };
            some(2, 60, Fault::Outage(true), Fault::Outage(false));
            some(2, 60, Fault::Pause(true), Fault::Pause(false));
            some(3, 40, Fault::Crash, Fault::Start);
            some(1, 40, Fault::Stop, Fault::Start);
            if self.skewed {
                let skew_ms = schedule.rng.random_range(-30_000..30_000);
                let at = schedule.moment();
                schedule.add(at, Act::Node(node, Fault::Skew(skew_ms)));
            }
        }
        let longest = Duration::from_secs(30);
        schedule.store_outage(0.3, longest, self.nodes, Act::Node);
        let longest = Duration::from_secs(90);
        for mode in [Mode::Refuses, Mode::Silent] {
            schedule.some(2, longest, Act::Endpoint(mode), Act::Endpoint(Mode::Well));
        }
        for (nth, database) in self.databases.iter().enumerate() {
            if database.is_late {
                let at = schedule.moment();
                schedule.add(at, Act::Create(nth));
            } else if schedule.rng.random_bool(0.3) {
                let longest = Duration::from_mins(1);
                schedule.some(1, longest, Act::Delete(nth), Act::Create(nth));
            }
        }
        for nth in 0..CUTS {
            // Far enough apart for another node to follow the source in between.
            let [part, after] = [(); 2].map(|()| schedule.rng.random_range(0.0..0.4));
            let at = (self.troubled / CUTS).mul_f64(f64::from(nth) + 0.5 + part);
            let after = (nth % 2 == 1).then(|| Duration::from_secs_f64(after));
            let cut = Act::PowerCut(nth as usize, after);
            schedule.add(at, cut);
        }
        self.schedule = schedule.finish();
    }
}

impl Sourcing {
    fn draw(rng: &mut SmallRng) -> Self {
        let sweep = Duration::from_secs(rng.random_range(15..30));
        let (feed, feed_faults, sweep) = match rng.random_range(0..10) {
            // Without sweeps, to see what they would hide.
            0..5 => {
                let repeat = rng.random_range(0..300);
                let faults = FeedFaults {
                    repeat,
                    ..FeedFaults::default()
                };
                (FeedKind::DbUpdates, faults, Duration::from_hours(24))
            }
            5..9 => {
                let faults = FeedFaults {
                    lose: rng.random_range(0..400),
                    repeat: rng.random_range(0..300),
                    reorder: rng.random_range(0..300),
                };
                (FeedKind::Auto, faults, sweep)
            }
            _ => (FeedKind::DbsInfo, FeedFaults::default(), sweep),
        };
        Self {
            feed,
            feed_faults,
            sweep,
            feed_only: false,
        }
    }

    /// Whether there are sequences to compare is drawn last, so that all else of a seed stays as it was.
    fn draw_feed_only(&mut self, rng: &mut SmallRng) {
        if self.feed == FeedKind::DbUpdates && rng.random_bool(0.75) {
            self.feed_only = true;
            // Without sequences, a repeated deletion is believed.
            self.feed_faults = FeedFaults::default();
        }
    }
}

fn databases(rng: &mut SmallRng) -> Vec<Database> {
    let mut databases = Vec::new();
    let numbers = [
        (Pace::Busy, 1),
        (Pace::Bursts, rng.random_range(1..=2)),
        (Pace::Rare, CUTS),
    ];
    for (pace, number) in numbers {
        for _ in 0..number {
            databases.push(Database {
                pace,
                is_late: rng.random_bool(0.2),
            });
        }
    }
    databases
}

fn profile(rng: &mut SmallRng) -> Profile {
    let profile = match rng.random_range(0..4) {
        0 => Profile::default(),
        1 => Profile::network(),
        2 => Profile::overload(),
        _ => Profile::chaos(),
    };
    Profile {
        latency_ms_max: *[20, 200, 2_000].get(rng.random_range(0..3)).unwrap_or(&20),
        faults_max: 20_000,
        ..profile
    }
}

fn faults(rng: &mut SmallRng) -> Faults {
    Faults {
        conflict: often(rng, 0.2),
        unknown_applied: often(rng, 0.1),
        unknown_lost: often(rng, 0.1),
        too_old: often(rng, 0.001),
        unavailable: often(rng, 0.001),
        delay: rng.random_range(0.0..0.6),
        delay_max: Duration::from_millis(*[3, 100, 500].get(rng.random_range(0..3)).unwrap_or(&3)),
        watch_lost: often(rng, 0.5),
        watch_spurious: often(rng, 0.3),
        ..Faults::default()
    }
}
