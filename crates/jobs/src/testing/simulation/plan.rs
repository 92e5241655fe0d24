//! Draws the nodes, actors and faults of a run from a seed.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::Faults;
use testkit::{Fault, Schedule, often};

use crate::{Added, Limit, Options, Sharing, StallPolicy, TypeConfig};

/// One run, drawn from a seed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// How long faults last.
    pub(super) troubled: Duration,
    pub(super) nodes: Vec<NodePlan>,
    pub(super) types: Vec<TypePlan>,
    pub(super) options: Options,
    pub(super) faults: Faults,
    pub(super) fates: Fates,
    /// Mean time between two operations of a creator.
    pub(super) creators_gap: Duration,
    /// Maximum jobs per claim of a worker.
    pub(super) batch: usize,
    pub(super) schedule: Vec<(Duration, Act)>,
    /// Limits are rates, too, and are removed, and holders give their slots back for a while. In the other fleets, an operator
    /// only changes how many jobs of a pool run.
    pub(super) varied: bool,
    /// Some clocks are off by more than a few seconds.
    pub(super) clocks_differ: bool,
}

/// How many times as many jobs a crowd has.
const CROWD: u32 = 10;
/// How far clocks are off if they are right.
const SKEW_MS: i64 = 2_000;

/// The actors of a node.
#[derive(Debug, Clone)]
pub(super) struct NodePlan {
    pub(super) creators: usize,
    /// Workers of each type that use the acceptor.
    pub(super) workers: usize,
    /// Workers of each type that claim on their own.
    pub(super) claimers: usize,
    /// Followers of jobs of each type.
    pub(super) followers: usize,
    pub(super) maintains: bool,
    pub(super) skew_ms: i64,
}

#[derive(Debug, Clone)]
pub(super) struct TypePlan {
    pub(super) config: TypeConfig,
    /// An operator changes it to this, and back.
    pub(super) other_timeout_ms: u64,
    pub(super) limits: Option<Limits>,
    /// Its jobs have classes of priority.
    pub(super) classes: bool,
    /// Its jobs belong to so many tenants, which share it.
    pub(super) tenants: Option<u16>,
}

/// The limits that some of a type's jobs have: one for each of several keys, the pool, or both.
pub(super) const LIMITS: [&str; 3] = ["key", "key|1", "pool"];

/// The settings of each of [`LIMITS`]. The first is in force at the beginning and in the end, and an operator changes to the others
/// and back.
#[derive(Debug, Clone)]
pub(super) struct Limits(pub(super) [Vec<Option<Limit>>; LIMITS.len()]);

impl Limits {
    fn draw(rng: &mut SmallRng) -> Self {
        let at_once = |max| Some(Limit::at_once(max));
        let key = at_once(rng.random_range(1..=3));
        let pool = at_once(rng.random_range(1..=6));
        let other_pool = at_once(rng.random_range(0..=9));
        Self([vec![key], vec![None], vec![pool, other_pool]])
    }

    /// Adds other settings, among them rates and none.
    fn vary(&mut self, times: u32, rng: &mut SmallRng) {
        let Self([key, own, pool]) = self;
        for (settings, most) in [(key, 2), (own, 2), (pool, 6)] {
            if rng.random_bool(0.25) {
                settings[0] = Some(rate(most, times, rng));
            }
            for _ in 0..rng.random_range(0..=2) {
                settings.push(match rng.random_range(0..10) {
                    0..3 => Some(rate(most, times, rng)),
                    3..5 => None,
                    _ => Some(Limit::at_once(rng.random_range(0..=most + 3))),
                });
            }
        }
    }

    /// Whether one of the limits is a rate at times.
    fn has_rates(&self) -> bool {
        let mut all = self.0.iter().flatten().flatten();
        all.any(|limit| limit.per_ms.is_some())
    }
}

/// High enough that jobs do not wait for days.
fn rate(most: u32, times: u32, rng: &mut SmallRng) -> Limit {
    let max = times * rng.random_range(1..=most);
    let each_ms = rng.random_range(1_500..5_000) / u64::from(times);
    Limit::per(max, u64::from(max) * each_ms)
}

/// The behaviour of workers, in percent; the remaining runs behave well.
#[derive(Debug, Clone)]
pub(super) struct Fates {
    /// Sends nothing more.
    pub(super) silent: u32,
    /// Is silent for longer than the timeout, then continues.
    pub(super) hang: u32,
    /// Holds the job for several timeouts, with heartbeats.
    pub(super) hog: u32,
    /// Sends heartbeats early and late.
    pub(super) late: u32,
}

/// A fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Node(usize, Fault),
    /// The store is full for a node, or has room again.
    Full(usize, bool),
    /// Switches a type to its other timeout, or back.
    Retime(usize, bool),
    /// Changes a limit of a type: which, and to which of its settings.
    Limit(usize, usize, usize),
}

impl Plan {
    pub(super) fn draw(seed: u64) -> Self {
        Self::draw_times(seed, 1)
    }

    /// So many times as many jobs, all of types with limits.
    pub(super) fn crowded(seed: u64) -> Self {
        Self::draw_times(seed, CROWD)
    }

