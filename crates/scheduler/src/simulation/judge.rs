//! Invariants of documents, jobs and databases after all faults have ended, and of everything that was copied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use jobs::{JobId, State};
use serde_json::Value;
use store::{KeyRange, KeyValue, RangeOptions};
use testkit::Report;
use tokio::time::Instant;

use super::fleet::Fleet;
use super::plan::Goal;
use crate::data::{JobData, JobState, Origin};
use crate::keys;
use crate::service::JOB_TIMEOUT;
use crate::testing::{Copied, Recorded};

/// Shorter overlaps do not count: two events at one moment of a paused clock.
const MOMENT: Duration = Duration::from_millis(1);

/// Violations, once all faults have ended.
pub(super) async fn violations(fleet: &Fleet) -> Vec<String> {
    let mut violations = Vec::new();
    let mut of_goal: BTreeMap<usize, Vec<(String, String)>> = BTreeMap::new();
    for (id, number) in fleet.documents() {
        let Ok(row) = (fleet.calm.replications)
            .scheduler_doc(&fleet.world.db, &id)
            .await
        else {
            continue;
        };
        let goal = &fleet.world.plan.goals[number];
        let state = row["state"].as_str().unwrap_or("none").to_owned();
        let waits = fleet.takes_turns() && goal.continuous && state == "pending";
        if !waits && !is_allowed(goal, &state, &row) {
            violations.push(format!("{id} ({goal:?}) is {row}"));
        }
        let doc = fleet.calm.read(&id).await;
        match doc {
            Ok(Some(doc)) => violations.extend(contradiction(&id, &state, &doc)),
            other => violations.push(format!("{id} has a row and is {other:?}")),
        }
        of_goal.entry(number).or_default().push((id, state));
    }
    for (number, documents) in of_goal {
        let goal = &fleet.world.plan.goals[number];
        let works = |(_, state): &&(String, String)| {
            matches!(&**state, "running" | "completed") || fleet.takes_turns() && state == "pending"
        };
        let working = documents.iter().filter(works).count();
        if goal.invalid {
            continue;
        }
        if working == 0 || goal.continuous && working > 1 {
            violations.push(format!("{working} of {documents:?} work"));
        }
        for difference in fleet.world.servers.differences(goal) {
            violations.push(format!("{goal:?}: {difference}"));
        }
    }
    violations.extend(rows(fleet).await);
    violations
}

/// Whether a document may stay in a state.
fn is_allowed(goal: &Goal, state: &str, row: &Value) -> bool {
    let is_duplicate = (row["info"]["error"].as_str())
        .is_some_and(|error| error.starts_with("Duplicate job running"));
    match state {
        "running" => goal.continuous && !goal.invalid,
        "completed" => !goal.continuous && !goal.invalid,
        "failed" => goal.documents > 1 && is_duplicate,
        "crashing" => goal.invalid,
        _ => false,
    }
}

/// Checks that a document shows the state of its job.
fn contradiction(id: &str, state: &str, doc: &Value) -> Option<String> {
    let says = doc.get("_replication_state").and_then(Value::as_str);
    let should = matches!(state, "completed" | "failed").then_some(state);
    (says != should).then(|| format!("{id} is {state} and says {says:?}"))
}

