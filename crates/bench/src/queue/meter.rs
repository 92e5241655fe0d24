//! Measures time, and what the store did meanwhile.

use std::time::Duration;

use store::Store;
use tokio::time::Instant;

use crate::store::Figure;

/// The transactions that move jobs.
const MOVES: [&str; 3] = ["add", "accept", "finish"];

pub(super) struct Report<'r>(pub(super) &'r mut dyn FnMut(Figure));

/// A moment, and what the store had done until then.
pub(super) struct Meter {
    store: Store,
    begun: Instant,
    before: Costs,
    /// Bytes written to disk by the process, if the system reports it.
    disk_before: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    commits: u64,
    conflicts: u64,
    bytes: u64,
}

impl Costs {
    fn of(store: &Store) -> Self {
        let mut costs = Self::default();
        for (name, stats) in store.stats() {
            if MOVES.contains(&name) {
                costs.commits += stats.calls;
                costs.conflicts += stats.conflicts;
            }
            costs.bytes += stats.bytes;
        }
        costs
    }
}

impl Meter {
    pub(super) fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            before: Costs::of(store),
            disk_before: disk_bytes(),
            begun: Instant::now(),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
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
        let (before, now) = (meter.before, Costs::of(&meter.store));
        let commits = now.commits - before.commits;
        self.figure(
            case,
            "conflict_ratio",
            ratio(now.conflicts - before.conflicts, float(commits.max(1))),
            "ratio",
        );
        let jobs = float(count as u64);
        self.figure(case, "commits_per_job", ratio(commits, jobs), "1");
        let bytes = ratio(now.bytes - before.bytes, jobs);
        self.figure(case, "store_bytes_per_job", bytes, "B");
        if let (Some(before), Some(now)) = (meter.disk_before, disk_bytes()) {
            let bytes = ratio(now.saturating_sub(before), jobs);
            self.figure(case, "disk_bytes_per_job", bytes, "B");
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
