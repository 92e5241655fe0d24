//! What must hold of everything that happened.

use std::collections::BTreeMap;
use std::time::Duration;

use jobs::{JobType, Query};
use testkit::Report;
use tokio::time::Instant;

use crate::endpoint::Mode;
use crate::fleet::{Fleet, RECOVERY};
use crate::journal::{Call, Record};
use crate::plan::{BACK_OFF, Way};

/// Of an interesting time before the change that is missing.
const BEFORE: Duration = Duration::from_mins(1);

/// A problem, and the database and time it is about.
struct Found {
    problem: String,
    db: String,
    at: Instant,
}

/// The jobs as they are at the end.
pub(crate) async fn states(fleet: &Fleet) -> Vec<String> {
    let mut states = Vec::new();
    let jobs = fleet.calm.jobs();
    let now_ms = jobs.clock().now_ms();
    for ty in ["feeds", "listen", "rep_jobs", "webhooks"] {
        let ty = JobType::new(ty).unwrap();
        let query = Query {
            data: true,
            ..Query::default()
        };
        let page = jobs.list(&ty, &query, None, 100).await.unwrap();
        for listed in page.jobs {
            let info = &listed.info;
            if ty.to_string() == "webhooks" && info.state.is_over() {
                continue;
            }
            let data = listed.data.unwrap_or_default();
            let data: String = String::from_utf8_lossy(&data).chars().take(600).collect();
            states.push(format!(
                "{ty} {} is {:?}, due in {} ms, last {:?}: {data}",
                info.id,
                info.state,
                info.due_ms.saturating_sub(now_ms),
                info.last,
            ));
        }
    }
    states
}

pub(crate) fn judge(fleet: &Fleet, states: Vec<String>) -> Report {
    fleet.world.journal.with(|record| {
        let mut found = Vec::new();
        for way in &fleet.world.plan.ways {
            found.extend(missed(
                record,
                *way,
                (fleet.healed, fleet.world.plan.latest()),
            ));
            if let Way::InOrder(_) = way {
                found.extend(disorder(record, *way));
            }
            if way.calls() && !fleet.world.plan.skewed {
                found.extend(too_early(record, *way));
            }
        }
        let story = found.first().map(|first| {
            let mut story =
                record.story(&first.db, first.at.checked_sub(BEFORE).unwrap_or(first.at));
            story.extend(states);
            story
        });
        found.truncate(5);
        Report {
            problems: found.into_iter().map(|found| found.problem).collect(),
            story: story.unwrap_or_default(),
            counts: [
                ("changes", record.changes.len()),
                ("calls", record.calls.len()),
            ],
            lasted: record.begun.elapsed(),
        }
    })
}

/// Changes that were not dealt with in time.
fn missed(record: &Record, way: Way, (healed, latest): (Instant, Duration)) -> Vec<Found> {
    let mut calls: BTreeMap<(&str, &str), Instant> = BTreeMap::new();
    for call in well(record, way) {
        calls.entry((&call.db, &call.doc)).or_insert(call.at);
    }
    let mut found = Vec::new();
    for change in record.changes.iter().filter(|change| !change.is_gone) {
        let arrived = if way.calls() {
            calls.get(&(&*change.db, &*change.doc)).copied()
        } else {
            let key = (way.name(), change.db.clone(), change.doc.clone());
            record.arrived.get(&key).copied()
        };
        let latest = change.at.max(healed + RECOVERY) + latest;
        if arrived.is_none_or(|arrived| arrived > latest) {
            let (name, at) = (way.name(), record.seconds(change.at));
            let arrived = arrived.map(|arrived| record.seconds(arrived));
            found.push(Found {
                problem: format!(
                    "{}/{} was written at {at:.3}, and {name} dealt with it at {arrived:.3?}",
                    change.db, change.doc
                ),
                db: change.db.clone(),
                at: change.at,
            });
        }
    }
    found
}

/// Calls that succeeded.
fn well(record: &Record, way: Way) -> impl Iterator<Item = &Call> {
    let of_way = (record.calls.iter()).filter(move |call| call.way == way.name());
    of_way.filter(|call| call.mode == Mode::Well)
}

/// Calls that did not follow the one about the change before, or repeated an older one.
fn disorder(record: &Record, way: Way) -> Vec<Found> {
    let mut found = Vec::new();
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    for call in (record.calls.iter()).filter(|call| call.way == way.name()) {
        // Names grow with the generation of the database and its changes.
        let before = last.get(&*call.db).copied().unwrap_or("");
        if call.doc.as_str() < before {
            found.push(Found {
                problem: format!("{} was called about {} after {before}", call.db, call.doc),
                db: call.db.clone(),
                at: call.at,
            });
        }
        let skipped = record.changes.iter().find(|change| {
            change.db == call.db
                && !change.is_gone
                && change.doc.as_str() > before
                && change.doc < call.doc
                && change.at < call.at
        });
        if let Some(skipped) = skipped.filter(|_| !before.is_empty()) {
            found.push(Found {
                problem: format!(
                    "{} was called about {} after {before}, before {}",
                    call.db, call.doc, skipped.doc
                ),
                db: call.db.clone(),
                at: call.at,
            });
        }
        if call.mode == Mode::Well {
            last.insert(&call.db, &call.doc);
        }
    }
    found
}

/// Calls that were repeated before the back-off of the last attempt had passed.
fn too_early(record: &Record, way: Way) -> Vec<Found> {
    let mut found = Vec::new();
    let mut failed: BTreeMap<(&str, &str), Instant> = BTreeMap::new();
    let at_least = Duration::from_secs_f64(BACK_OFF.0 * 0.75);
    for call in (record.calls.iter()).filter(|call| call.way == way.name()) {
        let key = (&*call.db, &*call.doc);
        if let Some(before) = failed.remove(&key)
            && call.at.saturating_duration_since(before) < at_least
        {
            found.push(Found {
                problem: format!(
                    "{} was called about {} at {:.3}, and failed at {:.3}",
                    call.db,
                    call.doc,
                    record.seconds(call.at),
                    record.seconds(before),
                ),
                db: call.db.clone(),
                at: call.at,
            });
        }
        if call.mode != Mode::Well {
            failed.insert(key, call.at);
        }
    }
    found
}