/// Jobs, and rows that belong to them.
async fn rows(fleet: &Fleet) -> Vec<String> {
    let replications = &fleet.calm.replications;
    let mut violations = replications
        .jobs()
        .check(replications.job_type())
        .await
        .unwrap()
        .problems;
    let mut jobs = BTreeMap::new();
    let query = jobs::Query {
        data: true,
        ..jobs::Query::default()
    };
    let mut cursor = None;
    loop {
        let page = replications
            .jobs()
            .list(replications.job_type(), &query, cursor.as_ref(), 100)
            .await;
        let page = page.unwrap();
        for listed in page.jobs {
            let data = JobData::decode(&listed.data.unwrap_or_default()).unwrap();
            jobs.insert(listed.info.id.clone(), (listed.info.state, data));
        }
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    let mut listed = BTreeSet::new();
    for row in all(fleet, keys::all_active()).await {
        listed.insert(row.key.to_vec());
    }
    for (id, (state, data)) in &jobs {
        let active = keys::active(data.rep_id.as_deref(), id);
        if listed.remove(&active) != (*state != State::Finished) {
            violations.push(format!("job {id} is {state:?} and not listed as that"));
        }
        if !agree(*state, data.state) {
            violations.push(format!("job {id} is {state:?} and says {:?}", data.state));
        }
        if let Origin::Document { doc_id, .. } = &data.origin
            && !matches!(fleet.calm.read(doc_id).await, Ok(Some(_)))
        {
            violations.push(format!("job {id} has no document"));
        }
        violations.extend(stranded(fleet, id, data, &jobs).await);
    }
    for key in listed {
        violations.push(format!("an orphaned row: {}", key.escape_ascii()));
    }
    violations
}

/// Whether the queue's state of a job agrees with the state in its data.
fn agree(queue: State, own: JobState) -> bool {
    match queue {
        // A run may not have started yet, and the state written by a stopped node stays.
        State::Pending | State::Running => !own.is_terminal(),
        State::Finished | State::Dead => own.is_terminal(),
    }
}

/// A job that failed as a duplicate of one that does not run any more.
async fn stranded(
    fleet: &Fleet,
    id: &JobId,
    data: &JobData,
    jobs: &BTreeMap<JobId, (State, JobData)>,
) -> Option<String> {
    let is_duplicate = data.state == JobState::Failed && !data.is_transient();
    let replication = data.rep_id.as_deref().filter(|_| is_duplicate)?;
    let owner = all(fleet, one(keys::owner(replication))).await.pop();
    let owner = owner.and_then(|row| JobId::new(row.value).ok());
    let works = (owner.as_ref())
        .and_then(|owner| jobs.get(owner))
        .is_some_and(|(state, _)| *state != State::Finished);
    (!works).then(|| {
        format!(
            "job {id} waits for {owner:?}, which does not work: {}",
            data.error_text()
        )
    })
}

fn one(key: Vec<u8>) -> KeyRange {
    let mut end = key.clone();
    end.push(0);
    KeyRange::new(key, end)
}

async fn all(fleet: &Fleet, range: KeyRange) -> Vec<KeyValue> {
    let range = &range;
    (fleet.world.store)
        .transact("judge", |tx| async move {
            let rows = tx.get_range(range.clone(), RangeOptions::default());
            rows.collect().await
        })
        .await
        .map_err(|error: store::Error| error)
        .unwrap()
}

/// All violations of a run, when all nodes have stopped.
pub(super) async fn judge(fleet: &Fleet) -> Report {
    let replications = &fleet.calm.replications;
    let counts = replications
        .jobs()
        .counts(replications.job_type())
        .await
        .unwrap();
    let journal = fleet
        .world
        .journal
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let mut problems = Vec::new();
    if counts.running > 0 {
        problems.push(format!(
            "all nodes have stopped, and {} jobs run",
            counts.running
        ));
    }
    problems.extend(concurrent(&journal.copied));
    problems.extend(checkpoints_in_turn(&journal.recorded));
    let at = |at: Instant| at.duration_since(fleet.begun).as_secs_f64();
    let story = journal.copied.iter().map(|copied| {
        let ended = copied.ended.map(at);
        let (name, begun) = (copied.process.name(), at(copied.begun));
        format!(
            "{name} {} of {}: {begun:.3} to {ended:.3?}",
            copied.replication, copied.job
        )
    });
    Report {
        problems,
        story: story.collect(),
        counts: [
            ("runs", journal.copied.len()),
            ("checkpoints", journal.recorded.len()),
        ],
        lasted: fleet.begun.elapsed(),
    }
}

/// Runs of one replication id that copied concurrently.
///
/// A job never has two, except that a paused process may not have noticed yet. Of two jobs, the first of which was
/// removed, the first run may continue until it is told so at its next heartbeat.
fn concurrent(copied: &[Copied]) -> Vec<String> {
    let mut problems = Vec::new();
    for (place, first) in copied.iter().enumerate() {
        for second in &copied[place + 1..] {
            if first.replication != second.replication {
                continue;
            }
            let ended = first.ended.unwrap_or_else(Instant::now);
            let overlap = ended.saturating_duration_since(second.begun.max(first.begun));
            let allowed = if first.job == second.job && !is_new(first, second) {
                MOMENT
            } else {
                JOB_TIMEOUT
            };
            let awake = overlap.saturating_sub(paused_for(first, second.begun, ended));
            if awake > allowed {
                problems.push(format!(
                    "{} and {} both copied for {} ({} and {}) for {awake:?}",
                    first.process.name(),
                    second.process.name(),
                    first.replication,
                    first.job,
                    second.job,
                ));
            }
        }
    }
    problems.truncate(5);
    problems
}

/// Whether the job was removed and recreated between two runs.
fn is_new(first: &Copied, second: &Copied) -> bool {
    first.created_ms != second.created_ms
}

/// How long a process was paused between two moments.
fn paused_for(copied: &Copied, from: Instant, until: Instant) -> Duration {
    let pauses = copied.process.pauses();
    let within = pauses.into_iter().map(|(begun, ended)| {
        let ended = ended.unwrap_or(until).min(until);
        ended.saturating_duration_since(begun.max(from))
    });
    within.sum()
}

/// Checkpoints of one replication id: once a run has written one after another run did, the other must not write again.
fn checkpoints_in_turn(recorded: &[Recorded]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut sessions: BTreeMap<&str, Vec<&Recorded>> = BTreeMap::new();
    for record in recorded {
        let known = sessions.entry(&record.replication).or_default();
        match known
            .iter()
            .position(|earlier| earlier.session == record.session)
        {
            Some(place) if place + 1 < known.len() => problems.push(format!(
                "{} wrote a checkpoint of {} after {} had",
                record.process,
                record.replication,
                known[known.len() - 1].process,
            )),
            Some(_) => {}
            None => known.push(record),
        }
    }
    problems.truncate(5);
    problems
}