    fn draw_times(seed: u64, times: u32) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let rng = &mut rng;
        let types: Vec<_> = (0..rng.random_range(1..=2))
            .map(|_| TypePlan::draw(rng))
            .collect();
        let longest = types.iter().map(|ty| ty.config.timeout_ms).max();
        let timeout = Duration::from_millis(longest.unwrap_or(0));
        let troubled = timeout * rng.random_range(6..=14);
        let mut nodes: Vec<_> = (0..rng.random_range(2..=6))
            .map(|_| NodePlan::draw(rng))
            .collect();
        // One node has every role.
        nodes[0].creators = nodes[0].creators.max(1);
        nodes[0].workers = nodes[0].workers.max(2);
        nodes[0].maintains = true;
        let creators: usize = nodes.iter().map(|node| node.creators).sum();
        let calls = 10_f64.powf(rng.random_range(2.3..3.2));
        let mut plan = Self {
            seed,
            troubled,
            nodes,
            types,
            options: Options {
                activity_monitor_max_jitter_msec: rng.random_range(1..5_000),
                type_monitor_holdoff_msec: 50,
                type_check_period_msec: rng.random_range(2_000..15_000),
                type_check_max_jitter_msec: rng.random_range(1..5_000),
                ..Options::default()
            },
            faults: faults(rng),
            fates: Fates::draw(rng),
            creators_gap: troubled.mul_f64(f64::from(u32::try_from(creators).unwrap()) / calls)
                / times,
            batch: rng.random_range(1..=8),
            schedule: Vec::new(),
            varied: times > 1 || !seed.is_multiple_of(5),
            clocks_differ: true,
        };
        plan.draw_limits(times);
        plan.draw_schedule(timeout, rng);
        plan
    }

    /// From numbers of their own, so that other types behave as before there were limits.
    fn draw_limits(&mut self, times: u32) {
        let mut rng = SmallRng::seed_from_u64(!self.seed);
        for ty in &mut self.types {
            let limited = if times > 1 { 1.0 } else { 0.4 };
            ty.limits = rng.random_bool(limited).then(|| Limits::draw(&mut rng));
            ty.classes = rng.random_bool(0.3);
        }
        let mut rng = SmallRng::seed_from_u64(self.seed.rotate_left(32));
        for ty in &mut self.types {
            ty.tenants = rng.random_bool(0.35).then(|| rng.random_range(1..=24));
            if ty.tenants.is_some() {
                ty.config.sharing = Sharing::On;
            }
        }
        let mut rng = SmallRng::seed_from_u64(self.seed.rotate_left(16));
        for limits in self.types.iter_mut().filter_map(|ty| ty.limits.as_mut()) {
            if self.varied {
                limits.vary(times, &mut rng);
            }
        }
        self.clocks_differ = rng.random_bool(0.25) || !self.has_rates();
    }

    fn has_rates(&self) -> bool {
        self.types.iter().any(TypePlan::has_rates)
    }

    /// Sets the clocks of most fleets with rates right, to a few seconds: the starts of a rate are told apart by clocks.
    fn set_clocks_right(&mut self) {
        let skews = self.nodes.iter_mut().map(|node| &mut node.skew_ms);
        let later = self.schedule.iter_mut().filter_map(|(_, act)| match act {
            Act::Node(_, Fault::Skew(skew_ms)) => Some(skew_ms),
            _ => None,
        });
        for skew_ms in skews.chain(later) {
            *skew_ms = (*skew_ms).clamp(-SKEW_MS, SKEW_MS);
        }
    }

    fn draw_schedule(&mut self, timeout: Duration, rng: &mut SmallRng) {
        let mut schedule = Schedule::new(self.troubled, rng);
        for node in 0..self.nodes.len() {
            draw_faults(&mut schedule, node, timeout);
        }
        schedule.store_outage(0.4, Duration::from_mins(1), self.nodes.len(), Act::Node);
        for ty in 0..self.types.len() {
            schedule.some(1, timeout, Act::Retime(ty, true), Act::Retime(ty, false));
        }
        for (ty, of_type) in self.types.iter().enumerate() {
            let settings = of_type.limits.iter().flat_map(|Limits(all)| all);
            for (limit, settings) in settings.enumerate() {
                for other in 1..settings.len() {
                    let [to, back] = [other, 0].map(|which| Act::Limit(ty, limit, which));
                    schedule.some(3, timeout * 2, to, back);
                }
            }
        }
        self.schedule = schedule.finish();
        if !self.clocks_differ {
            self.set_clocks_right();
        }
    }

    /// Time limit for due jobs after all faults have ended.
    pub(super) fn healed_within(&self) -> Duration {
        let longest = |of: fn(&TypePlan) -> u64| self.types.iter().map(of).max().unwrap_or(0);
        let timeout = longest(|ty| ty.config.timeout_ms);
        let backoff = longest(|ty| ty.config.stalls.backoff_ms_max);
        let jitter = self.options.activity_monitor_max_jitter_msec;
        // Learning the type, taking over leases, two timeouts until holders count as silent, and a queue.
        let limited = self.types.iter().any(|ty| ty.limits.is_some());
        // A rate that was used by a clock that is an hour ahead is free again when it is that late.
        let queue = Duration::from_mins(match (self.has_rates(), limited) {
            (true, _) => 240,
            (_, true) => 60,
            _ => 2,
        });
        Duration::from_millis(5 * (timeout + jitter) + 2 * backoff) + queue
    }
}

