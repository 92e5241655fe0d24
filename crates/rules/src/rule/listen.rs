//! Listening: a job for each rule and database that reads what has changed and has calls made.
//!
//! Its data is the place up to which the database's changes have been dealt with. Signals wake it; when it has caught
//! up, it is finished, and costs nothing. A rule that blocks makes each call before the place moves on. Otherwise the
//! place moves in the transaction that enqueues the calls, so none is lost or enqueued twice.

mod control;
mod left;
mod run;

use std::sync::Arc;
use std::time::Duration;

use couch::{Network, Seq};
use docstore::InstanceId;
use jobs::{Add, Holder, JobType, Jobs, Lane, Op, Signal, TypeConfig, Worker, WorkerOptions};
use serde::{Deserialize, Serialize};
use store::Transaction;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

pub use control::{Only, Progress, Rewind};

use super::call::{Attempt, Call, Outcome};
use super::databases::Event;
use super::document::Task;
use super::set::{Compiled, RuleId, Set};
use super::store::Rules;
use super::webhook::Since;
use crate::source::options::Source;

pub const JOB_TYPE: &str = "listen";
/// In the place of a sequence: that of the database when the next run begins.
const SINCE_NOW: &str = "now";
/// How long a node may be silent before its jobs are given to others.
const TIMEOUT_MS: u64 = 20_000;

/// The longest wait after a run that could not read the database, or the store. Refused calls count as failed runs as well, so
/// that without a limit of its own, this wait could be an hour after a single error.
const UNREAD_MAX: Duration = Duration::from_mins(1);

/// How calls are made.
pub trait Sender: Send + Sync + 'static {
    /// Enqueues calls in a transaction that has room for some 500 and a megabyte. They are made at least once, in any
    /// order.
    fn enqueue_in(
        &self,
        tx: &Transaction,
        op: &Op,
        calls: &[Call],
    ) -> impl Future<Output = jobs::Result<()>> + Send;

    /// Makes a call once, unless its endpoint is to be left alone. So many calls for the same change have failed before.
    fn send(&self, call: &Call, failures: u32) -> impl Future<Output = Answer> + Send;
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Made(Outcome, Attempt),
    /// It was not made: for how long its endpoint is to be left alone, and why.
    Later(Duration, String),
}

/// The listening jobs of a store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Listeners {
    rules: Rules,
    ty: JobType,
}

/// The data of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Place {
    instance: String,
    rule: String,
    /// The name of the database that the rule is in.
    #[serde(default)]
    rules: String,
    source: String,
    db: String,
    /// The sequence of the last change that has been dealt with, in the form of a query; `None` deals with the newest
    /// change only.
    since: Option<String>,
    /// Failures in a row of the change that is called for.
    #[serde(default)]
    failures: u32,
    /// The id and revision of that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failing: Option<(String, String)>,
    /// When the last run that caught up began. One that did not is continued without waiting for the next look.
    #[serde(default)]
    began_ms: i64,
    /// Until when the endpoint is to be left alone: changes that come meanwhile do not read the database in vain.
    #[serde(default, skip_serializing_if = "is_zero")]
    rests_ms: i64,
    /// The last call of a rule that blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_call: Option<Attempt>,
    /// Until when a report that the database was created makes this job begin with its first change. `None` once it has run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maybe_new_ms: Option<i64>,
    /// Since when the database is missing.
    #[serde(default)]
    missing_ms: Option<i64>,
    /// Since when the nodes that looked did not know the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unknown_ms: Option<i64>,
}

/// What is known of a database that has been looked at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub seq: &'a Seq,
    /// How long a feed may still take to report that the database is new; 0 if none will.
    pub news_ms: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(ms: &i64) -> bool {
    *ms == 0
}

impl Place {
    fn rule_id(&self) -> Option<RuleId> {
        Some(RuleId {
            instance: self.instance.parse::<InstanceId>().ok()?,
            doc: self.rule.clone(),
        })
    }
}

impl Listeners {
    /// Registers the job type.
    pub async fn open(rules: Rules) -> jobs::Result<Self> {
        let ty = JobType::new(JOB_TYPE)?;
        let listeners = Self { rules, ty };
        let jobs = listeners.jobs();
        jobs.set_type(&listeners.ty, TypeConfig::new(TIMEOUT_MS))
            .await?;
        Ok(listeners)
    }

