//! What simulations from a seed share: which seeds are run and how one that fails is reported, random
//! numbers for each actor, and a schedule of faults.

#![expect(clippy::print_stdout, reason = "a test says what it has found")]

use std::fmt::{Debug, Write};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// A number from the environment.
///
/// # Panics
///
/// If it is not one.
pub fn number<T: FromStr<Err: Debug>>(name: &str, default: T) -> T {
    let value = std::env::var(name);
    value.map_or(default, |value| value.parse().expect(name))
}

/// How a simulated run went.
#[derive(Debug, Default)]
pub struct Report {
    /// What should not have happened.
    pub problems: Vec<String>,
    /// What led to it, line by line.
    pub story: Vec<String>,
    /// What was done, to show that enough was.
    pub counts: [(&'static str, usize); 2],
    /// How long it took by the simulated clock.
    pub lasted: Duration,
}

/// A simulation: how to run a seed, and what a person types to run it again.
#[derive(Debug)]
pub struct Campaign<S, P> {
    /// The command, to be followed by the number of seeds and the first of them.
    pub command: &'static str,
    /// How many seeds are run unless `DAVENPORT_SEEDS` says otherwise.
    pub seeds: u64,
    /// Runs a seed.
    pub simulate: S,
    /// Shows what a seed decides.
    pub plan: P,
}

impl<S, P, D> Campaign<S, P>
where
    S: Fn(u64) -> Report + Sync,
    P: Fn(u64) -> D + Sync,
    D: Debug,
{
    /// Runs `DAVENPORT_SEEDS` seeds from `DAVENPORT_SEED` on, one per processor at a time, until one
    /// fails.
    ///
    /// # Panics
    ///
    /// If one fails.
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

    /// Shows that a planted mistake is found: by one of so many seeds, run with `simulate`.
    ///
    /// # Panics
    ///
    /// If no seed finds it.
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

    /// What went wrong, and how to see it again.
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

/// How probable a fault is: often impossible, and `most` at most.
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
    /// The store cannot be reached, or can again.
    Outage(bool),
    /// The process gets no processor in the middle of whatever it does, or goes on.
    Pause(bool),
    /// The process is killed.
    Crash,
    /// The process is told to stop.
    Stop,
    /// The process is started, if it is down.
    Start,
    /// The clock is wrong by so many milliseconds.
    Skew(i64),
}

/// The faults of a run in the making. `A` is what can happen in it.
#[derive(Debug)]
pub struct Schedule<'a, A> {
    troubled: Duration,
    /// Where it draws from.
    pub rng: &'a mut SmallRng,
    acts: Vec<(Duration, A)>,
}

impl<'a, A: Copy> Schedule<'a, A> {
    /// None yet, of a run in which things go wrong for so long.
    pub fn new(troubled: Duration, rng: &'a mut SmallRng) -> Self {
        Self {
            troubled,
            rng,
            acts: Vec::new(),
        }
    }

    /// Some moment at which things go wrong.
    pub fn moment(&mut self) -> Duration {
        self.troubled.mul_f64(self.rng.random())
    }

    /// Something at a moment.
    pub fn add(&mut self, at: Duration, act: A) {
        self.acts.push((at, act));
    }

    /// Something that lasts for a while, up to so many times.
    pub fn some(&mut self, most: u32, longest: Duration, begin: A, end: A) {
        for _ in 0..self.rng.random_range(0..=most) {
            let at = self.moment();
            let length = longest.mul_f64(self.rng.random());
            self.add(at, begin);
            self.add(at + length, end);
        }
    }

    /// The whole store is away, for these nodes: sometimes, once.
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

    /// All of it in order. What would end after the trouble is left out: healing ends it.
    pub fn finish(mut self) -> Vec<(Duration, A)> {
        self.acts.retain(|(at, _)| *at < self.troubled);
        self.acts.sort_by_key(|(at, _)| *at);
        self.acts
    }
}
