//! `_scheduler/summary`: the state of the whole service in one small response.
//!
//! The queue counts the jobs in each state by the labels of their data, at the same cost for any number of jobs. Rates
//! and the work of nodes come from the jobs themselves: all of them if there are few, else a sample of each of the
//! queue's states, reported as `sampled`. Jobs of a store from before labels get theirs at their next change; until all
//! have one, the counts are estimates, too, and not `exact`.
//!
//! A rate is what was written since the same jobs were seen some seconds ago, so that many jobs that write one document
//! now and then count. A job not seen before reports its own rate.

use std::collections::{BTreeMap, HashMap, VecDeque};

use jobs::{JobId, State};
use serde_json::{Value, json};

use super::Seen;
use crate::data::{Census, JobState, counted};
use crate::fault::ServiceError;
use crate::service::Replications;

/// Maximum jobs sampled per state.
const SAMPLES_MAX: usize = 500;

const STATES: [JobState; 5] = [
    JobState::Pending,
    JobState::Running,
    JobState::Crashing,
    JobState::Completed,
    JobState::Failed,
];
/// Minimum age of the figures that a rate starts from: running jobs report every ten seconds.
const RATE_WINDOW_MS: i64 = 12_000;
/// Figures older than this say nothing about the current rate.
const MEMORY_MAX_MS: i64 = 60_000;

/// Figures of running jobs, kept between summaries.
#[derive(Debug, Default)]
pub struct SummaryMemory(VecDeque<Moment>);

#[derive(Debug)]
struct Moment {
    at_ms: i64,
    written: HashMap<JobId, Written>,
}

/// Documents and bytes written.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    docs: u64,
    bytes: u64,
}

/// A sample of the jobs in one of the queue's states.
struct Sample {
    seen: Vec<Seen>,
    /// The number of jobs in this state.
    replications: u64,
    /// Whether the sample omits some.
    partial: bool,
}

#[derive(Default)]
struct Tally {
    states: BTreeMap<&'static str, u64>,
    idle: u64,
    paused: u64,
    /// By server: why it is unreachable, and for how many jobs.
    outages: BTreeMap<String, (String, u64)>,
    work: Work,
    nodes: BTreeMap<String, Work>,
    partial: bool,
    /// The queue's counts, if complete.
    census: Option<Census>,
}

/// The work of some running jobs.
#[derive(Clone, Copy, Default)]
struct Work {
    running: u64,
    idle: u64,
    docs_per_second: f64,
    bytes_per_second: f64,
    changes_pending: u64,
    lag_seconds_max: u64,
}

impl Replications {
    /// `GET /_scheduler/summary`
    pub async fn summary(&self, memory: &mut SummaryMemory) -> Result<Value, ServiceError> {
        self.summary_of(memory, SAMPLES_MAX).await
    }

    pub(crate) async fn summary_of(
        &self,
        memory: &mut SummaryMemory,
        samples: usize,
    ) -> Result<Value, ServiceError> {
        let labels = self.0.jobs.counts_by_label(&self.0.ty).await?;
        let count = |state| counted(&labels, state);
        let now_ms = self.0.jobs.clock().now_ms();
        memory.forget(now_ms);
        let mut tally = Tally::default();
        let mut written = HashMap::new();
        for state in [State::Pending, State::Running, State::Finished] {
            let sample = self.sample(state, count(state), samples).await?;
            tally.add(&sample, memory, now_ms);
            let running = (sample.seen.iter()).filter(|seen| seen.state() == JobState::Running);
            written.extend(running.map(|seen| (seen.job.clone(), Written::by(seen))));
        }
        memory.0.push_back(Moment {
            at_ms: now_ms,
            written,
        });
        tally.census = Census::of(&labels);
        let mut shown = tally.to_json();
        shown["queue"] = json!({
            "pending": count(State::Pending), "running": count(State::Running),
            "finished": count(State::Finished),
        });
        Ok(shown)
    }

    async fn sample(
        &self,
        state: State,
        count: u64,
        samples: usize,
    ) -> Result<Sample, ServiceError> {
        let mut seen = Vec::new();
        let mut cursor = None;
        loop {
            let (page, next) = self.state_page(state, cursor.as_ref()).await?;
            seen.extend(page);
            cursor = next;
            let partial = cursor.is_some();
            if !partial || seen.len() >= samples {
                let found = seen.len() as u64;
                // Jobs change state between two reads; those found count.
                let replications = if partial { count.max(found) } else { found };
                return Ok(Sample {
                    seen,
                    replications,
                    partial,
                });
            }
        }
    }
}

impl SummaryMemory {
    /// Keeps one moment that is old enough for a rate, and all later ones.
    fn forget(&mut self, now_ms: i64) {
        let age = |moment: &Moment| now_ms - moment.at_ms;
        self.0
            .retain(|moment| (0..MEMORY_MAX_MS).contains(&age(moment)));
        while self
            .0
            .get(1)
            .is_some_and(|next| age(next) >= RATE_WINDOW_MS)
        {
            self.0.pop_front();
        }
    }

