//! `GET /_remotes`: the replications of a remote, as they are in the store at this moment, and their numbers.
//!
//! To count them, all are read. A frontend answers from that for a second, or ten times as long as the reading took.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use jobs::{Cursor, JobInfo, Listed, Outcome, State};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::create::of_rule;
use crate::data::{JobData, JobState, Origin, RemoteId, iso, job_text, remote_of};
use crate::fault::ServiceError;
use crate::limits;
use crate::service::Replications;
use crate::snapshot::counted::Counted;
use crate::view::VISITS_MAX;
use crate::wake::ASLEEP_MS;

/// Jobs per transaction.
const PAGE: usize = 500;

/// The state of a replication of a remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemoteState {
    Running,
    Waiting,
    /// It failed, and is tried again.
    Retrying,
    /// It has copied everything, and waits for a change of its source.
    Asleep,
    Paused,
    /// It failed, and is not tried again.
    Failed,
}

/// What a due replication waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Delay,
    Threads,
    Target,
    Node,
}

impl RemoteState {
    pub const ALL: [Self; 6] = [
        Self::Running,
        Self::Waiting,
        Self::Retrying,
        Self::Asleep,
        Self::Paused,
        Self::Failed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Asleep => "asleep",
            Self::Paused => "paused",
            Self::Failed => "failed",
        }
    }
}

impl Reason {
    const ALL: [Self; 4] = [Self::Delay, Self::Threads, Self::Target, Self::Node];

    fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Threads => "threads",
            Self::Target => "target",
            Self::Node => "node",
        }
    }
}

impl Replications {
    /// The number of replications of a remote by state, and of those that wait by reason, as they were a short time ago.
    pub async fn remote_counts(&self, of: RemoteId<'_>) -> Result<Value, ServiceError> {
        let kept = &self.0.kept;
        let slot = kept.counts.slot(&of);
        // Locked by the caller that reads. Others wait for it.
        let mut last = slot.lock().await;
        let version = kept.version.load(Ordering::Relaxed);
        if let Some(last) = last.as_ref().filter(|last| last.is_fresh(version)) {
            return Ok(last.counts.clone());
        }
        let began = Instant::now();
        let counts = self.count_remote(of).await?;
        *last = Some(Counted::new(counts.clone(), version, began));
        Ok(counts)
    }