/// Draws all faults of one node.
fn draw_faults(schedule: &mut Schedule<'_, Act>, node: usize, timeout: Duration) {
    let act = |fault| Act::Node(node, fault);
    let mut some = |most, longest, begin, end| schedule.some(most, longest, begin, end);
    let (outage, full) = (Duration::from_secs(90), Duration::from_mins(1));
    some(
        2,
        outage,
        act(Fault::Outage(true)),
        act(Fault::Outage(false)),
    );
    some(1, full, Act::Full(node, true), Act::Full(node, false));
    some(
        3,
        timeout * 3,
        act(Fault::Pause(true)),
        act(Fault::Pause(false)),
    );
    some(2, timeout * 2, act(Fault::Crash), act(Fault::Start));
    some(1, timeout * 2, act(Fault::Stop), act(Fault::Start));
    for _ in 0..schedule.rng.random_range(0..=3) {
        let at = schedule.moment();
        let skew_ms = skew_ms(schedule.rng);
        schedule.add(at, act(Fault::Skew(skew_ms)));
    }
    if schedule.rng.random_bool(0.1) {
        // A clock that stands still for a while, and then catches up.
        let at = schedule.moment();
        for step in 0..40 {
            let since = Duration::from_millis(500) * step;
            let behind = i64::from(step) * -500;
            schedule.add(at + since, act(Fault::Skew(behind)));
        }
        schedule.add(at + Duration::from_secs(20), act(Fault::Skew(0)));
    }
}

impl NodePlan {
    fn draw(rng: &mut SmallRng) -> Self {
        let api = rng.random_bool(0.7);
        let works = !api || rng.random_bool(0.6);
        let some = |rng: &mut SmallRng, yes: bool, most: usize| {
            if yes { rng.random_range(1..=most) } else { 0 }
        };
        let claims = works && rng.random_bool(0.4);
        Self {
            creators: some(rng, api, 3),
            workers: some(rng, works, 5),
            claimers: some(rng, claims, 2),
            followers: some(rng, api, 6),
            maintains: rng.random_bool(0.7),
            skew_ms: skew_ms(rng),
        }
    }
}

impl TypePlan {
    fn draw(rng: &mut SmallRng) -> Self {
        let timeout_ms = rng.random_range(8_000..40_000);
        let config = TypeConfig {
            timeout_ms,
            retention_ms: match rng.random_range(0..4) {
                // Some are deleted as soon as they finish.
                0 => Some(rng.random_range(0..500) / 100 * 100),
                1 => Some(rng.random_range(1_000..120_000)),
                _ => None,
            },
            stalls: StallPolicy {
                stalls_max: (rng.random_bool(0.5)).then(|| rng.random_range(1..6)),
                backoff_ms: if rng.random_bool(0.5) { 0 } else { 700 },
                backoff_ms_max: 10_000,
                healthy_ms: 0,
            },
            sharing: Sharing::Off,
        };
        Self {
            config,
            other_timeout_ms: if rng.random_bool(0.5) {
                timeout_ms + rng.random_range(1..20_000)
            } else {
                timeout_ms / rng.random_range(2..8)
            },
            limits: None,
            classes: false,
            tenants: None,
        }
    }

    /// Whether jobs may be due later than asked for, because a rate does not let them start before.
    pub(super) fn has_rates(&self) -> bool {
        self.limits.as_ref().is_some_and(Limits::has_rates)
    }

    /// Whether a signal may be answered so, which cannot make a job due earlier than a rate lets it start.
    pub(super) fn may_answer(&self, should: Added, answer: Added) -> bool {
        let kept = (should, answer) == (Added::Replaced, Added::Unchanged);
        answer == should || kept && self.has_rates()
    }
}

impl Fates {
    fn draw(rng: &mut SmallRng) -> Self {
        Self {
            silent: rng.random_range(0..10),
            hang: rng.random_range(0..12),
            hog: rng.random_range(0..8),
            late: rng.random_range(0..20),
        }
    }
}

/// Half of the clocks are right; the others are off by up to an hour.
fn skew_ms(rng: &mut SmallRng) -> i64 {
    match rng.random_range(0..6) {
        0..3 => 0,
        3..5 => rng.random_range(-2_000..2_000),
        _ => rng.random_range(-3_600_000..3_600_000),
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
        delay_max: Duration::from_millis(*[3, 30, 300, 1_500].get(rng.random_range(0..4)).unwrap()),
        watch_lost: if rng.random_bool(0.15) {
            1.0
        } else {
            often(rng, 0.5)
        },
        watch_spurious: often(rng, 0.3),
        ..Faults::default()
    }
}