    /// Documents and bytes per second.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a rate needs no more than 52 bits"
    )]
    fn rates(&self, seen: &Seen, now_ms: i64) -> (f64, f64) {
        let old = (self.0.front()).filter(|moment| now_ms - moment.at_ms >= RATE_WINDOW_MS);
        let before = old.and_then(|moment| Some((moment.at_ms, moment.written.get(&seen.job)?)));
        let Some((at_ms, before)) = before else {
            let own = |name| seen.live.info.get(name).and_then(Value::as_f64);
            let (docs, bytes) = (own("docs_per_second"), own("bytes_per_second"));
            return (docs.unwrap_or(0.0), bytes.unwrap_or(0.0));
        };
        let now = Written::by(seen);
        let seconds = (now_ms - at_ms) as f64 / 1000.0;
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        (rate(now.docs, before.docs), rate(now.bytes, before.bytes))
    }
}

impl Written {
    fn by(seen: &Seen) -> Self {
        let count = |name| {
            seen.live
                .info
                .get(name)
                .and_then(Value::as_u64)
                .unwrap_or(0)
        };
        Self {
            docs: count("docs_written"),
            bytes: count("bytes_read") + count("bytes_written"),
        }
    }
}

impl Sample {
    /// Scales a number of jobs in the sample to all jobs.
    fn scaled(&self, part: u64) -> u64 {
        part.saturating_mul(self.replications) / (self.seen.len() as u64).max(1)
    }

    /// Scales parts of the whole sample, so that they add up to all jobs.
    fn shares<const N: usize>(&self, parts: [u64; N]) -> [u64; N] {
        let mut shares = parts.map(|part| self.scaled(part));
        let given: u64 = shares.iter().sum();
        let largest = (0..N).max_by_key(|at| parts[*at]);
        if let (Some(largest), false) = (largest, self.seen.is_empty()) {
            shares[largest] += self.replications.saturating_sub(given);
        }
        shares
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate needs no more than 52 bits"
    )]
    fn factor(&self) -> f64 {
        self.replications as f64 / self.seen.len().max(1) as f64
    }

    fn count(&self, is: impl Fn(&Seen) -> bool) -> u64 {
        self.scaled(self.seen.iter().filter(|seen| is(seen)).count() as u64)
    }
}

impl Tally {
    fn add(&mut self, sample: &Sample, memory: &SummaryMemory, now_ms: i64) {
        self.partial |= sample.partial;
        let seen = STATES.map(|state| {
            let of_state = sample.seen.iter().filter(|seen| seen.state() == state);
            of_state.count() as u64
        });
        for (state, count) in STATES.into_iter().zip(sample.shares(seen)) {
            *self.states.entry(state.as_str()).or_default() += count;
        }
        self.idle += sample.count(Seen::is_idle);
        self.paused += sample.count(|seen| seen.state() == JobState::Pending && seen.data.paused);
        for outage in sample.seen.iter().filter_map(Seen::outage) {
            let fresh = || (outage.reason.clone(), 0);
            let known = self
                .outages
                .entry(outage.server.clone())
                .or_insert_with(fresh);
            known.1 += sample.scaled(1).max(1);
        }
        let mut nodes: BTreeMap<&str, Work> = BTreeMap::new();
        let mut all = Work::default();
        for seen in &sample.seen {
            if seen.state() != JobState::Running {
                continue;
            }
            let rates = memory.rates(seen, now_ms);
            all.add(seen, rates);
            if let (Some(node), _) = seen.node() {
                nodes.entry(node).or_default().add(seen, rates);
            }
        }
        self.work.add_scaled(&all, sample);
        for (node, work) in nodes {
            (self.nodes.entry(node.to_owned()).or_default()).add_scaled(&work, sample);
        }
    }

    fn jobs(&self) -> Value {
        if let Some(all) = &self.census {
            return json!({
                "pending": all.pending, "running": all.running, "crashing": all.crashing,
                "completed": all.completed, "failed": all.failed, "idle": all.idle, "paused": all.paused,
                "unreachable": all.unreachable,
            });
        }
        let mut jobs = json!(self.states);
        jobs["idle"] = self.idle.into();
        jobs["paused"] = self.paused.into();
        jobs["unreachable"] = self
            .outages
            .values()
            .map(|(_, count)| count)
            .sum::<u64>()
            .into();
        jobs
    }

    fn to_json(&self) -> Value {
        let nodes = self.nodes.iter().map(|(node, work)| {
            let mut shown = json!({"node": node, "running": work.running, "idle": work.idle});
            work.show(&mut shown);
            shown
        });
        let outages = self.outages.iter().map(
            |(server, (reason, jobs))| json!({"server": server, "reason": reason, "jobs": jobs}),
        );
        let mut shown = json!({
            "jobs": self.jobs(),
            "exact": self.census.is_some() || !self.partial,
            "sampled": self.partial,
            "nodes": nodes.collect::<Vec<_>>(),
            "unreachable": outages.collect::<Vec<_>>(),
        });
        self.work.show(&mut shown);
        shown
    }
}

