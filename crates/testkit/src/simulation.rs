//! Shared by seeded simulations: choosing seeds, reporting failures, random numbers per actor, and a schedule of
//! faults.

#![expect(clippy::print_stdout, reason = "a test says what it has found")]

use std::fmt::{Debug, Write};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Builder;

/// A number from the environment. Panics if it is not a number.
pub fn number<T: FromStr<Err: Debug>>(name: &str, default: T) -> T {
    let value = std::env::var(name);
    value.map_or(default, |value| value.parse().expect(name))
}

/// Runs `future` on one thread whose clock advances only when all tasks are idle. Other tasks end with it.
pub fn simulated<T>(future: impl Future<Output = T>) -> T {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let result = runtime.block_on(Box::pin(future));
    runtime.shutdown_background();
    result
}

/// The result of a simulated run.
#[derive(Debug, Default)]
pub struct Report {
    /// Violations found.
    pub problems: Vec<String>,
    /// The log that led to them.
    pub story: Vec<String>,
    /// Counters, to show that enough was done.
    pub counts: [(&'static str, usize); 2],
    /// Simulated time.
    pub lasted: Duration,
}

/// A simulation: how to run a seed, and the command that repeats it.
#[derive(Debug)]
pub struct Campaign<S, P> {
    /// The command; the number of seeds and the first seed are appended.
    pub command: &'static str,
    /// The number of seeds unless `DAVENPORT_SEEDS` is set.
    pub seeds: u64,
    pub simulate: S,
    /// Prints the plan of a seed.
    pub plan: P,
}

impl<S, P, D> Campaign<S, P>
where
    S: Fn(u64) -> Report + Sync,
    P: Fn(u64) -> D + Sync,
    D: Debug,
{
    /// Runs `DAVENPORT_SEEDS` seeds from `DAVENPORT_SEED` on, one per CPU at a time. Panics at the first failure.
    pub fn run(&self) {
        let first = number("DAVENPORT_SEED", 1);
        let end = first + number("DAVENPORT_SEEDS", self.seeds);
        let (next, failed) = (AtomicU64::new(first), AtomicU64::new(u64::MAX));
        let sums = Mutex::new(Report::default());
        let run = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end || failed.load(Ordering::Relaxed) != u64::MAX {
                    return;
                }
                let report = (self.simulate)(seed);
                if !report.problems.is_empty() {
                    failed.fetch_min(seed, Ordering::Relaxed);
                    println!("{}", self.shown(seed, &report));
                }
                let mut sums = sums.lock().expect("no thread panics while it adds");
                for (sum, (name, count)) in sums.counts.iter_mut().zip(report.counts) {
                    *sum = (name, sum.1 + count);
                }
                sums.lasted += report.lasted;
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(run);
            }
        });
        let sums = sums.into_inner().expect("no thread panics while it adds");
        let counts = sums.counts.map(|(name, sum)| format!("{sum} {name}"));
        println!(
            "seeds {first} to {}: {}, {} simulated hours",
            end - 1,
            counts.join(", "),
            sums.lasted.as_secs() / 3_600
        );
        let failed = failed.into_inner();
        let command = self.command;
        assert_eq!(
            failed,
            u64::MAX,
            "see above; to run it again: {command} 1 {failed}"
        );
    }

    /// Checks that a planted mistake is found by one of this many seeds, run with `simulate`. Panics if it is not.
    pub fn finds(&self, mistake: &str, seeds: u64) {
        for seed in 1..=seeds {
            let report = (self.simulate)(seed);
            if let Some(problem) = report.problems.first() {
                let problem: String = problem.chars().take(300).collect();
                println!("{mistake}: found by seed {seed}: {problem}");
                if std::env::var_os("DAVENPORT_SHOW").is_some() {
                    println!("{}", self.shown(seed, &report));
                }
                return;
            }
        }
        panic!("{mistake}: survived {seeds} seeds");
    }

    /// The problems, and how to repeat them.
    fn shown(&self, seed: u64, report: &Report) -> String {
        let mut shown = format!("{:#?}\n", (self.plan)(seed));
        for (indent, lines) in [("  ", &report.problems), ("    ", &report.story)] {
            for line in lines {
                let _ = writeln!(shown, "{indent}{line}");
            }
        }
        let _ = writeln!(shown, "to run it again: {} 1 {seed}", self.command);
        shown
    }
}

/// Random numbers for one actor of a run.
pub fn actor_rng(seed: u64, parts: &[u64]) -> SmallRng {
    let mixed = parts.iter().fold(seed, |mixed, part| {
        (mixed ^ part)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    });
    SmallRng::seed_from_u64(mixed)
}

/// A random time, often short, on average `mean`.
pub fn some_time(rng: &mut SmallRng, mean: Duration) -> Duration {
    let uniform: f64 = rng.random_range(1e-6..1.0);
    mean.mul_f64((-uniform.ln()).min(5.0))
}

/// A probability for a fault: often 0, and `most` at most.
pub fn often(rng: &mut SmallRng, most: f64) -> f64 {
    if rng.random_bool(0.3) {
        0.0
    } else {
        rng.random_range(0.0..most)
    }
}

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The store becomes unreachable, or reachable again.
    Outage(bool),
    /// The process is paused in the middle of whatever it does, or resumed.
    Pause(bool),
    Crash,
    /// The process is stopped in order.
    Stop,
    /// The process is started if it is down.
    Start,
    /// The clock is off by this many milliseconds.
    Skew(i64),
}

/// A schedule of faults under construction. `A` is an action.
#[derive(Debug)]
pub struct Schedule<'a, A> {
    troubled: Duration,
    pub rng: &'a mut SmallRng,
    acts: Vec<(Duration, A)>,
}

impl<'a, A: Copy> Schedule<'a, A> {
    /// An empty schedule of a run with faults for this long.
    pub fn new(troubled: Duration, rng: &'a mut SmallRng) -> Self {
        Self {
            troubled,
            rng,
            acts: Vec::new(),
        }
    }

    /// A random moment within the faulty period.
    pub fn moment(&mut self) -> Duration {
        self.troubled.mul_f64(self.rng.random())
    }

    /// Adds an action at a moment.
    pub fn add(&mut self, at: Duration, act: A) {
        self.acts.push((at, act));
    }

    /// Adds something that lasts for a while, up to this many times.
    pub fn some(&mut self, most: u32, longest: Duration, begin: A, end: A) {
        for _ in 0..self.rng.random_range(0..=most) {
            let at = self.moment();
            let length = longest.mul_f64(self.rng.random());
            self.add(at, begin);
            self.add(at + length, end);
        }
    }

    /// Sometimes, the store is unreachable once for all of these nodes.
    pub fn store_outage(
        &mut self,
        probability: f64,
        longest: Duration,
        nodes: usize,
        act: impl Fn(usize, Fault) -> A,
    ) {
        if self.rng.random_bool(probability) {
            let at = self.moment();
            let length = longest.mul_f64(self.rng.random());
            for node in 0..nodes {
                self.add(at, act(node, Fault::Outage(true)));
                self.add(at + length, act(node, Fault::Outage(false)));
            }
        }
    }

    /// All actions in order. Ends after the faulty period are dropped: healing ends everything.
    pub fn finish(mut self) -> Vec<(Duration, A)> {
        self.acts.retain(|(at, _)| *at < self.troubled);
        self.acts.sort_by_key(|(at, _)| *at);
        self.acts
    }
}