    async fn count_remote(&self, of: RemoteId<'_>) -> Result<Value, ServiceError> {
        let (mut states, mut reasons) = (BTreeMap::new(), BTreeMap::new());
        let mut cursor = None;
        loop {
            let (jobs, next) = self.remote_page(of, cursor.as_ref(), PAGE).await?;
            let now_ms = self.0.jobs.clock().now_ms();
            for (info, data) in &jobs {
                let (state, reason) = state(info, data, now_ms);
                *states.entry(state).or_insert(0_u64) += 1;
                if let Some(reason) = reason {
                    *reasons.entry(reason).or_insert(0_u64) += 1;
                }
            }
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        let count = |state| states.get(&state).copied().unwrap_or_default();
        let states = RemoteState::ALL.map(|state| (state.as_str().to_owned(), count(state)));
        let count = |reason| reasons.get(&reason).copied().unwrap_or_default();
        let reasons = Reason::ALL.map(|reason| (reason.as_str().to_owned(), count(reason)));
        Ok(json!({
            "states": BTreeMap::from(states), "waiting_for": BTreeMap::from(reasons),
        }))
    }

    /// Replications of a remote in one state or all, and where the next page begins. A page may be shorter than `limit`
    /// although more follow.
    pub async fn remote_jobs(
        &self,
        of: RemoteId<'_>,
        only: Option<RemoteState>,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<(Vec<Value>, Option<Cursor>), ServiceError> {
        let (mut rows, mut cursor, mut visits) = (Vec::new(), after.cloned(), 0);
        while rows.len() < limit && visits < VISITS_MAX {
            let wanted = (limit - rows.len()).min(PAGE);
            let (jobs, next) = self.remote_page(of, cursor.as_ref(), wanted).await?;
            let now_ms = self.0.jobs.clock().now_ms();
            visits += PAGE as u64;
            let shown = jobs.iter().filter_map(|(info, data)| {
                let (state, reason) = state(info, data, now_ms);
                (only.is_none_or(|only| only == state))
                    .then(|| row(info, data, (state, reason), now_ms))
            });
            rows.extend(shown);
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        Ok((rows, cursor))
    }

    async fn remote_page(
        &self,
        of: RemoteId<'_>,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<(Vec<(JobInfo, JobData)>, Option<Cursor>), ServiceError> {
        let query = of_rule(of.instance, of.doc_id)?;
        let page = self.0.jobs.list(&self.0.ty, &query, after, limit).await?;
        let mut jobs = Vec::new();
        for Listed { info, data, .. } in page.jobs {
            let data = JobData::decode(&data.unwrap_or_default())?;
            // What an earlier revision of the remote asked for does not run again.
            let runs = || data.is_of(of.instance, of.doc_id) && info.state == State::Running;
            if data.is_current_of(of) || runs() {
                jobs.push((info, data));
            }
        }
        Ok((jobs, page.cursor))
    }
}

fn state(info: &JobInfo, data: &JobData, now_ms: i64) -> (RemoteState, Option<Reason>) {
    let waits = |reason| (RemoteState::Waiting, Some(reason));
    match info.state {
        State::Running => (RemoteState::Running, None),
        State::Finished | State::Dead if data.state == JobState::Failed => {
            (RemoteState::Failed, None)
        }
        State::Finished | State::Dead => (RemoteState::Asleep, None),
        State::Pending if data.paused => (RemoteState::Paused, None),
        State::Pending => match &info.waits_for {
            Some(limit) if remote_of(limit).is_some() => waits(Reason::Threads),
            Some(_) => waits(Reason::Target),
            None if (data.state == JobState::Crashing || has_stalled(info))
                && info.due_ms > now_ms =>
            {
                (RemoteState::Retrying, None)
            }
            None if info.due_ms <= now_ms => waits(Reason::Node),
            None if data.sleeps(info) && info.asked_ms.is_none() => (RemoteState::Asleep, None),
            None => waits(Reason::Delay),
        },
    }
}

/// Whether the node of its last run died or hung: the job waits before it is tried again.
fn has_stalled(info: &JobInfo) -> bool {
    let end = info.last.as_ref().and_then(|run| run.end.as_ref());
    end.is_some_and(|end| end.outcome == Outcome::Stalled)
}

impl JobData {
    /// Whether it waits for a change of its source. If there was one during its run, it waits only until the next one is due.
    fn sleeps(&self, info: &JobInfo) -> bool {
        let asleep = self.asleep.as_ref();
        asleep.is_some_and(|asleep| asleep.polls || info.due_ms >= ASLEEP_MS)
    }
}

fn row(
    info: &JobInfo,
    data: &JobData,
    (state, reason): (RemoteState, Option<Reason>),
    now_ms: i64,
) -> Value {
    let database = match &data.origin {
        Origin::Rule { database, .. } => database.as_deref(),
        Origin::Document { .. } | Origin::Request { .. } => None,
    };
    let time = |ms: i64| iso(ms.div_euclid(1000));
    let run = info.last.as_ref();
    let since_ms = match state {
        RemoteState::Running => run.map(|run| run.started_ms),
        RemoteState::Failed => info.finished_ms,
        RemoteState::Waiting => info.asked_ms,
        RemoteState::Retrying | RemoteState::Asleep | RemoteState::Paused => None,
    };
    let next_ms = match state {
        RemoteState::Retrying => Some(info.due_ms),
        RemoteState::Waiting => {
            Some(info.due_ms.max(now_ms)).filter(|_| reason == Some(Reason::Delay))
        }
        // Another run follows.
        RemoteState::Running => info.signal_ms.or(info.next_due_ms).map(|ms| ms.max(now_ms)),
        RemoteState::Asleep | RemoteState::Paused | RemoteState::Failed => None,
    };
    let error = matches!(data.state, JobState::Crashing | JobState::Failed);
    json!({
        "job_id": job_text(&info.id),
        "database": database,
        "url": data.shown.target,
        "state": state.as_str(),
        "reason": reason.map(Reason::as_str),
        "waits_for": waits_for(info, data, state, reason),
        "node": run.filter(|_| state == RemoteState::Running).map(|run| run.holder.to_string()),
        "since": since_ms.map_or_else(|| iso(data.last_updated), time),
        "next_run": next_ms.map(time),
        "runs": info.attempts,
        "errors": data.error_count,
        "last_error": error.then(|| data.error_text()),
    })
}

/// The reason of waiting as a text.
fn waits_for(
    info: &JobInfo,
    data: &JobData,
    state: RemoteState,
    reason: Option<Reason>,
) -> Option<String> {
    let due = || iso(info.due_ms.div_euclid(1000));
    Some(match (state, reason) {
        (RemoteState::Waiting, Some(Reason::Delay)) => format!("its delay, until {}", due()),
        (RemoteState::Waiting, Some(Reason::Node)) => "a replication node".to_owned(),
        (RemoteState::Waiting, _) => limits::shown(info.waits_for.as_ref()?),
        (RemoteState::Retrying, _) => format!("the next try, at {}", due()),
        (RemoteState::Asleep, _) if data.asleep.as_ref().is_some_and(|asleep| asleep.polls) => {
            "a change of the source, whose server is not followed".to_owned()
        }
        (RemoteState::Asleep, _) => "a change of the source".to_owned(),
        (RemoteState::Failed, _) => "being started, with `davenport remotes start`".to_owned(),
        (RemoteState::Running | RemoteState::Paused, _) => return None,
    })
}
