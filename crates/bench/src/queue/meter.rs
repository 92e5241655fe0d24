//! Measures time, and what the store did meanwhile.

use std::time::Duration;

use store::Store;
use tokio::time::Instant;

use crate::process::own_cpu_s;
use crate::store::Figure;

/// The transactions that move jobs.
const MOVES: [&str; 3] = ["add", "accept", "finish"];

pub(super) struct Report<'r>(pub(super) &'r mut dyn FnMut(Figure));

/// Measures from its creation on, except while it is paused.
pub(super) struct Meter {
    store: Store,
    begun: Reading,
    paused: Option<Reading>,
}

/// A moment, and what the process had done until then.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    commits: u64,
    conflicts: u64,
    store_bytes: u64,
    /// Bytes written to disk by the process, if the system reports it.
    disk_bytes: Option<u64>,
    cpu_s: Option<f64>,
}

impl Reading {
    fn now(store: &Store) -> Self {
        let mut now = Self {
            at: Instant::now(),
            commits: 0,
            conflicts: 0,
            store_bytes: 0,
            disk_bytes: disk_bytes(),
            cpu_s: own_cpu_s(),
        };
        for (name, stats) in store.stats() {
            if MOVES.contains(&name) {
                now.commits += stats.calls;
                now.conflicts += stats.conflicts;
            }
            now.store_bytes += stats.bytes;
        }
        now
    }

    /// As if what happened between two other readings had not.
    fn without(self, from: Self, to: Self) -> Self {
        let disk_bytes = self.disk_bytes.zip(from.disk_bytes).zip(to.disk_bytes);
        let cpu_s = self.cpu_s.zip(from.cpu_s).zip(to.cpu_s);
        Self {
            at: self.at + (to.at - from.at),
            commits: self.commits + to.commits - from.commits,
            conflicts: self.conflicts + to.conflicts - from.conflicts,
            store_bytes: self.store_bytes + to.store_bytes - from.store_bytes,
            disk_bytes: disk_bytes.map(|((own, from), to)| own + to.saturating_sub(from)),
            cpu_s: cpu_s.map(|((own, from), to)| own + to - from),
        }
    }
}

impl Meter {
    pub(super) fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            begun: Reading::now(store),
            paused: None,
        }
    }

    pub(super) fn pause(&mut self) {
        self.paused = Some(Reading::now(&self.store));
    }

    pub(super) fn resume(&mut self) {
        if let Some(paused) = self.paused.take() {
            self.begun = self.begun.without(paused, Reading::now(&self.store));
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.last().at - self.begun.at
    }

    fn last(&self) -> Reading {
        self.paused.unwrap_or_else(|| Reading::now(&self.store))
    }
}

impl Report<'_> {
    pub(super) fn figure(
        &mut self,
        case: &str,
        metric: &'static str,
        value: f64,
        unit: &'static str,
    ) {
        (self.0)(Figure {
            case: case.to_owned(),
            metric,
            value,
            unit,
        });
    }

    /// How many jobs went by in a second since the meter was started.
    pub(super) fn rate(&mut self, case: &str, metric: &'static str, count: usize, meter: &Meter) {
        self.figure(
            case,
            metric,
            ratio(count, meter.elapsed().as_secs_f64()),
            "1/s",
        );
    }

    /// What so many jobs have cost the store since the meter was started.
    pub(super) fn costs(&mut self, case: &str, count: usize, meter: &Meter) {
        let (before, now) = (meter.begun, meter.last());
        let commits = now.commits - before.commits;
        self.figure(
            case,
            "conflict_ratio",
            ratio(now.conflicts - before.conflicts, float(commits.max(1))),
            "ratio",
        );
        let jobs = float(count as u64);
        self.figure(case, "commits_per_job", ratio(commits, jobs), "1");
        let bytes = ratio(now.store_bytes - before.store_bytes, jobs);
        self.figure(case, "store_bytes_per_job", bytes, "B");
        if let (Some(before), Some(now)) = (before.disk_bytes, now.disk_bytes) {
            let bytes = ratio(now.saturating_sub(before), jobs);
            self.figure(case, "disk_bytes_per_job", bytes, "B");
        }
        if let (Some(before), Some(now)) = (before.cpu_s, now.cpu_s) {
            self.figure(case, "cpu_us_per_job", (now - before) * 1e6 / jobs, "us");
        }
    }

    /// The middle of some times, and one that few are above.
    pub(super) fn times(
        &mut self,
        case: &str,
        metrics: &[(&'static str, usize)],
        times: &[Duration],
    ) {
        for (metric, ms) in crate::percentiles(times, metrics) {
            self.figure(case, metric, ms, "ms");
        }
    }
}

fn ratio(count: impl TryInto<u64>, by: f64) -> f64 {
    float(count.try_into().unwrap_or(u64::MAX)) / by
}

#[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
fn float(count: u64) -> f64 {
    count as f64
}

/// What the process has caused to be written to disk so far, on Linux.
fn disk_bytes() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "))?;
    line.trim().parse().ok()
}