    fn jobs(&self) -> &Jobs {
        self.rules.replications().jobs()
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The type of the jobs, for [`jobs::Maintenance`].
    pub fn job_type(&self) -> &JobType {
        &self.ty
    }

    /// The signals to send, in the transaction that moves on in the source's feed, because of an event about a database,
    /// each with its rule. A rule that is only about new databases has a job created by the event that there is one.
    ///
    /// A rule with `since: now` starts after the sequence that the database had when it was last looked at, and waits until a
    /// feed has had time to report that the database is new. If it has never been looked at, the rule begins with the newest change,
    /// because earlier ones may be old; a caller who knows that they are not begins it from the start.
    pub fn signals(
        set: &Set,
        source: &Source,
        db: &str,
        event: Event,
        now_ms: i64,
        seen: Option<Seen<'_>>,
    ) -> Vec<(Arc<Compiled>, Signal)> {
        let signal = |(rule, _): (Arc<Compiled>, _)| {
            let Task::Call(webhook) = &rule.rule.task else {
                return None;
            };
            let seen = seen.filter(|seen| !seen.seq.is_null());
            let since = match (&webhook.since, event) {
                (Since::Seq(seq), _) => Some(seq.clone()),
                (Since::Now, Event::Created) => Some("0".to_owned()),
                (Since::Now, _) => seen.map(|seen| seen.seq.to_query()),
            };
            let seen = seen.filter(|_| matches!(webhook.since, Since::Now));
            let news_ms = seen.map_or(0, |seen| seen.news_ms);
            let place = Place {
                instance: rule.id.instance.to_string(),
                rule: rule.id.doc.clone(),
                rules: rule.db.clone(),
                source: source.name().to_owned(),
                db: db.to_owned(),
                since,
                failures: 0,
                failing: None,
                began_ms: 0,
                rests_ms: 0,
                last_call: None,
                maybe_new_ms: (news_ms > 0).then(|| now_ms.saturating_add(news_ms)),
                missing_ms: None,
                unknown_ms: None,
            };
            let data = jobs::encode(&place).expect("a place is JSON");
            let delay_ms = millis(webhook.pace.delay_sec).saturating_add(news_ms);
            let due_ms = now_ms.saturating_add(delay_ms);
            let id = rule.job(&[source.name(), db]);
            let add = Add::new(id, data).due_ms(due_ms);
            // Endpoints take turns.
            let add = match webhook.waits_for() {
                Some(endpoint) => add.lane(Lane::of(endpoint.as_bytes())),
                None => add,
            };
            let create = match event {
                Event::Created => true,
                Event::Updated => !rule.rule.databases.only_created(),
                Event::Deleted => false,
            };
            let signal = Signal {
                create,
                ..add.into()
            };
            Some((rule, signal))
        };
        let matching = set.matching(source, db).into_iter();
        matching.filter_map(signal).collect()
    }

    /// The same signal, without a delay if it is about the newest change, since each later one takes its place.
    pub(crate) fn at_the_newest(mut signal: Signal) -> Signal {
        let place = serde_json::from_slice::<Place>(&signal.add.data);
        if place.is_ok_and(|place| place.since.is_none()) {
            signal.add.due_ms = 0;
        }
        signal
    }

    /// The same signal for a database that is newer than its rule, which is about all of its changes then.
    pub(crate) fn from_the_start(mut signal: Signal) -> jobs::Result<Signal> {
        if let Ok(mut place) = serde_json::from_slice::<Place>(&signal.add.data) {
            place.since.get_or_insert_with(|| "0".to_owned());
            signal.add.data = jobs::encode(&place)?;
        }
        Ok(signal)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "it is at most some years")]
fn millis(seconds: f64) -> i64 {
    (seconds * 1000.0) as i64
}

/// What a run needs.
pub struct Listening<S> {
    pub listeners: Listeners,
    /// What [`RuleWatcher`](super::RuleWatcher) reads.
    pub rules: watch::Receiver<Arc<Set>>,
    pub sources: watch::Receiver<Arc<[Source]>>,
    pub network: Network,
    pub sender: S,
}

impl<S: Sender> Listening<S> {
    /// Runs jobs as `holder`, this many at once, until `stop`.
    pub async fn run(self, holder: Holder, concurrency: usize, stop: CancellationToken) {
        let options = WorkerOptions {
            concurrency,
            retry: jobs::Retry {
                retries_max: None,
                delay_max: UNREAD_MAX,
                ..jobs::Retry::default()
            },
            ..WorkerOptions::default()
        };
        let (jobs, ty) = (self.listeners.jobs().clone(), self.listeners.ty.clone());
        let (this, idle) = (Arc::new(self), Arc::new(Semaphore::new(concurrency)));
        let handler = move |task| {
            let (this, idle) = (Arc::clone(&this), Arc::clone(&idle));
            async move {
                let _busy = idle.acquire().await?;
                this.listen(task, &idle).await
            }
        };
        Worker::new(jobs, ty, holder, options)
            .run(stop, handler)
            .await;
    }
}

#[cfg(test)]
mod tests;