impl Work {
    fn add(&mut self, seen: &Seen, (docs, bytes): (f64, f64)) {
        let figure = |name| seen.live.info.get(name);
        let count = |name| figure(name).and_then(Value::as_u64).unwrap_or(0);
        self.running += 1;
        self.changes_pending += count("changes_pending");
        self.docs_per_second += docs;
        self.bytes_per_second += bytes;
        if seen.is_idle() {
            self.idle += 1;
        } else {
            self.lag_seconds_max = self.lag_seconds_max.max(count("lag_seconds"));
        }
    }

    fn add_scaled(&mut self, part: &Self, sample: &Sample) {
        self.running += sample.scaled(part.running);
        self.idle += sample.scaled(part.idle);
        self.docs_per_second += part.docs_per_second * sample.factor();
        self.bytes_per_second += part.bytes_per_second * sample.factor();
        self.changes_pending += sample.scaled(part.changes_pending);
        self.lag_seconds_max = self.lag_seconds_max.max(part.lag_seconds_max);
    }

    fn show(&self, shown: &mut Value) {
        let rounded = |rate: f64| (rate * 10.0).round() / 10.0;
        shown["docs_per_second"] = rounded(self.docs_per_second).into();
        shown["bytes_per_second"] = rounded(self.bytes_per_second).into();
        shown["changes_pending"] = self.changes_pending.into();
        shown["lag_seconds_max"] = self.lag_seconds_max.into();
    }
}

#[cfg(test)]
mod tests {
    use document::json::Json;
    use jobs::JobInfo;

    use super::*;
    use crate::data::{JobData, Origin};
    use crate::live::Live;
    use crate::seal::Sealer;
    use replication::params::Invalid;

    fn running(id: &str, docs: u64) -> Seen {
        let job = JobId::new(id.to_owned()).unwrap();
        let (origin, body) = (Origin::Request { user: None }, Json::Object(Vec::new()));
        let invalid = Invalid::new("no");
        let mut data = JobData::new(
            &Sealer::plain(),
            &job,
            origin,
            (&body, None),
            Err(&invalid),
            0,
        );
        data.state = JobState::Running;
        let info =
            json!({"docs_written": docs, "bytes_written": 10 * docs, "docs_per_second": 7.5});
        Seen {
            info: JobInfo {
                id: job.clone(),
                state: State::Running,
                due_ms: 0,
                created_ms: 0,
                attempts: 1,
                stalls: 0,
                next_due_ms: None,
                finished_ms: None,
                expires_ms: None,
                last: None,
                data_bytes: 0,
            },
            job,
            data,
            live: Live {
                info: info.as_object().unwrap().clone(),
                ..Live::default()
            },
        }
    }

    #[test]
    fn rates_are_computed_between_summaries() {
        let mut memory = SummaryMemory::default();
        for (at_ms, docs) in [(0, 100), (5_000, 110), (13_000, 200)] {
            let seen = running("a", docs);
            let written = HashMap::from([(seen.job.clone(), Written::by(&seen))]);
            memory.0.push_back(Moment { at_ms, written });
        }
        let rates = |memory: &mut SummaryMemory, id, docs, now_ms| {
            memory.forget(now_ms);
            memory.rates(&running(id, docs), now_ms)
        };
        assert_eq!(rates(&mut memory, "a", 130, 15_000), (2.0, 20.0));
        // A new job reports its own rate; a restarted one has written nothing.
        assert_eq!(rates(&mut memory, "b", 130, 15_000), (7.5, 0.0));
        assert_eq!(rates(&mut memory, "a", 0, 15_000), (0.0, 0.0));
        assert_eq!(memory.0.len(), 3);
        assert_eq!(rates(&mut memory, "a", 240, 33_000), (2.0, 20.0));
        assert_eq!(memory.0.len(), 1);
        assert_eq!(rates(&mut memory, "a", 240, 80_000), (7.5, 0.0));
        // A clock that is set back yields no rates.
        memory.0.push_back(Moment {
            at_ms: 90_000,
            written: HashMap::new(),
        });
        assert_eq!(rates(&mut memory, "a", 240, 80_000), (7.5, 0.0));
        assert!(memory.0.is_empty());
    }

    #[test]
    fn shares_add_up() {
        let sample = Sample {
            seen: (0..3).map(|n| running(&format!("j{n}"), 1)).collect(),
            replications: 1000,
            partial: true,
        };
        assert_eq!(sample.shares([2, 1]), [667, 333]);
        let none = Sample {
            seen: Vec::new(),
            replications: 0,
            partial: false,
        };
        assert_eq!(none.shares([0, 0]), [0, 0]);
    }

    #[test]
    fn a_sample_is_scaled_to_all_jobs() {
        let sample = Sample {
            seen: (0..4).map(|n| running(&format!("j{n}"), 1)).collect(),
            replications: 1000,
            partial: true,
        };
        let mut tally = Tally::default();
        tally.add(&sample, &SummaryMemory::default(), 0);
        let shown = tally.to_json();
        assert_eq!(
            (
                &shown["jobs"]["running"],
                &shown["exact"],
                &shown["docs_per_second"]
            ),
            (&json!(1000), &json!(false), &json!(7500.0))
        );
    }
}
